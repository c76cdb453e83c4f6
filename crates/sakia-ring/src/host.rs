//! The source of the ring's system calls: the kernel itself, or an embedder's substitute.
//!
//! A library operating system, a sandbox or an enclave reaches the kernel by other means than a system call
//! instruction. It implements [`Host`] and gets the whole ring on top. Results of a host are not trusted:
//! sizes and offsets are checked against the mapped length, indices are masked, counts are clamped.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::sys::{self, Params};

/// The system calls that a ring is built on.
///
/// Methods take `&self`: a host is shared by its rings, or is a unit type like [`Kernel`].
///
/// # Safety
///
/// An implementation promises that
/// - [`map`](Host::map) returns memory of at least the asked length, readable and writable,
///   aligned to a page, that nothing else in this process hands out until [`unmap`](Host::unmap);
/// - the calls touch no memory of this process but what their arguments name;
/// - if [`fills_what_it_reports`](Host::fills_what_it_reports) is true, bytes reported as read were written.
///
/// Other results need *not* be sensible, with one exception: descriptors. The descriptor of the ring, of an
/// entry that opens, accepts or makes a socket, and those in control messages of an entry that receives a
/// message must be new and owned by no other part of the process.
pub unsafe trait Host {
    /// Returns whether the host posts a completion of `n` bytes read only after it has written the first `n`
    /// bytes of the entry's memory (or all of it, if `n` is more). If true, the driver may lend uninitialized
    /// buffers. A host that is not trusted keeps the default.
    #[inline(always)]
    fn fills_what_it_reports(&self) -> bool {
        false
    }

    /// Returns whether [`enter`](Host::enter) takes the signal mask of its argument for the calling thread: it
    /// is in force while the call sleeps, and at no other time. A host that makes the call elsewhere keeps
    /// the default.
    #[inline(always)]
    fn masks_signals(&self) -> bool {
        false
    }

    /// Creates a ring of `entries` submission entries as `params` asks, and writes the granted values to it,
    /// as `io_uring_setup(2)`.
    ///
    /// # Safety
    ///
    /// - With `IORING_SETUP_NO_MMAP` in its flags, `params` names memory that the kernel may write until the
    ///   ring is gone, and that nothing else uses.
    /// - With `IORING_SETUP_ATTACH_WQ`, the descriptor in `params` is a ring of the caller's.
    ///
    /// # Errors
    /// The errno of the call.
    ///
    /// # Examples
    ///
    /// Parameters may hold addresses, so safe code cannot pass them on:
    ///
    /// ```compile_fail,E0133
    /// use sakia_ring::{Host, Kernel, Params};
    ///
    /// fn setup(params: &mut Params) -> std::io::Result<std::os::fd::OwnedFd> {
    ///     Kernel.setup(8, params)
    /// }
    /// ```
    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd>;

    /// Submits and waits, as `io_uring_enter(2)`. `ring` is a descriptor, or an index when `flags`
    /// has `IORING_ENTER_REGISTERED_RING`.
    ///
    /// # Safety
    ///
    /// - `ring` is the caller's, and open or registered.
    /// - Every entry submitted names memory and descriptors that stay valid until its last
    ///   completion.
    /// - `arg` and `arg_size` are what `flags` says they are.
    ///
    /// # Errors
    /// The errno of the call.
    unsafe fn enter(
        &self,
        ring: u32,
        to_submit: u32,
        min_complete: u32,
        flags: u32,
        arg: *const c_void,
        arg_size: usize,
    ) -> io::Result<u32>;

    /// Registers a resource with the ring, as `io_uring_register(2)`. `ring` is a descriptor; -1 for
    /// the few opcodes that need no ring.
    ///
    /// # Safety
    ///
    /// - `ring` is the caller's, and open.
    /// - `arg` and `nr_args` are what `opcode` expects, and memory that the kernel keeps stays
    ///   valid until it is unregistered or the ring is gone.
    ///
    /// # Errors
    /// The errno of the call.
    unsafe fn register(
        &self,
        ring: i32,
        opcode: u32,
        arg: *mut c_void,
        nr_args: u32,
    ) -> io::Result<u32>;

    /// Maps `len` bytes of the ring's memory at `offset`, shared with the kernel. A forked child
    /// must not inherit the map.
    ///
    /// # Errors
    /// The errno of the call.
    fn map(&self, ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>>;

    /// Ends a map.
    ///
    /// # Safety
    ///
    /// - `addr` and `len` are those of one [`map`](Host::map), which nothing uses any more.
    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize);
}

/// This machine's kernel, called directly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

// SAFETY: `map` is `mmap(2)` of a fresh, page-aligned range; the calls go to the kernel, which accesses only
// what the arguments name and reports the bytes that it has copied.
unsafe impl Host for Kernel {
    #[inline(always)]
    fn fills_what_it_reports(&self) -> bool {
        true
    }

    #[inline(always)]
    fn masks_signals(&self) -> bool {
        true
    }

    unsafe fn setup(&self, entries: u32, params: &mut Params) -> io::Result<OwnedFd> {
        let args = [entries as usize, &raw mut *params as usize, 0, 0, 0, 0];
        // SAFETY: `params` is a valid, exclusive `io_uring_params`, and outlives the call. The caller
        // vouches for the memory and the ring that it names.
        let fd = unsafe { sys::call(sys::__NR_io_uring_setup, args)? };
        // SAFETY: a descriptor that the kernel has just created for this call; it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    #[inline(always)]
    unsafe fn enter(
        &self,
        ring: u32,
        to_submit: u32,
        min_complete: u32,
        flags: u32,
        arg: *const c_void,
        arg_size: usize,
    ) -> io::Result<u32> {
        let (to_submit, min_complete) = (to_submit as usize, min_complete as usize);
        let args = [ring as usize, to_submit, min_complete, flags as usize, arg as usize, arg_size];
        // SAFETY: the caller's duties are the same.
        unsafe { sys::call(sys::__NR_io_uring_enter, args) }
    }

    unsafe fn register(
        &self,
        ring: i32,
        opcode: u32,
        arg: *mut c_void,
        nr_args: u32,
    ) -> io::Result<u32> {
        let args = [ring as u32 as usize, opcode as usize, arg as usize, nr_args as usize, 0, 0];
        // SAFETY: the caller's duties are the same.
        unsafe { sys::call(sys::__NR_io_uring_register, args) }
    }

    fn map(&self, ring: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<NonNull<u8>> {
        // SAFETY: a new map at an address the kernel chooses; it replaces nothing.
        let addr = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                ring.as_fd(),
                offset,
            )?
        };
        // A child without the map cannot disturb the parent's ring through it.
        // SAFETY: the range was mapped just above, and nothing else knows of it.
        unsafe { keep_from_children(addr, len) }
    }

    unsafe fn unmap(&self, addr: NonNull<u8>, len: usize) {
        // SAFETY: the caller gives back a whole map of ours that nothing uses.
        unsafe { unmap(addr, len) };
    }
}

/// Maps `len` bytes of fresh memory, for the kernel to share. A forked child does not inherit it.
pub(crate) fn map_anonymous(len: usize) -> io::Result<NonNull<u8>> {
    let (access, kind) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
    // SAFETY: a new anonymous map at an address the kernel chooses.
    let addr = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, kind)? };
    // A child must not share the pages by copy-on-write, or the kernel and the parent could end up
    // with different copies.
    // SAFETY: the range was mapped just above, and nothing else knows of it.
    unsafe { keep_from_children(addr, len) }
}

/// Keeps forked children from inheriting a map, or ends the map if that fails.
///
/// # Safety
///
/// - `addr` and `len` are a whole map of this process that nothing uses yet.
unsafe fn keep_from_children(addr: *mut c_void, len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the range is mapped, as the caller says.
    let advised = unsafe { rustix::mm::madvise(addr, len, Advice::LinuxDontFork) };
    let addr = NonNull::new(addr.cast()).expect("mmap never returns null without MAP_FIXED");
    if let Err(errno) = advised {
        // SAFETY: nothing uses it, as the caller says.
        unsafe { unmap(addr, len) };
        return Err(errno.into());
    }
    Ok(addr)
}

/// Ends a map.
///
/// # Safety
///
/// - `addr` and `len` are a whole map of this process that nothing uses any more.
pub(crate) unsafe fn unmap(addr: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let result = unsafe { rustix::mm::munmap(addr.as_ptr().cast(), len) };
    debug_assert!(result.is_ok(), "munmap of a map of ours: {result:?}");
}

/// Returns a borrowed descriptor's number, as the ring's calls take it.
pub(crate) fn raw(fd: &impl AsFd) -> i32 {
    fd.as_fd().as_raw_fd()
}
