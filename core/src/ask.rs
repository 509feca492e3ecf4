//! Questions that belong to no lease: who holds a name, which names are held, and the removal of a value by force.
//!
//! The table of those that are not answered yet, and of what is known so far. No bytes of any protocol: a [`Step`] says what
//! to ask a store next, typed answers go in, one [`Answer`] comes out for each question, unless it is
//! [forgotten](Asks::forget). [`mux`](crate::mux) does that on its connection, with the commands of
//! [`plan`](crate::plan).
//!
//! What only reads is asked again when its connection dies. A removal that may have been carried out is not: it fails, and
//! says so.
//!
//! ```
//! use core::time::Duration;
//! use tenure_core::ask::{Asks, Known, Question, Step, Ttl};
//! use tenure_core::names::{Names, Value};
//! use tenure_core::time::Tick;
//!
//! let now = Tick::from_micros(0);
//! let mut asks = Asks::new(Names::new("lock:", "doc")?, Duration::from_secs(10));
//! let id = asks.ask(now, &Question::Inspect { name: b"a" })?;
//!
//! assert_eq!(asks.poll_step(), Some(id));
//! assert!(matches!(asks.step(id), Some(Step::Look { keys }) if keys[0] == b"lock:a"));
//! let value = Value::new("web-1:4711", 0, &[7; 16], 1);
//! asks.handle_value(id, Some(value.as_bytes()));
//! asks.handle_counter(id, None);
//! asks.handle_ttl(now, id, Ttl::Left(Duration::from_secs(9)));
//!
//! let answer = asks.poll_answer().unwrap();
//! let Ok(Known::Inspected(Some(found))) = answer.result else { panic!() };
//! assert_eq!(found.label.as_deref(), Some("web-1:4711"));
//! # Ok::<(), tenure_core::error::ConfigError>(())
//! ```

mod known;
mod progress;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::error::{ConfigError, Failure, LinkFault};
use crate::leases::Fault;
use crate::names::{FENCE, Names, escape_text};
use crate::time::{Deadline, Reason, Tick};
pub use known::{Examined, Found, Known, Listed, Removed, Warning};
use progress::{List, Progress};

/// How often a list is begun anew because its connection died.
const RESTARTS: u8 = 3;
/// Error texts of a server are cut to this.
const MAX_TEXT: usize = 200;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    /// Who holds this name?
    Inspect {
        /// The name, 1 to 1,024 bytes.
        name: &'a [u8],
    },
    /// Which names that begin so are held, and by whom?
    List {
        /// How they begin; empty for all.
        start: &'a [u8],
        /// How many names are gathered at most.
        limit: usize,
    },
    /// Remove the value of this name, whosever it is.
    Remove {
        /// The name, 1 to 1,024 bytes.
        name: &'a [u8],
    },
    /// Remove this value of the name, and no other.
    Release {
        /// The name, 1 to 1,024 bytes.
        name: &'a [u8],
        /// The value, compared byte for byte: whoever knows it may.
        value: &'a [u8],
    },
    /// What does the store say of itself?
    Examine,
}

/// A question that was put. Never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(u64);

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which question.
    pub id: AskId,
    /// What is known, or why nothing is.
    pub result: Result<Known, Fault>,
}

/// What to ask the store next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The value of each of these keys, that of its [helper key](Asks::counter_key) which counts fences, and its TTL, in this
    /// order: [`handle_value`](Asks::handle_value), [`handle_counter`](Asks::handle_counter) and
    /// [`handle_ttl`](Asks::handle_ttl) for each.
    Look {
        /// The keys, at most 80.
        keys: &'a [Vec<u8>],
    },
    /// A page of the keys that match: [`handle_page`](Asks::handle_page).
    Scan {
        /// Where to go on.
        cursor: u64,
        /// How the keys begin.
        start: &'a [u8],
        /// The same as a glob pattern.
        pattern: &'a [u8],
        /// About how many keys to look through.
        count: u64,
    },
    /// Remove the value of this key: [`handle_removed`](Asks::handle_removed).
    Remove {
        /// The key.
        key: &'a [u8],
        /// The helper key that says who did it,
        helper: &'a [u8],
        /// by this label.
        by: &'a str,
        /// Only if it has this value; as if it were free if it has another.
        only: Option<&'a [u8]>,
    },
    /// What the store says of itself: [`handle_facts`](Asks::handle_facts), [`handle_clock`](Asks::handle_clock) and
    /// [`handle_refused`](Asks::handle_refused) as often as there is something to say, then
    /// [`handle_examined`](Asks::handle_examined).
    Examine,
}

/// How long a key lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// It is not there.
    Gone,
    /// For ever.
    Endless,
    /// This long.
    Left(Duration),
}

#[derive(Clone, Debug)]
struct Asked {
    progress: Progress,
    /// It fails then.
    until: Tick,
    /// Given out as a step, and not answered.
    out: bool,
}

/// The table of questions. See the [module](self).
#[derive(Clone, Debug)]
pub struct Asks {
    names: Names,
    asked: BTreeMap<AskId, Asked>,
    deadlines: BTreeSet<(Tick, AskId)>,
    wanting: VecDeque<AskId>,
    answers: VecDeque<Answer>,
    patience: Duration,
    last: u64,
    /// Why there is no connection.
    down: Option<Fault>,
}

impl Asks {
    /// An empty table. A question fails when it has no answer after `patience`; a list, when there was no progress for so long.
    pub fn new(names: Names, patience: Duration) -> Asks {
        Asks {
            names,
            asked: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            wanting: VecDeque::new(),
            answers: VecDeque::new(),
            patience,
            last: 0,
            down: None,
        }
    }

    // ---- getters ----

    /// Whether no question waits for its answer.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// When [`poll_overdue`](Asks::poll_overdue) should be asked.
    pub fn timer(&self) -> Deadline {
        match self.deadlines.first() {
            Some((at, _)) => Deadline::At(*at, Reason::WaitEnds),
            None => Deadline::Never,
        }
    }

    /// What to ask for a question that [`poll_step`](Asks::poll_step) gave; `None` when nobody wants to know any more.
    pub fn step(&self, id: AskId) -> Option<Step<'_>> {
        let asked = self.asked.get(&id)?;
        Some(asked.progress.step(self.names.label()))
    }

    /// The helper key that counts the fences of a key.
    pub fn counter_key(&self, key: &[u8]) -> Vec<u8> {
        self.names.helper_key(key, FENCE)
    }

    /// The key of a removal.
    pub(crate) fn key_of(&self, id: AskId) -> Option<&[u8]> {
        match &self.asked.get(&id)?.progress {
            Progress::Remove { key, .. } => Some(key),
            _ => None,
        }
    }

    // ---- requests ----

    /// Puts a question.
    ///
    /// # Errors
    /// [`ConfigError::Name`]: nothing was begun.
    pub fn ask(&mut self, now: Tick, question: &Question<'_>) -> Result<AskId, ConfigError> {
        let progress = Progress::new(&self.names, question)?;
        self.last += 1;
        let id = AskId(self.last);
        let until = now + self.patience;
        let asked = Asked {
            progress,
            until,
            out: false,
        };
        self.asked.insert(id, asked);
        self.deadlines.insert((until, id));
        self.wanting.push_back(id);
        Ok(id)
    }

    /// Nobody waits for the answer any more. What was not taken of it is forgotten.
    pub fn forget(&mut self, id: AskId) {
        self.remove(id);
        self.answers.retain(|answer| answer.id != id);
    }

    // ---- outputs ----

    /// The next question that wants a [`step`](Asks::step). Take it only when that can be handed over.
    pub fn poll_step(&mut self) -> Option<AskId> {
        loop {
            let id = self.wanting.pop_front()?;
            if let Some(asked) = self.asked.get_mut(&id) {
                asked.out = true;
                return Some(id);
            }
        }
    }

    /// The next answer.
    pub fn poll_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// A question whose time is over. If its step is on its way and none of its bytes has left, drop that; then call
    /// [`handle_overdue`](Asks::handle_overdue).
    pub fn poll_overdue(&self, now: Tick) -> Option<AskId> {
        let (at, id) = self.deadlines.first()?;
        (*at <= now).then_some(*id)
    }

    /// Any question, as long as there is one: for a client that is being closed.
    pub fn first(&self) -> Option<AskId> {
        self.asked.keys().next().copied()
    }

    // ---- inputs ----

    /// The value of the next key of a look, as far as it was read: nothing for a key of another type.
    pub fn handle_value(&mut self, id: AskId, value: Option<&[u8]>) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.progress.take_value(value);
        }
    }

    /// The helper key of the same key, as far as it was read: nothing for one of another type. Whoever has a store that
    /// counts otherwise gives the digits of the newest fence.
    pub fn handle_counter(&mut self, id: AskId, counter: Option<&[u8]>) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.progress.take_counter(counter);
        }
    }

    /// The TTL of the same key.
    pub fn handle_ttl(&mut self, now: Tick, id: AskId, ttl: Ttl) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        if asked.progress.take_ttl(&self.names, ttl) {
            self.advance(now, id);
        }
    }

    /// A page of a scan: where to go on, zero for its end, and keys.
    pub fn handle_page<'a>(
        &mut self,
        now: Tick,
        id: AskId,
        cursor: u64,
        keys: impl Iterator<Item = &'a [u8]>,
    ) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        if let Progress::List(list) = &mut asked.progress {
            list.take_page(&self.names, cursor, keys);
            self.advance(now, id);
        }
    }

    /// What a removal found, and has removed.
    pub fn handle_removed(&mut self, id: AskId, removed: Option<Removed>) {
        self.answer(id, Ok(Known::Removed(removed)));
    }

    /// Some of what the store says of itself, each with a name. Escaped here.
    pub fn handle_facts<'a>(
        &mut self,
        id: AskId,
        facts: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        if let Some(examined) = self.examined(id) {
            examined.take_facts(facts);
        }
    }

    /// The store's own clock, in microseconds of Unix time.
    pub fn handle_clock(&mut self, id: AskId, unix_us: u64) {
        if let Some(examined) = self.examined(id) {
            examined.clock_us = Some(unix_us);
        }
    }

    /// What the store does not say of itself, with its words.
    pub fn handle_refused(&mut self, id: AskId, what: &str, text: &[u8]) {
        if let Some(examined) = self.examined(id) {
            let text = escape_text(text, MAX_TEXT);
            examined.refused.push((what.into(), text.into()));
        }
    }

    /// The store has said of itself what it says.
    pub fn handle_examined(&mut self, id: AskId) {
        if let Some(examined) = self.examined(id) {
            let examined = core::mem::take(examined);
            self.answer(id, Ok(Known::Examined(examined)));
        }
    }

    /// The same step is to be put another way.
    pub(crate) fn handle_again(&mut self, id: AskId) {
        self.want(id);
    }

    /// The store answered an error, and did nothing.
    pub fn handle_failed(&mut self, id: AskId, failure: Failure, text: &[u8]) {
        self.answer(id, Err(fault(failure, text)));
    }

    /// No answer to a step will come, since the connection is dead; `maybe_executed` unless not a byte was handed out.
    pub fn handle_no_reply(&mut self, id: AskId, maybe_executed: bool, dead: LinkFault) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        let failure = match &mut asked.progress {
            Progress::Remove { .. } if maybe_executed => Failure::MaybeDone,
            Progress::List(list) if list.restarts == RESTARTS => Failure::Link(dead),
            Progress::List(list) => {
                list.restart();
                return self.want(id);
            }
            Progress::Remove { .. } => return self.want(id),
            Progress::Inspect { value, .. } => {
                *value = None;
                return self.want(id);
            }
            Progress::Examine(examined) => {
                *examined = Examined::default();
                return self.want(id);
            }
        };
        self.handle_failed(id, failure, &[]);
    }

    /// The store can be reached (again).
    pub fn handle_link_up(&mut self) {
        self.down = None;
    }

    /// No connection can be had, or it was lost. Every question fails if waiting cannot cure it.
    pub fn handle_link_failed(&mut self, failure: Failure, text: &[u8]) {
        let fault = fault(failure, text);
        if !failure.waiting_may_cure() {
            while let Some(id) = self.first() {
                self.answer(id, Err(fault.clone()));
            }
        }
        self.down = Some(fault);
    }

    /// The time of a question is over; `unsent` if not a byte of its step has left.
    pub fn handle_overdue(&mut self, id: AskId, unsent: bool) {
        let fault = match (&self.down, self.may_be_done(id, unsent)) {
            (_, true) => fault(Failure::MaybeDone, &[]),
            (Some(down), _) => down.clone(),
            (None, _) => fault(Failure::NoReply, &[]),
        };
        self.answer(id, Err(fault));
    }

    /// The client is being closed; `unsent` if not a byte of its step has left.
    pub fn handle_closed(&mut self, id: AskId, unsent: bool) {
        let failure = match self.may_be_done(id, unsent) {
            true => Failure::MaybeDone,
            false => Failure::Closed,
        };
        self.handle_failed(id, failure, &[]);
    }

    // ---- helpers ----

    fn examined(&mut self, id: AskId) -> Option<&mut Examined> {
        match &mut self.asked.get_mut(&id)?.progress {
            Progress::Examine(examined) => Some(examined),
            _ => None,
        }
    }

    /// Whether it is a removal that was handed over and not answered.
    fn may_be_done(&self, id: AskId, unsent: bool) -> bool {
        self.asked.get(&id).is_some_and(|asked| {
            asked.out && !unsent && matches!(asked.progress, Progress::Remove { .. })
        })
    }

    /// A step is done: the next one, or the answer.
    fn advance(&mut self, now: Tick, id: AskId) {
        let Some(asked) = self.asked.get_mut(&id) else {
            return;
        };
        if let Some(known) = asked.progress.known() {
            return self.answer(id, Ok(known));
        }
        let until = now + self.patience;
        // Progress gives it more time; a list that was begun anew has no more than it had.
        if matches!(&asked.progress, Progress::List(List { restarts: 0, .. })) {
            self.deadlines.remove(&(asked.until, id));
            asked.until = asked.until.max(until);
            self.deadlines.insert((asked.until, id));
        }
        self.want(id);
    }

    fn want(&mut self, id: AskId) {
        if let Some(asked) = self.asked.get_mut(&id) {
            asked.out = false;
            self.wanting.push_back(id);
        }
    }

    fn answer(&mut self, id: AskId, result: Result<Known, Fault>) {
        if self.remove(id) {
            self.answers.push_back(Answer { id, result });
        }
    }

    fn remove(&mut self, id: AskId) -> bool {
        let asked = self.asked.remove(&id);
        asked.is_some_and(|asked| self.deadlines.remove(&(asked.until, id)))
    }
}

fn fault(failure: Failure, text: &[u8]) -> Fault {
    let text: Option<Box<str>> = match text {
        [] => None,
        said => Some(escape_text(said, MAX_TEXT).into()),
    };
    Fault { failure, text }
}
