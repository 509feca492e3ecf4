//! `tenure` itself is killed; and what is left when it is not.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{
    LONG, Marks, Run, Store, Tenure, busy, eventually, finds_nobody, on_every_store, random,
    session,
};

/// Started by KILL of `tenure`, the end of everything takes at most this long.
const PROMPT: Duration = Duration::from_secs(1);

fn start(store: &dyn Store, marks: &Marks, options: &[&str]) -> Run {
    let script = busy(&marks.path("lock"), &marks.text("runs"));
    let script = format!("trap '' TERM INT HUP QUIT; {script}");
    let words = [&["a"], options, &["--", "sh", "-c", &script]].concat();
    let run = Tenure::run(store, &words).start();
    marks.wait_for("runs");
    run
}

/// The guard of a run.
fn guard(run: &Run) -> i32 {
    let is_guard = |pid: &i32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(b"tenure-guard")
    };
    let all = session(run.session()).into_iter();
    all.map(|(pid, ..)| pid).find(is_guard).expect("a guard")
}

on_every_store! {
    fn with_us_goes_all_of_the_command(store) {
        let marks = Marks::new();
        let mut run = start(store, &marks, &["--lease", "2s"]);
        let killed = Instant::now();
        run.signal(Signal::KILL);
        run.wait();
        assert!(eventually(PROMPT, || run.processes().is_empty()), "{:?}", run.processes());
        // The key is left to its TTL, and the next one finds nobody then.
        let left = store.left("a").expect("that long it is safe");
        assert!(left <= Duration::from_secs(2));
        let script = finds_nobody(&marks.path("lock"));
        let words = ["a", "-w", "20s", "sh", "-c", &script];
        assert_eq!(Tenure::run(store, &words).code(), Some(0));
        assert!(killed.elapsed() >= Duration::from_secs(1), "not before the lease was over");
    }

    fn there_is_no_moment_at_which_the_command_outlives_us(store) {
        for round in 0..60 {
            let marks = Marks::new();
            let script = busy(&marks.path("lock"), &marks.text("runs"));
            let name = format!("a{round}");
            let words = [&name, "sh", "-c", &script];
            let mut run = Tenure::run(store, &words).start();
            std::thread::sleep(Duration::from_micros(random(16_000)));
            run.signal(Signal::KILL);
            run.wait();
            let gone = eventually(PROMPT, || run.processes().is_empty());
            assert!(gone, "round {round}: {:?}", run.processes());
        }
    }

    fn a_command_in_our_own_group_goes_with_us_too(store) {
        let marks = Marks::new();
        let words = ["a", "--foreground", "--", "sh", "-c"];
        let script = format!("touch {}; exec sleep 100", marks.text("runs"));
        let mut run = Tenure::run(store, &[&words[..], &[&script]].concat()).start();
        marks.wait_for("runs");
        run.signal(Signal::KILL);
        run.wait();
        assert!(eventually(PROMPT, || run.processes().is_empty()), "{:?}", run.processes());
    }

    fn a_stopped_command_goes_with_us_too(store) {
        let marks = Marks::new();
        let mut run = start(store, &marks, &[]);
        let group = Pid::from_raw(guard(&run)).unwrap();
        kill_process_group(group, Signal::TSTP).unwrap();
        run.signal(Signal::KILL);
        run.wait();
        assert!(eventually(PROMPT, || run.processes().is_empty()), "{:?}", run.processes());
    }

    fn the_guard_minds_no_signal_of_the_group(store) {
        let marks = Marks::new();
        let mut run = start(store, &marks, &[]);
        let group = Pid::from_raw(guard(&run)).unwrap();
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::TSTP] {
            kill_process_group(group, signal).unwrap();
        }
        run.signal(Signal::KILL);
        run.wait();
        assert!(eventually(PROMPT, || run.processes().is_empty()), "{:?}", run.processes());
    }

    fn the_guard_holds_nothing_open(store) {
        let marks = Marks::new();
        marks.write("file", "");
        let script = format!(
            "exec setsid {} run a -- sh -c 'touch {}; sleep 100' 5<{}",
            env!("CARGO_BIN_EXE_tenure"),
            marks.text("runs"),
            marks.text("file")
        );
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script]).env("TENURE_STORE", store.url());
        let run = Run::lead(command);
        marks.wait_for("runs");
        let guard = guard(&run);
        let mut open: Vec<String> = fs::read_dir(format!("/proc/{guard}/fd"))
            .unwrap()
            .map(|entry| fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
            .collect();
        // The command, in case that leaves the group: nobody waits for the end of those who have that.
        open.retain(|file| file != "anon_inode:[pidfd]");
        open.sort();
        assert_eq!(open.len(), 3, "{open:?}");
        assert_eq!(open[0], "/dev/null");
        assert!(open[1].starts_with("pipe:") && open[2].starts_with("pipe:"), "{open:?}");
        let environment = fs::read(format!("/proc/{guard}/environ")).unwrap();
        assert_eq!(environment, b"");
        run.signal(Signal::TERM);
        run.end();
    }

    fn nobody_who_reads_our_output_waits_for_the_guard(store) {
        // The pipe of the output is read to its end.
        let output = Tenure::run(store, &["a", "echo", "done"]).output();
        assert_eq!(output.stdout, b"done\n");
    }

    fn what_the_command_leaves_in_the_background_is_left_alone(store) {
        let marks = Marks::new();
        let script = format!(
            "(until [ -e {} ]; do sleep 0.01; done; touch {}) >/dev/null 2>&1 & exit 0",
            marks.text("go"),
            marks.text("done")
        );
        let mut run = Tenure::run(store, &["a", "sh", "-c", &script]).start();
        assert_eq!(run.wait().code(), Some(0));
        assert_eq!(store.left("a"), None);
        marks.write("go", "");
        marks.wait_for("done");
        run.end();
    }

    fn with_end_group_it_ends_before_the_release(store) {
        for trap in ["", "trap '' TERM; "] {
            let marks = Marks::new();
            let script = format!(
                "{trap}flock -n {} sh -c 'touch {}; sleep 100; :' & \
                 until [ -e {} ]; do sleep 0.01; done; exit 3",
                marks.text("lock"),
                marks.text("runs"),
                marks.text("runs")
            );
            let words = ["a", "--end-group", "--grace", "100ms", "sh", "-c", &script];
            let run = Tenure::run(store, &words).start();
            let next = finds_nobody(&marks.path("lock"));
            marks.wait_for("runs");
            let words = ["a", "-w", "20s", "sh", "-c", &next];
            assert_eq!(Tenure::run(store, &words).code(), Some(0));
            assert_eq!(run.end().code(), Some(3));
        }
    }

    fn a_guard_that_is_killed_takes_nothing_from_the_command(store) {
        let marks = Marks::new();
        let script = format!(
            "touch {}; until [ -e {} ]; do sleep 0.01; done; exit 3",
            marks.text("runs"),
            marks.text("go")
        );
        let run = Tenure::run(store, &["a", "sh", "-c", &script]).start();
        marks.wait_for("runs");
        let guard = Pid::from_raw(guard(&run)).unwrap();
        rustix::process::kill_process(guard, Signal::KILL).unwrap();
        assert!(eventually(LONG, || !run.processes().is_empty()));
        marks.write("go", "");
        assert_eq!(run.end().code(), Some(3));
    }
}
