//! The experiments on the driver below Sakia: all operations use the ring, none is a plain call, and there
//! is no runtime above. They show the limit of a runtime that uses the ring for everything.
//!
//! The variants `loop` and `queue` read at random as requests, by the rules that these have for plain calls.
//!
//! The number of operations in flight is the job's number of tasks, each with a buffer that is reused; the
//! sequential sum has one.

use std::cell::RefCell;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use peers_common::block::{self, marks, sum_bytes};
use peers_common::files::{
    WHOLE_BYTES, expect_whole, open, run_shares, share_of, small_file_check,
};
use peers_common::{Cell, Gate, Job, Tally, fail};
use sakia::Engine;
use sakia::engine::queue::Submitted;
use sakia_driver::{
    AlignedBuf, Close, Driver, Fd, FileHandle, Loop, Op, Open, Outcome, Read, Request, Value, Wait,
    Write,
};

fn main() -> ExitCode {
    peers_common::main_with(|job| run_shares(job, share))
}

fn share(job: &Job, gate: &Gate, first: u64) -> Tally {
    let driver = Driver::uring().unwrap_or_else(|error| fail("ring", error));
    match job.cell {
        Cell::Sum => sum(job, gate, &driver),
        Cell::RandRead if job.variant == "loop" => reads_by_loop(job, gate, driver, first),
        Cell::RandRead if job.variant == "queue" => reads_by_queue(job, gate, first),
        Cell::RandRead | Cell::Write => scattered(job, gate, &driver, first),
        Cell::SmallFiles => small_files(job, gate, &driver, first),
        _ => fail("run", "not an experiment on files"),
    }
}

/// Takes a turn of the driver, which sleeps only if no completion is ready.
fn turn(driver: &Driver) {
    driver.turn(Wait::Forever).unwrap_or_else(|error| fail("turn", error));
}

fn sum(job: &Job, gate: &Gate, driver: &Driver) -> Tally {
    let file = driver.adopt(open(job).into());
    let mut tally = Tally::default();
    let mut buffer = AlignedBuf::zeroed(job.block);
    gate.begin();
    for offset in (0..job.size).step_by(job.block) {
        let mut read = driver.read(&file, buffer, offset);
        let result;
        (result, buffer) = loop {
            turn(driver);
            if let Some(output) = read.try_take() {
                break output;
            }
        };
        expect_whole(job, result);
        tally.count(sum_bytes(&buffer));
    }
    gate.end();
    tally
}

enum Transfer {
    Read(Op<Read<AlignedBuf>>),
    Write(Op<Write<AlignedBuf>>),
}

/// Starts the operation that `start` returns for each slot, and with each result the one that `step`
/// returns, until none is left. The token of an operation is the number of its slot.
fn in_flight<S>(
    job: &Job,
    gate: &Gate,
    driver: &Driver,
    mut start: impl FnMut(usize) -> Option<S>,
    mut step: impl FnMut(usize, S) -> Option<S>,
) {
    gate.begin();
    let mut slots: Vec<Option<S>> = (0..job.tasks as usize).map(&mut start).collect();
    let mut count = slots.iter().flatten().count();
    while count > 0 {
        turn(driver);
        while let Some(token) = driver.next_done() {
            let index = token as usize;
            let Some(done) = slots[index].take() else {
                fail("run", "an operation was done twice")
            };
            slots[index] = step(index, done);
            count -= usize::from(slots[index].is_none());
        }
    }
    gate.end();
}

fn scattered(job: &Job, gate: &Gate, driver: &Driver, first: u64) -> Tally {
    let file = driver.adopt(open(job).into());
    let mut tally = Tally::default();
    let offsets: Vec<_> = (first..first + job.tasks).map(|task| job.offsets(task)).collect();
    let offsets = RefCell::new(offsets);
    let next = |index: usize, mut buffer: AlignedBuf| {
        let offset = offsets.borrow_mut()[index].next()?;
        Some(if job.cell == Cell::Write {
            block::mark(&mut buffer, offset, job.seed);
            let mut write = driver.write(&file, buffer, offset);
            write.set_token(index as u64);
            Transfer::Write(write)
        } else {
            let mut read = driver.read(&file, buffer, offset);
            read.set_token(index as u64);
            Transfer::Read(read)
        })
    };
    let step = |index, transfer| {
        let (result, buffer) = match transfer {
            Transfer::Read(mut read) => read.try_take().expect("it is done"),
            Transfer::Write(mut write) => write.try_take().expect("it is done"),
        };
        expect_whole(job, result);
        tally.count(if job.cell == Cell::Write { 0 } else { marks(&buffer) });
        next(index, buffer)
    };
    in_flight(job, gate, driver, |index| next(index, AlignedBuf::zeroed(job.block)), step);
    tally
}

/// The next read of a slot into this memory, if one is left.
fn next_read(
    file: &FileHandle,
    offsets: &mut impl Iterator<Item = u64>,
    buffer: AlignedBuf,
) -> Option<Request> {
    Some(Request::read(file, buffer.into(), offsets.next()?))
}

/// Counts a read, and returns its slot and its memory.
fn finished(job: &Job, tally: &mut Tally, outcome: Outcome) -> (usize, AlignedBuf) {
    expect_whole(job, outcome.result);
    let Value::Buffer(buffer) = outcome.value else { fail("run", "a read lost its memory") };
    let buffer = buffer.into_aligned().unwrap_or_else(|| fail("run", "other memory"));
    tally.count(marks(&buffer));
    (outcome.token as usize, buffer)
}

/// The same reads as requests of a loop, on this thread.
fn reads_by_loop(job: &Job, gate: &Gate, driver: Driver, first: u64) -> Tally {
    let file = FileHandle::new(open(job));
    let mut offsets: Vec<_> = (first..first + job.tasks).map(|task| job.offsets(task)).collect();
    let mut ring = Loop::on(driver).unwrap_or_else(|error| fail("loop", error));
    let mut tally = Tally::default();
    let mut submit = |ring: &mut Loop, slot: usize, buffer| {
        if let Some(read) = next_read(&file, &mut offsets[slot], buffer) {
            ring.submit(read, slot as u64).unwrap_or_else(|full| fail("submit", full));
        }
    };
    gate.begin();
    (0..job.tasks as usize).for_each(|slot| submit(&mut ring, slot, AlignedBuf::zeroed(job.block)));
    while ring.under_way() > 0 {
        match ring.take() {
            Some(outcome) => {
                let (slot, buffer) = finished(job, &mut tally, outcome);
                submit(&mut ring, slot, buffer);
            }
            None => {
                ring.wait(Wait::Forever).unwrap_or_else(|error| fail("wait", error));
            }
        }
    }
    gate.end();
    tally
}

/// The same reads as requests of a queue: a batch of those whose memory came back together.
fn reads_by_queue(job: &Job, gate: &Gate, first: u64) -> Tally {
    let file = FileHandle::new(open(job));
    let mut offsets: Vec<_> = (first..first + job.tasks).map(|task| job.offsets(task)).collect();
    let queue = Engine::new().and_then(|engine| engine.queue());
    let queue = queue.unwrap_or_else(|error| fail("queue", error));
    let (mut tally, mut outcomes) = (Tally::default(), Vec::new());
    gate.begin();
    let mut free: Vec<_> =
        (0..job.tasks as usize).map(|slot| (slot, AlignedBuf::zeroed(job.block))).collect();
    loop {
        let mut batch = queue.batch();
        for (slot, buffer) in free.drain(..) {
            let Some(read) = next_read(&file, &mut offsets[slot], buffer) else { continue };
            match batch.add(read, slot as u64).unwrap_or_else(|full| fail("submit", full)) {
                Submitted::Done(outcome) => outcomes.push(outcome),
                Submitted::UnderWay(_) => {}
            }
        }
        batch.submit();
        if outcomes.is_empty() {
            if queue.under_way() == 0 {
                break;
            }
            queue.wait(None).unwrap_or_else(|error| fail("wait", error));
            queue.take(usize::MAX, &mut outcomes);
        }
        free.extend(outcomes.drain(..).map(|outcome| finished(job, &mut tally, outcome)));
    }
    gate.end();
    tally
}

enum Stage {
    Open(Op<Open>, Vec<u8>),
    Read(Op<Read<Vec<u8>>>, Fd),
    Close(Op<Close>, Vec<u8>),
}

fn small_files(job: &Job, gate: &Gate, driver: &Driver, first: u64) -> Tally {
    let paths = job.small_files();
    let name = job.path.display();
    let mut tally = Tally::default();
    let shares: Vec<_> =
        (first..first + job.tasks).map(|task| share_of(job, &paths, task)).collect();
    let shares = RefCell::new(shares);
    let open = |index: usize, spare: Vec<u8>| {
        let path = CString::new(shares.borrow_mut()[index].next()?.as_os_str().as_bytes());
        let path = path.unwrap_or_else(|error| fail("path", error));
        let mut open = driver.open(None, path, libc::O_RDONLY as u32, 0);
        open.set_token(index as u64);
        Some(Stage::Open(open, spare))
    };
    let step = |index, stage| match stage {
        Stage::Open(mut open, spare) => {
            let opened = open.try_take().expect("it is done");
            let file = opened.unwrap_or_else(|error| fail(&name, error));
            let mut read = driver.read(&file, spare, 0);
            read.set_token(index as u64);
            Some(Stage::Read(read, file))
        }
        Stage::Read(mut read, file) => {
            let (result, buffer) = read.try_take().expect("it is done");
            let len = result.unwrap_or_else(|error| fail(&name, error));
            tally.count(small_file_check(job, &buffer[..len]));
            let mut close = driver.close(file);
            close.set_token(index as u64);
            Some(Stage::Close(close, buffer))
        }
        Stage::Close(mut close, buffer) => {
            let closed = close.try_take().expect("it is done");
            closed.unwrap_or_else(|error| fail(&name, error));
            open(index, buffer)
        }
    };
    in_flight(job, gate, driver, |index| open(index, vec![0; WHOLE_BYTES]), step);
    tally
}
