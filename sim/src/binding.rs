//! One more binding: the client's runtime is the simulated world.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tenure_client::binding::{Binding, Endpoint, Stream, Timer};
use tenure_core::time::Tick;

use crate::world::{Alarm, World};

/// What the world gives the driver of one client.
#[derive(Clone)]
pub struct SimBinding {
    pub(crate) world: World,
    pub(crate) client: usize,
    /// The connection that is open, for callers that wait on it.
    open: Arc<Mutex<Option<usize>>>,
}

/// A connection of the simulated network.
pub struct SimStream {
    binding: SimBinding,
    connection: usize,
}

/// A timer on a client's clock.
pub struct SimTimer {
    world: World,
    client: usize,
    deadline: Option<Tick>,
    alarm: Option<Alarm>,
}

impl SimBinding {
    pub(crate) fn new(world: World, client: usize) -> SimBinding {
        SimBinding {
            world,
            client,
            open: Arc::default(),
        }
    }

    pub(crate) fn connection(&self) -> Option<usize> {
        *self.slot()
    }

    fn slot(&self) -> MutexGuard<'_, Option<usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Binding for SimBinding {
    type Stream = SimStream;
    type Timer = SimTimer;

    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<SimStream>> + Send + 'static {
        let host = match endpoint {
            Endpoint::Tcp { host, .. } => host.clone(),
            _ => String::new(),
        };
        Dial {
            binding: self.clone(),
            host,
            connection: None,
        }
    }

    fn timer(&self) -> SimTimer {
        SimTimer {
            world: self.world.clone(),
            client: self.client,
            deadline: None,
            alarm: None,
        }
    }

    fn now(&self) -> Tick {
        self.world.client_now(self.client)
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.world.fill(bytes);
        Ok(())
    }

    fn may_block(&self) -> bool {
        // There is one thread, and no time passes on it: what a store takes its time for is done at once.
        true
    }

    fn unix_ms(&self) -> u64 {
        self.now().as_micros() / 1_000
    }
}

struct Dial {
    binding: SimBinding,
    host: String,
    connection: Option<usize>,
}

impl Future for Dial {
    type Output = io::Result<SimStream>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<SimStream>> {
        let Dial {
            binding,
            host,
            connection,
        } = &mut *self;
        let world = binding.world.clone();
        match world.poll_dial(binding.client, host, connection, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(connection)) => {
                self.connection = None;
                let binding = self.binding.clone();
                *binding.slot() = Some(connection);
                Poll::Ready(Ok(SimStream {
                    binding,
                    connection,
                }))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        if let Some(connection) = self.connection {
            self.binding.world.abort(connection);
        }
    }
}

impl Stream for SimStream {
    fn poll_read(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<io::Result<usize>> {
        self.binding.world.poll_read(self.connection, cx, bytes)
    }

    fn try_read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.binding.world.try_read(self.connection, bytes)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.binding.world.try_write(self.connection, bytes)
    }

    fn poll_write_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.binding.world.poll_write_ready(self.connection, cx)
    }

    fn abort(self) {
        self.binding.world.abort(self.connection);
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.binding.slot().take_if(|open| *open == self.connection);
        self.binding.world.close(self.connection);
    }
}

impl Timer for SimTimer {
    fn set(mut self: Pin<&mut Self>, deadline: Tick) {
        self.deadline = Some(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let SimTimer {
            world,
            client,
            deadline,
            alarm,
        } = &mut *self;
        match deadline {
            Some(deadline) => world.poll_timer(*client, *deadline, alarm, cx),
            None => Poll::Pending,
        }
    }
}

impl Drop for SimTimer {
    fn drop(&mut self) {
        self.world.cancel(&mut self.alarm);
    }
}
