//! Task-local values: they follow a future through its polls.
//!
//! While a [`Scoped`] future is polled or dropped, its value is in the thread-local of the key; otherwise the
//! future holds it. The previous value of the thread-local is restored afterwards, by a panic too.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey as ThreadKey;

use pin_project_lite::pin_project;

/// Declares values that belong to a future and the futures that it awaits, not to a thread.
///
/// ```
/// sakia::task_local! {
///     /// Which request is being served.
///     static REQUEST: u64;
/// }
///
/// async fn answer() -> String {
///     sakia::yield_now().await;
///     REQUEST.with(|request| format!("answer to {request}"))
/// }
///
/// sakia::block_on(async {
///     let (one, two) = sakia::join!(REQUEST.scope(1, answer()), REQUEST.scope(2, answer()));
///     assert_eq!((&*one, &*two), ("answer to 1", "answer to 2"));
///     assert!(REQUEST.try_with(|_| ()).is_err());
/// });
/// ```
///
/// Tasks that are spawned within do not inherit it: give them a scope of their own.
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);* $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::LocalKey<$type> = {
            ::std::thread_local! {
                static VALUE: ::std::cell::RefCell<::std::option::Option<$type>> =
                    const { ::std::cell::RefCell::new(::std::option::Option::None) };
            }
            $crate::__private::local_key(&VALUE)
        };
    )*};
}

/// The name of a task-local value: see [`task_local!`](crate::task_local).
///
/// # Examples
/// See [`task_local!`](crate::task_local!#examples).
pub struct LocalKey<T: 'static> {
    slot: &'static ThreadKey<RefCell<Option<T>>>,
}

/// Returns a key, for the macro.
pub const fn local_key<T>(slot: &'static ThreadKey<RefCell<Option<T>>>) -> LocalKey<T> {
    LocalKey { slot }
}

impl<T: 'static> LocalKey<T> {
    /// Runs `future` with the value. Scopes may be nested: the innermost counts.
    ///
    /// # Panics
    /// The returned future, when polled within [`with`](Self::with) of the same key.
    ///
    /// # Examples
    /// See [`task_local!`](crate::task_local!#examples).
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> Scoped<T, F> {
        Scoped { key: self, value: Some(value), future: Some(future) }
    }

    /// Calls `f` with the value.
    ///
    /// # Panics
    /// Outside of a [`scope`](Self::scope).
    ///
    /// # Examples
    /// See [`task_local!`](crate::task_local!#examples).
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).expect("a task-local value is used outside of its scope")
    }

    /// Calls `f` with the value, if there is one.
    ///
    /// # Errors
    /// Outside of a [`scope`](Self::scope).
    ///
    /// # Examples
    /// See [`task_local!`](crate::task_local!#examples).
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let call = |slot: &RefCell<Option<T>>| slot.borrow().as_ref().map(f);
        self.slot.try_with(call).ok().flatten().ok_or(AccessError(()))
    }

    /// Returns a copy of the value.
    ///
    /// # Panics
    /// Outside of a [`scope`](Self::scope).
    ///
    /// # Examples
    /// ```
    /// # sakia::block_on(async {
    /// sakia::task_local! {
    ///     static USER: String;
    /// }
    ///
    /// let greeting = async { format!("hello, {}", USER.cloned()) };
    /// assert_eq!(USER.scope("root".to_owned(), greeting).await, "hello, root");
    /// # });
    /// ```
    #[must_use]
    pub fn cloned(&'static self) -> T
    where
        T: Clone,
    {
        self.with(T::clone)
    }

    /// Calls `f` while `value` is swapped in.
    fn enter<R>(&'static self, value: &mut Option<T>, f: impl FnOnce() -> R) -> R {
        self.swap(value);
        let _entered = Entered { key: self, value };
        f()
    }

    fn swap(&'static self, value: &mut Option<T>) {
        let swap = |slot: &RefCell<Option<T>>| {
            let mut slot = slot.try_borrow_mut().expect("a scope is polled within `with`");
            std::mem::swap(&mut *slot, value);
        };
        // The thread-local is gone only while the thread ends: then futures that are dropped late have no
        // value.
        self.slot.try_with(swap).ok();
    }
}

/// Swaps a value out again when dropped.
struct Entered<'a, T: 'static> {
    key: &'static LocalKey<T>,
    value: &'a mut Option<T>,
}

impl<T> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        self.key.swap(self.value);
    }
}

impl<T> fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

pin_project! {
    /// A future with a task-local value. From [`LocalKey::scope`].
    ///
    /// # Examples
    /// See [`task_local!`](crate::task_local!#examples).
    #[must_use = "futures do nothing unless awaited"]
    pub struct Scoped<T: 'static, F> {
        key: &'static LocalKey<T>,
        // Moved to the thread-local while the future is polled.
        value: Option<T>,
        // `None` once dropped.
        #[pin]
        future: Option<F>,
    }

    impl<T: 'static, F> PinnedDrop for Scoped<T, F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Destructors of the future may use the task-local value, too.
            this.key.enter(this.value, || this.future.set(None));
        }
    }
}

impl<T, F: Future> Future for Scoped<T, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let future = this.future.as_pin_mut().expect("dropped with the whole only");
        this.key.enter(this.value, || future.poll(cx))
    }
}

impl<T, F> fmt::Debug for Scoped<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoped").finish_non_exhaustive()
    }
}

/// The error of [`LocalKey::try_with`]: the code does not run within a scope of the key.
///
/// # Examples
/// See [`task_local!`](crate::task_local!#examples).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessError(());

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the task-local value has no scope here")
    }
}

impl std::error::Error for AccessError {}
