//! Which store, and how it is opened.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use rustix::system::uname;
use tenure::Config;
use tenure::blocking::{Locks, connect_lazily};

use crate::args::StoreArgs;
use crate::exit::{self, Failure};

/// A store that was named, and is opened with [`open`](Store::open). Its URL may hold a password: it is neither printed nor
/// `Debug`.
pub(crate) struct Store {
    url: String,
    config: Config,
}

impl Store {
    /// The store of the command line, else of the environment, else of a file.
    pub(crate) fn find(args: &StoreArgs) -> Result<Store, Failure> {
        let url = match (args.store.clone(), env::var_os("TENURE_STORE_FILE")) {
            // A script whose variable was never filled in is not to lock in a file that nobody else looks at.
            (Some(url), _) if url.is_empty() => {
                return Err(match env::var_os("TENURE_STORE") {
                    Some(_) => empty("TENURE_STORE"),
                    None => {
                        Failure::usage("--store is empty; leave it out for the file of your own")
                    }
                });
            }
            (Some(url), _) => url,
            (None, Some(path)) if path.is_empty() => return Err(empty("TENURE_STORE_FILE")),
            (None, Some(path)) => {
                let text = fs::read_to_string(&path).map_err(|error| {
                    let path = path.as_encoded_bytes().escape_ascii();
                    Failure::usage(format!(
                        "TENURE_STORE_FILE names {path}, which cannot be read: {error}"
                    ))
                })?;
                text.trim().to_owned()
            }
            (None, None) => default_url()?,
        };
        let config = Config::from_url(&url)?;
        Ok(Store { url, config })
    }

    /// Opens it. Whether it can be reached shows with the first request.
    pub(crate) fn open(&self, label: Option<&str>) -> Result<Locks, Failure> {
        let config = match label {
            Some(label) => self.config.clone().label(full_label(label)),
            None => self.config.clone(),
        };
        Ok(connect_lazily(&config)?)
    }

    /// Opens it, and waits until it is reached or cannot be.
    pub(crate) fn reach(&self) -> Result<Locks, Failure> {
        let locks = self.open(None)?;
        locks.ready()?;
        Ok(locks)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn is_tls(&self) -> bool {
        let scheme = self.url.split_once("://").map_or("", |(scheme, _)| scheme);
        matches!(scheme, "rediss" | "valkeys")
    }

    /// For the environment of a command that may use it too.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Where the locks are, for people; no user and no password.
    pub(crate) fn place(&self) -> String {
        if let Some(path) = self.config.file() {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let path = path.as_os_str().as_encoded_bytes().escape_ascii();
            return format!("in the file {path}");
        }
        let server = match self.url.get(..6) {
            Some(scheme) if scheme.eq_ignore_ascii_case("valkey") => "valkey",
            _ => "redis",
        };
        match self.config.endpoint() {
            Some(endpoint) => format!("on {server} at {endpoint}"),
            None => format!("on {server}"),
        }
    }

    /// What tells it from other stores; no user and no password.
    pub(crate) fn identity(&self) -> String {
        if let Some(path) = self.config.file() {
            let path = path.canonicalize().or_else(|_| std::path::absolute(path));
            let path = path.unwrap_or_default();
            let table = self.config.table().unwrap_or_default();
            return format!("{} {table}", path.display());
        }
        let endpoint = self.config.endpoint();
        let endpoint = endpoint.map(ToString::to_string).unwrap_or_default();
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let rest = rest.find(['/', '?']).map_or("", |at| &rest[at..]);
        format!("{endpoint} {}", rest.trim_end_matches('/'))
    }
}

fn empty(variable: &str) -> Failure {
    Failure::usage(format!(
        "{variable} is set but empty; unset it for the file of your own"
    ))
}

/// The URL of the file in the user's state directory, which is made where it is not there.
fn default_url() -> Result<String, Failure> {
    let advice = "or give --store URL, for example sqlite:PATH or redis://localhost/";
    if !cfg!(feature = "sqlite") {
        return Err(Failure::usage(format!(
            "no store: set TENURE_STORE or TENURE_STORE_FILE, {advice}"
        )));
    }
    let no_file = |text: String| Failure::new(exit::NO_FILE, "no-file", text);
    let path = default_path().ok_or_else(|| {
        no_file(format!(
            "no store: there is no home directory; set XDG_STATE_HOME, {advice}"
        ))
    })?;
    make(&path).map_err(|error| {
        let path = path.display();
        no_file(format!(
            "the store {path} cannot be made: {error}; set XDG_STATE_HOME, {advice}"
        ))
    })?;
    let path = path.as_os_str().as_encoded_bytes();
    let escaped = path.iter().map(|byte| match byte {
        b'/' | b'-' | b'.' | b'_' => char::from(*byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    Ok(format!("sqlite://{}", escaped.collect::<String>()))
}

fn default_path() -> Option<PathBuf> {
    let given = env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    // A relative one is to be ignored.
    let state = given.filter(|path| path.is_absolute());
    let state = state.or_else(|| Some(env::home_dir()?.join(".local/state")));
    let state = state.filter(|path| path.is_absolute())?;
    Some(state.join("tenure/locks.db"))
}

/// Makes the file and its folders, for their owner alone, if they are not there.
fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut folder = fs::DirBuilder::new();
    let mut file = fs::OpenOptions::new();
    #[cfg(unix)]
    {
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        std::os::unix::fs::OpenOptionsExt::mode(&mut file, 0o600);
    }
    if let Some(parent) = path.parent() {
        folder.recursive(true).create(parent)?;
    }
    match file.write(true).create_new(true).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// What was given, and where it runs, as the label that is made by itself says it.
fn full_label(label: &str) -> String {
    let host = uname();
    format!(
        "{label}@{}:{}",
        host.nodename().to_string_lossy(),
        process::id()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(url: &str) -> Store {
        let args = StoreArgs {
            store: Some(url.to_owned()),
        };
        Store::find(&args).map_err(|error| error.text).unwrap()
    }

    #[test]
    fn the_identity_of_a_store_has_no_password() {
        let plain = store("redis://localhost/2").identity();
        assert_eq!(
            store("redis://me:s3cret@localhost:6379/2").identity(),
            plain
        );
        assert_ne!(store("redis://localhost/3").identity(), plain);
        assert_ne!(store("redis://elsewhere/2").identity(), plain);
        let one = store("redis+unix://:s3cret@/run/a.sock").identity();
        assert_eq!(store("redis+unix:///run/a.sock").identity(), one);
        assert_ne!(store("redis+unix:///run/b.sock").identity(), one);
    }

    #[test]
    fn the_place_of_a_store_is_said_without_user_and_password() {
        for (url, place) in [
            ("redis://me:s3cret@db1/2", "on redis at db1:6379"),
            ("Valkeys://:s3cret@[::1]:7000", "on valkey at [::1]:7000"),
            (
                "redis+unix://:s3cret@/run/a.sock",
                "on redis at /run/a.sock",
            ),
            ("sqlite:/var/a.db?table=t", "in the file /var/a.db"),
        ] {
            assert_eq!(store(url).place(), place);
        }
    }

    #[test]
    fn no_message_shows_the_url() {
        for url in [
            "s3cret",
            "redis://:s3cret@",
            "redis://h/?s3cret=1@x",
            "ftp://s3cret@h/",
        ] {
            let args = StoreArgs {
                store: Some(url.to_owned()),
            };
            let error = Store::find(&args).err().expect(url);
            assert_eq!(error.status, crate::exit::USAGE, "{url}");
            assert!(!error.text.contains(":s3cret"), "{url}: {}", error.text);
        }
    }
}
