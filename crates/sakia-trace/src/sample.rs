//! Samples of the whole process, of facts that no single thread knows: page faults, processor time, kernel
//! workers.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Reads the numbers, each with its name. Returns none without `/proc`.
pub(crate) fn take() -> Vec<(&'static str, u64)> {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else {
        return Vec::new();
    };
    let workers = fs::read_dir("/proc/self/task").map_or(0, |threads| {
        let is_worker = |thread: &fs::DirEntry| {
            fs::read_to_string(thread.path().join("comm"))
                .is_ok_and(|name| name.starts_with("iou-wrk"))
        };
        threads.flatten().filter(is_worker).count()
    });
    let own = OWN_FAULTS.load(Ordering::Relaxed);
    let mut values = parse(&stat);
    for (name, value) in &mut values {
        if *name == FAULTS {
            *value = value.saturating_sub(own);
        }
    }
    values.push((WORKERS, workers as u64));
    values
}

/// Does a part of the recording's own work. Its page faults are not counted as the program's.
pub(crate) fn as_own_work<T>(work: impl FnOnce() -> T) -> T {
    let before = faults_of_this_thread();
    let result = work();
    let faults = faults_of_this_thread().saturating_sub(before);
    OWN_FAULTS.fetch_add(faults, Ordering::Relaxed);
    result
}

fn faults_of_this_thread() -> u64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    parse(&stat).iter().find(|(name, _)| *name == FAULTS).map_or(0, |(_, value)| *value)
}

/// Parses `/proc/self/stat`, see `proc_pid_stat(5)`; the name in parentheses may contain anything.
fn parse(stat: &str) -> Vec<(&'static str, u64)> {
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return Vec::new();
    };
    // The first of these is the third field.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse().ok());
    let known = [(FAULTS, field(10)), (USER, field(14)), (SYSTEM, field(15))];
    known.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_skipped() {
        let stat = "17 (a) b) S 1 2 3 4 5 6 700 8 9 10 11 12 13";
        assert_eq!(parse(stat), [(FAULTS, 700), (USER, 11), (SYSTEM, 12)]);
        assert_eq!(parse("17 (a"), []);
        assert_eq!(parse(""), []);
    }

    #[cfg_attr(miri, ignore = "it reads /proc")]
    #[test]
    fn faults_of_the_recording_are_apart() {
        let before = OWN_FAULTS.load(Ordering::Relaxed);
        let memory = as_own_work(|| vec![1_u8; 8 << 20]);
        let own = OWN_FAULTS.load(Ordering::Relaxed) - before;
        // Huge pages make it few.
        assert!(own > 0, "{own} faults of {} bytes", memory.len());
    }

    #[test]
    fn this_process_has_page_faults() {
        let taken = take();
        assert!(taken.iter().any(|(name, count)| *name == FAULTS && *count > 0), "{taken:?}");
    }
}
