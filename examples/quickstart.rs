//! Two contenders for one name: who gets it and until when, renewals, a forced loss with its cause, the release.
//!
//! With `TENURE_URL` it uses that server. Without it, it starts a `valkey-server` or `redis-server` found on the PATH for
//! itself, and without one of those it uses the store in memory. It leaves no key behind.

use std::error::Error;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tenure::{Attempt, Config, Event, Lock, Locks, Observer, Wait};

const NAME: &str = "tenure:quickstart";
const LEASE: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // For people, not for debuggers: the messages say what to do.
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let server = Server::choose().await?;
    println!("server: {}", server.describe());
    let alice = server.connect("alice").await?;
    let bob = server.connect("bob").await?;

    println!("\n1. Two contenders, one name");
    // One try. That the name is taken is a value, not an error.
    let lock = match alice.lock(NAME).lease(LEASE).try_acquire().await? {
        Attempt::Acquired(lock) => lock,
        Attempt::Held(holder) => return Err(format!("{NAME} is in use by {holder}").into()),
    };
    println!(
        "   alice has it for {:?} from now, if nothing is renewed",
        lock.remaining()
    );
    match bob.lock(NAME).lease(LEASE).try_acquire().await? {
        Attempt::Acquired(_) => return Err("two holders".into()),
        Attempt::Held(holder) => println!("   bob is told at once: held by {holder}"),
    }

    println!("\n2. The lease renews itself");
    let longer = LEASE + Duration::from_millis(500);
    tokio::time::sleep(longer).await;
    println!(
        "   after {longer:?} alice still holds it: {}",
        lock.is_held()
    );

    println!("\n3. Bob waits, alice releases");
    let bob_waits = bob
        .lock(NAME)
        .lease(LEASE)
        .wait(Wait::For(Duration::from_secs(10)))
        .acquire();
    let waiting = tokio::spawn(bob_waits);
    lock.release().await?;
    let lock = waiting.await??;
    println!("   now bob has it for {:?}", lock.remaining());

    println!("\n4. A loss is told, with its cause");
    server.lose(&bob, lock).await?;

    println!("\n5. Work under a lock: acquired, cancelled on loss, released");
    let answer = alice
        .lock(NAME)
        .lease(LEASE)
        .run(|held| async move { u32::from(held.is_held()) + 41 })
        .await?;
    println!("   the work says {answer}");

    // Every release is confirmed, or has expired.
    alice.close().await;
    bob.close().await;
    println!("\nkeys left on the server: {}", server.keys_left().await?);
    Ok(())
}

/// Prints what happens behind the scenes.
struct Narrator(&'static str);

impl Observer for Narrator {
    fn event(&self, event: &Event<'_>) {
        let who = self.0;
        match event {
            Event::Acquired { waited, .. } => println!("   .. {who}: acquired after {waited:?}"),
            Event::Renewed { .. } => println!("   .. {who}: renewed"),
            Event::Lost { held, .. } => println!("   .. {who}: lost after {held:?}"),
            Event::Released { confirmed, .. } => {
                println!("   .. {who}: released, confirmed: {confirmed}")
            }
            _ => {}
        }
    }
}

/// Where the locks live.
enum Server {
    Given(String),
    Started(Started),
    Memory(Locks),
}

/// A server of our own, on a Unix socket in a temporary folder.
struct Started {
    program: &'static str,
    child: Child,
    dir: tempfile::TempDir,
}

impl Server {
    async fn choose() -> Result<Server, Box<dyn Error>> {
        match std::env::var("TENURE_URL") {
            Ok(url) if url == "memory:" => return Server::memory(),
            Ok(url) if !url.is_empty() => return Ok(Server::Given(url)),
            _ => {}
        }
        for program in ["valkey-server", "redis-server"] {
            if let Some(started) = Started::start(program)? {
                started.wait_until_it_answers().await?;
                return Ok(Server::Started(started));
            }
        }
        Server::memory()
    }

    /// One store, so alice and bob are one client here.
    fn memory() -> Result<Server, Box<dyn Error>> {
        let config = Config::in_memory()
            .label("alice")
            .observe(Arc::new(Narrator("memory")));
        Ok(Server::Memory(tenure::memory_config(&config)?))
    }

    fn describe(&self) -> String {
        match self {
            // Not the URL itself: it may have a password in it.
            Server::Given(_) => "the one of TENURE_URL".to_owned(),
            Server::Started(started) => {
                format!("a {} of its own, found on the PATH", started.program)
            }
            Server::Memory(_) => {
                "none: no TENURE_URL, no valkey-server or redis-server on the PATH; in memory"
                    .to_owned()
            }
        }
    }

    fn url(&self) -> Option<String> {
        match self {
            Server::Given(url) => Some(url.clone()),
            Server::Started(started) => Some(started.url()),
            Server::Memory(_) => None,
        }
    }

    async fn connect(&self, who: &'static str) -> Result<Locks, Box<dyn Error>> {
        if let Server::Memory(locks) = self {
            return Ok(locks.clone());
        }
        let config = Config::from_url(&self.url().unwrap_or_default())?.label(who);
        Ok(tenure::connect_config(&config.observe(Arc::new(Narrator(who)))).await?)
    }

    /// Makes `lock` be lost and prints what its holder is told.
    async fn lose(&self, locks: &Locks, lock: Lock) -> Result<(), Box<dyn Error>> {
        let Some(url) = self.url() else {
            println!(
                "   (nobody can take a key away from the store in memory: a fixed lease runs out instead)"
            );
            lock.release().await?;
            let lock = locks
                .lock(NAME)
                .lease(Duration::from_millis(500))
                .no_renew()
                .acquire()
                .await?;
            let lost = lock.lost().await;
            println!(
                "   bob is told: {lost}; {:?} are left to stop in",
                lock.stop_window(&lost)
            );
            return Ok(());
        };
        // Somebody deletes the key behind the holder's back, with a client of their own.
        let mut other = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        let deleted: u32 = redis::cmd("DEL").arg(key()).query_async(&mut other).await?;
        println!("   somebody deletes the key: {deleted}");
        let lost = tokio::time::timeout(LEASE, lock.lost()).await?;
        println!("   bob is told: {lost}; he holds it: {}", lock.is_held());
        Ok(())
    }

    async fn keys_left(&self) -> Result<u32, Box<dyn Error>> {
        let Some(url) = self.url() else { return Ok(0) };
        let mut other = redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await?;
        Ok(redis::cmd("EXISTS")
            .arg(key())
            .query_async(&mut other)
            .await?)
    }
}

impl Started {
    fn start(program: &'static str) -> Result<Option<Started>, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--unixsocket",
                "quickstart.sock",
                "--dir",
            ])
            .arg(dir.path());
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(child.ok().map(|child| Started {
            program,
            child,
            dir,
        }))
    }

    fn url(&self) -> String {
        format!(
            "redis+unix://{}",
            self.dir.path().join("quickstart.sock").display()
        )
    }

    async fn wait_until_it_answers(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..200 {
            if tenure::connect(&self.url()).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(format!("the {} found on the PATH does not answer", self.program).into())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The key of the lock on the server: see `docs/wire.md`.
fn key() -> String {
    format!("lock:{NAME}")
}
