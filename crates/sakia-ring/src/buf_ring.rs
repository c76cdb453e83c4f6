//! Provided buffers: memory that the kernel picks from when an operation is ready to receive.
//!
//! A [`BufRing`] is a queue of buffers under a group number. An entry with
//! [`BUFFER_SELECT`](crate::sqe_flags::BUFFER_SELECT) names the group, and its completion names the
//! buffer it got.
//!
//! Ownership:
//! 1. This crate maps the queue's own memory. The kernel may read it from registration to unregistration.
//!    Only [`Ring::unregister_buf_ring`] ends the map, after the kernel has released it. A [`BufRing`]
//!    dropped in any other way *leaks* its map, since nothing shows that the kernel is done with it.
//! 2. The kernel owns a buffer from [`provide`](BufRing::provide) until a completion names it, or until the
//!    queue is unregistered and no operation on the group is in flight. The caller has to keep that promise,
//!    so `provide` is unsafe.
//!
//! A queue belongs to the thread of its ring. A forked child may drop an inherited queue; every other call
//! there does nothing or returns an error. Source: `io_uring_register_buf_ring(3)`.

use std::fmt;
use std::io;
use std::marker::PhantomData;

use crate::fork::Sentinel;
use crate::host::Host;
use crate::ring::Ring;
use crate::shared::BufQueue;
use crate::sys::{self, io_uring_register_op as op, io_uring_register_pbuf_ring_flags as flag};

/// A queue of provided buffers, registered with one ring.
///
/// Dropping it leaks its memory (16 bytes per entry) for the life of the process; end it with
/// [`Ring::unregister_buf_ring`].
///
/// # Examples
/// ```
/// use std::io::Write;
/// use std::os::fd::AsRawFd;
/// use std::os::unix::net::UnixStream;
///
/// use sakia_ring::{Cqe, Ring, Sqe};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut ring = Ring::builder().build()?;
/// let mut buffers = ring.register_buf_ring(7, 2, false)?;
/// let memory = Box::leak(Box::new([0; 100]));
/// // SAFETY: the memory is never freed, and looked at after the completion only; number 0 is new.
/// unsafe { buffers.provide(memory.as_mut_ptr(), 100, 0) };
/// buffers.publish();
///
/// let (near, mut far) = UnixStream::pair()?;
/// far.write_all(b"hello")?;
/// let receive = Sqe::recv(near.as_raw_fd(), std::ptr::null_mut(), 0, 0).buffer_group(7);
/// // SAFETY: it names no memory; the socket is open until the ring is closed.
/// unsafe { ring.push(receive) }.ok_or("the queue is full")?;
/// ring.enter(1, None)?;
/// let mut completions = [Cqe::default(); 1];
/// ring.reap(&mut completions);
/// assert_eq!((completions[0].result()?, completions[0].flags.buffer_id()), (5, Some(0)));
/// assert_eq!(&memory[..5], b"hello");
/// ring.unregister_buf_ring(buffers)?;
/// # drop(ring);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a registered queue leaks its memory"]
pub struct BufRing {
    queue: BufQueue,
    /// The group number that entries name.
    group: u16,
    /// Operations consume a buffer in pieces (`IOU_PBUF_RING_INC`).
    incremental: bool,
    /// The ring it is registered with.
    ring_id: u64,
    /// Detects a forked child, which does not have the map.
    sentinel: Sentinel,
    /// Not `Send`: only the ring's owner thread fills the queue, since the kernel takes buffers while that
    /// thread enters.
    thread: PhantomData<*mut ()>,
}

impl BufRing {
    /// Returns the group number, which entries name in `buf_index`.
    #[inline]
    pub fn group(&self) -> u16 {
        self.group
    }

    /// Returns the number of buffers the queue has room for.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.queue.entries()
    }

    /// Returns whether operations consume a buffer in pieces instead of a whole buffer each.
    pub fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// Adds the `len` bytes at `addr` under the number `id`. The kernel sees it after the next
    /// [`publish`](BufRing::publish). Does nothing in a forked child.
    ///
    /// # Panics
    /// When `id` is not below [`entries`](BufRing::entries). With the second duty below, it follows
    /// that there is always a free entry.
    ///
    /// # Safety
    ///
    /// - The memory is valid for writes and not otherwise accessed until a completion names `id`
    ///   (the last one for it: without [`has_more_buffer`](crate::CqeFlags::has_more_buffer)), or
    ///   until the queue is unregistered and every operation that names the group has completed; for
    ///   ever if neither happens. Dropping the queue or the ring does not end that.
    /// - No buffer with this `id` is in the queue: it was never provided, or a last completion has
    ///   named it.
    ///
    /// # Examples
    /// See [`BufRing`](BufRing#examples).
    #[doc(alias = "io_uring_buf_ring_add")]
    #[inline(always)]
    pub unsafe fn provide(&mut self, addr: *mut u8, len: u32, id: u16) {
        assert!(u32::from(id) < self.queue.entries(), "buffer id too large");
        if self.sentinel.is_intact() {
            let addr = addr.expose_provenance() as u64;
            // SAFETY: the caller's duties are the same.
            unsafe { self.queue.write(addr, len, id) };
        }
    }

    /// Shows the kernel every buffer added so far. Does nothing in a forked child.
    ///
    /// # Examples
    /// See [`BufRing`](BufRing#examples).
    #[doc(alias = "io_uring_buf_ring_advance")]
    #[inline(always)]
    pub fn publish(&mut self) {
        if self.sentinel.is_intact() {
            self.queue.publish();
        }
    }
}

impl fmt::Debug for BufRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufRing")
            .field("group", &self.group)
            .field("entries", &self.entries())
            .field("incremental", &self.incremental)
            .finish_non_exhaustive()
    }
}

/// The kernel's description of a group.
fn registration(group: u16) -> sys::io_uring_buf_reg {
    sys::io_uring_buf_reg { ring_addr: 0, ring_entries: 0, bgid: group, flags: 0, resv: [0; 3] }
}

/// Provided buffers.
impl<H: Host> Ring<H> {
    /// Registers an empty queue of `entries` buffers (rounded up to a power of two; 1 to 32,768) under the
    /// number `group`. With `incremental` (kernel 6.12) an operation consumes only the front part of a
    /// buffer that it fills, and the next operation continues behind it.
    ///
    /// # Errors
    /// - `EEXIST`: the ring has such a group.
    /// - `EINVAL`: the kernel does not know `incremental`, or is older than 5.19.
    /// - `ENOMEM`: no memory, or no locked memory left. `EACCES`: the ring is restricted.
    ///
    /// In a forked child always an error.
    ///
    /// # Examples
    /// See [`BufRing`](BufRing#examples).
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_register_buf_ring(3)`.
    #[doc(alias = "IORING_REGISTER_PBUF_RING")]
    pub fn register_buf_ring(
        &mut self,
        group: u16,
        entries: u32,
        incremental: bool,
    ) -> io::Result<BufRing> {
        self.parts.check_process()?;
        let queue = BufQueue::map(entries.clamp(1, 32_768).next_power_of_two())?;
        let flags = if incremental { flag::IOU_PBUF_RING_INC as u16 } else { 0 };
        let mut registration = sys::io_uring_buf_reg {
            ring_addr: queue.address(),
            ring_entries: queue.entries(),
            flags,
            ..registration(group)
        };
        // SAFETY: the call reads the description. The map is fresh, and ends only once the kernel does not
        // use it: when the kernel refuses it just below, or after unregistration.
        let registered =
            unsafe { self.parts.register(op::IORING_REGISTER_PBUF_RING, &raw mut registration, 1) };
        if let Err(error) = registered {
            // SAFETY: the kernel refused the map, which this process has just made.
            unsafe { queue.unmap() };
            return Err(error);
        }
        let (ring_id, sentinel) = (self.parts.id, self.parts.sentinel);
        Ok(BufRing { queue, group, incremental, ring_id, sentinel, thread: PhantomData })
    }

    /// Takes the queue back from the kernel and frees its memory. Buffers that the kernel has not picked
    /// belong to the caller again; an operation that has picked a buffer keeps it until it completes.
    ///
    /// # Errors
    /// - `ENOENT`, `EINVAL`: the kernel does not know the group; impossible unless the host
    ///   misbehaves.
    /// - `EACCES`: the ring is restricted.
    ///
    /// After an error the memory is leaked. In a forked child always an error.
    ///
    /// # Examples
    /// See [`BufRing`](BufRing#examples).
    ///
    /// # Kernel
    /// 5.19. Source: `io_uring_unregister_buf_ring(3)`.
    ///
    /// # Panics
    /// When the queue is registered with another ring.
    #[doc(alias = "IORING_UNREGISTER_PBUF_RING")]
    pub fn unregister_buf_ring(&mut self, buf_ring: BufRing) -> io::Result<()> {
        self.assert_own(&buf_ring);
        let BufRing { queue, group, .. } = buf_ring;
        let mut registration = registration(group);
        // SAFETY: a description, read during the call.
        unsafe { self.parts.register(op::IORING_UNREGISTER_PBUF_RING, &raw mut registration, 1)? };
        // SAFETY: the kernel has let go of the map, which was registered with this very ring. It is
        // the same process, or `register` would have refused.
        unsafe { queue.unmap() };
        Ok(())
    }

    /// Returns the total number of buffers the kernel has picked from the queue, modulo 65,536.
    ///
    /// # Errors
    /// `EINVAL`: the kernel is older than 6.8. `EACCES`: the ring is restricted. In a forked child
    /// always an error.
    ///
    /// # Kernel
    /// 6.8. Source: `io_uring_buf_ring_head(3)`.
    ///
    /// # Panics
    /// When the queue is registered with another ring.
    #[doc(alias = "IORING_REGISTER_PBUF_STATUS")]
    pub fn buf_ring_head(&self, buf_ring: &BufRing) -> io::Result<u16> {
        self.assert_own(buf_ring);
        let mut status = sys::io_uring_buf_status {
            buf_group: u32::from(buf_ring.group),
            head: 0,
            resv: [0; 8],
        };
        // SAFETY: a status, read and written during the call.
        unsafe { self.parts.register(op::IORING_REGISTER_PBUF_STATUS, &raw mut status, 1)? };
        Ok(status.head as u16)
    }

    /// Panics if the queue belongs to another ring: that ring's unregistration would prove nothing.
    fn assert_own(&self, buf_ring: &BufRing) {
        assert_eq!(
            buf_ring.ring_id, self.parts.id,
            "the buffer ring is registered with another ring"
        );
    }
}
