//! Tools for Sakia's own tests; a dev-dependency.
//!
//! Memory, values, hosts and file systems that are counted, guarded or hostile, so that a test sees what a
//! program must not do. Everything here may be used from any thread.
//!
//! # Examples
//! A value that must be dropped once:
//! ```
//! use sakia_testkit::drop_probe::DropCounter;
//!
//! let counter = DropCounter::new();
//! let buffer = (vec![0; 512], counter.probe());
//! assert_eq!(counter.live(), 1);
//! drop(buffer);
//! counter.assert_each_dropped_once();
//! ```
//!
//! # Modules
//! Memory and values:
//! - [`alloc_count`]: an allocator that counts, to show that a path does not allocate.
//! - [`page_guard`]: memory that becomes inaccessible when freed, so that a late write by the
//!   kernel fails with `EFAULT` and a late access by us faults.
//! - [`drop_probe`]: values that report their drop, to show that each buffer drops once.
//! - [`failing_writer`]: a writer of text whose error `Display` must tell.
//!
//! [`forked`] runs code in a forked child, and kills one that hangs.
//!
//! [`hostile`] is a host for rings that lies about everything; [`mount_facts`] probes which operations a file
//! system grants without blocking; [`loopback`] waits for packets under way; [`settings`] are the numbers
//! that the environment gives to a test run, and [`waits`] are limited by one of them; [`random`] makes
//! random programs, and [`shrink`] makes those that fail smaller; [`rounds`] is a model of logs with group
//! commit.
//!
//! Directories on file systems that behave badly, and other parts that experiments share, are in
//! [`sakia_bench_support`] and re-exported here.

pub mod alloc_count;
pub mod children;
pub mod drop_probe;
pub mod failing_writer;
pub mod forked;
pub mod hostile;
pub mod loopback;
pub mod mount_facts;
pub mod page_guard;
pub mod random;
pub mod rounds;
pub mod settings;
pub mod shrink;
pub mod waits;

pub use sakia_bench_support::{available, blocked, fuse, place, skip, small_fs, throttled};

/// The unit tests run on the counting allocator.
#[cfg(test)]
#[global_allocator]
static GLOBAL: alloc_count::CountingAllocator = alloc_count::CountingAllocator::new();
