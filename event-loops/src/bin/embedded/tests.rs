//! The loop on a board of which everything is fixed: its clock, its entropy, and a wire that takes and gives one byte at a
//! time.

use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

use super::*;

/// What the board and its wire share with the test.
#[derive(Default)]
struct Bench {
    micros: Cell<u64>,
    sent: RefCell<Vec<u8>>,
    answers: RefCell<VecDeque<u8>>,
    /// What the key has, as a reply.
    value: RefCell<Vec<u8>>,
    takes: Cell<bool>,
    dials: Cell<u32>,
    valve: RefCell<Vec<(u64, bool)>>,
    /// The wire fails at this time.
    cut_at: Cell<Option<u64>>,
    wanted_until: Cell<u64>,
}

struct Fixed(Rc<Bench>);
struct OneByte(Rc<Bench>);

impl Board for Fixed {
    type Socket = OneByte;

    fn now(&mut self) -> Tick {
        // Every look takes a microsecond.
        self.0.micros.set(self.0.micros.get() + 1);
        Tick::from_micros(self.0.micros.get())
    }

    fn entropy(&mut self, bytes: &mut [u8]) {
        bytes.fill(7);
    }

    fn dial(&mut self, _limit: Duration) -> Option<OneByte> {
        self.0.dials.set(self.0.dials.get() + 1);
        self.0.sent.borrow_mut().clear();
        self.0.answers.borrow_mut().clear();
        // The first one fails.
        (self.0.dials.get() > 1).then(|| OneByte(Rc::clone(&self.0)))
    }

    fn abort(&mut self, _socket: OneByte) {}

    fn wait(&mut self, _socket: Option<&mut OneByte>, sending: bool, until: Tick) {
        if self.0.answers.borrow().is_empty() && !sending {
            self.0
                .micros
                .set(until.as_micros().max(self.0.micros.get()));
        }
    }

    fn is_wanted(&mut self) -> bool {
        self.0.micros.get() < self.0.wanted_until.get()
    }

    fn valve(&mut self, open: bool) {
        let mut valve = self.0.valve.borrow_mut();
        if valve.last().is_none_or(|last| last.1 != open) {
            valve.push((self.0.micros.get(), open));
        }
    }
}

impl ErrorType for OneByte {
    type Error = embedded_io::ErrorKind;
}

impl OneByte {
    fn check(&self) -> Result<(), embedded_io::ErrorKind> {
        match self.0.cut_at.get() {
            Some(at) if self.0.micros.get() >= at => {
                self.0.cut_at.set(None);
                Err(embedded_io::ErrorKind::ConnectionReset)
            }
            _ => Ok(()),
        }
    }
}

impl ReadReady for OneByte {
    fn read_ready(&mut self) -> Result<bool, Self::Error> {
        self.check()?;
        Ok(!self.0.answers.borrow().is_empty())
    }
}

impl Read for OneByte {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize, Self::Error> {
        bytes[0] = self
            .0
            .answers
            .borrow_mut()
            .pop_front()
            .expect("asked first");
        Ok(1)
    }
}

impl WriteReady for OneByte {
    fn write_ready(&mut self) -> Result<bool, Self::Error> {
        self.check()?;
        // Every other time it takes nothing.
        Ok(self.0.takes.replace(!self.0.takes.get()))
    }
}

impl Write for OneByte {
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        let mut sent = self.0.sent.borrow_mut();
        sent.push(bytes[0]);
        // A server that has every command answered when its last byte is there.
        let answer: &[u8] = match &**sent {
            b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n" => b"%2\r\n+proto\r\n:3\r\n+server\r\n+valkey\r\n",
            b"*3\r\n$6\r\nCLIENT\r\n$8\r\nTRACKING\r\n$2\r\nON\r\n" => b"+OK\r\n",
            set if set.starts_with(b"*7\r\n$3\r\nSET")
                && set.ends_with(b"PX\r\n$5\r\n30000\r\n") =>
            {
                self.0.value.replace(value_in(set));
                b"_\r\n"
            }
            get if get.starts_with(b"*2\r\n$3\r\nGET")
                && get.iter().filter(|byte| **byte == b'\n').count() == 5 =>
            {
                self.0.answers.borrow_mut().extend(&*self.0.value.borrow());
                b""
            }
            swap if swap.starts_with(b"*8\r\n$3\r\nSET")
                && swap.ends_with(b"PX\r\n$5\r\n30000\r\n") =>
            {
                self.0.answers.borrow_mut().extend(value_in(swap));
                b""
            }
            clear
                if clear.starts_with(b"*3\r\n$7\r\nDELIFEQ")
                    && clear.iter().filter(|byte| **byte == b'\n').count() == 7 =>
            {
                b":1\r\n"
            }
            _ => return Ok(1),
        };
        sent.clear();
        self.0.answers.borrow_mut().extend(answer);
        Ok(1)
    }

    fn flush(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// The first value in a command, as a reply.
fn value_in(command: &[u8]) -> Vec<u8> {
    let mut lines = command.split(|byte| *byte == b'\n');
    let value = lines.find(|line| line.starts_with(b"tn1:"));
    let value = value.expect("a value").strip_suffix(b"\r").expect("a line");
    let length = std::format!("${}\r\n", value.len());
    [length.as_bytes(), value, b"\r\n"].concat()
}

const SECOND: u64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(30);

#[test]
fn the_valve_is_open_while_the_switch_is_on_through_a_failed_dial_and_a_cut() {
    let bench = Rc::new(Bench::default());
    bench.cut_at.set(Some(60 * SECOND));
    bench.wanted_until.set(120 * SECOND);
    run(Fixed(Rc::clone(&bench)), b"valve", LEASE).unwrap();
    let valve = bench.valve.borrow();
    let [(_, false), (opened, true), (closed, false)] = valve[..] else {
        panic!("{valve:?}")
    };
    assert!(opened < SECOND && (120 * SECOND..122 * SECOND).contains(&closed));
    assert_eq!(
        bench.dials.get(),
        3,
        "one that failed, one that was cut, one more"
    );
}
