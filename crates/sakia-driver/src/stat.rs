//! The result of `statx(2)`, in the kernel's form, and its flags.

use rustix::fs::AtFlags;

/// The required freshness of the result: one of the two, or neither.
const SYNC_TYPE: u32 = AtFlags::STATX_FORCE_SYNC.bits() | AtFlags::STATX_DONT_SYNC.bits();

/// The supported flags.
const FLAGS: u32 = SYNC_TYPE
    | AtFlags::SYMLINK_NOFOLLOW.bits()
    | AtFlags::NO_AUTOMOUNT.bits()
    | AtFlags::EMPTY_PATH.bits();

/// Returns whether these flags are supported. Kernels differ in whether they check flags that they do not
/// need; so do plain calls and rings.
pub(crate) fn are_known(flags: u32) -> bool {
    flags & !FLAGS == 0 && flags & SYNC_TYPE != SYNC_TYPE
}

/// A point in time, as `struct statx_timestamp`.
///
/// # Examples
/// See [`SetTime`](crate::SetTime#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct StatxTime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanoseconds: u32,
    reserved: i32,
}

impl StatxTime {
    /// Returns the time that is this many seconds after 1970, and nanoseconds of the second.
    pub const fn new(seconds: i64, nanoseconds: u32) -> Self {
        Self { seconds, nanoseconds, reserved: 0 }
    }
}

/// The kernel's facts about a file: field by field `struct statx`. The bits of `mask` tell which fields are
/// filled; see `statx(2)`.
///
/// # Examples
/// See [`Handle::statx`](crate::Handle::statx).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[non_exhaustive]
pub struct StatxResult {
    /// `STATX_*` bits of the fields that are filled.
    pub mask: u32,
    /// Preferred size of a transfer in bytes.
    pub block_size: u32,
    /// `STATX_ATTR_*` bits.
    pub attributes: u64,
    /// Hard links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    spare0: u16,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes that are allocated.
    pub blocks: u64,
    /// Bits of `attributes` that the file system supports.
    pub attributes_mask: u64,
    /// Last access.
    pub accessed: StatxTime,
    /// Creation.
    pub created: StatxTime,
    /// Last change of the inode.
    pub changed: StatxTime,
    /// Last change of the contents.
    pub modified: StatxTime,
    /// Of a device file: its device.
    pub rdev_major: u32,
    /// Of a device file: its device.
    pub rdev_minor: u32,
    /// Device of the file system.
    pub dev_major: u32,
    /// Device of the file system.
    pub dev_minor: u32,
    /// Mount.
    pub mount_id: u64,
    /// Alignment of buffers in memory for direct I/O, in bytes; 0 where it is not supported.
    pub direct_memory_align: u32,
    /// Alignment of offsets and lengths for direct I/O, in bytes; 0 where it is not supported.
    pub direct_offset_align: u32,
    spare3: [u64; 12],
}

const _: () = assert!(size_of::<StatxResult>() == 256);

impl StatxResult {
    /// The mask that requests the fields of `stat(2)`, the time of creation, and the alignment of direct I/O.
    pub const BASIC: u32 = 0xfff | 0x2000;

    /// The type bits of `mode`.
    const TYPE_MASK: u16 = 0o170_000;

    /// Returns whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.mode & Self::TYPE_MASK == 0o100_000
    }

    /// Returns whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & Self::TYPE_MASK == 0o040_000
    }
}
