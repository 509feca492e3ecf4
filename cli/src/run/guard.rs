//! The guard: a small process that ends the command when we are killed and cannot.
//!
//! It leads the command's process group, and is there before the command. So it knows the group from the first moment on; the
//! terminal can be handed to the group before anybody in it reads; and while the guard lives the number of the group, which is
//! its own, is given to no one else. It sits in a read of a pipe whose other end only we have: when that end is closed, by
//! whatever kills us, it kills the group, itself included. When all went well we kill it.

use std::env;
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};

const NAME: &str = "tenure-guard";
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Our side of it.
pub(super) struct Guard {
    child: Child,
    /// Whether somebody has taken note of its end, after which its number may be another's.
    gone: bool,
}

impl Guard {
    /// Starts it, in a new group of its own. Returns once it minds no signal that can be minded.
    pub(super) fn start() -> io::Result<Guard> {
        // Not by its path, where another version may be by now.
        let program = match Path::new(THIS_PROGRAM).exists() {
            true => THIS_PROGRAM.into(),
            false => env::current_exe()?,
        };
        let mut child = Command::new(program)
            .arg0(NAME)
            .arg(NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let ready = child.stdout.take().map(|mut out| out.read_exact(&mut [0]));
        let guard = Guard { child, gone: false };
        match ready {
            Some(Ok(())) => Ok(guard),
            _ => {
                guard.end();
                Err(io::Error::other("the guard does not start"))
            }
        }
    }

    /// Its process, and the group that it leads.
    pub(super) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// A process outside the group that it kills too.
    pub(super) fn watch(&mut self, process: Pid) -> io::Result<()> {
        let pipe = self.child.stdin.as_mut();
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(pipe, "{}", process.as_raw_nonzero())
    }

    /// It has ended, and was waited for.
    pub(super) fn is_gone(&mut self) {
        self.gone = true;
    }

    pub(super) fn end(mut self) {
        if !self.gone {
            let _ = kill_process(self.id(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Does not return if this process was started as the guard of another.
pub(crate) fn become_if_asked() {
    let mut words = env::args_os();
    if words.next().is_some_and(|word| word == NAME)
        && words.next().is_some_and(|word| word == NAME)
    {
        guard();
        std::process::exit(0);
    }
}

fn guard() {
    close_inherited();
    mind_no_signal();
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_name(c"tenure-guard");
    let mut out = io::stdout();
    if out.write_all(b"!").and_then(|()| out.flush()).is_err() {
        return;
    }
    let mut word = String::new();
    let _ = io::stdin().read_line(&mut word);
    let process = word.trim().parse().ok().and_then(Pid::from_raw);
    let process = process.map(Watched::new);
    let _ = io::stdin().read_to_end(&mut Vec::new());
    if let Some(process) = process {
        process.kill();
    }
    let _ = kill_current_process_group(Signal::KILL);
}

/// A process outside the group. By a descriptor where there are some, since its number may be another's when it has ended.
#[cfg(target_os = "linux")]
struct Watched(Option<std::os::fd::OwnedFd>);

#[cfg(not(target_os = "linux"))]
struct Watched(Pid);

#[cfg(target_os = "linux")]
impl Watched {
    fn new(process: Pid) -> Watched {
        Watched(rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok())
    }

    fn kill(self) {
        if let Some(process) = self.0 {
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Watched {
    fn new(process: Pid) -> Watched {
        Watched(process)
    }

    fn kill(self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Whoever reads what the command writes waits for the end of all who might: not for us.
fn close_inherited() {
    let Ok(open) = fs::read_dir("/dev/fd") else {
        return;
    };
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let numbers: Vec<i32> = numbers.filter(|number| *number > 2).collect();
    for number in numbers {
        // That of the listing itself is closed already.
        let _ = nix::unistd::close(number);
    }
}

/// What is meant for the command reaches the whole group: from the terminal, and from us.
fn mind_no_signal() {
    for signal in 1..32 {
        if !signal_hook::consts::FORBIDDEN.contains(&signal) {
            let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
        }
    }
}
