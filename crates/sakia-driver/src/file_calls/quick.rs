//! Calls that cannot refuse to wait, made by any thread as long as they are quick: behind the breaker of the
//! file's mount, which all threads of the process share.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::WAITS;
use crate::decide::{Breaker, Place, Timing, limits};
use crate::{descriptors, mounts, sys};

/// The breakers of the mounts whose files were written; `None` for one on which no such calls are made.
static BREAKERS: Mutex<Option<HashMap<Place, MayCall>>> = Mutex::new(None);

/// A breaker; `None` if no call that may wait is to be made.
pub(super) type MayCall = Option<Arc<Breaker>>;

/// Returns the breaker of a file's mount. `None` while another thread asks for one; a forked child may find
/// this so for ever.
#[cold]
pub(super) fn breaker_of(fd: BorrowedFd<'_>) -> Option<MayCall> {
    let mut breakers = match BREAKERS.try_lock() {
        Ok(breakers) => breakers,
        Err(TryLockError::Poisoned(breakers)) => breakers.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let facts = descriptors::facts(fd);
    let waits = rustix::fs::fcntl_getfl(fd).map_or(true, |flags| flags.intersects(WAITS));
    // Only a regular file has a size.
    let (Some(_), Some(device), false) = (facts.size, facts.device, waits) else {
        return Some(None);
    };
    if descriptors::limits_file_size() {
        return Some(None);
    }
    let breakers = breakers.get_or_insert_default();
    let place = (device, facts.mount_id);
    if let Some(known) = breakers.get(&place) {
        return Some(known.clone());
    }
    let file_system = descriptors::file_system(fd, &facts);
    let breaker = mounts::is_served_here(&file_system).then(|| Arc::new(Breaker::new()));
    // A device's number alone may be that of another file system later.
    if facts.mount_id.is_some() && !file_system.is_empty() {
        if breakers.len() >= limits::MOUNTS {
            breakers.clear(); // most of them are gone; the others are asked once more
        }
        breakers.insert(place, breaker.clone());
    }
    Some(breaker)
}

/// Makes a call, and times it. Returns `None` while the breaker is open.
#[inline]
pub(super) fn timed<T>(breaker: &Breaker, call: impl FnOnce() -> T) -> Option<T> {
    let is_trial = breaker.is_open();
    if is_trial && !breaker.may_try_again(now()) {
        return None;
    }
    let watched = (is_trial || breaker.is_suspicious()).then(sys::voluntary_switches);
    let begin = now();
    let result = call();
    let end = now();
    let has_waited = watched.map(|before| sys::voluntary_switches() != before);
    breaker.note(Timing { end, took: end.saturating_sub(begin), has_waited });
    Some(result)
}

/// Returns the time on the clock that all threads share.
#[inline]
fn now() -> Duration {
    clock_gettime(ClockId::Monotonic).try_into().unwrap_or_default()
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::IoSlice;
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::OnceLock;

    use super::*;
    use crate::FileCalls;
    use rustix::fs::OFlags;

    /// Opens a new file in memory.
    fn in_memory(flags: OFlags) -> File {
        let path = format!("/dev/shm/sakia-quick-{}-{}", std::process::id(), flags.bits());
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(flags.bits() as i32);
        let file = options.open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    /// Returns the breaker of a file's mount, for which another test may ask at the same time.
    fn found(fd: BorrowedFd<'_>) -> MayCall {
        std::iter::repeat_with(|| breaker_of(fd)).find_map(|it| it).unwrap()
    }

    /// Returns the calls of a file with a breaker of its own: that of the process may open by itself.
    fn calls(flags: OFlags, breaker: &Arc<Breaker>) -> FileCalls {
        let breaker = OnceLock::from(Some(Arc::clone(breaker)));
        FileCalls { breaker, ..FileCalls::with_flags(flags) }
    }

    #[test]
    fn small_appends_are_quick_until_the_breaker_opens() {
        let (file, breaker) = (in_memory(OFlags::APPEND), Arc::new(Breaker::new()));
        let (calls, fd) = (calls(OFlags::APPEND, &breaker), file.as_fd());
        let write = |len: usize, parts: usize, at| {
            let bytes = vec![7; len];
            let parts: Vec<_> = bytes.chunks(len.div_ceil(parts)).map(IoSlice::new).collect();
            assert!(calls.write(fd, &parts, at).is_none(), "others may append between two parts");
            calls.write_quickly(fd, &parts, at).map(Result::unwrap)
        };
        assert_eq!(write(65_536, 1, Some(0)), Some(65_536));
        let took = Duration::from_secs(1);
        breaker.note(Timing { end: now(), took, has_waited: Some(true) });
        assert_eq!(write(1, 1, None), None, "it is open");
        assert!(breaker.may_try_again(now() + limits::PAUSE_MAX));
        assert_eq!(write(1, 1, None), None, "another thread is on trial");
        breaker.note(Timing { end: now(), took: Duration::ZERO, has_waited: Some(false) });
        assert_eq!(write(100, 3, Some(0)), Some(100));
        assert_eq!(write(65_537, 2, None), None);
        assert_eq!(file.metadata().unwrap().len(), 65_536 + 100);
    }

    #[test]
    fn files_of_a_mount_have_one_breaker() {
        let files = [OFlags::APPEND, OFlags::NOATIME].map(in_memory);
        let [first, second] = files.each_ref().map(|file| found(file.as_fd()).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        let made_up = File::options().append(true).open("/proc/self/comm").unwrap();
        assert!(found(made_up.as_fd()).is_none());
    }

    #[test]
    fn a_file_that_comes_at_another_ones_moment_asks_again() {
        let file = in_memory(OFlags::APPEND.union(OFlags::NOCTTY));
        let calls = FileCalls::with_flags(OFlags::APPEND);
        let write = || calls.write_quickly(file.as_fd(), &[IoSlice::new(b"x")], Some(0));
        let other = BREAKERS.lock().unwrap();
        assert!(write().is_none());
        drop(other);
        // The breaker of all files in memory may be open for a while.
        std::iter::repeat_with(write).find_map(|it| it).unwrap().unwrap();
    }

    #[test]
    fn where_each_write_waits_none_is_made() {
        let parts = [IoSlice::new(b"x")];
        for flags in [OFlags::DSYNC, OFlags::SYNC, OFlags::DIRECT] {
            let file = in_memory(flags);
            let calls = FileCalls::with_flags(flags);
            assert!(calls.write_quickly(file.as_fd(), &parts, Some(0)).is_none(), "{flags:?}");
            assert_eq!(file.metadata().unwrap().len(), 0);
        }
        // A pipe may be full.
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let calls = FileCalls::with_flags(OFlags::APPEND);
        assert!(calls.write_quickly(writer.as_fd(), &parts, None).is_none());
        // A write can refuse to wait, and does.
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let calls = FileCalls::with_flags(OFlags::empty());
        let write = || calls.write_quickly(writer.as_fd(), &[IoSlice::new(&[0; 4096])], None);
        assert!(std::iter::repeat_with(write).take(1000).any(|result| result.is_none()));
    }

    #[test]
    fn flags_that_are_known_are_not_asked_for() {
        let parts = [IoSlice::new(b"x")];
        let write = |calls: FileCalls| {
            let file = in_memory(OFlags::APPEND.union(OFlags::NONBLOCK));
            calls.write(file.as_fd(), &parts, Some(0)).map(Result::unwrap)
        };
        assert_eq!(write(FileCalls::default()), None, "the flags of the file");
        assert_eq!(write(FileCalls::with_flags(OFlags::empty())), Some(1), "the given ones");
    }

    #[test]
    fn an_error_of_the_call_is_not_repeated_elsewhere() {
        let reader = File::open("Cargo.toml").unwrap();
        let calls = calls(OFlags::APPEND, &Arc::new(Breaker::new()));
        let result = calls.write_quickly(reader.as_fd(), &[IoSlice::new(b"x")], Some(0));
        let errno = result.map(|it| it.unwrap_err().raw_os_error());
        assert_eq!(errno, Some(Some(rustix::io::Errno::BADF.raw_os_error())));
    }
}
