//! A minimal blocking client, to look at a server with other eyes than those of the code under test.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Failure;

/// How long it waits for a reply.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection that speaks RESP2.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Socket>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR ..`, without the minus.
    Error(String),
    /// `:1`
    Int(i64),
    /// `$2 hi`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*2 ..`
    Array(Vec<Self>),
}

impl Client {
    /// Connects over TCP.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(Socket::Tcp(stream)),
        })
    }

    /// Connects over a Unix socket.
    ///
    /// # Errors
    /// When nobody listens.
    pub fn connect_unix(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream: BufReader::new(Socket::Unix(stream)),
        })
    }

    /// Sends a command and waits for its reply. An error reply is a reply.
    ///
    /// # Errors
    /// When the connection fails, or the reply is none.
    pub fn cmd<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<Reply> {
        self.send(arguments)?;
        self.receive()
    }

    /// Sends a command without waiting.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            let argument = argument.as_ref();
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// When the connection fails, or what came is no reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        let Some(line) = line.strip_suffix(b"\r\n").filter(|line| !line.is_empty()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let text = String::from_utf8_lossy(&line[1..]).into_owned();
        let number = || text.parse::<i64>().map_err(io::Error::other);
        Ok(match line[0] {
            b'+' => Reply::Simple(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Int(number()?),
            b'$' => match usize::try_from(number()?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Reply::Bulk(bytes)
                }
            },
            b'*' => match number()? {
                -1 => Reply::Nil,
                length => Reply::Array(
                    (0..length)
                        .map(|_| self.receive())
                        .collect::<Result<_, _>>()?,
                ),
            },
            other => return Err(io::Error::other(format!("a reply of type {other}"))),
        })
    }

    /// Sends a command that must not be refused.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn ok<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply, Failure> {
        match self.cmd(arguments)? {
            Reply::Error(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, Failure> {
        match self.ok(&["GET", key])? {
            Reply::Nil => Ok(None),
            Reply::Bulk(value) => Ok(Some(value)),
            reply => Err(format!("GET answered {reply:?}").into()),
        }
    }

    /// For how much longer a key lives: `None` if there is none, `Duration::MAX` if it does not expire.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn pttl(&mut self, key: &str) -> Result<Option<Duration>, Failure> {
        Ok(match self.int(&["PTTL", key])? {
            -2 => None,
            -1 => Some(Duration::MAX),
            millis => Some(Duration::from_millis(u64::try_from(millis)?)),
        })
    }

    /// Whether there is such a key.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn exists(&mut self, key: &str) -> Result<bool, Failure> {
        Ok(self.int(&["EXISTS", key])? == 1)
    }

    /// Sets a key, with a TTL if one is given.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn set(&mut self, key: &str, value: &str, ttl: Option<Duration>) -> Result<(), Failure> {
        match ttl {
            None => self.ok(&["SET", key, value])?,
            Some(ttl) => self.ok(&["SET", key, value, "PX", &ttl.as_millis().to_string()])?,
        };
        Ok(())
    }

    /// Deletes a key; whether there was one.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn del(&mut self, key: &str) -> Result<bool, Failure> {
        Ok(self.int(&["DEL", key])? == 1)
    }

    /// Every key there is, sorted.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn keys(&mut self) -> Result<Vec<String>, Failure> {
        let Reply::Array(keys) = self.ok(&["KEYS", "*"])? else {
            return Err("KEYS answered with no list".into());
        };
        let mut keys: Vec<String> = keys.iter().map(Reply::text).collect();
        keys.sort();
        Ok(keys)
    }

    /// Changes the server's configuration.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn config_set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        self.ok(&["CONFIG", "SET", name, value]).map(drop)
    }

    /// A section of INFO, as text.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn info(&mut self, section: &str) -> Result<String, Failure> {
        Ok(self.ok(&["INFO", section])?.text())
    }

    /// One field of a section of INFO.
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn info_field(&mut self, section: &str, field: &str) -> Result<Option<String>, Failure> {
        let text = self.info(section)?;
        Ok(text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value.to_owned()))
    }

    /// How often a command was called on this server, by its lower-case name (`set`, `config|get`).
    ///
    /// # Errors
    /// When it is refused, or the connection fails.
    pub fn calls(&mut self, command: &str) -> Result<u64, Failure> {
        let field = self.info_field("commandstats", &format!("cmdstat_{command}"))?;
        let calls = field
            .as_deref()
            .and_then(|field| field.split(',').next()?.strip_prefix("calls="));
        Ok(calls.map_or(Ok(0), str::parse)?)
    }

    /// A handle that can close the connection from another thread.
    ///
    /// # Errors
    /// When the system has no handle left.
    pub fn closer(&self) -> io::Result<Closer> {
        Ok(Closer(match self.stream.get_ref() {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
        }))
    }

    /// How long to wait for a reply from now on; for ever if `None`.
    ///
    /// # Errors
    /// When the duration is zero.
    pub fn patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        match self.stream.get_ref() {
            Socket::Tcp(stream) => stream.set_read_timeout(patience),
            Socket::Unix(stream) => stream.set_read_timeout(patience),
        }
    }

    fn int<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<i64, Failure> {
        match self.ok(arguments)? {
            Reply::Int(number) => Ok(number),
            reply => Err(format!("a number was expected, not {reply:?}").into()),
        }
    }
}

impl Reply {
    /// Whether it is an error whose first word is this.
    #[must_use]
    pub fn is_error(&self, word: &str) -> bool {
        matches!(self, Self::Error(text) if text.split(' ').next() == Some(word))
    }

    /// What it says, as text.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil => String::new(),
            Self::Array(parts) => parts.iter().map(Self::text).collect::<Vec<_>>().join(" "),
        }
    }
}

/// Closes a connection another thread reads from.
#[derive(Debug)]
pub struct Closer(Socket);

impl Closer {
    /// Does it.
    pub fn close(&self) {
        match &self.0 {
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both).ok(),
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both).ok(),
        };
    }
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
