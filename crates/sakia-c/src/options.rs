//! Arguments that loops and queues have in common.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::time::Duration;

use sakia_driver::{Choice, Policy};

use crate::guard::Failure;
use crate::interface::{
    OPTIONS_BYTES_MIN, REQUEST_BYTES_MIN, RESULT_BYTES_MIN, SAKIA_NO_RING, SAKIA_RING_ONLY,
    sakia_result,
};

/// The most bytes of options, of a request and of a result that any header has.
const BYTES_MAX: usize = 4096;

/// Returns whether a structure of any header may have this size. All of them grow by whole words.
fn is_size(size: usize, least: usize) -> bool {
    size >= least && size.is_multiple_of(8) && size <= BYTES_MAX
}

/// Returns a copy of a structure that has this size in the program. Fields that an older program does not
/// have are zero. `None`: a newer program has set a field that this library does not know.
///
/// # Safety
///
/// - So many bytes are readable there. Any bits are a `T`.
pub(crate) unsafe fn copied<T>(at: *const T, size: usize) -> Option<T> {
    let known = size_of::<T>();
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's promise; the two do not overlap.
    let copy = unsafe {
        copy.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(at.cast(), size.min(known));
        copy.assume_init()
    };
    // SAFETY: the structure has so many bytes.
    let is_rest_zero = size <= known
        || unsafe {
            let rest = std::slice::from_raw_parts(at.cast::<u8>().add(known), size - known);
            rest.iter().all(|&byte| byte == 0)
        };
    is_rest_zero.then_some(copy)
}

/// The sizes with which the program was compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Bytes from one request of the program to the next.
    pub(crate) request: usize,
    /// Bytes from one result of the program to the next.
    pub(crate) result: usize,
}

impl Sizes {
    pub(crate) fn new(request: usize, result: usize) -> Result<Self, Failure> {
        if !is_size(request, REQUEST_BYTES_MIN) || !is_size(result, RESULT_BYTES_MIN) {
            let text = format_args!("requests of {request} and results of {result} bytes");
            return Err(Failure::invalid(text));
        }
        Ok(Self { request, result })
    }

    /// Writes a result, as far as the program has its fields. Those that only the program has are zero.
    ///
    /// # Safety
    ///
    /// - The program has room for a result there.
    #[inline(always)]
    pub(crate) unsafe fn write(self, at: *mut sakia_result, result: sakia_result) {
        let known = size_of::<sakia_result>();
        // SAFETY: the caller's promise: there are so many bytes as the size says.
        unsafe {
            if self.result < known {
                let bytes = (&raw const result).cast::<u8>();
                return at.cast::<u8>().copy_from_nonoverlapping(bytes, self.result);
            }
            at.write(result);
            if self.result > known {
                at.add(1).cast::<u8>().write_bytes(0, self.result - known);
            }
        }
    }
}

/// Returns a copy of the program's options, which begin with their size. `macro_name` is that of the macro
/// which sets it.
///
/// # Safety
///
/// - `options` is null, or begins with a size, and that many bytes are readable. Any bits are a `T`.
pub(crate) unsafe fn options_of<T: Copy>(
    options: *const T,
    macro_name: &str,
) -> Result<T, Failure> {
    if options.is_null() {
        return Err(Failure::null("the options"));
    }
    // SAFETY: not null, so it begins with a size.
    let size = unsafe { options.cast::<usize>().read() };
    if !is_size(size, OPTIONS_BYTES_MIN) {
        return Err(Failure::invalid(format_args!("options of {size} bytes: use {macro_name}")));
    }
    // SAFETY: the caller's promise.
    unsafe { copied(options, size) }
        .ok_or_else(|| Failure::invalid("the options have fields that this library does not know"))
}

/// Returns the backends that flags allow.
pub(crate) fn policy_of(flags: u32) -> Result<Policy, Failure> {
    match flags & (SAKIA_RING_ONLY | SAKIA_NO_RING) {
        SAKIA_RING_ONLY => Ok(Policy::Uring),
        SAKIA_NO_RING => Ok(Policy::Poll),
        0 => Policy::from_environment(std::env::var_os("SAKIA_DRIVER").as_deref())
            .map_err(Failure::invalid),
        _ => Err(Failure::invalid(format_args!("flags {flags:#x}: only a ring, and no ring"))),
    }
}

/// Returns the reason why a backend is no ring; `None` if it is one.
pub(crate) fn why_no_ring(choice: &Choice) -> Option<CString> {
    if choice.name() == "uring" {
        return None;
    }
    let text = match choice.refusal() {
        Some(refusal) => refusal.to_string(),
        None => "epoll and threads were asked for".to_owned(),
    };
    CString::new(text.replace('\0', " ")).ok()
}

/// Checks an array of the program's.
#[inline(always)]
pub(crate) fn check_array(address: *const u8, count: usize, what: &str) -> Result<(), Failure> {
    if address.is_null()
        || count == 0
        || count > i32::MAX as usize
        || !address.addr().is_multiple_of(8)
    {
        return Err(bad_array(address, count, what));
    }
    Ok(())
}

#[cold]
fn bad_array(address: *const u8, count: usize, what: &str) -> Failure {
    match address.is_null() {
        true => Failure::null(what),
        false => Failure::invalid(format_args!("{count} {what} at {address:p}")),
    }
}

/// Returns the limit of a wait; a negative one is none.
pub(crate) fn limit_of(limit_ns: i64) -> Duration {
    u64::try_from(limit_ns).map_or(Duration::MAX, Duration::from_nanos)
}

/// A place of the program's for the tokens of requests that did not end.
pub(crate) struct TokenPlace {
    to: *mut u64,
    room: usize,
}

impl TokenPlace {
    /// # Errors
    /// `EFAULT`: there is room, but no place.
    pub(crate) fn new(to: *mut u64, room: usize) -> Result<Self, Failure> {
        if to.is_null() && room > 0 {
            return Err(Failure::null("the place of tokens"));
        }
        Ok(Self { to, room })
    }

    /// Adds tokens to those that are known, and stores all, as far as there is room. Returns their number.
    ///
    /// # Safety
    ///
    /// - The program has so much room there.
    pub(crate) unsafe fn store(
        self,
        known: &mut Vec<u64>,
        tokens: impl Iterator<Item = u64>,
    ) -> i64 {
        for token in tokens {
            if !known.contains(&token) {
                known.push(token);
            }
        }
        for (index, &token) in known.iter().take(self.room).enumerate() {
            // SAFETY: the caller's promise; with room the place is not null.
            unsafe { self.to.add(index).write_unaligned(token) };
        }
        known.len() as i64
    }
}
