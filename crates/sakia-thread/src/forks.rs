//! Counts forks.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often a process was forked between the one that executed the program, and this one.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns a number by which a process differs from all its ancestors; 0 if it has executed its program
/// itself.
pub(crate) fn count() -> u32 {
    COUNT.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn register() {
    // SAFETY: the function has the C calling convention, may run in a child of a process with many threads
    // since it only changes an atomic, and is part of the program as long as that is registered: the C
    // library forgets it when it unloads the library that it is part of. Without memory it is not
    // registered, and children are as those of any program of `std`.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

// SAFETY: the section is an array of functions, which the C library calls once each, on the thread that
// begins the process or loads the library; the static is one such address, of a type of that size.
// `register` has the C calling convention, in which arguments that a function does not take (glibc passes
// three) are ignored. It needs nothing that is set up later, and does not unwind.
#[cfg(not(miri))]
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;
