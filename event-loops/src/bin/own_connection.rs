//! Leases over a connection that the application owns already, through the `redis` crate, beside its own commands.
//!
//! Teaches the core without its own connection: `Leases` say what is to be done, a `Call` gives the command and judges the
//! reply, and the frames are somebody else's. Any client will do that can send a command of any words.
//!
//! `cargo run -p tenure-event-loops --bin own_connection -- redis://127.0.0.1:6379/ NAME` appends the lines of its input
//! to the list `journal`, while it holds, and ends with them.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::BufRead as _;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use redis::{Connection, RedisResult};
use tenure_client::system::Clock;
use tenure_core::config::{LeaseConfig, Terms, Wait};
use tenure_core::conn::{Reply, ServerInfo};
use tenure_core::error::{Failure, LinkFault};
use tenure_core::leases::{LeaseId, Leases, Notice, Options, Request};
use tenure_core::names::Names;
use tenure_core::plan::{Call, Dialect, Partial};
use tenure_core::resp::{Arg, Value};
use tenure_core::time::Tick;
use tenure_event_loops::{arguments, secret, unix_ms};

const LEASE: Duration = Duration::from_secs(3);
/// While anything is held the clock is read at least this often: a timeout does not count a suspension.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// The time between two tries to connect.
const RECONNECT: Duration = Duration::from_millis(50);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let [url, name] = arguments("URL NAME")?;
    let clock = Clock::new();
    let mut leases = Leases::new(Names::new("lock:", "the journal example")?, unix_ms());
    let terms = LeaseConfig::new(LEASE).build()?;
    let request = Request {
        name: name.as_bytes(),
        terms,
        wait: Wait::Forever,
        secret: secret()?,
        options: Options::default(),
        since_ms: unix_ms(),
    };
    let lease = leases.acquire(clock.now(), &request)?;
    let app = App {
        client: redis::Client::open(url)?,
        connection: None,
        connect_at: Tick::ZERO,
        dialect: Dialect::of(&ServerInfo::default()),
        clock,
        leases,
        lease,
        terms,
        is_lost: false,
    };
    // The application's own events: here, lines.
    let (send, inbox) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            send.send(line).ok();
        }
    });
    Ok(ExitCode::from(app.run(&inbox)))
}

struct App {
    client: redis::Client,
    connection: Option<Connection>,
    connect_at: Tick,
    dialect: Dialect,
    clock: Clock,
    leases: Leases,
    lease: LeaseId,
    terms: Terms,
    is_lost: bool,
}

impl App {
    fn run(mut self, inbox: &Receiver<String>) -> u8 {
        // Lines that came before the lease, or while there was no connection.
        let mut waiting = Vec::new();
        let mut open = true;
        loop {
            self.drive();
            // Freshly read, before each thing that must not overlap with another holder.
            while !waiting.is_empty() && self.leases.holds_at(self.lease, self.clock.now()) {
                let Some(connection) = &mut self.connection else {
                    break;
                };
                let pushed: RedisResult<()> = redis::cmd("RPUSH")
                    .arg("journal")
                    .arg(&waiting[0])
                    .query(connection);
                match pushed {
                    Ok(()) => drop(waiting.remove(0)),
                    Err(_) => self.disconnected(),
                }
            }
            if self.is_lost || (!open && waiting.is_empty() && !self.leases.is_empty()) {
                self.finish();
                self.drive();
            }
            if self.leases.is_finished() {
                return u8::from(self.is_lost);
            }
            match inbox.recv_timeout(self.patience()) {
                Ok(line) => waiting.push(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if open => open = false,
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(self.patience()),
            }
        }
    }

    /// Does what is due: all operations in one pipeline, then what their replies lead to.
    fn drive(&mut self) {
        self.leases.handle_timeout(self.clock.now());
        self.connect();
        let mut calls = Vec::new();
        // An operation is taken only when it can be sent: until then it can be withdrawn.
        while self.connection.is_some() {
            while let Some(op) = self.leases.poll_op(self.clock.now()) {
                calls.push(Call::new(&self.dialect, op));
            }
            if calls.is_empty() {
                break;
            }
            calls = self.send(calls);
        }
        // Nothing that is no longer wanted can be withdrawn: it has been executed.
        while self.leases.poll_superseded().is_some() {}
        while let Some(event) = self.leases.poll_event() {
            match event.notice {
                Notice::Acquired { .. } => println!("held"),
                Notice::Renewed { .. } => println!("renewed"),
                Notice::Lost { lost, .. } => {
                    println!("lost: {}", lost.cause);
                    self.is_lost = true;
                }
                Notice::Failed(fault) => {
                    println!("failed: {:?}", fault.failure);
                    self.is_lost = true;
                }
                notice => println!("{notice:?}"),
            }
        }
    }

    /// Sends all calls at once and judges their replies; what is to be sent next comes back.
    fn send(&mut self, calls: Vec<Call>) -> Vec<Call> {
        let mut pipeline = redis::pipe();
        let mut sent = Vec::new();
        for call in calls {
            call.commands(&self.leases, |words| {
                pipeline.add_command(command(words));
            });
            sent.push((call, call.replies(&self.leases)));
        }
        let limit = Some(self.limit());
        // Before the first byte leaves: validity counts from here.
        let handed_out = self.clock.now();
        let answer = self.connection.as_mut().map(|connection| {
            connection.set_read_timeout(limit)?;
            connection.set_write_timeout(limit)?;
            pipeline.ignore_errors().query(connection)
        });
        let Some(Ok(redis::Value::Array(values))) = answer else {
            // Nobody knows what was executed. The client may not say so, and may get the late replies mixed up: away with it.
            let now = self.clock.now();
            let failure = Failure::Link(LinkFault::Closed);
            for (call, _) in sent {
                call.handle_no_reply(
                    now,
                    &mut self.leases,
                    &mut Partial::default(),
                    true,
                    failure,
                );
            }
            self.disconnected();
            return Vec::new();
        };
        let mut values = values.into_iter();
        let (mut partial, mut again) = (Partial::default(), Vec::new());
        for (call, replies) in sent {
            for more in (0..replies).rev() {
                let (now, theirs) = (self.clock.now(), values.next().unwrap_or_default());
                let error = match &theirs {
                    redis::Value::ServerError(error) => {
                        format!("{} {}", error.code(), error.details().unwrap_or_default())
                    }
                    _ => String::new(),
                };
                let reply = Reply {
                    tag: call,
                    value: value(&theirs, &error),
                    handed_out,
                    more,
                };
                let (leases, dialect) = (&mut self.leases, &mut self.dialect);
                again.extend(Call::handle_reply(
                    &reply,
                    now,
                    leases,
                    dialect,
                    &mut partial,
                ));
            }
        }
        again
    }

    fn connect(&mut self) {
        let now = self.clock.now();
        if self.connection.is_some() || now < self.connect_at || self.leases.is_empty() {
            return;
        }
        self.connect_at = now + RECONNECT;
        // To connect takes a few questions and answers.
        let limit = self.limit() / 4;
        let connected = self.client.get_connection_with_timeout(limit);
        let now = self.clock.now();
        match connected {
            Ok(connection) => {
                self.connection = Some(connection);
                // It may be another server.
                self.dialect = Dialect::of(&ServerInfo::default());
                self.leases.handle_link_up(now);
            }
            Err(error) => {
                let failure = Failure::Link(LinkFault::Dial);
                let why = error.to_string();
                self.leases.handle_link_failed(now, failure, why.as_bytes());
            }
        }
    }

    fn disconnected(&mut self) {
        self.connection = None;
        self.leases.handle_link_down(self.clock.now());
    }

    /// Releases what is held, or gives up asking.
    fn finish(&mut self) {
        let now = self.clock.now();
        self.leases.drop_guard(now, self.lease);
        self.leases.close(now);
    }

    /// How long a call may block: for a reply limit, and not past what is due next, which may be to give up a hold.
    fn limit(&self) -> Duration {
        let now = self.clock.now();
        let most = self.terms.reply_limit();
        let due = self.leases.timer().at(now).unwrap_or(now + most);
        // A timeout of zero means for ever to the system.
        due.saturating_since(now)
            .clamp(Duration::from_millis(4), most)
    }

    fn patience(&self) -> Duration {
        let now = self.clock.now();
        // Without a connection operations are waiting, which makes `deadline` say `Now`: the timer is what to sleep for.
        let due = self.leases.timer().at(now).unwrap_or(now + CLOCK_CHECK);
        let due = due.min(now + CLOCK_CHECK);
        let due = match self.connection {
            Some(_) => due,
            None => due.min(self.connect_at),
        };
        due.saturating_since(now)
    }
}

fn command(words: &[Arg<'_>]) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in words {
        match word {
            Arg::Bytes(bytes) => command.arg(*bytes),
            Arg::Parts(parts) => command.arg(parts.concat()),
            Arg::Int(number) => command.arg(*number),
        };
    }
    command
}

/// Their value as ours; `error` are the words of an error.
fn value<'a>(theirs: &'a redis::Value, error: &'a str) -> Value<'a> {
    match theirs {
        redis::Value::Nil => Value::Null,
        redis::Value::Okay => Value::Simple(b"OK"),
        redis::Value::Int(number) => Value::Int(*number),
        redis::Value::Boolean(boolean) => Value::Bool(*boolean),
        redis::Value::BulkString(bytes) => Value::Bulk(bytes),
        redis::Value::ServerError(_) => Value::Error(error.as_bytes()),
        // None of our commands is answered so: it counts as "nobody knows what was executed".
        _ => Value::Simple(b"?"),
    }
}
