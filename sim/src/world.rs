//! The world: true time, clients with their clocks, servers, and the network between them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_client::{Config, Error, Locks, connect_with};
use tenure_core::rng::Rng;
use tenure_core::time::Tick;

use crate::binding::SimBinding;
use crate::clock::Clock;
use crate::executor::{Executor, Owner, Task};
use crate::keys::{Dialect, Held};
use crate::net::{Connection, Link, Pipe};
use crate::server::{Executed, Mood, Server, encode};

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
    polls: u64,
}

/// A handle on the world, for the tasks in it. Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Mutex<Inner>>);

/// A client machine: a clock and a process that can be paused, stopped and killed.
#[derive(Clone)]
pub struct Client {
    world: World,
    id: usize,
}

/// A server that can be frozen, restarted, flushed and lied to about the time.
#[derive(Clone)]
pub struct ServerHandle {
    world: World,
    id: usize,
}

struct Inner {
    now: Tick,
    rng: Rng,
    seed: u64,
    clients: Vec<Machine>,
    servers: Vec<(String, Server)>,
    links: BTreeMap<(usize, usize), Link>,
    connections: Vec<Connection>,
    /// What happens when, in order of time and then of being put here.
    agenda: BTreeMap<Alarm, Happening>,
    sequence: u64,
    spawned: Vec<(Owner, Task)>,
    dead: Vec<usize>,
    happened: u64,
    trace: Option<String>,
}

/// A place on the agenda.
pub(crate) type Alarm = (Tick, u64);

struct Machine {
    clock: Clock,
    paused: bool,
}

enum Happening {
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
        };
        Sim {
            world: World(Arc::new(Mutex::new(inner))),
            executor: Executor::default(),
            rng,
            polls: 0,
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
        self.world.lock().happened + self.polls
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
        let (spawned, dead, paused) = {
            let mut inner = self.world.lock();
            let paused: Vec<bool> = inner.clients.iter().map(|client| client.paused).collect();
            (
                std::mem::take(&mut inner.spawned),
                std::mem::take(&mut inner.dead),
                paused,
            )
        };
        for (owner, task) in spawned {
            self.executor.spawn(owner, task);
        }
        for client in dead {
            self.executor.kill(client);
        }
        if self.executor.step(&mut self.rng, |owner| {
            owner.is_none_or(|client| !paused[client])
        }) {
            self.polls += 1;
            return true;
        }
        let mut inner = self.world.lock();
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
        let mut inner = self.lock();
        let clock = Clock::new(inner.now, SERVER_EPOCH, 0);
        inner
            .servers
            .push((host.to_owned(), Server::new(dialect, clock)));
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
            paused: false,
        });
        Client {
            world: self.clone(),
            id: inner.clients.len() - 1,
        }
    }

    /// True time since the beginning.
    pub fn now(&self) -> Duration {
        self.lock().now.saturating_since(Tick::ZERO)
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

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        if pipe.inbox.is_empty() {
            if pipe.closed {
                return Poll::Ready(Ok(0));
            }
            // One waker, as a socket has it: whoever polled last is woken.
            pipe.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = bytes.len().min(pipe.inbox.len());
        for (to, from) in bytes.iter_mut().zip(pipe.inbox.drain(..n)) {
            *to = from;
        }
        Poll::Ready(Ok(n))
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
        self.lock().abort(id);
    }

    pub(crate) fn close(&self, id: usize) {
        let mut inner = self.lock();
        if !inner.connections[id].aborted {
            inner.end(id, true);
        }
    }
}

impl Client {
    /// Connects, with settings other than the server's address left at their defaults.
    ///
    /// # Errors
    /// Why the first try to connect failed.
    pub async fn connect(&self, server: &ServerHandle) -> Result<Locks, Error> {
        let config = Config::from_url(&format!("redis://{}", server.host()))?;
        self.connect_config(&config).await
    }

    /// Connects to the server whose host name the settings have.
    ///
    /// # Errors
    /// Why the first try to connect failed.
    pub async fn connect_config(&self, config: &Config) -> Result<Locks, Error> {
        let (locks, driver) = connect_with(self.binding(), config)?;
        self.spawn(driver);
        locks.ready().await?;
        Ok(locks)
    }

    /// The binding of this client, for `connect_with` and `memory_with`.
    pub fn binding(&self) -> SimBinding {
        SimBinding {
            world: self.world.clone(),
            client: self.id,
        }
    }

    /// Runs a task in this client's process: it stands still while the client is paused.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.world
            .lock()
            .spawned
            .push((Some(self.id), Box::pin(task)));
    }

    /// Its number, in the order of being made.
    pub fn id(&self) -> usize {
        self.id
    }

    /// The process stands still while its clock goes on: a stopped process, a suspended machine.
    pub fn pause(&self) {
        self.world.lock().pause(self.id, true);
    }

    /// Machine and clock stand still: a virtual machine that is paused, which nothing in it can see.
    pub fn pause_machine(&self) {
        let mut inner = self.world.lock();
        let now = inner.now;
        inner.clients[self.id].clock.stop(now);
        inner.pause(self.id, true);
    }

    /// It goes on.
    pub fn resume(&self) {
        let mut inner = self.world.lock();
        let now = inner.now;
        inner.clients[self.id].clock.start(now);
        inner.pause(self.id, false);
    }

    /// The process dies: its tasks are gone, its connections are reset.
    pub fn kill(&self) {
        let mut inner = self.world.lock();
        inner.dead.push(self.id);
        let connections = 0..inner.connections.len();
        for id in connections
            .filter(|id| inner.connections[*id].client == self.id)
            .collect::<Vec<_>>()
        {
            inner.abort(id);
        }
    }

    /// How the network between this client and a server behaves.
    pub fn link(&self, server: &ServerHandle, change: impl FnOnce(&mut Link)) {
        self.world.lock().change_link(self.id, server.id, change);
    }

    /// Every connection to a server is reset, seen by both ends after the latency.
    pub fn cut(&self, server: &ServerHandle) {
        let mut inner = self.world.lock();
        for id in 0..inner.connections.len() {
            let connection = &inner.connections[id];
            if connection.client == self.id && connection.server == server.id && !connection.dropped
            {
                inner.end(id, false);
                inner.end(id, true);
            }
        }
    }
}

impl ServerHandle {
    /// The name it is reached by.
    pub fn host(&self) -> String {
        self.world.lock().servers[self.id].0.clone()
    }

    /// Changes how it answers.
    pub fn mood(&self, mood: Mood) {
        self.with(|server, _| server.mood = mood);
    }

    /// It wants this password.
    pub fn password(&self, password: &str) {
        self.with(|server, _| server.password = Some(password.to_owned()));
    }

    /// It takes bytes and answers nothing; TTLs run on.
    pub fn freeze(&self) {
        self.with(|server, _| server.frozen = true);
    }

    /// It answers everything that has come meanwhile.
    pub fn thaw(&self) {
        self.with(|server, _| server.frozen = false);
        self.world.lock().serve_all(self.id);
    }

    /// It stops: connections are reset, new ones refused.
    pub fn stop(&self) {
        let mut inner = self.world.lock();
        inner.servers[self.id].1.down = true;
        for id in 0..inner.connections.len() {
            if inner.connections[id].server == self.id && !inner.connections[id].dropped {
                inner.end(id, false);
                inner.connections[id].dropped = true;
            }
        }
    }

    /// It starts again, with its data or without.
    pub fn start(&self, with_data: bool) {
        self.with(|server, _| {
            server.down = false;
            server.frozen = false;
            server.forget_scripts();
            if !with_data {
                server.keys.clear();
            }
        });
    }

    /// All keys are gone.
    pub fn flush(&self) {
        self.with(|server, _| server.keys.clear());
    }

    /// Scripts are forgotten.
    pub fn forget_scripts(&self) {
        self.with(|server, _| server.forget_scripts());
    }

    /// Somebody deletes a key.
    pub fn delete(&self, key: &str) -> bool {
        self.with(|server, _| server.keys.remove(key.as_bytes()))
    }

    /// Somebody writes a value.
    pub fn set(&self, key: &str, value: &str, ttl: Option<Duration>) {
        self.with(|server, now| {
            let expires = ttl.map(|ttl| server.now_ms(now) + ttl.as_millis() as u64);
            server.keys.put(
                key.as_bytes(),
                Held::Text(value.as_bytes().to_vec()),
                expires,
            );
        });
    }

    /// Somebody makes a list of a key.
    pub fn make_list(&self, key: &str) {
        self.with(|server, _| server.keys.put(key.as_bytes(), Held::List, None));
    }

    /// Its wall clock is set forward, or back.
    pub fn step_clock(&self, millis: i64) {
        self.with(|server, now| server.clock.step(now, millis * 1_000));
    }

    /// The next script writes and then fails.
    pub fn fail_next_script(&self) {
        self.with(|server, _| server.script_fails = true);
    }

    /// The next command is executed twice and answered once, as by a driver or proxy that repeats.
    pub fn repeat_next_command(&self) {
        self.with(|server, _| server.repeats = true);
    }

    /// It fails over: what it is now is forgotten for what it was at `snapshot`, on a clock that is off by so much.
    pub fn fail_over(&self, snapshot: Snapshot, skew_millis: i64) {
        self.stop();
        self.with(|server, now| {
            server.keys = snapshot.0;
            server.clock.step(now, skew_millis * 1_000);
        });
        self.start(true);
    }

    /// What a replica has at this moment.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.with(|server, _| server.keys.clone()))
    }

    /// The keys that are there and have not expired, with value and remaining TTL.
    pub fn keys(&self) -> Vec<(String, String, Option<Duration>)> {
        self.with(|server, now| {
            let now_ms = server.now_ms(now);
            server.keys.expire(now_ms);
            let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let keys = server.keys.iter().map(|(key, entry)| {
                let value = match &entry.held {
                    Held::Text(value) => show(value),
                    Held::List => "(a list)".to_owned(),
                };
                (
                    show(key),
                    value,
                    entry.expires.map(|at| Duration::from_millis(at - now_ms)),
                )
            });
            keys.collect()
        })
    }

    /// What it has executed or refused so far.
    pub fn executed(&self) -> Vec<Executed> {
        self.with(|server, _| server.executed.clone())
    }

    fn with<R>(&self, change: impl FnOnce(&mut Server, Tick) -> R) -> R {
        let mut inner = self.world.lock();
        let now = inner.now;
        change(&mut inner.servers[self.id].1, now)
    }
}

/// The keys of a server at one moment.
#[derive(Clone)]
pub struct Snapshot(crate::keys::Keys);

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

impl Inner {
    fn put(&mut self, at: Tick, happening: Happening) -> Alarm {
        self.sequence += 1;
        self.agenda.insert((at, self.sequence), happening);
        (at, self.sequence)
    }

    /// A timer has one place on the agenda, however often it is polled.
    fn cancel(&mut self, alarm: &mut Option<Alarm>) {
        if let Some(alarm) = alarm.take() {
            self.agenda.remove(&alarm);
        }
    }

    fn happen(&mut self, happening: Happening) -> Vec<Waker> {
        match happening {
            Happening::Wake(waker) => vec![waker],
            Happening::Arrive {
                connection,
                to_server,
                bytes,
            } => self.arrive(connection, to_server, bytes),
            Happening::End {
                connection,
                to_server,
            } => self.ended(connection, to_server),
        }
    }

    fn link(&self, client: usize, server: usize) -> Link {
        self.links
            .get(&(client, server))
            .cloned()
            .unwrap_or_default()
    }

    fn latency(&mut self, client: usize, server: usize) -> Duration {
        let (least, most) = self.link(client, server).latency;
        least + self.rng.up_to(most.saturating_sub(least))
    }

    /// Puts bytes under way, in pieces that do not overtake each other.
    fn send(&mut self, id: usize, to_server: bool, bytes: &[u8]) {
        let (client, server) = (self.connections[id].client, self.connections[id].server);
        let link = self.link(client, server);
        for piece in bytes.chunks(link.piece.max(1)) {
            let latency = self.latency(client, server);
            let arrival = (self.now + latency).as_micros();
            let pipe = self.pipe(id, to_server);
            pipe.in_flight += piece.len();
            if link.silent || !pipe.stuck.is_empty() {
                pipe.stuck.push_back(piece.to_vec());
                continue;
            }
            pipe.last_arrival = arrival.max(pipe.last_arrival);
            let at = Tick::from_micros(pipe.last_arrival);
            self.put(
                at,
                Happening::Arrive {
                    connection: id,
                    to_server,
                    bytes: piece.to_vec(),
                },
            );
        }
    }

    fn arrive(&mut self, id: usize, to_server: bool, bytes: Vec<u8>) -> Vec<Waker> {
        let connection = &mut self.connections[id];
        let (gone, silent) = if to_server {
            (connection.dropped, false)
        } else {
            (connection.aborted, false)
        };
        let pipe = self.pipe(id, to_server);
        pipe.in_flight = pipe.in_flight.saturating_sub(bytes.len());
        let mut wakers: Vec<Waker> = pipe.writer.take().into_iter().collect();
        if gone || silent {
            return wakers;
        }
        pipe.inbox.extend(bytes);
        wakers.extend(pipe.reader.take());
        if to_server {
            self.serve(id);
        }
        wakers
    }

    /// The other end learns that a connection has ended.
    fn ended(&mut self, id: usize, to_server: bool) -> Vec<Waker> {
        let pipe = self.pipe(id, to_server);
        pipe.closed = true;
        let mut wakers: Vec<Waker> = pipe.reader.take().into_iter().collect();
        if to_server {
            self.connections[id].dropped = true;
        } else {
            wakers.extend(self.connections[id].up.writer.take());
        }
        wakers
    }

    /// One end closes in order: the other sees it after everything that is under way.
    fn end(&mut self, id: usize, to_server: bool) {
        let (client, server) = (self.connections[id].client, self.connections[id].server);
        let latency = self.latency(client, server);
        let arrival = (self.now + latency).as_micros();
        let pipe = self.pipe(id, to_server);
        pipe.last_arrival = arrival.max(pipe.last_arrival);
        let at = Tick::from_micros(pipe.last_arrival);
        self.put(
            at,
            Happening::End {
                connection: id,
                to_server,
            },
        );
    }

    /// The client resets a connection. What is under way is taken back, or arrives later all the same.
    fn abort(&mut self, id: usize) {
        if std::mem::replace(&mut self.connections[id].aborted, true) {
            return;
        }
        let link = self.link(self.connections[id].client, self.connections[id].server);
        let under_way = |happening: &Happening| matches!(happening, Happening::Arrive { connection, to_server: true, .. } if *connection == id);
        let keys: Vec<_> = self
            .agenda
            .iter()
            .filter(|(_, what)| under_way(what))
            .map(|(key, _)| *key)
            .collect();
        let mut late: Vec<Vec<u8>> = Vec::new();
        for key in keys {
            if let Some(Happening::Arrive { bytes, .. }) = self.agenda.remove(&key) {
                late.push(bytes);
            }
        }
        late.extend(self.connections[id].up.stuck.drain(..));
        let Some(delay) = link.zombies else {
            self.end(id, true);
            return;
        };
        let mut at = self.now + delay;
        for bytes in late {
            self.put(
                at,
                Happening::Arrive {
                    connection: id,
                    to_server: true,
                    bytes,
                },
            );
            at = at + Duration::from_micros(1);
        }
        self.put(
            at,
            Happening::End {
                connection: id,
                to_server: true,
            },
        );
    }

    fn change_link(&mut self, client: usize, server: usize, change: impl FnOnce(&mut Link)) {
        let link = self.links.entry((client, server)).or_default();
        change(link);
        if link.silent {
            return;
        }
        // What was stuck goes on its way, in order.
        for id in 0..self.connections.len() {
            let connection = &self.connections[id];
            if connection.client != client || connection.server != server {
                continue;
            }
            for to_server in [true, false] {
                let stuck = std::mem::take(&mut self.pipe(id, to_server).stuck);
                for piece in stuck {
                    self.pipe(id, to_server).in_flight -= piece.len();
                    self.send(id, to_server, &piece);
                }
            }
        }
    }

    fn pipe(&mut self, id: usize, to_server: bool) -> &mut Pipe {
        let connection = &mut self.connections[id];
        if to_server {
            &mut connection.up
        } else {
            &mut connection.down
        }
    }

    fn serve_all(&mut self, server: usize) {
        for id in 0..self.connections.len() {
            if self.connections[id].server == server {
                self.serve(id);
            }
        }
    }

    /// Answers every whole command that has arrived on a connection.
    fn serve(&mut self, id: usize) {
        loop {
            let connection = &mut self.connections[id];
            let server = &mut self.servers[connection.server].1;
            if server.frozen || server.down || connection.dropped {
                return;
            }
            let bytes = connection.up.inbox.make_contiguous();
            let Some((words, len)) = Server::parse(bytes) else {
                return;
            };
            connection.up.inbox.drain(..len);
            let mut reply = server.execute(self.now, &words, &mut connection.resp3);
            if std::mem::take(&mut server.repeats) {
                reply = server.execute(self.now, &words, &mut connection.resp3);
            }
            let executed = Executed {
                at: self.now,
                client: connection.client,
                connection: id,
                command: words,
                answer: format!("{reply:?}"),
            };
            let bytes = encode(&reply, connection.resp3);
            if self.trace.is_some() {
                let words: Vec<_> = executed
                    .command
                    .iter()
                    .map(|word| String::from_utf8_lossy(word))
                    .collect();
                let line = format!(
                    "client {} connection {id}: {} -> {}",
                    executed.client,
                    words.join(" "),
                    executed.answer
                );
                self.write(&line);
            }
            let connection = &self.connections[id];
            self.servers[connection.server].1.executed.push(executed);
            self.send(id, false, &bytes);
        }
    }

    fn pause(&mut self, client: usize, paused: bool) {
        self.clients[client].paused = paused;
    }

    fn write(&mut self, line: &str) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{now:?} {line}");
        }
    }
}
