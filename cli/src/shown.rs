//! How a name and its holder are shown: to people as a block or a row, to programs as JSON.

use std::env;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tenure::{Inspection, Removed, Warning};

use crate::output::{Date, roughly};

/// What the store says of a name; nobody holds it for `None`.
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) found: Option<&'a Inspection>,
}

/// The head of a table of [rows](Shown::row).
pub(crate) const HEAD: [&str; 6] = ["NAME", "HOLDER", "FOR", "LEASE", "FENCE", ""];

/// One word for whether it can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Held,
    /// Nobody holds it any more, and it is still taken.
    Cooling,
}

/// A name as people can read it, on one line and without harm to a terminal.
pub(crate) fn readable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Shown<'_> {
    pub(crate) fn state(&self) -> State {
        match self.found {
            None => State::Free,
            Some(found) if found.cooling => State::Cooling,
            Some(_) => State::Held,
        }
    }

    /// Everything that is known, a line each.
    pub(crate) fn block(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            let _ = writeln!(text, "{key:<8} {value}");
        };
        line("Name:", &readable(self.name));
        let Some(found) = self.found else {
            line("State:", self.state().word());
            return text;
        };
        let you = match self.is_you() {
            true => " (this is you)",
            false => "",
        };
        let holder = format!("{}{you}", label(found.label.as_deref()));
        match self.state() {
            State::Cooling => {
                line(
                    "State:",
                    "free soon: nobody holds it, its shortest hold is not over",
                );
                line("Last:", &holder);
            }
            _ => {
                line("State:", self.state().word());
                line("Holder:", &holder);
            }
        }
        if let Some(since) = found.since {
            let ago = roughly(since.elapsed().unwrap_or_default());
            line("Since:", &format!("{} ({ago} ago)", Date(since)));
        }
        match (found.remaining.map(roughly), found.cooling) {
            (Some(left), true) => line("Free in:", &left),
            (Some(left), false) => line("Lease:", &format!("{left} left, unless it is renewed")),
            (None, _) => line("Lease:", "without end"),
        }
        if let Some(fence) = found.fence {
            line("Fence:", &fence.to_string());
        }
        for warning in &found.warnings {
            line("Warning:", &warning.to_string());
        }
        text
    }

    /// As [`HEAD`] says.
    pub(crate) fn row(&self) -> [String; 6] {
        let found = self.found;
        let since = found.and_then(|found| found.since);
        let held_for = since.map(|since| roughly(since.elapsed().unwrap_or_default()));
        let left = found.and_then(|found| found.remaining).map(roughly);
        let fence = found.and_then(|found| found.fence);
        let mut notes: Vec<&str> = Vec::new();
        if self.is_you() {
            notes.push("(this is you)");
        }
        if self.state() == State::Cooling {
            notes.push("free soon");
        }
        let warnings = found.map_or(&[][..], |found| &found.warnings);
        notes.extend(warnings.iter().map(|warning| word(*warning)));
        [
            readable(self.name),
            found.map_or(String::new(), |found| label(found.label.as_deref()).into()),
            held_for.unwrap_or_else(|| "-".to_owned()),
            left.unwrap_or_else(|| "-".to_owned()),
            fence.map_or("-".to_owned(), |fence| fence.to_string()),
            notes.join(", "),
        ]
    }

    /// A stable contract: fields are only added.
    pub(crate) fn json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), String::from_utf8_lossy(self.name).into());
        map.insert("state".into(), self.state().word().into());
        map.insert("held".into(), (self.state() == State::Held).into());
        let Some(found) = self.found else {
            return map;
        };
        add_holder(&mut map, found.label.as_deref(), found.since);
        let left = found.remaining.map(|left| left.as_millis());
        if let Some(Ok(ms)) = left.map(u64::try_from) {
            map.insert("lease_left_ms".into(), ms.into());
        }
        if let Some(fence) = found.fence {
            map.insert("fence".into(), fence.into());
        }
        map.insert("you".into(), self.is_you().into());
        let warnings = found.warnings.iter().map(|warning| word(*warning));
        map.insert("warnings".into(), warnings.collect());
        map
    }

    /// Whether the command that runs this one holds it, as its environment says: its token begins with the same words as what
    /// the store has. A lock that it has lost is another's, and so not "you".
    fn is_you(&self) -> bool {
        let named = env::var_os("TENURE_NAME").is_some_and(|name| name.as_bytes() == self.name);
        let token = env::var("TENURE_TOKEN").unwrap_or_default();
        named && self.found.is_some_and(|found| is_of(&token, found))
    }
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Held => "held",
            State::Cooling => "cooling",
        }
    }
}

/// Whose hold was removed, as [`Shown::json`] has it.
pub(crate) fn removed_json(removed: &Removed) -> Map<String, Value> {
    let mut map = Map::new();
    add_holder(&mut map, removed.label.as_deref(), removed.since);
    let warnings = removed.warning.iter().map(|warning| word(*warning));
    map.insert("warnings".into(), warnings.collect());
    map
}

fn add_holder(map: &mut Map<String, Value>, label: Option<&str>, since: Option<SystemTime>) {
    if let Some(label) = label {
        map.insert("holder".into(), label.into());
    }
    if let Some(since) = since {
        map.insert("since".into(), json!(format!("{:#}", Date(since))));
    }
}

fn label(label: Option<&str>) -> &str {
    label.unwrap_or("somebody unknown")
}

/// For a column, and for programs.
fn word(warning: Warning) -> &'static str {
    match warning {
        Warning::Endless => "endless",
        Warning::Foreign => "foreign",
        Warning::OtherType => "other-type",
        _ => "odd",
    }
}

/// A token is `tn1:`, a letter, `:`, the time in ms, `:`, the label, `.` and what is secret.
fn is_of(token: &str, found: &Inspection) -> bool {
    let (Some(label), Some(since)) = (&found.label, found.since) else {
        return false;
    };
    let ms = since
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis();
    let start = format!("{ms}:{label}.");
    let told = token
        .split_once(':')
        .and_then(|(_, rest)| rest.split_once(':'));
    !found.cooling && told.is_some_and(|(_, rest)| rest.starts_with(&start))
}
