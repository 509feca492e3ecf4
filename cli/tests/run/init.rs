//! As the first process of a container.

use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{LONG, Marks, Run, Store, eventually, on_every_store};

/// Whether the kernel lets us make a pid namespace. Where CI runs it has to.
fn permitted() -> bool {
    let tried = Command::new("unshare")
        .args(["-pf", "--mount-proc", "true"])
        .output();
    let permitted = tried.is_ok_and(|output| output.status.success());
    if !permitted {
        assert!(
            std::env::var_os("CI").is_none(),
            "this machine makes no pid namespace"
        );
        println!("NOT TRIED: the kernel lets us make no pid namespace");
    }
    permitted
}

fn contained(store: &dyn Store, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args([
            "-pf",
            "--mount-proc",
            "--kill-child",
            env!("CARGO_BIN_EXE_tenure"),
        ])
        .args(["run", "a", "--", "sh", "-c", script])
        .env("TENURE_STORE", store.url());
    command
}

fn output(store: &dyn Store, script: &str) -> Output {
    contained(store, script).output().unwrap()
}

on_every_store! {
    fn as_process_1_the_status_is_that_of_the_command(store) {
        if !permitted() {
            return;
        }
        assert_eq!(output(store, "exit 3").status.code(), Some(3));
        // Of a signal it cannot die.
        assert_eq!(output(store, "kill -TERM $$").status.code(), Some(143));
        assert_eq!(store.left("a"), None);
    }

    fn as_process_1_it_takes_note_of_every_end(store) {
        if !permitted() {
            return;
        }
        // A grandchild whose parent is gone, and that ends: without somebody who waits for it, it stays.
        let script = "(sh -c 'sleep 0.05 & echo $!' >/tmp/$$.tenure-orphan); orphan=$(cat /tmp/$$.tenure-orphan); \
            rm /tmp/$$.tenure-orphan; i=0; \
            while [ -e /proc/$orphan ]; do i=$((i + 1)); [ $i -lt 200 ] || exit 9; sleep 0.02; done";
        assert_eq!(output(store, script).status.code(), Some(0));
    }

    fn as_process_1_it_ends_the_command_when_asked(store) {
        if !permitted() {
            return;
        }
        let marks = Marks::new();
        let script = format!("touch {}; sleep 100 & wait", marks.text("runs"));
        let mut command = Command::new("setsid");
        let inner = contained(store, &script);
        command.arg(inner.get_program()).args(inner.get_args());
        command.env("TENURE_STORE", store.url());
        let run = Run::lead(command);
        marks.wait_for("runs");
        let children = format!("/proc/{0}/task/{0}/children", run.session());
        let children = std::fs::read_to_string(children).unwrap();
        let tenure = children.trim().parse().ok().and_then(Pid::from_raw).unwrap();
        kill_process(tenure, Signal::TERM).unwrap();
        assert_eq!(run.end().code(), Some(143));
        assert!(eventually(LONG, || store.left("a").is_none()));
    }
}
