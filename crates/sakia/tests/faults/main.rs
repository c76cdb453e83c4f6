//! Faults of the real kernel and of the machine around it: calls that are refused, limits that are
//! reached, disks that fail, signals, forks, deaths. And situations in which programs of this kind are
//! known to fail. A module per fault; those of single operations are in the tests of the driver.
//!
//! Most of it runs on each backend. What is done to a process is done to one of its own: see
//! [`children`]. No test makes a statement about time: `SAKIA_TEST_PATIENCE_S` is how long they wait for
//! what must happen. What a machine may lack is listed in `skips.txt`; any other skip fails.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod children;
mod credentials;
mod disks;
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
