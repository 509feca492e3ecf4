//! A caller's thread that takes its answer off the socket by itself.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use tenure_client::{Borrowed, Pump, Room};

use crate::bell::Bell;
use crate::hub::Hub;
use crate::parker::Parker;
use crate::socket::Socket;

thread_local! {
    static ROOM: Cell<Room> = Cell::default();
}

/// With which the callers of one client read.
pub(crate) struct Reader {
    pump: Pump,
    hub: Weak<Hub>,
}

impl Reader {
    pub(crate) fn new(pump: Pump, hub: &Arc<Hub>) -> Reader {
        let hub = Arc::downgrade(hub);
        Reader { pump, hub }
    }

    /// Makes a request and waits for its answer: on the socket as long as it is the only one, parked otherwise. In a forked
    /// process the request is refused when it is polled first, and nothing is waited for.
    pub(crate) fn ask<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let parker = Parker::current();
        let waker = Waker::from(Arc::clone(&parker));
        let mut cx = Context::from_waker(&waker);
        let mut turn = self.borrow();
        let mut begun = false;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            // A request that sent nothing - it is in line behind a lock of this process - has nothing to read.
            if !std::mem::replace(&mut begun, true) && !turn.as_mut().is_some_and(Turn::begins) {
                turn = None;
            }
            let Some(reading) = &mut turn else {
                parker.park(None);
                continue;
            };
            // After a wait the future is looked at once more, whoever waits from here on.
            if !reading.wait(&parker) {
                turn = None;
            }
        }
    }

    fn borrow(&self) -> Option<Turn<'_>> {
        Some(Turn {
            reader: self,
            borrowed: Some(self.pump.borrow()?),
            place: None,
        })
    }
}

/// The waiting on the socket, while this thread has it.
struct Turn<'a> {
    reader: &'a Reader,
    borrowed: Option<Borrowed>,
    place: Option<Place>,
}

/// What a thread waits on: the socket, and a bell for its waker.
struct Place {
    socket: Arc<Socket>,
    bell: Arc<Bell>,
}

impl Turn<'_> {
    /// Whether there is an answer to wait for.
    fn begins(&mut self) -> bool {
        let pump = &self.reader.pump;
        self.borrowed.take_if(|borrowed| !pump.goes_on(*borrowed));
        self.borrowed.is_some()
    }

    /// Waits for the socket or for a waker, and takes in what has come. Whether to go on.
    fn wait(&mut self, parker: &Parker) -> bool {
        let Reader { pump, hub } = self.reader;
        if self.place.is_none() {
            self.place = hub.upgrade().and_then(|hub| Place::on(hub.socket()?));
        }
        let Some(Place { socket, bell }) = &self.place else {
            return false;
        };
        match parker.wait_on(&**socket, bell) {
            // Not waited on any longer than it takes to hear of that, whatever there is instead: it is reset, or closed, when
            // the last one lets go.
            _ if socket.is_over() => false,
            Ok(true) => {
                let mut room = ROOM.try_with(Cell::take).unwrap_or_default();
                self.borrowed
                    .take_if(|borrowed| !pump.turn(*borrowed, &mut room));
                let _ = ROOM.try_with(|kept| kept.set(room));
                self.borrowed.is_some()
            }
            Ok(false) => true,
            Err(_) => false,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(borrowed) = self.borrowed {
            self.reader.pump.give_back(borrowed);
        }
    }
}

impl Place {
    fn on(socket: Arc<Socket>) -> Option<Place> {
        let bell = socket.bells().take().ok()?;
        Some(Place { socket, bell })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.socket.bells().give_back(Arc::clone(&self.bell));
    }
}
