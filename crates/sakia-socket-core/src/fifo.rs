//! Bytes in order, in the caller's memory.

use crate::Impossible;

/// A queue of bytes in a fixed piece of memory `M`, which it owns: a `Box<[u8]>`, a `&mut [u8]`, a mapping.
///
/// The bytes of the memory that are not in the queue keep their values: wipe the memory before it goes to
/// another owner, if that matters.
#[derive(Debug)]
pub struct Fifo<M> {
    memory: M,
    /// The index of the first byte; below the memory's length, or 0.
    head: usize,
    len: usize,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Fifo<M> {
    /// Makes an empty queue in `memory`.
    pub fn new(memory: M) -> Self {
        Self { memory, head: 0, len: 0 }
    }

    /// Returns the number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no byte is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of bytes that the memory holds.
    pub fn capacity(&self) -> usize {
        self.memory.as_ref().len()
    }

    /// Returns the number of further bytes that fit.
    pub fn free(&self) -> usize {
        self.capacity() - self.len
    }

    /// Returns the bytes in order, in two pieces: the second begins where the memory ends.
    pub fn pieces(&self) -> (&[u8], &[u8]) {
        let memory = self.memory.as_ref();
        let first = self.len.min(memory.len() - self.head);
        (&memory[self.head..self.head + first], &memory[..self.len - first])
    }

    /// Appends as many of `bytes` as fit. Returns their number.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.free());
        let capacity = self.capacity();
        let tail = wrap(self.head + self.len, capacity);
        let first = count.min(capacity - tail);
        let memory = self.memory.as_mut();
        memory[tail..tail + first].copy_from_slice(&bytes[..first]);
        memory[..count - first].copy_from_slice(&bytes[first..count]);
        self.len += count;
        count
    }

    /// Copies the first bytes to `out`, as many as there are and fit, and leaves them in the queue. Returns
    /// their number.
    pub fn peek(&self, out: &mut [u8]) -> usize {
        let (first, second) = self.pieces();
        let in_first = first.len().min(out.len());
        out[..in_first].copy_from_slice(&first[..in_first]);
        let in_second = second.len().min(out.len() - in_first);
        out[in_first..in_first + in_second].copy_from_slice(&second[..in_second]);
        in_first + in_second
    }

    /// Removes the first `count` bytes, or all if there are fewer. Returns their number.
    pub fn discard(&mut self, count: usize) -> usize {
        let count = count.min(self.len);
        self.len -= count;
        // An empty queue begins at the front again, so that the free memory is one piece.
        self.head = if self.len == 0 { 0 } else { wrap(self.head + count, self.capacity()) };
        count
    }

    /// Moves the first bytes to `out`, as many as there are and fit. Returns their number.
    pub fn pop(&mut self, out: &mut [u8]) -> usize {
        let count = self.peek(out);
        self.discard(count)
    }

    /// Returns the whole memory, to be filled from its beginning by the kernel. Bytes in the queue are
    /// dropped.
    pub fn fill(&mut self) -> &mut [u8] {
        (self.head, self.len) = (0, 0);
        self.memory.as_mut()
    }

    /// Takes the first `count` bytes of the memory into the queue, after [`fill`](Fifo::fill).
    ///
    /// # Errors
    /// [`Impossible`] if the memory is shorter.
    pub fn filled(&mut self, count: usize) -> Result<(), Impossible> {
        if count > self.capacity() {
            return Err(Impossible);
        }
        (self.head, self.len) = (0, count);
        Ok(())
    }

    /// Returns the memory. Bytes in the queue are dropped.
    pub fn into_memory(self) -> M {
        self.memory
    }
}

/// Wraps `place`, which is below twice `capacity`, around the end of the memory.
fn wrap(place: usize, capacity: usize) -> usize {
    if place < capacity { place } else { place - capacity }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// Returns the next `count` bytes of a sequence.
    fn numbered(next: &mut u8, count: usize) -> Vec<u8> {
        let first = *next;
        *next = first.wrapping_add(count as u8);
        (0..count).map(|place| first.wrapping_add(place as u8)).collect()
    }

    proptest! {
        /// A FIFO of any size returns the same bytes as a `VecDeque`, in the same order.
        #[test]
        fn is_a_queue(
            capacity in 0_usize..20,
            steps in prop::collection::vec((0_u8..4, 0_usize..24), 1..200),
        ) {
            let mut fifo = Fifo::new(vec![0; capacity]);
            let mut model = VecDeque::new();
            let mut next = 0_u8;
            for (kind, count) in steps {
                match kind {
                    0 => {
                        let bytes = numbered(&mut next, count);
                        let pushed = fifo.push(&bytes);
                        prop_assert_eq!(pushed, count.min(capacity - model.len()));
                        model.extend(&bytes[..pushed]);
                    }
                    1 => {
                        let mut out = vec![0; count];
                        let popped = fifo.pop(&mut out);
                        let expected: Vec<u8> = model.drain(..count.min(model.len())).collect();
                        prop_assert_eq!(&out[..popped], &expected[..]);
                    }
                    2 => {
                        let mut out = vec![0; count];
                        let peeked = fifo.peek(&mut out);
                        let expected: Vec<u8> = model.iter().copied().take(count).collect();
                        prop_assert_eq!(&out[..peeked], &expected[..]);
                    }
                    _ => {
                        let discarded = fifo.discard(count);
                        prop_assert_eq!(discarded, count.min(model.len()));
                        model.drain(..discarded);
                    }
                }
                let (first, second) = fifo.pieces();
                let all: Vec<u8> = first.iter().chain(second).copied().collect();
                prop_assert_eq!(all, model.iter().copied().collect::<Vec<u8>>());
                prop_assert_eq!((fifo.len(), fifo.free()), (model.len(), capacity - model.len()));
            }
        }
    }

    #[test]
    fn more_than_the_memory_holds_was_never_filled() {
        let mut fifo = Fifo::new([0; 4]);
        fifo.fill().copy_from_slice(b"abcd");
        assert_eq!(fifo.filled(5), Err(Impossible));
        assert!(fifo.is_empty());
        assert_eq!(fifo.filled(4), Ok(()));
        assert_eq!(fifo.pieces(), (&b"abcd"[..], &b""[..]));
    }
}
