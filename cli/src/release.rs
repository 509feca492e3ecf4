//! `tenure release`: frees a name that somebody else holds, by its token or by force.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;

use serde_json::{Value, json};
use tenure::blocking::Locks;
use tenure::{OwnerToken, Removed};

use crate::args::StoreArgs;
use crate::exit::{self, Failure};
use crate::print::{print, print_json};
use crate::shown::{Shown, State, readable, removed_json};
use crate::store::Store;

/// Free a lock that another process holds
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure release nightly-report --force")]
#[command(max_term_width = 80)]
#[command(
    group = clap::ArgGroup::new("how").required(true).args(["token_env", "token_stdin", "force"])
)]
#[command(
    after_help = "The holder is told, and works on until then. Exit status: 0 freed, or with \
        --force free already; 75 not held with that token, or not agreed to; 69 no \
        store, 77 refused, 64 usage."
)]
pub(crate) struct ReleaseArgs {
    /// Of the lock
    name: OsString,

    #[command(flatten)]
    store: StoreArgs,

    /// The token is in this variable, such as TENURE_TOKEN
    #[arg(long, value_name = "VAR")]
    token_env: Option<OsString>,

    /// The token comes on standard input
    #[arg(long)]
    token_stdin: bool,

    /// Whoever holds it; asks first on a terminal
    #[arg(long)]
    force: bool,

    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// What came of it.
enum Release {
    Freed(Removed),
    /// Nobody held it.
    Free,
    /// It was not what was to be freed, or that was not agreed to.
    Kept,
}

/// A token is shorter.
const MOST: u64 = 1024;

pub(crate) fn release(args: &ReleaseArgs) -> Result<u8, Failure> {
    // Before anything else: a wrong option should not need a store.
    let token = match args.force {
        true => None,
        false => Some(token(args)?),
    };
    let locks = Store::find(&args.store)?.reach()?;
    let name = args.name.as_bytes();
    let release = match token {
        Some(token) => by_token(&locks, name, &token)?,
        None => by_force(&locks, name)?,
    };
    match args.json {
        true => print_json(&release.json(name))?,
        false => print(&release.text(name))?,
    }
    if matches!(release, Release::Kept) {
        let found = locks.inspect(name)?;
        let found = found.as_ref();
        eprint!("{}", Shown { name, found }.block());
    }
    Ok(match release {
        Release::Freed(_) => exit::DONE,
        Release::Free if args.force => exit::DONE,
        Release::Free | Release::Kept => exit::REFUSED,
    })
}

fn by_token(locks: &Locks, name: &[u8], token: &OwnerToken) -> Result<Release, Failure> {
    let removed = locks.release_by_token(name, token)?;
    Ok(match removed {
        Some(removed) => Release::Freed(removed),
        None if locks.inspect(name)?.is_none() => Release::Free,
        None => Release::Kept,
    })
}

fn by_force(locks: &Locks, name: &[u8]) -> Result<Release, Failure> {
    let found = locks.inspect(name)?;
    let shown = Shown {
        name,
        found: found.as_ref(),
    };
    if shown.state() == State::Free {
        return Ok(Release::Free);
    }
    eprint!("{}", shown.block());
    if io::stdin().is_terminal() && io::stderr().is_terminal() && !is_agreed() {
        return Ok(Release::Kept);
    }
    let removed = locks.force_release(name)?;
    Ok(removed.map_or(Release::Free, Release::Freed))
}

/// Asks whoever sits at the terminal.
fn is_agreed() -> bool {
    eprint!("\nIts holder works on until it is told. Free it? Only `yes` frees it: ");
    let _ = io::stderr().flush();
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.is_ok() && line.trim() == "yes"
}

/// The token that was given, which no message shows.
fn token(args: &ReleaseArgs) -> Result<OwnerToken, Failure> {
    let text = match &args.token_env {
        Some(variable) => env::var(variable).map_err(|_| {
            let variable = readable(variable.as_bytes());
            Failure::usage(format!("there is no token in the variable {variable}"))
        })?,
        None => {
            let mut text = String::new();
            let read = io::stdin().take(MOST).read_to_string(&mut text);
            read.map_err(|_| Failure::usage("there is no token on standard input"))?;
            text
        }
    };
    OwnerToken::new(text.trim()).ok_or_else(|| {
        Failure::usage(
            "that is no token: it is what a command under `tenure run` has in TENURE_TOKEN, and a hold that rotates has none",
        )
    })
}

impl Release {
    fn text(&self, name: &[u8]) -> String {
        let name = readable(name);
        match self {
            Release::Freed(removed) => format!("`{name}`: {removed}\n"),
            Release::Free => format!("`{name}` is free\n"),
            Release::Kept => format!("`{name}` was not freed\n"),
        }
    }

    fn json(&self, name: &[u8]) -> Value {
        let name = String::from_utf8_lossy(name);
        match self {
            Release::Freed(removed) => {
                json!({"name": name, "freed": true, "removed": removed_json(removed)})
            }
            Release::Free => json!({"name": name, "freed": false, "state": "free"}),
            Release::Kept => json!({"name": name, "freed": false, "state": "held"}),
        }
    }
}
