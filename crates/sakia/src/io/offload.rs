//! A thread that reads a file ahead of a reader.
//!
//! The thread and the reader exchange a fixed number of blocks: empty ones go one way, full ones in order the
//! other way. Both sides wake each other rarely, since a wake costs as much as reading tens of KiB:
//! - The thread sleeps when it has used up its empty blocks. It is woken when half of all blocks are empty,
//!   and takes all of them at once.
//! - The reader waits when no block is full. It is woken when half of all blocks are full; or at once for the
//!   first block, the end, an error, or after a read that took longer than a wake would.
//!
//! Neither side waits for ever. When the reader waits, no block is full and it holds none, so all of them are
//! empty or with the thread; so the thread fills half of them sooner or later, or reaches the end. While the
//! thread sleeps, fewer than half are empty, so the reader has some that are full.
//!
//! After the end or an error the thread reads on only when the reader asks again, so the reader sees all
//! results in order, and then the file's present contents.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sakia_driver::limits;
use sakia_ring::Process;
use sakia_thread::start_thread;

use super::source::Block;
use super::source::private::{Blocks, Next};
use super::transfer::repeated;

/// The number of blocks taken in a row without waiting, after which other tasks get a turn.
const TURN_BLOCKS: u32 = 16;

/// Blocks of a file that a thread reads ahead; see [`Reader::offload`](super::Reader::offload).
///
/// # Examples
/// See [`Reader::offload`](super::Reader::offload).
pub struct Offloaded {
    shared: Arc<Shared>,
    /// Blocks taken without waiting since other tasks last had a turn.
    taken: u32,
}

/// The state that the reader and the thread share.
struct Shared {
    /// The process that has the thread. In its children the thread may have held the lock.
    process: Process,
    block_bytes: usize,
    /// Half of all blocks.
    half: usize,
    state: Mutex<OffloadState>,
    /// Signaled when the thread has something to do.
    work: Condvar,
}

#[derive(Default)]
struct OffloadState {
    /// For the reader, in the order of the file.
    full: VecDeque<io::Result<(Block, usize)>>,
    /// For the thread.
    empty: Vec<Block>,
    /// The waker of the reader, while it waits for a full block.
    waker: Option<Waker>,
    /// Set while the thread sleeps on `work`.
    is_asleep: bool,
    /// Set when the thread has reached the end or an error, and waits until the reader asks again.
    is_held: bool,
    /// Set when the reader is gone.
    is_stopped: bool,
    /// Set when the thread is gone, by a panic.
    is_broken: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, OffloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads blocks ahead until the reader is gone: the thread's main function.
    fn run(&self, file: &File, mut offset: u64) {
        let mut blocks = Vec::new();
        let mut is_first = true;
        while self.take_empty(&mut blocks) {
            while let Some(mut block) = blocks.pop() {
                let begin = Instant::now();
                let result = repeated(|| file.read_at(&mut block, offset));
                let is_slow = begin.elapsed() >= limits::DEVICE_TIME;
                let is_last = !matches!(result, Ok(count) if count > 0);
                let full = match result {
                    Ok(count) => Ok((block, count)),
                    Err(error) => {
                        blocks.push(block);
                        Err(error)
                    }
                };
                offset += full.as_ref().map_or(0, |&(_, count)| count as u64);
                let is_urgent = is_last || is_slow || std::mem::take(&mut is_first);
                if !self.put_full(full, is_urgent, is_last) {
                    return;
                }
            }
        }
    }

    /// Waits until half of the blocks are empty, and takes all empty ones. Returns false when the reader is
    /// gone.
    fn take_empty(&self, blocks: &mut Vec<Block>) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return false;
            }
            if state.empty.len() >= self.half {
                std::mem::swap(&mut state.empty, blocks);
                return true;
            }
            state = self.sleep(state);
        }
    }

    /// Sleeps until the reader signals.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, OffloadState>,
    ) -> MutexGuard<'a, OffloadState> {
        state.is_asleep = true;
        self.work.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a full block to the reader, and waits after the last one until the reader asks again. Returns
    /// false when the reader is gone.
    fn put_full(&self, full: io::Result<(Block, usize)>, is_urgent: bool, is_last: bool) -> bool {
        let mut state = self.lock();
        state.full.push_back(full);
        state.is_held = is_last;
        let is_time = is_urgent || state.full.len() >= self.half;
        if let Some(waker) = state.waker.take_if(|_| is_time) {
            drop(state);
            waker.wake();
            state = self.lock();
        }
        while state.is_held && !state.is_stopped {
            state = self.sleep(state);
        }
        !state.is_stopped
    }

    /// Marks the thread as panicked, and wakes the reader, which would wait in vain.
    fn break_off(&self) {
        let mut state = self.lock();
        state.is_broken = true;
        let waker = state.waker.take();
        drop(state);
        // This waker may be the one that panicked.
        drop(catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))));
    }
}

impl Offloaded {
    /// The default size of a block in bytes.
    pub(crate) const BLOCK_BYTES: usize = 128 << 10;
    /// The default number of blocks. With all but half of them full, the thread is 512 KiB ahead.
    pub(crate) const BLOCKS: usize = 8;

    pub(crate) fn start(
        file: File,
        offset: u64,
        block_bytes: usize,
        blocks: usize,
    ) -> io::Result<Self> {
        let (block_bytes, blocks) = (block_bytes.max(1), blocks.max(2));
        let empty = (0..blocks).map(|_| Block::zeroed(block_bytes)).collect();
        let full = VecDeque::with_capacity(blocks);
        let state = Mutex::new(OffloadState { full, empty, ..OffloadState::default() });
        let work = Condvar::new();
        let process = Process::current();
        let shared = Arc::new(Shared { process, block_bytes, half: blocks / 2, state, work });
        let thread = Arc::clone(&shared);
        let main = move || {
            // Only a waker can panic.
            if catch_unwind(AssertUnwindSafe(|| thread.run(&file, offset))).is_err() {
                thread.break_off();
            }
        };
        start_thread("sakia-reader", None, Box::new(main))?;
        Ok(Self { shared, taken: 0 })
    }
}

impl Blocks for Offloaded {
    fn poll_block(&mut self, cx: &mut Context<'_>, spent: &mut Option<Block>) -> Poll<Next> {
        if !self.shared.process.is_intact() {
            let message = "the file is read by a thread of the parent process: a forked child must start a \
                           reader of its own";
            return Poll::Ready(Err(io::Error::other(message)));
        }
        let is_turn_over = self.taken >= TURN_BLOCKS;
        let mut state = self.shared.lock();
        state.empty.extend(spent.take());
        let full = if is_turn_over { None } else { state.full.pop_front() };
        let resumes = full.is_none() && !is_turn_over && std::mem::take(&mut state.is_held);
        let has_work = resumes || state.empty.len() >= self.shared.half && !state.is_held;
        let wakes_thread = has_work && std::mem::take(&mut state.is_asleep);
        let Some(full) = full else {
            let is_broken = state.is_broken;
            let is_known = state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            let previous = match is_known || is_turn_over || is_broken {
                true => None,
                false => state.waker.replace(cx.waker().clone()),
            };
            drop(state);
            drop(previous); // users' code
            if wakes_thread {
                self.shared.work.notify_one();
            }
            self.taken = 0;
            if is_turn_over {
                cx.waker().wake_by_ref();
            } else if is_broken {
                return Poll::Ready(Err(io::Error::other("the reading thread panicked")));
            }
            return Poll::Pending;
        };
        drop(state);
        if wakes_thread {
            self.shared.work.notify_one();
        }
        self.taken += 1;
        match full? {
            (block, 0) => {
                self.shared.lock().empty.push(block);
                Poll::Ready(Ok(None))
            }
            (block, count) => Poll::Ready(Ok(Some((block, 0..count)))),
        }
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        if !self.shared.process.is_intact() {
            return;
        }
        let mut state = self.shared.lock();
        state.is_stopped = true;
        let waker = state.waker.take();
        drop(state);
        self.shared.work.notify_one();
        drop(waker); // users' code
    }
}

impl fmt::Debug for Offloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block_bytes = self.shared.block_bytes;
        f.debug_struct("Offloaded").field("block_bytes", &block_bytes).finish_non_exhaustive()
    }
}
