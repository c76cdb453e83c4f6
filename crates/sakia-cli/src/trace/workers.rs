//! The kernel's tracepoint for operations that a ring hands to workers, of a program and its children.
//!
//! Only root may read it, where tracefs is mounted and numbers of threads are those of the whole machine. An
//! instance of our own has a buffer and settings that other users of tracing do not see. All is removed at
//! the end.
//!
//! Source: Documentation/trace/ftrace.rst, include/trace/events/io_uring.h.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Places at which tracefs is mounted.
const MOUNTED: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The names of instances, before the number of the process.
const PREFIX: &str = "sakia-trace-";
const EVENT: &str = "io_uring_queue_async_work";
/// The inode of the first PID namespace (`PROC_PID_INIT_INO`): the numbers in a trace are of that one.
const FIRST_NAMESPACE: u64 = 0xeffffffc;
/// KiB per processor, for some 100,000 events.
const BUFFER_KIB: u32 = 8192;

/// An instance of tracing.
#[derive(Debug)]
pub(super) struct Workers(PathBuf);

impl Workers {
    /// Begins to trace this process's future children, with theirs. `None` where that is not possible.
    pub(super) fn begin() -> Option<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?;
        if namespace.ino() != FIRST_NAMESPACE {
            return None;
        }
        MOUNTED.iter().find_map(|mounted| Self::begin_at(Path::new(mounted)).ok())
    }

    fn begin_at(mounted: &Path) -> io::Result<Self> {
        let pid = std::process::id();
        let instances = mounted.join("instances");
        remove_left(&instances);
        let instance = instances.join(format!("{PREFIX}{pid}"));
        fs::create_dir(&instance)?;
        let workers = Self(instance);
        workers.set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        workers.set("options/event-fork", "1")?;
        workers.set("set_event_pid", &pid.to_string())?;
        workers.set(&format!("events/io_uring/{EVENT}/enable"), "1")?;
        Ok(workers)
    }

    fn set(&self, name: &str, value: &str) -> io::Result<()> {
        // Not created: a name that the kernel does not have is an error.
        let mut file = fs::OpenOptions::new().write(true).open(self.0.join(name))?;
        io::Write::write_all(&mut file, value.as_bytes())
    }

    /// Returns the events until now. `None` if some were lost.
    pub(super) fn end(self) -> Option<String> {
        let text = fs::read_to_string(self.0.join("trace")).ok()?;
        is_complete(&text).then_some(text)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // If it stays, a later one removes it.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Removes the instances of processes that were killed.
fn remove_left(instances: &Path) {
    for instance in fs::read_dir(instances).into_iter().flatten().flatten() {
        let name = instance.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(instance.path());
        }
    }
}

/// Returns whether the buffer held all events: `# entries-in-buffer/entries-written: 3/3   #P:2`.
fn is_complete(text: &str) -> bool {
    let counts =
        text.lines().find_map(|line| line.strip_prefix("# entries-in-buffer/entries-written: "));
    let counts = counts.and_then(|counts| counts.split_whitespace().next()?.split_once('/'));
    counts.is_some_and(|(held, written)| held == written)
}

/// Returns the thread and the operation of each event: `sakia-77 [001] ..... 1.5: io_uring_queue_async_work:
/// ring 1, request 2, user_data 0x3, opcode MKDIRAT, flags 0x0, normal queue, work 4`. Kernels before 5.18
/// leave the operation out.
pub(super) fn events(text: &str) -> impl Iterator<Item = (u64, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (before, values) = line.split_once(EVENT)?;
        // The thread's name may contain anything.
        let (thread, _) = before.rsplit_once('[')?;
        let (_, thread) = thread.trim_end().rsplit_once('-')?;
        let operation = values.split_once("opcode ").and_then(|(_, rest)| rest.split(',').next());
        Some((thread.parse().ok()?, operation.unwrap_or("unknown")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# tracer: nop
#
# entries-in-buffer/entries-written: 3/3   #P:2
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |         |   |||||     |         |
     a [1] b-7-77      [001] .....   100.000001: io_uring_queue_async_work: ring 1, request 2, \
user_data 0x3, opcode MKDIRAT, flags 0x2000, normal queue, work 4
           sakia-78      [000] .....   100.000002: io_uring_queue_async_work: ring 1, request 2, \
user_data 0x3, opcode FSYNC, flags 0x10, hashed queue, work 4
           sakia-78      [000] .....   100.000003: io_uring_queue_async_work: ring 1, request 2, \
flags 16, normal queue, work 4
 CPU:1 [LOST 3 EVENTS]
";

    #[test]
    fn threads_and_operations_are_read() {
        let found: Vec<_> = events(TEXT).collect();
        assert_eq!(found, [(77, "MKDIRAT"), (78, "FSYNC"), (78, "unknown")]);
    }

    #[test]
    fn a_buffer_that_was_full_is_told() {
        assert!(is_complete(TEXT));
        assert!(!is_complete(&TEXT.replace("3/3", "3/4")));
        assert!(!is_complete(""));
    }
}
