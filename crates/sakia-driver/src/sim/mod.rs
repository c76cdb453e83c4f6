//! A kernel in memory, for tests: deterministic, adversarial, without a system call. With the feature `sim`.
//!
//! [`Sim`] is a [`Backend`] with two queues of any size and, behind them, files, pipes, a table of
//! descriptors and a virtual clock. It does to a driver everything that a real kernel may do: completes
//! operations inline, deferred or after a while, in any order; consumes only a part of the entries; moves
//! fewer bytes than requested; overflows; lets cancels come too late. It also behaves like a faulty kernel
//! or a hostile host: completes twice, or never, or operations that were not requested. A [`SimHandle`]
//! configures this and observes the outcome.
//!
//! # Determinism
//!
//! Every choice follows from the seed and from the calls made. Nothing depends on real time, on
//! addresses or on hash maps, so the same seed and the same calls give the same events, and
//! [`SimHandle::log_hash`] is equal. The log of a failing seed is the story of the failure.
//!
//! # Memory
//!
//! Paths and vectors are copied when an entry is consumed. Buffers are read and written when the operation
//! is performed, which may be long after, and with [`late_writes`](SimBuilder::late_writes) at random
//! moments before: Miri, AddressSanitizer or wrong bytes reveal a buffer that was freed or read too early.
//! Once its last completion is posted the memory of an operation is never accessed. A provided buffer is lent
//! as long as it is in its group. Dropping the backend ends nothing; see [`SimHandle::run_late`].
//!
//! # Time
//!
//! Time passes only in waits and naps, and a little with every submit and enter. An enter that waits without
//! a timeout for an impossible event does not hang: it fails with [`Deadlock`](std::io::ErrorKind::Deadlock)
//! and lists the operations in flight.
//!
//! # Crashes
//!
//! Written data stays in the page cache until a sync, or the kernel by itself
//! ([`write_back`](SimBuilder::write_back)), writes it to the disk:
//!
//! | | makes durable |
//! |---|---|
//! | `fsync` of a file | its bytes, its length, its attributes; not its name |
//! | `fdatasync` of a file | its bytes and its length |
//! | a write with `RWF_DSYNC`, or after `O_DSYNC` | the pages it has written, and the length |
//! | a write with `RWF_SYNC`, or after `O_SYNC` | the same, and the attributes |
//! | either sync of a directory | its attributes and its entries; of names elsewhere those changed before |
//! | `syncfs` | everything |
//!
//! When the power fails, the data that is not durable is treated as follows:
//!
//! - The last changes of names and attributes, and the last truncations, are lost; earlier ones are kept.
//!   Each operation survives as a whole or not at all: a rename never takes effect halfway.
//! - Each page of a file is kept, lost, or torn at its sectors of 512 bytes. Pages have no order, neither
//!   among themselves nor relative to names.
//! - A file that has grown has its old length, the new one, or one between at the end of a page. Missing
//!   bytes read as zeros.
//! - A file without a name is gone.
//!
//! Each of these happens on some file system; most file systems allow less. ext4 and XFS make the name of a
//! new file durable with `fsync` of the file, and write bytes before the length that covers them (ext4 unless
//! `data=writeback`). ext4 also writes a file's bytes before a rename that replaces another file. ext2 does
//! none of this, and POSIX promises none of it. ext4 and XFS keep the order in which names change, and so
//! does the simulation.
//!
//! [`SimHandle::crash`] returns the disk after a crash, as often as wanted, and [`SimBuilder::disk`] starts
//! a kernel with it.
//!
//! A failing sync ([`FaultKind::FsyncFailed`]) returns `EIO`, once to each file that was open. Its data is
//! clean from then on: readers see it, later syncs succeed, and the disk gets it only if it is written
//! again. Changes of names are not lost this way.
//!
//! # Limits
//!
//! One file system without permissions or special files; sockets within the machine, and on a loopback
//! network without options. Reads never fail for data that a disk has lost. Unsupported operations complete
//! with `EINVAL`; so do links, drains, fixed files, and provided buffers for anything but a multishot
//! receive.
//!
//! # Layout
//!
//! `machine` and `cancel` manage the operations in flight and their ends; `ops`, `names` and `files` perform
//! operations; `kernel`, `tree` and `sockets` are the objects that they act on; `faults`, `log` and `random`
//! are about what their names say. Only `memory` accesses lent memory.
//!
//! `content`, `journal` and `disk` manage the durability of files.
//!
//! Single-threaded.

mod buffer;
mod cancel;
mod content;
mod disk;
pub(crate) mod entry;
mod faults;
mod files;
mod handle;
mod journal;
mod kernel;
mod log;
mod machine;
mod memory;
mod names;
mod ops;
mod random;
mod sockets;
#[cfg(test)]
mod tests;
mod tree;

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::{Cqe, Entered, Position, SignalMask, Sqe};

pub use self::buffer::SimBuf;
pub use self::disk::Disk;
use self::entry::{Asked, decode};
pub use self::faults::{EnterFault, Fault, FaultKind, PlainFault, Target};
pub use self::handle::{FlightFacts, SimHandle};
use self::machine::Machine;
use crate::backend::{Backend, Calls, Destination, Features, Takes};
use crate::call::{Call, Request};
use crate::groups::Provided;

/// The byte that the simulation writes into buffers of reads that have not happened yet.
pub const SCRIBBLE: u8 = memory::SCRIBBLE;

/// The weight of each route by which operations complete that could complete at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Within the call that consumes the entry.
    pub inline: u16,
    /// In an enter.
    pub deferred: u16,
    /// In an enter after a random delay.
    pub worker: u16,
}

impl Routes {
    /// All inline: every operation completes in the call that consumes it.
    pub const INLINE: Self = Self { inline: 1, deferred: 0, worker: 0 };
    /// All deferred.
    pub const DEFERRED: Self = Self { inline: 0, deferred: 1, worker: 0 };
    /// All with workers.
    pub const WORKER: Self = Self { inline: 0, deferred: 0, worker: 1 };
    /// All routes with the same probability.
    pub const MIXED: Self = Self { inline: 1, deferred: 1, worker: 1 };
}

/// Describes a simulated kernel. Made by [`Sim::builder`].
///
/// # Examples
/// ```
/// use sakia_driver::Driver;
/// use sakia_driver::sim::Sim;
///
/// // Queues of two entries and four completions: the rare paths become common.
/// let sim = Sim::builder(17).entries(2, 4).build();
/// let driver = Driver::new(sim);
/// let nops: Vec<_> = (0..10).map(|_| driver.nop()).collect();
/// assert_eq!(driver.live_operations(), nops.len() as u32);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SimBuilder {
    seed: u64,
    sq_entries: u32,
    cq_entries: u32,
    routes: Routes,
    reorders: bool,
    worker_delay_max: Duration,
    enter_cost: Duration,
    late_writes: u16,
    busy_on_overflow: bool,
    descriptors_max: u32,
    pipe_bytes: usize,
    socket_bytes: usize,
    locked_bytes_max: usize,
    groups_max: u32,
    keep_log: bool,
    plain_calls: bool,
    refuses_to_wait: bool,
    disk: Option<Disk>,
    disk_bytes_max: u64,
    write_back: u16,
    crash_at: Option<u64>,
    file_system: &'static str,
    faults: Vec<(FaultKind, u16)>,
}

impl SimBuilder {
    /// Sets the sizes of the two queues in entries. Default 8 and 16.
    ///
    /// # Panics
    /// In [`build`](SimBuilder::build): if the first is 0 or greater than the second.
    pub fn entries(mut self, sq_entries: u32, cq_entries: u32) -> Self {
        (self.sq_entries, self.cq_entries) = (sq_entries, cq_entries);
        self
    }

    /// Sets the routes by which operations complete. Default [`Routes::MIXED`].
    pub fn routes(mut self, routes: Routes) -> Self {
        self.routes = routes;
        self
    }

    /// Sets whether an enter finishes ready operations in any order, or oldest first. Default true.
    pub fn reorders(mut self, reorders: bool) -> Self {
        self.reorders = reorders;
        self
    }

    /// Sets the longest time that an operation takes in a worker. Default 1 ms.
    pub fn worker_delay_max(mut self, delay: Duration) -> Self {
        self.worker_delay_max = delay;
        self
    }

    /// Sets the virtual time that each submit and enter takes. Default 1 us, so that a loop that polls until
    /// some time comes to an end.
    pub fn enter_cost(mut self, cost: Duration) -> Self {
        self.enter_cost = cost;
        self
    }

    /// Makes the kernel use lent memory before the operation is performed: at every step of time, with this
    /// probability in 65536 for each operation, it fills the buffers of a read with [`SCRIBBLE`] and reads
    /// those of a write. Default 0; `u16::MAX` is always.
    pub fn late_writes(mut self, per_65536: u16) -> Self {
        self.late_writes = per_65536;
        self
    }

    /// Sets whether a submit or enter fails with `EBUSY` while there are overflowed completions that it
    /// cannot move back, as older kernels did. Default false.
    pub fn busy_on_overflow(mut self, busy: bool) -> Self {
        self.busy_on_overflow = busy;
        self
    }

    /// Sets `RLIMIT_NOFILE`: descriptors have numbers from 3 to one below it. Default 1024.
    pub fn descriptors_max(mut self, count: u32) -> Self {
        self.descriptors_max = count;
        self
    }

    /// Sets the size of a pipe's buffer. Default 64 KiB.
    pub fn pipe_bytes(mut self, bytes: usize) -> Self {
        self.pipe_bytes = bytes;
        self
    }

    /// Sets the capacity of a socket's queue of bytes that were sent to it and not yet received: the buffers
    /// of both ends. A datagram takes its length, and at least one byte. Default 128 KiB.
    pub fn socket_bytes(mut self, bytes: usize) -> Self {
        self.socket_bytes = bytes;
        self
    }

    /// Sets `RLIMIT_MEMLOCK`: the largest buffer that can be registered. Default unlimited.
    pub fn locked_bytes_max(mut self, bytes: usize) -> Self {
        self.locked_bytes_max = bytes;
        self
    }

    /// Sets the maximum number of groups of provided buffers; further ones fail with `ENOMEM`. Default
    /// unlimited.
    pub fn groups_max(mut self, count: u32) -> Self {
        self.groups_max = count;
        self
    }

    /// Sets whether the text of the log is kept, for [`SimHandle::log_text`]. Default false.
    pub fn keep_log(mut self, keep: bool) -> Self {
        self.keep_log = keep;
        self
    }

    /// Sets whether the kernel also performs operations as plain calls; see [`Calls::try_now`]. Default
    /// false: all operations go through the queue.
    pub fn plain_calls(mut self, performs: bool) -> Self {
        self.plain_calls = performs;
        self
    }

    /// Sets whether plain reads and writes can be non-blocking; otherwise such calls fail with `EOPNOTSUPP`.
    /// Default true.
    pub fn refuses_to_wait(mut self, refuses: bool) -> Self {
        self.refuses_to_wait = refuses;
        self
    }

    /// Sets the disk that the kernel starts with, such as the one that another kernel
    /// [left](SimHandle::crash). Default an empty disk.
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disk = Some(disk);
        self
    }

    /// Sets the space for the contents of files, in pages of 4096 bytes: a write beyond it fails with
    /// `ENOSPC`, or is done in part. Default unlimited.
    pub fn disk_bytes_max(mut self, bytes: u64) -> Self {
        self.disk_bytes_max = bytes;
        self
    }

    /// Makes the kernel write data to the disk by itself at every step of time, with this probability in
    /// 65536: a page, or changes of names. Default 0; `u16::MAX` is always.
    pub fn write_back(mut self, per_65536: u16) -> Self {
        self.write_back = per_65536;
        self
    }

    /// Makes the power fail after [this many events](SimHandle::events). The kernel continues unaffected;
    /// [`SimHandle::crashed`] returns the disk as of that moment. Default never.
    pub fn crash_at(mut self, event: u64) -> Self {
        self.crash_at = Some(event);
        self
    }

    /// Injects a fault with this probability in 65536 wherever it could happen; `u16::MAX` is
    /// always. Default 0 for all.
    pub fn fault(mut self, kind: FaultKind, per_65536: u16) -> Self {
        self.faults.push((kind, per_65536));
        self
    }

    /// Injects every fault that a correct driver survives without loss, with this probability in 65536: all
    /// except [`Stuck`](FaultKind::Stuck), [`EnterFailed`](FaultKind::EnterFailed), the faults of a file
    /// server ([`FaultKind::SERVER`]), and the faults of a network, which
    /// [`network_chaos`](SimBuilder::network_chaos) injects.
    pub fn chaos(mut self, per_65536: u16) -> Self {
        let is_fatal = |kind| matches!(kind, FaultKind::Stuck | FaultKind::EnterFailed);
        let kinds = FaultKind::ALL.iter();
        let is_elsewhere =
            |kind| FaultKind::NETWORK.contains(&kind) || FaultKind::SERVER.contains(&kind);
        let kinds = kinds.filter(|&&kind| !is_fatal(kind) && !is_elsewhere(kind));
        self.faults.extend(kinds.map(|&kind| (kind, per_65536)));
        self
    }

    /// Injects the faults of a network, [`FaultKind::NETWORK`], with this probability in 65536.
    pub fn network_chaos(mut self, per_65536: u16) -> Self {
        self.faults.extend(FaultKind::NETWORK.map(|kind| (kind, per_65536)));
        self
    }

    /// Sets the type of the file system, which decides how far the driver trusts its results: a
    /// [remote](crate::MountEntry::is_remote) one may return any error. Default `sim`, which is neither
    /// remote nor known to be local.
    pub fn file_system(mut self, name: &'static str) -> Self {
        self.file_system = name;
        self
    }

    /// Makes the kernel.
    ///
    /// # Panics
    /// See [`entries`](SimBuilder::entries).
    pub fn build(self) -> Sim {
        Sim { machine: Rc::new(RefCell::new(Machine::new(self))) }
    }
}

/// The simulated kernel's ring, for a driver. See the [module](self).
///
/// Positions of entries begin just below `u32::MAX`, so that every test sees them wrap.
///
/// # Examples
/// ```
/// use sakia_driver::sim::Sim;
/// use sakia_driver::{Driver, Wait};
///
/// let sim = Sim::new(17);
/// let kernel = sim.handle();
/// kernel.create_file("note", "some text");
/// let driver = Driver::new(sim);
/// let mut open = driver.open(None, c"note".into(), 0, 0);
/// let file = loop {
///     driver.turn(Wait::Forever)?;
///     if let Some(file) = open.try_take() {
///         break file?;
///     }
/// };
/// let mut read = driver.read(&file, vec![0; 100], 0);
/// let (result, buf) = loop {
///     driver.turn(Wait::Forever)?;
///     if let Some(output) = read.try_take() {
///         break output;
///     }
/// };
/// assert!(b"some text".starts_with(&buf[..result?]), "it may be short");
/// assert!(kernel.contents("note").is_some());
/// # std::io::Result::Ok(())
/// ```
pub struct Sim {
    machine: Rc<RefCell<Machine>>,
}

impl Sim {
    /// Describes a kernel whose every choice follows from `seed`.
    ///
    /// # Examples
    /// See [`SimBuilder`](SimBuilder#examples).
    pub fn builder(seed: u64) -> SimBuilder {
        SimBuilder {
            seed,
            sq_entries: 8,
            cq_entries: 16,
            routes: Routes::MIXED,
            reorders: true,
            worker_delay_max: Duration::from_millis(1),
            enter_cost: Duration::from_micros(1),
            late_writes: 0,
            busy_on_overflow: false,
            descriptors_max: 1024,
            pipe_bytes: 65_536,
            socket_bytes: 131_072,
            locked_bytes_max: usize::MAX,
            groups_max: u32::MAX,
            keep_log: false,
            plain_calls: false,
            refuses_to_wait: true,
            disk: None,
            disk_bytes_max: u64::MAX,
            write_back: 0,
            crash_at: None,
            file_system: "sim",
            faults: Vec::new(),
        }
    }

    /// Makes a kernel with the default options.
    ///
    /// # Examples
    /// See [`Sim`](Sim#examples).
    pub fn new(seed: u64) -> Self {
        Self::builder(seed).build()
    }

    /// Returns a handle to this kernel.
    ///
    /// # Examples
    /// See [`Sim`](Sim#examples).
    pub fn handle(&self) -> SimHandle {
        SimHandle::new(Rc::clone(&self.machine))
    }

    /// See [`Auto::compare`](crate::Auto::compare).
    ///
    /// # Safety
    ///
    /// - The memory that both name is valid.
    pub(crate) unsafe fn compare(sqe: &Sqe, call: Call) {
        // SAFETY: the caller's duties are the same.
        let asked = unsafe { decode(sqe, Some((0, u64::MAX))) };
        assert_eq!(asked, Ok(call), "an entry and a call of the same operation");
    }
}

// SAFETY: only `memory` accesses memory, on behalf of a flight, an abandoned entry, a group's buffers that no
// completion has named, or a plain call while it lasts. A flight begins when a pushed entry is consumed and
// is gone before its completion is posted; an abandoned entry has no completion. An entry that was made a
// no-op names no memory any more.
unsafe impl Backend for Sim {
    fn features(&self) -> Features {
        let machine = self.machine.borrow();
        Features {
            takes: Takes::Both,
            plain_calls: machine.config.plain_calls,
            fills_what_it_reports: true,
            // Faults simulate a lack of workers, and file servers.
            may_lack_workers: true,
            tells_news: true,
            ..Features::new(machine.queue.sq_entries(), machine.queue.cq_entries())
        }
    }

    fn sq_pending(&self) -> u32 {
        self.machine.borrow().queue.pending()
    }

    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        let mut machine = self.machine.borrow_mut();
        // SAFETY: the caller lends the memory.
        let asked = unsafe { Asked::by_entry(&sqe, machine.kernel.registered) };
        machine.queue.push(asked)
    }

    /// Queues calls for a lane, too: the kernel in memory does a thread's work itself.
    unsafe fn push_call(
        &mut self,
        request: Request,
        to: Destination,
    ) -> Result<Option<Position>, Errno> {
        if to == Destination::Readiness {
            return Err(Errno::OPNOTSUPP);
        }
        let asked = Asked::by_call(request.call, request.user_data);
        self.machine.borrow_mut().queue.push(asked).map(Some).ok_or(Errno::AGAIN)
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        let mut machine = self.machine.borrow_mut();
        let is_nop = machine.queue.make_nop(position, user_data);
        let numbers = [user_data as i64, is_nop.into()];
        machine.kernel.note("make nop of {x}: {}", &numbers);
        is_nop
    }

    fn submit(&mut self) -> io::Result<()> {
        self.machine.borrow_mut().submit()
    }

    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        _: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        self.machine.borrow_mut().enter(min_complete, timeout)
    }

    fn cq_ready(&self) -> u32 {
        self.machine.borrow().queue.ready()
    }

    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        let mut machine = self.machine.borrow_mut();
        let count = machine.queue.reap(out);
        machine.kernel.note("reaped {}", &[count as i64]);
        count
    }

    fn needs_enter(&self) -> bool {
        self.machine.borrow().needs_enter()
    }

    fn set_alarm(&mut self, after: Duration) -> bool {
        self.machine.borrow_mut().set_alarm(after);
        true
    }

    fn is_overflowing(&self) -> bool {
        self.machine.borrow().queue.is_overflowing()
    }

    fn is_intact(&self) -> bool {
        true
    }

    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()> {
        let mut machine = self.machine.borrow_mut();
        if machine.kernel.registered.is_some() {
            return Err(Errno::BUSY.into());
        }
        if len > machine.config.locked_bytes_max {
            return Err(Errno::NOMEM.into());
        }
        machine.kernel.registered = Some((addr.expose_provenance() as u64, len as u64));
        machine.kernel.note("registered {} bytes", &[len as i64]);
        Ok(())
    }

    fn register_group(&mut self, group: u16, entries: u16) -> io::Result<()> {
        let mut machine = self.machine.borrow_mut();
        let groups_max = machine.config.groups_max as usize;
        let groups = &mut machine.kernel.groups;
        let mut result = groups.register(group, entries);
        if result.is_ok() && groups.by_number.len() > groups_max {
            groups.by_number.remove(&group);
            result = Err(Errno::NOMEM);
        }
        let numbers = [group.into(), entries.into(), log::code(result.map(|()| 0))];
        machine.kernel.note("registered group {} for {} buffers: {}", &numbers);
        Ok(result?)
    }

    unsafe fn provide(&mut self, group: u16, id: u16, addr: *mut u8, len: u32) {
        let mut machine = self.machine.borrow_mut();
        let is_it = |(its_group, its_id, _)| (its_group, its_id) == (group, id);
        assert!(!machine.kernel.provided().any(is_it), "buffer {id} is in group {group} already");
        assert!(!addr.is_null(), "a buffer has an address");
        let addr = addr.expose_provenance() as u64;
        machine.kernel.groups.provide(group, Provided { id, addr, len });
        let numbers = [group.into(), id.into(), len.into()];
        machine.kernel.note("provided to group {} buffer {} of {} bytes", &numbers);
    }

    fn now(&self) -> Duration {
        self.machine.borrow().kernel.now
    }

    fn nap(&mut self, duration: Duration) {
        let mut machine = self.machine.borrow_mut();
        machine.kernel.note("nap {} ns", &[log::nanos(duration)]);
        machine.advance(duration);
    }

    fn calls(&self) -> Rc<dyn Calls> {
        Rc::new(self.handle())
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.machine.borrow_mut().abandon();
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("handle", &self.handle()).finish_non_exhaustive()
    }
}
