//! Wakes of tasks on other threads that await results of this one.
//!
//! The kernel completes many operations at once, so a thread of the engine has many results at once. If it
//! told each as soon as it is there, the thread that awaits them would be woken for the first, find no more,
//! and sleep again. So the results of the tasks that one turn of the driver has made ready are told together,
//! after the last of these was polled. They are told before that if a new request begins, which may make a
//! plain call that takes long, and before code of the program's own goes on, which
//! [`Engine::run`](crate::Engine::run) runs here.

use std::cell::{Cell, RefCell};
use std::task::Waker;

use sakia_driver::wake_all;

/// The most results that are told together.
const TOGETHER_MAX: usize = 32;

/// The wakes that one thread is about to make.
#[derive(Default)]
pub(crate) struct Results {
    /// Polls until all is told; 0 if results are told at once.
    polls: Cell<usize>,
    wakers: RefCell<Vec<Waker>>,
}

impl Results {
    /// Begins to gather wakes, for this number of polls.
    pub(crate) fn begin(&self, polls: usize) {
        self.polls.set(polls);
    }

    /// Wakes the task of a result that is there, now or soon. A panic of its waker is dropped if the thread
    /// unwinds already.
    pub(crate) fn push(&self, waker: Waker) {
        if self.polls.get() == 0 {
            return wake_all([waker]);
        }
        let count = {
            let mut wakers = self.wakers.borrow_mut();
            wakers.push(waker);
            wakers.len()
        };
        if count >= TOGETHER_MAX {
            self.wake_all();
        }
    }

    /// Notes the end of a poll.
    pub(crate) fn polled(&self) {
        if let Some(left) = self.polls.get().checked_sub(1) {
            self.polls.set(left);
            if left == 0 {
                self.wake_all();
            }
        }
    }

    /// Wakes those that have gathered.
    pub(crate) fn tell(&self) {
        if !self.wakers.borrow().is_empty() {
            self.wake_all();
        }
    }

    /// Tells what is left; further results are told at once. Also called after a panic.
    pub(crate) fn end(&self) {
        if self.polls.take() > 0 {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        // A waker is users' code, which may have further results told.
        let mut wakers = self.wakers.take();
        wake_all(wakers.drain(..));
        // The room is used again, unless more have come.
        let mut place = self.wakers.borrow_mut();
        if place.is_empty() {
            *place = wakers;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn results_are_told_after_the_polls_that_they_come_from() {
        let (count, results) = (Arc::new(Count::default()), Results::default());
        let push = || results.push(Waker::from(Arc::clone(&count)));
        let told = || count.0.load(Ordering::Relaxed);
        push();
        assert_eq!(told(), 1, "at once, outside of a round");
        results.begin(3);
        push();
        results.polled();
        results.polled(); // a task that goes on
        push();
        assert_eq!(told(), 1);
        results.polled();
        assert_eq!(told(), 3);
        results.polled();
        push();
        assert_eq!(told(), 4, "a task that came later");
        results.begin(2 * TOGETHER_MAX);
        (0..TOGETHER_MAX + 1).for_each(|_| push());
        assert_eq!(told(), 4 + TOGETHER_MAX);
        results.end();
        push();
        assert_eq!(told(), 6 + TOGETHER_MAX);
    }
}
