//! Reading by the callers' own threads.
//!
//! A thread that waits for an answer can as well wait on the socket, and take the answer in by itself: that saves the
//! hand-over from the driver's thread. All reading is done under the client's lock and without waiting, so that whoever
//! reads, it is right; what is agreed upon here is who *waits*. That is the driver, unless nothing is in flight: then a
//! caller may borrow the waiting, for the one command that it is about to send. As soon as there is a second one the
//! driver waits, too, so that no caller depends on another.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use crate::hold::Hold;

/// With which other threads than the driver's read. For bindings; may change before 1.0.
///
/// A caller's thread that wants to read by itself calls [`borrow`](Pump::borrow) before it asks, polls its future, waits on
/// the transport with [`turn`](Pump::turn) after each wait, as long as that says so, and calls
/// [`give_back`](Pump::give_back) if it stops waiting before. A binding must give its streams a
/// [`try_read`](crate::binding::Stream::try_read) for this, and its driver may [`look_away`](Pump::look_away).
#[derive(Clone)]
pub struct Pump(Arc<dyn Pumped>);

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

    /// Whether the calling thread may wait on the transport for the answer to the command it is about to send: nothing is in
    /// flight, and nobody else does. From here on the driver is not woken for the first command. Not to be called in a forked
    /// process, as nothing of this.
    pub fn borrow(&self) -> bool {
        self.0.borrow()
    }

    /// Takes in what has arrived, without waiting, and does what comes of it; wakers are called after the client's lock was
    /// given back. Whether to go on waiting on the transport: if not, the borrowed waiting is given back.
    pub fn turn(&self, room: &mut Room) -> bool {
        self.0.turn(room)
    }

    /// The calling thread, which had borrowed the waiting, does not wait on the transport any more.
    pub fn give_back(&self) {
        self.0.give_back();
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
    fn turn(&self, room: &mut Room) -> bool;
    fn borrow(&self) -> bool;
    fn give_back(&self);
    fn look_away(&self) -> bool;
}

/// Who waits on the transport. Where a count of commands in flight is asked for, `None` is that there is no transport.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// A caller does, for the command that it sends.
    borrowed: bool,
    /// A caller did since the driver last asked.
    used: bool,
    /// The driver does not.
    away: bool,
}

impl Reading {
    pub(crate) fn borrow(&mut self, in_flight: Option<usize>) -> bool {
        let free = !self.borrowed && in_flight == Some(0);
        self.borrowed |= free;
        self.used |= free;
        free
    }

    /// Whether the caller that has borrowed the waiting goes on after a turn: while it may be its command that is in flight.
    pub(crate) fn goes_on(&mut self, in_flight: Option<usize>) -> bool {
        self.borrowed &= in_flight == Some(1);
        self.borrowed
    }

    pub(crate) fn give_back(&mut self) {
        self.borrowed = false;
    }

    /// Whether the driver may look away. Between two requests that follow each other closely it may, too.
    pub(crate) fn look_away(&mut self, in_flight: Option<usize>) -> bool {
        let used = std::mem::take(&mut self.used);
        self.away = match in_flight {
            Some(0) => self.borrowed || used,
            Some(1) => self.borrowed,
            _ => false,
        };
        self.away
    }

    /// Whether the driver looks away and must not.
    pub(crate) fn needs_driver(&self, in_flight: impl FnOnce() -> Option<usize>) -> bool {
        self.away && in_flight().is_none_or(|count| count > usize::from(self.borrowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_caller_that_is_alone_waits_on_the_transport() {
        let mut reading = Reading::default();
        assert!(!reading.borrow(None));
        assert!(!reading.borrow(Some(1)));
        assert!(reading.borrow(Some(0)));
        assert!(!reading.borrow(Some(0)));
        assert!(reading.goes_on(Some(1)));
        assert!(!reading.goes_on(Some(0)));
        assert!(reading.borrow(Some(0)));
        reading.give_back();
        assert!(reading.borrow(Some(0)));
    }

    #[test]
    fn a_caller_stops_when_it_is_not_alone_any_more_or_cut_off() {
        for in_flight in [Some(2), Some(0), None] {
            let mut reading = Reading::default();
            assert!(reading.borrow(Some(0)));
            assert!(!reading.goes_on(in_flight));
        }
    }

    #[test]
    fn the_driver_looks_away_for_one_command_and_is_needed_for_the_second() {
        let mut reading = Reading::default();
        assert!(!reading.look_away(Some(0)));
        reading.borrow(Some(0));
        assert!(reading.look_away(Some(1)));
        assert!(!reading.needs_driver(|| Some(0)));
        assert!(!reading.needs_driver(|| Some(1)));
        assert!(reading.needs_driver(|| Some(2)));
        // Cut off: it is the driver that connects anew.
        assert!(reading.needs_driver(|| None));
        assert!(!reading.look_away(Some(2)));
        assert!(!reading.needs_driver(|| Some(2)));
    }

    #[test]
    fn what_nobody_waits_for_brings_the_driver_back() {
        let mut reading = Reading::default();
        reading.borrow(Some(0));
        assert!(reading.look_away(Some(1)));
        reading.give_back();
        assert!(reading.needs_driver(|| Some(1)));
        assert!(!reading.look_away(Some(1)));
    }

    #[test]
    fn the_driver_looks_away_between_requests_that_follow_each_other_and_not_for_longer() {
        let mut reading = Reading::default();
        reading.borrow(Some(0));
        assert!(!reading.goes_on(Some(0)));
        assert!(reading.look_away(Some(0)));
        assert!(!reading.look_away(Some(0)));
        assert!(!reading.needs_driver(|| Some(7)));
    }
}
