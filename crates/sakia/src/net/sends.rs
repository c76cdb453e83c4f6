//! Sending datagrams, of all families.
//!
//! A plain call sends a datagram if none waits to be sent: it would overtake those in the queue. A dropped
//! send is canceled, and counts until its operation has ended; later sends wait for that. Sends that wait at
//! the same time may overtake each other: a receiver that has no room must not delay datagrams to others.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use sakia_driver::{
    Attached, BufResult, ControlMessages, Handle, IoBuf, Op, Operation, PollEvents, SocketAddress,
};

use super::datagram::{BATCH_MAX, Datagrams};
use crate::io::transfer::retrying;

/// The sends of a socket that are not done by plain calls.
#[derive(Default)]
pub(super) struct Sends {
    /// Made for the first of them.
    line: OnceCell<Rc<Line>>,
}

/// The counts of sends under way.
#[derive(Default)]
struct Line {
    /// Futures that send.
    futures: Cell<usize>,
    /// Futures that wait for an operation.
    awaited: Cell<usize>,
    /// Operations, dropped ones included.
    operations: Cell<usize>,
    /// The wakers of sends that wait for dropped ones. All are woken at once: one that is woken may have a
    /// future that its task does not poll.
    waiting: RefCell<Vec<Waker>>,
}

/// Belongs to the buffer of an operation, and so lives until the operation has ended.
struct Token {
    line: Rc<Line>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.line.operations.set(self.line.operations.get() - 1);
        for waiting in self.line.waiting.take() {
            waiting.wake();
        }
    }
}

/// A count that is one higher until the value is dropped.
pub(super) struct Counted<'a> {
    count: &'a Cell<usize>,
}

impl<'a> Counted<'a> {
    pub(super) fn new(count: &'a Cell<usize>) -> Self {
        count.set(count.get() + 1);
        Self { count }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.count.set(self.count.get() - 1);
    }
}

impl Line {
    fn has_dropped(&self) -> bool {
        self.operations.get() > self.awaited.get()
    }

    /// Starts an operation whose buffer has a token.
    fn start<T: IoBuf, O: Operation>(
        self: &Rc<Self>,
        buf: T,
        start: impl Fn(Attached<T, Token>) -> Op<O>,
    ) -> Sending<'_, O> {
        let awaited = Counted::new(&self.awaited);
        self.operations.set(self.operations.get() + 1);
        let token = Token { line: Rc::clone(self) };
        Sending { op: start(Attached::new(buf, token)), _awaited: awaited }
    }
}

/// An operation whose buffer has a token.
struct Sending<'a, O: Operation> {
    op: Op<O>,
    _awaited: Counted<'a>,
}

impl<R, T: IoBuf, O> Future for Sending<'_, O>
where
    O: Operation<Output = BufResult<R, Attached<T, Token>>>,
{
    type Output = BufResult<R, T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (result, buf) = ready!(Pin::new(&mut self.op).poll(cx));
        Poll::Ready((result, buf.into_inner()))
    }
}

impl Sends {
    fn line(&self) -> &Rc<Line> {
        self.line.get_or_init(Rc::default)
    }

    /// Returns whether a plain call would overtake a send.
    #[inline(always)]
    fn are_under_way(&self) -> bool {
        let is_any = |line: &Rc<Line>| line.futures.get() + line.operations.get() > 0;
        self.line.get().is_some_and(is_any)
    }

    /// Waits until dropped sends have ended, or the driver, which may have given up one of them.
    async fn settled(&self, driver: &Handle) {
        if self.are_under_way() {
            Box::pin(self.dropped_ended(driver)).await;
        }
    }

    #[cold]
    async fn dropped_ended(&self, driver: &Handle) {
        let line = self.line();
        poll_fn(|cx| {
            if !line.has_dropped() || driver.has_ended() {
                return Poll::Ready(());
            }
            let fresh = cx.waker().clone();
            line.waiting.borrow_mut().push(fresh);
            Poll::Pending
        })
        .await;
    }
}

impl Datagrams {
    pub(super) async fn send<T: IoBuf>(&self, buf: T) -> BufResult<usize, T> {
        self.sends.settled(self.driver()).await;
        if !self.sends.are_under_way()
            && let Some(result) =
                self.driver().send_datagram_now(self.fd(), &buf, &SocketAddress::UNNAMED)
        {
            return (result, buf);
        }
        self.send_by_operation(buf, |buf| self.driver().send(self.fd(), buf, 0)).await
    }

    pub(super) async fn send_to<T: IoBuf>(
        &self,
        buf: T,
        to: &SocketAddress,
    ) -> BufResult<usize, T> {
        self.sends.settled(self.driver()).await;
        if !self.sends.are_under_way()
            && let Some(result) = self.driver().send_datagram_now(self.fd(), &buf, to)
        {
            return (result, buf);
        }
        let send = |buf| self.driver().send_to(self.fd(), buf, to, 0);
        self.send_by_operation(buf, send).await
    }

    /// Sends to the peer if `to` is unnamed.
    pub(super) async fn send_message<T: IoBuf>(
        &self,
        buf: T,
        to: &SocketAddress,
        control: ControlMessages,
    ) -> BufResult<usize, T> {
        self.sends.settled(self.driver()).await;
        let send = |buf| self.driver().send_message(self.fd(), buf, to, control.clone(), 0);
        self.send_by_operation(buf, send).await
    }

    async fn send_by_operation<T: IoBuf, O>(
        &self,
        buf: T,
        start: impl Fn(Attached<T, Token>) -> Op<O>,
    ) -> BufResult<usize, T>
    where
        O: Operation<Output = BufResult<usize, Attached<T, Token>>>,
    {
        let line = self.sends.line();
        let _future = Counted::new(&line.futures);
        let send = |buf| line.start(buf, &start);
        retrying(self.driver(), self.fd(), PollEvents::WRITABLE, buf, send).await
    }

    /// Sends all messages at once. Each has a result of its own.
    pub(super) async fn send_batch<T: IoBuf>(
        &self,
        mut messages: Vec<(T, SocketAddress)>,
    ) -> Vec<BufResult<usize, T>> {
        let mut results = Vec::with_capacity(messages.len());
        while !messages.is_empty() && !self.tells_errors() {
            self.wait_for_budget().await;
            if self.sends.are_under_way() {
                self.sends.settled(self.driver()).await;
                if self.sends.are_under_way() {
                    break;
                }
            }
            let Some(sent) = self.driver().send_batch_now(self.fd(), &messages) else { break };
            let is_stuck = sent < messages.len().min(BATCH_MAX);
            results.extend(messages.drain(..sent).map(|(buf, _)| (Ok(buf.bytes_len()), buf)));
            if is_stuck {
                // It waits, or returns its error. The others follow it.
                let (buf, to) = messages.remove(0);
                results.push(self.send_to(buf, &to).await);
            }
        }
        if messages.is_empty() {
            return results;
        }
        self.sends.settled(self.driver()).await;
        let line = self.sends.line();
        let _future = Counted::new(&line.futures);
        let start = |(buf, to)| {
            let send = |buf| self.driver().send_to(self.fd(), buf, &to, 0);
            (line.start(buf, send), to)
        };
        // All of them are started before the first is awaited.
        let started: Vec<_> = messages.into_iter().map(start).collect();
        for (sending, to) in started {
            let (result, buf) = sending.await;
            results.push(match result {
                Err(error) if self.may_retry(&error, PollEvents::WRITABLE).await => {
                    self.send_to(buf, &to).await
                }
                result => (result, buf),
            });
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use std::mem::forget;
    use std::task::Context;

    use super::*;
    use crate::Runtime;
    use crate::net::UdpSocket;

    #[test]
    fn a_send_does_not_wait_for_one_that_an_ended_driver_gave_up() {
        let runtime = Runtime::new().unwrap();
        let socket = runtime.block_on(UdpSocket::bind("127.0.0.1:0")).unwrap();
        let to = socket.local_addr().unwrap();
        let line = socket.inner.sends.line();
        line.operations.set(1);
        forget(Token { line: Rc::clone(line) }); // with its operation
        let mut send = Box::pin(socket.send_to("a datagram", to));
        let mut poll = || send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert_eq!(line.operations.get(), 1, "it waits, and has no operation of its own");
        drop(runtime);
        let Poll::Ready((result, _)) = poll() else { panic!("it waits for ever") };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    }
}
