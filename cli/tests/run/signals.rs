//! Signals: while it waits, at the grant, while the command runs.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{
    LONG, Marks, Run, Store, Tenure, busy, died_of, eventually, finds_nobody, on_every_store,
    processes, random,
};
use crate::statuses::holder;

const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// A run whose command, and its grandchild, go on for long.
fn busy_run(store: &dyn Store, marks: &Marks, options: &[&str]) -> Run {
    let script = busy(&marks.path("lock"), &marks.text("runs"));
    let words = [&["a"], options, &["--", "sh", "-c", &script]].concat();
    let run = Tenure::run(store, &words).start();
    marks.wait_for("runs");
    run
}

/// A run of this script, which makes the mark `runs` when it is ready.
fn script_run(store: &dyn Store, marks: &Marks, options: &[&str], script: &str) -> Run {
    let script = format!(
        "{script}; touch {}; while :; do sleep 0.01; done",
        marks.text("runs")
    );
    let words = [&["a"], options, &["--", "sh", "-c", &script]].concat();
    let run = Tenure::run(store, &words).start();
    marks.wait_for("runs");
    run
}

/// Nothing of that run goes on, and nobody waits for its lease.
fn assert_free(store: &dyn Store, marks: &Marks) {
    assert_eq!(store.left("a"), None);
    let words = ["a", "sh", "-c", &finds_nobody(&marks.path("lock"))];
    assert_eq!(Tenure::run(store, &words).code(), Some(0));
}

on_every_store! {
    fn a_signal_ends_the_wait(store) {
        let holder = holder(store, "a");
        let marks = Marks::new();
        for fair in [&[][..], &["--fair"]] {
            for signal in ENDING {
                let ran = marks.text("ran");
                let words = [&["a", "-w", "forever"], fair, &["touch", &ran]].concat();
                let run = Tenure::run(store, &words).start();
                // At any moment: before it has asked, or while it waits.
                thread::sleep(Duration::from_micros(random(60_000)));
                let since = Instant::now();
                run.signal(signal);
                assert_eq!(died_of(run.end()), Some(signal.as_raw()));
                assert!(since.elapsed() < Duration::from_secs(5), "bounded");
            }
        }
        // None of them waits still, or is given what is free now.
        holder.signal(Signal::TERM);
        holder.end();
        assert_eq!(Tenure::run(store, &["a", "--fair", "true"]).code(), Some(0));
        assert!(!marks.has("ran"));
    }

    fn a_signal_at_the_grant_leaves_neither_the_command_nor_the_key(store) {
        let marks = Marks::new();
        for round in 0..200 {
            let signal = ENDING[round % 4];
            let script = busy(&marks.path("lock"), &marks.text("runs"));
            let run = Tenure::run(store, &["a", "sh", "-c", &script]).start();
            // It takes some 10 ms until the command runs: a quarter of the signals comes later.
            thread::sleep(Duration::from_micros(random(14_000)));
            run.signal(signal);
            assert_eq!(died_of(run.end()), Some(signal.as_raw()), "round {round}");
            assert_eq!(store.left("a"), None, "round {round}");
        }
        assert_free(store, &marks);
    }

    fn a_signal_when_the_name_gets_free_leaves_neither_the_command_nor_the_key(store) {
        let marks = Marks::new();
        for round in 0..40 {
            let first = holder(store, "a");
            let script = busy(&marks.path("lock"), &marks.text("runs"));
            let second = Tenure::run(store, &["a", "-w", "forever", "sh", "-c", &script]).start();
            thread::sleep(Duration::from_millis(20));
            first.signal(Signal::TERM);
            thread::sleep(Duration::from_micros(random(8_000)));
            second.signal(ENDING[round % 4]);
            first.end();
            second.end();
            assert_eq!(store.left("a"), None, "round {round}");
        }
        assert_free(store, &marks);
    }

    fn a_signal_while_it_runs_ends_all_of_the_command(store) {
        for signal in ENDING {
            let marks = Marks::new();
            // Many shells ignore INT and QUIT in what they start in the background.
            let run = busy_run(store, &marks, &["--grace", "300ms"]);
            run.signal(signal);
            if matches!(signal, Signal::HUP | Signal::QUIT) {
                run.signal(Signal::TERM);
            }
            let status = run.end();
            assert!(died_of(status).is_some() || status.code() == Some(137), "{status}");
            assert_free(store, &marks);
        }
    }

    fn a_command_that_ends_in_order_has_its_own_status(store) {
        let marks = Marks::new();
        let run = script_run(store, &marks, &[], "trap 'exit 7' TERM");
        run.signal(Signal::TERM);
        assert_eq!(run.end().code(), Some(7));
        assert_eq!(store.left("a"), None);
    }

    fn whoever_does_not_mind_term_gets_kill_after_the_grace(store) {
        let marks = Marks::new();
        let run = script_run(store, &marks, &["--grace", "200ms"], "trap '' TERM");
        let since = Instant::now();
        run.signal(Signal::TERM);
        assert_eq!(run.end().code(), Some(137));
        assert!(since.elapsed() >= Duration::from_millis(200), "it had its time");
        assert_eq!(store.left("a"), None);
    }

    fn a_second_signal_skips_the_grace(store) {
        let marks = Marks::new();
        let note = format!("trap 'touch {}' TERM", marks.text("minded"));
        let run = script_run(store, &marks, &["--grace", "1h"], &note);
        run.signal(Signal::TERM);
        marks.wait_for("minded");
        run.signal(Signal::TERM);
        assert_eq!(run.end().code(), Some(137));
        assert_eq!(store.left("a"), None);
    }

    fn a_hangup_is_passed_on_and_asks_for_no_end(store) {
        let marks = Marks::new();
        let note = format!("trap 'touch {}' HUP", marks.text("minded"));
        let run = script_run(store, &marks, &["--grace", "10ms"], &note);
        run.signal(Signal::HUP);
        marks.wait_for("minded");
        thread::sleep(Duration::from_millis(50));
        assert!(store.left("a").is_some() && !run.processes().is_empty());
        run.signal(Signal::TERM);
        run.end();
    }

    fn what_was_blocked_when_we_were_started_is_heard(store) {
        for (script, code, signal) in [("exit 7", Some(7), None), ("kill $PPID; sleep 100", None, Some(15))] {
            let mut command = std::process::Command::new("setsid");
            command.args(["env", "--block-signal=CHLD,CONT,TERM", env!("CARGO_BIN_EXE_tenure")]);
            command.args(["run", "a", "--", "sh", "-c", script]).env("TENURE_STORE", store.url());
            let status = Run::lead(command).end();
            assert_eq!((status.code(), died_of(status)), (code, signal));
        }
    }

    fn a_command_that_has_left_its_group_is_ended_all_the_same(store) {
        for (script, signal) in [
            // What it starts is in the group that it has made.
            ("sleep 100; :", Signal::TERM),
            ("trap '' TERM; while :; do sleep 100; done", Signal::TERM),
            ("exec sleep 100", Signal::KILL),
        ] {
            let marks = Marks::new();
            let (new, runs) = (marks.text("new"), marks.text("runs"));
            let script = format!("echo $$ > {new}; mv {new} {runs}; {script}");
            let words = ["a", "--grace", "300ms", "setsid", "sh", "-c", &script];
            let mut run = Tenure::run(store, &words).start();
            marks.wait_for("runs");
            let session = marks.read("runs").trim().parse().unwrap();
            run.signal(signal);
            run.wait();
            let gone = eventually(Duration::from_millis(500), || processes(session).is_empty());
            assert!(gone, "{script}: {:?}", processes(session));
            // Who was killed has left it to its lease.
            if signal == Signal::KILL {
                store.delete("a");
            }
            assert_eq!(store.left("a"), None);
        }
    }

    fn what_we_were_started_to_ignore_stays_ignored(store) {
        let marks = Marks::new();
        let script = format!(
            "trap '' HUP; exec setsid {} run a -- sh -c 'touch {}; sleep 100'",
            env!("CARGO_BIN_EXE_tenure"),
            marks.text("runs")
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).env("TENURE_STORE", store.url());
        let run = Run::lead(command);
        marks.wait_for("runs");
        run.signal(Signal::HUP);
        thread::sleep(Duration::from_millis(50));
        assert!(store.left("a").is_some());
        run.signal(Signal::TERM);
        assert_eq!(died_of(run.end()), Some(15));
    }

    fn a_stop_stops_the_command_and_a_lapsed_lease_ends_it(store) {
        let marks = Marks::new();
        let run = busy_run(store, &marks, &["--lease", "500ms"]);
        // From outside, where nobody asks us: we cannot watch, and the lease runs out.
        run.signal(Signal::STOP);
        assert!(eventually(LONG, || store.left("a").is_none()));
        run.signal(Signal::CONT);
        assert_eq!(run.end().code(), Some(76));
        assert_free(store, &marks);
    }
}
