//! Callers' threads that read, and copies that a fork has made, on a binding that the test moves by hand.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use tenure_client::binding::{Binding, Endpoint, Stream, Timer};
use tenure_client::{
    Acquiring, Borrowed, Config, Driver, Error, Lock, Locks, Pump, Room, Tick, connect_with,
};

const LEASE: Duration = Duration::from_secs(10);
/// Longer than anything here takes that happens at all.
const LONG: Duration = Duration::from_secs(5);
const GREETING: &str = "%3\r\n+server\r\n+redis\r\n+version\r\n+8.6.0\r\n+proto\r\n:3\r\n";
const GRANTED: &str = "_\r\n";

#[test]
fn a_callers_turn_brings_its_answer() {
    let mut bench = Bench::start();
    let borrowed = bench.borrow();
    let mut acquiring = pin!(bench.acquire("a"));
    assert!(poll(&mut acquiring).is_pending());
    // One at a time.
    assert_eq!(bench.pump.borrow(), None);
    assert!(bench.turn(borrowed), "nothing has come");
    bench.say(GRANTED);
    assert!(!bench.turn(borrowed), "it has its answer");
    let answer = poll(&mut acquiring);
    assert!(matches!(answer, Poll::Ready(Ok(_))), "{answer:?}");
    // The waiting is free again.
    bench.borrow();
}

/// It is in line behind a lock of this process: the next answer is another's.
#[test]
fn s17_a_request_that_sent_nothing_does_not_wait_on_the_connection() {
    let mut bench = Bench::start();
    let _lock = bench.lock("a");
    let borrowed = bench.borrow();
    let mut behind = pin!(bench.acquire("a"));
    assert!(poll(&mut behind).is_pending());
    assert!(!bench.pump.goes_on(borrowed));
    // One that did does.
    let borrowed = bench.borrow();
    let mut acquiring = pin!(bench.acquire("b"));
    assert!(poll(&mut acquiring).is_pending());
    assert!(bench.pump.goes_on(borrowed));
}

/// A renewal's answer has arrived, and nobody has read it until the hold would be given up.
#[test]
fn s2_a_callers_turn_takes_in_what_has_arrived_before_anything_is_given_up() {
    let mut bench = Bench::start();
    let lock = bench.lock("a");
    let borrowed = bench.borrow();
    bench.pass(LEASE / 5);
    bench.drive();
    let renewal = bench.last_command();
    assert_eq!(renewal[3], "IFEQ", "{renewal:?}");
    let value = &renewal[2];
    bench.say(&format!("${}\r\n{value}\r\n", value.len()));
    bench.pass(LEASE / 2);
    bench.turn(borrowed);
    assert_eq!(lock.check(), Ok(()));
    assert!(lock.remaining() > LEASE / 10);
}

/// The driver has looked away for the one command of a caller that does not wait for it any more.
#[test]
fn s17_what_is_given_back_is_the_drivers_at_once() {
    struct Flag(AtomicBool);
    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    let mut bench = Bench::start();
    let borrowed = bench.borrow();
    let mut acquiring = pin!(bench.acquire("a"));
    assert!(poll(&mut acquiring).is_pending());
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut bench.driver).poll(&mut cx).is_pending());
    assert!(bench.pump.look_away());
    assert!(!flag.0.load(Ordering::SeqCst));
    bench.pump.give_back(borrowed);
    assert!(flag.0.load(Ordering::SeqCst));
    assert!(!bench.pump.look_away());
}

/// Whoever is woken may use the client at once, on another thread, too.
#[test]
fn s17_a_callers_turn_wakes_nobody_under_the_clients_lock() {
    struct Visitor {
        pump: Pump,
        was_let_in: AtomicBool,
    }
    impl Wake for Visitor {
        fn wake(self: Arc<Self>) {
            let (sender, receiver) = channel();
            let pump = self.pump.clone();
            thread::spawn(move || {
                pump.look_away();
                sender.send(()).ok();
            });
            let was_let_in = receiver.recv_timeout(LONG).is_ok();
            self.was_let_in.store(was_let_in, Ordering::SeqCst);
        }
    }

    let mut bench = Bench::start();
    let visitor = Arc::new(Visitor {
        pump: bench.pump.clone(),
        was_let_in: AtomicBool::new(false),
    });
    let waker = Waker::from(Arc::clone(&visitor));
    let borrowed = bench.borrow();
    let mut acquiring = pin!(bench.acquire("a"));
    let mut cx = Context::from_waker(&waker);
    assert!(acquiring.as_mut().poll(&mut cx).is_pending());
    bench.say(GRANTED);
    bench.turn(borrowed);
    assert!(visitor.was_let_in.load(Ordering::SeqCst));
    assert!(matches!(poll(&mut acquiring), Poll::Ready(Ok(_))));
}

#[test]
fn s18_a_copy_sends_nothing_and_holds_nothing() {
    let mut bench = Bench::start();
    let (lock, spare) = (bench.lock("a"), bench.lock("spare"));
    let mut pending = Box::pin(bench.acquire("b"));
    assert!(poll(&mut pending.as_mut()).is_pending());
    let before = bench.sent();
    bench.forked.store(true, Ordering::SeqCst);

    let forked = Error::Forked { process: 7 };
    assert!(!lock.is_held());
    assert_eq!(lock.check(), Err(forked.clone()));
    let answer = poll(&mut pin!(bench.acquire("c")));
    assert!(matches!(answer, Poll::Ready(Err(error)) if error == forked.clone()));
    let _ = poll(&mut pin!(lock.renew_now()));
    assert_eq!(poll(&mut pin!(spare.release())), Poll::Ready(Err(forked)));
    assert!(poll(&mut pin!(bench.locks.close())).is_ready());
    drop(pending);
    drop(lock);
    assert_eq!(bench.sent(), before, "it has touched the connection");
    // Nor does the end of its last handle.
    let wire = Arc::clone(&bench.wire);
    let Bench { locks, driver, .. } = bench;
    drop(locks);
    assert_eq!(lock_of(&wire).sent, before);
    // The driver of a copy is never run, and never dropped.
    std::mem::forget(driver);
}

/// It is what a verb does before it has asked which process this is: the client's lock may be one that is never given back.
#[test]
fn s18_the_waiting_is_borrowed_without_waiting() {
    let bench = Bench::start();
    // Whoever writes waits from here on, with the client's lock.
    let wire = lock_of(&bench.wire);
    bench.writes.store(false, Ordering::SeqCst);
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let mut acquiring = Box::pin(bench.acquire("a"));
        scope.spawn(move || poll(&mut acquiring.as_mut()).is_pending());
        let (pump, writes) = (bench.pump.clone(), Arc::clone(&bench.writes));
        thread::spawn(move || {
            while !writes.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            sender.send(pump.borrow().is_none()).ok();
        });
        let answer = receiver.recv_timeout(LONG);
        drop(wire);
        assert_eq!(answer, Ok(true), "it waits for the lock");
    });
}

/// A client, and the world it sees.
struct Bench {
    locks: Locks,
    driver: Driver,
    pump: Pump,
    room: Room,
    now: Arc<AtomicU64>,
    forked: Arc<AtomicBool>,
    wire: Arc<Mutex<Wire>>,
    /// Somebody writes, or is about to.
    writes: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Wire {
    sent: Vec<u8>,
    arrived: VecDeque<u8>,
}

impl Bench {
    /// Borrows the waiting, which must be to be had.
    fn borrow(&self) -> Borrowed {
        self.pump.borrow().expect("nobody waits")
    }

    fn turn(&mut self, borrowed: Borrowed) -> bool {
        self.pump.turn(borrowed, &mut self.room)
    }

    /// Connected, and nothing asked for.
    fn start() -> Bench {
        let (now, forked) = (Arc::default(), Arc::default());
        let wire = Arc::<Mutex<Wire>>::default();
        let writes = Arc::<AtomicBool>::default();
        let binding = ByHand {
            now: Arc::clone(&now),
            forked: Arc::clone(&forked),
            wire: Arc::clone(&wire),
            writes: Arc::clone(&writes),
        };
        let config = Config::from_url("redis://server/").unwrap();
        let config = config.no_wake_ups().no_server_checks();
        let (locks, driver) = connect_with(binding, &config).unwrap();
        let pump = driver.pump();
        let mut bench = Bench {
            locks,
            driver,
            pump,
            room: Room::default(),
            now,
            forked,
            wire,
            writes,
        };
        bench.drive();
        bench.say(GREETING);
        bench.drive();
        assert!(poll(&mut pin!(bench.locks.ready())).is_ready());
        bench
    }

    fn acquire(&self, name: &str) -> Acquiring {
        self.locks.lock(name).lease(LEASE).acquire()
    }

    /// Acquired, as read by the driver.
    fn lock(&mut self, name: &str) -> Lock {
        let mut acquiring = pin!(self.acquire(name));
        assert!(poll(&mut acquiring).is_pending());
        self.say(GRANTED);
        self.drive();
        match poll(&mut acquiring) {
            Poll::Ready(Ok(lock)) => lock,
            other => panic!("{other:?}"),
        }
    }

    /// A poll of the driver.
    fn drive(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut self.driver).poll(&mut cx).is_pending());
    }

    /// Something arrives.
    fn say(&self, text: &str) {
        lock_of(&self.wire).arrived.extend(text.bytes());
    }

    fn sent(&self) -> Vec<u8> {
        lock_of(&self.wire).sent.clone()
    }

    /// The words of what was sent last.
    fn last_command(&self) -> Vec<String> {
        let text = String::from_utf8(self.sent()).unwrap();
        let last = text.rsplit_once('*').map_or("", |(_, last)| last);
        // The count, then a length and a word in turn.
        let words = last.split("\r\n").skip(2).step_by(2);
        words.map(str::to_owned).collect()
    }

    fn pass(&self, span: Duration) {
        let micros = u64::try_from(span.as_micros()).unwrap();
        self.now.fetch_add(micros, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

fn lock_of(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap()
}

struct ByHand {
    now: Arc<AtomicU64>,
    forked: Arc<AtomicBool>,
    wire: Arc<Mutex<Wire>>,
    /// Somebody writes, or is about to.
    writes: Arc<AtomicBool>,
}

impl Binding for ByHand {
    type Stream = End;
    type Timer = Due;

    fn dial(&self, _: &Endpoint) -> impl Future<Output = io::Result<End>> + Send + 'static {
        ready(Ok(End(Arc::clone(&self.wire), Arc::clone(&self.writes))))
    }

    fn timer(&self) -> Due {
        Due(Arc::clone(&self.now), None)
    }

    fn now(&self) -> Tick {
        Tick::from_micros(self.now.load(Ordering::SeqCst))
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.fill(7);
        Ok(())
    }

    fn forked_from(&self) -> Option<u32> {
        self.forked.load(Ordering::SeqCst).then_some(7)
    }
}

struct End(Arc<Mutex<Wire>>, Arc<AtomicBool>);

impl Stream for End {
    fn poll_read(&mut self, _: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        match self.try_read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
            read => Poll::Ready(read),
        }
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match io::Read::read(&mut lock_of(&self.0).arrived, bytes)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            n => Ok(n),
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.store(true, Ordering::SeqCst);
        lock_of(&self.0).sent.extend(bytes);
        Ok(bytes.len())
    }

    fn poll_write_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn abort(self) {}
}

/// It is looked at when the driver is polled.
struct Due(Arc<AtomicU64>, Option<Tick>);

impl Timer for Due {
    fn set(mut self: Pin<&mut Self>, deadline: Tick) {
        self.1 = Some(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let now = Tick::from_micros(self.0.load(Ordering::SeqCst));
        match self.1.take_if(|due| *due <= now) {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }
}
