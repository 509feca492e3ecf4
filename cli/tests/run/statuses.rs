//! What each exit status means.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::harness::{LONG, Marks, Redis, Run, Store, Tenure, died_of, eventually, on_every_store};

/// A run that has the lock, until it is dropped.
pub(crate) fn holder(store: &dyn Store, name: &str) -> Run {
    let run = Tenure::run(store, &[name, "sleep", "100"]).start();
    assert!(eventually(LONG, || store.left(name).is_some()));
    run
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

on_every_store! {
    fn the_status_is_that_of_the_command(store) {
        for code in [0, 3, 75, 255] {
            let exit = format!("exit {code}");
            let output = Tenure::run(store, &["a", "--", "sh", "-c", &exit]).output();
            assert_eq!(output.status.code(), Some(code));
            assert_eq!(stderr(&output), "", "{code}");
            assert_eq!(store.left("a"), None);
        }
    }

    fn whoever_comes_second_is_told_who_has_it(store) {
        let _holder = holder(store, "a");
        let output = Tenure::run(store, &["a", "true"]).output();
        assert_eq!(output.status.code(), Some(75));
        let text = stderr(&output);
        assert_eq!(text.lines().count(), 1, "{text}");
        for part in ["tenure: `a` is held by ", " since 20", " of its lease left", "--wait 30s"] {
            assert!(text.contains(part), "{text}");
        }
        let output = Tenure::run(store, &["a", "-q", "true"]).output();
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(75), ""));
        let output = Tenure::run(store, &["a", "-E", "0", "true"]).output();
        assert_eq!((output.status.code(), &*stderr(&output)), (Some(0), ""));
        let output = Tenure::run(store, &["a", "-E", "0", "--verbose", "true"]).output();
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).contains("`a` is held by "), "{}", stderr(&output));
        let output = Tenure::run(store, &["a", "-E", "9", "-w", "100ms", "true"]).output();
        assert_eq!(output.status.code(), Some(9));
        assert!(stderr(&output).contains("given up waiting"));
        assert!(!stderr(&output).contains("waiting for"), "cron would send it by mail");
    }

    fn a_holder_that_is_too_old_is_told_of_even_if_quiet(store) {
        let _holder = holder(store, "a");
        let words = ["a", "-q", "-E", "0", "--stale-after", "1ms", "true"];
        let text = stderr(&Tenure::run(store, &words).output());
        assert!(text.starts_with("tenure: warning: held for "), "{text}");
        let words = ["a", "-q", "--stale-after", "1h", "true"];
        assert_eq!(stderr(&Tenure::run(store, &words).output()), "");
    }

    fn a_label_is_what_others_see(store) {
        let run = Tenure::run(store, &["a", "--label", "nightly", "sleep", "100"]).start();
        assert!(eventually(LONG, || store.left("a").is_some()));
        let text = stderr(&Tenure::run(store, &["a", "true"]).output());
        assert!(text.contains(&format!(":{} ", run.session())), "{text}");
        assert!(text.contains("held by nightly@"), "{text}");
    }

    fn a_run_inside_a_run_of_the_same_name_is_refused(store) {
        let tenure = env!("CARGO_BIN_EXE_tenure");
        let inner = ["a", "--pass-store", "--", tenure, "run", "a", "-w", "forever", "true"];
        let output = Tenure::run(store, &inner).output();
        assert_eq!(output.status.code(), Some(75));
        assert!(stderr(&output).contains("already runs under `a`"));
        // Another name inside is another matter, and so is the same one after the first run.
        let inner = ["a", "--pass-store", "--", tenure, "run", "b", "true"];
        assert_eq!(Tenure::run(store, &inner).code(), Some(0));
        let marks = Marks::new();
        let save = format!("echo $TENURE_HELD > {}", marks.text("held"));
        assert_eq!(Tenure::run(store, &["a", "sh", "-c", &save]).code(), Some(0));
        let held = marks.read("held");
        let again = Tenure::run(store, &["a", "true"]).env("TENURE_HELD", held.trim());
        assert_eq!(again.code(), Some(0));
    }

    fn the_command_dies_and_so_do_we(store) {
        for (name, number) in [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("SEGV", 11)] {
            let kill = format!("kill -{name} $$");
            let output = Tenure::run(store, &["a", "sh", "-c", &kill]).output();
            assert_eq!(died_of(output.status), Some(number), "{name}");
        }
        // Of KILL one cannot die by oneself.
        assert_eq!(Tenure::run(store, &["a", "sh", "-c", "kill -KILL $$"]).code(), Some(137));
        assert_eq!(store.left("a"), None);
    }

    fn a_command_that_cannot_run_is_told_from_one_that_is_not_there(store) {
        let marks = Marks::new();
        marks.write("script", "true");
        for (program, status) in [
            ("/no/such/command", 127),
            ("no-such-command", 127),
            ("/etc/passwd", 126),
            ("/", 126),
            (&marks.text("script"), 126),
        ] {
            let output = Tenure::run(store, &["a", program]).output();
            assert_eq!(output.status.code(), Some(status), "{program}");
            let text = stderr(&output);
            assert!(text.contains(program), "{text}");
            let named = text.contains(" was not found (the lock is `a`)");
            assert_eq!(named, status == 127, "{text}");
            assert_eq!(store.left("a"), None);
        }
    }

    fn what_cannot_be_meant_is_a_usage_error(store) {
        for words in [
            &["a", "--bogus", "true"][..],
            &["a", "--wait", "soon", "true"],
            &["a", "-E", "600", "true"],
            &["a", "--lease", "1ms", "true"],
            &["a", "--lease", "90d", "true"],
            &["", "true"],
            &[&"n".repeat(1_025), "true"],
            &["a", "--label", &"l".repeat(200), "true"],
            &["a", "--events", "x", "--events-fd", "3", "true"],
            &["a"],
            &[],
        ] {
            let output = Tenure::run(store, words).output();
            assert_eq!(output.status.code(), Some(64), "{words:?}");
            assert!(!stderr(&output).is_empty(), "{words:?}");
        }
    }

    fn the_command_knows_its_lock_and_not_the_store(store) {
        let url = store.url();
        let words = ["a", "--fenced", "--lease", "7s", "env"];
        let tenure = Tenure::run(store, &words).env("TENURE_STORE_FILE", "/none");
        let output = String::from_utf8(tenure.output().stdout).unwrap();
        let has = |line: &str| output.lines().any(|l| l == line);
        assert!(has("TENURE_NAME=a") && has("TENURE_LEASE_MS=7000"), "{output}");
        let fence = output.lines().find_map(|line| line.strip_prefix("TENURE_FENCE="));
        assert!(fence.is_some_and(|fence| fence.parse::<u64>().is_ok()), "{output}");
        assert!(output.contains("\nTENURE_TOKEN=tn1:"), "{output}");
        assert!(!output.contains(&url) && !output.contains("TENURE_STORE"), "{output}");

        let tenure = Tenure::run(store, &["a", "--pass-store", "env"]).env("TENURE_FENCE", "1");
        let output = String::from_utf8(tenure.output().stdout).unwrap();
        assert!(output.lines().any(|line| line == format!("TENURE_STORE={url}")), "{output}");
        assert!(!output.contains("TENURE_FENCE"), "of somebody else: {output}");
    }

    fn options_for_the_command_are_the_commands(store) {
        let output = Tenure::run(store, &["a", "printf", "%s", "-n"]).output();
        assert_eq!(output.stdout, b"-n");
        let output = Tenure::run(store, &["a", "--", "printf", "%s", "--wait"]).output();
        assert_eq!(output.stdout, b"--wait");
    }

    fn who_would_be_one_too_many_to_wait_is_refused(store) {
        let _holder = holder(store, "a");
        // It does not count itself: otherwise the first of the others could keep it out.
        let words = ["a", "-w", "forever", "--fair", "true"];
        let waits = Tenure::run(store, &words).start();
        // It has its place in the queue as soon as another is turned away; a short wait gives it up again.
        let try_it = ["a", "-w", "2s", "--max-waiters", "1", "true"];
        let full = eventually(LONG, || {
            let output = Tenure::run(store, &try_it).output();
            assert_eq!(output.status.code(), Some(75));
            stderr(&output).contains("; --max-waiters 1 is reached")
        });
        assert!(full);
        assert!(!waits.processes().is_empty());
    }

    fn a_shortest_hold_keeps_the_name(store) {
        let words = ["a", "--at-least", "100s", "true"];
        assert_eq!(Tenure::run(store, &words).code(), Some(0));
        let output = Tenure::run(store, &words).output();
        assert_eq!(output.status.code(), Some(75));
        let text = stderr(&output);
        assert!(text.starts_with("tenure: `a` was last run by "), "{text}");
        assert!(text.contains(", is kept by --at-least, and is free in "), "{text}");
        assert!(!text.contains("--wait"), "it would not wait long enough: {text}");
    }
}

#[test]
fn a_name_that_is_forgotten_is_a_usage_error_that_says_so() {
    for words in [
        &["run", "--", "./job.sh", "arg"][..],
        &["run", "--wait", "5s", "--fair", "--", "./job.sh", "arg"],
        &["run", "--", "./job.sh"],
        &["run", "-n", "--"],
    ] {
        let output = Tenure::bare(words).output();
        assert_eq!(output.status.code(), Some(64), "{words:?}");
        let text = stderr(&output);
        let says = "the name of the lock comes first: tenure run NAME -- COMMAND";
        assert!(text.contains(says), "{words:?}: {text}");
    }
}

#[test]
fn what_a_duration_or_a_lease_may_be_is_said() {
    let marks = Marks::new();
    let run = |words: &[&str]| {
        let run = Tenure::bare(words).env("XDG_STATE_HOME", marks.path("state"));
        stderr(&run.output())
    };
    let text = run(&["run", "a", "--wait", "1h30m", "true"]);
    assert!(
        text.contains("one number and one unit: 30 (seconds)"),
        "{text}"
    );
    let text = run(&["run", "a", "--lease", "0", "true"]);
    assert!(text.contains("from 20ms to 30d"), "{text}");
    let text = run(&["run", "a", "--events", "/no/such/file", "true"]);
    assert!(
        text.contains("cannot be written to /no/such/file: "),
        "{text}"
    );
}

#[test]
fn help_and_version_are_no_errors() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["run", "-h"],
    ] {
        let output = Tenure::bare(words)
            .env("TENURE_STORE", "redis://:s3cret@h/")
            .output();
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.is_empty() && !text.contains("s3cret"), "{text}");
        assert!(!text.contains('\u{1b}'), "no colour in a pipe: {text}");
    }
}

#[test]
fn the_short_help_fits_a_screen() {
    let output = Tenure::bare(&["run", "-h"]).output();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("Example: "), "{text}");
    assert!(text.lines().count() <= 24, "{}", text.lines().count());
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn without_a_store_it_is_a_file_in_the_state_directory() {
    use std::os::unix::fs::PermissionsExt as _;

    let marks = Marks::new();
    let state = marks.path("deep/down/state of me%");
    let run = |words: &[&str]| Tenure::bare(words).env("XDG_STATE_HOME", &state);
    assert_eq!(run(&["run", "a", "sh", "-c", "exit 3"]).code(), Some(3));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let file = state.join("tenure/locks.db");
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    // It is the same one for everybody.
    let holder = run(&["run", "a", "-w", "forever", "sleep", "100"]).start();
    assert!(eventually(LONG, || {
        run(&["run", "a", "true"]).code() == Some(75)
    }));
    assert_eq!(run(&["run", "b", "true"]).code(), Some(0));
    drop(holder);

    let home = marks.path("home");
    let run = Tenure::bare(&["run", "a", "true"]).env("HOME", &home);
    // A relative one is none.
    assert_eq!(run.env("XDG_STATE_HOME", "state").code(), Some(0));
    assert!(home.join(".local/state/tenure/locks.db").exists());

    let output = Tenure::bare(&["run", "a", "true"]).output();
    assert_eq!(output.status.code(), Some(73), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(
        said.contains("/dev/null/state/tenure") && said.contains("--store"),
        "{said}"
    );
}

#[test]
fn a_variable_that_is_empty_is_not_one_that_is_not_set() {
    let marks = Marks::new();
    let run = |words: &[&str]| Tenure::bare(words).env("XDG_STATE_HOME", marks.path("state"));
    let words = ["run", "a", "true"];
    for variable in ["TENURE_STORE", "TENURE_STORE_FILE"] {
        let output = run(&words).env(variable, "").output();
        assert_eq!(output.status.code(), Some(64), "{variable}");
        let said = format!("{variable} is set but empty");
        assert!(stderr(&output).contains(&said), "{}", stderr(&output));
    }
    let output = run(&["run", "--store", "", "a", "true"]).output();
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr(&output).contains("--store is empty"));
    assert!(!marks.has("state"), "a lock that nobody else sees");
}

#[test]
fn verbose_says_which_store_it_is() {
    let marks = Marks::new();
    let run = Tenure::bare(&["run", "a", "-v", "true"]).env("XDG_STATE_HOME", marks.path("state"));
    let said = stderr(&run.output());
    let file = marks.text("state/tenure/locks.db");
    assert_eq!(said, format!("tenure: acquired `a` in the file {file}\n"));
}

#[test]
fn what_is_no_store_is_a_usage_error() {
    for tenure in [
        Tenure::bare(&["run", "a", "true"]).env("TENURE_STORE_FILE", "/no/such/file"),
        Tenure::with_url("ftp://s3cret@h/", &["a", "true"]),
        Tenure::with_url(":s3cret", &["a", "true"]),
    ] {
        let output = tenure.output();
        assert_eq!(output.status.code(), Some(64));
        assert!(!stderr(&output).contains("s3cret"), "{}", stderr(&output));
    }
}

#[test]
fn a_store_that_is_not_there_is_told_from_one_that_refuses_us() {
    let output = Tenure::with_url("redis://127.0.0.1:1/", &["a", "true"]).output();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "redis://127.0.0.1:{}/?connect_limit=200ms&reply_limit=200ms",
        silent.local_addr().unwrap().port()
    );
    let output = Tenure::with_url(&url, &["a", "true"]).output();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    // Nobody is known to have it: a policy for that does not apply. And it takes little longer than the wait.
    let url = format!("redis://{}/", silent.local_addr().unwrap());
    let since = Instant::now();
    let output = Tenure::with_url(&url, &["a", "-w", "200ms", "-E", "0", "true"]).output();
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(since.elapsed() < Duration::from_secs(4));

    let store = Redis::with(&["--requirepass", "right"]);
    let marks = Marks::new();
    let url = |password: &str| {
        let path = store.0.socket_path();
        format!("redis+unix://:{password}@{}", path.display())
    };
    let output = Tenure::with_url(&url("wr0ng"), &["a", "true"]).output();
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
    assert!(!stderr(&output).contains("wr0ng"));
    marks.write("store", &format!("{}\n", url("right")));
    let tenure = Tenure::bare(&["run", "a", "true"]);
    assert_eq!(
        tenure.env("TENURE_STORE_FILE", marks.path("store")).code(),
        Some(0)
    );
}

/// Root may write whatever it likes, unless that right is taken from it.
#[test]
fn a_file_that_this_user_may_not_write_is_denied() {
    use std::os::unix::fs::PermissionsExt as _;

    let marks = Marks::new();
    marks.write("locks.db", "");
    let file = marks.path("locks.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    let url = format!("sqlite://{}", file.display());
    let rights = "-dac_override,-dac_read_search";
    let mut command = std::process::Command::new("setpriv");
    match rustix::process::geteuid().is_root() {
        true => command.args(["--bounding-set", rights, env!("CARGO_BIN_EXE_tenure")]),
        false => {
            command = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
            &mut command
        }
    };
    let output = command.args(["run", "a", "true"]).env("TENURE_STORE", url);
    let output = output.output().unwrap();
    assert_eq!(output.status.code(), Some(77), "{}", stderr(&output));
}
