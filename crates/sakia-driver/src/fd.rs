//! Descriptors that stay open as long as an operation needs them.

use std::cell::Cell;
use std::fmt;
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
    /// What the descriptor refers to.
    fn kind(&self, raw: i32) -> FileKind;
    /// A descriptor could not be closed, and nobody waits for the result.
    fn note_close_error(&self);
}

impl Fd {
    pub(crate) fn new(raw: i32, owner: Rc<dyn Owner>) -> Self {
        let driver = Rc::as_ptr(&owner).cast();
        let (kind, closer) = (Cell::new(None), Cell::new(None));
        Self { inner: Rc::new(Inner { raw, kind, closer, owner, driver }) }
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
        let kind = self.inner.owner.kind(self.inner.raw);
        self.inner.kind.set(Some(kind));
        kind
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
