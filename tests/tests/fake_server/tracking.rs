//! Several connections that are tracked or not: each gets the same replies and the same pushes, in the same order, from the
//! simulated server and from the real ones.
//!
//! The real servers do not look for expired keys by themselves here, so that only an access finds one: that is the same every
//! time. When they do look is compared on its own.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_core::rng::Rng;
use tenure_sim::{Dialect, FakeServer};
use tenure_tests::{Failure, Server, ServerKind};

use crate::{Author, Real, Reply, each, show, words};

const SEQUENCES: u64 = 40;
const STEPS: usize = 80;
const CONNECTIONS: usize = 3;

/// Both servers with the same connections, and what they were told so far.
struct Stage {
    real: Vec<Real>,
    fake: FakeServer,
    began: Instant,
    log: Vec<String>,
    pushes: usize,
}

impl Stage {
    fn new(server: &Server, dialect: Dialect, seeks_expired: bool) -> Result<Stage, Failure> {
        let mut real = (0..CONNECTIONS)
            .map(|_| Real::connect(server))
            .collect::<Result<Vec<_>, _>>()?;
        let active = if seeks_expired { "1" } else { "0" };
        real[0].execute(&words(&["DEBUG", "SET-ACTIVE-EXPIRE", active]))?;
        real[0].execute(&words(&["FLUSHALL"]))?;
        real[0].execute(&words(&["SCRIPT", "FLUSH"]))?;
        let mut fake = FakeServer::new(dialect);
        fake.set_clock(SystemTime::now().duration_since(UNIX_EPOCH)?);
        Ok(Stage {
            real,
            fake,
            began: Instant::now(),
            log: Vec::new(),
            pushes: 0,
        })
    }

    /// Sends a command to both; what was said to whom if they disagree.
    fn compare(&mut self, connection: usize, command: &[Vec<u8>]) -> Result<(), Failure> {
        let name = command[0].to_ascii_uppercase();
        self.real[connection].send(command)?;
        let mut real = vec![Vec::new(); CONNECTIONS];
        // The sender first: what it has caused is on its way to the others then.
        for to in (connection..CONNECTIONS).chain(0..connection) {
            real[to] = self.real[to].until_pong()?;
        }
        self.pass();
        self.fake.send(connection, command);
        self.log.push(format!(
            "{connection}: {} -> {:?}",
            show(command),
            real[connection]
        ));
        for (to, real) in real.into_iter().enumerate() {
            let real = tidy(real, &name);
            let fake = tidy(frames(&self.fake.received(to))?, &name);
            let pushes = real.iter().filter(|it| matches!(it, Reply::Many('>', _)));
            self.pushes += pushes.count();
            let alike = real.len() == fake.len()
                && (real.iter().zip(&fake)).all(|(real, fake)| real.agrees(fake, name == b"PTTL"));
            if !alike {
                let from = self.log.len().saturating_sub(25);
                let log = self.log[from..].join("\n");
                return Err(format!(
                    "connection {to} got {real:?}, and {fake:?} from the simulated one\n{log}"
                )
                .into());
            }
        }
        Ok(())
    }

    fn say(&mut self, connection: usize, command: &[&str]) -> Result<(), Failure> {
        self.compare(connection, &words(command))
    }

    /// The clock of the simulated server is that of the real one.
    fn pass(&mut self) {
        let now = Instant::now();
        self.fake.advance(now - self.began);
        self.began = now;
    }

    /// A key that these have read expires, and nobody looks. False when this machine was too slow to say what the two servers
    /// should have answered.
    fn lapse(
        &mut self,
        key: &str,
        readers: &[usize],
        ttl: Duration,
        by: usize,
    ) -> Result<bool, Failure> {
        let began = Instant::now();
        let ms = ttl.as_millis().to_string();
        let mut said = self.say(by, &["PEXPIRE", key, &ms]);
        for reader in readers {
            said = said.and_then(|()| self.say(*reader, &["GET", key]));
        }
        if began.elapsed() > ttl * 3 / 4 {
            return Ok(false);
        }
        said?;
        // Not to wait for anybody: this is how time passes for a real server.
        std::thread::sleep(ttl + Duration::from_millis(2));
        Ok(true)
    }
}

fn frames(mut bytes: &[u8]) -> Result<Vec<Reply>, Failure> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        frames.push(Reply::read(&mut bytes)?);
    }
    Ok(frames)
}

/// Without the fields of a greeting that only real servers have; the keys of a scan in one order.
fn tidy(frames: Vec<Reply>, name: &[u8]) -> Vec<Reply> {
    let tidied = frames.into_iter().map(|frame| match (name, frame) {
        (b"HELLO", frame @ Reply::Many('*' | '%', _)) => frame.greeting(),
        (b"SCAN", Reply::Many('*', mut page)) => {
            if let Some(Reply::Many(_, keys)) = page.last_mut() {
                keys.sort_by_key(|key| format!("{key:?}"));
            }
            Reply::Many('*', page)
        }
        (_, frame) => frame,
    });
    tidied.collect()
}

impl Author {
    fn reading(&mut self) -> Vec<Vec<u8>> {
        let mut command = vec![
            self.pick(&["GET", "GET", "PTTL", "TYPE", "EXISTS"]),
            self.key(),
        ];
        if command[0] == b"EXISTS" {
            for _ in 0..self.below(3) {
                command.push(self.key());
            }
        }
        command
    }

    fn switching(&mut self) -> Vec<Vec<u8>> {
        match self.below(20) {
            0..=6 => words(&["CLIENT", "TRACKING", "ON"]),
            7..=13 => words(&["HELLO", "3"]),
            14 | 15 => words(&["CLIENT", "tracking", "on", "NoLoop"]),
            16 => words(&["CLIENT", "TRACKING", "OFF"]),
            17 => words(&["RESET"]),
            18 => vec![b"HELLO".to_vec(), self.pick(&["2", "3", "x"])],
            _ => {
                let wrong = [
                    &["CLIENT", "TRACKING"][..],
                    &["CLIENT", "TRACKING", "MAYBE"],
                    &["CLIENT", "TRACKING", "ON", "BOGUS"],
                    &["CLIENT", "TRACKING", "OFF", "NOLOOP"],
                    &["CLIENT", "TRACKING", "ON", "NOLOOP", "NOLOOP"],
                ];
                words(wrong[self.below(wrong.len())])
            }
        }
    }

    fn traffic(&mut self) -> Vec<Vec<u8>> {
        match self.below(40) {
            0..=13 => self.reading(),
            14..=18 => self.set(),
            19..=22 => self.script(),
            23 => self.fenced(),
            24 => self.queued(),
            25..=27 => {
                let mut command = vec![self.case("DEL"), self.key()];
                (0..self.below(3)).for_each(|_| command.push(self.key()));
                command
            }
            28 => vec![self.case("PEXPIRE"), self.key(), self.ttl()],
            29 => vec![self.pick(&["DELEX", "DELIFEQ"]), self.key(), self.value()],
            30 => vec![
                self.case("DELEX"),
                self.key(),
                self.case("IFEQ"),
                self.value(),
            ],
            31 => vec![self.case("RPUSH"), self.key(), self.value()],
            32 => words(&["SCAN", "0", "COUNT", "1000"]),
            33 => vec![
                b"SCAN".to_vec(),
                b"0".to_vec(),
                b"MATCH".to_vec(),
                self.pick(&["a", "[^a]", "*c*", "?", "zz"]),
                b"COUNT".to_vec(),
                b"1000".to_vec(),
            ],
            34 => {
                let mut command = vec![self.pick(&["FLUSHALL", "FLUSHDB", "flushall"])];
                match self.below(4) {
                    0 => command.push(b"ASYNC".to_vec()),
                    1 => command.push(b"sync".to_vec()),
                    _ => {}
                }
                command
            }
            35 => words(&["SCRIPT", "FLUSH"]),
            _ => self.switching(),
        }
    }
}

fn play(server: &Server, dialect: Dialect, seed: u64) -> Result<usize, Failure> {
    let mut author = Author(Rng::new(seed ^ 0x7ac4));
    let mut stage = Stage::new(server, dialect, false)?;
    for connection in 0..CONNECTIONS {
        // Most speak RESP3 and are tracked.
        if author.below(5) > 0 {
            stage.say(connection, &["HELLO", "3"])?;
        }
        match author.below(6) {
            0 => {}
            1 => stage.say(connection, &["CLIENT", "TRACKING", "ON", "NOLOOP"])?,
            _ => stage.say(connection, &["CLIENT", "TRACKING", "ON"])?,
        }
    }
    for _ in 0..STEPS {
        let connection = author.below(CONNECTIONS);
        match author.below(32) {
            0 => {
                let key = ["a", "b", "{c}"][author.below(3)];
                let readers: Vec<usize> =
                    (0..CONNECTIONS).filter(|_| author.below(2) == 0).collect();
                let ttl = Duration::from_millis(20);
                if !stage.lapse(key, &readers, ttl, connection)? {
                    break;
                }
            }
            _ => stage.compare(connection, &author.traffic())?,
        }
    }
    Ok(stage.pushes)
}

#[test]
fn whoever_is_tracked_is_told_the_same_as_by_the_real_one() -> Result<(), Failure> {
    each(|server, dialect| {
        let (mut failures, mut pushes) = (Vec::new(), 0);
        for seed in 0..SEQUENCES {
            match play(server, dialect, seed) {
                Ok(told) => pushes += told,
                Err(error) => failures.push(format!("seed {seed}: {error}")),
            }
        }
        println!("{pushes} pushes");
        match failures.first() {
            None if pushes < SEQUENCES as usize * STEPS / 16 => Err("hardly a push".into()),
            None => Ok(SEQUENCES as usize * STEPS),
            Some(first) => Err(format!(
                "{} of {SEQUENCES} sequences differ; {first}",
                failures.len()
            )
            .into()),
        }
    })
}

/// What the waiting for a lock stands on, step by step and not by chance.
#[test]
fn a_lock_that_is_waited_for_is_told_alike() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut stage = Stage::new(server, dialect, false)?;
        for connection in 0..2 {
            stage.say(connection, &["HELLO", "3"])?;
            stage.say(connection, &["CLIENT", "TRACKING", "ON"])?;
        }
        // A refused attempt is no read; a read of nothing is one.
        stage.say(0, &["SET", "a", "one", "NX", "GET", "PX", "60000"])?;
        stage.say(1, &["SET", "a", "two", "NX", "GET", "PX", "60000"])?;
        stage.say(0, &["PEXPIRE", "a", "50000"])?;
        stage.say(1, &["GET", "a"])?;
        stage.say(1, &["GET", "b"])?;
        stage.say(0, &["PEXPIRE", "a", "60000"])?;
        stage.say(0, &["SET", "b", "one"])?;
        // Once, and not again before another read.
        stage.say(0, &["DEL", "a", "b"])?;
        // Read before tracking was turned off, told when it is on again; and not to RESP2.
        stage.say(1, &["GET", "a"])?;
        stage.say(1, &["CLIENT", "TRACKING", "OFF"])?;
        stage.say(1, &["CLIENT", "TRACKING", "ON"])?;
        stage.say(0, &["SET", "a", "one"])?;
        stage.say(1, &["GET", "a"])?;
        stage.say(1, &["HELLO", "2"])?;
        stage.say(0, &["SET", "a", "two"])?;
        stage.say(1, &["HELLO", "3"])?;
        stage.say(0, &["SET", "a", "one"])?;
        // One's own writes, behind the reply; and one's own look at what has expired.
        stage.say(1, &["GET", "a"])?;
        stage.say(1, &["SET", "a", "two"])?;
        let ttl = Duration::from_millis(400);
        for look in [&["GET", "a"][..], &["SET", "a", "two", "NX", "GET"]] {
            stage.say(0, &["SET", "a", "one"])?;
            if !stage.lapse("a", &[1], ttl, 0)? {
                continue;
            }
            stage.say(0, &["GET", "b"])?;
            stage.say(1, look)?;
            stage.say(0, &["SET", "a", "one"])?;
        }
        // Everything at once, also to who has read nothing.
        stage.say(0, &["FLUSHALL"])?;
        stage.say(0, &["FLUSHDB", "ASYNC"])?;
        stage.say(0, &["SET", "a", "one"])?;
        Ok(35)
    })
}

/// When a real server looks for what has expired is its own affair; what it then says is not.
#[test]
fn what_expires_unseen_is_told_alike() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut stage = Stage::new(server, dialect, true)?;
        stage.say(0, &["HELLO", "3"])?;
        stage.say(0, &["CLIENT", "TRACKING", "ON"])?;
        let keys: Vec<String> = (0..8).map(|n| format!("k{n}")).collect();
        for key in &keys {
            stage.say(0, &["GET", key])?;
            stage.say(1, &["SET", key, "one"])?;
            stage.say(0, &["GET", key])?;
        }
        // By a script, so that all expire at once.
        let text = "for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, 600) end";
        let mut all = words(&["EVAL", text, "8"]);
        let mut reads = words(&["EXISTS"]);
        for key in &keys {
            all.push(key.clone().into_bytes());
            reads.push(key.clone().into_bytes());
            stage.fake.send(1, &["PEXPIRE", key, "600"]);
        }
        stage.real[1].execute(&all)?;
        stage.fake.received(1);
        assert_eq!(stage.real[0].until_pong()?.len(), keys.len());
        assert_eq!(frames(&stage.fake.received(0))?.len(), keys.len());
        stage.compare(0, &reads)?;
        // These come when they come.
        let mut real = BTreeSet::new();
        for _ in &keys {
            real.insert(format!("{:?}", Reply::read(&mut stage.real[0].0)?));
        }
        stage.fake.advance(Duration::from_secs(1));
        stage.fake.find_expired();
        let fake = frames(&stage.fake.received(0))?;
        let fake: BTreeSet<String> = fake.iter().map(|push| format!("{push:?}")).collect();
        assert_eq!(real, fake);
        assert_eq!(real.len(), keys.len());
        // Each once.
        assert!(stage.real[0].until_pong()?.is_empty());
        stage.fake.find_expired();
        assert!(stage.fake.received(0).is_empty());
        Ok(keys.len())
    })
}

/// A comparison that finds nothing shows nothing.
#[test]
fn a_push_too_few_or_at_another_place_is_noticed() -> Result<(), Failure> {
    let Some(kind) = ServerKind::all_required()
        .into_iter()
        .find(|kind| *kind == ServerKind::Valkey91)
    else {
        return Ok(());
    };
    let server = Server::start(kind, &[])?;
    // Redis 8 tells who flushes before it answers.
    let mut stage = Stage::new(&server, Dialect::Redis8, false)?;
    stage.say(0, &["CLIENT", "TRACKING", "ON"])?;
    stage.say(0, &["FLUSHALL"])?;
    stage.real[0].execute(&words(&["HELLO", "3"]))?;
    stage.fake.send(0, &["HELLO", "3"]);
    stage.fake.received(0);
    stage.say(0, &["CLIENT", "TRACKING", "ON"])?;
    let differs = stage.say(0, &["FLUSHALL"]).unwrap_err();
    assert!(differs.to_string().contains("FLUSHALL"), "{differs}");
    let mut stage = Stage::new(&server, Dialect::Valkey9, false)?;
    stage.say(0, &["HELLO", "3"])?;
    stage.say(0, &["CLIENT", "TRACKING", "ON"])?;
    stage.say(0, &["GET", "a"])?;
    stage.fake.send(0, &["CLIENT", "TRACKING", "OFF"]);
    stage.fake.received(0);
    assert!(stage.say(1, &["SET", "a", "one"]).is_err());
    Ok(())
}
