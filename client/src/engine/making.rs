//! What leases and questions want, as jobs that refer to nothing of theirs.

use std::time::Duration;

use tenure_core::ask::{AskId, Asks, Step};
use tenure_core::lease::OpKind;
use tenure_core::leases::{LeaseId, Leases, Op};
use tenure_core::time::{Deadline, Reason, Tick};

use super::{Bytes, Job, Waiter};

/// The job of an operation, and how long it may take.
pub(super) fn job(leases: &Leases, op: Op, now: Tick) -> Option<(Job, Duration)> {
    let lease = leases.lease(op.id)?;
    let limit = match lease.deadline() {
        // Nobody wants its answer after that, and a caller's thread may be carrying it out.
        Deadline::At(at, Reason::WaitEnds) => at.saturating_since(now),
        _ => Duration::MAX,
    };
    let limit = limit.min(lease.reply_limit(op.kind));
    let key: Bytes = leases.key(op.id).into();
    let value = |attempt| Some(Bytes::from(leases.value(op.id, attempt)?.as_bytes()));
    let fence = op.fenced.then(|| leases.floor(op.id));
    let term = lease.terms().lease();
    let swap = |old, new, fence| {
        Some(Job::Swap {
            key: key.clone(),
            old: value(old)?,
            new: value(new)?,
            lease: term,
            fence,
        })
    };
    let job = match op.kind {
        OpKind::Acquire { attempt } if op.fair => Job::Take {
            value: value(attempt)?,
            lease: term,
            fence,
            waiter: match lease.is_single_try() {
                true => None,
                false => waiter(leases, op.id),
            },
            most: leases.max_waiters(op.id),
            key,
        },
        OpKind::Acquire { attempt } => Job::Acquire {
            value: value(attempt)?,
            lease: term,
            fence,
            key,
        },
        OpKind::Adopt { attempt, old } => swap(old, attempt, fence)?,
        OpKind::Rotate { attempt, old } => swap(old, attempt, None)?,
        OpKind::Renew { attempt } => swap(attempt, attempt, None)?,
        OpKind::Look { attempt } => Job::Look {
            value: value(attempt)?,
            key,
        },
        OpKind::Clear => {
            let leftovers = lease.leftovers();
            let values = leftovers.as_slice().iter().filter_map(|own| value(*own));
            let (values, of_hold) = (values.collect(), leftovers.of_hold().len());
            match op.fair && !op.cools {
                true => Job::Pass {
                    values,
                    of_hold,
                    leaves: waiter(leases, op.id)?.value,
                    next: leases
                        .next_in_turn(op.id)
                        .and_then(|next| waiter(leases, next)),
                    key,
                },
                false => Job::Clear {
                    values,
                    of_hold,
                    cooling: match op.cools {
                        true => Some(cooling(leases, op.id)?),
                        false => None,
                    },
                    key,
                },
            }
        }
    };
    Some((job, limit))
}

fn cooling(leases: &Leases, id: LeaseId) -> Option<(Bytes, Duration)> {
    let value = leases.cooling(id)?;
    // Over since it was asked for: the shortest time there is.
    let rest = Duration::from_millis(leases.rest(id).max(1));
    Some((value.as_bytes().into(), rest))
}

/// Its place in the queue of its lock.
fn waiter(leases: &Leases, id: LeaseId) -> Option<Waiter> {
    let entry = leases.entry(id)?;
    let blank = entry.iter().position(|byte| *byte == b' ')?;
    Some(Waiter {
        value: entry[blank + 1..].into(),
        lease: leases.lease(id)?.waiter_lease()?,
        age: Duration::from_micros(leases.age_us(id)),
    })
}

/// The job of the next step of a question.
pub(super) fn question(asks: &Asks, id: AskId) -> Option<Job> {
    Some(match asks.step(id)? {
        Step::Look { keys } => Job::Inspect {
            keys: keys.iter().map(|key| key[..].into()).collect(),
        },
        Step::Scan { start, .. } => Job::List {
            start: start.into(),
        },
        Step::Remove { key, by, only, .. } => Job::Remove {
            key: key.into(),
            by: by.as_bytes().into(),
            only: only.map(Bytes::from),
        },
        Step::Examine => Job::Examine,
    })
}
