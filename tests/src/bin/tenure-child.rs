//! A program that uses a lock and ends, one way or another: the rows of the table of outcomes that are about a whole
//! process run it. `tenure-child HOW URL NAME`.
//!
//! It says `held` once it holds the lock, and goes on when it is told anything, or nothing more, on its input.

use std::io::{self, BufRead as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Cause, Config, Event, Lock, LockOptions, Locks, Observer};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [how, url, name] = &arguments[..] else {
        return ExitCode::from(64);
    };
    match how.as_str() {
        "end" => end(&one_thread(), url, name),
        "end-of-threads" => end(&threads(), url, name),
        "after-runtime" => after_runtime(one_thread(), url, name),
        "after-runtime-of-threads" => after_runtime(threads(), url, name),
        "panic" => panics(&one_thread(), url, name),
        "panic-of-threads" => panics(&threads(), url, name),
        "panic-in-a-task" => panics_in_a_task(&threads(), url, name),
        "sleep" => sleeps(&one_thread(), url, name),
        "queue" => queues(&one_thread(), url, name),
        _ => return ExitCode::from(64),
    }
    ExitCode::SUCCESS
}

fn one_thread() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

fn threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all();
    builder.build().expect("a runtime")
}

fn say(what: &str) {
    let mut output = io::stdout().lock();
    writeln!(output, "{what}")
        .and_then(|()| output.flush())
        .ok();
}

/// Waits for a line.
fn listen() -> String {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).ok();
    line.trim().to_owned()
}

async fn hold(url: &str, name: &str) -> (Locks, Lock) {
    let locks = tenure_tokio::connect(url).await.expect("a connection");
    let lock = locks
        .lock(name)
        .lease(LONG)
        .acquire()
        .await
        .expect("a lock");
    say("held");
    (locks, lock)
}

/// A hundred tasks that wait for the lock, each for its turn, once it is told to go.
fn queues(runtime: &Runtime, url: &str, name: &str) {
    runtime.block_on(async {
        let locks = tenure_tokio::connect(url).await.expect("a connection");
        say("connected");
        tokio::task::spawn_blocking(listen).await.ok();
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let acquiring = locks.lock(name).acquire();
            waiting.spawn(async move {
                let lock = acquiring.await.expect("a turn");
                assert!(lock.release().await.expect("an answer").confirmed);
            });
        }
        while let Some(ended) = waiting.join_next().await {
            ended.expect("no panic");
        }
        say("done");
        locks.close().await;
    });
}

/// As `#[tokio::main]` does it: the guard is dropped when the future of `main` ends.
fn end(runtime: &Runtime, url: &str, name: &str) {
    runtime.block_on(async {
        let (_locks, _lock) = hold(url, name).await;
        listen();
    });
}

fn after_runtime(runtime: Runtime, url: &str, name: &str) {
    let (_locks, _lock) = runtime.block_on(hold(url, name));
    listen();
    drop(runtime);
}

fn panics(runtime: &Runtime, url: &str, name: &str) {
    runtime.block_on(async {
        let (_locks, _lock) = hold(url, name).await;
        panic!("as {} said", listen());
    });
}

fn panics_in_a_task(runtime: &Runtime, url: &str, name: &str) {
    let (url, name) = (url.to_owned(), name.to_owned());
    let ended = runtime.block_on(runtime.spawn(async move {
        let (_locks, _lock) = hold(&url, &name).await;
        panic!("as {} said", listen());
    }));
    // The panic is the task's own, and reaches whoever waits for it.
    std::panic::resume_unwind(ended.expect_err("it panics").into_panic());
}

/// Says what it is told and, when it is asked, whether it holds the lock.
struct Saying;

impl Observer for Saying {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Renewed { .. } => say("renewed"),
            Event::Lost { lost, .. } => match lost.cause {
                Cause::Expired { late_by } => say(&format!("lost {}", late_by.as_millis())),
                cause => say(&format!("lost to {cause:?}")),
            },
            _ => {}
        }
    }
}

/// A lock with a lease of 600 ms, renewed by a driver on the one thread. Another listens.
fn sleeps(runtime: &Runtime, url: &str, name: &str) {
    let options = LockOptions::new().lease(Duration::from_millis(600));
    let config = Config::from_url(url).expect("a URL");
    let config = config.defaults_for_locks(options).observe(Arc::new(Saying));
    runtime.block_on(async {
        let locks = tenure_tokio::connect_config(&config)
            .await
            .expect("a connection");
        let lock = locks.acquire(name).await.expect("a lock");
        say("held");
        let held = lock.held();
        let listening = tokio::task::spawn_blocking(move || {
            while listen() == "look" {
                say(if held.is_held() { "yes" } else { "no" });
            }
        });
        listening.await.ok();
        drop(lock);
        locks.close().await;
    });
}
