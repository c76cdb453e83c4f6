//! Who waits for what is under way on a file: perhaps two tasks, where `tokio::io::split` has made halves of
//! it. Work wakes one waker, which is that of both here.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Which of them.
#[derive(Clone, Copy)]
pub(super) enum Half {
    Reading,
    Writing,
}

/// Their wakers. Made when something is waited for first.
#[derive(Default)]
pub(super) struct Halves(Option<(Arc<Wakers>, Waker)>);

impl Halves {
    /// Notes who waits, and says by which waker both are woken.
    pub(super) fn register(&mut self, half: Half, cx: &Context<'_>) -> &Waker {
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
        taken.into_iter().flatten().for_each(Waker::wake);
    }
}
