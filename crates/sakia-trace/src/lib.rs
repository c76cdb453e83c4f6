//! Records what the threads of a program do, and writes it as a trace that
//! [Perfetto](https://ui.perfetto.dev) opens.
//!
//! The driver, the runtime and the copy of trees have event points, which cost three instructions each at
//! most while no recording is on. A recording is begun by a call ([`Recording::to_file`]) or by the
//! environment ([`record_as_environment_says`]), at any time, without a rebuild. A program adds its own
//! events: [`span`] for a stretch of time, [`EventKind`] for moments with two values.
//!
//! # Examples
//! ```
//! use sakia_trace::{EventKind, Recording, TraceOptions};
//!
//! # let folder = std::env::temp_dir().join(format!("sakia-trace-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! let recording = Recording::to_file(folder.join("trace"), TraceOptions::default())?;
//! let found = EventKind::register("found", ["key", "bytes"]);
//! found.record(17, 4096);
//! let summary = recording.stop()?;
//! assert_eq!((summary.events, summary.lost), (1, 0));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! # Contents
//! - [`Recording`], [`TraceOptions`], [`RecordingSummary`]: a recording, from its begin to its file.
//! - [`span`], [`in_span`], [`EventKind`], [`Name`], [`StaticName`]: events of the program.
//! - [`Trace`], [`Summary`], [`plot`]: a file that is read back, in words or as a picture.
//! - [`record`], [`task_spawned`], [`task_runs`], [`system_call`], [`is_on`] and others: event points of a
//!   driver and an executor.
//!
//! # Buffers and the file
//! Each thread puts its events into a buffer of its own, of fixed size, without a lock; events that find it
//! full are lost, and counted. A thread named `sakia-trace` writes them to the file.
//!
//! The file has Perfetto's track events: a track for each thread with its turns, tasks, system calls and
//! spans, and tracks for the operations that it has in flight. Its clock is `CLOCK_MONOTONIC`.

#![forbid(unsafe_code)]

mod buffer;
mod encode;
mod event;
mod event_packet;
mod file;
mod handed_over;
mod in_flight;
mod kind;
mod lock;
mod name;
mod plot;
mod proc;
mod protobuf;
mod read;
mod recorder;
#[cfg(test)]
mod reference;
mod sample;
mod schema;
mod span;
mod summary;
mod system_calls;
mod task;

pub use event::{Event, EventType, Queued};
pub use file::{EVENTS_VARIABLE, FILE_VARIABLE, record_as_environment_says};
pub use handed_over::add_handed_over;
pub use kind::EventKind;
pub use name::{Name, StaticName};
pub use plot::{Stretch, plot};
pub use read::{ReadError, Slice, Trace, Track, Value};
pub use recorder::{
    Measuring, Recording, RecordingSummary, TraceOptions, flush, is_on, is_watched, measure, now,
    record, record_call, system_call,
};
pub use span::{Span, in_span, span};
pub use summary::{KindSummary, LongTurn, Summary, ThreadSummary, Workers};
pub use task::{TaskRun, task_runs, task_spawned};
