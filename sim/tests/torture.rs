//! Random histories, and that the checker would cry if a promise were broken.

use std::time::Duration;

use tenure_client::{Config, Locks};
use tenure_sim::checker::{Assumption, Assumptions, Checker, Scope, Want};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, core_level, history};

#[test]
fn a_few_hundred_histories_keep_every_promise() {
    for seed in 0..200 {
        let report = history::run(seed, false);
        assert!(
            report.violations.is_empty(),
            "seed {seed}: {:#?}",
            report.violations
        );
        assert_eq!(report.lacks(), None, "seed {seed}");
    }
}

#[test]
fn a_thousand_histories_of_the_machine_alone_keep_every_promise() {
    for seed in 0..1_500 {
        let report = core_level::run(seed, false);
        assert!(
            report.violations.is_empty(),
            "seed {seed}: {:#?}",
            report.violations
        );
        assert_eq!(report.lacks(), None, "seed {seed}");
    }
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
