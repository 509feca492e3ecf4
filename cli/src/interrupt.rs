//! INT and TERM, for verbs that go on until somebody has seen enough.

use std::io;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{Failure, NO_PROCESS};

/// Calls this, on a thread of its own, when somebody wants an end.
///
/// # Errors
/// When the system starts no thread.
pub(crate) fn on_interrupt(mut tell: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let watching = (|| {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let thread = thread::Builder::new().name("tenure-signals".to_owned());
        thread.spawn(move || signals.forever().for_each(|_| tell()))
    })();
    watching.map(drop).map_err(|error: io::Error| {
        let text = format!("the system starts no thread: {error}");
        Failure::new(NO_PROCESS, "no-process", text)
    })
}
