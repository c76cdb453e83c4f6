//! Memory of the pools that receives take buffers from, lent before any data arrives.

use std::rc::Rc;

use super::{Core, Phase};
use crate::arena::Arena;
use crate::backend::Backend;
use crate::decide::{StreamState, Streams};
use crate::pool::{Pool, Size};

/// Memory that the backend was lent for its whole life, and that is kept as long.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// The registered memory.
    pub(crate) arena: Option<Arena>,
    /// The buffers to receive into, by the mode of the receives. `None` until the first one.
    pub(crate) pools: [Option<Rc<Pool>>; 2],
    /// The mode in which connections receive.
    streams: Rc<StreamState>,
}

impl Lent {
    /// Returns whether there are free buffers, which the backend does not have.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        self.streams.has_work.get()
    }

    /// The backend has no receives by readiness.
    pub(super) fn lack_readiness(&self) {
        self.streams.mode.set(Streams::Queue);
    }

    /// Begins a turn.
    #[inline(always)]
    pub(super) fn begin_turn(&self) {
        self.streams.turn.set(self.streams.turn.get().wrapping_add(1));
    }

    /// Returns the number of buffers of all sizes and modes, of those that receives may take, and of those
    /// that are free.
    pub(crate) fn numbers(&self) -> [u64; 3] {
        self.pools.iter().flatten().fold([0; 3], |sum, pool| {
            let numbers = pool.numbers();
            [0, 1, 2].map(|index| sum[index] + numbers[index])
        })
    }
}

impl Core {
    /// Returns the pool for receives by this mode if it has lent buffers of this size now. Registers the
    /// group and allocates buffers as needed.
    pub(crate) fn offer(&mut self, size: Size, mode: Streams) -> Option<Rc<Pool>> {
        if self.phase != Phase::Running || !self.is_intact() || self.set_up().is_err() {
            return None;
        }
        let Lent { pools, streams, .. } = &mut self.lent;
        let fresh = || Rc::new(Pool::new(mode, Rc::clone(streams)));
        let pool = Rc::clone(pools[mode as usize].get_or_insert_with(fresh));
        if pool.is_registered(size).is_none() {
            let registered = self.backend.register_group(size.group(mode), size.most());
            pool.set_registered(size, registered.is_ok());
            if registered.is_err() && mode == Streams::Readiness {
                streams.mode.set(Streams::Queue);
            }
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

    /// Returns the mode in which a connection is to receive now.
    pub(crate) fn stream_mode(&self) -> Streams {
        self.lent.streams.mode.get()
    }

    /// Gives up receives by readiness, which have failed.
    pub(crate) fn give_up_readiness(&mut self) {
        self.lent.lack_readiness();
    }

    /// Sets the mode in which connections receive and send.
    pub(crate) fn set_streams(&mut self, streams: Streams) {
        let streams = if self.abilities.features.readiness { streams } else { Streams::Queue };
        self.lent.streams.mode.set(streams);
    }

    /// Lends free buffers to the backend.
    #[inline(never)]
    pub(super) fn refill(&mut self) {
        self.lent.streams.has_work.set(false);
        for (pool, mode) in self.lent.pools.iter().zip(Streams::ALL) {
            let Some(pool) = pool else { continue };
            pool.note_used();
            for size in Size::ALL {
                while let Some((id, addr)) = pool.next_free(size) {
                    let group = size.group(mode);
                    // SAFETY: the pool keeps the memory until the backend and all operations on the group
                    // are gone, and no code uses it before a completion names it. A free buffer is not in
                    // the group.
                    unsafe { self.backend.provide(group, id, addr.as_ptr(), size.bytes()) };
                }
            }
        }
    }
}
