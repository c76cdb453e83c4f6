//! A thread-per-core async runtime on io_uring that runs wherever Linux does.

#![forbid(unsafe_code)]

mod executor;
mod join;
mod remote;
mod runtime;
mod yielding;

pub use executor::{spawn, spawn_on};
pub use join::{JoinError, JoinHandle};
pub use runtime::{Builder, Runtime, block_on};
pub use yielding::yield_now;
