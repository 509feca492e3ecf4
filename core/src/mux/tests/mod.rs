//! The machine against a server in memory, and against bytes that nobody should send.

mod asking;
mod checks;
mod dialects;
mod endings;
mod fencing;
mod minimum;
mod outages;
mod random;
mod replicas;
mod rotation;
mod rules;
mod server;
mod waiting;
mod waking;
mod world;
