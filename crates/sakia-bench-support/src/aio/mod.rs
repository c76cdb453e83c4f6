//! Linux AIO, without a library; and a scheduler on it that does the file calls of many threads on one.
//!
//! The kernel's older interface for asynchronous files is the base of a scheduler to compare with a ring:
//! `io_setup`, `io_submit`, `io_getevents`, `io_cancel`, `io_destroy`. It does buffered reads and writes
//! within `io_submit`; only with `O_DIRECT` does `io_submit` return before the device has answered.
//!
//! - A [`Context`] is the kernel's. Its slots own everything that a [`Request`] needs until its completion.
//! - A [`Scheduler`] is a thread with contexts. Other threads submit their requests to it and sleep:
//!
//! 1. A request goes into a queue, with a [`Ticket`] for its result. The submitter wakes the thread if it
//!    sleeps.
//! 2. The thread takes a batch of requests that queued while it was busy, pushes them into a context with
//!    room, and submits them by one call. If all contexts are full it requests another, of twice the room;
//!    if that is refused, one with a tenth less, and so on ([`Growth`]). Requests without room stay in the
//!    queue.
//! 3. It reaps completions and delivers the results, which wakes the waiting threads.
//! 4. Without work it sleeps: on the queue if nothing is in flight; otherwise on an eventfd, to which both
//!    the kernel and the submitters add.
//!
//! A read of a pipe or a terminal blocks `io_submit`, and with it all requests: AIO has no other way.
//!
//! [`Scheduler::stop`] accepts no new requests, cancels polls and waits for the rest. If the thread fails,
//! dropping its contexts still waits for its requests in flight, and all waiting threads get an error.

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

/// Returns whether an error means that this machine, or this process, has no AIO: none in the kernel, none
/// allowed, or nothing left of `fs.aio-max-nr`.
pub fn is_missing(error: &std::io::Error) -> bool {
    [libc::ENOSYS, libc::EPERM, libc::EAGAIN].contains(&error.raw_os_error().unwrap_or(0))
}
