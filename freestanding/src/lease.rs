//! A lease and the codec, without an allocator.

use core::time::Duration;

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::lease::{Event, Lease, OpKind, Outcome, State};
use tenure_core::resp::{Limits, Scanner, Value, encode, read};
use tenure_core::time::Tick;

/// One life: acquired, renewed, lost, cleared; then one that is released. `Err` has the step.
pub(crate) fn life() -> Result<(), u8> {
    let terms = LeaseConfig::new(Duration::from_secs(30))
        .build()
        .map_err(|_| 1)?;
    let at = |secs: u64| Tick::from_micros(secs * 1_000_000);

    let mut lease = Lease::new(at(0), terms, Wait::Now, Duration::from_secs(10), 7);
    lease.turn(at(0));
    answer(&mut lease, 0, b"$-1\r\n").ok_or(2)?;
    check(
        matches!(lease.poll_event(), Some(Event::Acquired { .. })) && lease.holds_at(at(1)),
        3,
    )?;

    lease.handle_timeout(at(6));
    answer(&mut lease, 6, b"$5\r\nvalue\r\n").ok_or(4)?;
    check(
        matches!(lease.poll_event(), Some(Event::Renewed { .. })) && lease.holds_at(at(32)),
        5,
    )?;

    // No answer any more: given up at two thirds of the lease, with time left to stop in.
    lease.handle_timeout(at(12));
    lease.poll_op().ok_or(6)?;
    lease.handle_timeout(at(26));
    let Some(Event::Lost(lost)) = lease.poll_event() else {
        return Err(7);
    };
    check(lost.stop_by == at(33) && !lease.holds_at(at(27)), 8)?;
    lease.drop_guard(at(28));
    check(
        lease.poll_op().is_some_and(|op| op.kind == OpKind::Clear),
        9,
    )?;

    let mut lease = Lease::new(at(40), terms, Wait::Forever, Duration::from_secs(10), 8);
    lease.turn(at(40));
    answer(&mut lease, 40, b"_\r\n").ok_or(10)?;
    lease.poll_event().ok_or(11)?;
    lease.release(at(41));
    check(!lease.holds_at(at(41)), 12)?;
    answer(&mut lease, 41, b":1\r\n").ok_or(13)?;
    check(
        lease.poll_event() == Some(Event::Released { confirmed: true }),
        14,
    )?;
    check(lease.state() == State::Done, 15)
}

/// Takes the operation, encodes it, and answers it with these bytes.
fn answer(lease: &mut Lease, secs: u64, reply: &[u8]) -> Option<()> {
    let now = Tick::from_micros(secs * 1_000_000);
    let op = lease.poll_op()?;
    let mut out = [0; 256];
    let ms = lease.terms().lease_ms().into();
    let sent = match op.kind {
        OpKind::Acquire { .. } => encode(
            &[
                "SET".into(),
                "k".into(),
                "value".into(),
                "NX".into(),
                "GET".into(),
                "PX".into(),
                ms,
            ],
            &mut out,
        ),
        OpKind::Clear => encode(
            &["DELEX".into(), "k".into(), "IFEQ".into(), "value".into()],
            &mut out,
        ),
        _ => encode(
            &[
                "SET".into(),
                "k".into(),
                "value".into(),
                "IFEQ".into(),
                "value".into(),
                "GET".into(),
                "PX".into(),
                ms,
            ],
            &mut out,
        ),
    };
    sent.ok()?;
    let len = Scanner::new(Limits::DEFAULT).scan(reply).ok()??;
    let outcome = match read(reply.get(..len)?) {
        Value::Int(n) => Outcome::Cleared { mine: n == 1 },
        _ => Outcome::Granted { handed_out: now },
    };
    lease.handle_outcome(now + Duration::from_millis(2), op.seq, outcome);
    Some(())
}

fn check(holds: bool, step: u8) -> Result<(), u8> {
    if holds { Ok(()) } else { Err(step) }
}
