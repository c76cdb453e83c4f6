//! The driver itself: turns, and the end.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use sakia_ring::SignalMask;

use crate::auto::Auto;
use crate::backend::{Backend, RemoteWake};
use crate::core::{Attention, Core, OwnMask, Phase, Wait};
use crate::decide::Mounts;
use crate::fd::{Fd, Table};
use crate::handle::{Handle, Shared};
use crate::sys;
use crate::uring::Uring;

/// The time for which a dropped driver waits for the kernel to give memory back.
pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// The interval at which a driver that waits for its end requests again that everything be canceled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(10);

/// Performs operations for one thread.
///
/// A loop starts operations through the [`Handle`] that the driver derefs to, and calls
/// [`turn`](Driver::turn), which submits started operations, handles completions, and sleeps when there is
/// nothing to do.
///
/// Dropping the driver ends everything in an orderly way: see [`shutdown`](Driver::shutdown).
/// Forgetting it is safe, and leaks it.
///
/// # Examples
/// ```
/// use std::future::Future;
/// use std::io;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
///
/// use sakia_driver::{Auto, Driver, Wait};
///
/// /// A loop around one future, such as an operation.
/// fn run<F: Future>(driver: &Driver, future: F) -> io::Result<F::Output> {
///     let mut future = pin!(future);
///     loop {
///         match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
///             Poll::Ready(output) => return Ok(output),
///             Poll::Pending => driver.turn(Wait::Forever)?,
///         };
///     }
/// }
///
/// # fn main() -> io::Result<()> {
/// let driver = Driver::new(Auto::detect()?.0);
/// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
/// let (result, buf) = run(&driver, driver.read(&file, vec![0; 9], 0))?;
/// assert_eq!((result?, &buf[..]), (9, &b"[package]"[..]));
/// run(&driver, driver.close(file))??;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driver {
    handle: Handle,
    /// Only the thread that owns the backend takes turns.
    thread: PhantomData<*mut ()>,
}

/// The outcome of a driver's end.
///
/// # Examples
/// See [`Driver::shutdown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Drained {
    /// Operations that would not end. Their memory and descriptors are leaked, since the kernel may
    /// still use them.
    pub leaked: u64,
}

impl Driver {
    /// Makes a driver on a ring with the default sizes.
    ///
    /// # Errors
    /// See [`sakia_ring::SetupError`].
    pub fn uring() -> Result<Self, sakia_ring::SetupError> {
        Uring::new().map(|ring| Self::on(Auto::Uring(ring)))
    }

    /// Makes a driver on this backend, which has nothing in flight.
    ///
    /// # Examples
    /// See [`Driver`](Driver#examples).
    pub fn new(backend: impl Backend) -> Self {
        Self::on(Auto::from_backend(backend))
    }

    fn on(backend: Auto) -> Self {
        sakia_trace::record_as_environment_says();
        let calls = backend.calls();
        let (core, mounts) = (RefCell::new(Core::new(backend, &calls)), Mounts::default());
        let (table, batch, has_requests) = (Table::default(), Cell::default(), Cell::default());
        let shared = Rc::new(Shared { core, calls, mounts, table, batch, has_requests });
        Self { handle: Handle { shared, queues_all: false }, thread: PhantomData }
    }

    /// Sets the backend up now, if that was put off until the first operation that needs it; see
    /// [`Auto::later`].
    ///
    /// # Errors
    /// As for [`Auto::new`]; the next call tries again.
    ///
    /// # Examples
    /// See [`Auto::later`].
    pub fn set_up(&self) -> io::Result<()> {
        self.handle.shared.core.borrow_mut().set_up()
    }

    /// Returns the handle through which operations are started.
    ///
    /// # Examples
    /// See [`Handle`](Handle#examples).
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Submits started operations and handles completions; if there are none, sleeps as `wait` says. Then
    /// wakes tasks and disposes of unwanted results. Returns the number of finished operations, dropped ones
    /// included, plus the number of completions that are not their operation's last. It may return 0 before
    /// `wait` is over, for example after a signal.
    ///
    /// Wakers are called from here, outside the driver, so that they may start operations and drop
    /// handles.
    ///
    /// # Errors
    /// A permanent failure of the backend, after which the driver is of no more use; always an error in a
    /// forked child.
    ///
    /// # Examples
    /// See [`Driver`](Driver#examples).
    #[inline]
    pub fn turn(&self, wait: Wait) -> io::Result<u32> {
        self.turn_then(wait, || {})
    }

    /// As [`turn`](Driver::turn), with a call of `awake` in each turn: after the sleep, if there is one, and
    /// before the first waker.
    ///
    /// A loop that announces its sleep to other threads, so that they [wake](Driver::remote_wake) the driver,
    /// takes the announcement back here. Then a waker that the turn itself calls finds the thread awake and
    /// makes no system call.
    ///
    /// # Errors
    /// As for `turn`; `awake` is called all the same.
    ///
    /// # Examples
    /// ```
    /// use std::cell::Cell;
    ///
    /// use sakia_driver::{Auto, Driver, Wait};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let is_asleep = Cell::new(true);
    /// driver.turn_then(Wait::Poll, || is_asleep.set(false))?;
    /// assert!(!is_asleep.get());
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub fn turn_then(&self, wait: Wait, awake: impl FnOnce()) -> io::Result<u32> {
        let mut core = self.handle.shared.core.borrow_mut();
        let result = core.take_turn(wait);
        let is_unsettled = core.is_unsettled();
        drop(core);
        awake();
        if is_unsettled {
            self.handle.shared.settle();
        }
        result
    }

    /// As [`turn`](Driver::turn), with this signal mask while the thread sleeps. Unless a signal ended the
    /// sleep, it handles the pending signals that the mask lets through at its end.
    ///
    /// # Errors
    /// As for `turn`. [`Unsupported`](io::ErrorKind::Unsupported): the backend cannot do it.
    #[cold]
    pub(crate) fn turn_with_signals(&self, wait: Wait, mask: &SignalMask) -> io::Result<u32> {
        let mut core = self.handle.shared.core.borrow_mut();
        core.set_up()?;
        core.check_masks()?;
        let retries = core.counters.retries;
        let result = core.take_rare_turn(wait, mask);
        let is_interrupted = core.counters.retries != retries;
        let is_unsettled = core.is_unsettled();
        drop(core);
        if is_unsettled {
            self.handle.shared.settle();
        }
        let came = result?;
        if !is_interrupted {
            // It has not slept, or completions or its time ended the sleep. There may be signals, too.
            sys::handle_signals(mask)?;
        }
        Ok(came)
    }

    /// Returns a cheap check whether [`wants_turn`](Driver::wants_turn) is worth a call.
    pub fn attention(&self) -> Attention {
        self.handle.shared.core.borrow().due.attention.clone()
    }

    /// Returns whether a turn has something to do: an operation was started, or the backend has completions.
    /// Costs a few loads from memory, for a loop that asks after each poll of a task.
    #[inline(always)]
    pub fn wants_turn(&self) -> bool {
        self.handle.shared.core.borrow().wants_turn()
    }

    /// Returns whether a turn would bring completions, as far as a few loads from memory tell. Started
    /// operations do not count.
    pub fn has_news(&self) -> bool {
        self.handle.shared.core.borrow().has_news()
    }

    /// Returns whether operations wait to be submitted, and the kernel has at most as many: it may soon have
    /// none to work on.
    pub fn is_mostly_unsubmitted(&self) -> bool {
        self.handle.shared.core.borrow().is_mostly_unsubmitted()
    }

    /// Makes the next turn look for completions even if the last turn was a moment ago.
    pub fn look_again(&self) {
        self.handle.shared.core.borrow().look_again();
    }

    /// Returns the number of plain calls made since the last turn, where one that copies many bytes counts as
    /// several. Returns a turn's whole budget if no more calls are allowed.
    pub fn plain_calls(&self) -> u32 {
        self.handle.shared.core.borrow().plain_calls()
    }

    /// Returns the backend's time, see [`Backend::now`]; zero once the driver has stopped.
    pub fn now(&self) -> Duration {
        self.handle.shared.core.borrow().now()
    }

    /// Makes [`wants_turn`](Driver::wants_turn) return true once `after` has passed, if not earlier. Several
    /// alarms may be set; none can be taken back. Costs one system call. Returns false if the backend has no
    /// alarms or no room for another; then the caller has to read a clock.
    pub fn set_alarm(&self, after: Duration) -> bool {
        self.handle.shared.core.borrow_mut().set_alarm(after)
    }

    /// Returns an error if there can be no further turn, without taking one.
    ///
    /// # Errors
    /// As for [`turn`](Driver::turn).
    pub fn check(&self) -> io::Result<()> {
        self.handle.shared.core.borrow_mut().check()
    }

    /// Returns the token of an operation that is done, oldest first; see
    /// [`Op::set_token`](crate::Op::set_token).
    ///
    /// # Examples
    /// A loop without wakers tells its operations apart by tokens:
    /// ```
    /// use sakia_driver::{Auto, Driver, Wait};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let mut reads: Vec<_> = (0..4).map(|n| driver.read(&file, vec![0; 8], n * 8)).collect();
    /// for (read, token) in reads.iter_mut().zip(0..) {
    ///     read.set_token(token);
    /// }
    /// let mut done = 0;
    /// while done < 4 {
    ///     driver.turn(Wait::Forever)?;
    ///     while let Some(token) = driver.next_done() {
    ///         let (result, _) = reads[token as usize].try_take().expect("it is done");
    ///         assert_eq!(result?, 8);
    ///         done += 1;
    ///     }
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub fn next_done(&self) -> Option<u64> {
        self.handle.shared.core.borrow_mut().outbox.done.pop_front()
    }

    /// Ends the driver, see [`shutdown`](Driver::shutdown). Returns the tokens of the requests whose memory was
    /// leaked.
    pub(crate) fn end_requests(&self, limit: Duration) -> Vec<u64> {
        let _ = self.end(limit);
        self.handle.shared.core.borrow_mut().lost_requests()
    }

    /// Returns the means for other threads to wake this one while it sleeps in [`turn`](Driver::turn).
    /// Afterwards a turn that may wait for ever sleeps even with nothing in flight.
    ///
    /// # Errors
    /// See [`Backend::remote_wake`]; `ECANCELED` once the driver has stopped.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver, Wait};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let wake = driver.remote_wake()?;
    /// let other = std::thread::spawn(move || wake.wake());
    /// // Sleeps, with nothing in flight, until the other thread wakes it.
    /// driver.turn(Wait::Forever)?;
    /// other.join().expect("it does not panic");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn remote_wake(&self) -> io::Result<Arc<dyn RemoteWake>> {
        let mut core = self.handle.shared.core.borrow_mut();
        let wake = core.backend.remote_wake()?;
        core.due.can_be_woken = true;
        Ok(wake)
    }

    /// Returns a descriptor that becomes readable when a turn would bring something, for a foreign loop to
    /// poll; see [`Backend::pollable`].
    ///
    /// # Errors
    /// As [`Backend::pollable`]; `ECANCELED` once the driver has stopped.
    ///
    /// # Examples
    /// A foreign loop waits for the driver:
    /// ```
    /// use rustix::event::{PollFd, PollFlags, poll};
    /// use sakia_driver::{Auto, Driver, Wait};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let pollable = driver.pollable()?;
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let mut read = driver.read(&file, vec![0; 9], 0);
    /// driver.turn(Wait::Poll)?;
    /// let (result, _) = loop {
    ///     if let Some(output) = read.try_take() {
    ///         break output;
    ///     }
    ///     poll(&mut [PollFd::new(&pollable, PollFlags::IN)], None)?;
    ///     driver.clear_readiness();
    ///     driver.turn(Wait::Poll)?;
    /// };
    /// assert_eq!(result?, 9);
    /// # Ok(())
    /// # }
    /// ```
    pub fn pollable(&self) -> io::Result<OwnedFd> {
        let mut core = self.handle.shared.core.borrow_mut();
        core.set_up()?;
        core.is_polled = true;
        core.backend.pollable()
    }

    /// Makes the descriptor of [`pollable`](Driver::pollable) unreadable until something new comes. Call it
    /// before the turn, not after.
    ///
    /// # Examples
    /// See [`Driver::pollable`].
    pub fn clear_readiness(&self) {
        self.handle.shared.core.borrow_mut().backend.clear_readiness();
    }

    /// Calls `f` with the backend. `None` if the backend is of another type, or the driver has stopped.
    ///
    /// # Panics
    /// When `f` uses the driver.
    pub fn with_backend<B: Backend, T>(&self, f: impl FnOnce(&B) -> T) -> Option<T> {
        let core = self.handle.shared.core.borrow();
        core.backend.get().filter(|_| core.phase != Phase::Stopped).map(f)
    }

    /// Ends the driver: refuses new operations, cancels those in flight, and waits at most `limit` for the
    /// kernel to give every operation's memory back. Memory that is not back by then is leaked: it stays
    /// valid for ever, and is counted.
    ///
    /// Operations that end by then keep their results for their handles. New ones end with `ECANCELED`. In a
    /// forked child the call only leaks.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia_driver::{Auto, CURRENT_POSITION, Driver, Wait};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = driver.adopt(reader.into());
    /// // It would wait for ever, and has its memory until it is canceled.
    /// let mut read = driver.read(&reader, vec![0; 16], CURRENT_POSITION);
    /// driver.turn(Wait::Poll)?;
    /// assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
    /// let (result, buf) = read.try_take().expect("it is over");
    /// assert_eq!((result.unwrap_err().raw_os_error(), buf.len()), (Some(libc::ECANCELED), 16));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn shutdown(self, limit: Duration) -> Drained {
        self.end(limit) // `drop` has nothing left to do
    }

    fn end(&self, limit: Duration) -> Drained {
        let shared = &self.handle.shared;
        if shared.core.borrow().phase == Phase::Stopped {
            return Drained { leaked: 0 };
        }
        if !shared.core.borrow().is_intact() {
            // The parent's operations: this process owns neither their memory nor their ring.
            std::mem::forget(self.handle.clone());
            return Drained { leaked: u64::from(shared.core.borrow().in_flight) };
        }
        let panic = OnceCell::new();
        let settle = || {
            while let Err(payload) = catch_unwind(AssertUnwindSafe(|| shared.settle())) {
                panic.set(payload).ok();
            }
        };
        // Slots may stay in use by handles, or for ever. Whatever happens here, they stay valid.
        let memory: Weak<Shared> = Rc::downgrade(shared);
        shared.core.borrow_mut().stop_intake(memory);
        settle();
        let begin = shared.core.borrow().now();
        let (deadline, mut ask_again) = (begin.saturating_add(limit), begin + CANCEL_INTERVAL);
        let (mut done, mut answered) = (VecDeque::new(), VecDeque::new());
        loop {
            let mut core = shared.core.borrow_mut();
            let now = core.now();
            let left = deadline.saturating_sub(now);
            if !core.is_busy() || left.is_zero() {
                break;
            }
            if now >= ask_again {
                core.cancel_everything();
                ask_again = now + CANCEL_INTERVAL;
            }
            // A turn does not sleep while there are some. They can be taken after the end.
            done.append(&mut core.outbox.done);
            answered.append(&mut core.outbox.answered);
            let wait = Wait::For(left.min(ask_again - now));
            let turn = catch_unwind(AssertUnwindSafe(|| core.take_rare_turn(wait, OwnMask)));
            drop(core);
            settle();
            match turn {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => break,
                Err(payload) => drop(panic.set(payload)),
            }
        }
        let mut core = shared.core.borrow_mut();
        let leaked = core.give_up();
        done.append(&mut core.outbox.done);
        answered.append(&mut core.outbox.answered);
        (core.outbox.done, core.outbox.answered) = (done, answered);
        core.end_watch();
        let backend = core.leave_backend();
        let (arena, pools) = (core.lent.arena.take(), std::mem::take(&mut core.lent.pools));
        let kept = core.last_kept();
        drop(core);
        drop(backend);
        drop((arena, pools));
        drop(kept); // the driver is still there
        settle();
        if let Some(payload) = panic.into_inner()
            && !std::thread::panicking()
        {
            resume_unwind(payload);
        }
        Drained { leaked }
    }

    /// Lends a descriptor to the driver, which keeps its owner while operations use it, and does not close
    /// it. So several drivers, on different threads, can have operations on the same descriptor. Closing the
    /// [`Fd`] means only that this driver no longer uses the descriptor.
    ///
    /// A driver has one `Fd` for a number. If it has one already, lent, adopted or its own, the result is a
    /// clone of that, and `owner` is dropped: the number stays open for as long as there are clones. Then a
    /// close by any clone waits for all of them, and what the driver owns is closed with the last.
    ///
    /// # Panics
    /// On the simulated kernel, to which a descriptor of the process means nothing.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::sync::Arc;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let shared = Arc::new(std::fs::File::open("Cargo.toml")?);
    /// let lent = driver.lend(Arc::clone(&shared));
    /// let (result, buf) = run(&driver, driver.read(&lent, vec![0; 9], 0))?;
    /// assert_eq!((result?, &buf[..]), (9, &b"[package]"[..]));
    /// drop(driver);
    /// // The driver does not close it.
    /// assert!(shared.metadata()?.is_file());
    /// # Ok(())
    /// # }
    /// ```
    pub fn lend<T: AsFd + Send + Sync + 'static>(&self, owner: Arc<T>) -> Fd {
        self.handle.lend(owner)
    }

    /// Gives a descriptor to the driver, which closes it when its last user is gone.
    ///
    /// # Panics
    /// - On the simulated kernel, to which a descriptor of the process means nothing.
    /// - When the driver has an [`Fd`] with this number, which has two owners then: safe code cannot bring
    ///   that about. It stays open, and the driver's.
    ///
    /// # Examples
    /// See [`Driver`](Driver#examples).
    pub fn adopt(&self, fd: OwnedFd) -> Fd {
        self.handle.adopt(fd)
    }

    /// Gives a descriptor of the simulated kernel to the driver, which closes it when its last user is
    /// gone. With the feature `sim`.
    ///
    /// # Panics
    /// On another backend, to which the number may mean something else, and as [`adopt`](Driver::adopt).
    #[cfg(any(test, feature = "sim"))]
    pub fn adopt_simulated(&self, raw: i32) -> Fd {
        let is_simulated = !self.handle.shared.calls.are_of_this_process();
        assert!(is_simulated, "descriptor {raw} is not this kernel's");
        // SAFETY: a number of the simulated kernel, which is no descriptor of the process.
        unsafe { self.handle.own(raw) }
    }
}

impl Deref for Driver {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.end(DRAIN_LIMIT);
    }
}
