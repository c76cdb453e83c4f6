//! Making tasks.

use std::future::{Future, poll_fn};
use std::task::Poll;

use crate::cell::{MAILED, NEW, SCHEDULED, new, new_work};
use crate::count::Count;
use crate::handles::{Mail, Runnable, Schedule, Work};
use crate::task::Task;
use crate::thread::ThreadId;

/// Makes a task of the calling thread, to be run for the first time.
#[inline]
pub fn spawn<S, F>(future: F, scheduler: S) -> (Runnable<S>, Task<F::Output>)
where
    S: Schedule,
    F: Future + 'static,
    F::Output: 'static,
{
    let cell = new(Count::biased(2), SCHEDULED, future, scheduler);
    // SAFETY: each has one of the two references. This thread is home, and the runnable the only one.
    unsafe { (Runnable::new(cell), Task::new(cell)) }
}

/// Makes a task of another thread, `home`, which is to open the mail. Dropping the mail cancels the task.
///
/// With [`ThreadId::NONE`] no mail can be opened.
pub fn spawn_to<S, F>(home: ThreadId, future: F, scheduler: S) -> (Mail<S>, Task<F::Output>)
where
    S: Schedule,
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let cell = new(Count::shared(home, 2, MAILED | NEW), 0, future, scheduler);
    // SAFETY: each has one of the two references. The mail is the only one, and new; future and output are
    // `Send`.
    unsafe { (Mail::new(cell), Task::new(cell)) }
}

/// Makes work of code for any thread, which it may block, and returns the handle that awaits its value.
/// Aborting or [closing](Task::close) has no effect once the code has begun.
///
/// # Examples
/// ```
/// use std::future::Future;
/// use std::task::{Context, Poll, Waker};
///
/// # struct Nowhere;
/// # impl sakia_task::Schedule for Nowhere {
/// #     fn here(_: sakia_task::Runnable<Self>) {}
/// #     fn elsewhere(_: sakia_task::Mail<Self>) {}
/// # }
/// let (work, task) = sakia_task::work(|| 1 + 1, Nowhere);
/// std::thread::spawn(|| work.run()).join().unwrap();
/// let poll = std::pin::pin!(task).poll(&mut Context::from_waker(Waker::noop()));
/// assert!(matches!(poll, Poll::Ready(Some(Ok(2)))));
/// ```
pub fn work<S, T>(call: impl FnOnce() -> T + Send + 'static, scheduler: S) -> (Work<S>, Task<T>)
where
    S: Schedule,
    T: Send + 'static,
{
    let mut call = Some(call);
    let future = poll_fn(move |_| call.take().map_or(Poll::Pending, |call| Poll::Ready(call())));
    let cell = new_work(Count::shared(ThreadId::NONE, 2, MAILED | NEW), future, scheduler);
    // SAFETY: as for `spawn_to`. The table is that of work.
    unsafe { (Work::new(Mail::new(cell)), Task::new(cell)) }
}
