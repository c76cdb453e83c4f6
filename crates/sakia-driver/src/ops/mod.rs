//! The operations: one file each, and the methods of [`Handle`](crate::Handle) that start them.

mod advise;
mod allocate;
mod at;
mod attribute;
pub(crate) mod close;
mod copy;
pub(crate) mod fsync;
mod link;
mod list;
mod lock;
mod mkdir;
pub(crate) mod nop;
pub(crate) mod open;
mod openat2;
pub(crate) mod poll;
pub(crate) mod read;
mod rename;
mod socket;
mod statfs;
pub(crate) mod statx;
mod truncate;
mod unlink;
pub(crate) mod vectored;
pub(crate) mod write;
mod xattr;

use rustix::io::{Errno, ReadWriteFlags};
use sakia_ring::Opcode;

use crate::backend::Backend;
use crate::handle::Handle;
use crate::op::{Op, Operation};

pub use advise::Advise;
pub use allocate::Fallocate;
pub use attribute::{Chmod, Chown, SetTime, Utimens};
pub use close::Close;
pub use copy::CopyFileRange;
pub use fsync::{Fsync, Syncfs};
pub use link::{Link, Readlink, Symlink};
pub use list::{DirectoryEntries, DirectoryEntry, EntryKind, ReadDirectory};
pub use lock::Flock;
pub use mkdir::Mkdir;
pub use nop::{NextTurn, Nop};
pub use open::{AwaitWriter, Open};
pub use openat2::{OpenHow, Openat2};
pub use poll::{Poll, PollEvents};
pub use read::{Read, ReadFixed};
pub use rename::Rename;
pub use socket::{
    Accept, Bind, Connect, Listen, Received, RecvFrom, SendTo, Shutdown, ShutdownHow, Socket,
    SocketRecv, SocketRecvVectored, SocketSend, SocketSendVectored, SocketType,
};
pub use statfs::{Statfs, StatfsResult};
pub use statx::{Statx, StatxResult, StatxTime};
pub use truncate::Truncate;
pub use unlink::Unlink;
pub use vectored::{ReadVectored, WriteVectored};
pub use write::{Write, WriteFixed};
pub use xattr::{GetXattr, ListXattr, RemoveXattr, SetXattr};

impl<B: Backend> Handle<B> {
    /// Starts an operation of the driver's own number `opcode`, see [`private`](crate::private). On a
    /// backend that does not have it, it ends with `EOPNOTSUPP` and is never pushed.
    pub(crate) fn start_private<O: Operation>(&self, opcode: Opcode, operation: O) -> Op<O, B> {
        debug_assert!(crate::private::is_private(opcode), "{opcode:?}");
        let core = self.shared.core.borrow();
        // Without a backend it is refused like any other.
        let has_it = core
            .backend
            .as_ref()
            .is_none_or(|backend| backend.supports(opcode) || backend.is_for_lanes(opcode));
        drop(core);
        if has_it { self.start(operation) } else { self.refuse(operation, Errno::OPNOTSUPP) }
    }

    /// Starts a transfer with these `RWF_*` flags. Those that not every backend understands alike are refused
    /// with `EOPNOTSUPP`, wherever it would be performed.
    pub(crate) fn start_transfer<O: Operation>(&self, operation: O, flags: u32) -> Op<O, B> {
        if flags & !RWF_KNOWN != 0 {
            return self.refuse(operation, Errno::OPNOTSUPP);
        }
        self.start(operation)
    }
}

/// The `RWF_*` flags that mean the same on every backend. Not among them are `RWF_HIPRI`, which a ring that
/// does not poll refuses and a plain call ignores, and what came after Linux 4.18.
const RWF_KNOWN: u32 = ReadWriteFlags::DSYNC.bits()
    | ReadWriteFlags::SYNC.bits()
    | ReadWriteFlags::NOWAIT.bits()
    | ReadWriteFlags::APPEND.bits();

/// The length of a buffer as the kernel takes it: it moves at most 2 GiB less a page at a time.
#[inline(always)]
pub(crate) fn transfer_len(len: usize) -> u32 {
    len.min(crate::MAX_RW_BYTES) as u32
}
