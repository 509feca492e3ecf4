//! From the grant to the end of the command and the release.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_current_process_group, kill_process};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU,
};
use signal_hook::low_level;
use tenure::blocking::Lock;
use tenure::{Error, Lost};

use super::command::{self, Change};
use super::events::Events;
use super::group::Group;
use super::guard::Guard;
use super::messages::Messages;
use super::nested::Held;
use super::terminal::{Terminal, somebody_resumes_us};
use super::{Event, Verdict, no_process, signals};
use crate::args::{OnLost, RunArgs};
use crate::exit::{Ending, Failure};
use crate::output::roughly;
use crate::store::Store;

/// A lock that is held, and what it is held for.
pub(super) struct Supervisor<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) messages: &'a Messages,
    pub(super) events: &'a Events,
    pub(super) inbox: &'a Receiver<Event>,
    pub(super) lock: Lock,
}

/// A command that was started.
struct Running<'a> {
    of: &'a Supervisor<'a>,
    guard: &'a mut Guard,
    terminal: &'a mut Option<Terminal>,
    command: Pid,
    group: Group,
    /// Signals that the group had from us.
    passed_on: Vec<i32>,
    /// How the command itself ended.
    ended: Option<Ending>,
    lost: bool,
    /// We have stopped it ourselves, and have not let it go on yet.
    frozen: bool,
    /// When what is left is killed. While that is set, all of the group is to end.
    kill_at: Option<Instant>,
    /// KILL was sent, and there is nothing more to do.
    killed: Option<Instant>,
}

/// Between two looks whether anybody in the group is left.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a process that got KILL is waited for. It may hang in the kernel, and then it writes nothing either.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// The most of a stop window that is kept for the killing itself, which takes some turns of the scheduler.
const KILL_TAKES: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    pub(super) fn run(self, store: &Store, held: &Held) -> Result<Verdict, Failure> {
        self.events.tell("acquired", |object| {
            let lease = u64::try_from(self.args.lease.as_millis()).unwrap_or(u64::MAX);
            let object = object.number("lease_ms", lease);
            match self.lock.fence() {
                Some(fence) => object.number("fence", fence),
                None => object,
            }
        });
        self.events.check()?;
        if self.args.verbose {
            let name = self.args.name.as_bytes().escape_ascii();
            let place = store.place();
            self.messages.note(&format!("acquired `{name}` {place}"));
        }
        let mut guard = Guard::start().map_err(|error| no_process(&error))?;
        // Taken back on every way out of here.
        let mut terminal = Terminal::of_session();
        let ran = self.run_guarded(store, held, &mut guard, &mut terminal);
        if let Some(terminal) = &mut terminal {
            terminal.take_back();
        }
        guard.end();
        ran.map(|(ending, lost)| self.let_go(ending, lost))
    }

    fn run_guarded(
        &self,
        store: &Store,
        held: &Held,
        guard: &mut Guard,
        terminal: &mut Option<Terminal>,
    ) -> Result<(Ending, bool), Failure> {
        let own_group = (!self.args.foreground).then(|| guard.id());
        if let (Some(terminal), Some(group), true) =
            (terminal.as_mut(), own_group, Terminal::is_on_both_ends())
        {
            terminal.hand_over(group);
        }
        // What came while the lock was granted is for us; what comes from here on is for the command.
        for event in self.inbox.try_iter() {
            match event {
                Event::Signal(SIGCHLD | SIGCONT | SIGTSTP) => {}
                Event::Signal(signal) => return Ok((Ending::Signal(signal), false)),
                Event::Lost(lost) => {
                    self.tell_loss(&lost);
                    return Ok((Ending::Status(self.args.lost_exit_code), true));
                }
                _ => {}
            }
        }
        let command = command::spawn(self.args, store, held, &self.lock, own_group)?;
        // It may leave the group, or is not in it with --foreground: until this is read it outlives us then if we are killed.
        let _ = guard.watch(command);
        self.events.tell("started", |object| {
            object.number("pid", command.as_raw_nonzero().get().unsigned_abs())
        });
        let mut running = Running {
            of: self,
            guard,
            terminal,
            command,
            group: own_group.map_or(Group::Process, Group::Whole),
            passed_on: Vec::new(),
            ended: None,
            lost: false,
            frozen: false,
            kill_at: None,
            killed: None,
        };
        let ending = running.supervise();
        Ok((ending, running.lost))
    }

    /// Releases, and says how it all ended.
    fn let_go(self, ending: Ending, lost: bool) -> Verdict {
        let Supervisor {
            args, events, lock, ..
        } = self;
        let late = match lost {
            true => None,
            false => match lock.release() {
                Ok(released) => {
                    events.tell("released", |object| {
                        object.flag("confirmed", released.confirmed)
                    });
                    None
                }
                Err(Error::Lost(lost)) => Some(lost),
                // It goes with its TTL.
                Err(error) => {
                    events.tell("released", |object| {
                        object
                            .flag("confirmed", false)
                            .text("why", &error.to_string())
                    });
                    None
                }
            },
        };
        if let Some(lost) = &late {
            let name = args.name.as_bytes().escape_ascii();
            self.messages.say(&format!(
                "`{name}` was lost before its command had ended: {lost}"
            ));
            events.tell("lost", |object| object.text("cause", &lost.to_string()));
        }
        if lost || late.is_some() {
            return Verdict {
                ending: Ending::Status(args.lost_exit_code),
                reason: "lost",
            };
        }
        Verdict {
            ending,
            reason: match ending {
                Ending::Status(_) => "command",
                Ending::Signal(_) => "signal",
            },
        }
    }

    fn tell_loss(&self, lost: &Lost) {
        let name = self.args.name.as_bytes().escape_ascii();
        let window = self.lock.stop_window(lost);
        let next = match self.args.on_lost {
            OnLost::Ignore => "its command runs on".to_owned(),
            _ => format!("its command has {} to end", roughly(window)),
        };
        self.messages
            .say(&format!("`{name}` is lost: {lost}; {next}"));
        self.events.tell("lost", |object| {
            let ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
            object
                .text("cause", &lost.to_string())
                .number("stop_window_ms", ms)
        });
    }
}

impl Running<'_> {
    /// Until the command has ended, and all of its group if that is to end too.
    fn supervise(&mut self) -> Ending {
        loop {
            if let Some(ending) = self.ended
                && self.is_over()
            {
                return ending;
            }
            match self.next() {
                Ok(Event::Signal(SIGCHLD)) => self.look(),
                Ok(Event::Signal(SIGCONT)) => self.go_on(),
                Ok(Event::Signal(SIGTSTP)) => self.stop(),
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::Lost(lost)) => self.lose(&lost),
                Ok(Event::Answered(_) | Event::Seen(_) | Event::Closed) => {}
                Err(_) => self.kill_if_due(),
            }
        }
    }

    /// What happens next; nothing when it is time to look at the group, or to kill it.
    fn next(&self) -> Result<Event, RecvTimeoutError> {
        let inbox = self.of.inbox;
        let due = match (self.kill_at, self.ended, self.killed) {
            (Some(_), Some(_), _) | (_, _, Some(_)) => Some(LOOK_EVERY),
            (Some(at), None, None) => Some(at.saturating_duration_since(Instant::now())),
            (None, _, None) => None,
        };
        match due {
            Some(due) => inbox.recv_timeout(due),
            None => inbox.recv().map_err(RecvTimeoutError::from),
        }
    }

    /// Whether there is nothing left to wait for once the command itself has ended.
    fn is_over(&mut self) -> bool {
        if self.kill_at.is_none() && self.killed.is_none() {
            return true;
        }
        match (self.group, self.group.is_empty(), self.killed) {
            (Group::Process, ..) => true,
            // Whoever was seen leaving may have been seen too early: a process that was just forked.
            (_, Some(true), None) => {
                self.kill();
                true
            }
            (_, Some(true), Some(_)) => true,
            (_, None, Some(_)) => true,
            (_, Some(false), Some(at)) => at.elapsed() > KILL_LIMIT,
            (_, _, None) => false,
        }
    }

    fn look(&mut self) {
        while let Some(change) = command::next_change(self.command) {
            match change {
                Change::Ended(process, ending) if process == self.command => {
                    self.ended = Some(ending);
                    // Whoever ends of what we passed on ends with all of its group: some of that may not have minded.
                    let by_us = match ending {
                        Ending::Signal(signal) => self.passed_on.contains(&signal),
                        Ending::Status(_) => false,
                    };
                    if self.of.args.end_group || by_us || self.kill_at.is_some() {
                        self.end(self.of.args.grace);
                    }
                }
                Change::Ended(process, _) if process == self.guard.id() => self.guard.is_gone(),
                Change::Stopped(process, signal) if process == self.command => {
                    self.was_stopped(signal);
                }
                _ => {}
            }
        }
    }

    /// TERM for all, and KILL for whoever is left in the end.
    fn end(&mut self, within: Duration) {
        let at = Instant::now() + within;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        if !within.is_zero() && !self.passed_on.contains(&SIGTERM) {
            self.passed_on.push(SIGTERM);
            self.signal(Signal::TERM);
            // Whoever is stopped could not mind it.
            self.signal(Signal::CONT);
        }
        self.kill_if_due();
    }

    fn kill_if_due(&mut self) {
        if self.killed.is_none() && self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.kill();
            self.of.events.tell("killed", |object| object);
        }
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.killed = Some(Instant::now());
    }

    fn signal(&self, signal: Signal) {
        let command = self.ended.is_none().then_some(self.command);
        self.group.signal(command, signal);
    }

    fn pass_on(&mut self, signal: i32) {
        let name = signals::name(signal);
        let asks_to_end = matches!(signal, SIGTERM | SIGINT);
        if asks_to_end && self.kill_at.is_some() {
            self.of.messages.note(&format!("{name} again: KILL"));
            self.kill_at = Some(Instant::now());
            return self.kill_if_due();
        }
        // A command in our own group has had from the terminal what we have had.
        let had = self.of.args.foreground && matches!(signal, SIGINT | SIGQUIT);
        let had = had && self.terminal.as_ref().is_some_and(Terminal::is_ours);
        if !had && let Some(named) = Signal::from_named_raw(signal) {
            self.passed_on.push(signal);
            self.signal(named);
        }
        self.of
            .events
            .tell("signal", |object| object.text("signal", &name));
        if asks_to_end && !had {
            let grace = self.of.args.grace;
            self.kill_at = Some(Instant::now() + grace);
            self.signal(Signal::CONT);
            self.of.messages.note(&format!(
                "{name} passed on; KILL in {}, or at once on another",
                roughly(grace)
            ));
        }
    }

    fn lose(&mut self, lost: &Lost) {
        if self.lost {
            return;
        }
        self.lost = true;
        let window = self.of.lock.stop_window(lost);
        let left = window.saturating_sub(KILL_TAKES.min(window / 4));
        match self.of.args.on_lost {
            OnLost::Term => self.end(left.min(self.of.args.grace)),
            OnLost::Kill => self.end(Duration::ZERO),
            OnLost::Ignore => {}
        }
        // Afterwards: nobody's life hangs on it.
        self.of.tell_loss(lost);
    }

    /// The command has stopped: with a shell behind us, so do we, and it says so.
    fn was_stopped(&mut self, signal: i32) {
        if self.frozen {
            return;
        }
        let by_terminal = matches!(signal, SIGTSTP | SIGTTIN | SIGTTOU);
        let Some(terminal) = self.terminal.as_mut() else {
            return;
        };
        if let (SIGTTIN | SIGTTOU, Group::Whole(group), true) =
            (signal, self.group, terminal.is_ours())
        {
            // It asks for the terminal, and that is here.
            terminal.hand_over(group);
            return self.signal(Signal::CONT);
        }
        if !somebody_resumes_us() {
            // As the system does with a stop that nobody would end.
            if by_terminal {
                self.signal(Signal::CONT);
            }
            return;
        }
        terminal.take_back();
        self.freeze();
        // With all of our group, as the shell expects of a job: the command has only stopped its own.
        let _ = kill_current_process_group(Signal::STOP);
    }

    /// We are to stop, and the command with us.
    fn stop(&mut self) {
        // A command in our own group has had it from the terminal too, and we follow when it has stopped.
        let follows = self.of.args.foreground && self.terminal.is_some();
        if follows || !somebody_resumes_us() {
            return;
        }
        if let Some(terminal) = self.terminal.as_mut() {
            terminal.take_back();
        }
        self.freeze();
        let _ = low_level::raise(SIGSTOP);
    }

    /// Nothing of the command runs while we cannot watch. The guard does.
    fn freeze(&mut self) {
        self.frozen = true;
        self.signal(Signal::STOP);
        let _ = kill_process(self.guard.id(), Signal::CONT);
    }

    /// After a stop, or when a shell brings us back from the background.
    fn go_on(&mut self) {
        // First of all: the lease may have run out meanwhile, and then nothing of the command may run on.
        if let Err(Error::Lost(lost)) = self.of.lock.check() {
            self.lose(&lost);
        }
        if self.killed.is_some() {
            return;
        }
        if let (Some(terminal), Group::Whole(group), true) = (
            self.terminal.as_mut(),
            self.group,
            Terminal::is_on_both_ends(),
        ) {
            terminal.hand_over(group);
        }
        self.frozen = false;
        self.signal(Signal::CONT);
    }
}
