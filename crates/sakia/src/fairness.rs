//! Loops over results that are always ready.
//!
//! A task that awaits one ready thing after another, such as a `sleep` of no time, would never give up its
//! thread. So the futures of this crate that make no operation count the results that came without a wait.
//! After [`READY_MAX`] of them the next such future lets other tasks run: it wakes its task, pends once, and
//! has the result in the next poll.
//!
//! The count is the thread's, so that a poll of a task costs nothing more. It is a runtime's own, so that a
//! simulated run does not depend on those before it. Operations have a budget of their own; see
//! [`round`](crate::round). Futures of other crates are not counted, and neither are handles of single tasks:
//! their polls are too hot.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Context, Poll};

/// The most results without a wait between two yields.
const READY_MAX: u32 = 128;

thread_local! {
    /// The number of results left before other tasks run. Outside of a runtime there are plenty.
    static LEFT: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// Counts a result that came without a wait.
#[inline(always)]
pub(crate) fn count() {
    LEFT.set(LEFT.get().saturating_sub(1));
}

/// Returns whether the caller is to pend once, so that other tasks run. Then its task is woken already.
#[inline(always)]
pub(crate) fn lets_others_run(cx: &Context<'_>) -> bool {
    let is_due = is_due();
    if is_due {
        wake(cx);
    }
    is_due
}

/// Returns whether other tasks are to run: then the caller calls [`wake`], and pends.
#[inline(always)]
pub(crate) fn is_due() -> bool {
    LEFT.get() == 0
}

/// Begins the count again, and wakes the task that pends. A waker may run any code, so the caller holds no
/// lock.
#[cold]
pub(crate) fn wake(cx: &Context<'_>) {
    LEFT.set(READY_MAX);
    cx.waker().wake_by_ref();
}

/// Counts a result that came without a wait, after other tasks have run if they are to.
pub(crate) async fn counted() {
    poll_fn(|cx| {
        if lets_others_run(cx) {
            return Poll::Pending;
        }
        count();
        Poll::Ready(())
    })
    .await;
}

/// Begins the count of a runtime that is entered. Returns the count of the code around it, for [`end`].
pub(crate) fn begin() -> u32 {
    LEFT.replace(READY_MAX)
}

/// Goes on with the count of the code around a runtime.
pub(crate) fn end(left: u32) {
    LEFT.set(left);
}
