//! What is said, to people on standard error and to programs as JSON.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::signal::{SigSet, Signal};

/// Lines that are written by a thread of their own: whoever watches a lease never waits for somebody who does not read.
pub(crate) struct Lines {
    sender: Sender<Item>,
}

enum Item {
    Line(String),
    /// Asks for the first error so far, once everything before is written.
    Flush(Sender<Result<(), io::Error>>),
}

/// One JSON object on one line.
pub(crate) struct Object(String);

/// A time as RFC 3339 has it, in UTC.
pub(crate) struct Date(pub(crate) SystemTime);

impl Lines {
    pub(crate) fn start(out: impl Write + Send + 'static) -> io::Result<Lines> {
        let (sender, items) = channel();
        thread::Builder::new()
            .name("tenure-lines".to_owned())
            .spawn(move || write_all(out, &items))?;
        Ok(Lines { sender })
    }

    pub(crate) fn line(&self, line: impl Into<String>) {
        // Without the thread there is nobody to tell.
        let _ = self.sender.send(Item::Line(line.into()));
    }

    /// Waits until everything is written, up to the limit.
    ///
    /// # Errors
    /// The first error of all lines so far; `TimedOut` when nobody reads.
    pub(crate) fn flush(&self, limit: Duration) -> io::Result<()> {
        let (sender, answer) = channel();
        let _ = self.sender.send(Item::Flush(sender));
        match answer.recv_timeout(limit) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn write_all(mut out: impl Write, items: &Receiver<Item>) {
    // A terminal may be set to stop whoever writes to it from the background.
    let _ = SigSet::from(Signal::SIGTTOU).thread_block();
    let mut failed: Option<io::Error> = None;
    for item in items {
        match item {
            Item::Line(mut line) => {
                line.push('\n');
                // In one piece, as others may write there too.
                let written = out.write_all(line.as_bytes()).and_then(|()| out.flush());
                failed = failed.or(written.err());
            }
            Item::Flush(sender) => {
                let result = match &failed {
                    Some(error) => Err(error.kind().into()),
                    None => Ok(()),
                };
                let _ = sender.send(result);
            }
        }
    }
}

impl Object {
    pub(crate) fn new() -> Object {
        Object("{".to_owned())
    }

    pub(crate) fn text(mut self, key: &str, value: &str) -> Object {
        self.key(key);
        self.quote(value);
        self
    }

    pub(crate) fn number(mut self, key: &str, value: impl Into<u64>) -> Object {
        self.key(key);
        self.0 += &value.into().to_string();
        self
    }

    pub(crate) fn flag(mut self, key: &str, value: bool) -> Object {
        self.key(key);
        self.0 += if value { "true" } else { "false" };
        self
    }

    pub(crate) fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn key(&mut self, key: &str) {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        self.quote(key);
        self.0.push(':');
    }

    fn quote(&mut self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => self.0.extend(['\\', c]),
                c if c.is_control() => {
                    // All of them are below U+FFFF.
                    let _ = write!(self.0, "\\u{:04x}", u32::from(c));
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }
}

impl std::fmt::Display for Date {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let secs = since.as_secs();
        let (days, secs) = (secs / 86_400 + 719_468, secs % 86_400);
        // Years that begin in March, in eras of 400: then leap days come last.
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, next) = match month < 10 {
            true => (month + 3, 0),
            false => (month - 9, 1),
        };
        write!(
            f,
            "{:04}-{month:02}-{date:02}T{:02}:{:02}:{:02}",
            year + era * 400 + next,
            secs / 3_600,
            secs / 60 % 60,
            secs % 60
        )?;
        match f.alternate() {
            true => write!(f, ".{:03}Z", since.subsec_millis()),
            false => f.write_str("Z"),
        }
    }
}

/// A duration as people say it: one unit, rounded down.
pub(crate) fn roughly(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0 => format!("{} ms", duration.as_millis()),
        1..=119 => format!("{secs} s"),
        120..=7_199 => format!("{} min", secs / 60),
        7_200..=172_799 => format!("{} h", secs / 3_600),
        _ => format!("{} days", secs / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_one_line_of_json() {
        let line = Object::new()
            .text("name", "a\"b\\c\nd\u{7f}é")
            .number("n", 7_u8)
            .flag("stale", true)
            .finish();
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["name"], "a\"b\\c\nd\u{7f}é");
        assert_eq!((&value["n"], &value["stale"]), (&7.into(), &true.into()));
        assert!(!line.contains('\n'));
        assert_eq!(Object::new().finish(), "{}");
    }

    #[test]
    fn a_time_is_printed_as_programs_know_it() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_796_000_000_123, "2026-11-30T00:53:20.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_millis(ms);
            assert_eq!(format!("{:#}", Date(time)), text);
        }
    }

    #[test]
    fn who_does_not_read_keeps_nobody_waiting_and_an_error_is_told() {
        let (reader, writer) = std::io::pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        let long = "x".repeat(1 << 20);
        lines.line(long);
        lines.line("after");
        let error = lines.flush(Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(reader);
        let error = lines.flush(Duration::from_secs(10)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
