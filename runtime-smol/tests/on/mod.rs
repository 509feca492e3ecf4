//! Every test here runs on smol's global executor and on async-std's.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tenure_client::Config;

/// Longer than anything here takes, on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An executor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    Smol,
    AsyncStd,
}

impl On {
    pub(crate) const EACH: [On; 2] = [On::Smol, On::AsyncStd];

    /// Runs a future to its end, but not for ever.
    pub(crate) fn run<T>(self, future: impl Future<Output = T>) -> T {
        let bounded = async {
            let late = async {
                async_io::Timer::after(LONG).await;
                panic!("it hangs on {self:?}")
            };
            smol::future::or(future, late).await
        };
        match self {
            On::Smol => smol::block_on(bounded),
            On::AsyncStd => async_std::task::block_on(bounded),
        }
    }

    pub(crate) fn spawn(self, future: impl Future<Output = ()> + Send + 'static) {
        match self {
            On::Smol => smol::spawn(future).detach(),
            On::AsyncStd => drop(async_std::task::spawn(future)),
        }
    }
}

/// A server for one connection, on a thread: it greets, gives these answers to what it is asked then, one for each read, and then
/// none. It ends with its connection: with everything it was sent, and how it ended.
pub(crate) struct Scripted {
    pub(crate) port: u16,
    serving: JoinHandle<(Vec<u8>, Option<std::io::ErrorKind>)>,
}

impl Scripted {
    pub(crate) fn start(answers: &'static [&'static [u8]]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, answers)
        });
        Scripted { port, serving }
    }

    pub(crate) fn config(&self) -> Config {
        Config::from_url(&format!("redis://127.0.0.1:{}/", self.port))
            .unwrap()
            .no_wake_ups()
            .no_server_checks()
    }

    /// What it was sent, as text, and the error its connection ended with.
    pub(crate) fn end(self) -> (String, Option<std::io::ErrorKind>) {
        let (sent, error) = self.serving.join().unwrap();
        (String::from_utf8_lossy(&sent).into_owned(), error)
    }
}

fn serve(mut stream: TcpStream, answers: &[&[u8]]) -> (Vec<u8>, Option<std::io::ErrorKind>) {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let greeting = &b"%2\r\n+proto\r\n:3\r\n+server\r\n+redis\r\n"[..];
    let mut answers = [greeting].into_iter().chain(answers.iter().copied());
    let (mut sent, mut bytes) = (Vec::new(), [0; 512]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return (sent, None),
            Ok(n) => sent.extend(&bytes[..n]),
            Err(error) => return (sent, Some(error.kind())),
        }
        if let Some(answer) = answers.next() {
            stream.write_all(answer).unwrap();
        }
    }
}
