//! Which store, and how it is opened.

use std::env;
use std::fs;
use std::process;

use rustix::system::uname;
use tenure::Config;
use tenure::blocking::{Locks, connect_lazily};

use crate::args::StoreArgs;
use crate::exit::Failure;

/// A store that was named, and is opened with [`open`](Store::open). Its URL may hold a password: it is neither printed nor
/// `Debug`.
pub(crate) struct Store {
    url: String,
    config: Config,
}

impl Store {
    /// The store of the command line, else of the environment, else of a file.
    pub(crate) fn find(args: &StoreArgs) -> Result<Store, Failure> {
        let given = args.store.clone().filter(|url| !url.is_empty());
        let file = env::var_os("TENURE_STORE_FILE").filter(|path| !path.is_empty());
        let url = match (given, file) {
            (Some(url), _) => url,
            (None, Some(path)) => {
                let text = fs::read_to_string(&path).map_err(|error| {
                    let path = path.to_string_lossy();
                    Failure::usage(format!("no store in {path}: {error}"))
                })?;
                text.trim().to_owned()
            }
            // The one place where a default store plugs in.
            (None, None) => {
                return Err(Failure::usage(
                    "no store: set TENURE_STORE or TENURE_STORE_FILE, or give --store URL, for example redis://localhost/",
                ));
            }
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

    /// For the environment of a command that may use it too.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What tells it from other stores; no user and no password.
    pub(crate) fn identity(&self) -> String {
        let endpoint = self.config.endpoint();
        let endpoint = endpoint.map(ToString::to_string).unwrap_or_default();
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let rest = rest.find(['/', '?']).map_or("", |at| &rest[at..]);
        format!("{endpoint} {}", rest.trim_end_matches('/'))
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
