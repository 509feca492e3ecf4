//! Callers as a runtime of threads has them: one that is alone waits on the connection itself.
//!
//! What `tenure-blocking` does with poll(2) and a driver's thread, this does with tasks: the driver stops watching the
//! connection while a caller waits there for the only command that is in flight.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tenure_client::{Borrowed, Config, Driver, Error, Locks, Pump, Room, connect_with};

use crate::binding::SimBinding;
use crate::machine::Client;
use crate::world::Sleep;

/// How long a driver that looks away from an idle connection does so at most.
const AWAY: Duration = Duration::from_millis(50);

/// The callers of one client, as threads.
#[derive(Clone)]
pub struct Threads {
    binding: SimBinding,
    pump: Pump,
    /// How often in a thousand times, and for how long at most, a thread does not run although its answer has come.
    slow: (u64, Duration),
}

impl Threads {
    /// A client whose callers are threads; its driver is a task of its process. It connects in the background.
    ///
    /// # Errors
    /// When the settings are refused.
    pub fn connect(client: &Client, config: &Config) -> Result<(Locks, Threads), Error> {
        let binding = client.binding();
        let (locks, driver) = connect_with(binding.clone(), config)?;
        let pump = driver.pump();
        let threads = Threads {
            binding,
            pump,
            slow: (100, Duration::from_millis(20)),
        };
        client.spawn(Driving {
            driver,
            threads: threads.clone(),
            again: None,
        });
        Ok((locks, threads))
    }

    /// The same callers, which run as soon as they can.
    pub fn prompt(&self) -> Threads {
        let slow = (0, Duration::ZERO);
        Threads {
            slow,
            ..self.clone()
        }
    }

    /// The server ends the connection that is open, in order.
    pub fn hang_up(&self) {
        if let Some(connection) = self.binding.connection() {
            self.binding.world.hang_up(connection);
        }
    }

    /// Makes a request as a thread does: it waits on the connection itself if it is the only one, for the driver otherwise.
    /// Now and then it is slow to run once its answer has come, unless it is [`prompt`](Threads::prompt).
    pub async fn ask<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut turn = Turn {
            threads: self,
            borrowed: self.pump.borrow(),
            slow: None,
        };
        let mut begun = false;
        std::future::poll_fn(|cx| {
            loop {
                if let Poll::Ready(output) = future.as_mut().poll(cx) {
                    return Poll::Ready(output);
                }
                if !std::mem::replace(&mut begun, true) {
                    turn.borrowed
                        .take_if(|borrowed| !self.pump.goes_on(*borrowed));
                }
                if turn.borrowed.is_none() {
                    return Poll::Pending;
                }
                std::task::ready!(turn.poll(cx));
            }
        })
        .await
    }
}

/// The waiting on the connection, while this caller has it.
struct Turn<'a> {
    threads: &'a Threads,
    borrowed: Option<Borrowed>,
    slow: Option<Sleep>,
}

impl Turn<'_> {
    /// Ready when what has arrived was taken in, or there is nothing to wait on.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Threads {
            binding,
            pump,
            slow: (often, most),
        } = self.threads;
        let world = &binding.world;
        if self.slow.is_none() {
            match binding.connection() {
                Some(connection) => std::task::ready!(world.poll_readable(connection, cx)),
                None => {
                    self.give_back();
                    return Poll::Ready(());
                }
            }
            if world.chance(*often) {
                self.slow = Some(world.sleep(world.up_to(*most)));
            }
        }
        if let Some(slow) = &mut self.slow {
            std::task::ready!(Pin::new(slow).poll(cx));
            self.slow = None;
        }
        self.borrowed
            .take_if(|borrowed| !pump.turn(*borrowed, &mut Room::default()));
        Poll::Ready(())
    }

    fn give_back(&mut self) {
        if let Some(borrowed) = self.borrowed.take() {
            self.threads.pump.give_back(borrowed);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The driver's thread.
struct Driving {
    driver: Driver,
    threads: Threads,
    again: Option<Sleep>,
}

impl Future for Driving {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Driving {
            driver,
            threads: Threads { binding, pump, .. },
            again,
        } = &mut *self;
        *again = None;
        if Pin::new(driver).poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if pump.look_away() {
            if let Some(connection) = binding.connection() {
                binding.world.look_away(connection);
            }
            let sleep = again.insert(binding.world.sleep(AWAY));
            let _ = Pin::new(sleep).poll(cx);
        }
        Poll::Pending
    }
}
