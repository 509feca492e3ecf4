//! The lock is lost while the command runs.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{
    LONG, Marks, Run, Store, Tenure, busy, eventually, finds_nobody, on_every_store,
};

fn start(store: &dyn Store, marks: &Marks, options: &[&str], script: &str) -> Run {
    let words = [&["a"], options, &["--", "sh", "-c", script]].concat();
    let run = Tenure::run(store, &words).start();
    marks.wait_for("runs");
    run
}

/// What minds no TERM.
fn stubborn(marks: &Marks) -> String {
    let busy = busy(&marks.path("lock"), &marks.text("runs"));
    format!("trap '' TERM; {busy}")
}

/// The next one starts, and finds that the one before has ended.
fn next(store: &dyn Store, marks: &Marks) -> Tenure {
    let script = finds_nobody(&marks.path("lock"));
    Tenure::run(store, &["a", "-w", "20s", "sh", "-c", &script])
}

on_every_store! {
    fn a_key_that_is_deleted_ends_all_of_the_command(store) {
        for on_lost in ["term", "kill"] {
            let marks = Marks::new();
            let run = start(store, &marks, &["--on-lost", on_lost], &stubborn(&marks));
            store.delete("a");
            assert_eq!(run.end().code(), Some(76));
            assert_eq!(next(store, &marks).code(), Some(0));
        }
    }

    fn a_key_that_is_replaced_ends_all_of_the_command(store) {
        let marks = Marks::new();
        let options = ["--lost-exit-code", "5"];
        let run = start(store, &marks, &options, &stubborn(&marks));
        store.replace("a");
        assert_eq!(run.end().code(), Some(5));
        assert!(store.left("a").is_some(), "that of somebody else");
        store.delete("a");
        assert_eq!(next(store, &marks).code(), Some(0));
    }

    fn a_store_that_does_not_answer_ends_it_while_the_name_is_still_taken(store) {
        for script in [busy as fn(&std::path::Path, &str) -> String, |lock, mark| {
            format!("trap '' TERM; {}", busy(lock, mark))
        }] {
            let marks = Marks::new();
            let script = script(&marks.path("lock"), &marks.text("runs"));
            let mut run = start(store, &marks, &["--lease", "1s"], &script);
            store.freeze();
            assert_eq!(run.wait().code(), Some(76));
            run.end_now();
            store.thaw();
            assert_eq!(next(store, &marks).code(), Some(0));
        }
    }

    fn the_next_one_never_starts_before_the_old_one_has_ended(store) {
        for _ in 0..5 {
            let marks = Marks::new();
            let run = start(store, &marks, &["--lease", "600ms"], &stubborn(&marks));
            let script = finds_nobody(&marks.path("lock"));
            let words = ["a", "-w", "forever", "sh", "-c", &script];
            let waits = Tenure::run(store, &words).start();
            store.freeze();
            // Longer than the key lives: the first thing that the store does is to give it to the next.
            std::thread::sleep(Duration::from_millis(650));
            store.thaw();
            assert_eq!(waits.end().code(), Some(0));
            assert_eq!(run.end().code(), Some(76));
        }
    }

    fn a_loss_can_be_ignored_and_is_told_in_the_end(store) {
        let marks = Marks::new();
        let script = format!(
            "touch {}; until [ -e {} ]; do sleep 0.01; done; exit 3",
            marks.text("runs"),
            marks.text("go")
        );
        let run = start(store, &marks, &["--on-lost", "ignore"], &script);
        store.delete("a");
        assert_eq!(Tenure::run(store, &["a", "true"]).code(), Some(0));
        assert!(!run.processes().is_empty());
        marks.write("go", "");
        assert_eq!(run.end().code(), Some(76));
    }

    fn a_command_has_the_stop_window_to_end_in_order(store) {
        let marks = Marks::new();
        let script = format!(
            "trap 'touch {}; exit 0' TERM; touch {}; while :; do sleep 0.01; done",
            marks.text("minded"),
            marks.text("runs")
        );
        let run = start(store, &marks, &["--lease", "1s"], &script);
        store.freeze();
        assert!(eventually(LONG, || marks.has("minded")));
        store.thaw();
        assert_eq!(run.end().code(), Some(76));
    }

    fn a_loss_is_told_even_if_the_command_ended_first(store) {
        let marks = Marks::new();
        let script = format!("touch {}; sleep 0.2; exit 0", marks.text("runs"));
        let run = start(store, &marks, &[], &format!("trap '' TERM; {script}"));
        run.signal(Signal::STOP);
        store.delete("a");
        // The command ends while nobody watches: only we and the guard are left.
        assert!(eventually(LONG, || run.processes().len() == 2), "{:?}", run.processes());
        run.signal(Signal::CONT);
        assert_eq!(run.end().code(), Some(76));
    }
}
