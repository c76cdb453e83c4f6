//! Descriptors that stay open as long as an operation needs them.

use std::cell::Cell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use crate::backend::FileKind;
use crate::key::Key;
use crate::op::Completion;

/// A descriptor that belongs to a driver. Clones refer to the same one.
///
/// Every operation holds a clone until its last completion, so the number cannot be closed, and
/// given to another file, while the kernel may still resolve it. When the last clone is dropped
/// the driver closes the descriptor with its next turn; a failure is counted. `Handle::close` does
/// the same and tells.
#[derive(Clone)]
pub struct Fd {
    inner: Rc<Inner>,
}

struct Inner {
    raw: i32,
    /// Found out when first needed.
    kind: Cell<Option<FileKind>>,
    /// What was found out with it.
    size: Cell<Option<u64>>,
    /// The parked close operation to go on with once the last clone is gone.
    closer: Cell<Option<Key>>,
    owner: Rc<dyn Owner>,
    /// Where the owner lies: tells one driver from another, and is never followed.
    driver: *const (),
}

/// The driver side of a descriptor.
pub(crate) trait Owner {
    /// The last clone is gone: closes the descriptor, as part of `closer` if somebody waits.
    fn release(self: Rc<Self>, raw: i32, closer: Option<Key>);
    /// Closes the descriptor with a plain call.
    fn close_now(&self, raw: i32) -> Completion;
    /// What the descriptor refers to, and its size if that is known too.
    fn describe(&self, raw: i32) -> (FileKind, Option<u64>);
    /// Whether the number is a descriptor of this process.
    fn is_of_this_process(&self) -> bool;
    /// A descriptor could not be closed, and nobody waits for the result.
    fn note_close_error(&self);
}

impl Fd {
    pub(crate) fn new(raw: i32, owner: Rc<dyn Owner>) -> Self {
        let driver = Rc::as_ptr(&owner).cast();
        let (kind, size, closer) = (Cell::new(None), Cell::new(None), Cell::new(None));
        Self { inner: Rc::new(Inner { raw, kind, size, closer, owner, driver }) }
    }

    /// The number, for reading only: closing it or handing it to an owner would pull it away from
    /// under the driver.
    #[inline(always)]
    pub fn raw(&self) -> i32 {
        self.inner.raw
    }

    /// What the descriptor refers to. The first call on a descriptor asks the kernel.
    #[inline(always)]
    pub fn kind(&self) -> FileKind {
        match self.inner.kind.get() {
            Some(kind) => kind,
            None => self.learn_kind(),
        }
    }

    #[cold]
    fn learn_kind(&self) -> FileKind {
        let (kind, size) = self.inner.owner.describe(self.inner.raw);
        self.inner.kind.set(Some(kind));
        self.inner.size.set(size);
        kind
    }

    /// The size in bytes that a regular file had when its [`kind`](Fd::kind) was found out, if the
    /// same call told it. Costs no call of its own.
    pub fn first_size(&self) -> Option<u64> {
        self.kind();
        self.inner.size.get()
    }

    /// The descriptor, for its owner to close, if this is the only clone; else the clone back. Neither
    /// an operation in flight nor one whose result was not taken uses it then.
    ///
    /// # Panics
    /// On the simulated kernel, whose descriptors mean nothing to the process.
    pub fn into_owned(self) -> Result<OwnedFd, Self> {
        self.assert_is_of_this_process();
        // Cells may hold a closer only while somebody else may drop the last clone.
        if self.is_closing() {
            return Err(self);
        }
        let inner = Rc::try_unwrap(self.inner).map_err(|inner| Self { inner })?;
        let inner = ManuallyDrop::new(inner);
        // SAFETY: read once: `inner` is not used as a whole again, nor dropped.
        drop(unsafe { std::ptr::read(&inner.owner) });
        // SAFETY: an open descriptor of this process, which belonged to the value alone: the last clone
        // is gone, and its `Drop`, which would close it, does not run.
        Ok(unsafe { OwnedFd::from_raw_fd(inner.raw) })
    }

    /// Whether the number means something to the simulated kernel only.
    pub fn is_simulated(&self) -> bool {
        !self.inner.owner.is_of_this_process()
    }

    fn assert_is_of_this_process(&self) {
        assert!(
            !self.is_simulated(),
            "{self:?} is the simulated kernel's, and means nothing to the process"
        );
    }

    /// Whether `Handle::close` was called on a clone.
    pub(crate) fn is_closing(&self) -> bool {
        self.inner.closer.get().is_some()
    }

    #[inline(always)]
    pub(crate) fn owner(&self) -> &Rc<dyn Owner> {
        &self.inner.owner
    }

    /// Whether the descriptor belongs to the driver at this address.
    #[inline(always)]
    pub(crate) fn belongs_to<T>(&self, driver: &Rc<T>) -> bool {
        std::ptr::addr_eq(self.inner.driver, Rc::as_ptr(driver))
    }

    /// Whether this is the only clone.
    pub(crate) fn is_sole(&self) -> bool {
        Rc::strong_count(&self.inner) == 1
    }

    /// Names the operation that closes the descriptor when the last clone is gone.
    pub(crate) fn set_closer(&self, closer: Key) {
        self.inner.closer.set(Some(closer));
    }
}

/// For calls that the driver does not know. Who changes the open file behind it (its position, its flags)
/// changes it for operations too.
impl AsFd for Fd {
    /// # Panics
    /// On the simulated kernel, whose descriptors mean nothing to the process.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.assert_is_of_this_process();
        // SAFETY: an open descriptor of this process: nobody closes it while there is a clone, such as
        // the one that is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.inner.raw) }
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fd({})", self.inner.raw)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        Rc::clone(&self.owner).release(self.raw, self.closer.get());
    }
}
