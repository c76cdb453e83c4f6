//! Dropped receives of datagrams, and their results for waiting and later receives.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use sakia_driver::{self as driver, BufResult, IoBuf, IoBufMut, Op, Operation, ReceivedControl};

/// The facts that a receive returns besides the bytes. Some types include control messages.
pub(super) trait Shape: Sized + 'static {
    fn new(received: driver::Received, control: ReceivedControl) -> Self;
    fn into_parts(self) -> (driver::Received, ReceivedControl);
}

impl Shape for driver::Received {
    fn new(received: driver::Received, _: ReceivedControl) -> Self {
        received
    }

    fn into_parts(self) -> (driver::Received, ReceivedControl) {
        (self, ReceivedControl::default())
    }
}

impl Shape for (driver::Received, ReceivedControl) {
    fn new(received: driver::Received, mut control: ReceivedControl) -> Self {
        control.is_truncated |= received.is_control_truncated;
        (received, control)
    }

    fn into_parts(self) -> (driver::Received, ReceivedControl) {
        self
    }
}

/// A datagram that came for an earlier receive.
pub(super) struct Datagram {
    bytes: Vec<u8>,
    received: driver::Received,
    control: ReceivedControl,
}

impl Datagram {
    fn new<T: IoBuf>(shape: impl Shape, buf: &T) -> Self {
        let (received, control) = shape.into_parts();
        Self { bytes: buf.as_bytes()[..received.len].to_vec(), received, control }
    }

    /// Converts from a datagram that was received ahead.
    pub(super) fn of(datagram: driver::Datagram) -> Self {
        let driver::Datagram { bytes, from, is_truncated, control, .. } = datagram;
        let len = bytes.len();
        let received = driver::Received {
            len,
            from,
            is_truncated,
            is_control_truncated: control.is_truncated,
            datagram_len: len,
        };
        Self { bytes: bytes.to_vec(), received, control }
    }

    /// Converts to a datagram that was received ahead.
    pub(super) fn into_driver(self) -> driver::Datagram {
        let Self { bytes, received, mut control } = self;
        control.is_truncated |= received.is_control_truncated;
        driver::Datagram::new(bytes, received.from, received.is_truncated, control)
    }

    /// Puts it into a buffer. For a peek, also returns it to the kept ones.
    pub(super) fn put<R: Shape, T: IoBufMut>(
        mut self,
        buf: &mut T,
        kept: &Kept,
        is_peek: bool,
    ) -> R {
        let len = buf.fill_from(&self.bytes);
        let is_truncated = self.received.is_truncated || len < self.bytes.len();
        let received = driver::Received { len, is_truncated, ..self.received };
        if is_peek {
            kept.put_back(Box::pin(ready(Some(Ok(self)))));
            kept.tell();
            return R::new(received, ReceivedControl::default());
        }
        R::new(received, mem::take(&mut self.control))
    }
}

/// A receive that was dropped. Resolves when the kernel is done with it, to its result, if there is one.
type Dropped = Pin<Box<dyn Future<Output = Option<io::Result<Datagram>>>>>;

/// Dropped receives, in the order of dropping, and the receives that wait for their results.
///
/// One of the waiting receives, the *poller*, polls the oldest dropped receive, which wakes it when the
/// kernel is done:
/// 1. Each receive that begins to wait polls the dropped one, and is the poller from then on.
/// 2. When the poller goes away, or another dropped receive is the oldest, the receive that has waited
///    longest is woken to poll.
/// 3. Those that take kept results and have no operation of their own are woken, too, when nothing is left.
///
/// So the cost of a receive does not depend on how many others wait.
#[derive(Default)]
pub(super) struct Kept {
    dropped: RefCell<VecDeque<Dropped>>,
    waiting: RefCell<Line>,
    /// The place of the poller, which the oldest of `dropped` wakes.
    poller: Cell<Option<Place>>,
}

/// A place in the line of waiting receives.
type Place = usize;

/// Receives under way that were polled, in the order in which they began to wait.
#[derive(Default)]
struct Line {
    /// `None` for a receive that is gone, while others before and after it wait.
    waiters: VecDeque<Option<Waiter>>,
    /// The place of the first entry.
    first: Place,
    /// The number of waiting receives without an operation of their own.
    takers: usize,
}

struct Waiter {
    /// `None` while it is being replaced.
    waker: Option<Waker>,
    /// Set if it waits until nothing is kept, and has no operation of its own.
    is_taker: bool,
}

impl Line {
    fn join(&mut self, is_taker: bool) -> Place {
        self.takers += usize::from(is_taker);
        self.waiters.push_back(Some(Waiter { waker: None, is_taker }));
        self.first + self.waiters.len() - 1
    }

    fn waker_at(&mut self, place: Place) -> &mut Option<Waker> {
        let waiter = self.waiters[place - self.first].as_mut();
        &mut waiter.expect("a place is there until its receive leaves").waker
    }

    fn leave(&mut self, place: Place) -> Option<Waker> {
        let waiter = self.waiters[place - self.first].take();
        let Waiter { waker, is_taker } = waiter.expect("a receive leaves once");
        self.takers -= usize::from(is_taker);
        while let Some(None) = self.waiters.back() {
            self.waiters.pop_back();
        }
        while let Some(None) = self.waiters.front() {
            self.waiters.pop_front();
            self.first += 1;
        }
        waker
    }

    fn wakers(&self) -> impl Iterator<Item = (&Waker, bool)> {
        let waiters = self.waiters.iter().flatten();
        waiters.filter_map(|waiter| Some((waiter.waker.as_ref()?, waiter.is_taker)))
    }
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.dropped.borrow().is_empty()
    }

    /// Returns whether receives under way wait for kept results.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.borrow().waiters.is_empty()
    }

    fn add(&self, dropped: Dropped) {
        if self.is_empty() {
            self.poller.set(None);
        }
        self.dropped.borrow_mut().push_back(dropped);
    }

    /// Makes a result the oldest. To be followed by [`tell`](Kept::tell) or [`leave`](Kept::leave).
    fn put_back(&self, dropped: Dropped) {
        self.poller.set(None);
        self.dropped.borrow_mut().push_front(dropped);
    }

    /// Adds an error, unless it only says that there was no datagram.
    pub(super) fn add_error(&self, error: io::Error) {
        if let Some(error) = of_the_socket(error) {
            self.add(Box::pin(ready(Some(Err(error)))));
            self.tell();
        }
    }

    /// Notes that a receive waits, at its place if it has one, and has polled the oldest dropped one.
    fn wait(&self, place: &mut Option<Place>, is_taker: bool, cx: &Context<'_>) {
        let at = *place.get_or_insert_with(|| self.waiting.borrow_mut().join(is_taker));
        self.poller.set(Some(at));
        // Wakers are users' code, so nothing is borrowed meanwhile.
        let old = self.waiting.borrow_mut().waker_at(at).take();
        let waker = match old {
            Some(waker) if waker.will_wake(cx.waker()) => waker,
            old => {
                drop(old);
                cx.waker().clone()
            }
        };
        *self.waiting.borrow_mut().waker_at(at) = Some(waker);
    }

    /// Notes that a receive no longer waits.
    fn leave(&self, place: &mut Option<Place>) {
        if let Some(at) = place.take() {
            if self.poller.get() == Some(at) {
                self.poller.set(None);
            }
            let waker = self.waiting.borrow_mut().leave(at);
            drop(waker);
        }
        self.tell();
    }

    /// Wakes the receives that have to poll: one if nothing else wakes any of them, or, when nothing is left,
    /// those that have nothing else to wait for.
    fn tell(&self) {
        if self.is_empty() {
            if self.waiting.borrow().takers > 0 {
                let takers: Vec<Waker> = {
                    let waiting = self.waiting.borrow();
                    let takers = waiting.wakers().filter(|(_, is_taker)| *is_taker);
                    takers.map(|(waker, _)| waker.clone()).collect()
                };
                takers.into_iter().for_each(Waker::wake);
            }
        } else if self.poller.get().is_none() {
            let first = self.waiting.borrow().wakers().next().map(|(waker, _)| waker.clone());
            if let Some(waker) = first {
                waker.wake();
            }
        }
    }

    /// Polls the oldest of the dropped receives, up to the first that brought a result.
    fn poll_first(&self, cx: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        let mut is_changed = false;
        loop {
            let Some(mut dropped) = self.dropped.borrow_mut().pop_front() else {
                if is_changed {
                    self.tell();
                }
                return Poll::Pending;
            };
            match dropped.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    self.poller.set(None);
                    if let Some(result) = result {
                        return Poll::Ready(result);
                    }
                    is_changed = true;
                }
                Poll::Pending => {
                    self.dropped.borrow_mut().push_front(dropped);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Waits until the dropped receives have ended, up to the first that brought a result.
    pub(super) async fn take(&self) -> Option<io::Result<Datagram>> {
        let mut waiting = Waiting { kept: self, place: None };
        poll_fn(|cx| match self.poll_first(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if self.is_empty() => Poll::Ready(None),
            Poll::Pending => {
                self.wait(&mut waiting.place, true, cx);
                Poll::Pending
            }
        })
        .await
    }
}

/// A receive that waits for dropped ones.
struct Waiting<'a> {
    kept: &'a Kept,
    place: Option<Place>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.kept.leave(&mut self.place);
    }
}

/// Returns an error that the socket reports once, and that the next receive has to return if this one cannot.
fn of_the_socket(error: io::Error) -> Option<io::Error> {
    (!says_nothing(&error)).then_some(error)
}

/// Returns whether an error says that there was no datagram.
fn says_nothing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::CANCELED | Errno::INTR | Errno::AGAIN))
}

/// A receive under way. If it is dropped, its result is kept. If an earlier receive was dropped, it takes the
/// result of that one, and then cancels its own operation.
pub(super) struct Receiving<'a, O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> {
    op: Option<Op<O>>,
    kept: Option<&'a Kept>,
    place: Option<Place>,
    /// The result that it took, until its operation has ended.
    taken: Option<io::Result<Datagram>>,
}

impl<'a, O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Receiving<'a, O, R, T> {
    pub(super) fn new(op: Op<O>, kept: Option<&'a Kept>) -> Self {
        Self { op: Some(op), kept, place: None, taken: None }
    }

    /// Returns the result of the receive, given that of the operation.
    fn finish(&mut self, output: O::Output) -> O::Output {
        let Some(kept) = self.kept else { return output };
        let output = match (self.taken.take(), output) {
            (None, output) => output,
            (Some(taken), (Err(error), mut buf)) if says_nothing(&error) => {
                (taken.map(|datagram| datagram.put(&mut buf, kept, false)), buf)
            }
            // Both have brought a result.
            (Some(taken), output) => {
                kept.put_back(Box::pin(ready(Some(taken))));
                output
            }
        };
        kept.leave(&mut self.place);
        output
    }
}

impl<O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Future
    for Receiving<'_, O, R, T>
{
    type Output = O::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            let op = this.op.as_mut().expect("a receive is not polled again after it was ready");
            if let Poll::Ready(output) = Pin::new(&mut *op).poll(cx) {
                this.op = None;
                return Poll::Ready(this.finish(output));
            }
            let Some(kept) = this.kept else { return Poll::Pending };
            if this.taken.is_none()
                && let Poll::Ready(taken) = kept.poll_first(cx)
            {
                this.taken = Some(taken);
                op.cancel();
                continue;
            }
            kept.wait(&mut this.place, false, cx);
            return Poll::Pending;
        }
    }
}

impl<O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Drop
    for Receiving<'_, O, R, T>
{
    fn drop(&mut self) {
        let (Some(mut op), Some(kept)) = (self.op.take(), self.kept) else { return };
        if let Some(taken) = self.taken.take() {
            kept.put_back(Box::pin(ready(Some(taken))));
        }
        op.cancel();
        kept.add(Box::pin(async {
            let (result, buf) = op.await;
            match result {
                Ok(shape) => Some(Ok(Datagram::new(shape, &buf))),
                Err(error) => of_the_socket(error).map(Err),
            }
        }));
        kept.leave(&mut self.place);
    }
}

/// Datagrams of a batch under way. If it is dropped, they are kept.
pub(super) struct Gathered<'a, T: IoBuf> {
    pub(super) kept: &'a Kept,
    pub(super) done: Vec<(driver::Received, T)>,
}

impl<T: IoBuf> Drop for Gathered<'_, T> {
    fn drop(&mut self) {
        for (received, buf) in self.done.drain(..).rev() {
            self.kept.put_back(Box::pin(ready(Some(Ok(Datagram::new(received, &buf))))));
        }
        self.kept.tell();
    }
}
