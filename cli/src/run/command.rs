//! The command that is run.

use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid, wait, waitpid};
use tenure::blocking::Lock;

use super::nested::{self, Held};
use crate::args::RunArgs;
use crate::exit::{CANNOT_RUN, Ending, Failure, NO_PROCESS, NOT_FOUND};
use crate::store::Store;

/// What became of the command or of the guard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Ended(Pid, Ending),
    /// By this signal.
    Stopped(Pid, i32),
}

/// Starts it, in that group if one is given.
pub(super) fn spawn(
    args: &RunArgs,
    store: &Store,
    held: &Held,
    lock: &Lock,
    group: Option<Pid>,
) -> Result<Pid, Failure> {
    // The parser wants a word there.
    let (program, arguments) = args.command.split_first().expect("a command");
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("TENURE_NAME", &args.name)
        .env("TENURE_LEASE_MS", args.lease.as_millis().to_string())
        .env(nested::VARIABLE, held.variable())
        .env_remove("TENURE_STORE_FILE");
    match lock.fence() {
        Some(fence) => command.env("TENURE_FENCE", fence.to_string()),
        // That of somebody else.
        None => command.env_remove("TENURE_FENCE"),
    };
    match lock.token() {
        Some(token) => command.env("TENURE_TOKEN", token.as_str()),
        None => command.env_remove("TENURE_TOKEN"),
    };
    match args.pass_store {
        true => command.env("TENURE_STORE", store.url()),
        false => command.env_remove("TENURE_STORE"),
    };
    if let Some(group) = group {
        command.process_group(group.as_raw_nonzero().get());
    }
    let child = command.spawn().map_err(|error| {
        let program = program.as_bytes().escape_ascii();
        not_started(&error, &program.to_string(), args)
    })?;
    Ok(Pid::from_child(&child))
}

/// Takes note of what has changed: of the command, or as the first process of a container of everybody that it has inherited.
pub(super) fn next_change(command: Pid) -> Option<Change> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
    loop {
        let change = match getpid().is_init() {
            true => wait(options),
            false => waitpid(Some(command), options),
        };
        match change {
            Ok(Some((process, status))) => {
                if let Some(change) = Change::of(process, status) {
                    return Some(change);
                }
            }
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

impl Change {
    fn of(process: Pid, status: WaitStatus) -> Option<Change> {
        if let Some(code) = status.exit_status() {
            let code = u8::try_from(code).unwrap_or(u8::MAX);
            return Some(Change::Ended(process, Ending::Status(code)));
        }
        if let Some(signal) = status.terminating_signal() {
            return Some(Change::Ended(process, Ending::Signal(signal)));
        }
        let signal = status.stopping_signal()?;
        Some(Change::Stopped(process, signal))
    }
}

/// As a shell tells them apart.
fn not_started(error: &io::Error, program: &str, args: &RunArgs) -> Failure {
    let errno = Errno::from_io_error(error);
    match errno {
        Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => Failure::new(
            NO_PROCESS,
            "no-process",
            format!("the system starts no process: {error}"),
        ),
        Some(Errno::NOEXEC) => Failure::new(
            CANNOT_RUN,
            "cannot-run",
            format!("{program}: {error}; a script needs a first line such as #!/bin/sh"),
        ),
        _ if error.kind() == ErrorKind::NotFound => {
            // Whoever has forgotten the name has named the lock after the command.
            let name = args.name.as_bytes().escape_ascii();
            let text = format!("command `{program}` was not found (the lock is `{name}`)");
            Failure::new(NOT_FOUND, "not-found", text)
        }
        _ => Failure::new(CANNOT_RUN, "cannot-run", format!("{program}: {error}")),
    }
}
