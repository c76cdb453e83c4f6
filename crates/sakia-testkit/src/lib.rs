//! Tools for Sakia's own tests; a dev-dependency, never shipped.
//!
//! - [`alloc_count`]: an allocator that counts, to show that a path does not allocate.
//! - [`page_guard`]: memory that becomes inaccessible when freed, so that a late write by the
//!   kernel fails with `EFAULT` and a late access by us faults.
//! - [`drop_probe`]: values that report their drop, to show that each buffer drops once.
//!
//! Everything here may be used from any thread.

pub mod alloc_count;
pub mod drop_probe;
pub mod page_guard;

/// The unit tests run on the counting allocator.
#[cfg(test)]
#[global_allocator]
static GLOBAL: alloc_count::CountingAllocator = alloc_count::CountingAllocator::new();
