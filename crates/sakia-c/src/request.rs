//! Requests of C as requests of the driver.

use std::ffi::{CStr, CString, c_char, c_void};

use rustix::io::Errno;
use sakia_driver::{
    Buffer, Domain, Foreign, Full, OpenHow, PollEvents, Request, SetTime, ShutdownHow, SocketType,
    StatfsResult, StatxResult, StatxTime, Target, Ticket,
};

use crate::event_loop::State;
use crate::file::{check_memory, sakia_file, target};
use crate::guard::Failure;
use crate::interface::*;
use crate::message::{self, Header, Part};
use crate::options::copied;
use crate::pending::{IN_TABLE, Place, Waiting};

/// The most buffers of a request: the kernel's `UIO_MAXIOV`.
const PARTS_MAX: usize = 1024;

/// Why a request was not accepted.
pub(crate) enum Refused {
    /// As many are under way as may be.
    Full,
    Failed(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Refused> for Failure {
    #[cold]
    fn from(refused: Refused) -> Self {
        let text = "as many requests are under way as may be: take results first";
        match refused {
            Refused::Full => Self::new(Errno::AGAIN, text),
            Refused::Failed(failure) => failure,
        }
    }
}

impl From<Full> for Refused {
    #[cold]
    fn from(full: Full) -> Self {
        drop(full);
        Self::Full
    }
}

/// Submits one request.
///
/// # Safety
///
/// - `at` is that of a request of `size` bytes, at least `REQUEST_BYTES_MIN`.
/// - All that the request names is as the header says.
#[inline(always)]
pub(crate) unsafe fn submit(
    state: &mut State,
    at: *const sakia_request,
    size: usize,
) -> Result<Ticket, Refused> {
    // SAFETY: these fields are within the first bytes, and so initialized: the caller's promise.
    let (op, options, token, file, buf, len, offset, flags) = unsafe {
        (
            (&raw const (*at).op).read(),
            (&raw const (*at).options).read(),
            (&raw const (*at).token).read(),
            (&raw const (*at).file).read(),
            (&raw const (*at).buf).read(),
            (&raw const (*at).len).read(),
            (&raw const (*at).offset).read(),
            (&raw const (*at).flags).read(),
        )
    };
    let is_plain =
        options | flags == 0 && token & IN_TABLE == 0 && size <= size_of::<sakia_request>();
    if is_plain && op == SAKIA_OP_NOP {
        return Ok(state.ring.submit_nop(token)?);
    }
    let is_memory = len <= isize::MAX as usize && (!buf.is_null() || len == 0);
    if is_plain
        && is_memory
        && (op == SAKIA_OP_READ || op == SAKIA_OP_WRITE)
        // SAFETY: the header's contract for files.
        && let Some(file) = unsafe { sakia_file::at(file) }
    {
        // SAFETY: the program lends the memory until the result was taken: the header's contract. It is bytes
        // for the library, whatever it is in its language. A write only reads it.
        let buffer = Buffer::Foreign(unsafe { Foreign::new(buf.cast(), len) });
        return Ok(match op {
            SAKIA_OP_READ => state.ring.submit_read(file, buffer, offset, token)?,
            _ => state.ring.submit_write(file, buffer, offset, token)?,
        });
    }
    // SAFETY: the caller's promise.
    unsafe { submit_rest(state, at, size) }
}

/// # Safety
///
/// - As for [`submit`].
#[cold]
#[inline(never)]
unsafe fn submit_rest(
    state: &mut State,
    at: *const sakia_request,
    size: usize,
) -> Result<Ticket, Refused> {
    // SAFETY: the caller's promise.
    let (request, place, token) = unsafe { made(at, size) }?;
    if state.ring.under_way() >= state.under_way_max {
        return Err(Refused::Full);
    }
    let is_in_table = place.is_some() || token & IN_TABLE != 0;
    let token = match is_in_table {
        true => state.pending.add(Waiting { token, place }),
        false => token,
    };
    Ok(state.ring.submit(request, token).inspect_err(|_| {
        if is_in_table {
            state.pending.take(token);
        }
    })?)
}

/// Returns a request of the program's, the place that its result writes to, and its token.
///
/// # Safety
///
/// - As for [`submit`].
pub(crate) unsafe fn made(
    at: *const sakia_request,
    size: usize,
) -> Result<(Request, Option<Place>, u64), Failure> {
    // SAFETY: the caller's promise.
    let it = unsafe { copied(at, size) }
        .ok_or_else(|| Failure::invalid("a field of a request that this library does not know"))?;
    if it.options & !(SAKIA_BY_FD | SAKIA_BY_FD2) != 0 {
        return Err(Failure::invalid(format_args!("options {:#x}", it.options)));
    }
    // SAFETY: the caller's promise.
    let (request, place) = unsafe { request_of(&it) }?;
    Ok((request, place, it.token))
}

impl sakia_request {
    /// Returns the file; `None` if there is none.
    ///
    /// # Safety
    ///
    /// - As for [`target`].
    unsafe fn directory(&self) -> Option<Target> {
        let number = (self.options & SAKIA_BY_FD != 0).then_some(self.fd);
        // SAFETY: the caller's promise.
        unsafe { target(self.file, number) }
    }

    /// The same of the second file.
    ///
    /// # Safety
    ///
    /// - As for [`target`].
    unsafe fn directory2(&self) -> Option<Target> {
        let number = (self.options & SAKIA_BY_FD2 != 0).then_some(self.fd2);
        // SAFETY: the caller's promise.
        unsafe { target(self.file2, number) }
    }

    /// Returns the file that the request must have.
    ///
    /// # Safety
    ///
    /// - As for [`target`].
    unsafe fn target(&self) -> Result<Target, Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.directory() }.ok_or_else(|| no_file("file"))
    }

    /// # Safety
    ///
    /// - The memory is lent until the result was taken.
    unsafe fn buffer(&self) -> Result<Buffer, Failure> {
        check_memory(self.buf.cast(), self.len)?;
        // SAFETY: the caller's promise.
        Ok(Buffer::Foreign(unsafe { Foreign::new(self.buf.cast(), self.len) }))
    }

    /// # Safety
    ///
    /// - There are `len` structures of buffers, whose memory is lent until the result was taken.
    unsafe fn buffers(&self) -> Result<Vec<Buffer>, Failure> {
        if self.len > PARTS_MAX {
            return Err(Failure::invalid(format_args!(
                "{} buffers, more than {PARTS_MAX}",
                self.len
            )));
        }
        if self.buf.is_null() && self.len > 0 {
            return Err(Failure::null("the array of buffers"));
        }
        let part = |index: usize| {
            // SAFETY: there are more than `index`: the caller's promise.
            let part = unsafe { self.buf.cast::<Part>().add(index).read_unaligned() };
            check_memory(part.base, part.len)?;
            // SAFETY: the caller's promise.
            Ok(Buffer::Foreign(unsafe { Foreign::new(part.base, part.len) }))
        };
        (0..self.len).map(part).collect()
    }

    /// Returns memory that must not be empty.
    ///
    /// # Safety
    ///
    /// - As for [`buffer`](Self::buffer).
    unsafe fn room(&self) -> Result<Buffer, Failure> {
        if self.len == 0 {
            return Err(Failure::invalid("no room to read into"));
        }
        // SAFETY: the caller's promise.
        unsafe { self.buffer() }
    }

    /// Returns the place for a structure of so many bytes.
    fn place(&self, bytes: usize) -> Result<Place, Failure> {
        if self.buf.is_null() {
            return Err(Failure::null("the memory of the result"));
        }
        if self.len < bytes {
            return Err(Failure::invalid(format_args!("{} bytes for {bytes}", self.len)));
        }
        Ok(Place::Bytes(self.buf.cast(), self.len))
    }

    /// Refuses flags and options that the operation does not have.
    fn only(self_flags: u32, known: u32) -> Result<(), Failure> {
        if self_flags & !known != 0 {
            return Err(Failure::invalid(format_args!("flags {self_flags:#x} of the operation")));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// - `buf` is null, or two `struct timespec` are there.
    unsafe fn times(&self) -> [SetTime; 2] {
        const NOW: i64 = (1 << 30) - 1;
        const OMIT: i64 = (1 << 30) - 2;

        if self.buf.is_null() {
            return [SetTime::Now; 2];
        }
        // SAFETY: the caller's promise.
        let times = unsafe { self.buf.cast::<[[i64; 2]; 2]>().read_unaligned() };
        times.map(|[seconds, nanoseconds]| match nanoseconds {
            NOW => SetTime::Now,
            OMIT => SetTime::Keep,
            // One that is too large stays so, and the kernel refuses it.
            other => SetTime::To(StatxTime::new(seconds, u32::try_from(other).unwrap_or(u32::MAX))),
        })
    }
}

fn no_file(field: &str) -> Failure {
    Failure::new(Errno::BADF, format_args!("`{field}` is null, and no number is given"))
}

/// Returns a copy of a path.
///
/// # Safety
///
/// - It is null, or ends with a zero.
unsafe fn path(path: *const c_char, field: &str) -> Result<CString, Failure> {
    // SAFETY: the caller's promise.
    unsafe { optional(path) }.ok_or_else(|| Failure::null(field))
}

/// # Safety
///
/// - As for [`path`].
unsafe fn optional(path: *const c_char) -> Option<CString> {
    // SAFETY: not null, and the caller's promise.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_owned())
}

/// Returns the request, and the place that its result writes to.
///
/// # Safety
///
/// - All that the request names is as the header says.
unsafe fn request_of(it: &sakia_request) -> Result<(Request, Option<Place>), Failure> {
    // SAFETY: the caller's promise, for all that the request names.
    unsafe {
        match it.op {
            SAKIA_OP_SOCKET..=SAKIA_OP_SHUTDOWN => of_socket(it),
            SAKIA_OP_OPEN | SAKIA_OP_MKDIR..=SAKIA_OP_READLINK => of_names(it),
            SAKIA_OP_STAT | SAKIA_OP_CHMOD..=SAKIA_OP_SET_TIMES => of_attributes(it),
            _ => of_file(it),
        }
    }
}

type Made = Result<(Request, Option<Place>), Failure>;

fn unknown(it: &sakia_request) -> Made {
    Err(Failure::new(Errno::INVAL, format_args!("no operation {}", it.op)))
}

/// # Safety
///
/// - As for [`request_of`].
unsafe fn of_file(it: &sakia_request) -> Made {
    let &sakia_request { offset, offset2, flags, len, .. } = it;
    let no_flags = || sakia_request::only(flags, 0);
    // SAFETY: the caller's promise, for all that the request names.
    let request = unsafe {
        match it.op {
            SAKIA_OP_NOP => {
                no_flags()?;
                Request::Nop
            }
            SAKIA_OP_READ => {
                no_flags()?;
                Request::Read { file: it.target()?, buffer: it.buffer()?, offset }
            }
            SAKIA_OP_WRITE => {
                no_flags()?;
                Request::Write { file: it.target()?, buffer: it.buffer()?, offset }
            }
            SAKIA_OP_READV => {
                let (file, buffers) = (it.target()?, it.buffers()?);
                Request::ReadVectored { file, buffers, offset, flags }
            }
            SAKIA_OP_WRITEV => {
                let (file, buffers) = (it.target()?, it.buffers()?);
                Request::WriteVectored { file, buffers, offset, flags }
            }
            SAKIA_OP_CLOSE => {
                no_flags()?;
                if it.options & SAKIA_BY_FD != 0 {
                    return Err(Failure::invalid(
                        "a number is not closed: adopt it, or close(2) it",
                    ));
                }
                let file = sakia_file::at(it.file).ok_or_else(|| no_file("file"))?.clone();
                Request::Close { file }
            }
            SAKIA_OP_SYNC => {
                sakia_request::only(flags, 1)?;
                Request::Sync { file: it.target()?, data_only: flags & 1 != 0 }
            }
            SAKIA_OP_STATFS => {
                no_flags()?;
                let place = it.place(size_of::<StatfsResult>())?;
                return Ok((Request::StatFs { file: it.target()? }, Some(place)));
            }
            SAKIA_OP_TRUNCATE => {
                no_flags()?;
                Request::Truncate { file: it.target()?, len: offset }
            }
            SAKIA_OP_ALLOCATE => {
                Request::Allocate { file: it.target()?, mode: flags, offset, len: offset2 }
            }
            SAKIA_OP_ADVISE => {
                Request::Advise { file: it.target()?, offset, len: offset2, advice: flags }
            }
            SAKIA_OP_READ_DIRECTORY => {
                no_flags()?;
                let buffer = it.room()?;
                Request::ReadDirectory { file: it.target()?, buffer }
            }
            SAKIA_OP_COPY_RANGE => {
                no_flags()?;
                let to = it.directory2().ok_or_else(|| no_file("file2"))?;
                let from = it.target()?;
                Request::CopyRange { from, from_offset: offset, to, to_offset: offset2, len }
            }
            SAKIA_OP_POLL => Request::Poll { file: it.target()?, events: PollEvents(flags) },
            SAKIA_OP_POLL_MANY => {
                Request::PollMany { file: it.target()?, events: PollEvents(flags) }
            }
            SAKIA_OP_RECEIVE_MANY => {
                no_flags()?;
                Request::ReceiveMany { socket: it.target()? }
            }
            _ => return unknown(it),
        }
    };
    Ok((request, None))
}

/// # Safety
///
/// - As for [`request_of`].
unsafe fn of_names(it: &sakia_request) -> Made {
    let flags = it.flags;
    // SAFETY: the caller's promise, for all that the request names.
    let request = unsafe {
        let (directory, path1) = (it.directory(), path(it.path, "path")?);
        match it.op {
            SAKIA_OP_OPEN => {
                let (flags, mode) = (u64::from(flags), u64::from(it.arg[0]));
                let how = OpenHow { flags, mode, resolve: it.offset2 };
                Request::Open { directory, path: path1, how }
            }
            SAKIA_OP_MKDIR => {
                sakia_request::only(flags, 0)?;
                Request::MakeDirectory { directory, path: path1, mode: it.arg[0] }
            }
            SAKIA_OP_UNLINK => Request::Unlink { directory, path: path1, flags },
            SAKIA_OP_RENAME | SAKIA_OP_LINK => {
                let (from_directory, from) = (directory, path1);
                let (to_directory, to) = (it.directory2(), path(it.path2, "path2")?);
                match it.op {
                    SAKIA_OP_RENAME => {
                        Request::Rename { from_directory, from, to_directory, to, flags }
                    }
                    _ => Request::Link { from_directory, from, to_directory, to, flags },
                }
            }
            SAKIA_OP_SYMLINK => {
                sakia_request::only(flags, 0)?;
                Request::Symlink { target: path(it.path2, "path2")?, directory, link: path1 }
            }
            SAKIA_OP_READLINK => {
                sakia_request::only(flags, 0)?;
                Request::ReadLink { directory, path: path1, buffer: it.room()? }
            }
            _ => return unknown(it),
        }
    };
    Ok((request, None))
}

/// # Safety
///
/// - As for [`request_of`].
unsafe fn of_attributes(it: &sakia_request) -> Made {
    let &sakia_request { flags, arg: [first, second, _], .. } = it;
    // SAFETY: the caller's promise, for all that the request names.
    let request = unsafe {
        let (directory, path) = (it.directory(), optional(it.path));
        if path.is_none() && directory.is_none() {
            return Err(Failure::null("`path` and the file"));
        }
        match it.op {
            SAKIA_OP_STAT => {
                let place = it.place(size_of::<StatxResult>())?;
                return Ok((Request::Stat { directory, path, flags }, Some(place)));
            }
            SAKIA_OP_CHMOD => Request::ChangeMode { directory, path, mode: first, flags },
            SAKIA_OP_CHOWN => {
                let given = |id: u32| (id != u32::MAX).then_some(id);
                let (uid, gid) = (given(first), given(second));
                Request::ChangeOwner { directory, path, uid, gid, flags }
            }
            SAKIA_OP_SET_TIMES => {
                let [accessed, modified] = it.times();
                Request::SetTimes { directory, path, accessed, modified, flags }
            }
            _ => return unknown(it),
        }
    };
    Ok((request, None))
}

/// # Safety
///
/// - As for [`request_of`].
unsafe fn of_socket(it: &sakia_request) -> Made {
    let &sakia_request { buf, len, flags, arg: [first, second, third], .. } = it;
    let no_flags = || sakia_request::only(flags, 0);
    // SAFETY: the caller's promise, for all that the request names.
    let request = unsafe {
        if it.op == SAKIA_OP_SOCKET {
            no_flags()?;
            let domain = u16::try_from(first);
            let domain =
                domain.map_err(|_| Failure::invalid(format_args!("the domain {first}")))?;
            let (domain, kind) = (Domain(domain), SocketType(second));
            return Ok((Request::Socket { domain, kind, protocol: third }, None));
        }
        let socket = it.target()?;
        match it.op {
            SAKIA_OP_BIND | SAKIA_OP_CONNECT => {
                no_flags()?;
                let address = Box::new(message::address(buf.cast(), len)?);
                match it.op {
                    SAKIA_OP_BIND => Request::Bind { socket, address },
                    _ => Request::Connect { socket, address },
                }
            }
            SAKIA_OP_LISTEN => {
                no_flags()?;
                Request::Listen { socket, backlog: first }
            }
            SAKIA_OP_ACCEPT => {
                no_flags()?;
                let place = if buf.is_null() { None } else { Some(it.place(0)?) };
                return Ok((Request::Accept { socket }, place));
            }
            SAKIA_OP_ACCEPT_MANY => {
                no_flags()?;
                Request::AcceptMany { socket }
            }
            SAKIA_OP_SEND => Request::Send { socket, buffer: it.buffer()?, flags },
            SAKIA_OP_RECEIVE => Request::Receive { socket, buffer: it.buffer()?, flags },
            SAKIA_OP_SEND_MESSAGE => {
                let header = Header::read(buf, len)?;
                let (buffer, address) = (header.buffer()?, Box::new(header.address()?));
                let control = Box::new(header.control()?);
                Request::SendMessage { socket, buffer, address, control, flags }
            }
            SAKIA_OP_RECEIVE_MESSAGE => {
                let header = Header::read(buf, len)?;
                let (buffer, control_bytes) = (header.buffer()?, header.control_len());
                let request = Request::ReceiveMessage { socket, buffer, control_bytes, flags };
                return Ok((request, Some(Place::Message(buf.cast::<c_void>()))));
            }
            SAKIA_OP_SHUTDOWN => {
                no_flags()?;
                let how = match first {
                    0 => ShutdownHow::Receives,
                    1 => ShutdownHow::Sends,
                    2 => ShutdownHow::Both,
                    _ => return Err(Failure::invalid(format_args!("directions {first}"))),
                };
                Request::Shutdown { socket, how }
            }
            _ => return unknown(it),
        }
    };
    Ok((request, None))
}
