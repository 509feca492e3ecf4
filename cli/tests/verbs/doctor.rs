//! `doctor`, on healthy servers and on others; what it says stands in `docs/doctor.md`.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::Value;
use tenure_tests::process::Folder;
use tenure_tests::{Authority, Server, ServerKind};

use crate::harness::{MINUTE, json, on, on_each_server, said, server};
use crate::kept;

/// What `doctor` says of this store, and its status; numbers that differ from run to run are left out.
fn examined(url: &str, server: Option<&Server>) -> (i32, String) {
    let (status, out, err) = said(&mut on(url, &["doctor"]));
    assert_eq!(err, "");
    assert!(!out.contains("s3cret"), "{out}");
    let mut out = out;
    if let Some(server) = server {
        let version = server.version();
        let mut parts = version.split('.');
        let (major, minor) = (parts.next().unwrap(), parts.next().unwrap());
        let short = format!("{major}.x");
        out = out
            .replace(version, &short)
            .replace(&format!("{major}.{minor}\n"), &format!("{short}\n"));
    }
    let address = url.trim_end_matches('/').rsplit(['/', '@']).next().unwrap();
    let port = address.rsplit(':').next().unwrap();
    (status, without_times(&out.replace(port, "PORT")))
}

/// The number in front of each `ms`, and the seconds that a replica is behind.
fn without_times(text: &str) -> String {
    let mut masked: Vec<String> = Vec::new();
    for line in text.split_inclusive('\n') {
        if line.contains("-> take leases well above") {
            continue;
        }
        let line = &line.replace("warn  round-trip", "ok    round-trip");
        let mut words: Vec<&str> = line.split(' ').collect();
        for at in 1..words.len() {
            let unit = words[at].trim_end();
            let is_number = words[at - 1].parse::<f64>().is_ok();
            let is_room = unit == "MB";
            let is_time = unit.trim_end_matches([',', ':']) == "ms";
            let is_lag = unit == "s"
                && words
                    .get(at + 1)
                    .is_some_and(|word| word.starts_with("behind"));
            if is_number && (is_time || is_lag || is_room) && !line.contains("->") {
                words[at - 1] = "N";
            }
        }
        masked.push(words.join(" "));
    }
    masked.concat()
}

/// The checks that are not `ok`, as JSON has them.
fn findings(url: &str) -> (i32, Vec<(String, String)>) {
    let (status, value) = json(&mut on(url, &["doctor"]));
    let all = value.as_array().unwrap();
    let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    for check in all {
        assert_eq!(check.as_object().unwrap().len(), 4);
        assert_eq!(check["status"] == "ok", check["fix"].is_null(), "{check}");
        assert!(!text(check, "detail").is_empty());
    }
    // How fast the machine is that runs this says nothing.
    let fast = all.iter().filter(|check| check["check"] != "round-trip");
    let odd = fast.filter(|check| check["status"] != "ok");
    let odd = odd.map(|check| (text(check, "check"), text(check, "status")));
    (status, odd.collect())
}

fn found(list: &[(&str, &str)]) -> Vec<(String, String)> {
    let list = list.iter();
    list.map(|(check, grade)| ((*check).to_owned(), (*grade).to_owned()))
        .collect()
}

fn start(kind: ServerKind, arguments: &[&str]) -> Server {
    Server::start(kind, arguments).unwrap()
}

#[test]
fn a_healthy_server_has_nothing_wrong() {
    for kind in ServerKind::all_required() {
        let server = Server::start_with_data(kind, &[]).unwrap();
        assert_eq!(findings(&server.url()), (0, vec![]), "{kind}");
        let (status, text) = examined(&server.url(), Some(&server));
        assert_eq!(status, 0);
        kept::block("doctor.md", &format!("healthy {kind}"), &text);
    }
}

#[test]
fn it_leaves_nothing_behind_but_one_counter() {
    on_each_server(|server| {
        let mut client = server.client().unwrap();
        client.set("mine", "x", None).unwrap();
        for _ in 0..2 {
            findings(&server.url());
        }
        let mut keys = client.keys().unwrap();
        // What is gone in a minute: a name that cools down, and who was removed by force.
        keys.retain(|key| {
            let left = client.pttl(key).unwrap();
            left.is_none_or(|left| left > MINUTE) && client.exists(key).unwrap()
        });
        keys.sort();
        assert_eq!(keys, ["lock:{lock:tenure-doctor}:fence", "mine"]);
        assert_eq!(client.get("mine").unwrap().as_deref(), Some(&b"x"[..]));
    });
}

#[test]
fn a_server_that_evicts_and_forgets_is_warned_of() {
    let arguments = ["--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru"];
    for kind in ServerKind::all_required() {
        let server = start(kind, &arguments);
        let wanted = found(&[("eviction", "warn"), ("persistence", "warn")]);
        assert_eq!(findings(&server.url()), (0, wanted), "{kind}");
        if kind == ServerKind::Redis86 {
            let (_, text) = examined(&server.url(), Some(&server));
            kept::block("doctor.md", "evicts", &text);
        }
    }
}

#[test]
fn what_a_user_may_not_is_named() {
    on_each_server(|server| {
        let mut client = server.client().unwrap();
        let words = ["ACL", "SETUSER", "app", "on", ">s3cret", "~lock:*", "-@all"];
        client.ok(&words).unwrap();
        let url = server.url().replace("//", "//app:s3cret@");
        let (status, found) = findings(&url);
        assert_eq!(status, 1);
        for (check, grade) in [
            ("acquire", "fail"),
            ("inspect", "warn"),
            ("fences", "warn"),
            ("fair", "warn"),
            ("at-least", "warn"),
            ("list", "warn"),
            ("force-release", "warn"),
            ("server", "warn"),
            ("clock", "warn"),
            ("wake-ups", "warn"),
        ] {
            let wanted = (check.to_owned(), grade.to_owned());
            assert!(found.contains(&wanted), "{wanted:?}: {found:?}");
        }
        if server.kind() == ServerKind::Redis86 {
            let (_, text) = examined(&url, Some(server));
            assert!(text.contains("allow +set to this user"), "{text}");
            kept::block("doctor.md", "no rights", &text);
            // What locks need, and no more.
            let words = ["ACL", "SETUSER", "app", "+set", "+delex", "+get", "+pttl"];
            client.ok(&words).unwrap();
            let (status, text) = examined(&url, Some(server));
            assert_eq!(status, 0, "{text}");
            kept::block("doctor.md", "locks only", &text);
        }
    });
}

#[test]
fn a_user_that_may_not_release_is_told_so() {
    let server = start(ServerKind::Redis86, &[]);
    let mut client = server.client().unwrap();
    let words = [
        "ACL", "SETUSER", "app", "on", ">s3cret", "~*", "+@all", "-delex", "-eval", "-evalsha",
    ];
    client.ok(&words).unwrap();
    let url = server.url().replace("//", "//app:s3cret@");
    let (status, found) = findings(&url);
    assert_eq!(status, 1);
    assert!(
        found.contains(&("release".to_owned(), "fail".to_owned())),
        "{found:?}"
    );
}

#[test]
fn a_primary_is_told_from_a_replica() {
    let kind = ServerKind::Redis86;
    let server = Server::start_with_data(kind, &[]).unwrap();
    let replica = server.start_replica().unwrap();
    let (status, text) = examined(&server.url(), Some(&server));
    assert_eq!(status, 0);
    kept::block("doctor.md", "primary", &text);
    assert_eq!(findings(&server.url()).1, found(&[("replication", "warn")]));
    let (status, text) = examined(&replica.url(), Some(&replica));
    assert_eq!(status, 1);
    kept::block("doctor.md", "replica", &text);
}

#[test]
fn where_it_cannot_look_the_status_says_so() {
    let server = server();
    let mut client = server.client().unwrap();
    client.config_set("requirepass", "s3cret").unwrap();
    let wrong = server.url().replace("//", "//:s3cret0@");
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("redis://:s3cret@{}/", listener.local_addr().unwrap())
    };
    let http = http_server();
    for (name, url) in [
        ("wrong password", &wrong),
        ("nothing listens", &nobody),
        ("an HTTP server", &http),
    ] {
        let (status, text) = examined(url, None);
        assert_eq!(status, 69, "{text}");
        kept::block("doctor.md", name, &text);
        let (status, found_there) = findings(url);
        assert_eq!((status, found_there), (69, found(&[("reach", "fail")])));
    }
    let (status, out, err) = said(&mut on("redis://:s3cret@h:x/", &["doctor"]));
    assert_eq!((status, &*out), (64, ""));
    assert!(!err.contains("s3cret"), "{err}");
}

/// Answers whatever comes as a web server does.
fn http_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://:s3cret@{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
        }
    });
    url
}

#[test]
fn tls_is_looked_at() {
    let authority = Authority::new().unwrap();
    let pair = authority.server(&["127.0.0.1"]).unwrap();
    let setup = Server::setup(ServerKind::Redis86).tls(&pair, &authority, "no");
    let server = setup.start().unwrap();
    let ca = authority.write(server.dir(), "ca.pem").unwrap();
    let url = format!("{}?ca={}", server.url(), ca.display());
    let (status, value) = json(&mut on(&url, &["doctor"]));
    assert_eq!(status, 0);
    assert_eq!(value[1]["check"], "tls");
    assert_eq!(value[1]["detail"], "the certificate is trusted");
    // Signed by nobody that this system trusts.
    let (status, value) = json(&mut on(&server.url(), &["doctor"]));
    assert_eq!((status, value.as_array().unwrap().len()), (69, 1));
    assert_eq!(value[0]["status"], "fail");
}

#[test]
fn a_file_is_examined_as_a_file() {
    let folder = Folder::new().unwrap();
    let path = folder.path().join("locks.db");
    let url = format!("sqlite:{}", path.display());
    assert_eq!(findings(&url), (0, vec![]));
    let (_, text) = examined(&url, None);
    let (before, rest) = text.split_once("SQLite ").unwrap();
    let (version, after) = rest.split_once('\n').unwrap();
    assert!(version.starts_with("3."), "{version}");
    let text = format!("{before}SQLite 3.x\n{after}");
    let text = text
        .replace("/PORT", "/locks.db")
        .replace(folder.path().to_str().unwrap(), "/FOLDER");
    kept::block("doctor.md", "a file", &text);
    // As if the clock had been set back by an hour, and somebody might believe in a lease that it has made longer.
    let file = rusqlite::Connection::open(&path).unwrap();
    let stepped = "update tenure_clock set step_us = -3600000000, until_ms = 9000000000000000";
    assert_eq!(file.execute(stepped, []).unwrap(), 1);
    assert_eq!(findings(&url), (0, found(&[("clock", "warn")])));
    let (_, text) = examined(&url, None);
    assert!(
        text.contains("set back by 60 min while locks were held"),
        "{text}"
    );
    file.execute("update tenure_clock set step_us = 0", [])
        .unwrap();
    // Whoever can write it can free any lock.
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, anybody).unwrap();
    assert_eq!(findings(&url), (0, found(&[("file", "warn")])));
    let nowhere = format!("sqlite:{}/none/locks.db", folder.path().display());
    std::fs::write(folder.path().join("none"), "no folder").unwrap();
    let (status, value) = json(&mut on(&nowhere, &["doctor"]));
    assert_eq!((status, &value[0]["check"]), (69, &"reach".into()));
}
