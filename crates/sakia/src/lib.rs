//! A thread-per-core async runtime on io_uring that runs wherever Linux does.
//!
//! A [`Runtime`] runs tasks on the thread that built it, or on several ([`Builder::threads`]). Each thread
//! has a driver of its own, and its tasks stay there; wakers may be used by any thread. Where the kernel
//! offers no ring, the driver works on epoll and threads; [`Runtime::choice`] says which it is, and why. A
//! program with a loop of its own runs a runtime by [`Runtime::run_once`].
//!
//! # Examples
//! A server that sends a file, and its client:
//! ```
//! use sakia::fs::File;
//! use sakia::io::BufResultExt;
//! use sakia::net::{TcpListener, TcpStream};
//!
//! #[sakia::main]
//! async fn main() -> std::io::Result<()> {
//!     let listener = TcpListener::bind("127.0.0.1:0").await?;
//!     let address = listener.local_addr()?;
//!     let server = sakia::spawn(async move {
//!         let (mut stream, _) = listener.accept().await?;
//!         let file = File::open("Cargo.toml").await?;
//!         // Buffers go in by value, and come back with the result.
//!         let bytes = file.read_to_end_at(Vec::new(), 0).await.buffer()?;
//!         stream.write_all(bytes).await.value()?;
//!         stream.close().await
//!     });
//!
//!     let mut client = TcpStream::connect(address).await?;
//!     let bytes = client.read_to_end(Vec::new()).await.buffer()?;
//!     assert!(bytes.starts_with(b"[package]"));
//!     server.await.expect("the task does not panic")
//! }
//! ```
//!
//! # Modules
//! - Tasks: [`spawn`], [`spawn_on`], [`JoinHandle`], [`JoinSet`], [`scope`], [`spawned_scope`],
//!   [`for_each_concurrent`], [`CancellationToken`], [`Budget`], [`join!`], [`select!`],
//!   [`task_local!`], [`spawn_blocking`].
//! - [`time`]: sleeping, timeouts, intervals, and virtual time for tests.
//! - [`fs`]: files and directories.
//! - [`net`]: connections by TCP and within the machine, and servers.
//! - [`io`]: pipes, standard streams, and the readiness of any descriptor.
//! - [`signal`], [`process`], [`shutdown`].
//! - [`inspect`]: the present activity of a runtime, for any thread to see, and warnings of turns and
//!   operations that take too long.
//! - [`trace`]: recordings of a program's activity.
//! - [`engine`]: files for other runtimes and for plain threads, by threads that run this one.
//! - [`sim`]: tests of one's own programs on a kernel in memory, with many seeds; with the feature `sim`.
//! - `compat`: the traits of other ecosystems, with the features `futures-io`, `tokio` and `hyper`.

#![forbid(unsafe_code)]
// Links to `sim` lead nowhere without it.
#![cfg_attr(not(feature = "sim"), allow(rustdoc::broken_intra_doc_links))]

pub mod blocking;
#[cfg(any(feature = "futures-io", feature = "hyper", feature = "tokio"))]
pub mod compat;
pub mod engine;
mod environment;
mod error;
mod executor;
mod fairness;
pub mod fs;
mod gate;
mod group;
mod halves;
pub mod inspect;
pub mod io;
mod join;
mod late;
mod mark;
pub mod net;
mod parked;
pub mod process;
mod random;
mod remote;
mod results;
mod round;
mod runtime;
mod settings;
pub mod shutdown;
pub mod signal;
#[cfg(feature = "sim")]
pub mod sim;
mod task;
pub mod time;
pub mod trace;
mod unfinished;
mod yielding;

pub use blocking::{BlockingHandle, spawn_blocking};
pub use engine::Engine;
pub use error::{Error, Result, os_error};
pub use executor::{spawn, spawn_on, thread_count};
pub use join::{JoinError, JoinHandle};
pub use late::{block_on, block_on_nested};
pub use runtime::{Builder, Runtime, metrics};
#[doc(hidden)] // for `sakia-tokio`, which has the same to promise of wakers
pub use sakia_driver::wake_all;
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

/// The first page, whose code runs as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// The guide, whose code runs as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/start.md")]
    mod start {}
    #[doc = include_str!("../../../docs/guide/files.md")]
    mod files {}
    #[doc = include_str!("../../../docs/guide/network.md")]
    mod network {}
    #[doc = include_str!("../../../docs/guide/processes.md")]
    mod processes {}
    #[doc = include_str!("../../../docs/guide/inspecting.md")]
    mod inspecting {}
    #[doc = include_str!("../../../docs/guide/slow.md")]
    mod slow {}
    #[cfg(feature = "sim")]
    #[doc = include_str!("../../../docs/guide/testing.md")]
    mod testing {}
    #[cfg(all(feature = "futures-io", feature = "hyper", feature = "tokio"))]
    #[doc = include_str!("../../../docs/guide/other-libraries.md")]
    mod other_libraries {}
    #[cfg(feature = "tokio")]
    #[doc = include_str!("../../../docs/guide/porting.md")]
    mod porting {}
}
