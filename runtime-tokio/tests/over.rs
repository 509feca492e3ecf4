//! Locks over a transport of the caller's: one that takes little, one that keeps back, and a simulated network.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_client::binding::Endpoint;
use tenure_client::{Cause, Config, Driver, Error, Locks, connect_with};
use tenure_sim::{Dialect, FakeServer};
use tenure_tokio::{TokioBinding, connect_over};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(3);
const SHORT: Duration = Duration::from_millis(700);
const LONG: Duration = Duration::from_secs(5);

/// The simulated server, on tokio's time. Its connections speak one version of the protocol.
#[derive(Clone)]
struct Server(Rc<RefCell<(FakeServer, Instant)>>);

impl Server {
    fn new() -> Server {
        let server = FakeServer::new(Dialect::Redis8);
        Server(Rc::new(RefCell::new((server, Instant::now()))))
    }

    fn execute(&self, words: &[Vec<u8>]) -> Vec<u8> {
        let (server, known) = &mut *self.0.borrow_mut();
        server.advance(known.elapsed());
        *known = Instant::now();
        server.execute(words)
    }

    fn has(&self, key: &str) -> bool {
        self.execute(&[b"EXISTS".to_vec(), key.into()]) == b":1\r\n"
    }

    async fn serve(self, mut connection: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            while let Some((words, length)) = command(&bytes) {
                bytes.drain(..length);
                connection.write_all(&self.execute(&words)).await?;
            }
            if connection.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        }
    }
}

/// The words of the first command and its length, if it is complete.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |at: &mut usize| -> Option<usize> {
        let end = bytes
            .get(*at..)?
            .windows(2)
            .position(|pair| pair == b"\r\n")?
            + *at;
        let number = std::str::from_utf8(&bytes[*at + 1..end]).ok()?.parse().ok();
        *at = end + 2;
        number
    };
    let mut words = Vec::new();
    for _ in 0..number(&mut at)? {
        let length = number(&mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

/// Keeps back what is written until it is flushed.
struct Buffered {
    below: DuplexStream,
    kept: Vec<u8>,
}

impl AsyncRead for Buffered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.below).poll_read(cx, buf)
    }
}

impl AsyncWrite for Buffered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.kept.len() > 100 && self.as_mut().poll_flush(cx)?.is_pending() {
            return Poll::Pending;
        }
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Buffered { below, kept } = &mut *self;
        while !kept.is_empty() {
            match Pin::new(&mut *below).poll_write(cx, kept)? {
                Poll::Ready(n) => drop(kept.drain(..n)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.below).poll_shutdown(cx)
    }
}

/// A dial whose other ends are served, with so much room in between.
fn dial<T: Send + 'static>(
    server: &Server,
    room: usize,
    over: fn(DuplexStream) -> T,
) -> (
    impl Fn(Endpoint) -> std::future::Ready<io::Result<T>> + Send + Sync + use<T>,
    impl Future<Output = ()> + use<T>,
) {
    let (dialled, mut dials) = tokio::sync::mpsc::unbounded_channel();
    let server = server.clone();
    let accept = async move {
        while let Some(end) = dials.recv().await {
            spawn_local(server.clone().serve(end));
        }
    };
    let dial = move |_| {
        let (mine, theirs) = tokio::io::duplex(room);
        dialled.send(theirs).unwrap();
        std::future::ready(Ok(over(mine)))
    };
    (dial, accept)
}

async fn many_locks<T>(room: usize, over: fn(DuplexStream) -> T)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let server = Server::new();
    let (dial, accept) = dial(&server, room, over);
    spawn_local(accept);
    let config = Config::from_url("redis://anywhere/").unwrap();
    let locks = connect_over(&config, dial).await.unwrap();
    let asking: Vec<_> = (0..30)
        .map(|i| tokio::spawn(locks.lock(format!("{i}")).lease(LEASE).acquire()))
        .collect();
    let mut held = Vec::new();
    for asked in asking {
        held.push(asked.await.unwrap().unwrap());
    }
    // Through many renewals.
    sleep(2 * LEASE).await;
    assert!(held.iter().all(|lock| lock.is_held()));
    for lock in held {
        assert!(lock.release().await.unwrap().confirmed);
    }
    assert!(!server.has("lock:7"));
    // A guard that is dropped writes by itself, with nobody to be woken.
    let lock = locks.acquire("dropped").await.unwrap();
    assert!(server.has("lock:dropped"));
    drop(lock);
    locks.close().await;
    assert!(!server.has("lock:dropped"));
}

#[tokio::test(start_paused = true)]
async fn s6_a_transport_that_takes_little_gets_everything() {
    for room in [1, 64, 4096] {
        LocalSet::new().run_until(many_locks(room, |io| io)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_keeps_back_is_flushed() {
    for room in [1, 64, 4096] {
        let over = |below| Buffered {
            below,
            kept: Vec::new(),
        };
        LocalSet::new().run_until(many_locks(room, over)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dial_says_is_told_and_the_next_one_is_tried() {
    let server = Server::new();
    let (good, accept) = dial(&server, 1024, |io| io);
    LocalSet::new()
        .run_until(async {
            spawn_local(accept);
            let tries = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&tries);
            let dial = move |endpoint: Endpoint| {
                assert_eq!(endpoint.to_string(), "db.test:7000");
                match counted.fetch_add(1, Ordering::Relaxed) {
                    0 => std::future::ready(Err(io::Error::other("the tunnel is shut"))),
                    _ => good(endpoint),
                }
            };
            let config = Config::from_url("redis://db.test:7000").unwrap();
            let (locks, driver) = connect_with(TokioBinding::new().over(dial), &config).unwrap();
            spawn_local(driver);
            let error = locks.ready().await.unwrap_err();
            assert!(error.to_string().contains("the tunnel is shut"), "{error}");
            assert!(error.is_retryable());
            let lock = locks.acquire("a").await.unwrap();
            assert_eq!(tries.load(Ordering::Relaxed), 2);
            assert!(lock.release().await.unwrap().confirmed);
        })
        .await;
}

/// Locks on a host of a simulated network. The time of this machine is no part of it.
fn simulated() -> (Locks, Driver) {
    let binding = TokioBinding::with_suspended(|| Duration::ZERO).over(|endpoint| async move {
        let Endpoint::Tcp { host, port } = endpoint else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        turmoil::net::TcpStream::connect((host, port)).await
    });
    connect_with(binding, &Config::from_url("redis://db:6379/").unwrap()).unwrap()
}

fn network() -> turmoil::Sim<'static> {
    let mut sim = turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(60))
        .tick_duration(Duration::from_millis(2))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(10))
        .rng_seed(1)
        .build();
    sim.host("db", || async {
        let server = Server::new();
        let listener = turmoil::net::TcpListener::bind("0.0.0.0:6379").await?;
        loop {
            let (connection, _) = listener.accept().await?;
            spawn_local(server.clone().serve(connection));
        }
    });
    sim
}

#[test]
fn a_short_partition_loses_nothing_and_a_long_one_says_so() {
    let mut sim = network();
    sim.client("holder", async {
        let (locks, driver) = simulated();
        spawn_local(driver);
        let lock = locks.lock("job").lease(LEASE).acquire().await?;
        sleep(2 * LEASE).await;
        assert!(lock.is_held());
        for _ in 0..3 {
            turmoil::partition("holder", "db");
            sleep(SHORT).await;
            turmoil::repair("holder", "db");
            sleep(LEASE).await;
            assert!(lock.is_held());
        }
        turmoil::partition("holder", "db");
        let begun = Instant::now();
        let lost = lock.lost().await;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
        assert!(begun.elapsed() < LEASE, "before another can have it");
        assert!(!lock.is_held());
        assert!(lock.stop_window(&lost) > Duration::ZERO);
        turmoil::repair("holder", "db");
        drop(lock);
        let lock = timeout(LONG, locks.lock("job").lease(LEASE).acquire()).await??;
        assert!(lock.release().await?.confirmed);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_waiter_has_its_turn_when_the_network_is_repaired() {
    let mut sim = network();
    sim.client("holder", async {
        let (locks, driver) = simulated();
        spawn_local(driver);
        let lock = locks.lock("job").lease(LEASE).acquire().await?;
        // The waiter waits by then, and is cut off when the name is given back.
        sleep(LEASE).await;
        turmoil::partition("waiter", "db");
        sleep(LEASE).await;
        assert!(lock.release().await?.confirmed);
        sleep(LEASE).await;
        turmoil::repair("waiter", "db");
        sleep(LONG).await;
        // And it lives long enough to be cut off in its turn.
        turmoil::partition("waiter", "db");
        let lock = timeout(LONG, locks.lock("job").lease(LEASE).acquire()).await??;
        assert!(lock.is_held());
        Ok(())
    });
    sim.client("waiter", async {
        let (locks, driver) = simulated();
        spawn_local(driver);
        sleep(Duration::from_millis(500)).await;
        let held = locks.try_acquire("job").await?;
        assert!(held.holder().is_some());
        let begun = Instant::now();
        let lock = locks.lock("job").lease(LEASE).acquire().await?;
        assert!(begun.elapsed() > 2 * LEASE, "not before the repair");
        let lost = lock.lost().await;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
        let wait = locks.lock("job").wait(LONG).acquire().await;
        assert!(
            matches!(wait, Err(Error::Unavailable(_) | Error::TimedOut { .. })),
            "{wait:?}"
        );
        Ok(())
    });
    sim.run().unwrap();
}
