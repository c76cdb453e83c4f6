//! A thread's buffer: one thread writes, one reads, and neither takes a lock.
//!
//! The writing thread stores the words of an event by plain stores; the reading thread sees them once it sees
//! the position after them. A full buffer drops events, and counts them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::Event;

/// The events of one thread that have not been written to the file yet.
#[derive(Debug)]
pub(crate) struct Buffer {
    slots: Box<[[AtomicU64; 4]]>,
    /// The number of events put in so far; the writing thread changes it.
    end: AtomicUsize,
    /// The number of events taken out so far; the reading thread changes it.
    begin: AtomicUsize,
    lost: AtomicU64,
    /// Set when the thread has ended and adds no more events.
    is_over: AtomicBool,
}

impl Buffer {
    /// Makes a buffer for `len` events, which is a power of two.
    pub(crate) fn new(len: usize) -> Self {
        assert!(len.is_power_of_two());
        Self {
            slots: (0..len).map(|_| [const { AtomicU64::new(0) }; 4]).collect(),
            end: AtomicUsize::new(0),
            begin: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Puts an event in; only the buffer's thread calls this. Returns true if the buffer has become half
    /// full.
    #[inline]
    pub(crate) fn push(&self, event: Event) -> bool {
        let end = self.end.load(Ordering::Relaxed);
        let filled = end.wrapping_sub(self.begin.load(Ordering::Acquire));
        if filled >= self.slots.len() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let slot = &self.slots[end & (self.slots.len() - 1)];
        for (word, value) in slot.iter().zip(event.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        self.end.store(end.wrapping_add(1), Ordering::Release);
        filled == self.slots.len() / 2
    }

    /// Takes all events out, in the order in which they were put in; only one thread at a time calls this.
    pub(crate) fn drain(&self, mut take: impl FnMut(Event)) {
        let end = self.end.load(Ordering::Acquire);
        let mut begin = self.begin.load(Ordering::Relaxed);
        while begin != end {
            let slot = &self.slots[begin & (self.slots.len() - 1)];
            let words = [0, 1, 2, 3].map(|index| slot[index].load(Ordering::Relaxed));
            begin = begin.wrapping_add(1);
            self.begin.store(begin, Ordering::Release);
            if let Some(event) = Event::from_words(words) {
                take(event);
            }
        }
    }

    /// Returns the number of events so far that found no room.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Returns true if the thread has ended. Events that it put in before can still be
    /// [drained](Buffer::drain).
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::EventType;

    fn event(number: u64) -> Event {
        let (id, a, b) = (number, number.wrapping_mul(3), !number);
        Event { time: number, kind: EventType::Registered, id, a, b }
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let buffer = Buffer::new(4);
        let half: Vec<bool> = (0..6).map(|number| buffer.push(event(number))).collect();
        assert_eq!(half, [false, false, true, false, false, false]);
        assert_eq!(buffer.lost(), 2);
        let mut found = Vec::new();
        buffer.drain(|event| found.push(event.id));
        assert_eq!(found, [0, 1, 2, 3]);
        assert!(!buffer.push(event(7)));
        buffer.drain(|event| found.push(event.id));
        assert_eq!(found, [0, 1, 2, 3, 7]);
    }

    /// Each event is either taken out whole, once, in order, or counted as lost.
    #[test]
    fn no_event_is_torn() {
        const COUNT: u64 = if cfg!(miri) { 300 } else { 5_000_000 };
        let buffers = [(); 2].map(|()| Arc::new(Buffer::new(1 << 8)));
        thread::scope(|scope| {
            for buffer in &buffers {
                scope.spawn(|| {
                    for number in 0..COUNT {
                        buffer.push(event(number));
                    }
                    buffer.end();
                });
            }
            let mut taken = [0; 2];
            let mut next = [0; 2];
            loop {
                let is_over = buffers.iter().all(|buffer| buffer.is_over());
                for (index, buffer) in buffers.iter().enumerate() {
                    buffer.drain(|found| {
                        assert_eq!(found, event(found.id));
                        assert!(found.id >= next[index], "in order");
                        next[index] = found.id + 1;
                        taken[index] += 1;
                    });
                }
                if is_over {
                    break;
                }
            }
            for (buffer, taken) in buffers.iter().zip(taken) {
                assert_eq!(taken + buffer.lost(), COUNT);
            }
        });
    }
}
