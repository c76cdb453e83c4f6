//! The handle by which any thread looks at a runtime.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use sakia_driver::{LiveOperation, ObservedOperation, Observer, OpKind, OperationState, Stage};
use sakia_ring::Process;

use super::{Inspection, Operation, Setting, ThreadInspection};
use crate::executor::{Local, current, with_current};
use crate::unfinished::Unfinished;

/// Looks at a runtime from any thread; see [`inspect`](crate::inspect). Clones look at the same one.
///
/// It keeps only the runtime's records alive. After the runtime's end they show its last state.
///
/// # Examples
/// See [`inspect`](crate::inspect#examples).
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(crate) shared: Arc<Shared>,
}

/// Returns the inspector of the calling thread's runtime.
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     let seen = sakia::inspect::inspector().inspect();
///     assert_eq!(seen.threads.len(), 1);
///     assert!(seen.configuration.iter().any(|setting| setting.name == "backend"));
/// });
/// ```
#[track_caller]
pub fn inspector() -> Inspector {
    Inspector { shared: Arc::clone(&current().shown) }
}

impl Inspector {
    /// Returns a snapshot of the runtime. Never blocks: it may be called from within a task, from the
    /// callback of a [warning](super::Warnings::callback), while a thread of the runtime is stuck, and while
    /// the runtime ends.
    ///
    /// For each descriptor it reads a link in `/proc`, which takes about a microsecond. The file itself is
    /// not touched.
    ///
    /// # Examples
    /// See [`inspect`](crate::inspect#examples).
    pub fn inspect(&self) -> Inspection {
        let own =
            with_current(|local| Arc::ptr_eq(&local.shown, &self.shared).then(|| local.clone()));
        self.shared.inspect(own.flatten().as_deref())
    }
}

/// The inspector's view of a runtime.
#[derive(Debug)]
pub(crate) struct Shared {
    /// By thread number. Empty until the thread has a driver.
    threads: Box<[OnceLock<Shown>]>,
    configuration: OnceLock<Box<dyn Configured>>,
    /// The blocking code that the runtime has started.
    pub(crate) closures: Arc<Unfinished>,
}

/// The settings of a runtime, which its builder knows.
pub(crate) trait Configured: fmt::Debug + Send + Sync {
    /// Returns all settings, with the values that are in force by now.
    fn settings(&self) -> Vec<Setting>;
}

/// The inspector's view of one thread.
#[derive(Debug)]
struct Shown {
    thread_id: u32,
    /// `None` if it does not record its activity.
    observer: Option<Observer>,
}

impl Shared {
    pub(crate) fn new(threads: usize) -> Arc<Self> {
        let threads = (0..threads).map(|_| OnceLock::new()).collect();
        Arc::new(Self { threads, configuration: OnceLock::new(), closures: Arc::default() })
    }

    /// Registers the calling thread under this number.
    pub(crate) fn add(&self, thread: usize, observer: Option<Observer>) {
        let is_first = self.threads[thread].set(Shown { thread_id: thread_id(), observer }).is_ok();
        debug_assert!(is_first, "a runtime thread has one driver");
    }

    /// Sets the configuration. Called once.
    pub(crate) fn configure(&self, configuration: impl Configured + 'static) {
        let is_first = self.configuration.set(Box::new(configuration)).is_ok();
        debug_assert!(is_first, "a runtime has one builder");
    }

    /// Returns a snapshot of all threads. `own` is the calling thread, if it is one of them.
    pub(crate) fn inspect(&self, own: Option<&Local>) -> Inspection {
        let threads = self.threads.iter().enumerate().map(|(number, shown)| {
            let own = own.filter(|local| local.number() == number);
            inspect_thread(number, shown.get(), own)
        });
        Inspection {
            threads: threads.collect(),
            configuration: self.configuration.get().map(|its| its.settings()).unwrap_or_default(),
            closures: self.closures.count(),
        }
    }
}

/// Returns the kernel's number of the calling thread. Only the first call on a thread asks the kernel.
fn thread_id() -> u32 {
    thread_local! {
        /// The number, and the process in which it is that of this thread.
        static KNOWN: Cell<Option<(Process, u32)>> = const { Cell::new(None) };
    }
    match KNOWN.get() {
        Some((process, id)) if process.is_intact() => id,
        _ => {
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            KNOWN.set(Some((Process::current(), id)));
            id
        }
    }
}

fn inspect_thread(number: usize, shown: Option<&Shown>, own: Option<&Local>) -> ThreadInspection {
    let thread_id = shown.map(|shown| shown.thread_id);
    let observer = shown.and_then(|shown| shown.observer.as_ref());
    let mut seen = ThreadInspection {
        number,
        thread_id,
        is_recorded: observer.is_some(),
        doing: None,
        doing_for: None,
        operations: Vec::new(),
        unread: 0,
        status: None,
    };
    if let Some(observer) = observer {
        (seen.doing, seen.doing_for) = observer.doing().unzip();
        let (operations, unread) = observer.operations_and_unread();
        let has_paths = observer.descriptors_are_of_this_process();
        seen.operations = operations.iter().map(|one| operation(one, has_paths)).collect();
        if has_paths {
            let (left, _) = observer.operations_and_unread();
            remove_outdated_paths(&mut seen.operations, left.iter().map(|one| one.user_data));
        }
        (seen.unread, seen.status) = (unread, observer.status());
    } else if let Some(local) = own {
        let operations = local.driver.operations();
        seen.operations = operations.iter().filter_map(unrecorded).collect();
        seen.status = Some(local.driver.status());
    }
    seen
}

/// Removes the paths of operations that are over by now: their numbers may be those of other files already.
/// `left` are the others.
fn remove_outdated_paths(shown: &mut [Operation], left: impl Iterator<Item = u64>) {
    let left: HashSet<u64> = left.collect();
    for operation in shown.iter_mut().filter(|one| !left.contains(&one.user_data)) {
        operation.path_now = None;
    }
}

/// Returns an operation as it is shown; with the path of its descriptor, if that is one of the process.
pub(super) fn operation(observed: &ObservedOperation, has_paths: bool) -> Operation {
    // The number of a close that was begun may be that of another file.
    let may_be_closed = observed.kind == OpKind::Close && observed.state != OperationState::Parked;
    let descriptor = observed.descriptor.filter(|_| has_paths && !may_be_closed);
    let path_now = descriptor.and_then(path_now);
    Operation {
        kind: observed.kind,
        user_data: observed.user_data,
        state: observed.state,
        descriptor: observed.descriptor,
        path_now,
        age: Some(observed.age),
        is_bounded: observed.is_bounded,
        is_cancel_asked: observed.is_cancel_asked,
        is_orphan: observed.is_orphan,
        task: observed.task,
    }
}

/// Describes an operation by its slot alone. `None` once it is over.
fn unrecorded(live: &LiveOperation) -> Option<Operation> {
    let state = match live.stage {
        Stage::Parked => OperationState::Parked,
        Stage::Queued => OperationState::Delayed,
        Stage::InFlight => OperationState::Submitted,
        Stage::Lost => OperationState::Lost,
        _ => return None,
    };
    Some(Operation {
        kind: live.op_kind,
        user_data: live.user_data,
        state,
        descriptor: live.descriptor,
        path_now: None,
        age: None,
        is_bounded: live.is_bounded,
        is_cancel_asked: live.is_cancel_asked,
        is_orphan: live.is_orphan,
        task: None,
    })
}

fn path_now(descriptor: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_has_ended_has_no_path() {
        let shown = |user_data| Operation {
            kind: OpKind::Read,
            user_data,
            state: OperationState::Submitted,
            descriptor: Some(0),
            path_now: Some("/a".into()),
            age: None,
            is_bounded: true,
            is_cancel_asked: false,
            is_orphan: false,
            task: None,
        };
        let mut operations = [1, 2, 3].map(shown);
        remove_outdated_paths(&mut operations, [4, 3, 1].into_iter());
        assert_eq!(operations.map(|one| one.path_now.is_some()), [true, false, true]);
    }
}
