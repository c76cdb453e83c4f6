//! Faults of the real kernel and of the machine: refused calls, limits, failing disks, signals, forks,
//! killed processes. Also situations in which programs of this kind are known to fail. There is a module
//! for each fault; faults of single operations are in the tests of the driver.
//!
//! Most tests run on each backend. Changes of a whole process are made in a child: see [`children`]. No
//! test asserts on time: `SAKIA_TEST_PATIENCE_S` is the time after which a wait for a required event fails.
//! The features that a machine may lack are listed in `skips.txt`; any other skip fails.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod children;
mod credentials;
mod disks;
mod each_call;
mod forked_children;
mod forks_and_panics;
mod killed;
mod limits;
mod load;
mod refused_calls;
mod restricted_ring;
mod signals;
mod situations;
mod supervisor;
mod support;
