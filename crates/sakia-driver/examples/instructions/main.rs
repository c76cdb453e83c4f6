//! Performs a number of operations in batches and nothing else, for counting instructions.
//!
//! `cargo xtask instructions` runs this under callgrind, twice per variant with different counts, so that the
//! difference is the cost of the operations alone. Variants:
//! - `crate`: a loop written by hand on the `io-uring` crate, without checks of its buffers and indices;
//! - `ring`: the same on `sakia-ring`;
//! - `owned`: on the `io-uring` crate again, with the minimum for a sound loop that takes buffers from its
//!   user and returns them: a table that owns the buffer and the descriptor of each operation until its
//!   completion, and keys with generations;
//! - `promised`: a loop by hand on `sakia-ring` with a field and a test for each promise of the driver;
//! - `driver`: the same contract on `sakia-driver`;
//! - `loop`: the same as requests with tokens, on its `Loop`;
//! - `requests`: a loop by hand with what the interface for C promises, on that of `promised`.
//!
//! All variants use the same ring flags, and the bytes to read are in the page cache.
//!
//! `cached` is for `driver` and `loop`: reads by their default rules, which are plain calls.
//!
//! Usage: `instructions VARIANT nop|read|cached BATCH COUNT FILE`

mod promised;
mod requests;

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use sakia_driver::{
    Buffer, Bypass, Driver, FileHandle, Foreign, Loop, Op, Operation, Outcome, Rules, Value, Wait,
};
use sakia_ring::{Cqe, Ring, Sqe};

const BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy, PartialEq)]
enum What {
    Nop,
    Read,
    /// The same reads by the default rules: plain calls.
    Cached,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, variant, what, batch, count, path] = &args[..] else {
        return Err("usage: instructions VARIANT nop|read|cached BATCH COUNT FILE".into());
    };
    let what = match what.as_str() {
        "nop" => What::Nop,
        "read" => What::Read,
        "cached" => What::Cached,
        other => return Err(format!("no operation {other}").into()),
    };
    let (batch, count): (usize, usize) = (batch.parse()?, count.parse()?);
    let file = File::open(path)?;
    let done = match variant.as_str() {
        "crate" => on_crate(what, batch, count, &file)?,
        "ring" => on_ring(what, batch, count, &file)?,
        "owned" => on_owned(what, batch, count, file)?,
        "promised" => promised::on_promised(what, batch, count, file)?,
        "driver" => on_driver(what, batch, count, file)?,
        "requests" => requests::on_requests(what, batch, count, file)?,
        "loop" => on_loop(what, batch, count, file)?,
        other => return Err(format!("no variant {other}").into()),
    };
    assert_eq!(done, count - count % batch);
    Ok(())
}

fn crate_ring() -> Result<io_uring::IoUring, Box<dyn Error>> {
    let ring = io_uring::IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_no_sqarray()
        .setup_cqsize(4096)
        .build(256)?;
    ring.submitter().register_ring_fd()?;
    Ok(ring)
}

fn crate_entry(what: What, fd: i32, buf: *mut u8) -> io_uring::squeue::Entry {
    use io_uring::{opcode, types};
    match what {
        What::Nop => opcode::Nop::new().build(),
        What::Read | What::Cached => {
            opcode::Read::new(types::Fd(fd), buf, BLOCK_BYTES as u32).offset(0).build()
        }
    }
}

/// Runs the loop of a storage program whose author knows the `io-uring` crate well.
fn on_crate(what: What, batch: usize, count: usize, file: &File) -> Result<usize, Box<dyn Error>> {
    let mut ring = crate_ring()?;
    let fd = file.as_raw_fd();
    let mut bufs: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; BLOCK_BYTES]).collect();
    let mut done = 0;
    for _ in 0..count / batch {
        let mut queue = ring.submission();
        for (index, buf) in bufs.iter_mut().enumerate() {
            let entry = crate_entry(what, fd, buf.as_mut_ptr()).user_data(index as u64);
            // SAFETY: the buffers and the file live until every read was reaped, below.
            unsafe { queue.push(&entry)? };
        }
        drop(queue);
        ring.submit_and_wait(batch)?;
        for cqe in ring.completion() {
            check(what, cqe.result());
            std::hint::black_box(&bufs[cqe.user_data() as usize]);
            done += 1;
        }
    }
    Ok(done)
}

/// One operation of `on_owned`, and everything that the kernel may use for it.
struct Owned {
    generation: u32,
    next_free: u32,
    result: Option<i32>,
    operation: Option<(Rc<File>, Vec<u8>)>,
}

/// Runs the same loop with the minimum that ownership requires.
fn on_owned(what: What, batch: usize, count: usize, file: File) -> Result<usize, Box<dyn Error>> {
    const NONE: u32 = u32::MAX;
    let mut ring = crate_ring()?;
    let file = Rc::new(file);
    let mut table: Vec<Owned> = (0..batch as u32)
        .map(|index| Owned {
            generation: 0,
            next_free: if index + 1 < batch as u32 { index + 1 } else { NONE },
            result: None,
            operation: None,
        })
        .collect();
    let mut first_free = 0;
    let mut bufs: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; BLOCK_BYTES]).collect();
    let mut keys: Vec<u32> = Vec::with_capacity(batch);
    let mut done = 0;
    for _ in 0..count / batch {
        let mut queue = ring.submission();
        while let Some(mut buf) = bufs.pop() {
            let index = first_free;
            let slot = &mut table[index as usize];
            first_free = slot.next_free;
            let entry = crate_entry(what, file.as_raw_fd(), buf.as_mut_ptr());
            let key = u64::from(slot.generation) << 32 | u64::from(index);
            slot.operation = Some((Rc::clone(&file), buf));
            // SAFETY: the table keeps the buffer and the file until the read was reaped.
            unsafe { queue.push(&entry.user_data(key))? };
            keys.push(index);
        }
        drop(queue);
        ring.submit_and_wait(batch)?;
        for cqe in ring.completion() {
            let Some(slot) = table.get_mut(cqe.user_data() as u32 as usize) else { continue };
            if slot.generation == (cqe.user_data() >> 32) as u32 && slot.operation.is_some() {
                slot.result = Some(cqe.result());
            }
        }
        for index in keys.drain(..) {
            let slot = &mut table[index as usize];
            let (Some(result), Some((_, buf))) = (slot.result.take(), slot.operation.take()) else {
                return Err("a completion is missing".into());
            };
            check(what, result);
            slot.generation = slot.generation.wrapping_add(1);
            slot.next_free = first_free;
            first_free = index;
            bufs.push(buf);
            done += 1;
        }
    }
    Ok(done)
}

/// Runs the same loop on `sakia-ring`.
fn on_ring(what: What, batch: usize, count: usize, file: &File) -> Result<usize, Box<dyn Error>> {
    let mut ring = Ring::builder().build()?;
    let fd = file.as_raw_fd();
    let mut bufs: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; BLOCK_BYTES]).collect();
    let mut cqes = [Cqe::default(); 64];
    let mut done = 0;
    for _ in 0..count / batch {
        for (index, buf) in bufs.iter_mut().enumerate() {
            let sqe = match what {
                What::Nop => Sqe::nop(),
                What::Read | What::Cached => Sqe::read(fd, buf.as_mut_ptr(), BLOCK_BYTES as u32, 0),
            };
            // SAFETY: the buffers and the file live until every read was reaped, below.
            let pushed = unsafe { ring.push(sqe.user_data(index as u64)) };
            pushed.ok_or("the queue is full")?;
        }
        ring.enter(batch as u32, None)?;
        let ready = ring.reap(&mut cqes);
        for cqe in &cqes[..ready] {
            check(what, cqe.res);
            std::hint::black_box(&bufs[cqe.user_data as usize]);
        }
        done += ready;
    }
    Ok(done)
}

/// Runs the same work on the driver, which takes the buffers and returns them.
fn on_driver(what: What, batch: usize, count: usize, file: File) -> Result<usize, Box<dyn Error>> {
    let driver = Driver::uring()?;
    if what == What::Cached {
        driver.set_bypass(Bypass::Rules(Rules::default()));
    }
    let file = driver.adopt(file.into());
    match what {
        What::Nop => on_driver_with(
            &driver,
            batch,
            count,
            (),
            |()| driver.nop(),
            |result| {
                result.expect("a no-op succeeds");
            },
        ),
        What::Read | What::Cached => on_driver_with(
            &driver,
            batch,
            count,
            vec![0; BLOCK_BYTES],
            |buf| driver.read(&file, buf, 0),
            |(result, buf)| {
                check(what, result.map_or(-1, |len| len as i32));
                buf
            },
        ),
    }
}

fn on_driver_with<T: Clone, O: Operation>(
    driver: &Driver,
    batch: usize,
    count: usize,
    resource: T,
    start: impl Fn(T) -> Op<O>,
    finish: impl Fn(O::Output) -> T,
) -> Result<usize, Box<dyn Error>> {
    let mut free = vec![resource; batch];
    let mut ops = Vec::with_capacity(batch);
    let mut done = 0;
    for _ in 0..count / batch {
        while let Some(resource) = free.pop() {
            ops.push(start(resource));
        }
        while let Some(mut op) = ops.pop() {
            while op.try_take().map(|output| free.push(finish(output))).is_none() {
                driver.turn(Wait::Forever)?;
            }
        }
        done += free.len();
    }
    Ok(done)
}

/// Runs the same work as requests, with memory of the caller.
fn on_loop(what: What, batch: usize, count: usize, file: File) -> Result<usize, Box<dyn Error>> {
    let mut ring = Loop::on(Driver::uring()?)?;
    if what == What::Read {
        ring.set_bypass(Bypass::Never);
    }
    let file = FileHandle::new(file);
    let mut bufs: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; BLOCK_BYTES]).collect();
    let mut done = 0;
    for _ in 0..count / batch {
        for (buf, token) in bufs.iter_mut().zip(0..) {
            if what == What::Nop {
                ring.submit_nop(token)?;
            } else {
                // SAFETY: the buffers live until all outcomes were taken, below.
                let buf = unsafe { Foreign::new(buf.as_mut_ptr(), buf.len()) };
                ring.submit_read(&file, Buffer::Foreign(buf), 0, token)?;
            }
        }
        let mut left = batch;
        while left > 0 {
            while let Some(outcome) = ring.take() {
                let Outcome { token, result, value, .. } = outcome;
                check(what, result.map_or(-1, |len| len as i32));
                if !matches!(value, Value::None | Value::Buffer(Buffer::Foreign(_))) {
                    return Err(format!("{value:?}").into());
                }
                std::mem::forget(value); // nothing, or the memory of `bufs`
                std::hint::black_box(&bufs[token as usize]);
                left -= 1;
            }
            if left > 0 {
                ring.wait(Wait::Forever)?;
            }
        }
        done += batch;
    }
    Ok(done)
}

#[inline(always)]
fn check(what: What, res: i32) {
    assert_eq!(res, if what == What::Nop { 0 } else { BLOCK_BYTES as i32 });
}
