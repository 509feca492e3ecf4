//! Reading by the callers' own threads.
//!
//! A thread that waits for an answer can as well wait on the socket, and take the answer in by itself: that saves the
//! hand-over from the driver's thread. All reading is done under the client's lock and without waiting, so that whoever
//! reads, it is right; what is agreed upon here is who *waits*. That is the driver, unless nothing is in flight: then a
//! caller may borrow the waiting, for the one command that it is about to send. As soon as there is a second one the
//! waiting is the driver's again, so that no caller depends on another: the one that had borrowed it may not run for a
//! while, though its answer has come.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::hold::Hold;

/// With which other threads than the driver's read. For bindings; may change before 1.0.
///
/// A caller's thread that wants to read by itself calls [`borrow`](Pump::borrow) before it asks, polls its future, asks
/// whether it [`goes_on`](Pump::goes_on), waits on the transport with [`turn`](Pump::turn) after each wait, as long as
/// that says so, and calls [`give_back`](Pump::give_back) if it stops waiting before. A binding must give its streams a
/// [`try_read`](crate::binding::Stream::try_read) for this, and its driver may [`look_away`](Pump::look_away).
#[derive(Clone)]
pub struct Pump(Arc<dyn Pumped>);

/// What a thread has that has borrowed the waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Borrowed(u64);

/// Kept by a thread from one [`Pump::turn`] to the next, so that what is in it need not grow anew.
#[derive(Debug, Default)]
pub struct Room {
    pub(crate) wakers: Vec<Waker>,
    pub(crate) over: Vec<Arc<Hold>>,
}

impl Pump {
    pub(crate) fn new(pumped: Arc<dyn Pumped>) -> Pump {
        Pump(pumped)
    }

    /// For a calling thread that may wait on the transport for the answer to the command it is about to send: nothing is in
    /// flight, and nobody else does. From here on the driver is not woken for the first command. It waits for nothing: it and,
    /// if the request is refused, [`give_back`](Pump::give_back) are all of this that may be called in a forked process.
    pub fn borrow(&self) -> Option<Borrowed> {
        self.0.borrow()
    }

    /// Whether to begin to wait on the transport, once the request was made: not if it sent no command, or is not alone with
    /// it. If not, the borrowed waiting is given back.
    pub fn goes_on(&self, borrowed: Borrowed) -> bool {
        self.0.goes_on(borrowed)
    }

    /// Takes in what has arrived, without waiting, and does what comes of it; wakers are called after the client's lock was
    /// given back. Whether to go on waiting on the transport: if not, the borrowed waiting is given back.
    pub fn turn(&self, borrowed: Borrowed, room: &mut Room) -> bool {
        self.0.turn(borrowed, room)
    }

    /// The calling thread, which had borrowed the waiting, does not wait on the transport any more.
    pub fn give_back(&self, borrowed: Borrowed) {
        self.0.give_back(borrowed);
    }

    /// For whoever runs the driver, before it sleeps: whether it need not wait on the transport. It is woken when that is
    /// over because of a command; a transport on which nothing is in flight is to be looked at again after a short while.
    pub fn look_away(&self) -> bool {
        self.0.look_away()
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").finish_non_exhaustive()
    }
}

/// The shared state of a client, without its types.
pub(crate) trait Pumped: Send + Sync {
    fn goes_on(&self, borrowed: Borrowed) -> bool;
    fn turn(&self, borrowed: Borrowed, room: &mut Room) -> bool;
    fn borrow(&self) -> Option<Borrowed>;
    fn give_back(&self, borrowed: Borrowed);
    fn look_away(&self) -> bool;
}

/// Who waits on the transport. Where a count of commands in flight is asked for, `None` is that there is no transport.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// A caller does, for the command that it sends.
    borrowed: Option<Borrowed>,
    /// How often it was borrowed.
    times: u64,
    /// A caller did since the driver last asked.
    used: bool,
    /// The driver does not.
    away: bool,
}

impl Reading {
    pub(crate) fn borrow(&mut self, in_flight: Option<usize>) -> Option<Borrowed> {
        if self.borrowed.is_some() || in_flight != Some(0) {
            return None;
        }
        self.times += 1;
        self.used = true;
        self.borrowed = Some(Borrowed(self.times));
        self.borrowed
    }

    /// Whether the caller that has borrowed the waiting goes on after a turn: while it may be its command that is in flight.
    pub(crate) fn goes_on(&mut self, borrowed: Borrowed, in_flight: Option<usize>) -> bool {
        if in_flight != Some(1) {
            self.give_back(borrowed);
        }
        self.borrowed == Some(borrowed)
    }

    pub(crate) fn give_back(&mut self, borrowed: Borrowed) {
        self.borrowed.take_if(|whose| *whose == borrowed);
    }

    /// The driver has taken something in. If a caller had borrowed the waiting it did not run in time, and its answer may be
    /// there: what goes out next, in the same turn perhaps, is not its own.
    pub(crate) fn overtaken(&mut self) {
        self.borrowed = None;
    }

    /// Whether the driver may look away. Between two requests that follow each other closely it may, too, unless somebody
    /// waits to be woken by the server.
    pub(crate) fn look_away(&mut self, in_flight: Option<usize>, awaits_change: bool) -> bool {
        let used = std::mem::take(&mut self.used);
        self.away = match in_flight {
            Some(0) => self.borrowed.is_some() || (used && !awaits_change),
            Some(1) => self.borrowed.is_some(),
            _ => false,
        };
        self.away
    }

    /// After whatever may have sent a command. One beside a caller's own ends its borrowing, for good: the next answer may
    /// be another's.
    pub(crate) fn sent(&mut self, in_flight: impl FnOnce() -> Option<usize>) {
        if self.borrowed.is_some() && in_flight().is_none_or(|count| count > 1) {
            self.borrowed = None;
        }
    }

    /// Whether the driver looks away and must not.
    pub(crate) fn needs_driver(
        &self,
        in_flight: impl FnOnce() -> Option<usize>,
        awaits_change: bool,
    ) -> bool {
        let callers = usize::from(self.borrowed.is_some());
        let unread = |count| count > callers || (awaits_change && callers == 0);
        self.away && in_flight().is_none_or(unread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Borrows what must be to be had.
    fn borrow(reading: &mut Reading) -> Borrowed {
        reading.borrow(Some(0)).expect("nobody waits")
    }

    #[test]
    fn only_a_caller_that_is_alone_waits_on_the_transport() {
        let mut reading = Reading::default();
        assert_eq!(reading.borrow(None), None);
        assert_eq!(reading.borrow(Some(1)), None);
        let first = borrow(&mut reading);
        assert_eq!(reading.borrow(Some(0)), None);
        assert!(reading.goes_on(first, Some(1)));
        assert!(!reading.goes_on(first, Some(0)));
        let second = borrow(&mut reading);
        reading.give_back(second);
        borrow(&mut reading);
    }

    #[test]
    fn s17_a_caller_stops_when_it_is_not_alone_any_more_or_cut_off() {
        for in_flight in [Some(2), Some(0), None] {
            let mut reading = Reading::default();
            let borrowed = borrow(&mut reading);
            assert!(!reading.goes_on(borrowed, in_flight));
        }
    }

    #[test]
    fn s17_the_driver_looks_away_for_one_command_and_is_needed_for_the_second() {
        let mut reading = Reading::default();
        assert!(!reading.look_away(Some(0), false));
        borrow(&mut reading);
        assert!(reading.look_away(Some(1), false));
        assert!(!reading.needs_driver(|| Some(0), false));
        assert!(!reading.needs_driver(|| Some(1), false));
        assert!(reading.needs_driver(|| Some(2), false));
        assert!(!reading.look_away(Some(2), false));
        assert!(!reading.needs_driver(|| Some(2), false));
    }

    #[test]
    fn who_was_cut_off_needs_the_driver() {
        let mut reading = Reading::default();
        borrow(&mut reading);
        assert!(reading.look_away(Some(1), false));
        assert!(reading.needs_driver(|| None, false));
    }

    #[test]
    fn who_does_not_run_when_a_second_command_goes_out_waits_for_nobody_else() {
        let mut reading = Reading::default();
        let slow = borrow(&mut reading);
        assert!(reading.look_away(Some(1), false));
        reading.sent(|| Some(1));
        reading.sent(|| Some(2));
        assert!(reading.needs_driver(|| Some(2), false));
        // The driver has read the answer to the first; the other one is not the slow caller's.
        assert!(!reading.look_away(Some(1), false));
        // And what it gives back late is not what somebody else has borrowed since.
        let next = borrow(&mut reading);
        reading.give_back(slow);
        assert!(!reading.goes_on(slow, Some(1)));
        assert!(reading.goes_on(next, Some(1)));
    }

    #[test]
    fn s17_who_does_not_run_when_its_answer_is_read_for_it_waits_for_nobody_else() {
        let mut reading = Reading::default();
        let slow = borrow(&mut reading);
        assert!(reading.look_away(Some(1), false));
        // The driver reads the answer, and sends in the same turn what it leads to, or somebody else's.
        reading.overtaken();
        reading.sent(|| Some(1));
        assert!(!reading.look_away(Some(1), false));
        assert!(!reading.goes_on(slow, Some(1)));
    }

    #[test]
    fn what_nobody_waits_for_brings_the_driver_back() {
        let mut reading = Reading::default();
        let borrowed = borrow(&mut reading);
        assert!(reading.look_away(Some(1), false));
        reading.give_back(borrowed);
        assert!(reading.needs_driver(|| Some(1), false));
        assert!(!reading.look_away(Some(1), false));
    }

    #[test]
    fn s17_the_driver_looks_away_between_requests_that_follow_each_other_and_not_for_longer() {
        let mut reading = Reading::default();
        let borrowed = borrow(&mut reading);
        assert!(!reading.goes_on(borrowed, Some(0)));
        assert!(reading.look_away(Some(0), false));
        assert!(!reading.look_away(Some(0), false));
        assert!(!reading.needs_driver(|| Some(7), false));
    }

    #[test]
    fn s9_whoever_waits_to_be_woken_by_the_server_keeps_the_driver_at_it() {
        let mut reading = Reading::default();
        let borrowed = borrow(&mut reading);
        // A caller that waits on the transport hears it.
        assert!(reading.look_away(Some(1), true));
        assert!(!reading.needs_driver(|| Some(1), true));
        // When it has stopped, nobody else would.
        assert!(!reading.goes_on(borrowed, Some(0)));
        assert!(reading.needs_driver(|| Some(0), true));
        assert!(!reading.needs_driver(|| Some(0), false));
        assert!(!reading.look_away(Some(0), true));
        // Nor is there a while between two requests in which nobody does.
        let borrowed = borrow(&mut reading);
        assert!(!reading.goes_on(borrowed, Some(0)));
        assert!(!reading.look_away(Some(0), true));
    }
}
