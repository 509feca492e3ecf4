//! What a history is made with: clients that are paused and killed, servers that are restarted and lied to.

use std::future::Future;
use std::time::Duration;

use tenure_client::{Config, Error, Locks, connect_with};
use tenure_core::plan;
use tenure_core::time::Tick;

use crate::binding::SimBinding;
use crate::keys::{Entries, Held};
use crate::net::Link;
use crate::server::{Executed, Mood, Server};
use crate::world::World;

/// A client machine: a clock and a process that can be paused, stopped and killed.
#[derive(Clone)]
pub struct Client {
    pub(crate) world: World,
    pub(crate) id: usize,
}

/// A server that can be frozen, restarted, flushed and lied to about the time.
#[derive(Clone)]
pub struct ServerHandle {
    pub(crate) world: World,
    pub(crate) id: usize,
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
        SimBinding::new(self.world.clone(), self.id)
    }

    /// Runs a task in this client's process: it stands still while the client is paused.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.world
            .lock()
            .spawned
            .push((Some(self.id), Box::pin(task)));
    }

    /// What its clock shows.
    pub fn now(&self) -> Tick {
        self.world.client_now(self.id)
    }

    /// Whether its process has stood still at any time in the last `span`, or does so now.
    pub fn stood_still(&self, span: Duration) -> bool {
        let inner = self.world.lock();
        let machine = &inner.clients[self.id];
        machine.paused || machine.resumed.is_some_and(|at| at + span >= inner.now)
    }

    /// Whether its process was killed.
    pub fn is_killed(&self) -> bool {
        self.world.lock().clients[self.id].killed
    }

    /// How many parts per million its clock runs fast.
    pub fn drift_ppm(&self) -> i64 {
        self.world.lock().clients[self.id].drift_ppm
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
        inner.clients[self.id].killed = true;
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

    /// How many parts per million its clock runs fast.
    pub fn drift_ppm(&self) -> i64 {
        self.with(|server, _| server.clock.drift_ppm())
    }

    /// Changes how it answers.
    pub fn mood(&self, mood: Mood) {
        self.with(|server, _| server.mood = mood);
    }

    /// It wants this password.
    pub fn password(&self, password: &str) {
        self.with(|server, _| server.password = Some(password.to_owned()));
    }

    /// It wants none any more.
    pub fn no_password(&self) {
        self.with(|server, _| server.password = None);
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
        inner.servers[self.id].1.keys.tracking.lose();
    }

    /// It starts again, with its data or without.
    pub fn start(&self, with_data: bool) {
        self.with(|server, now| {
            server.down = false;
            server.frozen = false;
            server.starts += 1;
            server.started = now;
            server.forget_scripts();
            let entries = match with_data {
                true => server.keys.entries().clone(),
                false => Entries::new(),
            };
            server.keys.restart(entries);
            server.resync();
        });
    }

    /// All keys are gone, and everybody who is tracked is told.
    pub fn flush(&self) {
        self.with(|server, _| server.keys.flush(false));
    }

    /// Scripts are forgotten.
    pub fn forget_scripts(&self) {
        self.with(|server, _| server.forget_scripts());
    }

    /// No connection is tracked any more, and none is told: a proxy that has connected anew and said nothing about it. Until
    /// they ask for tracking again, writes are silent.
    pub fn lose_tracking(&self) {
        self.with(|server, _| server.keys.tracking.lose());
    }

    /// `CLIENT TRACKING` is refused, as to a user that may not, or by a proxy. Who is tracked already stays so.
    pub fn refuse_tracking(&self, refused: bool) {
        self.with(|server, _| server.keys.tracking.refused = refused);
    }

    /// Whoever has read a key is told that it has changed, though it has not: what servers do whose table of such keys is
    /// full.
    pub fn crowd_out_tracking(&self) {
        self.with(|server, _| server.keys.tracking.crowd_out());
    }

    /// What `CONFIG GET` gives for this name.
    pub fn configure(&self, name: &str, value: &str) {
        self.with(|server, _| {
            server.settings.insert(name.to_owned(), value.to_owned());
        });
    }

    /// Somebody deletes a key, or it is evicted.
    pub fn delete(&self, key: &str) -> bool {
        self.with(|server, _| server.keys.remove(key.as_bytes()))
    }

    /// An operator removes a key by force, as [`Locks::force_release`](tenure_client::Locks::force_release) does, with this label.
    pub fn force_release(&self, key: &str, by: &str) {
        let helper = format!("lock:{{{key}}}:forced");
        let words = ["EVAL", plan::REMOVE.text, "2", key, &helper, by];
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        // On a connection of the operator's own, of which nobody is told.
        self.with(|server, now| server.execute(now, usize::MAX, &words, &mut true));
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
        self.with(|server, _| server.keys.put(key.as_bytes(), Held::List(1), None));
    }

    /// Its wall clock is set forward, or back.
    pub fn step_clock(&self, millis: i64) {
        self.world.lock().cancel_cycle(self.id);
        self.with(|server, now| server.clock.step(now, millis * 1_000));
    }

    /// The next script writes and then fails.
    pub fn fail_next_script(&self) {
        self.with(|server, _| server.script_fails = true);
    }

    /// The next command is executed twice and answered once, as by a driver or proxy that repeats.
    pub fn repeat_next_command(&self) {
        self.repeat_commands(1);
    }

    /// As [`repeat_next_command`](ServerHandle::repeat_next_command), the next so many.
    pub fn repeat_commands(&self, count: u32) {
        self.with(|server, _| server.repeats = count);
    }

    /// It fails over: what it is now is forgotten for what it was at `snapshot`, on a clock that is off by so much.
    pub fn fail_over(&self, snapshot: Snapshot, skew_millis: i64) {
        self.stop();
        self.with(|server, now| {
            server.keys.restart(snapshot.0);
            server.clock.step(now, skew_millis * 1_000);
        });
        self.start(true);
    }

    /// Nothing that was planned happens any more; it runs.
    pub fn heal(&self) {
        self.with(|server, _| {
            server.down = false;
            server.script_fails = false;
            server.repeats = 0;
            server.password = None;
            server.keys.tracking.refused = false;
        });
    }

    /// What a replica has at this moment.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.with(|server, _| server.keys.entries().clone()))
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
                    Held::List(_) => "(a list)".to_owned(),
                    Held::Sorted(_) => "(a sorted set)".to_owned(),
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

    /// The text under a key that has not expired, and for how much longer by true time.
    pub fn text(&self, key: &str) -> Option<(Vec<u8>, Option<Duration>)> {
        self.with(|server, now| {
            let now_ms = server.now_ms(now);
            server.keys.expire(now_ms);
            let text = server.keys.text(key.as_bytes()).ok()??.clone();
            let expires = server.keys.expires(key.as_bytes());
            let left = expires.map(|at| server.clock.when(now, at * 1_000).saturating_since(now));
            Some((text, left))
        })
    }

    /// What it has executed or refused so far.
    pub fn executed(&self) -> Vec<Executed> {
        self.with(|server, _| {
            let executed = server.executed.iter().map(|(at, command, reply)| Executed {
                at: *at,
                client: command.client,
                connection: command.connection,
                command: command.words.clone(),
                answer: format!("{reply:?}"),
            });
            executed.collect()
        })
    }

    /// How many commands that were.
    pub fn executed_count(&self) -> u64 {
        self.with(|server, _| server.executed.len() as u64)
    }

    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut Server, Tick) -> R) -> R {
        let mut inner = self.world.lock();
        let now = inner.now;
        let server = &mut inner.servers[self.id].1;
        let before = server.keys.changes;
        let result = change(server, now);
        if server.keys.changes != before {
            inner.replicate(self.id);
        }
        inner.tell(self.id);
        result
    }
}

/// The keys of a server at one moment.
#[derive(Clone)]
pub struct Snapshot(Entries);

impl Snapshot {
    pub(crate) fn of(entries: Entries) -> Snapshot {
        Snapshot(entries)
    }
}
