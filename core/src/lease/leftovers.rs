//! The attempts of one request whose values may still be on the server.

/// The most attempts that may be without an answer at once; one more ends the request.
const UNANSWERED: usize = 6;

/// The most there can be: those without an answer, the one that ends the request for it, and the value of
/// the hold or one that the key showed.
const MOST: usize = UNANSWERED + 2;

/// A short list of attempts, in place. The value of the hold stands first when there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    attempts: [u32; MOST],
    len: u8,
}

impl Leftovers {
    pub(super) const fn new() -> Leftovers {
        Leftovers {
            attempts: [0; MOST],
            len: 0,
        }
    }

    /// The attempts, the most likely one first.
    pub fn as_slice(&self) -> &[u32] {
        &self.attempts[..usize::from(self.len)]
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether one more unanswered attempt is too many.
    pub(super) fn is_full(&self) -> bool {
        usize::from(self.len) >= UNANSWERED
    }

    /// Whether this attempt is among them.
    pub(super) fn has(&self, attempt: u32) -> bool {
        self.as_slice().contains(&attempt)
    }

    pub(super) fn push(&mut self, attempt: u32) {
        let at = usize::from(self.len);
        if !self.has(attempt) && at < self.attempts.len() {
            self.attempts[at] = attempt;
            self.len += 1;
        }
    }

    pub(super) fn push_first(&mut self, attempt: u32) {
        self.remove(attempt);
        let len = usize::from(self.len).min(MOST - 1);
        self.attempts.copy_within(..len, 1);
        self.attempts[0] = attempt;
        self.len = len as u8 + 1;
    }

    pub(super) fn remove(&mut self, attempt: u32) {
        if let Some(at) = self.as_slice().iter().position(|a| *a == attempt) {
            let len = usize::from(self.len);
            self.attempts.copy_within(at + 1..len, at);
            self.len -= 1;
        }
    }
}
