//! What the developer commands and the test harness both need to know: which real servers the tests run
//! against and where they lie ([`servers`]), and the table of outcomes ([`outcomes`]).

#![forbid(unsafe_code)]

pub mod outcomes;
pub mod servers;
