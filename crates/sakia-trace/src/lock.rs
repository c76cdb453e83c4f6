//! Locks that a forked child never waits for.
//!
//! A child inherits locks as they were, and none of the threads that held them. So its first use of a lock
//! tries it: if it is free, the value is whole, and the child takes it over. If it is not, another thread of
//! the parent held it at the fork, and the child can never have it.
//!
//! A process is known by its number. A child that has its parent's, in a namespace of its own, is taken for
//! its parent.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// A lock that belongs to a process.
#[derive(Debug)]
pub(crate) struct Lock<T> {
    /// The number of the process that took it over last, times [`STATES`], and one of them; 0 before the
    /// first.
    owner: AtomicU64,
    value: Mutex<T>,
}

/// A thread of the process is taking it over. The others wait for that, which is short.
const TAKING: u64 = 0;
/// The process may use it.
const HAS: u64 = 1;
/// Another thread of the parent held it at the fork.
const LOST: u64 = 2;
const STATES: u64 = 4;

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { owner: AtomicU64::new(0), value: Mutex::new(value) }
    }

    /// Locks the value. A child that has it for the first time passes it to `take_over`. `None` in a child
    /// that can never have it.
    pub(crate) fn lock(&self, take_over: impl FnOnce(&mut T)) -> Option<MutexGuard<'_, T>> {
        let own = u64::from(std::process::id()) * STATES;
        loop {
            let owner = self.owner.load(Ordering::Acquire);
            if owner == own + HAS {
                return Some(self.value.lock().unwrap_or_else(PoisonError::into_inner));
            }
            if owner == own + LOST {
                return None;
            }
            if owner == own + TAKING {
                std::thread::yield_now();
            } else if self
                .owner
                .compare_exchange(owner, own + TAKING, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                let is_child = owner != 0;
                let mut value = match self.value.try_lock() {
                    Ok(value) => Some(value),
                    Err(TryLockError::Poisoned(value)) => Some(value.into_inner()),
                    Err(TryLockError::WouldBlock) => None,
                };
                if let Some(value) = value.as_mut().filter(|_| is_child) {
                    take_over(value);
                }
                let state = if value.is_some() { HAS } else { LOST };
                self.owner.store(own + state, Ordering::Release);
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the lock one of another process.
    fn fork(lock: &Lock<u32>) {
        lock.owner.store(STATES + HAS, Ordering::Relaxed);
    }

    #[test]
    fn a_child_takes_over_a_free_lock_once() {
        let lock = Lock::new(1);
        *lock.lock(|_| unreachable!()).unwrap() = 2;
        fork(&lock);
        assert_eq!(*lock.lock(|value| *value += 10).unwrap(), 12);
        assert_eq!(*lock.lock(|_| unreachable!()).unwrap(), 12);
    }

    #[test]
    fn a_child_never_gets_a_lock_that_was_held() {
        let lock = Lock::new(1);
        let held = lock.lock(|_| ()).unwrap();
        fork(&lock);
        assert!(lock.lock(|_| unreachable!()).is_none());
        drop(held);
        assert!(lock.lock(|_| unreachable!()).is_none());
    }

    #[test]
    fn threads_of_a_child_wait_for_the_one_that_takes_over() {
        let lock = Lock::new(0);
        for round in 0..if cfg!(miri) { 5 } else { 500 } {
            fork(&lock);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| *lock.lock(|value| *value += 1).unwrap() += 1);
                }
            });
            assert_eq!(*lock.lock(|_| unreachable!()).unwrap(), 5 * (round + 1));
        }
    }
}
