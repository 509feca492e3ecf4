//! `tenure run`, as a shell sees it: the built program over real stores.

mod events;
mod guard;
mod harness;
mod init;
mod loss;
mod many;
mod secrets;
mod signals;
mod statuses;
mod terminal;
