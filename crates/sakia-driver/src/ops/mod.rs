//! The operations: one file each, and the methods of [`Handle`](crate::Handle) that start them.

pub(crate) mod close;
pub(crate) mod fsync;
pub(crate) mod nop;
pub(crate) mod open;
pub(crate) mod poll;
pub(crate) mod read;
pub(crate) mod statx;
pub(crate) mod vectored;
pub(crate) mod write;

pub use close::Close;
pub use fsync::Fsync;
pub use nop::Nop;
pub use open::Open;
pub use poll::{Poll, PollEvents};
pub use read::{Read, ReadFixed};
pub use statx::{Statx, StatxResult, StatxTime};
pub use vectored::{ReadVectored, WriteVectored};
pub use write::{Write, WriteFixed};

/// The length of a buffer as the kernel takes it: it moves at most 2 GiB less a page at a time.
#[inline(always)]
pub(crate) fn transfer_len(len: usize) -> u32 {
    len.min(crate::MAX_RW_BYTES) as u32
}
