//! Tests of the harness itself: a test that passes because its tools do nothing shows nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure_tests::fake::Stranger;
use tenure_tests::server::free_port;
use tenure_tests::trouble::{Busy, Trouble, load_slowly, moved_away};
use tenure_tests::{
    Answer, Client, Cut, Failure, Handshake, Hello, Model, Proxy, Reply, ScriptedServer, Server,
    ServerKind, Side, eventually,
};

type Outcome = Result<(), Failure>;

const SOON: Duration = Duration::from_secs(5);
const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

/// Runs a test on every server of the matrix and says which one it failed on.
fn on_each(test: impl Fn(ServerKind) -> Outcome) -> Outcome {
    for kind in ServerKind::all_required() {
        test(kind).map_err(|error| format!("{kind}: {error}"))?;
    }
    Ok(())
}

fn any() -> ServerKind {
    ServerKind::all_required()[0]
}

#[test]
fn each_server_is_of_its_kind() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = Client::connect(server.addr())?;
        let field = match kind.program() {
            "valkey-server" => "valkey_version",
            _ => "redis_version",
        };
        let version = client.info_field("server", field)?.unwrap_or_default();
        assert!(kind.accepts(&version), "{kind} is {version}");
        assert_eq!(version, server.version());
        assert_eq!(
            client.info_field("server", "tcp_port")?,
            Some(server.port().to_string())
        );
        Ok(())
    })
}

#[test]
fn each_dialect_is_as_the_design_says() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.set("k", "v", None)?;
        let renews = client.cmd(&["SET", "k", "v", "IFEQ", "v", "GET", "PX", "60000"])?;
        let delex = client.cmd(&["DELEX", "k", "IFEQ", "other"])?;
        let delifeq = client.cmd(&["DELIFEQ", "k", "other"])?;
        assert_eq!(
            renews == Reply::Bulk(b"v".to_vec()),
            kind != ServerKind::Redis70
        );
        assert_eq!(delex == Reply::Int(0), kind == ServerKind::Redis86);
        assert_eq!(delifeq == Reply::Int(0), kind == ServerKind::Valkey91);
        Ok(())
    })
}

#[test]
fn a_frozen_server_answers_when_it_thaws() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.set("k", "v", Some(Duration::from_millis(150)))?;
        server.freeze()?;
        client.patience(Some(Duration::from_millis(200)))?;
        client.send(&["GET", "k"])?;
        assert!(client.receive().is_err(), "a frozen server answered");
        server.thaw()?;
        client.patience(Some(SOON))?;
        // Time went on while it was frozen.
        assert_eq!(client.receive()?, Reply::Nil);
        Ok(())
    })
}

#[test]
fn data_outlives_a_kill_only_when_asked_to() -> Outcome {
    on_each(|kind| {
        let mut server = Server::start_with_data(kind, &[])?;
        let port = server.port();
        server.client()?.set("k", "v", MINUTE)?;
        server.restart_with_data()?;
        let mut client = Client::connect(server.addr())?;
        assert_eq!(client.get("k")?.as_deref(), Some(&b"v"[..]));
        server.restart_empty()?;
        assert!(
            client.cmd(&["PING"]).is_err(),
            "the old connection still works"
        );
        assert_eq!(server.client()?.get("k")?, None);
        assert_eq!(server.port(), port);

        let mut server = Server::start(kind, &[])?;
        assert!(server.restart_with_data().is_err());
        server.kill();
        assert!(Client::connect(server.addr()).is_err());
        server.restart_empty()?;
        assert!(!server.client()?.exists("k")?);
        Ok(())
    })
}

#[test]
fn a_server_comes_up_on_the_port_asked_for_or_not_at_all() -> Outcome {
    let port = free_port()?;
    let first = Server::start_on(port, any(), &[])?;
    assert_eq!(first.port(), port);
    let second = Server::start_on(port, any(), &[]);
    assert!(
        second
            .unwrap_err()
            .to_string()
            .contains("Address already in use")
    );
    Ok(())
}

#[test]
fn arguments_that_are_wrong_are_reported() {
    let error = Server::start(any(), &["--no-such-option", "1"]).unwrap_err();
    assert!(error.to_string().contains("exit status"), "{error}");
}

#[test]
fn a_dropped_server_leaves_nothing() -> Outcome {
    let server = Server::start(any(), &[])?;
    let (address, folder) = (server.addr(), server.dir().to_owned());
    // Frozen, so that only a kill can end it.
    server.freeze()?;
    drop(server);
    assert!(Client::connect(address).is_err());
    assert!(!folder.exists());
    Ok(())
}

/// Run by the test below in a process of its own, which is then killed. On its own it does nothing.
#[test]
fn sacrifice() -> Outcome {
    if std::env::var_os("TENURE_SACRIFICE").is_some() {
        let server = Server::start(any(), &[])?;
        println!("\nstarted {} {}", server.port(), server.dir().display());
        std::thread::sleep(Duration::from_secs(60));
    }
    Ok(())
}

#[test]
fn a_killed_test_leaves_nothing() -> Outcome {
    use std::io::BufRead as _;
    let mut test = Command::new(std::env::current_exe()?)
        .args(["--exact", "sacrifice", "--nocapture"])
        .env("TENURE_SACRIFICE", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let output = std::io::BufReader::new(test.stdout.take().ok_or("it is piped")?);
    let started = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("started ").map(str::to_owned));
    let started = started.ok_or("the test did not start a server")?;
    let (port, folder) = started.split_once(' ').ok_or("half a line")?;
    let address = format!("127.0.0.1:{port}");
    assert!(Client::connect(&address).is_ok());
    test.kill()?;
    test.wait()?;
    assert!(
        eventually(SOON, || Client::connect(&address).is_err()),
        "it runs on"
    );
    let folder = std::path::Path::new(folder);
    assert!(eventually(SOON, || !folder.exists()), "its folder is left");
    Ok(())
}

#[test]
fn a_monitor_sees_commands_also_those_of_scripts() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let monitor = server.monitor()?;
        let mut client = server.client()?;
        client.set("mine", "a \"b\"\n", None)?;
        client.set("other", "v", None)?;
        client.ok(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "mine"])?;
        assert!(monitor.wait_for(1, SOON, |seen| seen.from == "lua"));
        let seen = monitor.about("mine");
        let names: Vec<String> = seen.iter().map(|seen| seen.name()).collect();
        assert_eq!(names, ["SET", "EVAL", "GET"]);
        assert_eq!(seen[0].arg(2), "a \"b\"\n");
        assert_eq!(client.calls("set")?, 2);
        Ok(())
    })
}

#[test]
fn each_trouble_is_entered_and_left() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.set("k", "v", MINUTE)?;
        for (trouble, word) in [
            (Trouble::OutOfMemory, "OOM"),
            (Trouble::ReadOnly, "READONLY"),
            (Trouble::PrimaryDown, "MASTERDOWN"),
            (Trouble::NoReplicas, "NOREPLICAS"),
        ] {
            trouble.enter(&server)?;
            let reply = client.cmd(&["SET", "n", "v", "NX", "PX", "60000"])?;
            assert!(reply.is_error(word), "{kind} {trouble:?}: {reply:?}");
            let renewed = client.cmd(&[
                "EVAL",
                "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], 60000) end",
                "1",
                "k",
                "v",
            ])?;
            let works = renewed == Reply::Int(1);
            assert_eq!(
                works,
                trouble == Trouble::OutOfMemory,
                "{kind} {trouble:?}: {renewed:?}"
            );
            trouble.leave(&server)?;
            client.set("n", "v", None)?;
            client.del("n")?;
            assert!(client.exists("k")?, "{kind} {trouble:?} lost the key");
        }
        Ok(())
    })
}

#[test]
fn a_busy_server_is_busy_until_the_script_is_killed() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.set("k", "v", MINUTE)?;
        let busy = Busy::start(&server)?;
        assert!(client.cmd(&["SET", "n", "v"])?.is_error("BUSY"));
        drop(busy);
        assert!(eventually(SOON, || client.exists("k").unwrap_or(false)));
        Ok(())
    })
}

#[test]
fn a_loading_server_says_so_and_has_its_keys_in_the_end() -> Outcome {
    on_each(|kind| {
        let mut server = Server::start(kind, &[])?;
        server.client()?.set("k", "v", MINUTE)?;
        let began = Instant::now();
        load_slowly(&mut server, Duration::from_millis(500))?;
        let mut client = Client::connect(server.addr())?;
        assert!(client.cmd(&["SET", "n", "v"])?.is_error("LOADING"));
        assert!(eventually(SOON, || client.exists("k").unwrap_or(false)));
        assert!(began.elapsed() > Duration::from_millis(300));
        Ok(())
    })
}

#[test]
fn a_key_can_have_moved_away() -> Outcome {
    on_each(|kind| {
        let server = moved_away(kind)?;
        let reply = server
            .client()?
            .cmd(&["SET", "k", "v", "NX", "PX", "1000"])?;
        assert!(reply.is_error("MOVED"), "{reply:?}");
        Ok(())
    })
}

#[test]
fn a_cluster_without_slots_is_down() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &["--cluster-enabled", "yes"])?;
        let reply = server
            .client()?
            .cmd(&["SET", "k", "v", "NX", "PX", "1000"])?;
        assert!(reply.is_error("CLUSTERDOWN"), "{reply:?}");
        Ok(())
    })
}

#[test]
fn refusals_that_depend_on_the_form_of_a_command() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &[])?;
        let mut client = server.client()?;
        client.ok(&["RPUSH", "list", "x"])?;
        let with_get = client.cmd(&["SET", "list", "v", "NX", "GET", "PX", "1000"])?;
        assert!(with_get.is_error("WRONGTYPE"), "{with_get:?}");
        let without = client.cmd(&["SET", "list", "v", "NX", "PX", "1000"])?;
        assert_eq!(without, Reply::Nil);
        let in_script = client.cmd(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "list"])?;
        println!("{kind}: a script's GET of a list: {in_script:?}");
        if kind != ServerKind::Redis70 {
            let renewal = ["SET", "list", "v", "IFEQ", "v", "GET", "PX", "1000"];
            assert!(client.cmd(&renewal)?.is_error("WRONGTYPE"));
            client.set("k", "v", MINUTE)?;
            Trouble::OutOfMemory.enter(&server)?;
            let renewal = ["SET", "k", "v", "IFEQ", "v", "GET", "PX", "60000"];
            assert!(client.cmd(&renewal)?.is_error("OOM"));
        }
        Ok(())
    })
}

#[test]
fn users_may_be_kept_from_keys_commands_and_hello() -> Outcome {
    on_each(|kind| {
        let server = Server::start(kind, &["--rename-command", "HELLO", ""])?;
        let mut admin = server.client()?;
        let refused = admin.cmd(&["HELLO", "3"])?;
        assert!(refused.is_error("ERR"), "{refused:?}");
        admin.ok(&["ACL", "SETUSER", "u", "on", ">p", "~a*", "+@all", "-get"])?;
        let mut user = Client::connect(server.addr())?;
        assert!(user.cmd(&["AUTH", "u", "wrong"])?.is_error("WRONGPASS"));
        user.ok(&["AUTH", "u", "p"])?;
        user.set("a", "v", None)?;
        assert!(user.cmd(&["SET", "b", "v"])?.is_error("NOPERM"));
        assert!(user.cmd(&["GET", "a"])?.is_error("NOPERM"));
        // Without the right to read a key, `SET .. GET` is refused; `-get` alone does not do that.
        admin.ok(&["ACL", "SETUSER", "w", "on", ">p", "%W~a*", "+@all"])?;
        user.ok(&["AUTH", "w", "p"])?;
        let reads = ["SET", "a2", "v", "NX", "GET", "PX", "1000"];
        assert!(user.cmd(&reads)?.is_error("NOPERM"));
        user.ok(&["SET", "a2", "v", "NX", "PX", "1000"])?;
        admin.ok(&["CONFIG", "SET", "requirepass", "secret"])?;
        let mut nobody = Client::connect(server.addr())?;
        assert!(nobody.cmd(&["GET", "a"])?.is_error("NOAUTH"));
        Ok(())
    })
}

fn proxied() -> Result<(Server, Proxy, Client), Failure> {
    let server = Server::start(any(), &[])?;
    let proxy = Proxy::start(server.addr())?;
    let client = Client::connect(proxy.addr())?;
    Ok((server, proxy, client))
}

#[test]
fn a_proxy_counts_and_passes_everything() -> Outcome {
    let (_server, proxy, mut client) = proxied()?;
    client.set("k", &"x".repeat(300_000), None)?;
    assert_eq!(client.get("k")?.map(|value| value.len()), Some(300_000));
    let counts = proxy.counts();
    assert_eq!(counts.connections, 1);
    assert_eq!((counts.to_server.frames, counts.to_client.frames), (2, 2));
    assert_eq!(counts.to_server.received, counts.to_server.forwarded);
    assert!(counts.to_client.received > 300_000);
    assert_eq!(proxy.open(), 1);
    drop(client);
    assert!(eventually(SOON, || proxy.open() == 0));
    Ok(())
}

#[test]
fn a_proxy_delays_each_way() -> Outcome {
    let (_server, proxy, mut client) = proxied()?;
    for side in [Side::ToServer, Side::ToClient] {
        proxy.delay(side, Duration::from_millis(60));
        let began = Instant::now();
        client.ok(&["PING"])?;
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(60), "{side:?}: {took:?}");
        proxy.delay(side, Duration::ZERO);
    }
    let began = Instant::now();
    client.ok(&["PING"])?;
    assert!(began.elapsed() < Duration::from_millis(60));
    Ok(())
}

#[test]
fn a_proxy_holds_and_releases() -> Outcome {
    let (server, proxy, mut client) = proxied()?;
    proxy.hold(Side::ToClient);
    client.send(&["SET", "k", "v"])?;
    assert!(proxy.wait_for(SOON, |counts| counts.to_client.frames == 1));
    assert!(server.client()?.exists("k")?);
    assert_eq!(proxy.counts().to_client.forwarded, 0);
    proxy.release(Side::ToClient);
    assert_eq!(client.receive()?, Reply::Simple("OK".into()));
    Ok(())
}

#[test]
fn a_proxy_swallows() -> Outcome {
    let (server, proxy, mut client) = proxied()?;
    proxy.black_hole(true);
    client.send(&["SET", "k", "v"])?;
    client.patience(Some(Duration::from_millis(100)))?;
    assert!(client.receive().is_err());
    proxy.black_hole(false);
    client.patience(Some(SOON))?;
    client.ok(&["PING"])?;
    assert!(!server.client()?.exists("k")?);
    Ok(())
}

#[test]
fn a_proxy_cuts_with_a_reset_or_an_end() -> Outcome {
    let (_server, proxy, _) = proxied()?;
    for (how, wanted) in [
        (Cut::Fin, None),
        (Cut::Reset, Some(std::io::ErrorKind::ConnectionReset)),
    ] {
        let mut stream = TcpStream::connect(proxy.addr())?;
        stream.write_all(b"PING\r\n")?;
        let mut pong = [0; 7];
        stream.read_exact(&mut pong)?;
        proxy.cut(how);
        let ended = match stream.read(&mut pong) {
            Ok(0) => None,
            Ok(more) => return Err(format!("{more} bytes more").into()),
            Err(error) => Some(error.kind()),
        };
        assert_eq!(ended, wanted, "{how:?}");
    }
    assert_eq!(proxy.open(), 0);
    Ok(())
}

#[test]
fn a_proxy_cuts_in_the_middle_of_a_reply_and_of_a_command() -> Outcome {
    let (server, proxy, mut client) = proxied()?;
    server.client()?.set("k", "value", None)?;
    proxy.cut_after(Side::ToClient, 3, Cut::Fin);
    client.send(&["GET", "k"])?;
    assert!(client.receive().is_err());
    assert_eq!(proxy.counts().to_client.forwarded, 3);

    let before = proxy.counts().to_server.forwarded;
    let mut client = Client::connect(proxy.addr())?;
    proxy.cut_after(Side::ToServer, 20, Cut::Reset);
    client.send(&["SET", "other", "v"])?;
    assert!(client.receive().is_err());
    assert_eq!(proxy.counts().to_server.forwarded - before, 20);
    assert!(!server.client()?.exists("other")?);
    Ok(())
}

#[test]
fn a_proxy_delivers_late_what_a_gone_client_sent() -> Outcome {
    let (server, proxy, mut client) = proxied()?;
    client.ok(&["PING"])?;
    proxy.hold(Side::ToServer);
    client.send(&["SET", "k", "late"])?;
    assert!(proxy.wait_for(SOON, |counts| counts.to_server.frames == 2));
    proxy.cut_client(Cut::Reset);
    assert!(client.receive().is_err());
    assert!(!server.client()?.exists("k")?);
    proxy.release(Side::ToServer);
    let mut looker = server.client()?;
    assert!(eventually(SOON, || looker.exists("k").unwrap_or(false)));
    Ok(())
}

#[test]
fn a_proxy_strands_what_a_dead_connection_had_sent() -> Outcome {
    let (server, proxy, mut client) = proxied()?;
    client.ok(&["PING"])?;
    proxy.hold(Side::ToServer);
    client.send(&["SET", "k", "late"])?;
    assert!(proxy.wait_for(SOON, |counts| counts.to_server.frames == 2));
    proxy.strand(Cut::Reset);
    proxy.release(Side::ToServer);
    assert!(client.receive().is_err());
    let mut client = Client::connect(proxy.addr())?;
    client.ok(&["PING"])?;
    assert!(!server.client()?.exists("k")?);
    proxy.deliver()?;
    assert!(eventually(SOON, || client.exists("k").unwrap_or(false)));
    assert!(proxy.deliver().is_err());
    Ok(())
}

#[test]
fn a_proxy_trickles() -> Outcome {
    let (_server, proxy, mut client) = proxied()?;
    proxy.trickle(Side::ToServer, true);
    proxy.trickle(Side::ToClient, true);
    client.set("k", "value", None)?;
    assert_eq!(client.get("k")?.as_deref(), Some(&b"value"[..]));
    Ok(())
}

#[test]
fn a_proxy_refuses_and_a_dead_server_is_refused_too() -> Outcome {
    let (mut server, proxy, _client) = proxied()?;
    let works = || Client::connect(proxy.addr()).and_then(|mut client| client.cmd(&["PING"]));
    works()?;
    proxy.refuse(true);
    assert!(works().is_err());
    proxy.refuse(false);
    works()?;
    server.kill();
    assert!(works().is_err());
    server.restart_empty()?;
    works()?;
    Ok(())
}

#[test]
fn a_scripted_server_greets_as_told() -> Outcome {
    let greet = |handshake: Handshake, commands: &[&[&str]]| -> Result<Vec<Reply>, Failure> {
        let server = ScriptedServer::model(handshake, Model::new(ServerKind::Redis70))?;
        let mut client = Client::connect(server.addr())?;
        let replies = commands.iter().map(|command| client.cmd(command));
        let replies = replies.collect::<Result<Vec<_>, _>>()?;
        assert_eq!(server.commands().len(), commands.len());
        Ok(replies)
    };
    let replies = greet(
        Handshake::default(),
        &[&["HELLO", "2"], &["PING"], &["AUTH", "p"]],
    )?;
    assert!(
        matches!(&replies[0], Reply::Array(parts) if parts.len() == 14),
        "{replies:?}"
    );
    assert_eq!(replies[1], Reply::Simple("PONG".into()));
    assert!(replies[2].is_error("ERR"));
    for (hello, word) in [
        (Hello::Unknown, "ERR"),
        (Hello::NoProto, "NOPROTO"),
        (Hello::NotPermitted, "NOPERM"),
    ] {
        let replies = greet(Handshake::with_hello(hello), &[&["HELLO", "3"], &["PING"]])?;
        assert!(replies[0].is_error(word), "{replies:?}");
        assert_eq!(replies[1], Reply::Simple("PONG".into()));
    }
    let replies = greet(
        Handshake::with_password("u", "p"),
        &[
            &["HELLO", "3"],
            &["GET", "k"],
            &["AUTH", "u", "wrong"],
            &["HELLO", "2", "AUTH", "u", "p"],
            &["GET", "k"],
        ],
    )?;
    assert!(
        replies[0].is_error("NOAUTH") && replies[1].is_error("NOAUTH"),
        "{replies:?}"
    );
    assert!(replies[2].is_error("WRONGPASS"), "{replies:?}");
    assert_eq!(replies[4], Reply::Nil);
    Ok(())
}

#[test]
fn a_model_answers_wrongly_when_told_to_and_rightly_else() -> Outcome {
    let model = Model::new(ServerKind::Redis86)
        .key("held", "other", MINUTE)
        .fault(2..=2, |call| call.is("SET"), Answer::error("READONLY no"))
        .fault(1..=1, |call| call.is("GET"), Answer::stall())
        .fault(1..=1, |call| call.is("EVAL"), Answer::Close);
    let server = ScriptedServer::model(Handshake::default(), model)?;
    let mut client = Client::connect(server.addr())?;
    let acquire = ["SET", "k", "v", "NX", "GET", "PX", "60000"];
    assert_eq!(client.cmd(&acquire)?, Reply::Nil);
    assert!(client.cmd(&acquire)?.is_error("READONLY"));
    assert_eq!(client.cmd(&acquire)?, Reply::Bulk(b"v".to_vec()));
    assert_eq!(
        client.cmd(&["SET", "k", "v", "IFEQ", "v", "GET", "PX", "30000"])?,
        Reply::Bulk(b"v".to_vec())
    );
    let left = client.pttl("k")?.unwrap_or_default();
    assert!(
        left > Duration::from_secs(25) && left <= Duration::from_secs(30),
        "{left:?}"
    );
    assert_eq!(client.cmd(&["DELEX", "k", "IFEQ", "w"])?, Reply::Int(0));
    assert_eq!(client.cmd(&["DELEX", "k", "IFEQ", "v"])?, Reply::Int(1));
    assert!(client.cmd(&["DELIFEQ", "k", "v"])?.is_error("ERR"));
    assert!(client.cmd(&["EVALSHA", "0", "0"])?.is_error("NOSCRIPT"));
    assert_eq!(
        client.cmd(&["SET", "held", "v", "NX", "PX", "60000"])?,
        Reply::Nil
    );
    client.patience(Some(Duration::from_millis(100)))?;
    assert!(client.cmd(&["GET", "held"]).is_err());
    // Nor does anything else on that connection.
    assert!(client.cmd(&["GET", "held"]).is_err());
    let mut client = Client::connect(server.addr())?;
    assert_eq!(client.get("held")?.as_deref(), Some(&b"other"[..]));
    assert!(client.cmd(&["EVAL", "", "0"]).is_err());
    assert!(server.wait_for(1, SOON, |call| call.is("eval")));
    assert_eq!(server.connections(), 2);
    Ok(())
}

#[test]
fn strangers_say_what_strangers_say() -> Outcome {
    for (stranger, begins) in [
        (Stranger::Http, &b"HTTP/1.1 400"[..]),
        (Stranger::Tls, &[0x15, 3, 3]),
    ] {
        let server = ScriptedServer::stranger(stranger)?;
        let mut stream = TcpStream::connect(server.addr())?;
        stream.write_all(b"*1\r\n$4\r\nPING\r\n")?;
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        assert!(said.starts_with(begins), "{said:?}");
    }
    Ok(())
}
