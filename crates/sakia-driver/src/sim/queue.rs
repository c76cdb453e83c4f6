//! The two queues between a driver and the simulated kernel.
//!
//! Of any size, so that tests can make them tiny. As in the kernel, a completion that finds no place
//! goes to a list aside, and so does every later one until that list has been moved back: nothing
//! is lost and the order is kept.

use std::collections::VecDeque;

use sakia_ring::{Cqe, Position, Sqe};

/// Submission queue, completion queue and overflow list.
#[derive(Debug)]
pub(super) struct Queue {
    sq_entries: u32,
    cq_entries: u32,
    /// Entries pushed and not consumed, oldest first.
    pending: VecDeque<Sqe>,
    /// The position of the oldest of them.
    head: u32,
    /// Completions ready to be reaped.
    ready: VecDeque<Cqe>,
    /// Completions that found no place.
    overflow: VecDeque<Cqe>,
    /// Places that the completion queue pretends to have; more than it has for no restriction.
    places: u32,
}

impl Queue {
    pub(super) fn new(sq_entries: u32, cq_entries: u32) -> Self {
        assert!(1 <= sq_entries && sq_entries <= cq_entries, "{sq_entries} of {cq_entries}");
        Self {
            sq_entries,
            cq_entries,
            pending: VecDeque::new(),
            // So that every test sees positions wrap.
            head: u32::MAX - 2,
            ready: VecDeque::new(),
            overflow: VecDeque::new(),
            places: u32::MAX,
        }
    }

    pub(super) fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    pub(super) fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// Entries pushed and not consumed.
    pub(super) fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    pub(super) fn push(&mut self, sqe: Sqe) -> Option<Position> {
        if self.pending() == self.sq_entries {
            return None;
        }
        let position = self.head.wrapping_add(self.pending());
        self.pending.push_back(sqe);
        Some(Position::from_raw(position))
    }

    pub(super) fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        let index = position.to_raw().wrapping_sub(self.head) as usize;
        match self.pending.get_mut(index) {
            Some(sqe) if sqe.user_data == user_data => {
                *sqe = Sqe::nop().user_data(user_data);
                true
            }
            _ => false,
        }
    }

    /// Takes the oldest pending entry.
    pub(super) fn consume(&mut self) -> Option<Sqe> {
        let sqe = self.pending.pop_front()?;
        self.head = self.head.wrapping_add(1);
        Some(sqe)
    }

    /// Whether a pending entry has this `user_data`.
    pub(super) fn is_pending(&self, user_data: u64) -> bool {
        self.pending.iter().any(|sqe| sqe.user_data == user_data)
    }

    /// Completions ready to be reaped.
    pub(super) fn ready(&self) -> u32 {
        self.ready.len() as u32
    }

    pub(super) fn reap(&mut self, out: &mut [Cqe]) -> usize {
        let count = out.len().min(self.ready.len());
        for (place, cqe) in out.iter_mut().zip(self.ready.drain(..count)) {
            *place = cqe;
        }
        count
    }

    /// Whether a completion would go to the overflow list now.
    pub(super) fn is_full(&self) -> bool {
        self.is_overflowing() || self.room() == 0
    }

    /// Puts a completion where it can be reaped. With `held`, or without a place, it goes to the
    /// overflow list instead; true then.
    pub(super) fn post(&mut self, cqe: Cqe, held: bool) -> bool {
        let overflows = held || !self.overflow.is_empty() || self.room() == 0;
        if overflows {
            self.overflow.push_back(cqe);
        } else {
            self.ready.push_back(cqe);
        }
        overflows
    }

    /// Moves overflowed completions back as far as there is room. Returns how many.
    pub(super) fn flush_overflow(&mut self) -> u32 {
        let count = self.room().min(self.overflow.len() as u32);
        self.ready.extend(self.overflow.drain(..count as usize));
        count
    }

    pub(super) fn is_overflowing(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Pretends to have only this many free places, until [`unrestrict`](Queue::unrestrict).
    pub(super) fn restrict(&mut self, free: u32) {
        self.places = self.ready().saturating_add(free);
    }

    /// Admits to at least this many free places, if it has them.
    pub(super) fn allow(&mut self, free: u32) {
        self.places = self.places.max(self.ready().saturating_add(free));
    }

    pub(super) fn unrestrict(&mut self) {
        self.places = u32::MAX;
    }

    fn room(&self) -> u32 {
        self.cq_entries.min(self.places).saturating_sub(self.ready())
    }
}

#[cfg(test)]
mod tests {
    use sakia_ring::Opcode;

    use super::*;

    fn cqe(user_data: u64) -> Cqe {
        Cqe { user_data, ..Cqe::default() }
    }

    fn reap_all(queue: &mut Queue) -> Vec<u64> {
        let mut out = [Cqe::default(); 8];
        let count = queue.reap(&mut out);
        out[..count].iter().map(|cqe| cqe.user_data).collect()
    }

    #[test]
    fn the_submission_queue_is_full_at_its_size_and_wraps() {
        let mut queue = Queue::new(2, 2);
        for round in 0..10 {
            let first = queue.push(Sqe::nop().user_data(round)).unwrap();
            let second = queue.push(Sqe::nop().user_data(round)).unwrap();
            assert_eq!(second.to_raw(), first.to_raw().wrapping_add(1));
            assert_eq!(queue.push(Sqe::nop()), None);
            assert_eq!(queue.consume().unwrap().user_data, round);
            assert_eq!(queue.consume().unwrap().user_data, round);
            assert_eq!(queue.consume(), None);
        }
    }

    #[test]
    fn only_a_pending_entry_with_that_user_data_becomes_a_nop() {
        let mut queue = Queue::new(2, 2);
        let first = queue.push(Sqe::close(3).user_data(1)).unwrap();
        let second = queue.push(Sqe::close(4).user_data(2)).unwrap();
        assert!(!queue.make_nop(second, 1));
        assert!(queue.make_nop(second, 2));
        assert_eq!(queue.consume().unwrap().opcode, Opcode::CLOSE);
        assert!(!queue.make_nop(first, 1), "it was consumed");
        assert_eq!(queue.consume().unwrap(), Sqe::nop().user_data(2));
        assert!(!queue.make_nop(second, 2), "it was consumed");
    }

    #[test]
    fn overflow_keeps_the_order_and_loses_nothing() {
        let mut queue = Queue::new(1, 2);
        assert!(!queue.post(cqe(0), false));
        assert!(!queue.post(cqe(1), false));
        assert!(queue.post(cqe(2), false));
        assert_eq!(reap_all(&mut queue), [0, 1]);
        assert!(queue.post(cqe(3), false), "it must not overtake");
        assert!(queue.post(cqe(4), false));
        assert!(queue.is_overflowing());
        assert_eq!(queue.flush_overflow(), 2);
        assert!(queue.is_overflowing());
        assert_eq!(reap_all(&mut queue), [2, 3]);
        assert_eq!(queue.flush_overflow(), 1);
        assert!(!queue.is_overflowing());
        assert_eq!(reap_all(&mut queue), [4]);
    }

    #[test]
    fn a_restricted_queue_overflows_earlier() {
        let mut queue = Queue::new(1, 4);
        queue.restrict(1);
        assert!(!queue.post(cqe(0), false));
        assert!(queue.post(cqe(1), false));
        assert!(queue.post(cqe(2), false));
        assert_eq!(queue.flush_overflow(), 0);
        queue.allow(1);
        assert_eq!(queue.flush_overflow(), 1);
        queue.unrestrict();
        assert_eq!(queue.flush_overflow(), 1);
        assert_eq!(reap_all(&mut queue), [0, 1, 2]);
    }
}
