//! Servers out of a Debian mirror, without a change to the machine.
//!
//! A private apt configuration with an empty list of installed packages makes apt resolve the server and
//! everything it is linked to, down to the C library. They are unpacked into a folder of their own and
//! started through the loader that came along, so a server from any suite runs on any Debian machine.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use xtask::servers::ServerKind;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A private apt, good for one run.
pub(crate) struct Apt {
    folder: PathBuf,
    site: String,
}

impl Apt {
    /// Sets the private apt up in an empty folder, on the mirror the machine itself uses.
    pub(crate) fn new(folder: &Path) -> io::Result<Self> {
        let site = mirror()?;
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(sub))?;
        }
        fs::write(folder.join("status"), "")?;
        Ok(Self {
            folder: folder.to_owned(),
            site,
        })
    }

    /// Fetches the package lists of these suites.
    pub(crate) fn update(&self, suites: &BTreeSet<&str>) -> io::Result<()> {
        let sources: String = suites
            .iter()
            .map(|suite| format!("deb [signed-by={KEYRING}] {} {suite} main\n", self.site))
            .collect();
        fs::write(self.folder.join("sources.list"), sources)?;
        run(self.command("apt-get").arg("update")).map(drop)
    }

    /// The version of this kind the fetched lists offer, with its suite.
    pub(crate) fn offer(&self, kind: ServerKind) -> io::Result<Option<Offer>> {
        let package = package(kind);
        let text = run(self.command("apt-cache").args(["madison", package]))?;
        Ok(text
            .lines()
            .filter_map(parse_offer)
            .find(|offer| kind.accepts(upstream(&offer.version))))
    }

    /// Downloads the package with all it needs and unpacks it. Returns what starts the server.
    pub(crate) fn unpack(
        &self,
        kind: ServerKind,
        offer: &Offer,
        target: &Path,
    ) -> io::Result<Vec<String>> {
        let archives = self.folder.join("cache/archives");
        for deb in packages(&archives)? {
            fs::remove_file(deb)?;
        }
        // The base is where the libraries come from: the suite itself, but experimental is no whole suite.
        let bases: &[&str] = match offer.suite.as_str() {
            "experimental" => &["testing", "sid"],
            suite => &[suite],
        };
        let mut last = io::Error::other("no suite to take libraries from");
        let fetched = bases.iter().any(|base| {
            let wanted = format!("{}={}", package(kind), offer.version);
            let arguments = ["-y", "--download-only", "-t", base, "install", &wanted];
            match run(self.command("apt-get").args(arguments)) {
                Ok(_) => true,
                Err(error) => {
                    last = error;
                    false
                }
            }
        });
        if !fetched {
            return Err(last);
        }
        for deb in packages(&archives)? {
            // What else comes along (passwd, systemd, ..) is for installing, not for running.
            let name = deb.file_name().unwrap_or_default().to_string_lossy();
            if ["lib", "zlib", package(kind)]
                .iter()
                .any(|prefix| name.starts_with(prefix))
            {
                run(Command::new("dpkg").arg("-x").arg(&deb).arg(target))?;
            }
        }
        argv(kind, target)
    }

    fn command(&self, program: &str) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("LC_ALL", "C").args([
            format!("-oDir::Etc::SourceList={folder}/sources.list"),
            "-oDir::Etc::SourceParts=/dev/null".to_owned(),
            "-oDir::Etc::Preferences=/dev/null".to_owned(),
            "-oDir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("-oDir::State={folder}"),
            format!("-oDir::State::Lists={folder}/lists"),
            format!("-oDir::State::status={folder}/status"),
            format!("-oDir::Cache={folder}/cache"),
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oAPT::Install-Recommends=false".to_owned(),
            "-oAcquire::Languages=none".to_owned(),
            "-oAcquire::Retries=3".to_owned(),
        ]);
        command
    }
}

/// A version the mirror has.
pub(crate) struct Offer {
    pub(crate) version: String,
    pub(crate) suite: String,
}

/// The suites to look for a kind in, those most likely to have it first. Old versions stay in the release
/// they came with; new ones move up through the suites.
pub(crate) const fn suites(kind: ServerKind) -> [&'static [&'static str]; 2] {
    match kind {
        ServerKind::Redis70 => [&["bookworm"], &[]],
        ServerKind::Redis86 => [&["experimental", "testing"], &["sid", "stable"]],
        ServerKind::Valkey81 => [&["trixie"], &["testing"]],
        ServerKind::Valkey91 => [&["testing"], &["sid", "experimental"]],
    }
}

/// What starts the server unpacked in a folder.
pub(crate) fn argv(kind: ServerKind, root: &Path) -> io::Result<Vec<String>> {
    let triple = multiarch()?;
    let folders: Vec<PathBuf> = ["usr/lib", "lib"]
        .iter()
        .map(|lib| root.join(lib).join(&triple))
        .filter(|folder| folder.is_dir())
        .collect();
    let loader = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("ld-linux") && name.contains(".so")
        })
        .ok_or_else(|| {
            io::Error::other(format!("no loader was unpacked below {}", root.display()))
        })?;
    // The server's own name is only a link to this program, which looks at the name it was called by.
    let program = root.join("usr/bin").join(match kind.program() {
        "redis-server" => "redis-check-rdb",
        _ => "valkey-check-rdb",
    });
    let libraries: Vec<String> = folders.iter().map(|path| text(path)).collect();
    Ok(vec![
        text(&loader),
        "--argv0".to_owned(),
        kind.program().to_owned(),
        "--library-path".to_owned(),
        libraries.join(":"),
        text(&program),
    ])
}

/// The mirror the machine has configured; none is known here.
fn mirror() -> io::Result<String> {
    let text = run(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(SITE)",
        "Identifier: Packages",
        "Origin: Debian",
    ]))?;
    // The lists may never have been fetched, and then apt does not know whose they are.
    let text = if text.trim().is_empty() {
        run(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(SITE)",
            "Identifier: Packages",
        ]))?
    } else {
        text
    };
    text.lines()
        .find(|site| site.contains("debian") && !site.contains("security"))
        .map(str::to_owned)
        .ok_or_else(|| io::Error::other("apt names no Debian mirror"))
}

fn multiarch() -> io::Result<String> {
    run(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))
        .map(|triple| triple.trim().to_owned())
        .or_else(|_| Ok(format!("{}-linux-gnu", std::env::consts::ARCH)))
}

const fn package(kind: ServerKind) -> &'static str {
    match kind {
        ServerKind::Redis70 | ServerKind::Redis86 => "redis-tools",
        ServerKind::Valkey81 | ServerKind::Valkey91 => "valkey-tools",
    }
}

/// `redis-tools | 5:8.6.3-1 | http://mirror/debian experimental/main amd64 Packages`
fn parse_offer(line: &str) -> Option<Offer> {
    let mut columns = line.split('|').map(str::trim);
    let (_, version, source) = (columns.next()?, columns.next()?, columns.next()?);
    let suite = source.split_whitespace().nth(1)?.split('/').next()?;
    source.ends_with("Packages").then(|| Offer {
        version: version.to_owned(),
        suite: suite.to_owned(),
    })
}

/// The upstream version in `5:8.6.3-1` or `8.1.1+dfsg1-3+deb13u3`.
fn upstream(version: &str) -> &str {
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    let end = version
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(version.len());
    &version[..end]
}

fn packages(archives: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension() == Some(OsStr::new("deb")) {
            found.push(path);
        }
    }
    Ok(found)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Runs a command to its end and returns what it printed; its complaints are the error.
fn run(command: &mut Command) -> io::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| io::Error::other(format!("{program}: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    let last: Vec<&str> = complaint.lines().rev().take(3).collect();
    Err(io::Error::other(format!(
        "{program}: {}",
        last.into_iter().rev().collect::<Vec<_>>().join("; ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_from_a_madison_line() {
        let line =
            "redis-tools |  5:8.6.3-1 | http://mirror/debian experimental/main amd64 Packages";
        let offer = parse_offer(line).unwrap();
        assert_eq!(offer.version, "5:8.6.3-1");
        assert_eq!(offer.suite, "experimental");
        assert!(parse_offer("redis | 1:2 | http://mirror/debian sid/main Sources").is_none());
    }

    #[test]
    fn the_upstream_version_is_what_counts() {
        assert_eq!(upstream("5:7.0.15-1~deb12u7"), "7.0.15");
        assert_eq!(upstream("8.1.1+dfsg1-3+deb13u3"), "8.1.1");
        assert_eq!(upstream("9.1"), "9.1");
    }
}
