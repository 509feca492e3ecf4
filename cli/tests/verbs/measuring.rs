//! `bench`, and what a package installs: `completions` and `man`.

use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure_tests::eventually;

use crate::harness::{bare, json, on, on_each_server, said, server};

#[test]
fn a_bench_measures_three_things_and_leaves_nothing_behind() {
    on_each_server(|server| {
        let words = ["bench", "--seconds", "200ms", "--clients", "2"];
        let (status, value) = json(&mut on(&server.url(), &words));
        assert_eq!(status, 0);
        assert_eq!(
            (&value["clients"], &value["interrupted"]),
            (&2.into(), &false.into())
        );
        for part in ["acquire_release", "hand_over", "noise"] {
            let number = |key: &str| value[part][key].as_f64().unwrap();
            assert!(number("count") >= 1.0, "{value}");
            let shares = ["p50_ms", "p90_ms", "p99_ms", "max_ms"].map(number);
            assert!(shares.is_sorted() && shares[3] > 0.0, "{value}");
        }
        assert_eq!(
            server.client().unwrap().keys().unwrap(),
            Vec::<String>::new()
        );
    });
}

#[test]
fn in_a_pipe_a_bench_has_rows_without_bars() {
    let server = server();
    let (status, out, err) = said(&mut on(&server.url(), &["bench", "--seconds", "100ms"]));
    assert_eq!((status, &*err), (0, ""));
    for part in [
        "acquire and release: ",
        "hand-over to who waits: ",
        "this host's own noise: ",
        "  p50 ",
    ] {
        assert!(out.contains(part), "{out}");
    }
    assert!(
        !out.contains('#') && out.lines().all(|line| line.len() <= 80),
        "{out}"
    );
}

#[test]
fn an_interrupted_bench_says_what_it_has_measured() {
    let server = server();
    let mut command = on(&server.url(), &["bench", "--seconds", "1h", "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut client = server.client().unwrap();
    let busy = eventually(Duration::from_secs(20), || {
        client.calls("set").unwrap() >= 10
    });
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    assert_eq!((busy, child.wait().unwrap().code()), (true, Some(0)));
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(value["interrupted"], true);
    assert!(
        value["acquire_release"]["count"].as_u64() >= Some(1),
        "{value}"
    );
}

#[test]
fn a_bench_that_is_refused_says_why() {
    let server = server();
    let mut client = server.client().unwrap();
    client
        .ok(&["ACL", "SETUSER", "me", "on", ">s3cret", "~*", "-@all"])
        .unwrap();
    let url = format!("redis://me:s3cret@{}/", server.addr());
    let (status, out, err) = said(&mut on(&url, &["bench", "--seconds", "1s"]));
    assert_eq!((status, &*out), (77, ""));
    assert!(err.contains("set") && !err.contains("s3cret"), "{err}");
    let (status, ..) = said(&mut on(&url, &["bench", "--clients", "0"]));
    assert_eq!(status, 64);
}

#[test]
fn every_shell_has_completions_of_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (status, out, err) = said(&mut bare(&["completions", shell]));
        assert_eq!((status, &*err), (0, ""));
        for word in [
            "status",
            "list",
            "release",
            "watch",
            "doctor",
            "bench",
            "token-stdin",
        ] {
            assert!(out.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(said(&mut bare(&["completions", "none"])).0, 64);
}

#[test]
fn the_shell_understands_its_completions() {
    let (_, script, _) = said(&mut bare(&["completions", "bash"]));
    let asks =
        "COMP_WORDS=(tenure sta); COMP_CWORD=1; _tenure tenure sta tenure; echo ${COMPREPLY[@]}";
    let mut bash = std::process::Command::new("bash");
    let bash = bash.args(["--norc", "-c", &format!("{script}\n{asks}")]);
    let (status, out, err) = said(bash);
    assert_eq!((status, &*out), (0, "status\n"), "{err}");
}

#[test]
fn there_is_a_manual_page_and_one_of_each_verb() {
    let (status, page, err) = said(&mut bare(&["man"]));
    assert_eq!((status, &*err), (0, ""));
    assert!(page.contains(".TH tenure 1") && page.contains(r"tenure\-doctor(1)"));
    let (status, page, _) = said(&mut bare(&["man", "release"]));
    assert_eq!(status, 0);
    assert!(page.contains(".TH tenure-release 1") && page.contains("token\\-stdin"));
    let (_, page, _) = said(&mut bare(&["man", "run"]));
    assert!(
        page.contains("Give up if that many wait already"),
        "a page leaves nothing out: {page}"
    );
    let (status, _, err) = said(&mut bare(&["man", "fly"]));
    assert_eq!(status, 64);
    assert!(err.contains("no verb `fly`"), "{err}");
}
