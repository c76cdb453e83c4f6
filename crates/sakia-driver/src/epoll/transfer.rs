//! Reading and writing: on the calling thread without blocking, on a lane thread to the end.
//!
//! The kind of the descriptor decides:
//! - A regular file, a directory, a block device ends by itself: a plain call on the bounded lane.
//! - A *stream* (pipe, socket, terminal, eventfd, …) may wait for ever. No call here blocks on one: the
//!   calling thread tries, and if it would block waits for epoll and tries again.
//!
//! A try does not block, although the descriptor may be in blocking mode, which must not be changed since
//! other users share it. The first way that works:
//! 1. A socket: `MSG_DONTWAIT`, and `MSG_NOSIGNAL`.
//! 2. `RWF_NOWAIT`. Sockets and most anonymous descriptors have it, pipes since Linux 6.4.
//! 3. The descriptor is in non-blocking mode anyway: a plain call.
//! 4. A pipe or the slave end of a pseudo-terminal can be opened once more, through `/proc/self/fd`, in
//!    non-blocking mode. The new description is closed after the call. Opening other kinds might have side
//!    effects.
//! 5. None works: [`Try::Unable`]. The caller waits until epoll reports that the descriptor is ready, and
//!    lets the elastic lane check again and transfer. That thread may get stuck if another reader or writer
//!    is quicker.
//!
//! A try that moves fewer bytes than requested is done: the ring also returns the bytes moved at once.
//!
//! Offsets: streams have none. The ring ignores one on a pipe and refuses any but 0 on a socket; and it
//! checks first that the offset is valid. The driver refuses all such transfers before; see
//! [`refusal`](crate::refusal).
//!
//! Source: `preadv2(2)`, `pipe(7)`, `io_uring_prep_read(3)`.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use sakia_ring::{CURRENT_POSITION, IoVec};

use crate::call::{Buffers, Transfer, failed, outcome};
use crate::calls::nowait;
use crate::decide::CallMode;
use crate::sys::signals::without_sigpipe;
use crate::sys::{self, Direction, abi, borrow, retry};

/// The number of bytes that a pipe with any room at all takes without blocking.
const PIPE_ROOM: u64 = abi::PIPE_BUF as u64;
/// The number of bytes that other streams take without blocking for long when they are reported writable.
const STREAM_ROOM: u64 = 256;

impl Buffers {
    /// Calls `f` with a vector that describes the memory.
    fn with<T>(&self, f: impl FnOnce(*const IoVec, usize) -> T) -> T {
        match *self {
            Self::One { addr, len } => {
                let base = ptr::with_exposed_provenance_mut(addr as usize);
                f(&IoVec { base, len: len as usize }, 1)
            }
            Self::Many { vector, count } => {
                f(ptr::with_exposed_provenance(vector as usize), count as usize)
            }
        }
    }

    /// Returns the parts of the memory.
    ///
    /// # Safety
    ///
    /// - The memory is lent: its vector can be read.
    unsafe fn parts(&self) -> Vec<IoVec> {
        self.with(|vector, count| {
            // SAFETY: the caller says that the vector can be read, and it has this many parts.
            (0..count).map(|index| unsafe { vector.add(index).read() }).collect()
        })
    }
}

/// The kind of a descriptor, as far as it decides the way of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileClass {
    /// Ends by itself.
    Bounded,
    Socket,
    Pipe,
    /// Character devices: terminals, which are streams, but also `/dev/zero`; and files without a type:
    /// eventfds and similar ones. Epoll knows which of them wait.
    Other,
}

impl FileClass {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory | FileType::BlockDevice => Self::Bounded,
            FileType::Socket => Self::Socket,
            FileType::Fifo => Self::Pipe,
            _ => Self::Other,
        }
    }

    /// # Errors
    /// `EBADF`: not an open descriptor.
    ///
    /// # Safety
    ///
    /// - As [`borrow`], during the call.
    pub(super) unsafe fn of_descriptor(raw: i32) -> Result<Self, Errno> {
        // SAFETY: the caller's duties are the same.
        Ok(Self::of(&rustix::fs::fstat(unsafe { borrow(raw) }?)?))
    }
}

/// The result of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    /// The result of the completion.
    Done(i32),
    /// No byte can be moved now, or no more: epoll reports when.
    WouldBlock,
    /// This descriptor cannot be tried without the risk of blocking.
    Unable,
}

impl Try {
    pub(super) fn of(result: Result<usize, Errno>) -> Self {
        match result {
            // On Linux the same as `EWOULDBLOCK`.
            Err(Errno::AGAIN) => Self::WouldBlock,
            result => Self::Done(outcome(result)),
        }
    }
}

/// Means to try a stream; tests leave some out to reach the later ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    /// The kernel supports `RWF_NOWAIT`, if not for each file.
    pub(super) nowait: bool,
    pub(super) reopen: bool,
    /// Flags that contradict each other tell whether a file takes any (6.9).
    pub(super) flags: bool,
}

impl Means {
    pub(super) const ALL: Self = Self { nowait: true, reopen: true, flags: true };

    /// Probes with an eventfd whose count is 0. Support of `RWF_NOWAIT` for eventfds does not matter: a
    /// kernel that knows the flag returns `EOPNOTSUPP`; one that does not, or a seccomp filter, returns
    /// another error.
    pub(super) fn probe(event: BorrowedFd<'_>) -> Self {
        let mut value = 0_u64;
        let part = IoVec { base: (&raw mut value).cast(), len: size_of::<u64>() };
        let (raw, offset) = (event.as_raw_fd(), CURRENT_POSITION);
        let flags = nowait::flags(CallMode::NonBlocking, 0);
        // SAFETY: the part is the value, which outlives the call.
        let result = retry(|| unsafe {
            sys::transfer(Direction::Read, raw, &raw const part, 1, offset, flags)
        });
        let nowait = matches!(result, Err(Errno::AGAIN | Errno::OPNOTSUPP));
        // SAFETY: the descriptor is borrowed.
        let flags = nowait && unsafe { takes_flags(Direction::Read, raw) };
        Self { nowait, flags, ..Self::ALL }
    }
}

impl Transfer {
    /// Tries on the calling thread, on anything but a bounded file.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn try_now(&self, class: FileClass, means: Means) -> Try {
        // SAFETY: the caller's promise.
        if class != FileClass::Other && !unsafe { self.is_offset_sane() } {
            return Try::Done(failed(Errno::INVAL));
        }
        // SAFETY: as above.
        let is_empty_write = self.direction == Direction::Write && unsafe { self.len() } == 0;
        let is_vector = matches!(self.buffers, Buffers::Many { .. });
        if class == FileClass::Socket && !(is_empty_write && is_vector) {
            // SAFETY: as above.
            return unsafe { self.try_socket() };
        }
        if is_empty_write {
            // The file may take or refuse it, and need not wait. A vector is not even shown to the file.
            // SAFETY: as above.
            return Try::of(self.quietly(class, || unsafe { self.call(self.raw) }));
        }
        if means.nowait {
            // SAFETY: as above.
            if let Some(result) = unsafe { self.try_nowait(class) } {
                return Try::of(result);
            }
        }
        // SAFETY: as above.
        if let Some(errno) = unsafe { self.refusal(class, means) } {
            return Try::Done(failed(errno));
        }
        // SAFETY: as above.
        let mode = match unsafe { borrow(self.raw) }.and_then(rustix::fs::fcntl_getfl) {
            Ok(mode) => mode,
            Err(errno) => return Try::Done(failed(errno)),
        };
        if mode.contains(OFlags::NONBLOCK) {
            // SAFETY: the caller's promise.
            return Try::of(self.quietly(class, || unsafe { self.call(self.raw) }));
        }
        let lacking = match self.direction {
            Direction::Read => OFlags::WRONLY,
            Direction::Write => OFlags::RDONLY,
        };
        if mode.contains(OFlags::PATH) || mode & OFlags::ACCMODE == lacking {
            return Try::Done(failed(Errno::BADF));
        }
        // SAFETY: as above.
        match means.reopen.then(|| unsafe { self.reopen(class) }) {
            Some(Ok(again)) => {
                // SAFETY: the caller's promise.
                Try::of(self.quietly(class, || unsafe { self.call(again.as_raw_fd()) }))
            }
            // There is no reader: as in a non-blocking open of a FIFO.
            Some(Err(Errno::NXIO))
                if class == FileClass::Pipe && self.direction == Direction::Write =>
            {
                Try::Done(failed(Errno::PIPE))
            }
            _ => Try::Unable,
        }
    }

    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn try_socket(&self) -> Try {
        if !matches!(self.offset, 0 | CURRENT_POSITION) {
            return Try::Done(failed(Errno::SPIPE));
        }
        // A read of nothing succeeds, unlike a receive of nothing.
        // SAFETY: the caller's promise.
        if self.direction == Direction::Read && unsafe { self.len() } == 0 {
            return Try::Done(0);
        }
        Try::of(self.buffers.with(|vector, count| {
            // SAFETY: the caller's promise.
            unsafe { sys::transfer_socket(self.direction, self.raw, vector, count) }
        }))
    }

    /// Returns the size of the memory in bytes.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn len(&self) -> u64 {
        self.buffers.with(|vector, count| {
            // SAFETY: the caller's promise: the vector can be read, and has this many parts.
            let len = |index| unsafe { vector.add(index).read() }.len as u64;
            (0..count).map(len).fold(0, u64::saturating_add)
        })
    }

    /// Repeats a call on a file without positions, unless the offset is invalid.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn at_no_offset(
        &self,
        call: impl FnOnce(u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        // SAFETY: the caller's promise.
        if unsafe { self.is_offset_sane() } { call(CURRENT_POSITION) } else { Err(Errno::INVAL) }
    }

    /// Returns whether the transfer, if there were positions, would end at a valid one. The ring checks that
    /// for pipes too.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn is_offset_sane(&self) -> bool {
        const END: u64 = i64::MAX as u64;
        matches!(self.offset, 0 | CURRENT_POSITION)
            // SAFETY: the caller's promise.
            || self.offset <= END && self.offset + unsafe { self.len() }.min(END) <= END
    }

    /// Returns the errno of a file without `RWF_NOWAIT` that refuses the transfer at once, although it is not
    /// ready for any: one that takes no flags, or an eventfd.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn refusal(&self, class: FileClass, means: Means) -> Option<Errno> {
        if class != FileClass::Other {
            return None;
        }
        let is_flagged = self.flags & !abi::RWF_NOWAIT != 0;
        // SAFETY: the caller's promise.
        if is_flagged && means.flags && unsafe { !takes_flags(self.direction, self.raw) } {
            return Some(Errno::OPNOTSUPP);
        }
        if self.direction == Direction::Read {
            return None;
        }
        // SAFETY: as above.
        let parts = unsafe { self.buffers.parts() };
        let first = parts.into_iter().find(|part| part.len > 0)?;
        if first.len == 8 || !is_eventfd(self.raw) {
            return None;
        }
        // SAFETY: as above: the part is lent.
        unsafe { refusal_of_eventfds(first) }
    }

    /// Returns `None` if there is no `RWF_NOWAIT`.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    unsafe fn try_nowait(&self, class: FileClass) -> Option<Result<usize, Errno>> {
        let flags = nowait::flags(CallMode::NonBlocking, self.flags);
        let call = |offset| {
            self.buffers.with(|vector, count| {
                let (direction, raw) = (self.direction, self.raw);
                // SAFETY: the caller's promise.
                retry(|| unsafe { sys::transfer(direction, raw, vector, count, offset, flags) })
            })
        };
        let result = self.quietly(class, || match call(self.stream_offset(class)) {
            // SAFETY: the caller's promise.
            Err(Errno::SPIPE) => unsafe { self.at_no_offset(call) },
            result => result,
        });
        match result {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => None,
            result => Some(result),
        }
    }

    /// Opens the file of the descriptor once more, so that its calls do not block.
    ///
    /// # Safety
    ///
    /// - The descriptor is lent.
    unsafe fn reopen(&self, class: FileClass) -> Result<OwnedFd, Errno> {
        // SAFETY: the caller's promise.
        if class != FileClass::Pipe && !unsafe { is_terminal_slave(self.raw) } {
            return Err(Errno::OPNOTSUPP);
        }
        let access = match self.direction {
            Direction::Read => OFlags::RDONLY,
            Direction::Write => OFlags::WRONLY,
        };
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = format!("/proc/self/fd/{}\0", self.raw);
        let path = path.as_ptr().expose_provenance() as u64;
        // SAFETY: the path ends with a NUL.
        unsafe { sys::openat(sakia_ring::AT_FDCWD, path, flags.bits(), 0) }
    }

    /// Calls `call` without a `SIGPIPE`.
    fn quietly(
        &self,
        class: FileClass,
        call: impl FnOnce() -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        match (class, self.direction) {
            (FileClass::Pipe, Direction::Write) => without_sigpipe(call),
            _ => call(),
        }
    }

    fn stream_offset(&self, class: FileClass) -> u64 {
        if class == FileClass::Pipe { CURRENT_POSITION } else { self.offset }
    }

    /// Checks once more that the descriptor is ready, and then transfers; for a thread of the elastic lane,
    /// on a descriptor that cannot be tried. It blocks if another reader or writer is quicker.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn transfer_if_ready(&self, class: FileClass) -> Try {
        // SAFETY: the caller's promise.
        if let Some(tried) = unsafe { try_to_wait(self.raw, self.direction) } {
            return tried;
        }
        if self.direction == Direction::Read {
            // SAFETY: the caller's promise.
            return Try::of(unsafe { self.call(self.raw) });
        }
        let room = if class == FileClass::Pipe { PIPE_ROOM } else { STREAM_ROOM };
        // SAFETY: as above.
        let parts = unsafe { self.buffers.parts() };
        let parts = clip(parts, room);
        Try::of(retry(|| {
            // SAFETY: the parts describe lent memory, and live until the call returns.
            unsafe {
                let (vector, count) = (parts.as_ptr(), parts.len());
                sys::transfer(self.direction, self.raw, vector, count, CURRENT_POSITION, self.flags)
            }
        }))
    }

    /// Transfers on a descriptor of a bounded file, or one in non-blocking mode.
    ///
    /// # Safety
    ///
    /// - The memory is lent, and so is the descriptor.
    pub(super) unsafe fn call(&self, raw: i32) -> Result<usize, Errno> {
        let Self { direction, buffers, offset, flags, .. } = *self;
        let at = |offset| {
            retry(|| match (buffers, flags) {
                // SAFETY: the caller's promise.
                (Buffers::One { addr, len }, 0) => unsafe {
                    sys::transfer_one(direction, raw, addr, len, offset)
                },
                _ => buffers.with(|vector, count| {
                    // SAFETY: as above.
                    unsafe { sys::transfer(direction, raw, vector, count, offset, flags) }
                }),
            })
        };
        match at(offset) {
            // The ring ignores the offset of files without positions.
            // SAFETY: as above.
            Err(Errno::SPIPE) if offset != CURRENT_POSITION => unsafe { self.at_no_offset(at) },
            // Without that call there are no such flags.
            Err(Errno::NOSYS) if flags != 0 => Err(Errno::OPNOTSUPP),
            result => result,
        }
    }
}

/// Returns whether a file takes `RWF_*` flags at all: whether its code has the newer form of reads, or of
/// writes. The flags of the call contradict each other, which is checked after that.
///
/// # Safety
///
/// - The descriptor is lent.
unsafe fn takes_flags(direction: Direction, raw: i32) -> bool {
    /// Newer than the headers that the bindings are made from.
    const RWF_NOAPPEND: u32 = 0x20;
    const CONTRADICTION: u32 = abi::RWF_APPEND | RWF_NOAPPEND;
    let mut byte = 0_u8;
    let part = IoVec { base: &raw mut byte, len: 1 };
    // SAFETY: the part is the byte, which outlives the call.
    let result = retry(|| unsafe {
        sys::transfer(direction, raw, &raw const part, 1, CURRENT_POSITION, CONTRADICTION)
    });
    result != Err(Errno::OPNOTSUPP)
}

/// Returns whether this is an eventfd.
fn is_eventfd(raw: i32) -> bool {
    let link = rustix::fs::readlink(format!("/proc/self/fd/{raw}"), Vec::new());
    link.is_ok_and(|link| link.to_bytes() == b"anon_inode:[eventfd]")
}

/// Returns the errno with which an eventfd refuses these bytes, whatever its count.
///
/// # Safety
///
/// - The part is lent.
unsafe fn refusal_of_eventfds(part: IoVec) -> Option<Errno> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    let fresh = rustix::event::eventfd(0, flags).ok()?;
    let (addr, len) = (part.base.expose_provenance() as u64, part.len as u32);
    // SAFETY: the caller's promise.
    let result = retry(|| unsafe {
        sys::transfer_one(Direction::Write, fresh.as_raw_fd(), addr, len, CURRENT_POSITION)
    });
    result.err().filter(|&errno| errno == Errno::INVAL)
}

/// Returns the first `len` bytes of the parts.
fn clip(mut parts: Vec<IoVec>, mut len: u64) -> Vec<IoVec> {
    for part in &mut parts {
        part.len = part.len.min(len as usize);
        len -= part.len as u64;
    }
    parts
}

/// Returns the current result of a try that waits for readiness. `None` if the descriptor is ready.
///
/// # Safety
///
/// - As [`borrow`], during the call.
pub(super) unsafe fn try_to_wait(raw: i32, direction: Direction) -> Option<Try> {
    let wanted = match direction {
        Direction::Read => PollFlags::IN,
        Direction::Write => PollFlags::OUT,
    };
    // SAFETY: the caller's duties are the same.
    match unsafe { poll_now(raw, wanted) } {
        Err(errno) => Some(Try::Done(failed(errno))),
        Ok(ready) => ready.is_empty().then_some(Try::WouldBlock),
    }
}

/// Returns the current ones of `events`, and of those that are always reported.
///
/// # Errors
/// `EBADF`: not an open descriptor.
///
/// # Safety
///
/// - As [`borrow`], during the call.
pub(super) unsafe fn poll_now(raw: i32, events: PollFlags) -> Result<PollFlags, Errno> {
    // SAFETY: the caller's duties are the same.
    let mut polled = [PollFd::from_borrowed_fd(unsafe { borrow(raw) }?, events)];
    let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry(|| rustix::event::poll(&mut polled, Some(&no_time)))?;
    let ready = polled[0].revents();
    if ready.contains(PollFlags::NVAL) { Err(Errno::BADF) } else { Ok(ready) }
}

/// Returns whether opening the descriptor's file again gives the same terminal, without side effects.
///
/// # Safety
///
/// - As [`borrow`], during the call.
unsafe fn is_terminal_slave(raw: i32) -> bool {
    /// `UNIX98_PTY_SLAVE_MAJOR` and the seven after it. Their masters are another matter: opening
    /// one makes a new pair.
    const SLAVE_MAJORS: std::ops::Range<u32> = 136..144;
    // SAFETY: the caller's duties are the same.
    let stat = unsafe { borrow(raw) }.and_then(rustix::fs::fstat);
    stat.is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && SLAVE_MAJORS.contains(&rustix::fs::major(stat.st_rdev))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};

    const MEANS: [Means; 3] = [
        Means::ALL,
        Means { nowait: false, ..Means::ALL },
        Means { nowait: false, reopen: false, flags: false },
    ];

    fn one(raw: i32, direction: Direction, bytes: &mut [u8]) -> Transfer {
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        let buffers = Buffers::One { addr, len: bytes.len() as u32 };
        Transfer { raw, direction, buffers, offset: 7, flags: 0 }
    }

    fn read_now(raw: i32, bytes: &mut [u8], class: FileClass, means: Means) -> Try {
        // SAFETY: the bytes outlive the call.
        unsafe { one(raw, Direction::Read, bytes).try_now(class, means) }
    }

    fn write_now(raw: i32, bytes: &mut [u8], class: FileClass, means: Means) -> Try {
        // SAFETY: the bytes outlive the call.
        unsafe { one(raw, Direction::Write, bytes).try_now(class, means) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_pipe_in_blocking_mode_is_tried_without_blocking() {
        for means in &MEANS[..2] {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let (reader, writer) = (reader.as_raw_fd(), writer.as_raw_fd());
            let mut bytes = [0; 8];
            // SAFETY: the pipe is open.
            let class = unsafe { FileClass::of_descriptor(reader) }.unwrap();
            assert_eq!(class, FileClass::Pipe);
            assert_eq!(read_now(reader, &mut bytes, class, *means), Try::WouldBlock, "{means:?}");
            assert_eq!(write_now(writer, &mut [b'x'; 5], class, *means), Try::Done(5));
            assert_eq!(read_now(reader, &mut bytes, class, *means), Try::Done(5));
            assert_eq!(&bytes, b"xxxxx\0\0\0");
            let mut much = vec![b'y'; 1 << 20];
            let Try::Done(count) = write_now(writer, &mut much, class, *means) else {
                panic!("an empty pipe has room")
            };
            assert!((1..1 << 20).contains(&count));
            assert_eq!(write_now(writer, &mut much, class, *means), Try::WouldBlock);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn the_wrong_end_of_a_pipe_is_refused() {
        for means in MEANS {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let bad = Try::Done(failed(Errno::BADF));
            assert_eq!(read_now(writer.as_raw_fd(), &mut [0], FileClass::Pipe, means), bad);
            assert_eq!(write_now(reader.as_raw_fd(), &mut [0], FileClass::Pipe, means), bad);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_pipe_that_nobody_reads_says_so() {
        for means in &MEANS[..2] {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            drop(reader);
            let result = write_now(writer.as_raw_fd(), &mut [0], FileClass::Pipe, *means);
            assert_eq!(result, Try::Done(failed(Errno::PIPE)), "{means:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn without_any_way_nothing_is_tried() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (means, class) = (MEANS[2], FileClass::Pipe);
        assert_eq!(read_now(reader.as_raw_fd(), &mut [0], class, means), Try::Unable);
        let mut much = vec![b'y'; 1 << 20];
        let write = one(writer.as_raw_fd(), Direction::Write, &mut much);
        // SAFETY: the bytes outlive the calls.
        assert_eq!(unsafe { write.transfer_if_ready(class) }, Try::Done(PIPE_ROOM as i32));
        // SAFETY: as above.
        while unsafe { write.transfer_if_ready(class) } != Try::WouldBlock {}
        let mut bytes = [0; 16];
        let read = one(reader.as_raw_fd(), Direction::Read, &mut bytes);
        // SAFETY: as above.
        assert_eq!(unsafe { read.transfer_if_ready(class) }, Try::Done(16));
    }

    #[test]
    fn clipping_keeps_the_first_bytes() {
        let part = |len| IoVec { base: ptr::null_mut(), len };
        let lens = |len| -> Vec<usize> {
            clip(vec![part(3), part(0), part(5)], len).iter().map(|part| part.len).collect()
        };
        assert_eq!(lens(100), [3, 0, 5]);
        assert_eq!(lens(4), [3, 0, 1]);
        assert_eq!(lens(0), [0, 0, 0]);
    }
}
