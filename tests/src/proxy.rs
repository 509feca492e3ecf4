//! A network that misbehaves on command: a TCP proxy in front of a real server.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use crate::Failure;
use crate::frames::FrameCounter;

/// Forwards every connection to one address. What it does to the bytes is changed at any time by its methods,
/// for the connections there are and those to come. All of its threads have ended when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the client: requests.
    ToServer = 0,
    /// From the server: replies and pushes.
    ToClient = 1,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// As after an orderly close.
    Fin,
    /// As after a crash.
    Reset,
}

/// What went through, over all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// What the client sent.
    pub to_server: Flow,
    /// What the server sent.
    pub to_client: Flow,
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Bytes the proxy has got.
    pub received: u64,
    /// Bytes it has passed on.
    pub forwarded: u64,
    /// Whole commands, or replies and pushes, it has got.
    pub frames: u64,
}

impl Proxy {
    /// Starts one in front of an address.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        shared.lock().upstream = Some(upstream);
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, &listener)
        });
        Ok(Self {
            shared,
            address,
            acceptor: Some(acceptor),
        })
    }

    /// Where clients connect to.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The port of [`Self::addr`].
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.address.port()
    }

    /// A URL of [`Self::addr`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Bytes that way arrive this much later; their order stays.
    pub fn delay(&self, side: Side, delay: Duration) {
        self.control(side, |control| control.delay = delay);
    }

    /// Bytes that way are kept until [`Self::release`].
    pub fn hold(&self, side: Side) {
        self.control(side, |control| control.hold = true);
    }

    /// Lets go of what is held and holds no more.
    pub fn release(&self, side: Side) {
        self.control(side, |control| control.hold = false);
    }

    /// Bytes that way vanish, or not any more.
    pub fn swallow(&self, side: Side, swallow: bool) {
        self.control(side, |control| control.swallow = swallow);
    }

    /// Connections are accepted, and nothing ever comes of them.
    pub fn black_hole(&self, on: bool) {
        self.swallow(Side::ToServer, on);
        self.swallow(Side::ToClient, on);
    }

    /// Bytes that way arrive one at a time.
    pub fn trickle(&self, side: Side, on: bool) {
        self.control(side, |control| control.trickle = on);
    }

    /// After that many more bytes that way, counted over all connections, the one that brought the last is cut.
    pub fn cut_after(&self, side: Side, bytes: u64, how: Cut) {
        self.control(side, |control| control.cut_after = Some((bytes, how)));
    }

    /// New connections lead to this address.
    pub fn redirect(&self, upstream: SocketAddr) {
        self.shared.lock().upstream = Some(upstream);
    }

    /// New connections are reset at once, or not any more.
    pub fn refuse(&self, on: bool) {
        self.shared.lock().refuse = on;
    }

    /// Ends every connection, on both sides; what is on its way is lost. Done when it returns.
    pub fn cut(&self, how: Cut) {
        let mut state = self.shared.lock();
        let links = std::mem::take(&mut state.links);
        for link in &links {
            kill(&link.client, how);
            kill(&link.server, how);
        }
        self.shared.changed.notify_all();
        // Until their threads have seen it. Connections that are made meanwhile are none of these.
        let until = Instant::now() + Duration::from_secs(2);
        while links.iter().any(Link::is_open) && Instant::now() < until {
            state = self.shared.wait(state, Some(Duration::from_millis(50)));
        }
    }

    /// Ends every connection towards the client only. What is held or delayed still reaches the server, late,
    /// as from a client that is no more.
    pub fn cut_client(&self, how: Cut) {
        let state = self.shared.lock();
        for link in &state.links {
            kill(&link.client, how);
        }
        self.shared.changed.notify_all();
        drop(state);
    }

    /// As [`Self::cut_client`]; what these connections still had for the server waits until [`Self::deliver`], while
    /// new ones work.
    pub fn strand(&self, how: Cut) {
        let state = self.shared.lock();
        for link in &state.links {
            locked(&link.to_server).stranded = true;
            kill(&link.client, how);
        }
        self.shared.changed.notify_all();
        drop(state);
    }

    /// Lets go of what was stranded; done when it is with the server.
    ///
    /// # Errors
    /// When there was nothing, or it cannot be delivered.
    pub fn deliver(&self) -> Result<(), Failure> {
        let mut stranded = Vec::new();
        for link in &self.shared.lock().links {
            let mut queue = locked(&link.to_server);
            if std::mem::take(&mut queue.stranded) && !queue.chunks.is_empty() {
                stranded.push(Arc::clone(&link.to_server));
            }
        }
        self.shared.changed.notify_all();
        let until = Instant::now() + Duration::from_secs(5);
        let mut state = self.shared.lock();
        while stranded.iter().any(|queue| !locked(queue).is_done()) && Instant::now() < until {
            state = self.shared.wait(state, Some(Duration::from_millis(50)));
        }
        match stranded.iter().all(|queue| locked(queue).is_done()) {
            true if !stranded.is_empty() => Ok(()),
            true => Err("nothing was stranded".into()),
            false => Err("what was stranded stays so".into()),
        }
    }

    /// What went through so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }

    /// How many connections clients have open.
    #[must_use]
    pub fn open(&self) -> usize {
        let state = self.shared.lock();
        let alive = |link: &&Link| link.client.upgrade().is_some_and(|end| !end.is_dead());
        state.links.iter().filter(alive).count()
    }

    /// Waits until the counts meet a condition; whether they did.
    #[must_use]
    pub fn wait_for(&self, within: Duration, condition: impl Fn(&Counts) -> bool) -> bool {
        let until = Instant::now() + within;
        let mut state = self.shared.lock();
        while !condition(&state.counts) {
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                return false;
            };
            state = self.shared.wait(state, Some(left));
        }
        true
    }

    fn control(&self, side: Side, change: impl FnOnce(&mut Control)) {
        change(&mut self.shared.lock().controls[side as usize]);
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.cut(Cut::Reset);
        // Wakes the acceptor.
        TcpStream::connect(self.address).ok();
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().ok();
        }
        // A connection may have been made between the two.
        self.cut(Cut::Reset);
        let handles = std::mem::take(&mut self.shared.lock().handles);
        for handle in handles {
            handle.join().ok();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    controls: [Control; 2],
    counts: Counts,
    links: Vec<Link>,
    handles: Vec<JoinHandle<()>>,
    upstream: Option<SocketAddr>,
    refuse: bool,
    stopped: bool,
}

#[derive(Debug, Default)]
struct Control {
    delay: Duration,
    hold: bool,
    swallow: bool,
    trickle: bool,
    cut_after: Option<(u64, Cut)>,
}

/// Both ends of a connection, for as long as its threads have them.
#[derive(Debug)]
struct Link {
    client: Weak<End>,
    server: Weak<End>,
    to_server: Arc<Mutex<Queue>>,
}

/// One socket. A reset is sent when its last owner lets go of it, so it is never duplicated, and owned by the
/// thread that reads it and the one that writes it only.
#[derive(Debug)]
struct End {
    stream: TcpStream,
    dead: Mutex<bool>,
}

/// What is on its way in one direction of one connection. Locked only while the state is.
#[derive(Debug, Default)]
struct Queue {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    ended: bool,
    /// Nothing is passed on, whatever the controls say.
    stranded: bool,
    /// The end of it was passed on, too.
    closed: bool,
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    loop {
        let Ok(client) = listener.accept().and_then(|(client, _)| End::new(client)) else {
            continue;
        };
        let (upstream, stopped) = {
            let state = shared.lock();
            (state.upstream.filter(|_| !state.refuse), state.stopped)
        };
        if stopped {
            return;
        }
        let connect = |upstream| TcpStream::connect(upstream).and_then(End::new).ok();
        let Some(server) = upstream.and_then(connect) else {
            client.kill(Cut::Reset);
            continue;
        };
        let mut state = shared.lock();
        state.counts.connections += 1;
        let to_server = Arc::new(Mutex::new(Queue::default()));
        let link = Link {
            client: Arc::downgrade(&client),
            server: Arc::downgrade(&server),
            to_server: Arc::clone(&to_server),
        };
        state.links.retain(Link::is_open);
        state.links.push(link);
        for (side, from, to, queue) in [
            (Side::ToServer, &client, &server, to_server),
            (Side::ToClient, &server, &client, Arc::default()),
        ] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            let (back, work) = (Arc::downgrade(&from), Arc::clone(&queue));
            spawn(shared, &mut state, move |shared| {
                receive(shared, side, &from, &work);
            });
            spawn(shared, &mut state, move |shared| {
                forward(shared, side, &back, &to, &queue);
            });
        }
        shared.changed.notify_all();
    }
}

/// Starts a thread, and tells when everything that it owned is gone.
fn spawn(shared: &Arc<Shared>, state: &mut State, work: impl FnOnce(&Shared) + Send + 'static) {
    let shared = Arc::clone(shared);
    state.handles.push(thread::spawn(move || {
        work(&shared);
        shared.changed.notify_all();
    }));
}

/// Reads what comes, as soon as it comes.
fn receive(shared: &Shared, side: Side, from: &End, queue: &Mutex<Queue>) {
    let mut counter = FrameCounter::default();
    let mut frames = 0;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match (&from.stream).read(&mut buffer) {
            Ok(length) if length > 0 && !from.is_dead() => length,
            _ => break,
        };
        let seen = counter.feed(&buffer[..length]);
        let mut state = shared.lock();
        let flow = state.counts.flow(side);
        flow.received += length as u64;
        flow.frames += seen - frames;
        frames = seen;
        let chunk = (Instant::now(), buffer[..length].to_vec());
        locked(queue).chunks.push_back(chunk);
        drop(state);
        shared.changed.notify_all();
    }
    let state = shared.lock();
    locked(queue).ended = true;
    drop(state);
    shared.changed.notify_all();
}

/// Passes on what was read, when and as far as the controls let it.
fn forward(shared: &Shared, side: Side, from: &Weak<End>, to: &End, queue: &Mutex<Queue>) {
    let mut state = shared.lock();
    while !to.is_dead() {
        let control = &mut state.controls[side as usize];
        let next = locked(queue).next(control);
        let (chunk, more) = match next {
            Next::Bytes(chunk, more) => (chunk, more),
            Next::End => {
                to.stream.shutdown(Shutdown::Write).ok();
                locked(queue).closed = true;
                drop(state);
                shared.changed.notify_all();
                return;
            }
            Next::Wait(limit) => {
                state = shared.wait(state, limit);
                continue;
            }
        };
        let cut = control.cut(chunk.len());
        let pause = control.trickle && more;
        state.counts.flow(side).forwarded += chunk.len() as u64;
        drop(state);
        to.write(&chunk);
        if let Some(how) = cut {
            to.kill(how);
            if let Some(from) = from.upgrade() {
                from.kill(how);
            }
        } else if pause {
            // Long enough for the other side to have read the byte.
            thread::sleep(Duration::from_micros(50));
        }
        shared.changed.notify_all();
        state = shared.lock();
    }
}

/// What to do next with a queue.
enum Next {
    /// Pass these on; whether there are more that came with them.
    Bytes(Vec<u8>, bool),
    /// Nothing, for this long or until something changes.
    Wait(Option<Duration>),
    /// Nothing more will come.
    End,
}

impl Queue {
    fn is_done(&self) -> bool {
        self.chunks.is_empty() && self.closed
    }

    fn next(&mut self, control: &Control) -> Next {
        if control.swallow {
            self.chunks.clear();
        }
        let Some((arrived, chunk)) = self.chunks.front_mut() else {
            return if self.ended {
                Next::End
            } else {
                Next::Wait(None)
            };
        };
        if control.hold || self.stranded {
            return Next::Wait(None);
        }
        let early = (*arrived + control.delay).saturating_duration_since(Instant::now());
        if !early.is_zero() {
            return Next::Wait(Some(early));
        }
        let most = match control.cut_after {
            Some((left, _)) => usize::try_from(left).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let most = if control.trickle { most.min(1) } else { most };
        if most >= chunk.len() {
            let chunk = std::mem::take(chunk);
            self.chunks.pop_front();
            return Next::Bytes(chunk, false);
        }
        let rest = chunk.split_off(most);
        Next::Bytes(std::mem::replace(chunk, rest), true)
    }
}

impl Control {
    /// Counts bytes towards the cut; how to cut after them, if that is now.
    fn cut(&mut self, bytes: usize) -> Option<Cut> {
        let (left, how) = self.cut_after.as_mut()?;
        *left = left.saturating_sub(bytes as u64);
        let how = (*left == 0).then_some(*how);
        if how.is_some() {
            self.cut_after = None;
        }
        how
    }
}

impl Link {
    fn is_open(&self) -> bool {
        self.client.strong_count() + self.server.strong_count() > 0
    }
}

fn kill(end: &Weak<End>, how: Cut) {
    if let Some(end) = end.upgrade() {
        end.kill(how);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl End {
    fn new(stream: TcpStream) -> io::Result<Arc<Self>> {
        stream.set_nodelay(true)?;
        // So that a writer whose reader is gone looks up from time to time.
        stream.set_write_timeout(Some(Duration::from_millis(100)))?;
        Ok(Arc::new(Self {
            stream,
            dead: Mutex::new(false),
        }))
    }

    fn is_dead(&self) -> bool {
        *locked(&self.dead)
    }

    fn kill(&self, how: Cut) {
        let mut dead = locked(&self.dead);
        if std::mem::replace(&mut *dead, true) {
            return;
        }
        match how {
            Cut::Fin => self.stream.shutdown(Shutdown::Both).ok(),
            Cut::Reset => {
                set_socket_linger(&self.stream, Some(Duration::ZERO)).ok();
                // Says nothing to the peer, but ends our own reading; closing then sends the reset.
                self.stream.shutdown(Shutdown::Read).ok()
            }
        };
    }

    fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_dead() {
            match (&self.stream).write(bytes) {
                Ok(0) => return,
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    }
}

impl Counts {
    const fn flow(&mut self, side: Side) -> &mut Flow {
        match side {
            Side::ToServer => &mut self.to_server,
            Side::ToClient => &mut self.to_client,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        let limit = limit.unwrap_or(Duration::from_secs(1));
        let waited = self.changed.wait_timeout(state, limit);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
