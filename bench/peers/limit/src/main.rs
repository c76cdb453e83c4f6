//! The experiments on a ring driven by hand, with the least possible work: the limit of a runtime on
//! io_uring.
//!
//! Each thread has a ring for itself (`SINGLE_ISSUER`), which completes operations only during an enter
//! (`DEFER_TASKRUN`). The file is registered. The number of operations in flight is the job's number of
//! tasks; each has its own buffer, which is never freed. The sequential sum has 8 in flight. A small file
//! is an open, a read of 8 KiB, and a close that overlaps the slot's next open.
//!
//! The module `net` has connections, and `remote` tasks of tokio that await a ring on another thread.
//!
//! No other program could use this: it has no checks, cancellation, timers or tasks, and an error ends it.

mod net;
mod remote;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use peers_common::block::{self, aligned, marks, sum_bytes};
use peers_common::files::{
    WHOLE_BYTES, expect_whole, open, run_shares, share_of, small_file_check,
};
use peers_common::{Cell, Gate, Job, Tally, fail};

/// The number of blocks that the sequential sum has in flight.
const AHEAD: usize = 8;
/// The entries of the ring for files: more than are ever in flight, closes included.
const ENTRIES: u32 = 256;

fn main() -> ExitCode {
    peers_common::main_with(|job| {
        if job.cell == Cell::Echo {
            return peers_common::net::run(job, net::serve);
        }
        if !job.variant.is_empty() {
            return remote::run(job);
        }
        run_shares(job, share);
    })
}

/// Runs one thread: the shares of its tasks, the first of which is number `first`.
fn share(job: &Job, gate: &Gate, first: u64) -> Tally {
    let mut ring = Ring::new(ENTRIES).unwrap_or_else(|error| fail("io_uring", error));
    match job.cell {
        Cell::Sum => sum(job, gate, &mut ring),
        Cell::RandRead | Cell::Write => scattered(job, gate, &mut ring, first),
        Cell::SmallFiles => small_files(job, gate, &mut ring, first),
        _ => fail("run", "not an experiment on files"),
    }
}

struct Ring {
    ring: IoUring,
    /// The number of operations without a completion.
    in_flight: usize,
}

impl Ring {
    fn new(entries: u32) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().dontfork();
        Ok(Self { ring: builder.build(entries)?, in_flight: 0 })
    }

    /// Opens the job's file and registers it as number 0.
    fn open(&mut self, job: &Job) -> File {
        let file = open(job);
        let registered = self.ring.submitter().register_files(&[file.as_raw_fd()]);
        registered.unwrap_or_else(|error| fail("register files", error));
        file
    }

    /// Queues an operation.
    ///
    /// # Safety
    /// The memory of the entry stays valid, and is not accessed otherwise, until its completion is reaped.
    unsafe fn push(&mut self, entry: squeue::Entry, user_data: usize) {
        let entry = entry.user_data(user_data as u64);
        // SAFETY: the caller's promise.
        unsafe {
            if self.ring.submission().push(&entry).is_err() {
                self.ring.submit().expect("the kernel takes entries");
                self.ring.submission().push(&entry).expect("there is room again");
            }
        }
        self.in_flight += 1;
    }

    /// Submits the queued entries, and does not wait.
    fn submit(&mut self) {
        if let Err(error) = self.ring.submit() {
            fail("io_uring_enter", error);
        }
    }

    /// Submits the queued entries, waits for a completion, and returns all completions in `done`.
    fn turn(&mut self, done: &mut Vec<cqueue::Entry>) {
        done.clear();
        match self.ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => fail("io_uring_enter", error),
        }
        done.extend(self.ring.completion());
        self.in_flight -= done.iter().filter(|entry| !cqueue::more(entry.flags())).count();
    }
}

fn result(entry: &cqueue::Entry) -> io::Result<usize> {
    let value = entry.result();
    usize::try_from(value).map_err(|_| io::Error::from_raw_os_error(-value))
}

/// Returns a read of the registered file into a buffer that is never freed.
fn read_entry(buffer: &mut [u8], offset: u64) -> squeue::Entry {
    let len = buffer.len() as u32;
    opcode::Read::new(Fixed(0), buffer.as_mut_ptr(), len).offset(offset).build()
}

fn sum(job: &Job, gate: &Gate, ring: &mut Ring) -> Tally {
    let _file = ring.open(job);
    let mut tally = Tally::default();
    let mut done = Vec::with_capacity(AHEAD);
    let mut buffers: Vec<_> = (0..AHEAD).map(|_| (aligned(job.block), false)).collect();
    let blocks = (job.size / job.block as u64) as usize;
    gate.begin();
    let (mut started, mut summed) = (0, 0);
    while summed < blocks {
        while started < blocks && started < summed + AHEAD {
            let (buffer, is_read) = &mut buffers[started % AHEAD];
            *is_read = false;
            let entry = read_entry(buffer, (started * job.block) as u64);
            // SAFETY: the buffer lives for ever, and is looked at only when it was read into.
            unsafe { ring.push(entry, started) };
            started += 1;
        }
        ring.turn(&mut done);
        for entry in &done {
            expect_whole(job, result(entry));
            buffers[entry.user_data() as usize % AHEAD].1 = true;
        }
        while summed < started && buffers[summed % AHEAD].1 {
            tally.count(sum_bytes(buffers[summed % AHEAD].0));
            summed += 1;
        }
    }
    gate.end();
    tally
}

/// Reads or writes at random offsets, in order for each task.
fn scattered(job: &Job, gate: &Gate, ring: &mut Ring, first: u64) -> Tally {
    let _file = ring.open(job);
    let mut tally = Tally::default();
    let mut done = Vec::with_capacity(ENTRIES as usize);
    let slot = |task| (job.offsets(task), aligned(job.block));
    let mut slots: Vec<_> = (first..first + job.tasks).map(slot).collect();
    let is_write = job.cell == Cell::Write;
    let start = |ring: &mut Ring, index: usize, (offsets, buffer): &mut (_, &'static mut [u8])| {
        let Some(offset) = Iterator::next(offsets) else { return };
        let entry = if is_write {
            block::mark(buffer, offset, job.seed);
            let len = buffer.len() as u32;
            opcode::Write::new(Fixed(0), buffer.as_ptr(), len).offset(offset).build()
        } else {
            read_entry(buffer, offset)
        };
        // SAFETY: the buffer lives for ever, and is touched again only when the operation is done.
        unsafe { ring.push(entry, index) };
    };
    gate.begin();
    for (index, slot) in slots.iter_mut().enumerate() {
        start(ring, index, slot);
    }
    while ring.in_flight > 0 {
        ring.turn(&mut done);
        for entry in &done {
            expect_whole(job, result(entry));
            let index = entry.user_data() as usize;
            let slot = &mut slots[index];
            tally.count(if is_write { 0 } else { marks(slot.1) });
            start(ring, index, slot);
        }
    }
    gate.end();
    tally
}

/// The completed step of a small file, in the bits above the slot's number.
const OPENED: usize = 0;
const READ: usize = 1 << 16;
const CLOSED: usize = 2 << 16;
const SLOT: usize = READ - 1;

fn small_files(job: &Job, gate: &Gate, ring: &mut Ring, first: u64) -> Tally {
    let paths = job.small_files();
    let terminated = |path: &std::path::Path| {
        CString::new(path.as_os_str().as_bytes()).unwrap_or_else(|error| fail("path", error))
    };
    let share = |task| share_of(job, &paths, task).map(terminated).collect::<Vec<_>>();
    let shares: Vec<_> = (first..first + job.tasks).map(share).collect();
    let mut slots: Vec<_> =
        shares.iter().map(|share| (share.iter(), aligned(WHOLE_BYTES), Fd(-1))).collect();
    let mut tally = Tally::default();
    let mut done = Vec::with_capacity(ENTRIES as usize);
    let name = job.path.display();
    let open = |ring: &mut Ring, index: usize, paths: &mut std::slice::Iter<'_, CString>| {
        if let Some(path) = paths.next() {
            let flags = libc::O_RDONLY | libc::O_CLOEXEC;
            let entry = opcode::OpenAt::new(Fd(libc::AT_FDCWD), path.as_ptr()).flags(flags).build();
            // SAFETY: the paths outlive the loop, which ends when nothing is in flight.
            unsafe { ring.push(entry, OPENED | index) };
        }
    };
    gate.begin();
    for (index, slot) in slots.iter_mut().enumerate() {
        open(ring, index, &mut slot.0);
    }
    while ring.in_flight > 0 {
        ring.turn(&mut done);
        for entry in &done {
            let value = result(entry).unwrap_or_else(|error| fail(&name, error));
            let user_data = entry.user_data() as usize;
            let index = user_data & SLOT;
            let (paths, buffer, fd) = &mut slots[index];
            match user_data & !SLOT {
                OPENED => {
                    *fd = Fd(value as i32);
                    let len = buffer.len() as u32;
                    let entry = opcode::Read::new(*fd, buffer.as_mut_ptr(), len).build();
                    // SAFETY: the buffer lives for ever, and is looked at when it was read into.
                    unsafe { ring.push(entry, READ | index) };
                }
                READ => {
                    tally.count(small_file_check(job, &buffer[..value]));
                    // SAFETY: a close points to nothing.
                    unsafe { ring.push(opcode::Close::new(*fd).build(), CLOSED | index) };
                    open(ring, index, paths);
                }
                _ => {}
            }
        }
    }
    gate.end();
    tally
}
