//! Samples of the whole process, of facts that no single thread knows: page faults, processor time, kernel
//! workers.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::io::Errno;

use crate::proc::{READ, read_small};

/// Page faults of the recording's own buffers, which do not count as the program's.
static OWN_FAULTS: AtomicU64 = AtomicU64::new(0);

/// The name of the samples' instants.
pub(crate) const NAME: &str = "process";
/// Minor page faults of the program so far.
pub(crate) const FAULTS: &str = "page faults";
/// Kernel worker threads of the rings that exist now.
pub(crate) const WORKERS: &str = "kernel workers";
/// Processor time of the program so far, in clock ticks (10 ms on most machines).
pub(crate) const USER: &str = "user ticks";
/// Processor time of the kernel for the program.
pub(crate) const SYSTEM: &str = "system ticks";

/// The numbers: page faults, user and system ticks, kernel workers.
pub(crate) type Values = [u64; 4];

/// Reads the numbers. None if `/proc` does not tell.
#[inline(never)]
pub(crate) fn take() -> Option<Values> {
    let [faults, user, system] = stat(c"/proc/self/stat")?;
    let own = OWN_FAULTS.load(Ordering::Relaxed);
    Some([faults.saturating_sub(own), user, system, workers().unwrap_or(0)])
}

/// Counts the threads of this process that are the ring's kernel's.
#[inline(never)]
fn workers() -> Result<u64, Errno> {
    let folder = openat(CWD, c"/proc/self/task", READ | OFlags::DIRECTORY, Mode::empty())?;
    let mut room = [const { MaybeUninit::uninit() }; 2048];
    let mut threads = RawDir::new(&folder, &mut room);
    let mut count = 0;
    while let Some(thread) = threads.next() {
        let thread = thread?;
        if thread.file_name().to_bytes().starts_with(b".") {
            continue;
        }
        let thread = openat(&folder, thread.file_name(), READ | OFlags::PATH, Mode::empty());
        let mut name = [0; 16];
        let name = thread.and_then(|thread| read_small(thread.as_fd(), c"comm", &mut name));
        count += u64::from(name.is_ok_and(|name| name.starts_with(b"iou-wrk")));
    }
    Ok(count)
}

/// Does a part of the recording's own work. Its page faults are not counted as the program's.
pub(crate) fn as_own_work<T>(work: impl FnOnce() -> T) -> T {
    let before = faults_of_this_thread();
    let result = work();
    let faults = faults_of_this_thread().saturating_sub(before);
    OWN_FAULTS.fetch_add(faults, Ordering::Relaxed);
    result
}

#[inline(never)]
fn faults_of_this_thread() -> u64 {
    // Miri has no `/proc`.
    let numbers = if cfg!(miri) { None } else { stat(c"/proc/thread-self/stat") };
    numbers.map_or(0, |[faults, ..]| faults)
}

#[inline(never)]
fn stat(path: &CStr) -> Option<[u64; 3]> {
    let mut text = [0; 1024];
    parse(read_small(CWD, path, &mut text).ok()?)
}

/// The page faults, user and system ticks of a text as `/proc/self/stat`, see `proc_pid_stat(5)`; the name
/// in parentheses may contain anything.
fn parse(stat: &[u8]) -> Option<[u64; 3]> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    // Each field follows a space, the third one of the file first.
    let (mut numbers, mut field) = ([0_u64; 14], 0);
    for &byte in &stat[name_end..] {
        match byte {
            b' ' => field += 1,
            b'0'..=b'9' if field < numbers.len() => {
                numbers[field] = numbers[field].wrapping_mul(10) + u64::from(byte - b'0');
            }
            _ => {}
        }
    }
    (field >= numbers.len()).then_some([numbers[8], numbers[12], numbers[13]])
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::hint::black_box;

    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_skipped() {
        let stat = "17 (a) b) S 1 2 3 4 5 6 700 8 9 10 11 12 13";
        assert_eq!(parse(stat.as_bytes()), Some([700, 11, 12]));
        for cut_short in
            ["", "17 (a", "17 (a)", "17 (a) S 1 2", "17 (a) S 1 2 3 4 5 6 7 8 9 10 11 12"]
        {
            assert_eq!(parse(cut_short.as_bytes()), None, "{cut_short}");
        }
    }

    #[cfg_attr(miri, ignore = "it reads /proc")]
    #[test]
    fn faults_of_the_recording_are_apart() {
        let before = OWN_FAULTS.load(Ordering::Relaxed);
        // The optimizer would leave the memory out.
        let memory = as_own_work(|| black_box(vec![1_u8; 8 << 20]));
        let own = OWN_FAULTS.load(Ordering::Relaxed) - before;
        // With huge pages there are few faults.
        assert!(own > 0, "{own} faults of {} bytes", memory.len());
    }

    #[test]
    fn this_process_has_page_faults() {
        let taken = take().expect("/proc");
        assert!(taken[0] > 0, "{taken:?}");
        // No thread of this process has this name, except this one for a moment.
        let is_worker = |name: &CStr| {
            rustix::thread::set_name(name).expect("a name");
            workers().expect("/proc")
        };
        let name = CString::new(std::thread::current().name().expect("a test's")).expect("no NUL");
        let name = CString::new(&name.as_bytes()[..name.as_bytes().len().min(15)]).expect("no NUL");
        assert_eq!([is_worker(c"iou-wrk-1"), is_worker(&name)], [1, 0]);
    }
}
