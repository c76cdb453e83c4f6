//! The operations: a file for each, or for those of one kind, and the methods of
//! [`Handle`](crate::Handle) that start them.

// Above the modules, which use them.

/// The class of an [`Operation`], and the descriptor that it acts on: that of this field. With `local`, the
/// operation is local if the field is, and those after `and`.
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

        fn is_local(&self, descriptors: &dyn crate::backend::Descriptors) -> bool {
            self.$field.is_local(descriptors) $(&& self.$other.is_local(descriptors))*
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

/// What an [`Operation`] resolves to that ends well or not, and brings nothing.
macro_rules! no_output {
    () => {
        type Output = std::io::Result<()>;

        #[inline(always)]
        fn complete(self, completion: crate::operation::Completion) -> Self::Output {
            completion.result().map(|_| ())
        }
    };
}

/// An [`Operation`]: what it [acts on](acts_on), its kind, its entry if rings have one, its call, its route
/// if it takes one of its own, and its [output] if it brings any. `unsafe` is the promise of the trait, and
/// wants its proof.
macro_rules! operation {
    (
        unsafe |$it:ident: $name:ident| $class:ident, $field:ident $(and $other:ident)* $(, $local:ident)?;
        $kind:ident;
        $(entry $entry:expr;)?
        call $call:expr;
        $(route |$rules:ident| $route:expr;)?
        $(output $($output:tt)+)?
    ) => {
        // SAFETY: who writes `unsafe` above gives the proof there.
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

            $(fn route(&self, $rules: &crate::policy::Rules) -> crate::policy::Route {
                let $it = self;
                let _ = $it; // not each route asks it
                $route
            })?

            output!($($it $($output)+)?);
            acts_on!($class, $field $(and $other)* $(, $local)?);
        }
    };
}

/// An [operation] that is a descriptor, in the field `fd`, and numbers.
macro_rules! of_numbers {
    (|$it:ident: $name:ident| $class:ident $(, $local:ident)?; $($rest:tt)*) => {
        // SAFETY: entry and call name no memory, and a descriptor that the value keeps open.
        operation! { unsafe |$it: $name| $class, fd $(, $local)?; $($rest)* }
    };
}

/// What an [operation] brings: nothing, what [fills a vector](fills_vec), or a value of a type, and how that
/// comes from the completion.
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
            let _ = &$it; // not each output asks it
            $complete
        }
    };
}

/// What an [`Operation`] brings that fills the vector in the field `buf`.
macro_rules! fills_vec {
    () => {
        type Output = crate::buf::BufResult<usize, Vec<u8>>;

        fn initialize(&mut self) {
            crate::buf::initialize(&mut self.buf);
        }

        fn complete(self, completion: crate::operation::Completion) -> Self::Output {
            crate::ops::filled_vec(completion, self.buf)
        }
    };
}

/// What an [`Operation`] that transfers bytes says of its descriptor, which is in this field.
macro_rules! of_descriptor {
    ($($field:tt).+) => {
        #[inline(always)]
        fn class(&self) -> crate::operation::Class {
            self.$($field).+.kind().into()
        }

        fn descriptor(&self) -> Option<&crate::fd::Fd> {
            self.$($field).+.descriptor()
        }

        fn is_local(&self, descriptors: &dyn crate::backend::Descriptors) -> bool {
            self.$($field).+.is_local(descriptors)
        }

        #[inline(always)]
        fn mount(&self) -> Option<&std::rc::Rc<crate::policy::Mount>> {
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
use crate::fd::Owner;
use crate::handle::{Handle, Op};
use crate::operation::{Completion, Operation};
use crate::ops::vectored::BUFFERS_MAX;

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
    /// Starts a transfer with these `RWF_*` flags. Those that not every backend understands alike are refused
    /// with `EOPNOTSUPP`, wherever it would be performed.
    pub(crate) fn start_transfer<O: Operation>(&self, operation: O, flags: u32) -> Op<O> {
        if flags & !RWF_KNOWN != 0 {
            return self.refuse(operation, Errno::OPNOTSUPP);
        }
        self.start(operation)
    }

    /// The driver, as descriptors that come know it.
    pub(crate) fn owner(&self) -> Rc<dyn Owner> {
        Rc::clone(&self.shared) as Rc<dyn Owner>
    }
}

/// The `RWF_*` flags that ask for the same on every backend. Where a file system cannot do `RWF_NOWAIT`, a
/// ring may say `EAGAIN` where a plain call says `EOPNOTSUPP`. Not among them are `RWF_HIPRI`, which a ring
/// that does not poll refuses and a plain call ignores, and what came after Linux 4.18.
const RWF_KNOWN: u32 = ReadWriteFlags::DSYNC.bits()
    | ReadWriteFlags::SYNC.bits()
    | ReadWriteFlags::NOWAIT.bits()
    | ReadWriteFlags::APPEND.bits();

/// The result of a read into the front of `buf`, which asked for `len` bytes of its room and takes note of
/// what came.
#[inline(always)]
pub(crate) fn note_filled<T: IoBufMut>(
    completion: Completion,
    buf: &mut T,
    len: u32,
) -> io::Result<usize> {
    let count = completion.result()? as usize;
    if count <= buf.bytes_len() {
        return Ok(count); // all initialized before: nothing to note
    }
    let count = completion.count(len as usize)?;
    // SAFETY: a completion says that the kernel has filled so many bytes from the front on, which it has (the
    // promise of `Backend::fills_what_it_reports`), or all of the room was initialized before; no more are
    // believed than were asked for, which were room.
    unsafe { buf.set_init(count) };
    Ok(count)
}

/// The end of a read into the front of `buf`, as [`note_filled`].
#[inline(always)]
pub(crate) fn filled<T: IoBufMut>(
    completion: Completion,
    mut buf: T,
    len: u32,
) -> BufResult<usize, T> {
    (note_filled(completion, &mut buf, len), buf)
}

/// The same with a vector. Without room a length was asked for, which is at most what the kernel allows
/// (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub(crate) fn filled_vec(completion: Completion, buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
    const KERNEL_MAX: usize = 65_536;
    match transfer_len(buf.bytes_room()) {
        0 => (completion.count(KERNEL_MAX), buf),
        room => filled(completion, buf, room),
    }
}

/// The same with several buffers, filled one after the other. No more than the first `BUFFERS_MAX` were used.
pub(crate) fn note_all_filled<T: IoBufMut>(
    completion: Completion,
    bufs: &mut [T],
    len: u32,
) -> io::Result<usize> {
    let all = completion.count(len as usize)?;
    let mut left = all;
    for buf in bufs.iter_mut().take(BUFFERS_MAX) {
        let count = left.min(buf.bytes_room());
        // SAFETY: as in `note_filled`; each buffer is full before the next gets any.
        unsafe { buf.set_init(count) };
        left -= count;
    }
    Ok(all)
}

/// The room of all buffers that a vectored read uses, as the kernel takes it.
pub(crate) fn room_of_all<T: IoBufMut>(bufs: &[T]) -> u32 {
    let rooms = bufs.iter().take(BUFFERS_MAX).map(T::bytes_room);
    transfer_len(rooms.fold(0, usize::saturating_add))
}

/// The length of a buffer as the kernel takes it: it moves at most 2 GiB less a page at a time.
#[inline(always)]
pub(crate) fn transfer_len(len: usize) -> u32 {
    len.min(crate::MAX_RW_BYTES) as u32
}
