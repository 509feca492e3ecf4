//! `tenure list`: which names are held.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

use serde_json::{Value, json};
use tenure::Listed;

use crate::args::StoreArgs;
use crate::exit::{self, Failure};
use crate::print::{Color, Style, Table, print, print_json};
use crate::shown::{HEAD, Shown, State};
use crate::store::Store;

/// List the locks that are held, and by whom
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure list order:")]
#[command(max_term_width = 80)]
#[command(after_help = "Exit status: 0; 69 no store, 77 refused by it, 64 usage.")]
pub(crate) struct ListArgs {
    /// How the names begin; all if it is left out
    #[arg(default_value = "", hide_default_value = true)]
    prefix: OsString,

    #[command(flatten)]
    store: StoreArgs,

    /// So many at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,

    /// One JSON object on standard output
    #[arg(long)]
    json: bool,

    /// auto, always or never
    #[arg(
        long,
        value_enum,
        default_value_t,
        value_name = "WHEN",
        hide_possible_values = true
    )]
    color: Color,
}

pub(crate) fn list(args: &ListArgs) -> Result<u8, Failure> {
    let locks = Store::find(&args.store)?.reach()?;
    let listed = locks.list_up_to(args.limit, args.prefix.as_bytes())?;
    if args.json {
        let all = shown(&listed).map(|shown| Value::Object(shown.json()));
        let all: Vec<Value> = all.collect();
        print_json(&json!({"locks": all, "more": listed.more}))?;
        return Ok(exit::DONE);
    }
    print(&table(&listed, args.color.is_wanted(), None))?;
    if listed.names.is_empty() {
        eprintln!("tenure: nothing is held");
    }
    if listed.more {
        eprintln!("tenure: there are more than {}: see --limit", args.limit);
    }
    Ok(exit::DONE)
}

/// The names with their holders, cut to the width if there is one; nothing for none.
pub(crate) fn table(listed: &Listed, colored: bool, width: Option<usize>) -> String {
    let mut table = Table::default();
    if !listed.names.is_empty() {
        table.row(Style::Strong, HEAD);
    }
    for shown in shown(listed) {
        let warns = shown.found.is_some_and(|found| !found.warnings.is_empty());
        let style = match shown.state() {
            _ if warns => Style::Odd,
            State::Cooling => Style::Faint,
            _ => Style::Plain,
        };
        table.row(style, shown.row());
    }
    table.text(colored, width)
}

fn shown(listed: &Listed) -> impl Iterator<Item = Shown<'_>> {
    listed.names.iter().map(|(name, found)| Shown {
        name,
        found: Some(found),
    })
}
