//! The functions of a queue.

use std::ffi::{CString, c_char};
use std::os::fd::IntoRawFd;
use std::sync::Mutex;
use std::time::Duration;

use sakia_driver::{Bypass, Lent, Request, without_signals};
use sakia_ring::Process;
use sakia_runtime::Builder;
use sakia_runtime::engine::Queue;
use sakia_runtime::engine::queue::{Full, Outcome, QueueTicket, Submitted};

use crate::answer::answer;
use crate::guard::{Failure, OfProcess, enter, guarded, guarded_int, lock, store_handle};
use crate::interface::{
    SAKIA_NO_PLAIN_CALLS, SAKIA_NO_RING, SAKIA_RING_ONLY, sakia_queue_options, sakia_request,
    sakia_result,
};
use crate::options::{
    Sizes, TokenPlace, check_array, limit_of, options_of, policy_of, why_no_ring,
};
use crate::pending::{IN_TABLE, Pending, Waiting};
use crate::request::{Refused, made};
use crate::waker::{Wakes, sakia_waker};

/// The most threads of a queue.
const THREADS_MAX: u32 = 64;

/// Performs requests for any number of threads, on threads of its own. In a forked child each call is an
/// error.
pub struct sakia_queue {
    queue: Queue,
    process: Process,
    sizes: Sizes,
    why_no_ring: Option<CString>,
    pending: Mutex<Pending>,
    /// The program's tokens of requests that did not end.
    leaked: Mutex<Vec<u64>>,
}

impl OfProcess for sakia_queue {
    const NAME: &str = "queue";

    fn process(&self) -> &Process {
        &self.process
    }
}

/// Makes a queue with threads of its own, and stores it in `*queue`. `options` may not be null, since it says
/// which header the program was compiled with; it is read before the call returns. The threads block signals,
/// but for those that the machine raises in a thread.
///
/// Any thread. Errors: `-EINVAL` sizes or flags that are not known, or more than 64 threads; `-EFAULT` a null
/// pointer; `-EAGAIN` no thread, `-EMFILE`, `-ENFILE`, `-ENOMEM`; with `SAKIA_RING_ONLY` the reason why there
/// is no ring. The environment variable `SAKIA_DRIVER` (`auto`, `uring` or `poll`) chooses unless a flag
/// does. Kernel: a ring needs Linux 6.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_new(
    options: *const sakia_queue_options,
    queue: *mut *mut sakia_queue,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for options.
        let options = || unsafe { options_of(options, "SAKIA_QUEUE_OPTIONS") };
        let new = || Ok(Box::into_raw(Box::new(make(options()?)?)));
        // SAFETY: the header's contract for places of handles.
        unsafe { store_handle(queue, "queue", new) }
    })
}

fn make(options: sakia_queue_options) -> Result<sakia_queue, Failure> {
    let sakia_queue_options { request_size, result_size, under_way_max, flags, threads, .. } =
        options;
    let sizes = Sizes::new(request_size, result_size)?;
    let known = SAKIA_RING_ONLY | SAKIA_NO_RING | SAKIA_NO_PLAIN_CALLS;
    if flags & !known != 0 || threads > THREADS_MAX || options.reserved != 0 {
        let text = format_args!("flags {flags:#x} and {threads} threads of a queue");
        return Err(Failure::invalid(text));
    }
    let mut builder = Builder::new().backend(policy_of(flags)?).threads(threads.max(1) as usize);
    if flags & SAKIA_NO_PLAIN_CALLS != 0 {
        builder = builder.bypass(Bypass::Never);
    }
    let failed = |error| Failure::of("no queue", &error);
    let engine = without_signals(|| builder.build_engine()).map_err(failed)?;
    let queue = engine.queue().map_err(failed)?;
    if under_way_max > 0 {
        queue.set_under_way_max(under_way_max as usize);
    }
    Ok(sakia_queue {
        queue,
        process: Process::current(),
        sizes,
        why_no_ring: why_no_ring(engine.choice()),
        pending: Mutex::default(),
        leaked: Mutex::default(),
    })
}

/// Ends the queue, as `sakia_queue_stop` with a limit of one second, and frees it; nothing for null. Results
/// that were not taken are lost, and their files closed. A program that must know which memory leaked stops
/// the queue first.
///
/// Any thread but those that are in another call on the queue, or begin one: there may be none. Errors:
/// `-EPERM` a forked child; then nothing is freed. Can break: a later use of the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_free(queue: *mut sakia_queue) -> i32 {
    guarded_int(|| {
        if queue.is_null() {
            return Ok(0);
        }
        // SAFETY: the header's contract for queues.
        let entered = unsafe { enter(queue) }?;
        drop(entered.queue.stop(Duration::from_secs(1)));
        // SAFETY: it came from `Box::into_raw`, no call uses it, and the program gives it up.
        drop(unsafe { Box::from_raw(queue) });
        Ok(0)
    })
}

/// Submits `count` requests, which lie one after the other, and returns how many were accepted. Each of these
/// has a last result, whatever happens; its `ticket` is filled in.
///
/// Results of these requests that are there at once are stored in `results`, which has room for `count` of
/// them, and their number in `*done`. The others come by `sakia_queue_take` or `sakia_queue_wait`, on any
/// thread.
///
/// If not all were accepted, the next one cannot be submitted: a call that begins with it returns the reason.
///
/// Any thread; a signal handler may not call it. Errors, all but the second about the first request:
/// `-EAGAIN` as many are under way as may be, so take results first; `-EFAULT` a null pointer; `-EINVAL` an
/// operation, a flag or a size that is not known; `-EBADF` a file is missing; `-EPERM` a forked child. Owner:
/// see `sakia_request`. Can break: memory that is freed, or a number that is closed, before the last result
/// of its request was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_submit(
    queue: *mut sakia_queue,
    requests: *mut sakia_request,
    count: usize,
    results: *mut sakia_result,
    done: *mut usize,
) -> i64 {
    guarded(|| {
        if done.is_null() {
            return Err(Failure::null("the place of the number of results"));
        }
        // SAFETY: not null, so valid for a write: the header's contract.
        unsafe { done.write(0) };
        // SAFETY: the header's contract for queues.
        let queue = unsafe { enter(queue) }?;
        check_array(requests.cast(), count, "requests")?;
        check_array(results.cast(), count, "results")?;
        let mut batch = queue.queue.batch();
        let (mut accepted, mut stored) = (0, 0);
        let mut at = requests;
        while accepted < count {
            // SAFETY: the program has `count` requests there, each of this size.
            let submitted = unsafe { queue.submit(at, |request, token| batch.add(request, token)) };
            let ticket = match submitted {
                Ok(Submitted::UnderWay(ticket)) => ticket.to_bits(),
                Ok(Submitted::Done(outcome)) => {
                    // SAFETY: there is room for one result of each request.
                    unsafe { queue.store(results, stored, outcome) };
                    stored += 1;
                    0
                }
                Err(refused) if accepted == 0 => return Err(refused.into()),
                Err(_) => break,
            };
            // SAFETY: as above. The ticket is within the first bytes.
            unsafe { (&raw mut (*at).ticket).write(ticket) };
            accepted += 1;
            at = at.wrapping_byte_add(queue.sizes.request);
        }
        // SAFETY: as above.
        unsafe { done.write(stored) };
        Ok(accepted as i64)
    })
}

impl sakia_queue {
    /// Makes a request of the program's one of the queue's.
    ///
    /// # Safety
    ///
    /// - A request of the queue's size is at `at`, and all that it names is as the header says.
    unsafe fn submit(
        &self,
        at: *const sakia_request,
        add: impl FnOnce(Request, u64) -> Result<Submitted, Full>,
    ) -> Result<Submitted, Refused> {
        // SAFETY: the caller's promise.
        let (request, place, token) = unsafe { made(at, self.sizes.request) }?;
        if request.goes_on() {
            return Err(Failure::invalid("a request that goes on is for a loop").into());
        }
        let is_in_table = place.is_some() || token & IN_TABLE != 0;
        let token = match is_in_table {
            true => lock(&self.pending).add(Waiting { token, place }),
            false => token,
        };
        add(request, token).map_err(|Full(_)| {
            if is_in_table {
                lock(&self.pending).take(token);
            }
            Refused::Full
        })
    }

    /// Stores the result number `index`.
    ///
    /// # Safety
    ///
    /// - The program has room for so many results there, and the outcome is of this queue.
    unsafe fn store(&self, results: *mut sakia_result, index: usize, outcome: Outcome) {
        let find = |token, more| lock(&self.pending).find(token, more);
        let at = results.wrapping_byte_add(index * self.sizes.result);
        let no_memory = |_: &Lent| std::ptr::null(); // no request of a queue lends some
        // SAFETY: the caller's promise, and the requests of this queue were made by `made`.
        unsafe { self.sizes.write(at, answer(find, no_memory, outcome)) };
    }

    /// Takes outcomes, and stores their results.
    ///
    /// # Safety
    ///
    /// - The program has room for so many results there.
    unsafe fn take(&self, results: *mut sakia_result, room: usize) -> usize {
        let mut outcomes = Vec::with_capacity(room.min(self.queue.ready()));
        let count = self.queue.take(room, &mut outcomes);
        for (index, outcome) in outcomes.into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { self.store(results, index, outcome) };
        }
        count
    }
}

/// Stores results that are there in `results`, at most `room`, and returns their number, perhaps 0.
///
/// Any thread; a signal handler may not call it. Makes no system call, unless there is a descriptor or
/// another thread waits: a language calls it before it releases its lock for `sakia_queue_wait`. Errors:
/// `-EINVAL` no room, `-EFAULT` a null pointer, `-EPERM` a forked child. Owner: the memory of a request is
/// the program's again once its last result was taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_take(
    queue: *mut sakia_queue,
    results: *mut sakia_result,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for queues.
        let queue = unsafe { enter(queue) }?;
        check_array(results.cast(), room, "results")?;
        // SAFETY: the program has room for so many results there.
        Ok(unsafe { queue.take(results, room) } as i64)
    })
}

/// Waits for a result if there is none, and stores results as `sakia_queue_take`. It waits at most
/// `timeout_ns` nanoseconds; for ever if that is negative, and not at all if it is 0. Returns the number of
/// results; 0 after a signal, after a wake, when the time is over, or if another thread was quicker.
///
/// Any thread; several share the results. Errors: as `sakia_queue_take`; `-EIO` a thread of the queue has
/// failed, so that requests will not end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_wait(
    queue: *mut sakia_queue,
    results: *mut sakia_result,
    room: usize,
    timeout_ns: i64,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for queues.
        let queue = unsafe { enter(queue) }?;
        check_array(results.cast(), room, "results")?;
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        queue.queue.wait(timeout).map_err(|error| Failure::of("the wait", &error))?;
        // SAFETY: the program has room for so many results there.
        Ok(unsafe { queue.take(results, room) } as i64)
    })
}

/// Requests that the request with this ticket be canceled. Its result comes in any case: its value, if it was
/// quicker, or `-ECANCELED`. A ticket whose request has ended names nothing; one of another queue may name a
/// request of this one.
///
/// Any thread; a signal handler may not call it. Errors: `-EPERM` a forked child; `-EFAULT` null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_cancel(queue: *mut sakia_queue, ticket: u64) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for queues.
        unsafe { enter(queue) }?.queue.cancel(QueueTicket::from_bits(ticket));
        Ok(0)
    })
}

/// Returns the number of requests whose last result was not taken.
///
/// Any thread. Errors: as `sakia_queue_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_under_way(queue: *mut sakia_queue) -> i64 {
    // SAFETY: the header's contract for queues.
    guarded(|| Ok(unsafe { enter(queue) }?.queue.under_way() as i64))
}

/// Returns a new descriptor that is readable while there are results to take, or a wake has come that no wait
/// has seen, for a foreign event loop to poll, level-triggered.
///
/// Any thread. Owner: the program closes the descriptor, before or after the queue. Errors: `-EMFILE`,
/// `-ENFILE` none is left, and as `sakia_queue_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_pollable(queue: *mut sakia_queue) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for queues.
        let pollable = unsafe { enter(queue) }?.queue.pollable();
        let pollable = pollable.map_err(|error| Failure::of("nothing to poll", &error))?;
        Ok(pollable.into_raw_fd().into())
    })
}

/// Stores in `*waker` a handle that ends waits for the queue: that of one thread, or the next one.
///
/// Any thread. Owner: `sakia_waker_free` gives it back, before or after the queue's end. Errors: as
/// `sakia_queue_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_waker(
    queue: *mut sakia_queue,
    waker: *mut *mut sakia_waker,
) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for places of handles, and for queues.
        unsafe {
            store_handle(waker, "waker", || {
                Ok(sakia_waker::given(Wakes::Queue(enter(queue)?.queue.waker())))
            })
        }
    })
}

/// Returns why the queue runs on epoll and threads, not on rings; null if it has rings, or after an error.
///
/// Any thread. Owner: the text is the queue's, and valid until it is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_why_no_ring(queue: *mut sakia_queue) -> *const c_char {
    let mut text = std::ptr::null();
    guarded(|| {
        // SAFETY: the header's contract for queues.
        let queue = unsafe { enter(queue) }?;
        text = queue.why_no_ring.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
        Ok(0)
    });
    text
}

/// Ends the queue for all threads: cancels what is under way, and waits at most `limit_ns` nanoseconds, or
/// for ever if that is negative, for it to end. Results of what has ended can still be taken; later requests
/// end with `-ECANCELED`.
///
/// Returns the number of requests that did not end, and stores the tokens of up to `room` of them in
/// `leaked`, which may be null if `room` is 0. The kernel may use their memory for ever: it must stay as it
/// is.
///
/// Any thread. Errors: `-EFAULT` a null pointer, and as `sakia_queue_cancel`. May be called again, for more
/// tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_queue_stop(
    queue: *mut sakia_queue,
    limit_ns: i64,
    leaked: *mut u64,
    room: usize,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for queues.
        let queue = unsafe { enter(queue) }?;
        let place = TokenPlace::new(leaked, room)?;
        let tokens = queue.queue.stop(limit_of(limit_ns)).leaked;
        let tokens = tokens.into_iter().map(|token| lock(&queue.pending).token_of(token));
        // SAFETY: the program has room for so many tokens there.
        Ok(unsafe { place.store(&mut lock(&queue.leaked), tokens) })
    })
}
