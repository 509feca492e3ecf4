//! How a client connects and behaves.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::config::POLL_LIMIT;
use tenure_core::conn::ConnConfig;
use tenure_core::mux::MuxConfig;
use tenure_core::names::{Names, escape, fitting_label};

use crate::binding::Endpoint;
use crate::error::Error;
use crate::observer::Observer;
use crate::options::LockOptions;
#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::url::file::{self, File};
use crate::url::{Target, Url};

/// The settings of a client: where the server is, and what holds for all its locks.
///
/// ```
/// use std::time::Duration;
/// # use tenure_client as tenure;
/// use tenure::{Config, LockOptions};
///
/// let config = Config::from_url("redis://app:p%40ss@db.example:6380/2")?
///     .prefix("billing:lock:")
///     .label("worker 7")
///     .connect_limit(Duration::from_secs(2))
///     .defaults_for_locks(LockOptions::new().lease(Duration::from_secs(10)));
/// // The password is never shown.
/// assert!(!format!("{config:?}").contains("p@ss"));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Config {
    place: Place,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    prefix: String,
    plain_keys: bool,
    label: Option<String>,
    client_name: Option<String>,
    connect_limit: Option<Duration>,
    reply_limit: Option<Duration>,
    reconnect_limit: Option<Duration>,
    watch: bool,
    poll_limit: Duration,
    check_server: bool,
    strict_server: bool,
    defaults: LockOptions,
    observer: Option<Arc<dyn Observer>>,
}

/// Where the locks are.
#[derive(Clone, Debug)]
enum Place {
    Memory,
    Server(Target),
    File(File),
}

/// The prefix of every key, unless another is set.
const PREFIX: &str = "lock:";

impl Config {
    /// The server that a URL names, and how to speak to it.
    ///
    /// | form | |
    /// |---|---|
    /// | `redis://[user[:password]@]host[:port][/database]` | TCP; the port is 6379 by default, the database 0. An IPv6 address stands in brackets |
    /// | `rediss://..` | the same over TLS, with the feature `tls` |
    /// | `redis+unix://[user[:password]@]/path/to/socket` | a Unix socket |
    /// | `valkey://..`, `valkeys://..`, `valkey+unix://..` | the same |
    /// | `sqlite:path`, `sqlite:///path` | a file, by the crate `tenure-sqlite` |
    ///
    /// Behind a `?`, joined by `&`, each at most once:
    ///
    /// | parameter | for example | as |
    /// |---|---|---|
    /// | `db` | `2` | the database in the path, which a Unix socket's URL does not have |
    /// | `prefix` | `billing:lock:` | [`prefix`](Config::prefix) |
    /// | `client_name` | `billing` | [`client_name`](Config::client_name) |
    /// | `connect_limit` | `250ms`, `5s`, `1m` | [`connect_limit`](Config::connect_limit) |
    /// | `reply_limit` | the same | [`reply_limit`](Config::reply_limit) |
    /// | `reconnect_limit` | the same | [`reconnect_limit`](Config::reconnect_limit) |
    /// | `ca` | `/etc/redis/ca.pem` | `Tls::ca`: whom to trust, instead of the system's authorities |
    /// | `cert`, `key` | `/etc/redis/me.pem` | `Tls::certificate`: both, where the server asks for a certificate |
    /// | `server_name` | `redis.internal` | `Tls::server_name`: the name in the server's certificate, if it is not the host |
    ///
    /// Of these a file has only `prefix` and `reply_limit`, besides `label` as [`label`](Config::label) and `table` as
    /// [`share_table`](Config::share_table).
    ///
    /// User, password, path and values are percent-encoded. There is no parameter that turns the check of a certificate off.
    ///
    /// # Errors
    /// [`Error::Misconfigured`] says what is wrong and what is allowed: also for a parameter that is not known or is given
    /// twice, and for a scheme whose feature is off. It never repeats the password.
    pub fn from_url(url: &str) -> Result<Config, Error> {
        if let Some(parsed) = file::parse(url) {
            let (file, query) = parsed?;
            let mut config = Config::of(Place::File(file));
            if let Some(table) = query.table {
                config = config.share_table(table);
            }
            if let Some(prefix) = query.prefix {
                config.prefix = prefix;
            }
            config.label = query.label;
            config.reply_limit = query.reply_limit;
            return Ok(config);
        }
        let Url {
            target,
            tls: _tls,
            query,
        } = Url::parse(url)?;
        let mut config = Config::of(Place::Server(target));
        #[cfg(feature = "tls")]
        if _tls {
            config.tls = Some(Tls::of_url(&query));
        }
        if let Some(prefix) = query.prefix {
            config.prefix = prefix;
        }
        config.client_name = query.client_name;
        config.connect_limit = query.connect_limit;
        config.reply_limit = query.reply_limit;
        config.reconnect_limit = query.reconnect_limit;
        Ok(config)
    }

    /// The settings of an in-memory store, which has no server.
    pub fn in_memory() -> Config {
        Config::of(Place::Memory)
    }

    /// The settings of a store that is a file, by the crate `tenure-sqlite`.
    ///
    /// ```
    /// use tenure_client::Config;
    ///
    /// let config = Config::in_file("/var/lib/jobs/locks.db").label("nightly");
    /// assert_eq!(config.file(), Config::from_url("sqlite:/var/lib/jobs/locks.db")?.file());
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    pub fn in_file(path: impl Into<PathBuf>) -> Config {
        Config::of(Place::File(File {
            path: path.into(),
            table: None,
        }))
    }

    fn of(place: Place) -> Config {
        Config {
            place,
            #[cfg(feature = "tls")]
            tls: None,
            prefix: PREFIX.to_owned(),
            plain_keys: false,
            label: None,
            client_name: None,
            connect_limit: None,
            reply_limit: None,
            reconnect_limit: None,
            watch: true,
            poll_limit: POLL_LIMIT,
            check_server: true,
            strict_server: false,
            defaults: LockOptions::new(),
            observer: None,
        }
    }

    /// The prefix of every key, instead of `lock:`: at most 256 bytes, without a brace.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Config {
        self.prefix = prefix.into();
        self
    }

    /// The file is that of a program with the .NET library DistributedLock, and this is the table of its locks, such as
    /// `__distributed_locks`: it and this client exclude each other. Names are written raw and without a prefix, as it does; who waits,
    /// fences and removals by force are in tables of this library's own. Its times are whole seconds, so what a dead holder has
    /// left stays taken for up to a second longer, and nothing else about the file is changed. Settings without a file ignore it.
    ///
    /// ```
    /// use tenure_client::Config;
    ///
    /// let config = Config::in_file("app.db").share_table("__distributed_locks");
    /// assert_eq!(config.table(), Config::from_url("sqlite:app.db?table=__distributed_locks")?.table());
    /// # Ok::<(), tenure_client::Error>(())
    /// ```
    #[must_use]
    pub fn share_table(mut self, table: impl Into<String>) -> Config {
        if let Place::File(file) = &mut self.place {
            file.table = Some(table.into());
            self.prefix.clear();
            self.plain_keys = true;
        }
        self
    }

    /// Names are written raw behind the prefix, so that other lock libraries use the same key.
    #[must_use]
    pub fn plain_keys(mut self) -> Config {
        self.plain_keys = true;
        self
    }

    /// Who holds a lock, for people: instead of host name and process id. At most 128 bytes, escaped.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Config {
        self.label = Some(label.into());
        self
    }

    /// The name that `CLIENT LIST` shows, instead of `tenure`.
    #[must_use]
    pub fn client_name(mut self, name: impl Into<String>) -> Config {
        self.client_name = Some(name.into());
        self
    }

    /// The longest a dial with its handshake may take. Default 5 s; live holds may ask for less.
    #[must_use]
    pub fn connect_limit(mut self, limit: Duration) -> Config {
        self.connect_limit = Some(limit);
        self
    }

    /// The longest a reply may take. Default 5 s; live holds may ask for less.
    #[must_use]
    pub fn reply_limit(mut self, limit: Duration) -> Config {
        self.reply_limit = Some(limit);
        self
    }

    /// The longest pause between two tries to connect. Default 1 s; live holds may ask for less.
    #[must_use]
    pub fn reconnect_limit(mut self, limit: Duration) -> Config {
        self.reconnect_limit = Some(limit);
        self
    }

    /// Waiters ask again and again instead of being woken by the server, and a loss is found by the next renewal: for
    /// something in between that cannot carry what the server tells. It is found out by itself where the server says so.
    #[must_use]
    pub fn no_wake_ups(mut self) -> Config {
        self.watch = false;
        self
    }

    /// The longest time between two attempts of a waiter that the server wakes, should a wake-up be missed. Default 10 s; the
    /// end of the holder's lease is never missed. [`Duration::MAX`] for never.
    #[must_use]
    pub fn poll_limit(mut self, limit: Duration) -> Config {
        self.poll_limit = limit;
        self
    }

    /// TLS with these settings, whatever the scheme of the URL. `rediss://` and `valkeys://` alone ask for it as well, with
    /// what the URL says.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// use tenure::{Config, Tls};
    ///
    /// let config = Config::from_url("valkeys://db.example")?.tls(Tls::new().ca("/etc/valkey/ca.pem"));
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Config {
        self.tls = Some(tls);
        self
    }

    /// The server is not looked at for what endangers locks: `INFO` is not sent, nor is there an
    /// [`Event::Risk`](crate::Event::Risk). For a server that logs what a user may not do.
    /// [`strict_server`](Config::strict_server) looks all the same.
    #[must_use]
    pub fn no_server_checks(mut self) -> Config {
        self.check_server = false;
        self
    }

    /// No lock on a server that deletes keys when its memory is full, or that does not let this user see whether it does:
    /// every verb fails with [`Error::Misconfigured`], which says what to change. Without this the former is told to the
    /// [`Observer`] as [`Event::Risk`](crate::Event::Risk), and locks are granted.
    ///
    /// It is looked at after each connect, with `INFO memory`, and nothing is granted before that is answered. A setting that is
    /// changed while locks are held ends them with the connection after that: a server that may not be used counts as one that
    /// cannot be reached.
    ///
    /// ```
    /// # use tenure_client as tenure;
    /// let config = tenure::Config::from_url("redis://db.example")?.strict_server();
    /// # Ok::<(), tenure::Error>(())
    /// ```
    #[must_use]
    pub fn strict_server(mut self) -> Config {
        self.strict_server = true;
        self
    }

    /// The options of every request that does not set its own.
    #[must_use]
    pub fn defaults_for_locks(mut self, defaults: LockOptions) -> Config {
        self.defaults = defaults;
        self
    }

    /// Who is told of everything that happens.
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Config {
        self.observer = Some(observer);
        self
    }

    /// Where the server listens; `None` for a store that has none.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        match &self.place {
            Place::Server(target) => Some(&target.endpoint),
            Place::Memory | Place::File(_) => None,
        }
    }

    /// The file that the locks are in; `None` for a store that is none.
    pub fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(file) => Some(&file.path),
            Place::Memory | Place::Server(_) => None,
        }
    }

    /// The table of the file that is shared with programs of another library, if there is one.
    pub fn table(&self) -> Option<&str> {
        match &self.place {
            Place::File(file) => file.table.as_deref(),
            Place::Memory | Place::Server(_) => None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn tls_settings(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The defaults, checked: what cannot work is refused before there is a client.
    pub(crate) fn defaults(&self) -> Result<LockOptions, Error> {
        self.defaults.lease.build()?;
        Ok(self.defaults.clone())
    }

    pub(crate) fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.clone()
    }

    pub(crate) fn names(&self) -> Result<Names, Error> {
        let names = match &self.label {
            Some(label) => Names::new(&self.prefix, label)?,
            None => Names::new(&self.prefix, &host_label())?,
        };
        Ok(if self.plain_keys {
            names.plain_keys()
        } else {
            names
        })
    }

    pub(crate) fn mux(&self) -> Result<MuxConfig, Error> {
        let name = self.client_name.as_deref().unwrap_or("tenure");
        if name.is_empty() || name.len() > 128 || !name.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::input(format!(
                "the client name `{}` ({} bytes) is out of range: 1 to 128 printable ASCII characters without blanks",
                escape(name.as_bytes(), 32),
                name.len()
            )));
        }
        let mut mux = MuxConfig::new(self.names()?);
        mux.watch = self.watch;
        mux.poll_limit = self.poll_limit;
        mux.check = self.check_server;
        mux.strict = self.strict_server;
        let target = match &self.place {
            Place::Server(target) => target.clone(),
            Place::Memory | Place::File(_) => Target::default(),
        };
        mux.conn = ConnConfig {
            user: target.user.map(Into::into),
            password: target.password.map(Into::into),
            database: target.database,
            client_name: Some(name.into()),
            ..ConnConfig::default()
        };
        let limits = [
            ("connect limit", self.connect_limit, &mut mux.connect_limit),
            ("reply limit", self.reply_limit, &mut mux.reply_limit),
            (
                "reconnect limit",
                self.reconnect_limit,
                &mut mux.reconnect_limit,
            ),
        ];
        for (what, limit, setting) in limits {
            let Some(limit) = limit else { continue };
            if limit < LIMITS.0 || limit > LIMITS.1 {
                return Err(Error::input(format!(
                    "a {what} of {limit:?} is out of range: from {:?} to {:?}",
                    LIMITS.0, LIMITS.1
                )));
            }
            *setting = limit;
        }
        Ok(mux)
    }
}

/// What the limits may be.
const LIMITS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(300));

/// `host:pid`, cut to what a label may be.
fn host_label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .map(|host| host.trim().to_owned())
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .filter(|host| !host.is_empty())
        .unwrap_or_else(|| "unknown".to_owned());
    let pid = format!(":{}", std::process::id());
    let mut label = host + &pid;
    if fitting_label(&label) != label {
        // The end tells more than the beginning: keep the process id.
        label = fitting_label(&label[..label.len() - pid.len()]);
        label.truncate(label.len().saturating_sub(pid.len()));
        label += &pid;
    }
    label
}

impl FromStr for Config {
    type Err = Error;

    /// As [`Config::from_url`].
    fn from_str(url: &str) -> Result<Config, Error> {
        Config::from_url(url)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Config");
        debug.field("place", &self.place);
        #[cfg(feature = "tls")]
        debug.field("tls", &self.tls);
        debug
            .field("prefix", &self.prefix)
            .field("plain_keys", &self.plain_keys)
            .field("label", &self.label)
            .field("client_name", &self.client_name)
            .field("connect_limit", &self.connect_limit)
            .field("reply_limit", &self.reply_limit)
            .field("reconnect_limit", &self.reconnect_limit)
            .field("watch", &self.watch)
            .field("poll_limit", &self.poll_limit)
            .field("check_server", &self.check_server)
            .field("strict_server", &self.strict_server)
            .field("defaults", &self.defaults)
            .finish_non_exhaustive()
    }
}
