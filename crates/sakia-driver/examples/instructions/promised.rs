//! The limit program of the driver: a loop written by hand that keeps, for no-ops and reads only, each
//! promise that the driver makes for every operation, with a field and a test for each. `requests` puts a
//! loop of requests on it.
//!
//! It has no other operations, no erased types and no other backends. It cannot hand an operation to a plain
//! call, a thread or a backlog: a case that requires one ends the program.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use sakia_ring::{Cqe, Ring, Sqe};

use super::{BLOCK_BYTES, What, check};

const CHUNK: usize = 256;

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Kernel,
    Done,
}

/// Flag: the operation's future is gone.
const ORPHAN: u8 = 1;
/// Flag: the operation was canceled, or taken back.
const CANCELED: u8 = 2;

/// A descriptor that stays open until its last operation has ended.
pub(super) struct Descriptor {
    file: File,
    /// The address of the loop to which it belongs.
    engine: usize,
    /// True if a plain call is tried before the queue.
    is_tried_now: Cell<bool>,
    is_closing: Cell<bool>,
}

/// The memory of an operation.
pub(super) trait Memory {
    /// Operations are found by their ends, and not by handles.
    const IS_OF_REQUEST: bool;

    fn address(&mut self) -> *mut u8;
}

impl Memory for Vec<u8> {
    const IS_OF_REQUEST: bool = false;

    #[inline(always)]
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }
}

/// An operation owns its buffer and a reference to its descriptor.
pub(super) struct Operation<M> {
    descriptor: Option<Rc<Descriptor>>,
    buf: M,
    offset: u64,
    len: u32,
}

/// The place of an operation. Its address stays the same while the kernel uses it.
pub(super) struct Slot<M> {
    operation: MaybeUninit<Operation<M>>,
    index: u32,
    generation: u32,
    state: State,
    flags: u8,
    /// Position of the entry in the queue, for taking it back.
    position: u32,
    next_free: Option<NonNull<Self>>,
    res: i32,
    cqe_flags: u32,
    waker: Option<Waker>,
    /// Disposes of an operation whose future is gone.
    dispose: Option<fn(Operation<M>, i32)>,
}

#[derive(Default)]
struct Counters {
    started: u64,
    finished: u64,
    submitted: [u64; 2],
}

pub(super) struct Engine<M> {
    ring: Ring,
    chunks: Vec<Box<[Slot<M>]>>,
    first_free: Option<NonNull<Slot<M>>>,
    live: u32,
    in_flight: u32,
    /// Number of entries that the completion queue has room for.
    credits: u32,
    /// Number of operations that have no entry, are to be canceled, or have lost their future.
    listed: u32,
    until_flush: u32,
    counters: Counters,
    /// The registered number of each descriptor, or -1.
    registered: Vec<i32>,
    is_running: bool,
    wants_turn: bool,
    woken: Vec<Waker>,
    /// Requests that have ended and were not taken.
    ended: VecDeque<NonNull<Slot<M>>>,
    cqes: Box<[Cqe; 64]>,
}

/// An operation in flight: holds its slot until the result is taken.
struct Handle<'engine> {
    engine: &'engine RefCell<Engine<Vec<u8>>>,
    slot: Option<NonNull<Slot<Vec<u8>>>>,
}

impl<M: Memory> Engine<M> {
    pub(super) fn new() -> Result<Self, Box<dyn Error>> {
        let ring = Ring::builder().build()?;
        let mut engine = Self {
            ring,
            chunks: Vec::new(),
            first_free: None,
            live: 0,
            in_flight: 0,
            credits: 4096,
            listed: 0,
            until_flush: 256,
            counters: Counters::default(),
            registered: Vec::new(),
            is_running: true,
            wants_turn: false,
            woken: Vec::new(),
            ended: VecDeque::new(),
            cqes: Box::new([Cqe::default(); 64]),
        };
        let unused = |index| Slot {
            operation: MaybeUninit::uninit(),
            index,
            generation: 0,
            state: State::Free,
            flags: 0,
            position: 0,
            next_free: None,
            res: 0,
            cqe_flags: 0,
            waker: None,
            dispose: None,
        };
        let mut chunk: Box<[Slot<M>]> = (0..CHUNK as u32).map(unused).collect();
        for slot in &mut chunk {
            slot.next_free = engine.first_free;
            engine.first_free = Some(NonNull::from(slot));
        }
        engine.chunks.push(chunk);
        Ok(engine)
    }

    #[inline(always)]
    pub(super) fn start(&mut self, what: What, operation: Operation<M>) -> NonNull<Slot<M>> {
        let mut place = self.first_free.expect("a batch has a chunk's slots at most");
        // SAFETY: a free slot of a chunk, which lives as long as `self` and has no other user.
        let slot = unsafe { place.as_mut() };
        self.first_free = slot.next_free;
        self.live += 1;
        self.counters.started += 1;
        slot.dispose = Some(|operation, _| drop(operation));
        let operation = slot.operation.write(operation);
        assert!(self.is_running && self.listed == 0 && self.credits > 0, "not in this program");
        let mut sqe = Sqe::nop();
        if let Some(descriptor) = &operation.descriptor {
            assert!(!descriptor.is_tried_now.get(), "not in this program");
            let raw = descriptor.file.as_raw_fd();
            sqe = Sqe::read(raw, operation.buf.address(), operation.len, operation.offset);
            if let Some(&place) = self.registered.get(raw as usize)
                && place >= 0
            {
                sqe = sqe.fixed_file();
                sqe.fd = place;
            }
        }
        let key = slot.key();
        // SAFETY: the slot keeps the buffer and the descriptor until the last completion.
        let position = unsafe { self.ring.push(sqe.user_data(key)) }.expect("the queue has room");
        slot.state = State::Kernel;
        slot.position = position.to_raw();
        self.credits -= 1;
        self.in_flight += 1;
        self.counters.submitted[what as usize] += 1;
        self.wants_turn = true;
        self.until_flush -= 1;
        if self.until_flush == 0 {
            self.flush();
        }
        place
    }

    #[cold]
    fn flush(&mut self) {
        self.ring.enter(0, None).expect("the kernel takes entries");
        self.until_flush = 256;
    }

    #[inline(never)]
    pub(super) fn turn(&mut self) -> Result<(), Box<dyn Error>> {
        let wait = if self.listed > 0 { Some(Duration::ZERO) } else { None };
        self.ring.enter(1, wait)?;
        self.until_flush = 256;
        self.wants_turn = false;
        loop {
            let count = self.ring.reap(&mut self.cqes[..]);
            for at in 0..count {
                let cqe = self.cqes[at];
                self.complete(cqe);
            }
            if count < self.cqes.len() {
                break;
            }
        }
        for waker in self.woken.drain(..) {
            waker.wake();
        }
        Ok(())
    }

    #[inline(always)]
    fn complete(&mut self, cqe: Cqe) {
        assert!(cqe.user_data as u8 == 0, "no requests to cancel in this program");
        let index = (cqe.user_data as u32 >> 8) as usize;
        let Some(chunk) = self.chunks.get_mut(index / CHUNK) else { return };
        let slot = &mut chunk[index % CHUNK];
        if slot.generation != (cqe.user_data >> 32) as u32 || slot.state != State::Kernel {
            return; // stale
        }
        assert!(!cqe.flags.has_more(), "no operation of this program goes on");
        self.in_flight -= 1;
        self.credits += 1;
        self.counters.finished += 1;
        slot.res = cqe.res;
        slot.cqe_flags = cqe.flags.0;
        if slot.flags != 0 {
            assert!(slot.flags & (CANCELED | ORPHAN) == 0, "not in this program");
        }
        slot.state = State::Done;
        if M::IS_OF_REQUEST {
            return self.ended.push_back(NonNull::from(slot));
        }
        if let Some(waker) = slot.waker.take() {
            self.woken.push(waker);
        }
    }

    /// Returns the operation and its result if it is done, and frees its slot.
    #[inline(always)]
    fn take(&mut self, mut place: NonNull<Slot<M>>) -> Option<(Operation<M>, i32)> {
        // SAFETY: the handle's own slot, of a chunk that lives as long as `self`.
        let slot = unsafe { place.as_mut() };
        if slot.state != State::Done {
            return None;
        }
        // SAFETY: `start` wrote it, and the state becomes `Free`.
        let operation = unsafe { slot.operation.assume_init_read() };
        slot.generation = slot.generation.wrapping_add(1);
        slot.state = State::Free;
        slot.flags = 0;
        slot.next_free = self.first_free;
        self.first_free = Some(place);
        self.live -= 1;
        assert!(self.live > 0 || self.is_running, "not in this program");
        Some((operation, slot.res))
    }

    /// Returns the request that has ended first, and its result.
    #[inline(always)]
    pub(super) fn take_ended(&mut self) -> Option<(Operation<M>, i32)> {
        let place = self.ended.pop_front()?;
        self.take(place)
    }
}

impl<M> Slot<M> {
    /// The name of the operation for the kernel.
    #[inline(always)]
    pub(super) fn key(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index) << 8
    }
}

impl Descriptor {
    pub(super) fn new(file: File, engine: usize) -> Self {
        Self { file, engine, is_tried_now: Cell::new(false), is_closing: Cell::new(false) }
    }

    /// Tests that it can be used with a loop at this address.
    #[inline(always)]
    pub(super) fn check(&self, engine: usize) {
        assert!(self.engine == engine, "a descriptor of another loop");
        assert!(!self.is_closing.get(), "not in this program");
    }
}

impl<M> Operation<M> {
    #[inline(always)]
    pub(super) fn new(descriptor: Option<Rc<Descriptor>>, buf: M, offset: u64, len: u32) -> Self {
        Self { descriptor, buf, offset, len }
    }

    /// Tests the number of bytes that the kernel reports, and gives up the descriptor.
    #[inline(always)]
    pub(super) fn into_memory(self, len: usize) -> M {
        assert!(len <= self.len as usize, "the kernel reports more than was asked");
        self.buf
    }
}

impl Handle<'_> {
    #[inline(always)]
    fn try_take(&mut self) -> Option<(std::io::Result<usize>, Vec<u8>)> {
        let slot = self.slot?;
        let (operation, res) = self.engine.borrow_mut().take(slot)?;
        self.slot = None;
        let mut buf = operation.buf;
        let result = match usize::try_from(res) {
            Err(_) => Err(std::io::Error::from_raw_os_error(-res)),
            Ok(len) => {
                assert!(len <= operation.len as usize, "the kernel reports more than was asked");
                if len > buf.len() {
                    // SAFETY: the kernel has filled the first `len` bytes, within the capacity it was given.
                    unsafe { buf.set_len(len) };
                }
                Ok(len)
            }
        };
        Some((result, buf))
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        assert!(self.slot.is_none(), "no operation of this program is canceled");
    }
}

#[inline(always)]
fn read<'engine>(
    engine: &'engine RefCell<Engine<Vec<u8>>>,
    descriptor: &Rc<Descriptor>,
    buf: Vec<u8>,
) -> Handle<'engine> {
    descriptor.check(std::ptr::from_ref(engine).addr());
    let len = if buf.is_empty() { buf.capacity() } else { buf.len() };
    let operation = Operation {
        descriptor: Some(Rc::clone(descriptor)),
        len: u32::try_from(len).unwrap_or(u32::MAX),
        buf,
        offset: 0,
    };
    Handle { engine, slot: Some(engine.borrow_mut().start(What::Read, operation)) }
}

#[inline(always)]
fn nop<'engine>(engine: &'engine RefCell<Engine<Vec<u8>>>, buf: Vec<u8>) -> Handle<'engine> {
    let operation = Operation { descriptor: None, buf, offset: 0, len: 0 };
    Handle { engine, slot: Some(engine.borrow_mut().start(What::Nop, operation)) }
}

/// Runs the same loop as `on_driver`, on this engine.
pub(super) fn on_promised(
    what: What,
    batch: usize,
    count: usize,
    file: File,
) -> Result<usize, Box<dyn Error>> {
    let engine = &RefCell::new(Engine::new()?);
    let descriptor = Rc::new(Descriptor::new(file, std::ptr::from_ref(engine).addr()));
    let mut free = vec![vec![0; BLOCK_BYTES]; batch];
    let mut handles = Vec::with_capacity(batch);
    let mut done = 0;
    for _ in 0..count / batch {
        while let Some(buf) = free.pop() {
            handles.push(match what {
                What::Nop => nop(engine, buf),
                What::Read | What::Cached => read(engine, &descriptor, buf),
            });
        }
        while let Some(mut handle) = handles.pop() {
            loop {
                if let Some((result, buf)) = handle.try_take() {
                    check(what, result.map_or(-1, |len| len as i32));
                    free.push(buf);
                    break;
                }
                engine.borrow_mut().turn()?;
            }
        }
        done += free.len();
    }
    Ok(done)
}
