//! The program under test, and the stores that it looks at.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use tenure::Config;
use tenure::blocking::{Lock, Locks};
use tenure_tests::{Server, ServerKind};

pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// `tenure` with these words and no store.
pub(crate) fn bare(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(words).stdin(Stdio::null());
    for variable in [
        "TENURE_STORE",
        "TENURE_STORE_FILE",
        "TENURE_NAME",
        "TENURE_TOKEN",
        "NO_COLOR",
    ] {
        command.env_remove(variable);
    }
    // Not in the home of whoever runs the tests.
    command.env("XDG_STATE_HOME", "/dev/null/state");
    command
}

/// The same on this store.
pub(crate) fn on(url: &str, words: &[&str]) -> Command {
    let mut command = bare(words);
    command.env("TENURE_STORE", url);
    command
}

/// Status, standard output and standard error of it.
pub(crate) fn said(command: &mut Command) -> (i32, String, String) {
    told(command.output().unwrap())
}

/// The same, with this on its standard input.
pub(crate) fn said_to(command: &mut Command, input: &str) -> (i32, String, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    told(child.wait_with_output().unwrap())
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let status = output.status.code().expect("no signal");
    (status, text(output.stdout), text(output.stderr))
}

/// What it prints as JSON, and its status.
pub(crate) fn json(command: &mut Command) -> (i32, Value) {
    let (status, out, err) = said(command.arg("--json"));
    let value = serde_json::from_str(&out);
    (
        status,
        value.unwrap_or_else(|why| panic!("{why}: {out}{err}")),
    )
}

/// A server of each kind.
pub(crate) fn on_each_server(show: impl Fn(&Server)) {
    for kind in ServerKind::all_required() {
        show(&Server::start(kind, &[]).unwrap());
    }
}

/// One server, of the newest kind.
pub(crate) fn server() -> Server {
    let kinds = ServerKind::all_required();
    Server::start(*kinds.last().expect("a server to test on"), &[]).unwrap()
}

/// Locks on a server, as another program has them.
pub(crate) fn locks(server: &Server, label: &str) -> Locks {
    let config = Config::from_url(&server.url()).unwrap().label(label);
    tenure::blocking::connect_config(&config).unwrap()
}

/// A lock that another program holds.
pub(crate) fn held(locks: &Locks, name: impl AsRef<OsStr>) -> Lock {
    use std::os::unix::ffi::OsStrExt as _;
    let request = locks.lock(name.as_ref().as_bytes()).lease(MINUTE);
    request.try_acquire().unwrap().acquired().unwrap()
}

/// A terminal: what is typed and seen, and what a program reads and writes.
pub(crate) fn terminal() -> (File, File) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let path = ptsname(&controller, Vec::new()).unwrap();
    let mut options = File::options();
    let options = options.read(true).write(true);
    // It is nobody's controlling terminal.
    let options = options.custom_flags(OFlags::NOCTTY.bits().try_into().unwrap());
    let program = options.open(path.to_str().unwrap()).unwrap();
    (controller.into(), program)
}
