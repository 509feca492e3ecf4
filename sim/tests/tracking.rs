//! Pushes travel as everything else does that a server sends: late, in pieces, or not at all; and a key that expires is
//! found by its server some time later.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure_client::binding::{Binding as _, Endpoint, Stream as _};
use tenure_sim::{Client, Dialect, ServerHandle, Sim, SimStream, World};

const MS: Duration = Duration::from_millis(1);
/// The way there and back on the usual link, at the longest.
const TRIP: Duration = Duration::from_micros(1_600);

const PUSH: &str = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
const PUSH_ALL: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// A connection without a client behind it.
struct Wire {
    world: World,
    stream: SimStream,
}

impl Wire {
    async fn open(world: &World, client: &Client, server: &ServerHandle) -> Wire {
        let host = server.host();
        let stream = client.binding().dial(&Endpoint::Tcp { host, port: 1 });
        Wire {
            world: world.clone(),
            stream: stream.await.expect("a server"),
        }
    }

    /// One that speaks RESP3 and is tracked.
    async fn tracked(world: &World, client: &Client, server: &ServerHandle) -> Wire {
        let mut wire = Wire::open(world, client, server).await;
        assert!(wire.ask("HELLO 3").await.starts_with('%'));
        assert_eq!(wire.ask("CLIENT TRACKING ON").await, "+OK\r\n");
        wire
    }

    fn send(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        let written = self.stream.try_write(bytes.as_bytes()).expect("room");
        assert_eq!(written, bytes.len());
    }

    /// What has come within a trip of a command.
    async fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.within(TRIP).await
    }

    /// What comes within a span.
    async fn within(&mut self, span: Duration) -> String {
        self.world.sleep(span).await;
        let (mut all, mut some) = (Vec::new(), [0; 256]);
        while let Ok(n @ 1..) = self.stream.try_read(&mut some) {
            all.extend_from_slice(&some[..n]);
        }
        String::from_utf8(all).expect("text")
    }

    /// Waits for anything, and gives what there is then.
    async fn next(&mut self, most: Duration) -> String {
        let mut some = [0; 256];
        let mut limit = pin!(self.world.sleep(most));
        let read = poll_fn(|cx| match self.stream.poll_read(cx, &mut some) {
            Poll::Pending => limit.as_mut().poll(cx).map(|()| Ok(0)),
            ready => ready,
        });
        let n = read.await.expect("a connection");
        String::from_utf8_lossy(&some[..n]).into_owned()
    }
}

/// Does this with two clients of a server, for a few seeds and every kind of server.
fn each<F: Future<Output = ()> + Send + 'static>(
    act: impl Fn(World, ServerHandle, [Client; 2]) -> F,
) {
    for seed in 0..12 {
        for dialect in Dialect::ALL {
            let mut sim = Sim::new(seed);
            let world = sim.world();
            let server = world.server("db", dialect);
            let clients = [world.client(), world.client()];
            sim.block_on(act(world, server, clients));
        }
    }
}

#[test]
fn a_write_of_another_is_pushed_once_and_is_one_way_late() {
    each(|world, server, [one, two]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        let mut writer = Wire::open(&world, &two, &server).await;
        assert_eq!(reader.ask("GET k").await, "_\r\n");
        one.link(&server, |link| link.latency = (20 * MS, 30 * MS));
        let began = world.now();
        writer.send("SET k v");
        writer.send("DEL k");
        assert_eq!(reader.next(100 * MS).await, PUSH);
        let took = world.now() - began;
        assert!(took >= 20 * MS && took <= 30 * MS + TRIP, "{took:?}");
        // It was forgotten, and is told again only when it was read again.
        assert_eq!(reader.within(100 * MS).await, "");
        writer.ask("SET k v").await;
        assert_eq!(reader.within(100 * MS).await, "");
    });
}

#[test]
fn pushes_are_split_and_stay_behind_the_replies_that_were_before() {
    each(|world, server, [one, _]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        reader.ask("GET k").await;
        one.link(&server, |link| link.piece = 1);
        reader.send("EXISTS k");
        server.set("k", "by nobody", None);
        world.sleep(TRIP).await;
        server.delete("k");
        reader.send("GET other");
        let (mut all, mut pieces) = (String::new(), 0);
        while !all.ends_with("_\r\n") {
            let piece = reader.next(10 * MS).await;
            assert!(!piece.is_empty(), "{all:?}");
            all.push_str(&piece);
            pieces += 1;
        }
        // Read, written, read again, deleted: in that order, whatever the pieces.
        assert_eq!(all, format!("{PUSH}:1\r\n{PUSH}_\r\n"));
        assert!(pieces > 10);
    });
}

#[test]
fn a_push_is_stuck_in_silence_and_gone_with_its_connection() {
    each(|world, server, [one, two]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        let mut writer = Wire::open(&world, &two, &server).await;
        reader.ask("GET k").await;
        one.link(&server, |link| link.deaf = true);
        writer.ask("SET k v").await;
        assert_eq!(reader.within(100 * MS).await, "");
        one.link(&server, |link| link.deaf = false);
        assert_eq!(reader.within(TRIP).await, PUSH);
        // A cut connection is told nothing any more, and its successor knows of nothing.
        reader.ask("GET k").await;
        one.cut(&server);
        world.sleep(TRIP).await;
        let mut next = Wire::tracked(&world, &one, &server).await;
        writer.ask("DEL k").await;
        assert_eq!(reader.within(10 * MS).await, "");
        assert_eq!(next.within(10 * MS).await, "");
    });
}

#[test]
fn a_frozen_server_pushes_when_it_is_thawed_and_one_that_restarts_has_forgotten() {
    each(|world, server, [one, two]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        let mut writer = Wire::open(&world, &two, &server).await;
        writer.ask("SET k v PX 50").await;
        reader.ask("GET k").await;
        server.freeze();
        writer.send("DEL k");
        assert_eq!(reader.within(1_000 * MS).await, "");
        server.thaw();
        assert_eq!(reader.within(200 * MS).await, PUSH);
        reader.ask("GET k").await;
        server.stop();
        server.start(true);
        server.set("k", "v", None);
        assert_eq!(reader.within(1_000 * MS).await, "");
    });
}

#[test]
fn an_expiry_is_pushed_by_the_server_itself_some_time_later() {
    let mut late = Vec::new();
    for seed in 0..200 {
        let mut sim = Sim::new(seed);
        let world = sim.world();
        let server = world.server("db", Dialect::Redis8);
        let client = world.client();
        late.push(sim.block_on(async move {
            let mut reader = Wire::tracked(&world, &client, &server).await;
            server.set("k", "v", Some(100 * MS));
            server.set("long", "v", Some(100_000 * MS));
            let expires = world.now() + 100 * MS;
            reader.ask("GET long").await;
            reader.ask("GET k").await;
            assert_eq!(reader.next(1_000 * MS).await, PUSH);
            let at = world.now();
            assert!(at >= expires, "before it has expired");
            assert_eq!(reader.within(1_000 * MS).await, "");
            at - expires
        }));
    }
    late.sort();
    assert!(late[0] < 10 * MS && late[199] > 100 * MS, "{late:?}");
    assert!(late[199] < 135 * MS, "{late:?}");
}

#[test]
fn whoever_comes_across_an_expired_key_makes_the_server_push_it() {
    each(|world, server, [one, two]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        let mut other = Wire::open(&world, &two, &server).await;
        server.set("k", "v", Some(100 * MS));
        server.set("m", "v", Some(100 * MS));
        reader.ask("EXISTS k m").await;
        // Exactly when it has expired; the server would look some time later.
        world.sleep(100 * MS - TRIP).await;
        other.send("GET k");
        let told = reader.within(TRIP).await;
        let all = told + &reader.within(200 * MS).await;
        assert_eq!(all.matches("invalidate").count(), 2, "{all:?}");
        assert_eq!(all.matches(PUSH).count(), 1, "{all:?}");
    });
}

#[test]
fn a_clock_that_is_set_forward_expires_and_tells() {
    each(|world, server, [one, _]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        server.set("k", "v", Some(60_000 * MS));
        reader.ask("GET k").await;
        server.step_clock(70_000);
        assert_eq!(reader.within(200 * MS).await, PUSH);
    });
}

#[test]
fn ones_own_write_is_told_behind_its_reply_and_before_the_next() {
    each(|world, server, [one, _]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        reader.send("GET k");
        reader.send("SET k v");
        reader.send("EXISTS k");
        assert_eq!(
            reader.within(TRIP).await,
            format!("_\r\n+OK\r\n{PUSH}:1\r\n")
        );
        // A command that is executed twice has its say twice, and is answered once.
        reader.send("DEL k");
        reader.within(TRIP).await;
        server.repeat_commands(2);
        reader.send("GET k");
        reader.send("SET k v");
        assert_eq!(reader.within(TRIP).await, format!("_\r\n{PUSH}+OK\r\n"));
    });
}

#[test]
fn a_flush_tells_everybody_and_a_refused_write_nobody() {
    each(|world, server, [one, two]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        let mut other = Wire::open(&world, &two, &server).await;
        server.set("k", "v", None);
        reader.ask("GET k").await;
        other.ask("SET k w NX").await;
        other.ask("SET k w PX 0").await;
        server.mood(tenure_sim::Mood::ReadOnly);
        other.ask("DEL k").await;
        server.mood(tenure_sim::Mood::Well);
        assert_eq!(reader.within(10 * MS).await, "");
        server.flush();
        assert_eq!(reader.within(10 * MS).await, PUSH_ALL);
        other.ask("FLUSHALL").await;
        assert_eq!(reader.within(10 * MS).await, PUSH_ALL);
    });
}

#[test]
fn tracking_is_lost_refused_and_crowded_out() {
    each(|world, server, [one, _]| async move {
        let mut reader = Wire::tracked(&world, &one, &server).await;
        reader.ask("GET k").await;
        server.crowd_out_tracking();
        assert_eq!(reader.within(TRIP).await, PUSH);
        reader.ask("GET k").await;
        server.lose_tracking();
        reader.ask("GET k").await;
        server.set("k", "v", None);
        assert_eq!(reader.within(10 * MS).await, "");
        server.refuse_tracking(true);
        let refused = reader.ask("CLIENT TRACKING ON").await;
        assert!(refused.starts_with("-NOPERM "), "{refused}");
        server.refuse_tracking(false);
        assert_eq!(reader.ask("CLIENT TRACKING ON").await, "+OK\r\n");
        reader.ask("GET k").await;
        server.delete("k");
        assert_eq!(reader.within(10 * MS).await, PUSH);
    });
}

#[test]
fn a_seed_repeats_its_pushes_to_the_byte() {
    let trace = |seed| {
        let mut sim = Sim::new(seed);
        sim.record();
        let world = sim.world();
        let server = world.server("db", Dialect::Valkey9);
        let clients = [world.client(), world.client()];
        sim.block_on(async move {
            let mut wires = Vec::new();
            for client in &clients {
                wires.push(Wire::tracked(&world, client, &server).await);
            }
            for _ in 0..200 {
                let wire = &mut wires[world.below(2) as usize];
                let key = ["a", "b"][world.below(2) as usize];
                match world.below(4) {
                    0 => wire.send(&format!("SET {key} v PX {}", 1 + world.below(200))),
                    1 => wire.send(&format!("DEL {key}")),
                    _ => wire.send(&format!("GET {key}")),
                }
                world.sleep(world.up_to(20 * MS)).await;
            }
        });
        sim.trace()
    };
    assert_eq!(trace(3), trace(3));
    assert!(trace(3).matches("push to").count() > 20);
}
