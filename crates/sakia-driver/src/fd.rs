//! Descriptors that stay open as long as an operation needs them.
//!
//! A driver has one [`Fd`] for each number: [`table`] finds it. [`mode`] has the mode of sockets.

mod mode;
mod table;

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

pub(crate) use self::mode::SendMode;
use self::mode::SocketMode;
pub(crate) use self::table::Table;
use crate::backend::{Calls, FileFacts, FileKind};
use crate::decide::{
    Attempt, CallMode, FileHint, Lane, Mount, Refusal, Retry, Route, Rule, Support, local_route,
};
use crate::key::Key;
use crate::operation::{Class, Completion};
use crate::refusal::Refusals;
use crate::stat::StatxResult;
use crate::sys::Direction;
use crate::sys::send_file::Cached;

/// The way in which a descriptor is closed. Only the driver has its number by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseWay {
    /// By a plain call at once, which waits for nothing.
    AtOnce,
    /// By a plain call, which needs no answer from another machine or process.
    Now,
    /// By a plain call whatever the rules say: a ring refuses to close a ring.
    Plain,
    /// By way of the queue.
    Queue,
    /// By a thread: a server may have to be told first, and may never answer.
    Lane,
}

/// A descriptor that belongs to a driver. Clones refer to the same one.
///
/// Every operation holds a clone until its last completion, so the number cannot be closed, and
/// given to another file, while the kernel may still resolve it. The drop of the last clone closes a
/// socket that does not linger and an end of a pipe there and then; other descriptors are closed by
/// the driver's next turn, or by a thread. A failure is counted. `Handle::close` tells the result.
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
/// let fd = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
/// let read = driver.read(&fd, vec![0; 9], 0);
/// let number = fd.raw();
/// // The read has a clone, so the number stays that of this file.
/// let fd = fd.into_owned().unwrap_err();
/// assert_eq!(run(&driver, read)?.0?, 9);
/// let file = std::fs::File::from(fd.into_owned().expect("there is no other clone"));
/// assert!(file.metadata()?.is_file() && number >= 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fd {
    inner: Rc<Inner>,
}

struct Inner {
    raw: i32,
    known: Known,
    /// The status flags with which it was opened. `None` until needed if the driver did not open it.
    flags: Cell<Option<u32>>,
    /// `O_NONBLOCK` was added when it was opened, so that opening did not wait.
    is_nonblock_added: Cell<bool>,
    mode: Cell<SocketMode>,
    /// The transfers that the file refuses.
    refusals: Refusals,
    /// Code outside the driver may have set `SO_LINGER`.
    may_linger: Cell<bool>,
    /// Predicts whether reads find their bytes in the page cache.
    cache_hint: FileHint,
    /// The part of it that the page cache was last found to have.
    cached: Cell<Cached>,
    /// The mounted file system, found out together with the kind.
    mount: OnceCell<Rc<Mount>>,
    /// The connection of a stream.
    connection: RefCell<Option<Weak<dyn Any>>>,
    /// The parked close operation to go on with once the last clone is gone.
    closer: Cell<Option<Key>>,
    owner: Rc<dyn Owner>,
    /// The address of the owner: tells one driver from another, and is never followed.
    driver: *const (),
    /// Keeps a lent descriptor open in place of this value; the lender's other users may use it too.
    lender: RefCell<Option<Lender>>,
}

/// The facts of a file, all found out when the kind is first needed; see [`FileFacts`].
#[derive(Default)]
struct Known {
    /// `None` until then.
    kind: Cell<Option<FileKind>>,
    size: Cell<Option<u64>>,
    is_anonymous: Cell<bool>,
    is_socket: Cell<bool>,
    is_pipe: Cell<bool>,
}

/// A transfer, as far as it decides its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transferred {
    pub(crate) direction: Direction,
    /// The offset in the file; `u64::MAX` is its own position.
    pub(crate) offset: u64,
    /// `RWF_*`.
    pub(crate) flags: u32,
    /// The requested length.
    pub(crate) bytes: u32,
}

/// A value of any type that keeps a lent descriptor open.
pub(crate) type Lender = Arc<dyn Any + Send + Sync>;

/// The driver side of a descriptor.
pub(crate) trait Owner {
    /// The last clone is gone: closes the descriptor, as part of `closer` if a caller waits.
    ///
    /// # Safety
    ///
    /// - The descriptor is open and the driver's own, no operation and no [`Fd`] uses it, and nothing uses
    ///   the number afterwards but `closer`.
    unsafe fn release(self: Rc<Self>, raw: i32, way: CloseWay, closer: Option<Key>);
    /// The last clone gives the descriptor away.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, and no operation uses it.
    unsafe fn forget(&self, raw: i32);
    /// The last clone of a descriptor that was lent is gone: forgets it, and tells `closer` if there is one.
    ///
    /// # Safety
    ///
    /// - The lender still keeps the descriptor open, and no operation uses it.
    unsafe fn end_loan(&self, raw: i32, closer: Option<Key>);
    /// Closes the descriptor without the queue.
    ///
    /// # Safety
    ///
    /// - As [`release`](Owner::release).
    unsafe fn close_now(&self, raw: i32, way: CloseWay) -> Completion;
    /// Returns the kind of file that the descriptor refers to, and its file system; see [`Calls::facts`].
    ///
    /// # Safety
    ///
    /// - The descriptor stays open during the call.
    unsafe fn facts(&self, raw: i32, stat: Option<&mut StatxResult>) -> FileFacts;
    /// The mounted file system of a file with these facts.
    ///
    /// # Safety
    ///
    /// - As [`facts`](Owner::facts).
    unsafe fn mount(&self, raw: i32, facts: &FileFacts) -> Rc<Mount>;
    /// Returns whether looking this path up, or opening the file there, may wait for a server.
    fn may_wait(&self, path: &[u8]) -> bool;
    /// Returns whether it is worth a try to make a name as on a file system in memory.
    fn tries_in_memory(&self) -> bool;
    /// Takes note of whether it was on one.
    fn note_in_memory(&self, is_in_memory: bool);
    /// The driver's living descriptors.
    fn table(&self) -> &Table;
    /// Plain calls on descriptors.
    fn calls(&self) -> &dyn Calls;
    /// Counts a failed close without a caller that waits for the result.
    fn note_close_error(&self);
}

impl fmt::Debug for dyn Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Owner")
    }
}

impl Fd {
    /// A descriptor that the driver closes.
    ///
    /// # Safety
    ///
    /// - The descriptor is open, and the driver's own from now on: no other code closes it, and no other
    ///   [`Fd`] of the driver has its number.
    pub(crate) unsafe fn new(raw: i32, owner: Rc<dyn Owner>) -> Self {
        Self::with_lender(raw, owner, None)
    }

    /// A descriptor that `lender` keeps open as long as there are clones.
    ///
    /// # Safety
    ///
    /// - The lender keeps the descriptor open until it is dropped, and no other [`Fd`] of the driver has its
    ///   number.
    pub(crate) unsafe fn lent(raw: i32, lender: Lender, owner: Rc<dyn Owner>) -> Self {
        Self::with_lender(raw, owner, Some(lender))
    }

    fn with_lender(raw: i32, owner: Rc<dyn Owner>, lender: Option<Lender>) -> Self {
        let driver = Rc::as_ptr(&owner).cast();
        let inner = Rc::new(Inner {
            raw,
            known: Known::default(),
            flags: Cell::new(None),
            is_nonblock_added: Cell::new(false),
            mode: Cell::new(SocketMode::Foreign),
            refusals: Refusals::unknown(),
            may_linger: Cell::new(true),
            cache_hint: FileHint::default(),
            cached: Cell::default(),
            mount: OnceCell::new(),
            connection: RefCell::default(),
            closer: Cell::new(None),
            owner,
            driver,
            lender: RefCell::new(lender),
        });
        inner.owner.table().insert(&inner);
        Self { inner }
    }

    /// A descriptor that the driver has just opened with these flags.
    ///
    /// # Safety
    ///
    /// - As [`new`](Fd::new).
    pub(crate) unsafe fn opened(
        raw: i32,
        owner: Rc<dyn Owner>,
        flags: u32,
        nonblock_added: bool,
    ) -> Self {
        // SAFETY: the caller's duties are the same.
        let fd = unsafe { Self::new(raw, owner) };
        fd.inner.flags.set(Some(flags));
        fd.inner.is_nonblock_added.set(nonblock_added);
        fd
    }

    /// A socket that the driver has just made; `may_linger` if `SO_LINGER` may be set.
    ///
    /// # Safety
    ///
    /// - As [`new`](Fd::new).
    pub(crate) unsafe fn socket(raw: i32, owner: Rc<dyn Owner>, may_linger: bool) -> Self {
        // SAFETY: the caller's duties are the same.
        let fd = unsafe { Self::opened(raw, owner, 0, false) };
        fd.inner.known.kind.set(Some(FileKind::Waiting));
        fd.inner.known.is_socket.set(true);
        fd.inner.may_linger.set(may_linger);
        fd.inner.mode.set(SocketMode::Own);
        fd.inner.refusals.note_socket();
        fd
    }

    /// The number, for reading only: closing it or handing it to an owner would pull it away from
    /// under the driver.
    ///
    /// # Examples
    /// See [`Fd`](Fd#examples).
    #[inline(always)]
    pub fn raw(&self) -> i32 {
        self.inner.raw
    }

    /// Itself, where an operation may act on one or none.
    #[inline(always)]
    pub(crate) fn descriptor(&self) -> Option<&Self> {
        Some(self)
    }

    /// Returns the kind of file that the descriptor refers to. The first call on a descriptor asks the
    /// kernel.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver, FileKind};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let fd = driver.adopt(std::fs::File::open("Cargo.toml")?.into());
    /// assert_eq!(fd.kind(), FileKind::Bounded);
    /// assert_eq!(fd.first_size(), Some(std::fs::metadata("Cargo.toml")?.len()));
    /// # std::io::Result::Ok(())
    /// ```
    #[inline(always)]
    pub fn kind(&self) -> FileKind {
        self.inner.kind()
    }

    /// Learns the kind of file that the descriptor refers to, unless that is known, and returns the
    /// `statx(2)` result of a file of a local file system by the same call.
    pub(crate) fn learn_with_stat(&self) -> Option<StatxResult> {
        let inner = &*self.inner;
        if inner.known.kind.get().is_some() {
            return None;
        }
        let mut stat = StatxResult::default();
        // SAFETY: a clone keeps the descriptor open: `self`.
        let facts = unsafe { inner.owner.facts(inner.raw, Some(&mut stat)) };
        inner.learn(facts);
        let is_local = self.mount().is_some_and(|mount| mount.is_local);
        (is_local && stat.mask != 0).then_some(stat)
    }

    /// The mounted file system of a file on which operations end by themselves; `None` for other
    /// descriptors.
    pub(crate) fn mount(&self) -> Option<&Rc<Mount>> {
        match self.kind() {
            FileKind::Bounded => self.inner.mount.get(),
            FileKind::Waiting => None,
        }
    }

    /// Returns whether transfers end only when the device has done its part: past the page cache, or to the
    /// device.
    #[inline(always)]
    fn reaches_device(&self, direction: Direction) -> bool {
        const DIRECT: u32 = OFlags::DIRECT.bits();
        let reaching = match direction {
            Direction::Read => DIRECT,
            // `O_SYNC` has the bit, too.
            Direction::Write => DIRECT | OFlags::DSYNC.bits(),
        };
        let flags = self.inner.flags.get().unwrap_or_else(|| self.learn_flags());
        flags & reaching != 0
    }

    #[cold]
    fn learn_flags(&self) -> u32 {
        let inner = &*self.inner;
        // SAFETY: a clone keeps the descriptor open: `self`.
        let flags = unsafe { inner.owner.calls().status_flags(inner.raw) };
        inner.flags.set(Some(flags));
        flags
    }

    /// Returns the class of transfers.
    #[inline(always)]
    pub(crate) fn class(&self) -> Class {
        if self.may_refuse() { self.class_of_refusable() } else { Class::Bounded }
    }

    #[cold]
    #[inline(never)]
    fn class_of_refusable(&self) -> Class {
        self.kind().into()
    }

    /// Returns whether the file may refuse a transfer; see [`route_refusable`](Fd::route_refusable).
    #[inline(always)]
    pub(crate) fn may_refuse(&self) -> bool {
        self.inner.refusals.are_possible()
    }

    /// Returns the way of a transfer of so many bytes, of a file that takes it.
    #[inline(always)]
    pub(crate) fn route_file(&self, rule: Rule, direction: Direction, bytes: u32) -> Route {
        if !rule.tries_now {
            return Route::Queue;
        }
        // Known by now: the file's kind was asked for.
        let Some(mount) = self.inner.mount.get() else { return Route::Queue };
        if mount.is_remote {
            return Route::Lane(Lane::Elastic);
        }
        if bytes > rule.bytes_max || self.reaches_device(direction) {
            return Route::Queue;
        }
        let usual = local_route(mount.nowait(direction));
        if usual != Route::Now(CallMode::NonBlocking) || direction == Direction::Write {
            return usual;
        }
        if self.inner.cache_hint.is_worth_a_try() { usual } else { Route::Queue }
    }

    /// As [`route_file`](Fd::route_file), of a write with these `RWF_*` flags. One that is to be durable
    /// waits for the device.
    #[inline(always)]
    pub(crate) fn route_write(&self, rule: Rule, bytes: u32, flags: u32) -> Route {
        const DURABLE: u32 = ReadWriteFlags::DSYNC.bits() | ReadWriteFlags::SYNC.bits();
        match self.route_file(rule, Direction::Write, bytes) {
            Route::Now(_) if flags & DURABLE != 0 => Route::Queue,
            route => route,
        }
    }

    /// Returns the way of a transfer of a file that may refuse it. A ring ignores flags where a plain call
    /// refuses them, and waits for readiness where a plain call need not.
    #[cold]
    #[inline(never)]
    pub(crate) fn route_refusable(&self, rule: Rule, transfer: Transferred) -> Route {
        /// An eventfd refuses all other lengths.
        const EVENTFD_BYTES: u32 = 8;
        let inner = &*self.inner;
        let Transferred { direction, offset, flags, bytes } = transfer;
        self.share_mode(); // transfers that are no socket's own go by it
        let refusal = inner.refusals.find(direction, offset, |is_at_offset| {
            // SAFETY: a clone keeps the descriptor open: `self`.
            unsafe { inner.owner.calls().refusal(inner.raw, direction, is_at_offset) }
        });
        let writes = direction == Direction::Write;
        match self.kind() {
            _ if let Some(errno) = refusal => Route::Refused(Refusal::of(errno)),
            FileKind::Waiting if flags != 0 || writes && bytes == 0 => Route::Readiness,
            FileKind::Waiting if writes && bytes != EVENTFD_BYTES && self.is_anonymous() => {
                Route::Readiness
            }
            FileKind::Waiting => Route::Queue,
            FileKind::Bounded if flags != 0 => {
                let is_remote = self.mount().is_some_and(|mount| mount.is_remote);
                Route::Lane(if is_remote { Lane::Elastic } else { Lane::Bounded })
            }
            FileKind::Bounded => self.route_file(rule, direction, bytes),
        }
    }

    /// See [`FileFacts::is_anonymous`].
    pub(crate) fn is_anonymous(&self) -> bool {
        self.kind(); // learns the other facts
        self.inner.known.is_anonymous.get()
    }

    /// Returns the way of a call on the descriptor that is short unless a server is asked.
    pub(crate) fn route_call(&self, rule: Rule) -> Route {
        if !rule.tries_now {
            return Route::Queue;
        }
        match self.mount() {
            Some(mount) if mount.is_remote => Route::Lane(Lane::Elastic),
            Some(_) => Route::Now(CallMode::Blocking),
            None => Route::Queue,
        }
    }

    /// Classifies the result of a plain transfer, and learns from it.
    #[inline(always)]
    pub(crate) fn classify(
        &self,
        direction: Direction,
        mode: CallMode,
        attempt: Attempt,
        bytes: u32,
    ) -> Retry {
        let mount = self.inner.mount.get().expect("a plain transfer is on a file of a mount");
        match (mode, attempt) {
            (CallMode::NonBlocking, Attempt::Done(0)) if bytes > 0 => {
                // The end of the file, or of what was there to be had without waiting.
                Retry::Call(CallMode::Blocking)
            }
            // File systems that support `RWF_NOWAIT`, but not in buffered writes, such as f2fs.
            (CallMode::NonBlocking, Attempt::Done(INVALID)) => Retry::Call(CallMode::Blocking),
            (CallMode::NonBlocking, Attempt::Done(_)) => {
                if direction == Direction::Read {
                    self.inner.cache_hint.hit();
                }
                if mount.nowait(direction) == Support::Unknown {
                    mount.learn(direction, Support::Yes);
                }
                Retry::No
            }
            (CallMode::Blocking, Attempt::Done(res)) => {
                if res > 0 && mount.nowait(direction) != Support::No {
                    // Without waiting this brought nothing, or was invalid.
                    let support = match direction {
                        Direction::Read => Support::Lies,
                        Direction::Write => Support::No,
                    };
                    mount.learn(direction, support);
                }
                Retry::No
            }
            (_, Attempt::WouldBlock) => {
                if direction == Direction::Read {
                    self.inner.cache_hint.missed();
                }
                if mount.nowait(direction) == Support::Unknown {
                    mount.learn(direction, Support::Yes); // it has just done so
                }
                Retry::InQueue
            }
            (CallMode::NonBlocking, Attempt::Unsupported) => {
                mount.learn(direction, Support::No);
                Retry::Call(CallMode::Blocking)
            }
            (CallMode::Blocking, Attempt::Unsupported) => Retry::InQueue,
        }
    }

    /// Classifies the result of a plain call that reads from the page cache, and in
    /// [`NonBlocking`](CallMode::NonBlocking) mode is made only if all bytes are there. Learns from it.
    pub(crate) fn classify_cached(&self, mode: CallMode, attempt: Attempt) -> Retry {
        match (mode, attempt) {
            (CallMode::NonBlocking, Attempt::Done(_)) => {
                self.inner.cache_hint.hit();
                Retry::No
            }
            (_, Attempt::Done(_)) => Retry::No,
            (CallMode::NonBlocking, Attempt::Unsupported) => Retry::Call(CallMode::Blocking),
            (_, Attempt::WouldBlock) => {
                self.inner.cache_hint.missed();
                Retry::InQueue
            }
            (CallMode::Blocking, Attempt::Unsupported) => Retry::InQueue,
        }
    }

    /// The part of the file that the page cache was last found to have.
    pub(crate) fn cached(&self) -> Cached {
        self.inner.cached.get()
    }

    pub(crate) fn note_cached(&self, cached: Cached) {
        self.inner.cached.set(cached);
    }

    /// Returns the connection that was made of the descriptor, if it lives.
    pub(crate) fn connection(&self) -> Option<Rc<dyn Any>> {
        self.inner.connection.borrow().as_ref().and_then(Weak::upgrade)
    }

    pub(crate) fn set_connection(&self, connection: Weak<dyn Any>) {
        self.inner.connection.replace(Some(connection));
    }

    /// Returns whether `Handle::close` was called on a clone.
    pub(crate) fn is_closing(&self) -> bool {
        self.inner.closer.get().is_some()
    }

    #[inline(always)]
    pub(crate) fn owner(&self) -> &Rc<dyn Owner> {
        &self.inner.owner
    }

    /// Returns whether the descriptor belongs to the driver at this address.
    #[inline(always)]
    pub(crate) fn belongs_to<T>(&self, driver: &Rc<T>) -> bool {
        std::ptr::addr_eq(self.inner.driver, Rc::as_ptr(driver))
    }

    /// Returns whether it is a file of a [local](Mount::is_local) file system.
    pub(crate) fn is_local(&self, _: &dyn Calls) -> bool {
        self.mount().is_some_and(|mount| mount.is_local)
    }

    /// Takes note that `SO_LINGER` may be set from now on, which [`peek`](Fd::peek) does not. Without that a
    /// drop that closes the socket may wait as long as it says.
    pub fn note_linger(&self) {
        self.inner.may_linger.set(true);
    }

    /// Returns whether `SO_LINGER` may be set. Accepted sockets inherit it.
    pub(crate) fn may_linger(&self) -> bool {
        self.inner.may_linger.get()
    }

    /// Returns the way in which it is to be closed.
    pub(crate) fn close_way(&self) -> CloseWay {
        self.inner.close_way()
    }

    /// Returns whether it is a clone of the other.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    /// Returns whether this is the only clone.
    pub(crate) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.inner) == 1
    }

    /// Makes another lender of the same open file keep it, too, unless it is the driver's own.
    pub(crate) fn add_lender(&self, new: Lender) {
        /// Lenders of one descriptor.
        struct Several(Vec<Lender>);
        let mut lender = self.inner.lender.borrow_mut();
        let Some(first) = &mut *lender else { return };
        if Arc::ptr_eq(first, &new) {
            return;
        }
        match Arc::get_mut(first).and_then(|first| first.downcast_mut::<Several>()) {
            Some(Several(lenders)) if lenders.iter().any(|one| Arc::ptr_eq(one, &new)) => {}
            Some(Several(lenders)) => lenders.push(new),
            None => *first = Arc::new(Several(vec![Arc::clone(first), new])),
        }
    }

    /// Names the operation that closes the descriptor when the last clone is gone.
    pub(crate) fn set_closer(&self, closer: Key) {
        self.inner.closer.set(Some(closer));
    }

    /// The size in bytes that a regular file had when its [`kind`](Fd::kind) was found out. Costs no
    /// call of its own.
    ///
    /// # Examples
    /// See [`Fd::kind`].
    pub fn first_size(&self) -> Option<u64> {
        self.kind();
        self.inner.known.size.get()
    }

    /// Takes the descriptor out of the driver, if this is the only clone; else gives the clone back.
    /// Neither an operation in flight nor one whose result was not taken uses it then.
    ///
    /// # Errors
    /// The same value: there are other clones, or it is being closed, or it was lent.
    ///
    /// # Panics
    /// On the simulated kernel, whose descriptors mean nothing to the process.
    ///
    /// # Examples
    /// See [`Fd`](Fd#examples).
    pub fn into_owned(self) -> Result<OwnedFd, Self> {
        self.assert_is_of_this_process();
        if self.is_closing() || self.inner.lender.borrow().is_some() {
            return Err(self);
        }
        self.share_mode();
        let mut inner = Rc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        if inner.is_nonblock_added.take() {
            // SAFETY: `inner` keeps the descriptor open; the flag was added when the driver opened the file,
            // which has no other owner.
            unsafe { inner.owner.calls().make_blocking(inner.raw) };
        }
        let raw = std::mem::replace(&mut inner.raw, NO_DESCRIPTOR);
        // SAFETY: it is open until its new owner, below, closes it. Operations hold clones, and this was the
        // last one.
        unsafe { inner.owner.forget(raw) };
        // SAFETY: an open descriptor of this process, to which this was the last reference; `Inner`, which
        // would close it, has another number now.
        Ok(unsafe { OwnedFd::from_raw_fd(raw) })
    }

    /// Lends the descriptor for a call that neither goes by the mode of a socket, nor keeps a copy of the
    /// descriptor, nor sets `SO_LINGER`, such as `getsockopt(2)`. Other calls need [`as_fd`](AsFd::as_fd): a
    /// socket that the driver made may be in non-blocking mode until then, see
    /// [`Connection::send_file`](crate::Connection::send_file).
    ///
    /// # Panics
    /// On the simulated kernel, whose descriptors mean nothing to the process.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let socket = driver.adopt(near.into());
    /// assert!(rustix::net::sockopt::socket_send_buffer_size(socket.peek())? > 0);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn peek(&self) -> BorrowedFd<'_> {
        self.assert_is_of_this_process();
        // SAFETY: an open descriptor of this process: it is not closed while there is a clone, such as the
        // borrowed one.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw) }
    }

    /// Returns whether the descriptor is the simulated kernel's, and has no meaning in this process.
    pub fn is_simulated(&self) -> bool {
        !self.inner.owner.calls().are_of_this_process()
    }

    /// Removes a name, which is not that of a directory, from this directory, by a plain call: it is gone
    /// when this returns. For destructors, which cannot wait; otherwise see
    /// [`Handle::unlink`](crate::Handle::unlink).
    ///
    /// # Errors
    /// As `unlinkat(2)`.
    pub fn unlink_now(&self, name: &CStr) -> io::Result<()> {
        // SAFETY: a clone keeps the directory open: `self`.
        unsafe { self.inner.owner.calls().unlink(self.raw(), name) }
    }

    fn assert_is_of_this_process(&self) {
        assert!(
            !self.is_simulated(),
            "{self:?} is the simulated kernel's, and means nothing to the process"
        );
    }
}

/// The result of a call that was refused as invalid.
const INVALID: i32 = -rustix::io::Errno::INVAL.raw_os_error();

/// Takes the place of a number that has another owner now.
const NO_DESCRIPTOR: i32 = -1;

/// For calls that the driver does not know. Who changes the open file behind it (its position, its flags)
/// changes it for operations too.
impl AsFd for Fd {
    /// # Panics
    /// On the simulated kernel, whose descriptors mean nothing to the process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.share_mode();
        self.peek()
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fd({})", self.inner.raw)
    }
}

impl Inner {
    #[inline(always)]
    fn kind(&self) -> FileKind {
        match self.known.kind.get() {
            Some(kind) => kind,
            None => self.learn_kind(),
        }
    }

    #[cold]
    fn learn_kind(&self) -> FileKind {
        // SAFETY: the caller has a clone, or is the last one's destructor; both keep the descriptor open.
        let facts = unsafe { self.owner.facts(self.raw, None) };
        self.learn(facts);
        facts.kind
    }

    fn learn(&self, facts: FileFacts) {
        self.known.kind.set(Some(facts.kind));
        self.known.size.set(facts.size);
        self.known.is_anonymous.set(facts.is_anonymous);
        self.known.is_socket.set(facts.is_socket);
        self.known.is_pipe.set(facts.is_pipe);
        if facts.kind == FileKind::Bounded {
            // A file is never in the way of the flag; see `into_owned`.
            // SAFETY: a clone, or the last one's destructor, keeps the descriptor open.
            let mount = unsafe { self.owner.mount(self.raw, &facts) };
            // Directories take no flags.
            if mount.has_positions && facts.size.is_some() {
                self.refusals.note_positions();
            }
            let _ = self.mount.set(mount);
        } else if self.is_nonblock_added.take() {
            // SAFETY: a clone, or the last one's destructor, keeps the descriptor open; the flag was added
            // when the driver opened the file, which has no other owner.
            unsafe { self.owner.calls().make_blocking(self.raw) };
        }
    }

    /// Returns the way to close it. Only a file may have data to write back then.
    fn close_way(&self) -> CloseWay {
        match (self.kind(), self.mount.get()) {
            (FileKind::Waiting, _) if self.known.is_anonymous.get() => CloseWay::Plain,
            (FileKind::Waiting, _) => CloseWay::Queue,
            (FileKind::Bounded, Some(mount)) if mount.closes_at_once => CloseWay::Now,
            (FileKind::Bounded, _) => CloseWay::Lane,
        }
    }

    /// Returns the way in which the last clone's drop closes it.
    fn close_way_at_drop(&self) -> CloseWay {
        match self.close_way() {
            CloseWay::Queue if self.known.is_pipe.get() => CloseWay::AtOnce,
            CloseWay::Queue if self.known.is_socket.get() && !self.lingers() => CloseWay::AtOnce,
            way => way,
        }
    }

    fn lingers(&self) -> bool {
        // SAFETY: a clone, or the last one's destructor, keeps the descriptor open.
        self.may_linger.get() && unsafe { self.owner.calls().lingers(self.raw) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.raw == NO_DESCRIPTOR {
            return;
        }
        self.owner.table().remove(self);
        let closer = self.closer.get();
        match self.lender.get_mut() {
            // SAFETY: the lender, dropped after this, keeps it open. Operations hold clones, and this was the
            // last one.
            Some(_) => unsafe { self.owner.end_loan(self.raw, closer) },
            None => {
                let way =
                    if closer.is_none() { self.close_way_at_drop() } else { self.close_way() };
                // SAFETY: the first clone was made with a descriptor given to the driver; it was not taken
                // out, or the number would be gone. Operations hold clones, and this was the last one.
                unsafe { Rc::clone(&self.owner).release(self.raw, way, closer) };
            }
        }
    }
}
