//! The test's side of a simulated kernel.

use std::cell::{Ref, RefCell, RefMut};
use std::ffi::CStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use linux_raw_sys::net::{SO_PEERCRED, SOL_SOCKET};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::buffer::SimBuf;
use super::disk::Disk;
use super::faults::{EnterFault, Fault, FaultKind, PlainFault, Target};
use super::kernel::{Kernel, Object};
use super::log::{code, nanos};
use super::machine::{Event, Flight, Machine, Stage};
use super::tree::{InodeId, Place};
use super::{memory, names};
use crate::address::{Credentials, SocketAddress, SocketType};
use crate::backend::{Calls, FileFacts, FileKind};
use crate::call::{Call, Function, System, outcome};
use crate::decide::{Attempt, CallMode};
use crate::stat::StatxResult;
use crate::sys::Direction;

/// An operation in flight in a simulated kernel. From [`SimHandle::flights`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlightFacts {
    /// The name of its entry, such as `READ`, or else of its system call.
    pub name: String,
    /// The `user_data` of its completion.
    pub user_data: u64,
    /// The first descriptor that it names, including a directory at which a path begins.
    pub descriptor: Option<i32>,
    /// The paths that it names, and the address of a socket as text.
    pub names: Vec<Vec<u8>>,
    /// It never ends, by [`Fault::Stuck`].
    pub is_stuck: bool,
}

/// Controls and observes a simulated kernel from outside, while a driver owns the backend and afterwards.
/// Clones refer to the same kernel.
///
/// Actions of the handle take no virtual time, and are logged like everything else.
///
/// # Examples
/// See [`Sim`](crate::sim::Sim#examples).
#[derive(Clone)]
pub struct SimHandle {
    machine: Rc<RefCell<Machine>>,
}

impl SimHandle {
    pub(super) fn new(machine: Rc<RefCell<Machine>>) -> Self {
        Self { machine }
    }

    /// Borrows the machine, which never calls outside code while it is borrowed.
    fn machine(&self) -> Ref<'_, Machine> {
        self.machine.borrow()
    }

    fn machine_mut(&self) -> RefMut<'_, Machine> {
        self.machine.borrow_mut()
    }

    /// Returns the seed that determines every choice, for a test that makes choices of its own.
    pub fn seed(&self) -> u64 {
        self.machine().config.seed
    }

    // Files and pipes.

    /// Creates a file with this content, or replaces the content of an existing one. The file is durable, and
    /// so are all names so far.
    ///
    /// # Panics
    /// When a directory on the way is missing, or the path is that of a directory.
    pub fn create_file(&self, path: impl AsRef<[u8]>, content: impl Into<Vec<u8>>) {
        let (path, content) = (path.as_ref(), content.into());
        let mut machine = self.machine_mut();
        machine.kernel.note("test: file of {} bytes", &[content.len() as i64]);
        machine.kernel.note_name("  named", path);
        machine.kernel.put_file(path, content).expect("a file can be made there");
    }

    /// Creates a directory. It is durable, and so are all names so far.
    ///
    /// # Panics
    /// When a directory on the way is missing, or the name exists.
    pub fn create_directory(&self, path: impl AsRef<[u8]>) {
        let mut machine = self.machine_mut();
        machine.kernel.note_name("test: directory", path.as_ref());
        let place = Place { start: InodeId::ROOT, path: path.as_ref().to_vec() };
        let now = machine.kernel.time();
        let made = machine.kernel.tree.mkdir(&place, 0o755, now);
        made.expect("a directory can be made there");
        machine.kernel.tree.store_names();
    }

    /// Returns the content of a file. `None` if there is no such file.
    pub fn contents(&self, path: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        let machine = self.machine();
        let id = machine.kernel.lookup(path.as_ref()).ok()?;
        machine.kernel.tree.inode(id).content().map(<[u8]>::to_vec)
    }

    /// Makes a pipe. Returns the descriptors of its read end and its write end.
    ///
    /// # Panics
    /// When the table of descriptors is full.
    pub fn pipe(&self) -> (i32, i32) {
        self.try_pipe().expect("there is room for two descriptors")
    }

    /// As [`pipe`](SimHandle::pipe).
    ///
    /// # Errors
    /// `EMFILE` when the table of descriptors is full.
    pub fn try_pipe(&self) -> io::Result<(i32, i32)> {
        let mut machine = self.machine_mut();
        let ends = machine.kernel.pipe()?;
        let numbers = [ends.0.into(), ends.1.into()];
        machine.kernel.note("test: pipe {} {}", &numbers);
        Ok(ends)
    }

    /// Writes to a pipe from outside the driver, without waiting. Returns the number of bytes written.
    ///
    /// # Errors
    /// `EAGAIN` if it has no room, `EPIPE` if it has no reader, `EBADF` if the descriptor is not open or not
    /// that of a write end.
    pub fn write_pipe(&self, raw: i32, bytes: &[u8]) -> io::Result<usize> {
        let mut machine = self.machine_mut();
        let result = machine.write_pipe(raw, bytes);
        let numbers = [raw.into(), code(result)];
        machine.kernel.note("test: write to pipe {}: {}", &numbers);
        machine.settle();
        Ok(result?)
    }

    /// Writes as [`write_pipe`](SimHandle::write_pipe) does, once this much virtual time has passed.
    pub fn write_pipe_after(&self, delay: Duration, raw: i32, bytes: &[u8]) {
        self.machine_mut().at(delay, Event::WritePipe(raw, bytes.to_vec()));
    }

    /// Reads up to `len_max` bytes from a pipe from outside the driver, without waiting. `None` at the end.
    ///
    /// # Errors
    /// `EAGAIN` if it is empty, `EBADF` if the descriptor is not open or not that of a read end.
    pub fn read_pipe(&self, raw: i32, len_max: usize) -> io::Result<Vec<u8>> {
        let mut machine = self.machine_mut();
        let Object::PipeReader(id) = machine.kernel.file(raw)?.object else {
            return Err(Errno::BADF.into());
        };
        let bytes = machine.kernel.pipe_read(id, len_max).ok_or(Errno::AGAIN);
        let count = bytes.as_ref().map(Vec::len).map_err(|&errno| errno);
        let numbers = [raw.into(), code(count)];
        machine.kernel.note("test: read from pipe {}: {}", &numbers);
        machine.settle();
        Ok(bytes?)
    }

    // Sockets.

    /// Makes two streams that are connected with each other. Returns their descriptors.
    ///
    /// # Panics
    /// When the table of descriptors is full.
    pub fn socket_pair(&self) -> (i32, i32) {
        let mut machine = self.machine_mut();
        let ends = machine.kernel.socket_pair(SocketType::STREAM);
        let [one, other] = ends.expect("there is room for two descriptors");
        machine.kernel.note("test: sockets {} {}", &[one.into(), other.into()]);
        (one, other)
    }

    /// Connects a new stream to an address from outside the driver, without waiting. Returns its descriptor.
    ///
    /// # Errors
    /// As `connect(2)`; `EAGAIN` if the queue of the listener is full.
    pub fn connect_peer(&self, address: &SocketAddress) -> io::Result<i32> {
        let mut machine = self.machine_mut();
        let result = machine.kernel.connect_to(*address);
        let numbers = [code(result.map(|raw| raw as usize))];
        machine.kernel.note("test: connect: {}", &numbers);
        machine.settle();
        Ok(result?)
    }

    /// Sends on a connected socket as its owner, without waiting. Returns the number of bytes sent.
    ///
    /// # Errors
    /// As `send(2)`; `EAGAIN` if there is no room.
    pub fn send_peer(&self, raw: i32, bytes: &[u8]) -> io::Result<usize> {
        let mut machine = self.machine_mut();
        let result = machine.kernel.send_bytes(raw, bytes);
        machine.kernel.note("test: send on {}: {}", &[raw.into(), code(result)]);
        machine.settle();
        Ok(result?)
    }

    /// Receives up to `len_max` bytes on a socket as its owner, without waiting.
    ///
    /// # Errors
    /// As `recv(2)`; `EAGAIN` if there is no data.
    pub fn receive_peer(&self, raw: i32, len_max: usize) -> io::Result<Vec<u8>> {
        let mut machine = self.machine_mut();
        let (id, _) = machine.kernel.socket_of(raw)?;
        let bytes = machine.kernel.socket_read(id, len_max);
        let bytes = bytes.and_then(|bytes| bytes.ok_or(Errno::AGAIN));
        let count = bytes.as_ref().map(Vec::len).map_err(|&errno| errno);
        machine.kernel.note("test: receive on {}: {}", &[raw.into(), code(count)]);
        machine.settle();
        Ok(bytes?)
    }

    // Descriptors.

    /// Returns the number of open descriptors. An operation in flight on a closed one does not count.
    pub fn open_descriptors(&self) -> usize {
        self.machine().kernel.open_descriptors()
    }

    /// Closes a descriptor that no driver has, such as an end of a [`pipe`](SimHandle::pipe).
    ///
    /// # Errors
    /// `EBADF` if it is not open.
    pub fn close(&self, raw: i32) -> io::Result<()> {
        // SAFETY: a number of the simulated kernel, which answers for itself.
        unsafe { Calls::close(self, raw, true) }
    }

    /// Returns the number of closes of a descriptor that was not open: each is a double close.
    pub fn closes_in_vain(&self) -> u64 {
        self.machine().kernel.closes_in_vain
    }

    /// Returns whether the descriptor is open.
    pub fn is_open(&self, raw: i32) -> bool {
        self.machine().kernel.file(raw).is_ok()
    }

    // Crashes.

    /// Returns the disk after a power failure now: the durable data, and a random part of the rest, chosen
    /// anew by each call. The kernel continues.
    ///
    /// For [`SimBuilder::disk`](super::SimBuilder::disk), to start another kernel after the crash.
    pub fn crash(&self) -> Disk {
        self.machine_mut().kernel.crash()
    }

    /// Returns the disk as of the moment set by [`SimBuilder::crash_at`](super::SimBuilder::crash_at). `None`
    /// before that moment.
    pub fn crashed(&self) -> Option<Disk> {
        self.machine().kernel.device.crashed.clone()
    }

    /// Returns the number of events so far, which is the number of lines of the [log](SimHandle::log_text).
    pub fn events(&self) -> u64 {
        self.machine().kernel.log.events()
    }

    // Operations.

    /// Returns the number of operations that were consumed and have not posted their last completion.
    pub fn in_flight(&self) -> usize {
        self.machine().in_flight()
    }

    /// Returns the facts about operations in flight, oldest first.
    pub fn flights(&self) -> Vec<FlightFacts> {
        let facts = |flight: &Flight| FlightFacts {
            name: flight.name.to_string(),
            user_data: flight.user_data,
            descriptor: Some(flight.raw).filter(|&raw| raw >= 0),
            names: flight.request.names(),
            is_stuck: flight.stage == Stage::Stuck,
        };
        self.machine().flights.values().map(facts).collect()
    }

    /// Uses all memory that was lent to the kernel and not given back by a completion: writes
    /// [`SCRIBBLE`](super::SCRIBBLE) to memory that operations may write to, and reads memory that they may
    /// read. Returns the number of operations that had such memory.
    ///
    /// Call it after the end of the backend: the kernel still holds that memory, and if a driver freed it
    /// instead of leaking it, Miri, AddressSanitizer or a later owner of the memory detects that. Before the
    /// end, it is one more moment at which the kernel may use the memory.
    pub fn run_late(&self) -> usize {
        let mut machine = self.machine_mut();
        let count = machine.disturb_all();
        machine.kernel.note("test: disturbed {}", &[count as i64]);
        count
    }

    // Memory.

    /// Returns a buffer with these bytes that detects being freed while an operation in flight may use it. A
    /// buffer made of an empty `Vec` is read into up to its capacity.
    pub fn buffer(&self, bytes: impl Into<Vec<u8>>) -> SimBuf {
        SimBuf::new(bytes.into(), self.clone())
    }

    /// Returns the number of [buffers](SimHandle::buffer) that were freed while the kernel might still use
    /// them: 0 for a correct driver, no matter which values are dropped or forgotten.
    pub fn freed_early(&self) -> u64 {
        self.machine().freed_early
    }

    pub(super) fn note_freed(&self, addr: u64, len: usize) {
        let mut machine = self.machine_mut();
        machine.freed_early += u64::from(machine.is_lent(addr, len));
    }

    // Faults.

    /// Injects a fault into the next operation that `target` names. Several faults for one target take effect
    /// one after the other, one per operation.
    pub fn script(&self, target: Target, fault: Fault) {
        self.machine_mut().faults.script(target, fault);
    }

    /// Injects a fault into a submit or enter, after `skip` of them without a fault.
    pub fn script_enter(&self, skip: u32, fault: EnterFault) {
        self.machine_mut().faults.script_enter(skip, fault);
    }

    /// Injects a fault into the next plain call that `target` names, as [`script`](SimHandle::script).
    pub fn script_plain(&self, target: Target, fault: PlainFault) {
        self.machine_mut().faults.script_plain(target, fault);
    }

    /// Returns the number of scripted faults that have not taken effect.
    pub fn scripted(&self) -> usize {
        self.machine().faults.scripted()
    }

    /// Changes the probability of a fault, as [`SimBuilder::fault`](super::SimBuilder::fault).
    pub fn set_fault(&self, kind: FaultKind, per_65536: u16) {
        self.machine_mut().faults.set(kind, per_65536);
    }

    /// Returns the number of times that a fault of this kind took effect.
    pub fn injected(&self, kind: FaultKind) -> u64 {
        self.machine().faults.injected(kind)
    }

    // Time and log.

    /// Returns the virtual time.
    pub fn now(&self) -> Duration {
        self.machine().kernel.now
    }

    /// Lets virtual time pass. Operations that become ready stay so until the driver enters.
    pub fn advance(&self, duration: Duration) {
        let mut machine = self.machine_mut();
        machine.kernel.note("test: advance {} ns", &[nanos(duration)]);
        machine.advance(duration);
    }

    /// Returns a hash over all events so far. The same seed and the same calls give the same hash.
    pub fn log_hash(&self) -> u64 {
        self.machine().kernel.log.hash()
    }

    /// Returns the log so far, a line per event with the time in nanoseconds. Empty unless the log is
    /// [kept](super::SimBuilder::keep_log).
    pub fn log_text(&self) -> String {
        self.machine().kernel.log.text().to_owned()
    }
}

impl Machine {
    pub(super) fn write_pipe(&mut self, raw: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let Object::PipeWriter(id) = self.kernel.file(raw)?.object else {
            return Err(Errno::BADF);
        };
        let room = self.kernel.pipe_room(id, bytes.len())?.ok_or(Errno::AGAIN)?;
        self.kernel.pipe_write(id, &bytes[..room]);
        Ok(room)
    }
}

/// Calls that no queue takes.
impl Kernel {
    /// Performs a call that is no operation's: without faults, and whether or not operations have plain
    /// calls. `None` for a call that may be an operation's.
    ///
    /// # Safety
    ///
    /// - As [`Calls::try_now`].
    unsafe fn call_at_once(&mut self, call: &Call) -> Option<Result<usize, Errno>> {
        let Call::System(System { function, args }) = *call else { return None };
        let raw = args[0] as i32;
        // SAFETY: the caller lends the memory that the arguments name.
        let result = unsafe {
            match function {
                Function::Getsockname => self
                    .socket_of(raw)
                    .and_then(|(id, _)| write_address(&self.sockets.local_address(id), args)),
                Function::Getpeername => self
                    .socket_of(raw)
                    .and_then(|(id, _)| write_address(&self.sockets.peer_address(id)?, args)),
                Function::Getsockopt => self.credentials(raw, args),
                Function::Lseek => self.size(raw),
                Function::Socketpair => self.make_pair(args),
                Function::Unlinkat => self.unlink_at_once(raw, args),
                // It has neither such modes nor limits.
                Function::Fcntl | Function::Prlimit => Err(Errno::OPNOTSUPP),
                _ => return None,
            }
        };
        Some(result)
    }

    /// # Safety
    ///
    /// - The third argument is the address of memory for `SO_PEERCRED`.
    unsafe fn credentials(&self, raw: i32, args: [usize; 6]) -> Result<usize, Errno> {
        let (id, _) = self.socket_of(raw)?;
        if args[1..3] != [SOL_SOCKET as usize, SO_PEERCRED as usize] {
            return Err(Errno::NOPROTOOPT);
        }
        let Credentials { process, user, group } = self.sockets.peer_credentials(id);
        let bytes = [process, user, group].map(u32::to_ne_bytes);
        // SAFETY: the caller's promise.
        unsafe { memory::write_bytes(args[3] as u64, bytes.as_flattened()) }.map(|()| 0)
    }

    fn size(&self, raw: i32) -> Result<usize, Errno> {
        let id = self.file(raw)?.inode()?;
        self.tree.inode(id).content().map(|content| content.len()).ok_or(Errno::ISDIR)
    }

    /// # Safety
    ///
    /// - The fourth argument is the address of memory for two numbers.
    unsafe fn make_pair(&mut self, args: [usize; 6]) -> Result<usize, Errno> {
        let kind = args[1] as u32 & !SocketFlags::CLOEXEC.bits();
        let ends = self.socket_pair(SocketType(kind));
        let first = ends.map(|[one, _]| one as usize);
        self.note("socket pair: {}", &[code(first)]);
        let bytes = ends?.map(i32::to_ne_bytes);
        // SAFETY: the caller's promise.
        unsafe { memory::write_bytes(args[3] as u64, bytes.as_flattened()) }.map(|()| 0)
    }

    /// # Safety
    ///
    /// - The second argument is the address of a name.
    unsafe fn unlink_at_once(&mut self, raw: i32, args: [usize; 6]) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        let name = unsafe { memory::read_path(args[1] as u64) }?;
        self.note_name("unlink at once", &name);
        let place = names::place(self, raw, name)?;
        let now = self.time();
        self.tree.unlink(&place, now).map(|()| 0)
    }
}

/// Writes an address, as far as there is room, and its length.
///
/// # Safety
///
/// - The second and the third argument are the addresses of such memory, and of its length.
unsafe fn write_address(address: &SocketAddress, args: [usize; 6]) -> Result<usize, Errno> {
    let [room, len] = [args[1] as u64, args[2] as u64];
    let bytes = address.as_bytes();
    // SAFETY: the caller's promise.
    unsafe {
        let fitting = bytes.len().min(memory::read_plain::<u32>(len)? as usize);
        memory::write_bytes(room, &bytes[..fitting])?;
        memory::write_bytes(len, &(bytes.len() as u32).to_ne_bytes())?;
    }
    Ok(0)
}

impl Calls for SimHandle {
    unsafe fn try_now(&self, call: Call, mode: CallMode) -> Attempt {
        let mut machine = self.machine_mut();
        // SAFETY: the caller's duties are the same.
        match unsafe { machine.kernel.call_at_once(&call) } {
            Some(result) => Attempt::Done(outcome(result)),
            // SAFETY: likewise.
            None => unsafe { machine.try_now(&call, mode) },
        }
    }

    fn waits(&self) -> u64 {
        self.machine().waits
    }

    unsafe fn close(&self, raw: i32, _: bool) -> io::Result<()> {
        let mut machine = self.machine_mut();
        let result = machine.kernel.close(raw);
        machine.kernel.note("close {}: {}", &[raw.into(), code(result.map(|()| 0))]);
        machine.settle();
        Ok(result?)
    }

    unsafe fn facts(&self, raw: i32, _: Option<&mut StatxResult>) -> FileFacts {
        // Pipes and sockets are closed alike: none lingers.
        let is_pipe = self.machine().kernel.file(raw).is_ok_and(|file| file.is_stream());
        let kind = if is_pipe { FileKind::Waiting } else { FileKind::Bounded };
        FileFacts { kind, device: Some(0), is_pipe, ..FileFacts::UNKNOWN }
    }

    unsafe fn refusal(&self, raw: i32, direction: Direction, is_at_offset: bool) -> Option<Errno> {
        let machine = self.machine();
        let file = machine.kernel.file(raw).ok()?;
        let may = match direction {
            Direction::Read => file.is_readable,
            Direction::Write => file.is_writable,
        };
        if is_at_offset && file.is_stream() {
            return Some(Errno::SPIPE);
        }
        (!may).then_some(Errno::BADF)
    }

    unsafe fn try_send(&self, raw: i32, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut machine = self.machine_mut();
        let (id, _) = machine.kernel.socket_of(raw)?;
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        let count = machine.kernel.send_at_once(id, &bytes)?;
        machine.kernel.note("send {}: {} at once", &[raw.into(), count as i64]);
        machine.settle();
        Ok(count)
    }

    unsafe fn try_recv(&self, raw: i32, buf: &mut [u8]) -> io::Result<usize> {
        let mut machine = self.machine_mut();
        let (id, _) = machine.kernel.socket_of(raw)?;
        let received = machine.kernel.receive_at_once(id, buf.len())?;
        let count = received.len();
        buf[..count].copy_from_slice(&received);
        machine.kernel.note("recv {}: {} at once", &[raw.into(), count as i64]);
        machine.settle();
        Ok(count)
    }

    unsafe fn file_system(&self, _: i32, _: &FileFacts) -> String {
        self.machine().config.file_system.into()
    }

    unsafe fn is_path_local(&self, _: i32, _: &CStr) -> bool {
        crate::mounts::is_local(self.machine().config.file_system)
    }

    fn are_of_this_process(&self) -> bool {
        false
    }
}

impl fmt::Debug for SimHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimHandle")
            .field("now", &self.now())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
