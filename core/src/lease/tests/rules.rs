//! Rules that live in one lease.

use core::time::Duration;

use super::super::{Cause, Event, Lease, Lost, Op, OpKind, Outcome, State};
use crate::config::{LeaseConfig, MAX_LEASE, MIN_LEASE, Wait};
use crate::error::{ConfigError, Failure, LinkFault, ServerError};
use crate::time::Tick;

const MS: Duration = Duration::from_millis(1);
const START: Tick = Tick::from_micros(1_000_000);

fn lease(wait: Wait) -> Lease {
    let terms = LeaseConfig::new(MS * 1_000).build().unwrap();
    let mut lease = Lease::new(START, terms, wait, MS * 500, 1);
    lease.turn(START);
    lease
}

fn op(lease: &mut Lease) -> Op {
    lease.poll_op().expect("an operation")
}

fn granted(handed_out: Tick) -> Outcome {
    Outcome::Granted { handed_out }
}

fn no_reply(maybe_executed: bool) -> Outcome {
    let failure = Failure::Link(LinkFault::Closed);
    Outcome::NoReply {
        maybe_executed,
        failure,
    }
}

fn held() -> Lease {
    let mut lease = lease(Wait::Forever);
    let op = op(&mut lease);
    lease.handle_outcome(START, op.seq, granted(START));
    assert!(matches!(lease.poll_event(), Some(Event::Acquired { .. })));
    lease
}

#[test]
fn s1_holds_at_is_exact() {
    let lease = held();
    let end = START + MS * 900;
    assert!(lease.holds_at(end - Duration::from_micros(1)));
    assert!(!lease.holds_at(end));
    assert_eq!(lease.valid_until(), Some(end));
}

#[test]
fn s1_an_older_hand_out_does_not_shorten_validity() {
    let mut lease = held();
    lease.renew_now(START + MS * 100);
    let op = op(&mut lease);
    lease.handle_outcome(START + MS * 110, op.seq, granted(START - MS * 5));
    assert_eq!(lease.valid_until(), Some(START + MS * 900));
}

#[test]
fn s2_expiry_comes_before_the_outcome() {
    let mut lease = held();
    lease.renew_now(START + MS * 100);
    let op = op(&mut lease);
    let late = START + MS * 900;
    lease.handle_outcome(late, op.seq, granted(START + MS * 100));
    let Some(Event::Lost(lost)) = lease.poll_event() else {
        panic!()
    };
    assert_eq!(
        lost.cause,
        Cause::Expired {
            late_by: late.saturating_since(START + Duration::from_secs(1) * 2 / 3)
        }
    );
    assert!(!lease.holds_at(START));
}

#[test]
fn s4_after_a_loss_the_release_or_the_drop_clears_and_an_abandon_does_not() {
    for how in 0..3 {
        let mut lease = held();
        lease.handle_timeout(START + MS * 700);
        assert!(matches!(lease.poll_event(), Some(Event::Lost(_))));
        assert!(lease.poll_op().is_none());
        let now = START + MS * 750;
        match how {
            0 => lease.drop_guard(now),
            1 => lease.release(now),
            _ => lease.abandon(now),
        }
        assert_eq!(
            lease.poll_op().map(|op| op.kind),
            (how < 2).then_some(OpKind::Clear)
        );
        assert_eq!(lease.poll_event(), None);
        assert_eq!(lease.state() == State::Done, how == 2);
    }
}

#[test]
fn s5_every_attempt_has_a_number_of_its_own_and_only_sent_ones_are_left_over() {
    let mut lease = lease(Wait::Forever);
    let first = op(&mut lease);
    lease.handle_outcome(START, first.seq, no_reply(false));
    assert!(lease.leftovers().is_empty());
    let second = op(&mut lease);
    lease.handle_outcome(START, second.seq, no_reply(true));
    let third = op(&mut lease);
    assert_eq!(third.kind, OpKind::Acquire { attempt: 3 });
    assert_eq!(lease.leftovers().as_slice(), [2]);
    // What is shown is taken over by an attempt of its own.
    lease.handle_outcome(
        START,
        third.seq,
        Outcome::Refused {
            own: Some(2),
            remaining: None,
            watched: false,
        },
    );
    let adopt = op(&mut lease);
    assert_eq!(adopt.kind, OpKind::Adopt { attempt: 4, old: 2 });
    lease.handle_outcome(START + MS, adopt.seq, granted(START + MS));
    assert!(lease.holds_at(START + MS) && lease.leftovers().is_empty());
    lease.release(START + MS * 2);
    assert_eq!(lease.leftovers().as_slice(), [4]);
}

#[test]
fn s5_a_first_attempt_that_shows_itself_is_taken_over() {
    // A proxy repeats a command: the second copy is refused by the first.
    let mut lease = lease(Wait::Now);
    let first = op(&mut lease);
    lease.handle_outcome(
        START,
        first.seq,
        Outcome::Refused {
            own: Some(1),
            remaining: None,
            watched: false,
        },
    );
    let adopt = op(&mut lease);
    assert_eq!(adopt.kind, OpKind::Adopt { attempt: 2, old: 1 });
    // Unsent, it is put again: a single try makes no second attempt.
    lease.handle_outcome(START, adopt.seq, no_reply(false));
    let adopt = op(&mut lease);
    assert_eq!(adopt.kind, OpKind::Adopt { attempt: 3, old: 1 });
    // Without a connection it fails like any single try, and what was shown is cleared.
    lease.handle_outcome(START, adopt.seq, no_reply(false));
    lease.handle_link_failed(START, Failure::Link(LinkFault::Dial));
    assert_eq!(
        lease.poll_event(),
        Some(Event::Failed(Failure::Link(LinkFault::Dial)))
    );
    assert_eq!(op(&mut lease).kind, OpKind::Clear);
    assert_eq!(lease.leftovers().as_slice(), [1]);
}

#[test]
fn s5_too_many_unanswered_attempts_end_the_request_and_all_are_cleared() {
    let mut lease = lease(Wait::Forever);
    for attempt in 1..=7 {
        assert_eq!(lease.poll_event(), None, "{attempt}");
        let op = op(&mut lease);
        lease.handle_outcome(START, op.seq, no_reply(true));
    }
    assert_eq!(
        lease.poll_event(),
        Some(Event::Failed(Failure::TooManyUnanswered))
    );
    assert_eq!(lease.leftovers().as_slice(), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn s5_whoever_shows_every_take_over_again_ends_the_request_and_all_are_cleared() {
    // A proxy that sends each command twice and passes the second answer on.
    let mut lease = lease(Wait::Forever);
    for attempt in 1..=7 {
        assert_eq!(lease.poll_event(), None, "{attempt}");
        let op = op(&mut lease);
        let shown = Outcome::Refused {
            own: Some(attempt),
            remaining: None,
            watched: false,
        };
        lease.handle_outcome(START, op.seq, shown);
    }
    assert_eq!(
        lease.poll_event(),
        Some(Event::Failed(Failure::TooManyUnanswered))
    );
    assert_eq!(lease.leftovers().as_slice(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(op(&mut lease).kind, OpKind::Clear);
}

#[test]
fn s5e_a_script_error_leaves_the_attempt_in_doubt() {
    let failure = Failure::Server(ServerError::WrongType);
    let mut lease = lease(Wait::Forever);
    let op = op(&mut lease);
    lease.handle_outcome(
        START,
        op.seq,
        Outcome::Failed {
            failure,
            maybe_executed: true,
        },
    );
    assert_eq!(lease.poll_event(), Some(Event::Failed(failure)));
    assert_eq!(lease.leftovers().as_slice(), [1]);
    assert_eq!(lease.poll_op().unwrap().kind, OpKind::Clear);
}

#[test]
fn s6_a_withdrawn_attempt_leaves_nothing_to_clear() {
    let mut lease = lease(Wait::Forever);
    let first = op(&mut lease);
    lease.drop_guard(START);
    assert_eq!(lease.poll_superseded(), Some(first));
    // Even if the clean-up was already taken: it is handed back, too.
    let clear = op(&mut lease);
    lease.handle_purged(START, first.kind);
    assert_eq!(lease.state(), State::Done);
    assert_eq!(lease.poll_superseded(), Some(clear));
}

#[test]
fn s6_a_withdrawn_attempt_leaves_an_earlier_one_to_clear() {
    let mut lease = lease(Wait::Forever);
    let first = op(&mut lease);
    lease.handle_outcome(START, first.seq, no_reply(true));
    let second = op(&mut lease);
    lease.drop_guard(START);
    assert_eq!(lease.poll_superseded(), Some(second));
    lease.handle_purged(START, second.kind);
    assert_eq!(op(&mut lease).kind, OpKind::Clear);
    assert_eq!(lease.leftovers().as_slice(), [1]);
}

#[test]
fn s6_a_request_that_is_dropped_between_two_attempts_is_cleared_at_once() {
    let mut lease = lease(Wait::Forever);
    let first = op(&mut lease);
    lease.handle_outcome(START, first.seq, no_reply(true));
    let second = op(&mut lease);
    let refused = Outcome::Refused {
        own: None,
        remaining: None,
        watched: false,
    };
    lease.handle_outcome(START, second.seq, refused);
    assert_eq!(lease.state(), State::Backoff);
    // The process may end right after.
    lease.drop_guard(START);
    assert_eq!(op(&mut lease).kind, OpKind::Clear);
    assert_eq!(lease.leftovers().as_slice(), [1]);
}

#[test]
fn s6_a_close_forgets_no_clean_up_while_its_answer_can_come() {
    let mut lease = lease(Wait::Forever);
    let first = op(&mut lease);
    lease.drop_guard(START);
    lease.handle_outcome(START, first.seq, granted(START));
    let clear = op(&mut lease);
    lease.close(START);
    // Its connection lives; only that of a dead one is forgotten after a time.
    let late = START + MS * 4_000;
    lease.handle_timeout(late);
    assert!(lease.awaits(clear.seq));
    lease.handle_outcome(late, clear.seq, no_reply(false));
    assert_eq!(op(&mut lease).kind, OpKind::Clear);
}

#[test]
fn s6_an_old_leftover_is_not_even_sent_when_it_has_expired() {
    let mut lease = lease(Wait::Forever);
    let op = op(&mut lease);
    lease.handle_outcome(START, op.seq, no_reply(true));
    lease.handle_link_down(START);
    // No connection for longer than the lease and a margin.
    lease.drop_guard(START + MS * 1_102);
    assert_eq!(lease.state(), State::Done);
}

#[test]
fn s7_a_renewal_that_failed_is_tried_again_soon_and_not_at_once() {
    for limit in [MS * 90, Duration::from_micros(1)] {
        let config = LeaseConfig::new(MS * 1_000).reply_limit(limit);
        let terms = config.build().unwrap();
        let mut lease = Lease::new(START, terms, Wait::Forever, MS * 500, 1);
        lease.turn(START);
        let first = op(&mut lease);
        lease.handle_outcome(START, first.seq, granted(START));
        let now = START + MS;
        for _ in 0..50 {
            lease.renew_now(now);
            let renewal = op(&mut lease);
            let failed = Outcome::Failed {
                failure: Failure::Server(ServerError::Loading),
                maybe_executed: false,
            };
            lease.handle_outcome(now, renewal.seq, failed);
            // Several tries fit into what one may take.
            let next = lease.deadline().at(now).unwrap();
            assert!(next > now + limit / 4 && next <= now + limit / 2 + MS / 1_000);
        }
    }
}

#[test]
fn s8_an_unconfirmed_release_is_told_once_and_goes_on() {
    let mut lease = held();
    lease.release(START + MS);
    let clear = op(&mut lease);
    lease.handle_timeout(START + MS * 1_001);
    assert_eq!(
        lease.poll_event(),
        Some(Event::Released { confirmed: false })
    );
    assert_eq!(lease.state(), State::Ending);
    assert!(lease.awaits(clear.seq));
    lease.handle_outcome(
        START + MS * 1_002,
        clear.seq,
        Outcome::Cleared { mine: true },
    );
    assert_eq!((lease.poll_event(), lease.state()), (None, State::Done));
}

#[test]
fn s8_a_clean_up_that_may_have_run_before_finds_nothing_and_that_is_no_loss() {
    let failure = Failure::Server(ServerError::NoPerm);
    for outcome in [
        no_reply(true),
        Outcome::Failed {
            failure,
            maybe_executed: true,
        },
    ] {
        let mut lease = held();
        lease.release(START);
        let first = op(&mut lease);
        lease.handle_outcome(START, first.seq, outcome);
        lease.handle_timeout(START + MS * 100);
        let second = op(&mut lease);
        lease.handle_outcome(
            START + MS * 100,
            second.seq,
            Outcome::Cleared { mine: false },
        );
        assert_eq!(
            lease.poll_event(),
            Some(Event::Released { confirmed: true })
        );
    }
    let mut lease = held();
    lease.release(START);
    let clear = op(&mut lease);
    lease.handle_outcome(START, clear.seq, Outcome::Cleared { mine: false });
    assert_eq!(
        lease.poll_event(),
        Some(Event::Lost(Lost {
            cause: Cause::Gone,
            stop_by: START
        }))
    );
}

#[test]
fn s8_a_clean_up_that_was_not_executed_at_first_hides_no_loss() {
    let failure = Failure::Server(ServerError::Loading);
    for outcome in [
        no_reply(false),
        Outcome::Failed {
            failure,
            maybe_executed: false,
        },
    ] {
        let mut lease = held();
        lease.release(START);
        let first = op(&mut lease);
        lease.handle_outcome(START, first.seq, outcome);
        lease.handle_timeout(START + MS * 100);
        let second = op(&mut lease);
        let nothing = Outcome::Cleared { mine: false };
        lease.handle_outcome(START + MS * 100, second.seq, nothing);
        assert!(matches!(lease.poll_event(), Some(Event::Lost(lost)) if lost.cause == Cause::Gone));
    }
}

#[test]
fn s8_a_loss_that_was_noticed_late_asks_whether_the_process_was_paused() {
    let expired = |late_by| std::format!("{}", Cause::Expired { late_by });
    assert!(!expired(MS * 50 - Duration::from_micros(1)).contains("paused"));
    assert!(expired(MS * 50).contains("50ms late: was the process paused?"));
}

#[test]
fn d_a_late_answer_of_a_superseded_operation_is_ignored() {
    let mut lease = lease(Wait::For(MS * 10));
    let first = op(&mut lease);
    lease.handle_timeout(START + MS * 10);
    assert_eq!(lease.poll_event(), Some(Event::Failed(Failure::NoReply)));
    let clear = op(&mut lease);
    lease.handle_outcome(START + MS * 11, first.seq, granted(START));
    assert_eq!((lease.poll_event(), lease.state()), (None, State::Ending));
    // Nor does an answer that no such operation can have.
    lease.handle_outcome(START + MS * 11, clear.seq, granted(START));
    assert!(lease.awaits(clear.seq));
    lease.handle_outcome(START + MS * 12, clear.seq, Outcome::Cleared { mine: true });
    assert_eq!(lease.state(), State::Done);
}

#[test]
fn s9_the_last_attempt_of_a_wait_is_the_last() {
    let mut lease = lease(Wait::For(MS * 100));
    let mut now = START;
    let mut last = START;
    loop {
        if let Some(op) = lease.poll_op() {
            last = now;
            now = now + MS * 2;
            lease.handle_round_trip(MS * 2);
            lease.handle_outcome(
                now,
                op.seq,
                Outcome::Refused {
                    own: None,
                    remaining: None,
                    watched: false,
                },
            );
        }
        now = lease.deadline().at(now).unwrap();
        lease.handle_timeout(now);
        if let Some(event) = lease.poll_event() {
            assert_eq!(event, Event::TimedOut);
            break;
        }
    }
    // 4 x 2 ms before the end, or right behind an attempt that was under way then.
    assert!(
        last >= START + MS * 92 && last <= START + MS * 94,
        "{last:?}"
    );
    assert_eq!(now, START + MS * 100);
}

#[test]
fn s9_an_attempt_that_is_refused_late_is_followed_by_the_last_one() {
    let mut lease = lease(Wait::For(MS * 100));
    let first = op(&mut lease);
    // The last one was due at 95 ms.
    let late = START + MS * 96;
    let refused = Outcome::Refused {
        own: None,
        remaining: None,
        watched: false,
    };
    lease.handle_outcome(late, first.seq, refused);
    // Later than now, as every deadline.
    let next = lease.deadline().at(late).unwrap();
    assert!(next > late && next < START + MS * 97);
    lease.handle_timeout(next);
    let last = op(&mut lease);
    lease.handle_outcome(next, last.seq, refused);
    assert_eq!(lease.deadline().at(next), Some(START + MS * 100));
}

#[test]
fn s9_half_of_the_validity_is_enough_for_a_grant_and_a_quarter_for_its_confirmation() {
    let instant = Duration::from_micros(1);
    for (late, state) in [
        (MS * 450, State::Held),
        (MS * 450 + instant, State::Confirming),
    ] {
        let mut lease = lease(Wait::Forever);
        let first = op(&mut lease);
        lease.handle_outcome(START + late, first.seq, granted(START));
        assert_eq!(lease.state(), state);
    }
    for (late, state) in [(MS * 675, State::Held), (MS * 675 + instant, State::Ending)] {
        let mut lease = lease(Wait::Forever);
        let first = op(&mut lease);
        let awake = START + MS * 600;
        lease.handle_outcome(awake, first.seq, granted(START));
        let confirmation = op(&mut lease);
        lease.handle_outcome(awake + late, confirmation.seq, granted(awake));
        assert_eq!(lease.state(), state);
    }
}

#[test]
fn s9_the_next_attempt_comes_behind_the_end_of_the_others_lease_and_not_right_before_it() {
    let mut lease = lease(Wait::Forever);
    let (mut now, mut behind) = (START, 0);
    for _ in 0..200 {
        let op = op(&mut lease);
        let refused = Outcome::Refused {
            own: None,
            remaining: Some(MS * 10),
            watched: false,
        };
        lease.handle_outcome(now, op.seq, refused);
        let end = now + MS * 10;
        now = lease.deadline().at(now).unwrap();
        assert!(now <= end + MS * 4);
        // The server rounds what remains down.
        behind += u32::from(now >= end + MS * 2);
        lease.handle_timeout(now);
    }
    // Attempts are up to 400 ms apart: few come sooner by chance.
    assert!(behind > 170, "{behind}");
}

#[test]
fn s11_what_cannot_work_is_refused_before_any_command() {
    let config = || LeaseConfig::new(MS * 30_000);
    let refused = |config: LeaseConfig| config.build().unwrap_err();
    assert!(matches!(
        refused(LeaseConfig::new(MIN_LEASE - MS)),
        ConfigError::Lease(_)
    ));
    assert!(matches!(
        refused(LeaseConfig::new(MAX_LEASE + MS)),
        ConfigError::Lease(_)
    ));
    assert!(matches!(
        refused(LeaseConfig::new(Duration::MAX)),
        ConfigError::Lease(_)
    ));
    assert!(matches!(
        refused(config().margin(Duration::ZERO)),
        ConfigError::Margin { .. }
    ));
    assert!(matches!(
        refused(config().margin(MS * 30_000)),
        ConfigError::Margin { .. }
    ));
    assert!(matches!(
        refused(config().renew_every(MS * 20_000)),
        ConfigError::Intervals { .. }
    ));
    assert!(matches!(
        refused(config().renew_every(Duration::ZERO)),
        ConfigError::Intervals { .. }
    ));
    assert!(matches!(
        refused(config().give_up_after(MS * 27_000)),
        ConfigError::Intervals { .. }
    ));
    assert!(matches!(
        refused(config().reply_limit(MS * 4_667)),
        ConfigError::ReplyLimit { .. }
    ));
    assert!(matches!(
        refused(config().reply_limit(Duration::ZERO)),
        ConfigError::ReplyLimit { .. }
    ));
    assert!(matches!(
        refused(config().max_hold(MS * 29_999)),
        ConfigError::MaxHold { .. }
    ));
    assert!(config().reply_limit(MS * 4_666).build().is_ok());
}

#[test]
fn s11_the_defaults_work_for_every_length_and_round_the_safe_way() {
    let mut micros = 20_000u64;
    while micros <= 30 * 24 * 3600 * 1_000_000 {
        let length = Duration::from_micros(micros);
        for config in [
            LeaseConfig::new(length),
            LeaseConfig::new(length).no_renew(),
        ] {
            let terms = config.build().unwrap();
            assert!(Duration::from_millis(terms.lease_ms()) >= length);
            assert!(terms.validity() < length && terms.give_up_after() < terms.validity());
            let room = terms.give_up_after() - terms.renew_every().unwrap_or_default();
            assert!(terms.reply_limit() * 3 <= room && !terms.reply_limit().is_zero());
        }
        micros = micros * 3 / 2 + 7;
    }
}

#[test]
fn s12_the_far_end_of_time_is_no_panic() {
    for start in [Tick::ZERO, Tick::MAX, Tick::MAX - MS] {
        let terms = LeaseConfig::new(MAX_LEASE).build().unwrap();
        for wait in [
            Wait::Now,
            Wait::Forever,
            Wait::For(Duration::MAX),
            Wait::For(MS),
        ] {
            let mut lease = Lease::new(start, terms, wait, Duration::MAX, 1);
            lease.turn(start);
            let op = op(&mut lease);
            let remaining = Some(Duration::MAX);
            lease.handle_outcome(
                Tick::MAX,
                op.seq,
                Outcome::Refused {
                    own: None,
                    remaining,
                    watched: false,
                },
            );
            lease.handle_timeout(Tick::MAX);
            lease.handle_link_down(Tick::MAX);
            lease.drop_guard(Tick::MAX);
            lease.handle_timeout(Tick::MAX);
        }
    }
}

#[test]
fn a_lease_is_small() {
    let size = size_of::<Lease>();
    assert!(size <= 320, "{size} bytes");
}
