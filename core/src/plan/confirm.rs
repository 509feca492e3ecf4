//! How many replicas have a write: the question, and what its answer means.

use crate::error::Failure;
use crate::lease::Outcome;
use crate::replicas::{Confirmed, Replicas, ReplicasFault};
use crate::resp::{Arg, Value};

/// `WAIT n ms`, or `WAITAOF 1 n ms`.
pub(super) fn command(replicas: Replicas, mut each: impl FnMut(&[Arg<'_>])) {
    let (count, ms) = (
        Arg::Int(u64::from(replicas.count)),
        Arg::Int(u64::from(replicas.within_ms)),
    );
    match replicas.on_disk {
        false => each(&["WAIT".into(), count, ms]),
        true => each(&["WAITAOF".into(), Arg::Int(1), count, ms]),
    }
}

/// What the answer makes of a write that was made: nothing, if it is confirmed.
///
/// Asked on a connection that has not written, a server confirms at once: so it says nothing of any other write.
pub(super) fn judge(replicas: Replicas, reply: &Value<'_>) -> Option<Outcome> {
    let counts = |at: usize| reply.as_items()?.iter().nth(at)?.as_int();
    let (here, there) = match replicas.on_disk {
        false => (Some(1), reply.as_int()),
        true => (counts(0), counts(1)),
    };
    let confirmed = u8::try_from(there.unwrap_or(0).clamp(0, 255)).unwrap_or(0);
    if here.is_some_and(|here| here > 0) && confirmed >= replicas.count {
        return None;
    }
    let failure = match reply.error().and_then(ReplicasFault::of) {
        Some(fault) => Failure::Replicas(fault),
        None => Failure::Unconfirmed(Confirmed::new(confirmed, replicas.count)),
    };
    Some(Outcome::Failed {
        failure,
        maybe_executed: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(on_disk: bool, reply: Value<'_>) -> Option<Failure> {
        let replicas = Replicas {
            count: 2,
            within_ms: 50,
            on_disk,
        };
        match judge(replicas, &reply)? {
            Outcome::Failed {
                failure,
                maybe_executed: true,
            } => Some(failure),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn s16_only_enough_replicas_confirm() {
        let unconfirmed = |confirmed| Some(Failure::Unconfirmed(Confirmed::new(confirmed, 2)));
        for n in [2, 3, i64::MAX] {
            assert_eq!(judged(false, Value::Int(n)), None);
        }
        assert_eq!(judged(false, Value::Int(1)), unconfirmed(1));
        assert_eq!(judged(false, Value::Int(-1)), unconfirmed(0));
        // What is no answer to this question confirms nothing.
        for other in [
            Value::Null,
            Value::Simple(b"OK"),
            Value::Bulk(b"2"),
            Value::Error(b"UNBLOCKED force unblock"),
        ] {
            assert_eq!(judged(false, other), unconfirmed(0), "{other:?}");
            assert_eq!(judged(true, other), unconfirmed(0), "{other:?}");
        }
        assert_eq!(judged(true, Value::Int(2)), unconfirmed(0));
        let denied = Value::Error(b"NOPERM no");
        let fault = ReplicasFault::NotPermitted;
        assert_eq!(judged(false, denied), Some(Failure::Replicas(fault)));
    }

    #[test]
    fn s16_on_disk_means_here_and_there() {
        let answer = |bytes: &[u8]| judged(true, crate::resp::read(bytes));
        assert_eq!(answer(b"*2\r\n:1\r\n:2\r\n"), None);
        let unconfirmed = |confirmed| Some(Failure::Unconfirmed(Confirmed::new(confirmed, 2)));
        assert_eq!(answer(b"*2\r\n:0\r\n:2\r\n"), unconfirmed(2));
        assert_eq!(answer(b"*2\r\n:1\r\n:1\r\n"), unconfirmed(1));
        assert_eq!(answer(b"*1\r\n:1\r\n"), unconfirmed(0));
    }
}
