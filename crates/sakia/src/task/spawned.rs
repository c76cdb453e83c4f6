//! Children that are separate tasks, and end together.
//!
//! The end of a scope:
//! 1. Body and children run until all have ended, or one fails by an error or a panic.
//! 2. On a failure the body is dropped and all children are told to end. The scope still waits until their
//!    futures are gone; further errors meanwhile are dropped.
//! 3. If the scope's future is dropped in either state, all children are told to end, and the runtime
//!    keeps them until their futures are gone.
//!
//! Children may hold the scope, to start siblings. Once it fails or ends it takes no more: a child spawned
//! then is dropped at once.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::TURN;
use super::join_set::JoinSet;
use super::scope::{ScopedHandle, slot};
use crate::join::JoinError;

/// Runs `body`, which may start tasks, and ends when all of them have ended too.
///
/// The body runs within the calling task and may borrow; the children are tasks of the calling thread's
/// runtime. The first failure cancels all others, the body included.
///
/// # Cancel safety
/// Dropping this future cancels the children, too; the runtime keeps them until their futures are gone.
///
/// # Errors
/// The first failure: an error that the body or a child ended with, or a child's panic. A panic of the
/// body is a panic of the scope.
///
/// # Examples
/// ```
/// use std::{future::pending, io};
///
/// sakia::block_on(async {
///     let sum = sakia::spawned_scope(async |s| {
///         let (one, two) = (s.spawn(async { Ok(1) }), s.spawn(async { Ok(2) }));
///         io::Result::Ok(one.await + two.await)
///     });
///     assert_eq!(sum.await.unwrap(), 3);
///
///     let failing = sakia::spawned_scope(async |s| {
///         s.spawn(pending::<io::Result<()>>());
///         s.spawn(async { Err::<(), _>(io::ErrorKind::NotFound.into()) });
///         io::Result::Ok(())
///     });
///     let error = failing.await.unwrap_err().into_error().expect("nothing panicked");
///     assert_eq!(error.kind(), io::ErrorKind::NotFound);
/// });
/// ```
pub async fn spawned_scope<F, T, E>(body: F) -> Result<T, ScopeError<E>>
where
    F: AsyncFnOnce(&TaskScope<E>) -> Result<T, E>,
    E: 'static,
{
    let scope = TaskScope::new();
    let _ending = Ending(&scope);
    let mut body = pin!(Some(body(&scope)));
    let mut output = None;
    let mut failure = None;
    poll_fn(|cx| {
        scope.shared.borrow_mut().waker.clone_from(cx.waker());
        if let Some(running) = body.as_mut().as_pin_mut()
            && let Poll::Ready(result) = running.poll(cx)
        {
            body.set(None);
            match result {
                Ok(value) => output = Some(value),
                Err(error) => scope.fail(&mut failure, ScopeError::error(error)),
            }
        }
        for _ in 0..TURN {
            match scope.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) if output.is_none() && failure.is_none() => return Poll::Pending,
                Poll::Ready(None) => {
                    let value = || Ok(output.take().expect("the body ended well"));
                    return Poll::Ready(failure.take().map_or_else(value, Err));
                }
                Poll::Ready(Some(Ok(()))) => {}
                Poll::Ready(Some(Err(error))) => {
                    scope.fail(&mut failure, error);
                    body.set(None);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Starts the children of a [`spawned_scope`]. Clones are the same scope.
///
/// # Examples
/// See [`spawned_scope()`](spawned_scope()#examples).
pub struct TaskScope<E> {
    shared: Rc<RefCell<Shared<E>>>,
}

struct Shared<E> {
    children: JoinSet<Result<(), E>>,
    /// Set on a failure or at the end: children are dropped instead of started.
    is_closed: bool,
    /// The waker of the task that polls the scope.
    waker: Waker,
}

impl<E> Clone for TaskScope<E> {
    fn clone(&self) -> Self {
        Self { shared: Rc::clone(&self.shared) }
    }
}

impl<E: 'static> TaskScope<E> {
    fn new() -> Self {
        let shared =
            Shared { children: JoinSet::new(), is_closed: false, waker: Waker::noop().clone() };
        Self { shared: Rc::new(RefCell::new(shared)) }
    }

    /// Starts a task whose failure makes the scope fail. The handle awaits its value.
    ///
    /// Dropping the handle lets the child go on; the scope waits for it either way. If the scope has failed
    /// or ended already, `future` is dropped, and the handle pends for ever.
    ///
    /// # Panics
    /// Outside of a runtime.
    ///
    /// # Examples
    /// See [`spawned_scope()`](spawned_scope()#examples).
    #[track_caller]
    pub fn spawn<F, T>(&self, future: F) -> ScopedHandle<T>
    where
        F: Future<Output = Result<T, E>> + 'static,
        T: 'static,
    {
        let (slot, handle) = slot();
        let mut shared = self.shared.borrow_mut();
        if shared.is_closed {
            drop(shared);
            drop(future); // outside the borrow: it may hold the scope
            return handle;
        }
        shared.children.spawn(async move { future.await.map(|value| slot.fill(value)) });
        let waker = shared.waker.clone();
        drop(shared);
        waker.wake(); // outside the borrow: a waker may run any code
        handle
    }

    /// Returns the number of children that have not ended.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let scope = sakia::spawned_scope(async |s| {
    ///     let child = s.spawn(async { std::io::Result::Ok(7) });
    ///     assert_eq!(s.live_children(), 1);
    ///     assert_eq!(child.await, 7);
    ///     Ok(())
    /// });
    /// assert!(scope.await.is_ok());
    /// # });
    /// ```
    pub fn live_children(&self) -> usize {
        self.shared.borrow().children.len()
    }

    /// Waits for the end of the next child.
    fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<(), ScopeError<E>>>> {
        let mut shared = self.shared.borrow_mut();
        shared.children.poll_join_next(cx).map(|outcome| {
            Some(match outcome? {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(ScopeError::error(error)),
                Err(error) => Err(ScopeError { error: Err(error) }),
            })
        })
    }

    /// Tells all children to end on the first failure; drops later failures, which that may cause.
    fn fail(&self, failure: &mut Option<ScopeError<E>>, error: ScopeError<E>) {
        if failure.is_none() {
            *failure = Some(error);
            let mut shared = self.shared.borrow_mut();
            shared.is_closed = true;
            shared.children.abort_all();
        }
    }
}

impl<E> fmt::Debug for TaskScope<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.shared.borrow();
        f.debug_struct("TaskScope").field("children", &shared.children.len()).finish()
    }
}

/// Tells the children to end when the scope's future ends or is dropped.
struct Ending<'a, E: 'static>(&'a TaskScope<E>);

impl<E: 'static> Drop for Ending<'_, E> {
    fn drop(&mut self) {
        let mut shared = self.0.shared.borrow_mut();
        shared.is_closed = true;
        let children = std::mem::take(&mut shared.children);
        drop(shared);
        drop(children); // outside the borrow: an outcome that was not taken may hold the scope
    }
}

/// The reason why a [`spawned_scope`] failed: the first error or panic in it.
///
/// # Examples
/// See [`spawned_scope()`](spawned_scope()#examples).
pub struct ScopeError<E> {
    /// `Err` is a panic, or a cancellation when the runtime ended.
    error: Result<E, JoinError>,
}

impl<E> ScopeError<E> {
    fn error(error: E) -> Self {
        Self { error: Ok(error) }
    }

    /// Returns whether a child panicked.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// let failing = sakia::spawned_scope(async |s| {
    ///     s.spawn(async { Vec::<Result<(), String>>::new().remove(0) });
    ///     Ok(())
    /// });
    /// let error = failing.await.unwrap_err();
    /// assert!(error.is_panic());
    /// assert!(error.into_error().unwrap_err().is_panic());
    /// # });
    /// ```
    pub fn is_panic(&self) -> bool {
        self.error.as_ref().is_err_and(JoinError::is_panic)
    }

    /// Returns the error that the body or a child ended with.
    ///
    /// # Errors
    /// A child panicked.
    ///
    /// # Examples
    /// See [`spawned_scope()`](spawned_scope()#examples).
    pub fn into_error(self) -> Result<E, JoinError> {
        self.error
    }
}

impl<E: fmt::Debug> fmt::Debug for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Ok(error) => f.debug_tuple("ScopeError").field(error).finish(),
            Err(error) => f.debug_tuple("ScopeError").field(error).finish(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for ScopeError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            Ok(error) => error.fmt(f),
            Err(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for ScopeError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.error {
            Ok(error) => error.source(),
            Err(error) => error.source(),
        }
    }
}
