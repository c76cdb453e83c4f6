//! The backend that this machine offers, chosen at run time.

use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_ring::{Builder, Cqe, Entered, Position, Ring, SetupError, SetupReport, SignalMask, Sqe};

use crate::backend::{Backend, Calls, Destination, Features, Figures, RemoteWake};
use crate::call::{Call, Request};
use crate::epoll::{Epoll, EpollOptions, StuckWorker};
use crate::later::{LateChoice, Later};
#[cfg(any(test, feature = "sim"))]
use crate::sim::Sim;
use crate::uring::Uring;

/// The backend to use.
///
/// # Examples
/// ```
/// use sakia_driver::Policy;
///
/// assert_eq!(Policy::from_environment(None)?, Policy::Auto);
/// assert_eq!(Policy::from_environment(Some("poll".as_ref()))?, Policy::Poll);
/// assert!(Policy::from_environment(Some("fast".as_ref())).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The ring if this machine offers one, otherwise epoll and threads.
    #[default]
    Auto,
    /// The ring, or an error.
    Uring,
    /// Epoll and threads.
    Poll,
}

impl Policy {
    /// Returns the policy named by the environment variable `SAKIA_DRIVER`; [`Auto`](Policy::Auto) when it is
    /// not set, or empty.
    ///
    /// # Errors
    /// `InvalidInput` for a value that is none of the known ones, with their list.
    ///
    /// # Examples
    /// See [`Policy`](Policy#examples).
    pub fn from_environment(value: Option<&OsStr>) -> io::Result<Self> {
        let Some(value) = value else { return Ok(Self::Auto) };
        match value.to_str() {
            Some("" | "auto") => Ok(Self::Auto),
            Some("uring") => Ok(Self::Uring),
            Some("poll") => Ok(Self::Poll),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("SAKIA_DRIVER={} is none of auto, uring, poll", value.to_string_lossy()),
            )),
        }
    }
}

/// The chosen backend, and the reason.
///
/// # Examples
/// ```
/// use sakia_driver::{Auto, Policy};
///
/// let (_, choice) = Auto::new(Policy::Poll, sakia_ring::Ring::builder())?;
/// assert_eq!(choice.name(), "poll");
/// assert!(choice.refusal().is_none(), "no ring was asked for");
/// println!("{choice}");
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct Choice {
    name: &'static str,
    report: Option<SetupReport>,
    refusal: Option<SetupError>,
    /// The reason why there is no backend.
    failure: Option<io::Error>,
}

impl Choice {
    /// Returns the choice that is left if no backend could be set up, with the reason.
    pub fn none(failure: io::Error) -> Self {
        Self { name: "none", report: None, refusal: None, failure: Some(failure) }
    }

    /// Returns the name of the backend: `uring`, `poll` or `sim`; `none` if none could be set up.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the features that the kernel granted, if there is a ring.
    pub fn report(&self) -> Option<&SetupReport> {
        self.report.as_ref()
    }

    /// Returns the reason why there is no ring, if that decided the choice.
    pub fn refusal(&self) -> Option<&SetupError> {
        self.refusal.as_ref()
    }
}

impl fmt::Display for Choice {
    /// Writes one line: the backend, and the reason if it is not the ring.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match (&self.refusal, &self.failure) {
            (Some(refusal), _) => write!(f, ": {refusal}"),
            (None, Some(failure)) => write!(f, ": {failure}"),
            (None, None) => Ok(()),
        }
    }
}

/// The reason why there is no backend at all: epoll is unavailable, too.
///
/// Its `Display` is one line: the failed step, the limit that is used up, and why there is no ring.
#[derive(Debug)]
pub struct NoBackend {
    poll: io::Error,
    refusal: Option<SetupError>,
}

impl NoBackend {
    /// Returns the errno of the failed epoll call.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.poll.raw_os_error()
    }

    /// Returns the reason why there is no ring; `None` if none was requested.
    pub fn refusal(&self) -> Option<&SetupError> {
        self.refusal.as_ref()
    }
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoll: {}", self.poll)?;
        let limit = match Errno::from_io_error(&self.poll) {
            Some(Errno::MFILE) => "the process has no descriptor left; raise `ulimit -n`",
            Some(Errno::NFILE) => "the system has no descriptor left; raise fs.file-max",
            Some(Errno::NOMEM) => "there is no memory left for descriptors",
            Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
                "a filter forbids it; allow epoll_create1, epoll_ctl, epoll_pwait and eventfd2 there"
            }
            _ => "",
        };
        if !limit.is_empty() {
            write!(f, ": {limit}")?;
        }
        match &self.refusal {
            Some(refusal) => write!(f, "; {refusal}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NoBackend {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.poll)
    }
}

/// One of the backends. Each call costs one branch more than on the backend itself.
///
/// # Examples
/// See [`Driver`](crate::Driver#examples).
#[allow(clippy::large_enum_variant, reason = "there is one per driver, which never moves")]
#[derive(Debug)]
#[non_exhaustive]
// The discriminant is a byte of its own: reading it out of a niche in the ring's fields takes six
// instructions more.
#[repr(u8)]
pub enum Auto {
    /// The kernel's ring.
    Uring(Uring),
    /// Epoll and threads.
    Epoll(Epoll),
    /// One of the two, not set up yet.
    Later(Later),
    /// The simulated kernel, with the feature `sim`.
    #[cfg(any(test, feature = "sim"))]
    Sim(Sim),
    /// A backend from outside this crate, or a ring on another host than the kernel.
    Other(Box<dyn Backend>),
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}

impl Auto {
    /// Sets up the backend that `policy` and this machine lead to, for the calling thread. `ring` has the
    /// options of a ring, and the sizes of the queues.
    ///
    /// # Errors
    /// - With [`Policy::Uring`]: the reason why there is no ring, as a [`SetupError`].
    /// - With the other policies: the reason why there is no epoll either, as a [`NoBackend`]. Any failure to
    ///   set up a ring makes [`Policy::Auto`] fall back to epoll, with that reason.
    ///
    /// # Examples
    /// See [`Choice`](Choice#examples).
    pub fn new(policy: Policy, ring: Builder) -> io::Result<(Self, Choice)> {
        // Set-up makes system calls, too.
        sakia_trace::record_as_environment_says();
        if policy == Policy::Poll {
            return Self::new_epoll(&ring, None);
        }
        match Uring::complete(ring.clone()) {
            Ok(uring) => {
                let report = Some(uring.ring().report().clone());
                let choice = Choice { name: "uring", report, refusal: None, failure: None };
                Ok((Self::Uring(uring), choice))
            }
            Err(error) => Self::without_ring(policy, &ring, error),
        }
    }

    /// Returns a backend that the first operation that needs it sets up, as [`new`](Auto::new) does. Until
    /// then it performs plain calls, and makes no system call of its own. If the set-up fails, the operation
    /// ends with that error, and the next one tries again. The choice is there once it has succeeded; see
    /// [`Driver::set_up`](crate::Driver::set_up).
    ///
    /// # Errors
    /// `EINVAL`: a submission queue without entries or larger than the completion queue.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver, Policy};
    ///
    /// let (backend, choice) = Auto::later(Policy::Auto, sakia_ring::Ring::builder())?;
    /// let driver = Driver::new(backend);
    /// assert!(choice.get().is_none());
    /// driver.set_up()?;
    /// assert!(choice.get().is_some());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn later(policy: Policy, ring: Builder) -> io::Result<(Self, LateChoice)> {
        let choice = LateChoice::default();
        let later = Later::new(policy, ring, LateChoice::clone(&choice))?;
        Ok((Self::Later(later), choice))
    }

    /// Takes the place of a backend with this zero of its clock, which has made these sockets.
    ///
    /// # Safety
    ///
    /// - The sockets are open, the driver's own, and were not [forgotten](Backend::forget_descriptor).
    pub(crate) unsafe fn take_over(&mut self, since: Instant, sockets: &[RawFd]) {
        match self {
            Self::Uring(uring) => uring.take_over(since),
            // SAFETY: the caller's duties are the same.
            Self::Epoll(epoll) => unsafe { epoll.take_over(since, sockets) },
            _ => {}
        }
    }

    /// Wraps a backend in the variant of its type.
    pub(crate) fn from_backend<B: Backend>(backend: B) -> Self {
        fn known<T: 'static>(backend: &mut dyn Any) -> Option<T> {
            backend.downcast_mut::<Option<T>>().and_then(Option::take)
        }
        let mut backend = Some(backend);
        let any: &mut dyn Any = &mut backend;
        if let Some(auto) = known(any) {
            return auto;
        }
        if let Some(ring) = known(any) {
            return Self::Uring(ring);
        }
        if let Some(epoll) = known(any) {
            return Self::Epoll(epoll);
        }
        #[cfg(any(test, feature = "sim"))]
        if let Some(sim) = known(any) {
            return Self::Sim(sim);
        }
        Self::Other(Box::new(backend.expect("no backend above took it")))
    }

    /// Returns the backend if it is of this type; [`Auto`] itself always is.
    pub fn get<B: Backend>(&self) -> Option<&B> {
        let inner: &dyn Any = match self {
            Self::Uring(uring) => uring,
            Self::Epoll(epoll) => epoll,
            Self::Later(later) => later,
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(sim) => sim,
            Self::Other(other) => &**other,
        };
        let this: &dyn Any = self;
        inner.downcast_ref().or_else(|| this.downcast_ref())
    }

    /// Checks that an entry requests the same as a call, on the simulated kernel.
    ///
    /// # Panics
    /// When they differ.
    ///
    /// # Safety
    ///
    /// - The memory that they name is valid.
    #[cfg_attr(not(any(test, feature = "sim")), expect(unused_variables, clippy::unused_self))]
    pub(crate) unsafe fn compare(&self, sqe: &Sqe, call: Call) {
        #[cfg(any(test, feature = "sim"))]
        if let Self::Sim(_) = self {
            // SAFETY: the caller's duties are the same.
            unsafe { Sim::compare(sqe, call) };
        }
    }

    /// Returns the fallback for a ring that could not be set up.
    fn without_ring(
        policy: Policy,
        ring: &Builder,
        refusal: SetupError,
    ) -> io::Result<(Self, Choice)> {
        if policy == Policy::Uring {
            return Err(refusal.into());
        }
        Self::new_epoll(ring, Some(refusal))
    }

    fn new_epoll(ring: &Builder, refusal: Option<SetupError>) -> io::Result<(Self, Choice)> {
        let (sq_entries, cq_entries) = ring.wanted_entries();
        let options = EpollOptions::new().entries(sq_entries, cq_entries);
        match Epoll::with_options(options) {
            Ok(epoll) => Ok((
                Self::Epoll(epoll),
                Choice { name: "poll", report: None, refusal, failure: None },
            )),
            Err(poll) => Err(io::Error::new(poll.kind(), NoBackend { poll, refusal })),
        }
    }

    /// Sets up a backend as [`new`](Auto::new) does with the default policy and ring.
    ///
    /// # Errors
    /// See [`new`](Auto::new).
    pub fn detect() -> io::Result<(Self, Choice)> {
        Self::new(Policy::default(), Ring::builder())
    }

    /// Returns the simulated kernel, with the feature `sim`.
    #[cfg(any(test, feature = "sim"))]
    pub fn simulated(sim: Sim) -> (Self, Choice) {
        (Self::Sim(sim), Choice { name: "sim", report: None, refusal: None, failure: None })
    }
}

/// Calls a method of the backend in use. Only the ring's calls are inlined: all other backends are called out
/// of line.
macro_rules! each {
    ($self:expr, $backend:ident => $call:expr) => {
        match $self {
            Auto::Uring($backend) => $call,
            other => elsewhere(move || match other {
                Auto::Uring(_) => unreachable!(),
                Auto::Epoll($backend) => $call,
                Auto::Later($backend) => $call,
                #[cfg(any(test, feature = "sim"))]
                Auto::Sim($backend) => $call,
                Auto::Other($backend) => $call,
            }),
        }
    };
}

#[inline(never)]
fn elsewhere<T>(call: impl FnOnce() -> T) -> T {
    call()
}

/// Methods of a [`Backend`], all with `&self` or all with `&mut self`, that forward to the same method of the
/// backend in use.
macro_rules! forward {
    ($($(#[$attribute:meta])*
       fn $name:ident(&$self:ident $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {$(
        $(#[$attribute])*
        fn $name(&$self $(, $argument: $type)*) $(-> $result)? {
            each!($self, backend => backend.$name($($argument),*))
        }
    )*};
    ($($(#[$attribute:meta])*
       fn $name:ident(&mut $self:ident $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;)*) => {$(
        $(#[$attribute])*
        fn $name(&mut $self $(, $argument: $type)*) $(-> $result)? {
            each!($self, backend => backend.$name($($argument),*))
        }
    )*};
}

// SAFETY: each call goes to a backend that keeps the promise.
unsafe impl Backend for Auto {
    forward! {
        fn features(&self) -> Features;
        #[inline(always)]
        fn sq_pending(&self) -> u32;
        #[inline(always)]
        fn cq_ready(&self) -> u32;
        #[inline(always)]
        fn needs_enter(&self) -> bool;
        fn look_again(&self);
        #[inline(always)]
        fn is_overflowing(&self) -> bool;
        #[inline(always)]
        fn is_intact(&self) -> bool;
        fn now(&self) -> Duration;
        fn figures(&self) -> Figures<'_>;
        fn calls(&self) -> Rc<dyn Calls>;
    }

    forward! {
        fn make_nop(&mut self, position: Position, user_data: u64) -> bool;
        fn submit(&mut self) -> io::Result<()>;
        #[inline(always)]
        fn enter(&mut self, min: u32, timeout: Option<Duration>, signals: Option<&SignalMask>)
            -> io::Result<Entered>;
        #[inline(always)]
        fn reap(&mut self, out: &mut [Cqe]) -> usize;
        fn set_alarm(&mut self, after: Duration) -> bool;
        fn register_group(&mut self, group: u16, entries: u16) -> io::Result<()>;
        fn nap(&mut self, duration: Duration);
        fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>>;
        fn pollable(&mut self) -> io::Result<OwnedFd>;
        fn clear_readiness(&mut self);
        fn find_stuck(&mut self, limit: Duration, found: &mut Vec<StuckWorker>) -> Option<Duration>;
    }

    #[inline(always)]
    fn has_news(&self) -> bool {
        match self {
            Self::Epoll(epoll) => epoll.has_news(), // runs after each poll of a task
            other => each!(other, backend => backend.has_news()),
        }
    }

    #[inline(always)]
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.push(sqe) })
    }

    #[inline(always)]
    unsafe fn forget_descriptor(&mut self, raw: i32) {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.forget_descriptor(raw) });
    }

    unsafe fn note_socket(&mut self, raw: i32) {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.note_socket(raw) });
    }

    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.push_call(request, to) })
    }

    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.register_buffer(addr, len) })
    }

    #[inline(always)]
    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {
        // SAFETY: the caller's duties are the same.
        each!(self, backend => unsafe { backend.provide(group, id, addr, len) });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::c_void;
    use std::os::fd::BorrowedFd;
    use std::ptr::NonNull;

    use sakia_ring::{Host, Kernel, Params};

    use super::*;

    /// The kernel, except that one call fails: the one with this number among all calls, and with
    /// `is_for_ever` all later ones.
    struct Failing {
        number: u32,
        is_for_ever: bool,
        errno: Errno,
        calls: Cell<u32>,
    }

    impl Failing {
        fn pass(&self) -> io::Result<()> {
            let number = self.calls.replace(self.calls.get() + 1);
            let fails = number == self.number || self.is_for_ever && number > self.number;
            if fails { Err(self.errno.into()) } else { Ok(()) }
        }
    }

    // SAFETY: each call is the kernel's or does nothing.
    unsafe impl Host for Failing {
        unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
            self.pass()?;
            // SAFETY: the caller's duties are the same.
            unsafe { Kernel.setup(entries, params) }
        }

        unsafe fn enter(
            &self,
            ring: u32,
            to_submit: u32,
            min_complete: u32,
            flags: u32,
            arg: *const c_void,
            arg_size: usize,
        ) -> io::Result<u32> {
            self.pass()?;
            // SAFETY: the caller's duties are the same.
            unsafe { Kernel.enter(ring, to_submit, min_complete, flags, arg, arg_size) }
        }

        unsafe fn register(
            &self,
            ring: i32,
            opcode: u32,
            arg: *mut c_void,
            nr_args: u32,
        ) -> io::Result<u32> {
            self.pass()?;
            // SAFETY: the caller's duties are the same.
            unsafe { Kernel.register(ring, opcode, arg, nr_args) }
        }

        fn map(&self, ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
            self.pass()?;
            Kernel.map(ring, offset, len)
        }

        unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
            // SAFETY: the caller's duties are the same.
            unsafe { Kernel.unmap(addr, len) };
        }
    }

    /// Asserts that the ring is chosen, or epoll with this errno as the reason, and never an error.
    fn assert_chosen(number: u32, is_for_ever: bool, errno: Errno) -> &'static str {
        let host = Failing { number, is_for_ever, errno, calls: Cell::new(0) };
        let builder = Builder::with_host(host).sq_entries(8).cq_entries(8);
        let error = match Uring::complete(builder) {
            Ok(mut uring) => {
                assert!(is_for_ever || uring.enter(0, None, None).is_ok());
                return "uring";
            }
            Err(error) => error,
        };
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()), "{error}");
        let text = error.to_string();
        let chosen = Auto::without_ring(Policy::Auto, &Ring::builder(), error);
        let (_, choice) = chosen.expect("epoll is there");
        assert_eq!(choice.to_string(), format!("poll: {text}"));
        choice.name()
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn no_errno_of_any_call_keeps_auto_from_a_backend() {
        if let Err(error) = Builder::new().build() {
            return eprintln!("SKIP no_errno_of_any_call_keeps_auto_from_a_backend: {error}");
        }
        // The calls are the set-up, two maps, four registrations and an enter.
        for number in 0..8 {
            for errno in (1..=133).map(Errno::from_raw_os_error) {
                let once = assert_chosen(number, false, errno);
                if matches!(errno, Errno::INTR | Errno::AGAIN) {
                    assert_eq!(once, "uring", "{errno} at call {number} passes");
                }
                if number == 0 {
                    let passes = [Errno::INTR, Errno::AGAIN, Errno::INVAL];
                    let expected = if passes.contains(&errno) { "uring" } else { "poll" };
                    assert_eq!(once, expected, "{errno}");
                    assert_eq!(assert_chosen(number, true, errno), "poll", "{errno}");
                } else {
                    assert_chosen(number, true, errno);
                }
            }
        }
    }

    #[test]
    fn who_insists_on_the_ring_gets_the_reason() {
        let refusal = || {
            let source = io::Error::from(Errno::IO);
            SetupError::new("io_uring_setup", source, &SetupReport::default())
        };
        let result = Auto::without_ring(Policy::Uring, &Ring::builder(), refusal());
        let error = result.map(|_| ()).expect_err("no ring");
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<SetupError>());
        assert_eq!(inner.and_then(SetupError::raw_os_error), Some(5));

        let poll = io::Error::from(Errno::MFILE);
        let error = NoBackend { poll, refusal: Some(refusal()) };
        assert_eq!(error.raw_os_error(), Some(24));
        let text = error.to_string();
        assert!(text.contains("ulimit -n") && text.contains("io_uring_setup"), "{text}");
    }
}
