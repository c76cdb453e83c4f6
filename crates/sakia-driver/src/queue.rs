//! The two queues between a driver and a backend that is not the kernel's ring.
//!
//! Both lie in ordinary memory, and may have any size. As with the ring, a completion that finds the
//! completion queue full goes to an overflow list, and so does every later one until that list has been moved
//! back. No completion is lost, the order is kept, and the list is unbounded.

use std::collections::VecDeque;

use sakia_ring::{Cqe, Position};

use crate::call::{Call, Request};
use crate::counters::OpKind;

/// An element of a submission queue.
pub(crate) trait Queued {
    fn user_data(&self) -> u64;

    /// Turns the element into a no-op with the same `user_data`.
    fn make_nop(&mut self);
}

impl Queued for Request {
    fn user_data(&self) -> u64 {
        self.user_data
    }

    fn make_nop(&mut self) {
        (self.kind, self.call) = (OpKind::Nop, Call::Nop);
    }
}

/// Submission queue, completion queue and overflow list.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    sq_entries: u32,
    cq_entries: u32,
    /// Entries pushed and not consumed, oldest first.
    pub(crate) pending: VecDeque<T>,
    /// The position of the oldest pending entry.
    head: u32,
    /// Completions ready to be reaped.
    ready: VecDeque<Cqe>,
    /// Completions that found no place.
    overflow: VecDeque<Cqe>,
    /// Places of the completion queue: `cq_entries`, or fewer while it simulates a shorter queue.
    pub(crate) places: u32,
}

impl<T: Queued> Queue<T> {
    /// # Panics
    /// When there are no entries, or more than the completion queue has.
    pub(crate) fn new(sq_entries: u32, cq_entries: u32) -> Self {
        assert!(1 <= sq_entries && sq_entries <= cq_entries, "{sq_entries} of {cq_entries}");
        Self {
            sq_entries,
            cq_entries,
            pending: VecDeque::with_capacity(sq_entries.min(4096) as usize),
            // Positions wrap soon, in every program.
            head: u32::MAX - 2,
            ready: VecDeque::new(),
            overflow: VecDeque::new(),
            places: cq_entries,
        }
    }

    pub(crate) fn sq_entries(&self) -> u32 {
        self.sq_entries
    }

    pub(crate) fn cq_entries(&self) -> u32 {
        self.cq_entries
    }

    /// Returns the number of entries pushed and not consumed.
    pub(crate) fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Returns the number of completions ready to be reaped.
    pub(crate) fn ready(&self) -> u32 {
        self.ready.len() as u32
    }

    pub(crate) fn is_overflowing(&self) -> bool {
        !self.overflow.is_empty()
    }

    /// Returns the number of completions that find a place. None do while older ones wait for one.
    pub(crate) fn room(&self) -> u32 {
        if self.is_overflowing() { 0 } else { self.free() }
    }

    fn free(&self) -> u32 {
        self.places.saturating_sub(self.ready())
    }

    pub(crate) fn push(&mut self, queued: T) -> Option<Position> {
        if self.pending() == self.sq_entries {
            return None;
        }
        let position = self.head.wrapping_add(self.pending());
        self.pending.push_back(queued);
        Some(Position::from_raw(position))
    }

    pub(crate) fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        let index = position.to_raw().wrapping_sub(self.head) as usize;
        match self.pending.get_mut(index) {
            Some(queued) if queued.user_data() == user_data => {
                queued.make_nop();
                true
            }
            _ => false,
        }
    }

    /// Takes the oldest pending entry.
    pub(crate) fn consume(&mut self) -> Option<T> {
        let queued = self.pending.pop_front()?;
        self.head = self.head.wrapping_add(1);
        Some(queued)
    }

    /// Adds the last completion of an entry.
    pub(crate) fn post(&mut self, user_data: u64, res: i32) {
        self.post_cqe(Cqe { user_data, res, ..Cqe::default() }, false);
    }

    /// Adds a completion. With `held`, or without a place, it goes to the overflow list; returns true then.
    pub(crate) fn post_cqe(&mut self, cqe: Cqe, held: bool) -> bool {
        let overflows = held || self.room() == 0;
        let list = if overflows { &mut self.overflow } else { &mut self.ready };
        list.push_back(cqe);
        overflows
    }

    /// Moves overflowed completions back, as far as there is room. Returns their number.
    pub(crate) fn flush_overflow(&mut self) -> u32 {
        if !self.is_overflowing() {
            return 0; // nearly always
        }
        let count = self.free().min(self.overflow.len() as u32);
        self.ready.extend(self.overflow.drain(..count as usize));
        count
    }

    pub(crate) fn reap(&mut self, out: &mut [Cqe]) -> usize {
        let count = out.len().min(self.ready.len());
        for (place, cqe) in out.iter_mut().zip(self.ready.drain(..count)) {
            *place = cqe;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(user_data: u64, call: Call) -> Request {
        Request { user_data, kind: OpKind::Other, call }
    }

    fn reap_all(queue: &mut Queue<Request>) -> Vec<u64> {
        let mut out = [Cqe::default(); 8];
        let count = queue.reap(&mut out);
        out[..count].iter().map(|cqe| cqe.user_data).collect()
    }

    fn post_all(queue: &mut Queue<Request>, user_data: std::ops::Range<u64>) -> Vec<bool> {
        let cqes = user_data.map(|user_data| Cqe { user_data, ..Cqe::default() });
        cqes.map(|cqe| queue.post_cqe(cqe, false)).collect()
    }

    #[test]
    fn positions_wrap_and_the_queue_is_full_at_its_size() {
        let mut queue = Queue::new(2, 2);
        for round in 0..5 {
            let first = queue.push(request(round, Call::Nop)).unwrap();
            let second = queue.push(request(round, Call::Nop)).unwrap();
            assert_eq!(second.to_raw(), first.to_raw().wrapping_add(1));
            assert_eq!(queue.push(request(0, Call::Nop)), None);
            assert!(queue.consume().is_some() && queue.consume().is_some());
            assert!(queue.consume().is_none());
        }
    }

    #[test]
    fn only_a_pending_entry_with_that_user_data_becomes_a_nop() {
        let mut queue = Queue::new(2, 2);
        let first = queue.push(request(1, Call::Close { raw: 3 })).unwrap();
        let second = queue.push(request(2, Call::Close { raw: 4 })).unwrap();
        assert!(!queue.make_nop(second, 1));
        assert!(queue.make_nop(second, 2));
        assert_eq!(queue.consume().unwrap().call, Call::Close { raw: 3 });
        assert!(!queue.make_nop(first, 1), "it was consumed");
        let second_now = queue.consume().unwrap();
        let Request { user_data, kind, call } = second_now;
        assert_eq!((user_data, kind, call), (2, OpKind::Nop, Call::Nop));
        assert!(!queue.make_nop(second, 2), "it was consumed");
    }

    #[test]
    fn overflow_keeps_the_order_and_loses_nothing() {
        let mut queue = Queue::new(1, 2);
        assert_eq!(post_all(&mut queue, 0..3), [false, false, true]);
        assert_eq!(reap_all(&mut queue), [0, 1]);
        assert_eq!(post_all(&mut queue, 3..5), [true, true], "they must not overtake");
        assert!(queue.is_overflowing() && queue.ready() == 0 && queue.room() == 0);
        assert_eq!(queue.flush_overflow(), 2);
        assert!(queue.is_overflowing());
        assert_eq!(reap_all(&mut queue), [2, 3]);
        assert_eq!(queue.flush_overflow(), 1);
        assert!(!queue.is_overflowing());
        assert_eq!(reap_all(&mut queue), [4]);
        assert!(queue.post_cqe(Cqe::default(), true), "it has a place, and is held");
        assert_eq!((queue.ready(), queue.room()), (0, 0));
    }

    #[test]
    fn a_queue_with_fewer_places_overflows_earlier() {
        let mut queue = Queue::new(1, 4);
        queue.places = 1;
        assert_eq!(post_all(&mut queue, 0..3), [false, true, true]);
        assert_eq!(queue.flush_overflow(), 0);
        queue.places = 2;
        assert_eq!(queue.flush_overflow(), 1);
        queue.places = 4;
        assert_eq!(queue.flush_overflow(), 1);
        queue.places = 1;
        assert_eq!(
            (queue.room(), queue.flush_overflow()),
            (0, 0),
            "more are ready than have places"
        );
        assert_eq!(reap_all(&mut queue), [0, 1, 2]);
    }
}
