//! The standard streams that were closed when the process began, which `std` hides before `main`.
//!
//! `std` opens `/dev/null` in place of a standard stream that is closed, so that no file gets its number. A
//! program that reads its standard input would then find nothing in it, and one that writes to its standard
//! output would lose its output, while other programs fail with `EBADF`. So this module examines the three
//! streams earlier, in a function that the C library calls before `main`. Only with the feature `startup`: a
//! library does nothing unasked.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::{Errno, fcntl_getfd};

/// A bit for each of the numbers 0 to 2. Written once, before `main`, by the process's first thread. Other
/// threads only read it, and start later.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Returns whether standard input was closed when the process began. It is `/dev/null` since then.
pub fn stdin_was_closed() -> bool {
    was_closed(0)
}

/// Returns whether standard output was closed when the process began. It is `/dev/null` since then.
pub fn stdout_was_closed() -> bool {
    was_closed(1)
}

/// Returns whether standard error was closed when the process began. It is `/dev/null` since then.
pub fn stderr_was_closed() -> bool {
    was_closed(2)
}

fn was_closed(number: u8) -> bool {
    CLOSED.load(Ordering::Relaxed) & 1 << number != 0
}

extern "C" fn look() {
    let bit = |number: u8, stream: BorrowedFd<'_>| {
        u8::from(fcntl_getfd(stream) == Err(Errno::BADF)) << number
    };
    let closed = bit(0, rustix::stdio::stdin())
        | bit(1, rustix::stdio::stdout())
        | bit(2, rustix::stdio::stderr());
    CLOSED.store(closed, Ordering::Relaxed);
}

// SAFETY: the section is an array of functions, which the C library calls once each, on the thread that
// begins the process, before `main`; the static is one such address, of a type of that size. `look` has the
// C calling convention, in which arguments that a function does not take (glibc passes three) are ignored.
// It makes three system calls that change nothing, and stores to an atomic of its own: it needs nothing that
// is set up later, and does not unwind.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
