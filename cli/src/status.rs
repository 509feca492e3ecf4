//! `tenure status`: who holds a name.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::Value;

use crate::args::StoreArgs;
use crate::exit::{self, Failure};
use crate::print::{print, print_json};
use crate::shown::{Shown, State};
use crate::store::Store;

/// Show who holds a lock, since when and for how much longer
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure status nightly-report")]
#[command(max_term_width = 80)]
#[command(
    after_help = "It is what the store said a moment ago. Exit status: 0, held or free; 69 no \
        store, 77 refused by it, 64 usage."
)]
pub(crate) struct StatusArgs {
    /// Of the lock
    name: OsString,

    #[command(flatten)]
    store: StoreArgs,

    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn status(args: &StatusArgs) -> Result<u8, Failure> {
    let locks = Store::find(&args.store)?.reach()?;
    let name = args.name.as_bytes();
    let found = locks.inspect(name)?;
    let shown = Shown {
        name,
        found: found.as_ref(),
    };
    if args.json {
        print_json(&Value::Object(shown.json()))?;
    } else {
        print(&format!("{}{}", shown.block(), next_step(&shown)))?;
    }
    Ok(exit::DONE)
}

fn next_step(shown: &Shown<'_>) -> &'static str {
    match shown.state() {
        State::Free => "",
        State::Cooling => "\n`tenure run --wait` waits for it.\n",
        State::Held => {
            "\n`tenure run --wait` waits for it; `tenure release --force` frees it if its holder is gone.\n"
        }
    }
}
