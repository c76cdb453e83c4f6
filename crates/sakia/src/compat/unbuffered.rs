//! A connection for other ecosystems, without buffers of its own.
//!
//! A poll makes a non-blocking plain call on the caller's memory. If that would block, a poll of the driver
//! tells when to try again. Operations that the stream had begun before it was adapted end first.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sakia_driver::{Connection, Op, PollEvents, ShutdownHow, limits};

use super::parts::{Readable, Target, Writable};
use crate::net::{Stream, TcpStream};

/// A connection that is read and written as those of other runtimes are, within [`Compat`](super::Compat):
/// nothing is buffered here, so bytes that a write took are the kernel's, and there is nothing to flush. See
/// [`Compat::unbuffered`](super::Compat::unbuffered).
#[derive(Debug)]
pub struct Unbuffered<S = TcpStream> {
    stream: S,
    reads: Direction,
    writes: Direction,
    close: Close,
}

/// One of the two directions.
#[derive(Default)]
struct Direction {
    wait: Option<Wait>,
    /// Calls since it waited last.
    calls: u32,
    /// Set if the last call moved fewer bytes than asked for, so that the next would have to wait.
    is_done: bool,
}

/// The condition that a direction waits for.
enum Wait {
    /// The socket to be ready.
    Ready(Op<sakia_driver::Poll>),
    /// The end of the operations that the stream had begun, above all its receive ahead.
    Settled(Pin<Box<dyn Future<Output = ()>>>),
}

/// The progress of ending the sends.
enum Close {
    Open,
    Closing(Pin<Box<dyn Future<Output = io::Result<()>>>>),
    Closed,
}

impl<S: Stream> Unbuffered<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            reads: Direction::default(),
            writes: Direction::default(),
            close: Close::Open,
        }
    }

    /// Returns the stream, for its options and addresses.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Gives the stream back. No bytes are left in the adapter.
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn connection(&self) -> &Connection {
        self.stream.socket().connection()
    }
}

impl Direction {
    /// Repeats `call`, which moves up to `len` bytes, until it does not block; in between waits in the way
    /// that `wait` begins.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
        mut call: impl FnMut() -> io::Result<usize>,
        wait: impl Fn() -> Wait,
    ) -> Poll<io::Result<usize>> {
        if self.is_done && self.wait.is_none() {
            self.wait = Some(wait());
        }
        loop {
            if let Some(wait) = &mut self.wait {
                let result = ready!(wait.poll(cx));
                self.wait = None;
                (self.calls, self.is_done) = (0, false);
                result?;
            }
            if self.calls == limits::TURN_CALLS {
                self.calls = 0;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.calls += 1;
            match call() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait = Some(wait()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => {
                    self.is_done = matches!(result, Ok(count) if 0 < count && count < len);
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl Wait {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Ready(ready) => Pin::new(ready).poll(cx).map_ok(|_| ()),
            Self::Settled(settled) => settled.as_mut().poll(cx).map(Ok),
        }
    }
}

/// Returns the wait before a read: first for the operations that the stream has begun.
fn wait_to_read(connection: &Connection) -> Wait {
    if !connection.is_receiving() {
        return Wait::Ready(connection.driver().poll(connection.fd(), PollEvents::READABLE));
    }
    let connection = connection.clone();
    Wait::Settled(Box::pin(async move { connection.receives_settled().await }))
}

fn wait_to_write(connection: &Connection) -> Wait {
    if !connection.is_sending() {
        return Wait::Ready(connection.driver().poll(connection.fd(), PollEvents::WRITABLE));
    }
    let connection = connection.clone();
    Wait::Settled(Box::pin(async move { connection.sends_settled().await }))
}

impl<S: Stream> Readable for Unbuffered<S> {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        target: &mut impl Target,
    ) -> Poll<io::Result<usize>> {
        let room = target.room();
        if room == 0 {
            return Poll::Ready(Ok(0));
        }
        let connection = self.stream.socket().connection();
        let call = || target.fill(|room| connection.try_recv(room));
        self.reads.poll(cx, room, call, || wait_to_read(connection))
    }
}

impl<S: Stream> Writable for Unbuffered<S> {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let connection = self.stream.socket().connection();
        let len = slices.iter().map(|slice| slice.len()).sum();
        self.writes.poll(cx, len, || connection.try_send(slices), || wait_to_write(connection))
    }

    /// Returns at once: the kernel has all written bytes.
    fn poll_flush(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.close {
                Close::Open => {
                    let connection = self.connection().clone();
                    let end = async move { connection.shutdown(ShutdownHow::Sends).await };
                    self.close = Close::Closing(Box::pin(end));
                }
                Close::Closing(closing) => {
                    let result = ready!(closing.as_mut().poll(cx));
                    self.close = Close::Closed;
                    // As in tokio: a broken connection has nothing to end.
                    return Poll::Ready(match result {
                        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                        result => result,
                    });
                }
                Close::Closed => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl std::fmt::Debug for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direction").field("waits", &self.wait.is_some()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Close {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Closing(_) => "Closing",
            Self::Closed => "Closed",
        })
    }
}
