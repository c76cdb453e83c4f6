//! Tasks that need no atomic operation on their own thread, with wakers that any thread may use.
//!
//! A task is a future and a place for its value, in one allocation. An executor gets a [`Runnable`]
//! whenever the task is to be polled, and puts it into a [`Queue`]; [`Task`] awaits it.
//!
//! # Examples
//! ```
//! use sakia_task::{Mail, Queue, Runnable, Schedule, spawn};
//!
//! thread_local! {
//!     static QUEUE: Queue<Here> = const { Queue::new() };
//! }
//!
//! /// Tasks of one thread, which no other thread wakes.
//! struct Here;
//!
//! impl Schedule for Here {
//!     fn here(task: Runnable<Self>) {
//!         QUEUE.with(|queue| queue.push(task));
//!     }
//!
//!     fn elsewhere(mail: Mail<Self>) {
//!         drop(mail);
//!     }
//! }
//!
//! let (one, first) = spawn(async { 1 }, Here);
//! let (two, second) = spawn(async { first.await.unwrap().unwrap() + 1 }, Here);
//! Here::here(two);
//! Here::here(one);
//! while let Some(task) = QUEUE.with(Queue::pop) {
//!     task.run();
//! }
//! assert!(second.is_finished());
//! ```
//!
//! # Contents
//! - [`spawn`] starts a task on this thread, [`spawn_to`] one for another; [`work`] is code that any thread
//!   may run.
//! - [`Schedule`] is the executor's part: it gets a [`Runnable`], or from other threads [`Mail`]. [`Queue`]
//!   has the tasks that are ready, without memory of its own.
//! - [`Task`] is the handle, whose [`Outcome`] is the value or a panic.
//! - [`Share`] and [`Root`] share a value as a reference count does, without atomic operations on the root's
//!   thread.
//!
//! # Threads
//! The task belongs to the thread that it is started on, or [for](spawn_to): there it is polled, and then
//! dropped, and there starting, waking, polling and awaiting it costs no atomic read-modify-write, but for
//! one when it ends and its handle is still there. Wakers are `Send`, and so is the handle if the value is:
//! other threads send [`Mail`], which the task's own opens.
//!
//! A panic of the future is an [`Outcome`] of the task. One of its destructor is kept.
//!
//! Its own thread may be gone: wakers that are left do no harm, and the last of them frees the memory. The
//! future is dropped by the thread that has it in its queue, or drops the mail of a new task. An executor
//! that ends has to wake all its tasks for that, and drop its queue.

mod cell;
mod count;
mod handles;
mod queue;
mod share;
mod start;
mod sync;
mod task;
mod thread;
mod waker;

#[cfg(test)]
mod tests;

pub use cell::Outcome;
pub use handles::{Mail, Runnable, Schedule, Work};
pub use queue::Queue;
pub use share::{Root, Share};
pub use start::{spawn, spawn_to, work};
pub use task::Task;
pub use thread::ThreadId;
