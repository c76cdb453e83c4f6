//! A thread's buffer: one thread writes, one reads, and neither takes a lock.
//!
//! The writing thread stores the words of an event by plain stores; the reading thread sees them once it sees
//! the position after them. A full buffer drops events, and counts them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::encode::ThreadInfo;
use crate::{Event, sample};

/// Events of a part of a buffer, of which memory is taken when it is first written.
const PART: usize = 1 << 13;
/// Events that are taken out before their room is given back.
const BATCH: usize = 1 << 6;

/// The words of events.
type Part = Box<[[AtomicU64; 4]]>;

/// The events of one thread that have not been written to the file yet.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// The thread that puts events in.
    pub(crate) owner: ThreadInfo,
    /// Events that it holds: a power of two.
    len: usize,
    parts: Box<[OnceLock<Part>]>,
    writing: Writing,
    reading: Reading,
}

/// Changed by the writing thread, in a cache line that the reading one does not change.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Writing {
    /// Events ever put in.
    end: AtomicUsize,
    /// The value of `begin` when the writing thread last looked. Only that thread uses it.
    seen: AtomicUsize,
    lost: AtomicU64,
    /// Set when the thread has ended and adds no more events.
    is_over: AtomicBool,
}

/// Changed by the reading thread.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Reading {
    /// Events ever taken out.
    begin: AtomicUsize,
}

impl Buffer {
    /// Makes a thread's buffer for `len` events, which is a power of two.
    pub(crate) fn new(owner: ThreadInfo, len: usize) -> Self {
        assert!(len.is_power_of_two());
        let parts = (0..len.div_ceil(PART)).map(|_| OnceLock::new()).collect();
        Self { owner, len, parts, writing: Writing::default(), reading: Reading::default() }
    }

    /// Puts an event in; only the buffer's thread calls this. Returns true if the buffer has become half
    /// full.
    #[inline]
    pub(crate) fn push(&self, event: Event) -> bool {
        let Writing { end, seen, lost, .. } = &self.writing;
        let at = end.load(Ordering::Relaxed);
        let mut filled = at.wrapping_sub(seen.load(Ordering::Relaxed));
        if filled >= self.len / 2 {
            let begin = self.reading.begin.load(Ordering::Acquire);
            seen.store(begin, Ordering::Relaxed);
            filled = at.wrapping_sub(begin);
            if filled >= self.len {
                lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        let index = at & (self.len - 1);
        let part = &self.parts[index / PART];
        let part = match part.get() {
            Some(part) => part,
            None => self.add_part(index / PART),
        };
        for (word, value) in part[index % PART].iter().zip(event.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        end.store(at.wrapping_add(1), Ordering::Release);
        filled == self.len / 2
    }

    #[cold]
    #[inline(never)]
    fn add_part(&self, index: usize) -> &[[AtomicU64; 4]] {
        self.parts[index].get_or_init(|| {
            let slots = (0..self.len.min(PART)).map(|_| [const { AtomicU64::new(0) }; 4]);
            sample::as_own_work(|| slots.collect())
        })
    }

    /// Takes all events out, in the order in which they were put in, about `now`; only one thread at a time
    /// calls this.
    pub(crate) fn drain(&self, now: u64, mut take: impl FnMut(Event)) {
        let end = self.writing.end.load(Ordering::Acquire);
        let mut at = self.reading.begin.load(Ordering::Relaxed);
        while at != end {
            let index = at & (self.len - 1);
            let Some(part) = self.parts[index / PART].get() else { break };
            let slot = &part[index % PART];
            let words = [0, 1, 2, 3].map(|index| slot[index].load(Ordering::Relaxed));
            at = at.wrapping_add(1);
            if at == end || at.is_multiple_of(BATCH) {
                self.reading.begin.store(at, Ordering::Release);
            }
            if let Some(event) = Event::from_words(words) {
                take(event.near(now));
            }
        }
    }

    /// Returns the number of events so far that found no room.
    pub(crate) fn lost(&self) -> u64 {
        self.writing.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.writing.is_over.store(true, Ordering::Release);
    }

    /// Returns true if the thread has ended. Events that it put in before can still be
    /// [drained](Buffer::drain).
    pub(crate) fn is_over(&self) -> bool {
        self.writing.is_over.load(Ordering::Acquire)
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

    fn buffer(len: usize) -> Buffer {
        Buffer::new(ThreadInfo { pid: 1, tid: 1, name: String::new() }, len)
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let buffer = buffer(4);
        let half: Vec<bool> = (0..6).map(|number| buffer.push(event(number))).collect();
        assert_eq!(half, [false, false, true, false, false, false]);
        assert_eq!(buffer.lost(), 2);
        let mut found = Vec::new();
        buffer.drain(0, |event| found.push(event.id));
        assert_eq!(found, [0, 1, 2, 3]);
        assert!(!buffer.push(event(7)));
        buffer.drain(0, |event| found.push(event.id));
        assert_eq!(found, [0, 1, 2, 3, 7]);
    }

    /// Each event is either taken out whole, once and in order, or counted as lost.
    #[test]
    fn no_event_is_torn() {
        const COUNT: u64 = if cfg!(miri) { 300 } else { 5_000_000 };
        let buffers = [(); 2].map(|()| Arc::new(buffer(1 << 8)));
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
                    buffer.drain(0, |found| {
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
