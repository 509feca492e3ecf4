//! A5 on real servers: two copies of one machine, each on a connection of its own, and what rotation costs.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tenure_client::{Cause, Error};
use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::leases::{LeaseId, Notice, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;
use tenure_tests::{
    Client, Cut, Failure, Proxy, Server, ServerKind, Side, Tenure, eventually, key_of,
};

type Outcome = Result<(), Failure>;

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(5);

fn each(show: impl Fn(&mut Server, &mut Client) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        let mut server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        show(&mut server, &mut client).map_err(|why| format!("{kind}: {why}"))?;
    }
    Ok(())
}

/// A machine on a socket of its own.
struct Process {
    mux: Mux,
    socket: Option<TcpStream>,
    told: Vec<(LeaseId, Notice)>,
    began: Instant,
    /// What its system gives for entropy.
    entropy: u8,
}

impl Process {
    fn new() -> Result<Process, Failure> {
        let mut config = MuxConfig::new(Names::new("lock:", "me")?);
        config.watch = false;
        Ok(Process {
            mux: Mux::new(config, 1),
            socket: None,
            told: Vec::new(),
            began: Instant::now(),
            entropy: 1,
        })
    }

    fn copy(&self) -> Process {
        let mut mux = self.mux.clone();
        mux.handle_disconnected(self.now());
        Process {
            mux,
            socket: None,
            told: Vec::new(),
            began: self.began,
            entropy: 101,
        }
    }

    fn now(&self) -> Tick {
        let passed = self.began.elapsed().as_micros();
        Tick::from_micros(1_000_000 + u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Drives it until this is true.
    fn until(
        &mut self,
        server: &Server,
        mut done: impl FnMut(&Process) -> bool,
    ) -> Result<(), Failure> {
        let end = Instant::now() + SOON;
        while !done(self) {
            if Instant::now() > end {
                return Err(format!("nothing came of it: {:?}", self.told).into());
            }
            self.turn(server)?;
        }
        Ok(())
    }

    fn turn(&mut self, server: &Server) -> Result<(), Failure> {
        let now = self.now();
        if let Some(socket) = &mut self.socket {
            match socket.read(self.mux.recv_space()) {
                Ok(0) => self.mux.handle_disconnected(now),
                Ok(n) => self.mux.received(now, n),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.mux.handle_timeout(now);
        loop {
            if self.mux.wants_stirring() {
                self.entropy += 1;
                self.mux.stir(Some([self.entropy; 16]));
            }
            let now = self.now();
            match self.mux.poll_output(now) {
                Output::Lease(event) => self.told.push((event.id, event.notice)),
                Output::Connect => {
                    let socket = TcpStream::connect(server.addr())?;
                    socket.set_read_timeout(Some(Duration::from_millis(5)))?;
                    self.socket = Some(socket);
                    self.mux.handle_connected(now);
                }
                Output::Disconnect => self.socket = None,
                Output::Transmit(bytes) => {
                    let n = bytes.len();
                    let socket = self.socket.as_mut().ok_or("no socket")?;
                    socket.write_all(bytes)?;
                    self.mux.transmitted(now, n);
                }
                Output::Idle(_) => return Ok(()),
                Output::Answer(_) | Output::Link(_) => {}
            }
        }
    }

    fn renewed(&self) -> usize {
        let notices = self.told.iter();
        notices
            .filter(|(_, notice)| matches!(notice, Notice::Renewed { .. }))
            .count()
    }

    fn lost(&self) -> Option<Cause> {
        self.told.iter().find_map(|(_, notice)| match notice {
            Notice::Lost { lost, .. } => Some(lost.cause),
            _ => None,
        })
    }

    fn holds(&self, id: LeaseId) -> bool {
        self.mux.leases().holds_at(id, self.now())
    }
}

#[test]
fn a5_of_two_copies_of_a_process_one_is_told_at_its_first_renewal() -> Outcome {
    each(|server, client| {
        for copied_after in 0..2 {
            let mut one = Process::new()?;
            let terms = LeaseConfig::new(MINUTE).build()?;
            let request = Request {
                name: b"a",
                terms,
                wait: Wait::Forever,
                options: Options {
                    rotate: true,
                    ..Options::default()
                },
                secret: [7; 16],
                since_ms: 0,
            };
            let id = one.mux.acquire(one.now(), &request)?;
            one.until(server, |one| one.holds(id))?;
            for _ in 0..copied_after {
                one.mux.renew_now(one.now(), id);
                one.until(server, |one| one.renewed() == 1)?;
            }
            let renewed = one.renewed();
            let mut other = one.copy();
            assert!(one.holds(id) && other.holds(id));
            one.mux.renew_now(one.now(), id);
            one.until(server, |one| one.renewed() > renewed)?;
            // Its first renewal comes with its connection.
            other.until(server, |other| other.lost().is_some())?;
            assert_eq!(other.lost(), Some(Cause::Replaced));
            let value = client.get(&key_of("a"))?;
            other.mux.drop_guard(other.now(), id);
            other.until(server, |other| other.mux.leases().is_empty())?;
            assert_eq!(client.get(&key_of("a"))?, value);
            assert!(one.holds(id));
            one.mux.release(one.now(), id);
            one.until(server, |one| one.mux.leases().is_empty())?;
            assert!(!client.exists(&key_of("a"))?);
        }
        Ok(())
    })
}

#[test]
fn a5_every_renewal_writes_a_new_value_and_a_release_removes_the_last() -> Outcome {
    each(|server, client| {
        let tenure = Tenure::connect(&server.url(), "me")?;
        for fenced in [false, true] {
            let request = tenure.locks().lock("a").lease(MINUTE).rotate();
            let request = if fenced { request.fenced() } else { request };
            let lock = tenure.wait(request.acquire())??;
            let mut seen = Vec::new();
            for _ in 0..5 {
                let value = client.get(&key_of("a"))?.ok_or("no key")?;
                assert!(value.starts_with(if fenced { b"tn1:f:" } else { b"tn1:p:" }));
                assert!(!seen.contains(&value));
                seen.push(value);
                tenure.wait(lock.renew_now())??;
            }
            tenure.release(lock)?;
            assert!(!client.exists(&key_of("a"))?);
        }
        Ok(())
    })
}

#[test]
fn a5_a_rotation_without_an_answer_does_not_cost_the_hold() -> Outcome {
    each(|server, client| {
        let proxy = Proxy::start(server.addr())?;
        let tenure = Tenure::connect(&proxy.url(), "me")?;
        let lock = tenure.wait(tenure.locks().lock("a").lease(MINUTE).rotate().acquire())??;
        tenure.wait(lock.renew_now())??;
        let before = client.get(&key_of("a"))?;
        proxy.hold(Side::ToClient);
        let held = lock.held();
        let renewing = tenure.spawn(async move { held.renew_now().await });
        if !eventually(SOON, || {
            client
                .get(&key_of("a"))
                .is_ok_and(|value| value.is_some() && value != before)
        }) {
            return Err("nothing was written".into());
        }
        proxy.cut(Cut::Reset);
        proxy.release(Side::ToClient);
        tenure.wait(renewing)???;
        assert!(lock.is_held());
        tenure.wait(lock.renew_now())??;
        tenure.release(lock)?;
        assert!(!client.exists(&key_of("a"))?);
        Ok(())
    })
}

#[test]
fn s7_a_full_server_renews_without_a_new_value() -> Outcome {
    each(|server, client| {
        let tenure = Tenure::connect(&server.url(), "me")?;
        let lock = tenure.wait(tenure.locks().lock("a").lease(MINUTE).rotate().acquire())??;
        tenure.wait(lock.renew_now())??;
        let before = client.get(&key_of("a"))?;
        client.config_set("maxmemory", "1")?;
        let left = lock.remaining();
        tenure.wait(lock.renew_now())??;
        assert!(lock.remaining() >= left.saturating_sub(Duration::from_secs(1)));
        assert_eq!(client.get(&key_of("a"))?, before);
        client.config_set("maxmemory", "0")?;
        tenure.wait(lock.renew_now())??;
        assert_ne!(client.get(&key_of("a"))?, before);
        tenure.release(lock)
    })
}

#[test]
fn s3_a_value_of_before_is_another_holder() -> Outcome {
    each(|server, client| {
        let tenure = Tenure::connect(&server.url(), "me")?;
        let lock = tenure.wait(tenure.locks().lock("a").lease(MINUTE).rotate().acquire())??;
        let old = String::from_utf8(client.get(&key_of("a"))?.ok_or("no key")?)?;
        tenure.wait(lock.renew_now())??;
        client.set(&key_of("a"), &old, Some(MINUTE))?;
        let Err(Error::Lost(lost)) = tenure.wait(lock.renew_now())? else {
            return Err("renewed".into());
        };
        assert_eq!(lost.cause, Cause::Replaced);
        drop(lock);
        assert_eq!(client.get(&key_of("a"))?, Some(old.into_bytes()));
        Ok(())
    })
}
