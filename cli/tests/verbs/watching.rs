//! `watch`: what changes, and how it ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_tests::{eventually, key_of};

use crate::harness::{held, locks, on, said, server, terminal};

const LONG: Duration = Duration::from_secs(20);

/// A program that writes on, and what it writes.
struct Watching {
    child: Child,
    lines: Receiver<String>,
}

impl Watching {
    fn start(command: &mut Command) -> Watching {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Watching { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LONG).expect("another line")
    }

    fn event(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end, which nothing but what was asked for brings.
    fn ends(&mut self) -> Option<i32> {
        let mut status = None;
        eventually(LONG, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it ends").code()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn every_change_is_one_line_and_it_ends_of_a_signal() {
    let server = server();
    let locks = locks(&server, "one");
    let lock = held(&locks, "order:1");
    let words = ["watch", "order:", "--interval", "20ms", "--json"];
    for signal in [Signal::INT, Signal::TERM] {
        let mut watching = Watching::start(&mut on(&server.url(), &words));
        let event = watching.event();
        assert_eq!(
            (&event["event"], &event["name"]),
            (&"held".into(), &"order:1".into())
        );
        assert_eq!(event["holder"], "one");
        let _other = held(&locks, "other");
        let second = held(&locks, "order:2");
        let event = watching.event();
        assert_eq!(
            (&event["event"], &event["name"]),
            (&"taken".into(), &"order:2".into())
        );
        assert_eq!(event["held"], true);
        second.release().unwrap();
        let event = watching.event();
        assert_eq!(
            (&event["event"], &event["name"]),
            (&"freed".into(), &"order:2".into())
        );
        assert_eq!(
            (&event["holder"], &event["held"]),
            (&"one".into(), &false.into())
        );
        assert!(event["at"].as_str().unwrap().ends_with('Z'));
        watching.signal(signal);
        assert_eq!(watching.ends(), Some(0));
        assert!(lock.is_held());
    }
}

#[test]
fn a_name_that_passes_from_one_to_another_is_told() {
    let server = server();
    let (one, two) = (locks(&server, "one"), locks(&server, "two"));
    let lock = held(&one, "a");
    let words = ["watch", "--interval", "20ms"];
    let watching = Watching::start(&mut on(&server.url(), &words));
    let line = watching.line();
    assert!(
        line.starts_with("20") && line.ends_with("Z held     a one"),
        "{line}"
    );
    lock.release().unwrap();
    let _lock = held(&two, "a");
    // Perhaps it was seen free in between.
    let mut line = watching.line();
    if line.contains("freed") {
        line = watching.line();
    }
    assert!(line.ends_with("taken    a two"), "{line}");
}

#[test]
fn a_store_that_goes_away_is_said_and_looked_for() {
    let mut server = server();
    let url = format!("{}?connect_limit=100ms&reply_limit=200ms", server.url());
    let words = ["watch", "--interval", "20ms", "--json"];
    let mut client = server.client().unwrap();
    client.set(&key_of("a"), "x", None).unwrap();
    let mut watching = Watching::start(&mut on(&url, &words));
    assert_eq!(watching.event()["event"], "held");
    server.kill();
    let event = watching.event();
    assert_eq!(event["event"], "unreachable");
    assert!(
        event["why"].as_str().unwrap().contains("unavailable"),
        "{event}"
    );
    server.restart_empty().unwrap();
    assert_eq!(watching.event()["event"], "reachable");
    assert_eq!(watching.event()["event"], "freed");
    watching.signal(Signal::INT);
    assert_eq!(watching.ends(), Some(0));
}

#[test]
fn a_reader_that_goes_ends_it() {
    let server = server();
    let locks = locks(&server, "one");
    let _lock = held(&locks, "a");
    let mut command = on(&server.url(), &["watch", "--interval", "20ms"]);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = command.stdout(writer).spawn().unwrap();
    drop(command);
    assert_eq!(reader.read(&mut [0; 1]).unwrap(), 1);
    drop(reader);
    let _another = held(&locks, "b");
    let mut status = None;
    eventually(LONG, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    let _ = child.kill();
    assert_eq!(status.and_then(|status| status.signal()), Some(13));
}

#[test]
fn on_a_terminal_a_table_is_drawn_in_place() {
    let server = server();
    let locks = locks(&server, "one");
    let lock = held(&locks, "a");
    let (controller, terminal) = terminal();
    let words = ["watch", "--interval", "20ms", "--color", "never"];
    let mut command = on(&server.url(), &words);
    let child = command.stdout(terminal).spawn().unwrap();
    drop(command);
    let (sender, lines) = channel();
    thread::spawn(move || {
        let out = BufReader::new(controller);
        for line in out.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let mut watching = Watching { child, lines };
    let until = |wanted: &str| loop {
        let line = watching.line();
        if line.contains(wanted) {
            return line;
        }
    };
    assert!(until(", 1 taken").starts_with("20"));
    until("NAME");
    assert!(until("one").starts_with('a'));
    lock.release().unwrap();
    // Up over the three lines that were drawn, and all of them wiped away.
    assert!(until(", 0 taken").starts_with("\x1b[3A\x1b[J20"));
    watching.signal(Signal::INT);
    assert_eq!(watching.ends(), Some(0));
}

#[test]
fn who_may_not_look_is_told_so_at_once() {
    let server = server();
    let mut client = server.client().unwrap();
    client
        .ok(&["ACL", "SETUSER", "me", "on", ">s3cret", "~*", "-@all"])
        .unwrap();
    let url = format!("redis://me:s3cret@{}/", server.addr());
    let (status, out, err) = said(&mut on(&url, &["watch"]));
    assert_eq!((status, &*out), (77, ""), "{err}");
    let (status, ..) = said(&mut on("redis://127.0.0.1:1/", &["watch"]));
    assert_eq!(status, 69);
}
