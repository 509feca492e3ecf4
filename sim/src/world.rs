//! The world: true time, clients with their clocks, servers, and the network between them.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::rng::Rng;
use tenure_core::time::Tick;

use crate::clock::Clock;
use crate::executor::{Executor, Owner, Task};
use crate::keys::Dialect;
use crate::machine::{Client, ServerHandle};
use crate::net::{Connection, Link, Pipe};
use crate::server::Server;
use crate::tap::{Seen, Written};

/// The servers' clocks show this at the start: some time in 2023, in microseconds.
const SERVER_EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// Runs a world. Everything that happens in it is decided by its seed.
///
/// ```
/// use std::time::Duration;
/// use tenure_sim::{Dialect, Sim};
///
/// let mut sim = Sim::new(7);
/// let world = sim.world();
/// let server = world.server("db", Dialect::Redis8);
/// let client = world.client();
/// sim.block_on(async move {
///     let locks = client.connect(&server).await.unwrap();
///     let lock = locks.lock("report").lease(Duration::from_secs(10)).acquire().await.unwrap();
///     // An hour passes at once, with every renewal in it.
///     world.sleep(Duration::from_secs(3600)).await;
///     assert!(lock.is_held());
///     server.delete("lock:report");
///     println!("{}", lock.lost().await);
/// });
/// ```
pub struct Sim {
    world: World,
    executor: Executor,
    rng: Rng,
}

/// A handle on the world, for the tasks in it. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Mutex<Inner>>);

pub(crate) struct Inner {
    pub(crate) now: Tick,
    pub(crate) rng: Rng,
    pub(crate) seed: u64,
    pub(crate) clients: Vec<Machine>,
    pub(crate) servers: Vec<(String, Server)>,
    pub(crate) links: BTreeMap<(usize, usize), Link>,
    pub(crate) connections: Vec<Connection>,
    /// What happens when, in order of time and then of being put here.
    pub(crate) agenda: BTreeMap<Alarm, Happening>,
    pub(crate) sequence: u64,
    pub(crate) spawned: Vec<(Owner, Task)>,
    pub(crate) dead: Vec<usize>,
    pub(crate) happened: u64,
    pub(crate) trace: Option<String>,
    /// What happened on the wire since it was last asked for, once somebody asked.
    pub(crate) tap: Option<Vec<Seen>>,
    /// Orders commands and what tasks do.
    pub(crate) stamp: u64,
    pub(crate) counts: Counts,
}

/// How often something happened that a fault only makes possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Commands that arrived after their connection was aborted.
    pub zombies: u64,
    /// Commands that were executed twice.
    pub repeated: u64,
    /// Scripts that failed after they had written.
    pub failed_scripts: u64,
    /// Writes of which the network took only a part.
    pub partial_writes: u64,
}

/// A place on the agenda.
pub(crate) type Alarm = (Tick, u64);

pub(crate) struct Machine {
    pub(crate) clock: Clock,
    pub(crate) drift_ppm: i64,
    pub(crate) paused: bool,
    /// True time at which it last went on after a pause.
    pub(crate) resumed: Option<Tick>,
    pub(crate) killed: bool,
}

pub(crate) enum Happening {
    Wake(Waker),
    Arrive {
        connection: usize,
        to_server: bool,
        bytes: Vec<u8>,
    },
    End {
        connection: usize,
        to_server: bool,
    },
    /// Something has come to the replicas of a server, or has been waited for long enough.
    Replicated {
        server: usize,
    },
    /// A server looks for keys that have expired.
    Cycle {
        server: usize,
    },
}

impl Sim {
    /// A world with nothing in it yet.
    pub fn new(seed: u64) -> Sim {
        let mut rng = Rng::new(seed);
        let inner = Inner {
            now: Tick::ZERO,
            rng: Rng::new(rng.next_u64()),
            seed,
            clients: Vec::new(),
            servers: Vec::new(),
            links: BTreeMap::new(),
            connections: Vec::new(),
            agenda: BTreeMap::new(),
            sequence: 0,
            spawned: Vec::new(),
            dead: Vec::new(),
            happened: 0,
            trace: None,
            tap: None,
            stamp: 0,
            counts: Counts::default(),
        };
        Sim {
            world: World(Arc::new(Mutex::new(inner))),
            executor: Executor::default(),
            rng,
        }
    }

    /// A handle on the world.
    pub fn world(&self) -> World {
        self.world.clone()
    }

    /// Everything that happens is written down from here on: see [`trace`](Sim::trace).
    pub fn record(&mut self) {
        self.world.lock().trace.get_or_insert_default();
    }

    /// What was written down.
    pub fn trace(&self) -> String {
        self.world.lock().trace.clone().unwrap_or_default()
    }

    /// How many things have happened: deliveries, timers, polls.
    pub fn happened(&self) -> u64 {
        self.world.happened()
    }

    /// Runs the world until `future` is done, as fast as it goes.
    ///
    /// # Panics
    /// When nothing is left that could ever happen and the future is not done: a missed wake-up.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        self.executor.spawn(
            None,
            Box::pin(async move {
                let value = future.await;
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            }),
        );
        loop {
            if let Some(value) = result.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return value;
            }
            assert!(
                self.step(),
                "seed {}: nothing is left to happen: a wake-up was missed",
                self.world.lock().seed
            );
        }
    }

    /// Runs the world for so long.
    pub fn run_for(&mut self, span: Duration) {
        let world = self.world();
        self.block_on(async move { world.sleep(span).await });
    }

    /// One poll, or else the next thing on the agenda. False when the world has come to rest for ever.
    fn step(&mut self) -> bool {
        let mut inner = self.world.lock();
        for (owner, task) in inner.spawned.drain(..) {
            self.executor.spawn(owner, task);
        }
        if let Some(client) = inner.dead.pop() {
            drop(inner);
            self.executor.kill(client);
            return true;
        }
        let runs = |owner: Owner| owner.is_none_or(|client| !inner.clients[client].paused);
        if let Some(task) = self.executor.pick(&mut self.rng, runs) {
            inner.happened += 1;
            // Tasks look at the world themselves.
            drop(inner);
            self.executor.poll(task);
            return true;
        }
        let Some(((at, _), happening)) = inner.agenda.pop_first() else {
            return !inner.spawned.is_empty();
        };
        inner.now = inner.now.max(at);
        inner.happened += 1;
        let wakers = inner.happen(happening);
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
        true
    }
}

impl World {
    /// A server that is reached under this host name.
    pub fn server(&self, host: &str, dialect: Dialect) -> ServerHandle {
        self.server_with_drift(host, dialect, 0)
    }

    /// A server whose clock runs so many parts per million fast, or slow.
    pub fn server_with_drift(&self, host: &str, dialect: Dialect, ppm: i64) -> ServerHandle {
        let mut inner = self.lock();
        let clock = Clock::new(inner.now, SERVER_EPOCH, ppm);
        let mut server = Server::new(dialect, clock);
        server.number = inner.servers.len() as u64;
        server.started = inner.now;
        inner.servers.push((host.to_owned(), server));
        ServerHandle {
            world: self.clone(),
            id: inner.servers.len() - 1,
        }
    }

    /// A client whose clock runs true.
    pub fn client(&self) -> Client {
        self.client_with_drift(0)
    }

    /// A client whose clock runs so many parts per million fast, or slow.
    pub fn client_with_drift(&self, ppm: i64) -> Client {
        let mut inner = self.lock();
        let clock = Clock::new(inner.now, Duration::ZERO, ppm);
        inner.clients.push(Machine {
            clock,
            drift_ppm: ppm,
            paused: false,
            resumed: None,
            killed: false,
        });
        Client {
            world: self.clone(),
            id: inner.clients.len() - 1,
        }
    }

    /// True time since the beginning.
    pub fn now(&self) -> Duration {
        self.true_time().saturating_since(Tick::ZERO)
    }

    pub(crate) fn happened(&self) -> u64 {
        self.lock().happened
    }

    /// Waits in true time.
    pub fn sleep(&self, span: Duration) -> Sleep {
        let until = self.lock().now + span;
        Sleep {
            world: self.clone(),
            until,
            alarm: None,
        }
    }

    /// Runs a task that belongs to no client: it is never paused.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.lock().spawned.push((None, Box::pin(task)));
    }

    /// A number below `bound`, from the seed.
    pub fn below(&self, bound: u64) -> u64 {
        self.lock().rng.next_u64() % bound.max(1)
    }

    /// A span up to `most`, from the seed.
    pub fn up_to(&self, most: Duration) -> Duration {
        self.lock().rng.up_to(most)
    }

    /// True in so many cases of a thousand, by the seed.
    pub fn chance(&self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// A line in the trace.
    pub fn note(&self, line: impl FnOnce() -> String) {
        let mut inner = self.lock();
        if inner.trace.is_some() {
            inner.write(&line());
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often things happened that a fault only makes possible.
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub(crate) fn true_time(&self) -> Tick {
        self.lock().now
    }

    /// Everything on the wire is remembered from here on.
    pub(crate) fn tap(&self) {
        self.lock().tap.get_or_insert_default();
    }

    /// As [`tap`](World::tap), and of what leaves its key on any server.
    pub(crate) fn tap_keys(&self) {
        self.tap();
        for (_, server) in &mut self.lock().servers {
            server.keys.left.get_or_insert_default();
        }
    }

    /// What was on the wire since the last time, into `seen`.
    pub(crate) fn tapped(&self, seen: &mut Vec<Seen>) {
        if let Some(tap) = &mut self.lock().tap {
            seen.append(tap);
        }
    }

    /// A stamp later than that of every command that has begun to leave.
    pub(crate) fn stamp(&self) -> u64 {
        let mut inner = self.lock();
        // Room for the commands of one write.
        inner.stamp += 1 << 16;
        inner.stamp
    }

    pub(crate) fn client_now(&self, client: usize) -> Tick {
        let inner = self.lock();
        Tick::from_micros(inner.clients[client].clock.read(inner.now))
    }

    pub(crate) fn fill(&self, bytes: &mut [u8]) {
        let mut inner = self.lock();
        for chunk in bytes.chunks_mut(8) {
            let random = inner.rng.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }

    pub(crate) fn poll_timer(
        &self,
        client: usize,
        deadline: Tick,
        alarm: &mut Option<Alarm>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut inner = self.lock();
        inner.cancel(alarm);
        let now = inner.now;
        let clock = &inner.clients[client].clock;
        if clock.read(now) >= deadline.as_micros() {
            return Poll::Ready(());
        }
        let at = clock
            .when(now, deadline.as_micros())
            .max(now + Duration::from_micros(1));
        *alarm = Some(inner.put(at, Happening::Wake(cx.waker().clone())));
        Poll::Pending
    }

    pub(crate) fn cancel(&self, alarm: &mut Option<Alarm>) {
        self.lock().cancel(alarm);
    }

    pub(crate) fn poll_dial(
        &self,
        client: usize,
        host: &str,
        connection: &mut Option<usize>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.lock();
        let now = inner.now;
        if let Some(id) = *connection {
            let link = inner.link(client, inner.connections[id].server);
            let server = &inner.servers[inner.connections[id].server].1;
            return if link.refuses || server.down || inner.connections[id].dropped {
                Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
            } else if link.silent {
                // Like a SYN that is sent again every second.
                inner.put(
                    now + Duration::from_millis(100),
                    Happening::Wake(cx.waker().clone()),
                );
                Poll::Pending
            } else {
                Poll::Ready(Ok(id))
            };
        }
        let Some(server) = inner.servers.iter().position(|(name, _)| name == host) else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        inner.connections.push(Connection {
            client,
            server,
            up: Pipe::default(),
            down: Pipe::default(),
            aborted: false,
            dropped: false,
            resp3: false,
            written: Written::default(),
            changed: 0,
            waits: None,
        });
        *connection = Some(inner.connections.len() - 1);
        let latency = inner.latency(client, server) + inner.latency(client, server);
        inner.put(now + latency, Happening::Wake(cx.waker().clone()));
        Poll::Pending
    }

    pub(crate) fn poll_read(
        &self,
        id: usize,
        cx: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut inner = self.lock();
        let pipe = &mut inner.connections[id].down;
        let read = pipe.read(bytes);
        if read.is_none() {
            // One waker, as a socket has it: whoever polled last is woken.
            pipe.reader = Some(cx.waker().clone());
        }
        read.map_or(Poll::Pending, |n| Poll::Ready(Ok(n)))
    }

    pub(crate) fn try_read(&self, id: usize, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.lock().connections[id].down.read(bytes);
        read.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// For a caller: ready when there is something to read, or the connection is over.
    pub(crate) fn poll_readable(&self, id: usize, cx: &mut Context<'_>) -> Poll<()> {
        let connection = &mut self.lock().connections[id];
        let pipe = &mut connection.down;
        if connection.aborted || pipe.closed || !pipe.inbox.is_empty() {
            return Poll::Ready(());
        }
        pipe.caller = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The driver does not watch this connection any more, until it reads again.
    pub(crate) fn look_away(&self, id: usize) {
        self.lock().connections[id].down.reader = None;
    }

    pub(crate) fn try_write(&self, id: usize, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.lock();
        let connection = &inner.connections[id];
        if connection.aborted || connection.down.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let link = inner.link(connection.client, connection.server);
        let room = link.window.saturating_sub(connection.up.in_flight);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(room);
        inner.counts.partial_writes += u64::from(taken < bytes.len());
        inner.hand_out(id, &bytes[..taken]);
        inner.send(id, true, &bytes[..taken]);
        Ok(taken)
    }

    pub(crate) fn poll_write_ready(&self, id: usize, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let connection = &inner.connections[id];
        let window = inner.link(connection.client, connection.server).window;
        let pipe = &mut inner.connections[id].up;
        if pipe.in_flight < window {
            return Poll::Ready(Ok(()));
        }
        pipe.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn abort(&self, id: usize) {
        let caller = {
            let mut inner = self.lock();
            inner.abort(id);
            inner.connections[id].down.caller.take()
        };
        caller.into_iter().for_each(Waker::wake);
    }

    /// The server's end closes in order.
    pub(crate) fn hang_up(&self, id: usize) {
        self.lock().end(id, false);
    }

    pub(crate) fn close(&self, id: usize) {
        let mut inner = self.lock();
        if !inner.connections[id].aborted {
            inner.end(id, true);
        }
    }
}
/// The future of [`World::sleep`].
pub struct Sleep {
    world: World,
    until: Tick,
    alarm: Option<Alarm>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep {
            world,
            until,
            alarm,
        } = &mut *self;
        let mut inner = world.lock();
        inner.cancel(alarm);
        if inner.now >= *until {
            return Poll::Ready(());
        }
        *alarm = Some(inner.put(*until, Happening::Wake(cx.waker().clone())));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.world.cancel(&mut self.alarm);
    }
}
