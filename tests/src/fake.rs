//! A server that says what the test tells it to.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::Model;
use crate::frames::take_command;

/// Accepts connections on a port of its own, greets as told, and asks a closure for every answer. Everything it
/// gets is recorded. All of its threads have ended when it is dropped.
#[derive(Debug)]
pub struct ScriptedServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// A command to be answered.
#[derive(Clone, Debug)]
pub struct Call {
    /// The connection it came on, counted from 0.
    pub connection: usize,
    /// Whether the connection speaks RESP3.
    pub resp3: bool,
    /// When it was complete.
    pub at: Instant,
    /// The command and its arguments.
    pub args: Vec<Vec<u8>>,
}

/// What is done about a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// These bytes are sent as they are; none are a reply that never comes.
    Bytes(Vec<u8>),
    /// These bytes are sent, then the connection is closed.
    Last(Vec<u8>),
    /// The connection is closed.
    Close,
    /// The connection is reset.
    Reset,
}

/// How a connection is greeted. `HELLO`, `AUTH`, `CLIENT` and `SELECT` are answered here, everything else by the
/// closure.
#[derive(Clone, Debug)]
pub struct Handshake {
    /// What comes of HELLO.
    pub hello: Hello,
    /// User and password, if any are asked for.
    pub credentials: Option<(String, String)>,
    /// What it calls itself in its greeting.
    pub server: String,
    /// The version it says it has.
    pub version: String,
}

/// What comes of HELLO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    /// Versions 2 and 3 are spoken.
    Accepted,
    /// As a server that has never heard of it.
    Unknown,
    /// As a server that only speaks version 2.
    NoProto,
    /// As a server whose user may not say it.
    NotPermitted,
}

/// What is said, without listening, by a server that is no Redis at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// A web server that was sent something odd.
    Http,
    /// A TLS server that was not sent a handshake.
    Tls,
    /// A server that greets in a language of its own.
    Ssh,
    /// One that accepts and never says anything.
    Silent,
}

impl ScriptedServer {
    /// Starts one whose every answer comes from the closure.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start<A: Into<Answer>>(
        handshake: Handshake,
        mut answer: impl FnMut(&Call) -> A + Send + 'static,
    ) -> io::Result<Self> {
        Self::launch(Behaviour::Scripted(
            handshake,
            Mutex::new(Box::new(move |call| answer(call).into())),
        ))
    }

    /// Starts one that behaves as the model does.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn model(handshake: Handshake, mut model: Model) -> io::Result<Self> {
        Self::start(handshake, move |call| model.answer(call))
    }

    /// Starts something else than a Redis server.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn stranger(stranger: Stranger) -> io::Result<Self> {
        Self::launch(Behaviour::Stranger(stranger))
    }

    /// Where it listens.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// A URL of [`Self::addr`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Every command it got, the greeting's too, in the order they were complete.
    #[must_use]
    pub fn commands(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    /// How many connections were made.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }

    /// Waits until that many commands came that meet the condition; whether they did.
    #[must_use]
    pub fn wait_for(
        &self,
        count: usize,
        within: Duration,
        condition: impl Fn(&Call) -> bool,
    ) -> bool {
        let until = Instant::now() + within;
        let mut state = self.shared.lock();
        while state.calls.iter().filter(|call| condition(call)).count() < count {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Sends bytes nobody asked for on every open connection.
    pub fn push(&self, bytes: &[u8]) {
        for stream in &self.shared.lock().open {
            (&**stream).write_all(bytes).ok();
        }
    }

    /// Closes every connection.
    pub fn close_all(&self) {
        for stream in self.shared.lock().open.drain(..) {
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    fn launch(behaviour: Behaviour) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, &listener)
        });
        Ok(Self {
            shared,
            address,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        // Wakes the acceptor, after which there are no new connections.
        TcpStream::connect(self.address).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        self.close_all();
        let handles = std::mem::take(&mut self.shared.lock().handles);
        for handle in handles {
            handle.join().ok();
        }
    }
}

impl Call {
    /// The command's name, in upper case.
    #[must_use]
    pub fn name(&self) -> String {
        self.arg(0).to_ascii_uppercase()
    }

    /// Whether this is the command's name, in any case.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.args
            .first()
            .is_some_and(|arg| arg.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Whether an argument is this word, in any case.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        let mut arguments = self.args.iter().skip(1);
        arguments.any(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// An argument, as text; empty if there is none.
    #[must_use]
    pub fn arg(&self, index: usize) -> String {
        let bytes = self.args.get(index).map_or(&[][..], Vec::as_slice);
        String::from_utf8_lossy(bytes).into_owned()
    }
}

impl Answer {
    /// `+OK`
    #[must_use]
    pub fn ok() -> Self {
        Self::simple("OK")
    }

    /// `+text`
    #[must_use]
    pub fn simple(text: &str) -> Self {
        Self::Bytes(format!("+{text}\r\n").into_bytes())
    }

    /// `-text`, such as `READONLY You can't write against a read only replica.`
    #[must_use]
    pub fn error(text: &str) -> Self {
        Self::Bytes(format!("-{text}\r\n").into_bytes())
    }

    /// `:number`
    #[must_use]
    pub fn int(number: i64) -> Self {
        Self::Bytes(format!(":{number}\r\n").into_bytes())
    }

    /// A string of that length and bytes.
    #[must_use]
    pub fn bulk(bytes: &[u8]) -> Self {
        let mut answer = format!("${}\r\n", bytes.len()).into_bytes();
        answer.extend_from_slice(bytes);
        answer.extend_from_slice(b"\r\n");
        Self::Bytes(answer)
    }

    /// The null of the protocol in use.
    #[must_use]
    pub fn null(call: &Call) -> Self {
        let null: &[u8] = if call.resp3 { b"_\r\n" } else { b"$-1\r\n" };
        Self::Bytes(null.to_vec())
    }

    /// A reply that never comes, and no other behind it.
    #[must_use]
    pub const fn stall() -> Self {
        Self::Bytes(Vec::new())
    }
}

impl From<Vec<u8>> for Answer {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&str> for Answer {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl Default for Handshake {
    fn default() -> Self {
        Self {
            hello: Hello::Accepted,
            credentials: None,
            server: "redis".into(),
            version: "7.0.15".into(),
        }
    }
}

impl Handshake {
    /// One with this reaction to HELLO.
    #[must_use]
    pub fn with_hello(hello: Hello) -> Self {
        Self {
            hello,
            ..Self::default()
        }
    }

    /// One that asks for this user and password.
    #[must_use]
    pub fn with_password(user: &str, password: &str) -> Self {
        Self {
            credentials: Some((user.to_owned(), password.to_owned())),
            ..Self::default()
        }
    }

    /// The answer to a command of the handshake, or to any that comes before a password that must come first.
    fn answer(&self, call: &mut Call, known: &mut bool) -> Option<Answer> {
        if call.is("HELLO") {
            return Some(self.greet(call, known));
        }
        if call.is("AUTH") {
            let given = match call.args.len() {
                2 => ("default".to_owned(), call.arg(1)),
                _ => (call.arg(1), call.arg(2)),
            };
            return Some(self.check(&given, known));
        }
        if self.credentials.is_some() && !*known {
            return Some(Answer::error("NOAUTH Authentication required."));
        }
        if call.is("CLIENT") && call.has("ID") {
            return Some(Answer::int(i64::try_from(call.connection).unwrap_or(0) + 1));
        }
        (call.is("CLIENT") || call.is("SELECT")).then(Answer::ok)
    }

    fn greet(&self, call: &mut Call, known: &mut bool) -> Answer {
        match self.hello {
            Hello::Accepted => {}
            Hello::NoProto => {
                return Answer::error("NOPROTO unsupported protocol version");
            }
            Hello::Unknown => {
                return Answer::error(
                    "ERR unknown command `HELLO`, with args beginning with: `3`, ",
                );
            }
            Hello::NotPermitted => {
                return Answer::error(
                    "NOPERM User default has no permissions to run the 'hello' command",
                );
            }
        }
        let auth = call
            .args
            .iter()
            .position(|arg| arg.eq_ignore_ascii_case(b"AUTH"));
        if let Some(at) = auth {
            let answer = self.check(&(call.arg(at + 1), call.arg(at + 2)), known);
            if answer != Answer::ok() {
                return answer;
            }
        }
        if self.credentials.is_some() && !*known {
            return Answer::error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> \
                 AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol \
                 version at the same time",
            );
        }
        match call.arg(1).as_str() {
            "3" => call.resp3 = true,
            "2" => call.resp3 = false,
            "" => {}
            _ => return Answer::error("NOPROTO unsupported protocol version"),
        }
        let (head, proto) = if call.resp3 { ("%7", 3) } else { ("*14", 2) };
        let (server, version) = (&self.server, &self.version);
        let id = call.connection + 1;
        Answer::Bytes(
            format!(
                "{head}\r\n+server\r\n+{server}\r\n+version\r\n+{version}\r\n+proto\r\n:{proto}\r\n+id\r\n:{id}\r\n\
                 +mode\r\n+standalone\r\n+role\r\n+master\r\n+modules\r\n*0\r\n"
            )
            .into_bytes(),
        )
    }

    fn check(&self, given: &(String, String), known: &mut bool) -> Answer {
        match &self.credentials {
            None => Answer::error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                 configuration is correct?",
            ),
            Some(wanted) if wanted == given => {
                *known = true;
                Answer::ok()
            }
            Some(_) => {
                Answer::error("WRONGPASS invalid username-password pair or user is disabled.")
            }
        }
    }
}

type Script = Box<dyn FnMut(&Call) -> Answer + Send>;

enum Behaviour {
    Scripted(Handshake, Mutex<Script>),
    Stranger(Stranger),
}

struct Shared {
    behaviour: Behaviour,
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.state).finish()
    }
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    open: Vec<Arc<TcpStream>>,
    handles: Vec<JoinHandle<()>>,
    accepted: usize,
    stopped: bool,
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept() else {
            continue;
        };
        let mut state = shared.lock();
        if state.stopped {
            return;
        }
        stream.set_nodelay(true).ok();
        let stream = Arc::new(stream);
        let connection = state.accepted;
        state.accepted += 1;
        state.open.push(Arc::clone(&stream));
        let shared = Arc::clone(shared);
        state.handles.push(thread::spawn(move || {
            serve(&shared, &stream, connection);
            // Closed when nobody has it any more; a reset needs that.
            let other = |open: &Arc<TcpStream>| !Arc::ptr_eq(open, &stream);
            shared.lock().open.retain(other);
        }));
    }
}

fn serve(shared: &Shared, mut stream: &TcpStream, connection: usize) {
    let (mut known, mut resp3, mut stalled) = (false, false, false);
    let mut buffer = Vec::new();
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let length = match stream.read(&mut bytes) {
            Ok(length) if length > 0 => length,
            _ => return,
        };
        let (handshake, script) = match &shared.behaviour {
            Behaviour::Scripted(handshake, script) => (handshake, script),
            Behaviour::Stranger(Stranger::Silent) => continue,
            Behaviour::Stranger(stranger) => {
                stream.write_all(stranger.says()).ok();
                return;
            }
        };
        buffer.extend_from_slice(&bytes[..length]);
        loop {
            let args = match take_command(&mut buffer) {
                Ok(Some(args)) => args,
                Ok(None) => break,
                Err(why) => {
                    let error = format!("-ERR Protocol error: {why}\r\n");
                    stream.write_all(error.as_bytes()).ok();
                    return;
                }
            };
            let mut call = Call {
                connection,
                resp3,
                at: Instant::now(),
                args,
            };
            shared.lock().calls.push(call.clone());
            shared.changed.notify_all();
            let answer = handshake.answer(&mut call, &mut known);
            resp3 = call.resp3;
            let answer = answer.unwrap_or_else(|| {
                let mut script = script.lock().unwrap_or_else(PoisonError::into_inner);
                script(&call)
            });
            let (bytes, last) = match answer {
                Answer::Bytes(bytes) => (bytes, false),
                Answer::Last(bytes) => (bytes, true),
                Answer::Close => return,
                Answer::Reset => {
                    set_socket_linger(stream, Some(Duration::ZERO)).ok();
                    return;
                }
            };
            stalled |= bytes.is_empty();
            if (!stalled && stream.write_all(&bytes).is_err()) || last {
                return;
            }
        }
    }
}

impl Stranger {
    const fn says(self) -> &'static [u8] {
        match self {
            Self::Http => {
                b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nContent-Length: 11\r\n\
                  Connection: close\r\n\r\nBad Request"
            }
            // Alert, TLS 1.2, two bytes: fatal, unexpected message.
            Self::Tls => &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x0a],
            Self::Ssh => b"SSH-2.0-OpenSSH_9.9\r\n",
            Self::Silent => b"",
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
