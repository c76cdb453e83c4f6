//! Futures that are dropped before they are done.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use sakia::time::timeout;

/// The largest number of polls before a future is dropped.
const POLLS_MAX: u32 = 200;
/// The longest time before a future without restless polls is dropped.
const TIME_US_MAX: u64 = 4000;

/// Drops `future` at a moment that `random` chooses: after some turns of the runtime, woken or not, after
/// some polls for which it was woken, or after some time.
///
/// Resolves to the output of the future, or `None` when it was dropped.
pub(super) async fn give_up<F: Future>(random: &mut fastrand::Rng, future: F) -> Option<F::Output> {
    // Small numbers are as likely as large ones.
    let polls_max = 1 << random.u32(0..=POLLS_MAX.ilog2());
    let after = GiveUp {
        future: Some(Box::pin(future)),
        polls: random.u32(1..=polls_max),
        is_restless: random.bool(),
    };
    if after.is_restless {
        return after.await;
    }
    let limit = Duration::from_micros(random.u64(0..=TIME_US_MAX));
    timeout(limit, after).await.ok().flatten()
}

/// Drops its future within the poll of the given number, unless it is done by then.
pub(super) struct GiveUp<F> {
    /// `None` once it is dropped.
    future: Option<Pin<Box<F>>>,
    /// The remaining polls.
    polls: u32,
    /// It wakes itself, so that it is polled in each turn.
    is_restless: bool,
}

impl<F: Future> Future for GiveUp<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = &mut self.future else { return Poll::Ready(None) };
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        self.polls = self.polls.saturating_sub(1);
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        if self.is_restless {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_future_is_dropped_in_the_poll_of_that_number() {
        let polls = Rc::new(Cell::new(0));
        let counter = Rc::clone(&polls);
        let future = poll_fn(move |_| {
            counter.set(counter.get() + 1);
            Poll::<()>::Pending
        });
        let three = GiveUp { future: Some(Box::pin(future)), polls: 3, is_restless: true };
        assert_eq!(sakia::block_on(three), None);
        assert_eq!((polls.get(), Rc::strong_count(&polls)), (3, 1));
    }

    #[test]
    fn a_future_that_is_done_keeps_its_result() {
        let ready = std::future::ready(7);
        let one = GiveUp { future: Some(Box::pin(ready)), polls: 1, is_restless: false };
        assert_eq!(sakia::block_on(one), Some(7));
    }
}
