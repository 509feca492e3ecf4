//! `tenure watch`: who takes and frees which names, as it happens.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::termios::tcgetwinsize;
use serde_json::Value;
use tenure::blocking::Locks;
use tenure::{Error, Inspection, Listed};

use crate::args::{StoreArgs, parse_duration};
use crate::exit::{self, Failure};
use crate::interrupt::on_interrupt;
use crate::list::table;
use crate::output::Date;
use crate::print::{Color, print, print_json};
use crate::shown::{Shown, readable};
use crate::store::Store;

/// Watch who takes and frees locks
#[derive(Debug, clap::Args)]
#[command(before_help = "Example: tenure watch order: --interval 5s")]
#[command(max_term_width = 80)]
#[command(
    after_help = "On a terminal a table, else a line for each change. A lock that is taken and \
        freed between two looks is not seen. Ends with INT or TERM. Exit status: 0; 69 \
        no store, 77 refused by it, 64 usage."
)]
pub(crate) struct WatchArgs {
    /// How the names begin; all if it is left out
    #[arg(default_value = "", hide_default_value = true)]
    prefix: OsString,

    #[command(flatten)]
    store: StoreArgs,

    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,

    /// One JSON object a line for each change
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

enum Event {
    Looked(Result<Listed, Error>),
    Interrupted,
}

/// So many names are watched at most.
const LIMIT: usize = 10_000;
/// A store is not asked more often than that.
const SHORTEST: Duration = Duration::from_millis(20);

pub(crate) fn watch(args: &WatchArgs) -> Result<u8, Failure> {
    let locks = Store::find(&args.store)?.reach()?;
    let (sender, events) = channel();
    let interrupted = sender.clone();
    on_interrupt(move || drop(interrupted.send(Event::Interrupted)))?;
    let (prefix, pause) = (args.prefix.clone(), args.interval.max(SHORTEST));
    // The answer may take long; an interrupt does not wait for it.
    thread::spawn(move || look(&locks, prefix.as_bytes(), pause, &sender));
    match stdout().is_terminal() && !args.json {
        true => draw(&events, args.color.is_wanted()),
        false => tell(&events, args.json),
    }?;
    Ok(exit::DONE)
}

fn look(locks: &Locks, prefix: &[u8], pause: Duration, sender: &Sender<Event>) {
    while sender
        .send(Event::Looked(locks.list_up_to(LIMIT, prefix)))
        .is_ok()
    {
        thread::sleep(pause);
    }
}

/// A table that stays where it is.
fn draw(events: &Receiver<Event>, colored: bool) -> Result<(), Failure> {
    let mut last = Listed::default();
    let mut lines = 0;
    for event in events {
        let head = match event {
            Event::Interrupted => return Ok(()),
            Event::Looked(Ok(listed)) => {
                last = listed;
                let more = if last.more { ", and more" } else { "" };
                format!(
                    "{}, {} taken{more}",
                    Date(SystemTime::now()),
                    last.names.len()
                )
            }
            Event::Looked(Err(error)) => {
                let error = passing(error)?;
                format!(
                    "{}, {error}; this is what was last seen",
                    Date(SystemTime::now())
                )
            }
        };
        let (width, height) = size();
        let table = table(&last, colored, Some(width));
        // The line below the last is where the cursor stands.
        let shown = table.lines().take(height.saturating_sub(3));
        let head = head.chars().take(width).collect::<String>();
        let text: Vec<&str> = [&*head].into_iter().chain(shown).collect();
        print(&format!("{}{}\n", back(lines), text.join("\n")))?;
        lines = text.len();
    }
    Ok(())
}

/// To the start of what was drawn, which is wiped away.
fn back(lines: usize) -> String {
    match lines {
        0 => String::new(),
        lines => format!("\x1b[{lines}A\x1b[J"),
    }
}

/// Columns and rows of the terminal.
fn size() -> (usize, usize) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// A line for each change.
fn tell(events: &Receiver<Event>, json: bool) -> Result<(), Failure> {
    let mut changes = Changes::default();
    for event in events {
        let told = match event {
            Event::Interrupted => return Ok(()),
            Event::Looked(Ok(listed)) => changes.looked(listed),
            Event::Looked(Err(error)) => changes.failed(passing(error)?),
        };
        for change in told {
            match json {
                true => print_json(&change.json())?,
                false => print(&change.text())?,
            }
        }
    }
    Ok(())
}

/// A store that is gone comes back; whoever is refused stays so.
fn passing(error: Error) -> Result<Error, Failure> {
    match error.is_retryable() {
        true => Ok(error),
        false => Err(error.into()),
    }
}

/// What was seen last, so that only changes are told.
#[derive(Default)]
struct Changes {
    /// `None` before the first look.
    seen: Option<BTreeMap<Box<[u8]>, Inspection>>,
    is_away: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    event: &'static str,
    at: SystemTime,
    /// Which name, and who has it now or had it.
    lock: Option<(Box<[u8]>, Inspection)>,
    why: Option<String>,
}

impl Changes {
    fn looked(&mut self, listed: Listed) -> Vec<Change> {
        let mut told = Vec::new();
        if std::mem::take(&mut self.is_away) {
            told.push(Change::of_store("reachable", None));
        }
        let is_first = self.seen.is_none();
        let mut before = self.seen.take().unwrap_or_default();
        let now: BTreeMap<_, _> = listed.names.into_iter().collect();
        for (name, found) in &now {
            let event = match before.remove(name) {
                Some(old) if is_same(&old, found) => continue,
                _ if found.cooling => "cooling",
                None if is_first => "held",
                _ => "taken",
            };
            told.push(Change::of_lock(event, name, found));
        }
        told.extend(
            before
                .iter()
                .map(|(name, old)| Change::of_lock("freed", name, old)),
        );
        self.seen = Some(now);
        told
    }

    fn failed(&mut self, error: Error) -> Vec<Change> {
        match std::mem::replace(&mut self.is_away, true) {
            true => Vec::new(),
            false => vec![Change::of_store("unreachable", Some(error.to_string()))],
        }
    }
}

/// Whether it is the same hold: what its lease has left changes all the time.
fn is_same(one: &Inspection, other: &Inspection) -> bool {
    (&one.label, one.since, one.cooling) == (&other.label, other.since, other.cooling)
}

impl Change {
    fn of_lock(event: &'static str, name: &[u8], found: &Inspection) -> Change {
        let lock = Some((name.into(), found.clone()));
        Change {
            lock,
            ..Change::of_store(event, None)
        }
    }

    fn of_store(event: &'static str, why: Option<String>) -> Change {
        Change {
            event,
            at: SystemTime::now(),
            lock: None,
            why,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("{} {:<8}", Date(self.at), self.event);
        if let Some((name, found)) = &self.lock {
            let label = found.label.as_deref().unwrap_or("somebody unknown");
            text += &format!(" {} {label}", readable(name));
        }
        if let Some(why) = &self.why {
            text += &format!(" {why}");
        }
        format!("{}\n", text.trim_end())
    }

    fn json(&self) -> Value {
        let mut map = match &self.lock {
            Some((name, found)) => {
                let found = (self.event != "freed").then_some(found);
                Shown { name, found }.json()
            }
            None => serde_json::Map::new(),
        };
        if let (Some((_, found)), "freed") = (&self.lock, self.event) {
            // Who had it.
            map.insert("holder".into(), found.label.as_deref().into());
        }
        map.insert("event".into(), self.event.into());
        map.insert("at".into(), format!("{:#}", Date(self.at)).into());
        if let Some(why) = &self.why {
            map.insert("why".into(), why.as_str().into());
        }
        Value::Object(map)
    }
}
