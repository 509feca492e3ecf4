//! The simulated server answers as the real ones do: the same commands in the same order, compared reply by reply.
//!
//! Compared are the type of a reply, its value, the first word of an error, and a time to live within a second.
//! What is left out, and why:
//!
//! - texts of errors: the client looks at the first word only, and so does this;
//! - what the client never sends and the simulated server does not know (`SET .. XX`, `DELEX .. IFNE`, other scripts than
//!   those of the library, and so on): it answers with an error, so a client that sent them would be found out;
//! - the fields of `HELLO` that nobody reads: only server, version and protocol are there; and of `INFO` most lines;
//! - ways of tracking that the client does not use (`BCAST`, `OPTIN`, `OPTOUT`, `REDIRECT`): an error, too.

mod about;
mod tracking;

use std::io::{BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_core::plan::{ADOPT, CLEAR, COOL, MINT, PASS, REMOVE, RENEW, TAKE};
use tenure_core::rng::Rng;
use tenure_sim::{Dialect, FakeServer};
use tenure_tests::{Failure, Server, ServerKind};

const SEQUENCES: u64 = 250;
const COMMANDS: usize = 60;

/// The simulated server that stands for a real one.
fn dialect(kind: ServerKind) -> Dialect {
    match kind {
        ServerKind::Redis70 => Dialect::Redis7,
        ServerKind::Redis86 => Dialect::Redis8,
        ServerKind::Valkey81 => Dialect::Valkey8,
        ServerKind::Valkey91 => Dialect::Valkey9,
    }
}

/// A reply as it went over the wire, of either version of the protocol.
#[derive(Clone, Debug, PartialEq)]
enum Reply {
    /// `+`, `_`, `$-1`, `*-1` and everything else that is one line.
    Line(String),
    /// The first word.
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// The type and what is inside.
    Many(char, Vec<Reply>),
}

impl Reply {
    fn read(from: &mut impl std::io::BufRead) -> Result<Reply, Failure> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or("half a line")?;
        let kind = line.chars().next().ok_or("an empty line")?;
        let rest = &line[1..];
        Ok(match kind {
            '-' => Reply::Error(rest.split(' ').next().unwrap_or_default().to_owned()),
            ':' => Reply::Int(rest.parse()?),
            '$' | '=' if rest != "-1" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(bytes)
            }
            '*' | '>' | '%' if rest != "-1" => {
                let pairs = if kind == '%' { 2 } else { 1 };
                let count = rest.parse::<usize>()? * pairs;
                let inside = (0..count)
                    .map(|_| Reply::read(from))
                    .collect::<Result<_, _>>()?;
                Reply::Many(kind, inside)
            }
            _ => Reply::Line(line.to_owned()),
        })
    }

    /// Of a greeting what the simulated server says, too.
    fn greeting(self) -> Reply {
        let Reply::Many(kind, fields) = self else {
            return self;
        };
        let told = [&b"server"[..], b"version", b"proto", b"mode"];
        let pairs = fields.chunks_exact(2).filter(
            |pair| matches!(&pair[0], Reply::Bulk(name) if told.contains(&name.as_slice())),
        );
        Reply::Many(kind, pairs.flatten().cloned().collect())
    }

    /// Whether it is the other one, with up to a second between times to live.
    fn agrees(&self, other: &Reply, ttl: bool) -> bool {
        match (self, other) {
            (Reply::Int(a), Reply::Int(b)) if ttl && *a >= 0 && *b >= 0 => a.abs_diff(*b) < 1_000,
            // Fences are times: the two clocks are read one after the other.
            (Reply::Int(a), Reply::Int(b)) if *a > FENCES && *b > FENCES => near(*a, *b),
            (Reply::Bulk(a), Reply::Bulk(b)) => match (fence(a), fence(b)) {
                (Some(a), Some(b)) => near(a, b),
                _ => a == b,
            },
            // A value that is in the way, and its time to live.
            (Reply::Many('*', a), Reply::Many('*', b)) => match (&a[..], &b[..]) {
                ([value, left, full @ ..], [other, right @ Reply::Int(_), also @ ..]) => {
                    value == other && full == also && left.agrees(right, true)
                }
                _ => a == b,
            },
            (a, b) => a == b,
        }
    }
}

/// Less than the time in microseconds.
const FENCES: i64 = 1_700_000_000_000_000;

/// What a counter of fences has, if it is of this time.
fn fence(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|fence| *fence > FENCES)
}

fn near(a: i64, b: i64) -> bool {
    a.abs_diff(b) < 1_000_000
}

/// A connection to a real server.
struct Real(BufReader<UnixStream>);

impl Real {
    fn connect(server: &Server) -> Result<Real, Failure> {
        let stream = UnixStream::connect(server.socket_path())?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        Ok(Real(BufReader::new(stream)))
    }

    fn execute(&mut self, words: &[Vec<u8>]) -> Result<Reply, Failure> {
        self.send(words)?;
        Reply::read(&mut self.0)
    }

    fn send(&mut self, words: &[Vec<u8>]) -> Result<(), Failure> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend(word);
            bytes.extend(b"\r\n");
        }
        Ok(self.0.get_mut().write_all(&bytes)?)
    }

    /// Everything that came before the answer to a PING: whatever was caused before has arrived by then.
    fn until_pong(&mut self) -> Result<Vec<Reply>, Failure> {
        self.send(&words(&["PING"]))?;
        let mut before = Vec::new();
        loop {
            match Reply::read(&mut self.0)? {
                Reply::Line(pong) if pong == "+PONG" => return Ok(before),
                other => before.push(other),
            }
        }
    }
}

/// Both servers, and what they were told so far.
struct Pair {
    real: Real,
    fake: FakeServer,
    began: Instant,
    log: Vec<String>,
}

impl Pair {
    fn new(server: &Server, dialect: Dialect) -> Result<Pair, Failure> {
        let mut real = Real::connect(server)?;
        real.execute(&words(&["FLUSHALL"]))?;
        real.execute(&words(&["SCRIPT", "FLUSH"]))?;
        let mut fake = FakeServer::new(dialect);
        // The server is on this machine.
        fake.set_clock(SystemTime::now().duration_since(UNIX_EPOCH)?);
        Ok(Pair {
            real,
            fake,
            began: Instant::now(),
            log: Vec::new(),
        })
    }

    /// Sends a command to both; what they said if they disagree.
    fn compare(&mut self, command: &[Vec<u8>]) -> Result<(), Failure> {
        let name = command[0].to_ascii_uppercase();
        let mut real = self.real.execute(command)?;
        // The clock of the simulated server is that of the real one.
        let now = Instant::now();
        self.fake.advance(now - self.began);
        self.began = now;
        let mut fake = Reply::read(&mut self.fake.execute(command).as_slice())?;
        if name == b"HELLO" {
            (real, fake) = (real.greeting(), fake.greeting());
        }
        self.log.push(format!("{} -> {real:?}", show(command)));
        if real.agrees(&fake, name == b"PTTL") {
            return Ok(());
        }
        let from = self.log.len().saturating_sub(25);
        Err(format!(
            "answered {fake:?} by the simulated one\n{}",
            self.log[from..].join("\n")
        )
        .into())
    }
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn show(command: &[Vec<u8>]) -> String {
    let words = command.iter().map(|word| match word.len() {
        0..60 => String::from_utf8_lossy(word).into_owned(),
        _ => format!("{}..", String::from_utf8_lossy(&word[..20])),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Makes commands up.
struct Author(Rng);

impl Author {
    fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    fn pick(&mut self, from: &[&str]) -> Vec<u8> {
        from[self.below(from.len())].as_bytes().to_vec()
    }

    fn key(&mut self) -> Vec<u8> {
        self.pick(&["a", "b", "{c}"])
    }

    fn value(&mut self) -> Vec<u8> {
        self.pick(&[
            "one",
            "two",
            "one",
            "two",
            "",
            "tn1:t:0:me.s.1",
            "\u{fffd}\r\n$",
        ])
    }

    /// Far away or wrong, so that nothing expires between the two servers.
    fn ttl(&mut self) -> Vec<u8> {
        let far = ["60000", "300000", "100", "7000000"];
        let wrong = [
            "0",
            "-1",
            "",
            "x",
            "1.5",
            "+60000",
            "060000",
            " 60000",
            "60000 ",
            "-0",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "9223372036854775",
            "4611686018427387904",
            "18446744073709551615",
        ];
        // A hundred is for seconds only: as milliseconds it would be soon.
        match self.below(4) {
            0 => self.pick(&wrong),
            _ => self.pick(&far[..2]),
        }
    }

    fn case(&mut self, word: &str) -> Vec<u8> {
        match self.below(8) {
            0 => word.to_ascii_lowercase().into_bytes(),
            _ => word.as_bytes().to_vec(),
        }
    }

    fn set(&mut self) -> Vec<Vec<u8>> {
        let mut command = vec![self.case("SET"), self.key(), self.value()];
        let mut options: Vec<Vec<Vec<u8>>> = Vec::new();
        if self.below(3) == 0 {
            options.push(vec![self.case("NX")]);
        }
        if self.below(2) == 0 {
            options.push(vec![self.case("GET")]);
        }
        if self.below(3) == 0 {
            options.push(vec![self.case("IFEQ"), self.value()]);
        }
        match self.below(12) {
            0..=5 => options.push(vec![self.case("PX"), self.ttl()]),
            6 | 7 => options.push(vec![self.case("EX"), self.ttl()]),
            8 => {
                options.push(vec![self.case("EX"), b"100".to_vec()]);
                options.push(vec![self.case("PX"), self.ttl()]);
            }
            _ => {}
        }
        match self.below(24) {
            0 => options.push(vec![self.pick(&["PX", "EX", "IFEQ", "BOGUS", ""])]),
            1 => options.push(vec![self.pick(&["NX", "GET"])]),
            2 => options.push(vec![self.case("PX"), self.ttl()]),
            3 => options.push(vec![self.case("IFEQ"), self.value()]),
            _ => {}
        }
        while !options.is_empty() {
            let next = self.below(options.len());
            command.extend(options.swap_remove(next));
        }
        command
    }

    fn script(&mut self) -> Vec<Vec<u8>> {
        let script = [&RENEW, &ADOPT, &CLEAR][self.below(3)];
        let mut command = match self.below(2) {
            0 => vec![self.case("EVAL"), script.text.as_bytes().to_vec()],
            _ => vec![
                self.case("EVALSHA"),
                self.case(&script.sha.to_ascii_uppercase()),
            ],
        };
        if command[1].len() == 40 && self.below(3) > 0 {
            command[1] = script.sha.as_bytes().to_vec();
        }
        command.push(match self.below(16) {
            0 => self.pick(&["0", "2", "x", "-1", "", "01", "+1"]),
            _ => b"1".to_vec(),
        });
        command.extend([self.key(), self.value(), self.ttl(), self.value()]);
        match self.below(12) {
            0 => command.truncate(3 + self.below(4)),
            1 => command.push(self.value()),
            _ if command[1] == CLEAR.text.as_bytes() => command.truncate(5),
            _ => {}
        }
        command
    }

    /// What removes by force, as it is sent: it counts on its keys and its argument.
    fn removal(&mut self) -> Vec<Vec<u8>> {
        let script = match self.below(2) {
            0 => [self.case("EVAL"), REMOVE.text.as_bytes().to_vec()],
            _ => [self.case("EVALSHA"), REMOVE.sha.as_bytes().to_vec()],
        };
        let rest = [b"2".to_vec(), self.key(), self.key(), self.value()];
        let mut command: Vec<Vec<u8>> = script.into_iter().chain(rest).collect();
        if self.below(2) == 0 {
            command.push(self.value());
        }
        command
    }

    /// What lets go before a minimum is over, as it is sent: the values of the hold first, then others.
    fn cooling(&mut self) -> Vec<Vec<u8>> {
        let script = match self.below(2) {
            0 => [self.case("EVAL"), COOL.text.as_bytes().to_vec()],
            _ => [self.case("EVALSHA"), COOL.sha.as_bytes().to_vec()],
        };
        let mut command: Vec<Vec<u8>> = script.into_iter().collect();
        command.extend([b"1".to_vec(), self.key(), self.value()]);
        command.extend([
            self.pick(&["60000", "300000"]),
            self.pick(&["1", "1", "2", "0"]),
        ]);
        for _ in 0..1 + self.below(3) {
            command.push(self.value());
        }
        command
    }

    /// A counter of fences, which nothing else touches: of two times not all digits are the same.
    fn counter(&mut self) -> Vec<u8> {
        self.pick(&["f", "f", "g"])
    }

    /// What mints, as it is sent, or a change to a counter.
    fn fenced(&mut self) -> Vec<Vec<u8>> {
        let counters = [
            "0",
            "5",
            "007",
            "9007199254740990",
            "9007199254740993",
            "99999999999999999999999",
            "",
            "x",
            "-5",
            "0x10",
            "1e15",
            " 1",
        ];
        match self.below(8) {
            0 => return vec![self.case("SET"), self.counter(), self.pick(&counters)],
            1 => return vec![self.case("DEL"), self.counter()],
            2 => return vec![self.pick(&["GET", "PTTL"]), self.counter()],
            3 if self.below(4) == 0 => {
                return vec![b"RPUSH".to_vec(), self.counter(), b"x".to_vec()];
            }
            _ => {}
        }
        let mut command = match self.below(2) {
            0 => vec![self.case("EVAL"), MINT.text.as_bytes().to_vec()],
            _ => vec![self.case("EVALSHA"), MINT.sha.as_bytes().to_vec()],
        };
        let floor = self.pick(&["0", "0", "5", "9007199254740990"]);
        let (key, counter) = (self.key(), self.counter());
        command.extend([b"2".to_vec(), key, counter, self.value()]);
        command.extend([self.pick(&["60000", "300000"]), floor]);
        if self.below(2) == 0 {
            command.push(self.value());
        }
        command
    }

    /// An entry of a queue that does not end between the two servers, or what stands for none.
    fn entry(&mut self) -> Vec<u8> {
        self.pick(&["60000 one", "60000 two", "300000 three", "300000 four", ""])
    }

    /// What takes in turn and passes on, as it is sent, or a change to a queue.
    fn queued(&mut self) -> Vec<Vec<u8>> {
        let queue = self.pick(&["q", "q", "r"]);
        let alive = [&queue[..], b"+"].concat();
        match self.below(12) {
            0 => return vec![self.pick(&["TYPE", "EXISTS", "PTTL", "GET"]), queue],
            1 => return vec![self.pick(&["TYPE", "EXISTS", "PTTL", "DEL"]), alive],
            2 if self.below(8) == 0 => return vec![b"RPUSH".to_vec(), queue, b"x".to_vec()],
            _ => {}
        }
        // Far apart, so that both servers have the same order.
        let age = self.pick(&["0", "0", "10000000", "20000000"]);
        let key = self.key();
        let (script, rest) = match self.below(2) {
            0 => {
                let keys = [b"4".to_vec(), key, queue, alive, self.counter()];
                let ttl = self.pick(&["60000", "300000"]);
                let floor = self.pick(&["", "", "0", "9007199254740990"]);
                let arguments = [self.value(), ttl, self.entry(), age, floor];
                let most = match self.below(2) {
                    0 => vec![],
                    _ => vec![self.pick(&["1", "1", "2"])],
                };
                (&TAKE, [&keys[..], &arguments, &most].concat())
            }
            _ => {
                let keys = [b"3".to_vec(), key, queue, alive];
                let arguments = [self.entry(), self.entry(), age, self.pick(&["0", "1", "2"])];
                let mut rest = [&keys[..], &arguments].concat();
                for _ in 0..self.below(3) {
                    rest.push(self.pick(&["one", "two", "three"]));
                }
                (&PASS, rest)
            }
        };
        let command = match self.below(2) {
            0 => [self.case("EVAL"), script.text.as_bytes().to_vec()],
            _ => [self.case("EVALSHA"), script.sha.as_bytes().to_vec()],
        };
        command.into_iter().chain(rest).collect()
    }

    fn command(&mut self) -> Vec<Vec<u8>> {
        match self.below(16) {
            0 | 1 => return self.fenced(),
            2 | 3 => return self.queued(),
            4 => return self.cooling(),
            _ => {}
        }
        let mut command = match self.below(40) {
            0..=11 => self.set(),
            12..=19 => self.script(),
            20 if self.below(2) == 0 => self.removal(),
            20 => {
                let mut place = || self.pick(&["0", "1", "-1", "-3", "255", "x"]);
                let (start, end) = (place(), place());
                vec![self.case("GETRANGE"), self.key(), start, end]
            }
            21 | 22 => vec![self.case("GET"), self.key()],
            23..=26 => vec![self.case("PTTL"), self.key()],
            27 => vec![self.case("EXISTS"), self.key()],
            28 | 29 => vec![self.case("DEL"), self.key()],
            30 | 31 => vec![
                self.case("DELEX"),
                self.key(),
                self.case("IFEQ"),
                self.value(),
            ],
            32 | 33 => vec![self.case("DELIFEQ"), self.key(), self.value()],
            34 => vec![self.case("RPUSH"), self.key(), self.value()],
            35 => words(&["SCRIPT", "FLUSH"]),
            36 => vec![
                self.case("HELLO"),
                self.pick(&["2", "3", "2", "3", "4", "x", "1", ""]),
            ],
            37 => vec![self.pick(&["NOSUCH", "", "TENURE", "DELX"]), self.key()],
            38 => vec![self.case("DELEX"), self.key()],
            _ => vec![self.case("PING")],
        };
        if self.below(40) == 0 {
            // One word too few, or one that does not belong.
            match self.below(2) {
                0 if command.len() > 1 => drop(command.pop()),
                // A second key is none of the client's commands.
                _ if !["DEL", "EXISTS", "PING", "RPUSH", "HELLO", "SCRIPT"]
                    .iter()
                    .any(|name| command[0].eq_ignore_ascii_case(name.as_bytes())) =>
                {
                    command.push(self.value());
                }
                _ => {}
            }
        }
        command
    }
}

/// Every required server, with the simulated one that stands for it.
fn each(test: impl Fn(&Server, Dialect) -> Result<usize, Failure>) -> Result<(), Failure> {
    for kind in ServerKind::all_required() {
        let server = Server::start(kind, &[])?;
        let commands = test(&server, dialect(kind)).map_err(|error| format!("{kind}: {error}"))?;
        println!("{kind}: {commands} commands answered alike");
    }
    Ok(())
}

#[test]
fn the_simulated_server_answers_as_the_real_one() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut failures = Vec::new();
        for seed in 0..SEQUENCES {
            let mut author = Author(Rng::new(seed));
            let mut pair = Pair::new(server, dialect)?;
            for _ in 0..COMMANDS {
                let command = author.command();
                if let Err(error) = pair.compare(&command) {
                    failures.push(format!("seed {seed}: {error}"));
                    break;
                }
            }
        }
        match failures.first() {
            None => Ok(SEQUENCES as usize * COMMANDS),
            Some(first) => Err(format!(
                "{} of {SEQUENCES} sequences differ; {first}",
                failures.len()
            )
            .into()),
        }
    })
}

#[test]
fn s16_a_server_without_replicas_is_waited_for_alike() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut pair = Pair::new(server, dialect)?;
        let all = [
            "SET a b",
            "WAIT 1 1",
            "WAIT 0 1",
            "WAIT one 1",
            "WAIT 1 -1",
            "WAIT 1",
            "WAITAOF 0 1 1",
            "WAITAOF 0 0 1",
            "WAITAOF 1 1 1",
            "WAITAOF 1 1",
        ];
        for line in all {
            let command: Vec<&str> = line.split(' ').collect();
            pair.compare(&words(&command))?;
        }
        Ok(all.len())
    })
}

#[test]
fn keys_expire_alike() -> Result<(), Failure> {
    each(|server, dialect| {
        let mut author = Author(Rng::new(7));
        let mut commands = 0;
        for round in 0..24 {
            let mut pair = Pair::new(server, dialect)?;
            let ms = (20 + author.below(31)).to_string();
            let writes: Vec<Vec<&str>> = match round % 4 {
                0 => vec![vec!["SET", "a", "one", "PX", &ms]],
                1 => vec![vec!["SET", "a", "one", "NX", "GET", "PX", &ms]],
                2 => vec![
                    vec!["SET", "a", "one", "EX", "100"],
                    vec!["EVAL", RENEW.text, "1", "a", "one", &ms],
                ],
                _ if round % 8 == 3 => vec![
                    vec!["SET", "b", "tn1:p:0:me.s.1", "PX", "70000"],
                    vec!["EVAL", REMOVE.text, "2", "b", "a", "by"],
                    vec!["PEXPIRE", "a", &ms],
                ],
                _ => vec![
                    vec!["SET", "a", "one"],
                    vec!["EVAL", ADOPT.text, "1", "a", "one", &ms, "two"],
                ],
            };
            for write in &writes {
                pair.compare(&words(write))?;
            }
            std::thread::sleep(Duration::from_millis(60));
            let look = ["GET", "PTTL", "EXISTS", "DEL"][author.below(4)];
            pair.compare(&words(&[look, "a"]))?;
            pair.compare(&words(&["SET", "a", "new", "NX", "PX", "60000"]))?;
            pair.compare(&words(&["GET", "a"]))?;
            pair.compare(&words(&["PTTL", "a"]))?;
            commands += writes.len() + 4;
        }
        Ok(commands)
    })
}

/// A comparison that finds nothing shows nothing: two different servers are told apart.
#[test]
fn another_dialect_is_noticed() -> Result<(), Failure> {
    let Some(kind) = ServerKind::all_required()
        .into_iter()
        .find(|kind| *kind == ServerKind::Valkey91)
    else {
        return Ok(());
    };
    let server = Server::start(kind, &[])?;
    let mut pair = Pair::new(&server, Dialect::Redis8)?;
    let differs = pair.compare(&words(&["DELIFEQ", "a", "one"])).unwrap_err();
    assert!(differs.to_string().contains("DELIFEQ"), "{differs}");
    let mut pair = Pair::new(&server, Dialect::Valkey8)?;
    assert!(pair.compare(&words(&["DELIFEQ", "a", "one"])).is_err());
    let mut pair = Pair::new(&server, Dialect::Valkey9)?;
    pair.compare(&words(&["SET", "a", "one", "PX", "60000"]))?;
    pair.fake.advance(Duration::from_secs(5));
    assert!(pair.compare(&words(&["PTTL", "a"])).is_err());
    Ok(())
}
