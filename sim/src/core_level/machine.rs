//! The machine, and how it is copied with all it remembers.

use std::collections::VecDeque;

use tenure_core::config::{Terms, Wait};
use tenure_core::leases::{LeaseId, Options, Request};
use tenure_core::mux::{Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;

/// A machine that can be copied: it is pure, so that a copy is the same calls once more.
pub(super) struct Machine {
    mux: Mux,
    config: MuxConfig,
    seed: u64,
    /// Every call that was made, if it may have to be copied.
    calls: Option<Vec<Call>>,
}

#[derive(Clone)]
enum Call {
    Acquire(Tick, Asked),
    RenewNow(Tick, LeaseId),
    Release(Tick, LeaseId),
    Abandon(Tick, LeaseId),
    DropGuard(Tick, LeaseId),
    Close(Tick),
    Connected(Tick),
    DialFailed(Tick),
    Disconnected(Tick),
    Received(Tick, Vec<u8>),
    Transmitted(Tick, usize),
    Timeout(Tick),
    Stir(Option<[u8; 16]>),
    Poll(Tick),
}

/// A request that owns its name.
#[derive(Clone)]
struct Asked {
    name: Vec<u8>,
    terms: Terms,
    wait: Wait,
    options: Options,
    secret: [u8; 16],
}

impl Machine {
    pub(super) fn new(names: Names, seed: u64, copied: bool) -> Machine {
        let config = MuxConfig::new(names);
        Machine {
            mux: Mux::new(config.clone(), seed),
            config,
            seed,
            calls: copied.then(Vec::new),
        }
    }

    /// The same machine once more. `None` if its calls were not remembered.
    pub(super) fn copy(&self) -> Option<Machine> {
        let calls = self.calls.as_ref()?;
        let mut mux = Mux::new(self.config.clone(), self.seed);
        for call in calls {
            call.make(&mut mux);
        }
        Some(Machine {
            mux,
            config: self.config.clone(),
            seed: self.seed,
            calls: Some(calls.clone()),
        })
    }

    pub(super) fn mux(&self) -> &Mux {
        &self.mux
    }

    pub(super) fn acquire(&mut self, now: Tick, request: &Request<'_>) -> Option<LeaseId> {
        self.remember(|| {
            let asked = Asked {
                name: request.name.to_vec(),
                terms: request.terms,
                wait: request.wait,
                options: request.options,
                secret: request.secret,
            };
            Call::Acquire(now, asked)
        });
        self.mux.acquire(now, request).ok()
    }

    pub(super) fn renew_now(&mut self, now: Tick, id: LeaseId) {
        self.call(Call::RenewNow(now, id));
    }

    pub(super) fn release(&mut self, now: Tick, id: LeaseId) {
        self.call(Call::Release(now, id));
    }

    pub(super) fn abandon(&mut self, now: Tick, id: LeaseId) {
        self.call(Call::Abandon(now, id));
    }

    pub(super) fn drop_guard(&mut self, now: Tick, id: LeaseId) {
        self.call(Call::DropGuard(now, id));
    }

    pub(super) fn close(&mut self, now: Tick) {
        self.call(Call::Close(now));
    }

    pub(super) fn connected(&mut self, now: Tick) {
        self.call(Call::Connected(now));
    }

    pub(super) fn dial_failed(&mut self, now: Tick) {
        self.call(Call::DialFailed(now));
    }

    pub(super) fn disconnected(&mut self, now: Tick) {
        self.call(Call::Disconnected(now));
    }

    /// Takes some of what has arrived, at most so much; says how much.
    pub(super) fn receive(&mut self, now: Tick, from: &mut VecDeque<u8>, most: usize) -> usize {
        let space = self.mux.recv_space();
        let n = space.len().min(from.len()).min(most);
        for (to, from) in space.iter_mut().zip(from.drain(..n)) {
            *to = from;
        }
        if let Some(calls) = &mut self.calls {
            calls.push(Call::Received(now, space[..n].to_vec()));
        }
        self.mux.received(now, n);
        n
    }

    pub(super) fn transmitted(&mut self, now: Tick, n: usize) {
        self.call(Call::Transmitted(now, n));
    }

    pub(super) fn timeout(&mut self, now: Tick) {
        self.call(Call::Timeout(now));
    }

    pub(super) fn stir(&mut self, fresh: Option<[u8; 16]>) {
        self.call(Call::Stir(fresh));
    }

    pub(super) fn poll(&mut self, now: Tick) -> Output<'_> {
        self.remember(|| Call::Poll(now));
        self.mux.poll_output(now)
    }

    fn call(&mut self, call: Call) {
        call.make(&mut self.mux);
        self.remember(|| call);
    }

    fn remember(&mut self, call: impl FnOnce() -> Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call());
        }
    }
}

impl Call {
    fn make(&self, mux: &mut Mux) {
        match self {
            Call::Acquire(now, asked) => {
                let request = Request {
                    name: &asked.name,
                    terms: asked.terms,
                    wait: asked.wait,
                    secret: asked.secret,
                    options: asked.options,
                    since_ms: 0,
                };
                let _ = mux.acquire(*now, &request);
            }
            Call::RenewNow(now, id) => mux.renew_now(*now, *id),
            Call::Release(now, id) => mux.release(*now, *id),
            Call::Abandon(now, id) => mux.abandon(*now, *id),
            Call::DropGuard(now, id) => mux.drop_guard(*now, *id),
            Call::Close(now) => mux.close(*now),
            Call::Connected(now) => mux.handle_connected(*now),
            Call::DialFailed(now) => mux.handle_dial_failed(*now, "refused"),
            Call::Disconnected(now) => mux.handle_disconnected(*now),
            Call::Received(now, bytes) => {
                mux.recv_space()[..bytes.len()].copy_from_slice(bytes);
                mux.received(*now, bytes.len());
            }
            Call::Transmitted(now, n) => mux.transmitted(*now, *n),
            Call::Timeout(now) => mux.handle_timeout(*now),
            Call::Stir(fresh) => mux.stir(*fresh),
            Call::Poll(now) => _ = mux.poll_output(*now),
        }
    }
}
