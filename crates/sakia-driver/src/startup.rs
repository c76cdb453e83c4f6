//! What the process was started with, which `std` changes before `main`.
//!
//! `std` opens `/dev/null` in place of a standard stream that is closed. A program that reads its standard
//! input would then find nothing in it, where others fail with `EBADF`. So it is looked at earlier, among
//! what the C library calls before `main`. Only with the feature `startup`: a library does nothing unasked.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, fcntl_getfd};

/// Written once, before `main`, by the thread that begins the process; read by any other, which it starts.
static STDIN_WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether standard input was closed when the process began. Now it is `/dev/null`.
pub fn stdin_was_closed() -> bool {
    STDIN_WAS_CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    if fcntl_getfd(rustix::stdio::stdin()) == Err(Errno::BADF) {
        STDIN_WAS_CLOSED.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the section is an array of functions, which the C library calls once each, on the thread that
// begins the process, before `main`; the static is one such address, of a type of that size. `look` has the
// C calling convention, in which arguments that a function does not take (glibc passes three) are ignored.
// It makes one system call that changes nothing, and stores to an atomic of its own: it needs nothing that
// is set up later, and does not unwind.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
