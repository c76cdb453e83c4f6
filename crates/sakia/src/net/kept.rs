//! Dropped receives of datagrams, and their results for waiting and later receives.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use sakia_driver::{self as driver, BufResult, IoBuf, IoBufMut, Op, Operation, ReceivedControl};

/// The facts that a receive returns besides the bytes. Some types include control messages.
pub(super) trait Shape: Sized + 'static {
    fn new(received: driver::Received, control: ReceivedControl) -> Self;
    /// Returns the number of bytes in the buffer.
    fn len(&self) -> usize;
    fn into_parts(self) -> (driver::Received, ReceivedControl);
}

impl Shape for driver::Received {
    fn new(received: driver::Received, _: ReceivedControl) -> Self {
        received
    }

    fn len(&self) -> usize {
        self.len
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

    fn len(&self) -> usize {
        self.0.len
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
        let copy = Self::without_control(&datagram);
        Self { control: datagram.control, ..copy }
    }

    /// Copies a datagram that was received ahead, but for its control messages.
    pub(super) fn without_control(datagram: &driver::Datagram) -> Self {
        let len = datagram.bytes.len();
        let received = driver::Received {
            len,
            from: datagram.from,
            is_truncated: datagram.is_truncated,
            is_control_truncated: datagram.control.is_truncated,
            datagram_len: len,
        };
        Self { bytes: datagram.bytes.to_vec(), received, control: ReceivedControl::default() }
    }

    /// Converts to a datagram that was received ahead.
    pub(super) fn into_driver(self) -> driver::Datagram {
        let Self { bytes, received, mut control } = self;
        control.is_truncated |= received.is_control_truncated;
        driver::Datagram::new(bytes, received.from, received.is_truncated, control)
    }

    /// Returns whether it may take the place of a datagram of `len` bytes that a receive has put into this
    /// buffer. A buffer that has just that length now may be one that was filled up to its capacity, and
    /// would keep the length.
    fn may_replace<T: IoBufMut>(&self, len: usize, buf: &T) -> bool {
        let room = buf.as_bytes().len();
        self.bytes.len() == room || self.bytes.len() < room && len < room
    }

    /// Puts it into a buffer.
    pub(super) fn put<R: Shape, T: IoBufMut>(mut self, buf: &mut T) -> R {
        let control = mem::take(&mut self.control);
        R::new(self.copy_to(buf), control)
    }

    /// Copies it into a buffer, but for its control messages.
    pub(super) fn show<R: Shape, T: IoBufMut>(&self, buf: &mut T) -> R {
        R::new(self.copy_to(buf), ReceivedControl::default())
    }

    fn copy_to<T: IoBufMut>(&self, buf: &mut T) -> driver::Received {
        let len = buf.fill_from(&self.bytes);
        let is_truncated = self.received.is_truncated || len < self.bytes.len();
        driver::Received { len, is_truncated, ..self.received }
    }
}

/// The place of a receive among all receives of its socket, in the order of their begin.
type Number = u64;

/// The result of a dropped receive.
pub(super) struct Earlier {
    number: Number,
    pub(super) result: io::Result<Datagram>,
}

/// A receive that was dropped. Resolves when the kernel is done with it, to its result, if there is one.
type Dropped = Pin<Box<dyn Future<Output = Option<io::Result<Datagram>>>>>;

/// A dropped receive, or the result of one.
struct Entry {
    number: Number,
    dropped: Dropped,
}

/// Dropped receives, in the order of their begin, and the receives that wait for their results. A receive
/// that began first may be dropped last, and its datagram is then probably older than those of the others.
///
/// The oldest dropped receive wakes all waiting receives when the kernel is done: one that is woken may have
/// a future that its task does not poll, so its wake must not be the only one.
/// 1. Each receive that begins to wait polls the dropped one, with the wakers of all that wait.
/// 2. When another dropped receive is the oldest, all are woken to poll it.
///
/// So all that wait were woken when the last dropped receive has ended, also those without an operation of
/// their own.
#[derive(Default)]
pub(super) struct Kept {
    dropped: RefCell<VecDeque<Entry>>,
    waiting: RefCell<Line>,
    /// The number of the next receive.
    next: Cell<Number>,
    /// Those that the oldest of `dropped` wakes, or that were told to poll it. `None` if they have to be.
    told: RefCell<Option<Arc<Told>>>,
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
}

struct Waiter {
    /// `None` while it is being replaced.
    waker: Option<Waker>,
    /// Set if `Kept::told` has its waker.
    is_told: bool,
}

impl Line {
    fn join(&mut self) -> Place {
        self.waiters.push_back(Some(Waiter { waker: None, is_told: false }));
        self.first + self.waiters.len() - 1
    }

    fn at(&mut self, place: Place) -> &mut Waiter {
        let waiter = self.waiters[place - self.first].as_mut();
        waiter.expect("a place is there until its receive leaves")
    }

    fn leave(&mut self, place: Place) -> Option<Waker> {
        let waiter = self.waiters[place - self.first].take();
        let Waiter { waker, .. } = waiter.expect("a receive leaves once");
        while let Some(None) = self.waiters.back() {
            self.waiters.pop_back();
        }
        while let Some(None) = self.waiters.front() {
            self.waiters.pop_front();
            self.first += 1;
        }
        waker
    }

    /// Returns the wakers of all that wait.
    fn wakers(&self) -> Vec<Waker> {
        self.waiters.iter().flatten().filter_map(|waiter| waiter.waker.clone()).collect()
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

    /// Returns the number of a receive that begins.
    pub(super) fn number(&self) -> Number {
        self.next.replace(self.next.get() + 1)
    }

    /// Adds a dropped receive, or a result before others with its number. To be followed by
    /// [`tell`](Kept::tell) or [`leave`](Kept::leave).
    fn add(&self, number: Number, dropped: Dropped) {
        let mut entries = self.dropped.borrow_mut();
        let at = entries.partition_point(|other| other.number < number);
        if at == 0 {
            drop(self.told.take());
        }
        entries.insert(at, Entry { number, dropped });
    }

    /// Adds a result that a receive took, at the place that it had.
    pub(super) fn put_back(&self, earlier: Earlier) {
        let Earlier { number, result } = earlier;
        self.add(number, Box::pin(ready(Some(result))));
        self.tell();
    }

    /// Adds an error, unless it only says that there was no datagram.
    pub(super) fn add_error(&self, error: io::Error) {
        if let Some(error) = of_the_socket(error) {
            self.put_back(Earlier { number: self.number(), result: Err(error) });
        }
    }

    /// Notes that a receive waits, at its place if it has one.
    fn wait(&self, place: &mut Option<Place>, cx: &Context<'_>) {
        let at = *place.get_or_insert_with(|| self.waiting.borrow_mut().join());
        // Wakers are users' code, so nothing is borrowed meanwhile.
        let old = self.waiting.borrow_mut().at(at).waker.take();
        let waker = match old {
            Some(waker) if waker.will_wake(cx.waker()) => waker,
            None => cx.waker().clone(),
            old => {
                drop(old);
                self.waiting.borrow_mut().at(at).is_told = false;
                cx.waker().clone()
            }
        };
        self.waiting.borrow_mut().at(at).waker = Some(waker);
    }

    /// Notes that a receive no longer waits.
    fn leave(&self, place: &mut Option<Place>) {
        if let Some(at) = place.take() {
            let waker = self.waiting.borrow_mut().leave(at);
            drop(waker);
        }
        self.tell();
    }

    /// Wakes all receives that wait if nothing else wakes them to poll the oldest dropped one.
    fn tell(&self) {
        if !self.is_empty() && self.told.borrow().is_none() {
            let wakers = self.waiting.borrow().wakers();
            *self.told.borrow_mut() = Some(Arc::new(Told::woken()));
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns whether the oldest of the dropped receives wakes this receive when it has ended, which it has
    /// not.
    fn is_told(&self, place: Option<Place>) -> bool {
        let is_asleep = || self.told.borrow().as_ref().is_some_and(|told| !told.is_woken());
        place.is_some_and(|place| self.waiting.borrow_mut().at(place).is_told) && is_asleep()
    }

    /// Polls the oldest of the dropped receives, up to the first that brought a result. The first that has
    /// not ended wakes all that wait.
    fn poll_first(&self, place: Option<Place>) -> Poll<Earlier> {
        if self.is_empty() || self.is_told(place) {
            return Poll::Pending;
        }
        let told = Arc::new(Told::new(self.waiting.borrow().wakers()));
        let waker = Waker::from(Arc::clone(&told));
        let cx = &mut Context::from_waker(&waker);
        loop {
            let Some(mut entry) = self.dropped.borrow_mut().pop_front() else {
                return Poll::Pending;
            };
            match entry.dropped.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    drop(self.told.take());
                    if let Some(result) = result {
                        return Poll::Ready(Earlier { number: entry.number, result });
                    }
                }
                Poll::Pending => {
                    self.dropped.borrow_mut().push_front(entry);
                    let old = self.told.replace(Some(told));
                    let waiters = &mut self.waiting.borrow_mut().waiters;
                    waiters.iter_mut().flatten().for_each(|waiter| waiter.is_told = true);
                    drop(old);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Takes the oldest result, if the receive has ended by now.
    pub(super) fn take_ready(&self) -> Option<Earlier> {
        match self.poll_first(None) {
            Poll::Ready(earlier) => Some(earlier),
            Poll::Pending => None,
        }
    }

    /// Waits until the dropped receives have ended, up to the first that brought a result.
    pub(super) async fn take(&self) -> Option<Earlier> {
        let mut waiting = Waiting { kept: self, place: None };
        poll_fn(|cx| {
            if !self.is_empty() {
                self.wait(&mut waiting.place, cx);
            }
            match self.poll_first(waiting.place) {
                Poll::Ready(earlier) => Poll::Ready(Some(earlier)),
                Poll::Pending if self.is_empty() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Receives that are woken together.
struct Told {
    wakers: Vec<Waker>,
    is_woken: AtomicBool,
}

impl Told {
    fn new(wakers: Vec<Waker>) -> Self {
        Self { wakers, is_woken: AtomicBool::new(false) }
    }

    /// Returns receives that were woken.
    fn woken() -> Self {
        Self { wakers: Vec::new(), is_woken: AtomicBool::new(true) }
    }

    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Relaxed)
    }
}

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake_by_ref);
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
    number: Number,
    place: Option<Place>,
    /// The result that it took, until its operation has ended.
    taken: Option<Earlier>,
}

impl<'a, O: Operation<Output = BufResult<R, T>>, R: Shape, T: IoBufMut> Receiving<'a, O, R, T> {
    pub(super) fn new(op: Op<O>, kept: Option<&'a Kept>) -> Self {
        let number = kept.map_or(0, Kept::number);
        Self { op: Some(op), kept, number, place: None, taken: None }
    }

    /// Returns the result of the receive, given that of the operation.
    fn finish(&mut self, output: O::Output) -> O::Output {
        let Some(kept) = self.kept else { return output };
        let output = match (self.taken.take(), output) {
            (None, output) => output,
            (Some(taken), (Err(error), mut buf)) if says_nothing(&error) => {
                (taken.result.map(|datagram| datagram.put(&mut buf)), buf)
            }
            // Both have brought a result. The one that was taken came first.
            (Some(Earlier { result: Ok(taken), .. }), (Ok(shape), mut buf))
                if taken.may_replace(shape.len(), &buf) =>
            {
                let own = Ok(Datagram::new(shape, &buf));
                kept.put_back(Earlier { number: self.number, result: own });
                (Ok(taken.put(&mut buf)), buf)
            }
            (Some(taken), output) => {
                kept.put_back(taken);
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
            kept.wait(&mut this.place, cx);
            if this.taken.is_none()
                && let Poll::Ready(taken) = kept.poll_first(this.place)
            {
                this.taken = Some(taken);
                op.cancel();
                continue;
            }
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
            kept.put_back(taken);
        }
        op.cancel();
        let dropped = Box::pin(async {
            let (result, buf) = op.await;
            match result {
                Ok(shape) => Some(Ok(Datagram::new(shape, &buf))),
                Err(error) => of_the_socket(error).map(Err),
            }
        });
        kept.add(self.number, dropped);
        kept.leave(&mut self.place);
    }
}

/// Datagrams of a batch under way. If it is dropped, they are kept.
pub(super) struct Gathered<'a, T: IoBuf> {
    kept: &'a Kept,
    number: Number,
    pub(super) done: Vec<(driver::Received, T)>,
}

impl<'a, T: IoBuf> Gathered<'a, T> {
    /// Begins with the first one. The receives of the others begin later.
    pub(super) fn new(kept: &'a Kept, first: (driver::Received, T)) -> Self {
        Self { kept, number: kept.number(), done: vec![first] }
    }
}

impl<T: IoBuf> Drop for Gathered<'_, T> {
    fn drop(&mut self) {
        for (received, buf) in self.done.drain(..).rev() {
            let result = Ok(Datagram::new(received, &buf));
            self.kept.put_back(Earlier { number: self.number, result });
        }
    }
}

#[cfg(test)]
mod tests {
    use sakia_driver::SocketAddress;

    use super::*;

    fn datagram(len: usize) -> Datagram {
        let bytes = vec![7; len];
        let datagram =
            driver::Datagram::new(bytes, SocketAddress::UNNAMED, false, ReceivedControl::default());
        Datagram::of(datagram)
    }

    /// A receive puts as many bytes as come into an empty vector, whose length then says so, and into a full
    /// one without a change of its length.
    #[test]
    fn a_datagram_replaces_another_one_if_the_length_of_the_buffer_is_right_then() {
        for (room, own, taken, may) in [
            (5, 5, 5, true),
            (5, 5, 3, false), // perhaps filled up to its capacity
            (5, 5, 6, false),
            (9, 5, 3, true),
            (9, 5, 9, true),
            (9, 5, 10, false),
        ] {
            let is_allowed = datagram(taken).may_replace(own, &vec![0; room]);
            assert_eq!(is_allowed, may, "{taken} in place of {own} in {room}");
        }
    }
}
