//! What a server says of itself, for an operator: four sections of `INFO`, and `TIME`.

use crate::ask::{AskId, Asks};
use crate::resp::{Arg, Value};

/// The sections of `INFO` that are asked for, in this order. Before them comes the time: what follows takes the server a while.
const SECTIONS: [&str; 4] = ["server", "memory", "persistence", "replication"];

/// How many replies there are.
pub(super) const REPLIES: u8 = 1 + SECTIONS.len() as u8;

/// Gives the arguments of each command.
pub(super) fn commands(mut each: impl FnMut(&[Arg<'_>])) {
    each(&["TIME".into()]);
    for section in SECTIONS {
        each(&["INFO".into(), section.into()]);
    }
}

/// Takes in a reply behind which `more` come. What is refused is noted, and the rest is told.
pub(super) fn take_reply(id: AskId, value: &Value<'_>, more: u8, asks: &mut Asks) {
    let section = SECTIONS.iter().rev().nth(usize::from(more));
    match section {
        None => match time(value) {
            Some(us) => asks.handle_clock(id, us),
            None => asks.handle_refused(id, "TIME", value.error().unwrap_or_default()),
        },
        Some(section) => match (value.error(), value.as_bytes()) {
            (None, Some(text)) => asks.handle_facts(id, facts(text)),
            (error, _) => asks.handle_refused(id, section, error.unwrap_or_default()),
        },
    }
    if more == 0 {
        asks.handle_examined(id);
    }
}

/// `name:value` of each line; comments have none.
fn facts(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..at], &line[at + 1..]))
    })
}

/// Seconds and microseconds of Unix time, each as text.
fn time(value: &Value<'_>) -> Option<u64> {
    let mut parts = value.as_items()?.iter().map(|part| {
        let digits = part.as_bytes()?;
        core::str::from_utf8(digits).ok()?.parse::<u64>().ok()
    });
    let (seconds, us) = (parts.next()??, parts.next()??);
    seconds.checked_mul(1_000_000)?.checked_add(us)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn a_fact_is_a_line_with_a_colon() {
        let text = b"# Server\r\nredis_version:8.6.3\r\nslave0:ip=::1,lag=0\r\n\r\nodd\r\n";
        let all: Vec<_> = facts(text).collect();
        let wanted: [(&[u8], &[u8]); 2] =
            [(b"redis_version", b"8.6.3"), (b"slave0", b"ip=::1,lag=0")];
        assert_eq!(all, wanted);
    }

    #[test]
    fn what_is_no_time_is_none() {
        let bulk = |text: &'static str| Value::Bulk(text.as_bytes());
        assert_eq!(time(&bulk("1")), None);
        assert_eq!(time(&Value::Error(b"NOPERM no")), None);
        assert_eq!(time(&Value::Null), None);
    }
}
