//! Real servers, started by the test that uses them.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use xtask::servers::{Entry, Manifest, ServerKind};

use crate::process::{Folder, Process};
use crate::{Authority, Client, Failure, Monitor, Pair};

const START_LIMIT: Duration = Duration::from_secs(30);

/// A real server on a TCP port of the loopback and on a Unix socket, in a folder of its own.
///
/// It is killed and its folder removed on drop.
#[derive(Debug)]
pub struct Server {
    entry: Entry,
    setup: Setup,
    port: u16,
    // Before the folder, so that it is gone when the folder is removed.
    process: Option<Process>,
    folder: Folder,
}

/// How a server is to be started.
#[derive(Clone, Debug)]
pub struct Setup {
    kind: ServerKind,
    arguments: Vec<String>,
    keep_data: bool,
    port: Option<u16>,
    tls: bool,
    files: Vec<(String, String)>,
}

impl Server {
    /// Starts a server with these arguments added. It keeps nothing over a restart.
    ///
    /// # Errors
    /// When it is not there or does not come up.
    pub fn start(kind: ServerKind, arguments: &[&str]) -> Result<Self, Failure> {
        Self::setup(kind).arguments(arguments).start()
    }

    /// Starts a server that has every acknowledged write on disk, for [`Self::restart_with_data`].
    ///
    /// # Errors
    /// When it is not there or does not come up.
    pub fn start_with_data(kind: ServerKind, arguments: &[&str]) -> Result<Self, Failure> {
        Self::setup(kind).arguments(arguments).keep_data().start()
    }

    /// Starts a server on this port.
    ///
    /// # Errors
    /// When it is not there or does not come up, or when the port is taken.
    pub fn start_on(port: u16, kind: ServerKind, arguments: &[&str]) -> Result<Self, Failure> {
        Self::setup(kind).arguments(arguments).port(port).start()
    }

    /// For everything else there is to say before a start.
    #[must_use]
    pub const fn setup(kind: ServerKind) -> Setup {
        Setup {
            kind,
            arguments: Vec::new(),
            keep_data: false,
            port: None,
            tls: false,
            files: Vec::new(),
        }
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> ServerKind {
        self.setup.kind
    }

    /// The version the manifest says it has.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.entry.version
    }

    /// Where it listens. The same over restarts.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The port of [`Self::addr`].
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// A URL of [`Self::addr`], without what it may need for TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = match self.setup.tls {
            true => "rediss",
            false => "redis",
        };
        format!("{scheme}://127.0.0.1:{}/", self.port)
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// An independent client, over the Unix socket.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect_unix(&self.socket_path())?)
    }

    /// Collects every command it gets from now on.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn monitor(&self) -> Result<Monitor, Failure> {
        Monitor::start(self.client()?)
    }

    /// Kills it at once, without a chance to write anything.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops it in the middle of whatever it does. Its sockets stay open, and its TTLs run on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn freeze(&self) -> Result<(), Failure> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it is not running.
    pub fn thaw(&self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    /// Kills it and starts it again on the same port, without any data.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn restart_empty(&mut self) -> Result<(), Failure> {
        self.kill();
        for entry in fs::read_dir(self.dir())? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else {
                fs::remove_file(path)?;
            }
        }
        self.setup.write_files(self.dir())?;
        self.run(&[])
    }

    /// Kills it and starts it again on the same port, with everything it acknowledged.
    ///
    /// # Errors
    /// When it does not come up, or was not started to keep its data.
    pub fn restart_with_data(&mut self) -> Result<(), Failure> {
        if !self.setup.keep_data {
            return Err("this server was not started to keep its data".into());
        }
        self.kill();
        self.run(&[])
    }

    /// Kills it if it runs and starts it with what its folder holds and these arguments more, on the same port.
    /// Returns once it answers anything, be it an error.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn rerun(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        self.kill();
        self.spawn(arguments)?;
        self.wait_for(|_| true)
    }

    /// Whether every acknowledged write is on disk.
    #[must_use]
    pub const fn keeps_data(&self) -> bool {
        self.setup.keep_data
    }

    /// The id of its process.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let process = self.process.as_ref().ok_or("the server is not running")?;
        Ok(process.signal(signal)?)
    }

    fn run(&mut self, arguments: &[&str]) -> Result<(), Failure> {
        self.spawn(arguments)?;
        // A password, a missing primary and the like answer with an error, but they do answer.
        self.wait_for(|reply| !reply.is_error("LOADING"))
    }

    fn spawn(&mut self, more: &[&str]) -> Result<(), Failure> {
        let (program, prefix) = self.entry.argv.split_first().ok_or("an empty argv")?;
        let folder = self.dir();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let (port, other) = match self.setup.tls {
            true => ("--tls-port", "--port"),
            false => ("--port", "--tls-port"),
        };
        let append = if self.setup.keep_data { "yes" } else { "no" };
        let mut arguments: Vec<String> = prefix.to_vec();
        arguments.extend(
            [
                (port, self.port.to_string()),
                (other, "0".to_owned()),
                ("--bind", "127.0.0.1".to_owned()),
                ("--unixsocket", text(self.socket_path())),
                ("--dir", text(folder.to_owned())),
                ("--logfile", text(folder.join("log"))),
                ("--save", String::new()),
                ("--appendonly", append.to_owned()),
                ("--appendfsync", "always".to_owned()),
                ("--enable-debug-command", "local".to_owned()),
            ]
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value]),
        );
        arguments.extend(self.setup.arguments.iter().cloned());
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        fs::remove_file(self.socket_path()).ok();
        fs::remove_file(folder.join("log")).ok();
        self.process = Some(Process::start(program, &arguments, folder)?);
        Ok(())
    }

    /// Waits until it answers a PING with what is asked for.
    fn wait_for(&mut self, good: impl Fn(&crate::Reply) -> bool) -> Result<(), Failure> {
        let until = Instant::now() + START_LIMIT;
        loop {
            if let Ok(mut client) = self.client()
                && client.cmd(&["PING"]).is_ok_and(|reply| good(&reply))
            {
                return Ok(());
            }
            let ended = self.process.as_mut().and_then(Process::ended);
            if ended.is_some() || Instant::now() >= until {
                let log = self.log();
                let taken = log.contains("Address already in use");
                self.kill();
                let how = ended.map_or("does not answer".to_owned(), |how| how.to_string());
                let error = format!("{} {}: {how}\n{log}", self.kind(), self.version());
                return Err(Box::new(io::Error::new(
                    match taken {
                        true => io::ErrorKind::AddrInUse,
                        false => io::ErrorKind::Other,
                    },
                    error,
                )));
            }
            thread::sleep(Duration::from_millis(3));
        }
    }
}

impl Setup {
    /// Adds arguments to the command line.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Every acknowledged write is on disk.
    #[must_use]
    pub const fn keep_data(mut self) -> Self {
        self.keep_data = true;
        self
    }

    /// This port and no other.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A file that is in its folder when it starts without data.
    #[must_use]
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Its port speaks TLS and nothing else, with this certificate. The authority is whom it trusts; `clients` whether they must
    /// show a certificate: `yes`, `no` or `optional`.
    #[must_use]
    pub fn tls(mut self, certificate: &Pair, authority: &Authority, clients: &str) -> Self {
        self.tls = true;
        self.file("server.pem", &certificate.certificate)
            .file("server.key", &certificate.key)
            .file("ca.pem", authority.pem())
            .arguments(&["--tls-cert-file", "server.pem"])
            .arguments(&["--tls-key-file", "server.key"])
            .arguments(&["--tls-ca-cert-file", "ca.pem"])
            .arguments(&["--tls-auth-clients", clients])
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it is not there or does not come up.
    pub fn start(self) -> Result<Server, Failure> {
        let entry = entry(self.kind)?;
        let mut attempts = 0;
        loop {
            let folder = Folder::new()?;
            self.write_files(folder.path())?;
            let mut server = Server {
                entry: entry.clone(),
                port: match self.port {
                    Some(port) => port,
                    None => free_port()?,
                },
                setup: self.clone(),
                process: None,
                folder,
            };
            attempts += 1;
            match server.run(&[]) {
                Ok(()) => return Ok(server),
                // Somebody else was faster.
                Err(error)
                    if self.port.is_none()
                        && attempts < 20
                        && error
                            .downcast_ref::<io::Error>()
                            .is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn write_files(&self, folder: &Path) -> io::Result<()> {
        for (name, text) in &self.files {
            fs::write(folder.join(name), text)?;
        }
        Ok(())
    }
}

/// A port of the loopback nobody listens on now.
///
/// It lies below those the system hands to outgoing connections, so that it stays free while a server is down.
///
/// # Errors
/// When none can be found.
pub fn free_port() -> io::Result<u16> {
    let random = RandomState::new();
    for attempt in 0..1000_u64 {
        let mut hasher = random.build_hasher();
        hasher.write_u64(attempt);
        let port = 10_240 + u16::try_from(hasher.finish() % 20_000).unwrap_or_default();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::other("no free port"))
}

fn entry(kind: ServerKind) -> Result<Entry, Failure> {
    let manifest = Manifest::load_default().unwrap_or_default();
    let entry = manifest.find(kind).cloned();
    entry.ok_or_else(|| {
        format!(
            "no {} is known: run `cargo xtask servers`, or set {}={kind} to leave it out",
            kind.wanted(),
            xtask::servers::WITHOUT_VARIABLE
        )
        .into()
    })
}
