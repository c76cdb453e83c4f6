//! One future per item, a bounded number at a time, within the calling task.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::TURN;
use crate::round::{self, Child, Siblings};

/// Runs `f` on each item, at most `limit` at a time, and ends when all have ended.
///
/// Items are taken when there is room for them. The futures run within the calling task: they may borrow, and
/// are dropped with this future. A panic in one of them is a panic of this future.
///
/// # Cancel safety
/// Dropping this future drops those that run, wherever they are. Items that were taken are not given back.
///
/// # Panics
/// With a `limit` of 0.
///
/// # Examples
/// ```
/// use std::cell::RefCell;
///
/// sakia::block_on(async {
///     let seen = RefCell::new(Vec::new());
///     sakia::for_each_concurrent(2, 1..=3, async |item| {
///         sakia::yield_now().await;
///         seen.borrow_mut().push(item);
///     })
///     .await;
///     assert_eq!(seen.into_inner().len(), 3);
/// });
/// ```
pub async fn for_each_concurrent<I, F>(limit: usize, items: I, f: F)
where
    I: IntoIterator,
    F: AsyncFn(I::Item),
{
    let mut items = items.into_iter();
    for_each_concurrent_from(limit, async || items.next(), f).await;
}

/// As [`for_each_concurrent`], with the items that `next` returns until `None`: those of a channel, a
/// listener or any stream.
///
/// # Cancel safety
/// As [`for_each_concurrent`].
///
/// # Panics
/// With a `limit` of 0.
///
/// # Examples
/// ```
/// use std::cell::Cell;
///
/// sakia::block_on(async {
///     let (sender, receiver) = async_channel::bounded(1);
///     let sum = Cell::new(0);
///     let send = async move {
///         for number in 0..10 {
///             sender.send(number).await.unwrap();
///         }
///     };
///     let add = sakia::for_each_concurrent_from(
///         4,
///         async || receiver.recv().await.ok(),
///         async |number| sum.set(sum.get() + number),
///     );
///     sakia::join!(send, add);
///     assert_eq!(sum.get(), 45);
/// });
/// ```
pub async fn for_each_concurrent_from<N, T, F>(limit: usize, next: N, f: F)
where
    N: AsyncFnMut() -> Option<T>,
    F: AsyncFn(T),
{
    let f = async |item| {
        f(item).await;
        Ok::<(), Infallible>(())
    };
    match try_for_each_concurrent_from(limit, next, f).await {
        Ok(()) => {}
    }
}

/// As [`for_each_concurrent`], but ends with the first error: the running futures are dropped, and no more
/// items are taken.
///
/// # Cancel safety
/// As [`for_each_concurrent`].
///
/// # Errors
/// The first error of `f`.
///
/// # Panics
/// With a `limit` of 0.
///
/// # Examples
/// ```
/// sakia::block_on(async {
///     let parse = async |text: &str| text.parse::<u8>().map(|_| ());
///     assert!(sakia::try_for_each_concurrent(8, ["1", "2"], parse).await.is_ok());
///     assert!(sakia::try_for_each_concurrent(8, ["1", "two"], parse).await.is_err());
/// });
/// ```
pub async fn try_for_each_concurrent<I, F, E>(limit: usize, items: I, f: F) -> Result<(), E>
where
    I: IntoIterator,
    F: AsyncFn(I::Item) -> Result<(), E>,
{
    let mut items = items.into_iter();
    try_for_each_concurrent_from(limit, async || items.next(), f).await
}

/// As [`for_each_concurrent_from`], but ends with the first error: the running futures are dropped, and no
/// more items are taken.
///
/// # Cancel safety
/// As [`for_each_concurrent`].
///
/// # Errors
/// The first error of `f`.
///
/// # Panics
/// With a `limit` of 0.
///
/// # Examples
/// ```
/// # sakia::block_on(async {
/// let (sender, receiver) = async_channel::unbounded();
/// for text in ["1", "two", "3"] {
///     sender.send(text).await.unwrap();
/// }
/// sender.close();
/// let parsed = sakia::try_for_each_concurrent_from(
///     2,
///     async || receiver.recv().await.ok(),
///     async |text: &str| text.parse::<u8>().map(|_| ()),
/// );
/// assert!(parsed.await.is_err());
/// # });
/// ```
pub async fn try_for_each_concurrent_from<N, T, F, E>(
    limit: usize,
    mut next: N,
    f: F,
) -> Result<(), E>
where
    N: AsyncFnMut() -> Option<T>,
    F: AsyncFn(T) -> Result<(), E>,
{
    assert!(limit > 0, "nothing would ever run");
    // An item between `next` and `f`.
    let taken = RefCell::new(None);
    let mut running = FuturesUnordered::new();
    let siblings = Rc::new(Siblings::default());
    let mut items = pin!(async {
        while let Some(item) = next().await {
            *taken.borrow_mut() = Some(item);
            let has_room =
                || if taken.borrow().is_none() { Poll::Ready(()) } else { Poll::Pending };
            poll_fn(|_| has_room()).await;
        }
    });
    let mut is_at_end = false;
    poll_fn(|cx| {
        siblings.begin();
        for count in 0..TURN {
            if count > 0 && round::is_over() {
                break;
            }
            if !is_at_end && running.len() < limit {
                is_at_end = items.as_mut().poll(cx).is_ready();
                let item = taken.borrow_mut().take();
                if let Some(item) = item {
                    running.push(Child::new(f(item), &siblings));
                    continue;
                }
            }
            match running.poll_next_unpin(cx) {
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) if is_at_end => return Poll::Ready(Ok(())),
                Poll::Pending if siblings.have_let_go() => break,
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
