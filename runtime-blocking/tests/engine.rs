//! Over a store that is called: whose jobs a caller's thread carries out.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tenure_blocking::{Config, Error, open_with};
use tenure_client::engine::{Bytes, Done, Engine, Found, Job, Trouble, open_with as open_engine};

/// Nothing that a test waits for takes this long, unless it never comes.
const LONG: Duration = Duration::from_secs(20);

/// Grants everything: `slow` after a while, `stuck` once it is let go.
struct Slow {
    begun: Sender<()>,
    go: Receiver<()>,
}

impl Engine for Slow {
    fn open(&mut self, _: Duration) -> Result<(), Trouble> {
        Ok(())
    }

    fn carry_out(&mut self, job: &Job, _: Duration) -> Result<Done, Trouble> {
        Ok(match job {
            Job::Acquire { key, .. } => {
                if key.ends_with(b"slow") {
                    let _ = self.begun.send(());
                    thread::sleep(Duration::from_millis(300));
                }
                if key.ends_with(b"stuck") {
                    let _ = self.go.recv_timeout(LONG);
                }
                Done::Granted { fence: None }
            }
            _ => Done::Cleared {
                mine: true,
                found: Found::default(),
            },
        })
    }

    fn changes(&mut self) -> Result<Option<Vec<Bytes>>, Trouble> {
        Ok(None)
    }

    fn wall_us(&self) -> u64 {
        0
    }
}

#[test]
fn a_thread_that_was_slow_leaves_the_jobs_of_others_to_the_worker() -> Result<(), Error> {
    let (begun, has_begun) = channel();
    let (go, gate) = channel();
    let store = Slow { begun, go: gate };
    let locks = open_with(&Config::in_memory(), |binding, config| {
        open_engine(binding, config, store)
    })?;
    let (done, is_done) = channel();
    let others = locks.clone();
    // Not let go of by this thread, which would then see to what comes first.
    let slow = thread::spawn(move || done.send(others.acquire("slow")));
    has_begun.recv_timeout(LONG).expect("it is asked for");
    let others = locks.clone();
    let stuck = thread::spawn(move || others.acquire("stuck").map(drop));
    let answer = is_done.recv_timeout(LONG / 2);
    go.send(()).unwrap();
    let lock = answer.expect("it does not wait for the other one")?;
    assert!(slow.join().unwrap().is_ok());
    stuck.join().unwrap()?;
    drop(lock);
    locks.close();
    Ok(())
}
