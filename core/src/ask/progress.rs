//! How far a question has come.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::{Examined, Found, Known, Listed, Question, Step, Ttl, Warning};
use crate::error::ConfigError;
use crate::names::{FORCED, Names, glob};

/// Keys that are looked at in one step: there are three replies for each, which are counted in a byte.
const LOOK: usize = 80;
/// As many keys as a page of a scan should have, so that it fits a frame however long their names are.
const PAGE: u64 = 64;
/// A page looks through more keys where few of them are of locks, up to so many.
const MAX_COUNT: u64 = 4096;

/// How far a question has come.
#[derive(Clone, Debug)]
pub(super) enum Progress {
    Inspect {
        key: [Vec<u8>; 1],
        /// What the value says, while the TTL is awaited; then all that is known.
        value: Option<Found>,
    },
    List(List),
    Remove {
        key: Vec<u8>,
        helper: Vec<u8>,
        /// Only this value.
        only: Option<Vec<u8>>,
    },
    /// What was said so far.
    Examine(Examined),
}

/// A list on its way.
#[derive(Clone, Debug)]
pub(super) struct List {
    start: Vec<u8>,
    pattern: Vec<u8>,
    limit: usize,
    count: u64,
    /// Where the scan goes on; none before it has begun, and after its end.
    cursor: Option<u64>,
    /// Keys that were scanned and not looked at: those that are being looked at come first.
    keys: VecDeque<Vec<u8>>,
    looking: Vec<Vec<u8>>,
    /// What was found, the name with its key. `None` until it has been looked at.
    found: BTreeMap<Vec<u8>, Option<Found>>,
    /// The next of `looking`, and what its value says.
    at: usize,
    value: Option<Found>,
    more: bool,
    pub(super) restarts: u8,
}

impl Progress {
    pub(super) fn new(names: &Names, question: &Question<'_>) -> Result<Progress, ConfigError> {
        let mut key = Vec::new();
        Ok(match *question {
            Question::Inspect { name } => {
                names.key_into(name, &mut key)?;
                Progress::Inspect {
                    key: [key],
                    value: None,
                }
            }
            Question::Remove { name } => Progress::remove(names, name, None)?,
            Question::Release { name, value } => Progress::remove(names, name, Some(value))?,
            Question::Examine => Progress::Examine(Examined::default()),
            Question::List { start, limit } => {
                let start = names.key_start(start)?;
                Progress::List(List {
                    pattern: glob(&start),
                    start,
                    limit,
                    count: PAGE,
                    cursor: Some(0),
                    keys: VecDeque::new(),
                    looking: Vec::new(),
                    found: BTreeMap::new(),
                    at: 0,
                    value: None,
                    more: false,
                    restarts: 0,
                })
            }
        })
    }

    fn remove(names: &Names, name: &[u8], only: Option<&[u8]>) -> Result<Progress, ConfigError> {
        let mut key = Vec::new();
        names.key_into(name, &mut key)?;
        let helper = names.helper_key(&key, FORCED);
        let only = only.map(<[u8]>::to_vec);
        Ok(Progress::Remove { key, helper, only })
    }

    pub(super) fn step<'a>(&'a self, by: &'a str) -> Step<'a> {
        match self {
            Progress::Inspect { key, .. } => Step::Look { keys: key },
            Progress::Remove { key, helper, only } => Step::Remove {
                key,
                helper,
                by,
                only: only.as_deref(),
            },
            Progress::Examine(_) => Step::Examine,
            Progress::List(list) if !list.looking.is_empty() => Step::Look {
                keys: &list.looking,
            },
            Progress::List(list) => Step::Scan {
                cursor: list.cursor.unwrap_or(0),
                start: &list.start,
                pattern: &list.pattern,
                count: list.count,
            },
        }
    }

    pub(super) fn take_value(&mut self, shown: Option<&[u8]>) {
        match self {
            Progress::Inspect { value, .. } => *value = Some(Found::of(shown)),
            Progress::List(list) => list.value = Some(Found::of(shown)),
            Progress::Remove { .. } | Progress::Examine(_) => {}
        }
    }

    pub(super) fn take_counter(&mut self, counter: Option<&[u8]>) {
        let found = match self {
            Progress::Inspect { value, .. } => value,
            Progress::List(list) => &mut list.value,
            Progress::Remove { .. } | Progress::Examine(_) => return,
        };
        if let Some(found) = found {
            found.take_counter(counter);
        }
    }

    /// Whether the step is done with it.
    pub(super) fn take_ttl(&mut self, names: &Names, ttl: Ttl) -> bool {
        match self {
            Progress::Inspect { value, .. } => {
                *value = lives(value.take(), ttl);
                true
            }
            Progress::List(list) => list.take_ttl(names, ttl),
            Progress::Remove { .. } | Progress::Examine(_) => false,
        }
    }

    /// What is known, if that is all there is to know.
    pub(super) fn known(&mut self) -> Option<Known> {
        match self {
            Progress::Inspect { value, .. } => Some(Known::Inspected(value.take())),
            Progress::List(list) => list.known().map(Known::Listed),
            Progress::Remove { .. } | Progress::Examine(_) => None,
        }
    }
}

impl List {
    /// The connection died: from the start, keeping nothing. The next server may be another.
    pub(super) fn restart(&mut self) {
        self.restarts += 1;
        self.cursor = Some(0);
        self.count = PAGE;
        self.keys.clear();
        self.looking.clear();
        self.found.clear();
        (self.at, self.value, self.more) = (0, None, false);
    }

    pub(super) fn take_page<'a>(
        &mut self,
        names: &Names,
        cursor: u64,
        keys: impl Iterator<Item = &'a [u8]>,
    ) {
        self.cursor = Some(cursor).filter(|cursor| *cursor != 0);
        let mut matched = 0;
        for key in keys {
            matched += 1;
            // A scan may give a key twice.
            let Some(name) = names.name_of(key) else {
                continue;
            };
            if self.found.contains_key(&name) {
                continue;
            }
            if self.found.len() == self.limit {
                self.more = true;
                continue;
            }
            self.found.insert(name, None);
            self.keys.push_back(key.to_vec());
        }
        // Keys come in no order: the next page has as many of these among the others as this one.
        if matched <= PAGE / 4 {
            self.count = (self.count * 2).min(MAX_COUNT);
        } else if matched > PAGE {
            self.count = (self.count / 2).max(PAGE);
        }
        if self.more {
            self.cursor = None;
        }
        self.look_at_next();
    }

    fn look_at_next(&mut self) {
        let n = self.keys.len().min(LOOK);
        self.looking.clear();
        self.looking.extend(self.keys.drain(..n));
        self.at = 0;
    }

    fn take_ttl(&mut self, names: &Names, ttl: Ttl) -> bool {
        let found = lives(self.value.take(), ttl);
        let key = self.looking.get(self.at);
        if let Some(name) = key.and_then(|key| names.name_of(key)) {
            self.found.insert(name, found);
        }
        self.at += 1;
        if self.at < self.looking.len() {
            return false;
        }
        self.look_at_next();
        true
    }

    fn known(&mut self) -> Option<Listed> {
        if !self.looking.is_empty() || self.cursor.is_some() {
            return None;
        }
        let found = core::mem::take(&mut self.found).into_iter();
        // What is gone by now is left out.
        let names = found.filter_map(|(name, found)| {
            let name: Box<[u8]> = name.into_boxed_slice();
            Some((name, found?))
        });
        Some(Listed {
            names: names.collect(),
            more: self.more,
        })
    }
}

/// What is under a key that lives on so long; `None` if it does not.
fn lives(value: Option<Found>, ttl: Ttl) -> Option<Found> {
    let mut found = value?;
    match ttl {
        Ttl::Gone => return None,
        Ttl::Endless => found.warnings.push(Warning::Endless),
        Ttl::Left(left) => found.remaining = Some(left),
    }
    Some(found)
}
