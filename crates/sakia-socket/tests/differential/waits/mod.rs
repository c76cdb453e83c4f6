//! Random programs of waits by `poll`, `select` and `epoll`, in every way in which they can be asked, on
//! sockets of each kind and in each state: the same answers as the kernel's own calls.
//!
//! `readiness` compares the edges of a few connections in depth, and this the breadth of the calls:
//! - `poll` with any combination of requested events, with no entry, a file several times and sets among the
//!   entries; the events of each entry are compared;
//! - `select`, by the call itself, with any of the three sets left out; what is left in each, and the count;
//! - both with the entries of an earlier wait, after something has happened;
//! - `epoll` with any events and behavior, any data, entries that are added twice, changed and removed; waits
//!   with room for fewer events than there are, and for none: each event, the count of each wait, and whether
//!   all entries had their turn after as many waits as are needed;
//! - timeouts of zero, of less than a millisecond, and without end if something is ready: a wait without an
//!   answer must have lasted as long;
//! - sockets that are not connected, that listen, that were refused; with urgent data, half-closes, errors.
//!
//! Left out, since it is no part of the library, whose callers look up descriptors in a table of their own:
//! - descriptors that are negative, closed or no sockets, and `nfds`;
//! - invalid and remaining timeouts, which a [`Duration`] cannot be and the callers compute.
//!
//! These differences are wanted:
//! - With bytes in memory, an entry with edge trigger may be reported more often, never less, and a set that
//!   contains one; see `readiness`.
//! - Handles of one socket are one entry, and no two sockets of the kernel: there is no `dup(2)` here.
//! - The kernel may report edges of TCP again with each packet that arrives, also an acknowledgement.

mod asking;
mod program;
mod steps;

use std::time::Duration;

use sakia_socket::{Kernel, Layer, When};
use sakia_testkit::random;

use self::program::Program;
use self::steps::program;
use crate::support::{MODES, PLAIN, options};
use crate::world::Plain;
use crate::{difference, few_programs};

/// Compares the waits of programs on the kernel's sockets and on those of these modes.
fn compare(usual: u64, modes: &[(When, When)]) {
    random::programs(few_programs(usual), program, |steps| {
        for (number, mode) in modes.iter().enumerate() {
            let has_memory = *mode != PLAIN;
            let mut options = options(*mode);
            options.limits.delay = Duration::from_secs(3600);
            options.ahead_bytes = [64 << 10, 50][number % 2];
            let layer = Layer::new(Kernel, options);
            let [expected, found] = [
                Program::new(&Plain, has_memory).run(steps),
                Program::new(&layer, has_memory).run(steps),
            ]
            .map(|log| {
                log.into_iter().filter(|line| !line.1).map(|line| line.0).collect::<Vec<_>>()
            });
            if let Some(failure) = difference(&expected, &found) {
                return Some(format!("{options:?}: {failure}"));
            }
        }
        None
    });
}

#[test]
fn waits_are_those_of_the_kernel_without_memory() {
    compare(250, &[PLAIN]);
}

#[test]
fn waits_are_those_of_the_kernel_with_bytes_in_memory() {
    compare(50, &MODES);
}
