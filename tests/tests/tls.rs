//! TLS, on every server: what is refused and with which words, and that locks live on it as they do without.

use std::fs;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smol::io::{AsyncRead, AsyncWrite};
use tenure_client::{Cause, Config, Error, Lost, Tls};
use tenure_tests::process::Folder;
use tenure_tests::{
    Authority, Cut, Failure, Pair, Proxy, Server, ServerKind, Side, Tenure, Told, eventually,
    key_of,
};

type Outcome = Result<(), Failure>;

const NAME: &str = "orders";
const MINUTE: Duration = Duration::from_secs(60);
/// It is renewed every 200 ms.
const LEASE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(5);
const NAMES: &[&str] = &["127.0.0.1", "db.test"];

/// Servers with a certificate of one authority, and a folder with what a client needs.
struct Site {
    authority: Authority,
    folder: Folder,
}

impl Site {
    fn new() -> Result<Site, Failure> {
        let site = Site {
            authority: Authority::new()?,
            folder: Folder::new()?,
        };
        site.authority.write(site.folder.path(), "ca.pem")?;
        Ok(site)
    }

    fn server(&self, kind: ServerKind, pair: &Pair, clients: &str) -> Result<Server, Failure> {
        let setup = Server::setup(kind);
        setup.tls(pair, &self.authority, clients).start()
    }

    /// With a good certificate, for whoever comes.
    fn good(&self, kind: ServerKind) -> Result<Server, Failure> {
        self.server(kind, &self.authority.server(NAMES)?, "no")
    }

    fn url(&self, port: u16) -> String {
        let ca = self.folder.path().join("ca.pem");
        format!("rediss://127.0.0.1:{port}/?ca={}", ca.display())
    }
}

fn error_of(url: &str) -> Result<Error, Failure> {
    let tenure = Tenure::start(url, |config| config)?;
    match tenure.wait(tenure.locks().ready())? {
        Ok(()) => Err(format!("{url} was let in").into()),
        Err(error) => Ok(error),
    }
}

/// Another try is of no use, and this is said.
fn refused(url: &str, says: &str) -> Outcome {
    let error = error_of(url)?;
    let shown = error.to_string();
    assert!(shown.contains(says), "{shown}");
    assert!(shown.contains("no connection to "), "{shown}");
    assert!(matches!(error, Error::Misconfigured(_)), "{error:?}");
    assert!(!error.is_retryable());
    Ok(())
}

/// Locks can be had there.
fn let_in(url: &str) -> Outcome {
    let tenure = Tenure::connect(url, "me")?;
    tenure.release(tenure.hold(NAME, MINUTE)?)
}

/// A whole life: renewals, a refusal, a release, a loss.
fn life(server: &Server, url: &str) -> Outcome {
    let mut client = server.client()?;
    let tenure = Tenure::connect(url, "me")?;
    let other = Tenure::connect(url, "another")?;
    let lock = tenure.hold(NAME, LEASE)?;
    tenure
        .told()
        .more(6, SOON, |told| matches!(told, Told::Renewed(_)))?;
    let attempt = other.wait(other.locks().try_acquire(NAME))??;
    let holder = attempt.holder().ok_or("granted twice")?;
    assert_eq!(holder.label.as_deref(), Some("me"));
    let waiting = other.spawn(other.locks().lock(NAME).lease(LEASE).acquire());
    tenure.release(lock)?;
    let lock = other.wait(waiting)???;
    client.del(&key_of(NAME))?;
    let lost = other.lost(&lock, SOON)?;
    assert_eq!(lost.cause, Cause::Gone);
    Ok(())
}

#[test]
fn locks_live_on_tls() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        life(&server, &site.url(server.port()))?;
        // And in the other family of schemes, with a user, a database and a name.
        server
            .client()?
            .ok(&["ACL", "SETUSER", "a@b", "on", ">p/w", "~*", "+@all"])?;
        let ca = site.folder.path().join("ca.pem");
        let url = format!(
            "valkeys://a%40b:p%2Fw@localhost:{}/3?server_name=db.test&ca={}",
            server.port(),
            ca.display()
        );
        let tenure = Tenure::connect(&url, "me")?;
        let lock = tenure.hold(NAME, MINUTE)?;
        let mut client = server.client()?;
        client.ok(&["SELECT", "3"])?;
        assert!(client.exists(&key_of(NAME))?);
        tenure.release(lock)?;
    }
    Ok(())
}

#[test]
fn tls_over_ipv6() -> Outcome {
    let site = Site::new()?;
    let pair = site.authority.server(&["::1"])?;
    for kind in ServerKind::all_required() {
        let setup = Server::setup(kind).arguments(&["--bind", "127.0.0.1", "::1"]);
        let server = setup.tls(&pair, &site.authority, "no").start()?;
        let_in(&site.url(server.port()).replace("127.0.0.1", "[::1]"))?;
    }
    Ok(())
}

#[test]
fn what_is_wrong_with_a_certificate_is_said() -> Outcome {
    let site = Site::new()?;
    let strangers = [Authority::new()?, Authority::named("another authority")?];
    for kind in ServerKind::all_required() {
        for stranger in &strangers {
            let unknown = site.server(kind, &stranger.server(NAMES)?, "no")?;
            refused(
                &site.url(unknown.port()),
                "not signed by an authority that is trusted here",
            )?;
        }
        let expired = site.server(kind, &site.authority.expired(NAMES)?, "no")?;
        refused(&site.url(expired.port()), "has expired")?;
        let other = site.server(kind, &site.authority.server(&["db.test"])?, "no")?;
        let url = site.url(other.port());
        refused(
            &url,
            "not for 127.0.0.1: set server_name, it is for db.test",
        )?;
        refused(&format!("{url}&server_name=db2.test"), "not for db2.test")?;
        let_in(&format!("{url}&server_name=db.test"))?;
        // The system does not know the authority.
        let url = format!("rediss://127.0.0.1:{}", other.port());
        refused(&url, "not signed by an authority that is trusted here")?;
    }
    Ok(())
}

#[test]
fn a_client_certificate_is_shown_where_it_is_asked_for() -> Outcome {
    let site = Site::new()?;
    let strangers = [Authority::new()?, Authority::named("another authority")?];
    let folder = site.folder.path();
    let query = |pair: &Pair, name: &str| -> Result<String, Failure> {
        let (cert, key) = pair.write(folder, name)?;
        Ok(format!("&cert={}&key={}", cert.display(), key.display()))
    };
    let mine = query(&site.authority.client()?, "mine")?;
    let strange = [
        query(&strangers[0].client()?, "strange")?,
        query(&strangers[1].client()?, "stranger")?,
    ];
    for kind in ServerKind::all_required() {
        let server = site.server(kind, &site.authority.server(NAMES)?, "yes")?;
        let url = site.url(server.port());
        let_in(&format!("{url}{mine}"))?;
        refused(&url, "wants a client certificate")?;
        for strange in &strange {
            refused(&format!("{url}{strange}"), "does not take our certificate")?;
        }
        // The same without the last version of the protocol, which tells it at another moment.
        let setup = Server::setup(kind).arguments(&["--tls-protocols", "TLSv1.2"]);
        let pair = site.authority.server(NAMES)?;
        let server = setup.tls(&pair, &site.authority, "yes").start()?;
        let url = site.url(server.port());
        let_in(&format!("{url}{mine}"))?;
        refused(&url, "client certificate")?;
    }
    Ok(())
}

#[test]
fn tls_on_one_side_only_is_said() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let error = error_of(&format!("redis://127.0.0.1:{}", server.port()))?;
        assert!(
            matches!(error, Error::Protocol(_) | Error::Unavailable(_)),
            "{error:?}"
        );
        // A plain server waits for the end of a line, or complains of the first.
        let server = Server::start(kind, &[])?;
        let url = format!("{}&connect_limit=300ms", site.url(server.port()));
        let error = error_of(&url)?;
        assert!(
            error.to_string().contains("TLS") || matches!(error, Error::Unavailable(_)),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn files_that_cannot_be_used_are_refused_before_anything_is_sent() -> Outcome {
    let site = Site::new()?;
    let folder = site.folder.path();
    let mine = site.authority.client()?;
    let (cert, key) = mine.write(folder, "mine")?;
    let (_, other) = site.authority.client()?.write(folder, "other")?;
    let junk = folder.join("junk");
    fs::write(
        &junk,
        "-----BEGIN hunter2\nhunter2\n-----BEGIN PRIVATE KEY-----\nhunter2!\n",
    )?;
    let base = "rediss://127.0.0.1:1/";
    for (query, says) in [
        (
            format!("ca={}", folder.join("none").display()),
            "cannot be read",
        ),
        (format!("ca={}", junk.display()), "no certificate in PEM"),
        (
            format!("cert={}&key={}", junk.display(), key.display()),
            "no certificate in PEM",
        ),
        (
            format!("cert={}&key={}", cert.display(), junk.display()),
            "no private key in PEM",
        ),
        (
            format!("cert={}&key={}", cert.display(), cert.display()),
            "no private key in PEM",
        ),
        (
            format!("cert={}&key={}", cert.display(), other.display()),
            "is not that of the first certificate",
        ),
        ("server_name=a%20b".to_owned(), "server name"),
    ] {
        let error = Tenure::start(&format!("{base}?{query}"), |config| config).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(shown.contains(says), "{query}: {shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains(&mine.key[30..60]));
    }
    let over_unix = Tenure::start("redis+unix:///tmp/none", |config| config.tls(Tls::new()));
    let shown = over_unix.unwrap_err().to_string();
    assert!(shown.contains("needs a server name"), "{shown}");
    Ok(())
}

#[test]
fn a_renewed_certificate_is_taken_without_a_new_client() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let mut server = site.server(kind, &site.authority.expired(NAMES)?, "no")?;
        let tenure = Tenure::start(&site.url(server.port()), |config| config)?;
        let first = tenure.wait(tenure.locks().ready())?;
        assert!(matches!(first, Err(Error::Misconfigured(_))), "{first:?}");
        // The server's, and then the authority itself.
        let fresh = site.authority.server(NAMES)?;
        fresh.write(server.dir(), "server")?;
        server.rerun(&[])?;
        assert!(eventually(SOON, || matches!(
            tenure.wait(tenure.locks().ready()),
            Ok(Ok(()))
        )));
        let lock = tenure.hold(NAME, MINUTE)?;
        let authority = Authority::new()?;
        authority.server(NAMES)?.write(server.dir(), "server")?;
        authority.write(site.folder.path(), "ca.pem")?;
        let up = |told: &Told| matches!(told, Told::Connected);
        let ups = tenure.told().count(up);
        server.rerun(&[])?;
        tenure.told().wait_for(ups + 1, SOON, up)?;
        // The key went with the server.
        assert_eq!(tenure.lost(&lock, SOON)?.cause, Cause::Gone);
        site.authority.write(site.folder.path(), "ca.pem")?;
    }
    Ok(())
}

#[test]
fn a_connection_in_tls_fails_as_any_other() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let proxy = Proxy::start(server.addr())?;
        let url = site.url(proxy.port());
        let tenure = Tenure::connect(&url, "me")?;
        // In the smallest pieces.
        proxy.trickle(Side::ToServer, true);
        proxy.trickle(Side::ToClient, true);
        let lock = tenure.hold("slow", MINUTE)?;
        tenure.wait(lock.renew_now())??;
        tenure.release(lock)?;
        proxy.trickle(Side::ToServer, false);
        proxy.trickle(Side::ToClient, false);
        let lock = tenure.hold(NAME, LEASE)?;
        let renewed = |told: &Told| matches!(told, Told::Renewed(_));
        for how in [Cut::Fin, Cut::Reset] {
            proxy.cut(how);
            tenure.told().more(2, SOON, renewed)?;
        }
        assert!(lock.is_held());
        // The handshake has no longer than the connect limit.
        proxy.swallow(Side::ToClient, true);
        let begun = Instant::now();
        let error = error_of(&format!("{url}&connect_limit=200ms"))?;
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
        assert!(begun.elapsed() < SOON);
        let lost = tenure.lost(&lock, SOON)?;
        assert!(matches!(lost.cause, Cause::Expired { .. }), "{lost:?}");
        assert!(lock.stop_window(&lost) > Duration::ZERO);
        proxy.swallow(Side::ToClient, false);
        proxy.cut(Cut::Reset);
        drop(lock);
        tenure.release(tenure.wait(tenure.locks().acquire(NAME))??)?;
    }
    Ok(())
}

#[test]
fn a_thousand_locks_at_once_go_through_a_server_that_stands_still() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let tenure = Tenure::connect(&site.url(server.port()), "me")?;
        server.freeze()?;
        // More than the sockets take.
        let name = |i: usize| format!("{i:01000}");
        let asking: Vec<_> = (0..1000)
            .map(|i| tenure.spawn(tenure.locks().lock(name(i)).lease(MINUTE).acquire()))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        server.thaw()?;
        let mut locks = Vec::new();
        for asked in asking {
            locks.push(tenure.wait(asked)???);
        }
        assert_eq!(server.client()?.keys()?.len(), 1000);
        for lock in locks {
            tenure.release(lock)?;
        }
        assert!(server.client()?.keys()?.is_empty());
        let ups = tenure.told().count(|told| matches!(told, Told::Connected));
        assert_eq!(ups, 1, "by one connection");
    }
    Ok(())
}

#[test]
fn tls_goes_over_a_transport_of_the_callers() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let config = Config::from_url(&site.url(server.port()))?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let locks = tenure_tokio::connect_over(&config, |endpoint| async move {
                tokio::net::TcpStream::connect(endpoint.to_string()).await
            })
            .await?;
            let lock = locks.lock(NAME).lease(LEASE).acquire().await?;
            tokio::time::sleep(2 * LEASE).await;
            assert!(lock.release().await?.confirmed);
            locks.close().await;
            Ok::<(), Failure>(())
        })?;
    }
    Ok(())
}

#[test]
fn tls_goes_over_a_transport_of_the_callers_on_smol() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let config = Config::from_url(&site.url(server.port()))?;
        let address = server.addr();
        let binding = tenure_smol::SmolBinding::new().over(move |_| async move {
            Ok(Little(smol::net::TcpStream::connect(address).await?, 0))
        });
        let (locks, driver) = tenure_client::connect_with(binding, &config)?;
        let driving = smol::spawn(driver);
        smol::block_on(async {
            locks.ready().await?;
            let lock = locks.lock(NAME).lease(LEASE).acquire().await?;
            smol::Timer::after(2 * LEASE).await;
            assert!(lock.release().await?.confirmed);
            locks.close().await;
            driving.await;
            Ok::<(), Failure>(())
        })?;
    }
    Ok(())
}

/// A transport that takes some bytes at a time, and nothing every other time.
struct Little(smol::net::TcpStream, usize);

impl AsyncRead for Little {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_read(cx, bytes)
    }
}

impl AsyncWrite for Little {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1 += 1;
        if self.1 % 2 == 1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let most = bytes.len().min(50);
        Pin::new(&mut self.0).poll_write(cx, &bytes[..most])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_close(cx)
    }
}

#[test]
fn threads_hold_locks_over_tls() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let mut client = server.client()?;
        let config = Config::from_url(&site.url(server.port()))?.label("threads");
        let locks = tenure_blocking::connect_config(&config)?;
        let lock = locks.lock(NAME).lease(LEASE).acquire()?;
        // Longer than it would live without renewals.
        let value = client.get(&key_of(NAME))?;
        assert!(!eventually(2 * LEASE, || !lock.is_held()));
        assert_eq!(client.get(&key_of(NAME))?, value);
        assert!(lock.release()?.confirmed);
        // One after the other, read by the thread that asks; and many at once.
        for _ in 0..100 {
            assert!(locks.acquire(NAME)?.release()?.confirmed);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|i| {
                    let locks = locks.clone();
                    scope.spawn(move || -> Result<(), Error> {
                        for _ in 0..25 {
                            locks.acquire(format!("{i}"))?.release()?;
                        }
                        Ok(())
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        let lock = locks.lock(NAME).lease(LEASE).acquire()?;
        client.del(&key_of(NAME))?;
        assert!(eventually(SOON, || !lock.is_held()));
        assert!(matches!(
            lock.check(),
            Err(Error::Lost(Lost {
                cause: Cause::Gone,
                ..
            }))
        ));
        drop(lock);
        locks.close();
    }
    Ok(())
}

#[test]
fn smol_holds_locks_over_tls() -> Outcome {
    let site = Site::new()?;
    for kind in ServerKind::all_required() {
        let server = site.good(kind)?;
        let mut client = server.client()?;
        let config = Config::from_url(&site.url(server.port()))?.label("smol");
        smol::block_on(async {
            let locks = tenure_smol::connect_config(&config).await?;
            let lock = locks.lock(NAME).lease(LEASE).acquire().await?;
            let value = client.get(&key_of(NAME))?;
            smol::Timer::after(2 * LEASE).await;
            assert!(lock.is_held());
            assert_eq!(client.get(&key_of(NAME))?, value);
            assert!(lock.release().await?.confirmed);
            let lock = locks.lock(NAME).lease(LEASE).acquire().await?;
            client.del(&key_of(NAME))?;
            assert_eq!(lock.lost().await.cause, Cause::Gone);
            drop(lock);
            locks.close().await;
            Ok::<(), Failure>(())
        })?;
    }
    Ok(())
}
