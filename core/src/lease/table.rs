//! The transition table of a lease: data, and what runs.
//!
//! [`RULES`] lists every cell that has a meaning. A pair of state and input that is not listed is
//! ignored: it can only be a late or repeated call, which changes nothing. The diagram in
//! `docs/lease-states.md` is generated from this list.

/// Where a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Behind another lease of the same name in this process: nothing was sent.
    Queued,
    /// Its turn: an attempt is due.
    Ready,
    /// An attempt is with the store.
    Acquiring,
    /// Refused, or failed for now: waits for the next attempt.
    Backoff,
    /// The key shows an unanswered attempt of this very request: it is being taken over.
    Adopting,
    /// Granted, but with too little validity left to be handed over: renewed once first.
    Confirming,
    /// Held, nothing under way.
    Held,
    /// Held, a renewal is due or under way.
    Renewing,
    /// Held, and something happened to the key: whose it is, is being looked at.
    Checking,
    /// Released by the holder, who waits for the answer.
    Releasing,
    /// Lost and told; the guard still lives, so nothing is sent.
    Lost,
    /// Told and over; what may be left on the server is being cleared.
    Ending,
    /// Over. The machine can be forgotten.
    Done,
}

impl State {
    /// Whether the lock is held, if its validity has not ended.
    pub const fn is_held(self) -> bool {
        matches!(self, State::Held | State::Renewing | State::Checking)
    }
}

/// What can happen to a lease, sorted fine enough for the next state to be certain.
///
/// The `..Last` inputs are those that end the request: the wait is [`Wait::Now`](crate::config::Wait),
/// or waiting cannot cure it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Input {
    /// The local queue gives it its turn.
    Turn,
    /// Another lease of the same name in this process came first.
    Demoted,
    /// The operation was taken by the store.
    Sent,
    /// Granted, or confirmed, with enough validity left.
    Granted,
    /// Granted with less than half of the validity left.
    GrantedLate,
    /// Confirmed with less than a quarter of the validity left.
    ConfirmedLate,
    /// Somebody else holds the key.
    Refused,
    /// As `Refused`, and that was the only attempt.
    RefusedLast,
    /// The key shows an unanswered attempt of this request; of a hold, an unanswered rotation.
    RefusedByOwn,
    /// The renewal is confirmed.
    Renewed,
    /// The key was looked at and is still ours.
    Seen,
    /// The key is gone.
    Gone,
    /// The key holds somebody else's value.
    Replaced,
    /// The clean-up is answered: the key was ours until then.
    Cleared,
    /// The clean-up is answered: the key was not ours.
    ClearedNothing,
    /// An error that waiting may cure.
    Failed,
    /// An error that ends the request.
    FailedLast,
    /// The operation was never sent.
    Unsent,
    /// The operation may have been executed.
    Ambiguous,
    /// As `Ambiguous`, and it ends the request.
    AmbiguousLast,
    /// Something happened to the key: a hint to look, never the verdict.
    Changed,
    /// A retry is due: the next attempt, the next clean-up.
    RetryDue,
    /// The next renewal is due.
    RenewDue,
    /// The store can be reached again.
    LinkUp,
    /// The wait is over.
    WaitOver,
    /// No renewal was confirmed in time.
    GiveUp,
    /// The answer to a release is overdue.
    ReleaseOverdue,
    /// What may be left has expired by itself.
    Forget,
    /// Nothing is left to clear.
    NothingLeft,
    /// The holder releases.
    Release,
    /// The holder leaves the key to its TTL.
    Abandon,
    /// Nobody waits for this lease any more: the future or the guard was dropped.
    Drop,
    /// The client is being closed.
    Close,
}

/// What a transition does besides moving on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Nothing.
    Nothing,
    /// An attempt is due.
    Attempt,
    /// A take-over of the shown attempt is due.
    Adopt,
    /// A renewal is due, before the grant is handed over.
    Confirm,
    /// The hold begins: tell.
    Hold,
    /// A renewal is due.
    Renew,
    /// A look at the key is due.
    Look,
    /// The renewal counts: tell.
    Extend,
    /// Try the renewal again a little later.
    RetryRenewal,
    /// Wait for the next attempt.
    BackOff,
    /// The attempt may exist on the server: remember it.
    Remember,
    /// As `Remember`, and an attempt is due.
    RememberAttempt,
    /// As `Remember`, and wait for the next attempt.
    RememberBackOff,
    /// Tell that the name is held.
    TellHeld,
    /// Tell that the wait is over.
    TellTimedOut,
    /// As `TellTimedOut`, and remember.
    RememberTimedOut,
    /// Tell why the request failed.
    TellFailed,
    /// As `TellFailed`, and remember.
    RememberFailed,
    /// Tell that replies are slower than the lease; remember.
    TellSlow,
    /// Tell that the client is closed.
    TellClosed,
    /// As `TellClosed`, and remember.
    RememberClosed,
    /// The hold is lost: tell why. Nothing is sent.
    TellLost,
    /// The clean-up of the hold is due.
    Clear,
    /// The clean-up is due again.
    ClearAgain,
    /// Try the clean-up again a little later.
    RetryClear,
    /// Tell that the release is confirmed.
    TellReleased,
    /// Tell that the release is not confirmed; the clean-up goes on.
    TellUnconfirmed,
    /// Tell that the key was lost before the release.
    TellAlreadyLost,
    /// Tell that the hold was abandoned.
    TellAbandoned,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// In this state,
    pub state: State,
    /// on this input,
    pub input: Input,
    /// do this
    pub act: Act,
    /// and be in this state.
    pub next: State,
}

/// The number of states.
pub const STATES: usize = State::Done as usize + 1;
/// The number of inputs.
pub const INPUTS: usize = Input::Close as usize + 1;

macro_rules! rules {
    ($( $state:ident { $( $input:ident => $act:ident, $next:ident; )* } )*) => {
        &[ $( $( Rule {
            state: State::$state,
            input: Input::$input,
            act: Act::$act,
            next: State::$next,
        }, )* )* ]
    };
}

/// Every cell with a meaning.
pub const RULES: &[Rule] = rules! {
    Queued {
        Turn => Attempt, Ready;
        FailedLast => TellFailed, Ending;
        WaitOver => TellTimedOut, Ending;
        Drop => Nothing, Ending;
        Close => TellClosed, Ending;
    }
    Ready {
        Sent => Nothing, Acquiring;
        Demoted => Nothing, Queued;
        FailedLast => TellFailed, Ending;
        WaitOver => TellTimedOut, Ending;
        Drop => Nothing, Ending;
        Close => TellClosed, Ending;
    }
    Acquiring {
        Granted => Hold, Held;
        GrantedLate => Confirm, Confirming;
        Refused => BackOff, Backoff;
        RefusedLast => TellHeld, Ending;
        RefusedByOwn => Adopt, Adopting;
        Failed => BackOff, Backoff;
        FailedLast => TellFailed, Ending;
        Unsent => Attempt, Ready;
        Ambiguous => RememberAttempt, Ready;
        AmbiguousLast => RememberFailed, Ending;
        WaitOver => RememberTimedOut, Ending;
        Drop => Remember, Ending;
        Close => RememberClosed, Ending;
    }
    Backoff {
        RetryDue => Attempt, Ready;
        Changed => Attempt, Ready;
        LinkUp => Attempt, Ready;
        Demoted => Nothing, Queued;
        FailedLast => TellFailed, Ending;
        WaitOver => TellTimedOut, Ending;
        Drop => Nothing, Ending;
        Close => TellClosed, Ending;
    }
    Adopting {
        Granted => Hold, Held;
        GrantedLate => Confirm, Confirming;
        Refused => BackOff, Backoff;
        RefusedLast => TellHeld, Ending;
        RefusedByOwn => Adopt, Adopting;
        Failed => BackOff, Backoff;
        FailedLast => TellFailed, Ending;
        Unsent => Adopt, Adopting;
        Ambiguous => RememberAttempt, Ready;
        AmbiguousLast => RememberFailed, Ending;
        WaitOver => RememberTimedOut, Ending;
        Drop => Remember, Ending;
        Close => RememberClosed, Ending;
    }
    Confirming {
        Granted => Hold, Held;
        ConfirmedLate => TellSlow, Ending;
        Refused => BackOff, Backoff;
        RefusedLast => TellSlow, Ending;
        Failed => RememberBackOff, Backoff;
        FailedLast => RememberFailed, Ending;
        Unsent => Confirm, Confirming;
        Ambiguous => RememberAttempt, Ready;
        AmbiguousLast => RememberFailed, Ending;
        WaitOver => RememberTimedOut, Ending;
        Drop => Remember, Ending;
        Close => RememberClosed, Ending;
    }
    Held {
        Changed => Look, Checking;
        RenewDue => Renew, Renewing;
        LinkUp => Renew, Renewing;
        GiveUp => TellLost, Lost;
        Release => Clear, Releasing;
        Abandon => TellAbandoned, Done;
        Drop => Clear, Ending;
        Close => TellLost, Lost;
    }
    Renewing {
        Renewed => Extend, Held;
        RefusedByOwn => Renew, Renewing;
        Gone => TellLost, Lost;
        Replaced => TellLost, Lost;
        Failed => RetryRenewal, Held;
        FailedLast => RetryRenewal, Held;
        Unsent => Renew, Renewing;
        Ambiguous => Renew, Renewing;
        GiveUp => TellLost, Lost;
        Release => Clear, Releasing;
        Abandon => TellAbandoned, Done;
        Drop => Clear, Ending;
        Close => TellLost, Lost;
    }
    Checking {
        Seen => Nothing, Held;
        Gone => TellLost, Lost;
        Replaced => TellLost, Lost;
        Failed => Nothing, Held;
        FailedLast => Nothing, Held;
        Unsent => Look, Checking;
        Ambiguous => Look, Checking;
        RenewDue => Renew, Renewing;
        LinkUp => Renew, Renewing;
        GiveUp => TellLost, Lost;
        Release => Clear, Releasing;
        Abandon => TellAbandoned, Done;
        Drop => Clear, Ending;
        Close => TellLost, Lost;
    }
    Releasing {
        Cleared => TellReleased, Done;
        ClearedNothing => TellAlreadyLost, Done;
        Failed => RetryClear, Releasing;
        FailedLast => RetryClear, Releasing;
        Unsent => ClearAgain, Releasing;
        Ambiguous => ClearAgain, Releasing;
        RetryDue => ClearAgain, Releasing;
        ReleaseOverdue => TellUnconfirmed, Ending;
        Forget => TellUnconfirmed, Done;
        Drop => Nothing, Ending;
    }
    Lost {
        Drop => Nothing, Ending;
        Release => Nothing, Ending;
        Abandon => Nothing, Done;
        Forget => Nothing, Done;
    }
    Ending {
        NothingLeft => Nothing, Done;
        Cleared => Nothing, Done;
        ClearedNothing => Nothing, Done;
        Failed => RetryClear, Ending;
        FailedLast => RetryClear, Ending;
        Unsent => ClearAgain, Ending;
        Ambiguous => ClearAgain, Ending;
        RetryDue => ClearAgain, Ending;
        Forget => Nothing, Done;
    }
};

/// The rules as a dense table: the position in [`RULES`] plus one, zero for a cell that is ignored.
static TABLE: [[u8; INPUTS]; STATES] = dense();

/// The rule for this cell, with its position in [`RULES`]; `None` when the input is ignored.
pub fn rule(state: State, input: Input) -> Option<(usize, &'static Rule)> {
    let at = TABLE[state as usize][input as usize];
    let index = usize::from(at).checked_sub(1)?;
    Some((index, &RULES[index]))
}

const fn dense() -> [[u8; INPUTS]; STATES] {
    assert!(RULES.len() < u8::MAX as usize);
    let mut table = [[0; INPUTS]; STATES];
    let mut i = 0;
    while i < RULES.len() {
        let cell = &mut table[RULES[i].state as usize][RULES[i].input as usize];
        assert!(*cell == 0, "two rules for one cell");
        *cell = i as u8 + 1;
        i += 1;
    }
    table
}

/// How often each rule ran, for tests that must have met every cell.
#[cfg(any(test, feature = "_cells"))]
pub mod cells {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::RULES;

    static MET: [AtomicU64; RULES.len()] = [const { AtomicU64::new(0) }; RULES.len()];

    pub(crate) fn count(rule: usize) {
        MET[rule].fetch_add(1, Ordering::Relaxed);
    }

    /// How often the rule at this position of [`RULES`] ran in this process.
    pub fn met(rule: usize) -> u64 {
        MET[rule].load(Ordering::Relaxed)
    }
}
