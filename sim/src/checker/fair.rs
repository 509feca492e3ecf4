//! First come, first served: who waits in a queue is overtaken by nobody who came later, and by no single try.
//!
//! Judged by what the server has carried out and when by true time, and not by the tickets that it gives: whoever stood in the
//! queue before another had asked at all, and has given word of itself since within its waiter's lease, is first.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::time::Tick;

use super::Want;
use super::wire::Wire;
use crate::keys::Reply;
use crate::tap::Command;

/// A twentieth: clocks that run apart no more than leases allow for do so by less.
const DRIFT: u32 = 20;
/// What all of it is rounded to.
const SLACK: Duration = Duration::from_millis(10);

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Fair {
    /// By request.
    waiting: BTreeMap<u64, Waiting>,
    /// Whose entries these are.
    entries: BTreeMap<Vec<u8>, u64>,
    /// When those with these entries had asked at the latest.
    asked: BTreeMap<Vec<u8>, Tick>,
    /// How often somebody was granted a lock in its turn.
    pub(super) turns: u64,
    /// How often somebody who does not queue had a lock that others queued for.
    pub(super) overtaken: u64,
}

#[derive(Debug)]
struct Waiting {
    key: Vec<u8>,
    /// In the queue without a break.
    since: Tick,
    /// Its last word, until when that keeps its place.
    until: Tick,
}

impl Fair {
    /// The server has carried a command out, or refused it.
    pub(super) fn executed(
        &mut self,
        command: &Command,
        reply: &Reply,
        at: Tick,
        want: impl Fn(u64) -> Option<Want>,
    ) -> Result<(), String> {
        let wire = Wire::of(&command.words);
        if let Wire::Take { entry, age, .. }
        | Wire::Pass {
            next: entry, age, ..
        } = wire
        {
            // Of a command that was long in leaving the age is that of its beginning: the earliest counts.
            let age = Duration::from_micros(age);
            let asked = command.at - age - (age / DRIFT + SLACK);
            let earliest = self.asked.entry(entry.to_vec()).or_insert(asked);
            *earliest = asked.min(*earliest);
        }
        match wire {
            Wire::Take { key, ms, entry, .. } => match reply {
                Reply::Int(1..) => {
                    self.turns += 1;
                    self.waiting.remove(&ms);
                    let asked = match entry {
                        // A single try is behind everybody.
                        b"" => Tick::MAX,
                        _ => self.asked[entry],
                    };
                    self.first(key, ms, asked, at)
                }
                // As many wait as may.
                Reply::Many(items) if items.len() > 2 => Ok(()),
                Reply::Many(_) if !entry.is_empty() => {
                    self.entries.insert(entry.to_vec(), ms);
                    let lease = want(ms).and_then(|want| want.fair).unwrap_or_default();
                    // By a clock of the server that runs fast it ends a little sooner.
                    let until = at + lease - lease / DRIFT;
                    let waiting = self.waiting.entry(ms).or_insert_with(|| Waiting {
                        key: key.to_vec(),
                        since: at,
                        until,
                    });
                    if waiting.until < at {
                        waiting.since = at;
                    }
                    waiting.until = until;
                    Ok(())
                }
                _ => Ok(()),
            },
            Wire::Pass { entry, .. } => {
                if let Some(ms) = self.entries.get(entry) {
                    self.waiting.remove(ms);
                }
                Ok(())
            }
            wire @ Wire::Acquire { key, .. } if wire.wrote(reply) => {
                let overtakes = self.waits(key, at).next().is_some();
                self.overtaken += u64::from(overtakes);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The server has forgotten something, or its clock was set: who waits is in the queue again at its next word.
    pub(super) fn forgotten(&mut self) {
        self.waiting.clear();
    }

    /// A request was granted that was asked for at this time.
    fn first(&self, key: &[u8], ms: u64, asked: Tick, at: Tick) -> Result<(), String> {
        let mut before = self.waits(key, at).filter(|(_, one)| one.since < asked);
        match before.next() {
            None => Ok(()),
            Some((other, one)) => Err(format!(
                "request {ms}, asked for at {asked:?}, is granted before request {other}, which waits since {:?}",
                one.since
            )),
        }
    }

    fn waits(&self, key: &[u8], at: Tick) -> impl Iterator<Item = (&u64, &Waiting)> {
        let waiting = self.waiting.iter();
        waiting.filter(move |(_, one)| one.key == key && at < one.until)
    }
}
