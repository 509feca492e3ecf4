//! What programs are told: a JSON object a line, to a file or a descriptor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::time::SystemTime;

use rustix::io::Errno;

use super::{FLUSH_LIMIT, Verdict, signals};
use crate::args::RunArgs;
use crate::exit::{Ending, Failure, NO_EVENTS};
use crate::output::{Date, Lines, Object};

/// Fields are added in later versions, never renamed. The first is `acquired` or `refused`, the last is `exit`.
pub(super) struct Events {
    name: String,
    /// Where they go, for people.
    place: String,
    lines: Option<Lines>,
}

impl Events {
    pub(super) fn open(args: &RunArgs) -> Result<Events, Failure> {
        let file = match (&args.events, args.events_fd) {
            (Some(path), _) => Some(OpenOptions::new().append(true).create(true).open(path)),
            (None, Some(number)) => Some(inherited(number)),
            (None, None) => None,
        };
        let place = match (&args.events, args.events_fd) {
            (Some(path), _) => path.as_os_str().as_bytes().escape_ascii().to_string(),
            (None, number) => format!("descriptor {}", number.unwrap_or_default()),
        };
        let lines = file.map(|file| file.and_then(Lines::start));
        Ok(Events {
            name: String::from_utf8_lossy(args.name.as_bytes()).into_owned(),
            lines: lines
                .transpose()
                .map_err(|error| not_written(&place, &error))?,
            place,
        })
    }

    pub(super) fn tell(&self, event: &str, fields: impl FnOnce(Object) -> Object) {
        let Some(lines) = &self.lines else {
            return;
        };
        let object = Object::new()
            .text("event", event)
            .text("at", &format!("{:#}", Date(SystemTime::now())))
            .text("name", &self.name);
        lines.line(fields(object).finish());
    }

    /// What was told is written, or somebody is slow to read it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                Err(not_written(&self.place, &error))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        self.lines
            .as_ref()
            .map_or(Ok(()), |lines| lines.flush(FLUSH_LIMIT))
    }

    pub(super) fn exit(&self, verdict: &Verdict) {
        self.tell("exit", |object| {
            let object = object
                .number("status", verdict.ending.status())
                .text("reason", verdict.reason);
            match verdict.ending {
                Ending::Status(_) => object,
                Ending::Signal(signal) => object.text("signal", &signals::name(signal)),
            }
        });
    }
}

/// A descriptor that we were started with. The command is not: who reads the events waits for the end of all who might write.
fn inherited(number: i32) -> io::Result<File> {
    let file = match copy(number) {
        Ok(copy) => copy,
        Err(Errno::BADF) => return Err(Errno::BADF.into()),
        // Where that is missing or forbidden, as in some sandboxes. It does not do for sockets.
        Err(_) => OpenOptions::new()
            .append(true)
            .open(format!("/dev/fd/{number}"))?,
    };
    if number > 2 {
        nix::unistd::close(number)?;
    }
    Ok(file)
}

#[cfg(target_os = "linux")]
fn copy(number: i32) -> Result<File, Errno> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let me = pidfd_open(getpid(), PidfdFlags::empty())?;
    pidfd_getfd(me, number, PidfdGetfdFlags::empty()).map(File::from)
}

#[cfg(not(target_os = "linux"))]
fn copy(_: i32) -> Result<File, Errno> {
    Err(Errno::NOSYS)
}

fn not_written(place: &str, error: &io::Error) -> Failure {
    Failure::new(
        NO_EVENTS,
        "no-events",
        format!("the events cannot be written to {place}: {error}"),
    )
}
