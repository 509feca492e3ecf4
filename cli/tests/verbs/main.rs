//! The verbs of `tenure` that run no command, as a shell would use them, over real servers.

mod doctor;
mod harness;
mod helps;
mod holders;
mod kept;
mod measuring;
mod watching;
