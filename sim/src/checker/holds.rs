//! What holders see: S1, S2, S7 and S8, at one instant.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tenure_client::{Cause, Error, Held, Lost, WaitLost};
use tenure_core::time::Tick;

use super::{AT_ONCE, State, outages, overlaps};
use crate::machine::{Client, ServerHandle};
use crate::world::World;

/// A grant that a caller was given.
pub(super) struct Hold {
    pub(super) request: u64,
    /// Until nothing more can happen to it.
    held: Option<Held>,
    lost: Option<WaitLost>,
    rings: Arc<Rings>,
    told: bool,
    pub(super) let_go: bool,
    /// It was seen not to be held.
    over: bool,
    /// True time at which it was known to be lost, and not told yet.
    vanished: Option<Tick>,
    /// True time of the hand-out that it counts from.
    confirmed: Option<Tick>,
}

/// A waker that remembers.
struct Rings(AtomicBool);

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Hold {
    pub(super) fn new(request: u64, held: &Held) -> Hold {
        Hold {
            request,
            lost: Some(held.lost()),
            held: Some(held.clone()),
            rings: Arc::new(Rings(AtomicBool::new(true))),
            told: false,
            let_go: false,
            over: false,
            vanished: None,
            confirmed: None,
        }
    }
}

impl Hold {
    /// Whether its holder still believes in it.
    pub(super) fn is_believed(&self) -> bool {
        !self.told && !self.let_go && !self.over
    }

    /// The hand-out that it was last seen to count from.
    pub(super) fn confirmed(&self) -> Option<Tick> {
        self.confirmed
    }
}

/// Looks at every hold. Gives back what is over, to be dropped once nothing is locked.
pub(super) fn probe(state: &mut State, world: &World, server: &ServerHandle) -> Vec<Held> {
    let mut holds = std::mem::take(&mut state.holds);
    let now = world.true_time();
    let mut found = Vec::new();
    let mut gone = Vec::new();
    // Key, true if nothing excuses an overlap, request.
    let mut held: Vec<(String, bool, u64)> = Vec::new();
    for hold in &mut holds {
        let Some(view) = hold.held.clone() else {
            continue;
        };
        let (client, key) = {
            let request = &state.ledger.requests[&hold.request];
            (state.clients[&request.client].clone(), request.key.clone())
        };
        if client.is_killed() {
            gone.extend(hold.held.take());
            continue;
        }
        let id = hold.request;
        let mut say = |text: String| found.push(format!("{text} (request {id})"));
        let is_held = view.is_held();
        let lost = told(hold, &mut say);
        if let Some(lost) = &lost {
            let stamp = world.stamp();
            let confirmed = hold.confirmed;
            state.ledger.lose(hold.request, stamp);
            let by_server = matches!(lost.cause, Cause::Gone | Cause::Replaced | Cause::Forced);
            let broken = confirmed
                .is_none_or(|confirmed| state.ledger.excused(hold.request, confirmed, now));
            // A release may find its key expired, or have been repeated.
            if by_server && !hold.let_go && !broken {
                say(format!("S7 lost without a reason: {lost}"));
            }
            if matches!(lost.cause, Cause::Expired { .. }) {
                let given_up = state.ledger.given_up(hold.request, view.stop_window(lost));
                given_up.unwrap_or_else(&mut say);
            }
            if !hold.let_go {
                let wrong = outages::judge(state, hold, &lost.cause, now);
                wrong.into_iter().for_each(&mut say);
            }
        }
        if is_held && (hold.told || hold.let_go) {
            say("S1 still held after its end was told".to_owned());
        }
        if is_held && hold.over {
            say("S2 held again after it was not".to_owned());
        }
        hold.over |= !is_held;
        if is_held && !hold.told && !hold.let_go {
            let valid_until = client.now() + view.remaining();
            match state.ledger.confirm(hold.request, valid_until, now) {
                Err(broken) => say(broken),
                Ok(confirmed) => {
                    hold.confirmed = Some(confirmed.at);
                    if confirmed.strict {
                        let rate = 1.0 + client.drift_ppm() as f64 / 1e6;
                        let left = view.remaining().div_f64(rate);
                        let (there, ttl) = server.text(&key).unzip();
                        let ttl = ttl.flatten().map(|ttl| ttl + Duration::from_micros(2));
                        let lasts = ttl.is_none_or(|ttl| ttl >= left);
                        let outlasts =
                            state
                                .ledger
                                .outlasts(id, &confirmed, there.as_deref(), lasts);
                        outlasts.unwrap_or_else(&mut say);
                    }
                    held.push((key, confirmed.strict, hold.request));
                }
            }
        }
        if !hold.told && !hold.let_go {
            in_time(state, now, hold, &view, &client, is_held, &mut say);
        }
        if (hold.told || hold.let_go) && !is_held && hold.lost.is_none() {
            gone.extend(hold.held.take());
        }
    }
    found.extend(overlaps(&mut held));
    state.holds = holds;
    for text in found {
        world.note(|| format!("VIOLATION {text}"));
        state.ledger.violations.push(format!("{now:?} {text}"));
    }
    gone
}

/// Asks whether the loss was told, as a task would: only when it was woken.
fn told(hold: &mut Hold, say: &mut impl FnMut(String)) -> Option<Lost> {
    let waiting = hold.lost.as_mut()?;
    let rung = hold.rings.0.swap(false, Ordering::Relaxed);
    let waker = Waker::from(Arc::clone(&hold.rings));
    let mut cx = Context::from_waker(&waker);
    match Pin::new(waiting).poll(&mut cx) {
        Poll::Ready(lost) => {
            if !rung {
                say("a loss was told and nobody was woken".to_owned());
            }
            hold.told = true;
            hold.lost = None;
            Some(lost)
        }
        Poll::Pending => {
            // Let go: it may never be ready.
            if hold.let_go {
                hold.lost = None;
            }
            None
        }
    }
}

/// S1: the loss is told when it is given up, unless the process stands still. What is known to be gone is told as soon as it is
/// known why, or that cannot be known.
fn in_time(
    state: &State,
    now: Tick,
    hold: &mut Hold,
    view: &Held,
    client: &Client,
    is_held: bool,
    say: &mut impl FnMut(String),
) {
    if client.stood_still(AT_ONCE) {
        return;
    }
    let terms = &state.ledger.requests[&hold.request].terms;
    let stop_window = terms.validity() - terms.give_up_after();
    if matches!(view.check(), Err(Error::Lost(lost)) if lost.cause == Cause::Gone) {
        let known = now.saturating_since(*hold.vanished.get_or_insert(now));
        // Replicas that confirm nothing hold up what is asked on the same connection, for other locks as well.
        let most = match state.ledger.is_replicated(hold.request) {
            true => terms.lease(),
            false => terms.reply_limit() * 2,
        };
        if known > most + AT_ONCE && !client.stood_still(known * 2) {
            say(format!(
                "S8 a loss has been known for {known:?} and is not told"
            ));
        }
        return;
    }
    if !is_held || view.remaining() + AT_ONCE < stop_window {
        say(format!(
            "S1 the loss is not told with {:?} left, of a stop window of {stop_window:?}",
            view.remaining()
        ));
    }
}
