//! Letting others run.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lets other tasks and the driver run before it goes on.
///
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
