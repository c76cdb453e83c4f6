//! The calls of POSIX, one rule at a time, while bytes wait in memory.

#[path = "../support/mod.rs"]
mod support;

mod closing;
mod enclave;
mod errors;
mod failures;
mod hostile;
mod hostile_sets;
mod messages;
mod options;
mod signals;
mod streams;
