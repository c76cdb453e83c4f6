//! The structures and numbers that cross the boundary.

use std::ffi::{c_char, c_void};

use crate::file::sakia_file;

/// The version of this header: 65536 * major + 256 * minor + patch.
pub const SAKIA_VERSION: u32 = 0x000100;

/// As `offset` of a request: the file's own position.
pub const SAKIA_CURRENT_POSITION: u64 = u64::MAX;

/// In `options` of a request: its file is the number `fd`, not `file`. Nothing is remembered for a number; it
/// must be open, and the same file, until the result was taken.
pub const SAKIA_BY_FD: u32 = 1;
/// The same for the second file of a request: it is `fd2`, not `file2`.
pub const SAKIA_BY_FD2: u32 = 2;

/// In `flags` of a result: more results of the same request will follow.
pub const SAKIA_MORE: u32 = 1;

/// In `flags` of options: an error where there is no ring. By default loops and queues run on epoll and
/// threads there.
pub const SAKIA_RING_ONLY: u32 = 1;
/// In `flags` of options: epoll and threads, even where there is a ring.
pub const SAKIA_NO_RING: u32 = 2;
/// In `flags` of options: no request is done by a plain system call within the submission. A ring gets them
/// all, whatever their files: a server that does not answer may then hold up its other requests.
pub const SAKIA_NO_PLAIN_CALLS: u32 = 4;

/// Nothing, by way of the queue.
pub const SAKIA_OP_NOP: u32 = 0;
/// Reads up to `len` bytes of `file` into `buf`, at `offset`. `-EINVAL`: no room. Value: the bytes; fewer
/// than asked for do not mean the end of the file, but 0 does.
pub const SAKIA_OP_READ: u32 = 1;
/// Writes `len` bytes of `buf` to `file`, at `offset`. Value: the bytes.
pub const SAKIA_OP_WRITE: u32 = 2;
/// Reads into several buffers: `buf` is a `const struct iovec *`, `len` their number, at most 1024; `flags`
/// are `RWF_*`. The array is copied. `-EINVAL`: none of them has room. Value: the bytes.
pub const SAKIA_OP_READV: u32 = 3;
/// Writes from several buffers, as `SAKIA_OP_READV`.
pub const SAKIA_OP_WRITEV: u32 = 4;
/// Opens `path` below `file`, closed on exec: `flags` are `O_*`, `arg[0]` the mode, `offset2` the
/// `RESOLVE_*` of `openat2(2)`. The result has the file.
pub const SAKIA_OP_OPEN: u32 = 5;
/// Cancels what is under way on `file`, on all loops, waits for that, and closes it. A loop that has used
/// the file does its part in its next wait. The handle stays, to be given back by `sakia_file_unref`; its
/// requests end with `-EBADF`.
pub const SAKIA_OP_CLOSE: u32 = 6;
/// Makes the contents of `file` durable; with 1 in `flags` not all of its metadata.
pub const SAKIA_OP_SYNC: u32 = 7;
/// Writes a `struct statx` to `buf`, of `len` bytes (256): of `path` below `file`, or of `file` itself if
/// `path` is null. `flags` are `AT_*`.
pub const SAKIA_OP_STAT: u32 = 8;
/// Writes a `struct statfs` of `file` to `buf`, of `len` bytes (120).
pub const SAKIA_OP_STATFS: u32 = 9;
/// Sets the length of `file` to `offset`.
pub const SAKIA_OP_TRUNCATE: u32 = 10;
/// Allocates or frees `offset2` bytes of `file` at `offset`; `flags` is the mode of `fallocate(2)`.
pub const SAKIA_OP_ALLOCATE: u32 = 11;
/// Advises the kernel of the use of `offset2` bytes of `file` at `offset`; `flags` is one `POSIX_FADV_*`.
pub const SAKIA_OP_ADVISE: u32 = 12;
/// Makes the directory `path` below `file`, with the mode `arg[0]`.
pub const SAKIA_OP_MKDIR: u32 = 13;
/// Removes `path` below `file`; a directory with `AT_REMOVEDIR` in `flags`.
pub const SAKIA_OP_UNLINK: u32 = 14;
/// Renames `path` below `file` to `path2` below `file2`; `flags` are `RENAME_*`.
pub const SAKIA_OP_RENAME: u32 = 15;
/// Gives `path` below `file` another name, `path2` below `file2`; `flags` are `AT_*`.
pub const SAKIA_OP_LINK: u32 = 16;
/// Makes the symbolic link `path` below `file`, which leads to `path2`.
pub const SAKIA_OP_SYMLINK: u32 = 17;
/// Writes the target of the symbolic link `path` below `file` to `buf`, at most `len` bytes, without a zero
/// at the end. Value: the bytes.
pub const SAKIA_OP_READLINK: u32 = 18;
/// Writes entries of the directory `file` to `buf`, as `getdents64(2)`, at most `len` bytes. Value: the
/// bytes; 0 at the end.
pub const SAKIA_OP_READ_DIRECTORY: u32 = 19;
/// Sets the mode of `path` below `file`, or of `file` itself if `path` is null, to `arg[0]`. `flags` are
/// `AT_*`.
pub const SAKIA_OP_CHMOD: u32 = 20;
/// As `SAKIA_OP_CHMOD`, the owner to `arg[0]` and the group to `arg[1]`; `UINT32_MAX` leaves one as it is.
pub const SAKIA_OP_CHOWN: u32 = 21;
/// As `SAKIA_OP_CHMOD`, the times: `buf` is a `const struct timespec[2]` as for `utimensat(2)`, which is
/// copied; null for now.
pub const SAKIA_OP_SET_TIMES: u32 = 22;
/// Copies `len` bytes of `file` at `offset` to `file2` at `offset2`, within the kernel. Value: the bytes.
pub const SAKIA_OP_COPY_RANGE: u32 = 23;
/// Waits until one of the events `flags` of `file` is ready: `POLLIN` and so on. Value: the ready ones.
pub const SAKIA_OP_POLL: u32 = 24;
/// Makes a socket, closed on exec, of the domain `arg[0]`, the type `arg[1]` and the protocol `arg[2]`. The
/// result has the file.
pub const SAKIA_OP_SOCKET: u32 = 25;
/// Gives `file` the address `buf`, of `len` bytes: a `struct sockaddr_in`, `_in6` or `_un`, which is copied.
pub const SAKIA_OP_BIND: u32 = 26;
/// Makes `file` listen, with a backlog of `arg[0]`.
pub const SAKIA_OP_LISTEN: u32 = 27;
/// Connects `file` to the address `buf`, as for `SAKIA_OP_BIND`.
pub const SAKIA_OP_CONNECT: u32 = 28;
/// Accepts a connection of `file`. The result has it; its peer's address is written to `buf`, at most `len`
/// bytes, unless that is null. Value: the bytes of the address.
pub const SAKIA_OP_ACCEPT: u32 = 29;
/// Accepts connections of `file` until it is canceled, or an accept fails: a result with a file for each,
/// with `SAKIA_MORE` if there will be more. Not on a queue.
pub const SAKIA_OP_ACCEPT_MANY: u32 = 30;
/// Tells of the events `flags` of `file` until it is canceled, or the file is closed: a result with
/// `SAKIA_MORE` for each wait in which one is ready, as long as it stays so. Not on a queue. Value: the ready
/// ones.
pub const SAKIA_OP_POLL_MANY: u32 = 36;
/// Receives from the connection `file`, a stream, until the peer sends no more, or it is canceled, into
/// memory of the loop: a result with `memory` and `SAKIA_MORE` for each piece. The kernel receives ahead, up
/// to 256 KiB; then the peer has to wait. There may be no other receive on the connection meanwhile. Not on a
/// queue. Value: the bytes; 0 at the end.
pub const SAKIA_OP_RECEIVE_MANY: u32 = 37;
/// Sends `len` bytes of `buf` on the connection `file`; `flags` are `MSG_*`. Value: the bytes.
pub const SAKIA_OP_SEND: u32 = 31;
/// Receives up to `len` bytes of the connection `file` into `buf`; `flags` are `MSG_*`. Value: the bytes; 0
/// at the end.
pub const SAKIA_OP_RECEIVE: u32 = 32;
/// Sends a datagram: `buf` is a `const struct msghdr *` of one buffer, `len` its size (56), `flags` are
/// `MSG_*`. The structure, the address and the control messages are copied, and descriptors in these are
/// duplicated. `-EINVAL`: more than 64 KiB of control messages. Value: the bytes.
pub const SAKIA_OP_SEND_MESSAGE: u32 = 33;
/// Receives a datagram: `buf` is a `struct msghdr *` of one buffer, `len` its size (56), `flags` are `MSG_*`.
/// The structure and its address and control memory are the library's, too, until the result was taken; then
/// they are filled in, with at most 64 KiB of control messages: no datagram has more. Received descriptors
/// are the program's. Value: the bytes.
pub const SAKIA_OP_RECEIVE_MESSAGE: u32 = 34;
/// Shuts `file` down in the directions `arg[0]`: `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
pub const SAKIA_OP_SHUTDOWN: u32 = 35;

/// One operation. Set all of it to zero first, then the fields that the operation names; other fields must
/// be zero. What its pointers lead to belongs to the library from the submission until the last result was
/// taken: a program neither frees nor changes it, and does not read what is written by the request. Paths,
/// and everything that is said to be copied, may go when the submission returns, and so may the request
/// itself.
#[repr(C)]
pub struct sakia_request {
    /// One of `SAKIA_OP_*`.
    pub op: u32,
    /// `SAKIA_BY_FD`, `SAKIA_BY_FD2`.
    pub options: u32,
    /// Comes back with the result: any number. Below 2^63 it costs a little less.
    pub token: u64,
    /// The file, or the directory in which `path` begins; null for the working directory.
    pub file: *mut sakia_file,
    /// Memory.
    pub buf: *mut c_void,
    /// Its bytes, or a number of elements.
    pub len: usize,
    /// An offset in the file, or `SAKIA_CURRENT_POSITION`.
    pub offset: u64,
    /// Written by the submission: names the request for `sakia_loop_cancel`. 0 if it is done.
    pub ticket: u64,
    /// Flags of the operation, by its system call.
    pub flags: u32,
    /// The file's number, with `SAKIA_BY_FD`.
    pub fd: i32,
    /// The second file, or the directory in which `path2` begins.
    pub file2: *mut sakia_file,
    /// The second file's number, with `SAKIA_BY_FD2`.
    pub fd2: i32,
    /// Numbers.
    pub arg: [u32; 3],
    /// A path, which ends with a zero.
    pub path: *const c_char,
    /// A second path.
    pub path2: *const c_char,
    /// The offset in the second file, or another large number.
    pub offset2: u64,
}

/// A result of a request.
#[repr(C)]
pub struct sakia_result {
    /// The token of the request.
    pub token: u64,
    /// At least 0, or a negative error number.
    pub value: i64,
    /// A file that was opened, made or accepted: a reference of the program's, for `sakia_file_unref`. Null
    /// otherwise.
    pub file: *mut sakia_file,
    /// `SAKIA_MORE`. Ignore unknown ones.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes that `SAKIA_OP_RECEIVE_MANY` has received, `value` of them; null otherwise. They are the loop's,
    /// and valid until `sakia_loop_give_back`, or the loop is freed.
    pub memory: *const c_void,
    /// Their name for `sakia_loop_give_back`; 0 without bytes.
    pub lent: u64,
}

/// How a loop is made. Begin with `SAKIA_LOOP_OPTIONS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sakia_loop_options {
    /// The size of this structure as the program was compiled, at least 24. Fields after it are zero.
    pub size: usize,
    /// The size of `sakia_request` as the program was compiled, at least 64: up to `fd`. Fields after it are
    /// zero.
    pub request_size: usize,
    /// The size of `sakia_result` as the program was compiled.
    pub result_size: usize,
    /// The most requests that may be under way; 0 for 65,536.
    pub under_way_max: u32,
    /// `SAKIA_RING_ONLY`, `SAKIA_NO_RING`, `SAKIA_NO_PLAIN_CALLS`.
    pub flags: u32,
}

/// How a queue is made. Begin with `SAKIA_QUEUE_OPTIONS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sakia_queue_options {
    /// As in `sakia_loop_options`.
    pub size: usize,
    /// As in `sakia_loop_options`.
    pub request_size: usize,
    /// As in `sakia_loop_options`.
    pub result_size: usize,
    /// The most requests that may be under way; 0 for 65,536.
    pub under_way_max: u32,
    /// `SAKIA_RING_ONLY`, `SAKIA_NO_RING`, `SAKIA_NO_PLAIN_CALLS`.
    pub flags: u32,
    /// Threads that perform requests, at most 64; 0 for one.
    pub threads: u32,
    /// Zero.
    pub reserved: u32,
}

/// In `flags` of `sakia_tree_options`: an exact copy, with owners, times, links and attributes, as `cp -a`.
pub const SAKIA_TREE_ARCHIVE: u32 = 1;
/// In `flags` of `sakia_tree_options`: what cannot be opened is removed and made anew.
pub const SAKIA_TREE_FORCE: u32 = 2;
/// In `flags` of `sakia_tree_options`: symbolic links are followed.
pub const SAKIA_TREE_FOLLOW: u32 = 4;
/// In `flags` of `sakia_tree_options`: other file systems are left out.
pub const SAKIA_TREE_ONE_FILE_SYSTEM: u32 = 8;
/// In `flags` of `sakia_tree_options`: the copy is durable at its end.
pub const SAKIA_TREE_DURABLE: u32 = 16;
/// In `flags` of `sakia_tree_options`: the copy is read again, and compared.
pub const SAKIA_TREE_VERIFY: u32 = 32;
/// In `flags` of `sakia_tree_options`: nothing is written.
pub const SAKIA_TREE_DRY_RUN: u32 = 64;
/// In `flags` of `sakia_tree_options`: entries that exist stay.
pub const SAKIA_TREE_KEEP: u32 = 128;
/// In `flags` of `sakia_tree_options`: entries that exist and are not older stay.
pub const SAKIA_TREE_UPDATE: u32 = 256;

/// How a tree is copied or removed. Begin with `SAKIA_TREE_OPTIONS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sakia_tree_options {
    /// The size of this structure as the program was compiled.
    pub size: usize,
    /// `SAKIA_TREE_*`.
    pub flags: u32,
    /// Threads that work, at most 1024; 0 for one per processor.
    pub threads: u32,
    /// The most entries in progress; 0 for 64.
    pub limit: u32,
    /// Zero.
    pub reserved: u32,
}

/// The entries of a tree that were handled, by kind.
#[repr(C)]
pub struct sakia_counts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of a file that was copied.
    pub hard_links: u64,
    /// FIFOs, sockets and devices.
    pub others: u64,
    /// Entries that existed and stay.
    pub skipped: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// Failures.
    pub failures: u64,
}

/// A failure of a tree.
#[repr(C)]
pub struct sakia_failure {
    /// The step that failed, in English.
    pub operation: *const c_char,
    /// The entry.
    pub path: *const c_char,
    /// The error number, positive.
    pub error: i32,
    /// Zero.
    pub reserved: u32,
}

/// The bytes of a request that every program has: up to `fd`.
pub(crate) const REQUEST_BYTES_MIN: usize = 64;
/// The bytes of a result that every program has: up to `reserved`.
pub(crate) const RESULT_BYTES_MIN: usize = 32;
/// The bytes of options that every program has: the three sizes.
pub(crate) const OPTIONS_BYTES_MIN: usize = 24;

const _: () = assert!(
    size_of::<sakia_request>() == 112
        && std::mem::offset_of!(sakia_request, file2) == REQUEST_BYTES_MIN
        && size_of::<sakia_result>() == 48
        && std::mem::offset_of!(sakia_result, memory) == RESULT_BYTES_MIN
        && size_of::<sakia_loop_options>() == 32
        && std::mem::offset_of!(sakia_loop_options, under_way_max) == OPTIONS_BYTES_MIN
        && size_of::<sakia_queue_options>() == 40
        && std::mem::offset_of!(sakia_queue_options, under_way_max) == OPTIONS_BYTES_MIN
);
