//! The client of Tenure, free of any runtime.
//!
//! [`Locks`] hands out locks, a [`Lock`] is held until it is released, dropped or lost, and every store
//! and runtime gives the same concrete types. A runtime comes in through a [`Binding`]: it dials, keeps
//! time, reads a clock and gives entropy. It need not spawn: [`connect_with`] returns a [`Driver`], a
//! future that the caller runs.
//!
//! Most programs use the crate `tenure`, or a binding crate such as `tenure-tokio`, which spawns the
//! driver for them.
//!
//! | module | what it holds |
//! |---|---|
//! | `locks`, `lock`, `options` | what a user touches |
//! | `inspection` | what an operator asks: who holds a name, which names are held, whose hold was removed |
//! | `asking` | the slot and the futures of such questions |
//! | `fence` | how a resource uses a fence |
//! | `hold` | the slot that a store fills and a user's futures wait on |
//! | `store` | the seam for an engine: messages in, a slot out, no futures |
//! | `engine` | the seam for a store that is called and answers, such as an embedded database |
//! | `host` | one locked machine with its holds, shared by callers and driver |
//! | `redis`, `memory` | the stores here |
//! | `pump` | reading by the callers' own threads |
//! | `binding` | the seam for a runtime |
//! | `tls` | with the feature `tls`: a stream in a stream, for every binding |
//! | `system` | with the feature `system`: the clock and the entropy that bindings share |

pub mod asking;
pub mod binding;
mod config;
pub mod engine;
mod error;
pub mod fence;
pub mod hold;
mod host;
mod inspection;
mod lock;
mod locks;
mod memory;
mod observer;
mod options;
mod pump;
mod redis;
pub mod store;
#[cfg(feature = "system")]
pub mod system;
#[cfg(feature = "tls")]
mod tls;
mod token;
mod untold;
mod url;
mod waiters;

pub use asking::{Examining, Forcing, Inspecting, Listing};
pub use binding::Binding;
pub use config::Config;
pub use engine::ClockStep;
pub use error::{Error, Reason};
pub use host::Driver;
pub use inspection::{Examination, Inspection, Listed, Removed};
pub use lock::{Held, Lock, Lost, Release, Released, WaitLost};
pub use locks::{Acquiring, Attempt, Closing, Locks, Ready, Request, Trying};
pub use memory::memory_with;
pub use observer::{Event, Observer};
pub use options::LockOptions;
pub use pump::{Borrowed, Pump, Room};
pub use redis::connect_with;
pub use tenure_core::ask::Warning;
pub use tenure_core::config::Wait;
pub use tenure_core::conn::{Flavour, ServerInfo};
pub use tenure_core::error::{ConfigError, Failure, LinkFault, ServerError, StoreFault, Unfit};
pub use tenure_core::fence::FenceFault;
pub use tenure_core::lease::Cause;
pub use tenure_core::leases::Holder;
pub use tenure_core::mux::Unwatched;
pub use tenure_core::plan::Risk;
pub use tenure_core::replicas::{Confirmed, Replicas, ReplicasFault};
pub use tenure_core::resp::ProtocolError;
pub use tenure_core::time::Tick;
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use token::OwnerToken;
