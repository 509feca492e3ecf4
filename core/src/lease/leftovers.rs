//! The attempts of one request whose values may still be on the server.

/// The most attempts that may be without an answer at once; one more ends the request.
const UNANSWERED: usize = 6;

/// The most there can be: those without an answer, the one that ends the request for it, and the value of
/// the hold or one that the key showed.
const MOST: usize = UNANSWERED + 2;

/// A short list of attempts, in place. Those that stand for the hold come first: the one that was confirmed last, then
/// the unanswered rotations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    attempts: [u32; MOST],
    len: u8,
    of_hold: u8,
}

impl Leftovers {
    pub(super) const fn new() -> Leftovers {
        Leftovers {
            attempts: [0; MOST],
            len: 0,
            of_hold: 0,
        }
    }

    /// The attempts, the most likely one first.
    pub fn as_slice(&self) -> &[u32] {
        &self.attempts[..usize::from(self.len)]
    }

    /// Those that stand for the hold: whichever of them the key has, it is that of the hold.
    pub fn of_hold(&self) -> &[u32] {
        &self.attempts[..usize::from(self.of_hold)]
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

    /// One that stands for the hold, before the others.
    pub(super) fn push_first(&mut self, attempt: u32) {
        self.insert(0, attempt);
    }

    /// One that may stand for the hold, behind those that more likely do.
    pub(super) fn push_of_hold(&mut self, attempt: u32) {
        self.insert(usize::from(self.of_hold), attempt);
    }

    /// None of those can be on the server any more.
    pub(super) fn forget_of_hold(&mut self) {
        self.attempts
            .copy_within(usize::from(self.of_hold)..usize::from(self.len), 0);
        self.len -= self.of_hold;
        self.of_hold = 0;
    }

    fn insert(&mut self, at: usize, attempt: u32) {
        self.remove(attempt);
        let at = at.min(usize::from(self.of_hold));
        let len = usize::from(self.len).min(MOST - 1);
        self.attempts.copy_within(at..len, at + 1);
        self.attempts[at] = attempt;
        self.len = len as u8 + 1;
        self.of_hold += 1;
    }

    pub(super) fn remove(&mut self, attempt: u32) {
        if let Some(at) = self.as_slice().iter().position(|a| *a == attempt) {
            let len = usize::from(self.len);
            self.attempts.copy_within(at + 1..len, at);
            self.len -= 1;
            self.of_hold -= u8::from(at < usize::from(self.of_hold));
        }
    }
}
