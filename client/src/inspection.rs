//! What an operator is told: who holds a name, which names are held, whose hold was removed, what the server says of itself.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_core::ask::{self, Warning};

/// Who holds a name, as the server had it a moment ago. What is printed of it is for people.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let lock = locks.acquire("report").await?;
/// let inspection = locks.inspect("report").await?.expect("it is held");
/// assert!(inspection.label.is_some() && inspection.warnings.is_empty());
/// assert!(inspection.remaining <= Some(std::time::Duration::from_secs(30)));
/// assert!(inspection.to_string().starts_with("held by "));
/// # drop(lock);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Who holds it: host name and process id, or the label that was set; escaped. `None` for what is none of this
    /// library's: no byte of that is shown.
    pub label: Option<Box<str>>,
    /// When it was asked for, by the clock of whoever did. It informs, nothing depends on it.
    pub since: Option<SystemTime>,
    /// How long the key lives on unless the lease is renewed; `None` if it does not expire.
    pub remaining: Option<Duration>,
    /// The fence of the holder, if it has one. `None` also where it has been held for so long, a day or more, that the server
    /// does not know it any more.
    pub fence: Option<u64>,
    /// Whether nobody holds it any more: the last hold was released before its [minimum](crate::LockOptions::at_least) was
    /// over, and the name stays taken for what remains.
    pub cooling: bool,
    /// What is odd about the key.
    pub warnings: Vec<Warning>,
}

/// The names that are held.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let (_b, _a) = (locks.acquire("b").await?, locks.acquire("a").await?);
/// let listed = locks.list("").await?;
/// let names: Vec<&[u8]> = listed.names.iter().map(|(name, _)| &**name).collect();
/// assert_eq!((names, listed.more), (vec![&b"a"[..], b"b"], false));
/// # Ok(()) }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// In order of their bytes, each with who holds it. They come from the server: escape them before you print them.
    pub names: Vec<(Box<[u8]>, Inspection)>,
    /// Whether there are more than the limit.
    pub more: bool,
}

/// Whose hold was removed by force. What is printed of it is for people.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let _lock = locks.acquire("report").await?;
/// let removed = locks.force_release("report").await?.expect("it was held");
/// assert!(removed.label.is_some() && removed.warning.is_none());
/// assert!(removed.to_string().starts_with("removed the hold of "));
/// assert_eq!(locks.force_release("free").await?, None);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Who held it, as in [`Inspection::label`].
    pub label: Option<Box<str>>,
    /// When it was asked for, as in [`Inspection::since`].
    pub since: Option<SystemTime>,
    /// That it was none of this library's, if so: then nobody is told.
    pub warning: Option<Warning>,
}

/// What the server says of itself: for an operator, and for a program that looks whether a server is fit for locks.
///
/// ```
/// # use tenure_client as tenure;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let locks = tenure_tokio::memory();
/// let examination = locks.examine().await?;
/// if examination.fact("role") == Some("slave") {
///     println!("that is a replica");
/// }
/// // The store in memory has nothing to say.
/// assert!(examination.facts.is_empty() && examination.refused.is_empty());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examination {
    /// Names and values in the server's own words and order, escaped: of Redis and Valkey the lines of `INFO server`,
    /// `memory`, `persistence` and `replication`; of a file `sqlite_version`, `journal_mode`, `free_bytes` and others. Which there are
    /// depends on the server, and its version.
    pub facts: Vec<(Box<str>, Box<str>)>,
    /// The server's clock.
    pub clock: Option<SystemTime>,
    /// What the server does not say, such as `memory` or `TIME`, and its words for why; escaped.
    pub refused: Vec<(Box<str>, Box<str>)>,
}

impl Examination {
    /// The fact of this name, if there is one: see [`Examination`].
    pub fn fact(&self, name: &str) -> Option<&str> {
        let mut facts = self.facts.iter();
        facts.find_map(|(found, value)| (**found == *name).then_some(&**value))
    }
}

impl From<ask::Examined> for Examination {
    fn from(examined: ask::Examined) -> Examination {
        let us = examined.clock_us.map(Duration::from_micros);
        Examination {
            facts: examined.facts,
            clock: us.and_then(|us| UNIX_EPOCH.checked_add(us)),
            refused: examined.refused,
        }
    }
}

impl From<ask::Found> for Inspection {
    fn from(found: ask::Found) -> Inspection {
        Inspection {
            label: found.label,
            since: since(found.since_ms),
            remaining: found.remaining,
            fence: found.fence,
            cooling: found.cooling,
            warnings: found.warnings,
        }
    }
}

impl From<ask::Listed> for Listed {
    fn from(listed: ask::Listed) -> Listed {
        let names = listed.names.into_iter();
        Listed {
            names: names.map(|(name, found)| (name, found.into())).collect(),
            more: listed.more,
        }
    }
}

impl From<ask::Removed> for Removed {
    fn from(removed: ask::Removed) -> Removed {
        Removed {
            label: removed.label,
            since: since(removed.since_ms),
            warning: removed.warning,
        }
    }
}

fn since(ms: Option<u64>) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms?))
}

impl fmt::Debug for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// A name that can be read, and does a terminal no harm.
        struct Name<'a>(&'a [u8]);

        impl fmt::Debug for Name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        let names = self.names.iter().map(|(name, found)| (Name(name), found));
        f.debug_struct("Listed")
            .field("names", &names.collect::<Vec<_>>())
            .field("more", &self.more)
            .finish()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.label, self.cooling) {
            (Some(label), true) => write!(f, "cooling down after {label}")?,
            (Some(label), false) => write!(f, "held by {label}")?,
            (None, _) => f.write_str("held by somebody unknown")?,
        }
        if let Some(since) = self.since {
            write!(f, " since {}", Date(since))?;
        }
        if let Some(remaining) = self.remaining {
            // Rounded up: what is left is never said to be nothing.
            let seconds = remaining.as_secs() + u64::from(remaining.subsec_nanos() > 0);
            match self.cooling {
                true => write!(f, ", {seconds} s left")?,
                false => write!(f, ", for another {seconds} s unless it is renewed")?,
            }
        }
        if let Some(fence) = self.fence {
            write!(f, ", with fence {fence}")?;
        }
        let mut warnings = self.warnings.iter();
        warnings.try_for_each(|warning| write!(f, "; {warning}"))
    }
}

impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.label {
            Some(label) => write!(f, "removed the hold of {label}")?,
            None => f.write_str("removed what was there")?,
        }
        if let Some(since) = self.since {
            write!(f, ", held since {}", Date(since))?;
        }
        match self.warning {
            Some(warning) => write!(f, "; {warning}"),
            None => Ok(()),
        }
    }
}

/// A time as RFC 3339 has it, in UTC.
struct Date(SystemTime);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, secs) = (secs.as_secs() / 86_400, secs.as_secs() % 86_400);
        // Years that begin in March, in eras of 400: then leap days come last.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let date = day - (153 * month + 2) / 5 + 1;
        let (month, next) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        let year = era * 400 + year + next;
        let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
        write!(
            f,
            "{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}Z"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_printed_as_people_know_it() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_796_000_000, "2026-11-30T00:53:20Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(secs);
            assert_eq!(Date(time).to_string(), text);
        }
        // Any number that somebody may have written.
        let far = since(Some(u64::MAX)).map(|time| Date(time).to_string());
        assert!(far.is_none_or(|text| text.ends_with('Z')));
    }

    #[test]
    fn a_list_in_debug_shows_names_that_can_be_read() {
        let found = Inspection {
            label: None,
            since: None,
            remaining: None,
            fence: None,
            cooling: false,
            warnings: Vec::new(),
        };
        let listed = Listed {
            names: vec![(b"a\n\xff".as_slice().into(), found)],
            more: true,
        };
        let text = format!("{listed:?}");
        assert!(
            text.starts_with(r#"Listed { names: [("a\n\xff", Inspection {"#),
            "{text}"
        );
        assert!(text.ends_with("more: true }"), "{text}");
    }

    #[test]
    fn what_is_printed_says_who_and_what_is_odd() {
        let inspection = Inspection {
            label: None,
            since: None,
            remaining: None,
            fence: None,
            cooling: false,
            warnings: vec![Warning::Foreign, Warning::Endless],
        };
        let text = inspection.to_string();
        assert!(text.starts_with("held by somebody unknown; "), "{text}");
        assert!(text.contains("does not expire"), "{text}");
        let removed = Removed {
            label: Some("web-1:4711".into()),
            since: since(Some(1_796_000_000_000)),
            warning: None,
        };
        assert_eq!(
            removed.to_string(),
            "removed the hold of web-1:4711, held since 2026-11-30T00:53:20Z"
        );
    }
}
