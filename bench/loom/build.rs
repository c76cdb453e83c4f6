//! Copies the code under test, with its atomics and locks replaced by this crate's.
//!
//! Beside each faithful copy it writes mutants, each with one bug, which the tests must catch. A replacement
//! that does not apply fails the build: then the code has changed, and this file must be adapted.

use std::path::Path;
use std::{env, fs};

/// A source file of Sakia, or a folder of them.
struct Source {
    /// The name of the copy.
    name: &'static str,
    path: &'static str,
    /// Texts replaced everywhere, with their replacements.
    replaced: &'static [(&'static str, &'static str)],
    /// The mutant's name, a text replaced once, and its replacement.
    mutants: &'static [(&'static str, &'static str, &'static str)],
}

const REMOTE: Source = Source {
    name: "remote",
    path: "../../crates/sakia/src/remote.rs",
    replaced: &[
        ("use std::sync::", "use crate::sync::"),
        ("use sakia_task::ThreadId;", "use super::ThreadId;"),
        ("use crate::gate::Mail;", "use super::Mail;"),
    ],
    mutants: &[
        // The thread does not check its mail again before it sleeps.
        ("no_recheck", "if self.has_mail.load(Ordering::SeqCst) ||", "if"),
        // The sender's store may be reordered with its next step.
        (
            "weak_sender",
            "self.has_mail.store(true, Ordering::SeqCst);",
            "self.has_mail.store(true, Ordering::Release);",
        ),
        // The thread's store may be reordered with its next step.
        (
            "weak_thread",
            "self.parked.store(true, Ordering::SeqCst);",
            "self.parked.store(true, Ordering::Release);",
        ),
        // The thread clears a signal without synchronizing with the data it announces.
        (
            "blind_take",
            "self.has_mail.swap(false, Ordering::SeqCst);",
            "self.has_mail.store(false, Ordering::Release);",
        ),
        // The thread sleeps although it was asked to stop.
        ("no_stop_recheck", "|| self.is_stopping() {", "{"),
    ],
};

const INBOX: Source = Source {
    name: "inbox",
    path: "../../crates/sakia-driver/src/epoll/inbox.rs",
    replaced: &[
        ("use std::sync::", "use crate::sync::"),
        ("use std::os::fd::{AsFd, BorrowedFd, OwnedFd};", "use super::event::OwnedFd;"),
        ("use rustix::event::{EventfdFlags, eventfd};", "use super::event::eventfd;"),
        ("use rustix::io::Errno;", "use super::event::Errno;"),
        ("eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?", "eventfd()?"),
        ("BorrowedFd<'_>", "&OwnedFd"),
        ("self.event.as_fd()", "&self.event"),
        ("rustix::io::write(", "super::event::write("),
    ],
    mutants: &[
        // The eventfd of a sleeping backend is not written.
        ("inbox_not_woken", "if is_asleep {", "if false {"),
        // The backend sleeps although a result is queued.
        ("inbox_sleeps_on_news", "state.is_parked = is_empty;", "state.is_parked = true;"),
        // A foreign loop is not woken.
        ("inbox_loop_not_told", " || state.is_watched;", ";"),
        // A foreign loop is not notified of earlier results.
        ("inbox_present_ignored", "if has_news {", "if false {"),
        // A result after the end is kept.
        ("inbox_late_result_kept", "if state.is_closed {", "if false {"),
        // The check and the mark are two separate steps.
        (
            "inbox_mark_kept_back",
            "state.is_parked = is_empty;",
            "drop(state); state = self.lock(); state.is_parked = is_empty;",
        ),
    ],
};

const POOL: Source = Source {
    name: "pool",
    path: "../../crates/sakia-driver/src/lanes.rs",
    replaced: &[
        ("use std::sync::", "use crate::sync::"),
        ("use std::panic::", "use crate::sync::"),
    ],
    mutants: &[
        // A lane has as many threads as it has jobs.
        ("pool_without_bound", "let most = self.shared.threads_max[lane];", "let most = u32::MAX;"),
        // A thread whose idle time has expired ends without checking the queue.
        (
            "pool_ends_on_job",
            "if let Some(job) = its.jobs.take() {",
            "if is_over { its.discharge(number); return; } if let Some(job) = its.jobs.take() {",
        ),
        // Idle threads are not notified of jobs.
        ("pool_idle_not_told", "self.shared.changed[lane].notify_one();", ""),
        // A thread that takes a job starts no other thread for the remaining jobs.
        (
            "pool_hands_nothing_on",
            "self.staff(state, lane);\n                contain(",
            "drop(state);\n                contain(",
        ),
        // After a failed start, a thread that has become idle meanwhile is not notified of the job.
        (
            "pool_start_missed",
            "its.is_coming = its.threads.idle > 0 && !its.jobs.is_empty();",
            "its.is_coming = false;",
        ),
    ],
};

const LANES: Source = Source {
    name: "lanes",
    path: "../../crates/sakia-driver/src/epoll/lanes.rs",
    replaced: &[
        ("use std::sync::", "use crate::sync::"),
        (
            "use std::time::{Duration, Instant};",
            "use super::thread::Instant;\nuse std::time::Duration;",
        ),
        ("use rustix::io::Errno;", "use super::job::Errno;"),
        ("use crate::counters::OpKind;", "use super::job::OpKind;"),
        ("use sakia_thread::start_thread;", "use super::thread::start_thread;"),
        ("use crate::sys::signals::without_signals;", "use super::thread::without_signals;"),
        ("use crate::call::failed;", "use super::job::failed;"),
        ("use crate::decide::Lane;", "use super::job::Lane;"),
        ("use crate::lanes::{self, ", "use super::pool::{self as lanes, "),
        ("unsafe { work.run(Lane::ALL[lane]) }", "work.run()"),
    ],
    mutants: &[
        // A job that a thread has taken counts as taken back.
        (
            "lanes_cancel_running",
            "lanes.any(|lane| state.jobs(lane as usize).waiting.remove(&ticket).is_some())",
            "{ lanes.any(|lane| state.jobs(lane as usize).waiting.remove(&ticket).is_some()); true }",
        ),
    ],
};

const RECORD: Source = Source {
    name: "record",
    path: "../../crates/sakia-driver/src/board/record.rs",
    replaced: &[("use std::sync::", "use crate::sync::")],
    mutants: &[
        // The count does not mark a write in progress.
        ("record_unmarked", "count.wrapping_add(1)", "count"),
        // The reader ignores a write between its two loads of the count.
        ("record_second_look_missing", "before == after && before", "before"),
        // The stores of the words may be reordered before the mark.
        ("record_writer_unfenced", "fence(Ordering::Release);", ""),
        // The second load of the count may be reordered before those of the words.
        ("record_reader_unfenced", "fence(Ordering::Acquire);", ""),
        // The words may be older than the count.
        (
            "record_first_look_relaxed",
            "let before = self.count.load(Ordering::Acquire);",
            "let before = self.count.load(Ordering::Relaxed);",
        ),
    ],
};

/// All modules of the crate except those that only re-export others.
const TASK: Source = Source {
    name: "task",
    path: "../../crates/sakia-task/src",
    replaced: &[("crate::thread::", "crate::thread_id::"), ("crate::", "super::")],
    mutants: &[
        // The references dropped by other threads are never merged into the count.
        ("task_not_merged", "self.shared().count.merge();", ""),
        // The last owner does not synchronize with the threads that dropped their references.
        (
            "task_freed_blindly",
            "threads that dropped theirs.\n        let word = self.word.load(Ordering::Acquire);",
            "\nlet word = self.word.load(Ordering::Relaxed);",
        ),
        // A wake that finds a mail in transit sets no flag.
        (
            "task_wake_not_seen",
            "let before = header.count.set(MAILED | flags);",
            "if header.count.flags() & MAILED != 0 { return; }
            let before = header.count.set(MAILED | flags);",
        ),
        // An opened mail still counts as in transit.
        (
            "task_mail_kept",
            "all that they did before.\n        let before = header.count.clear(MAILED | CLOSE | NEW);",
            "\nlet before = header.count.flags();",
        ),
        // The handle's two steps are swapped.
        (
            "task_join_looks_first",
            "header.count.set(JOIN)",
            "{ let before = header.count.flags(); header.count.set(JOIN); before }",
        ),
        // The end of a task ignores handles that wait on other threads.
        (
            "task_join_not_asked",
            "header.count.settle(flags, JOIN | LEFT)",
            "header.count.settle(flags, LEFT)",
        ),
        // The value of a handle that was dropped is leaked.
        ("task_value_left", "if before & LEFT != 0 && flags & VALUE != 0 {", "if false {"),
    ],
};

/// The modules of the task crate and their files.
const TASK_MODULES: [(&str, &str); 9] = [
    ("cell", "cell"),
    ("count", "count"),
    ("handles", "handles"),
    ("queue", "queue"),
    ("share", "share"),
    ("start", "start"),
    ("task", "task"),
    ("thread_id", "thread"),
    ("waker", "waker"),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for source in [REMOTE, INBOX, POOL, LANES, RECORD, TASK] {
        println!("cargo::rerun-if-changed={}", source.path);
        copy(&source);
    }
}

/// Writes the faithful copy and the mutants.
fn copy(source: &Source) {
    let mut code = if source.path.ends_with(".rs") {
        file(source.path)
    } else {
        let module = |(name, path)| {
            format!("mod {name} {{\n{}\n}}\n", file(&format!("{}/{path}.rs", source.path)))
        };
        TASK_MODULES.map(module).concat()
    };
    for (from, to) in source.replaced {
        code = replaced(source, &code, from, to, 1..=usize::MAX);
    }
    write(source.name, &code);
    for (name, from, to) in source.mutants {
        write(name, &replaced(source, &code, from, to, 1..=1));
    }
}

/// Returns the code of a file.
fn file(path: &str) -> String {
    let text = fs::read_to_string(path).expect("the code under test is where it was");
    // Leave out the unit tests, and the attribute above them.
    let (text, _) = text.split_once("#[cfg(test)]\nmod tests").unwrap_or((&text, ""));
    let text = text.trim_end().trim_end_matches("#[cfg(not(miri))]");
    // An included file cannot begin with inner doc comments.
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("//!")).collect();
    lines.join("\n")
}

fn replaced(
    source: &Source,
    code: &str,
    from: &str,
    to: &str,
    times: std::ops::RangeInclusive<usize>,
) -> String {
    let found = code.matches(from).count();
    assert!(times.contains(&found), "{} has {found} times: {from}", source.path);
    code.replace(from, to)
}

fn write(name: &str, code: &str) {
    let folder = env::var_os("OUT_DIR").expect("Cargo says where");
    let path = Path::new(&folder).join(format!("{name}.rs"));
    fs::write(path, code).expect("Cargo's folder can be written");
}
