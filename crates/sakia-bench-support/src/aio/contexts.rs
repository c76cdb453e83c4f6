//! The contexts of a scheduler: reused, with new ones added when all are full.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::context::Context;
use super::trace::Log;

/// The room requested for the next context.
///
/// It doubles after each granted context, and shrinks by a tenth after each refusal, down to a minimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    next: u32,
}

impl Growth {
    /// The default room of the first context.
    pub const FIRST: u32 = 1000;
    /// The largest request.
    pub const MAX: u32 = 500_000;
    /// The smallest request, unless the first was smaller.
    pub const MIN: u32 = 10;

    /// Begins with `first`.
    ///
    /// # Panics
    /// When that is 0.
    pub fn new(first: u32) -> Self {
        assert!(first > 0, "a context without room");
        Self { next: first.min(Self::MAX) }
    }

    /// Returns the room to request.
    pub fn next(self) -> u32 {
        self.next
    }

    /// Records that the kernel granted it.
    pub fn granted(&mut self) {
        self.next = self.next.saturating_mul(2).min(Self::MAX);
    }

    /// Records that the kernel refused it. Returns false if there is no smaller request.
    pub fn refused(&mut self) -> bool {
        let lower = (self.next - self.next.div_ceil(10)).max(Self::MIN);
        let is_lower = lower < self.next;
        self.next = self.next.min(lower);
        is_lower
    }
}

/// The contexts, as many as were needed at the same time. All end together.
#[derive(Debug)]
pub(super) struct Contexts<T> {
    pub all: Vec<Context<T>>,
    growth: Growth,
    event_fd: Arc<OwnedFd>,
    log: Arc<Log>,
    /// The kernel refused the smallest request, and is not asked again.
    is_refused: bool,
}

impl<T> Contexts<T> {
    pub fn new(growth: Growth, event_fd: Arc<OwnedFd>, log: Arc<Log>) -> Self {
        Self { all: Vec::new(), growth, event_fd, log, is_refused: false }
    }

    pub fn in_flight(&self) -> usize {
        self.all.iter().map(Context::in_flight).sum()
    }

    pub fn live(&self) -> usize {
        self.all.iter().map(Context::live).sum()
    }

    /// Returns a context with room, a new one if necessary; `None` if all are full.
    ///
    /// # Errors
    /// The reason why there is no context at all.
    pub fn with_room(&mut self) -> io::Result<Option<&mut Context<T>>> {
        if let Some(index) = self.all.iter().position(Context::has_room) {
            return Ok(Some(&mut self.all[index]));
        }
        if self.is_refused && !self.all.is_empty() {
            return Ok(None);
        }
        match self.set_up() {
            Ok(context) => {
                self.all.push(context);
                Ok(self.all.last_mut())
            }
            Err(_) if !self.all.is_empty() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Requests less room after each refusal.
    fn set_up(&mut self) -> io::Result<Context<T>> {
        loop {
            let (event_fd, log) = (Arc::clone(&self.event_fd), Arc::clone(&self.log));
            match Context::with(self.growth.next(), Some(event_fd), log) {
                Ok(context) => {
                    self.growth.granted();
                    self.is_refused = false;
                    return Ok(context);
                }
                Err(error) => {
                    let is_size = error.raw_os_error() == Some(libc::EAGAIN);
                    if !is_size || !self.growth.refused() {
                        self.is_refused = true;
                        return Err(error);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_lowers_and_grant_raises() {
        let mut growth = Growth::new(1000);
        assert!(growth.refused());
        assert_eq!(growth.next(), 900);
        growth.granted();
        assert_eq!(growth.next(), 1800);
        let mut asked = vec![growth.next()];
        while growth.refused() {
            asked.push(growth.next());
        }
        assert!(asked.is_sorted_by(|a, b| a > b), "{asked:?}");
        assert_eq!(asked.last(), Some(&Growth::MIN));
        assert!(!growth.refused());
        assert_eq!(growth.next(), Growth::MIN);
    }

    #[test]
    fn growth_has_bounds() {
        let mut growth = Growth::new(1);
        assert!(!growth.refused());
        assert_eq!(growth.next(), 1);
        for _ in 0..40 {
            growth.granted();
        }
        assert_eq!(growth.next(), Growth::MAX);
    }
}
