//! What the kernel knows of a file system.

use std::io;

use crate::call::{Call, Function, System, word};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};

/// What the kernel knows of a file system: field by field `struct statfs`; see `statfs(2)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct StatfsResult {
    /// Which sort: one of the kernel's `*_MAGIC`.
    #[doc(alias = "f_type")]
    pub magic: u64,
    /// Preferred size of a transfer in bytes.
    pub block_size: u64,
    /// Size in fragments.
    pub blocks: u64,
    /// Fragments that are free.
    pub blocks_free: u64,
    /// Fragments that are free for whoever is not root.
    pub blocks_available: u64,
    /// Inodes, where there is a most number of them.
    pub files: u64,
    /// Inodes that are free.
    pub files_free: u64,
    /// Tells one mounted file system from another, where it does.
    pub id: [i32; 2],
    /// The most bytes of a name.
    pub name_bytes_max: u64,
    /// Size of a fragment in bytes.
    pub fragment_size: u64,
    /// The kernel's `ST_*` bits.
    pub flags: u64,
    spare: [u64; 4],
}

const _: () = assert!(size_of::<StatfsResult>() == 120);

/// See [`Handle::statfs`].
#[derive(Debug)]
pub struct Statfs {
    fd: Fd,
    result: StatfsResult,
}

impl Handle {
    /// Asks about the file system that `fd` lies on.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the backend does not perform it. Otherwise as `fstatfs(2)`.
    ///
    /// # Kernel
    /// No ring has it: a plain call, on a thread of a lane. Source: `fstatfs(2)`.
    #[doc(alias = "fstatfs")]
    pub fn statfs(&self, fd: &Fd) -> Op<Statfs> {
        let result = StatfsResult::default();
        self.start(Statfs { fd: self.held(fd), result })
    }
}

// SAFETY: the entry names the result, which is part of the value and stays where it is until the
// completion, and a descriptor that the value keeps open.
unsafe impl Operation for Statfs {
    type Output = io::Result<StatfsResult>;
    const KIND: OpKind = OpKind::Statx;

    fn call(&mut self) -> Call {
        System::on(Function::Fstatfs, self.fd.raw(), [word(&raw mut self.result)])
    }

    fn complete(self, completion: Completion) -> Self::Output {
        completion.result().map(|_| self.result)
    }

    acts_on!(Bounded, fd);
}
