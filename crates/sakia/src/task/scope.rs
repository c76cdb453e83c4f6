//! Children within their parent's future.
//!
//! A scope polls its body and its children itself: they are one task. So children may borrow values that
//! outlive the scope, dropping the scope drops them at once, and no unsafe code is needed: forgetting a
//! scope's future only leaks it. The kernel never accesses the children's memory, only buffers that the
//! driver owns.
//!
//! Spawned children wait in a queue until the scope's future takes them into its set. They may hold the scope
//! themselves, to spawn siblings. While they are queued this makes a reference cycle, which is broken when
//! the scope's future is dropped.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::TURN;
use crate::fairness;
use crate::round::{self, Siblings};

type Child<'env> = Pin<Box<dyn Future<Output = ()> + 'env>>;

/// Runs `body`, which may start children, and ends when all of them have ended too.
///
/// Children run within the calling task, side by side but never in parallel, and may borrow values that
/// outlive the scope. A panic of a child is a panic of the scope.
///
/// # Cancel safety
/// Dropping this future drops the body and the children, wherever they are.
///
/// # Examples
/// ```
/// use std::cell::Cell;
///
/// sakia::block_on(async {
///     let words = ["in", "the", "task"].map(String::from);
///     let letters = Cell::new(0);
///     let longest = sakia::scope(async |s| {
///         for word in &words {
///             s.spawn(async { letters.set(letters.get() + word.len()) });
///         }
///         let longest = s.spawn(async { words.iter().map(String::len).max() });
///         longest.await
///     })
///     .await;
///     assert_eq!((letters.get(), longest), (9, Some(4)));
/// });
/// ```
///
/// A child may hold the scope, to start siblings:
/// ```
/// sakia::block_on(sakia::scope(async |s| {
///     let siblings = s.clone();
///     let outer = s.spawn(async move {
///         let inner = siblings.spawn(async { 1 });
///         inner.await + 1
///     });
///     assert_eq!(outer.await, 2);
/// }));
/// ```
pub async fn scope<'env, F, T>(body: F) -> T
where
    F: AsyncFnOnce(&Scope<'env>) -> T,
{
    let scope = Scope { shared: Rc::new(RefCell::new(Shared::default())) };
    let _ending = Ending(&scope);
    let mut children = FuturesUnordered::new();
    // Declared last, so that it is dropped first, as the future that spawned the others.
    let mut body = pin!(Some(body(&scope)));
    let mut output = None;
    poll_fn(|cx| {
        scope.shared.borrow_mut().waker.clone_from(cx.waker());
        if let Some(running) = body.as_mut().as_pin_mut()
            && let Poll::Ready(value) = running.poll(cx)
        {
            body.set(None);
            output = Some(value);
        }
        if scope.poll_children(&mut children, cx).is_pending() || output.is_none() {
            return Poll::Pending;
        }
        Poll::Ready(output.take().expect("the body has ended"))
    })
    .await
}

/// Starts children of a [`scope`]. Clones are the same scope.
///
/// # Examples
/// See [`scope()`](scope()#examples).
#[derive(Clone)]
pub struct Scope<'env> {
    shared: Rc<RefCell<Shared<'env>>>,
}

struct Shared<'env> {
    /// Children that were not polled yet.
    queue: Vec<Child<'env>>,
    /// Set when the scope has ended: it takes no more children.
    has_ended: bool,
    /// The waker of the task that polls the scope.
    waker: Waker,
    siblings: Rc<Siblings>,
}

impl Default for Shared<'_> {
    fn default() -> Self {
        let waker = Waker::noop().clone();
        Self { queue: Vec::new(), has_ended: false, waker, siblings: Rc::default() }
    }
}

impl<'env> Scope<'env> {
    /// Starts a child. It is first polled when the caller next waits.
    ///
    /// Dropping the handle lets the child go on; the scope waits for it either way.
    ///
    /// # Panics
    /// When the scope has ended: a clone of it was kept for longer.
    ///
    /// # Examples
    /// See [`scope()`](scope()#examples).
    pub fn spawn<F>(&self, future: F) -> ScopedHandle<F::Output>
    where
        F: Future + 'env,
        F::Output: 'env,
    {
        let (slot, handle) = slot();
        let has_ended = self.shared.borrow().has_ended;
        assert!(!has_ended, "a child of a scope that has ended");
        let mut shared = self.shared.borrow_mut();
        let child = round::Child::new(future, &shared.siblings);
        let child = Box::pin(async move { slot.fill(child.await) });
        shared.queue.push(child);
        let waker = shared.waker.clone();
        drop(shared);
        waker.wake(); // outside the borrow: a waker may run any code
        handle
    }

    /// Polls the children. Ready when there are none.
    fn poll_children(
        &self,
        children: &mut FuturesUnordered<Child<'env>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let siblings = Rc::clone(&self.shared.borrow().siblings);
        siblings.begin();
        for count in 0..TURN {
            if count > 0 && round::is_over() {
                break;
            }
            children.extend(std::mem::take(&mut self.shared.borrow_mut().queue));
            let ended = children.poll_next_unpin(cx);
            let has_new = !self.shared.borrow().queue.is_empty();
            match ended {
                Poll::Pending if siblings.have_let_go() => break,
                Poll::Pending if !has_new => return Poll::Pending,
                Poll::Ready(None) if !has_new => return Poll::Ready(()),
                _ => {}
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("queued", &self.shared.borrow().queue.len()).finish()
    }
}

/// Drops children still queued when the scope's future ends or is dropped.
struct Ending<'a, 'env>(&'a Scope<'env>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        let mut shared = self.0.shared.borrow_mut();
        shared.has_ended = true;
        let queue = std::mem::take(&mut shared.queue);
        drop(shared);
        drop(queue); // outside the borrow: children may hold the scope
    }
}

/// Awaits the value of a child of a [`scope`] or [`spawned_scope`](crate::spawned_scope). Dropping it
/// lets the child go on.
///
/// It pends for ever if the child was dropped before it had a value. That happens only with the child's
/// scope: so only to handles kept for longer than the scope, and to siblings that are about to be dropped.
///
/// # Examples
/// See [`scope()`](scope()#examples).
pub struct ScopedHandle<T> {
    cell: Rc<RefCell<Cell<T>>>,
}

impl<T> ScopedHandle<T> {
    /// Returns whether the child has left its value.
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// sakia::scope(async |s| {
    ///     let child = s.spawn(async { 7 });
    ///     assert!(!child.is_finished());
    ///     sakia::yield_now().await;
    ///     assert!(child.is_finished());
    ///     assert_eq!(child.await, 7);
    /// })
    /// .await;
    /// # });
    /// ```
    pub fn is_finished(&self) -> bool {
        self.cell.borrow().value.is_some()
    }
}

impl<T> Future for ScopedHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if fairness::lets_others_run(cx) {
            return Poll::Pending;
        }
        let mut cell = self.cell.borrow_mut();
        if let Some(value) = cell.value.take() {
            fairness::count();
            return Poll::Ready(value);
        }
        cell.waker.clone_from(cx.waker());
        Poll::Pending
    }
}

impl<T> fmt::Debug for ScopedHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedHandle").field("is_finished", &self.is_finished()).finish()
    }
}

/// The shared place for a child's value.
struct Cell<T> {
    value: Option<T>,
    /// The waker of the task that awaits the handle.
    waker: Waker,
}

/// The child's end of a handle.
pub(super) struct Slot<T> {
    cell: Rc<RefCell<Cell<T>>>,
}

impl<T> Slot<T> {
    /// Stores the value for the handle.
    pub(super) fn fill(self, value: T) {
        let mut cell = self.cell.borrow_mut();
        cell.value = Some(value);
        let waker = std::mem::replace(&mut cell.waker, Waker::noop().clone());
        drop(cell);
        waker.wake(); // outside the borrow: a waker may run any code
    }
}

/// Returns the child's and the parent's end of a shared place for the value.
pub(super) fn slot<T>() -> (Slot<T>, ScopedHandle<T>) {
    let cell = Rc::new(RefCell::new(Cell { value: None, waker: Waker::noop().clone() }));
    (Slot { cell: Rc::clone(&cell) }, ScopedHandle { cell })
}
