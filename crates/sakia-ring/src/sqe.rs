//! Submission entries: one request to the kernel, 64 bytes.
//!
//! [`Sqe`] has the layout of the kernel's `struct io_uring_sqe`, with each union flattened to the one width
//! its members share, so that an entry is plain data which the compiler can write straight into the ring.
//! The constructors are safe: an entry is only a description. The duties come with giving it to the kernel,
//! see [`Ring::push`](crate::Ring::push).
//!
//! Source: `include/uapi/linux/io_uring.h`, `io_uring_enter(2)`, `io_uring_prep_*(3)`.

use std::mem::{offset_of, size_of};

use crate::sys;

/// The operation of an entry: the kernel's `IORING_OP_*`.
///
/// # Examples
/// ```
/// use sakia_ring::Opcode;
///
/// assert_eq!(Opcode::READ_FIXED.name(), Some("READ_FIXED"));
/// assert_eq!(Opcode(250).name(), None, "newer than this crate");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $kernel:ident;)*) => {
        impl Opcode {
            $($(#[$doc])*
            pub const $name: Self = Self(sys::io_uring_op::$kernel as u8);)*

            /// Returns the kernel's name of the operation without its prefix, such as `READ_FIXED`, or
            /// `None` for one that is newer than this crate.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    /// Does nothing, and completes.
    NOP = IORING_OP_NOP;
    /// `preadv2(2)`.
    READV = IORING_OP_READV;
    /// `pwritev2(2)`.
    WRITEV = IORING_OP_WRITEV;
    /// `fsync(2)`, or `fdatasync(2)` with a flag.
    FSYNC = IORING_OP_FSYNC;
    /// A read into a registered buffer.
    READ_FIXED = IORING_OP_READ_FIXED;
    /// A write from a registered buffer.
    WRITE_FIXED = IORING_OP_WRITE_FIXED;
    /// Waits for readiness, as `poll(2)`.
    POLL_ADD = IORING_OP_POLL_ADD;
    /// Ends or changes a poll.
    POLL_REMOVE = IORING_OP_POLL_REMOVE;
    /// `sync_file_range(2)`.
    SYNC_FILE_RANGE = IORING_OP_SYNC_FILE_RANGE;
    /// `sendmsg(2)`.
    SENDMSG = IORING_OP_SENDMSG;
    /// `recvmsg(2)`.
    RECVMSG = IORING_OP_RECVMSG;
    /// Completes after a duration.
    TIMEOUT = IORING_OP_TIMEOUT;
    /// Ends or changes a timeout.
    TIMEOUT_REMOVE = IORING_OP_TIMEOUT_REMOVE;
    /// `accept4(2)`.
    ACCEPT = IORING_OP_ACCEPT;
    /// Requests the cancellation of another operation.
    ASYNC_CANCEL = IORING_OP_ASYNC_CANCEL;
    /// A timeout for the linked operation before it.
    LINK_TIMEOUT = IORING_OP_LINK_TIMEOUT;
    /// `connect(2)`.
    CONNECT = IORING_OP_CONNECT;
    /// `fallocate(2)`.
    FALLOCATE = IORING_OP_FALLOCATE;
    /// `openat(2)`.
    OPENAT = IORING_OP_OPENAT;
    /// `close(2)`.
    CLOSE = IORING_OP_CLOSE;
    /// Changes the registered files.
    FILES_UPDATE = IORING_OP_FILES_UPDATE;
    /// `statx(2)`.
    STATX = IORING_OP_STATX;
    /// `pread(2)`, or `read(2)` at offset `-1`.
    READ = IORING_OP_READ;
    /// `pwrite(2)`, or `write(2)` at offset `-1`.
    WRITE = IORING_OP_WRITE;
    /// `posix_fadvise(2)`.
    FADVISE = IORING_OP_FADVISE;
    /// `madvise(2)`.
    MADVISE = IORING_OP_MADVISE;
    /// `send(2)`.
    SEND = IORING_OP_SEND;
    /// `recv(2)`.
    RECV = IORING_OP_RECV;
    /// `openat2(2)`.
    OPENAT2 = IORING_OP_OPENAT2;
    /// `epoll_ctl(2)`.
    EPOLL_CTL = IORING_OP_EPOLL_CTL;
    /// `splice(2)`.
    SPLICE = IORING_OP_SPLICE;
    /// The older way to provide buffers.
    PROVIDE_BUFFERS = IORING_OP_PROVIDE_BUFFERS;
    /// The older way to take provided buffers back.
    REMOVE_BUFFERS = IORING_OP_REMOVE_BUFFERS;
    /// `tee(2)`.
    TEE = IORING_OP_TEE;
    /// `shutdown(2)`.
    SHUTDOWN = IORING_OP_SHUTDOWN;
    /// `renameat2(2)`.
    RENAMEAT = IORING_OP_RENAMEAT;
    /// `unlinkat(2)`.
    UNLINKAT = IORING_OP_UNLINKAT;
    /// `mkdirat(2)`.
    MKDIRAT = IORING_OP_MKDIRAT;
    /// `symlinkat(2)`.
    SYMLINKAT = IORING_OP_SYMLINKAT;
    /// `linkat(2)`.
    LINKAT = IORING_OP_LINKAT;
    /// Posts a completion to another ring.
    MSG_RING = IORING_OP_MSG_RING;
    /// `fsetxattr(2)`.
    FSETXATTR = IORING_OP_FSETXATTR;
    /// `setxattr(2)`.
    SETXATTR = IORING_OP_SETXATTR;
    /// `fgetxattr(2)`.
    FGETXATTR = IORING_OP_FGETXATTR;
    /// `getxattr(2)`.
    GETXATTR = IORING_OP_GETXATTR;
    /// `socket(2)`.
    SOCKET = IORING_OP_SOCKET;
    /// A command to a driver or a socket.
    URING_CMD = IORING_OP_URING_CMD;
    /// `send(2)` without a copy.
    SEND_ZC = IORING_OP_SEND_ZC;
    /// `sendmsg(2)` without a copy.
    SENDMSG_ZC = IORING_OP_SENDMSG_ZC;
    /// Reads into provided buffers, again and again.
    READ_MULTISHOT = IORING_OP_READ_MULTISHOT;
    /// `waitid(2)`.
    WAITID = IORING_OP_WAITID;
    /// Waits on a futex.
    FUTEX_WAIT = IORING_OP_FUTEX_WAIT;
    /// Wakes a futex.
    FUTEX_WAKE = IORING_OP_FUTEX_WAKE;
    /// Waits on several futexes.
    FUTEX_WAITV = IORING_OP_FUTEX_WAITV;
    /// Makes an ordinary descriptor of a registered one.
    FIXED_FD_INSTALL = IORING_OP_FIXED_FD_INSTALL;
    /// `ftruncate(2)`.
    FTRUNCATE = IORING_OP_FTRUNCATE;
    /// `bind(2)`.
    BIND = IORING_OP_BIND;
    /// `listen(2)`.
    LISTEN = IORING_OP_LISTEN;
    /// Receives without a copy.
    RECV_ZC = IORING_OP_RECV_ZC;
    /// Waits on an epoll descriptor.
    EPOLL_WAIT = IORING_OP_EPOLL_WAIT;
    /// A vectored read into a registered buffer.
    READV_FIXED = IORING_OP_READV_FIXED;
    /// A vectored write from a registered buffer.
    WRITEV_FIXED = IORING_OP_WRITEV_FIXED;
    /// `pipe2(2)`.
    PIPE = IORING_OP_PIPE;
}

/// Flags that any entry may carry: the kernel's `IOSQE_*`.
pub mod sqe_flags {
    use crate::sys::io_uring_sqe_flags_bit as bit;
    /// `fd` is an index into the registered files.
    #[doc(alias = "IOSQE_FIXED_FILE")]
    pub const FIXED_FILE: u8 = 1 << bit::IOSQE_FIXED_FILE_BIT as u8;
    /// Begins after every earlier entry has completed. A barrier for the whole ring: slow.
    #[doc(alias = "IOSQE_IO_DRAIN")]
    pub const DRAIN: u8 = 1 << bit::IOSQE_IO_DRAIN_BIT as u8;
    /// The next entry begins when this one has succeeded.
    #[doc(alias = "IOSQE_IO_LINK")]
    pub const LINK: u8 = 1 << bit::IOSQE_IO_LINK_BIT as u8;
    /// The next entry begins when this one has ended, with success or failure.
    #[doc(alias = "IOSQE_IO_HARDLINK")]
    pub const HARDLINK: u8 = 1 << bit::IOSQE_IO_HARDLINK_BIT as u8;
    /// Goes straight to a kernel worker, without an attempt to complete it inline.
    #[doc(alias = "IOSQE_ASYNC")]
    pub const ASYNC: u8 = 1 << bit::IOSQE_ASYNC_BIT as u8;
    /// Uses a buffer from the group `buf_index`.
    #[doc(alias = "IOSQE_BUFFER_SELECT")]
    pub const BUFFER_SELECT: u8 = 1 << bit::IOSQE_BUFFER_SELECT_BIT as u8;
    /// Posts a completion only when it fails. Since 5.17.
    #[doc(alias = "IOSQE_CQE_SKIP_SUCCESS")]
    pub const CQE_SKIP_SUCCESS: u8 = 1 << bit::IOSQE_CQE_SKIP_SUCCESS_BIT as u8;
}

/// One submission entry. Field by field the kernel's `struct io_uring_sqe`.
///
/// # Examples
/// An entry is plain data. [`Ring::push`](crate::Ring::push) gives it to the kernel:
/// ```
/// use sakia_ring::{Opcode, Sqe, sqe_flags};
///
/// let sync = Sqe::fsync(3, true).user_data(7).flags(sqe_flags::LINK);
/// assert_eq!((sync.opcode, sync.fd, sync.user_data), (Opcode::FSYNC, 3, 7));
/// // What has no constructor is made of its fields.
/// let advice = Sqe::new(Opcode::FADVISE, 3, 0, 4096, 0).op_flags(libc::POSIX_FADV_WILLNEED as u32);
/// assert_eq!(advice.len, 4096);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sqe {
    /// The operation.
    pub opcode: Opcode,
    /// [`sqe_flags`].
    pub flags: u8,
    /// Priority, or flags of the socket operations.
    pub ioprio: u16,
    /// The descriptor acted on; an index with [`sqe_flags::FIXED_FILE`].
    pub fd: i32,
    /// Offset in the file, or a second address.
    pub off: u64,
    /// Address of the buffer, the path or the vector.
    pub addr: u64,
    /// Bytes of the buffer, entries of the vector, or a mode.
    pub len: u32,
    /// Flags of the operation (`rw_flags`, `fsync_flags`, `poll32_events`, …).
    pub op_flags: u32,
    /// Copied to the completion unchanged.
    pub user_data: u64,
    /// Index of the registered buffer, or the buffer group.
    pub buf_index: u16,
    /// Registered credentials, 0 for the task's own.
    pub personality: u16,
    /// A second descriptor, or a slot of the registered files plus one.
    pub file_index: i32,
    /// A third address.
    pub addr3: u64,
    /// Zero.
    pub pad: u64,
}

const _: () = {
    use sys::io_uring_sqe as Kernel;
    assert!(size_of::<Sqe>() == 64 && size_of::<Kernel>() == 64);
    assert!(offset_of!(Sqe, ioprio) == offset_of!(Kernel, ioprio));
    assert!(offset_of!(Sqe, fd) == offset_of!(Kernel, fd));
    assert!(offset_of!(Sqe, off) == offset_of!(Kernel, __bindgen_anon_1));
    assert!(offset_of!(Sqe, addr) == offset_of!(Kernel, __bindgen_anon_2));
    assert!(offset_of!(Sqe, len) == offset_of!(Kernel, len));
    assert!(offset_of!(Sqe, op_flags) == offset_of!(Kernel, __bindgen_anon_3));
    assert!(offset_of!(Sqe, user_data) == offset_of!(Kernel, user_data));
    assert!(offset_of!(Sqe, buf_index) == offset_of!(Kernel, __bindgen_anon_4));
    assert!(offset_of!(Sqe, personality) == offset_of!(Kernel, personality));
    assert!(offset_of!(Sqe, file_index) == offset_of!(Kernel, __bindgen_anon_5));
    assert!(offset_of!(Sqe, addr3) == offset_of!(Kernel, __bindgen_anon_6));
};

/// The offset that means "at the file's own position", as `read(2)` and `write(2)` use it.
pub const CURRENT_POSITION: u64 = u64::MAX;

/// `AT_FDCWD`: paths are relative to the working directory.
pub const AT_FDCWD: i32 = linux_raw_sys::general::AT_FDCWD;

impl Sqe {
    /// Returns an entry with all other fields zero.
    ///
    /// # Examples
    /// See [`Sqe`](Sqe#examples).
    #[inline(always)]
    pub const fn new(opcode: Opcode, fd: i32, addr: u64, len: u32, off: u64) -> Self {
        Self {
            opcode,
            flags: 0,
            ioprio: 0,
            fd,
            off,
            addr,
            len,
            op_flags: 0,
            user_data: 0,
            buf_index: 0,
            personality: 0,
            file_index: 0,
            addr3: 0,
            pad: 0,
        }
    }

    /// Sets the `user_data`.
    ///
    /// # Examples
    /// See [`Sqe`](Sqe#examples).
    #[inline(always)]
    #[must_use]
    pub const fn user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// Sets the [`sqe_flags`].
    ///
    /// # Examples
    /// See [`Sqe`](Sqe#examples).
    #[inline(always)]
    #[must_use]
    pub const fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the flags of the operation.
    ///
    /// # Examples
    /// See [`Sqe`](Sqe#examples).
    #[inline(always)]
    #[must_use]
    pub const fn op_flags(mut self, op_flags: u32) -> Self {
        self.op_flags = op_flags;
        self
    }

    /// Marks `fd` as the index of a registered file.
    ///
    /// # Examples
    /// See [`Ring::register_files`](crate::Ring::register_files).
    #[doc(alias = "IOSQE_FIXED_FILE")]
    #[inline(always)]
    #[must_use]
    pub const fn fixed_file(mut self) -> Self {
        self.flags |= sqe_flags::FIXED_FILE;
        self
    }

    /// Lets the kernel pick the buffer from this group. Since 5.7.
    ///
    /// # Examples
    /// See [`BufRing`](crate::BufRing#examples).
    #[doc(alias = "IOSQE_BUFFER_SELECT")]
    #[inline(always)]
    #[must_use]
    pub const fn buffer_group(mut self, group: u16) -> Self {
        self.flags |= sqe_flags::BUFFER_SELECT;
        self.buf_index = group;
        self
    }

    /// Does nothing, and completes with 0. Since 5.1.
    ///
    /// # Examples
    /// See [`Ring::enter`](crate::Ring::enter).
    #[doc(alias = "io_uring_prep_nop")]
    #[inline(always)]
    pub const fn nop() -> Self {
        Self::new(Opcode::NOP, -1, 0, 0, 0)
    }

    /// Does nothing, and completes with `result`. For fault injection. Since 6.10.
    #[doc(alias = "IORING_NOP_INJECT_RESULT")]
    pub const fn nop_with_result(result: i32) -> Self {
        Self::new(Opcode::NOP, -1, 0, result as u32, 0).op_flags(sys::IORING_NOP_INJECT_RESULT)
    }

    /// Reads up to `len` bytes into `buf` from `off` in the file. Since 5.6.
    ///
    /// # Examples
    /// See [`sakia_ring`](crate#examples).
    #[doc(alias = "io_uring_prep_read")]
    #[inline(always)]
    pub fn read(fd: i32, buf: *mut u8, len: u32, off: u64) -> Self {
        Self::new(Opcode::READ, fd, address(buf), len, off)
    }

    /// Reads into `count` buffers described at `iovecs`. Since 5.1.
    #[doc(alias = "io_uring_prep_readv")]
    pub fn readv<T>(fd: i32, iovecs: *const T, count: u32, off: u64) -> Self {
        Self::new(Opcode::READV, fd, address(iovecs), count, off)
    }

    /// Reads into `buf`, which lies within registered buffer `buf_index`. Since 5.1.
    #[doc(alias = "io_uring_prep_read_fixed")]
    pub fn read_fixed(fd: i32, buf: *mut u8, len: u32, off: u64, buf_index: u16) -> Self {
        Self { buf_index, ..Self::new(Opcode::READ_FIXED, fd, address(buf), len, off) }
    }

    /// Writes `len` bytes at `buf` to `off` in the file. Since 5.6.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsRawFd;
    ///
    /// use sakia_ring::{CURRENT_POSITION, Cqe, Ring, Sqe};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut reader, writer) = std::io::pipe()?;
    /// let mut ring = Ring::builder().build()?;
    /// let text = b"hello";
    /// let write = Sqe::write(writer.as_raw_fd(), text.as_ptr(), 5, CURRENT_POSITION);
    /// // SAFETY: the text is part of the program; the pipe is closed after the ring.
    /// unsafe { ring.push(write) }.ok_or("the queue is full")?;
    /// ring.enter(1, None)?;
    /// let mut completions = [Cqe::default(); 1];
    /// ring.reap(&mut completions);
    /// assert_eq!(completions[0].result()?, 5);
    /// let mut bytes = [0; 5];
    /// std::io::Read::read_exact(&mut reader, &mut bytes)?;
    /// assert_eq!(&bytes, text);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "io_uring_prep_write")]
    #[inline(always)]
    pub fn write(fd: i32, buf: *const u8, len: u32, off: u64) -> Self {
        Self::new(Opcode::WRITE, fd, address(buf), len, off)
    }

    /// Writes `count` buffers described at `iovecs`. Since 5.1.
    #[doc(alias = "io_uring_prep_writev")]
    pub fn writev<T>(fd: i32, iovecs: *const T, count: u32, off: u64) -> Self {
        Self::new(Opcode::WRITEV, fd, address(iovecs), count, off)
    }

    /// Writes from `buf`, which lies within registered buffer `buf_index`. Since 5.1.
    #[doc(alias = "io_uring_prep_write_fixed")]
    pub fn write_fixed(fd: i32, buf: *const u8, len: u32, off: u64, buf_index: u16) -> Self {
        Self { buf_index, ..Self::new(Opcode::WRITE_FIXED, fd, address(buf), len, off) }
    }

    /// Makes the file durable; with `data_only` only the data and the metadata needed to read it. Since 5.1.
    ///
    /// # Examples
    /// See [`Sqe`](Sqe#examples).
    #[doc(alias = "io_uring_prep_fsync")]
    pub const fn fsync(fd: i32, data_only: bool) -> Self {
        let flags = if data_only { sys::IORING_FSYNC_DATASYNC } else { 0 };
        Self::new(Opcode::FSYNC, fd, 0, 0, 0).op_flags(flags)
    }

    /// Makes `len` bytes of the file from byte `off` on durable, with the metadata needed to read them; all
    /// of the file if both are 0. Since 5.1.
    #[doc(alias = "io_uring_prep_fsync")]
    pub const fn fsync_range(fd: i32, off: u64, len: u32) -> Self {
        Self::new(Opcode::FSYNC, fd, 0, len, off).op_flags(sys::IORING_FSYNC_DATASYNC)
    }

    /// Opens the NUL-terminated `path` relative to `dir`. Completes with a descriptor. Since 5.6.
    #[doc(alias = "io_uring_prep_openat")]
    pub fn openat(dir: i32, path: *const u8, open_flags: u32, mode: u32) -> Self {
        Self::new(Opcode::OPENAT, dir, address(path), mode, 0).op_flags(open_flags)
    }

    /// Closes a descriptor. Since 5.6.
    #[doc(alias = "io_uring_prep_close")]
    pub const fn close(fd: i32) -> Self {
        Self::new(Opcode::CLOSE, fd, 0, 0, 0)
    }

    /// Fills the `struct statx` at `buf` for the NUL-terminated `path` relative to `dir`. Since 5.6.
    #[doc(alias = "io_uring_prep_statx")]
    pub fn statx<T>(dir: i32, path: *const u8, at_flags: u32, mask: u32, buf: *mut T) -> Self {
        Self::new(Opcode::STATX, dir, address(path), mask, address(buf)).op_flags(at_flags)
    }

    /// Opens the NUL-terminated `path` relative to `dir` with the `struct open_how` of `how_len` bytes at
    /// `how`. Completes with a descriptor. Since 5.6.
    #[doc(alias = "io_uring_prep_openat2")]
    pub fn openat2<T>(dir: i32, path: *const u8, how: *const T, how_len: u32) -> Self {
        Self::new(Opcode::OPENAT2, dir, address(path), how_len, address(how))
    }

    /// Makes a directory at the NUL-terminated `path` relative to `dir`. Since 5.15.
    #[doc(alias = "io_uring_prep_mkdirat")]
    pub fn mkdirat(dir: i32, path: *const u8, mode: u32) -> Self {
        Self::new(Opcode::MKDIRAT, dir, address(path), mode, 0)
    }

    /// Removes the name at the NUL-terminated `path` relative to `dir`; a directory's with the flag
    /// `AT_REMOVEDIR`. Since 5.11.
    #[doc(alias = "io_uring_prep_unlinkat")]
    pub fn unlinkat(dir: i32, path: *const u8, at_flags: u32) -> Self {
        Self::new(Opcode::UNLINKAT, dir, address(path), 0, 0).op_flags(at_flags)
    }

    /// Moves a name from the NUL-terminated `from` relative to `from_dir` to the NUL-terminated `to`
    /// relative to `to_dir`, with the `RENAME_*` flags. Since 5.11.
    #[doc(alias = "io_uring_prep_renameat")]
    pub fn renameat(
        from_dir: i32,
        from: *const u8,
        to_dir: i32,
        to: *const u8,
        rename_flags: u32,
    ) -> Self {
        Self::new(Opcode::RENAMEAT, from_dir, address(from), to_dir as u32, address(to))
            .op_flags(rename_flags)
    }

    /// Adds a link to the file at the NUL-terminated `from` relative to `from_dir`: the name is the
    /// NUL-terminated `to` relative to `to_dir`, with the `AT_*` flags. Since 5.15.
    #[doc(alias = "io_uring_prep_linkat")]
    pub fn linkat(
        from_dir: i32,
        from: *const u8,
        to_dir: i32,
        to: *const u8,
        at_flags: u32,
    ) -> Self {
        Self::new(Opcode::LINKAT, from_dir, address(from), to_dir as u32, address(to))
            .op_flags(at_flags)
    }

    /// Makes a symbolic link to the NUL-terminated `target` at the NUL-terminated `link` relative to
    /// `dir`. Since 5.15.
    #[doc(alias = "io_uring_prep_symlinkat")]
    pub fn symlinkat(target: *const u8, dir: i32, link: *const u8) -> Self {
        Self::new(Opcode::SYMLINKAT, dir, address(target), 0, address(link))
    }

    /// Allocates, frees or zeroes `len` bytes from `off` in the file, depending on the `FALLOC_FL_*` bits of
    /// `mode`. Since 5.6.
    #[doc(alias = "io_uring_prep_fallocate")]
    pub const fn fallocate(fd: i32, mode: u32, off: u64, len: u64) -> Self {
        Self::new(Opcode::FALLOCATE, fd, len, mode, off)
    }

    /// Sets the file's length to `len` bytes. Since 6.9.
    #[doc(alias = "io_uring_prep_ftruncate")]
    pub const fn ftruncate(fd: i32, len: u64) -> Self {
        Self::new(Opcode::FTRUNCATE, fd, 0, 0, len)
    }

    /// Announces the use of `len` bytes from `off` in the file (to its end if `len` is 0): one of
    /// `POSIX_FADV_*`. Since 5.6; with a length of 4 GiB or more since 6.11.
    #[doc(alias = "io_uring_prep_fadvise")]
    #[doc(alias = "io_uring_prep_fadvise64")]
    pub const fn fadvise(fd: i32, off: u64, len: u64, advice: u32) -> Self {
        // The 64-bit length field must be zero on older kernels.
        let (short, long) = if len <= u32::MAX as u64 { (len as u32, 0) } else { (0, len) };
        Self::new(Opcode::FADVISE, fd, long, short, off).op_flags(advice)
    }

    /// Reads the extended attribute of the NUL-terminated `name` into the `len` bytes at `value`. Completes
    /// with its length. Since 5.19.
    #[doc(alias = "io_uring_prep_fgetxattr")]
    pub fn fgetxattr(fd: i32, name: *const u8, value: *mut u8, len: u32) -> Self {
        Self::new(Opcode::FGETXATTR, fd, address(name), len, address(value))
    }

    /// Sets the extended attribute of the NUL-terminated `name` to the `len` bytes at `value`, with the
    /// `XATTR_*` flags. Since 5.19.
    #[doc(alias = "io_uring_prep_fsetxattr")]
    pub fn fsetxattr(fd: i32, name: *const u8, value: *const u8, len: u32, flags: u32) -> Self {
        Self::new(Opcode::FSETXATTR, fd, address(name), len, address(value)).op_flags(flags)
    }

    /// Makes a socket of these `AF_*`, `SOCK_*` and `IPPROTO_*` numbers. Completes with a descriptor.
    /// Since 5.19.
    #[doc(alias = "io_uring_prep_socket")]
    pub const fn socket(domain: i32, kind: u32, protocol: u32) -> Self {
        Self::new(Opcode::SOCKET, domain, 0, protocol, kind as u64)
    }

    /// Binds the socket to the address of `len` bytes at `addr`. Since 6.11.
    #[doc(alias = "io_uring_prep_bind")]
    pub fn bind<T>(fd: i32, addr: *const T, len: u32) -> Self {
        Self::new(Opcode::BIND, fd, address(addr), 0, len as u64)
    }

    /// Makes the socket accept connections, with a queue of `backlog`. Since 6.11.
    #[doc(alias = "io_uring_prep_listen")]
    pub const fn listen(fd: i32, backlog: u32) -> Self {
        Self::new(Opcode::LISTEN, fd, 0, backlog, 0)
    }

    /// Accepts a connection, with the `SOCK_*` flags. The kernel writes the peer's address to `addr`, which
    /// has room for the number of bytes at `len`, and its length to `len`. Completes with a descriptor.
    /// Since 5.5.
    #[doc(alias = "io_uring_prep_accept")]
    pub fn accept<T>(fd: i32, addr: *mut T, len: *mut u32, flags: u32) -> Self {
        Self::new(Opcode::ACCEPT, fd, address(addr), 0, address(len)).op_flags(flags)
    }

    /// Accepts connections repeatedly, with the `SOCK_*` flags: one completion with a descriptor each. Since
    /// 5.19.
    #[doc(alias = "io_uring_prep_multishot_accept")]
    pub fn accept_multishot(fd: i32, flags: u32) -> Self {
        let ioprio = sys::IORING_ACCEPT_MULTISHOT as u16;
        Self { ioprio, ..Self::new(Opcode::ACCEPT, fd, 0, 0, 0).op_flags(flags) }
    }

    /// Connects the socket to the address of `len` bytes at `addr`. Since 5.5.
    #[doc(alias = "io_uring_prep_connect")]
    pub fn connect<T>(fd: i32, addr: *const T, len: u32) -> Self {
        Self::new(Opcode::CONNECT, fd, address(addr), 0, len as u64)
    }

    /// Sends up to `len` bytes at `buf`, with the `MSG_*` flags. Since 5.6.
    #[doc(alias = "io_uring_prep_send")]
    #[inline(always)]
    pub fn send(fd: i32, buf: *const u8, len: u32, flags: u32) -> Self {
        Self::new(Opcode::SEND, fd, address(buf), len, 0).op_flags(flags)
    }

    /// Receives up to `len` bytes into `buf`, with the `MSG_*` flags. Since 5.6.
    #[doc(alias = "io_uring_prep_recv")]
    #[inline(always)]
    pub fn recv(fd: i32, buf: *mut u8, len: u32, flags: u32) -> Self {
        Self::new(Opcode::RECV, fd, address(buf), len, 0).op_flags(flags)
    }

    /// Receives repeatedly, each time into a buffer that the kernel picks from `group`, with the `MSG_*`
    /// flags: one completion with a number of bytes each. Since 6.0.
    #[doc(alias = "io_uring_prep_recv_multishot")]
    pub fn recv_multishot(fd: i32, group: u16, flags: u32) -> Self {
        let ioprio = sys::IORING_RECV_MULTISHOT as u16;
        Self { ioprio, ..Self::new(Opcode::RECV, fd, 0, 0, 0).op_flags(flags) }.buffer_group(group)
    }

    /// Makes a send or receive wait for readiness before its first attempt. Since 5.19.
    #[doc(alias = "IORING_RECVSEND_POLL_FIRST")]
    #[must_use]
    pub const fn poll_first(mut self) -> Self {
        self.ioprio |= sys::IORING_RECVSEND_POLL_FIRST as u16;
        self
    }

    /// Sends the message that the `struct msghdr` at `message` describes, with the `MSG_*` flags. Since 5.3.
    #[doc(alias = "io_uring_prep_sendmsg")]
    pub fn sendmsg<T>(fd: i32, message: *const T, flags: u32) -> Self {
        Self::new(Opcode::SENDMSG, fd, address(message), 1, 0).op_flags(flags)
    }

    /// Receives a message into the buffers of the `struct msghdr` at `message`, to which the kernel writes
    /// the sender's address, with the `MSG_*` flags. Since 5.3.
    #[doc(alias = "io_uring_prep_recvmsg")]
    pub fn recvmsg<T>(fd: i32, message: *mut T, flags: u32) -> Self {
        Self::new(Opcode::RECVMSG, fd, address(message), 1, 0).op_flags(flags)
    }

    /// Receives messages repeatedly, each into a buffer that the kernel picks from `group`, with the `MSG_*`
    /// flags. The `struct msghdr` at `message` has the room for the address and the control messages in each
    /// buffer. Since 6.0.
    #[doc(alias = "io_uring_prep_recvmsg_multishot")]
    pub fn recvmsg_multishot<T>(fd: i32, message: *mut T, group: u16, flags: u32) -> Self {
        let ioprio = sys::IORING_RECV_MULTISHOT as u16;
        Self { ioprio, ..Self::recvmsg(fd, message, flags) }.buffer_group(group)
    }

    /// Shuts down one or both directions of a connection: one of `SHUT_*`. Since 5.11.
    #[doc(alias = "io_uring_prep_shutdown")]
    pub const fn shutdown(fd: i32, how: u32) -> Self {
        Self::new(Opcode::SHUTDOWN, fd, 0, how, 0)
    }

    /// Completes with the ready `POLL*` events once any of `events` is ready. Since 5.1.
    #[doc(alias = "io_uring_prep_poll_add")]
    pub const fn poll_add(fd: i32, events: u32) -> Self {
        // The kernel reads two 16-bit halves, the low one first, on either byte order.
        let events = if cfg!(target_endian = "big") { events.rotate_left(16) } else { events };
        Self::new(Opcode::POLL_ADD, fd, 0, 0, 0).op_flags(events)
    }

    /// Completes with the ready `POLL*` events each time one of `events` becomes ready, until canceled.
    /// Since 5.13.
    #[doc(alias = "IORING_POLL_ADD_MULTI")]
    pub const fn poll_add_multishot(fd: i32, events: u32) -> Self {
        Self { len: sys::IORING_POLL_ADD_MULTI, ..Self::poll_add(fd, events) }
    }

    /// Completes with `ETIME` after the duration in the kernel's `struct __kernel_timespec` at `duration`,
    /// which the kernel reads when it consumes the entry. Since 5.4.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use sakia_ring::{Cqe, Ring, Sqe, Timespec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().build()?;
    /// let time = Box::leak(Box::new(Timespec::new(Duration::from_millis(1))));
    /// // SAFETY: the duration is never freed.
    /// unsafe { ring.push(Sqe::timeout(time)) }.ok_or("the queue is full")?;
    /// ring.enter(1, None)?;
    /// let mut completions = [Cqe::default(); 1];
    /// assert_eq!(ring.reap(&mut completions), 1);
    /// assert_eq!(completions[0].res, -libc::ETIME);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "io_uring_prep_timeout")]
    pub fn timeout<T>(duration: *const T) -> Self {
        Self::new(Opcode::TIMEOUT, -1, address(duration), 1, 0)
    }

    /// Requests the cancellation of the operation with this `user_data`. Completes with 0, `ENOENT` (it has
    /// ended or never existed) or `EALREADY` (it runs and cannot be stopped). Since 5.5.
    ///
    /// # Examples
    /// ```
    /// use sakia_ring::{Cqe, Ring, Sqe, Timespec};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut ring = Ring::builder().build()?;
    /// let hour = Box::leak(Box::new(Timespec::new(std::time::Duration::from_secs(3600))));
    /// // SAFETY: the duration is never freed, and a cancel names no memory.
    /// let pushed = unsafe { (ring.push(Sqe::timeout(hour).user_data(1)), ring.push(Sqe::cancel(1))) };
    /// assert!(pushed.0.is_some() && pushed.1.is_some());
    /// ring.enter(2, None)?;
    /// let mut completions = [Cqe::default(); 2];
    /// assert_eq!(ring.reap(&mut completions), 2);
    /// let timeout = completions.iter().find(|done| done.user_data == 1).expect("it has ended");
    /// assert_eq!(timeout.res, -libc::ECANCELED);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "io_uring_prep_cancel64")]
    pub const fn cancel(user_data: u64) -> Self {
        Self::new(Opcode::ASYNC_CANCEL, -1, user_data, 0, 0)
    }

    /// Requests the cancellation of every operation on the descriptor's file. Completes with their number.
    /// Since 5.19.
    #[doc(alias = "IORING_ASYNC_CANCEL_FD")]
    pub const fn cancel_fd(fd: i32) -> Self {
        Self::new(Opcode::ASYNC_CANCEL, fd, 0, 0, 0)
            .op_flags(sys::IORING_ASYNC_CANCEL_FD | sys::IORING_ASYNC_CANCEL_ALL)
    }

    /// Requests the cancellation of every operation of the ring. Completes with their number. Since 5.19.
    #[doc(alias = "IORING_ASYNC_CANCEL_ANY")]
    pub const fn cancel_all() -> Self {
        Self::new(Opcode::ASYNC_CANCEL, -1, 0, 0, 0)
            .op_flags(sys::IORING_ASYNC_CANCEL_ANY | sys::IORING_ASYNC_CANCEL_ALL)
    }

    /// Posts a completion with this `user_data` and `result` to the ring with descriptor `ring`.
    /// Since 5.18.
    #[doc(alias = "io_uring_prep_msg_ring")]
    pub const fn msg_ring(ring: i32, user_data: u64, result: i32) -> Self {
        Self::new(Opcode::MSG_RING, ring, 0, result as u32, user_data)
    }

    /// Turns the entry into a no-op with the same `user_data`.
    pub(crate) fn make_nop(&mut self) {
        *self = Self::nop().user_data(self.user_data);
    }
}

/// Returns the address as the kernel takes it. The operation has the pointer's access rights: its provenance
/// is exposed, for backends that are not the kernel.
#[inline(always)]
fn address<T>(pointer: *const T) -> u64 {
    pointer.expose_provenance() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_kernels() {
        assert_eq!(Opcode::NOP.name(), Some("NOP"));
        assert_eq!(Opcode(0), Opcode::NOP);
        assert_eq!(Opcode::READ_FIXED.name(), Some("READ_FIXED"));
        assert_eq!(Opcode(255).name(), None);
    }

    #[test]
    fn a_no_op_in_place_keeps_only_the_user_data() {
        let mut sqe = Sqe::fsync(9, true).flags(sqe_flags::LINK).user_data(77);
        sqe.make_nop();
        assert_eq!(sqe, Sqe::nop().user_data(77));
    }

    #[test]
    fn flags_are_added_to_those_there() {
        let sqe = Sqe::nop().flags(sqe_flags::ASYNC).fixed_file().buffer_group(5);
        let all = sqe_flags::ASYNC | sqe_flags::FIXED_FILE | sqe_flags::BUFFER_SELECT;
        assert_eq!((sqe.flags, sqe.buf_index), (all, 5));
    }

    #[test]
    fn a_second_descriptor_and_path_lie_where_the_kernel_looks_for_them() {
        let (from, to) = (c"a".as_ptr().cast(), c"b".as_ptr().cast());
        let rename = Sqe::renameat(3, from, AT_FDCWD, to, 1);
        assert_eq!((rename.fd, rename.len as i32, rename.op_flags), (3, AT_FDCWD, 1));
        assert_eq!((rename.addr, rename.off), (address(from), address(to)));
        let link = Sqe::linkat(3, from, 4, to, 0);
        assert_eq!((link.fd, link.addr, link.len, link.off), (3, address(from), 4, address(to)));
        let symlink = Sqe::symlinkat(from, 5, to);
        assert_eq!((symlink.addr, symlink.fd, symlink.off), (address(from), 5, address(to)));
    }

    #[test]
    fn lengths_of_advice_that_older_kernels_take_lie_where_they_look() {
        let advice = |len| {
            let sqe = Sqe::fadvise(1, 2, len, 3);
            assert_eq!((sqe.off, sqe.op_flags), (2, 3));
            (sqe.addr, sqe.len)
        };
        assert_eq!((advice(0), advice(9)), ((0, 0), (0, 9)));
        assert_eq!(advice(u64::from(u32::MAX)), (0, u32::MAX));
        assert_eq!(advice(1 << 32), (1 << 32, 0));
    }

    #[test]
    fn an_allocation_has_its_length_in_place_of_an_address() {
        let sqe = Sqe::fallocate(1, 2, 3, 4);
        assert_eq!((sqe.fd, sqe.len, sqe.off, sqe.addr), (1, 2, 3, 4));
        let sqe = Sqe::ftruncate(1, 1 << 40);
        assert_eq!((sqe.fd, sqe.off, sqe.addr, sqe.len), (1, 1 << 40, 0, 0));
    }
}
