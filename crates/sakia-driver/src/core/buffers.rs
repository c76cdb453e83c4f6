//! Memory of the pool that the kernel is given to receive into, before any data arrives.

use std::rc::Rc;

use super::{Core, Phase};
use crate::arena::Arena;
use crate::backend::Backend;
use crate::pool::{Pool, Size};

/// Memory that the backend was lent for its whole life, and that is kept as long.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// The registered memory.
    pub(crate) arena: Option<Arena>,
    /// The buffers that the kernel receives into. `None` until the first receive into such a buffer.
    pub(crate) pool: Option<Rc<Pool>>,
}

impl Lent {
    /// Returns whether there are free buffers, which the kernel does not have.
    #[inline(always)]
    pub(super) fn has_free(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.has_free())
    }
}

impl Core {
    /// Returns the pool if the kernel has buffers of this size now. Registers the group and allocates buffers
    /// as needed.
    pub(crate) fn offer(&mut self, size: Size) -> Option<Rc<Pool>> {
        if self.phase != Phase::Running || !self.is_intact() {
            return None;
        }
        let pool = self.lent.pool.get_or_insert_with(|| Rc::new(Pool::new()));
        let pool = Rc::clone(pool);
        if pool.is_registered(size).is_none() {
            let registered = self.backend.register_group(size.group(), size.most());
            pool.set_registered(size, registered.is_ok());
        }
        if pool.is_registered(size) != Some(true) {
            return None;
        }
        self.refill();
        if !pool.is_provided(size) && pool.grow(size) {
            self.refill();
        }
        let is_provided = pool.is_provided(size);
        self.counters.pool_misses += u64::from(!is_provided);
        is_provided.then_some(pool)
    }

    /// Gives free buffers to the kernel.
    #[inline(never)]
    pub(super) fn refill(&mut self) {
        let Some(pool) = &self.lent.pool else { return };
        for size in Size::ALL {
            while let Some((id, addr)) = pool.next_free(size) {
                // SAFETY: the pool keeps the memory until the backend and all operations on the group are
                // gone, and no code uses it before a completion names it. A free buffer is not in the group.
                unsafe { self.backend.provide(size.group(), id, addr.as_ptr(), size.bytes()) };
            }
        }
        pool.none_free();
    }
}
