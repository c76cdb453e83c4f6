//! The functions of a loop.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CString, c_char, c_void};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{Auto, Bypass, Driver, Lent, Loop, SignalMask, Ticket, Wait};
use sakia_ring::{Process, Ring};

use crate::answer::answer;
use crate::guard::{Failure, guarded, guarded_int, of_parent, store_handle};
use crate::interface::{
    SAKIA_NO_PLAIN_CALLS, SAKIA_NO_RING, SAKIA_RING_ONLY, sakia_loop_options, sakia_request,
    sakia_result,
};
use crate::options::{
    Sizes, TokenPlace, check_array, limit_of, options_of, policy_of, why_no_ring,
};
use crate::pending::Pending;
use crate::request::submit;
use crate::waker::{Wakes, sakia_waker};

/// The number of the next thread that makes or uses a loop.
static NEXT_THREAD: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of this thread, never reused; 0 before it was needed.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// The most requests that may be under way unless a program says otherwise.
const UNDER_WAY_MAX: usize = 65_536;

/// Performs requests for the thread that made it. A call on another thread, or in a forked child, is an
/// error.
pub struct sakia_loop {
    thread: u64,
    process: Process,
    /// A call is using the state, or has panicked while it did. Read and written on the loop's thread only.
    is_busy: Cell<bool>,
    state: UnsafeCell<State>,
}

/// All that only the loop's thread touches.
pub(crate) struct State {
    pub(crate) ring: Loop,
    pub(crate) pending: Pending,
    pub(crate) under_way_max: usize,
    sizes: Sizes,
    why_no_ring: Option<CString>,
    /// The program's tokens of requests that did not end.
    leaked: Vec<u64>,
}

/// The state, for one call.
struct Entered<'a> {
    is_busy: &'a Cell<bool>,
    state: &'a mut State,
}

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.is_busy.set(false);
        }
    }
}

#[inline(always)]
fn this_thread() -> u64 {
    THREAD.with(|thread| match thread.get() {
        0 => {
            let number = NEXT_THREAD.fetch_add(1, Ordering::Relaxed);
            thread.set(number);
            number
        }
        number => number,
    })
}

/// Begins a call on a loop.
///
/// # Safety
///
/// - `ring` is null, or a loop that was not freed, nor is during the call.
#[inline(always)]
unsafe fn enter<'a>(ring: *const sakia_loop) -> Result<Entered<'a>, Failure> {
    // SAFETY: the caller's promise. Other threads only read the numbers of the thread and the process, which
    // nothing changes.
    let Some(ring) = (unsafe { ring.as_ref() }) else { return Err(Failure::null("the loop")) };
    if ring.thread != this_thread() || !ring.process.is_intact() {
        return Err(foreign(ring));
    }
    if ring.is_busy.replace(true) {
        return Err(Failure::new(
            Errno::BUSY,
            "the loop is within another call (of a signal handler?), or a bug ended one",
        ));
    }
    // SAFETY: this is the loop's thread and process, and no other call has the state: `is_busy` was not set,
    // and stays set until this value is dropped.
    Ok(Entered { is_busy: &ring.is_busy, state: unsafe { &mut *ring.state.get() } })
}

#[cold]
fn foreign(ring: &sakia_loop) -> Failure {
    match ring.process.is_intact() {
        true => Failure::new(Errno::PERM, "the loop belongs to the thread that made it"),
        false => of_parent("loop"),
    }
}

/// Makes a loop for the calling thread, and stores it in `*ring`. `options` may not be null, since it says
/// which header the program was compiled with; it is read before the call returns.
///
/// Errors: `-EINVAL` sizes or flags that are not known, `-EFAULT` a null pointer, `-EMFILE`, `-ENFILE`,
/// `-ENOMEM`; with `SAKIA_RING_ONLY` the reason why there is no ring. The environment variable
/// `SAKIA_DRIVER` (`auto`, `uring` or `poll`) chooses unless a flag does. Kernel: a ring needs Linux 6.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_new(
    options: *const sakia_loop_options,
    ring: *mut *mut sakia_loop,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for options.
        let options = || unsafe { options_of(options, "SAKIA_LOOP_OPTIONS") };
        let new = || Ok(Box::into_raw(Box::new(make(options()?)?)));
        // SAFETY: the header's contract for places of handles.
        unsafe { store_handle(ring, "loop", new) }
    })
}

fn make(options: sakia_loop_options) -> Result<sakia_loop, Failure> {
    let sakia_loop_options { request_size, result_size, under_way_max, flags, .. } = options;
    let sizes = Sizes::new(request_size, result_size)?;
    if flags & !(SAKIA_RING_ONLY | SAKIA_NO_RING | SAKIA_NO_PLAIN_CALLS) != 0 {
        return Err(Failure::invalid(format_args!("flags {flags:#x} of a loop")));
    }
    let failed = |error| Failure::of("no loop", &error);
    let (backend, choice) = Auto::new(policy_of(flags)?, Ring::builder()).map_err(failed)?;
    let mut ring = Loop::on(Driver::new(backend)).map_err(failed)?;
    let under_way_max = match under_way_max {
        0 => UNDER_WAY_MAX,
        most => most as usize,
    };
    ring.set_under_way_max(under_way_max);
    if flags & SAKIA_NO_PLAIN_CALLS != 0 {
        ring.set_bypass(Bypass::Never);
    }
    let state = State {
        ring,
        pending: Pending::default(),
        under_way_max,
        sizes,
        why_no_ring: why_no_ring(&choice),
        leaked: Vec::new(),
    };
    Ok(sakia_loop {
        thread: this_thread(),
        process: Process::current(),
        is_busy: Cell::new(false),
        state: UnsafeCell::new(state),
    })
}

/// Ends the loop, as `sakia_loop_stop` with a limit of one second, and frees it; nothing for null. Results
/// that were not taken are lost, and their files closed. A program that must know which memory leaked stops
/// the loop first.
///
/// The loop's thread. Errors: `-EPERM` another thread, or a forked child; then nothing is freed. Can break: a
/// later use of the loop.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_free(ring: *mut sakia_loop) -> i32 {
    guarded_int(|| {
        if ring.is_null() {
            return Ok(0);
        }
        // SAFETY: the header's contract for loops.
        drop(unsafe { enter(ring) }?);
        // SAFETY: it came from `Box::into_raw`, no call uses it, and the program gives it up.
        drop(unsafe { Box::from_raw(ring) });
        Ok(0)
    })
}

/// Submits `count` requests, which lie one after the other, and returns how many were accepted. Each of these
/// has a last result, whatever happens; its `ticket` is filled in. They reach the kernel with the next
/// `sakia_loop_wait` at the latest.
///
/// Results that are there are stored in `results`, which has room for `count` of them, and their number in
/// `*done`. They may be those of earlier requests, and more may be left for `sakia_loop_take`. Both
/// pointers may be null, then all results are left.
///
/// If not all were accepted, the next one cannot be submitted: a call that begins with it returns the reason.
///
/// The loop's thread; a signal handler may not call it. Errors, all about the first request: `-EAGAIN` as
/// many are under way as may be, so take results first; `-EINVAL` an operation, a flag or a size that is
/// not known; `-EFAULT` a null pointer; `-EBADF` a file is missing; `-EPERM` another thread, or a forked
/// child. Owner: see `sakia_request`. Can break: memory that is freed, or a number that is closed, before
/// the last result of its request was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_submit(
    ring: *mut sakia_loop,
    requests: *mut sakia_request,
    count: usize,
    results: *mut sakia_result,
    done: *mut usize,
) -> i64 {
    guarded(|| {
        if !done.is_null() {
            // SAFETY: not null, so valid for a write: the header's contract.
            unsafe { done.write(0) };
        }
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        let state = &mut *entered.state;
        check_array(requests.cast(), count, "requests")?;
        let mut accepted = 0;
        let mut at = requests;
        while accepted < count {
            // SAFETY: the program has `count` requests there, each of this size.
            match unsafe { submit(state, at, state.sizes.request) } {
                // SAFETY: as above. The ticket is within the first bytes.
                Ok(ticket) => unsafe { (&raw mut (*at).ticket).write(ticket.to_bits()) },
                Err(refused) if accepted == 0 => {
                    return Err(refused.into());
                }
                Err(_) => break,
            }
            accepted += 1;
            at = at.wrapping_byte_add(state.sizes.request);
        }
        if !results.is_null() && !done.is_null() {
            check_array(results.cast(), count, "results")?;
            // SAFETY: the program has room for `count` results there, and a number here.
            unsafe { done.write(store(state, results, count)) };
        }
        Ok(accepted as i64)
    })
}

/// Stores results that are there, at most `room`, and returns their number.
///
/// # Safety
///
/// - So many results of the program's size fit there.
#[inline(always)]
unsafe fn store(state: &mut State, results: *mut sakia_result, room: usize) -> usize {
    let mut count = 0;
    let mut at = results;
    while count < room
        && let Some(outcome) = state.ring.take()
    {
        let State { pending, ring, .. } = state;
        // SAFETY: the outcome and the table are of this loop, whose requests `submit` made.
        let result = unsafe {
            answer(
                |token, more| pending.find(token, more),
                |lent| ring.bytes(lent).as_ptr(),
                outcome,
            )
        };
        // SAFETY: the caller's promise.
        unsafe { state.sizes.write(at, result) };
        at = at.wrapping_byte_add(state.sizes.result);
        count += 1;
    }
    count
}

/// Stores results that are there in `results`, at most `room`, and returns their number, perhaps 0.
///
/// The loop's thread. Makes no system call: a language calls it before it releases its lock for
/// `sakia_loop_wait`. Errors: `-EINVAL` no room, `-EFAULT` a null pointer, `-EPERM` another thread, or a
/// forked child. Owner: the memory of a request is the program's again once its last result was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_take(
    ring: *mut sakia_loop,
    results: *mut sakia_result,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        check_array(results.cast(), room, "results")?;
        // SAFETY: the program has room for so many results there.
        Ok(unsafe { store(entered.state, results, room) } as i64)
    })
}

/// Submits what was not, waits for a result if there is none, and stores results as `sakia_loop_take`. It
/// waits at most `timeout_ns` nanoseconds; for ever if that is negative, and not at all if it is 0. Returns
/// the number of results; 0 after a signal, after a wake, or when the time is over, and rarely for no
/// reason.
///
/// The loop's thread. Errors: as `sakia_loop_take`; others mean that the loop is of no more use. Kernel: one
/// system call, as a rule.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_wait(
    ring: *mut sakia_loop,
    results: *mut sakia_result,
    room: usize,
    timeout_ns: i64,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        check_array(results.cast(), room, "results")?;
        let waited = entered.state.ring.wait(wait_of(timeout_ns));
        waited.map_err(|error| Failure::of("the wait", &error))?;
        // SAFETY: the program has room for so many results there.
        Ok(unsafe { store(entered.state, results, room) } as i64)
    })
}

/// As `sakia_loop_wait`, with another signal mask while the thread sleeps, as `ppoll(2)`: for a program that
/// blocks its signals, so that their handlers run within its waits and nowhere else. `mask` leads to a
/// `sigset_t`; null stands for the thread's own. The kernel sets the mask and puts the thread to sleep in one
/// step: no signal is missed between a look at what a handler has noted and the sleep. A signal that the mask
/// lets through, pending or new, ends the wait after its handler has run, and a wait that does not sleep
/// handles pending ones, too. Signals that it blocks stay pending.
///
/// The loop's thread. Errors: as `sakia_loop_wait`. Kernel: one system call more, unless a signal ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_wait_masked(
    ring: *mut sakia_loop,
    results: *mut sakia_result,
    room: usize,
    timeout_ns: i64,
    mask: *const c_void,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        check_array(results.cast(), room, "results")?;
        let (ring, wait) = (&mut entered.state.ring, wait_of(timeout_ns));
        let waited = match mask.is_null() {
            true => ring.wait(wait),
            false => {
                // SAFETY: the program has a `sigset_t` there, which begins with the kernel's 64 signals.
                let bits = unsafe { mask.cast::<u64>().read_unaligned() };
                ring.wait_with_signals(wait, &SignalMask::from_bits(bits))
            }
        };
        waited.map_err(|error| Failure::of("the wait", &error))?;
        // SAFETY: the program has room for so many results there.
        Ok(unsafe { store(entered.state, results, room) } as i64)
    })
}

fn wait_of(timeout_ns: i64) -> Wait {
    match timeout_ns {
        0 => Wait::Poll,
        1.. => Wait::For(Duration::from_nanos(timeout_ns as u64)),
        _ => Wait::Forever,
    }
}

/// Requests that the request with this ticket be canceled. Its result comes in any case: its value, if it
/// was quicker, or `-ECANCELED`. A ticket whose request has ended, or of another loop, names nothing or is
/// harmless to memory; but one of another loop may name a request of this one.
///
/// The loop's thread. Errors: `-EPERM` another thread, or a forked child; `-EFAULT` null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_cancel(ring: *mut sakia_loop, ticket: u64) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        entered.state.ring.cancel(Ticket::from_bits(ticket));
        Ok(0)
    })
}

/// Gives memory back to which bytes were received, by the `lent` of their result.
///
/// The loop's thread. Errors: `-EINVAL` no bytes have this name, and as `sakia_loop_cancel`. Can break: bytes
/// that are read afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_give_back(ring: *mut sakia_loop, lent: u64) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        let (ring, lent) = (&mut entered.state.ring, Lent::from_bits(lent));
        if ring.bytes(&lent).is_empty() {
            return Err(Failure::invalid(format_args!(
                "no bytes are lent as {:#x}",
                lent.to_bits()
            )));
        }
        ring.give_back(lent);
        Ok(0)
    })
}

/// Returns the number of requests whose last result was not taken.
///
/// The loop's thread. Errors: as `sakia_loop_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_under_way(ring: *mut sakia_loop) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        Ok(entered.state.ring.under_way() as i64)
    })
}

/// Returns a new descriptor that becomes readable when a wait would bring something, for a foreign event
/// loop to poll, level-triggered. Before that one sleeps, call `sakia_loop_wait` with a timeout of 0 until
/// it returns 0.
///
/// The loop's thread. Owner: the program closes the descriptor, before or after the loop. Errors: `-EMFILE`,
/// `-ENFILE` none is left, and as `sakia_loop_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_pollable(ring: *mut sakia_loop) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        let pollable = entered.state.ring.pollable();
        let pollable = pollable.map_err(|error| Failure::of("nothing to poll", &error))?;
        Ok(pollable.into_raw_fd().into())
    })
}

/// Stores in `*waker` a handle that ends the loop's waits.
///
/// The loop's thread; the waker is for any thread. Owner: `sakia_waker_free` gives it back, before or after
/// the loop's end. Errors: as `sakia_loop_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_waker(
    ring: *mut sakia_loop,
    waker: *mut *mut sakia_waker,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for places of handles, and for loops.
        unsafe {
            store_handle(waker, "waker", || {
                Ok(sakia_waker::given(Wakes::Loop(enter(ring)?.state.ring.waker())))
            })
        }
    })
}

/// Returns why the loop runs on epoll and threads, not on a ring; null if it has a ring, or after an error.
///
/// The loop's thread. Owner: the text is the loop's, and valid until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_why_no_ring(ring: *mut sakia_loop) -> *const c_char {
    let mut text = std::ptr::null();
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        text = entered.state.why_no_ring.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        Ok(0)
    });
    text
}

/// Ends the loop: cancels what is under way, and waits at most `limit_ns` nanoseconds, or for ever if that
/// is negative, for the kernel to give all memory back. Results of what has ended can still be taken; later
/// requests end with `-ECANCELED`.
///
/// Returns the number of requests that did not end, and stores the tokens of up to `room` of them in
/// `leaked`, which may be null if `room` is 0. The kernel may use their memory for ever: it must stay as it
/// is.
///
/// The loop's thread. Errors: `-EFAULT` a null pointer, and as `sakia_loop_cancel`. May be called again,
/// for more tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_loop_stop(
    ring: *mut sakia_loop,
    limit_ns: i64,
    leaked: *mut u64,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for loops.
        let entered = unsafe { enter(ring) }?;
        let place = TokenPlace::new(leaked, room)?;
        let State { ring, pending, leaked: known, .. } = &mut *entered.state;
        let tokens = ring.stop(limit_of(limit_ns)).leaked;
        let tokens = tokens.into_iter().map(|token| pending.token_of(token));
        // SAFETY: the program has room for so many tokens there.
        Ok(unsafe { place.store(known, tokens) })
    })
}
