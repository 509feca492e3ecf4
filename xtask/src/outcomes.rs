//! The table of outcomes, `tests/outcomes.toml`: what a caller gets and what is left on the server for every
//! event a lock can meet. The same rows make a page of the documentation and the names of tests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// The table, read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// In the order of the file.
    #[serde(default, rename = "row")]
    pub rows: Vec<Row>,
}

/// One event and what comes of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The heading it stands under.
    pub group: String,
    /// Kebab-case; the name of its tests.
    pub id: String,
    /// What happens.
    pub event: String,
    /// What the caller gets.
    pub caller: String,
    /// How it meets a wait.
    pub wait: Wait,
    /// What is left on the server.
    pub server: String,
    /// Whether it is shown on real servers.
    pub real: bool,
    /// When not: why not, or where else it is shown.
    #[serde(default)]
    pub reason: String,
    /// Names of tests that show it away from real servers.
    #[serde(default)]
    pub unit: Vec<String>,
}

/// What an event does to a request that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Wait {
    /// Tried again until the wait is over.
    #[serde(rename = "within wait")]
    Within,
    /// Waiting cannot cure it: the request ends at once.
    #[serde(rename = "ends")]
    Ends,
    /// Nothing is waiting.
    #[serde(rename = "n/a")]
    None,
}

/// What the rest of the workspace offers as proof.
#[derive(Clone, Debug, Default)]
pub struct Proofs {
    /// The name of every function in the sources.
    pub functions: BTreeSet<String>,
    /// Every id a scenario is registered under.
    pub scenarios: BTreeSet<String>,
}

impl Table {
    /// Reads the table.
    ///
    /// # Errors
    /// When it is no such table.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Reads the table of a workspace.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(workspace: &Path) -> Result<Self, String> {
        let path = workspace.join("tests/outcomes.toml");
        let text = fs::read_to_string(&path);
        text.map_err(|error| error.to_string())
            .and_then(|text| Self::parse(&text))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Everything that is wrong with the table itself.
    #[must_use]
    pub fn complaints(&self, proofs: &Proofs) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut ids = BTreeSet::new();
        for row in &self.rows {
            let id = &row.id;
            let mut complain = |what: String| complaints.push(format!("{id}: {what}"));
            if !is_kebab(id) {
                complain("an id is lower-case words joined by hyphens".into());
            }
            if !ids.insert(id) {
                complain("this id is there twice".into());
            }
            for (field, text) in [
                ("group", &row.group),
                ("event", &row.event),
                ("caller", &row.caller),
                ("server", &row.server),
            ] {
                if text.trim().is_empty() {
                    complain(format!("`{field}` says nothing"));
                }
            }
            if !row.real && row.reason.trim().is_empty() {
                complain("not shown on real servers, and no `reason` why".into());
            }
            for test in &row.unit {
                let name = test.rsplit("::").next().unwrap_or(test);
                if !proofs.functions.contains(name) {
                    complain(format!("there is no test `{test}`"));
                }
            }
        }
        complaints
    }

    /// The rows nothing proves yet.
    #[must_use]
    pub fn unproven<'a>(&'a self, proofs: &Proofs) -> Vec<&'a Row> {
        let proven = |row: &Row| match row.real {
            true => proofs.scenarios.contains(&row.id),
            false => !row.unit.is_empty(),
        };
        self.rows.iter().filter(|row| !proven(row)).collect()
    }

    /// The page of the documentation.
    #[must_use]
    pub fn render(&self, proofs: &Proofs) -> String {
        let mut page = String::from(
            "# Outcomes\n\n\
             What a caller gets, and what is left on the server, for everything that can happen to a lock.\n\n\
             *Wait* says what the event does to a request that may wait: *within wait* is tried again until the \
             wait is over,\n*ends* ends the request at once because waiting cannot cure it.\n\n\
             *Proof*: **real** rows are tests against every server of the matrix, named after the row; the others \
             name their tests.\n\n\
             This page is made from `tests/outcomes.toml` by `cargo xtask outcomes`.\n",
        );
        let mut groups: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !groups.contains(&row.group.as_str()) {
                groups.push(&row.group);
            }
        }
        for group in groups {
            let _ = write!(
                page,
                "\n## {group}\n\n\
                 | event | the caller gets | wait | on the server | proof |\n|---|---|---|---|---|\n"
            );
            for row in self.rows.iter().filter(|row| row.group == group) {
                let _ = writeln!(
                    page,
                    "| <a id=\"{}\"></a>{} | {} | {} | {} | {} |",
                    row.id,
                    cell(&row.event),
                    cell(&row.caller),
                    row.wait.text(),
                    cell(&row.server),
                    cell(&row.proof(proofs)),
                );
            }
        }
        page
    }
}

impl Row {
    fn proof(&self, proofs: &Proofs) -> String {
        if self.real {
            return match proofs.scenarios.contains(&self.id) {
                true => format!("**real** `{}`", self.id),
                false => "not shown yet".into(),
            };
        }
        let tests: Vec<String> = self
            .unit
            .iter()
            .map(|test| format!("`{}`", test.rsplit("::").next().unwrap_or(test)))
            .collect();
        let tests = match tests.is_empty() {
            true => "not shown yet".to_owned(),
            false => tests.join(", "),
        };
        format!("{tests}. {}", self.reason)
    }
}

impl Wait {
    /// As in the table.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Within => "within wait",
            Self::Ends => "ends",
            Self::None => "n/a",
        }
    }
}

impl Proofs {
    /// Collects what the sources of a workspace offer.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn collect(workspace: &Path) -> io::Result<Self> {
        let mut proofs = Self::default();
        proofs.walk(workspace, &workspace.join("tests/src/rows"))?;
        Ok(proofs)
    }

    fn walk(&mut self, folder: &Path, rows: &Path) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if entry.file_type()?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    self.walk(&path, rows)?;
                }
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path)?;
                self.functions.extend(functions(&text));
                if path.starts_with(rows) {
                    self.scenarios.extend(scenarios(&text));
                }
            }
        }
        Ok(())
    }
}

/// The names after `fn` in a source.
pub fn functions(text: &str) -> impl Iterator<Item = String> + '_ {
    text.lines().filter_map(|line| {
        let (before, after) = line.split_once("fn ")?;
        let start = before.chars().next_back().is_none_or(char::is_whitespace);
        let name: String = after
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        (start && !name.is_empty() && !before.trim_start().starts_with("//")).then_some(name)
    })
}

/// The ids in the registrations of a file of scenarios, `("some-id", ..)`, on one line or several.
fn scenarios(text: &str) -> impl Iterator<Item = String> {
    text.split('(').filter_map(|rest| {
        let (id, after) = rest.trim_start().strip_prefix('"')?.split_once('"')?;
        (is_kebab(id) && after.starts_with(',')).then(|| id.to_owned())
    })
}

fn is_kebab(id: &str) -> bool {
    !id.is_empty()
        && id.split('-').all(|word| {
            !word.is_empty()
                && word
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
        })
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[row]]
group = "Key"
id = "key-deleted"
event = "the key is deleted | gone"
caller = "`Lost`"
wait = "n/a"
server = "nothing"
real = true

[[row]]
group = "Caller"
id = "panicking"
event = "a panic"
caller = "released"
wait = "n/a"
server = "nothing"
real = false
reason = "nothing of the server in it"
unit = ["some::path::released_while_panicking"]
"#;

    fn proofs() -> Proofs {
        Proofs {
            functions: functions("    pub fn released_while_panicking() {}").collect(),
            scenarios: scenarios("    (\"key-deleted\", key_deleted),").collect(),
        }
    }

    #[test]
    fn a_good_table_has_no_complaints_and_makes_a_page() {
        let table = Table::parse(GOOD).unwrap();
        assert_eq!(table.complaints(&proofs()), Vec::<String>::new());
        assert!(table.unproven(&proofs()).is_empty());
        let page = table.render(&proofs());
        assert!(page.contains("## Key"), "{page}");
        assert!(page.contains("deleted \\| gone"), "{page}");
        assert!(page.contains("**real** `key-deleted`"), "{page}");
        assert!(
            page.contains("`released_while_panicking`. nothing of"),
            "{page}"
        );
    }

    #[test]
    fn an_id_given_twice_is_a_complaint() {
        let table = Table::parse(&format!("{GOOD}{GOOD}")).unwrap();
        let complaints = table.complaints(&proofs());
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("twice"));
    }

    #[test]
    fn a_row_without_proof_needs_a_reason() {
        let text = GOOD.replace("reason = \"nothing of the server in it\"", "");
        let complaints = Table::parse(&text).unwrap().complaints(&proofs());
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("reason"));
    }

    #[test]
    fn a_test_that_does_not_exist_is_a_complaint() {
        let complaints = Table::parse(GOOD).unwrap().complaints(&Proofs::default());
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("no test"));
    }

    #[test]
    fn what_is_not_shown_is_said_not_to_be() {
        let table = Table::parse(GOOD).unwrap();
        assert_eq!(table.unproven(&Proofs::default())[0].id, "key-deleted");
        assert!(table.render(&Proofs::default()).contains("not shown yet"));
    }

    #[test]
    fn only_what_the_table_knows_can_be_said() {
        assert!(Table::parse(&GOOD.replace("wait = \"n/a\"", "wait = \"soon\"")).is_err());
        assert!(Table::parse(&GOOD.replace("real = true", "reel = true")).is_err());
    }

    #[test]
    fn functions_are_found_and_comments_are_not() {
        let found: Vec<String> =
            functions("async fn a_b() {}\n// fn c() {}\nlet x = often ();\nfn d<T>(t: T)")
                .collect();
        assert_eq!(found, ["a_b", "d"]);
    }
}
