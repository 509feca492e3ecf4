//! A history of the simulated world, told by bytes: two real clients, a server, and what goes wrong.

use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Config, Locks, Wait, connect_with};
use tenure_sim::checker::{Assumption, Assumptions, Checker, Want};
use tenure_sim::{Client, Dialect, Link, Mood, Sim, World};

use crate::Bytes;

/// So long is what a history may be.
const MOST_STEPS: usize = 60;
const MS: Duration = Duration::from_millis(1);

/// Only faults that break no assumption but that about late commands: nothing is excused.
pub fn world(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let mut sim = Sim::new(u64::from(bytes.byte()));
    let dialects = [Dialect::Redis8, Dialect::Valkey9, Dialect::Redis7];
    let dialect = dialects[usize::from(bytes.byte() % 3)];
    let mut steps = Vec::new();
    while !bytes.is_empty() && steps.len() < MOST_STEPS {
        steps.push((bytes.byte(), bytes.byte()));
    }
    let world = sim.world();
    let server = world.server("db", dialect);
    let checker = Checker::new(&world, &server, Assumptions::ALL.without(Assumption::A7));
    let clients = [world.client(), world.client()];
    let violations = sim.block_on(async move {
        let mut locks = Vec::new();
        for client in &clients {
            let config = Config::from_url(&format!("redis://{}", server.host()))
                .expect("a good URL")
                .observe(checker.observer(client));
            let (one, driver) =
                connect_with(client.binding(), &config).expect("a good configuration");
            client.spawn(driver);
            locks.push(one);
        }
        let busy = Arc::new(());
        for (kind, arg) in steps {
            let which = usize::from(kind >> 7);
            let victim = &clients[which];
            let span = MS * u32::from(arg) * 4;
            match kind % 16 {
                0..=3 => {
                    let stage = (
                        world.clone(),
                        checker.clone(),
                        victim.clone(),
                        locks[which].clone(),
                    );
                    let busy = Arc::clone(&busy);
                    victim.spawn(async move {
                        let _busy = busy;
                        ask(stage, kind >> 4 & 7, arg).await;
                    });
                }
                4 => victim.cut(&server),
                5 => victim.link(&server, |link| link.silent = arg & 1 > 0),
                6 => victim.link(&server, |link| link.deaf = arg & 1 > 0),
                7 => victim.link(&server, |link| {
                    link.piece = usize::from(arg % 40) + 1;
                    link.window = usize::from(arg) + 1;
                }),
                8 => victim.link(&server, |link| link.zombies = Some(span)),
                9 => match arg & 1 {
                    0 => victim.pause(),
                    _ => victim.resume(),
                },
                10 => match arg & 3 {
                    0 => server.freeze(),
                    1 => server.thaw(),
                    2 => server.forget_scripts(),
                    _ => server.repeat_next_command(),
                },
                11 => {
                    server.stop();
                    world.sleep(span).await;
                    server.start(true);
                }
                12 => server.mood(
                    [Mood::Well, Mood::ReadOnly, Mood::Loading, Mood::OutOfMemory]
                        [usize::from(arg % 4)],
                ),
                13 => victim.link(&server, |link| link.latency = (MS, MS + span / 8)),
                _ => world.sleep(span).await,
            }
            checker.probe();
        }
        // Everything is well again, and all comes to its end.
        server.heal();
        for client in &clients {
            client.link(&server, |link| *link = Link::default());
            client.resume();
        }
        for _ in 0..400 {
            if Arc::strong_count(&busy) == 1 {
                break;
            }
            world.sleep(MS * 50).await;
            checker.probe();
        }
        assert_eq!(
            Arc::strong_count(&busy),
            1,
            "a request or a release has no end"
        );
        drop(locks);
        world.sleep(Duration::from_secs(4)).await;
        checker.finish();
        checker.violations()
    });
    assert!(violations.is_empty(), "{violations:#?}");
}

/// A request, a hold for a while, and one of its ends.
async fn ask((world, checker, client, locks): (World, Checker, Client, Locks), how: u8, arg: u8) {
    let lease = MS * [300, 900][usize::from(arg & 1)];
    let want = match how & 3 {
        0 => Want::a_try(lease),
        1 => Want::wait(lease, Wait::For(MS * 40)),
        _ => Want::wait(lease, Wait::For(MS * 1_500)),
    };
    let name = ["a", "b"][usize::from(arg >> 1 & 1)];
    let ask = checker.ask(&client, name, want);
    ask.begun(false);
    match locks.lock(name).options(ask.options()).acquire().await {
        Ok(lock) => {
            let guard = ask.acquired(lock);
            world.sleep(MS * u32::from(arg >> 2) * 20).await;
            match how >> 2 {
                0 => drop(guard.release().await),
                _ => drop(guard),
            }
        }
        Err(error) => ask.failed(&error),
    }
}
