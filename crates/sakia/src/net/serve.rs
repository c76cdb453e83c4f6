//! A task for each connection, with bounds and an orderly end.
//!
//! 1. While it serves, it accepts as long as there is room, and starts a task for each connection. Temporary
//!    errors of accepting are reported; it tries again when a connection has ended, or after a while.
//! 2. When it is to stop, it accepts no more and drops the listener. Tasks go on.
//! 3. At the deadline, tasks that still run are canceled. It ends with the last one.
//!
//! Dropping it in any state cancels all tasks.

use std::error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::panic::Location;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;

use super::listener::private::Accepts;
use super::{Error, Listener, Result, Stream};
use crate::join::{Contain, JoinError, Outcome};
use crate::task::{Acquire, Budget, JoinSet, Permit, Resource};
use crate::time::{Sleep, sleep};

/// The pause before a failed accept is tried again: the shortest and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Options of [`serve`]. `E` is the error of handlers, and `A` the address of a peer.
///
/// # Examples
/// See [`serve()`](serve()#examples).
pub struct ServeOptions<E, A = SocketAddr> {
    connections_max: usize,
    is_excess_refused: bool,
    budget: Option<Budget>,
    /// Resolves when it is to stop.
    stop: Option<Pin<Box<dyn Future<Output = ()>>>>,
    deadline: Option<Duration>,
    on_error: Option<OnError<E, A>>,
}

type OnError<E, A> = Box<dyn FnMut(ServeError<E, A>)>;

impl<E, A> Default for ServeOptions<E, A> {
    fn default() -> Self {
        Self {
            connections_max: usize::MAX,
            is_excess_refused: false,
            budget: None,
            stop: None,
            deadline: None,
            on_error: None,
        }
    }
}

impl<E, A> ServeOptions<E, A> {
    /// Returns options for any number of connections, without a stop.
    ///
    /// # Examples
    /// See [`serve()`](serve()#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the most connections that are served at a time, at least one. While there are as many, further
    /// ones wait, up to the listener's [backlog](super::ListenOptions::backlog), without a descriptor.
    ///
    /// # Examples
    /// See [`serve()`](serve()#examples).
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// Sets whether connections beyond the [maximum](ServeOptions::max_connections) are accepted and closed
    /// at once, instead of waiting. Without this call they wait.
    ///
    /// # Examples
    /// ```
    /// use std::io;
    ///
    /// use sakia::net::{ServeOptions, TcpListener, TcpStream, serve};
    ///
    /// # sakia::block_on(async {
    /// let listener = TcpListener::bind("127.0.0.1:0").await?;
    /// let address = listener.local_addr()?;
    /// let options = ServeOptions::new().max_connections(1).refuse_excess(true);
    /// let server = sakia::spawn(serve(listener, options, async |mut stream: TcpStream, _| {
    ///     stream.recv().await?;
    ///     io::Result::Ok(())
    /// }));
    /// let _first = TcpStream::connect(address).await?;
    /// let mut second = TcpStream::connect(address).await?;
    /// assert!(second.recv().await.map_or(true, |bytes| bytes.is_empty()), "it was closed");
    /// # drop(server.cancel().await);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn refuse_excess(mut self, refuse: bool) -> Self {
        self.is_excess_refused = refuse;
        self
    }

    /// Sets a budget of which each connection holds a descriptor. Connections wait to be accepted while it
    /// has none left. With it several servers, on any threads, share the resources of the process.
    ///
    /// # Examples
    /// ```
    /// use std::io;
    ///
    /// use sakia::net::ServeOptions;
    /// use sakia::{Budget, Limits, Resource};
    ///
    /// // Two servers, which together hold 1000 connections at most.
    /// let budget = Budget::new(Limits::new().descriptors(1000));
    /// let one = ServeOptions::<io::Error>::new().budget(budget.clone());
    /// let other = ServeOptions::<io::Error>::new().budget(budget.clone());
    /// assert_eq!(budget.available(Resource::Descriptors), 1000);
    /// # drop((one, other));
    /// ```
    #[must_use]
    pub fn budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Sets a future: serving stops when it is ready. Without this call it does not stop by itself.
    ///
    /// # Examples
    /// See [`serve()`](serve()#examples).
    #[must_use]
    pub fn stop(mut self, stop: impl Future<Output = ()> + 'static) -> Self {
        self.stop = Some(Box::pin(stop));
        self
    }

    /// Sets how long connections may go on after the stop; then they are canceled. Without this call there is
    /// no limit.
    ///
    /// # Examples
    /// See [`serve()`](serve()#examples).
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets a function that is called with each failure: a handler's error or panic, or a failed accept.
    /// Without this call failures are only counted. A panic of `on_error` is a panic of [`serve`].
    ///
    /// # Examples
    /// See [`serve()`](serve()#examples).
    #[must_use]
    pub fn on_error(mut self, on_error: impl FnMut(ServeError<E, A>) + 'static) -> Self {
        self.on_error = Some(Box::new(on_error));
        self
    }
}

impl<E, A> fmt::Debug for ServeOptions<E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections_max, is_excess_refused, budget, deadline, .. } = self;
        f.debug_struct("ServeOptions")
            .field("connections_max", connections_max)
            .field("is_excess_refused", is_excess_refused)
            .field("budget", budget)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

/// The counts of [`serve`]'s work.
///
/// # Examples
/// See [`serve()`](serve()#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Connections for which a handler was started: the sum of the next four.
    pub accepted: u64,
    /// Handlers that returned without an error.
    pub completed: u64,
    /// Handlers that ended with an error.
    pub failed: u64,
    /// Handlers that panicked.
    pub panicked: u64,
    /// Handlers that were canceled at the deadline.
    pub canceled: u64,
    /// Connections that were closed at once, since there were too many.
    pub refused: u64,
    /// Accepts that failed, and were tried again later.
    pub accept_errors: u64,
}

/// An error of serving.
///
/// # Examples
/// ```
/// use sakia::net::{ServeError, ServeOptions, TcpListener, TcpStream, serve};
///
/// # sakia::block_on(async {
/// let listener = TcpListener::bind("127.0.0.1:0").await?;
/// let client = TcpStream::connect(listener.local_addr()?).await?;
/// let (sender, failures) = async_channel::unbounded();
/// let options = ServeOptions::new().on_error(move |error| drop(sender.try_send(error)));
/// let server = serve(listener, options, async |_: TcpStream, _| Err::<(), _>("not today"));
/// let server = sakia::spawn(server);
/// match failures.recv().await {
///     Ok(ServeError::Failed { error, peer, .. }) => {
///         assert_eq!((error, peer), ("not today", client.local_addr()?));
///     }
///     other => panic!("{other:?}"),
/// }
/// # drop(server.cancel().await);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError<E, A = SocketAddr> {
    /// An accept failed. It will be tried again.
    Accept(Error),
    /// A handler ended with an error.
    Failed {
        /// The peer of the connection.
        peer: A,
        /// The handler's error.
        error: E,
    },
    /// A handler panicked. Other connections go on.
    Panicked {
        /// The peer of the connection.
        peer: A,
        /// The panic.
        error: JoinError,
    },
}

impl<E, A: Clone> ServeError<E, A> {
    /// Returns the peer of the connection. `None` when there was none yet.
    pub fn peer(&self) -> Option<A> {
        match self {
            Self::Accept(_) => None,
            Self::Failed { peer, .. } | Self::Panicked { peer, .. } => Some(peer.clone()),
        }
    }
}

impl<E: fmt::Display, A: fmt::Debug> fmt::Display for ServeError<E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept(error) => error.fmt(f),
            Self::Failed { peer, error } => write!(f, "connection from {peer:?}: {error}"),
            Self::Panicked { peer, error } => write!(f, "connection from {peer:?}: {error}"),
        }
    }
}

impl<E: error::Error, A: fmt::Debug> error::Error for ServeError<E, A> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Accept(error) => error.source(),
            Self::Failed { error, .. } => error.source(),
            Self::Panicked { error, .. } => error.source(),
        }
    }
}

/// The error of [`serve`]: the listener cannot accept any more.
///
/// # Examples
/// `?` makes one of errors before the call, so that `serve` may be the last expression of a block:
/// ```
/// use std::io;
///
/// use sakia::net::{ServeOptions, TcpListener, TcpStream, serve};
///
/// # sakia::block_on(async {
/// let server = async {
///     let listener = TcpListener::bind("127.0.0.1:65536").await?;
///     println!("listening on {}", listener.local_addr()?);
///     serve(listener, ServeOptions::new(), async |_: TcpStream, _| io::Result::Ok(())).await
/// };
/// assert_eq!(server.await.unwrap_err().error.name(), Some("127.0.0.1:65536"));
/// # });
/// ```
#[derive(Debug)]
pub struct ServeFailed {
    /// The cause.
    pub error: Error,
    /// The counts of the work done until then.
    pub served: Served,
}

impl fmt::Display for ServeFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl error::Error for ServeFailed {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.error.source()
    }
}

impl From<ServeFailed> for io::Error {
    fn from(failed: ServeFailed) -> Self {
        failed.error.into()
    }
}

impl From<ServeFailed> for Error {
    fn from(failed: ServeFailed) -> Self {
        failed.error
    }
}

impl From<Error> for ServeFailed {
    /// Converts a failure before the first accept, of [`TcpListener::bind`](super::TcpListener::bind) for one.
    fn from(error: Error) -> Self {
        Self { error, served: Served::default() }
    }
}

impl From<io::Error> for ServeFailed {
    /// Converts a failure before the first accept. The operation is `serve` if the error names none.
    fn from(error: io::Error) -> Self {
        Error::of_io(error, "serve").into()
    }
}

/// Accepts connections, and runs `handler` for each, as a task of the calling thread's runtime.
///
/// Resolves when it was [stopped](ServeOptions::stop) and the last handler has ended. A listener that is
/// given by value is closed at the stop, so that later connections are refused; a borrowed one stays open,
/// and later connections wait.
///
/// If accepting fails since the process or the system has no descriptor or memory left, that is
/// [reported](ServeOptions::on_error), and tried again when a connection ends, and after 10 ms at first, up
/// to 100 ms while it goes on failing. A handler that fails or panics ends its own connection only.
///
/// # Cancel safety
/// Dropping the future cancels the handlers, and drops the listener if it was given by value. To let handlers
/// finish, use [`stop`](ServeOptions::stop).
///
/// # Errors
/// The listener cannot accept any more: it does not listen (`EINVAL`), or the runtime has ended
/// (`ECANCELED`). By then the handlers have ended, or were canceled at the
/// [deadline](ServeOptions::deadline).
///
/// # Panics
/// Outside of a runtime.
///
/// # Examples
/// ```
/// use std::time::Duration;
///
/// use sakia::CancellationToken;
/// use sakia::io::BufResultExt;
/// use sakia::net::{ServeOptions, TcpListener, TcpStream, serve};
///
/// # fn main() -> std::io::Result<()> {
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let address = listener.local_addr()?;
///     let token = CancellationToken::new();
///     let stopped = token.clone();
///     let options = ServeOptions::new()
///         .max_connections(1000)
///         .stop(async move { stopped.canceled().await })
///         .deadline(Duration::from_secs(10))
///         .on_error(|error| eprintln!("{error}"));
///     let server = sakia::spawn(serve(listener, options, async |mut stream: TcpStream, _| {
///         loop {
///             let bytes = stream.recv().await?;
///             if bytes.is_empty() {
///                 return std::io::Result::Ok(());
///             }
///             stream.write_all(bytes).await.value()?;
///         }
///     }));
///
///     let mut client = TcpStream::connect(address).await?;
///     client.write_all("hello").await.value()?;
///     assert_eq!(&*client.recv().await?, b"hello");
///     drop(client);
///     token.cancel();
///     let served = server.await.expect("no callback panics")?;
///     assert_eq!((served.accepted, served.completed), (1, 1));
///     Ok(())
/// })
/// # }
/// ```
#[track_caller]
pub fn serve<L, H, F, E>(
    listener: L,
    options: ServeOptions<E, AddressOf<L>>,
    handler: H,
) -> impl Future<Output = Result<Served, ServeFailed>>
where
    L: Listener,
    H: Fn(L::Stream, AddressOf<L>) -> F + 'static,
    F: Future<Output = Result<(), E>> + 'static,
    E: 'static,
{
    let (tasks, served, called_at) = (JoinSet::new(), Served::default(), Location::caller());
    let mut server = Server { options, tasks, served, called_at };
    async move {
        let accepted = server.accept(&listener, &Rc::new(handler)).await;
        drop(listener);
        server.drain().await;
        let served = server.served;
        accepted.map(|()| served).map_err(|error| ServeFailed { error, served })
    }
}

/// The address of the peer of a listener's connections.
type AddressOf<L> = <<L as Accepts>::Stream as Stream>::Address;

/// A connection, and the address of its peer.
type Accepted<S> = (S, <S as Stream>::Address);

/// The outcome of a handler, with the address of its peer.
type End<E, A> = (A, Outcome<Result<(), E>>);

struct Server<E, S: Stream> {
    options: ServeOptions<E, S::Address>,
    tasks: JoinSet<End<E, S::Address>>,
    served: Served,
    /// The place that called [`serve`], which is that of its tasks.
    called_at: &'static Location<'static>,
}

/// An event while accepting.
enum Event<E, S: Stream> {
    Stopped,
    Ended(Result<End<E, S::Address>, JoinError>),
    /// The pause after a failure is over.
    Resumed,
    /// The budget granted a descriptor.
    Granted(Permit),
    Accepted(Result<Accepted<S>>),
}

/// The conditions to wait for before the next accept.
struct Waits {
    /// After a failure: the time to try again.
    pause: Option<Sleep>,
    acquire: Option<Acquire>,
}

impl<E: 'static, S: Stream> Server<E, S> {
    /// Accepts until the stop.
    ///
    /// # Errors
    /// The listener cannot accept any more.
    async fn accept<H, F>(
        &mut self,
        listener: &impl Listener<Stream = S>,
        handler: &Rc<H>,
    ) -> Result<()>
    where
        H: Fn(S, S::Address) -> F + 'static,
        F: Future<Output = Result<(), E>> + 'static,
    {
        let mut accept = pin!(None);
        let mut waits = Waits { pause: None, acquire: None };
        let mut permit = None;
        let mut next_pause = PAUSE_MIN;
        let Self { options: ServeOptions { connections_max, budget, .. }, .. } = self;
        let is_bounded = *connections_max < usize::MAX || budget.is_some();
        // A connection accepted ahead could be one beyond the bound.
        let ahead = !is_bounded || self.options.is_excess_refused;
        loop {
            let is_full = self.tasks.len() >= self.options.connections_max;
            let has_room = !is_full || self.options.is_excess_refused;
            if has_room && waits.pause.is_none() && accept.is_none() {
                match &self.options.budget {
                    Some(budget) if permit.is_none() => {
                        let acquire = || budget.acquire(Resource::Descriptors, 1);
                        waits.acquire.get_or_insert_with(acquire);
                    }
                    _ => accept.set(Some(listener.socket().accept(ahead))),
                }
            }
            match poll_fn(|cx| self.poll_event(cx, &mut waits, accept.as_mut())).await {
                Event::Stopped => return Ok(()),
                Event::Ended(end) => {
                    self.note(end);
                    waits.pause = None; // the ended connection may have held the missing resource
                }
                Event::Resumed => waits.pause = None,
                Event::Granted(granted) => (waits.acquire, permit) = (None, Some(granted)),
                Event::Accepted(result) => {
                    accept.set(None);
                    match result {
                        Ok((stream, _)) if is_full => {
                            self.served.refused += 1;
                            drop(stream);
                        }
                        Ok((stream, peer)) => {
                            next_pause = PAUSE_MIN;
                            self.start(handler, stream, peer, permit.take());
                        }
                        Err(error) if is_final(&error) => return Err(error),
                        Err(error) => {
                            self.served.accept_errors += 1;
                            self.report(ServeError::Accept(error));
                            waits.pause = Some(sleep(next_pause));
                            next_pause = (next_pause * 2).min(PAUSE_MAX);
                        }
                    }
                }
            }
        }
    }

    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
        waits: &mut Waits,
        accept: Pin<&mut Option<impl Future<Output = Result<Accepted<S>>>>>,
    ) -> Poll<Event<E, S>> {
        if let Some(stop) = &mut self.options.stop
            && stop.as_mut().poll(cx).is_ready()
        {
            self.options.stop = None;
            return Poll::Ready(Event::Stopped);
        }
        if let Poll::Ready(Some(end)) = self.tasks.poll_join_next(cx) {
            return Poll::Ready(Event::Ended(end));
        }
        if let Some(pause) = &mut waits.pause
            && Pin::new(pause).poll(cx).is_ready()
        {
            return Poll::Ready(Event::Resumed);
        }
        if let Some(acquire) = &mut waits.acquire
            && let Poll::Ready(permit) = Pin::new(acquire).poll(cx)
        {
            return Poll::Ready(Event::Granted(permit));
        }
        match accept.as_pin_mut() {
            Some(accept) => accept.poll(cx).map(Event::Accepted),
            None => Poll::Pending,
        }
    }

    fn start<H, F>(&mut self, handler: &Rc<H>, stream: S, peer: S::Address, permit: Option<Permit>)
    where
        H: Fn(S, S::Address) -> F + 'static,
        F: Future<Output = Result<(), E>> + 'static,
    {
        self.served.accepted += 1;
        let handler = Rc::clone(handler);
        let of = peer.clone();
        let task = Contain::new(async move { handler(stream, of).await });
        let task = async move {
            let outcome = task.await;
            drop(permit);
            (peer, outcome)
        };
        self.tasks.spawn_at(task, self.called_at);
    }

    /// Waits for the handlers to end, at most until the deadline.
    async fn drain(&mut self) {
        let mut deadline = self.options.deadline.map(sleep);
        loop {
            let next = poll_fn(|cx| {
                if let Poll::Ready(end) = self.tasks.poll_join_next(cx) {
                    return Poll::Ready(Some(end));
                }
                match &mut deadline {
                    Some(deadline) => Pin::new(deadline).poll(cx).map(|()| None),
                    None => Poll::Pending,
                }
            });
            match next.await {
                Some(Some(end)) => self.note(end),
                Some(None) => return,
                None => {
                    deadline = None;
                    self.tasks.abort_all();
                }
            }
        }
    }

    /// Counts a handler's end, and reports a failure.
    fn note(&mut self, end: Result<End<E, S::Address>, JoinError>) {
        let failure = match end {
            Ok((_, Ok(Ok(())))) => {
                self.served.completed += 1;
                return;
            }
            Ok((peer, Ok(Err(error)))) => {
                self.served.failed += 1;
                ServeError::Failed { peer, error }
            }
            Ok((peer, Err(payload))) => {
                self.served.panicked += 1;
                ServeError::Panicked { peer, error: JoinError::panicked(payload) }
            }
            // Panics of the handler itself are contained; this is another one.
            Err(_) => {
                self.served.canceled += 1;
                return;
            }
        };
        self.report(failure);
    }

    fn report(&mut self, error: ServeError<E, S::Address>) {
        if let Some(on_error) = &mut self.options.on_error {
            on_error(error);
        }
    }
}

/// Returns whether a listener will keep failing with this error.
fn is_final(error: &Error) -> bool {
    matches!(
        error.raw_os_error().map(Errno::from_raw_os_error),
        None | Some(
            Errno::BADF | Errno::CANCELED | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP
        )
    )
}
