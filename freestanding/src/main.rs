//! A lease lives through acquire, renewal, loss and release in a program that has no standard library, no C library, and -
//! without the feature `alloc` - no allocator. It exits with 0, or with the number of the step that went wrong.
//!
//! Linux on x86-64, since even an exit needs one system call; the core itself is compiled for anything.

#![no_std]
#![no_main]

#[cfg(feature = "control")]
extern crate std;

#[cfg(feature = "alloc")]
mod connection;
mod lease;
mod platform;

/// Called by the entry point; gives the exit status.
fn main() -> u8 {
    #[cfg(feature = "alloc")]
    if let Err(step) = connection::life() {
        return 100 + step;
    }
    match lease::life() {
        Ok(()) => 0,
        Err(step) => step,
    }
}
