//! What was asked for, on standard output: text, tables, colours and JSON.

use std::env;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde_json::Value;
use signal_hook::consts::SIGPIPE;

use crate::exit::{Ending, Failure, NO_EVENTS};

/// Whether to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal that has them, unless NO_COLOR says otherwise
    #[default]
    Auto,
    /// In a pipe too
    Always,
    /// None
    Never,
}

/// What text can look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Strong,
    Faint,
    Good,
    Odd,
    Bad,
}

/// Rows of cells, as wide as the widest of each column.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<(Style, Vec<String>)>,
}

/// Writes text to standard output. When nobody reads on, this process ends as any other program does then.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ending::Signal(SIGPIPE).leave(),
        written => written.map_err(|error| {
            let text = format!("the output cannot be written: {error}");
            Failure::new(NO_EVENTS, "no-output", text)
        }),
    }
}

/// Writes one document, on one line.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &Value) -> Result<(), Failure> {
    print(&format!("{}\n", one_line(value)))
}

/// As JSON in which nothing can trouble a terminal.
fn one_line(value: &Value) -> String {
    let mut line = String::new();
    for c in value.to_string().chars() {
        match c.is_control() {
            // They stand in strings only, and all of them are below U+FFFF.
            true => drop(write!(line, "\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
    }
    line
}

impl Color {
    /// Whether it is wanted on standard output.
    pub(crate) fn is_wanted(self) -> bool {
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        }
    }
}

impl Style {
    /// The text in this style, if colours are wanted.
    pub(crate) fn paint(self, text: &str, colored: bool) -> String {
        let code = match self {
            Style::Plain => return text.to_owned(),
            Style::Strong => 1,
            Style::Faint => 2,
            Style::Good => 32,
            Style::Odd => 33,
            Style::Bad => 31,
        };
        match colored {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

impl Table {
    pub(crate) fn row<T: Into<String>>(
        &mut self,
        style: Style,
        cells: impl IntoIterator<Item = T>,
    ) {
        let cells = cells.into_iter().map(Into::into).collect();
        self.rows.push((style, cells));
    }

    /// Its lines, cut to the width if there is one. Cells are ASCII: what comes from a store is escaped.
    pub(crate) fn text(&self, colored: bool, most: Option<usize>) -> String {
        let mut widths: Vec<usize> = Vec::new();
        for (_, cells) in &self.rows {
            widths.resize(widths.len().max(cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = cell.len().max(*width);
            }
        }
        let mut text = String::new();
        for (style, cells) in &self.rows {
            let cells = cells.iter().zip(&widths);
            let line: Vec<String> = cells
                .map(|(cell, width)| format!("{cell:width$}"))
                .collect();
            let line = line.join("  ");
            let line: String = line.chars().take(most.unwrap_or(usize::MAX)).collect();
            text += &style.paint(line.trim_end(), colored);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_a_word() {
        let mut table = Table::default();
        table.row(Style::Strong, ["NAME", "HOLDER", ""]);
        table.row(Style::Plain, ["a", "web-1:4711", "odd"]);
        assert_eq!(
            table.text(false, None),
            "NAME  HOLDER\na     web-1:4711  odd\n"
        );
        assert_eq!(
            table.text(true, None).lines().next(),
            Some("\x1b[1mNAME  HOLDER\x1b[0m")
        );
        assert_eq!(table.text(false, Some(8)), "NAME  HO\na     we\n");
    }

    #[test]
    fn json_has_no_control_characters() {
        let line = one_line(&serde_json::json!({"name": "a\u{9b}\u{7f}\n\""}));
        assert_eq!(line, r#"{"name":"a\u009b\u007f\n\""}"#);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["name"], "a\u{9b}\u{7f}\n\"");
    }
}
