//! Everything that can go wrong, and its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Stage, clients, lock};
use crate::checker::{Assumption, Assumptions, Scope};
use crate::machine::Client;
use crate::net::Link;
use crate::server::Mood;

/// The longest that bytes of an aborted connection stay under way, in milliseconds of a long history.
pub(super) const LATEST: u64 = 2_000;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What can go wrong in a history.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Fault { $($(#[$doc])* $name,)* }

        impl Fault {
            /// Every one.
            pub const ALL: &[Fault] = &[$(Fault::$name,)*];
        }
    };
}

faults! {
    /// Bytes take up to 200 ms.
    Delay,
    /// Bytes arrive in small pieces, down to one by one.
    Split,
    /// Nothing arrives for a while, then everything.
    Silence,
    /// What a client sends arrives, and no answer comes back.
    Deafness,
    /// Every connection of a client is reset.
    Cut,
    /// As `Cut`, and new connections are refused for a while.
    Refuse,
    /// What is under way on an aborted connection arrives later.
    Zombies,
    /// The socket takes a few bytes at a time.
    NarrowWindow,
    /// A command is executed twice and answered once.
    Repeat,
    /// A process stands still.
    PauseProcess,
    /// A machine stands still with its clock. Breaks A4.
    PauseMachine,
    /// A process with all its memory exists twice. Breaks A5; only for the machine alone.
    Clone,
    /// Clocks run apart by more than the margin allows, all the time. Breaks A2.
    Drift,
    /// A process dies; another takes its place.
    Kill,
    /// The server takes bytes and answers nothing.
    Freeze,
    /// The server stops, and starts with its data.
    Restart,
    /// The server stops, and starts without its data. Breaks A3.
    RestartEmpty,
    /// Every key is gone. Breaks A3.
    Flush,
    /// Somebody deletes a key. Breaks A6.
    Delete,
    /// Somebody writes over a key. Breaks A6.
    Replace,
    /// Somebody makes a list of a key. Breaks A6.
    MakeList,
    /// The server wants a password for a while, and some have to connect anew.
    Password,
    /// `READONLY` for a while.
    ReadOnly,
    /// `LOADING` for a while.
    Loading,
    /// `BUSY` for a while.
    Busy,
    /// `MASTERDOWN` for a while.
    MasterDown,
    /// `NOREPLICAS` for a while.
    NoReplicas,
    /// `OOM` for a while.
    OutOfMemory,
    /// `TRYAGAIN` for a while.
    TryAgain,
    /// Scripts are forgotten: `NOSCRIPT`.
    ForgetScripts,
    /// A script fails after it has written.
    FailScript,
    /// The server's clock is set forward. Breaks A1.
    StepForward,
    /// The server's clock is set back.
    StepBack,
    /// The server fails over to a replica that lags, on another clock. Breaks A1 and A3.
    FailOver,
    /// A replica receives nothing for a while, and confirms nothing.
    FreezeReplica,
    /// A replica is promoted with what it has received. Breaks A3 for whatever was not waited for.
    Promote,
    /// The server tells nobody any more what it has promised to tell, as behind a proxy that has connected anew.
    LoseTracking,
    /// `CLIENT TRACKING` is refused for a while, and some have to connect anew.
    RefuseTracking,
    /// Whoever waits or holds is told of a change that was none.
    CrowdOut,
    /// An operator removes a key, and says so. Breaks A6.
    Force,
}

/// The faults after which everybody is told, and the end of a connection.
pub(super) const THAT_WAKE: &[Fault] = &[
    Fault::Cut,
    Fault::Cut,
    Fault::Delete,
    Fault::Force,
    Fault::Replace,
    Fault::Flush,
    Fault::Kill,
    Fault::ForgetScripts,
    Fault::CrowdOut,
];

/// The faults of whole clients.
pub fn faults() -> impl Iterator<Item = Fault> {
    let all = Fault::ALL.iter().copied();
    all.filter(|fault| *fault != Fault::Clone)
}

impl Fault {
    /// The assumption that it breaks.
    fn breaks(self) -> Option<Assumption> {
        match self {
            Fault::PauseMachine => Some(Assumption::A4),
            Fault::RestartEmpty | Fault::Flush | Fault::FailOver | Fault::Promote => {
                Some(Assumption::A3)
            }
            Fault::Delete | Fault::Force | Fault::Replace | Fault::MakeList => Some(Assumption::A6),
            Fault::StepForward | Fault::StepBack => Some(Assumption::A1),
            Fault::Drift => Some(Assumption::A2),
            Fault::Clone => Some(Assumption::A5),
            _ => None,
        }
    }
}

/// The faults of one history: some of those that its assumptions allow, at least one.
pub(super) fn choose(
    assumed: Assumptions,
    replicas: bool,
    below: &mut impl FnMut(u64) -> u64,
) -> Vec<Fault> {
    let allowed = |fault: &Fault| {
        fault.breaks().is_none_or(|broken| !assumed.has(broken))
            && !matches!(fault, Fault::Clone | Fault::Drift)
            && (replicas || !matches!(fault, Fault::FreezeReplica | Fault::Promote))
            && (*fault != Fault::FailOver || !assumed.has(Assumption::A1))
    };
    let allowed: Vec<Fault> = Fault::ALL.iter().copied().filter(allowed).collect();
    let share = 1 + below(6);
    let mut chosen: Vec<Fault> = allowed
        .iter()
        .copied()
        .filter(|_| below(6) < share)
        .collect();
    if chosen.is_empty() {
        chosen.push(allowed[below(allowed.len() as u64) as usize]);
    }
    chosen
}

/// Begins to do harm.
pub(super) fn start(stage: &Stage, kinds: Vec<Fault>, counted: &Arc<Mutex<BTreeMap<Fault, u64>>>) {
    let (busy, stage, counted) = (
        stage.busy("the nemesis"),
        stage.clone(),
        Arc::clone(counted),
    );
    let calm = stage.up_to(1_500);
    stage.world.clone().spawn(async move {
        let _busy = busy;
        if stage.world.chance(500) {
            stage.world.sleep(stage.world.up_to(calm)).await;
        }
        loop {
            let fault = kinds[stage.world.below(kinds.len() as u64) as usize];
            stage.world.note(|| format!("FAULT {fault:?}"));
            *lock(&counted).entry(fault).or_default() += 1;
            inflict(&stage, fault).await;
            stage.world.sleep(stage.world.up_to(calm)).await;
            if !stage.goes_on() {
                return;
            }
        }
    });
}

/// Begins to do nothing but outages, one at a time, of any part of a lease.
pub(super) fn start_outages(stage: &Stage, counted: &Arc<Mutex<BTreeMap<Fault, u64>>>) {
    let (busy, stage, counted) = (stage.busy("outages"), stage.clone(), Arc::clone(counted));
    stage.world.clone().spawn(async move {
        let _busy = busy;
        let (world, server) = (&stage.world, &stage.server);
        let most = stage.pace.leases.1;
        loop {
            world.sleep(world.up_to(most)).await;
            let kinds = [
                Fault::Silence,
                Fault::Deafness,
                Fault::Cut,
                Fault::Refuse,
                Fault::Freeze,
                Fault::Restart,
            ];
            let fault = kinds[world.below(kinds.len() as u64) as usize];
            let span = match fault {
                Fault::Cut => Duration::ZERO,
                _ => world.up_to(most),
            };
            let victim = victim(&stage);
            world.note(|| format!("OUTAGE {fault:?} of {span:?} at client {}", victim.id()));
            *lock(&counted).entry(fault).or_default() += 1;
            let everybody = matches!(fault, Fault::Freeze | Fault::Restart);
            stage.checker.outage_begins((!everybody).then_some(&victim));
            match fault {
                Fault::Silence => victim.link(server, |link| link.silent = true),
                Fault::Deafness => victim.link(server, |link| link.deaf = true),
                Fault::Freeze => server.freeze(),
                Fault::Restart => server.stop(),
                _ => {
                    victim.link(server, |link| link.refuses = fault == Fault::Refuse);
                    victim.cut(server);
                }
            }
            world.sleep(span).await;
            match fault {
                Fault::Freeze => server.thaw(),
                Fault::Restart => server.start(true),
                _ => victim.link(server, |link| *link = Link::default()),
            }
            stage.checker.outage_ends();
            if !stage.goes_on() {
                return;
            }
        }
    });
}

async fn inflict(stage: &Stage, fault: Fault) {
    let (world, server) = (&stage.world, &stage.server);
    let span = |most| stage.up_to(most);
    let victim = victim(stage);
    let name = clients::name(world.below(stage.names as u64) as usize);
    match fault {
        Fault::Delay => {
            let (a, b) = (span(200), span(200));
            bend(stage, &victim, |link| link.latency = (a.min(b), a.max(b))).await;
        }
        Fault::Split => {
            let piece = 1 + world.below(40) as usize;
            bend(stage, &victim, |link| link.piece = piece).await;
        }
        Fault::Silence => bend(stage, &victim, |link| link.silent = true).await,
        Fault::Deafness => {
            bend(stage, &victim, |link| link.deaf = true).await;
            if world.chance(500) {
                victim.cut(server);
            }
        }
        Fault::Cut => {
            stage.checker.cuts(&victim);
            victim.cut(server);
        }
        Fault::Refuse => {
            victim.cut(server);
            bend(stage, &victim, |link| link.refuses = true).await;
        }
        Fault::Zombies => {
            let late = span(LATEST);
            victim.link(server, |link| link.zombies = Some(late));
            bend(stage, &victim, |link| link.silent = true).await;
        }
        Fault::NarrowWindow => {
            let window = 1 + world.below(200) as usize;
            bend(stage, &victim, |link| link.window = window).await;
        }
        Fault::Repeat => server.repeat_commands(1 + world.below(12) as u32),
        Fault::PauseProcess => {
            // Mostly with answers under way, which lie there when it wakes.
            if world.chance(600) {
                let slow = (stage.pace.ms(20), stage.pace.ms(100));
                victim.link(server, |link| link.latency = slow);
                world.sleep(span(300)).await;
            }
            victim.pause();
            world.sleep(span(2_000)).await;
            victim.resume();
            victim.link(server, |link| *link = Link::default());
        }
        Fault::PauseMachine => {
            stage.checker.broke(Assumption::A4, Scope::Client(&victim));
            victim.pause_machine();
            world.sleep(span(2_000)).await;
            victim.resume();
            stage.checker.broke(Assumption::A4, Scope::Client(&victim));
        }
        Fault::Kill => {
            victim.kill();
            world.sleep(span(500)).await;
            clients::start(stage);
        }
        Fault::Freeze => {
            server.freeze();
            world.sleep(span(1_500)).await;
            server.thaw();
        }
        Fault::Restart | Fault::RestartEmpty => {
            let with_data = fault == Fault::Restart;
            server.stop();
            world.sleep(span(800)).await;
            if !with_data {
                stage.checker.broke(Assumption::A3, Scope::Server);
            }
            server.start(with_data);
        }
        Fault::Flush => {
            stage.checker.broke(Assumption::A3, Scope::Server);
            server.flush();
        }
        Fault::Delete => {
            stage.checker.broke(Assumption::A6, Scope::Name(&name));
            server.delete(&format!("lock:{name}"));
        }
        Fault::Force => {
            stage.checker.broke(Assumption::A6, Scope::Name(&name));
            server.force_release(&format!("lock:{name}"), "operator");
        }
        Fault::Replace => {
            stage.checker.broke(Assumption::A6, Scope::Name(&name));
            let ttl = Some(Duration::from_millis(1) + span(1_500));
            server.set(&format!("lock:{name}"), "somebody", ttl);
        }
        Fault::MakeList => {
            stage.checker.broke(Assumption::A6, Scope::Name(&name));
            server.make_list(&format!("lock:{name}"));
            world.sleep(span(1_000)).await;
            stage.checker.broke(Assumption::A6, Scope::Name(&name));
            server.delete(&format!("lock:{name}"));
        }
        Fault::Password => {
            stage.checker.may_deny();
            server.password("changed");
            cut_some(stage);
            world.sleep(span(600)).await;
            server.no_password();
        }
        Fault::LoseTracking => server.lose_tracking(),
        Fault::RefuseTracking => {
            server.refuse_tracking(true);
            cut_some(stage);
            world.sleep(span(1_000)).await;
            server.refuse_tracking(false);
        }
        Fault::CrowdOut => server.crowd_out_tracking(),
        // Not for the nemesis: whole clients are not copied, and clocks are drawn when they are made.
        Fault::Clone | Fault::Drift => {}
        Fault::ReadOnly => sulk(stage, Mood::ReadOnly).await,
        Fault::Loading => sulk(stage, Mood::Loading).await,
        Fault::Busy => sulk(stage, Mood::Busy).await,
        Fault::MasterDown => sulk(stage, Mood::MasterDown).await,
        Fault::NoReplicas => sulk(stage, Mood::NoReplicas).await,
        Fault::OutOfMemory => sulk(stage, Mood::OutOfMemory).await,
        Fault::TryAgain => sulk(stage, Mood::TryAgain).await,
        Fault::ForgetScripts => server.forget_scripts(),
        Fault::FailScript => server.fail_next_script(),
        Fault::StepForward => step(stage, 1 + world.below(3_000) as i64),
        Fault::StepBack => step(stage, -1 - world.below(500) as i64),
        Fault::FailOver => {
            let replica = server.snapshot();
            world.sleep(span(1_000)).await;
            stage.checker.broke(Assumption::A3, Scope::Server);
            stage.checker.broke(Assumption::A1, Scope::Server);
            let skew = world.below(2_000) as i64 - 500;
            note_step(stage, skew);
            server.fail_over(replica, skew);
        }
        Fault::FreezeReplica => {
            let replica = world.below(u64::from(stage.replicas)) as usize;
            server.freeze_replica(replica);
            world.sleep(span(1_500)).await;
            // Which number it has by now nobody knows.
            server.thaw_replicas();
        }
        Fault::Promote => {
            let replica = world.below(u64::from(stage.replicas)) as usize;
            let lag = Duration::from_millis(1) + span(super::LAG);
            stage.checker.promoted();
            server.fail_over(server.take_replica(replica), 0);
            server.add_replica(lag);
        }
    }
}

/// A way of the link, for a while.
async fn bend(stage: &Stage, victim: &Client, change: impl FnOnce(&mut Link)) {
    victim.link(&stage.server, change);
    let most = stage.up_to(3_000);
    stage.world.sleep(stage.world.up_to(most)).await;
    victim.link(&stage.server, |link| *link = Link::default());
}

/// Most have to connect anew.
fn cut_some(stage: &Stage) {
    for client in stage.clients() {
        if stage.world.chance(700) {
            client.cut(&stage.server);
        }
    }
}

/// A mood, for a while.
async fn sulk(stage: &Stage, mood: Mood) {
    stage.server.mood(mood);
    let span = stage.up_to(1_200);
    stage.world.sleep(span).await;
    stage.server.mood(Mood::Well);
}

fn step(stage: &Stage, millis: i64) {
    stage.checker.broke(Assumption::A1, Scope::Server);
    note_step(stage, millis);
    stage.server.step_clock(millis);
}

fn note_step(stage: &Stage, millis: i64) {
    *lock(&stage.behind) += (-millis).max(0);
}

/// Some client that is not dead.
fn victim(stage: &Stage) -> Client {
    let mut alive = stage.clients();
    alive.retain(|client| !client.is_killed());
    alive.swap_remove(stage.world.below(alive.len() as u64) as usize)
}

/// Everything is well again.
pub(super) fn heal(stage: &Stage) {
    let server = &stage.server;
    for client in stage.clients() {
        client.resume();
        client.link(server, |link| *link = Link::default());
    }
    server.thaw();
    server.thaw_replicas();
    server.mood(Mood::Well);
    server.heal();
    for (key, value, _) in server.keys() {
        if !value.starts_with("tn1:") {
            server.delete(&key);
        }
    }
    // What was set back is set forward, or keys would live longer than their lease.
    let behind = *lock(&stage.behind);
    server.step_clock(behind);
    stage.checker.clock_is_right();
}
