//! The process that may use the locks of this crate.
//!
//! A forked child inherits the locks as they were, and none of the threads that held them. So each use of a
//! lock asks [`may_lock`] first. The first use in a child tries all of them: if they are free, what they
//! guard is whole, and the child takes it over, without the recording, which is its parent's. If one is not,
//! the child can use none, and records nothing.
//!
//! A process is known by its number. A child that has its parent's, in a namespace of its own, is taken for
//! its parent.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{name, recorder};

/// The number of the process that took the locks over last, and [`STATES`] of them; 0 before the first.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// A thread of the process is taking the locks over. The others wait for it, which is short.
const TAKING: u64 = 0;
/// The process may use the locks.
const HAS: u64 = 1;
/// Another thread of its parent held one of them at the fork.
const LOST: u64 = 2;
const STATES: u64 = 4;

/// Returns whether this process may use the locks. False in a child that was forked while another thread of
/// its parent held one of them.
pub(crate) fn may_lock() -> bool {
    let own = u64::from(std::process::id()) * STATES;
    loop {
        let owner = OWNER.load(Ordering::Acquire);
        if owner == own + HAS {
            return true;
        }
        if owner == own + LOST {
            return false;
        }
        if owner == own + TAKING {
            std::thread::yield_now();
            continue;
        }
        let claim = OWNER.compare_exchange(owner, own, Ordering::AcqRel, Ordering::Acquire);
        if claim.is_ok() {
            let is_child = owner != 0;
            let has = !is_child || name::is_free() && recorder::take_over();
            OWNER.store(own + if has { HAS } else { LOST }, Ordering::Release);
        }
    }
}
