//! A small service of three replicas, of which one leads at a time, in a world where everything goes wrong in turn.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_client::Locks;
use tenure_sim::{Client, Dialect, Sim, World};

const SECOND: Duration = Duration::from_secs(1);

/// What the service writes: who led, when. A real one would write to a database.
type Journal = Arc<Mutex<Vec<(Duration, usize)>>>;

/// The code under test: leads while it has the lock, and writes once a second while it leads.
async fn replica(number: usize, locks: Locks, world: World, journal: Journal) {
    loop {
        let Ok(lead) = locks.lock("leader").lease(3 * SECOND).acquire().await else {
            return;
        };
        while lead.is_held() {
            journal.lock().unwrap().push((world.now(), number));
            let mut lost = lead.lost();
            let mut pause = world.sleep(SECOND);
            // Whichever comes first: the next second, or the loss.
            std::future::poll_fn(|cx| {
                use std::pin::Pin;
                if Pin::new(&mut lost).poll(cx).is_ready()
                    || Pin::new(&mut pause).poll(cx).is_ready()
                {
                    return std::task::Poll::Ready(());
                }
                std::task::Poll::Pending
            })
            .await;
        }
    }
}

#[test]
fn one_leads_at_a_time_and_somebody_always_does_again() {
    let mut sim = Sim::new(3);
    let world = sim.world();
    let server = world.server("db", Dialect::Redis8);
    let clients: Vec<Client> = (0..3).map(|_| world.client()).collect();
    let journal = Journal::default();
    let (written, replicas) = (Arc::clone(&journal), clients.clone());
    sim.block_on(async move {
        for (number, client) in replicas.iter().enumerate() {
            let locks = client.connect(&server).await.unwrap();
            client.spawn(replica(number, locks, world.clone(), Arc::clone(&written)));
        }
        let leader = || written.lock().unwrap().last().expect("somebody leads").1;

        world.sleep(10 * SECOND).await;
        // The leader's process stands still past its lease, and comes back.
        let first = leader();
        replicas[first].pause();
        world.sleep(10 * SECOND).await;
        assert_ne!(leader(), first, "another one has taken over");
        replicas[first].resume();
        world.sleep(5 * SECOND).await;

        // The leader is cut off.
        let second = leader();
        replicas[second].link(&server, |link| link.silent = true);
        world.sleep(10 * SECOND).await;
        assert_ne!(leader(), second, "and again");
        replicas[second].link(&server, |link| link.silent = false);

        // The leader is killed.
        let third = leader();
        replicas[third].kill();
        world.sleep(10 * SECOND).await;
        assert_ne!(leader(), third, "and again");

        // The server stops, and comes back with its data.
        server.stop();
        world.sleep(SECOND).await;
        server.start(true);
        world.sleep(10 * SECOND).await;
    });
    // A lease after each of the faults somebody writes again; and no two ever wrote within one lease of each other without
    // a pause between them that is longer than a second of work.
    let journal = journal.lock().unwrap();
    for pair in journal.windows(2) {
        let ((before, who), (after, other)) = (pair[0], pair[1]);
        let gap = after - before;
        assert!(gap <= 5 * SECOND, "nobody led from {before:?} to {after:?}");
        assert!(
            who == other || gap > Duration::from_millis(100),
            "two at {after:?}"
        );
    }
    assert!(journal.len() > 35, "{} entries", journal.len());
}
