//! Which way an operation takes: the queue of its backend, a plain system call here and now, or a thread
//! of a lane.
//!
//! A ring is not always the cheaper way: what the page cache holds is read by one plain call for less
//! than an entry and its completion cost, and what the kernel hands to its workers anyway (buffered
//! writes on most file systems, everything on a file system in memory, questions about a file) costs a
//! multiple on a ring. So for each kind of operation a [`Rule`] says what is tried first. A plain call
//! is made only where it does not wait for a device: it either fails instead of waiting
//! (`RWF_NOWAIT`, `RESOLVE_CACHED`), or it is one that is not known to wait, and is timed.
//!
//! What is learned on the way:
//! - per *file*, in two bits, whether reads find their bytes in the page cache ([`CacheHint`]);
//! - per *mount*, by the file system's type and by what it answers, whether it can refuse to wait, and
//!   whether plain calls have lately been slow ([`Mount`], [`Breaker`]).
//!
//! What is done in a turn this way is bounded ([`InlineBudget`]), in number and, while tasks are polled, in
//! time; what exceeds it is done in the next turns, in the order of asking.
//!
//! Used by the driver's thread only.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::counters::OpKind;
use crate::epoll::Lane;
pub(crate) use crate::mounts::is_local;
use crate::mounts::{RemoteMounts, closes_at_once, is_remote};

/// Whether a driver makes plain calls where they are the cheaper way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a driver has one, which is looked at and not moved")]
pub enum Bypass {
    /// Never, as long as the queue can do it.
    #[default]
    Never,
    /// Where a rule says so.
    Rules(Rules),
}

/// What is tried first with one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether a plain call is tried before the queue.
    pub tries_now: bool,
    /// Bytes beyond which it is not: the copy alone would hold up others.
    pub bytes_max: u32,
}

impl Rule {
    /// Always the queue.
    pub const QUEUE: Self = Self { tries_now: false, bytes_max: 0 };
    /// Always a plain call first.
    pub const NOW: Self = Self { tries_now: true, bytes_max: u32::MAX };
    /// A plain call first for up to 64 KiB.
    pub const SMALL: Self = Self { tries_now: true, bytes_max: 64 << 10 };
}

/// A rule for each kind of operation.
#[derive(Clone, PartialEq, Eq)]
pub struct Rules {
    by_kind: [Rule; OpKind::COUNT],
}

/// The rules that were measured to be right; see `PLATFORM.md` for what they lead to by file system.
/// Kinds that are not here go to the queue.
const MEASURED: &[(OpKind, Rule)] = &[
    // What is cached is copied for less than an entry costs. What is not is refused, with read-ahead
    // begun.
    (OpKind::Read, Rule::SMALL),
    // A ring hands these to a worker, unless the file system can refuse to wait.
    (OpKind::Write, Rule::SMALL),
    // The lookup succeeds from the cache, or is refused.
    (OpKind::Open, Rule::NOW),
    // A ring always hands these to a worker.
    (OpKind::Statx, Rule::NOW),
    // The same work on the same thread either way.
    (OpKind::Close, Rule::NOW),
    // No ring has it.
    (OpKind::List, Rule::NOW),
    // Some advice is handed to a worker; all of it is short.
    (OpKind::Advise, Rule::NOW),
    // Short, and needs nobody else.
    (OpKind::Socket, Rule::NOW),
];

impl Default for Rules {
    /// The rules that were measured to be right.
    fn default() -> Self {
        let mut by_kind = [Rule::QUEUE; OpKind::COUNT];
        for &(kind, rule) in MEASURED {
            by_kind[kind as usize] = rule;
        }
        Self { by_kind }
    }
}

impl Rules {
    /// The rule for one kind.
    #[inline(always)]
    pub fn of(&self, kind: OpKind) -> Rule {
        self.by_kind[kind as usize]
    }

    /// The same rules but for one kind.
    #[must_use]
    pub fn with(mut self, kind: OpKind, rule: Rule) -> Self {
        self.by_kind[kind as usize] = rule;
        self
    }

    /// Nothing is tried.
    pub(crate) const NONE: Self = Self { by_kind: [Rule::QUEUE; OpKind::COUNT] };
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = OpKind::ALL.iter().map(|&kind| (kind.name(), self.of(kind)));
        f.debug_map().entries(kinds).finish()
    }
}

/// How a plain call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallMode {
    /// It fails where it would have to wait: for a device, or for somebody else.
    NonBlocking,
    /// It takes its time.
    Blocking,
}

/// What a plain call brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// A result as of a completion.
    Done(i32),
    /// It would have had to wait; nothing was done.
    WouldBlock,
    /// The file or the backend has no such call; nothing was done.
    Unsupported,
}

/// Which way an operation shall take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Into the backend's queue.
    Queue,
    /// A plain call.
    Now(CallMode),
    /// To a thread.
    Lane(Lane),
}

/// How long a plain call took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// When it was over, on the backend's clock.
    pub(crate) end: Duration,
    /// How long it took at most.
    pub(crate) took: Duration,
    /// Whether the thread waited in that call and no other. `None` when that was not looked at: something
    /// else may have happened in that time, too.
    pub(crate) has_waited: Option<bool>,
}

// ---- what is done in a turn --------------------------------------------------------------------

/// What plain calls may do in one turn: 64 of the smallest, or fewer that copy more. That is about 50
/// microseconds of calls, but the tasks that make them may work for any time in between. So where a loop says
/// when it begins to poll tasks, none are made once these have taken [`TIME_MAX`](InlineBudget::TIME_MAX):
/// 1. The clock is read before every few calls: before each one while they are far apart, else less and less
///    often, up to every [`STRIDE_MAX`](InlineBudget::STRIDE_MAX)th. It is one count for all turns, so that turns
///    of few calls are not missed.
/// 2. It is read once more in a turn when something has come, which a load or two tell before each call.
///
/// So a task that works long between its calls waits for the next turn after one piece of work. Where many
/// calls before were close to each other, and nothing tells of news, it does after up to 32 pieces.
///
/// Operations that find nothing left, and that a ring does well when it gets many at once, go there
/// ([`crowded`](InlineBudget::crowded)). Where that happens to many in a turn, they would all have been
/// better off there: an entry in a full queue costs less than a call. So the budget shrinks, and grows
/// again when nobody is left without.
#[derive(Debug)]
pub(crate) struct InlineBudget {
    /// What may be done before the clock is to be read.
    left: u32,
    /// What may be done after that.
    rest: u32,
    /// What a turn begins with.
    turn: u32,
    /// Operations of this turn that went to the ring for want of more.
    crowd: u32,
    pace: Pace,
    /// When the clock was last read.
    looked: Duration,
    /// How much is done between two looks at the clock.
    stride: u32,
    /// How many looks in a row found calls close to each other.
    short: u32,
}

/// How a turn's plain calls stand with the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// The clock is read when something has come.
    Listening,
    /// It was.
    Heard,
    /// Their time is over.
    Late,
}

impl InlineBudget {
    /// In units of a small call.
    const TURN_MAX: u32 = 64;
    const TURN_MIN: u32 = 1;
    /// So many in a turn are a crowd.
    const CROWD: u32 = 8;
    /// Copying so many bytes takes about as long as a small call.
    const BYTES_PER_UNIT: u32 = 8 << 10;
    /// How long after tasks began to be polled they make plain calls.
    const TIME_MAX: Duration = Duration::from_micros(500);
    /// The most that is done between two looks at the clock.
    const STRIDE_MAX: u32 = 32;
    /// With more time between two looks, the tasks' own work included, the clock is read before each call.
    const LONG: Duration = Duration::from_micros(128);
    /// Looks in a row that find it shorter, after which the next ones are further apart. The first one of a
    /// turn may find so before a task works long.
    const SHORT_MAX: u32 = 8;

    pub(crate) const fn new() -> Self {
        Self {
            left: Self::STRIDE_MAX,
            rest: Self::TURN_MAX - Self::STRIDE_MAX,
            turn: Self::TURN_MAX,
            crowd: 0,
            pace: Pace::Listening,
            looked: Duration::ZERO,
            stride: Self::STRIDE_MAX,
            short: 0,
        }
    }

    /// A turn begins.
    #[inline(always)]
    pub(crate) fn renew(&mut self) {
        if self.crowd >= Self::CROWD {
            self.turn = (self.turn / 2).max(Self::TURN_MIN);
        } else if self.crowd == 0 {
            self.turn = (self.turn * 2).min(Self::TURN_MAX);
        }
        self.crowd = 0;
        self.pace = Pace::Listening;
        let before_look = if self.left == 0 { self.stride } else { self.left };
        self.go_on(self.turn, before_look);
    }

    /// Has `all` left, of which `before_look` may be done before the clock is read.
    #[inline(always)]
    fn go_on(&mut self, all: u32, before_look: u32) {
        self.left = before_look.min(all);
        self.rest = all - self.left;
    }

    /// Whether a plain call may be made without a look at the clock, unless there are news.
    #[inline(always)]
    pub(crate) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Whether the clock is to be read as soon as something has come.
    #[inline(always)]
    pub(crate) fn listens(&self) -> bool {
        self.pace == Pace::Listening
    }

    /// Whether anything is left, whatever the clock says.
    #[inline(always)]
    pub(crate) fn is_any_left(&self) -> bool {
        self.left > 0 || self.rest > 0
    }

    /// How much was done in this turn; all if the time is over.
    pub(crate) fn spent(&self) -> u32 {
        self.turn - self.left - self.rest
    }

    /// Whether a plain call may be made when tasks are polled since `begin`, if they are; `now` reads the
    /// clock. `has_news` says whether something has come.
    pub(crate) fn look(
        &mut self,
        begin: Option<Duration>,
        now: impl FnOnce() -> Duration,
        has_news: bool,
    ) -> bool {
        if !self.is_any_left() {
            return false;
        }
        let all = self.left + self.rest;
        if has_news {
            self.pace = Pace::Heard;
        }
        let Some(begin) = begin else {
            self.go_on(all, all);
            return true;
        };
        let now = now();
        if now.saturating_sub(begin) >= Self::TIME_MAX {
            (self.left, self.rest, self.pace) = (0, 0, Pace::Late);
            (self.stride, self.short) = (1, 0);
            return false;
        }
        if now.saturating_sub(self.looked.max(begin)) >= Self::LONG {
            (self.stride, self.short) = (1, 0);
        } else {
            self.short += 1;
        }
        if self.short >= Self::SHORT_MAX {
            self.stride = (self.stride * 2).min(Self::STRIDE_MAX);
            self.short = 0;
        }
        self.looked = now;
        self.go_on(all, self.stride);
        true
    }

    /// An operation went to the ring for want of more. Those that came too late are no crowd.
    #[inline(always)]
    pub(crate) fn crowded(&mut self) {
        self.crowd += u32::from(self.pace != Pace::Late);
    }

    /// A plain call with so many bytes is made.
    #[inline(always)]
    pub(crate) fn spend(&mut self, bytes: u32) {
        let units = 1 + bytes / Self::BYTES_PER_UNIT;
        match self.left.checked_sub(units) {
            Some(left) => self.left = left,
            None => self.spend_rest(units),
        }
    }

    #[cold]
    #[inline(never)]
    fn spend_rest(&mut self, units: u32) {
        self.rest = self.rest.saturating_sub(units - self.left);
        self.left = 0;
    }
}

// ---- what is known of a file -------------------------------------------------------------------

/// Whether reads of a file find their bytes in the page cache: a counter of two bits, and how many reads
/// have gone by without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheHint {
    level: u8,
    skipped: u8,
}

impl CacheHint {
    const LEVEL_MAX: u8 = 3;
    /// From this level on a plain read is tried.
    const WARM: u8 = 2;
    /// A cold file is tried again after so many reads.
    const SKIPS: u8 = 15;

    pub(crate) const fn new() -> Self {
        Self { level: Self::WARM, skipped: 0 }
    }

    /// Whether to try a plain read now.
    #[inline(always)]
    pub(crate) fn is_worth_a_try(self) -> bool {
        self.level >= Self::WARM || self.skipped >= Self::SKIPS
    }

    #[must_use]
    #[inline(always)]
    pub(crate) fn hit(self) -> Self {
        Self { level: (self.level + 1).clamp(Self::WARM, Self::LEVEL_MAX), skipped: 0 }
    }

    #[must_use]
    pub(crate) fn missed(self) -> Self {
        Self { level: self.level.saturating_sub(1), skipped: 0 }
    }

    #[must_use]
    pub(crate) fn skipped(self) -> Self {
        Self { skipped: self.skipped.saturating_add(1), ..self }
    }
}

// ---- what is known of a mount ------------------------------------------------------------------

/// Whether a file system can refuse to wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Support {
    /// Nobody has tried yet.
    #[default]
    Unknown,
    /// It can: it has answered without waiting, or refused to wait.
    Yes,
    /// It cannot: every such call fails with `EOPNOTSUPP`.
    No,
    /// It claims to, but answered the end of a file where there was none.
    Lies,
}

/// What a driver knows of one mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountFacts {
    /// The device, as `st_dev`.
    pub device: u64,
    /// The file system's type, as in `/proc/self/mountinfo`; empty where that does not tell.
    pub file_system: String,
    /// Another machine or process serves it, so that any call may wait for ever.
    pub is_remote: bool,
    /// Whether reads can refuse to wait.
    pub nowait_read: Support,
    /// Whether writes can refuse to wait.
    pub nowait_write: Support,
    /// Plain calls have been slow, and are not made for a while.
    pub is_slow: bool,
    /// How often that happened.
    pub slow_count: u64,
}

impl MountFacts {
    /// Which way a read takes that a rule wants done at once: buffered, and small enough for the rule.
    /// Of a file whose bytes were not in the page cache lately, the queue.
    pub fn read_route(&self) -> Route {
        transfer_route(self.is_remote, self.nowait_read)
    }

    /// The same for a write.
    pub fn write_route(&self) -> Route {
        transfer_route(self.is_remote, self.nowait_write)
    }
}

/// Which way a transfer takes on such a mount.
fn transfer_route(is_remote: bool, nowait: Support) -> Route {
    if is_remote { Route::Lane(Lane::Elastic) } else { local_route(nowait) }
}

/// Which way a transfer takes where nobody else serves the file.
#[inline(always)]
pub(crate) fn local_route(nowait: Support) -> Route {
    match nowait {
        Support::Yes | Support::Unknown => Route::Now(CallMode::NonBlocking),
        Support::No => Route::Now(CallMode::Blocking),
        Support::Lies => Route::Queue,
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    device: u64,
    file_system: Box<str>,
    is_remote: bool,
    is_local: bool,
    closes_at_once: bool,
    nowait: [Cell<Support>; 2],
    pub(crate) breaker: Breaker,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    Read = 0,
    Write = 1,
}

impl Mount {
    pub(crate) fn new(device: u64, file_system: &str) -> Self {
        Self {
            device,
            file_system: file_system.into(),
            is_remote: is_remote(file_system),
            is_local: is_local(file_system),
            closes_at_once: closes_at_once(file_system),
            nowait: [const { Cell::new(Support::Unknown) }; 2],
            breaker: Breaker::new(),
        }
    }

    fn facts(&self) -> MountFacts {
        MountFacts {
            device: self.device,
            file_system: self.file_system.to_string(),
            is_remote: self.is_remote,
            nowait_read: self.nowait[Transfer::Read as usize].get(),
            nowait_write: self.nowait[Transfer::Write as usize].get(),
            is_slow: self.breaker.is_open(),
            slow_count: self.breaker.opened.get(),
        }
    }

    #[inline(always)]
    pub(crate) fn is_remote(&self) -> bool {
        self.is_remote
    }

    /// Whether the kernel alone answers for it, and never with `ECANCELED`; see [`is_local`].
    pub(crate) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Whether closing a file asks nobody but the kernel.
    pub(crate) fn closes_at_once(&self) -> bool {
        self.closes_at_once
    }

    #[inline(always)]
    pub(crate) fn nowait(&self, transfer: Transfer) -> Support {
        self.nowait[transfer as usize].get()
    }

    #[inline(always)]
    pub(crate) fn learn(&self, transfer: Transfer, support: Support) {
        self.nowait[transfer as usize].set(support);
    }
}

/// The mounts that a driver has met, by device, and the paths at which opening may wait for a server.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    by_device: RefCell<HashMap<u64, Rc<Mount>>>,
    remote: RefCell<RemotePaths>,
}

/// What was last read of the table of mounts. Looking a path up on a mount that somebody else serves, and
/// opening what was looked up, may wait for the server, cached or not.
#[derive(Debug, Default)]
struct RemotePaths {
    mounts: RemoteMounts,
    /// The working directory then.
    here: PathBuf,
    /// Openings until the table of mounts is looked at again.
    openings_left: u32,
}

impl Mounts {
    /// Openings between two looks at the table of mounts.
    const OPENINGS: u32 = 4096;

    /// Whether opening this path may wait for a server. `look` reads the table of mounts: at first, and
    /// again after many openings, or when a mount was met that is new.
    pub(crate) fn may_wait(
        &self,
        path: &[u8],
        look: impl FnOnce() -> (RemoteMounts, PathBuf),
    ) -> bool {
        let mut remote = self.remote.borrow_mut();
        if remote.openings_left == 0 {
            let (mounts, here) = look();
            *remote = RemotePaths { mounts, here, openings_left: Self::OPENINGS };
        }
        remote.openings_left -= 1;
        let RemotePaths { mounts, here, .. } = &*remote;
        // By the letters of the path: a link that leads there is followed on this thread.
        mounts.may_hold(Path::new(OsStr::from_bytes(path)), || Some(here.clone()))
    }

    /// The mount with this device. When it is new, `file_system` tells its type.
    pub(crate) fn get(&self, device: u64, file_system: impl FnOnce() -> String) -> Rc<Mount> {
        let mut by_device = self.by_device.borrow_mut();
        let make = || {
            // There may be others that are new.
            self.remote.borrow_mut().openings_left = 0;
            Rc::new(Mount::new(device, &file_system()))
        };
        Rc::clone(by_device.entry(device).or_insert_with(make))
    }

    pub(crate) fn facts(&self) -> Vec<MountFacts> {
        let mut facts: Vec<_> =
            self.by_device.borrow().values().map(|mount| mount.facts()).collect();
        facts.sort_by_key(|facts| facts.device);
        facts
    }
}

// ---- plain calls that turn out to be slow ------------------------------------------------------

/// Stops plain calls on a file system for a while after they have been slow.
///
/// A call that may wait is made without knowing whether it will. After one that took long the next are
/// watched: did the thread wait in them, rather than lose its processor to others? They are many, since
/// the kernel has a writer wait once for many writes. One such wait of more than
/// [`STALL`](Breaker::STALL), or several in a row of more than [`SLOW`](Breaker::SLOW), open the
/// breaker: operations go to the queue, whose workers may wait as they like. After a time, which doubles
/// until all that is watched went well, the next operation tries again.
///
/// So a device that stalls holds a thread up for as long as the kernel makes a writer wait, once each time
/// the breaker tries; twice the first time, since the first of them was not watched.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Cell<BreakerState>,
    /// How many of the next calls are to be watched.
    watched: Cell<u16>,
    /// Slow calls in a row.
    slow_in_a_row: Cell<u8>,
    /// How long the breaker stays open next time.
    pause: Cell<Duration>,
    /// How often it has opened.
    opened: Cell<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Plain calls are made.
    Closed,
    /// None are, until then.
    Open { until: Duration },
    /// One is on trial.
    Trial,
}

impl Breaker {
    /// What no call that only copies takes.
    const STALL: Duration = Duration::from_micros(500);
    /// What is more than handing the operation to a worker costs.
    const SLOW: Duration = Duration::from_micros(50);
    const SLOW_MAX: u8 = 4;
    /// Calls that are watched after a stall or a pause.
    const WATCHED: u16 = 256;
    const PAUSE_MIN: Duration = Duration::from_millis(100);
    const PAUSE_MAX: Duration = Duration::from_secs(6);

    pub(crate) const fn new() -> Self {
        Self {
            state: Cell::new(BreakerState::Closed),
            watched: Cell::new(1),
            slow_in_a_row: Cell::new(0),
            pause: Cell::new(Self::PAUSE_MIN),
            opened: Cell::new(0),
        }
    }

    /// Whether no plain call is made for the time being.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.get(), BreakerState::Open { .. })
    }

    /// Whether the time has come for a trial; if so it begins.
    #[cold]
    pub(crate) fn may_try_again(&self, now: Duration) -> bool {
        match self.state.get() {
            BreakerState::Open { until } if now >= until => {
                self.state.set(BreakerState::Trial);
                self.watched.set(Self::WATCHED);
                true
            }
            BreakerState::Open { .. } => false,
            BreakerState::Closed | BreakerState::Trial => true,
        }
    }

    /// Whether the next call is to be watched.
    #[inline(always)]
    pub(crate) fn is_suspicious(&self) -> bool {
        self.watched.get() > 0
    }

    /// Notes how long a call took.
    #[inline(always)]
    pub(crate) fn note(&self, timing: Timing) {
        if timing.took > Self::SLOW || self.is_suspicious() {
            self.note_slowly(timing);
        }
    }

    #[cold]
    fn note_slowly(&self, timing: Timing) {
        if timing.took <= Self::SLOW || timing.has_waited == Some(false) {
            // Quick; or not the call but the machine was slow.
            self.state.set(BreakerState::Closed);
            let watched = self.watched.get().saturating_sub(1);
            self.watched.set(watched);
            if watched == 0 {
                self.pause.set(Self::PAUSE_MIN);
            }
            if timing.took <= Self::SLOW {
                self.slow_in_a_row.set(0);
            }
            return;
        }
        if timing.has_waited.is_none() {
            // Something else, perhaps.
            self.watched.set(if timing.took > Self::STALL { Self::WATCHED } else { 1 });
            return;
        }
        let slow = self.slow_in_a_row.get() + 1;
        self.slow_in_a_row.set(slow);
        let is_trial = self.state.get() == BreakerState::Trial;
        if timing.took > Self::STALL || slow >= Self::SLOW_MAX || is_trial {
            let pause = self.pause.get();
            self.pause.set((pause * 2).min(Self::PAUSE_MAX));
            self.state.set(BreakerState::Open { until: timing.end + pause });
            self.slow_in_a_row.set(0);
            self.opened.set(self.opened.get() + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::MountTable;

    /// Makes plain calls as long as there may be some, each followed by work that takes `work`. Returns how
    /// many.
    fn call(
        inline_budget: &mut InlineBudget,
        clock: &mut Duration,
        work: Duration,
        max: u32,
    ) -> u32 {
        let (begin, mut count) = (*clock, 0);
        let look =
            |inline_budget: &mut InlineBudget, now| inline_budget.look(Some(begin), || now, false);
        while count < max && (inline_budget.is_left() || look(inline_budget, *clock)) {
            inline_budget.spend(0);
            *clock += work;
            count += 1;
        }
        count
    }

    #[test]
    fn a_turn_has_one_call_when_work_between_them_is_long() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        for turn in 0..100 {
            inline_budget.renew();
            let count = call(&mut inline_budget, &mut clock, Duration::from_millis(10), 100);
            assert!(count == 1 || turn == 0 && count <= InlineBudget::STRIDE_MAX, "{count}");
            assert_eq!(inline_budget.spent(), InlineBudget::TURN_MAX);
        }
    }

    #[test]
    fn a_turn_has_all_its_calls_when_work_between_them_is_short() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        let long = Duration::from_millis(10);
        for work in [Duration::ZERO, Duration::from_micros(1), Duration::from_micros(3)] {
            for _ in 0..200 {
                inline_budget.renew();
                assert_eq!(call(&mut inline_budget, &mut clock, work, 100), InlineBudget::TURN_MAX);
                clock += long; // a sleep, of which the tasks know nothing
            }
            assert_eq!(inline_budget.stride, InlineBudget::STRIDE_MAX);
            // Where work becomes long that is noticed soon.
            inline_budget.renew();
            let count = call(&mut inline_budget, &mut clock, long, 100);
            assert!(count <= InlineBudget::STRIDE_MAX, "{count}");
        }
    }

    #[test]
    fn turns_of_few_calls_are_not_missed() {
        let (mut inline_budget, mut clock) = (InlineBudget::new(), Duration::ZERO);
        let counts: Vec<u32> = (0..20)
            .map(|_| {
                inline_budget.renew();
                call(&mut inline_budget, &mut clock, Duration::from_millis(10), 7)
            })
            .collect();
        assert!(counts[5..].iter().all(|&count| count == 1), "{counts:?}");
    }

    #[test]
    fn news_make_the_clock_be_read_once() {
        let (mut inline_budget, begin) = (InlineBudget::new(), Duration::from_secs(1));
        assert!(inline_budget.is_left() && inline_budget.listens());
        assert!(inline_budget.look(Some(begin), || begin, true));
        assert!(inline_budget.is_left() && !inline_budget.listens());
        inline_budget.renew();
        assert!(inline_budget.listens());
        assert!(!inline_budget.look(Some(begin), || begin + InlineBudget::TIME_MAX, true));
        assert!(!inline_budget.is_any_left());
    }

    #[test]
    fn calls_outside_of_tasks_have_no_limit() {
        let mut inline_budget = InlineBudget::new();
        for _ in 0..InlineBudget::TURN_MAX {
            assert!(inline_budget.is_left() || inline_budget.look(None, || unreachable!(), false));
            inline_budget.spend(0);
        }
        assert!(!inline_budget.is_left() && !inline_budget.look(None, || unreachable!(), false));
    }

    fn timing(end_ms: u64, took: Duration, is_watched: bool) -> Timing {
        Timing { end: Duration::from_millis(end_ms), took, has_waited: is_watched.then_some(true) }
    }

    #[test]
    fn a_thread_that_lost_its_processor_did_not_wait() {
        let breaker = Breaker::new();
        let preempted =
            Timing { has_waited: Some(false), ..timing(9, Duration::from_millis(9), true) };
        for _ in 0..10 {
            breaker.note(preempted);
            assert!(!breaker.is_open() && !breaker.is_suspicious());
        }
    }

    #[test]
    fn a_cold_file_is_tried_now_and_then_and_a_hot_one_always() {
        let mut cache_hint = CacheHint::new();
        assert!(cache_hint.is_worth_a_try());
        cache_hint = cache_hint.missed();
        assert!(!cache_hint.is_worth_a_try());
        for _ in 0..CacheHint::SKIPS {
            assert!(!cache_hint.is_worth_a_try());
            cache_hint = cache_hint.skipped();
        }
        assert!(cache_hint.is_worth_a_try());
        cache_hint = cache_hint.hit();
        assert!(cache_hint.is_worth_a_try());
        cache_hint = cache_hint.hit().hit().missed();
        assert!(cache_hint.is_worth_a_try(), "one miss of a hot file is no rule");
    }

    #[test]
    fn one_stall_opens_the_breaker_until_a_quick_trial() {
        let (quick, stall) = (Duration::from_micros(2), Duration::from_millis(20));
        let breaker = Breaker::new();
        breaker.note(timing(0, quick, true));
        assert!(!breaker.is_suspicious());
        breaker.note(timing(50, stall, false));
        assert!(!breaker.is_open() && breaker.is_suspicious(), "it may have been the task");
        breaker.note(timing(100, stall, true));
        assert!(breaker.is_open());
        assert!(!breaker.may_try_again(Duration::from_millis(199)));
        assert!(breaker.may_try_again(Duration::from_millis(200)));
        assert!(!breaker.is_open());
        breaker.note(timing(220, stall, true));
        assert!(breaker.is_open());
        assert!(!breaker.may_try_again(Duration::from_millis(419)), "the pause has doubled");
        assert!(breaker.may_try_again(Duration::from_millis(420)));
        breaker.note(timing(421, quick, true));
        assert!(!breaker.is_open() && breaker.is_suspicious(), "it may have been one of many");
        assert!(breaker.pause.get() > Breaker::PAUSE_MIN);
        for _ in 1..Breaker::WATCHED {
            breaker.note(timing(421, quick, true));
        }
        assert!(!breaker.is_suspicious());
        assert_eq!(breaker.pause.get(), Breaker::PAUSE_MIN);
        assert_eq!(breaker.opened.get(), 2);
    }

    #[test]
    fn calls_that_are_slow_one_after_the_other_open_the_breaker() {
        let slow = Duration::from_micros(60);
        let breaker = Breaker::new();
        for _ in 1..Breaker::SLOW_MAX {
            breaker.note(timing(0, slow, true));
            assert!(!breaker.is_open());
        }
        breaker.note(timing(0, slow, true));
        assert!(breaker.is_open());
    }

    #[test]
    fn the_allowance_of_a_turn_is_64_small_calls_or_8_large_ones() {
        for (bytes, count) in [(0, 64), (4096, 64), (32 << 10, 13), (64 << 10, 8)] {
            let mut inline_budget = InlineBudget::new();
            let mut calls = 0;
            while inline_budget.is_any_left() {
                inline_budget.spend(bytes);
                calls += 1;
            }
            assert_eq!(calls, count, "{bytes}");
            inline_budget.renew();
            assert_eq!(inline_budget.left + inline_budget.rest, InlineBudget::TURN_MAX);
        }
    }

    #[test]
    fn a_crowd_shrinks_the_allowance_until_it_is_gone() {
        let mut inline_budget = InlineBudget::new();
        let mut crowds = |count: u32, turns: u32| {
            for _ in 0..turns {
                (0..count).for_each(|_| inline_budget.crowded());
                inline_budget.renew();
            }
            inline_budget.left + inline_budget.rest
        };
        assert_eq!(crowds(InlineBudget::CROWD - 1, 3), 64, "a few are no crowd");
        assert_eq!(crowds(InlineBudget::CROWD, 1), 32);
        assert_eq!(crowds(31, 10), InlineBudget::TURN_MIN);
        assert_eq!(crowds(1, 10), InlineBudget::TURN_MIN, "some still want");
        assert_eq!(crowds(0, 2), 4 * InlineBudget::TURN_MIN);
        assert_eq!(crowds(0, 9), 64);
    }

    #[test]
    fn what_a_mount_leads_to() {
        let routes = |file_system, support| {
            let mount = Mount::new(1, file_system);
            mount.learn(Transfer::Read, support);
            let facts = mount.facts();
            assert_eq!(facts.write_route(), transfer_route(facts.is_remote, Support::Unknown));
            facts.read_route()
        };
        assert_eq!(routes("ext4", Support::Unknown), Route::Now(CallMode::NonBlocking));
        assert_eq!(routes("ext4", Support::Yes), Route::Now(CallMode::NonBlocking));
        assert_eq!(routes("tmpfs", Support::No), Route::Now(CallMode::Blocking));
        assert_eq!(routes("odd", Support::Lies), Route::Queue);
        for support in [Support::Unknown, Support::Yes, Support::No, Support::Lies] {
            assert_eq!(routes("nfs4", support), Route::Lane(Lane::Elastic));
        }
    }

    #[test]
    fn what_lies_on_a_remote_mount_may_wait_to_be_opened() {
        let mounts = Mounts::default();
        let remote = |point: &str, here: &str| {
            let table =
                MountTable::parse(format!("31 28 0:50 / {point} rw - nfs4 host:/ rw").as_bytes());
            (RemoteMounts::from(table), here.into())
        };
        let look = || remote("/net/host", "/home");
        for (path, expected) in [
            ("/net/host", true),
            ("/net/host/a/b", true),
            ("/net/hostess/a", false),
            ("/net", false),
            ("relative", false),
            ("../net/host", true),
            ("/net/../net/host", true),
        ] {
            assert_eq!(mounts.may_wait(path.as_bytes(), look), expected, "{path}");
        }
        assert!(!Mounts::default().may_wait(b"/net/host/a", <_>::default));
        let within = || remote("/net/host", "/net/host/a");
        assert!(Mounts::default().may_wait(b"relative", within));
        let above = || remote("/net/host", "/net");
        assert!(Mounts::default().may_wait(b"host/a", above));
        assert!(!Mounts::default().may_wait(b"a", above));
        let root = || remote("/", "/");
        assert!(Mounts::default().may_wait(b"/a/b", root));
        assert!(Mounts::default().may_wait(b"/", root));
        // The table is looked at again when a mount turns out to be new.
        let mounts = Mounts::default();
        assert!(!mounts.may_wait(b"/net/host/a", <_>::default));
        assert!(!mounts.may_wait(b"/net/host/a", look));
        mounts.get(7, || "ext4".into());
        assert!(mounts.may_wait(b"/net/host/a", look));
    }

    #[test]
    fn rules_can_be_changed_one_by_one() {
        let rules = Rules::default().with(OpKind::Write, Rule::QUEUE);
        assert!(rules.of(OpKind::Read).tries_now);
        assert!(!rules.of(OpKind::Write).tries_now);
        assert!(!rules.of(OpKind::Fsync).tries_now);
    }
}
