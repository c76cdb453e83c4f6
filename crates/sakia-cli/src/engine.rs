//! Reads files through the driver, and sums their bytes.
//!
//! A hand-written loop around [`Driver::turn`]: operations are started, a turn submits them and
//! sleeps until something completes, and what has completed is worked off. Memory for the reads is
//! allocated once.
//!
//! A small file that the caches hold is read as a whole, by plain calls. Where the caches have no more,
//! paths are announced ahead of their turn, so that several are being looked up and opened while one is
//! read.
//!
//! How any other file is read depends on what `statx(2)` says of it:
//! - A regular file with a size, or a block device: several reads at a time, at offsets of ours.
//!   The order of their completions does not matter to a sum. The size only tells how far reads may
//!   run ahead and where the end may be; the end is where a read finds nothing. A file that grows
//!   or shrinks meanwhile is no error.
//! - A regular file without a size may be one that the kernel makes up (`/proc`): like pipes,
//!   terminals and other devices it is read from its own position, one read at a time.
//!
//! Invariant: no more than `depth` blocks exist, and each is either in its slot or with the driver.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use sakia_driver::{
    CURRENT_POSITION, Driver, Fd, IoBuf, Op, Operation, PollEvents, Read, Slice, StatxResult, Wait,
    WholeFile,
};
use serde::Serialize;

use crate::bytes;
use crate::name::c_path;

/// How reads are made.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Shape {
    /// Bytes that each read asks for.
    pub block_bytes: usize,
    /// Reads in flight at most.
    pub depth: usize,
}

/// What was read of an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// How many bytes.
    pub bytes: u64,
    /// Their sum, modulo 2^64.
    pub sum: u64,
}

impl Sum {
    /// Adds another input.
    pub fn add(&mut self, other: Sum) {
        self.bytes += other.bytes;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Why an input was not summed.
#[derive(Debug)]
pub enum Failure {
    /// This operation on it failed. Other inputs may do better.
    Input(&'static str, io::Error),
    /// The program is to end.
    Interrupted,
    /// The driver is of no more use.
    Driver(io::Error),
}

impl Failure {
    /// This operation on an input failed.
    fn of(operation: &'static str) -> impl Fn(io::Error) -> Self + Copy {
        move |error| Self::Input(operation, error)
    }
}

/// An open input.
#[derive(Debug)]
pub struct Opened {
    pub fd: Fd,
    /// What `statx(2)` says.
    pub stat: StatxResult,
}

fn file_type(stat: &StatxResult) -> FileType {
    FileType::from_raw_mode(stat.mode.into())
}

/// How far an input came without waiting.
#[derive(Debug)]
pub enum Start {
    /// It was small, and has been read.
    Read(Sum),
    /// It is open.
    Opened(Fd),
    /// It is to be [announced](Engine::announce).
    NotNow,
}

/// Bytes of the largest files that are read as a whole: as much as a plain call copies.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// Memory for one read, with room to begin at an aligned address.
type Block = Box<[u8]>;

/// Blocks begin at a multiple of this. The kernel's copy is a quarter slower to addresses off the
/// cache line, which is where allocators put large memory: 16 bytes into a page.
const ALIGN: usize = 64;

/// A place for one read at a time.
struct Slot {
    /// The read in flight.
    op: Option<Op<Read<Slice<Block>>>>,
    /// The memory, while no read is in flight.
    block: Option<Block>,
    /// Where in the memory the block begins.
    begin: usize,
    /// Where in the file the block begins, or `CURRENT_POSITION`.
    offset: u64,
    /// Bytes of the block, and how many of them have been read.
    wanted: usize,
    filled: usize,
}

/// Sums inputs, one after the other.
pub struct Engine<'d> {
    driver: &'d Driver,
    shape: Shape,
    slots: Vec<Slot>,
    /// Inputs that are being opened ahead of their turn, in order.
    ahead: VecDeque<Opening<'d>>,
    /// Completes when the program is to end.
    interrupt: Option<Op<sakia_driver::Poll>>,
    /// Reads that were started.
    reads: u64,
    /// Sizes of inputs that were learned and not yet [told](Engine::fresh_bytes).
    fresh_bytes: Rc<Cell<u64>>,
}

impl<'d> Engine<'d> {
    /// An engine that stops when `interrupt` becomes readable.
    pub fn new(driver: &'d Driver, shape: Shape, interrupt: Option<&Fd>) -> Self {
        Self {
            driver,
            shape,
            slots: Vec::with_capacity(shape.depth),
            ahead: VecDeque::new(),
            interrupt: interrupt.map(|fd| driver.poll(fd, PollEvents::READABLE)),
            reads: 0,
            fresh_bytes: Rc::default(),
        }
    }

    /// Reads that were started so far.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Bytes of the announced inputs whose size was learned since the last call.
    pub fn fresh_bytes(&mut self) -> u64 {
        self.fresh_bytes.take()
    }

    /// Reads `path` as a whole, if it is small and the caches hold it, or goes as far as that is possible
    /// without waiting. Nothing may be announced.
    pub fn start(&mut self, path: &Path) -> Result<Start, Failure> {
        debug_assert!(self.ahead.is_empty());
        // The plain calls of another turn; and signals are heard.
        self.turn_with(Wait::Poll)?;
        let Ok(path) = c_path(path) else { return Ok(Start::NotNow) };
        match self.driver.read_file_now(&path, WHOLE_BYTES_MAX) {
            Ok(WholeFile::Read(bytes)) => {
                self.reads += 1;
                Ok(Start::Read(Sum { bytes: bytes.len() as u64, sum: bytes::sum(&bytes) }))
            }
            // What was read of it is read again, in blocks that begin at better addresses.
            Ok(WholeFile::Opened(fd, _)) => Ok(Start::Opened(fd)),
            Ok(WholeFile::NotNow) => Ok(Start::NotNow),
            Err(error) => Err(Failure::Input("open", error)),
        }
    }

    /// Goes on with what [`start`](Engine::start) has opened at `path`.
    pub fn resume(&mut self, fd: Fd, path: &Path) -> Result<Opened, Failure> {
        let opened = self.inspect(fd)?;
        match file_type(&opened.stat) {
            FileType::Fifo => self.wait_readable(&opened.fd)?,
            // Opened once more, as every other program does; it may block.
            FileType::CharacterDevice => return self.open_late(path, opened.stat),
            _ => {}
        }
        Ok(opened)
    }

    /// Begins to open `path`.
    pub fn announce(&mut self, path: &Path) {
        self.ahead.push_back(Opening::start(self.driver, path, Rc::clone(&self.fresh_bytes)));
    }

    /// How many inputs are announced and were not opened by [`open`](Engine::open) yet.
    pub fn announced(&self) -> usize {
        self.ahead.len()
    }

    /// Opens the oldest announced input, `path`.
    pub fn open(&mut self, path: &Path) -> Result<Opened, Failure> {
        let mut opening = self.ahead.pop_front().expect("the input was announced");
        let ahead = loop {
            opening.advance();
            if let Some(end) = opening.end {
                break end?;
            }
            self.turn()?;
        };
        match ahead {
            Ahead::Opened(opened) => Ok(opened),
            Ahead::Later(path, stat) if file_type(&stat) == FileType::Fifo => {
                // Does not block, so that a signal is heard while no writer comes.
                let flags = OFlags::RDONLY | OFlags::NONBLOCK;
                let open = self.driver.open(None, path, flags.bits(), 0);
                let fd = self.finish(open)?.map_err(Failure::of("open"))?;
                // Until there was a writer a read would take its absence for the end.
                self.wait_readable(&fd)?;
                Ok(Opened { fd, stat })
            }
            Ahead::Later(_, stat) => self.open_late(path, stat),
        }
    }

    /// Opens what may block, such as a terminal, with a plain call, as every other program does.
    fn open_late(&self, path: &Path, stat: StatxResult) -> Result<Opened, Failure> {
        let file = File::open(path).map_err(Failure::of("open"))?;
        Ok(Opened { fd: self.driver.adopt(file.into()), stat })
    }

    /// Asks about a descriptor that is open already.
    pub fn inspect(&mut self, fd: Fd) -> Result<Opened, Failure> {
        let statx = self.driver.statx_fd(&fd);
        let stat = self.finish(statx)?.map_err(Failure::of("statx"))?;
        Ok(Opened { fd, stat })
    }

    /// Sums an input from byte `start`, or from its own position where it has no other. Tells
    /// `advance` how many bytes are done.
    pub fn sum(
        &mut self,
        input: &Opened,
        start: u64,
        advance: &mut dyn FnMut(u64),
    ) -> Result<Sum, Failure> {
        let is_positional = match file_type(&input.stat) {
            FileType::RegularFile => input.stat.size > 0,
            other => other == FileType::BlockDevice,
        };
        if is_positional {
            self.sum_positional(input, start, advance)
        } else {
            self.sum_sequential(&input.fd, advance)
        }
    }

    /// Keeps up to `depth` reads in flight until one of them finds the end.
    fn sum_positional(
        &mut self,
        input: &Opened,
        start: u64,
        advance: &mut dyn FnMut(u64),
    ) -> Result<Sum, Failure> {
        let Shape { block_bytes, depth } = self.shape;
        let window = (block_bytes * depth) as u64;
        let mut sum = Sum::default();
        // Where the next block begins, and how far there is known, or likely, to be something.
        let (mut next, mut known) = (start, input.stat.size);
        let (mut in_flight, mut ended, mut failure) = (0, false, None);
        loop {
            // One block begins where the end is said to be, so that it need not be looked for
            // later.
            while !ended && in_flight < depth && (next <= known || in_flight == 0) {
                let said = input.stat.size.saturating_sub(next);
                let len = if said > 0 { said.min(block_bytes as u64) } else { block_bytes as u64 };
                self.start_block(&input.fd, next, len as usize);
                next = next.saturating_add(len);
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            let mut is_any_done = false;
            for index in 0..self.slots.len() {
                let Some(result) = self.take(index) else { continue };
                is_any_done = true;
                in_flight -= 1;
                let slot = &mut self.slots[index];
                match result {
                    Ok(0) => ended = true,
                    Ok(len) => {
                        sum.add(slot.add(len));
                        advance(len as u64);
                        let end = slot.offset.saturating_add(slot.filled as u64);
                        if slot.filled < slot.wanted && failure.is_none() {
                            self.read(&input.fd, index); // a short read, or the end
                            in_flight += 1;
                        } else if end > known {
                            // More than `statx` promised: the file is growing, or a device.
                            known = next.saturating_add(window);
                        }
                    }
                    Err(error) if is_temporary(&error) && failure.is_none() => {
                        self.read(&input.fd, index);
                        in_flight += 1;
                    }
                    Err(error) => {
                        failure.get_or_insert(error);
                        ended = true;
                    }
                }
            }
            // A read that was a plain call is done when it starts, and no turn would bring anything.
            if !is_any_done {
                self.turn()?;
            }
        }
        match failure {
            Some(error) => Err(Failure::Input("read", error)),
            None => Ok(sum),
        }
    }

    /// Reads from the file's own position, one read at a time.
    fn sum_sequential(&mut self, fd: &Fd, advance: &mut dyn FnMut(u64)) -> Result<Sum, Failure> {
        let mut sum = Sum::default();
        loop {
            let index = self.start_block(fd, CURRENT_POSITION, self.shape.block_bytes);
            let result = loop {
                if let Some(result) = self.take(index) {
                    break result;
                }
                self.turn()?;
            };
            match result {
                Ok(0) => return Ok(sum),
                Ok(len) => {
                    sum.add(self.slots[index].add(len));
                    advance(len as u64);
                }
                // Whoever opened it made it so that reads do not wait.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_readable(fd)?
                }
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(Failure::Input("read", error)),
            }
        }
    }

    /// Starts to read a block of `len` bytes at `offset`, in a slot of its own. At most `depth` may
    /// be in flight.
    fn start_block(&mut self, fd: &Fd, offset: u64, len: usize) -> usize {
        let free = self.slots.iter().position(|slot| slot.op.is_none());
        let index = free.unwrap_or_else(|| {
            debug_assert!(self.slots.len() < self.shape.depth);
            self.slots.push(Slot::new(self.shape.block_bytes));
            self.slots.len() - 1
        });
        let slot = &mut self.slots[index];
        (slot.offset, slot.wanted, slot.filled) = (offset, len, 0);
        self.read(fd, index);
        index
    }

    /// Starts to read what is missing of a slot's block.
    fn read(&mut self, fd: &Fd, index: usize) {
        let slot = &mut self.slots[index];
        let block = slot.block.take().expect("a slot without a read holds its block");
        let offset = match slot.offset {
            CURRENT_POSITION => CURRENT_POSITION,
            offset => offset + slot.filled as u64,
        };
        let missing = slot.begin + slot.filled..slot.begin + slot.wanted;
        slot.op = Some(self.driver.read(fd, block.slice(missing), offset));
        self.reads += 1;
    }

    /// The result of a slot's read, if it is done.
    fn take(&mut self, index: usize) -> Option<io::Result<usize>> {
        let slot = &mut self.slots[index];
        let (result, slice) = slot.op.as_mut()?.try_take()?;
        slot.op = None;
        slot.block = Some(slice.into_inner());
        Some(result)
    }

    /// Waits until there is something to read, or the end.
    fn wait_readable(&mut self, fd: &Fd) -> Result<(), Failure> {
        let poll = self.driver.poll(fd, PollEvents::READABLE);
        self.finish(poll)?.map_err(Failure::of("poll"))?;
        Ok(())
    }

    /// Takes turns until the operation is done.
    fn finish<O: Operation>(&mut self, mut op: Op<O>) -> Result<O::Output, Failure> {
        loop {
            if let Some(output) = op.try_take() {
                return Ok(output);
            }
            self.turn()?;
        }
    }

    /// One turn of the driver, for whatever is under way.
    fn turn(&mut self) -> Result<(), Failure> {
        self.turn_with(Wait::Forever)
    }

    fn turn_with(&mut self, wait: Wait) -> Result<(), Failure> {
        self.driver.turn(wait).map_err(Failure::Driver)?;
        if self.interrupt.as_mut().is_some_and(|op| op.try_take().is_some()) {
            return Err(Failure::Interrupted);
        }
        self.ahead.iter_mut().for_each(Opening::advance);
        Ok(())
    }
}

impl Slot {
    fn new(block_bytes: usize) -> Self {
        let block = vec![0; block_bytes + ALIGN].into_boxed_slice();
        let begin = block.as_ptr().addr().wrapping_neg() % ALIGN;
        Self { op: None, block: Some(block), begin, offset: 0, wanted: 0, filled: 0 }
    }

    /// Adds the `len` bytes that were just read.
    fn add(&mut self, len: usize) -> Sum {
        let block = self.block.as_ref().expect("a slot without a read holds its block");
        let fresh = &block[self.begin + self.filled..][..len];
        self.filled += len;
        Sum { bytes: len as u64, sum: bytes::sum(fresh) }
    }
}

/// Whether trying again is the answer: a signal came.
fn is_temporary(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::INTR)
}

/// An input on its way to being open.
struct Opening<'d> {
    way: Pin<Box<dyn Future<Output = Result<Ahead, Failure>> + 'd>>,
    /// How it ended, once it has.
    end: Option<Result<Ahead, Failure>>,
}

/// How far an input came ahead of its turn.
enum Ahead {
    Opened(Opened),
    /// To be opened when its turn comes: opening it has effects on others, or may block.
    Later(CString, StatxResult),
}

impl<'d> Opening<'d> {
    fn start(driver: &'d Driver, path: &Path, fresh_bytes: Rc<Cell<u64>>) -> Self {
        let path = c_path(path);
        let way = async move {
            let failed = Failure::of("open");
            let path = path.map_err(failed)?;
            let stat = driver.statx(None, path.clone(), 0).await.map_err(failed)?;
            fresh_bytes.update(|fresh| fresh + stat.size);
            Ok(match file_type(&stat) {
                FileType::RegularFile | FileType::Directory | FileType::BlockDevice => {
                    let open = driver.open(None, path, OFlags::RDONLY.bits(), 0);
                    Ahead::Opened(Opened { fd: open.await.map_err(failed)?, stat })
                }
                _ => Ahead::Later(path, stat),
            })
        };
        let mut opening = Self { way: Box::pin(way), end: None };
        opening.advance();
        opening
    }

    /// Goes on as far as completed operations allow.
    fn advance(&mut self) {
        if self.end.is_none()
            && let Poll::Ready(end) =
                self.way.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.end = Some(end);
        }
    }
}
