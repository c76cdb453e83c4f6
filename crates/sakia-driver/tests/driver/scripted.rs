//! A backend that follows the test's script, and does nothing by itself unless told to.
//!
//! It consumes entries and keeps them until the test completes them, through the [`Stage`] that both share.
//! Descriptors are numbers; those below 100 stand for pipes, the others for files.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::call::{Buffers, Call, Direction, Request, Transfer, Victims};
use sakia_driver::{
    Attempt, Backend, CallMode, Calls, Destination, Driver, Fd, Features, FileFacts, FileKind,
    OpKind, StatxResult, Takes, Wait,
};
use sakia_ring::{Cqe, CqeFlags, Entered, Opcode, Position, SignalMask, Sqe};

/// The flag of a completion that will be followed by others.
pub const MORE: CqeFlags = CqeFlags(2);
/// A descriptor that stands for a pipe.
pub const PIPE: i32 = 7;
/// A descriptor that stands for a file.
pub const FILE: i32 = 107;

/// The fate of requests to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancels {
    /// Nothing: the test completes them.
    Manual,
    /// They succeed: their targets complete with `ECANCELED`, then they do.
    Work,
    /// They complete and do nothing.
    Fail,
}

/// A provided buffer: group, number, address, length.
type Provided = (u16, u16, *mut u8, u32);

pub struct State {
    pub sq_entries: u32,
    pub cq_entries: u32,
    /// Entries that were pushed and not consumed.
    pub pending: VecDeque<Sqe>,
    /// The position of the first pending entry.
    pub first_pending: u32,
    /// Entries that were consumed and not completed.
    pub in_flight: Vec<Sqe>,
    /// All entries that were ever consumed, in order.
    pub consumed: Vec<Sqe>,
    pub ready: VecDeque<Cqe>,
    pub cancels: Cancels,
    /// The maximum number of entries that an enter consumes.
    pub consume_max: usize,
    /// Errors of the next enters, which then do nothing.
    pub failures: VecDeque<Errno>,
    /// The error of all enters after these.
    pub failing: Option<Errno>,
    pub intact: bool,
    pub now: Duration,
    /// The completions that each enter waits for.
    pub awaited: Vec<u32>,
    /// The number of enters and submits.
    pub enters: u32,
    pub naps: u32,
    /// Descriptors that were closed, by an operation or directly.
    pub closed: Vec<i32>,
    pub close_error: Option<Errno>,
    /// Buffers that the driver has provided.
    pub provided: Vec<Provided>,
    /// The type of the file system of all files and paths.
    pub file_system: &'static str,
    /// If set, operations may fail for lack of a worker, and threads perform them.
    pub lacks_workers: bool,
    /// Calls that were given to a thread.
    pub laned: Vec<Call>,
    /// If set, numbers are taken for descriptors of the process, so that they can be lent. They are not used.
    pub of_process: bool,
}

#[derive(Clone)]
pub struct Stage(Rc<RefCell<State>>);

pub struct Scripted {
    stage: Stage,
    /// Also held by the calls, so it lives as long as the driver's memory.
    pub life: Rc<()>,
}

/// Makes a driver on a scripted backend with these sizes.
pub fn scripted(sq_entries: u32, cq_entries: u32) -> (Driver, Stage) {
    scripted_with(sq_entries, cq_entries, |_| {})
}

/// The same, after a change of the state: the driver is told the backend's features once.
pub fn scripted_with(
    sq_entries: u32,
    cq_entries: u32,
    change: impl FnOnce(&mut State),
) -> (Driver, Stage) {
    let mut state = State {
        sq_entries,
        cq_entries,
        pending: VecDeque::new(),
        first_pending: u32::MAX - 100, // soon wraps
        in_flight: Vec::new(),
        consumed: Vec::new(),
        ready: VecDeque::new(),
        cancels: Cancels::Manual,
        consume_max: usize::MAX,
        failures: VecDeque::new(),
        failing: None,
        intact: true,
        now: Duration::from_secs(1_000_000),
        awaited: Vec::new(),
        enters: 0,
        naps: 0,
        closed: Vec::new(),
        close_error: None,
        provided: Vec::new(),
        file_system: "ext4",
        lacks_workers: false,
        laned: Vec::new(),
        of_process: false,
    };
    change(&mut state);
    let stage = Stage(Rc::new(RefCell::new(state)));
    (Driver::new(Scripted { stage: stage.clone(), life: Rc::new(()) }), stage)
}

impl Stage {
    pub fn state(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// Makes a completion ready, for any operation or none.
    pub fn post(&self, user_data: u64, res: i32, flags: CqeFlags) {
        self.state().post(user_data, res, flags);
    }

    /// Completes the oldest operation of this kind that is in flight, and returns its entry.
    #[track_caller]
    pub fn complete(&self, opcode: Opcode, res: i32) -> Sqe {
        let mut state = self.state();
        let index = state.in_flight.iter().position(|sqe| sqe.opcode == opcode);
        let index = index.unwrap_or_else(|| panic!("no {:?} is in flight", opcode.name()));
        let sqe = state.in_flight.remove(index);
        state.post(sqe.user_data, res, CqeFlags(0));
        sqe
    }

    /// Performs the oldest read in flight: writes the bytes to its buffer and completes it.
    #[track_caller]
    pub fn complete_read(&self, bytes: &[u8]) -> Sqe {
        let sqe = self.complete(Opcode::READ, bytes.len() as i32);
        write_to(&sqe, bytes);
        sqe
    }

    /// Fills the provided buffer with this number, as the kernel does for a receive. The kernel may not touch
    /// a buffer again that it has filled.
    #[track_caller]
    pub fn fill(&self, id: u16, bytes: &[u8]) {
        self.fill_where(|provided| provided.1 == id, bytes);
    }

    /// Fills a buffer of this group, and returns its number.
    #[track_caller]
    pub fn fill_any(&self, group: u16, bytes: &[u8]) -> u16 {
        self.fill_where(|provided| provided.0 == group, bytes)
    }

    #[track_caller]
    fn fill_where(&self, is_it: impl FnMut(&Provided) -> bool, bytes: &[u8]) -> u16 {
        let mut state = self.state();
        let index = state.provided.iter().position(is_it);
        let (_, id, addr, len) = state.provided.remove(index.expect("it was provided"));
        assert!(bytes.len() <= len as usize);
        // SAFETY: the caller of `Backend::provide` has promised that the memory stays valid and unused until
        // a completion names it, which is yet to be posted.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr, bytes.len()) };
        id
    }

    /// Returns the entries in flight of this kind.
    pub fn in_flight(&self, opcode: Opcode) -> Vec<Sqe> {
        let state = self.state();
        state.in_flight.iter().filter(|sqe| sqe.opcode == opcode).copied().collect()
    }

    /// Returns a descriptor of the driver with this number.
    pub fn open(&self, driver: &Driver, raw: i32) -> Fd {
        let mut open = driver.open(None, CString::from(c"x"), 0, 0);
        driver.turn(Wait::Poll).unwrap();
        self.complete(Opcode::OPENAT, raw);
        driver.turn(Wait::Poll).unwrap();
        open.try_take().unwrap().unwrap()
    }
}

/// Writes to an entry's buffer as the kernel does for a read or a receive that is not yet completed.
pub fn write_to(sqe: &Sqe, bytes: &[u8]) {
    let reads = matches!(sqe.opcode, Opcode::READ | Opcode::RECV);
    assert!(reads && bytes.len() <= sqe.len as usize);
    let buffer = std::ptr::with_exposed_provenance_mut::<u8>(sqe.addr as usize);
    // SAFETY: the caller of `Backend::push` has promised that the memory of an entry stays valid until its
    // completion is reaped, which happens only after this call in the tests.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
}

/// Returns an entry that stands for a call on a thread, with the fields that tests check.
fn entry(request: &Request) -> Sqe {
    let sqe = match (request.call, request.kind) {
        (Call::Close { raw }, _) => Sqe::close(raw),
        (Call::Cancel { victims: Victims::UserData(user_data), .. }, _) => Sqe::cancel(user_data),
        (Call::Cancel { victims: Victims::Descriptor(raw), .. }, _) => Sqe::cancel_fd(raw),
        (Call::Cancel { .. }, _) => Sqe::cancel_all(),
        (Call::Transfer(Transfer { raw, direction, buffers, .. }), _) => {
            let opcode = match (direction, buffers) {
                (Direction::Read, Buffers::One { .. }) => Opcode::READ,
                (Direction::Read, Buffers::Many { .. }) => Opcode::READV,
                (Direction::Write, Buffers::One { .. }) => Opcode::WRITE,
                (Direction::Write, Buffers::Many { .. }) => Opcode::WRITEV,
            };
            Sqe::new(opcode, raw, 0, 0, 0)
        }
        (_, kind) => {
            let opcode = match kind {
                OpKind::Open => Opcode::OPENAT,
                OpKind::Statx => Opcode::STATX,
                OpKind::Fsync => Opcode::FSYNC,
                OpKind::Mkdir => Opcode::MKDIRAT,
                OpKind::Unlink => Opcode::UNLINKAT,
                OpKind::Rename => Opcode::RENAMEAT,
                OpKind::Link => Opcode::LINKAT,
                OpKind::Allocate => Opcode::FALLOCATE,
                OpKind::Truncate => Opcode::FTRUNCATE,
                OpKind::Advise => Opcode::FADVISE,
                OpKind::Attribute => Opcode::FGETXATTR,
                // These have no opcode.
                OpKind::List | OpKind::Readlink | OpKind::Copy | OpKind::SendFile => {
                    Opcode(u8::MAX)
                }
                _ => panic!("{request:?}"),
            };
            Sqe::new(opcode, -1, 0, 0, 0)
        }
    };
    sqe.user_data(request.user_data)
}

impl State {
    pub fn post(&mut self, user_data: u64, res: i32, flags: CqeFlags) {
        self.ready.push_back(Cqe { user_data, res, flags });
    }

    fn consume(&mut self) -> io::Result<u32> {
        self.enters += 1;
        if let Some(errno) = self.failures.pop_front().or(self.failing) {
            return Err(errno.into());
        }
        let count = self.pending.len().min(self.consume_max);
        for _ in 0..count {
            let sqe = self.pending.pop_front().unwrap();
            self.first_pending = self.first_pending.wrapping_add(1);
            self.consumed.push(sqe);
            self.begin(sqe);
        }
        Ok(count as u32)
    }

    fn begin(&mut self, sqe: Sqe) {
        match sqe.opcode {
            Opcode::NOP => self.post(sqe.user_data, 0, CqeFlags(0)),
            Opcode::CLOSE => {
                self.closed.push(sqe.fd);
                let res = self.close_error.map_or(0, |errno| -errno.raw_os_error());
                self.post(sqe.user_data, res, CqeFlags(0));
            }
            Opcode::ASYNC_CANCEL => match self.cancels {
                Cancels::Manual => self.in_flight.push(sqe),
                Cancels::Work => self.cancel(sqe),
                Cancels::Fail => {
                    self.post(sqe.user_data, -Errno::ALREADY.raw_os_error(), CqeFlags(0));
                }
            },
            _ => self.in_flight.push(sqe),
        }
    }

    fn cancel(&mut self, request: Sqe) {
        let (by_fd, any) = (request.op_flags & 2 != 0, request.op_flags & 4 != 0);
        let is_meant = |sqe: &Sqe| match (by_fd, any) {
            (true, _) => sqe.fd == request.fd,
            (_, true) => true,
            _ => sqe.user_data == request.addr,
        };
        for sqe in self.in_flight.extract_if(.., |sqe| is_meant(sqe)).collect::<Vec<_>>() {
            self.post(sqe.user_data, -Errno::CANCELED.raw_os_error(), CqeFlags(0));
        }
        self.post(request.user_data, 0, CqeFlags(0));
    }
}

// SAFETY: memory of provided buffers is written by `fill` and `fill_any` alone, before a completion names
// them; memory of operations by `write_to` alone, for entries that are in flight or whose completion was just
// posted and not reaped, and never for an entry that was turned into a no-op.
unsafe impl Backend for Scripted {
    fn features(&self) -> Features {
        let state = self.stage.state();
        Features {
            takes: Takes::Both,
            may_lack_workers: state.lacks_workers,
            ..Features::new(state.sq_entries, state.cq_entries)
        }
    }

    fn sq_pending(&self) -> u32 {
        self.stage.state().pending.len() as u32
    }

    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        let mut state = self.stage.state();
        if state.pending.len() >= state.sq_entries as usize || !state.intact {
            return None;
        }
        let position = state.first_pending.wrapping_add(state.pending.len() as u32);
        state.pending.push_back(sqe);
        Some(Position::from_raw(position))
    }

    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        let sqe = entry(&request);
        if to == Destination::Queue {
            // SAFETY: the caller's duties are the same.
            return unsafe { self.push(sqe) }.map(Some).ok_or(Errno::AGAIN);
        }
        let mut state = self.stage.state();
        if !state.lacks_workers || to == Destination::Readiness {
            return Err(Errno::OPNOTSUPP);
        }
        state.laned.push(request.call);
        state.begin(sqe);
        Ok(None)
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        let mut state = self.stage.state();
        let index = position.to_raw().wrapping_sub(state.first_pending) as usize;
        match state.pending.get_mut(index) {
            Some(sqe) if sqe.user_data == user_data => {
                *sqe = Sqe::nop().user_data(user_data);
                true
            }
            _ => false,
        }
    }

    fn submit(&mut self) -> io::Result<()> {
        self.stage.state().consume().map(|_| ())
    }

    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        _: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        let mut state = self.stage.state();
        state.awaited.push(min_complete);
        let consumed = state.consume()?;
        let mut timed_out = false;
        if state.ready.len() < min_complete as usize {
            state.now += timeout.expect("the driver does not sleep for ever");
            timed_out = consumed == 0;
        }
        Ok(Entered { consumed, timed_out })
    }

    fn cq_ready(&self) -> u32 {
        self.stage.state().ready.len() as u32
    }

    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        let mut state = self.stage.state();
        let count = state.ready.len().min(out.len());
        for place in &mut out[..count] {
            *place = state.ready.pop_front().unwrap();
        }
        count
    }

    fn needs_enter(&self) -> bool {
        false
    }

    fn is_overflowing(&self) -> bool {
        false
    }

    fn is_intact(&self) -> bool {
        self.stage.state().intact
    }

    unsafe fn register_buffer(&mut self, _: *mut u8, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn register_group(&mut self, _: u16, _: u16) -> io::Result<()> {
        Ok(())
    }

    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {
        self.stage.state().provided.push((group, id, addr, len));
    }

    fn now(&self) -> Duration {
        self.stage.state().now
    }

    fn nap(&mut self, duration: Duration) {
        let mut state = self.stage.state();
        state.now += duration;
        state.naps += 1;
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(Numbers(self.stage.clone(), Rc::clone(&self.life)))
    }
}

struct Numbers(Stage, #[expect(dead_code, reason = "held for its count")] Rc<()>);

impl Calls for Numbers {
    unsafe fn try_now(&self, _: Call, _: CallMode) -> Attempt {
        Attempt::Unsupported
    }

    unsafe fn close(&self, raw: i32, _: bool) -> io::Result<()> {
        let mut state = self.0.state();
        state.closed.push(raw);
        state.close_error.map_or(Ok(()), |errno| Err(errno.into()))
    }

    unsafe fn facts(&self, raw: i32, _: Option<&mut StatxResult>) -> FileFacts {
        let kind = if raw < 100 { FileKind::Waiting } else { FileKind::Bounded };
        FileFacts { kind, ..FileFacts::UNKNOWN }
    }

    unsafe fn file_system(&self, _: i32, _: &FileFacts) -> String {
        self.0.state().file_system.into()
    }

    unsafe fn is_path_local(&self, _: i32, _: &CStr) -> bool {
        self.0.state().file_system == "ext4"
    }

    fn are_of_this_process(&self) -> bool {
        self.0.state().of_process
    }
}
