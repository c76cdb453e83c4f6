//! Detects a forked child, without a system call, and keeps values of the process apart from its parent's.
//!
//! A child inherits a ring's descriptor and every object that describes the ring, but not its maps (they are
//! `MADV_DONTFORK`). Touching them would fault, and entering the ring would act on the parent's. One page
//! per process is marked `MADV_WIPEONFORK`: the kernel zeroes it in every child. It holds the process's
//! *epoch*, a number no ancestor has used; each ring stores the epoch of its creation and compares it before
//! every access.
//!
//! A child inherits the memory of all statics, too, but only the thread that forked: threads that serve a
//! static are gone, and a lock that another thread held stays locked for ever. A [`PerProcess`] is a static
//! that each process makes anew.
//!
//! Any thread may call these. `vfork(2)` and `CLONE_VM` share memory with the parent and are not detected;
//! such a child may only exec anyway. Source: `madvise(2)`.

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Pid;

/// The epoch of a process of which no ancestor had a sentinel.
const FIRST: u64 = 1;
/// Stands for the page before there is one: no ancestor had a sentinel.
static NO_PAGE: AtomicU64 = AtomicU64::new(FIRST);
/// The page that every child finds zeroed; [`NO_PAGE`] until the first sentinel of the process exists, never
/// unmapped afterwards.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_PAGE).cast_mut());
/// The newest epoch of this process and its ancestors. A child inherits it, so it never reuses an epoch. No
/// lock: a child forked while another thread held one could never take it.
static NEWEST: AtomicU64 = AtomicU64::new(FIRST);

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
            // A child, whose page was wiped. If two threads race, one stores its epoch and the other adopts
            // it.
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

/// Returns whether this is a child of a process that had a sentinel: objects of that process may be around.
/// Three instructions; it is for paths where a sentinel is too much. False in every process on a kernel
/// without `MADV_WIPEONFORK`.
#[inline(always)]
pub fn may_be_forked() -> bool {
    // SAFETY: the word of a static, or of the page, which is never unmapped.
    unsafe { &*PAGE.load(Ordering::Acquire) }.load(Ordering::Relaxed) != FIRST
}

/// Returns the process's page; the first caller maps it.
fn page() -> io::Result<NonNull<AtomicU64>> {
    let none = (&raw const NO_PAGE).cast_mut();
    let page = PAGE.load(Ordering::Acquire);
    if page != none {
        return Ok(NonNull::new(page).expect("the address of a static or of a map"));
    }
    if cfg!(miri) {
        return Err(Errno::NOSYS.into()); // it has no `madvise`, and forks nothing
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
        // Before another thread sees the page: no race decides the first epoch.
        // SAFETY: the start of the map, which is large enough and aligned, and known to this function only.
        unsafe { ours.write(AtomicU64::new(FIRST)) };
        match PAGE.compare_exchange(none, ours, Ordering::AcqRel, Ordering::Acquire) {
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

/// A process, to be recognized by what it leaves to its children.
///
/// # Examples
/// ```
/// let process = sakia_ring::Process::current();
/// assert!(process.is_intact(), "in a forked child it is not");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Process(Identity);

#[derive(Clone, Copy, Debug)]
enum Identity {
    Sentinel(Sentinel),
    /// Asks the kernel each time. Sandboxes without `MADV_WIPEONFORK` often have no ring either, and so need
    /// this. A child whose number is its ancestor's, in another namespace, is not detected.
    Id(Pid),
}

impl Process {
    /// Returns the calling process.
    ///
    /// # Examples
    /// See [`Process`](Process#examples).
    pub fn current() -> Self {
        match Sentinel::new() {
            Ok(sentinel) => Self(Identity::Sentinel(sentinel)),
            Err(_) => Self(Identity::Id(rustix::process::getpid())),
        }
    }

    /// Returns true in this process, false in every child.
    ///
    /// # Examples
    /// See [`Process`](Process#examples).
    #[inline]
    pub fn is_intact(&self) -> bool {
        match &self.0 {
            Identity::Sentinel(sentinel) => sentinel.is_intact(),
            Identity::Id(id) => rustix::process::getpid() == *id,
        }
    }
}

/// A static value that each process makes for itself: a forked child never touches its parent's.
///
/// The parent's value is neither dropped nor locked in the child, whose memory keeps it: another thread of
/// the parent may have been about to make it or to change it. No thread waits for another one here, so a
/// child of a process in which threads race to make the value has no lock to wait for. Of the values made in
/// such a race one stays, and the others are dropped.
///
/// # Examples
/// ```
/// use std::sync::Mutex;
///
/// use sakia_ring::PerProcess;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
///
/// let names = NAMES.get_or_init(Mutex::default);
/// names.lock().unwrap().push("first".into());
/// assert_eq!(NAMES.get().unwrap().lock().unwrap().len(), 1);
/// ```
pub struct PerProcess<T> {
    /// The value made last, by this process or an ancestor; never freed.
    made: AtomicPtr<Made<T>>,
}

struct Made<T> {
    /// The process that made it.
    process: Process,
    value: T,
}

impl<T> PerProcess<T> {
    /// Returns a static without a value.
    ///
    /// # Examples
    /// See [`PerProcess`](PerProcess#examples).
    pub const fn new() -> Self {
        Self { made: AtomicPtr::new(ptr::null_mut()) }
    }
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// Returns the value, if this process has made it. A signal handler may call it.
    ///
    /// # Examples
    /// See [`PerProcess`](PerProcess#examples).
    #[inline]
    pub fn get(&'static self) -> Option<&'static T> {
        Self::of_this_process(self.made.load(Ordering::Acquire))
    }

    /// Returns the value, which `make` makes if this process has none. Of two threads that make one at the
    /// same time, both get the same.
    ///
    /// # Examples
    /// See [`PerProcess`](PerProcess#examples).
    pub fn get_or_init(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.made.load(Ordering::Acquire);
        match Self::of_this_process(before) {
            Some(value) => value,
            None => self.make(before, make, Self::of_this_process),
        }
    }

    /// As [`get_or_init`](Self::get_or_init), but a forked child has a copy of its parent's value if there is
    /// one: for values that nothing changes.
    ///
    /// # Examples
    /// ```
    /// use std::time::Instant;
    ///
    /// use sakia_ring::PerProcess;
    ///
    /// static BEGIN: PerProcess<Instant> = PerProcess::new();
    ///
    /// let begin = BEGIN.get_or_inherit(Instant::now);
    /// assert_eq!(BEGIN.get_or_inherit(|| unreachable!()), begin);
    /// ```
    #[inline]
    pub fn get_or_inherit(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.made.load(Ordering::Acquire);
        match Self::of_any_process(before) {
            Some(made) => &made.value,
            None => self.make(before, make, |made| Some(&Self::of_any_process(made)?.value)),
        }
    }

    #[cold]
    fn make(
        &'static self,
        mut before: *mut Made<T>,
        make: impl FnOnce() -> T,
        accept: impl Fn(*mut Made<T>) -> Option<&'static T>,
    ) -> &'static T {
        let made = Box::into_raw(Box::new(Made { process: Process::current(), value: make() }));
        loop {
            match self.made.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // SAFETY: the box just leaked, which nothing changes from now on.
                    return &unsafe { &*made }.value;
                }
                Err(other) => {
                    if let Some(value) = accept(other) {
                        // SAFETY: the box just leaked, which no other code has seen.
                        drop(unsafe { Box::from_raw(made) });
                        return value;
                    }
                    before = other;
                }
            }
        }
    }

    #[inline]
    fn of_this_process(made: *mut Made<T>) -> Option<&'static T> {
        Self::of_any_process(made).filter(|made| made.process.is_intact()).map(|made| &made.value)
    }

    /// `made` was read from the static with acquire.
    #[inline]
    fn of_any_process(made: *mut Made<T>) -> Option<&'static Made<T>> {
        // SAFETY: null, or a leaked box that nothing changes. It was stored with release after it was filled,
        // and read with acquire; a child has a copy of the memory. `T` is `Sync`, and `Send`, since
        // another thread may have made it.
        unsafe { made.as_ref() }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
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
        let start = std::sync::Barrier::new(8);
        let made: Vec<_> = std::thread::scope(|scope| {
            let make = |_| {
                scope.spawn(|| {
                    start.wait();
                    Sentinel::new().unwrap()
                })
            };
            let threads: Vec<_> = (0..8).map(make).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(Sentinel::is_intact));
        // Otherwise the process would take itself for a child.
        assert!(made.iter().all(|sentinel| sentinel.epoch == FIRST) && !may_be_forked());
    }

    #[test]
    fn threads_that_make_a_value_at_the_same_time_get_the_same() {
        static VALUE: PerProcess<Box<u32>> = PerProcess::new();
        let start = std::sync::Barrier::new(8);
        let addresses: Vec<usize> = std::thread::scope(|scope| {
            let make = |number| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    ptr::from_ref(VALUE.get_or_init(|| Box::new(number))).addr()
                })
            };
            let threads: Vec<_> = (0..8).map(make).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(addresses.iter().all(|&address| address == addresses[0]));
        assert_eq!(VALUE.get().map(|value| ptr::from_ref(value).addr()), Some(addresses[0]));
    }

    #[test]
    fn without_memory_that_forks_wipe_the_process_is_known_by_its_number() {
        let process = Process(Identity::Id(rustix::process::getpid()));
        assert!(process.is_intact());
        let parent = rustix::process::getppid().unwrap();
        assert!(!Process(Identity::Id(parent)).is_intact());
    }

    #[test]
    fn a_closed_sentinel_is_not_intact_and_its_copies_are() {
        let copy = Sentinel::new().unwrap();
        let mut closed = copy;
        closed.close();
        assert!(!closed.is_intact() && copy.is_intact());
    }
}
