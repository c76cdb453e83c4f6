//! Errors with a text, and no panic that leaves a function.

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::fmt::{self, Display, Write};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use sakia_ring::Process;

use crate::interface::SAKIA_VERSION;

/// The room for the text of an error, with the zero at its end.
const TEXT_BYTES: usize = 512;

thread_local! {
    /// The text of the thread's last error. Without a destructor, so that it is there as long as the thread.
    static LAST: UnsafeCell<[u8; TEXT_BYTES]> = const { UnsafeCell::new([0; TEXT_BYTES]) };
}

/// A call that failed, and whose text is kept.
#[derive(Debug)]
pub(crate) struct Failure(Errno);

impl Failure {
    /// Keeps the text.
    #[cold]
    pub(crate) fn new(errno: Errno, text: impl Display) -> Self {
        LAST.with(|last| {
            // SAFETY: only this thread has the memory, and no reference to it leaves this block. Its address
            // goes to the program, which reads it between calls only (the header's contract), and formatting
            // an error's text calls no function of the library.
            let bytes = unsafe { &mut *last.get() };
            let mut room = Room { bytes, len: 0 };
            let _ = write!(room, "{text}"); // cut where the room ends
            let len = room.len;
            bytes[len] = 0;
        });
        Self(errno)
    }

    pub(crate) fn of(what: &str, error: &io::Error) -> Self {
        Self::new(errno_of(error), format_args!("{what}: {error}"))
    }

    #[cold]
    pub(crate) fn null(what: &str) -> Self {
        Self::new(Errno::FAULT, format_args!("{what} is null"))
    }

    #[cold]
    pub(crate) fn invalid(text: impl Display) -> Self {
        Self::new(Errno::INVAL, text)
    }

    pub(crate) fn value(&self) -> i64 {
        -i64::from(self.0.raw_os_error())
    }
}

/// Returns the number of an error; `EIO` for one without.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Memory for a text that ends with a zero.
struct Room<'a> {
    bytes: &'a mut [u8; TEXT_BYTES],
    len: usize,
}

impl Write for Room<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == TEXT_BYTES - 1 {
                return Err(fmt::Error);
            }
            // A zero would end the text.
            self.bytes[self.len] = byte.max(1);
            self.len += 1;
        }
        Ok(())
    }
}

/// Calls `f`, and returns its value or its negative error number; `-EIO` after a panic.
#[inline(always)]
pub(crate) fn guarded(f: impl FnOnce() -> Result<i64, Failure>) -> i64 {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => value,
        Ok(Err(failure)) => failure.value(),
        Err(panic) => panicked(&*panic),
    }
}

/// Calls `f`, which fills the place of a new handle.
pub(crate) fn guarded_int(f: impl FnOnce() -> Result<i64, Failure>) -> i32 {
    // All values are error numbers, descriptors or counts of at most `i32::MAX`.
    guarded(f) as i32
}

/// A handle that all threads of the process that made it may use.
pub(crate) trait OfProcess {
    /// Its noun in texts.
    const NAME: &str;

    fn process(&self) -> &Process;
}

/// Begins a call on a shared handle.
///
/// # Safety
///
/// - `handle` is null, or one that was not freed, nor is during the call.
pub(crate) unsafe fn enter<'a, T: OfProcess>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise. All threads only read it, but for what has a lock.
    let Some(handle) = (unsafe { handle.as_ref() }) else {
        return Err(Failure::null(&format!("the {}", T::NAME)));
    };
    match handle.process().is_intact() {
        true => Ok(handle),
        false => Err(of_parent(T::NAME)),
    }
}

/// The failure of a call on a handle that the parent of this process has made.
#[cold]
pub(crate) fn of_parent(what: &str) -> Failure {
    Failure::new(
        Errno::PERM,
        format_args!("the {what} belongs to the parent of this forked process"),
    )
}

/// Stores a new handle in the program's memory, which has null before and after an error. `what` names it.
///
/// # Safety
///
/// - `place` is null, or valid for a write.
pub(crate) unsafe fn store_handle<T>(
    place: *mut *mut T,
    what: &str,
    make: impl FnOnce() -> Result<*mut T, Failure>,
) -> Result<i64, Failure> {
    if place.is_null() {
        return Err(Failure::null(&format!("the place of the {what}")));
    }
    // SAFETY: not null, so valid.
    unsafe { place.write(ptr::null_mut()) };
    let handle = make()?;
    // SAFETY: as above.
    unsafe { place.write(handle) };
    Ok(0)
}

/// Locks a value, in the process that made it. No code panics while it holds the lock.
pub(crate) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn panicked(panic: &(dyn std::any::Any + Send)) -> i64 {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = format_args!("a bug of the library: {}", text.unwrap_or("a panic")).to_string();
    Failure::new(Errno::IO, text).value()
}

/// Returns the version of the library, as `SAKIA_VERSION` is that of the header.
///
/// Any thread. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn sakia_version() -> u32 {
    SAKIA_VERSION
}

/// Returns why the last failed call on this thread failed; an empty text if none has. In English, for people;
/// error numbers are for programs.
///
/// Any thread; a signal handler may not call it. The text is the library's, and valid until the next call
/// that fails on this thread, or the thread's end. Never fails.
#[unsafe(no_mangle)]
pub extern "C" fn sakia_last_error() -> *const c_char {
    LAST.with(|last| last.get().cast())
}
