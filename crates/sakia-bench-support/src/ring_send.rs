//! Sends of one buffer by a ring of its own, with or without a copy in the kernel (`IORING_OP_SEND_ZC`).
//!
//! A zero-copy send has two completions: the first has the number of bytes, and the second, the
//! notification, says that the kernel no longer uses the buffer. The buffer never changes here, so the next
//! send need not wait for the previous notification: that is the best case of such sends.
//!
//! Source: `io_uring_prep_send_zc(3)`, `io_uring/net.c`.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd};

use linux_raw_sys::io_uring::{IORING_NOTIF_USAGE_ZC_COPIED, IORING_SEND_ZC_REPORT_USAGE};
use rustix::net::SendFlags;
use sakia_ring::{Cqe, Opcode, Ring, Sqe};

/// The number of completions fetched at a time.
const BATCH: usize = 64;
/// The limit of outstanding notifications; at the limit a send waits for some.
const AWAITED_MAX: u64 = 256;

/// A ring, and its buffer.
#[derive(Debug)]
pub struct RingSender {
    ring: Ring,
    /// The kernel reads it while notifications are outstanding.
    bytes: ManuallyDrop<Box<[u8]>>,
    zero_copy: bool,
    awaited: u64,
    counts: Counts,
}

/// Counts of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Completed sends.
    pub sends: u64,
    /// Enters.
    pub enters: u64,
    /// Notifications.
    pub notifications: u64,
    /// Notifications of sends that the kernel has copied all the same.
    pub copied: u64,
}

impl RingSender {
    /// Makes a ring for sends of these bytes.
    ///
    /// # Errors
    /// There is no ring.
    pub fn new(bytes: Box<[u8]>, zero_copy: bool) -> io::Result<Self> {
        let ring =
            Ring::builder().sq_entries(8).cq_entries(1024).build().map_err(io::Error::other)?;
        let bytes = ManuallyDrop::new(bytes);
        Ok(Self { ring, bytes, zero_copy, awaited: 0, counts: Counts::default() })
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Sends all bytes to a stream, and waits until the socket has them.
    ///
    /// # Errors
    /// As `send(2)`. `EINVAL`: this kernel does not support such sends.
    pub fn send(&mut self, to: impl AsFd) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.bytes.len() {
            sent += self.send_some(to.as_fd().as_raw_fd(), sent)?;
        }
        while self.awaited > AWAITED_MAX {
            self.fetch()?;
        }
        Ok(())
    }

    /// Waits until the kernel no longer uses the buffer.
    ///
    /// # Errors
    /// As `io_uring_enter(2)`.
    pub fn settle(&mut self) -> io::Result<()> {
        while self.awaited > 0 {
            self.fetch()?;
        }
        Ok(())
    }

    fn send_some(&mut self, raw: i32, from: usize) -> io::Result<usize> {
        let rest = &self.bytes[from..];
        let flags = (SendFlags::NOSIGNAL.bits()) | libc::MSG_WAITALL as u32;
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let mut sqe = Sqe::send(raw, rest.as_ptr(), len, flags);
        if self.zero_copy {
            sqe.opcode = Opcode::SEND_ZC;
            sqe.ioprio = IORING_SEND_ZC_REPORT_USAGE as u16;
        }
        // SAFETY: the bytes are on the heap, never change, and are freed after the last completion only; the
        // descriptor is borrowed until the send's own completion, and the kernel has its own reference then.
        let pushed = unsafe { self.ring.push(sqe.user_data(1)) };
        assert!(pushed.is_some(), "one entry at a time");
        loop {
            if let Some(sent) = self.fetch()? {
                return sent.map(|count| count as usize);
            }
        }
    }

    /// Waits for a completion, and counts up to [`BATCH`] of those that are there. Enters only if none is
    /// there or an entry is pending. Returns the result of a send, if there is one.
    fn fetch(&mut self) -> io::Result<Option<io::Result<u32>>> {
        if self.ring.cq_ready() == 0 || self.ring.sq_pending() > 0 {
            self.counts.enters += 1;
            self.ring.enter(1, None)?;
        }
        let mut completions = [Cqe::default(); BATCH];
        let count = self.ring.reap(&mut completions);
        let mut sent = None;
        for completion in &completions[..count] {
            if completion.flags.is_notification() {
                self.awaited = self.awaited.saturating_sub(1);
                self.counts.notifications += 1;
                let is_copied = completion.res.cast_unsigned() & IORING_NOTIF_USAGE_ZC_COPIED != 0;
                self.counts.copied += u64::from(is_copied);
                continue;
            }
            self.awaited += u64::from(completion.flags.has_more());
            self.counts.sends += 1;
            sent = Some(completion.result());
        }
        Ok(sent)
    }
}

impl Drop for RingSender {
    fn drop(&mut self) {
        if self.settle().is_ok() {
            // SAFETY: no notification is outstanding, and the value is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn all_bytes_are_sent_and_a_loopback_copies_them() {
        let bytes: Box<[u8]> = (0..100_000_u32).map(|at| at as u8).collect();
        for zero_copy in [false, true] {
            let mut sender = match RingSender::new(bytes.clone(), zero_copy) {
                Ok(sender) => sender,
                Err(error) => {
                    assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "{error}");
                    return eprintln!("SKIP: no ring: {error}");
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let expected = bytes.clone();
            let reader = std::thread::spawn(move || {
                for _ in 0..20 {
                    let mut got = vec![0; expected.len()];
                    far.read_exact(&mut got).unwrap();
                    assert_eq!(*got, *expected);
                }
            });
            for _ in 0..20 {
                sender.send(&near).unwrap();
            }
            sender.settle().unwrap();
            reader.join().unwrap();
            let Counts { sends, notifications, copied, .. } = sender.counts();
            assert!(sends >= 20);
            assert_eq!(notifications, if zero_copy { sends } else { 0 });
            // On a loopback the kernel copies also the bytes of zero-copy sends, which is why the runtime
            // has none.
            assert_eq!(copied, notifications);
        }
    }
}
