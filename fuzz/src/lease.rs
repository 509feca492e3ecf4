//! Many leases, against a model of what it is to hold one.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::error::{Failure, LinkFault, ServerError};
use tenure_core::lease::{OpKind, Outcome};
use tenure_core::leases::{LeaseId, Leases, Notice, Op, Options, Request};
use tenure_core::names::Names;
use tenure_core::time::Tick;

use crate::Bytes;

const MS: Duration = Duration::from_millis(1);

/// What a caller knows of a lease. It is held if and only if `now` is before the end of validity of the latest confirmed
/// hand-out, and it was neither let go nor told lost.
#[derive(Default)]
struct Model {
    validity: Duration,
    valid_until: Option<Tick>,
    acquired: u8,
    refused: u8,
    ended: u8,
    let_go: bool,
    dropped: bool,
}

/// Calls of many leases and their times.
pub fn lease_ops(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let names = Names::new("lock:", "fuzz").expect("a good label");
    let mut leases = Leases::new(names, u64::from(bytes.byte()));
    let mut now = Tick::from_micros(1_000_000);
    let mut models: BTreeMap<LeaseIdBits, Model> = BTreeMap::new();
    let mut ids: Vec<LeaseId> = Vec::new();
    let mut ops: Vec<(Op, Tick)> = Vec::new();
    let mut closed = false;
    let mut steps = 0;
    while !bytes.is_empty() && steps < 400 {
        steps += 1;
        let (kind, arg) = (bytes.byte() % 16, bytes.byte());
        let picked = ids.get(usize::from(arg) % ids.len().max(1)).copied();
        match (kind, picked) {
            (0 | 1, _) if ids.len() < 12 => {
                let lease = MS * [20, 100, 1_000, 30_000][usize::from(arg >> 2 & 3)];
                let mut config = LeaseConfig::new(lease);
                if arg & 16 > 0 {
                    config = config.no_renew();
                }
                let Ok(terms) = config.build() else { continue };
                let wait = [
                    Wait::Now,
                    Wait::Forever,
                    Wait::For(MS * 50),
                    Wait::For(MS * 900),
                ][usize::from(arg & 3)];
                let request = Request {
                    name: [&b"a"[..], b"b", b"c"][usize::from(arg >> 5) % 3],
                    terms,
                    wait,
                    secret: [steps as u8; 16],
                    options: Options::default(),
                    since_ms: 0,
                };
                let id = leases.acquire(now, &request).expect("a good name");
                ids.push(id);
                let model = Model {
                    validity: terms.validity(),
                    ..Model::default()
                };
                models.insert(id.to_bits(), model);
            }
            (2, Some(id)) => {
                leases.release(now, id);
                let_go(&mut models, id);
            }
            (3, Some(id)) => {
                leases.drop_guard(now, id);
                let_go(&mut models, id);
                if let Some(model) = models.get_mut(&id.to_bits()) {
                    model.dropped = true;
                    model.let_go = true;
                }
            }
            (4, Some(id)) if arg & 1 > 0 => {
                leases.abandon(now, id);
                let_go(&mut models, id);
            }
            (4, Some(id)) => leases.renew_now(now, id),
            (5, _) => now = now + MS * u32::from(arg),
            (6, _) => now = now + Duration::from_micros(u64::from(arg)) * 997,
            // The clock goes back: that counts as no change.
            (7, _) => leases.handle_timeout(now - MS * u32::from(arg)),
            (8, _) => {
                if let Some(at) = leases.timer().at(now) {
                    now = at.max(now);
                    leases.handle_timeout(now);
                }
            }
            (9, _) => match arg % 4 {
                0 => leases.handle_link_up(now),
                1 => leases.handle_link_down(now),
                2 => leases.handle_link_failed(now, Failure::Link(LinkFault::Dial), b"no"),
                _ if arg > 250 => {
                    leases.close(now);
                    closed = true;
                    for id in &ids {
                        let_go(&mut models, *id);
                    }
                }
                _ if arg > 240 => leases.handle_all_changed(now),
                _ => leases.handle_changed(
                    now,
                    [b"lock:a", b"lock:b", b"lock:c"][usize::from(arg >> 5) % 3],
                ),
            },
            (10 | 11, _) => {
                if let Some(op) = leases.poll_op(now) {
                    let model = models
                        .get(&op.id.to_bits())
                        .expect("an operation of nobody");
                    assert!(
                        op.kind == OpKind::Clear || !model.let_go,
                        "{op:?} after the end"
                    );
                    ops.push((op, now));
                }
            }
            _ if !ops.is_empty() => {
                let (op, handed_out) = ops.remove(usize::from(arg >> 4) % ops.len());
                let wanted = leases
                    .lease(op.id)
                    .is_some_and(|lease| lease.awaits(op.seq));
                let outcome = outcome(op.kind, arg & 15, handed_out);
                leases.handle_outcome(now, op.id, op.seq, outcome);
                let model = models.get_mut(&op.id.to_bits()).expect("known");
                if wanted && matches!(outcome, Outcome::Granted { .. }) {
                    let until = handed_out + model.validity;
                    model.valid_until = model.valid_until.max(Some(until));
                }
            }
            _ => {}
        }
        while let Some(op) = leases.poll_superseded() {
            // Half of them had not left yet.
            let before = ops.len();
            if arg & 1 > 0 {
                ops.retain(|(other, _)| (other.id, other.seq) != (op.id, op.seq));
            }
            if ops.len() < before {
                leases.handle_purged(now, op);
            }
        }
        while let Some(event) = leases.poll_event() {
            told(
                models.get_mut(&event.id.to_bits()).expect("known"),
                &event.notice,
            );
        }
        for id in &ids {
            let model = &models[&id.to_bits()];
            let valid = model.valid_until.is_some_and(|until| now < until);
            let held = model.acquired == 1 && valid && !model.let_go;
            assert_eq!(
                leases.holds_at(*id, now),
                held,
                "{id:?} at {now:?}: {leases:?}"
            );
            if let Some(until) = model.valid_until.filter(|_| held) {
                // To the microsecond.
                assert_eq!(
                    leases.lease(*id).and_then(|lease| lease.valid_until()),
                    Some(until)
                );
                assert!(leases.holds_at(*id, until - Duration::from_micros(1)));
                assert!(!leases.holds_at(*id, until));
            }
        }
        ids.retain(|id| leases.lease(*id).is_some());
    }
    // Nobody wants anything any more, and no store is there: all ends by itself.
    for id in ids {
        leases.drop_guard(now, id);
    }
    leases.handle_link_down(now);
    for (op, _) in ops {
        let outcome = Outcome::NoReply {
            maybe_executed: true,
            failure: Failure::Link(LinkFault::Closed),
        };
        leases.handle_outcome(now, op.id, op.seq, outcome);
    }
    for _ in 0..400 {
        match leases.timer().at(now) {
            Some(at) => now = at.max(now),
            None => break,
        }
        leases.handle_timeout(now);
    }
    assert!(leases.is_empty(), "{leases:?}");
    assert_eq!(leases.is_finished(), closed);
}

type LeaseIdBits = u64;

fn let_go(models: &mut BTreeMap<LeaseIdBits, Model>, id: LeaseId) {
    if let Some(model) = models.get_mut(&id.to_bits()) {
        // What is let go before it is granted is a request that goes on, unless it is dropped or closed.
        model.let_go |= model.acquired == 1;
    }
}

fn outcome(kind: OpKind, arg: u8, handed_out: Tick) -> Outcome {
    let maybe_executed = arg & 1 > 0;
    match (kind, arg) {
        (OpKind::Clear, 0..=7) => Outcome::Cleared {
            mine: maybe_executed,
        },
        (OpKind::Look { .. }, 0..=6) => Outcome::Seen,
        (_, 0..=6) => Outcome::Granted { handed_out },
        (_, 7 | 8) => Outcome::Refused {
            own: None,
            remaining: maybe_executed.then_some(MS * 3),
            watched: maybe_executed,
        },
        (_, 9) => Outcome::Refused {
            own: Some(1),
            remaining: None,
            watched: maybe_executed,
        },
        (_, 10) => Outcome::Gone,
        (_, 11 | 12) => Outcome::Failed {
            failure: Failure::Server(ServerError::ReadOnly),
            maybe_executed,
        },
        (_, 13) => Outcome::Failed {
            failure: Failure::Server(ServerError::NoPerm),
            maybe_executed,
        },
        _ => Outcome::NoReply {
            maybe_executed,
            failure: Failure::Link(LinkFault::ReplyOverdue),
        },
    }
}

fn told(model: &mut Model, notice: &Notice) {
    assert!(!model.dropped, "told after the drop: {notice:?}");
    match notice {
        Notice::Acquired { .. } => model.acquired += 1,
        Notice::Held(_) | Notice::TimedOut(_) | Notice::Failed(_) => model.refused += 1,
        Notice::Renewed { .. } | Notice::RenewalFailed(_) | Notice::Vanished => {
            assert_eq!((model.acquired, model.ended), (1, 0), "{notice:?}");
        }
        Notice::Lost { .. } | Notice::Released { .. } | Notice::Abandoned => model.ended += 1,
    }
    model.let_go |= model.refused + model.ended > 0;
    assert!(
        model.acquired + model.refused <= 1 && model.ended <= model.acquired,
        "a second end: {notice:?}"
    );
}
