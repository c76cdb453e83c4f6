//! [`Handle`]: submits operations to a driver.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::pin::Pin;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use sakia_ring::may_be_forked;

use crate::arena::{Arena, FixedBuf};
use crate::backend::{Backend, Calls, FileFacts};
use crate::batch::Scratch;
use crate::core::{self, Core, KeepAlive, Phase};
use crate::counters::{Counters, OpKind};
use crate::decide::{Bypass, Mount, MountFacts, Mounts, Rule, Rules, Streams};
use crate::fd::{CloseWay, Fd, Lender, Owner, Table};
use crate::key::Key;
use crate::live::LiveOperation;
use crate::metrics::{Latencies, Metrics};
use crate::operation::{Answering, Completion, Erased, FORKED, Operation, Storage};
use crate::ops::close::{CancelFd, Close};
use crate::slab::{Notify, SlotRef, SlotState, flag};
use crate::stat::StatxResult;

/// The state that all handles of a driver share.
pub(crate) struct Shared {
    /// Borrowed only while no users' code runs.
    pub(crate) core: RefCell<Core>,
    /// Outlives the backend.
    pub(crate) calls: Rc<dyn Calls>,
    /// The file systems that descriptors refer to.
    pub(crate) mounts: Mounts,
    /// The one [`Fd`] of each number.
    pub(crate) table: Table,
    /// Memory for batches of datagrams.
    pub(crate) batch: Cell<Scratch>,
    /// Set once it performs [requests](crate::Requests).
    pub(crate) has_requests: Cell<bool>,
}

/// Starts operations on a driver. Cheap to clone; stays valid, if useless, when the driver is gone:
/// operations then end with `ECANCELED`. In a forked child those that need a turn of the driver end with an
/// error that says so.
///
/// # Examples
/// With `run` of [`Driver`](crate::Driver#examples):
/// ```
/// # use std::future::Future;
/// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
/// #     let mut future = std::pin::pin!(future);
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     loop {
/// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
/// #             return Ok(output);
/// #         }
/// #         driver.turn(sakia_driver::Wait::Forever)?;
/// #     }
/// # }
/// # fn main() -> std::io::Result<()> {
/// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
/// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
/// // Without a borrow of the driver, a future can start operations wherever it is.
/// let handle = driver.handle().clone();
/// let sizes = async move {
///     let size = handle.statx_fd(&file).await?.size;
///     let (result, _) = handle.read(&file, vec![0; size as usize], 0).await;
///     std::io::Result::Ok((size, result?))
/// };
/// let (size, read) = run(&driver, sizes)??;
/// assert_eq!(size, read as u64);
/// # Ok(())
/// # }
/// ```
pub struct Handle {
    pub(crate) shared: Rc<Shared>,
    /// Operations started by this handle always go into the queue, regardless of the rules.
    pub(crate) queues_all: bool,
}

impl Clone for Handle {
    #[inline(always)]
    fn clone(&self) -> Self {
        Self { shared: Rc::clone(&self.shared), queues_all: self.queues_all }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Starts an operation. It reaches the kernel with the driver's next turn at the latest.
    #[inline(always)]
    pub fn start<O: Operation>(&self, operation: O) -> Op<O> {
        if !operation.has_room() {
            return self.refuse(operation, Errno::INVAL);
        }
        let rules = if self.queues_all { Some(&Rules::NONE) } else { None };
        // Not dropped by a panic: that would take a second copy of it.
        let operation = ManuallyDrop::new(operation);
        let slot = self.shared.core.borrow_mut().start(operation, rules);
        Op::new(&self.shared, slot)
    }

    /// Performs an operation here if a plain call does and need not wait, without a slot, or starts it. For
    /// callers that await the result at once.
    #[inline(always)]
    pub(crate) fn begin<O: Operation>(&self, mut operation: O) -> Begun<O> {
        if self.queues_all || !operation.has_room() {
            return Begun::Op(self.start(operation));
        }
        let mut core = self.shared.core.borrow_mut();
        // SAFETY: the operation is this function's own, and not accessed meanwhile.
        let begun = unsafe { core.begin(NonNull::from(&mut operation)) };
        let slot = match begun {
            core::Begun::Done(completion) => {
                drop(core);
                return Begun::Done(operation.complete(completion));
            }
            core::Begun::By(route) => core.start_by(ManuallyDrop::new(operation), route),
            core::Begun::No => core.start(ManuallyDrop::new(operation), None),
        };
        Begun::Op(Op::new(&self.shared, slot))
    }

    /// Starts an operation that ends with this error at once, and is never pushed.
    #[cold]
    #[inline(never)]
    pub(crate) fn refuse<O: Operation>(&self, operation: O, errno: Errno) -> Op<O> {
        let mut core = self.shared.core.borrow_mut();
        let slot = core.start_parked(operation);
        let key = core.slab.key(slot);
        core.finish_parked(key, Completion::error(errno));
        drop(core);
        Op::new(&self.shared, slot)
    }

    /// Returns a handle that makes no plain calls: all its operations go into the queue.
    ///
    /// # Examples
    /// See [`Handle::set_bypass`].
    #[must_use]
    pub fn without_bypass(&self) -> Self {
        Self { queues_all: true, ..self.clone() }
    }

    /// Sets whether operations may be done as plain calls where that is cheaper, from now on and for all
    /// handles. A new driver has [`Bypass::Never`].
    ///
    /// Under a limit on the size of files (`RLIMIT_FSIZE`) there are no plain writes, because they could
    /// raise `SIGXFSZ`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Bypass, Driver, OpKind, Rule, Rules};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// driver.set_bypass(Bypass::Rules(Rules::default().with(OpKind::Read, Rule::NOW)));
    /// let file = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// # std::fs::read("Cargo.toml")?;
    /// let mut read = driver.read(&file, vec![0; 9], 0);
    /// // In the page cache, as a rule, and then done without a turn.
    /// if let Some((result, _)) = read.try_take() {
    ///     assert_eq!((result?, driver.counters().of(OpKind::Read).inline), (9, 1));
    /// }
    /// // All by the queue, whatever the rules say.
    /// let mut read = driver.without_bypass().read(&file, vec![0; 9], 0);
    /// assert!(read.try_take().is_none());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_bypass(&self, bypass: Bypass) {
        let mut rules = match bypass {
            Bypass::Never => Rules::NONE,
            Bypass::Rules(rules) => rules,
        };
        let is_limited = self.shared.calls.limits_file_size();
        if is_limited {
            rules = rules.with(OpKind::Write, Rule::QUEUE);
        }
        self.shared.core.borrow_mut().inline.rules = rules;
    }

    /// Sets the mode in which [connections](crate::Connection) receive and send, from their next message on
    /// and for all handles: those that use [`Connection::recv`](crate::Connection::recv). All others use the
    /// queue. A new driver has [`Streams::Queue`].
    ///
    /// Without a ring of the kernel there is one mode only, and the setting has no effect.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver, Streams};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// assert_eq!(driver.streams(), Streams::Queue);
    /// driver.set_streams(Streams::Readiness);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn set_streams(&self, streams: Streams) {
        self.shared.core.borrow_mut().set_streams(streams);
    }

    /// Returns the mode in which connections receive and send: [`Streams::Queue`] where there is no other.
    ///
    /// # Examples
    /// See [`set_streams`](Handle::set_streams).
    pub fn streams(&self) -> Streams {
        self.shared.core.borrow().stream_mode()
    }

    /// Returns the facts learned about the file systems of this driver's descriptors, in the order of their
    /// devices.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// let file = driver.adopt(std::fs::File::open("/proc/self/stat")?.into());
    /// # driver.set_bypass(sakia_driver::Bypass::Rules(sakia_driver::Rules::default()));
    /// run(&driver, driver.read(&file, vec![0; 100], 0))?.0?;
    /// for mount in driver.mounts() {
    ///     println!("{}: reads go by {:?}", mount.file_system, mount.read_route());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn mounts(&self) -> Vec<MountFacts> {
        self.shared.mounts.facts()
    }

    /// Returns the counters of the driver's activity so far.
    ///
    /// # Examples
    /// See [`Counters`](crate::Counters#examples).
    pub fn counters(&self) -> Counters {
        self.shared.core.borrow().counters()
    }

    /// Starts to measure the latencies of operations, for [`metrics`](Handle::metrics). Costs two readings of
    /// the clock per operation, and 36 KiB of memory per kind of operation that ends. A second call changes
    /// nothing.
    ///
    /// In a program compiled with `--cfg sakia_no_trace` nothing is measured.
    ///
    /// # Examples
    /// See [`Metrics`](crate::Metrics#examples).
    pub fn measure_latencies(&self) {
        let latencies = &mut self.shared.core.borrow_mut().slab.latencies;
        latencies.get_or_insert_with(|| Box::new(Latencies::new()));
    }

    /// Returns the driver's metrics so far: its counters and, once [measured](Handle::measure_latencies), the
    /// latencies of its operations by kind.
    ///
    /// # Examples
    /// See [`Metrics`](crate::Metrics#examples).
    pub fn metrics(&self) -> Metrics {
        let core = self.shared.core.borrow();
        let figures = (core.stream_mode(), core.inline.crowd_figures());
        Metrics::new(core.counters(), figures, core.slab.latencies.as_deref())
    }

    /// Returns the number of operations whose handle has not taken the result, or that are in flight without
    /// a handle.
    pub fn live_operations(&self) -> u32 {
        self.shared.core.borrow().live()
    }

    /// Returns every operation that has a slot, for display. Slow: it looks at all slots.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, CURRENT_POSITION, Driver, OpKind, Stage, Wait};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let (reader, _writer) = std::io::pipe()?;
    /// let reader = driver.adopt(reader.into());
    /// let read = driver.read(&reader, vec![0; 16], CURRENT_POSITION);
    /// driver.turn(Wait::Poll)?;
    /// let operations = driver.operations();
    /// assert_eq!((operations.len(), operations[0].stage), (1, Stage::InFlight));
    /// assert_eq!(operations[0].op_kind, OpKind::Read);
    /// # drop(read);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn operations(&self) -> Vec<LiveOperation> {
        self.shared.core.borrow_mut().live_operations()
    }

    /// Returns the number of entries that the kernel has or will have, and whose last completion has not
    /// come.
    pub fn in_flight(&self) -> u32 {
        self.shared.core.borrow().in_flight
    }

    /// Returns whether this turn has plain calls left; see [`next_turn`](Handle::next_turn).
    ///
    /// # Examples
    /// See [`Handle::next_turn`].
    pub fn has_inline_budget(&self) -> bool {
        self.shared.core.borrow_mut().has_inline_budget()
    }

    /// Returns whether operations wait for the next turn, to be done as plain calls.
    pub fn has_deferred(&self) -> bool {
        self.shared.core.borrow().has_deferred()
    }

    /// Returns whether the driver has ended: operations end with `ECANCELED`, and those that it gave up with
    /// their memory never end.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let handle = driver.handle().clone();
    /// assert!(!handle.has_ended());
    /// drop(driver);
    /// assert!(handle.has_ended());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn has_ended(&self) -> bool {
        self.shared.core.borrow().phase == Phase::Stopped
    }

    /// Panics if the descriptor is another driver's: its number may mean something else there.
    #[inline(always)]
    pub(crate) fn check(&self, fd: &Fd) {
        assert!(fd.belongs_to(&self.shared), "{fd:?} belongs to another driver");
    }

    /// Returns the clone that an operation holds of a descriptor of this driver.
    #[inline(always)]
    pub(crate) fn held(&self, fd: &Fd) -> Fd {
        self.check(fd);
        fd.clone()
    }

    /// See [`Driver::lend`](crate::Driver::lend).
    pub(crate) fn lend<T: AsFd + Send + Sync + 'static>(&self, owner: Arc<T>) -> Fd {
        self.assert_is_of_this_process(&owner);
        let raw = owner.as_fd().as_raw_fd();
        // SAFETY: the borrowed descriptor is open as long as its owner is neither dropped nor borrowed
        // mutably, and it is neither while it is shared with the driver.
        unsafe { self.borrow(raw, owner) }
    }

    /// See [`Driver::adopt`](crate::Driver::adopt).
    pub(crate) fn adopt(&self, fd: OwnedFd) -> Fd {
        self.assert_is_of_this_process(&fd);
        // SAFETY: the descriptor is open, and its owner gives it up. If the driver has its number already,
        // and panics, it stays open.
        unsafe { self.own(fd.into_raw_fd()) }
    }

    /// Refuses a descriptor of the process where numbers mean something else.
    fn assert_is_of_this_process(&self, fd: &impl AsFd) {
        let is_of_process = self.shared.calls.are_of_this_process();
        assert!(is_of_process, "{:?} does not belong to the simulated kernel", fd.as_fd());
    }

    /// Makes a descriptor of a number that this driver owns from now on.
    ///
    /// # Panics
    /// When the driver has a descriptor with this number, which stays as it is.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, and the driver's own from now on: no other code closes it.
    pub(crate) unsafe fn own(&self, raw: i32) -> Fd {
        assert!(
            self.shared.table.find(raw).is_none(),
            "descriptor {raw} is in use by this driver, and would have two owners: adopt a duplicate of it"
        );
        // SAFETY: the caller's promise; the lookup just above found no other `Fd` with this number.
        unsafe { Fd::new(raw, Rc::clone(&self.shared) as Rc<dyn Owner>) }
    }

    /// See [`Driver::lend`](crate::Driver::lend).
    ///
    /// # Safety
    ///
    /// - The lender keeps the descriptor open until it is dropped.
    pub(crate) unsafe fn borrow(&self, raw: i32, lender: Lender) -> Fd {
        // While an `Fd` with this number exists, the driver or the first lender keeps the number open: it is
        // the same open file.
        if let Some(fd) = self.shared.table.find(raw) {
            fd.share_mode(); // the lender may go by it
            return fd;
        }
        // SAFETY: the caller's promise; the lookup just above found no other `Fd` with this number.
        unsafe { Fd::lent(raw, lender, Rc::clone(&self.shared) as Rc<dyn Owner>) }
    }

    /// Registers `blocks` blocks of `block_bytes` bytes each, rounded up to whole pages. A driver has one
    /// arena at most.
    ///
    /// # Errors
    /// - `ENOMEM`: no memory, or the limit on locked memory is reached.
    /// - `EBUSY`: there is an arena already. `EINVAL`: no blocks, or more than 1 GiB in all.
    /// - `ECANCELED`: the driver has stopped.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// use sakia_driver::IoBuf;
    ///
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-register-arena-{}", std::process::id()));
    /// let file = std::fs::File::options().read(true).write(true).create(true).open(&path)?;
    /// let file = driver.adopt(file.into());
    /// let arena = driver.register_arena(2, 4096)?;
    /// let mut block = arena.block().expect("both are free");
    /// block[..5].copy_from_slice(b"hello");
    /// let (result, part) = run(&driver, driver.write_fixed(&file, block.slice(..5), 0))?;
    /// assert_eq!(result?, 5);
    /// let (result, block) = run(&driver, driver.read_fixed(&file, part.into_inner(), 0))?;
    /// assert_eq!(&block[..result?], b"hello");
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn register_arena(&self, blocks: u32, block_bytes: usize) -> io::Result<Arena> {
        let arena = Arena::new(blocks, block_bytes)?;
        let (addr, len) = arena.area();
        let mut core = self.shared.core.borrow_mut();
        core.set_up()?;
        // SAFETY: the core keeps the arena until the backend is gone, and each operation that uses a
        // block keeps the memory through it.
        unsafe { core.backend.register_buffer(addr, len)? };
        core.lent.arena = Some(arena.clone());
        Ok(arena)
    }

    /// Returns whether the block is of this driver's arena, as operations on it require. After the driver's
    /// end it returns true for all blocks: operations on them have no effect.
    pub(crate) fn has_registered(&self, block: &FixedBuf) -> bool {
        let core = self.shared.core.borrow();
        core.phase != Phase::Running
            || core.lent.arena.as_ref().is_some_and(|arena| arena.has(block))
    }

    /// Starts to close a descriptor: cancels the operations on it, waits for them, then closes it.
    pub(crate) fn start_close(&self, fd: Fd) -> Op<Close> {
        self.check(&fd);
        let way = match fd.close_way() {
            CloseWay::Now if self.queues_all => CloseWay::Queue,
            way => way,
        };
        // SAFETY: the close stays parked until the last clone is gone, which then does not close the
        // descriptor itself. A close that is never unparked ends without a result, so that it closes nothing.
        let close = unsafe { Close::new(fd.raw(), way, Rc::clone(fd.owner())) };
        let mut core = self.shared.core.borrow_mut();
        let slot = core.start_parked(close);
        let key = core.slab.key(slot);
        if fd.is_closing() {
            // Another clone closed it first; that call reports the result.
            core.finish_parked(key, Completion::error(Errno::BADF));
        } else {
            fd.set_closer(key);
            if !fd.is_sole() {
                core.cancel_descriptor(&fd, CancelFd::new(fd.clone()));
            }
        }
        drop(core);
        drop(fd); // perhaps the last clone: continues in `release`
        Op::new(&self.shared, slot)
    }
}

/// An operation in progress. Await it, or call [`try_take`](Op::try_take) between turns.
///
/// Dropping it does not wait: the driver keeps the operation's memory and descriptor until the kernel is done
/// with them, cancels an operation that might wait for ever, and disposes of a late result. Forgetting it is
/// safe, and occupies the slot for the driver's life.
///
/// # Examples
/// ```
/// use sakia_driver::{Auto, CURRENT_POSITION, Driver, Wait};
///
/// let driver = Driver::new(Auto::detect()?.0);
/// let (reader, _writer) = std::io::pipe()?;
/// let reader = driver.adopt(reader.into());
/// let mut read = driver.read(&reader, vec![0; 16], CURRENT_POSITION);
/// driver.turn(Wait::Poll)?;
/// read.cancel();
/// let (result, buf) = loop {
///     driver.turn(Wait::Forever)?;
///     if let Some(output) = read.try_take() {
///         break output;
///     }
/// };
/// assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
/// assert_eq!(buf.len(), 16, "the buffer is back");
/// # std::io::Result::Ok(())
/// ```
#[must_use = "a dropped operation is canceled, or its result thrown away"]
pub struct Op<O: Operation> {
    /// The driver's memory. Valid while this handle has the slot: the driver keeps it as long as the driver
    /// lives, then [`KeepAlive`](crate::core::KeepAlive) does until the last slot in use is freed.
    shared: NonNull<Shared>,
    /// The slot, whose result this handle may take. `None` once the result was taken.
    slot: Option<SlotRef>,
    operation: PhantomData<fn() -> O>,
}

/// An operation that was begun: done already, or in progress.
///
/// # Examples
/// See [`Handle::begin_read`].
#[derive(Debug)]
pub enum Begun<O: Operation> {
    /// It was done as a plain call, and this is its result.
    Done(O::Output),
    /// It is in progress.
    Op(Op<O>),
}

impl<O: Operation> Op<O> {
    /// Returns a handle of the operation of this type that was just started in `slot`.
    #[inline(always)]
    pub(crate) fn new(shared: &Rc<Shared>, slot: SlotRef) -> Self {
        Self { shared: NonNull::from(&**shared), slot: Some(slot), operation: PhantomData }
    }

    /// Returns the driver's memory and the slot, unless the result was taken.
    #[inline(always)]
    fn parts(&self) -> Option<(&Shared, SlotRef)> {
        let slot = self.slot?;
        // SAFETY: this handle has the slot, so the memory is valid; see the field.
        Some((unsafe { self.shared.as_ref() }, slot))
    }

    /// Takes the result, if the operation is done. `None` before that, and after the result was taken.
    ///
    /// # Examples
    /// See [`Op`](Op#examples).
    #[inline(always)]
    pub fn try_take(&mut self) -> Option<O::Output> {
        let (shared, slot) = self.parts()?;
        let mut core = shared.core.borrow_mut();
        let completion = core.result(slot)?;
        // SAFETY: the operation is done; it is marked as taken here.
        let operation = unsafe { Self::take(&mut core, slot) };
        let kept = core.last_kept();
        drop(core);
        self.slot = None;
        drop(kept); // the last reference to `shared`, perhaps
        Some(operation.complete(completion))
    }

    /// Takes an operation that is done out of its slot, which is freed.
    ///
    /// # Safety
    ///
    /// - The slot is that of a handle of this type, and in the state `Done`.
    /// - The handle's `slot` becomes `None`.
    #[inline(always)]
    unsafe fn take(core: &mut Core, slot: SlotRef) -> O {
        // SAFETY: in the state `Done` the cell holds the operation that was started there, which is of this
        // type, and no other code has access. `release` marks the cell as empty.
        let operation = unsafe { Erased::<O>::take(slot.cell()) };
        core.release(slot, Erased::<O>::STORAGE);
        operation
    }

    /// Makes the driver report `token` from `Driver::next_done` when the operation is done, for
    /// loops without wakers. `u64::MAX` stands for no token.
    ///
    /// # Examples
    /// See [`Driver::next_done`](crate::Driver::next_done).
    #[inline(always)]
    pub fn set_token(&mut self, token: u64) {
        if let Some((shared, slot)) = self.parts() {
            shared.set_token(slot, token);
        }
    }

    /// Makes the operation a request, whose answer the driver has with `token`, see
    /// [`next_answer`](Shared::next_answer). Returns the name of the request.
    ///
    /// # Panics
    /// When the result was taken.
    #[inline(always)]
    pub(crate) fn into_request<A>(self, token: u64) -> Key
    where
        O::Output: Into<A>,
    {
        let (shared, slot) = self.parts().expect("its result was not taken");
        // SAFETY: the slot holds an operation of this type.
        let key = unsafe {
            shared.core.borrow_mut().make_request(slot, Answering::<O, A>::VTABLE, token)
        };
        std::mem::forget(self); // the slot is the request's
        key
    }

    /// Requests the cancellation of the operation, which then ends with `ECANCELED`, or successfully if it
    /// was quicker. Await it in either case. An operation that the kernel has not seen yet ends at once, and
    /// this call wakes its task.
    ///
    /// # Examples
    /// See [`Op`](Op#examples).
    pub fn cancel(&mut self) {
        if let Some((shared, slot)) = self.parts() {
            shared.cancel(slot);
        }
    }
}

impl<O: Operation> Future for Op<O> {
    type Output = O::Output;

    /// # Panics
    /// When polled again after it was ready, and when the driver was dropped and could not get the
    /// operation's memory back from the kernel. In a forked child, unless it had ended before the fork: the
    /// operation is the parent's, and so is its memory.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<O::Output> {
        let (shared, slot) =
            self.parts().expect("an operation is not polled again after it was ready");
        let mut core = shared.core.borrow_mut();
        // Most operations are done when they are polled: as a plain call, or because their completion woke
        // the task.
        if let Some(completion) = core.result(slot) {
            // SAFETY: the operation is done; it is marked as taken here.
            let operation = unsafe { Self::take(&mut core, slot) };
            let kept = core.last_kept();
            drop(core);
            self.slot = None;
            drop(kept); // the last reference to `shared`, perhaps
            return Poll::Ready(operation.complete(completion));
        }
        let is_registered = core.is_registered(slot, cx.waker());
        drop(core);
        if !is_registered && !shared.register(slot, cx.waker()) {
            return Poll::Ready(self.try_take().expect("the operation is done"));
        }
        if may_be_forked() {
            shared.check_process();
        }
        Poll::Pending
    }
}

// The handle holds no part of the operation: there is nothing that pinning would protect.
impl<O: Operation> Unpin for Op<O> {}

impl<O: Operation> Drop for Op<O> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some((shared, slot)) = self.parts() {
            drop(shared.abandon(slot)); // the last reference to `shared`, perhaps
        }
    }
}

impl<O: Operation> std::fmt::Debug for Op<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Op").field("is_taken", &self.slot.is_none()).finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes the driver report `token` when the operation is done.
    pub(crate) fn set_token(&self, slot: SlotRef, token: u64) {
        let mut core = self.core.borrow_mut();
        let header = core.slab.header(slot);
        if header.state == SlotState::Done {
            if token != Notify::NONE {
                core.outbox.done.push_back(token);
            }
            return;
        }
        let previous = std::mem::replace(&mut header.notify, Notify::Token(token));
        drop(core);
        drop(previous); // a waker: users' code
    }

    /// Wakes `waker` when the operation is done. Returns false if it is.
    fn register(&self, slot: SlotRef, waker: &Waker) -> bool {
        // Cloning a waker runs users' code, which may complete the operation.
        let fresh = waker.clone();
        let mut core = self.core.borrow_mut();
        let header = core.slab.header(slot);
        header.assert_not_lost();
        if header.state == SlotState::Done {
            drop(core);
            return false;
        }
        let previous = std::mem::replace(&mut header.notify, Notify::Wake(fresh));
        drop(core);
        drop(previous); // a waker: users' code
        true
    }

    /// Panics if the driver is a parent's.
    #[cold]
    fn check_process(&self) {
        let is_inherited = self.core.borrow().is_inherited();
        assert!(!is_inherited, "an operation was started before a fork: {FORKED}");
    }

    pub(crate) fn cancel(&self, slot: SlotRef) {
        self.core.borrow_mut().cancel(slot);
        self.settle_later();
    }

    /// Cancels the operation with this key, if it is still under way.
    pub(crate) fn cancel_by_key(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        if let Some(slot) = core.slab.find(key) {
            core.cancel(slot);
        }
        drop(core);
        self.settle_later();
    }

    /// As [`cancel_by_key`](Shared::cancel_by_key), of a request, whose name may be older than a repetition.
    pub(crate) fn cancel_request(&self, key: Key) {
        let mut core = self.core.borrow_mut();
        if let Some(slot) = core.slab.find_request(key) {
            core.cancel(slot);
        }
        drop(core);
        self.settle_later();
    }

    /// Takes the answer of a request that is done, oldest first, and frees its slot.
    ///
    /// # Safety
    ///
    /// - The answers of all requests of this driver are of this type.
    #[inline(always)]
    pub(crate) unsafe fn next_answer<A>(&self) -> Option<(u64, A)> {
        let mut core = self.core.borrow_mut();
        let slot = core.outbox.answered.pop_front()?;
        let completion = core.result(slot).expect("a request whose answer is due is done");
        let (token, vtable) = core.slab.header(slot).take_request();
        drop(core);
        let free = Free { shared: self, slot, storage: vtable.storage };
        let write = vtable.answer.expect("the table of a request");
        let mut answer = MaybeUninit::<A>::uninit();
        let place = NonNull::from(&mut answer).cast();
        // SAFETY: in the state `Done` the cell holds a live operation of the table's type and the kernel is
        // done with it. No other code touches the slot until `Free` releases it: it was taken from the list.
        // The place is one for an answer of the table's type, as the caller says, and written to.
        let answer = unsafe {
            write(slot.cell(), completion, place);
            answer.assume_init()
        };
        std::mem::forget(free);
        let mut core = self.core.borrow_mut();
        core.release(slot, vtable.storage);
        let kept = core.last_kept();
        drop(core);
        drop(kept); // the caller has a reference of its own
        Some((token, answer))
    }

    /// Returns the number of requests that are done.
    #[inline(always)]
    pub(crate) fn answers(&self) -> usize {
        self.core.borrow().outbox.answered.len()
    }

    /// Wakes `waker`, and no other, when a request is done.
    pub(crate) fn ask_for_answers(&self, waker: Waker) {
        let previous = self.core.borrow_mut().outbox.asker.replace(waker);
        drop(previous); // users' code
    }

    /// Gives all requests up: those that would wait are canceled, and their results disposed of.
    pub(crate) fn abandon_requests(&self) {
        let mut core = self.core.borrow_mut();
        if core.is_inherited() {
            return;
        }
        core.outbox.answered.clear();
        let asker = core.outbox.asker.take();
        let slots = core.slab.slots();
        drop(core);
        for slot in slots {
            let mut core = self.core.borrow_mut();
            let header = core.slab.header(slot);
            if !header.has(flag::REQUEST) {
                continue; // its flags are cleared when it is free
            }
            header.flags &= !flag::REQUEST;
            drop(core);
            drop(self.abandon(slot)); // the caller has a reference of its own
        }
        drop(asker); // users' code
    }

    /// Handles the drop of the slot's handle. The caller drops the returned value once it no longer uses
    /// `self`.
    #[must_use]
    pub(crate) fn abandon(&self, slot: SlotRef) -> Option<KeepAlive> {
        let mut core = self.core.borrow_mut();
        let previous = std::mem::replace(&mut core.slab.header(slot).notify, Notify::none());
        let is_over = core.abandon(slot);
        drop(core);
        let kept = if is_over { self.dispose(slot) } else { None };
        drop(previous); // a waker: users' code, which may panic
        kept
    }

    /// Gets the operations on a descriptor back that were canceled, as far as the backend gives them back at
    /// once. The caller has dropped or canceled all that its object had, and drops the descriptor next: if
    /// that was its last user, it is closed there and then. Waits for nothing.
    pub(crate) fn withdraw(&self, fd: &Fd) {
        /// Leaves the rest to the next turn, also after a panic of a buffer's destructor.
        struct Rest<'a>(&'a Shared);
        impl Drop for Rest<'_> {
            fn drop(&mut self) {
                self.0.settle_later();
            }
        }
        // A second panic would abort: users' code does not run here then.
        if fd.is_sole() || fd.is_closing() || std::thread::panicking() {
            return;
        }
        let _rest = Rest(self);
        let before = self.core.borrow().came();
        let mut disposed = 0;
        // A cancel may take two enters: one that has it noticed, and one that brings the operation's end. The
        // drop of another object may have brought it before.
        for enters in 0..=2 {
            loop {
                let slot = self.core.borrow_mut().take_disposal(fd);
                let Some(slot) = slot else { break };
                disposed += 1;
                drop(self.dispose(slot)); // the caller has a reference of its own
            }
            if fd.is_sole() || enters == 2 || !self.core.borrow_mut().hurry_cancels() {
                break;
            }
        }
        self.core.borrow_mut().note_came_between(before + disposed);
    }

    /// Runs the actions that the core left for users' code: wakes tasks, and disposes of results. After a
    /// panic in that code, the next call runs the rest.
    pub(crate) fn settle(&self) {
        loop {
            let mut core = self.core.borrow_mut();
            if let Some(waker) = core.outbox.wakes.pop_front() {
                drop(core);
                waker.wake();
            } else if let Some(slot) = core.outbox.disposals.pop_front() {
                drop(core);
                drop(self.dispose(slot)); // the caller has a reference of its own
            } else {
                return;
            }
        }
    }

    /// Leaves the work of [`settle`](Shared::settle) to the next turn: a panic of another task's waker must
    /// not end the caller's work, which may be a drop. After the driver's end there is no next turn.
    pub(crate) fn settle_later(&self) {
        let mut core = self.core.borrow_mut();
        if core.phase == Phase::Stopped {
            drop(core);
            self.settle();
        } else if core.is_unsettled() {
            core.want_turn();
        }
    }

    /// Disposes of the operation in a slot of state `Disposing`, and frees the slot. The caller drops the
    /// returned value once it no longer uses `self`.
    #[must_use]
    fn dispose(&self, slot: SlotRef) -> Option<KeepAlive> {
        let mut core = self.core.borrow_mut();
        let header = core.slab.header(slot);
        debug_assert!(header.state == SlotState::Disposing);
        let completion = header.completion();
        let vtable = header.vtable.expect("a slot that is disposed of holds an operation");
        drop(core);
        let free = Free { shared: self, slot, storage: vtable.storage };
        // SAFETY: in the state `Disposing` the cell holds a live operation of the table's type and the kernel
        // is done with it. No other code touches the slot until `Free` releases it.
        unsafe { (vtable.dispose)(slot.cell(), completion) };
        drop(free);
        self.core.borrow_mut().last_kept()
    }
}

/// Frees a slot even if the code that takes its operation panics.
struct Free<'a> {
    shared: &'a Shared,
    slot: SlotRef,
    storage: Storage,
}

impl Drop for Free<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shared.core.borrow_mut().release(self.slot, self.storage);
    }
}

impl Owner for Shared {
    unsafe fn release(self: Rc<Self>, raw: i32, way: CloseWay, closer: Option<Key>) {
        let mut core = self.core.borrow_mut();
        // SAFETY: the caller's promise.
        unsafe { core.forget_descriptor(raw) };
        let running = core.phase == Phase::Running && core.is_intact();
        match closer {
            Some(key) if running => {
                core.unpark(key);
            }
            Some(key) if core.finish_parked(key, Completion::REVOKED) => {
                drop(core);
                self.settle_later();
            }
            None if running && way == CloseWay::AtOnce => {
                core.note_closed();
                drop(core);
                // SAFETY: as above.
                if unsafe { self.close_now(raw, way) }.res < 0 {
                    self.note_close_error();
                }
            }
            _ if running => {
                drop(core);
                // SAFETY: as above: from now on the descriptor is this operation's.
                let close = unsafe { Close::new(raw, way, Rc::clone(&self) as Rc<dyn Owner>) };
                self.core.borrow_mut().start_detached(close);
            }
            _ => {
                drop(core);
                // SAFETY: as above.
                if unsafe { self.close_now(raw, way) }.res < 0 {
                    self.note_close_error();
                }
            }
        }
    }

    unsafe fn forget(&self, raw: i32) {
        // SAFETY: the caller's promise.
        unsafe { self.core.borrow_mut().forget_descriptor(raw) };
    }

    unsafe fn end_loan(&self, raw: i32, closer: Option<Key>) {
        let mut core = self.core.borrow_mut();
        // SAFETY: the caller's promise.
        unsafe { core.forget_descriptor(raw) };
        if let Some(key) = closer
            && core.finish_parked(key, Completion::default())
        {
            drop(core);
            self.settle_later();
        }
    }

    unsafe fn close_now(&self, raw: i32, way: CloseWay) -> Completion {
        // SAFETY: the caller gives the descriptor up, which no operation and no `Fd` uses.
        let closed = unsafe { self.calls.close(raw, way != CloseWay::Lane) };
        match closed {
            Ok(()) => Completion::default(),
            Err(error) => Completion::error(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    unsafe fn facts(&self, raw: i32, stat: Option<&mut StatxResult>) -> FileFacts {
        // SAFETY: the caller's promise.
        unsafe { self.calls.facts(raw, stat) }
    }

    unsafe fn mount(&self, raw: i32, facts: &FileFacts) -> Rc<Mount> {
        let place = (facts.device.unwrap_or(0), facts.mount_id);
        // SAFETY: the caller's promise.
        self.mounts.get(place, || unsafe { self.calls.file_system(raw, facts) })
    }

    fn may_wait(&self, path: &[u8]) -> bool {
        self.mounts.may_wait(path, || self.calls.remote_mounts())
    }

    fn tries_in_memory(&self) -> bool {
        self.calls.are_of_this_process() && self.mounts.tries_in_memory()
    }

    fn note_in_memory(&self, is_in_memory: bool) {
        self.mounts.note_in_memory(is_in_memory);
    }

    fn table(&self) -> &Table {
        &self.table
    }

    fn calls(&self) -> &dyn Calls {
        &*self.calls
    }

    fn note_close_error(&self) {
        self.core.borrow_mut().counters.close_errors += 1;
    }
}
