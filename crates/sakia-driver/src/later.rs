//! A backend that is set up by the first operation that needs it.
//!
//! A ring costs some hundred microseconds to make and to give up, and many a driver performs plain calls
//! only, or nothing. So a driver may begin on [`Later`], which sleeps on a futex and holds
//! all that the other backend is set up with; the core replaces it in
//! [`Core::set_up`](crate::core::Core::set_up), and its plain calls stay. No operation is ever in flight here.
//!
//! Wakes by other threads survive the replacement. The protocol, whose four accesses have one order:
//! 1. A sender sets the mark, then looks for the wake of the other backend. If there is one it calls that,
//!    else it ends the sleep on the futex.
//! 2. The driver's thread stores the wake of the other backend, then looks at the mark. If it is set it calls
//!    that wake itself, which ends its next sleep.
//! 3. Either the sender sees the other wake, or the thread sees the mark. Both may be: then the next sleep is
//!    short, which is harmless.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::futex;
use sakia_ring::{Builder, Cqe, Entered, Position, Process, SignalMask, Sqe};

use crate::auto::{Auto, Choice, Policy};
use crate::backend::{Backend, Calls, Features, RemoteWake, Takes};
use crate::descriptors::KernelCalls;
use crate::sys::{self, timespec};
use crate::uring::BATCHES_WELL;

/// The chosen backend, once it is set up. Any thread may look.
pub type LateChoice = Arc<OnceLock<Choice>>;

/// A backend that is not set up yet.
pub struct Later {
    policy: Policy,
    ring: Builder,
    /// Gets the outcome.
    choice: LateChoice,
    /// The process that it is for.
    process: Process,
    /// The zero of the backend's clock, and of the next one's.
    since: Instant,
    wake: Arc<LateWake>,
    /// Sockets made so far, of which the other backend is told.
    sockets: Vec<RawFd>,
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later").field("policy", &self.policy).finish_non_exhaustive()
    }
}

impl Later {
    /// # Errors
    /// `EINVAL`: sizes of the queues that no backend takes.
    pub(crate) fn new(policy: Policy, ring: Builder, choice: LateChoice) -> io::Result<Self> {
        let (sq_entries, cq_entries) = ring.wanted_entries();
        if sq_entries == 0 || cq_entries < sq_entries {
            return Err(Errno::INVAL.into());
        }
        Ok(Self {
            policy,
            ring,
            choice,
            process: Process::current(),
            since: Instant::now(),
            wake: Arc::default(),
            sockets: Vec::new(),
        })
    }

    /// Sets the other backend up. After an error the next call tries again.
    ///
    /// # Errors
    /// As for [`Auto::new`]; in a forked child.
    pub(crate) fn set_up(&mut self) -> io::Result<Auto> {
        self.check_process()?;
        let (mut backend, choice) = Auto::new(self.policy, self.ring.clone())?;
        // SAFETY: `note_socket` was told that the driver has made them, and `forget_descriptor` leaves out
        // those that are to be closed or given away.
        unsafe { backend.take_over(self.since, &self.sockets) };
        self.wake.forward_to(backend.remote_wake()?);
        self.choice.set(choice).ok(); // set once: it is set up once
        Ok(backend)
    }

    #[inline(always)]
    fn check_process(&self) -> io::Result<()> {
        if self.process.is_intact() { Ok(()) } else { Err(forked_error()) }
    }
}

#[cold]
fn forked_error() -> io::Error {
    io::Error::other("the driver belongs to the parent process: a forked child must create its own")
}

// SAFETY: no entry is ever taken, and a plain call uses memory only until it returns.
unsafe impl Backend for Later {
    fn features(&self) -> Features {
        let (sq_entries, cq_entries) = self.ring.wanted_entries();
        let may_be_ring = self.policy != Policy::Poll;
        Features {
            takes: if may_be_ring { Takes::Entries } else { Takes::Calls },
            plain_calls: true,
            fills_what_it_reports: true,
            readiness: may_be_ring,
            // There are no completions to tell of.
            tells_news: true,
            batches_well: if may_be_ring { BATCHES_WELL } else { 0 },
            ..Features::new(sq_entries, cq_entries)
        }
    }

    fn sq_pending(&self) -> u32 {
        0
    }

    unsafe fn push(&mut self, _: Sqe) -> Option<Position> {
        None
    }

    unsafe fn note_socket(&mut self, raw: i32) {
        self.sockets.push(raw);
    }

    unsafe fn forget_descriptor(&mut self, raw: i32) {
        self.sockets.retain(|&socket| socket != raw);
    }

    fn make_nop(&mut self, _: Position, _: u64) -> bool {
        false
    }

    fn submit(&mut self) -> io::Result<()> {
        self.check_process()
    }

    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        _: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        self.check_process()?;
        if min_complete > 0 {
            self.wake.sleep(timeout)?;
        }
        Ok(Entered { consumed: 0, timed_out: false })
    }

    fn cq_ready(&self) -> u32 {
        0
    }

    fn reap(&mut self, _: &mut [Cqe]) -> usize {
        0
    }

    fn needs_enter(&self) -> bool {
        false
    }

    fn is_overflowing(&self) -> bool {
        false
    }

    fn is_intact(&self) -> bool {
        self.process.is_intact()
    }

    unsafe fn register_buffer(&mut self, _: *mut u8, _: usize) -> io::Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn now(&self) -> Duration {
        self.since.elapsed()
    }

    fn nap(&mut self, duration: Duration) {
        sys::nap(duration);
    }

    fn remote_wake(&mut self) -> io::Result<Arc<dyn RemoteWake>> {
        Ok(Arc::clone(&self.wake) as Arc<dyn RemoteWake>)
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(KernelCalls)
    }
}

/// Wakes the thread of a driver on whichever backend it is; see the [module](self).
#[derive(Default)]
struct LateWake {
    /// The mark: 1 once the thread is to wake up, until it has. The futex of its sleep.
    is_woken: AtomicU32,
    /// The wake of the other backend, once that is set up.
    other: OnceLock<Arc<dyn RemoteWake>>,
}

impl LateWake {
    /// Sleeps until a wake, if there was none since the last sleep.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(timespec);
        let result = match self.is_woken.load(Ordering::SeqCst) {
            0 => futex::wait(&self.is_woken, futex::Flags::PRIVATE, 0, timeout.as_ref()),
            _ => Ok(()),
        };
        self.is_woken.store(0, Ordering::SeqCst);
        match result {
            // It was woken, the time is over, or a signal has come.
            Ok(()) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn forward_to(&self, other: Arc<dyn RemoteWake>) {
        let other = self.other.get_or_init(|| other);
        fence(Ordering::SeqCst); // step 2, pairs with the one in `wake`
        if self.is_woken.swap(0, Ordering::SeqCst) != 0 {
            other.wake();
        }
    }
}

impl RemoteWake for LateWake {
    fn wake(&self) {
        self.is_woken.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst); // step 1, pairs with the one in `forward_to`
        match self.other.get() {
            Some(other) => other.wake(),
            // A failure would mean that the futex is no memory.
            None => drop(futex::wake(&self.is_woken, futex::Flags::PRIVATE, 1)),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;
    use crate::core::Wait;
    use crate::driver::Driver;

    /// Counts its calls.
    #[derive(Default)]
    struct Counted(AtomicU64);

    impl RemoteWake for Counted {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn later() -> Driver {
        let (backend, _) =
            Auto::later(Policy::Auto, sakia_ring::Ring::builder()).expect("usual sizes");
        Driver::new(backend)
    }

    #[test]
    fn a_wake_before_the_sleep_ends_it() {
        let wake = LateWake::default();
        wake.wake();
        wake.sleep(None).unwrap();
        assert_eq!(wake.is_woken.load(Ordering::SeqCst), 0, "the next sleep is one");
        wake.sleep(Some(Duration::from_nanos(1))).unwrap();
    }

    #[test]
    fn a_wake_that_the_other_backend_did_not_see_is_passed_on() {
        let (wake, counted) = (LateWake::default(), Arc::new(Counted::default()));
        wake.wake();
        wake.forward_to(Arc::clone(&counted) as Arc<dyn RemoteWake>);
        assert_eq!(counted.0.load(Ordering::SeqCst), 1);
        wake.wake();
        assert_eq!(counted.0.load(Ordering::SeqCst), 2);
    }

    /// Each sleep is ended by one wake of another thread, before, while and after the backend is set up.
    #[test]
    fn no_wake_is_lost_while_the_backend_is_set_up() {
        for round in 0..200_u32 {
            let driver = later();
            let wake = driver.remote_wake().unwrap();
            let (sender, receiver) = std::sync::mpsc::channel();
            let other = thread::spawn(move || {
                for _ in 0..4 {
                    let Ok(()) = receiver.recv() else { return };
                    wake.wake();
                }
            });
            for turn in 0..4 {
                sender.send(()).unwrap();
                if round % 4 == turn {
                    driver.set_up().unwrap();
                }
                driver.turn(Wait::Forever).unwrap();
            }
            other.join().unwrap();
        }
    }
}
