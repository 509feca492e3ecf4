//! The real servers of the test matrix, and the manifest that says how to start each of them.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Where the servers and their manifest lie, when not in the user's cache folder.
pub const FOLDER_VARIABLE: &str = "TENURE_SERVERS";

/// Kinds left out on purpose, separated by commas. Set by `cargo xtask test --without KIND`.
pub const WITHOUT_VARIABLE: &str = "TENURE_WITHOUT";

/// One column of the test matrix: a family of versions that speaks one dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerKind {
    /// Redis 7.0: scripts only, no compare commands.
    Redis70,
    /// Redis from 8.4, below 9: `SET .. IFEQ` and `DELEX`.
    Redis86,
    /// Valkey 8.1: `SET .. IFEQ`, no conditional delete.
    Valkey81,
    /// Valkey from 9.0: `SET .. IFEQ` and `DELIFEQ`.
    Valkey91,
}

impl ServerKind {
    /// The whole matrix.
    pub const ALL: [Self; 4] = [Self::Redis70, Self::Redis86, Self::Valkey81, Self::Valkey91];

    /// The name used in test names, on the command line and in the manifest.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Redis70 => "redis-7.0",
            Self::Redis86 => "redis-8.6",
            Self::Valkey81 => "valkey-8.1",
            Self::Valkey91 => "valkey-9.1",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// The name of the server program.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Redis70 | Self::Redis86 => "redis-server",
            Self::Valkey81 | Self::Valkey91 => "valkey-server",
        }
    }

    /// Which versions are taken for this kind, in words.
    #[must_use]
    pub const fn wanted(self) -> &'static str {
        match self {
            Self::Redis70 => "Redis 7.0",
            Self::Redis86 => "Redis from 8.4, below 9",
            Self::Valkey81 => "Valkey 8.1",
            Self::Valkey91 => "Valkey from 9.0",
        }
    }

    /// Whether a version of this kind's program, such as `8.6.3`, belongs to this kind.
    #[must_use]
    pub fn accepts(self, version: &str) -> bool {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else {
            return false;
        };
        match self {
            Self::Redis70 => (major, minor) == (7, 0),
            Self::Redis86 => major == 8 && minor >= 4,
            Self::Valkey81 => (major, minor) == (8, 1),
            Self::Valkey91 => major >= 9,
        }
    }

    /// Every kind the manifest knows, in the order of the matrix, without those left out on purpose.
    #[must_use]
    pub fn all_found() -> Vec<Self> {
        let manifest = Manifest::load_default().unwrap_or_default();
        let without = excluded();
        Self::ALL
            .into_iter()
            .filter(|kind| manifest.find(*kind).is_some() && !without.contains(kind))
            .collect()
    }

    /// Every kind that tests must run on: the matrix without those left out on purpose.
    #[must_use]
    pub fn all_required() -> Vec<Self> {
        let without = excluded();
        Self::ALL
            .into_iter()
            .filter(|kind| !without.contains(kind))
            .collect()
    }
}

impl fmt::Display for ServerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// How to start the servers that were found. A file of this form may also be written by hand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// One entry per kind.
    #[serde(default, rename = "server")]
    pub servers: Vec<Entry>,
}

/// One server that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The kind's id.
    pub kind: String,
    /// The version the program gave.
    pub version: String,
    /// What to run, before any argument of the server's own.
    pub argv: Vec<String>,
}

impl Manifest {
    /// The manifest of [`folder`].
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn load_default() -> io::Result<Self> {
        Self::load(&folder()?)
    }

    /// The manifest of the given folder.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn load(folder: &Path) -> io::Result<Self> {
        let path = Self::path(folder);
        let text = fs::read_to_string(&path)?;
        toml::from_str(&text)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    }

    /// Replaces the manifest of the given folder in one step.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn store(&self, folder: &Path) -> io::Result<()> {
        let mut text = String::from(
            "# Written by `cargo xtask servers`. Entries whose program still answers are kept,\n\
             # so a server from elsewhere may be added by hand.\n",
        );
        for entry in &self.servers {
            let argv: Vec<String> = entry.argv.iter().map(|word| quote(word)).collect();
            text.push_str(&format!(
                "\n[[server]]\nkind = {}\nversion = {}\nargv = [{}]\n",
                quote(&entry.kind),
                quote(&entry.version),
                argv.join(", ")
            ));
        }
        let temporary = folder.join(format!("manifest.{}", std::process::id()));
        fs::write(&temporary, text)?;
        fs::rename(&temporary, Self::path(folder))
    }

    /// The entry of a kind.
    #[must_use]
    pub fn find(&self, kind: ServerKind) -> Option<&Entry> {
        self.servers.iter().find(|entry| entry.kind == kind.id())
    }

    /// The file's path in a folder.
    #[must_use]
    pub fn path(folder: &Path) -> PathBuf {
        folder.join("manifest")
    }
}

impl Entry {
    /// The entry for a program that answers `--version` with a version this kind accepts.
    #[must_use]
    pub fn probe(kind: ServerKind, argv: &[String]) -> Option<Self> {
        let (program, arguments) = argv.split_first()?;
        let output = Command::new(program)
            .args(arguments)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = parse_version(kind, &text)?;
        kind.accepts(&version).then(|| Self {
            kind: kind.id().to_owned(),
            version,
            argv: argv.to_vec(),
        })
    }
}

/// The folder of the servers: `TENURE_SERVERS`, else `tenure-servers` in the user's cache folder.
///
/// # Errors
/// When the machine names no such folder.
pub fn folder() -> io::Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set(FOLDER_VARIABLE) {
        return std::path::absolute(PathBuf::from(folder));
    }
    set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|cache| cache.join("tenure-servers"))
        .ok_or_else(|| io::Error::other(format!("neither {FOLDER_VARIABLE} nor HOME is set")))
}

/// The kinds left out on purpose.
#[must_use]
pub fn excluded() -> BTreeSet<ServerKind> {
    env::var(WITHOUT_VARIABLE)
        .unwrap_or_default()
        .split(',')
        .filter_map(|id| ServerKind::from_id(id.trim()))
        .collect()
}

/// `Redis server v=7.0.15 sha=..` or `Valkey server v=9.1.2 sha=..`; a link of one name to the other's
/// program is not taken for what its name says.
fn parse_version(kind: ServerKind, text: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let product = words.next()?.to_ascii_lowercase();
    let version = words.find_map(|word| word.strip_prefix("v="))?;
    kind.program()
        .starts_with(&product)
        .then(|| version.to_owned())
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_fall_into_one_kind() {
        for (version, redis, valkey) in [
            ("7.0.15", Some(ServerKind::Redis70), None),
            ("7.2.4", None, None),
            ("8.0.6", None, None),
            ("8.1.1", None, Some(ServerKind::Valkey81)),
            ("8.6.3", Some(ServerKind::Redis86), None),
            ("9.1.2", None, Some(ServerKind::Valkey91)),
            ("10.0.0", None, Some(ServerKind::Valkey91)),
            ("nonsense", None, None),
        ] {
            let find = |program: &str| {
                ServerKind::ALL
                    .into_iter()
                    .filter(|kind| kind.program() == program)
                    .find(|kind| kind.accepts(version))
            };
            assert_eq!(find("redis-server"), redis, "redis {version}");
            assert_eq!(find("valkey-server"), valkey, "valkey {version}");
        }
    }

    #[test]
    fn a_program_is_what_it_says_it_is() {
        let valkey = "Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64";
        assert_eq!(parse_version(ServerKind::Redis86, valkey), None);
        assert_eq!(
            parse_version(ServerKind::Valkey81, valkey).as_deref(),
            Some("8.1.1")
        );
        assert_eq!(parse_version(ServerKind::Redis70, ""), None);
    }

    #[test]
    fn the_manifest_reads_what_it_wrote() {
        let folder = env::temp_dir().join(format!("xtask-manifest-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let manifest = Manifest {
            servers: vec![Entry {
                kind: "redis-7.0".into(),
                version: "7.0.15".into(),
                argv: vec!["/a \"b\"/ld".into(), "--argv0".into()],
            }],
        };
        manifest.store(&folder).unwrap();
        assert_eq!(Manifest::load(&folder).unwrap(), manifest);
        fs::remove_dir_all(&folder).unwrap();
    }
}
