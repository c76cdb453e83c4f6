//! Tests of programs on a kernel in memory: many runs with different schedules, each of which can be repeated
//! exactly. With the feature `sim`, which is for tests only.
//!
//! The simulated kernel has files, pipes and a clock of its own, and makes no system call. Every choice in it
//! follows from a seed: which operation ends first, how many bytes a read returns, which call fails. So a
//! test runs a program with many seeds, and a seed that fails shows the same failure each time.
//!
//! ```
//! use sakia::{fs, sim};
//!
//! sim::check(0..20, async |kernel| {
//!     fs::write("note", "text").await?;
//!     assert_eq!(kernel.contents("note").unwrap(), b"text");
//!     Ok::<_, fs::Error>(())
//! });
//! ```
//!
//! [`Test`] has more settings: the kernel, the faults, the files at the beginning. A failed run prints its
//! seed, and the command that runs this seed alone:
//!
//! ```text
//! seed 17 failed: deadlock: after 1.04ms nothing can happen any more
//!   the body waits for another task or thread
//!   task 0, started at tests/relay.rs:21:9, waits for Read of descriptor 3 for 1.02ms
//!
//! faults injected: ShortTransfer 3, CancelTooLate 1
//!
//! run it alone, with what the kernel saw:
//!     SAKIA_SIM_SEED=17 cargo test -p relay --tests -- --exact relays_all --nocapture
//! ```
//!
//! # What is checked
//!
//! - The body ends: with no panic, no error, no deadlock, and within a limit of virtual time. A task's panic
//!   goes to its handle, here as elsewhere: the body fails if it awaits and unwraps that.
//! - No resource is left behind: no task, no operation, no open descriptor; see [`Test::allow_tasks`] and
//!   [`Test::allow_leaks`].
//! - The behavior follows from the seed alone: the first seeds are run twice, see [`Test::twice`].
//!
//! # Time
//!
//! [`time`](crate::time) uses the kernel's clock, which is virtual. It advances when all tasks wait: up to
//! the next timer, or the next operation that ends. A round of busy tasks takes a microsecond.
//!
//! # Deadlocks
//!
//! When all tasks wait, no timer is set, and no operation under way can end, the run fails and names every
//! [`Waiter`]: the task, where it was started, and the operations that it waits for.
//!
//! # Limits
//!
//! Threads are no part of the simulation. [`spawn_blocking`](crate::spawn_blocking) runs its code as a task;
//! a task that waits for a thread of the program counts as deadlocked. Child processes, signals, standard
//! streams and descriptors of the process are unsupported. The kernel's own limits are in
//! [`sakia_driver::sim`].

mod environment;
mod failure;
mod faults;
mod outcome;
mod test;
mod waiters;
mod watch;

use std::ops::Range;

pub use sakia_driver::Stage;
pub use sakia_driver::sim::{
    Disk, EnterFault, Fault, FaultKind, FlightFacts, PlainFault, Routes, SCRIBBLE, Sim, SimBuf,
    SimBuilder, SimHandle, Target,
};
pub use sakia_ring::Opcode;

pub use self::failure::{Cause, Failure, Leaks};
pub use self::faults::Faults;
pub use self::outcome::Outcome;
pub use self::test::{Summary, Test};
pub use self::waiters::{PendingOperation, TaskFacts, Wait, Waiter, Waiters};
pub(crate) use self::watch::Watch;

/// Runs `body` with each of these seeds, on a kernel with the defaults; see [`Test`].
///
/// # Panics
/// When a run fails.
///
/// # Examples
/// ```
/// use sakia::{fs, sim};
///
/// sim::check(0..10, async |kernel| {
///     kernel.create_file("in", "text");
///     assert_eq!(fs::read("in").await?, b"text");
///     Ok::<_, fs::Error>(())
/// });
/// ```
#[track_caller]
pub fn check<F, R>(seeds: Range<u64>, body: F)
where
    F: AsyncFn(SimHandle) -> R,
    R: Outcome,
{
    Test::new().seeds(seeds).run(body);
}
