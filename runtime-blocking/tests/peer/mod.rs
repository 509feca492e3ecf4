//! The other end of a client's connections, as the test has it.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tenure_blocking::Config;

/// Nothing takes this long, unless it never comes.
pub(crate) const LONG: Duration = Duration::from_secs(20);
const GREETING: &[u8] = b"%3\r\n+server\r\n+redis\r\n+version\r\n+8.6.0\r\n+proto\r\n:3\r\n";

/// A server of one name that is always free: it answers everything that it is asked as granted, until the test says otherwise.
pub(crate) struct Peer {
    port: u16,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Peer {
    /// `before` is called with the number of the connection, that of the command on it, and the connection: before the command
    /// is answered. Command 0 is the greeting. It ends the connection by saying no.
    pub(crate) fn start(
        before: impl Fn(usize, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::<Mutex<Vec<u8>>>::default();
        let all = Arc::clone(&sent);
        // It ends with the process.
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let before = |command, stream: &mut _| before(connection, command, stream);
                let _ = serve(stream.unwrap(), &all, before);
            }
        });
        Peer { port, sent }
    }

    pub(crate) fn config(&self) -> Config {
        Config::from_url(&format!("redis://127.0.0.1:{}/", self.port))
            .unwrap()
            .no_wake_ups()
            .no_server_checks()
    }

    /// Everything it was sent.
    #[allow(dead_code, reason = "not every test asks")]
    pub(crate) fn sent(&self) -> String {
        String::from_utf8_lossy(&self.sent.lock().unwrap()).into_owned()
    }
}

fn serve(
    mut stream: TcpStream,
    all: &Mutex<Vec<u8>>,
    before: impl Fn(usize, &mut TcpStream) -> bool,
) -> io::Result<()> {
    stream.set_read_timeout(Some(LONG))?;
    let (mut bytes, mut command) = ([0; 4096], 0);
    loop {
        let n = stream.read(&mut bytes)?;
        if n == 0 {
            return Ok(());
        }
        let new = &bytes[..n];
        all.lock().unwrap().extend(new);
        let text = String::from_utf8_lossy(new).into_owned();
        // Commands are small, and each is written at once.
        for words in text.split('*').skip(1) {
            if !before(command, &mut stream) {
                return Ok(());
            }
            let answer = match (command, words) {
                (0, _) => GREETING,
                (_, words) if words.contains("DELEX") => b":1\r\n",
                _ => b"_\r\n",
            };
            command += 1;
            stream.write_all(answer)?;
        }
    }
}
