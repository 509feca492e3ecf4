//! How long after a release another process has the lock, beside the limit: a raw socket that publishes and another that
//! sends its SET when it hears of it.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure_client::{Config, Lock, Locks};
use tenure_tests::{Server, ServerKind};
use tokio::runtime::{Builder, Runtime};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const HAND_OVERS: usize = 2_000;
const NAME: &str = "bench:hand-over";
/// For the waiter to have been refused, and to sleep.
const SETTLE: Duration = Duration::from_micros(1_500);

/// Prints the distribution of both, measured in turns.
pub(crate) fn compare(kind: ServerKind) -> Outcome<()> {
    let server = Server::start(kind, &[])?;
    let address = server.addr().to_string();
    let mut raw = RawHolder::connect(&address)?;
    let mut holder = Holder::connect(&address)?;
    let mut raw_waiter = Waiter::start("raw", &address)?;
    let mut waiter = Waiter::start("tenure", &address)?;
    let (mut limit, mut ours) = (Vec::new(), Vec::new());
    for turn in 0..HAND_OVERS + 50 {
        raw.acquire()?;
        raw_waiter.wait()?;
        let released = raw.release()?;
        let took = raw_waiter.acquired()? - released;
        holder.acquire()?;
        waiter.wait()?;
        let released = holder.release()?;
        let ours_took = waiter.acquired()? - released;
        // The first are to warm up.
        if turn >= 50 {
            limit.push(took);
            ours.push(ours_took);
        }
    }
    let (limit, ours) = (Spread::of(limit), Spread::of(ours));
    println!(
        "hand-over between two processes, {kind}, {HAND_OVERS} each, p50 / p99: {:.0} / {:.0} us, by PUBLISH and SET on raw sockets {:.0} / {:.0} us: x {:.2} / {:.2}",
        ours.p50,
        ours.p99,
        limit.p50,
        limit.p99,
        ours.p50 / limit.p50,
        ours.p99 / limit.p99
    );
    Ok(())
}

/// The waiting process: for each line it is told it waits once, and says when it had the lock.
pub(crate) fn wait(who: &str, address: &str) -> Outcome<()> {
    let mut lines = std::io::stdin().lines();
    let mut output = std::io::stdout();
    let mut say = |at: i64| writeln!(output, "{at}").and_then(|()| output.flush());
    if who == "raw" {
        let mut raw = RawWaiter::connect(address)?;
        while lines.next().is_some() {
            say(raw.acquire()?)?;
            raw.0.command(&["DEL", NAME])?;
        }
    } else {
        let (runtime, locks) = connect(address)?;
        while lines.next().is_some() {
            let lock = runtime.block_on(locks.acquire(NAME))?;
            say(now())?;
            runtime.block_on(lock.release())?;
        }
    }
    Ok(())
}

struct Spread {
    p50: f64,
    p99: f64,
}

impl Spread {
    /// In microseconds, of nanoseconds.
    fn of(mut times: Vec<i64>) -> Spread {
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100] as f64 / 1e3;
        Spread {
            p50: at(50),
            p99: at(99),
        }
    }
}

/// The same for all processes, in nanoseconds.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn connect(address: &str) -> Outcome<(Runtime, Locks)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let config = Config::from_url(&format!("redis://{address}"))?;
    let locks = runtime.block_on(tenure_tokio::connect_config(&config))?;
    Ok((runtime, locks))
}

struct Holder {
    runtime: Runtime,
    locks: Locks,
    lock: Option<Lock>,
}

impl Holder {
    fn connect(address: &str) -> Outcome<Holder> {
        let (runtime, locks) = connect(address)?;
        Ok(Holder {
            runtime,
            locks,
            lock: None,
        })
    }

    fn acquire(&mut self) -> Outcome<()> {
        self.lock = Some(self.runtime.block_on(self.locks.acquire(NAME))?);
        Ok(())
    }

    /// When the release was asked for.
    fn release(&mut self) -> Outcome<i64> {
        let lock = self.lock.take().ok_or("not held")?;
        let began = now();
        self.runtime.block_on(lock.release())?;
        Ok(began)
    }
}

/// A connection that sends a command and reads what comes of it, which fits into one read.
struct Raw(TcpStream);

impl Raw {
    fn connect(address: &str) -> Outcome<Raw> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Raw(stream))
    }

    fn send(&mut self, words: &[&str]) -> Outcome<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        Ok(self.0.write_all(bytes.as_bytes())?)
    }

    fn receive(&mut self) -> Outcome<Vec<u8>> {
        let mut bytes = [0; 512];
        let n = self.0.read(&mut bytes)?;
        Ok(bytes[..n].to_vec())
    }

    fn command(&mut self, words: &[&str]) -> Outcome<Vec<u8>> {
        self.send(words)?;
        self.receive()
    }

    fn set(&mut self) -> Outcome<bool> {
        let words = ["SET", NAME, "0123456789abcdef0123", "NX", "PX", "30000"];
        Ok(self.command(&words)? == b"+OK\r\n")
    }
}

struct RawHolder(Raw);

impl RawHolder {
    fn connect(address: &str) -> Outcome<RawHolder> {
        Ok(RawHolder(Raw::connect(address)?))
    }

    fn acquire(&mut self) -> Outcome<()> {
        while !self.0.set()? {}
        Ok(())
    }

    /// When the release was sent: deleted and told in one step.
    fn release(&mut self) -> Outcome<i64> {
        let script = "redis.call('DEL',KEYS[1]) return redis.call('PUBLISH',KEYS[1],'')";
        let began = now();
        self.0.command(&["EVAL", script, "1", NAME])?;
        Ok(began)
    }
}

/// Subscribed on one connection; asks on the other.
struct RawWaiter(Raw, Raw);

impl RawWaiter {
    fn connect(address: &str) -> Outcome<RawWaiter> {
        let mut subscribed = Raw::connect(address)?;
        subscribed.command(&["SUBSCRIBE", NAME])?;
        Ok(RawWaiter(Raw::connect(address)?, subscribed))
    }

    /// When it had the lock.
    fn acquire(&mut self) -> Outcome<i64> {
        while !self.0.set()? {
            self.1.receive()?;
        }
        Ok(now())
    }
}

/// The process that waits.
struct Waiter {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Waiter {
    fn start(who: &str, address: &str) -> Outcome<Waiter> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["wait", who, address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().ok_or("no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("no output")?);
        Ok(Waiter {
            process,
            input,
            output,
        })
    }

    fn wait(&mut self) -> Outcome<()> {
        writeln!(self.input, "wait")?;
        thread::sleep(SETTLE);
        Ok(())
    }

    fn acquired(&mut self) -> Outcome<i64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
