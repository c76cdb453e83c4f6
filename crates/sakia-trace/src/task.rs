//! Tasks, as reported by an executor.

use std::num::NonZeroU64;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{EventType, Name, record};

/// The number of the next task; zero means no task.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Records that a task was spawned at `place` by the task that runs on this thread. Returns its number. Call
/// it only if a recording [is on](crate::is_on).
///
/// # Examples
/// See [`task_runs()`](task_runs()#examples).
#[cold]
#[inline(never)]
pub fn task_spawned(place: &Location<'_>) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let place = Name::register(&format!("{}:{}", place.file(), place.line()));
    record(EventType::TaskSpawned, number, crate::recorder::current_task(), place.number().into());
    number
}

/// A stretch in which a task runs on the calling thread, from [`task_runs`] to [`ends`](TaskRun::ends).
///
/// It has no destructor, so that an executor without a recording has one word to test after each poll.
///
/// # Examples
/// See [`task_runs()`](task_runs()#examples).
#[derive(Clone, Copy, Debug)]
#[must_use = "the task runs on until `ends` is called"]
pub struct TaskRun(
    /// The number of the task that runs on afterwards, plus one.
    NonZeroU64,
);

/// Records that a task runs. `number` is set if it is zero, because the task was spawned before the recording
/// began. Operations that it starts are recorded as its own. Call it only if a recording [is
/// on](crate::is_on).
///
/// # Examples
/// An executor tells of a task that it polls:
/// ```
/// use std::panic::Location;
///
/// use sakia_trace::{Recording, TraceOptions, is_on, task_runs, task_spawned};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-trace-tasks-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let recording = Recording::to_file(dir.join("trace"), TraceOptions::default())?;
/// let mut number = if is_on() { task_spawned(Location::caller()) } else { 0 };
/// if is_on() {
///     let run = task_runs(&mut number);
///     // Polls the task, which is ready.
///     run.ends(number, true);
/// }
/// assert!(recording.stop()?.events >= 3);
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[cold]
#[inline(never)]
pub fn task_runs(number: &mut u64) -> TaskRun {
    if *number == 0 {
        *number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = Name::register("before the recording");
        record(EventType::TaskSpawned, *number, 0, place.number().into());
    }
    let outer = crate::recorder::current_task();
    record(EventType::PollBegin, *number, 0, 0);
    TaskRun(NonZeroU64::MIN.saturating_add(outer))
}

impl TaskRun {
    /// Records that the task `number` returned, and whether it has ended.
    ///
    /// # Examples
    /// See [`task_runs()`](task_runs()#examples).
    #[cold]
    #[inline(never)]
    pub fn ends(self, number: u64, has_ended: bool) {
        record(EventType::PollEnd, number, has_ended.into(), self.0.get() - 1);
    }
}
