//! What programs are told.

use serde_json::Value;

use crate::harness::{LONG, Marks, Redis, Run, Store, Tenure, eventually, on_every_store};
use crate::statuses::holder;

fn parse(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect()
}

/// Runs it with its events in a file.
fn events(store: &dyn Store, words: &[&str]) -> Vec<Value> {
    let marks = Marks::new();
    let file = marks.text("events");
    let words: Vec<&str> = ["a", "--events", &file]
        .iter()
        .chain(words)
        .copied()
        .collect();
    Tenure::run(store, &words).output();
    parse(&marks.read("events"))
}

on_every_store! {
    fn a_run_is_told_from_its_grant_to_its_exit(store) {
        let told = events(store, &["--fenced", "sh", "-c", "exit 3"]);
        assert_eq!(names(&told), ["acquired", "started", "released", "exit"]);
        assert!(told.iter().all(|event| event["name"] == "a" && event["at"].is_string()));
        assert!(told[0]["fence"].is_u64() && told[0]["lease_ms"] == 30_000);
        assert_eq!(told[2]["confirmed"], true);
        assert_eq!((&told[3]["status"], &told[3]["reason"]), (&3.into(), &"command".into()));
    }

    fn who_decided_the_status_is_told(store) {
        let told = events(store, &["sh", "-c", "exit 75"]);
        assert_eq!(told.last().unwrap()["reason"], "command");
        let told = events(store, &["sh", "-c", "kill -TERM $$"]);
        let exit = told.last().unwrap();
        assert_eq!((&exit["reason"], &exit["signal"]), (&"signal".into(), &"TERM".into()));
        let told = events(store, &["/no/such/command"]);
        assert_eq!(names(&told), ["acquired", "exit"]);
        assert_eq!(told[1]["reason"], "not-found");

        let _holder = holder(store, "a");
        let told = events(store, &["--stale-after", "0", "true"]);
        assert_eq!(names(&told), ["refused", "exit"]);
        assert_eq!((&told[0]["stale"], &told[1]["status"]), (&true.into(), &75.into()));
        assert!(told[0]["holder"].is_string() && told[0]["since"].is_string());
        let told = events(store, &["true"]);
        assert_eq!(told[0]["stale"], Value::Null);
    }

    fn a_loss_is_told(store) {
        let marks = Marks::new();
        let file = marks.text("events");
        let run = Tenure::run(store, &["a", "--events", &file, "sleep", "100"]).start();
        started(&marks, &run);
        store.delete("a");
        assert_eq!(run.end().code(), Some(76));
        let told = parse(&marks.read("events"));
        assert!(names(&told).contains(&"lost"), "{told:?}");
        let exit = told.last().unwrap();
        assert_eq!((&exit["status"], &exit["reason"]), (&76.into(), &"lost".into()));
    }

    fn what_cannot_be_written_lets_nothing_run(store) {
        let marks = Marks::new();
        let touch = marks.text("ran");
        for words in [
            ["a", "--events", "/dev/full", "touch", &touch],
            ["a", "--events", "/no/such/folder/x", "touch", &touch],
            ["a", "--events-fd", "99", "touch", &touch],
        ] {
            assert_eq!(Tenure::run(store, &words).code(), Some(74), "{words:?}");
            assert!(!marks.has("ran"));
            assert_eq!(store.left("a"), None);
        }
    }

    fn who_does_not_read_keeps_nothing_from_ending(store) {
        let marks = Marks::new();
        // A pipe that is full from the beginning, and that nobody reads.
        let script = format!(
            "exec 3<> {0}; (dd if=/dev/zero of={0} oflag=nonblock 2>/dev/null); \
             exec {1} run a --events-fd 3 -- sh -c 'exit 4'",
            marks.text("pipe"),
            env!("CARGO_BIN_EXE_tenure")
        );
        let made = std::process::Command::new("mkfifo").arg(marks.path("pipe")).status();
        assert!(made.unwrap().success());
        let run = std::process::Command::new("sh")
            .args(["-c", &script])
            .env("TENURE_STORE", store.url())
            .status();
        assert_eq!(run.unwrap().code(), Some(4));
    }
}

fn started(marks: &Marks, run: &Run) {
    let told = eventually(LONG, || marks.read("events").contains("\"started\""));
    assert!(told, "{:?}", run.processes());
}

#[test]
fn the_command_does_not_inherit_the_descriptor_of_the_events() {
    let store = Redis::start();
    let script = format!(
        "exec {} run a --events-fd 7 -- sh -c 'ls /proc/$$/fd | grep -x 7'",
        env!("CARGO_BIN_EXE_tenure")
    );
    let marks = Marks::new();
    let script = format!("{{ {script} ; }} 7>&1 >{} | cat", marks.text("out"));
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .env("TENURE_STORE", store.url())
        .output()
        .unwrap();
    let told = parse(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(names(&told).last(), Some(&"exit"));
    assert_eq!(told.last().unwrap()["status"], 1, "grep finds nothing");
    assert_eq!(marks.read("out"), "");
}
