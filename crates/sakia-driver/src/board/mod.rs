//! The board: a copy of a driver's state that other threads read while the driver's thread runs, and while it
//! is stuck in users' code or in a system call.
//!
//! A driver has one once it is [watched](crate::Driver::watch). Its thread writes down the start, progress
//! and end of each operation, and its own activity, so that readers need no answer from it. A snapshot that
//! the thread makes in its next turn would lack the call that it is stuck in. Other threads cannot read the
//! slots themselves: the kernel and the driver's thread write to them, and every program would pay for making
//! all their fields atomic. So the board is a copy, with a record for each slot, and a driver that is not
//! watched has none and pays nothing.
//!
//! # Invariants
//! - Only the driver's thread writes. Each record is written as a whole, under a count ([`record`]), so that
//!   no reader gets a mix of two operations.
//! - Readers never hold the writer up, and never wait for it. A record that keeps changing while it is read
//!   is left out, and counted.
//! - Records of different operations are of different moments: a list of operations is no consistent
//!   snapshot.
//! - Memory of records is never freed before the board is, which lives until its last owner drops it. The
//!   board owns no part of the driver, and outlives it.

mod places;
mod record;
mod status;

use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::record::Record;
pub use self::status::DriverStatus;
use crate::counters::OpKind;
use crate::decide::Lane;

/// Records in the first segment. Each further segment has twice as many as the one before.
const FIRST: u32 = 256;
/// Enough segments for all slots that a driver may have.
const SEGMENTS: usize = 17;
/// Number of attempts to read a record that changes meanwhile.
const ATTEMPTS: u32 = 64;

/// A task to which an operation, or a thread's activity, belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TaskOrigin {
    /// Its number, which no other task of the process has.
    pub number: u64,
    /// The source location of the call that spawned it.
    pub spawned_at: &'static Location<'static>,
}

impl TaskOrigin {
    /// Returns a task with this number, which was spawned there.
    pub fn new(number: u64, spawned_at: &'static Location<'static>) -> Self {
        Self { number, spawned_at }
    }

    /// Returns a task as two words; zeros for no task.
    fn words(task: Option<Self>) -> [u64; 2] {
        task.map_or([0; 2], |task| [task.number, places::number_of(task.spawned_at)])
    }

    fn of([number, place]: [u64; 2]) -> Option<Self> {
        places::place_of(place).map(|spawned_at| Self { number, spawned_at })
    }
}

/// The progress of a watched operation.
///
/// # Examples
/// See [`Driver::watch`](crate::Driver::watch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OperationState {
    /// The driver's thread performs it by a plain system call, or decides how it is performed.
    Plain,
    /// It waits for the descriptor that it closes, which other operations or clones still use.
    Parked,
    /// It waits in the driver: for admission, or for the plain calls of another turn.
    Delayed,
    /// It has an entry in the queue that the kernel has not been given.
    Queued,
    /// The kernel has it. Without a ring: epoll or the threads.
    Submitted,
    /// A thread of this lane has it, or it is in the lane's queue.
    Lane(Lane),
    /// An epoll set beside the ring watches its descriptor.
    Readiness,
    /// The driver has ended and could not get its memory back.
    Lost,
}

/// An operation of a driver that is [watched](crate::Driver::watch).
///
/// # Examples
/// See [`Driver::watch`](crate::Driver::watch).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObservedOperation {
    /// The `user_data` of its entry. No other operation of the driver has the same.
    pub user_data: u64,
    /// Its kind.
    pub kind: OpKind,
    /// The stage that it has reached.
    pub state: OperationState,
    /// The descriptor that it names: the file that it acts on, or the directory at which its path begins.
    pub descriptor: Option<i32>,
    /// The time since its start; of a close, once it no longer waits, since the last other use of the
    /// descriptor ended.
    pub age: Duration,
    /// It ends by itself, as operations on files do.
    pub is_bounded: bool,
    /// Its cancellation was requested.
    pub is_cancel_asked: bool,
    /// No task waits for it: its future was dropped, or it was started detached.
    pub is_orphan: bool,
    /// The task that started it, if the loop around the driver has named one.
    pub task: Option<TaskOrigin>,
}

/// The activity of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Doing {
    /// Code outside of the loop, which has not begun or has returned to its caller.
    Outside,
    /// It polls a task.
    Task(TaskOrigin),
    /// Work of the loop itself: timers, wakers, a turn of the driver without a sleep.
    Loop,
    /// It sleeps until an operation completes.
    Asleep,
    /// Its driver has ended.
    Ended,
}

/// Flags of a record.
pub(crate) mod mark {
    /// The record holds an operation.
    pub(crate) const PRESENT: u8 = 1;
    pub(crate) const BOUNDED: u8 = 2;
    pub(crate) const CANCEL_ASKED: u8 = 4;
    pub(crate) const ORPHAN: u8 = 8;
}

/// An operation in the form of its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pub(crate) user_data: u64,
    /// Its start, on the driver's clock; of an operation that was parked, the end of that wait.
    pub(crate) since: Duration,
    pub(crate) kind: OpKind,
    pub(crate) descriptor: i32,
    pub(crate) state: OperationState,
    /// [`mark`]s.
    pub(crate) marks: u8,
    /// The number of its push, counted from 1, once it is in the queue.
    pub(crate) push: u64,
    /// The task as two words.
    pub(crate) task: [u64; 2],
}

/// States by number.
const STATES: [OperationState; 9] = [
    OperationState::Plain,
    OperationState::Parked,
    OperationState::Delayed,
    OperationState::Queued,
    OperationState::Submitted,
    OperationState::Lane(Lane::Bounded),
    OperationState::Lane(Lane::Elastic),
    OperationState::Readiness,
    OperationState::Lost,
];

const WORDS: usize = 6;

impl Noted {
    pub(crate) fn has(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    fn words(&self) -> [u64; WORDS] {
        let state = STATES.iter().position(|&state| state == self.state).unwrap_or_default();
        let bytes = [self.kind as u8, state as u8, self.marks, 0];
        let packed = u64::from(self.descriptor as u32) | u64::from(u32::from_le_bytes(bytes)) << 32;
        let [number, place] = self.task;
        [self.user_data, nanos(self.since), packed, self.push, number, place]
    }

    /// Decodes a record. `None` if it holds no operation.
    fn of([user_data, since, packed, push, number, place]: [u64; WORDS]) -> Option<Self> {
        let [kind, state, marks, _] = ((packed >> 32) as u32).to_le_bytes();
        let noted = Self {
            user_data,
            since: Duration::from_nanos(since),
            kind: *OpKind::ALL.get(usize::from(kind))?,
            descriptor: packed as u32 as i32,
            state: *STATES.get(usize::from(state))?,
            marks,
            push,
            task: [number, place],
        };
        noted.has(mark::PRESENT).then_some(noted)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The records of one driver.
#[derive(Debug)]
pub(crate) struct Board {
    clock: Clock,
    /// The thread's activity, the activity's start, and the task.
    doing: Record<4>,
    status: Record<{ status::NUMBERS }>,
    /// The number of entries that the kernel has been given, of those pushed since the board was made.
    submitted: AtomicU64,
    /// One record for each slot that was ever used, by the slot's index.
    segments: [OnceLock<Box<[Record<WORDS>]>>; SEGMENTS],
    /// The number of slots that were ever used.
    used: AtomicU32,
    has_ended: AtomicBool,
}

/// The source of the driver's time, for readers.
#[derive(Debug)]
enum Clock {
    /// The system's clock; the value is the moment of the driver's zero.
    Real(Instant),
    /// The driver's thread, which stores the time here in nanoseconds.
    Virtual(AtomicU64),
}

impl Board {
    /// Makes the board of a driver whose time is now `now`, and passes by itself unless it is virtual.
    pub(crate) fn new(now: Duration, is_virtual: bool) -> Self {
        let here = Instant::now();
        let clock = match here.checked_sub(now) {
            Some(zero) if !is_virtual => Clock::Real(zero),
            _ => Clock::Virtual(nanos(now).into()),
        };
        Self {
            clock,
            doing: Record::new(),
            status: Record::new(),
            submitted: AtomicU64::new(0),
            segments: Default::default(),
            used: AtomicU32::new(0),
            has_ended: AtomicBool::new(false),
        }
    }

    // ---- for the driver's thread -----------------------------------------------------------------

    /// Writes the record of an operation in the slot with this index.
    pub(crate) fn note(&self, index: u32, noted: &Noted) {
        let (segment, offset) = place(index);
        let records = self.segments[segment]
            .get_or_init(|| (0..(FIRST as usize) << segment).map(|_| Record::new()).collect());
        records[offset].write(noted.words());
        if index >= self.used.load(Ordering::Relaxed) {
            self.used.store(index + 1, Ordering::Release); // pairs with the load in `records`
        }
    }

    /// Returns the operation recorded for that slot.
    pub(crate) fn noted(&self, index: u32) -> Option<Noted> {
        Noted::of(self.record(index)?.own())
    }

    /// Clears the record of that slot.
    pub(crate) fn clear(&self, index: u32) {
        if let Some(record) = self.record(index) {
            record.write([0; WORDS]);
        }
    }

    /// Records that the kernel has been given the first `pushes` entries that were pushed since the board was
    /// made.
    pub(crate) fn set_submitted(&self, pushes: u64) {
        self.submitted.store(pushes, Ordering::Relaxed);
    }

    pub(crate) fn set_status(&self, status: &DriverStatus) {
        self.status.write(status.words());
    }

    /// Sets the thread's activity from `now` on.
    pub(crate) fn set_doing(&self, doing: Doing, now: Duration) {
        self.set_time(now);
        let (number, task) = match doing {
            Doing::Outside => (0, None),
            Doing::Task(task) => (1, Some(task)),
            Doing::Loop => (2, None),
            Doing::Asleep => (3, None),
            Doing::Ended => (4, None),
        };
        let [task, place] = TaskOrigin::words(task);
        self.doing.write([number, nanos(now), task, place]);
    }

    /// Stores the time, if readers cannot read it from the system's clock.
    pub(crate) fn set_time(&self, now: Duration) {
        if let Clock::Virtual(time) = &self.clock {
            time.store(nanos(now), Ordering::Relaxed);
        }
    }

    /// Marks the driver as ended. The records do not change any more.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    // ---- for all threads -------------------------------------------------------------------------

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    fn now(&self) -> Duration {
        match &self.clock {
            Clock::Real(zero) => zero.elapsed(),
            Clock::Virtual(time) => Duration::from_nanos(time.load(Ordering::Relaxed)),
        }
    }

    fn record(&self, index: u32) -> Option<&Record<WORDS>> {
        let (segment, offset) = place(index);
        self.segments[segment].get().map(|records| &records[offset])
    }

    /// Returns the thread's activity and its age. `None` if it changes during each attempt to read it.
    pub(crate) fn doing(&self) -> Option<(Doing, Duration)> {
        let [number, since, task, place] = read(&self.doing)?;
        let doing = match (number, TaskOrigin::of([task, place])) {
            _ if self.has_ended() => Doing::Ended,
            (1, Some(task)) => Doing::Task(task),
            (2, _) => Doing::Loop,
            (3, _) => Doing::Asleep,
            (4, _) => Doing::Ended,
            _ => Doing::Outside,
        };
        Some((doing, self.now().saturating_sub(Duration::from_nanos(since))))
    }

    pub(crate) fn status(&self) -> Option<DriverStatus> {
        read(&self.status).map(DriverStatus::of)
    }

    /// Returns all operations, oldest first, and the number of records that changed too often to be read.
    pub(crate) fn operations(&self) -> (Vec<ObservedOperation>, u32) {
        let (mut noted, mut unread) = (Vec::new(), 0);
        for index in 0..self.used.load(Ordering::Acquire) {
            // A segment in between may not be allocated yet.
            let Some(record) = self.record(index) else { continue };
            match read(record) {
                Some(words) => noted.extend(Noted::of(words)),
                None => unread += 1,
            }
        }
        noted.sort_by_key(|noted| noted.since);
        (noted.iter().map(|noted| self.observed(noted)).collect(), unread)
    }

    /// Returns an operation in the form for readers.
    pub(crate) fn observed(&self, noted: &Noted) -> ObservedOperation {
        let is_given = noted.push <= self.submitted.load(Ordering::Relaxed);
        let state = match noted.state {
            OperationState::Queued if is_given => OperationState::Submitted,
            state => state,
        };
        ObservedOperation {
            user_data: noted.user_data,
            kind: noted.kind,
            state,
            descriptor: Some(noted.descriptor).filter(|&raw| raw >= 0),
            age: self.now().saturating_sub(noted.since),
            is_bounded: noted.has(mark::BOUNDED),
            is_cancel_asked: noted.has(mark::CANCEL_ASKED),
            is_orphan: noted.has(mark::ORPHAN),
            task: TaskOrigin::of(noted.task),
        }
    }
}

/// Returns a task as the two words of a record.
pub(crate) fn task_words(task: Option<TaskOrigin>) -> [u64; 2] {
    TaskOrigin::words(task)
}

fn read<const N: usize>(record: &Record<N>) -> Option<[u64; N]> {
    (0..ATTEMPTS).find_map(|_| {
        let words = record.try_read();
        if words.is_none() {
            std::hint::spin_loop();
        }
        words
    })
}

/// Returns the segment of a slot's record, and the record's index in it.
fn place(index: u32) -> (usize, usize) {
    let segment = (index / FIRST + 1).ilog2();
    let before = FIRST * ((1 << segment) - 1);
    (segment as usize, (index - before) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SLOTS_MAX;

    fn noted(user_data: u64) -> Noted {
        Noted {
            user_data,
            since: Duration::from_secs(user_data),
            kind: OpKind::Fsync,
            descriptor: -1,
            state: OperationState::Queued,
            marks: mark::PRESENT | mark::BOUNDED,
            push: 2,
            task: task_words(Some(TaskOrigin::new(9, Location::caller()))),
        }
    }

    #[test]
    fn each_slot_has_a_record_of_its_own() {
        let mut expected = (0, 0);
        for index in 0..FIRST * 15 {
            assert_eq!(place(index), expected);
            expected.1 += 1;
            if expected.1 == (FIRST as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
        let (segment, offset) = place(SLOTS_MAX - 1);
        assert!(segment < SEGMENTS && offset < (FIRST as usize) << segment);
    }

    #[test]
    fn operations_are_read_as_they_were_noted() {
        let board = Board::new(Duration::from_secs(10), true);
        board.note(700, &noted(5));
        board.note(0, &Noted { marks: mark::PRESENT | mark::ORPHAN, descriptor: 3, ..noted(7) });
        board.note(1, &noted(6));
        board.clear(1);
        board.set_submitted(1);
        let (operations, unread) = board.operations();
        assert_eq!((operations.len(), unread), (2, 0));
        let [first, second] = &operations[..] else { panic!("{operations:?}") };
        assert_eq!((first.user_data, first.age), (5, Duration::from_secs(5)));
        assert_eq!((first.kind, first.state), (OpKind::Fsync, OperationState::Queued));
        assert!(first.is_bounded && !first.is_orphan && first.descriptor.is_none());
        assert_eq!(first.task.map(|task| task.number), Some(9));
        assert_eq!((second.user_data, second.descriptor, second.is_orphan), (7, Some(3), true));
        board.set_submitted(2);
        let (operations, _) = board.operations();
        assert_eq!(operations[0].state, OperationState::Submitted);
    }

    #[test]
    fn what_the_thread_does_is_told_with_the_task() {
        let board = Board::new(Duration::ZERO, true);
        assert_eq!(board.doing(), Some((Doing::Outside, Duration::ZERO)));
        let task = TaskOrigin::new(3, Location::caller());
        board.set_doing(Doing::Task(task), Duration::from_secs(1));
        board.set_time(Duration::from_secs(3));
        assert_eq!(board.doing(), Some((Doing::Task(task), Duration::from_secs(2))));
        board.end();
        assert_eq!(board.doing().map(|(doing, _)| doing), Some(Doing::Ended));
    }

    #[test]
    fn all_numbers_of_the_status_arrive() {
        let board = Board::new(Duration::ZERO, true);
        let words = std::array::from_fn(|index| index as u64);
        board.set_status(&DriverStatus::of(words));
        let numbers: Vec<u64> =
            board.status().expect("nothing changes").iter().map(|(_, number)| number).collect();
        assert_eq!(numbers, words);
    }
}
