//! A child process that never outlives the test, however the test ends.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, id};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// A process started by a test. Dropping it kills it.
///
/// When the test process itself is killed no `Drop` runs. A watcher, a shell that reads from a pipe whose other
/// end the test process holds, then kills the child and removes its folder. (A parent-death signal would do
/// as well, but it is sent when the *thread* that started the child ends, and tests are threads.)
#[derive(Debug)]
pub struct Process {
    child: Child,
    watcher: Child,
}

impl Process {
    /// Starts a program in a folder, which is removed if the test process is killed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(program: &str, arguments: &[String], folder: &Path) -> io::Result<Self> {
        // The child waits for a word before it becomes the program, so that it is never without its watcher.
        let mut child = Command::new("sh")
            .args(["-c", "read go && exec \"$@\" </dev/null", "sh", program])
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Not in the test's process group: a signal to the group must not reach one without the other.
            .process_group(0)
            .spawn()?;
        let watched = Command::new("sh")
            .args([
                "-c",
                "trap '' INT TERM HUP; read word; kill -9 \"$1\"; sleep 0.1; rm -rf -- \"$2\"",
                "sh",
                &child.id().to_string(),
            ])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let watcher = match watched {
            Ok(watcher) => watcher,
            Err(error) => {
                child.kill().and_then(|()| child.wait()).ok();
                return Err(error);
            }
        };
        let mut process = Self { child, watcher };
        let mut word = process.child.stdin.take().expect("it is piped");
        word.write_all(b"go\n")?;
        Ok(process)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// When it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("no such process id"))?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watcher first: once the child is waited for, its id may be another process.
        self.watcher.kill().ok();
        self.watcher.wait().ok();
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A new folder, removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one. Its name is short because a Unix socket's path has to be.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> io::Result<Self> {
        // Only a name is taken from this; the folder is new whatever it gives.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("tenure-{}-{number}", id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
