//! Random programs, each compared with a model of what it should do.
//!
//! - [`time`]: sleeps, timeouts and intervals against the times that their documentation promises, on a
//!   runtime's own loop and in a foreign one, which goes by `next_timer`.
//! - [`foreign`]: the same program on the runtime's own loop and in a foreign one, with wakes from other threads
//!   at every moment, and with warnings.
//! - [`counts`]: budgets, cancellation tokens and sets of tasks against queues, trees and lists.
//! - [`scopes`]: the children of a scope, and who waits for them, against a list.
//!
//! Left out: how late a real clock makes a timer, which depends on the machine (virtual time is exact), and
//! the fields of `Debug`.

mod counts;
mod foreign;
mod scopes;
mod time;
