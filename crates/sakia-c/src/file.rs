//! Handles of files, which any thread may use.

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::slice;
use std::sync::Arc;

use rustix::io::Errno;
use sakia_driver::{FileHandle, OpenHow, StatxResult, Target};

use crate::guard::{Failure, guarded, guarded_int, store_handle};
use crate::interface::SAKIA_CURRENT_POSITION;

/// A file, a socket or a pipe: a counted handle for any thread and any number of loops. It is closed when the
/// last reference is given back and no request uses it, or by `SAKIA_OP_CLOSE`.
pub struct sakia_file {
    pub(crate) handle: FileHandle,
}

impl sakia_file {
    /// Returns a reference for the program.
    pub(crate) fn given(handle: FileHandle) -> *mut Self {
        Arc::into_raw(Arc::new(Self { handle })).cast_mut()
    }

    /// Returns the file of an address that the program gave; `None` for null.
    ///
    /// # Safety
    ///
    /// - The address is null, or that of a file of which the program has a reference during the call.
    #[inline(always)]
    pub(crate) unsafe fn at<'a>(file: *const Self) -> Option<&'a FileHandle> {
        // SAFETY: the caller's promise. The program's reference keeps it alive, and only shared references to
        // it are made.
        unsafe { file.as_ref() }.map(|file| &file.handle)
    }
}

/// Returns the file with this number, for the duration of a call.
///
/// # Errors
/// `EBADF`: it is not open.
fn open_fd(fd: i32) -> Result<ManuallyDrop<OwnedFd>, Failure> {
    let bad = || Failure::new(Errno::BADF, format_args!("the number {fd} is not open"));
    if fd < 0 {
        return Err(bad());
    }
    // SAFETY: the number is not negative, and nothing but a question is asked of it. If it is not open, the
    // kernel says so.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).map_err(|_| bad())?;
    // SAFETY: it is open, and stays so during the call: the program's promise. It is not closed here.
    Ok(ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Makes a handle of its own for a number of the program's.
pub(crate) fn duplicate(fd: i32) -> Result<FileHandle, Failure> {
    let open = open_fd(fd)?;
    FileHandle::duplicate(open.as_fd()).map_err(|error| Failure::of("no duplicate", &error))
}

/// Stores a new file in the program's memory.
///
/// # Safety
///
/// - `place` is null, or valid for a write.
unsafe fn store(
    place: *mut *mut sakia_file,
    make: impl FnOnce() -> Result<FileHandle, Failure>,
) -> Result<i64, Failure> {
    // SAFETY: the caller's promise.
    unsafe { store_handle(place, "handle", || Ok(sakia_file::given(make()?))) }
}

/// Makes the descriptor `fd` the library's, and stores a handle of it in `*file`. The library closes it; the
/// program does not use the number any more, except to look at it as `sakia_file_number` allows.
///
/// Any thread. Errors: `-EBADF` it is not open, `-EFAULT` `file` is null; then the descriptor is still the
/// program's. Can break: a number that other code closes, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_adopt(fd: i32, file: *mut *mut sakia_file) -> i32 {
    guarded_int(|| {
        let adopt = || {
            let open = open_fd(fd)?;
            Ok(FileHandle::new(ManuallyDrop::into_inner(open)))
        };
        // SAFETY: the header's contract for places of handles. The descriptor is the library's from now on.
        unsafe { store(file, adopt) }
    })
}

/// A descriptor of the program's, which it keeps open.
struct OfProgram(i32);

impl AsFd for OfProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: not negative, and open as long as this value is there: the header's contract.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Stores a handle of the open file `fd` in `*file`. The descriptor stays the program's, which keeps it open
/// until a `SAKIA_OP_CLOSE` of the handle is answered: that ends all uses of it, and closes nothing. After
/// the last reference alone, loops and queues that have used it may do so until they are freed. If none has,
/// but `sakia_try_` functions alone, the number may be closed as soon as no such call is under way.
///
/// Any thread. Errors: `-EBADF` it is not open, `-EFAULT` `file` is null. Can break: a number that is closed
/// before, or used by the handle when it is another file's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_lend(fd: i32, file: *mut *mut sakia_file) -> i32 {
    guarded_int(|| {
        let lend = || {
            open_fd(fd)?; // left open
            Ok(FileHandle::lent(Arc::new(OfProgram(fd))))
        };
        // SAFETY: the header's contract for places of handles.
        unsafe { store(file, lend) }
    })
}

/// Makes a descriptor of the library's own for the open file `fd`, and stores a handle of it in `*file`. `fd`
/// stays the program's.
///
/// Any thread. Errors: `-EBADF` it is not open, `-EMFILE` no descriptor is left, `-EFAULT` `file` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_duplicate(fd: i32, file: *mut *mut sakia_file) -> i32 {
    // SAFETY: the header's contract for places of handles.
    guarded_int(|| unsafe { store(file, || duplicate(fd)) })
}

/// Adds a reference, and returns `file`; null for null.
///
/// Any thread. Never fails. Can break: a file without a reference left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_ref(file: *mut sakia_file) -> *mut sakia_file {
    if !file.is_null() {
        // SAFETY: it came from `Arc::into_raw`, and the program has a reference.
        unsafe { Arc::increment_strong_count(file) };
    }
    file
}

/// Gives a reference back; nothing for null. Requests under way keep the file open; it is closed after the
/// last of them. If a loop has used it, that loop closes it, in its next wait.
///
/// Any thread. Never fails. Can break: a reference that is given back twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_unref(file: *mut sakia_file) {
    guarded(|| {
        if !file.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and the program gives its reference up.
            drop(unsafe { Arc::from_raw(file) });
        }
        Ok(0)
    });
}

/// Returns the number of the file's descriptor, for calls that the library does not offer. It is open as long
/// as the program has a reference and does not close the file; the program must not close the number.
///
/// Any thread. Errors: `-EFAULT` `file` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_number(file: *const sakia_file) -> i32 {
    guarded_int(|| {
        // SAFETY: the header's contract for files.
        Ok(unsafe { file_of(file) }?.raw().into())
    })
}

/// Gives the last reference back without closing the file, and returns the number of its descriptor, which is
/// the program's from now on.
///
/// Any thread. Errors, after which the reference is still the program's: `-EFAULT` `file` is null; `-EBUSY`
/// there is another reference, a loop or a queue that has used the file was not freed, or the file is lent or
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_file_release(file: *mut sakia_file) -> i32 {
    guarded_int(|| {
        if file.is_null() {
            return Err(Failure::null("the file"));
        }
        // SAFETY: it came from `Arc::into_raw`, and the program has a reference.
        let mut file = ManuallyDrop::new(unsafe { Arc::from_raw(file) });
        let fd = Arc::get_mut(&mut file).and_then(|file| file.handle.take_owned());
        let busy = || Failure::new(Errno::BUSY, format_args!("the file is in use, lent or closed"));
        let fd = fd.ok_or_else(busy)?;
        drop(ManuallyDrop::into_inner(file)); // the program's reference
        Ok(fd.into_raw_fd().into())
    })
}

/// Returns the file that a request names, by a handle or by a number. `None`: neither.
///
/// # Safety
///
/// - As for [`sakia_file::at`].
/// - A number is open, and the same file, until the request's last result was taken.
pub(crate) unsafe fn target(file: *const sakia_file, number: Option<i32>) -> Option<Target> {
    match number {
        // SAFETY: the caller's promise.
        Some(raw) => Some(unsafe { Target::number(raw) }),
        // SAFETY: the caller's promise.
        None => unsafe { sakia_file::at(file) }.map(Target::from),
    }
}

/// Checks memory of the program's.
pub(crate) fn check_memory(buf: *const u8, len: usize) -> Result<(), Failure> {
    if len > isize::MAX as usize {
        return Err(Failure::invalid(format_args!("{len} bytes are more than memory can have")));
    }
    if buf.is_null() && len > 0 {
        return Err(Failure::new(Errno::FAULT, format_args!("{len} bytes at null")));
    }
    Ok(())
}

/// The value of a call that was not made, since it might wait.
const MIGHT_WAIT: i64 = -(Errno::AGAIN.raw_os_error() as i64);

/// Returns the value of a call that was made; `None` if it was not.
fn made<T>(result: Option<io::Result<T>>) -> Result<Option<T>, Failure> {
    match result {
        Some(Err(error)) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => Ok(None),
        Some(Err(error)) => Err(Failure::of("the call", &error)),
        Some(Ok(value)) => Ok(Some(value)),
        None => Ok(None),
    }
}

/// Returns the result of a transfer that was tried.
fn tried(result: Option<io::Result<usize>>) -> Result<i64, Failure> {
    Ok(made(result)?.map_or(MIGHT_WAIT, |count| count as i64))
}

/// Returns the file of a call.
///
/// # Safety
///
/// - As for [`sakia_file::at`].
unsafe fn file_of<'a>(file: *const sakia_file) -> Result<&'a FileHandle, Failure> {
    // SAFETY: the caller's promise.
    unsafe { sakia_file::at(file) }.ok_or_else(|| Failure::null("the file"))
}

/// Returns the bytes to read from, for one call.
///
/// # Safety
///
/// - So many bytes are readable there, unless it is null.
unsafe fn bytes_of<'a>(buf: *const u8, len: usize) -> Result<&'a [u8], Failure> {
    check_memory(buf, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, and the program lends so many bytes for the call.
    Ok(unsafe { slice::from_raw_parts(buf, len) })
}

/// Returns the bytes to fill, for one call.
///
/// # Safety
///
/// - So many bytes are valid for writes, unless it is null.
unsafe fn room_of<'a>(buf: *mut u8, len: usize) -> Result<&'a mut [u8], Failure> {
    check_memory(buf, len)?;
    if len == 0 {
        return Err(Failure::invalid("no room to read into"));
    }
    // SAFETY: not null, and the program lends so many bytes for the call. They are bytes, whatever they are
    // in its language: the library is not compiled together with it.
    Ok(unsafe { slice::from_raw_parts_mut(buf, len) })
}

fn position(offset: u64) -> Option<u64> {
    (offset != SAKIA_CURRENT_POSITION).then_some(offset)
}

/// Reads up to 256 KiB of `file` into `buf` at `offset`, on the calling thread, unless that may wait.
/// Returns the bytes; `-EAGAIN` if it might wait, or is not tried because it lately would have: then submit
/// a request. Linux 6 begins to read ahead all the same, and waits for a place in the queue of a disk that
/// does not answer any more.
///
/// Any thread, and no loop is needed: a language calls it with its lock held. Errors: `-EINVAL` no room,
/// others as `pread(2)`. Keeps no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_read(
    file: *const sakia_file,
    buf: *mut u8,
    len: usize,
    offset: u64,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for files and memory.
        let (buf, file) = unsafe { (room_of(buf, len)?, file_of(file)?) };
        tried(file.try_read(buf, position(offset)))
    })
}

/// Writes up to 256 KiB, as `sakia_try_read` reads.
///
/// Any thread. Errors: as `pwrite(2)`. Keeps no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_write(
    file: *const sakia_file,
    buf: *const u8,
    len: usize,
    offset: u64,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for files and memory.
        let (bytes, file) = unsafe { (bytes_of(buf, len)?, file_of(file)?) };
        tried(file.try_write(bytes, position(offset)))
    })
}

/// Receives up to `len` bytes that have arrived at the socket `file` into `buf`, on a stream up to 256 KiB.
/// `flags` are `MSG_PEEK` or 0. Returns the bytes, 0 at the end of a stream; `-EAGAIN` if nothing has
/// arrived. Bytes come to this call or to a request that receives at the same time.
///
/// Any thread, and no loop is needed. Errors: `-EINVAL` no room, or other flags; `-ENOTSOCK`; others as
/// `recv(2)`. Keeps no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_recv(
    file: *const sakia_file,
    buf: *mut u8,
    len: usize,
    flags: u32,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for files and memory.
        let (buf, file) = unsafe { (room_of(buf, len)?, file_of(file)?) };
        tried(file.try_recv(buf, flags))
    })
}

/// Sends up to `len` bytes of `buf` on the connected socket `file`, on a stream as many as there is room for,
/// up to 256 KiB. `flags` are `MSG_MORE` or 0. Returns the bytes; `-EAGAIN` if there is no room. They may
/// come before those of requests under way, and between their parts. Raises no `SIGPIPE`.
///
/// Any thread, and no loop is needed. Errors: `-EINVAL` other flags; `-ENOTSOCK`; others as `send(2)`. Keeps
/// no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_send(
    file: *const sakia_file,
    buf: *const u8,
    len: usize,
    flags: u32,
) -> i64 {
    guarded(|| {
        // SAFETY: the header's contract for files and memory.
        let (bytes, file) = unsafe { (bytes_of(buf, len)?, file_of(file)?) };
        tried(file.try_send(bytes, flags))
    })
}

/// Writes a `struct statx` to `buf`, of `len` bytes (256): of `path` below `file`, or of `file` itself if
/// `path` is null; null for `file` is the working directory. `flags` are `AT_*`; only 0 without a path.
/// Returns 0; `-EAGAIN` if it might wait: a part of the path is not in the kernel's caches, or another
/// machine or process may serve the file. Where there is such a mount, also for a path with a symbolic link
/// on its way, and for a relative path to another mount.
///
/// Any thread, and no loop is needed. Errors: `-EFAULT` no path and no file, or a null pointer; `-EINVAL`
/// flags, or too little room; others as `statx(2)`. Keeps no memory. Kernel: paths need 5.12.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_stat(
    file: *const sakia_file,
    path: *const c_char,
    flags: u32,
    buf: *mut c_void,
    len: usize,
) -> i32 {
    guarded_int(|| {
        if buf.is_null() {
            return Err(Failure::null("the memory of the result"));
        }
        if len < size_of::<StatxResult>() {
            return Err(Failure::invalid(format_args!("{len} bytes for a struct statx")));
        }
        let stat = if path.is_null() {
            if flags != 0 {
                return Err(Failure::invalid(format_args!("flags {flags:#x} without a path")));
            }
            // SAFETY: the header's contract for files.
            unsafe { file_of(file) }?.try_stat()
        } else {
            // SAFETY: the header's contract for files and paths.
            let (directory, path) = unsafe { (sakia_file::at(file), CStr::from_ptr(path)) };
            FileHandle::try_stat_at(directory, path, flags)
        };
        let Some(stat) = made(stat)? else { return Ok(MIGHT_WAIT) };
        // SAFETY: not null, and there is room: the header's contract.
        unsafe { buf.cast::<StatxResult>().write_unaligned(stat) };
        Ok(0)
    })
}

/// Opens `path` below `directory`, closed on exec, and stores a handle in `*file`; null for `directory` is
/// the working directory. `flags` are `O_*`, `resolve` the `RESOLVE_*` of `openat2(2)`. Returns 0; `-EAGAIN`
/// with null in `*file` if it makes a file or cuts one off, if it might wait as `sakia_try_stat` does, and
/// for a FIFO, whose other end does not notice, or a device.
///
/// Any thread, and no loop is needed. Errors: `-EFAULT` a null pointer; others as `openat2(2)`. Owner: the
/// reference is the program's, for `sakia_file_unref`. Kernel: 5.12.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sakia_try_open(
    directory: *const sakia_file,
    path: *const c_char,
    flags: u32,
    resolve: u64,
    file: *mut *mut sakia_file,
) -> i32 {
    guarded_int(|| {
        if file.is_null() {
            return Err(Failure::null("the place of the handle"));
        }
        // SAFETY: not null, so valid: the header's contract for places of handles.
        unsafe { file.write(std::ptr::null_mut()) };
        if path.is_null() {
            return Err(Failure::null("`path`"));
        }
        // SAFETY: the header's contract for files and paths.
        let (directory, path) = unsafe { (sakia_file::at(directory), CStr::from_ptr(path)) };
        let how = OpenHow { flags: flags.into(), mode: 0, resolve };
        let opened = made(FileHandle::try_open(directory, path, how))?;
        let Some(opened) = opened else { return Ok(MIGHT_WAIT) };
        // SAFETY: as above.
        unsafe { file.write(sakia_file::given(opened)) };
        Ok(0)
    })
}
