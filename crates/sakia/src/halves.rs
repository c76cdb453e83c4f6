//! The tasks that wait for work on a file. There may be two, where a function of another ecosystem has split
//! the file into a half to read and a half to write. The work wakes one waker, which here wakes both tasks.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use sakia_driver::wake_all;

/// One half of a file.
#[derive(Clone, Copy)]
pub enum Half {
    /// The half that reads.
    Reading,
    /// The half that writes.
    Writing,
}

/// The wakers of both halves. Allocated at the first wait.
#[derive(Default)]
pub struct Halves(Option<(Arc<Wakers>, Waker)>);

impl Halves {
    /// Notes the waker of a half, and returns the waker that wakes both.
    pub fn register(&mut self, half: Half, cx: &Context<'_>) -> &Waker {
        let (wakers, both) = self.0.get_or_insert_with(|| {
            let wakers = Arc::<Wakers>::default();
            let both = Waker::from(Arc::clone(&wakers));
            (wakers, both)
        });
        wakers.set(half, cx.waker());
        both
    }
}

#[derive(Default)]
struct Wakers(Mutex<[Option<Waker>; 2]>);

impl Wakers {
    fn set(&self, half: Half, waker: &Waker) {
        let mut wakers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut wakers[half as usize];
        let previous = match slot {
            Some(previous) if previous.will_wake(waker) => None,
            slot => slot.replace(waker.clone()),
        };
        drop(wakers);
        drop(previous); // users' code
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        let taken = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wake_all(taken.into_iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Bad;

    impl Wake for Bad {
        fn wake(self: Arc<Self>) {
            panic!("a waker");
        }
    }

    #[derive(Default)]
    struct Good(AtomicBool);

    impl Wake for Good {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_the_other_half_waiting() {
        let good = Arc::<Good>::default();
        let (bad, other) = (Waker::from(Arc::new(Bad)), Waker::from(Arc::clone(&good)));
        let mut halves = Halves::default();
        halves.register(Half::Reading, &Context::from_waker(&bad));
        let both = halves.register(Half::Writing, &Context::from_waker(&other)).clone();
        assert!(catch_unwind(AssertUnwindSafe(|| both.wake())).is_err());
        assert!(good.0.load(Ordering::Relaxed));
    }
}
