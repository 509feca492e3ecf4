//! How long replies are held up by the server that waits for replicas.

use core::time::Duration;

use crate::replicas::Replicas;

/// What was sent to be confirmed, on one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits {
    /// The longest that the server may wait for any of the commands that are not answered.
    longest: Duration,
}

impl Waits {
    /// How much longer than usual the reply to the next command may take: as long as the server may wait for it and for each
    /// of those before it, since it does one after the other.
    pub(super) fn until_answered(&mut self, wait: Option<Replicas>, unanswered: usize) -> Duration {
        if unanswered == 0 {
            self.longest = Duration::ZERO;
        }
        if let Some(replicas) = wait {
            self.longest = self.longest.max(replicas.within());
        }
        if self.longest.is_zero() {
            return Duration::ZERO;
        }
        let waits = u32::try_from(unanswered + 1).unwrap_or(u32::MAX);
        self.longest.saturating_mul(waits)
    }
}
