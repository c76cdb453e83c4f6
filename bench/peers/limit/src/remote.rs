//! Tasks of tokio that await reads of a ring on another thread: the least that an engine below tokio's
//! runtimes costs.
//!
//! A task appends its number to a list, and wakes the ring's thread if that sleeps. The thread submits the
//! reads of the whole list by one call. When the list is empty it waits for completions, and wakes their
//! tasks. It also computes the check of a block, so that no memory is shared. There is no other work: a task
//! has one slot, which it never gives up.

use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::thread;

use futures_util::task::AtomicWaker;
use io_uring::opcode;
use io_uring::types::Fd;
use peers_common::block::{aligned, marks};
use peers_common::files::expect_whole;
use peers_common::measure::on_threads;

use peers_common::{Gate, Job, Tally, fail, joined};
use tokio::runtime::Builder;

use super::{ENTRIES, Ring, read_entry, result};

/// The user data of the read that a wake-up ends.
const WAKE: usize = usize::MAX;

/// The request of one task.
#[derive(Default)]
struct Slot {
    offset: AtomicU64,
    /// The check of the block, once it is read.
    check: AtomicU64,
    is_done: AtomicBool,
    waker: AtomicWaker,
}

struct Shared {
    slots: Vec<Slot>,
    /// The numbers of slots with a new request.
    requests: Mutex<Vec<usize>>,
    is_asleep: AtomicBool,
    is_over: AtomicBool,
    /// An event descriptor, from which the ring reads.
    event: File,
}

/// Runs random reads by the job's variant of tokio: `mt` or `ct`.
pub fn run(job: Job) {
    let work = move |gate: Arc<Gate>, _| {
        let mut builder = match job.variant.as_str() {
            "mt" => Builder::new_multi_thread(),
            _ => Builder::new_current_thread(),
        };
        let runtime = builder.build().unwrap_or_else(|error| fail("tokio", error));
        let slots = (0..job.tasks).map(|_| Slot::default()).collect();
        let shared = Arc::new(Shared {
            slots,
            requests: Mutex::default(),
            is_asleep: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            event: event().unwrap_or_else(|error| fail("eventfd", error)),
        });
        let server = {
            let (shared, job) = (shared.clone(), job.clone());
            thread::spawn(move || shared.serve(&job))
        };
        gate.begin();
        let tally = runtime.block_on(all(&shared, &job));
        gate.end();
        shared.is_over.store(true, Ordering::SeqCst);
        shared.wake();
        server.join().unwrap_or_else(|_| fail("run", "the ring's thread panicked"));
        tally
    };
    on_threads(1, work, |tally| tally);
}

/// Runs all tasks to their end.
async fn all(shared: &Arc<Shared>, job: &Job) -> Tally {
    let start = |task| {
        let (shared, offsets) = (shared.clone(), job.offsets(task));
        tokio::spawn(async move {
            let mut tally = Tally::default();
            for offset in offsets {
                tally.count(shared.read(task as usize, offset).await);
            }
            tally
        })
    };
    let handles: Vec<_> = (0..job.tasks).map(start).collect();
    let mut total = Tally::default();
    for handle in handles {
        total.add(joined(handle).await);
    }
    total
}

fn event() -> io::Result<File> {
    // SAFETY: the call takes no memory.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new.
    Ok(unsafe { File::from_raw_fd(fd) })
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Vec<usize>> {
        self.requests.lock().expect("no thread panics with the lock")
    }

    /// Reads a block. Resolves to its check.
    async fn read(&self, number: usize, offset: u64) -> u64 {
        let slot = &self.slots[number];
        let mut is_sent = false;
        poll_fn(|cx| {
            slot.waker.register(cx.waker());
            if !mem::replace(&mut is_sent, true) {
                slot.offset.store(offset, Ordering::Relaxed);
                self.requests().push(number);
                if self.is_asleep.swap(false, Ordering::SeqCst) {
                    self.wake();
                }
            }
            match slot.is_done.swap(false, Ordering::Acquire) {
                true => Poll::Ready(slot.check.load(Ordering::Relaxed)),
                false => Poll::Pending,
            }
        })
        .await
    }

    fn wake(&self) {
        (&self.event).write_all(&1u64.to_ne_bytes()).expect("an event descriptor takes a 1");
    }

    /// Serves the requests of all tasks on a ring of this thread.
    fn serve(&self, job: &Job) {
        let mut ring = Ring::new(ENTRIES).unwrap_or_else(|error| fail("io_uring", error));
        let _file = ring.open(job);
        let word = aligned(8).as_mut_ptr();
        let mut buffers: Vec<_> = self.slots.iter().map(|_| aligned(job.block)).collect();
        let (mut requests, mut done) = (Vec::new(), Vec::with_capacity(ENTRIES as usize));
        let mut is_armed = false;
        while !self.is_over.load(Ordering::SeqCst) {
            mem::swap(&mut *self.requests(), &mut requests);
            let has_requests = !requests.is_empty();
            for number in requests.drain(..) {
                let offset = self.slots[number].offset.load(Ordering::Relaxed);
                let entry = read_entry(buffers[number], offset);
                // SAFETY: the buffer lives for ever, and is looked at only when it was read into.
                unsafe { ring.push(entry, number) };
            }
            if !mem::replace(&mut is_armed, true) {
                let entry = opcode::Read::new(Fd(self.event.as_raw_fd()), word, 8).build();
                // SAFETY: the word lives for ever, and is never looked at.
                unsafe { ring.push(entry, WAKE) };
            }
            if has_requests {
                // Meanwhile the tasks append more, which need no wake-up.
                ring.submit();
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            if !self.requests().is_empty() {
                self.is_asleep.store(false, Ordering::SeqCst);
                continue;
            }
            ring.turn(&mut done);
            self.is_asleep.store(false, Ordering::SeqCst);
            for entry in &done {
                let number = entry.user_data() as usize;
                if number == WAKE {
                    is_armed = false;
                    continue;
                }
                expect_whole(job, result(entry));
                let slot = &self.slots[number];
                slot.check.store(marks(buffers[number]), Ordering::Relaxed);
                slot.is_done.store(true, Ordering::Release);
                slot.waker.wake();
            }
        }
    }
}
