//! The terminal: a command reads it, Ctrl-C ends it, Ctrl-Z stops it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{LONG, Marks, Store, died_of, eventually, on_every_store, processes};

/// A program on a terminal of its own, which is the one of its session.
struct Screen {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<String>>,
}

impl Screen {
    fn start(store: &dyn Store, words: &[&str]) -> Screen {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let path = ptsname(&keyboard, Vec::new()).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let open = || -> OwnedFd {
            let mut options = File::options();
            options.read(true).write(true).open(&path).unwrap().into()
        };
        // Not as the leader of a group, so that it is the process itself that leads the session.
        let child = Command::new("setsid")
            .args(["--ctty"])
            .args(words)
            .env("TENURE_STORE", store.url())
            .env("PS1", "$ ")
            .env("TERM", "dumb")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut screen, sink) = (File::from(keyboard), Arc::clone(&shown));
        let keyboard = screen.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Fails when nobody has the terminal open any more.
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]);
                sink.lock().unwrap().push_str(&text);
            }
        });
        Screen {
            child,
            keyboard,
            shown,
        }
    }

    /// A shell with job control.
    fn shell(store: &dyn Store) -> Screen {
        let screen = Screen::start(store, &["bash", "--norc", "--noediting", "-i"]);
        screen.wait_for("$ ");
        screen
    }

    fn tenure(store: &dyn Store, words: &[&str]) -> Screen {
        let words = [&[env!("CARGO_BIN_EXE_tenure"), "run"], words].concat();
        Screen::start(store, &words)
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    fn wait_for(&self, text: &str) {
        let shown = eventually(LONG, || self.shown().contains(text));
        let left = processes(self.child.id());
        assert!(shown, "no {text:?} in {:?}; {left:?}", self.shown());
    }

    fn end(mut self) -> ExitStatus {
        let until = Instant::now() + LONG;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            let left = processes(self.child.id());
            assert!(Instant::now() < until, "{:?}; {left:?}", self.shown());
            thread::sleep(Duration::from_millis(2));
        };
        let session = self.child.id();
        let gone = eventually(Duration::from_millis(500), || processes(session).is_empty());
        assert!(gone, "left behind: {:?}", processes(session));
        status
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        crate::harness::kill_session(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

on_every_store! {
    fn a_command_reads_the_terminal(store) {
        let mut screen = Screen::tenure(store, &["a", "--", "sh", "-c", "read x; echo got $x"]);
        screen.press("hello\n");
        screen.wait_for("got hello");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn a_command_in_our_own_group_reads_the_terminal(store) {
        let words = ["a", "--foreground", "--", "sh", "-c", "read x; echo got $x"];
        let mut screen = Screen::tenure(store, &words);
        screen.press("hello\n");
        screen.wait_for("got hello");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn ctrl_c_ends_the_command_once(store) {
        for options in [&["a"][..], &["a", "--foreground"]] {
            let script = "trap 'n=1$n; echo minded $n' INT; echo ready; read x; echo got $x";
            let words = [options, &["--", "bash", "-c", script]].concat();
            let mut screen = Screen::tenure(store, &words);
            screen.wait_for("ready");
            screen.press("\u{3}");
            screen.wait_for("minded 1");
            screen.press("hello\n");
            screen.wait_for("got hello");
            assert!(!screen.shown().contains("minded 11"), "{}", screen.shown());
            assert_eq!(screen.end().code(), Some(0));

            let words = [options, &["--", "sh", "-c", "echo ready; exec sleep 100"]].concat();
            let mut screen = Screen::tenure(store, &words);
            screen.wait_for("ready");
            screen.press("\u{3}");
            assert_eq!(died_of(screen.end()), Some(2));
            assert_eq!(store.left("a"), None);
        }
    }

    fn ctrl_z_stops_and_the_shell_brings_it_back(store) {
        let mut screen = Screen::shell(store);
        let script = "trap \"echo ba''ck\" CONT; echo rea''dy; read x; echo got $x";
        screen.press(&format!("{TENURE} run a -- bash -c '{script}'\n"));
        screen.wait_for("ready");
        for round in 1..=2 {
            screen.press("\u{1a}");
            let stopped = || screen.shown().matches("Stopped").count() >= round;
            assert!(eventually(LONG, stopped), "{}", screen.shown());
            // The shell has its terminal, and the command gets it back.
            screen.press(&format!("echo shell-{round}-$((40 + 2))\n"));
            screen.wait_for(&format!("shell-{round}-42"));
            assert!(store.left("a").is_some());
            screen.press("fg\n");
            let back = || screen.shown().matches("back").count() >= round;
            assert!(eventually(LONG, back), "{}", screen.shown());
        }
        screen.press("hello\n");
        screen.wait_for("got hello");
        screen.press("echo status $?; exit 0\n");
        screen.wait_for("status 0");
        assert_eq!(screen.end().code(), Some(0));
        assert_eq!(store.left("a"), None);
    }

    fn in_our_own_group_too_ctrl_z_stops_once(store) {
        let mut screen = Screen::shell(store);
        screen.press(&format!(
            "{TENURE} run a --foreground -- sh -c 'echo rea''dy; read x; echo got $x'\n"
        ));
        screen.wait_for("ready");
        screen.press("\u{1a}");
        screen.wait_for("Stopped");
        screen.press("fg\nhello\n");
        screen.wait_for("got hello");
        screen.press("echo status $?; exit 0\n");
        screen.wait_for("status 0");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn a_lease_that_ran_out_during_a_stop_ends_the_command_before_it_goes_on(store) {
        let marks = Marks::new();
        let mut screen = Screen::shell(store);
        screen.press(&format!(
            "{TENURE} run a --lease 300ms -- sh -c 'echo rea''dy; read x; touch {}'\n",
            marks.text("went-on")
        ));
        screen.wait_for("ready");
        screen.press("\u{1a}");
        screen.wait_for("Stopped");
        assert!(eventually(LONG, || store.left("a").is_none()));
        screen.press("fg\n");
        // The input that would let it go on comes only when it has ended, to the shell.
        screen.wait_for("is lost");
        screen.press("echo status $?; exit 0\n");
        screen.wait_for("status 76");
        assert_eq!(screen.end().code(), Some(0));
        assert!(!marks.has("went-on"));
    }

    fn in_the_background_it_has_no_terminal_until_it_is_brought_to_the_front(store) {
        let mut screen = Screen::shell(store);
        screen.press(&format!(
            "{TENURE} run a -- sh -c 'read x; echo got $x' &\n"
        ));
        // The shell tells of it at its next prompt.
        assert!(eventually(LONG, || {
            screen.press("\n");
            thread::sleep(Duration::from_millis(20));
            screen.shown().contains("Stopped")
        }), "{}", screen.shown());
        screen.press("fg\n");
        screen.press("hello\n");
        screen.wait_for("got hello");
        screen.press("exit 0\n");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn the_shell_has_its_terminal_back_however_it_ended(store) {
        let mut screen = Screen::shell(store);
        for (number, (command, status)) in [
            ("/no/such/command", 127),
            ("sh -c 'kill -KILL $$'", 137),
            ("false", 1),
        ].into_iter().enumerate() {
            screen.press(&format!("{TENURE} run a -- {command}\n"));
            screen.press(&format!("echo {number}-status-$?\n"));
            screen.wait_for(&format!("{number}-status-{status}"));
        }
        // `tenure` is killed: the shell takes it by itself, and nothing of the command is left.
        screen.press(&format!("{TENURE} run a -- sh -c 'echo rea''dy; kill -KILL $PPID; sleep 100'\n"));
        screen.wait_for("ready");
        screen.wait_for("Killed");
        screen.press("echo killed-$?; exit 0\n");
        screen.wait_for("killed-137");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn in_a_pipe_the_command_gets_the_terminal_when_it_asks(store) {
        let mut screen = Screen::shell(store);
        let script = "read x </dev/tty; echo go''t $x";
        screen.press(&format!("{TENURE} run a -- sh -c '{script}' </dev/null | cat\n"));
        assert!(eventually(LONG, || store.left("a").is_some()));
        screen.press("hello\n");
        screen.wait_for("got hello");
        screen.press("exit 0\n");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn whoever_pages_our_output_has_the_terminal(store) {
        let marks = Marks::new();
        let mut screen = Screen::shell(store);
        let wait = format!("until [ -e {} ]; do sleep 0.01; done; echo the end", marks.text("go"));
        let page = format!("read x </dev/tty; touch {}; cat; echo go''t $x", marks.text("go"));
        screen.press(&format!("{TENURE} run a -- sh -c '{wait}' | sh -c '{page}'\n"));
        assert!(eventually(LONG, || store.left("a").is_some()));
        screen.press("hello\n");
        screen.wait_for("got hello");
        screen.press("exit 0\n");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn where_nobody_would_resume_us_a_stop_is_no_stop(store) {
        // It leads the session itself, as in a window of its own.
        let mut screen = Screen::tenure(store, &["a", "--", "sh", "-c", "echo ready; read x; echo got $x"]);
        screen.wait_for("ready");
        screen.press("\u{1a}");
        screen.press("hello\n");
        screen.wait_for("got hello");
        assert_eq!(screen.end().code(), Some(0));
    }

    fn who_waits_at_a_terminal_is_told_for_whom(store) {
        let holder = crate::statuses::holder(store, "a");
        let screen = Screen::tenure(store, &["a", "-w", "forever", "true"]);
        screen.wait_for("tenure: waiting for `a`");
        screen.wait_for("`a` is held by ");
        drop(holder);
    }
}
