//! The rules at the level of one lease, every cell of the table, and the diagram drawn from it.

mod diagram;
mod random;
mod rules;
