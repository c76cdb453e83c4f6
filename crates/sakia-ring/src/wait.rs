//! Registered memory for the timeouts of waits, which saves a copy at each call.
//!
//! One page, registered with the ring while it is still disabled (the kernel's rule). An enter
//! then names an offset in it. Kernel 6.13. Source: `io_uring_enter(2)`, `EXT_ARG_REG`.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::host::{self, Host, raw};
use crate::sys;

/// The registered page; its first entry is used by every wait of the ring.
#[derive(Debug)]
pub(crate) struct WaitRegion {
    entry: NonNull<sys::io_uring_reg_wait>,
}

// SAFETY: the page belongs to this value alone.
unsafe impl Send for WaitRegion {}

impl WaitRegion {
    /// Maps the page and registers it with the disabled ring `ring`.
    pub(crate) fn register<H: Host>(host: &H, ring: BorrowedFd<'_>) -> io::Result<Self> {
        let page = host::map_anonymous(sys::PAGE_BYTES_MAX)?;
        let region = Self { entry: page.cast() };
        let mut description = sys::io_uring_region_desc {
            user_addr: page.as_ptr().expose_provenance() as u64,
            size: sys::PAGE_BYTES_MAX as u64,
            flags: sys::IORING_MEM_REGION_TYPE_USER as u32,
            id: 0,
            mmap_offset: 0,
            __resv: [0; 4],
        };
        let mut registration = sys::io_uring_mem_region_reg {
            region_uptr: (&raw mut description).expose_provenance() as u64,
            flags: sys::IORING_MEM_REGION_REG_WAIT_ARG as u64,
            __resv: [0; 2],
        };
        let opcode = sys::io_uring_register_op::IORING_REGISTER_MEM_REGION as u32;
        // SAFETY: the structures are what the call expects and outlive it. The kernel pins the
        // page, and only reads it.
        unsafe { host.register(raw(&ring), opcode, (&raw mut registration).cast(), 1)? };
        Ok(region)
    }

    /// Sets the timeout of the next wait that names the offset 0 in the region.
    #[inline]
    pub(crate) fn set(&mut self, timeout: Duration) {
        let wait = sys::io_uring_reg_wait {
            ts: timespec(timeout),
            min_wait_usec: 0,
            flags: sys::IORING_REG_WAIT_TS as u32,
            sigmask: 0,
            sigmask_sz: 0,
            pad: [0; 3],
            pad2: [0; 2],
        };
        // SAFETY: the page is mapped as long as `self`, and the kernel reads it only in an enter.
        unsafe { self.entry.write(wait) };
    }
}

impl Drop for WaitRegion {
    fn drop(&mut self) {
        // SAFETY: the page is ours, and nothing points to it. The kernel holds the physical page
        // of a ring that still lives.
        unsafe { host::unmap(self.entry.cast(), sys::PAGE_BYTES_MAX) };
    }
}

/// A duration as the kernel takes it, for [`Sqe::timeout`](crate::Sqe::timeout).
///
/// # Examples
/// See [`Sqe::timeout`](crate::Sqe::timeout).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Timespec(sys::__kernel_timespec);

impl Timespec {
    /// Returns this duration, or a century if it is longer.
    pub fn new(duration: Duration) -> Self {
        Self(timespec(duration))
    }
}

/// Returns the kernel's form of a duration, at most a century, which stands for "for ever".
pub(crate) fn timespec(duration: Duration) -> sys::__kernel_timespec {
    // The kernel adds the current time in signed 64-bit nanoseconds. The limit avoids a sum that wraps.
    const CENTURY_S: u64 = 100 * 365 * 24 * 60 * 60;
    sys::__kernel_timespec {
        tv_sec: duration.as_secs().min(CENTURY_S) as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_timeout_wraps_when_the_kernel_adds_the_time_of_day() {
        let uptime_ns = 200 * 365 * 24 * 3600 * 1_000_000_000_i64 - 1;
        for duration in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 40)]
        {
            let ts = timespec(duration);
            let ns = ts.tv_sec.checked_mul(1_000_000_000).and_then(|ns| ns.checked_add(ts.tv_nsec));
            assert!(ns.and_then(|ns| ns.checked_add(uptime_ns / 2)).is_some(), "{duration:?}");
        }
    }

    #[test]
    fn an_ordinary_timeout_is_exact() {
        for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::new(7, 999_999_999)] {
            let ts = timespec(duration);
            assert_eq!(Duration::new(ts.tv_sec as u64, ts.tv_nsec as u32), duration);
        }
    }
}
