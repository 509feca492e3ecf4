//! The machine against a server in memory, and against bytes that nobody should send.

mod asking;
mod checks;
mod dialects;
mod endings;
mod fencing;
mod outages;
mod random;
mod replicas;
mod rules;
mod server;
mod waiting;
mod waking;
mod world;
