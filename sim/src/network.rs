//! How bytes travel: sent in pieces, delivered, stuck, cut off, and late.

use std::fmt::Write as _;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tenure_core::time::Tick;

use crate::encode::{encode, encode_push};
use crate::keys::Reply;
use crate::net::{Link, Pipe};
use crate::tap::{Command, Seen};
use crate::tracking::Push;
use crate::world::{Alarm, Happening, Inner};

/// An expired key is found by its server at most this much later: ten rounds a second, and a little more on a server that
/// is busy (130 ms were measured).
const LATEST_CYCLE: Duration = Duration::from_millis(130);

impl Inner {
    pub(crate) fn put(&mut self, at: Tick, happening: Happening) -> Alarm {
        self.sequence += 1;
        self.agenda.insert((at, self.sequence), happening);
        (at, self.sequence)
    }

    /// A timer has one place on the agenda, however often it is polled.
    pub(crate) fn cancel(&mut self, alarm: &mut Option<Alarm>) {
        if let Some(alarm) = alarm.take() {
            self.agenda.remove(&alarm);
        }
    }

    pub(crate) fn happen(&mut self, happening: Happening) -> Vec<Waker> {
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
            Happening::Replicated { server } => {
                self.replicated(server);
                Vec::new()
            }
            Happening::Cycle { server } => {
                self.sweep(server);
                Vec::new()
            }
        }
    }

    pub(crate) fn link(&self, client: usize, server: usize) -> Link {
        self.links
            .get(&(client, server))
            .cloned()
            .unwrap_or_default()
    }

    pub(crate) fn latency(&mut self, client: usize, server: usize) -> Duration {
        let (least, most) = self.link(client, server).latency;
        least + self.rng.up_to(most.saturating_sub(least))
    }

    /// Puts bytes under way, in pieces that do not overtake each other.
    pub(crate) fn send(&mut self, id: usize, to_server: bool, bytes: &[u8]) {
        let (client, server) = (self.connections[id].client, self.connections[id].server);
        let link = self.link(client, server);
        for piece in bytes.chunks(link.piece.max(1)) {
            let latency = self.latency(client, server);
            let arrival = (self.now + latency).as_micros();
            let pipe = self.pipe(id, to_server);
            pipe.in_flight += piece.len();
            if link.silent || (link.deaf && !to_server) || !pipe.stuck.is_empty() {
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
        let connection = &self.connections[id];
        let gone = if to_server {
            connection.dropped
        } else {
            connection.aborted
        };
        let pipe = self.pipe(id, to_server);
        pipe.in_flight = pipe.in_flight.saturating_sub(bytes.len());
        let mut wakers: Vec<Waker> = pipe.writer.take().into_iter().collect();
        if gone {
            return wakers;
        }
        if to_server {
            // The bytes themselves were cut into commands when they were written.
            self.connections[id].written.arrived += bytes.len() as u64;
            self.serve(id);
        } else {
            pipe.inbox.extend(bytes);
            wakers.extend(pipe.reader.take());
            wakers.extend(pipe.caller.take());
        }
        wakers
    }

    /// The other end learns that a connection has ended.
    fn ended(&mut self, id: usize, to_server: bool) -> Vec<Waker> {
        let pipe = self.pipe(id, to_server);
        pipe.closed = true;
        let mut wakers: Vec<Waker> = pipe.reader.take().into_iter().collect();
        wakers.extend(pipe.caller.take());
        if to_server {
            let connection = &mut self.connections[id];
            connection.dropped = true;
            let server = &mut self.servers[connection.server].1;
            server.keys.tracking.turn_off(id);
        } else {
            wakers.extend(self.connections[id].up.writer.take());
        }
        wakers
    }

    /// One end closes in order: the other sees it after everything that is under way.
    pub(crate) fn end(&mut self, id: usize, to_server: bool) {
        let (client, server) = (self.connections[id].client, self.connections[id].server);
        let latency = self.latency(client, server);
        let arrival = (self.now + latency).as_micros();
        let pipe = self.pipe(id, to_server);
        if !pipe.stuck.is_empty() {
            pipe.ends_after_stuck = true;
            return;
        }
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
    pub(crate) fn abort(&mut self, id: usize) {
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

    pub(crate) fn change_link(
        &mut self,
        client: usize,
        server: usize,
        change: impl FnOnce(&mut Link),
    ) {
        let link = self.links.entry((client, server)).or_default();
        change(link);
        let (silent, deaf) = (link.silent, link.deaf);
        // What was stuck goes on its way, in order.
        for id in 0..self.connections.len() {
            let connection = &self.connections[id];
            if connection.client != client || connection.server != server {
                continue;
            }
            for to_server in [true, false] {
                if silent || (deaf && !to_server) {
                    continue;
                }
                let stuck = std::mem::take(&mut self.pipe(id, to_server).stuck);
                for piece in stuck {
                    self.pipe(id, to_server).in_flight -= piece.len();
                    self.send(id, to_server, &piece);
                }
                if std::mem::take(&mut self.pipe(id, to_server).ends_after_stuck) {
                    self.end(id, to_server);
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

    pub(crate) fn serve_all(&mut self, server: usize) {
        for id in 0..self.connections.len() {
            if self.connections[id].server == server {
                self.serve(id);
            }
        }
    }

    /// Bytes leave a client: they are cut into commands here, once for the server and the tap.
    pub(crate) fn hand_out(&mut self, id: usize, bytes: &[u8]) {
        let connection = &mut self.connections[id];
        let client = connection.client;
        let by_client = Tick::from_micros(self.clients[client].clock.read(self.now));
        self.stamp += 1 << 16;
        let begun = (self.stamp, self.now, by_client);
        let tap = &mut self.tap;
        connection
            .written
            .write((client, id), bytes, begun, |command| {
                if let Some(tap) = tap {
                    tap.push(Seen::HandedOut(Arc::clone(command)));
                }
            });
    }

    /// Answers every whole command that has arrived on a connection.
    fn serve(&mut self, id: usize) {
        loop {
            let connection = &mut self.connections[id];
            let server = &mut self.servers[connection.server].1;
            if server.frozen || server.down || connection.dropped {
                return;
            }
            let (now, tap) = (self.now, &mut self.tap);
            let mut seen = |command: &Arc<Command>, reply: &Reply| {
                if let Some(tap) = tap {
                    tap.push(Seen::Executed(Arc::clone(command), reply.clone(), now));
                }
            };
            let (command, reply) = if let Some(wait) = &connection.waits {
                let Some(reply) = wait.reply(server, now) else {
                    return;
                };
                let command = Arc::clone(&wait.command);
                connection.waits = None;
                seen(&command, &reply);
                (command, reply)
            } else {
                let Some(command) = connection.written.next() else {
                    return;
                };
                self.counts.zombies += u64::from(connection.aborted);
                match server.wait(now, &command, connection.changed) {
                    Some(Ok(wait)) => {
                        let (until, server) = (wait.until(), connection.server);
                        connection.waits = Some(wait);
                        if until > now && until != Tick::MAX {
                            self.put(until, Happening::Replicated { server });
                        }
                        continue;
                    }
                    Some(Err(refused)) => {
                        seen(&command, &refused);
                        (command, refused)
                    }
                    None => {
                        let before = server.keys.changes;
                        let resp3 = &mut connection.resp3;
                        let reply = server.answer(now, &command, resp3, &mut self.counts, seen);
                        let (after, at) = (server.keys.changes, connection.server);
                        if after != before {
                            connection.changed = after;
                            self.replicate(at);
                        }
                        (command, reply)
                    }
                }
            };
            let connection = &self.connections[id];
            let bytes = encode(&reply, connection.resp3);
            if self.trace.is_some() {
                let line = format!("{command} -> {reply:?}");
                self.write(&line);
            }
            let done = (self.now, command, reply);
            let at = self.connections[id].server;
            self.note_left(at);
            let server = &mut self.servers[at].1;
            server.executed.push(done);
            if server.keys.tracking.is_idle() {
                self.send(id, false, &bytes);
                continue;
            }
            let late = server.keys.tracking.take_late();
            self.tell(at);
            self.send(id, false, &bytes);
            self.send_pushes(late);
        }
    }

    /// What a server has to say to connections that are tracked goes on its way, and its next round is planned.
    pub(crate) fn tell(&mut self, server: usize) {
        self.note_left(server);
        let this = &mut self.servers[server].1;
        if this.keys.tracking.is_idle() || this.frozen || this.down {
            return;
        }
        let pushes = this.keys.tracking.take_early();
        self.send_pushes(pushes);
        self.plan_cycle(server);
    }

    /// What has left its key on a server is seen by the tap.
    fn note_left(&mut self, server: usize) {
        let left = self.servers[server].1.keys.left.as_mut();
        if let (Some(tap), Some(left)) = (&mut self.tap, left) {
            let now = self.now;
            tap.extend(left.drain(..).map(|left| Seen::Left(left, now)));
        }
    }

    fn send_pushes(&mut self, pushes: Vec<Push>) {
        for push in pushes {
            let connection = &self.connections[push.to];
            // The older protocol has no form for it, and nothing is said.
            if connection.dropped || !connection.resp3 {
                continue;
            }
            if self.trace.is_some() {
                let key = push.key.as_deref().unwrap_or(b"(all)").escape_ascii();
                let line = format!("push to connection {}: {key}", push.to);
                self.write(&line);
            }
            self.send(push.to, false, &encode_push(&push));
        }
    }

    /// The server will find what expires first some time after it has expired.
    fn plan_cycle(&mut self, server: usize) {
        let this = &self.servers[server].1;
        let Some(due) = this.keys.due() else {
            return;
        };
        if this.cycle.is_some_and(|(planned, _)| planned <= due) {
            return;
        }
        let expired = this.clock.when(self.now, due * 1_000);
        let at = expired + self.rng.up_to(LATEST_CYCLE);
        self.cancel_cycle(server);
        let alarm = self.put(at, Happening::Cycle { server });
        self.servers[server].1.cycle = Some((due, alarm));
    }

    /// What was planned counts no more, since the server's clock shows something else.
    pub(crate) fn cancel_cycle(&mut self, server: usize) {
        if let Some((_, alarm)) = self.servers[server].1.cycle.take() {
            self.cancel(&mut Some(alarm));
        }
    }

    fn sweep(&mut self, server: usize) {
        let now = self.now;
        let this = &mut self.servers[server].1;
        this.cycle = None;
        // One that is frozen goes on with it when it is thawed.
        if !this.frozen && !this.down {
            let now_ms = this.now_ms(now);
            this.keys.sweep(now_ms);
            self.tell(server);
        }
    }

    pub(crate) fn pause(&mut self, client: usize, paused: bool) {
        let now = self.now;
        let machine = &mut self.clients[client];
        if machine.paused && !paused {
            machine.resumed = Some(now);
        }
        machine.paused = paused;
    }

    pub(crate) fn write(&mut self, line: &str) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{now:?} {line}");
        }
    }
}
