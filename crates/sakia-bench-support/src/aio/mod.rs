//! Linux AIO, without a library; and a scheduler on it that does the file calls of many threads on one.
//!
//! The kernel's older interface for asynchronous files is what a scheduler can be built on that is to be
//! compared with a ring: `io_setup`, `io_submit`, `io_getevents`, `io_cancel`, `io_destroy`. Buffered files
//! it reads and writes within `io_submit`; only with `O_DIRECT` does that return before the device has
//! answered.
//!
//! - A [`Context`] is the kernel's. A slot of it owns what a [`Request`] needs until its completion.
//! - A [`Scheduler`] is a thread with contexts. Others hand their requests over and sleep:
//!
//! 1. A request goes into a queue, with a [`Ticket`] for its answer. Who put it there wakes the thread if
//!    it sleeps.
//! 2. The thread takes what has queued while it was busy, up to a batch, puts it into a context with room,
//!    and submits it by one call. If all are full it asks for another, of twice the room; if that is refused
//!    for one with a tenth less, and so on ([`Growth`]). What finds none stays in line.
//! 3. It reaps what is done, and gives the answers, which wakes who waits.
//! 4. With nothing to do it sleeps: on the queue when the kernel has nothing of it; otherwise on an
//!    eventfd, to which both the kernel and those with requests add.
//!
//! A read of a pipe or a terminal holds up `io_submit`, and with it everybody: AIO has no other way.
//!
//! [`Scheduler::stop`] lets nothing new in, cancels polls and waits for the rest. What the thread had in
//! flight should it fail is waited for too, when its contexts are dropped, and everyone who waits is told.

mod buf;
mod context;
mod contexts;
mod request;
mod scheduler;
mod sys;
mod ticket;
mod trace;

pub use self::buf::Buf;
pub use self::context::{Completion, Context};
pub use self::contexts::Growth;
pub use self::request::{Done, Request};
pub use self::scheduler::{Builder, Scheduler};
pub use self::ticket::Ticket;
pub use self::trace::{Call, CallKind, Statistics};

/// Whether an error says that this machine, or this process, has no AIO: none in the kernel, none allowed,
/// or nothing left of `fs.aio-max-nr`.
pub fn is_missing(error: &std::io::Error) -> bool {
    [libc::ENOSYS, libc::EPERM, libc::EAGAIN].contains(&error.raw_os_error().unwrap_or(0))
}
