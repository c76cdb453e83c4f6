//! Snapshots of a running runtime, for people and programs: operations, queues, lanes and the settings in
//! force; and warnings about long turns and late operations.
//!
//! [`Runtime::inspect`](crate::Runtime::inspect) shows all threads of a runtime. An [`Inspector`] does the
//! same from anywhere: from within a task, or from another thread, also while a thread of the runtime is
//! stuck in a task that does not return or in a system call. It never blocks.
//!
//! The threads have to record their activity for this: [`Builder::inspection`](crate::Builder::inspection),
//! or the environment variable `SAKIA_INSPECT=1`. Recording costs some tens of nanoseconds for each operation
//! and each poll of a task. Without it there is no cost, and less to see: always the settings, but operations
//! only of the thread that inspects, without age, descriptor and task.
//!
//! [`Builder::warnings`](crate::Builder::warnings), or the environment variable `SAKIA_WARNINGS=log`, reports
//! a turn in which tasks kept the thread for long, an operation that should have ended by itself, and an
//! operation that occupies a thread of a lane. See [`Warnings`].
//!
//! # Examples
//! ```
//! use std::thread;
//!
//! use sakia::inspect::Doing;
//!
//! let runtime = sakia::Runtime::builder().inspection(true).build()?;
//! let inspector = runtime.inspector();
//! runtime.block_on(async {
//!     // Another thread sees what this one is stuck in.
//!     let seen = thread::spawn(move || inspector.inspect()).join().expect("it does not panic");
//!     let Some(Doing::Task(task)) = seen.threads[0].doing else { panic!("{seen}") };
//!     assert_eq!(task.spawned_at.file(), file!());
//! });
//! # std::io::Result::Ok(())
//! ```
//!
//! A warning about a task that keeps its thread:
//! ```
//! use std::sync::mpsc;
//! use std::time::Duration;
//!
//! use sakia::inspect::{Warning, Warnings};
//!
//! let (sender, receiver) = mpsc::channel();
//! let warnings = Warnings::callback(move |warning| drop(sender.send(warning.to_string())))
//!     .turn(Duration::from_millis(5));
//! let runtime = sakia::Runtime::builder().warnings(warnings).build()?;
//! runtime.block_on(async {
//!     let busy = sakia::spawn(async { std::thread::sleep(Duration::from_millis(20)) });
//!     busy.await.expect("it does not panic");
//!     sakia::yield_now().await;
//! });
//! let warning = receiver.try_recv().expect("the task kept the thread for too long");
//! assert!(warning.contains(file!()), "{warning}");
//! # std::io::Result::Ok(())
//! ```

mod configuration;
mod inspector;
mod observed;
mod show;
mod warnings;

use std::path::PathBuf;
use std::time::Duration;

pub use sakia_driver::{Doing, DriverStatus, Lane, OpKind, OperationState, PlainCall, TaskOrigin};

pub use self::configuration::{Setting, Source};
pub(crate) use self::inspector::{Configured, Shared};
pub use self::inspector::{Inspector, inspector};
pub(crate) use self::observed::Observed;
pub use self::warnings::{Warning, Warnings};

/// A snapshot of a runtime or an [engine](crate::Engine). Its `Display` has a line for each setting, thread
/// and operation.
///
/// # Examples
/// See [`Runtime::inspect`](crate::Runtime::inspect).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The threads, by their numbers.
    pub threads: Vec<ThreadInspection>,
    /// Every setting in force, with the origin of its value and the value that the kernel granted.
    pub configuration: Vec<Setting>,
    /// Closures of [`spawn_blocking`](crate::spawn_blocking) that have not ended: the end of the runtime waits
    /// for them.
    pub closures: usize,
}

/// A snapshot of one thread.
///
/// # Examples
/// See [`Runtime::inspect`](crate::Runtime::inspect).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ThreadInspection {
    /// Its number in the runtime, as [`spawn_on`](crate::spawn_on) takes it.
    pub number: usize,
    /// Its number in the system, as debuggers and `/proc/self/task` have it.
    pub thread_id: Option<u32>,
    /// Set if the thread records its operations and activity. Otherwise `doing` is unknown, and so are the
    /// operations of all threads but the calling one.
    pub is_recorded: bool,
    /// Its activity; `None` if that is unknown.
    pub doing: Option<Doing>,
    /// The time for which it has been doing that; `None` if that is unknown.
    pub doing_for: Option<Duration>,
    /// The operations under way, oldest first. Each is shown as of one moment, but not all as of the same.
    pub operations: Vec<Operation>,
    /// The number of operations that came and went too fast to be read.
    pub unread: u32,
    /// The driver's queues, credits, buffers and lanes, as of its last turn if the thread is recorded, and as
    /// of now if it is the calling one and is not; `None` if that is unknown.
    pub status: Option<DriverStatus>,
}

/// An operation under way.
///
/// # Examples
/// See [`Runtime::inspect`](crate::Runtime::inspect).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Operation {
    /// Its kind.
    pub kind: OpKind,
    /// The `user_data` of its entry, which is also its number in a [recording](crate::trace). No other
    /// operation of the thread has the same.
    pub user_data: u64,
    /// The stage that it has reached.
    pub state: OperationState,
    /// The descriptor that it names: the file it acts on, or the directory that its path is relative to.
    pub descriptor: Option<i32>,
    /// The path of that descriptor *at the time of the snapshot*, which is after the operation began: a file
    /// that was renamed since has its new name. `None` if the operation has ended meanwhile, or is a close
    /// that was begun: the number may be that of another file.
    pub path_now: Option<PathBuf>,
    /// The time for which it has been under way, without the time for which a close waited for other uses of
    /// the descriptor, once that is over; `None` if that was not recorded.
    pub age: Option<Duration>,
    /// Set if it ends by itself, as operations on files do.
    pub is_bounded: bool,
    /// Set if its cancellation was requested.
    pub is_cancel_asked: bool,
    /// Set if no task waits for it: its future was dropped, or it was started detached.
    pub is_orphan: bool,
    /// The task that started it; `None` if that was not recorded, or it was no task.
    pub task: Option<TaskOrigin>,
}
