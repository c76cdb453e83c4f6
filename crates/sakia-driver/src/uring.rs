//! The kernel's ring as a backend.

mod files;

use std::any::TypeId;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::{
    BufRing, Builder, Cqe, Entered, Host, IoVec, Kernel, Opcode, Position, Probe, Process, Ring,
    SetupError, SignalMask, Sqe, Timespec, send_message,
};

use self::files::Files;
use crate::backend::{Backend, Calls, Destination, Features, Figures, RemoteWake};
use crate::call::Request;
use crate::counters::OpKind;
use crate::decide::Lane;
use crate::descriptors::KernelCalls;
use crate::epoll::{Epoll, LaneStatistics, StuckWorker};
use crate::key::Kind;
use crate::pool::READINESS_GROUPS;
use crate::readable;
use crate::sys::{self, abi::POLLIN};

/// A ring of the kernel, or of a [`Host`] that stands for it.
///
/// # Examples
/// ```
/// use sakia_driver::{Driver, Uring};
/// use sakia_ring::Ring;
///
/// match Uring::from_builder(Ring::builder().sq_entries(64)) {
///     Ok(ring) => drop(Driver::new(ring)),
///     // Says what to change: a limit, a sysctl, the container's filter.
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug)]
pub struct Uring<H: Host = Kernel> {
    ring: Ring<H>,
    /// `None` if the kernel cannot report which operations it supports.
    probe: Option<Probe>,
    /// The zero of the backend's time.
    since: Instant,
    /// The kernel writes to it when an operation completes, once a foreign loop has asked for it. The ring's
    /// own descriptor would not do: deferred work does not make it readable for an epoll set.
    eventfd: Option<OwnedFd>,
    /// With an `eventfd`: the last enter brought nothing, and left the flag set that asks for one.
    ///
    /// Another thread adds work, and sets the flag afterwards. If this one enters in between, it takes the
    /// work, and the flag stays without any: no enter resets it until there is new work (seen on 6.18).
    is_flag_late: bool,
    /// The means for other threads to wake this one, once requested.
    wake: Option<Arc<RingWake>>,
    /// The wake is an eventfd, which the ring has to poll.
    polls_wake: bool,
    /// The kernel has the poll of the wake.
    is_wake_armed: bool,
    /// Threads for operations that the ring cannot do, or should not, once the first such operation came.
    lanes: Option<Box<Lanes>>,
    files: Files,
    /// The duration of the alarm that was set last, where the kernel reads it.
    alarm: Box<Timespec>,
    /// Queues of provided buffers, by the number of their group.
    groups: Vec<Option<BufRing>>,
}

/// The poll backend, used beside a ring: its lanes, and its epoll set for receives by readiness.
#[derive(Debug)]
struct Lanes {
    epoll: Epoll,
    /// The kernel has the poll of the lanes' eventfd.
    is_armed: bool,
    /// The kernel has the poll of the epoll set, or its completion was not reaped yet.
    is_watched: bool,
    /// The set may have events that were not handled, since that poll has ended.
    is_due: bool,
    /// The last enter has handled events of the set after the ring's completions had come.
    has_looked: bool,
    /// [`needs_enter`](Backend::needs_enter) was not asked since the last enter.
    is_fresh: Cell<bool>,
}

impl Lanes {
    /// Returns whether an enter would bring completions, as far as is known without one.
    fn have_news(&self) -> bool {
        self.is_due || self.epoll.has_news() || self.epoll.cq_ready() > 0
    }

    /// Returns whether sockets wait in the set, and the ring does not poll it.
    fn are_unwatched(&self) -> bool {
        !self.is_watched && self.epoll.has_waiters()
    }

    /// Returns whether only an enter makes the ring tell of all events.
    fn are_hidden(&self) -> bool {
        self.are_unwatched() || self.epoll.has_events()
    }
}

impl Uring {
    /// Sets up a ring with the default sizes, for the calling thread.
    ///
    /// # Errors
    /// See [`sakia_ring::SetupError`].
    pub fn new() -> Result<Self, sakia_ring::SetupError> {
        Self::from_builder(Ring::builder())
    }
}

impl<H: Host> Uring<H> {
    /// Sets up a ring as `builder` says, for the calling thread.
    ///
    /// # Errors
    /// See [`sakia_ring::SetupError`].
    ///
    /// # Examples
    /// See [`Uring`](Uring#examples).
    pub fn from_builder(builder: Builder<H>) -> Result<Self, sakia_ring::SetupError> {
        Ok(Self::from_ring(builder.build()?))
    }

    /// As [`from_builder`](Uring::from_builder), and checks what a driver cannot do without later: a way for
    /// other threads to wake it.
    pub(crate) fn complete(builder: Builder<H>) -> Result<Self, sakia_ring::SetupError>
    where
        H: 'static,
    {
        let mut uring = Self::from_builder(builder)?;
        match uring.remote_wake() {
            Ok(_) => {
                // Sends the message of the trial. If an error persists, the next enter reports it.
                uring.ring.enter(0, None).ok();
                uring.ring.reap(&mut [Cqe::default(); 1]);
                Ok(uring)
            }
            Err(error) => Err(SetupError::new("eventfd", error, uring.ring.report())),
        }
    }

    /// Takes over a ring with nothing in flight.
    pub fn from_ring(ring: Ring<H>) -> Self {
        let probe = ring.probe().ok();
        Self {
            ring,
            probe,
            since: Instant::now(),
            eventfd: None,
            is_flag_late: false,
            wake: None,
            polls_wake: false,
            is_wake_armed: false,
            lanes: None,
            files: Files::default(),
            alarm: Box::new(Timespec::new(Duration::ZERO)),
            groups: Vec::new(),
        }
    }

    /// Sets the zero of the backend's time.
    pub(crate) fn take_over(&mut self, since: Instant) {
        self.since = since;
    }

    /// Sets the number of transfers by the ring after which a descriptor is registered with it, which makes
    /// further transfers cheaper. A new ring has 64. Call it before the first transfer.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Driver, Uring, Wait};
    ///
    /// let mut ring = Uring::new()?;
    /// ring.register_files_after(1);
    /// let driver = Driver::new(ring);
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let mut read = driver.read(&file, vec![0; 9], 0);
    /// driver.turn(Wait::Forever)?;
    /// assert!(read.try_take().is_some());
    /// // None before Linux 5.19, which has no table with empty places.
    /// assert!(driver.counters().registered_files <= 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register_files_after(&mut self, transfers: u16) {
        self.files.register_after(transfers);
    }

    /// Returns the state and the counters of a lane; all zero as long as it was given nothing.
    pub fn lane_statistics(&self, lane: Lane) -> LaneStatistics {
        let lanes = self.lanes.as_deref();
        lanes.map_or_else(LaneStatistics::default, |lanes| lanes.epoll.statistics(lane))
    }

    /// Returns whether the kernel's rings have entries with this opcode, as far as the kernel reports.
    pub fn supports(&self, opcode: Opcode) -> bool {
        self.probe.as_ref().is_none_or(|probe| probe.is_supported(opcode))
    }

    /// Returns the ring, for operations that the driver does not do itself.
    pub fn ring(&self) -> &Ring<H> {
        &self.ring
    }
}

// SAFETY: the kernel accesses an operation's memory from the enter that consumes its entry until it posts the
// last completion, and never the memory of an entry that became a no-op before. Closing the ring does not end
// the access: the driver drains first, or leaks.
unsafe impl<H: Host + 'static> Backend for Uring<H> {
    fn features(&self) -> Features {
        let is_kernel = is_kernel::<H>();
        let mut for_lanes = [0; 4];
        for code in (0..=u8::MAX).filter(|&code| is_kernel && !self.supports(Opcode(code))) {
            for_lanes[usize::from(code) / 64] |= 1_u64 << (code % 64);
        }
        Features {
            // Threads and plain calls act on the files of this machine.
            plain_calls: is_kernel,
            masks_signals: self.ring.host().masks_signals(),
            readiness: is_kernel,
            lanes_apart: is_kernel,
            may_lack_workers: is_kernel,
            fills_what_it_reports: self.ring.host().fills_what_it_reports(),
            tells_news: true,
            for_lanes,
            batches_well: BATCHES_WELL,
            ..Features::new(self.ring.sq_entries(), self.ring.cq_entries())
        }
    }

    #[inline(always)]
    fn sq_pending(&self) -> u32 {
        self.ring.sq_pending()
    }

    #[inline(always)]
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        let sqe = self.files.resolve(&mut self.ring, sqe);
        // SAFETY: the caller's duties are the same; a place of the table has the file of the named descriptor
        // as long as that is open.
        unsafe { self.ring.push(sqe) }
    }

    #[inline(always)]
    unsafe fn forget_descriptor(&mut self, raw: i32) {
        // SAFETY: the caller's duties are the same.
        unsafe { self.files.forget(&mut self.ring, raw) };
        if let Some(lanes) = &mut self.lanes {
            // SAFETY: as above.
            unsafe { lanes.epoll.forget_descriptor(raw) };
        }
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        self.ring.make_nop(position, user_data)
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(|_| ())
    }

    #[inline(always)]
    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        if self.polls_wake && !self.is_wake_armed {
            self.arm_wake();
        }
        let entered = match &self.lanes {
            Some(_) => self.enter_with_lanes(min_complete, timeout, signals),
            None => self.enter_ring(min_complete, timeout, signals),
        };
        if self.eventfd.is_some() {
            let found_nothing = entered.is_ok() && self.ring.cq_ready() == 0;
            self.is_flag_late = found_nothing && self.ring.needs_enter();
        }
        entered
    }

    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        if to == Destination::Queue {
            return Err(Errno::OPNOTSUPP);
        }
        let lanes = self.lanes()?;
        // SAFETY: the caller's duties are the same.
        unsafe { lanes.epoll.push_call(request, to) }
    }

    #[inline(always)]
    fn cq_ready(&self) -> u32 {
        let ready = self.ring.cq_ready();
        match &self.lanes {
            None => ready,
            Some(lanes) => ready + lanes.epoll.cq_ready(),
        }
    }

    #[inline(always)]
    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        let mut count = self.ring.reap(out);
        if let Some(lanes) = &mut self.lanes {
            for cqe in &out[..count] {
                match cqe.user_data {
                    LANE => lanes.is_armed &= cqe.flags.has_more(),
                    SET => {
                        lanes.is_watched = false;
                        lanes.is_due |= !lanes.has_looked;
                    }
                    _ => {}
                }
            }
            count += lanes.epoll.reap(&mut out[count..]);
        }
        if self.polls_wake {
            let ended = |cqe: &Cqe| cqe.user_data == WAKE && !cqe.flags.has_more();
            self.is_wake_armed &= !out[..count].iter().any(ended);
        }
        count
    }

    /// Also returns true if the ring does not poll the epoll set, since only an enter pushes that poll, or if
    /// events of the set are left. Not at once after an enter, since the next one may come by itself; but
    /// before a foreign loop sleeps.
    #[inline(always)]
    fn needs_enter(&self) -> bool {
        let have_work = |lanes: &Lanes| {
            let was_fresh = lanes.is_fresh.replace(false);
            let may_ask = !was_fresh || self.eventfd.is_some();
            lanes.have_news() || may_ask && lanes.are_hidden()
        };
        self.ring.needs_enter() || self.lanes.as_deref().is_some_and(have_work)
    }

    #[inline(always)]
    fn has_news(&self) -> bool {
        let have_news = |lanes: &Lanes| lanes.have_news() || lanes.epoll.has_events();
        self.is_asked_to_enter() || self.lanes.as_deref().is_some_and(have_news)
    }

    fn look_again(&self) {
        if let Some(lanes) = &self.lanes {
            lanes.is_fresh.set(false);
        }
    }

    fn set_alarm(&mut self, after: Duration) -> bool {
        *self.alarm = Timespec::new(after);
        let sqe = Sqe::timeout(&raw const *self.alarm).user_data(ALARM);
        // SAFETY: the kernel reads the duration when it consumes the entry, in an enter of this thread. The
        // duration has a stable address as long as the backend lives, and no enter comes later.
        let is_pushed = unsafe { self.ring.push(sqe) }.is_some();
        // The kernel may refuse the entry for now; then the next enter submits it, or reports the error.
        self.ring.submit().ok();
        is_pushed
    }

    fn is_overflowing(&self) -> bool {
        self.ring.is_overflowing()
    }

    fn is_intact(&self) -> bool {
        self.ring.is_owned_by_process()
    }

    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller keeps the memory for as long as the kernel may use it.
        unsafe { self.ring.register_buffers(&[IoVec { base: addr, len }]) }
    }

    fn register_group(&mut self, group: u16, entries: u16) -> io::Result<()> {
        if group >= READINESS_GROUPS {
            return self.lanes()?.epoll.register_group(group, entries);
        }
        let queue = self.ring.register_buf_ring(group, entries.into(), false)?;
        let index = usize::from(group);
        if self.groups.len() <= index {
            self.groups.resize_with(index + 1, || None);
        }
        self.groups[index] = Some(queue);
        Ok(())
    }

    #[inline(always)]
    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {
        if let Some(Some(queue)) = self.groups.get_mut(usize::from(group)) {
            // SAFETY: the caller's duties are the same; the queue is unregistered with the ring at the
            // latest, which is later than the caller's duties require.
            unsafe { queue.provide(addr, len, id) };
            queue.publish();
        } else if let Some(lanes) = &mut self.lanes {
            // SAFETY: the caller's duties are the same.
            unsafe { lanes.epoll.provide(group, id, addr, len) };
        }
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn nap(&mut self, duration: Duration) {
        sys::nap(duration);
    }

    fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>> {
        if self.wake.is_none() {
            let wake = self.make_wake()?;
            self.polls_wake = matches!(*wake.lock(), Some(Target::Eventfd(_)));
            self.wake = Some(Arc::new(wake));
        }
        let wake = self.wake.as_ref().expect("made just above");
        Ok(Arc::clone(wake) as Arc<dyn RemoteWake>)
    }

    fn pollable(&mut self) -> io::Result<OwnedFd> {
        let eventfd = match &self.eventfd {
            Some(eventfd) => eventfd,
            None => {
                // The last turn may have left something, of which nothing else tells.
                let is_readable = self.cq_ready() > 0
                    || self.has_news()
                    || self.lanes.as_deref().is_some_and(Lanes::are_hidden);
                let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
                let fresh = eventfd(is_readable.into(), flags)?;
                if let Some(lanes) = &mut self.lanes {
                    lanes.epoll.watch_with(rustix::io::fcntl_dupfd_cloexec(&fresh, 0)?);
                }
                self.ring.register_eventfd(fresh.as_fd())?;
                self.eventfd.insert(fresh)
            }
        };
        Ok(readable::around(eventfd.as_fd())?)
    }

    fn clear_readiness(&mut self) {
        if let Some(eventfd) = &self.eventfd {
            // `EAGAIN` says that it was unreadable already.
            rustix::io::read(eventfd, &mut [0; 8]).ok();
        }
    }

    fn figures(&self) -> Figures<'_> {
        let of_lanes =
            self.lanes.as_deref().map_or_else(Figures::default, |lanes| lanes.epoll.figures());
        Figures { registered_files: self.files.registered, ..of_lanes }
    }

    fn find_stuck(&mut self, limit: Duration, found: &mut Vec<StuckWorker>) -> Option<Duration> {
        self.lanes.as_mut()?.epoll.find_stuck(limit, found)
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(KernelCalls)
    }
}

impl<H: Host + 'static> Uring<H> {
    /// Returns whether an enter would bring something. If the last one brought nothing and left the flag that
    /// says so, only a full queue tells more: of what has come since then, the `eventfd` tells.
    #[inline(always)]
    fn is_asked_to_enter(&self) -> bool {
        self.ring.needs_enter() && (!self.is_flag_late || self.ring.is_overflowing())
    }

    /// As [`enter`](Backend::enter), without lanes.
    #[inline(always)]
    fn enter_ring(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        match signals {
            None => self.ring.enter(min_complete, timeout),
            Some(mask) => self.ring.enter_with_signals(min_complete, timeout, mask),
        }
    }

    /// Returns the lanes, and makes them at the first call.
    #[cold]
    fn lanes(&mut self) -> Result<&mut Lanes, Errno> {
        if !is_kernel::<H>() {
            return Err(Errno::OPNOTSUPP);
        }
        if self.lanes.is_none() {
            let epoll = Epoll::new();
            let mut epoll = epoll.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::NOMEM))?;
            if let Some(eventfd) = &self.eventfd {
                epoll.watch_with(rustix::io::fcntl_dupfd_cloexec(eventfd, 0)?);
            }
            self.lanes = Some(Box::new(Lanes {
                epoll,
                is_armed: false,
                is_watched: false,
                is_due: false,
                has_looked: false,
                is_fresh: Cell::new(false),
            }));
        }
        Ok(self.lanes.as_mut().expect("made just above"))
    }

    /// As [`enter`](Backend::enter), for a ring with lanes. While this thread sleeps, the ring polls the
    /// eventfd that the lanes' threads write to; or, if sockets wait in the epoll set, that set, which has
    /// the eventfd in it.
    ///
    /// The poll of the set has one completion. It is pushed again by the next enter, and completes at once if
    /// the set has further events: no event is missed, and none needs a call to find out.
    #[cold]
    #[inline(never)]
    fn enter_with_lanes(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        let Some(lanes) = &mut self.lanes else {
            return self.enter_ring(min_complete, timeout, signals);
        };
        lanes.epoll.collect();
        lanes.is_fresh.set(true);
        if std::mem::take(&mut lanes.is_due) || lanes.epoll.has_events() {
            // Before the poll is pushed, which then stays until the next event.
            lanes.epoll.look();
        }
        let watches = lanes.epoll.has_waiters();
        // A result or an event that is here already prevents the sleep.
        let is_idle = lanes.epoll.cq_ready() == 0 && !lanes.epoll.has_events();
        if watches && !lanes.is_watched && (is_idle || self.eventfd.is_some()) {
            let sqe = Sqe::poll_add(lanes.epoll.set().as_raw_fd(), POLLIN);
            // SAFETY: a poll names no memory; the set is closed after the ring, which is declared before it.
            lanes.is_watched = unsafe { self.ring.push(sqe.user_data(SET)) }.is_some();
        } else if !watches && !lanes.is_armed {
            let sqe = Sqe::poll_add_multishot(lanes.epoll.event().as_raw_fd(), POLLIN);
            // SAFETY: as above, of the eventfd.
            lanes.is_armed = unsafe { self.ring.push(sqe.user_data(LANE)) }.is_some();
        }
        let may_sleep = min_complete > 0 && if watches { lanes.is_watched } else { lanes.is_armed };
        let sleeps = may_sleep && is_idle && lanes.epoll.park();
        let entered = if let Some(mask) = signals.filter(|_| sleeps) {
            self.ring.enter_with_signals(min_complete, timeout, mask)
        } else if sleeps || min_complete == 0 {
            self.ring.enter(min_complete, timeout)
        } else if self.ring.sq_pending() > 0 || self.ring.needs_enter() {
            self.ring.enter(0, None)
        } else {
            Ok(Entered { consumed: 0, timed_out: false })
        };
        lanes.has_looked = watches && sleeps;
        if lanes.has_looked {
            lanes.epoll.look();
        }
        lanes.epoll.collect();
        entered
    }

    /// Makes the means to wake this ring: a message if the kernel sends one without a ring of the sender's
    /// own (6.13), measured to be a quarter faster than an eventfd; otherwise an eventfd.
    fn make_wake(&mut self) -> io::Result<RingWake> {
        // Only its own thread reaches an embedder's host.
        if is_kernel::<H>() {
            // SAFETY: the driver counts completions of this kind, and takes them for nothing else.
            let sends = |ring: &OwnedFd| unsafe { send_message(&Kernel, ring.as_fd(), WAKE, 0) };
            if let Ok(ring) = rustix::io::fcntl_dupfd_cloexec(&self.ring, 0)
                && sends(&ring).is_ok()
            {
                return Ok(RingWake::new(Target::Ring(ring)));
            }
        }
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(RingWake::new(Target::Eventfd(eventfd)))
    }

    /// Makes the ring poll the wake's eventfd. If the queue is full, the next enter tries again.
    #[cold]
    fn arm_wake(&mut self) {
        let Some(wake) = &self.wake else { return };
        if let Some(Target::Eventfd(eventfd)) = &*wake.lock() {
            let sqe = Sqe::poll_add_multishot(eventfd.as_raw_fd(), POLLIN).user_data(WAKE);
            // SAFETY: a poll names no memory; the eventfd is closed after the ring: see `Drop`.
            self.is_wake_armed = unsafe { self.ring.push(sqe) }.is_some();
        }
    }
}

impl<H: Host> Drop for Uring<H> {
    fn drop(&mut self) {
        // The owners of wakes may keep them for ever. The ring, or the descriptors that it polls, must not
        // live as long.
        if let Some(wake) = &self.wake {
            wake.close();
        }
        for queue in self.groups.drain(..).flatten() {
            // A queue that the ring refuses to unregister is leaked.
            let _ = self.ring.unregister_buf_ring(queue);
        }
    }
}

/// Returns whether the ring belongs to this machine's kernel, so that threads and plain calls act on the same
/// files.
fn is_kernel<H: Host + 'static>() -> bool {
    TypeId::of::<H>() == TypeId::of::<Kernel>()
}

/// The kinds of operations that a ring performs in a large batch for no more than plain calls cost; see
/// [`Features::batches_well`].
pub(crate) const BATCHES_WELL: u64 = 1 << OpKind::Read as u64 | 1 << OpKind::Open as u64;

/// The `user_data` of completions that signal an event of a lane.
const LANE: u64 = Kind::Lane as u64;
/// The `user_data` of completions that signal events of the epoll set.
const SET: u64 = LANE | 1 << 8;
/// The `user_data` of completions that signal a wake.
const WAKE: u64 = Kind::Wake as u64;
/// The `user_data` of completions that signal an alarm.
const ALARM: u64 = Kind::Alarm as u64;

/// See [`Backend::remote_wake`].
#[derive(Debug)]
struct RingWake {
    /// The process that has the ring. In its children another thread may have held the lock, and a wake would
    /// be the parent's.
    process: Process,
    /// `None` once the backend is gone.
    target: Mutex<Option<Target>>,
}

/// The target of a wake.
#[derive(Debug)]
enum Target {
    /// The ring itself, by a descriptor that the wake owns.
    Ring(OwnedFd),
    /// An eventfd that the ring polls.
    Eventfd(OwnedFd),
}

impl RingWake {
    fn new(target: Target) -> Self {
        Self { process: Process::current(), target: Mutex::new(Some(target)) }
    }

    /// Closes the target's descriptor. In a child it stays open if another thread held the lock.
    fn close(&self) {
        match self.process.is_intact() {
            true => *self.lock() = None,
            false => drop(self.target.try_lock().map(|mut target| target.take())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Target>> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteWake for RingWake {
    fn wake(&self) {
        if !self.process.is_intact() {
            return;
        }
        let target = self.lock();
        // A wake wakes even if its message finds the target's completion queue full.
        let _ = match &*target {
            // SAFETY: the driver counts completions of this kind, and takes them for nothing else.
            Some(Target::Ring(ring)) => unsafe { send_message(&Kernel, ring.as_fd(), WAKE, 0) },
            Some(Target::Eventfd(eventfd)) => {
                rustix::io::write(eventfd, &1_u64.to_ne_bytes()).map(|_| ()).map_err(Into::into)
            }
            None => Ok(()),
        };
    }
}
