//! Gathered writes: which small writes wait in a queue, how long, and when they are sent.

use core::time::Duration;

use crate::{Fifo, Impossible};

/// Writes of at most this many bytes are gathered.
const SMALL: usize = 4096;
/// This many small writes without a wait between them go to the kernel before one is gathered.
const SMALL_WRITES: u32 = 8;
/// Bytes that found no room in the kernel are due again after this time, and after twice as long each time
/// that the kernel takes none: a peer that does not read costs few calls.
const RETRY: Duration = Duration::from_millis(1);
/// The most doublings of this time: up to 64 milliseconds.
const DOUBLINGS: u32 = 6;

/// The limits of waiting bytes: their number, and their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueLimits {
    /// The most bytes that wait; the memory that [`WriteQueue::begin`] provides has this size.
    pub bytes: usize,
    /// The longest wait of a byte while the program computes.
    pub delay: Duration,
}

impl Default for QueueLimits {
    /// Returns 64 KiB and 100 microseconds.
    fn default() -> Self {
        Self { bytes: 64 << 10, delay: Duration::from_micros(100) }
    }
}

/// The plan for the next write to a stream socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePlan {
    /// A plain call with the caller's bytes. It may block, with no lock held. Nothing is reported.
    Direct,
    /// The bytes fit after those that wait: [`WriteQueue::push`] takes them, and no call is made. If there is
    /// no memory yet, [`WriteQueue::begin`] provides it first.
    Queue,
    /// One call with the [queued](WriteQueue::queued) bytes and the caller's after them, which must not
    /// block, under the lock of this direction; [`WriteQueue::sent`] follows. Then the rest is planned again.
    /// If queued bytes are left, the kernel has no room: the caller waits for it, or pushes the bytes that
    /// fit and returns `EAGAIN` for the rest.
    Flush,
    /// The socket is shut down for writing, or bytes of it were lost: the write fails with `EPIPE`, from a
    /// call of the kernel if [`refuses_alone`](WriteQueue::refuses_alone) is false.
    Refuse,
}

/// The sending side of a stream socket, whose bytes may wait in memory `M`.
///
/// It is for sockets whose program allows delayed writes. Writes go to the kernel until 8 of at most 4 KiB
/// came without a wait between them; then they are gathered until a wait, a larger write, or the
/// [limits](QueueLimits). No byte overtakes another.
#[derive(Debug)]
pub struct WriteQueue<M> {
    queue: Option<Fifo<M>>,
    limits: QueueLimits,
    /// Small writes since the last wait.
    small_writes: u32,
    /// The time at which the oldest byte of the queue has to be sent.
    due: Option<Duration>,
    /// Calls in a row that found no room.
    refusals: u32,
    shutdown: Shutdown,
}

/// The progress of the sending side's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    /// It was not requested.
    No,
    /// The kernel is told once the queue is empty.
    Asked,
    /// The kernel was told.
    Done,
    /// Queued bytes were dropped, so that no later bytes may follow.
    Failed,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> WriteQueue<M> {
    /// Returns the sending side of a socket to which nothing was written.
    pub fn new(limits: QueueLimits) -> Self {
        let (small_writes, refusals) = (0, 0);
        Self { queue: None, limits, small_writes, due: None, refusals, shutdown: Shutdown::No }
    }

    /// Returns the number of bytes that wait. `SIOCOUTQ` is the sum of this and the kernel's number.
    pub fn len(&self) -> usize {
        self.queue.as_ref().map_or(0, Fifo::len)
    }

    /// Returns true if no byte waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true while small writes are gathered.
    pub fn is_gathering(&self) -> bool {
        self.small_writes > SMALL_WRITES
    }

    /// Gathers small writes without evidence, until a wait or a larger write.
    pub fn start(&mut self) {
        self.small_writes = self.small_writes.max(SMALL_WRITES);
    }

    /// Returns the plan for the next write, of `len` bytes, and counts it.
    pub fn plan(&mut self, len: usize) -> WritePlan {
        if self.shutdown != Shutdown::No {
            return WritePlan::Refuse;
        }
        if len == 0 {
            return WritePlan::Direct; // an empty write only asks for errors
        }
        let is_small = len <= SMALL;
        self.small_writes = if is_small { self.small_writes.saturating_add(1) } else { 0 };
        self.plan_rest(len)
    }

    /// Returns the plan for the rest of a write, `len` bytes, after a [`Flush`](WritePlan::Flush). It is the
    /// same write, and not counted.
    pub fn plan_rest(&self, len: usize) -> WritePlan {
        if self.shutdown != Shutdown::No {
            return WritePlan::Refuse;
        }
        let free = self.queue.as_ref().map_or(self.limits.bytes, Fifo::free);
        match (self.is_gathering() && len <= free, self.is_empty()) {
            (true, _) => WritePlan::Queue,
            (false, true) => WritePlan::Direct,
            (false, false) => WritePlan::Flush,
        }
    }

    /// Provides memory for bytes that wait, of the size in the limits.
    ///
    /// # Panics
    /// If it has memory already.
    pub fn begin(&mut self, memory: M) {
        assert!(self.queue.is_none(), "memory was given before");
        self.queue = Some(Fifo::new(memory));
    }

    /// Returns true if [`begin`](WriteQueue::begin) has provided memory.
    pub fn has_memory(&self) -> bool {
        self.queue.is_some()
    }

    /// Appends as many of `bytes` as fit. Returns their number: none without memory. Calls `now` only for the
    /// first byte of a queue.
    pub fn push(&mut self, bytes: &[u8], now: impl FnOnce() -> Duration) -> usize {
        let count = self.queue.as_mut().map_or(0, |queue| queue.push(bytes));
        if count > 0 && self.due.is_none() {
            self.due = Some(now().saturating_add(self.limits.delay));
        }
        count
    }

    /// Returns the bytes that wait, in two consecutive pieces.
    pub fn queued(&self) -> (&[u8], &[u8]) {
        self.queue.as_ref().map_or((&[], &[]), Fifo::pieces)
    }

    /// Notes that a call with the queued bytes and `len` of the caller's after them has sent `count` bytes.
    /// Returns how many of these are the caller's.
    ///
    /// # Errors
    /// [`Impossible`] if `count` is larger than all of them.
    pub fn sent(&mut self, len: usize, count: usize) -> Result<usize, Impossible> {
        let queued = self.len();
        let mine = count.saturating_sub(queued);
        if mine > len {
            return Err(Impossible);
        }
        if let Some(queue) = &mut self.queue {
            queue.discard(count);
        }
        if self.is_empty() {
            self.due = None;
        }
        if count > 0 {
            self.refusals = 0;
        }
        Ok(mine)
    }

    /// Returns the time at which the oldest byte has to be sent, if one waits.
    pub fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Returns true if queued bytes have to be sent at the time `now`. Bytes that are due later than is
    /// possible count as due, too: the clock went back.
    pub fn is_due(&self, now: Duration) -> bool {
        let longest = self.limits.delay.max(RETRY * (1 << DOUBLINGS));
        self.due.is_some_and(|due| due <= now || due > now.saturating_add(longest))
    }

    /// Notes that the kernel had no room for all queued bytes at the time `now`: they are due again after a
    /// millisecond, or twice the time of the last call if that found no room either, up to 64 milliseconds.
    pub fn postpone(&mut self, now: Duration) {
        if !self.is_empty() {
            self.due = Some(now.saturating_add(RETRY * (1 << self.refusals.min(DOUBLINGS))));
            self.refusals = self.refusals.saturating_add(1);
        }
    }

    /// Returns true if the last two calls found no room at all: another one before the queued bytes are
    /// [due](WriteQueue::is_due) would most likely find none either.
    pub fn is_postponed(&self) -> bool {
        self.refusals > 1
    }

    /// Notes that the program waits, or may wait: small writes go to the kernel again. The queue must be sent
    /// first.
    pub fn waited(&mut self) {
        self.small_writes = 0;
    }

    /// Drops the queued bytes, which can no longer be sent, and refuses further ones: the peer must not see
    /// later bytes without them. Returns their number.
    pub fn fail(&mut self) -> usize {
        (self.due, self.refusals) = (None, 0);
        self.shutdown = Shutdown::Failed;
        self.queue.as_mut().map_or(0, |queue| queue.discard(usize::MAX))
    }

    /// Notes that the program shuts the sending side down: no further bytes are taken.
    pub fn shut_down(&mut self) {
        if self.shutdown == Shutdown::No {
            self.shutdown = Shutdown::Asked;
        }
    }

    /// Returns true if a write has to fail with `EPIPE` without a call, which might succeed: the kernel was
    /// not told of the shutdown yet, or queued bytes were lost.
    pub fn refuses_alone(&self) -> bool {
        matches!(self.shutdown, Shutdown::Asked | Shutdown::Failed)
    }

    /// Returns true while the kernel was not told of a shutdown, since bytes have to be sent before.
    pub fn has_end(&self) -> bool {
        self.shutdown == Shutdown::Asked && !self.is_empty()
    }

    /// Returns true once, when the kernel has to be told of the shutdown: all queued bytes were sent.
    pub fn take_shutdown(&mut self) -> bool {
        let is_time = self.shutdown == Shutdown::Asked && self.is_empty();
        if is_time {
            self.shutdown = Shutdown::Done;
        }
        is_time
    }

    /// Returns true if the socket counts as writable: a third of the queue is free, or the next write fails
    /// at once because the sending side is shut down.
    pub fn has_room(&self) -> bool {
        self.shutdown != Shutdown::No
            || self.queue.as_ref().is_none_or(|queue| queue.free() * 3 >= queue.capacity())
    }

    /// Gives the memory back, if no byte waits in it.
    pub fn give_back(&mut self) -> Option<M> {
        if self.is_empty() { self.queue.take().map(Fifo::into_memory) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    type Queue = WriteQueue<Box<[u8]>>;

    const LIMITS: QueueLimits = QueueLimits { bytes: 64, delay: Duration::from_micros(100) };

    /// A kernel with limited room for bytes.
    #[derive(Default)]
    struct Kernel {
        taken: Vec<u8>,
        room: usize,
        calls: usize,
    }

    impl Kernel {
        fn send(&mut self, pieces: &[&[u8]]) -> usize {
            self.calls += 1;
            let mut count = 0;
            for byte in pieces.iter().copied().flatten() {
                if self.room == 0 {
                    break;
                }
                self.room -= 1;
                self.taken.push(*byte);
                count += 1;
            }
            count
        }
    }

    /// Writes like a layer on a non-blocking socket. Returns the number of bytes accepted.
    fn write(queue: &mut Queue, kernel: &mut Kernel, bytes: &[u8], now: Duration) -> usize {
        let mut accepted = 0;
        let mut plan = queue.plan(bytes.len());
        loop {
            let rest = &bytes[accepted..];
            match plan {
                WritePlan::Refuse => return accepted,
                WritePlan::Direct => return accepted + kernel.send(&[rest]),
                WritePlan::Queue => {
                    if !queue.has_memory() {
                        queue.begin(vec![0; LIMITS.bytes].into());
                    }
                    return accepted + queue.push(rest, || now);
                }
                WritePlan::Flush => {
                    let (first, second) = queue.queued();
                    let count = kernel.send(&[first, second, rest]);
                    accepted += queue.sent(rest.len(), count).expect("the count is true");
                    if !queue.is_empty() {
                        return accepted + queue.push(&bytes[accepted..], || now);
                    }
                    plan = queue.plan_rest(bytes.len() - accepted);
                }
            }
            if accepted == bytes.len() {
                return accepted;
            }
        }
    }

    fn flush(queue: &mut Queue, kernel: &mut Kernel) {
        let (first, second) = queue.queued();
        let count = kernel.send(&[first, second]);
        assert_eq!(queue.sent(0, count), Ok(0));
    }

    /// Returns a queue that gathers, since it took 8 writes of one byte, and its kernel.
    fn gathering() -> (Queue, Kernel) {
        let (mut queue, mut kernel) =
            (Queue::new(LIMITS), Kernel { room: 1000, ..Kernel::default() });
        for _ in 0..SMALL_WRITES {
            assert_eq!(write(&mut queue, &mut kernel, b"-", Duration::ZERO), 1);
        }
        assert_eq!((kernel.calls, queue.len()), (SMALL_WRITES as usize, 0));
        (queue, kernel)
    }

    proptest! {
        /// Every accepted byte is sent once and in order, whatever room the kernel has.
        #[test]
        fn sends_what_it_accepted(
            steps in prop::collection::vec((0_u8..8, 0_usize..60), 1..300),
        ) {
            let (mut queue, mut kernel) = (Queue::new(LIMITS), Kernel::default());
            let mut accepted = Vec::new();
            let mut next = 0_u8;
            for (kind, size) in steps {
                match kind {
                    0 => kernel.room += size,
                    1 => { flush(&mut queue, &mut kernel); queue.waited(); }
                    2 => { write(&mut queue, &mut kernel, &[], Duration::ZERO); }
                    _ => {
                        let first = next;
                        let count = size * usize::from(kind / 3);
                        next = first.wrapping_add(count as u8);
                        let byte = |place| first.wrapping_add(place as u8);
                        let bytes: Vec<u8> = (0..count).map(byte).collect();
                        let count = write(&mut queue, &mut kernel, &bytes, Duration::ZERO);
                        accepted.extend(&bytes[..count]);
                    }
                }
                prop_assert_eq!(queue.due().is_some(), !queue.is_empty());
                prop_assert!(accepted.starts_with(&kernel.taken));
                prop_assert_eq!(accepted.len() - kernel.taken.len(), queue.len());
            }
            kernel.room = usize::MAX;
            flush(&mut queue, &mut kernel);
            prop_assert_eq!(kernel.taken, accepted);
        }

        /// After an end and failures in any order, a stream takes nothing more. The kernel learns of the
        /// end once, behind the last byte, and never after lost bytes.
        #[test]
        fn nothing_is_taken_behind_the_end(
            steps in prop::collection::vec((0_u8..7, 0_usize..60), 1..100),
        ) {
            let (mut queue, mut kernel) = (Queue::new(LIMITS), Kernel::default());
            let (mut accepted, mut is_over, mut told) = (0, false, 0);
            let mut is_lost = false;
            for (kind, size) in steps {
                match kind {
                    0 => kernel.room += size,
                    1 => flush(&mut queue, &mut kernel),
                    2 if size < 6 => {
                        queue.shut_down();
                        is_over = true;
                    }
                    3 if size < 6 => {
                        accepted -= queue.fail();
                        (is_over, is_lost) = (true, true);
                    }
                    4 => {
                        if queue.take_shutdown() {
                            told += 1;
                            prop_assert!(queue.is_empty() && !is_lost);
                        }
                    }
                    _ => {
                        let count = write(&mut queue, &mut kernel, &vec![1; size], Duration::ZERO);
                        prop_assert!(!is_over || count == 0);
                        accepted += count;
                    }
                }
                let plans = [0, 1, SMALL + 1].map(|len| queue.plan(len));
                prop_assert!(!is_over || plans == [WritePlan::Refuse; 3]);
                // If no byte is left and the kernel knows of the end, its answer counts.
                prop_assert_eq!(queue.refuses_alone(), is_over && (is_lost || told == 0));
                prop_assert_eq!(kernel.taken.len() + queue.len(), accepted);
            }
            prop_assert!(told <= 1);
        }

        #[test]
        fn counts_that_lie_end_in_an_error(
            queued in 0_usize..64,
            len in 0_usize..100,
            count in any::<usize>(),
        ) {
            let (mut queue, _) = gathering();
            queue.begin(vec![0; LIMITS.bytes].into());
            queue.push(&vec![0; queued], || Duration::ZERO);
            match queue.sent(len, count) {
                Ok(mine) => prop_assert!(count <= queued + len && mine == count.saturating_sub(queued)),
                Err(Impossible) => prop_assert!(count > queued + len && queue.len() == queued),
            }
        }
    }

    #[test]
    fn the_first_writes_of_a_burst_go_to_the_kernel() {
        let (mut queue, mut kernel) = gathering();
        assert_eq!(write(&mut queue, &mut kernel, b"gathered", Duration::ZERO), 8);
        assert_eq!((kernel.calls, queue.len()), (SMALL_WRITES as usize, 8));
        flush(&mut queue, &mut kernel);
        queue.waited();
        assert_eq!(write(&mut queue, &mut kernel, b"direct", Duration::ZERO), 6);
        assert_eq!((kernel.calls, queue.len()), (SMALL_WRITES as usize + 2, 0));
    }

    #[test]
    fn a_large_write_takes_the_queue_along() {
        let (mut queue, mut kernel) = gathering();
        kernel.room = 10_000;
        write(&mut queue, &mut kernel, b"small", Duration::ZERO);
        let large = vec![b'l'; SMALL + 1];
        assert_eq!(write(&mut queue, &mut kernel, &large, Duration::ZERO), large.len());
        assert_eq!((kernel.calls, queue.len()), (SMALL_WRITES as usize + 1, 0));
        assert!(!queue.is_gathering());
        assert!(kernel.taken.ends_with(&large));
    }

    #[test]
    fn a_full_queue_is_sent_and_a_full_kernel_takes_a_part() {
        let (mut queue, mut kernel) = gathering();
        kernel.room = 10;
        assert_eq!(write(&mut queue, &mut kernel, &[1; 60], Duration::ZERO), 60);
        assert!(!queue.has_room());
        assert_eq!(
            write(&mut queue, &mut kernel, &[2; 40], Duration::ZERO),
            14,
            "10 sent, 14 of 40 fit"
        );
        assert_eq!(write(&mut queue, &mut kernel, &[3; 40], Duration::ZERO), 0, "EAGAIN");
        kernel.room = 1000;
        flush(&mut queue, &mut kernel);
        assert!(queue.has_room() && queue.is_empty());
        assert_eq!(kernel.taken[8..], [[1; 60].as_slice(), &[2; 14]].concat());
    }

    #[test]
    fn the_oldest_byte_says_when_the_queue_is_due() {
        let (mut queue, mut kernel) = gathering();
        let [first, second] = [Duration::from_micros(5), Duration::from_micros(50)];
        write(&mut queue, &mut kernel, b"a", first);
        write(&mut queue, &mut kernel, b"b", second);
        assert_eq!(queue.due(), Some(first + LIMITS.delay));
        kernel.room = 1;
        flush(&mut queue, &mut kernel);
        queue.postpone(second);
        assert_eq!(queue.due(), Some(second + RETRY));
        kernel.room = 1;
        flush(&mut queue, &mut kernel);
        assert_eq!(queue.due(), None);
        queue.postpone(second);
        assert_eq!(queue.due(), None);
    }

    /// A full kernel is tried less and less often, here for a peer that reads nothing for 10 seconds.
    #[test]
    fn a_full_kernel_is_asked_ever_less_often() {
        let (mut queue, mut kernel) = gathering();
        kernel.room = 0;
        write(&mut queue, &mut kernel, b"waits", Duration::ZERO);
        assert!(!queue.is_postponed() && !queue.is_due(Duration::from_micros(99)));
        let (mut calls, mut longest) = (0, Duration::ZERO);
        let mut now = LIMITS.delay;
        while now < Duration::from_secs(10) {
            assert!(queue.is_due(now));
            flush(&mut queue, &mut kernel);
            queue.postpone(now);
            calls += 1;
            let due = queue.due().expect("bytes wait");
            assert!(!queue.is_due(due - Duration::from_nanos(1)));
            assert_eq!(queue.is_postponed(), calls > 1, "a peer may have been slow for once");
            longest = longest.max(due - now);
            now = due;
        }
        assert!(calls < 170, "{calls}");
        assert_eq!(longest, RETRY * 64);
        // A peer that reads a byte is tried again soon.
        kernel.room = 1;
        flush(&mut queue, &mut kernel);
        queue.postpone(now);
        assert_eq!(queue.due(), Some(now + RETRY));
        kernel.room = 100;
        flush(&mut queue, &mut kernel);
        assert!(!queue.is_postponed() && !queue.is_due(Duration::MAX));
    }

    #[test]
    fn bytes_are_due_when_the_clock_goes_back() {
        let (mut queue, mut kernel) = gathering();
        let late = Duration::from_secs(100);
        write(&mut queue, &mut kernel, b"a", late);
        assert!(!queue.is_due(late));
        assert!(queue.is_due(Duration::from_secs(1)));
    }

    #[test]
    fn the_time_is_asked_for_the_first_byte_only() {
        let (mut queue, mut kernel) = gathering();
        queue.begin(vec![0; LIMITS.bytes].into());
        let mut looks = 0;
        for _ in 0..2 {
            for _ in 0..5 {
                queue.push(b"-", || {
                    looks += 1;
                    Duration::ZERO
                });
            }
            flush(&mut queue, &mut kernel);
        }
        assert_eq!(looks, 2);
    }

    #[test]
    fn the_kernel_hears_of_a_shutdown_after_the_last_byte() {
        let (mut queue, mut kernel) = gathering();
        write(&mut queue, &mut kernel, b"last", Duration::ZERO);
        assert!(!queue.refuses_alone());
        queue.push(&[0; 64], || Duration::ZERO);
        assert!(!queue.has_room());
        queue.shut_down();
        assert!(queue.has_room(), "for EPIPE");
        assert!(!queue.take_shutdown());
        assert_eq!(queue.plan(1), WritePlan::Refuse);
        assert!(queue.refuses_alone(), "the kernel would take the byte");
        flush(&mut queue, &mut kernel);
        assert!(queue.take_shutdown());
        assert!(!queue.refuses_alone());
        assert!(!queue.take_shutdown());
        assert_eq!(queue.plan(1), WritePlan::Refuse);
    }

    #[test]
    fn bytes_that_cannot_be_sent_are_dropped() {
        let (mut queue, mut kernel) = gathering();
        write(&mut queue, &mut kernel, b"lost", Duration::ZERO);
        assert!(queue.give_back().is_none());
        assert_eq!(queue.fail(), 4);
        assert_eq!((queue.due(), queue.len()), (None, 0));
        assert!(queue.give_back().is_some());
        // A byte behind the lost ones would be a hole in the stream.
        assert_eq!(queue.plan(1), WritePlan::Refuse);
        assert!(queue.refuses_alone());
    }
}
