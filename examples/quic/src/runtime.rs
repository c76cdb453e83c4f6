//! The runtime interface of quinn, implemented with Sakia.
//!
//! quinn has a state machine and tasks that drive it. Its own `quinn-udp` sends and receives batches of
//! datagrams in plain non-blocking calls; the ring has no `recvmmsg`. Sakia reports when to try again.
//! Everything runs on one thread, but quinn also supports several and so requires `Send`. [`SendWrapper`]
//! adds `Send` to values that belong to the thread, and panics if another thread uses them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};
use sakia::io::Async;
use sakia::time::{self, Sleep};
use send_wrapper::SendWrapper;

/// The runtime of the calling thread. An endpoint created with it stays on this thread.
#[derive(Debug)]
pub struct SakiaRuntime;

impl Runtime for SakiaRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(SendWrapper::new(time::sleep_until(by_sakia(deadline)))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        sakia::spawn(future).detach();
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        // Makes the socket non-blocking and sets the other options quinn needs.
        let state = UdpSocketState::new((&socket).into())?;
        let io = Rc::new(Async::new(socket)?);
        let wait = RefCell::new(Wait::new(Rc::clone(&io), Direction::Read));
        Ok(Arc::new(Socket {
            state,
            io: SendWrapper::new(io),
            is_full: SendWrapper::new(Cell::new(false)),
            wait: SendWrapper::new(wait),
        }))
    }
}

/// Converts a time of the system's clock to the runtime's clock.
fn by_sakia(moment: Instant) -> time::Instant {
    time::now() + moment.saturating_duration_since(Instant::now())
}

#[derive(Debug)]
struct Timer(SendWrapper<Sleep>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.0.reset(by_sakia(deadline));
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.0).poll(cx)
    }
}

type Io = Rc<Async<UdpSocket>>;

struct Socket {
    state: UdpSocketState,
    io: SendWrapper<Io>,
    /// The last send found no room, and no wait has finished since.
    is_full: SendWrapper<Cell<bool>>,
    /// The wait until datagrams arrive.
    wait: SendWrapper<RefCell<Wait>>,
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let wait = Wait::new(Rc::clone(&self.io), Direction::Write);
        Box::pin(Writable { socket: self, wait: SendWrapper::new(wait) })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let result = self.state.send(self.io.get_ref().into(), transmit);
        if matches!(&result, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.is_full.set(true);
        }
        result
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut wait = self.wait.borrow_mut();
        loop {
            // During the wait, a call would find no datagrams.
            if !wait.is_under_way() {
                match self.state.recv(self.io.get_ref().into(), bufs, meta) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    result => return Poll::Ready(result),
                }
            }
            ready!(wait.poll(cx))?;
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").finish_non_exhaustive()
    }
}

/// Waits until the socket has room to send.
struct Writable {
    socket: Arc<Socket>,
    wait: SendWrapper<Wait>,
}

impl UdpPoller for Writable {
    /// Waits only after a send that found no room, since quinn calls this before each send.
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.socket.is_full.get() {
            ready!(self.wait.poll(cx))?;
            self.socket.is_full.set(false);
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writable")
    }
}

/// Repeatedly waits until a socket is ready.
struct Wait {
    io: Io,
    direction: Direction,
    /// The current wait.
    future: Option<Pin<Box<dyn Future<Output = io::Result<()>>>>>,
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl Wait {
    fn new(io: Io, direction: Direction) -> Self {
        Self { io, direction, future: None }
    }

    fn is_under_way(&self) -> bool {
        self.future.is_some()
    }

    /// Polls the current wait, or begins the next one.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let future = self.future.get_or_insert_with(|| {
            let (io, direction) = (Rc::clone(&self.io), self.direction);
            Box::pin(async move {
                match direction {
                    Direction::Read => io.readable().await,
                    Direction::Write => io.writable().await,
                }
            })
        });
        let result = ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(result)
    }
}
