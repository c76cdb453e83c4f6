//! Detects a forked child, without a system call.
//!
//! A child inherits a ring's descriptor and every object that describes the ring, but not its maps (they are
//! `MADV_DONTFORK`). Touching them would fault, and entering the ring would act on the parent's. One page
//! per process is marked `MADV_WIPEONFORK`: the kernel zeroes it in every child. It holds the process's
//! *epoch*, a number no ancestor has used; each ring stores the epoch of its creation and compares it before
//! every access.
//!
//! Any thread may call these. `vfork(2)` and `CLONE_VM` share memory with the parent and are not detected;
//! such a child may only exec anyway. Source: `madvise(2)`.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The page that every child finds zeroed; null until the first sentinel of the process exists, never
/// unmapped afterwards.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The newest epoch of this process and its ancestors. A child inherits it, so it never reuses an epoch. No
/// lock: a child forked while another thread held one could never take it.
static NEWEST: AtomicU64 = AtomicU64::new(0);

/// An epoch that no process reaches.
const CLOSED: u64 = u64::MAX;

/// Detects, with one load, that it is used in another process than the one that made it.
///
/// # Examples
/// ```
/// use sakia_ring::ProcessSentinel;
///
/// let sentinel = ProcessSentinel::new()?;
/// assert!(sentinel.is_intact(), "in a forked child it is not");
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sentinel {
    /// The wiped page; always mapped.
    page: NonNull<AtomicU64>,
    /// The content of the page when this sentinel was made.
    epoch: u64,
}

// SAFETY: the page is never unmapped and only ever accessed as an atomic.
unsafe impl Send for Sentinel {}
// SAFETY: as above.
unsafe impl Sync for Sentinel {}

impl Sentinel {
    /// Records the current process.
    ///
    /// # Errors
    /// `ENOMEM` from the first call in a process; `EINVAL` on a kernel without
    /// `MADV_WIPEONFORK` (before 4.14).
    ///
    /// # Examples
    /// See [`Sentinel`](Sentinel#examples).
    pub fn new() -> io::Result<Self> {
        let page = page()?;
        // SAFETY: the page is mapped for the life of the process, and zeroed or ours.
        let cell = unsafe { page.as_ref() };
        let mut epoch = cell.load(Ordering::Relaxed);
        if epoch == 0 {
            // A new process, or a child whose page was wiped. If two threads race, one stores its epoch and
            // the other adopts it.
            let fresh = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
            epoch = match cell.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => fresh,
                Err(other) => other,
            };
        }
        Ok(Self { page, epoch })
    }

    /// Makes [`is_intact`](Sentinel::is_intact) false from now on, in this process too.
    pub(crate) fn close(&mut self) {
        self.epoch = CLOSED;
    }

    /// Returns true in the process that made the sentinel, false in every child.
    ///
    /// # Examples
    /// See [`Sentinel`](Sentinel#examples).
    #[inline(always)]
    pub fn is_intact(&self) -> bool {
        // SAFETY: the page is mapped for the life of the process; children have it zeroed.
        unsafe { self.page.as_ref() }.load(Ordering::Relaxed) == self.epoch
    }
}

/// Returns the process's page; the first caller maps it.
fn page() -> io::Result<NonNull<AtomicU64>> {
    if let Some(page) = NonNull::new(PAGE.load(Ordering::Acquire)) {
        return Ok(page);
    }
    let len = crate::sys::PAGE_BYTES_MAX;
    // SAFETY: a new anonymous map at an address the kernel chooses.
    let addr = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    // SAFETY: the range was mapped just above.
    let advised = unsafe { rustix::mm::madvise(addr, len, Advice::LinuxWipeOnFork) };
    let result = advised.map_err(io::Error::from).map(|()| {
        let ours = addr.cast::<AtomicU64>();
        match PAGE.compare_exchange(ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => ours,
            Err(other) => other,
        }
    });
    if !matches!(result, Ok(page) if page.cast() == addr) {
        // SAFETY: the page was refused, or another thread's came first: nothing else knows of this range.
        unsafe { rustix::mm::munmap(addr, len) }?;
    }
    Ok(NonNull::new(result?).expect("mmap never returns null without MAP_FIXED"))
}

/// Returns the error of every call on a ring in a forked child.
#[cold]
pub(crate) fn forked_error() -> io::Error {
    io::Error::other(
        "the ring belongs to the parent process: a forked child must create a ring of its own",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentinels_of_a_process_agree() {
        let made: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| Sentinel::new().unwrap())).collect();
        let made: Vec<_> = made.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(made.iter().all(Sentinel::is_intact));
        assert!(made.iter().all(|sentinel| sentinel.epoch == made[0].epoch));
    }

    #[test]
    fn a_closed_sentinel_is_not_intact_and_its_copies_are() {
        let copy = Sentinel::new().unwrap();
        let mut closed = copy;
        closed.close();
        assert!(!closed.is_intact() && copy.is_intact());
    }
}
