//! The limit program of requests in C: the loop by hand with what the interface for C promises beyond the
//! driver, for no-ops and reads only.
//!
//! A request is a structure of the program's, whose size it says; the loop is its thread's and its process's;
//! no call is within another; as many requests as allowed are under way; each has a token, a ticket that
//! names it, and one result, in a structure of the program's. A call submits several, and one takes several.
//! There is no other operation, no file by its number, no owner other than the handle, no request that goes
//! on, and no text of an error.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fs::File;
use std::mem::MaybeUninit;
use std::rc::Rc;

use sakia_ring::Process;

use super::promised::{Descriptor, Engine, Memory, Operation};
use super::{BLOCK_BYTES, What, check};

thread_local!(static THREAD: Cell<u64> = const { Cell::new(1) });

/// Memory of the program, which says that it stays until the result was taken.
struct Lent {
    address: *mut u8,
    token: u64,
}

impl Memory for Lent {
    const IS_OF_REQUEST: bool = true;

    #[inline(always)]
    fn address(&mut self) -> *mut u8 {
        self.address
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    token: u64,
    operation: u16,
    flags: u16,
    reserved: u32,
    file: *const Descriptor,
    memory: *mut u8,
    len: usize,
    offset: u64,
    ticket: u64,
    more: [u64; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Outcome {
    token: u64,
    value: i64,
    file: *const Descriptor,
    flags: u32,
    reserved: u32,
    more: [u64; 2],
}

struct Shared {
    thread: u64,
    process: Process,
    is_busy: Cell<bool>,
    under_way: Cell<usize>,
    under_way_max: usize,
    request_bytes: usize,
    outcome_bytes: usize,
    engine: RefCell<Engine<Lent>>,
}

impl Shared {
    /// Begins a call; false if it may not be made.
    #[inline(always)]
    fn enter(&self) -> bool {
        self.thread == THREAD.get() && self.process.is_intact() && !self.is_busy.replace(true)
    }
}

/// Submits requests, and returns how many were accepted, or a negative error.
///
/// # Safety
///
/// - So many requests of the program's size are there.
#[inline(never)]
unsafe extern "C" fn submit(shared: &Shared, requests: *mut Request, count: usize) -> i64 {
    if !shared.enter() {
        return -1;
    }
    let engine = &mut *shared.engine.borrow_mut();
    let (mut accepted, mut at) = (0, requests);
    while accepted < count && shared.under_way.get() < shared.under_way_max {
        let mut copy = MaybeUninit::<Request>::zeroed();
        // SAFETY: the caller's promise. The bytes behind those of the program are zero.
        let request = unsafe {
            let bytes = shared.request_bytes.min(size_of::<Request>());
            match bytes == size_of::<Request>() {
                true => copy.write(at.read()),
                false => {
                    copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(at.cast(), bytes);
                    copy.assume_init_mut()
                }
            }
        };
        if request.flags != 0 || request.reserved != 0 {
            break;
        }
        let (what, descriptor) = match request.operation {
            0 => (What::Nop, None),
            1 if !request.file.is_null() => {
                // SAFETY: the program has a reference to the file, which this one is beside.
                let descriptor = unsafe {
                    Rc::increment_strong_count(request.file);
                    Rc::from_raw(request.file)
                };
                descriptor.check(std::ptr::from_ref(shared).addr());
                (What::Read, Some(descriptor))
            }
            _ => break,
        };
        let memory = Lent { address: request.memory, token: request.token };
        let len = u32::try_from(request.len).unwrap_or(u32::MAX);
        let slot = engine.start(what, Operation::new(descriptor, memory, request.offset, len));
        // SAFETY: a slot of the engine's; the request is the program's, which lets it be written.
        unsafe { (*at).ticket = slot.as_ref().key() };
        shared.under_way.set(shared.under_way.get() + 1);
        accepted += 1;
        at = at.wrapping_byte_add(shared.request_bytes);
    }
    shared.is_busy.set(false);
    accepted as i64
}

/// Takes results, at most `room`, and returns how many.
///
/// # Safety
///
/// - So many results of the program's size fit there.
#[inline(never)]
unsafe extern "C" fn take(shared: &Shared, outcomes: *mut Outcome, room: usize) -> i64 {
    if !shared.enter() {
        return -1;
    }
    let engine = &mut *shared.engine.borrow_mut();
    let (mut taken, mut at) = (0, outcomes);
    while taken < room
        && let Some((operation, res)) = engine.take_ended()
    {
        let value = i64::from(res);
        let Lent { token, .. } = operation.into_memory(value.max(0) as usize);
        let outcome =
            Outcome { token, value, file: std::ptr::null(), flags: 0, reserved: 0, more: [0; 2] };
        // SAFETY: the caller's promise.
        unsafe {
            match shared.outcome_bytes >= size_of::<Outcome>() {
                true => at.write(outcome),
                false => at
                    .cast::<u8>()
                    .copy_from_nonoverlapping((&raw const outcome).cast(), shared.outcome_bytes),
            }
        }
        shared.under_way.set(shared.under_way.get() - 1);
        taken += 1;
        at = at.wrapping_byte_add(shared.outcome_bytes);
    }
    shared.is_busy.set(false);
    taken as i64
}

#[inline(never)]
extern "C" fn wait(shared: &Shared) -> i64 {
    if !shared.enter() {
        return -1;
    }
    let waited = shared.engine.borrow_mut().turn();
    shared.is_busy.set(false);
    if waited.is_ok() { 0 } else { -1 }
}

/// Runs the same work as requests, with memory of the caller.
pub(super) fn on_requests(
    what: What,
    batch: usize,
    count: usize,
    file: File,
) -> Result<usize, Box<dyn Error>> {
    let shared = Shared {
        thread: 1,
        process: Process::current(),
        is_busy: Cell::new(false),
        under_way: Cell::new(0),
        under_way_max: 65_536,
        request_bytes: size_of::<Request>(),
        outcome_bytes: size_of::<Outcome>(),
        engine: RefCell::new(Engine::new()?),
    };
    let shared = std::hint::black_box(&shared);
    let descriptor = Rc::new(Descriptor::new(file, std::ptr::from_ref(shared).addr()));
    let mut bufs: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; BLOCK_BYTES]).collect();
    // SAFETY: numbers and null pointers.
    let mut requests: Vec<Request> = vec![unsafe { MaybeUninit::zeroed().assume_init() }; batch];
    // SAFETY: as above.
    let mut outcomes: Vec<Outcome> = vec![unsafe { MaybeUninit::zeroed().assume_init() }; batch];
    let mut done = 0;
    for _ in 0..count / batch {
        for ((request, buf), token) in requests.iter_mut().zip(&mut bufs).zip(0..) {
            request.token = token;
            if what != What::Nop {
                request.operation = 1;
                request.file = Rc::as_ptr(&descriptor);
                (request.memory, request.len) = (buf.as_mut_ptr(), buf.len());
            }
        }
        // SAFETY: that many, whose memory lives until all results were taken, below.
        let accepted = unsafe { submit(shared, requests.as_mut_ptr(), batch) };
        let mut left = usize::try_from(accepted)?;
        assert_eq!(left, batch);
        while left > 0 {
            // SAFETY: so many fit there.
            let taken = unsafe { take(shared, outcomes.as_mut_ptr(), batch) };
            for outcome in &outcomes[..usize::try_from(taken)?] {
                check(what, outcome.value as i32);
                std::hint::black_box(&bufs[outcome.token as usize]);
                left -= 1;
            }
            if left > 0 && wait(shared) != 0 {
                return Err("the ring fails".into());
            }
        }
        done += batch;
    }
    Ok(done)
}
