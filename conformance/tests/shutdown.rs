//! When a client is over nothing of it is left, on every runtime: no task, no thread, no file, and on the server neither a key
//! nor a connection.
//!
//! Counted for the whole process, so that each runtime is played in a process of its own: this program, started again.

use std::future::Future;
use std::ops::DerefMut;
use std::pin::{Pin, pin};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tenure_client::{Config, Error, LockOptions};
use tenure_conformance::party::Verbs;
use tenure_conformance::runtime::Runtime;
use tenure_conformance::{Boxed, Failure, Guard, Outcome, runtimes};
use tenure_tests::server::free_port;
use tenure_tests::{Client, Server, ServerKind};

/// The first argument of this program when it plays one runtime.
const PLAY: &str = "play-on";
/// Longer than anything here takes that happens at all.
const LONG: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(3);
/// So many looks in a row that give the same count are a count: executors start their own threads when they like.
const STEADY: usize = 20;
/// Lives of each kind: what each leaves adds up.
const LIVES: usize = 5;
const NAMES: [&str; 3] = ["one", "two", "three"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, runtime] = &words[..]
        && word == PLAY
    {
        return match play(runtime) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{why}");
                ExitCode::FAILURE
            }
        };
    }
    let trials = runtimes::REAL.map(|runtime| {
        let name = runtime.name.replace(", ", "-").replace(' ', "-");
        Trial::test(format!("nothing_is_left::{name}"), move || {
            let program = std::env::current_exe()?;
            let played = Command::new(program)
                .args([PLAY, runtime.name])
                .env("RUST_BACKTRACE", "0")
                .output()?;
            match played.status.success() {
                true => Ok(()),
                false => Err(Failed::from(String::from_utf8_lossy(&played.stderr))),
            }
        })
        // Files and threads are counted in a place that Linux has.
        .with_ignored_flag(!cfg!(target_os = "linux"))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn play(runtime: &str) -> Outcome {
    let runtime = runtimes::REAL.iter().find(|kind| kind.name == runtime);
    let runtime = runtime.ok_or("there is no such runtime")?;
    let kinds = ServerKind::all_required();
    let newest = kinds.iter().find(|kind| **kind == ServerKind::Redis86);
    let server = Server::start(*newest.or(kinds.first()).ok_or("no server")?, &[])?;
    let (config, looker) = (Config::from_url(&server.url())?, server.client()?);
    let nobody = format!("redis://127.0.0.1:{}/", free_port()?);
    let nobody = Config::from_url(&nobody)?;
    (runtime.play)(Box::new(|runtime| {
        Box::pin(async {
            let mut place = Place {
                runtime,
                config,
                nobody,
                looker,
            };
            place.every_life().await
        })
    }))
}

/// Where clients live.
struct Place {
    runtime: Arc<dyn Runtime>,
    config: Config,
    /// Where nobody listens.
    nobody: Config,
    /// Looks at the server.
    looker: Client,
}

/// What there is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Count {
    files: Vec<String>,
    threads: Vec<String>,
    tasks: Option<usize>,
    keys: usize,
    connections: usize,
}

impl Count {
    /// Whether it has nothing of ours, as far as can be told without knowing what an executor has.
    fn is_idle(&self, fresh: &Count) -> bool {
        let ours = |name: &String| name.starts_with("tenure");
        !self.threads.iter().any(ours)
            && (self.tasks, self.keys, self.connections)
                == (fresh.tasks, fresh.keys, fresh.connections)
    }
}

impl Place {
    async fn every_life(&mut self) -> Outcome {
        // Executors and the reactor have their threads and files from the first use on.
        let fresh = self.count()?;
        for end in End::EACH {
            self.life(end, None).await?;
        }
        let before = self.steady(&fresh).await?;
        for end in End::EACH {
            for _ in 0..LIVES {
                self.life(end, Some(&before)).await?;
                self.until(&before, end).await?;
            }
        }
        Ok(())
    }

    /// Several clients that hold, release, wait and give up waiting, to this end.
    async fn life(&mut self, end: End, before: Option<&Count>) -> Outcome {
        let clients = [
            self.runtime.open(&self.config)?,
            self.runtime.open(&self.config)?,
            self.runtime.memory(&Config::in_memory())?,
            // One that never gets there.
            self.runtime.open(&self.nobody)?,
        ];
        let mut guards = Vec::new();
        for (client, verbs) in clients[..3].iter().enumerate() {
            verbs.ready().await?;
            for name in NAMES {
                let name = format!("{client} {name}");
                let guard = self.take(&**verbs, &name).await?;
                assert!(guard.release().await?.confirmed);
                guards.push(self.take(&**verbs, &name).await?);
                // In the queue behind the guard, and given up.
                give_up(verbs.locks().acquire(&name));
            }
            // On its way to the server, and given up.
            give_up(verbs.locks().acquire("given up"));
            give_up(guards[0].held().lost());
        }
        give_up(clients[3].locks().acquire("never"));
        // Between the clients: waits for the other's lock.
        give_up(clients[1].locks().acquire("0 one"));
        let mut waiting = clients[1].acquire(b"0 two", options());
        assert!(poll_once(&mut waiting).is_pending());
        let alive = self.count()?;
        assert!(alive.keys >= 2 * NAMES.len() && alive.connections >= 3);

        match end {
            End::HandlesFirst => {
                drop(clients);
                drop(waiting);
                drop(guards);
            }
            End::GuardsFirst => {
                drop(guards);
                drop(waiting);
                drop(clients);
            }
            End::Released => {
                drop(waiting);
                for guard in guards {
                    assert!(guard.release().await?.confirmed);
                }
                drop(clients);
            }
            End::Closed => {
                let view = guards[0].held();
                drop((waiting, guards));
                for verbs in &clients {
                    verbs.close().await;
                }
                // Every handle is there, and nothing else.
                if let Some(before) = before {
                    self.until(before, end).await?;
                }
                drop((view, clients));
            }
            End::ClosedWhileHeld => {
                let mut closing: Vec<Boxed<()>> = clients.iter().map(|it| it.close()).collect();
                // On a thread of its own one may be over by now.
                closing.retain_mut(|closing| poll_once(closing).is_pending());
                assert!(matches!(waiting.await, Err(Error::Closed)));
                for guard in guards {
                    let lost = guard.lost_within(LONG, self.runtime.sleep(LONG)).await;
                    assert!(lost.is_some());
                    drop(guard);
                }
                for closing in closing {
                    closing.await;
                }
                if let Some(before) = before {
                    self.until(before, end).await?;
                }
                drop(clients);
            }
        }
        Ok(())
    }

    async fn take(&self, verbs: &dyn Verbs, name: &str) -> Result<Guard, Error> {
        verbs.acquire(name.as_bytes(), options()).await
    }

    /// Waits for the same count many times in a row, with nothing of ours in it.
    async fn steady(&mut self, fresh: &Count) -> Result<Count, Failure> {
        let end = self.runtime.now() + LONG;
        let (mut last, mut times) = (self.count()?, 0);
        while times < STEADY {
            if self.runtime.now() > end {
                return Err(format!("it does not settle: {last:#?}").into());
            }
            self.runtime.sleep(LOOK).await;
            let count = self.count()?;
            times = match count == last && count.is_idle(fresh) {
                true => times + 1,
                false => 0,
            };
            last = count;
        }
        Ok(last)
    }

    async fn until(&mut self, before: &Count, what: End) -> Outcome {
        let end = self.runtime.now() + LONG;
        loop {
            let count = self.count()?;
            if count == *before {
                return Ok(());
            }
            if self.runtime.now() > end {
                return Err(format!("{what:?}: {count:#?}, and before {before:#?}").into());
            }
            self.runtime.sleep(LOOK).await;
        }
    }

    fn count(&mut self) -> Result<Count, Failure> {
        Ok(Count {
            files: files()?,
            threads: threads()?,
            tasks: self.runtime.tasks(),
            keys: self.looker.keys()?.len(),
            connections: self.looker.ok(&["CLIENT", "LIST"])?.text().lines().count(),
        })
    }
}

/// How everything ends.
#[derive(Clone, Copy, Debug)]
enum End {
    HandlesFirst,
    GuardsFirst,
    Released,
    Closed,
    ClosedWhileHeld,
}

impl End {
    const EACH: [End; 5] = [
        End::HandlesFirst,
        End::GuardsFirst,
        End::Released,
        End::Closed,
        End::ClosedWhileHeld,
    ];
}

fn options() -> LockOptions {
    LockOptions::new().lease(Duration::from_secs(2)).wait(LONG)
}

/// Polls it once and drops it, whatever it has come to.
fn give_up(future: impl Future) {
    let _ = poll_once(&mut pin!(future));
}

fn poll_once<F: Future + ?Sized>(future: &mut Pin<impl DerefMut<Target = F>>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

/// What is open, by kind: numbers and inodes differ from one life to the next.
fn files() -> std::io::Result<Vec<String>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        // A file may be closed while its link is looked at.
        if let Ok(what) = std::fs::read_link(entry?.path()) {
            let what = what.to_string_lossy();
            files.push(what.split(":[").next().unwrap_or_default().to_owned());
        }
    }
    files.sort();
    Ok(files)
}

/// The threads there are, by name.
fn threads() -> std::io::Result<Vec<String>> {
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task")? {
        if let Ok(name) = std::fs::read_to_string(entry?.path().join("comm")) {
            threads.push(name.trim_end().to_owned());
        }
    }
    threads.sort();
    Ok(threads)
}
