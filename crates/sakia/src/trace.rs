//! Recordings of what a program does, for Perfetto and for `sakia trace summary`.
//!
//! A recording begins by [`Recording::to_file`], or without a change of the program by the environment
//! variable `SAKIA_TRACE`, which names the file. It has, for each thread, its turns, tasks and system calls,
//! and each operation from its start to the moment at which a task takes its result. Without a recording an
//! event point costs a test of one byte, and an operation by the queue at most 12 instructions.
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

pub use sakia_trace::{
    EVENTS_VARIABLE, EventKind, FILE_VARIABLE, Name, ReadError, Recording, RecordingSummary, Slice,
    Span, StaticName, Stretch, Summary, Trace, TraceOptions, Track, Value, flush, in_span, is_on,
    plot, span, system_call,
};
