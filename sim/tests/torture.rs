//! Random histories, and that the checker would cry if a promise were broken.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_client::{Config, Locks};
use tenure_sim::checker::{Assumption, Assumptions, Checker, Scope, Want};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, core_level, history};

#[test]
fn a_few_hundred_histories_keep_every_promise() {
    let mut met = BTreeSet::new();
    for seed in 0..400 {
        let report = history::run(seed, false);
        assert!(
            report.violations.is_empty(),
            "seed {seed}: {:#?}",
            report.violations
        );
        assert_eq!(report.lacks(), None, "seed {seed}");
        met.extend(report.faults.into_keys());
    }
    assert!(
        history::faults().all(|fault| met.contains(&fault)),
        "{met:?}"
    );
}

#[test]
fn a_thousand_histories_of_the_machine_alone_keep_every_promise() {
    let mut met = BTreeSet::new();
    for seed in 0..1_500 {
        let report = core_level::run(seed, false);
        assert!(
            report.violations.is_empty(),
            "seed {seed}: {:#?}",
            report.violations
        );
        assert_eq!(report.lacks(), None, "seed {seed}");
        met.extend(report.faults.into_keys());
    }
    let faults = core_level::FAULTS;
    assert!(faults.iter().all(|fault| met.contains(fault)), "{met:?}");
}

#[test]
fn a_seed_repeats_to_the_byte() {
    for seed in 0..12 {
        let (once, again) = (history::run(seed, true), history::run(seed, true));
        assert!(!once.trace.is_empty());
        assert!(once.trace == again.trace, "seed {seed} went another way");
        let (once, again) = (core_level::run(seed, true), core_level::run(seed, true));
        assert!(!once.trace.is_empty());
        assert!(
            once.trace == again.trace,
            "seed {seed} of the machine went another way"
        );
    }
}

async fn connect(checker: &Checker, client: &Client, server: &ServerHandle) -> Locks {
    let config = Config::from_url(&format!("redis://{}", server.host()))
        .unwrap()
        .observe(checker.observer(client));
    client.connect_config(&config).await.unwrap()
}

/// Two clients get the same name because the server forgot the first one. Gives what the checker says to that.
fn both_hold(assumed: Assumptions) -> Vec<String> {
    let mut sim = Sim::new(3);
    let world = sim.world();
    let server = world.server("db", Dialect::Valkey9);
    let (a, b) = (world.client(), world.client());
    let checker = Checker::new(&world, &server, assumed);
    sim.block_on(async move {
        let (first, second) = (
            connect(&checker, &a, &server).await,
            connect(&checker, &b, &server).await,
        );
        let ask = checker.ask(&a, "n", Want::a_try(Duration::from_secs(5)));
        ask.begun(false);
        let lock = first
            .lock("n")
            .options(ask.options())
            .acquire()
            .await
            .unwrap();
        let old = ask.acquired(lock);
        checker.broke(Assumption::A3, Scope::Server);
        server.flush();
        let ask = checker.ask(&b, "n", Want::a_try(Duration::from_secs(5)));
        ask.begun(false);
        let lock = second
            .lock("n")
            .options(ask.options())
            .acquire()
            .await
            .unwrap();
        let new = ask.acquired(lock);
        assert!(old.is_held() && new.is_held());
        let said = checker.violations();
        drop((old, new));
        checker.finish();
        said
    })
}

#[test]
fn an_overlap_is_reported_where_the_assumption_is_made() {
    let said = both_hold(Assumptions::ALL);
    assert!(
        said.iter().any(|text| text.contains("is held twice")),
        "{said:?}"
    );
}

#[test]
fn an_overlap_is_excused_where_the_assumption_is_given_up() {
    let said = both_hold(Assumptions::ALL.without(Assumption::A3));
    assert!(said.is_empty(), "{said:?}");
}

/// A client that wants so many replicas to confirm its lock, while the checker believes that it wants `said`. Then a replica
/// is promoted that has it, or one that does not. Gives what the checker says to that.
fn promoted(said: Option<u8>, really: u8, lags: bool) -> Vec<String> {
    let mut sim = Sim::new(7);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let client = world.client();
    server.add_replica(Duration::from_millis(1));
    let assumed = Assumptions::ALL.without(Assumption::A7);
    let checker = Checker::new(&world, &server, assumed);
    sim.block_on(async move {
        let locks = connect(&checker, &client, &server).await;
        let want = Want {
            replicas: said.map(|count| (count, Duration::from_millis(500))),
            ..Want::a_try(Duration::from_secs(5))
        };
        let empty = server.snapshot();
        let ask = checker.ask(&client, "n", want);
        ask.begun(false);
        let options = ask.options().replicas(really, Duration::from_millis(500));
        let request = locks.lock("n").options(options);
        let guard = ask.acquired(request.acquire().await.unwrap());
        checker.promoted();
        let replica = server.take_replica(0);
        server.fail_over(if lags { empty } else { replica }, 0);
        checker.probe();
        world.sleep(Duration::from_millis(100)).await;
        checker.probe();
        let said = checker.violations();
        drop(guard);
        checker.finish();
        said
    })
}

#[test]
fn s16_what_replicas_have_confirmed_is_not_excused_by_a_promotion_and_the_rest_is() {
    assert_eq!(promoted(Some(1), 1, false), Vec::<String>::new());
    assert_eq!(promoted(None, 1, true), Vec::<String>::new());
    let said = promoted(Some(1), 1, true);
    assert!(
        said.iter().any(|text| text.contains("the server has None")),
        "{said:?}"
    );
}

#[test]
fn s16_a_grant_that_too_few_have_confirmed_is_reported() {
    let said = promoted(Some(2), 1, false);
    assert!(said[0].contains("that replicas confirmed"), "{said:?}");
}

/// A client whose clock is far too slow believes in a lease that the server has let expire, and somebody else has the name.
fn slow_clock(assumed: Assumptions) -> Vec<String> {
    let mut sim = Sim::new(4);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let (a, b) = (world.client_with_drift(-400_000), world.client());
    let checker = Checker::new(&world, &server, assumed);
    sim.block_on(async move {
        let slow = connect(&checker, &a, &server).await;
        let other = connect(&checker, &b, &server).await;
        let ask = checker.ask(&a, "n", Want::a_try(Duration::from_secs(5)));
        ask.begun(false);
        let request = slow.lock("n").options(ask.options());
        let old = ask.acquired(request.acquire().await.unwrap());
        a.link(&server, |link| link.silent = true);
        world.sleep(Duration::from_millis(5_100)).await;
        let ask = checker.ask(&b, "n", Want::a_try(Duration::from_secs(5)));
        ask.begun(false);
        let request = other.lock("n").options(ask.options());
        let new = ask.acquired(request.acquire().await.unwrap());
        assert!(old.is_held() && new.is_held());
        let said = checker.violations();
        drop((old, new));
        checker.finish();
        said
    })
}

#[test]
fn a_clock_that_is_too_slow_is_excused_only_where_that_is_given_up() {
    let said = slow_clock(Assumptions::ALL);
    assert!(
        said.iter().any(|text| text.contains("is held twice")),
        "{said:?}"
    );
    let said = slow_clock(Assumptions::ALL.without(Assumption::A2));
    assert!(said.is_empty(), "{said:?}");
}

/// A hold in a world where nothing goes wrong but `really`, while the checker is told of an outage of `said`.
fn outage(really: Duration, said: Duration) -> Vec<String> {
    let mut sim = Sim::new(5);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let client = world.client();
    let checker = Checker::new(&world, &server, Assumptions::ALL);
    checker.only_outages();
    sim.block_on(async move {
        let locks = connect(&checker, &client, &server).await;
        let ask = checker.ask(&client, "n", Want::a_try(Duration::from_secs(3)));
        ask.begun(false);
        let request = locks.lock("n").options(ask.options());
        let guard = ask.acquired(request.acquire().await.unwrap());
        let ends = world.now() + really.max(said);
        client.link(&server, |link| link.silent = !really.is_zero());
        checker.outage_begins(Some(&client));
        let (told, mut over) = (world.now() + said, false);
        while world.now() < ends {
            world.sleep(Duration::from_millis(5)).await;
            checker.probe();
            if world.now() >= told && !std::mem::replace(&mut over, true) {
                checker.outage_ends();
            }
        }
        let said = checker.violations();
        drop(guard);
        checker.finish();
        said
    })
}

#[test]
fn s7_a_loss_that_is_not_worth_its_outage_is_reported() {
    let ms = Duration::from_millis;
    assert_eq!(outage(ms(900), ms(900)), Vec::<String>::new());
    assert_eq!(outage(ms(2_500), ms(2_500)), Vec::<String>::new());
    let said = outage(ms(2_500), ms(900));
    assert!(said[0].contains("ended a hold"), "{said:?}");
    let said = outage(ms(0), ms(2_500));
    assert!(said[0].contains("did not end the hold"), "{said:?}");
}

/// A client that is not told waits for a name that gets free, or holds one that is deleted. Gives what the checker says.
fn untold(holds: bool, told: bool) -> Vec<String> {
    let mut sim = Sim::new(6);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let (a, b) = (world.client(), world.client());
    let assumed = Assumptions::ALL.without(Assumption::A6);
    let checker = Checker::new(&world, &server, assumed);
    checker.only_waking();
    sim.block_on(async move {
        let first = connect(&checker, &a, &server).await;
        let config = Config::from_url("redis://db").unwrap();
        let config = config.observe(checker.observer(&b));
        let config = if told { config } else { config.no_wake_ups() };
        let second = b.connect_config(&config).await.unwrap();
        let (machine, holder) = if holds { (&b, &second) } else { (&a, &first) };
        let ask = checker.ask(machine, "n", Want::a_try(Duration::from_secs(5)));
        ask.begun(false);
        let request = holder.lock("n").options(ask.options());
        let guard = ask.acquired(request.acquire().await.unwrap());
        if holds {
            world.sleep(Duration::from_millis(50)).await;
            checker.broke(Assumption::A6, Scope::Name("n"));
            server.delete("lock:n");
        } else {
            let ask = checker.ask(
                &b,
                "n",
                Want::wait(Duration::from_secs(4), Duration::from_secs(9)),
            );
            let request = second.lock("n").options(ask.options());
            ask.begun(false);
            let inner = world.clone();
            b.spawn(async move {
                let guard = ask.acquired(request.acquire().await.unwrap());
                inner.sleep(Duration::from_secs(1)).await;
                drop(guard);
            });
            world.sleep(Duration::from_secs(3)).await;
        }
        let kept = holds.then_some(guard);
        for _ in 0..10 {
            world.sleep(Duration::from_millis(10)).await;
            checker.probe();
        }
        drop(kept);
        checker.violations()
    })
}

#[test]
fn s9_who_is_not_woken_is_reported() {
    let said = untold(false, false);
    assert!(
        said.iter().any(|text| text.contains("makes no attempt")),
        "{said:?}"
    );
    let said = untold(false, true);
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn s9_a_loss_that_is_told_late_is_reported() {
    let said = untold(true, false);
    assert!(
        said.iter().any(|text| text.contains("is not told")),
        "{said:?}"
    );
    let said = untold(true, true);
    assert!(said.is_empty(), "{said:?}");
}
