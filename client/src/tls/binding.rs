//! A binding whose streams are those of another one, in TLS.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tenure_core::time::Tick;

use super::Connector;
use super::stream::TlsStream;
use crate::binding::{Binding, Endpoint};

/// The binding of a runtime, with TLS above its streams.
pub(crate) struct Secured<B> {
    pub(crate) binding: B,
    pub(crate) connector: Arc<Connector>,
}

impl<B: Binding> Binding for Secured<B> {
    type Stream = TlsStream<B::Stream>;
    type Timer = B::Timer;

    /// The dial of the binding and the handshake of TLS, so that the limit for the one is that for both.
    fn dial(
        &self,
        endpoint: &Endpoint,
    ) -> impl Future<Output = io::Result<Self::Stream>> + Send + 'static {
        let dial = self.binding.dial(endpoint);
        let connector = Arc::clone(&self.connector);
        async move {
            let connection = connector.connection()?;
            TlsStream::open(dial.await?, connection, &connector.name).await
        }
    }

    fn timer(&self) -> B::Timer {
        self.binding.timer()
    }

    fn now(&self) -> Tick {
        self.binding.now()
    }

    fn now_for_sending(&self) -> Tick {
        self.binding.now_for_sending()
    }

    fn beside(&self) -> Option<Secured<B>> {
        let connector = Arc::clone(&self.connector);
        let binding = self.binding.beside()?;
        Some(Secured { binding, connector })
    }

    fn entropy(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.binding.entropy(bytes)
    }

    fn forked_from(&self) -> Option<u32> {
        self.binding.forked_from()
    }

    fn unix_ms(&self) -> u64 {
        self.binding.unix_ms()
    }
}
