//! Recordings of a program's activity, for Perfetto and for `sakia trace summary`.
//!
//! A recording begins by [`Recording::to_file`], or without a change of the program by the environment
//! variable `SAKIA_TRACE`, which names the file. It contains the turns, tasks and system calls of each
//! thread, and each operation from its start until a task takes its result. Without a recording an event
//! point costs a test of one byte, and an operation by the queue at most 12 instructions.
//!
//! # Examples
//! ```
//! use sakia::trace::{Recording, StaticName, TraceOptions, in_span};
//!
//! static LOAD: StaticName = StaticName::new("load");
//!
//! # let folder = std::env::temp_dir().join(format!("sakia-trace-example-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let recording = Recording::to_file(folder.join("trace"), TraceOptions::default())?;
//! sakia::block_on(in_span(&LOAD, sakia::fs::read("/etc/hostname"))).ok();
//! let summary = recording.stop()?;
//! assert!(summary.events > 0);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::mem::ManuallyDrop;

use sakia_trace::{TaskRun, task_runs};

pub use sakia_trace::{
    EVENTS_VARIABLE, EventKind, FILE_VARIABLE, Name, ReadError, Recording, RecordingSummary, Slice,
    Span, StaticName, Stretch, Summary, Trace, TraceOptions, Track, Value, Workers,
    add_handed_over, flush, in_span, is_on, plot, span, system_call,
};

/// A poll of a task in a recording, if one is on. A panic ends the task.
pub(crate) struct PollRun<'a> {
    number: &'a mut u64,
    run: Option<TaskRun>,
}

impl<'a> PollRun<'a> {
    /// Begins a poll of the task `number`, which is set here if it is zero.
    #[inline(always)]
    pub(crate) fn new(number: &'a mut u64) -> Self {
        let run = sakia_trace::is_on().then(|| task_runs(number));
        Self { number, run }
    }

    /// Ends the poll; `has_ended` says whether the task has.
    #[inline(always)]
    pub(crate) fn returned(self, has_ended: bool) {
        let this = ManuallyDrop::new(self);
        if let Some(run) = this.run {
            run.ends(*this.number, has_ended);
        }
    }
}

impl Drop for PollRun<'_> {
    fn drop(&mut self) {
        if let Some(run) = self.run {
            run.ends(*self.number, true);
        }
    }
}
