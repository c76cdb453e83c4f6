//! A thread-per-core async runtime on io_uring that runs wherever Linux does.

#![forbid(unsafe_code)]

pub mod blocking;
mod executor;
pub mod io;
mod join;
pub mod process;
mod remote;
mod runtime;
pub mod shutdown;
pub mod signal;
mod task;
pub mod time;
mod yielding;

pub use blocking::{BlockingHandle, spawn_blocking};
pub use executor::{spawn, spawn_on};
pub use join::{JoinError, JoinHandle};
pub use runtime::{Builder, Runtime, block_on};
pub use sakia_macros::{main, test};
#[doc(hidden)]
pub use task::__private;
pub use task::{
    AccessError, Acquire, Budget, CancellationToken, DropGuard, JoinSet, Limits, LocalKey, Permit,
    Resource, Scope, ScopeError, Scoped, ScopedHandle, TaskScope, for_each_concurrent,
    for_each_concurrent_from, scope, spawned_scope, try_for_each_concurrent,
    try_for_each_concurrent_from,
};
pub use yielding::yield_now;

/// The guide, whose code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/start.md")]
mod guide {}
