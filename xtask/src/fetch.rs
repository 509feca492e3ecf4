//! `cargo xtask servers`: finds or fetches every server of the matrix.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use xtask::servers::{self, Entry, Manifest, ServerKind};

use crate::apt::{self, Apt};

/// Makes sure of every kind not left out, and prints which servers those are.
pub(crate) fn servers(without: &BTreeSet<ServerKind>) -> Result<(), String> {
    let folder = servers::folder().map_err(|error| error.to_string())?;
    let (manifest, missing) =
        ensure(&folder, without).map_err(|error| format!("{}: {error}", folder.display()))?;
    for kind in ServerKind::ALL {
        match manifest.find(kind) {
            Some(entry) => println!(
                "  {kind:<11} {:<8} {}",
                entry.version,
                entry.argv.last().map_or("", String::as_str)
            ),
            None if without.contains(&kind) => println!("  {kind:<11} LEFT OUT as asked"),
            None => println!("  {kind:<11} MISSING: {}", missing[&kind]),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.keys().map(|kind| kind.wanted()).collect();
    Err(format!(
        "could not have {}.\n\
         Debian machines fetch them from their own mirror. Elsewhere, install them and put \
         `redis-server` and `valkey-server`\non PATH, or name each in {}, as\n\n\
         [[server]]\nkind = \"{}\"\nversion = \"as it says itself\"\nargv = [\"/path/to/{}\"]\n\n\
         To go on without one of them: cargo xtask test --without KIND.",
        names.join(", "),
        Manifest::path(&folder).display(),
        missing.keys().next().map_or("", |kind| kind.id()),
        missing.keys().next().map_or("", |kind| kind.program()),
    ))
}

/// Takes what is on PATH, then what the manifest has, then what the mirror offers.
fn ensure(
    folder: &Path,
    without: &BTreeSet<ServerKind>,
) -> io::Result<(Manifest, BTreeMap<ServerKind, String>)> {
    fs::create_dir_all(folder)?;
    // Two runs at once would fetch everything twice; the second waits and finds it done.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;

    let known = match Manifest::load(folder) {
        Ok(manifest) => manifest,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Manifest::default(),
        Err(error) => return Err(error),
    };
    let mut found: BTreeMap<ServerKind, Entry> = BTreeMap::new();
    let mut missing: Vec<ServerKind> = Vec::new();
    for kind in ServerKind::ALL {
        let cached = || Entry::probe(kind, &known.find(kind)?.argv);
        match on_path(kind).or_else(cached) {
            Some(entry) => drop(found.insert(kind, entry)),
            None if without.contains(&kind) => {}
            None => missing.push(kind),
        }
    }
    let mut failed = BTreeMap::new();
    if !missing.is_empty() {
        let temporary = folder.join(format!("fetching.{}", process::id()));
        sweep(folder)?;
        failed = fetch(folder, &temporary, &missing, &mut found);
        fs::remove_dir_all(&temporary).ok();
    }
    let manifest = Manifest {
        servers: found.into_values().collect(),
    };
    if manifest != known {
        manifest.store(folder)?;
    }
    Ok((manifest, failed))
}

/// Removes what an interrupted run left. Only called under the lock.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("fetching.") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Fetches the missing kinds. Returns those that could not be had, and why.
fn fetch(
    folder: &Path,
    temporary: &Path,
    missing: &[ServerKind],
    found: &mut BTreeMap<ServerKind, Entry>,
) -> BTreeMap<ServerKind, String> {
    let mut failed: BTreeMap<ServerKind, String> = BTreeMap::new();
    let apt = match Apt::new(&temporary.join("apt")) {
        Ok(apt) => apt,
        Err(error) => {
            let all = missing.iter().map(|kind| (*kind, error.to_string()));
            return all.collect();
        }
    };
    let mut suites: BTreeSet<&str> = BTreeSet::new();
    let mut left: Vec<ServerKind> = missing.to_vec();
    // First only the suites that should have them; all others when some do not.
    for round in 0..2 {
        if left.is_empty() {
            break;
        }
        suites.extend(left.iter().flat_map(|kind| apt::suites(*kind)[round]));
        println!("  reading the package lists of {suites:?}");
        let updated = apt.update(&suites);
        left.retain(|kind| {
            let fetched = match &updated {
                Ok(()) => fetch_one(&apt, folder, temporary, *kind),
                Err(error) => Err(error.to_string()),
            };
            match fetched {
                Ok(entry) => {
                    failed.remove(kind);
                    found.insert(*kind, entry);
                    false
                }
                Err(why) => {
                    failed.insert(*kind, why);
                    true
                }
            }
        });
    }
    failed
}

fn fetch_one(
    apt: &Apt,
    folder: &Path,
    temporary: &Path,
    kind: ServerKind,
) -> Result<Entry, String> {
    let offer = apt
        .offer(kind)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("the mirror has no {}", kind.wanted()))?;
    println!("  fetching {kind}: {} of {}", offer.version, offer.suite);
    let unpacked = temporary.join(kind.id());
    let target = folder.join(kind.id());
    let done = || -> io::Result<Vec<String>> {
        apt.unpack(kind, &offer, &unpacked)?;
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        fs::rename(&unpacked, &target)?;
        apt::argv(kind, &target)
    };
    let argv = done().map_err(|error| error.to_string())?;
    Entry::probe(kind, &argv).ok_or_else(|| {
        format!(
            "version {} was unpacked but does not run: {}",
            offer.version,
            argv.join(" ")
        )
    })
}

fn on_path(kind: ServerKind) -> Option<Entry> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(kind.program()))
        .filter(|program: &PathBuf| program.is_file())
        .find_map(|program| Entry::probe(kind, &[program.to_string_lossy().into_owned()]))
}
