//! Yielding to other tasks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lets the other ready tasks run before the caller goes on. The driver runs too when it is its turn:
/// completions, due timers, and messages of other threads are handled after at most 32 tasks, or earlier,
/// once these have taken half a millisecond. On epoll there is an exception: tasks that took some
/// microseconds at most and then take longer may be up to 32.
///
/// # Cancel safety
/// Dropping the future changes nothing.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     sakia::yield_now().await;
/// });
/// ```
#[inline]
pub fn yield_now() -> impl Future<Output = ()> {
    YieldNow { has_yielded: false }
}

struct YieldNow {
    has_yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_yielded {
            return Poll::Ready(());
        }
        self.has_yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
