//! Every limit of the rules, one constant for each meaning: bytes, calls and times on the thread of a
//! program's tasks. All code that decides whether a call is made there takes its limit from here.
//!
//! A figure that was measured names its page in `docs/results`, or is a fact of `PLATFORM.md` (*Rules of
//! the driver*). The others are chosen, and say by what.

use std::time::Duration;

// ---- one call ------------------------------------------------------------------------------------------

/// The most bytes of one plain call, unless its rule says otherwise: the copy of more would delay other
/// tasks, and costs more than the queue's entry does (`PLATFORM.md`).
pub const CALL_BYTES: usize = 64 << 10;

/// The most bytes that a caller outside of a driver copies on its own thread before other tasks have a turn:
/// from here on the copy is most of the cost of another thread, too (`docs/results/engine.md`).
pub const CALLER_BYTES: usize = 256 << 10;

/// The most buffers of one vectored call: the kernel's `UIO_MAXIOV`.
pub const BUFFERS_MAX: usize = 1024;

/// The most room for the control messages of one receive; more room has no effect. A datagram brings fewer
/// than 16 KiB: four headers of IPv6 with 2 KiB each, a label of a security module, 253 descriptors, and
/// short ones. A program in C sends as much at most.
pub const CONTROL_BYTES_MAX: usize = 64 << 10;

/// The most requests that a loop may have under way, unless its user says otherwise. Chosen: with 4 KiB each,
/// their memory is 256 MiB.
pub const UNDER_WAY_MAX: usize = 65_536;

/// The bytes whose copy costs about as much as the rest of a small call or message (`PLATFORM.md`).
pub const UNIT_BYTES: u32 = 8 << 10;

/// The time that only a call takes that has waited for a device: a wake costs little compared to it. Chosen:
/// several times a copy of [`CALLER_BYTES`].
pub const DEVICE_TIME: Duration = Duration::from_micros(100);

/// The cost of a call on another thread, including its result, on an idle machine.
pub const LANE_TIME: Duration = Duration::from_micros(30);

// ---- the plain calls of a turn -------------------------------------------------------------------------

/// The plain calls of a turn, in units of a small call; and those in a row on a stream that is adapted for
/// other ecosystems, before other tasks run.
pub const TURN_CALLS: u32 = 64;

/// The fewest, when crowds lower the number.
pub const TURN_CALLS_MIN: u32 = 1;

/// The number of operations in a turn that make a crowd.
pub const CROWD: u32 = 8;

/// Tasks make plain calls for this long after the first of them is polled.
pub const TURN_CALLS_TIME: Duration = Duration::from_micros(500);

/// The most units between two clock reads.
pub const CLOCK_STRIDE: u32 = 32;

/// With more time between two reads, the tasks' own work included, the clock is read before each call.
pub const CLOCK_LONG: Duration = Duration::from_micros(128);

/// The number of consecutive shorter intervals after which the reads are spread out. The first interval of a
/// turn may be short before a task works long.
pub const CLOCK_SHORT_MAX: u32 = 8;

/// Deferred operations that are performed before the caller runs.
pub const DEFERRED_AT_A_TIME: u32 = 8;

/// A task that waited for a turn counts as this many of them: it makes several calls.
pub const DEFERRED_TURN: u32 = 4;

/// The most unused turns that are kept for the tasks that waited for them; more than that belonged to tasks
/// that gave up.
pub const RESERVED_MAX: u32 = 32;

// ---- what a turn handles -------------------------------------------------------------------------------

/// The most completions handled in one turn before the caller runs.
pub const TURN_COMPLETIONS: u32 = 1024;

/// Messages received in a turn after which it makes no further enter, so that the tasks that they are for run
/// while the processor's caches have them (`PLATFORM.md`).
pub const TURN_MESSAGES: u64 = 64;

/// The same in bytes.
pub const TURN_BYTES: usize = 256 << 10;

// ---- calls that cannot refuse to wait ------------------------------------------------------------------

/// Longer than any call that only copies: one such call opens the breaker of a mount.
pub const STALL: Duration = Duration::from_micros(500);

/// More than the cost of handing the operation to a worker: [`SLOW_MAX`] such calls in a row open it.
pub const SLOW: Duration = Duration::from_micros(50);

/// See [`SLOW`].
pub const SLOW_MAX: u8 = 4;

/// Calls that are watched after a stall or a pause.
pub const WATCHED: u16 = 256;

/// The first pause of a breaker; each one doubles, until all watched calls were quick.
pub const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The longest pause.
pub const PAUSE_MAX: Duration = Duration::from_secs(6);

// ---- calls in place or on another thread ---------------------------------------------------------------

/// A moving average of latencies covers about this number of calls.
pub const LATENCY_CALLS: u32 = 16;

/// The most that one call adds to it. Chosen: above [`LANE_TIME`] in the average only after two slow calls in
/// short succession.
pub const LATENCY_MAX: Duration = Duration::from_micros(400);

/// With an average above [`LANE_TIME`], one in this many calls is made in place, to notice a change.
pub const LANE_PROBE: u32 = 8;

/// A generous estimate of the time to read a cached entry of a directory, which is no wait.
pub const ENTRY_TIME: Duration = Duration::from_nanos(500);

// ---- mounts --------------------------------------------------------------------------------------------

/// Opens between two readings of the table of mounts.
pub const MOUNT_OPENINGS: u32 = 4096;

/// The most mounts that are known at a time: a machine may mount and unmount for ever.
pub const MOUNTS: usize = if cfg!(miri) { 64 } else { 4096 };

/// The most names that are not tried as names in memory after one that was not.
pub const IN_MEMORY_SKIPS: u32 = 64;

// ---- ways that are compared ----------------------------------------------------------------------------

/// Epochs of each way in a comparison.
pub const ROUNDS: usize = 3;

/// Epochs before the first trial: the caches of a new thread are cold.
pub const WARM_UP: u32 = 2;

/// The fewest and the most epochs between two trials, and between two comparisons after changes.
pub const TRIALS_APART: [u32; 2] = [8, 128];

/// The number of consecutive epochs of unusual cost that show a change.
pub const STRANGE: u32 = 2;

/// Operations of an epoch of crowds.
pub const CROWD_EPOCH: u32 = 1024;

// ---- a round of a runtime ------------------------------------------------------------------------------

/// The most tasks polled in one round.
pub const ROUND_TASKS: u32 = 256;

/// Polls in a round after which arrived events are handled, however short these polls were.
pub const HEARING_POLLS: u32 = 32;

/// The shortest time after which a round ends for a reason.
pub const ROUND_TIME: Duration = Duration::from_micros(500);

/// The same if most operations in flight are not submitted yet: some twenty times the time of a submission.
pub const SUBMIT_TIME: Duration = Duration::from_micros(50);

/// Readings of the clock for timers in one round, or plain calls in its turn, before an alarm is set.
pub const CLOCK_LOOKS: u32 = 8;

/// The most polls between two readings of the clock, on a backend that reports nothing without a system call.
pub const POLLS_STRIDE: u32 = 32;

/// After polls longer than this the clock is read after each.
pub const LONG_POLL: Duration = Duration::from_micros(4);
