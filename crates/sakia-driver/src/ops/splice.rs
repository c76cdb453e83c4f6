//! Moving bytes through a pipe within the kernel.
//!
//! A ring has an entry for splices, and gives each to a kernel worker, which waits in the kernel: every
//! waiting splice would occupy a thread. Here a waiting splice is a poll:
//! 1. If neither end can make the call wait, it is a plain call with `SPLICE_F_NONBLOCK`. That flag only
//!    affects pipes; other files depend on their own mode, `O_NONBLOCK`.
//! 2. If there was no data to move, or no room for it, the source is polled, then the target, and the call is
//!    repeated.
//! 3. If an end may make the call wait in spite of that, a thread makes the call after both ends were polled:
//!    a thread of the bounded lane for a file, otherwise of the elastic lane.
//!
//! The kernel keeps the pipe locked during the call, so a thread should not wait there for long. Into a file
//! in blocking mode the call moves only as much as fits whenever there is any room.
//!
//! Source: `splice(2)`, `fs/splice.c`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::socket_acceptconn;
use rustix::pipe::fcntl_getpipe_size;
use sakia_ring::CURRENT_POSITION;

use super::transfer_len;
use crate::backend::FileKind;
use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::decide::{CallMode, Lane, Route, Rules};
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::poll::{self, PollEvents};
use crate::sys::{abi, register};

/// Flags of [`Handle::splice`].
///
/// # Examples
/// See [`Handle::splice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceFlags(pub u32);

impl SpliceFlags {
    /// Pages are moved rather than copied, if possible.
    #[doc(alias = "SPLICE_F_MOVE")]
    pub const MOVE: Self = Self(abi::SPLICE_F_MOVE);
    /// More data follows soon: a socket may wait for it before it sends.
    #[doc(alias = "SPLICE_F_MORE")]
    pub const MORE: Self = Self(abi::SPLICE_F_MORE);
}

of_bits!(SpliceFlags);

/// A splice in progress: a future. See [`Handle::splice`].
///
/// # Examples
/// See [`Handle::splice`].
#[derive(Debug)]
#[must_use = "a dropped splice is canceled, or its count thrown away"]
pub struct Splice {
    handle: Handle,
    request: SpliceRequest,
    stage: Stage,
    is_canceled: bool,
}

/// The stage of a splice.
#[derive(Debug)]
enum Stage {
    /// It waits until the source has data.
    Source(Op<poll::Poll>),
    /// It waits until the target has room.
    Target(Op<poll::Poll>),
    /// It makes the call.
    Call(Op<SpliceCall>),
}

/// The source, the target and the number of bytes.
#[derive(Clone, Debug)]
struct SpliceRequest {
    from: Fd,
    from_offset: u64,
    to: Fd,
    to_offset: u64,
    len: usize,
    flags: SpliceFlags,
}

/// The reason why a call may wait for an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// None: a pipe.
    Pipe,
    /// None: in non-blocking mode, or on the simulated kernel.
    NonBlocking,
    /// The file's device.
    File,
    /// The file's server, perhaps for ever.
    RemoteFile,
    /// The peer, perhaps for ever.
    Blocking,
}

/// One call, which does not wait for a pipe.
#[derive(Debug)]
struct SpliceCall {
    request: SpliceRequest,
    route: Route,
}

impl Handle {
    /// Moves up to `len` bytes of `from` to `to` within the kernel, as soon as there are any and the target
    /// has room for them. One of the two is a pipe. `from_offset` and `to_offset` are the offsets in a file,
    /// whose own position then stays. [`CURRENT_POSITION`] stands for that position, which moves; pipes,
    /// sockets and similar files accept nothing else.
    ///
    /// Resolves to the number of bytes moved, which may be fewer than requested; 0 means that `from` has
    /// ended, or that `len` is 0. It starts at once, and continues when it is polled.
    ///
    /// Moved bytes stay moved. To stop a splice and learn their number, call [`cancel`](Splice::cancel) and
    /// await it. If it is dropped while a thread makes the call, that call ends by itself, and its count is
    /// lost, as with a `splice(2)` whose result is ignored; no byte is lost between the two ends.
    ///
    /// # Waiting
    /// A waiting splice is a poll, and occupies no thread. Closing the descriptor that it polls ends it with
    /// `ECANCELED`; closing the other one waits for the splice, so cancel it first.
    ///
    /// Between pipes, and files in non-blocking mode, this thread makes the call. With a regular file, or
    /// with a socket or terminal in blocking mode, a thread of a lane does. Into a socket or terminal in
    /// blocking mode a call moves at most 4 KiB, since it would block for more room. To move more per call,
    /// set non-blocking mode, if all uses of that file are polls and splices.
    ///
    /// While a call reads or writes a slow file the kernel keeps the pipe locked, and every other call on the
    /// pipe blocks, even in non-blocking mode: also a read or a splice by this thread. Await one operation on
    /// the pipe before starting the next.
    ///
    /// # Errors
    /// - `EINVAL`: neither is a pipe, or both are the same one; an unknown flag; a target open for
    ///   appending; an invalid file offset, or one for a descriptor that is neither a pipe nor a file; a
    ///   file that the kernel does not splice.
    /// - `ESPIPE`: an offset for a pipe. `EBADF`: not open for reading or for writing.
    /// - `EPIPE`: the target has no reader any more. No signal is raised.
    /// - `ECANCELED`: canceled, and nothing was moved.
    /// - `EOPNOTSUPP`: the backend does not perform it. Otherwise as `splice(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use std::io::Read;
    ///
    /// use sakia_driver::{CURRENT_POSITION, SpliceFlags};
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// let (mut reader, writer) = std::io::pipe()?;
    /// let writer = driver.adopt(writer.into());
    /// let flags = SpliceFlags::default();
    /// let moved = run(&driver, driver.splice(&file, 0, &writer, CURRENT_POSITION, 9, flags))??;
    /// assert_eq!(moved, 9);
    /// let mut bytes = [0; 9];
    /// reader.read_exact(&mut bytes)?;
    /// assert_eq!(&bytes, b"[package]");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 2.6.17. Not given to the ring, which would occupy a worker for each. Source: `splice(2)`.
    pub fn splice(
        &self,
        from: &Fd,
        from_offset: u64,
        to: &Fd,
        to_offset: u64,
        len: usize,
        flags: SpliceFlags,
    ) -> Splice {
        let (from, to) = (self.held(from), self.held(to));
        let request = SpliceRequest { from, from_offset, to, to_offset, len, flags };
        let stage =
            if request.is_polled_first() { request.poll_source(self) } else { request.call(self) };
        Splice { handle: self.clone(), request, stage, is_canceled: false }
    }
}

impl Splice {
    /// Cancels the splice: it ends with `ECANCELED`, or with its result if it was quicker. A call on a thread
    /// ends by itself. Await the splice in either case.
    pub fn cancel(&mut self) {
        self.is_canceled = true;
        match &mut self.stage {
            Stage::Source(poll) | Stage::Target(poll) => poll.cancel(),
            Stage::Call(call) => call.cancel(),
        }
    }
}

impl Future for Splice {
    type Output = io::Result<usize>;

    /// # Panics
    /// As [`Op`]: when polled again after it was ready, and when the driver was dropped and could not get
    /// the operation's memory back from the kernel.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, request, stage, is_canceled } = self.get_mut();
        loop {
            match stage {
                Stage::Source(poll) | Stage::Target(poll) => {
                    ready!(Pin::new(poll).poll(cx))?;
                }
                Stage::Call(call) => match ready!(Pin::new(call).poll(cx)) {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => {}
                    result => return Poll::Ready(result),
                },
            }
            if *is_canceled {
                return Poll::Ready(Err(Errno::CANCELED.into()));
            }
            *stage = match stage {
                Stage::Call(_) => request.poll_source(handle),
                Stage::Source(_) => request.poll_target(handle),
                Stage::Target(_) => request.call(handle),
            };
        }
    }
}

impl SpliceRequest {
    /// Waits for the source, unless it is a file, and continues with the target.
    fn poll_source(&self, handle: &Handle) -> Stage {
        match self.from.kind() {
            FileKind::Bounded => self.poll_target(handle),
            FileKind::Waiting => Stage::Source(handle.poll(&self.from, PollEvents::READABLE)),
        }
    }

    /// Waits for the target, unless it is a file, and continues with the call.
    fn poll_target(&self, handle: &Handle) -> Stage {
        match self.to.kind() {
            FileKind::Bounded => self.call(handle),
            FileKind::Waiting => Stage::Target(handle.poll(&self.to, PollEvents::WRITABLE)),
        }
    }

    fn call(&self, handle: &Handle) -> Stage {
        let [from, to] = self.ends();
        let mut request = self.clone();
        if to == End::Blocking {
            request.len = request.len.min(abi::PIPE_BUF as usize);
        }
        Stage::Call(handle.start(SpliceCall { request, route: route(from, to) }))
    }

    fn ends(&self) -> [End; 2] {
        [&self.from, &self.to].map(End::of)
    }

    /// Returns whether both ends are polled before the first call, because a thread is to make it and the
    /// kernel does not make it fail instead of blocking.
    fn is_polled_first(&self) -> bool {
        const KNOWN: u32 =
            abi::SPLICE_F_MOVE | abi::SPLICE_F_NONBLOCK | abi::SPLICE_F_MORE | abi::SPLICE_F_GIFT;
        let [from, to] = self.ends();
        if matches!(route(from, to), Route::Now(_)) {
            return false;
        }
        let is_file = |end| matches!(end, End::File | End::RemoteFile);
        let takes_offset = |end, offset: u64| {
            offset == CURRENT_POSITION || is_file(end) && i64::try_from(offset).is_ok()
        };
        let is_open = |fd, closed: OFlags| {
            fcntl_getfl(fd)
                .is_ok_and(|mode| !mode.contains(OFlags::PATH) && mode & OFlags::ACCMODE != closed)
        };
        let appends = || fcntl_getfl(&self.to).is_ok_and(|mode| mode.contains(OFlags::APPEND));
        self.len > 0
            && self.flags.0 & !KNOWN == 0
            && (from == End::Pipe || to == End::Pipe)
            && takes_offset(from, self.from_offset)
            && takes_offset(to, self.to_offset)
            && is_open(&self.from, OFlags::WRONLY)
            && is_open(&self.to, OFlags::RDONLY)
            && !(is_file(to) && appends())
            && !fails_at_once(&self.from)
            && !fails_at_once(&self.to)
    }
}

impl End {
    fn of(fd: &Fd) -> Self {
        if fd.kind() == FileKind::Bounded {
            let is_remote = fd.mount().is_some_and(|mount| mount.is_remote);
            return if is_remote { Self::RemoteFile } else { Self::File };
        }
        if fd.is_simulated() {
            return Self::NonBlocking;
        }
        if fcntl_getpipe_size(fd).is_ok() {
            return Self::Pipe;
        }
        match fcntl_getfl(fd) {
            Ok(mode) if mode.contains(OFlags::NONBLOCK) => Self::NonBlocking,
            _ => Self::Blocking,
        }
    }
}

/// Returns whether the kernel refuses such an end whether it is ready or not: a file without a type, such as
/// an eventfd, or a socket that accepts connections.
fn fails_at_once(fd: &Fd) -> bool {
    fd.is_anonymous() || socket_acceptconn(fd) == Ok(true)
}

/// Returns the route of a call between these ends.
fn route(from: End, to: End) -> Route {
    match (from, to) {
        (End::Blocking | End::RemoteFile, _) | (_, End::Blocking | End::RemoteFile) => {
            Route::Lane(Lane::Elastic)
        }
        (End::File, _) | (_, End::File) => Route::Queue,
        _ => Route::Now(CallMode::Blocking),
    }
}

// SAFETY: the call names two descriptors that the value keeps open, and its two offsets, which nothing else
// accesses before the completion.
unsafe impl Operation for SpliceCall {
    type Output = io::Result<usize>;
    const KIND: OpKind = OpKind::Copy;

    fn call(&mut self) -> Call {
        let SpliceRequest { from, from_offset, to, to_offset, len, flags } = &mut self.request;
        let place = |offset: &mut u64| match *offset {
            CURRENT_POSITION => 0,
            _ => word(&raw mut *offset),
        };
        let (from_place, to_place) = (place(from_offset), place(to_offset));
        let len = transfer_len(*len) as usize;
        let flags = (flags.0 | abi::SPLICE_F_NONBLOCK) as usize;
        let to = register(to.raw());
        System::on(Function::Splice, from.raw(), [from_place, to, to_place, len, flags])
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.count(self.request.len)
    }

    fn route(&self, _: &Rules) -> Route {
        self.route
    }

    acts_on!(Bounded, request.from);
}
