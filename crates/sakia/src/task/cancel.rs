//! Cancellation tokens.
//!
//! A token is canceled once and stays so. Tokens form a tree: canceling one cancels those below it. Any
//! thread may use them. Parents have weak references to their children, children have strong ones to their
//! parents, so that a token without users leaves the tree.
//!
//! The flag changes under the lock of the token's list of children: a new child is either on the list that
//! the cancellation walks, or sees the flag and is canceled from the beginning.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use event_listener::Event;
use slab::Slab;

use super::wait_until;
use crate::fairness::counted;

/// Cancels any number of tasks, on any threads. Clones are the same token.
///
/// # Examples
/// ```
/// use sakia::{CancellationToken, block_on, spawn};
///
/// block_on(async {
///     let token = CancellationToken::new();
///     let child = token.child();
///     let task = spawn(async move {
///         child.canceled().await;
///         "ended in good order"
///     });
///     token.cancel();
///     assert_eq!(task.await.unwrap(), "ended in good order");
/// });
/// ```
#[derive(Clone, Default)]
pub struct CancellationToken {
    node: Arc<Node>,
}

/// A token's node in the tree.
#[derive(Default)]
struct Node {
    /// Set once, under the lock of `children`.
    is_canceled: AtomicBool,
    /// Notified after `is_canceled` is set.
    event: Event,
    /// Tokens below this one that are in use; empty for good once canceled.
    children: Mutex<Slab<Weak<Node>>>,
    /// The token above, and this one's key in its list.
    parent: Option<(Arc<Node>, usize)>,
}

impl Node {
    fn new(is_canceled: bool, parent: Option<(Arc<Self>, usize)>) -> Self {
        let (is_canceled, children) = (AtomicBool::new(is_canceled), Mutex::new(Slab::new()));
        Self { is_canceled, event: Event::new(), children, parent }
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Weak<Node>>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cancels this token alone, and returns those below it for the caller to cancel.
    fn cancel(&self) -> Slab<Weak<Node>> {
        let children = {
            let mut children = self.lock();
            // Pairs with the loads in `is_canceled`.
            self.is_canceled.store(true, Ordering::Release);
            std::mem::take(&mut *children)
        };
        self.event.notify(usize::MAX);
        children
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // A loop, since recursion over a long chain of tokens could overflow the stack.
        let mut above = self.parent.take();
        while let Some((parent, key)) = above {
            parent.lock().try_remove(key);
            above = Arc::into_inner(parent).and_then(|mut parent| parent.parent.take());
        }
    }
}

impl CancellationToken {
    /// Returns a token without a parent.
    ///
    /// # Examples
    /// See [`CancellationToken`](CancellationToken#examples).
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that is canceled with this one, and can also be canceled by itself.
    ///
    /// # Examples
    /// ```
    /// let token = sakia::CancellationToken::new();
    /// let (one, other) = (token.child(), token.child());
    /// one.cancel();
    /// assert!(one.is_canceled() && !other.is_canceled() && !token.is_canceled());
    /// token.cancel();
    /// assert!(other.is_canceled() && token.child().is_canceled());
    /// ```
    #[must_use]
    pub fn child(&self) -> Self {
        let mut children = self.node.lock();
        if self.is_canceled() {
            return Self { node: Arc::new(Node::new(true, None)) };
        }
        let entry = children.vacant_entry();
        let parent = Some((Arc::clone(&self.node), entry.key()));
        let node = Arc::new(Node::new(false, parent));
        entry.insert(Arc::downgrade(&node));
        Self { node }
    }

    /// Cancels this token and all below it, and wakes the tasks that wait for their cancellation.
    ///
    /// # Examples
    /// See [`CancellationToken`](CancellationToken#examples).
    pub fn cancel(&self) {
        let mut lists = vec![self.node.cancel()];
        while let Some(children) = lists.pop() {
            let live = children.into_iter().filter_map(|(_, child)| child.upgrade());
            lists.extend(live.map(|child| child.cancel()));
        }
    }

    /// Returns whether the token was canceled.
    ///
    /// # Examples
    /// See [`CancellationToken::child`].
    #[inline]
    pub fn is_canceled(&self) -> bool {
        self.node.is_canceled.load(Ordering::Acquire)
    }

    /// Waits until the token is canceled.
    ///
    /// # Cancel safety
    /// Dropping the future ends the wait.
    ///
    /// # Examples
    /// See [`CancellationToken`](CancellationToken#examples).
    pub async fn canceled(&self) {
        wait_until(&self.node.event, || self.is_canceled()).await;
    }

    /// Runs `future` until it ends or the token is canceled; then the future is dropped and the result is
    /// `None`. A future that is ready when the token is canceled still gives its value; with a token canceled
    /// before, the future is not polled.
    ///
    /// # Cancel safety
    /// Dropping the future drops the inner one.
    ///
    /// # Examples
    /// ```
    /// use std::future::pending;
    ///
    /// sakia::block_on(async {
    ///     let token = sakia::CancellationToken::new();
    ///     assert_eq!(token.run_until_canceled(async { 1 }).await, Some(1));
    ///     let guard = token.clone().drop_guard();
    ///     sakia::spawn(async move { drop(guard) }).detach();
    ///     assert_eq!(token.run_until_canceled(pending::<u8>()).await, None);
    /// });
    /// ```
    pub async fn run_until_canceled<F: Future>(&self, future: F) -> Option<F::Output> {
        if self.is_canceled() {
            counted().await;
            return None;
        }
        let mut future = pin!(future);
        let mut canceled = pin!(self.canceled());
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => canceled.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Cancels the token when the guard is dropped, by a panic too.
    ///
    /// # Examples
    /// ```
    /// use sakia::CancellationToken;
    ///
    /// let token = CancellationToken::new();
    /// let guard = token.clone().drop_guard();
    /// assert!(!token.is_canceled());
    /// drop(guard);
    /// assert!(token.is_canceled());
    /// ```
    #[must_use = "dropping the guard cancels the token"]
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { token: Some(self) }
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_canceled = self.is_canceled();
        f.debug_struct("CancellationToken").field("is_canceled", &is_canceled).finish()
    }
}

/// Cancels a token when dropped. From [`CancellationToken::drop_guard`].
///
/// # Examples
/// See [`CancellationToken::drop_guard`].
#[derive(Debug)]
pub struct DropGuard {
    /// `None` once disarmed.
    token: Option<CancellationToken>,
}

impl DropGuard {
    /// Gives the token back without canceling it.
    ///
    /// # Examples
    /// ```
    /// let guard = sakia::CancellationToken::new().drop_guard();
    /// let token = guard.disarm();
    /// assert!(!token.is_canceled());
    /// ```
    pub fn disarm(mut self) -> CancellationToken {
        self.token.take().expect("taken by this call only, which consumes the guard")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(token) = &self.token {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_tokens_leave_the_tree() {
        let token = CancellationToken::new();
        let children: Vec<_> = (0..10).map(|_| token.child()).collect();
        let grandchild = children[3].child();
        drop(children);
        assert_eq!(token.node.lock().len(), 1, "the one that its child keeps");
        drop(grandchild);
        assert!(token.node.lock().is_empty());
    }
}
