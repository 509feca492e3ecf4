//! The machine against a server in memory, and against bytes that nobody should send.

mod dialects;
mod endings;
mod outages;
mod random;
mod rules;
mod server;
mod waiting;
mod waking;
mod world;
