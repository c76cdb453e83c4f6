//! Lookups that refuse to wait: those with `RESOLVE_CACHED`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::decide::Attempt;
use crate::sys::{self, OpenHow, abi};

/// Set when the kernel has no `openat2(2)` with `RESOLVE_CACHED`, or a filter forbids it.
static KEEPS_NO_CACHE: AtomicBool = AtomicBool::new(false);

/// `openat2(2)` of a path that the dentry cache can resolve.
///
/// # Errors
/// Those of the call; `EAGAIN` if the cache lacks a part of the path.
///
/// # Safety
///
/// - `path` is the address of a string that ends with a NUL and stays in place during the call.
/// - `dir` is a descriptor of the caller, or `AT_FDCWD`.
pub(crate) unsafe fn open_in_cache(dir: i32, path: u64, how: OpenHow) -> Result<OwnedFd, Errno> {
    let how = OpenHow { resolve: how.resolve | u64::from(abi::RESOLVE_CACHED), ..how };
    // SAFETY: the caller's duties are this call's.
    unsafe { sys::openat2(dir, path, &how) }
}

/// Opens a path, relative to `dir`, that the dentry cache can resolve within the bounds of `resolve`. It
/// waits for no device and no server; with `O_NONBLOCK` or `O_PATH` in `flags` it does not wait for another
/// opener either.
///
/// # Errors
/// As `openat2(2)`, except what [`Attempt`] says.
///
/// # Kernel
/// 5.12; unsupported below. Source: `openat2(2)`.
///
/// # Examples
/// ```
/// use rustix::fs::{CWD, OFlags, ResolveFlags};
/// use sakia_driver::Attempt;
/// use sakia_driver::calls::open_cached;
///
/// match open_cached(CWD, "/", OFlags::PATH, ResolveFlags::empty())? {
///     Attempt::Done(root) => println!("{root:?}"),
///     Attempt::WouldBlock => println!("the disk has to be asked"),
///     Attempt::Unsupported => println!("the kernel has no such lookups"),
/// }
/// # std::io::Result::Ok(())
/// ```
#[doc(alias = "RESOLVE_CACHED")]
pub fn open_cached(
    dir: impl AsFd,
    path: impl Arg,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<Attempt<OwnedFd>, Errno> {
    if KEEPS_NO_CACHE.load(Ordering::Relaxed) {
        return Ok(Attempt::Unsupported);
    }
    let resolve = resolve | ResolveFlags::CACHED;
    let attempt = Attempt::of(rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve));
    if let Ok(Attempt::Unsupported) = attempt {
        // The path or another flag may be invalid, too: the root alone tells.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let root = rustix::fs::openat2(CWD, c"/", flags, Mode::empty(), ResolveFlags::CACHED);
        let keeps_none = matches!(Attempt::of(root), Ok(Attempt::Unsupported));
        KEEPS_NO_CACHE.store(keeps_none, Ordering::Relaxed);
    }
    attempt
}

/// Returns whether a file is on a file system in memory, or a `memfd`: only these have seals. Needs no answer
/// from a server.
///
/// # Kernel
/// Any. Source: `fcntl(2)`, `F_GET_SEALS`.
///
/// # Examples
/// ```
/// assert!(!sakia_driver::calls::is_in_memory(std::fs::File::open("/proc/self/exe")?));
/// # std::io::Result::Ok(())
/// ```
pub fn is_in_memory(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn invalid_arguments_do_not_mean_that_there_are_no_such_lookups() {
        let open = |flags, resolve| open_cached(CWD, c"/", flags, resolve);
        let unknown = ResolveFlags::from_bits_retain(1 << 40);
        if matches!(open(OFlags::PATH, ResolveFlags::empty()), Ok(Attempt::Unsupported)) {
            return; // an older kernel
        }
        assert!(matches!(open(OFlags::PATH, unknown), Ok(Attempt::Unsupported)));
        assert!(matches!(open(OFlags::PATH | OFlags::RDWR, unknown), Ok(Attempt::Unsupported)));
        let opened = std::iter::repeat_with(|| open(OFlags::PATH, ResolveFlags::empty()));
        assert!(opened.take(1000).any(|it| matches!(it, Ok(Attempt::Done(_)))));
    }
}
