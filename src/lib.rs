#![doc = include_str!("../README.md")]

#[cfg(feature = "tokio")]
mod connect;

#[cfg(feature = "tokio")]
pub use connect::{connect, connect_config, memory, memory_config};
pub use tenure_client::{
    Acquiring, Attempt, Cause, Closing, Config, ConfigError, Driver, Error, Event, Failure,
    Flavour, Held, Holder, LinkFault, Lock, LockOptions, Locks, Lost, Observer, ProtocolError,
    Ready, Reason, Release, Released, Request, ServerError, ServerInfo, Tick, Trying, Wait,
    WaitLost, binding, hold, store,
};
pub use tenure_client::{connect_with, memory_with};
#[cfg(feature = "tokio")]
pub use tenure_tokio::{TokioBinding, TokioStream, TokioTimer};
