//! What the values of rotations are made from.

use alloc::vec::Vec;

use super::{Leases, Slot};
use crate::lease::{Lease, OpKind};

/// The secrets of the rotations that may be on the server.
#[derive(Clone, Default)]
pub(super) struct Rotation {
    /// That of the next one.
    next: Option<[u8; 16]>,
    secrets: Vec<(u32, [u8; 16])>,
}

impl Leases {
    /// Whether a rotation is about to be handed out: [`stir`](Leases::stir) right before.
    pub fn wants_stirring(&self) -> bool {
        let rotates = |lease: &Lease| lease.wants_rotation();
        self.rotating > 0
            && self
                .wanting
                .iter()
                .any(|id| self.lease(*id).is_some_and(rotates))
    }

    /// The rotations that are due are made from these 128 bits, which the system's entropy gave just now: then no copy of this
    /// process has them. `None` where it gives none: what is due is renewed without a new value.
    ///
    /// A table that is never stirred makes the values of rotations from the secret of the request. Then the copies of a
    /// process write the same values: one may take what the other wrote for a rotation of its own that was not answered, hold
    /// on by it, and delete it in a clean-up. What is found out is only a copy whose renewals were all answered.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use tenure_core::config::{LeaseConfig, Wait};
    /// # use tenure_core::lease::{OpKind, Outcome};
    /// # use tenure_core::leases::{Leases, Options, Request};
    /// # use tenure_core::names::Names;
    /// # use tenure_core::time::Tick;
    /// # let mut leases = Leases::new(Names::new("lock:", "doc")?, 1);
    /// # let now = Tick::from_micros(0);
    /// # let terms = LeaseConfig::new(Duration::from_secs(30)).build()?;
    /// let options = Options { rotate: true, ..Options::default() };
    /// # let request = Request { name: b"a", terms, wait: Wait::Now, options, secret: [7; 16], since_ms: 0 };
    /// # let id = leases.acquire(now, &request)?;
    /// # let op = leases.poll_op(now).unwrap();
    /// # leases.handle_outcome(now, op.id, op.seq, Outcome::Granted { handed_out: now });
    /// leases.renew_now(now, id);
    /// if leases.wants_stirring() {
    ///     let fresh = [0x5c; 16]; // from the system
    ///     leases.stir(Some(fresh));
    /// }
    /// let op = leases.poll_op(now).unwrap();
    /// assert_eq!(op.kind, OpKind::Rotate { attempt: 2, old: 1 });
    /// # Ok::<(), tenure_core::error::ConfigError>(())
    /// ```
    pub fn stir(&mut self, fresh: Option<[u8; 16]>) {
        for id in &self.wanting {
            let Some(slot) = self.slots.get_mut(id.index()) else {
                continue;
            };
            if !slot.lease.wants_rotation() {
                continue;
            }
            match (fresh, &mut slot.extras) {
                (Some(fresh), Some(extras)) => {
                    // Another for each lease: no two requests have the same secret.
                    let mut next = fresh;
                    next.iter_mut().zip(slot.secret).for_each(|(a, b)| *a ^= b);
                    extras.rotation.next = Some(next);
                }
                _ => slot.lease.renew_plainly(),
            }
        }
    }
}

impl Slot {
    /// What the value of an attempt is made from.
    pub(super) fn secret_of(&self, attempt: u32) -> &[u8; 16] {
        let rotated = self.extras.iter().flat_map(|all| &all.rotation.secrets);
        let mut own = rotated.filter(|(other, _)| *other == attempt);
        own.next().map_or(&self.secret, |(_, secret)| secret)
    }

    /// An operation is handed out: what it writes is made from what was drawn for it.
    pub(super) fn note_rotation(&mut self, kind: OpKind) {
        if let (OpKind::Rotate { attempt, .. }, Some(extras)) = (kind, &mut self.extras) {
            let (lease, rotation) = (&self.lease, &mut extras.rotation);
            rotation
                .secrets
                .retain(|(other, _)| lease.own_attempts().any(|own| own == *other));
            let secret = rotation.next.take().unwrap_or(self.secret);
            rotation.secrets.push((attempt, secret));
        }
    }
}
