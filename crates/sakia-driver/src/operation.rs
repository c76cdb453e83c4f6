//! Operations: the content of a slot, and the handle through which its result is awaited.
//!
//! The story of an operation:
//! 1. `Handle::start` moves it into a slot. From here on the driver owns it, and the [`Op`](crate::Op) handle
//!    holds no more than the addresses of the driver's memory and of the slot.
//! 2. Once admitted, its entry is filled with pointers into the slot and into the buffers that the
//!    operation owns, and pushed. The kernel may use that memory from then on.
//! 3. Its last completion returns that memory to the driver. If the handle still exists, it is notified, and
//!    takes the operation out of the slot, with the result.
//! 4. If the handle was dropped or the driver stopped meanwhile, the operation stays in its slot until that
//!    completion, which disposes of it: a newly opened descriptor is closed, a buffer is freed.
//!
//! A handle that is forgotten (`std::mem::forget`) leaves its slot occupied for the driver's life, and
//! nothing else: step 3 does not need it.

use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, size_of};
use std::ptr::NonNull;
use std::rc::Rc;
use std::task::Waker;

use sakia_ring::{Cqe, CqeFlags, Sqe, may_be_forked};

use crate::backend::{Calls, FileKind};
use crate::call::Call;
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Mount, Retry, Route, Rules};
use crate::fd::Fd;

/// The class by which an operation is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Class {
    /// Ends by itself: files, metadata. Holds one of the credits that keep the completion queue from
    /// overflowing. Not canceled when dropped, just awaited.
    Bounded = 0,
    /// May wait for ever: pipes, sockets, polls. Holds no credit; canceled when dropped.
    Waiting = 1,
}

impl From<FileKind> for Class {
    #[inline(always)]
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Bounded => Self::Bounded,
            FileKind::Waiting => Self::Waiting,
        }
    }
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// As the kernel returned it: a count or a descriptor, or a negated errno.
    pub res: i32,
    /// As the kernel returned them.
    pub flags: CqeFlags,
    /// Set if the operation never reached the kernel, and `res` is the driver's reason. No errno can say so:
    /// a kernel, and every file server behind it, may return any of them.
    pub(crate) is_unstarted: bool,
}

/// The error of each operation on the driver of a parent process.
pub(crate) const FORKED: &str =
    "the driver belongs to the parent process: a forked child must create a driver of its own";

impl Completion {
    /// Makes a completion from an outside result: a kernel's, or that of a thread's system call.
    #[inline(always)]
    pub(crate) const fn of(res: i32, flags: CqeFlags) -> Self {
        Self { res, flags, is_unstarted: false }
    }

    /// Returns a completion of the driver's own, with this errno.
    pub(crate) const fn error(errno: rustix::io::Errno) -> Self {
        Self::of(-errno.raw_os_error(), CqeFlags(0))
    }

    /// Returns the end of an operation that never reached the kernel.
    pub(crate) const fn unstarted(errno: rustix::io::Errno) -> Self {
        Self { is_unstarted: true, ..Self::error(errno) }
    }

    /// The end of an operation that was canceled before it reached the kernel.
    pub(crate) const REVOKED: Self = Self::unstarted(rustix::io::Errno::CANCELED);

    /// The end of an operation on a driver of a process that this one was forked from. No kernel returns this
    /// number.
    pub(crate) const FORKED: Self = Self { is_unstarted: true, ..Self::of(-4095, CqeFlags(0)) };

    /// Returns whether an operation ended with `ECANCELED`, from the driver or from the kernel.
    #[inline(always)]
    pub(crate) const fn is_canceled(self) -> bool {
        self.res == -rustix::io::Errno::CANCELED.raw_os_error()
    }

    /// Returns the result as `std` has it.
    ///
    /// The kernel's restart codes, which a canceled operation may leak, become `EINTR`, their meaning; see
    /// [`Cqe::error_of`].
    ///
    /// # Errors
    /// The operation's errno.
    #[inline(always)]
    pub fn result(self) -> io::Result<u32> {
        if self.res >= 0 { Ok(self.res as u32) } else { Err(Self::failure(self.res)) }
    }

    /// Returns the result as a count of bytes, at most `at_most`: no host is trusted to count.
    #[inline(always)]
    pub(crate) fn count(self, at_most: usize) -> io::Result<usize> {
        self.result().map(|count| (count as usize).min(at_most))
    }

    #[cold]
    fn failure(res: i32) -> io::Error {
        // A host may return any number, but hardly in a forked child.
        match res == Self::FORKED.res && may_be_forked() {
            true => io::Error::other(FORKED),
            false => Cqe::error_of(res),
        }
    }
}

/// One request to the kernel together with everything it needs. It describes itself by two plain values that
/// request the same: an [`entry`](Operation::entry) for a ring, and a [`call`](Operation::call) for every
/// other executor.
///
/// # Safety
///
/// An implementation promises that
/// - [`entry`](Operation::entry) and [`call`](Operation::call) name only memory that the value owns, directly
///   or behind pointers that stay put when the value is moved *after its completion*, and that nothing else
///   accesses that memory, as long as the value is not moved or dropped;
/// - the descriptors that they name are ones that the value keeps open ([`Fd`]);
/// - [`KIND`](Operation::KIND) is that of the driver's own operations of this sort: together with entry and
///   call it decides the operation's way;
/// - [`class`](Operation::class), [`entry`](Operation::entry), [`call`](Operation::call) and
///   [`descriptor`](Operation::descriptor) do not call into a driver.
pub unsafe trait Operation: 'static {
    /// The type to which the handle resolves.
    type Output;

    /// The kind of operation under which it is counted.
    const KIND: OpKind;

    /// Returns the class by which the operation is admitted. Always the same for one value.
    fn class(&self) -> Class;

    /// Returns the request as a ring takes it; `None` if rings have no such operation. Called once the value
    /// has the address that it keeps until the request has ended, perhaps more than once, before the kernel
    /// sees it. `user_data` is overwritten. A request by a plain call that did nothing has ended: then the
    /// value may move, and be asked again.
    #[inline(always)]
    fn entry(&mut self) -> Option<Sqe> {
        None
    }

    /// Returns the same request as a call, under the same conditions as [`entry`](Operation::entry).
    fn call(&mut self) -> Call;

    /// Returns whether there is room for its result. An operation without room ends with `EINVAL` and never
    /// reaches the kernel. Called once, when it is started.
    #[inline(always)]
    fn has_room(&self) -> bool {
        true
    }

    /// Initializes all memory that the kernel is to fill, since a backend may report bytes that it has not
    /// filled; see [`Features::fills_what_it_reports`](crate::Features::fills_what_it_reports). Called once,
    /// before [`entry`](Operation::entry) and [`call`](Operation::call).
    fn initialize(&mut self) {}

    /// Turns the last completion into the handle's output.
    fn complete(self, completion: Completion) -> Self::Output;

    /// Takes the last completion if no caller waits for it any more, and releases what came with it: closes a
    /// new descriptor, for example.
    fn dispose(self, completion: Completion)
    where
        Self: Sized,
    {
        drop(self.complete(completion));
    }

    /// Takes a completion that is not the last of its entry. The kernel still has the entry: an
    /// implementation that is not empty reaches no memory that the entry names, except by the completion.
    ///
    /// Runs inside the driver: it neither calls into one nor runs users' code.
    fn deliver(&self, completion: Completion) -> Delivered {
        let _ = completion;
        Delivered::default()
    }

    /// Gives the operation up: the driver ends without its last completion, and the kernel may have its
    /// memory for ever. Returns the waker of a task that waits for the operation by other means than its
    /// handle.
    ///
    /// Runs inside the driver, as [`deliver`](Operation::deliver).
    fn lose(&self) -> Option<Waker> {
        None
    }

    /// Returns the descriptor acted on, if it is one of the driver's.
    fn descriptor(&self) -> Option<&Fd> {
        None
    }

    /// Returns the route of the operation by these rules.
    fn route(&self, rules: &Rules) -> Route {
        let _ = rules;
        Route::Queue
    }

    /// Classifies the result of a plain call.
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        let _ = mode;
        attempt.or_queue()
    }

    /// Returns the file system whose plain calls are timed, because it is unknown whether they block.
    #[doc(hidden)]
    fn mount(&self) -> Option<&Rc<Mount>> {
        None
    }

    /// Returns whether the operation reaches local file systems only, as far as can be told without waiting.
    /// These never return `ECANCELED` by themselves. So an operation on them that ends with `ECANCELED`
    /// without a cancel request found no kernel worker, and did not begin.
    #[doc(hidden)]
    fn is_local(&self, calls: &dyn Calls) -> bool {
        let _ = calls;
        false
    }

    /// `false` forbids requests to cancel, so that it is always certain how far the operation got.
    #[doc(hidden)]
    const IS_CANCELABLE: bool = true;
}

/// The consequences of a completion that is not the last.
#[derive(Debug, Default)]
pub struct Delivered {
    /// The waker of the task to wake.
    pub waker: Option<Waker>,
    /// The operation is to be canceled: enough has come for now.
    pub is_enough: bool,
}

/// The place of an operation, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    /// In the slot's cell.
    Inline,
    /// In a block of the driver's pool, to which the cell points.
    Pooled,
    /// In an allocation of its own, to which the cell points.
    Boxed,
}

/// Maximum size in bytes of an operation that its slot holds itself.
pub(crate) const CELL_BYTES: usize = 128;

/// Memory for an operation, or for the pointer to where it lies.
#[repr(C, align(16))]
pub(crate) struct Cell([MaybeUninit<u8>; CELL_BYTES]);

impl Cell {
    pub(crate) const fn empty() -> Self {
        Self([MaybeUninit::uninit(); CELL_BYTES])
    }
}

/// Memory for operations that hold a large structure, such as `struct statx`.
#[repr(C, align(16))]
pub(crate) struct Block([u8; BLOCK_BYTES]);

/// Maximum size in bytes of an operation that a pooled block holds.
pub(crate) const BLOCK_BYTES: usize = 512;

impl Block {
    pub(crate) fn allocate() -> NonNull<Self> {
        NonNull::from(Box::leak(Box::new(Self([0; BLOCK_BYTES]))))
    }

    /// # Safety
    ///
    /// - `block` came from [`allocate`](Block::allocate), and nothing uses it any more.
    pub(crate) unsafe fn free(block: NonNull<Self>) {
        // SAFETY: made by leaking a box; the caller is the last to know of it.
        drop(unsafe { Box::from_raw(block.as_ptr()) });
    }
}

/// Takes an operation out of its cell, and writes the answer of its completion to a place for one.
pub(crate) type AnswerFn = unsafe fn(NonNull<Cell>, Completion, NonNull<()>);

/// The functions by which the driver handles an operation whose type it does not know.
///
/// Each function takes the slot's cell, which must hold a live operation of the table's type.
#[derive(Debug)]
pub(crate) struct Vtable {
    pub(crate) storage: Storage,
    /// The type's path.
    pub(crate) name: fn() -> &'static str,
    /// [`Operation::KIND`].
    pub(crate) kind: OpKind,
    /// [`Operation::entry`].
    pub(crate) entry: unsafe fn(NonNull<Cell>) -> Option<Sqe>,
    /// [`Operation::call`].
    pub(crate) call: unsafe fn(NonNull<Cell>) -> Call,
    /// [`Operation::dispose`]; the cell holds nothing afterwards, even if that panics.
    pub(crate) dispose: unsafe fn(NonNull<Cell>, Completion),
    /// [`Operation::deliver`].
    pub(crate) deliver: unsafe fn(NonNull<Cell>, Completion) -> Delivered,
    /// [`Operation::lose`].
    pub(crate) lose: unsafe fn(NonNull<Cell>) -> Option<Waker>,
    /// Returns whether the operation's descriptor is being closed.
    pub(crate) is_closing: unsafe fn(NonNull<Cell>) -> bool,
    /// Returns whether the operation acts on this descriptor.
    pub(crate) is_on: unsafe fn(NonNull<Cell>, &Fd) -> bool,
    /// [`Operation::route`].
    pub(crate) route: unsafe fn(NonNull<Cell>, &Rules) -> Route,
    /// [`Operation::classify`].
    pub(crate) classify: unsafe fn(NonNull<Cell>, CallMode, Attempt) -> Retry,
    /// [`Operation::mount`].
    pub(crate) mount: unsafe fn(NonNull<Cell>) -> Option<Rc<Mount>>,
    /// [`Operation::is_local`].
    pub(crate) is_local: unsafe fn(NonNull<Cell>, &dyn Calls) -> bool,
    /// [`Operation::IS_CANCELABLE`].
    pub(crate) is_cancelable: bool,
    /// Writes [`Operation::complete`] as the answer to a request to a place for one, in the tables of
    /// requests; the cell holds nothing afterwards, even if that panics.
    pub(crate) answer: Option<AnswerFn>,
}

/// The table for one type of operation, and where its values lie.
pub(crate) struct Erased<O>(PhantomData<O>);

impl<O: Operation> Erased<O> {
    pub(crate) const STORAGE: Storage = {
        assert!(align_of::<O>() <= 16, "operations are aligned to at most 16 bytes");
        if size_of::<O>() <= CELL_BYTES {
            Storage::Inline
        } else if size_of::<O>() <= BLOCK_BYTES {
            Storage::Pooled
        } else {
            Storage::Boxed
        }
    };

    pub(crate) const VTABLE: &'static Vtable = &Vtable {
        storage: Self::STORAGE,
        name: std::any::type_name::<O>,
        kind: O::KIND,
        entry: Self::entry,
        call: Self::call,
        dispose: Self::dispose,
        deliver: Self::deliver,
        lose: Self::lose,
        is_closing: Self::is_closing,
        is_on: Self::is_on,
        route: Self::route,
        classify: Self::classify,
        mount: Self::mount,
        is_local: Self::is_local,
        is_cancelable: O::IS_CANCELABLE,
        answer: None,
    };

    /// Returns the address of the operation.
    ///
    /// # Safety
    ///
    /// - With a storage other than inline the cell holds the pointer.
    #[inline(always)]
    pub(crate) unsafe fn place(cell: NonNull<Cell>) -> NonNull<O> {
        match Self::STORAGE {
            Storage::Inline => cell.cast(),
            // SAFETY: the caller says that the cell holds the pointer; it is aligned for one.
            Storage::Pooled | Storage::Boxed => unsafe { cell.cast::<NonNull<O>>().read() },
        }
    }

    /// Moves the operation out. A boxed one's allocation is freed; a pooled one's block is not.
    ///
    /// # Safety
    ///
    /// - The cell holds a live operation of this type. It holds none afterwards.
    #[inline(always)]
    pub(crate) unsafe fn take(cell: NonNull<Cell>) -> O {
        // SAFETY: the cell holds a live operation, which the caller does not use again.
        unsafe {
            let place = Self::place(cell);
            match Self::STORAGE {
                Storage::Boxed => *Box::from_raw(place.as_ptr()),
                Storage::Inline | Storage::Pooled => place.read(),
            }
        }
    }

    unsafe fn entry(cell: NonNull<Cell>) -> Option<Sqe> {
        // SAFETY: the cell holds a live operation of this type, to which the driver alone has
        // access now.
        unsafe { Self::place(cell).as_mut() }.entry()
    }

    unsafe fn call(cell: NonNull<Cell>) -> Call {
        // SAFETY: as for `entry`.
        unsafe { Self::place(cell).as_mut() }.call()
    }

    unsafe fn dispose(cell: NonNull<Cell>, completion: Completion) {
        // SAFETY: the cell holds a live operation of this type; the driver does not use it again.
        unsafe { Self::take(cell) }.dispose(completion);
    }

    unsafe fn deliver(cell: NonNull<Cell>, completion: Completion) -> Delivered {
        // SAFETY: the cell holds a live operation of this type, which is not changed meanwhile: the kernel
        // may write to memory that its entry or call names, which `deliver` does not reach (its promise).
        unsafe { Self::place(cell).as_ref() }.deliver(completion)
    }

    unsafe fn lose(cell: NonNull<Cell>) -> Option<Waker> {
        // SAFETY: as for `deliver`.
        unsafe { Self::place(cell).as_ref() }.lose()
    }

    unsafe fn is_closing(cell: NonNull<Cell>) -> bool {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.descriptor().is_some_and(Fd::is_closing)
    }

    unsafe fn is_on(cell: NonNull<Cell>, fd: &Fd) -> bool {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.descriptor().is_some_and(|own| own.is(fd))
    }

    unsafe fn route(cell: NonNull<Cell>, rules: &Rules) -> Route {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.route(rules)
    }

    unsafe fn classify(cell: NonNull<Cell>, mode: CallMode, attempt: Attempt) -> Retry {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.classify(mode, attempt)
    }

    unsafe fn mount(cell: NonNull<Cell>) -> Option<Rc<Mount>> {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.mount().cloned()
    }

    unsafe fn is_local(cell: NonNull<Cell>, calls: &dyn Calls) -> bool {
        // SAFETY: the cell holds a live operation of this type.
        unsafe { Self::place(cell).as_ref() }.is_local(calls)
    }
}

/// The table for one type of operation as a request whose answer is an `A`.
pub(crate) struct Answering<O, A>(PhantomData<(O, A)>);

impl<A, O: Operation<Output: Into<A>>> Answering<O, A> {
    pub(crate) const VTABLE: &'static Vtable =
        &Vtable { answer: Some(Self::answer), ..*Erased::<O>::VTABLE };

    unsafe fn answer(cell: NonNull<Cell>, completion: Completion, place: NonNull<()>) {
        // SAFETY: the cell holds a live operation of this type; the driver does not use it again. The place
        // is one for an answer.
        unsafe { place.cast::<A>().write(Erased::<O>::take(cell).complete(completion).into()) }
    }
}

/// An operation in its cell, of a type that the core need not know.
pub(crate) trait InPlace: Copy {
    fn kind(self) -> OpKind;
    fn entry(self) -> Option<Sqe>;
    fn call(self) -> Call;
    fn route(&self, rules: &Rules) -> Route;
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry;
    fn mount(&self) -> Option<Rc<Mount>>;
}

/// The operation of this type in a cell, or on its way there. Each method borrows it only for its own
/// duration: in between, a plain call may write to memory within it.
pub(crate) struct Placed<O>(NonNull<O>);

impl<O> Clone for Placed<O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Placed<O> {}

impl<O: Operation> Placed<O> {
    /// # Safety
    ///
    /// - The cell holds a live operation of this type as long as the value is used, and only the system calls
    ///   for its entry access it otherwise.
    #[inline(always)]
    pub(crate) unsafe fn new(cell: NonNull<Cell>) -> Self {
        // SAFETY: the caller says that the cell holds such an operation.
        Self(unsafe { Erased::<O>::place(cell) })
    }

    /// # Safety
    ///
    /// - The operation lives, and is not moved, as long as the value is used, and only the plain calls for it
    ///   access it otherwise.
    #[inline(always)]
    pub(crate) unsafe fn at(place: NonNull<O>) -> Self {
        Self(place)
    }

    #[inline(always)]
    fn get(&self) -> &O {
        // SAFETY: the promise to `new`; no system call is under way while a method of this type runs.
        unsafe { self.0.as_ref() }
    }

    #[inline(always)]
    pub(crate) fn class(self) -> Class {
        self.get().class()
    }

    #[cold]
    pub(crate) fn initialize(mut self) {
        // SAFETY: as in `get`, and no other code looks at it meanwhile.
        unsafe { self.0.as_mut() }.initialize();
    }
}

impl<O: Operation> InPlace for Placed<O> {
    #[inline(always)]
    fn kind(self) -> OpKind {
        O::KIND
    }

    #[inline(always)]
    fn entry(mut self) -> Option<Sqe> {
        // SAFETY: as in `get`, and no other code looks at it meanwhile.
        unsafe { self.0.as_mut() }.entry()
    }

    #[inline(always)]
    fn call(mut self) -> Call {
        // SAFETY: as in `get`, and no other code looks at it meanwhile.
        unsafe { self.0.as_mut() }.call()
    }

    #[inline(always)]
    fn route(&self, rules: &Rules) -> Route {
        self.get().route(rules)
    }

    #[inline(always)]
    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        self.get().classify(mode, attempt)
    }

    #[inline(always)]
    fn mount(&self) -> Option<Rc<Mount>> {
        self.get().mount().cloned()
    }
}

/// The operation in a cell.
#[derive(Clone, Copy)]
pub(crate) struct InCell {
    vtable: &'static Vtable,
    cell: NonNull<Cell>,
}

impl InCell {
    /// # Safety
    ///
    /// - The cell holds a live operation of the table's type as long as the value is used, and no other code
    ///   accesses it.
    pub(crate) unsafe fn new(vtable: &'static Vtable, cell: NonNull<Cell>) -> Self {
        Self { vtable, cell }
    }

    /// Returns whether the operation's descriptor is being closed.
    pub(crate) fn is_closing(self) -> bool {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.is_closing)(self.cell) }
    }

    /// Returns whether the operation acts on this descriptor.
    pub(crate) fn is_on(self, fd: &Fd) -> bool {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.is_on)(self.cell, fd) }
    }
}

impl InPlace for InCell {
    fn kind(self) -> OpKind {
        self.vtable.kind
    }

    fn entry(self) -> Option<Sqe> {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.entry)(self.cell) }
    }

    fn call(self) -> Call {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.call)(self.cell) }
    }

    fn route(&self, rules: &Rules) -> Route {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.route)(self.cell, rules) }
    }

    fn classify(&self, mode: CallMode, attempt: Attempt) -> Retry {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.classify)(self.cell, mode, attempt) }
    }

    fn mount(&self) -> Option<Rc<Mount>> {
        // SAFETY: the promise to `new`.
        unsafe { (self.vtable.mount)(self.cell) }
    }
}
