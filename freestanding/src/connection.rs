//! Many leases on one connection, with an allocator that never gives anything back.

use core::time::Duration;

use tenure_core::config::{LeaseConfig, Wait};
use tenure_core::leases::{Notice, Options, Request};
use tenure_core::mux::{LinkEvent, Mux, MuxConfig, Output};
use tenure_core::names::Names;
use tenure_core::time::Tick;

/// Greeted, acquired, released. `Err` has the step.
pub(crate) fn life() -> Result<(), u8> {
    let now = Tick::from_micros(0);
    let names = Names::new("lock:", "freestanding").map_err(|_| 1)?;
    let mut config = MuxConfig::new(names);
    // Its server of a few answers tells nothing.
    config.watch = false;
    let mut mux = Mux::new(config, 1);
    let terms = LeaseConfig::new(Duration::from_secs(30))
        .build()
        .map_err(|_| 2)?;
    let request = Request {
        name: b"a",
        terms,
        wait: Wait::Forever,
        secret: [1; 16],
        options: Options::default(),
        since_ms: 0,
    };
    let id = mux.acquire(now, &request).map_err(|_| 3)?;
    let (mut greeted, mut acquired, mut released) = (false, false, false);
    for _ in 0..50 {
        let reply: &[u8] = match mux.poll_output(now) {
            Output::Connect => {
                mux.handle_connected(now);
                continue;
            }
            Output::Link(LinkEvent::Up(_)) => {
                greeted = true;
                continue;
            }
            Output::Lease(event) => {
                match event.notice {
                    Notice::Acquired { .. } => {
                        acquired = true;
                        mux.release(now, id);
                    }
                    Notice::Released { confirmed: true } => released = true,
                    _ => return Err(4),
                }
                continue;
            }
            Output::Transmit(bytes) => {
                let reply: &[u8] = match bytes {
                    bytes if bytes.windows(5).any(|word| word == b"HELLO") => {
                        b"%2\r\n+proto\r\n:3\r\n+server\r\n+redis\r\n"
                    }
                    bytes if bytes.windows(5).any(|word| word == b"DELEX") => b":1\r\n",
                    _ => b"_\r\n",
                };
                let n = bytes.len();
                mux.transmitted(now, n);
                reply
            }
            Output::Idle(_) => break,
            _ => return Err(5),
        };
        let space = mux.recv_space().get_mut(..reply.len()).ok_or(6)?;
        space.copy_from_slice(reply);
        mux.received(now, reply.len());
    }
    if greeted && acquired && released && mux.leases().is_empty() {
        Ok(())
    } else {
        Err(7)
    }
}
