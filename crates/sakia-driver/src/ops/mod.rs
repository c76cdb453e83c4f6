//! The operations: one file for each operation or group of them, with the methods of
//! [`Handle`](crate::Handle) that start them.

// Declared above the modules that use them.

/// Defines the class of an [`Operation`], and its descriptor, which is in this field. With `local`, the
/// operation is local if this field and the fields after `and` are.
macro_rules! acts_on {
    ($class:ident, $($field:tt).+) => {
        #[inline(always)]
        fn class(&self) -> crate::operation::Class {
            crate::operation::Class::$class
        }

        fn descriptor(&self) -> Option<&crate::fd::Fd> {
            self.$($field).+.descriptor()
        }
    };
    ($class:ident, $field:ident $(and $other:ident)*, local) => {
        acts_on!($class, $field);

        fn is_local(&self, calls: &dyn crate::backend::Calls) -> bool {
            self.$field.is_local(calls) $(&& self.$other.is_local(calls))*
        }
    };
}

pub(crate) use acts_on;

/// Combines values of a type that holds bits of the kernel by `|`.
macro_rules! of_bits {
    ($name:ident) => {
        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }
    };
}

/// Defines an [`Operation`] without a value on success.
macro_rules! no_output {
    () => {
        type Output = std::io::Result<()>;

        #[inline(always)]
        fn complete(self, completion: crate::operation::Completion) -> Self::Output {
            completion.result().map(|_| ())
        }
    };
}

/// Defines an [`Operation`]: its descriptor ([`acts_on`]), its kind, its entry if rings have one, its call,
/// its route if it has one of its own, and its [output] if it has a value. `unsafe` is the promise of the
/// trait, and needs its proof.
macro_rules! operation {
    (
        unsafe |$it:ident: $name:ident| $class:ident, $field:ident $(and $other:ident)* $(, $local:ident)?;
        $kind:ident;
        $(entry $entry:expr;)?
        call $call:expr;
        $(route |$rules:ident| $route:expr;)?
        $(output $($output:tt)+)?
    ) => {
        // SAFETY: the proof is at the `unsafe` above, in the macro's use.
        unsafe impl crate::operation::Operation for $name {
            const KIND: crate::counters::OpKind = crate::counters::OpKind::$kind;

            $(fn entry(&mut self) -> Option<sakia_ring::Sqe> {
                let $it = self;
                Some($entry)
            })?

            fn call(&mut self) -> crate::call::Call {
                let $it = self;
                $call
            }

            $(fn route(&self, $rules: &crate::decide::Rules) -> crate::decide::Route {
                let $it = self;
                let _ = $it; // unused by some routes
                $route
            })?

            output!($($it $($output)+)?);
            acts_on!($class, $field $(and $other)* $(, $local)?);
        }
    };
}

/// Defines an [operation] whose operands are a descriptor, in the field `fd`, and numbers.
macro_rules! of_numbers {
    (|$it:ident: $name:ident| $class:ident $(, $local:ident)?; $($rest:tt)*) => {
        // SAFETY: entry and call name no memory, and a descriptor that the value keeps open.
        operation! { unsafe |$it: $name| $class, fd $(, $local)?; $($rest)* }
    };
}

/// Defines the value of an [operation]: none, a [filled vector](fills_vec), or a value of a given type with
/// its conversion from the completion.
macro_rules! output {
    () => {
        no_output!();
    };
    ($it:ident fills_vec;) => {
        fills_vec!();
    };
    ($it:ident $output:ty, |$completion:ident| $complete:expr;) => {
        type Output = std::io::Result<$output>;

        fn complete(self, $completion: crate::operation::Completion) -> Self::Output {
            let $it = self;
            let _ = &$it; // unused by some outputs
            $complete
        }
    };
}

/// Defines the value of an [`Operation`] that fills the vector, or other memory of this type, in the field
/// `buf`.
macro_rules! fills_vec {
    () => {
        fills_vec!(Vec<u8>);
    };
    ($buf:ty) => {
        type Output = crate::buf::BufResult<usize, $buf>;

        fn initialize(&mut self) {
            crate::buf::initialize(&mut self.buf);
        }

        fn complete(self, completion: crate::operation::Completion) -> Self::Output {
            crate::ops::filled_vec(completion, self.buf)
        }
    };
}

/// Defines the descriptor of an [`Operation`] that transfers bytes, which is in this field.
macro_rules! of_descriptor {
    ($($field:tt).+) => {
        #[inline(always)]
        fn class(&self) -> crate::operation::Class {
            self.$($field).+.class()
        }

        fn descriptor(&self) -> Option<&crate::fd::Fd> {
            self.$($field).+.descriptor()
        }

        fn is_local(&self, calls: &dyn crate::backend::Calls) -> bool {
            self.$($field).+.is_local(calls)
        }

        #[inline(always)]
        fn mount(&self) -> Option<&std::rc::Rc<crate::decide::Mount>> {
            self.$($field).+.mount()
        }
    };
}

mod at;
mod attribute;
pub(crate) mod close;
mod copy;
pub(crate) mod fsync;
mod list;
mod lock;
mod names;
pub(crate) mod nop;
pub(crate) mod open;
pub(crate) mod poll;
mod read_write;
mod room;
pub(crate) mod send_file;
mod socket;
mod splice;
pub(crate) mod statx;
pub(crate) mod vectored;
mod xattr;

use std::io;
use std::rc::Rc;

use rustix::io::{Errno, ReadWriteFlags};

use crate::buf::{BufResult, IoBufMut};
use crate::decide::limits::BUFFERS_MAX;
use crate::fd::Owner;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};

pub use attribute::{Chmod, Chown, SetTime, Utimens};
pub use close::Close;
pub use copy::CopyFileRange;
pub use fsync::{Fsync, SyncFileRange, SyncRange, Syncfs};
pub use list::{DirectoryEntries, DirectoryEntry, EntryKind, ReadDirectory};
pub use lock::Flock;
pub use names::{Link, Mkdir, Readlink, Rename, Symlink, Unlink};
pub use nop::{NextTurn, Nop};
pub use open::{AwaitWriter, Open, OpenHow, Openat2};
pub use poll::{Poll, PollEvents};
pub use read_write::{Read, ReadFixed, Write, WriteFixed};
pub use room::{Advise, Fallocate, Truncate};
pub use send_file::SEND_FILE_BYTES_MAX;
pub use socket::*;
pub use splice::{Splice, SpliceFlags};
pub use statx::{Statfs, StatfsResult, Statx, StatxResult, StatxTime};
pub use vectored::{ReadVectored, WriteVectored};
pub use xattr::{GetXattr, ListXattr, RemoveXattr, SetXattr};

impl Handle {
    /// Starts a transfer with these `RWF_*` flags. Flags whose meaning depends on the backend are refused
    /// with `EOPNOTSUPP` on every backend.
    pub(crate) fn start_transfer<O: Operation>(&self, operation: O, flags: u32) -> Op<O> {
        if flags & !RWF_KNOWN != 0 {
            return self.refuse(operation, Errno::OPNOTSUPP);
        }
        self.start(operation)
    }

    /// Returns the driver, as the owner of new descriptors.
    pub(crate) fn owner(&self) -> Rc<dyn Owner> {
        Rc::clone(&self.shared) as Rc<dyn Owner>
    }
}

/// The `RWF_*` flags with the same meaning on every backend. Not among them are `RWF_HIPRI`, which
/// a ring without polling refuses and a plain call ignores, and flags newer than Linux 4.18.
const RWF_KNOWN: u32 = ReadWriteFlags::DSYNC.bits()
    | ReadWriteFlags::SYNC.bits()
    | ReadWriteFlags::NOWAIT.bits()
    | ReadWriteFlags::APPEND.bits();

/// Returns the result of a read into the front of `buf`, of up to `len` bytes of its room, and records the
/// bytes filled.
#[inline(always)]
pub(crate) fn note_filled<T: IoBufMut>(
    completion: Completion,
    buf: &mut T,
    len: u32,
) -> io::Result<usize> {
    let count = completion.result()? as usize;
    if count <= buf.bytes_len() {
        return Ok(count); // all initialized before: nothing to record
    }
    let count = completion.count(len as usize)?;
    // SAFETY: the completion says that the kernel has filled `count` bytes from the front on. Either the
    // promise of `Features::fills_what_it_reports` makes that true, or all of the room was initialized
    // before. The count is limited to the requested room.
    unsafe { buf.set_init(count) };
    Ok(count)
}

/// Returns the result of a read into the front of `buf`, as [`note_filled`] does.
#[inline(always)]
pub(crate) fn filled<T: IoBufMut>(
    completion: Completion,
    mut buf: T,
    len: u32,
) -> BufResult<usize, T> {
    (note_filled(completion, &mut buf, len), buf)
}

/// Returns the result of an operation that fills a vector or the like. If that has no room, the operation
/// queried a length, which is at most the kernel's limit (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub(crate) fn filled_vec<T: IoBufMut>(completion: Completion, buf: T) -> BufResult<usize, T> {
    const KERNEL_MAX: usize = 65_536;
    match transfer_len(buf.bytes_room()) {
        0 => (completion.count(KERNEL_MAX), buf),
        room => filled(completion, buf, room),
    }
}

/// Returns the result of a read into several buffers, filled one after the other. Only the first
/// `BUFFERS_MAX` were used.
pub(crate) fn note_all_filled<T: IoBufMut>(
    completion: Completion,
    bufs: &mut [T],
    len: u32,
) -> io::Result<usize> {
    let all = completion.count(len as usize)?;
    let mut left = all;
    for buf in bufs.iter_mut().take(BUFFERS_MAX) {
        let count = left.min(buf.bytes_room());
        // SAFETY: as in `note_filled`; each buffer is filled before the next one.
        unsafe { buf.set_init(count) };
        left -= count;
    }
    Ok(all)
}

/// Returns the room of all buffers that a vectored read uses, as the kernel takes it.
pub(crate) fn room_of_all<T: IoBufMut>(bufs: &[T]) -> u32 {
    let rooms = bufs.iter().take(BUFFERS_MAX).map(T::bytes_room);
    transfer_len(rooms.fold(0, usize::saturating_add))
}

/// Returns the length of a buffer as the kernel takes it: at most 2 GiB less a page.
#[inline(always)]
pub(crate) fn transfer_len(len: usize) -> u32 {
    len.min(crate::MAX_RW_BYTES) as u32
}
