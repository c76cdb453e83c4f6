//! The parts of a runtime that hyper requires: streams, an executor and a timer.
//!
//! [`Compat`] is a stream if it both reads and writes. Connections need not be `Send`: they are tasks of
//! [`sakia::spawn`](crate::spawn), or polled in place.
//!
//! # Examples
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//!
//! use hyper::service::service_fn;
//! use hyper::{Request, Response};
//! use sakia::compat::Compat;
//! use sakia::compat::hyper::{SakiaExecutor, SakiaTimer};
//! use sakia::io::{Reader, Writer, pipe};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! sakia::block_on(async {
//!     let ((a_input, b_output), (b_input, a_output)) = (pipe()?, pipe()?);
//!     let client = Compat::new((Reader::new(a_input), Writer::new(a_output)));
//!     let server = Compat::new((Reader::new(b_input), Writer::new(b_output)));
//!
//!     sakia::spawn(async move {
//!         let service = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::from("hi"))));
//!         hyper::server::conn::http2::Builder::new(SakiaExecutor::new())
//!             .timer(SakiaTimer::new())
//!             .keep_alive_interval(Duration::from_secs(10))
//!             .serve_connection(server, service)
//!             .await
//!     })
//!     .detach();
//!
//!     let executor = SakiaExecutor::new();
//!     let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, client).await?;
//!     sakia::spawn(connection).detach();
//!     let request = Request::get("http://example/").body(String::new())?;
//!     assert!(sender.send_request(request).await?.status().is_success());
//!     Ok(())
//! })
//! # }
//! ```

use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::hyper::rt;
use send_wrapper::SendWrapper;

use super::Compat;
use super::parts::{Readable, Target, impl_write};
use crate::executor::spawn_at;
use crate::time;

impl<T: Readable> rt::Read for Compat<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().inner.poll_read(cx, &mut buf).map_ok(|_| ())
    }
}

impl Target for rt::ReadBufCursor<'_> {
    fn room(&self) -> usize {
        self.remaining()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.put_slice(bytes);
    }
}

impl_write!(rt::Write, poll_shutdown, is_write_vectored);

/// Starts hyper's tasks on the calling thread's runtime, as [`sakia::spawn`](crate::spawn) does.
///
/// Connections of HTTP/2 need one. It panics where it is used outside of a runtime.
///
/// # Examples
/// See [`hyper`](self#examples).
#[derive(Clone, Copy, Debug)]
pub struct SakiaExecutor {
    /// The place that made it, which is that of its tasks.
    made_at: &'static Location<'static>,
}

impl SakiaExecutor {
    /// Returns an executor. Its tasks are shown as spawned where it was made.
    #[track_caller]
    pub fn new() -> Self {
        Self { made_at: Location::caller() }
    }
}

impl Default for SakiaExecutor {
    #[track_caller]
    fn default() -> Self {
        Self::new()
    }
}

impl<F> rt::Executor<F> for SakiaExecutor
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        spawn_at(future, self.made_at).detach();
    }
}

/// Gives hyper timeouts by the clock of the calling thread's runtime, also if that is virtual.
///
/// Timeouts of connections need one. It panics when used outside of a runtime. Its timers belong to the
/// runtime thread on which they were made, though hyper requires `Send`: on another thread they panic when
/// polled or dropped. Connections on [`Compat`] stay on one thread anyway.
///
/// # Examples
/// See [`hyper`](self#examples).
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct SakiaTimer;

impl SakiaTimer {
    /// Returns a timer.
    pub fn new() -> Self {
        Self
    }
}

impl rt::Timer for SakiaTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        Box::pin(Sleep(SendWrapper::new(time::sleep(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn rt::Sleep>> {
        self.sleep(left(deadline))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(own) => own.get_mut().0.reset(time::now() + left(deadline)),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}

/// Returns the time until a moment on the system's clock. The runtime's clock may be another.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// See [`SakiaTimer`].
struct Sleep(SendWrapper<time::Sleep>);

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.get_mut().0).poll(cx)
    }
}

impl rt::Sleep for Sleep {}
