//! A descriptor that tells a foreign loop when a backend needs a turn, and with which the loop can do no
//! harm.
//!
//! An epoll set or an eventfd of a backend becomes readable. Code that had one of these, or a duplicate,
//! could take events out of it, add some, or change its mode so that the driver's own read of it blocks. So
//! each caller gets a new epoll set around it: no use of that set concerns another caller, and the inner
//! descriptor cannot be extracted from it.
//!
//! Source: `epoll(7)`: an epoll set is readable while one of its descriptors is ready.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Returns a new epoll set that is readable as long as `inner` is.
///
/// # Errors
/// As `epoll_create1(2)` and `epoll_ctl(2)`.
pub(crate) fn around(inner: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let outer = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&outer, inner, EventData::new_u64(0), EventFlags::IN)?;
    Ok(outer)
}

/// Makes such a set readable as long as `other` is, too.
///
/// # Errors
/// As `epoll_ctl(2)`. `EOPNOTSUPP`: it is no set, but the descriptor of a backend of another kind.
pub(crate) fn or(set: OwnedFd, other: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    match epoll::add(&set, other, EventData::new_u64(1), EventFlags::IN) {
        Ok(()) => Ok(set),
        Err(Errno::INVAL) => Err(Errno::OPNOTSUPP),
        Err(errno) => Err(errno),
    }
}
