//! The five system calls, and the structures of their arguments. Source: `linux/aio_abi.h`, `io_submit(2)`.

use std::ffi::{c_long, c_ulong};
use std::io;

/// The kernel's name of a context.
pub(super) type ContextId = c_ulong;

/// `IOCB_CMD_PREAD`.
pub(super) const PREAD: u16 = 0;
/// `IOCB_CMD_PWRITE`.
pub(super) const PWRITE: u16 = 1;
/// `IOCB_CMD_POLL` (4.19).
pub(super) const POLL: u16 = 5;

/// `IOCB_FLAG_RESFD`: the completion is added to an eventfd.
pub(super) const FLAG_RESFD: u32 = 1;

/// A request, as the kernel reads it: `struct iocb`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Iocb {
    pub data: u64,
    #[cfg(target_endian = "little")]
    pub key: u32,
    pub rw_flags: u32,
    #[cfg(target_endian = "big")]
    pub key: u32,
    pub opcode: u16,
    pub priority: i16,
    pub fd: u32,
    pub buf: u64,
    pub len: u64,
    pub offset: i64,
    pub reserved: u64,
    pub flags: u32,
    pub event_fd: u32,
}

/// A completion, as the kernel writes it: `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event {
    pub data: u64,
    pub iocb: u64,
    pub result: i64,
    pub result2: i64,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);

/// Makes a context for at least `events` requests in flight.
///
/// # Errors
/// `EAGAIN`: more than `fs.aio-max-nr` has left. `EINVAL`: 0, or too many. `ENOSYS`: the kernel has no AIO.
pub(super) fn io_setup(events: u32) -> io::Result<ContextId> {
    let mut id: ContextId = 0;
    // SAFETY: the call writes one id, into memory that lives through it.
    check(unsafe { libc::syscall(libc::SYS_io_setup, events, &raw mut id) })?;
    Ok(id)
}

/// Ends a context: cancels as much as possible, and returns when the rest is done.
///
/// # Errors
/// `EINVAL`: it is no context of this process.
pub(super) fn io_destroy(id: ContextId) -> io::Result<()> {
    // SAFETY: the call takes no memory.
    check(unsafe { libc::syscall(libc::SYS_io_destroy, id) }).map(drop)
}

/// Submits requests in order until one is refused, and returns how many it took.
///
/// # Safety
/// - Each pointer is to a request that may be read and written until the call returns.
/// - The memory and the descriptors that a request names are valid until its completion.
///
/// # Errors
/// The reason why the first one is refused.
pub(super) unsafe fn io_submit(id: ContextId, iocbs: &mut [*mut Iocb]) -> io::Result<usize> {
    // SAFETY: the caller's duties.
    check(unsafe {
        libc::syscall(libc::SYS_io_submit, id, iocbs.len() as c_long, iocbs.as_mut_ptr())
    })
}

/// Reaps completions of a context, and returns their number. Waits for one if `wait` is true.
///
/// # Errors
/// `EINTR`: a signal came before the first. `EINVAL`: it is no context of this process.
pub(super) fn io_getevents(id: ContextId, wait: bool, events: &mut [Event]) -> io::Result<usize> {
    // A zero timeout in each of the kernel's formats.
    let at_once = [0u64; 2];
    let timeout = if wait { std::ptr::null() } else { (&raw const at_once).cast::<u64>() };
    let min = c_long::from(wait);
    let max = events.len() as c_long;
    // SAFETY: the call writes up to `max` completions into memory that has room for them, and reads the
    // timeout.
    check(unsafe {
        libc::syscall(libc::SYS_io_getevents, id, min, max, events.as_mut_ptr(), timeout)
    })
}

/// Requests the cancellation of a request; its completion comes as usual.
///
/// # Safety
/// - The pointer is the one that was submitted, to a request that may be read.
///
/// # Errors
/// `EINPROGRESS`: it is being canceled. Otherwise it is not.
pub(super) unsafe fn io_cancel(id: ContextId, iocb: *mut Iocb) -> io::Result<()> {
    let mut event = Event::default();
    // SAFETY: the caller's duty; the call may write one completion.
    check(unsafe { libc::syscall(libc::SYS_io_cancel, id, iocb, &raw mut event) }).map(drop)
}

fn check(result: c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
