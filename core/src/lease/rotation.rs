//! A hold whose renewals write a value of their own each, so that of two copies of a process one is found out.

use super::table::Input;
use super::{Lease, OpKind, Outcome, Slot, State};
use crate::error::{Failure, ServerError};

/// Whether every renewal writes a value of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    Off,
    On,
    /// Not before one was confirmed that writes none: there is no memory for another value.
    Paused,
}

impl Lease {
    /// With a new value at every renewal: of two copies of this machine, which hold the same lock, one is told that it was
    /// replaced at the first renewal.
    ///
    /// Whoever makes the values has to make those of a [rotation](OpKind::Rotate) from something that the copies do not have
    /// in common: entropy that was drawn for it.
    #[must_use]
    pub fn with_rotation(mut self, rotate: bool) -> Lease {
        self.rotation = match rotate {
            true => Rotation::On,
            false => Rotation::Off,
        };
        self
    }

    /// The attempts whose values the key may have while the lock is held: the one that was last confirmed, then the rotations
    /// without an answer, the oldest first.
    pub fn own_attempts(&self) -> impl Iterator<Item = u32> + '_ {
        let doubts = self.leftovers.of_hold().iter().copied();
        core::iter::once(self.current).chain(doubts.filter(|doubt| *doubt != self.current))
    }

    /// The first rotation without an answer: what the key may have where the value that was last confirmed is not.
    pub fn doubt(&self) -> Option<u32> {
        let first = self.leftovers.of_hold().first().copied();
        first.filter(|_| self.state.is_held())
    }

    /// Whether a rotation is to be handed out next.
    pub fn wants_rotation(&self) -> bool {
        matches!(self.slot, Slot::Due(OpKind::Rotate { .. }))
    }

    /// Makes the rotation that is to be handed out next a plain renewal, since there is nothing to make its value from.
    pub fn renew_plainly(&mut self) {
        if self.wants_rotation() {
            self.slot = Slot::Due(OpKind::Renew {
                attempt: self.current,
            });
        }
    }

    /// Whether this attempt, which the key shows, stands for the hold: a rotation without an answer, or the very one that was
    /// refused, by something that repeats commands.
    pub(crate) fn stands_for_hold(&self, kind: OpKind, shown: u32) -> bool {
        let itself = matches!(kind, OpKind::Rotate { attempt, .. } if attempt == shown);
        self.state.is_held() && (itself || self.leftovers.of_hold().contains(&shown))
    }

    /// Whether every renewal writes a value of its own.
    pub(crate) fn rotates(&self) -> bool {
        self.rotation != Rotation::Off
    }

    pub(super) fn renewal(&self) -> OpKind {
        // One more that is not answered could not be cleared.
        match self.rotation == Rotation::On && !self.leftovers.is_full() {
            true => OpKind::Rotate {
                attempt: 0,
                old: self.current,
            },
            false => OpKind::Renew {
                attempt: self.current,
            },
        }
    }

    /// The key has what this operation wrote.
    pub(super) fn confirm(&mut self, kind: OpKind) {
        match kind {
            OpKind::Acquire { attempt } | OpKind::Adopt { attempt, .. } => self.current = attempt,
            OpKind::Rotate { attempt, .. } => {
                self.current = attempt;
                // They compare with a value that is never written again.
                self.leftovers.forget_of_hold();
            }
            OpKind::Renew { .. } if self.rotation == Rotation::Paused => {
                self.rotation = Rotation::On;
            }
            OpKind::Renew { .. } | OpKind::Look { .. } | OpKind::Clear => {}
        }
    }

    /// What an outcome means to a hold that rotates, if it is not what it means to any.
    pub(super) fn classify_rotation(&mut self, kind: OpKind, outcome: Outcome) -> Option<Input> {
        if !self.rotates() || !self.state.is_held() {
            return None;
        }
        let (failure, maybe_executed) = match outcome {
            Outcome::Refused {
                own: Some(shown), ..
            } if self.stands_for_hold(kind, shown) => {
                // It was executed after all, and took the place of what was confirmed last.
                self.current = shown;
                self.leftovers.remove(shown);
                return Some(match self.state {
                    State::Checking => Input::Seen,
                    _ => Input::RefusedByOwn,
                });
            }
            Outcome::Failed {
                failure,
                maybe_executed,
            }
            | Outcome::NoReply {
                failure,
                maybe_executed,
            } => (failure, maybe_executed),
            _ => return None,
        };
        let OpKind::Rotate { attempt, .. } = kind else {
            return None;
        };
        if maybe_executed {
            self.leftovers.push_of_hold(attempt);
        }
        // A full server takes no new value, but lets the one that it has live on.
        if failure == Failure::Server(ServerError::OutOfMemory) {
            self.rotation = Rotation::Paused;
            return Some(Input::Unsent);
        }
        None
    }
}
