//! Tools for Sakia's own tests; a dev-dependency, but for experiments.
//!
//! Memory and values:
//! - [`alloc_count`]: an allocator that counts, to show that a path does not allocate.
//! - [`page_guard`]: memory that becomes inaccessible when freed, so that a late write by the
//!   kernel fails with `EFAULT` and a late access by us faults.
//! - [`drop_probe`]: values that report their drop, to show that each buffer drops once.
//!
//! Places where files behave badly, which need root and are skipped loudly without:
//! - [`fuse`]: a file system whose every answer a test scripts: late, short, an error, never.
//! - [`throttled`]: an ext4 on a disk that stalls on command.
//! - [`small_fs`]: file systems that are soon full, or whose disk loses its end.
//!
//! Hosts for rings: [`hostile`] lies about everything, [`timed_host`] has a clock.
//!
//! [`aio`] is Linux AIO, and a scheduler on it: what the experiment `sched` compares the engine with.
//!
//! And [`mount_facts`], what a file system grants to those who must not wait; [`blocked`], whether
//! a thread waits in the kernel; [`place`], what the places share: skips, scratch directories,
//! leftovers.
//!
//! Everything here may be used from any thread.

pub mod aio;
pub mod alloc_count;
pub mod blocked;
pub mod drop_probe;
pub mod fuse;
pub mod hostile;
mod loop_device;
pub mod mount_facts;
pub mod page_guard;
pub mod place;
pub mod small_fs;
pub mod throttled;
pub mod timed_host;

/// The unit tests run on the counting allocator.
#[cfg(test)]
#[global_allocator]
static GLOBAL: alloc_count::CountingAllocator = alloc_count::CountingAllocator::new();
