//! Operations that should end by themselves, oldest first, to find those that have not ended.

use std::time::Duration;

/// No slot.
const NONE: u32 = u32::MAX;

/// A list through the slots' indices, in the order of addition.
#[derive(Debug)]
pub(super) struct Ages {
    links: Vec<Link>,
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    since: Duration,
    prev: u32,
    next: u32,
    is_listed: bool,
}

impl Ages {
    pub(super) const fn new() -> Self {
        Self { links: Vec::new(), first: NONE, last: NONE }
    }

    /// Adds a slot that is not listed.
    pub(super) fn push(&mut self, index: u32, since: Duration) {
        let unlisted = Link { since, prev: NONE, next: NONE, is_listed: false };
        let len = self.links.len().max(index as usize + 1);
        self.links.resize(len, unlisted);
        let last = std::mem::replace(&mut self.last, index);
        self.links[index as usize] = Link { prev: last, is_listed: true, ..unlisted };
        match self.links.get_mut(last as usize) {
            Some(last) => last.next = index,
            None => self.first = index,
        }
    }

    /// Removes a slot from the list, if it is there.
    pub(super) fn remove(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize).filter(|link| link.is_listed) else {
            return;
        };
        link.is_listed = false;
        let Link { prev, next, .. } = *link;
        match self.links.get_mut(prev as usize) {
            Some(prev) => prev.next = next,
            None => self.first = next,
        }
        match self.links.get_mut(next as usize) {
            Some(next) => next.prev = prev,
            None => self.last = prev,
        }
    }

    /// Returns the slot that has been listed longest, and the time when it was added.
    pub(super) fn oldest(&self) -> Option<(u32, Duration)> {
        self.links.get(self.first as usize).map(|link| (self.first, link.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_after_removals() {
        let mut ages = Ages::new();
        assert_eq!(ages.oldest(), None);
        for index in [3, 0, 7, 1] {
            ages.push(index, Duration::from_secs(u64::from(index)));
        }
        ages.remove(0);
        ages.remove(0);
        ages.remove(5);
        ages.remove(100);
        let mut order = Vec::new();
        while let Some((index, since)) = ages.oldest() {
            assert_eq!(since, Duration::from_secs(u64::from(index)));
            order.push(index);
            ages.remove(index);
        }
        assert_eq!(order, [3, 7, 1]);
        ages.push(2, Duration::ZERO);
        assert_eq!(ages.oldest(), Some((2, Duration::ZERO)));
    }
}
