//! The experiments on the driver below Sakia: every operation through the ring, none as a plain call,
//! and no runtime above. It shows what a runtime that takes the ring for everything could reach on it.
//!
//! As many operations in flight as the job has tasks, each with a buffer of its own that is used again;
//! the sequential sum has one.

use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use peers_common::block::{self, PAGE, aligned_offset, marks, sum_bytes};
use peers_common::files::{
    WHOLE_BYTES, expect_whole, open, run_shares, share_of, small_file_check,
};
use peers_common::{Cell, Gate, Job, Tally, fail};
use sakia_driver::{Close, Driver, Fd, IoBuf, Op, Open, Read, Slice, Uring, Wait, Write};

type Buffer = Slice<Vec<u8>>;

fn main() -> ExitCode {
    peers_common::main_with(|job| run_shares(job, share))
}

fn share(job: &Job, gate: &Gate, first: u64) -> Tally {
    let driver = Driver::uring().unwrap_or_else(|error| fail("ring", error));
    match job.cell {
        Cell::Sum => sum(job, gate, &driver),
        Cell::RandRead | Cell::Write => scattered(job, gate, &driver, first),
        Cell::SmallFiles => small_files(job, gate, &driver, first),
        _ => fail("run", "not an experiment on files"),
    }
}

fn buffer(len: usize) -> Buffer {
    let memory = vec![0; len + PAGE];
    let part = part(&memory);
    memory.slice(part)
}

/// Gives the driver a turn, which sleeps only if nothing is ready.
fn turn(driver: &Driver) {
    driver.turn(Wait::Forever).unwrap_or_else(|error| fail("turn", error));
}

fn sum(job: &Job, gate: &Gate, driver: &Driver) -> Tally {
    let file = driver.adopt(open(job).into());
    let mut tally = Tally::default();
    let mut buffer = buffer(job.block);
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
        tally.count(sum_bytes(bytes(&buffer)));
    }
    gate.end();
    tally
}

/// The aligned part of a buffer, which a slice does not tell.
fn part(memory: &[u8]) -> Range<usize> {
    let begin = aligned_offset(memory);
    begin..begin + memory.len() - PAGE
}

fn bytes(buffer: &Buffer) -> &[u8] {
    let memory = buffer.buffer();
    &memory[part(memory)]
}

enum Transfer {
    Read(Op<Read<Buffer>, Uring>),
    Write(Op<Write<Buffer>, Uring>),
}

fn scattered(job: &Job, gate: &Gate, driver: &Driver, first: u64) -> Tally {
    let file = driver.adopt(open(job).into());
    let mut tally = Tally::default();
    let mut offsets: Vec<_> = (first..first + job.tasks).map(|task| job.offsets(task)).collect();
    let mut slots: Vec<Option<Transfer>> = offsets.iter().map(|_| None).collect();
    let start = |index: usize, offset: u64, buffer: Buffer| {
        if job.cell == Cell::Write {
            let mut memory = buffer.into_inner();
            let part = part(&memory);
            block::mark(&mut memory[part.clone()], offset, job.seed);
            let mut write = driver.write(&file, memory.slice(part), offset);
            write.set_token(index as u64);
            Transfer::Write(write)
        } else {
            let mut read = driver.read(&file, buffer, offset);
            read.set_token(index as u64);
            Transfer::Read(read)
        }
    };
    gate.begin();
    let mut in_flight = 0;
    for (index, slot) in slots.iter_mut().enumerate() {
        if let Some(offset) = offsets[index].next() {
            *slot = Some(start(index, offset, buffer(job.block)));
            in_flight += 1;
        }
    }
    while in_flight > 0 {
        turn(driver);
        while let Some(index) = driver.next_done() {
            let index = index as usize;
            let (result, buffer) = match slots[index].take() {
                Some(Transfer::Read(mut read)) => read.try_take().expect("it is done"),
                Some(Transfer::Write(mut write)) => write.try_take().expect("it is done"),
                None => fail("run", "an operation was done twice"),
            };
            expect_whole(job, result);
            tally.count(if job.cell == Cell::Write { 0 } else { marks(bytes(&buffer)) });
            match offsets[index].next() {
                Some(offset) => slots[index] = Some(start(index, offset, buffer)),
                None => in_flight -= 1,
            }
        }
    }
    gate.end();
    tally
}

enum Stage {
    Open(Op<Open, Uring>),
    Read(Op<Read<Vec<u8>>, Uring>, Fd),
    Close(Op<Close, Uring>, Vec<u8>),
}

fn small_files(job: &Job, gate: &Gate, driver: &Driver, first: u64) -> Tally {
    let paths = job.small_files();
    let name = job.path.display();
    let mut tally = Tally::default();
    let mut shares: Vec<_> =
        (first..first + job.tasks).map(|task| share_of(job, &paths, task)).collect();
    let mut slots: Vec<Option<(Stage, Vec<u8>)>> = shares.iter().map(|_| None).collect();
    let start = |index: usize, path: &Path| {
        let path = CString::new(path.as_os_str().as_bytes());
        let path = path.unwrap_or_else(|error| fail("path", error));
        let mut open = driver.open(None, path, libc::O_RDONLY as u32, 0);
        open.set_token(index as u64);
        Stage::Open(open)
    };
    gate.begin();
    let mut in_flight = 0;
    for (index, slot) in slots.iter_mut().enumerate() {
        if let Some(path) = shares[index].next() {
            *slot = Some((start(index, path), vec![0; WHOLE_BYTES]));
            in_flight += 1;
        }
    }
    while in_flight > 0 {
        turn(driver);
        while let Some(token) = driver.next_done() {
            let index = token as usize;
            let Some((stage, spare)) = slots[index].take() else {
                fail("run", "an operation was done twice")
            };
            let next = match stage {
                Stage::Open(mut open) => {
                    let opened = open.try_take().expect("it is done");
                    let file = opened.unwrap_or_else(|error| fail(&name, error));
                    let mut read = driver.read(&file, spare, 0);
                    read.set_token(token);
                    (Stage::Read(read, file), Vec::new())
                }
                Stage::Read(mut read, file) => {
                    let (result, buffer) = read.try_take().expect("it is done");
                    let len = result.unwrap_or_else(|error| fail(&name, error));
                    tally.count(small_file_check(job, &buffer[..len]));
                    let mut close = driver.close(file);
                    close.set_token(token);
                    (Stage::Close(close, buffer), Vec::new())
                }
                Stage::Close(mut close, buffer) => {
                    let closed = close.try_take().expect("it is done");
                    closed.unwrap_or_else(|error| fail(&name, error));
                    let Some(path) = shares[index].next() else {
                        in_flight -= 1;
                        continue;
                    };
                    (start(index, path), buffer)
                }
            };
            slots[index] = Some(next);
        }
    }
    gate.end();
    tally
}
