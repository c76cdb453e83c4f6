//! Small files as a whole, by plain calls that do not wait.
//!
//! Opening, reading and closing a small file through slots costs a good part of the calls themselves. So a
//! file in the caches is read here in one go: four plain calls, none of which waits for a device. The
//! rest is left to operations, together with the bytes read so far.
//!
//! Some file systems, such as tmpfs, have no non-blocking reads. There the second call queries the mount and
//! the size (instead of a query of the size at the end), and the read may block, behind the mount's breaker.

use std::ffi::CStr;
use std::io;
use std::rc::Rc;

use rustix::io::Errno;
use sakia_ring::AT_FDCWD;

use crate::backend::{Calls, FileKind};
use crate::call::{Call, Open, Transfer, address};
use crate::counters::OpKind;
use crate::decide::{Attempt, CallMode, Mount, Support};
use crate::fd::{Fd, Owner};
use crate::handle::Handle;
use crate::ops::transfer_len;
use crate::sys::Direction;
use crate::sys::abi::O_NONBLOCK;
use crate::sys::open::open_flags;

/// The part of a file that was read without waiting.
#[derive(Debug)]
pub enum WholeFile {
    /// The whole file.
    Read(Vec<u8>),
    /// The open file and its first bytes, perhaps none.
    Opened(Fd, Vec<u8>),
    /// Nothing was done.
    NotNow,
}

impl Handle {
    /// Reads the file at `path` as a whole, if the caches hold it, it has at most `expected` bytes, and the
    /// rules and this turn's plain calls allow it. The caller does the remaining work.
    ///
    /// # Errors
    /// As `open(2)`. `ENOMEM`: no memory for `expected` bytes.
    pub fn read_file_now(&self, path: &CStr, expected: usize) -> io::Result<WholeFile> {
        let mut core = self.shared.core.borrow_mut();
        if self.queues_all || !core.may_act_now(&[OpKind::Open, OpKind::Read, OpKind::Close]) {
            return Ok(WholeFile::NotNow);
        }
        if self.shared.may_wait(path.to_bytes()) {
            return Ok(WholeFile::NotNow);
        }
        let (flags, nonblock_added) = open_flags(0);
        let (path, flags_wide) = (address(path.as_ptr()), flags.into());
        let open =
            Call::Open(Open { dir: AT_FDCWD, path, flags: flags_wide, mode: 0, resolve: None });
        // SAFETY: the path outlives the call.
        let raw = match unsafe { core.act_now(OpKind::Open, open, CallMode::NonBlocking) } {
            Attempt::Done(raw) if raw >= 0 => raw,
            Attempt::Done(res) => return Err(io::Error::from_raw_os_error(-res)),
            Attempt::WouldBlock | Attempt::Unsupported => return Ok(WholeFile::NotNow),
        };
        // SAFETY: it was just opened, and has no other owner.
        let file = unsafe { Opened::new(raw, &*self.shared.calls) };
        let mut known = match self.shared.mounts.asks_first.get() {
            // SAFETY: the descriptor was just opened.
            true => unsafe { self.mount_and_size(file.raw) },
            false => None,
        };
        // One byte more than expected: a read that leaves room may have found the end.
        let mut bytes = Vec::new();
        let wanted = expected.saturating_add(1);
        bytes.try_reserve_exact(wanted).map_err(|_| io::Error::from(Errno::NOMEM))?;
        let len = transfer_len(bytes.capacity());
        let read = Transfer::read(file.raw, bytes.as_mut_ptr(), len, 0, 0);
        let mut attempt = Attempt::Unsupported;
        if !known.as_ref().is_some_and(|(mount, _)| mount.reads_wait()) {
            // SAFETY: the memory is the vector's, unused so far, and of that length; the descriptor was just
            // opened.
            attempt = unsafe { core.act_now(OpKind::Read, read, CallMode::NonBlocking) };
            let is_refused = attempt == Attempt::Unsupported;
            if is_refused && known.is_none() {
                // SAFETY: the descriptor was just opened.
                known = unsafe { self.mount_and_size(file.raw) };
            }
            if let Some((mount, _)) = known.as_ref().filter(|_| is_refused) {
                mount.learn(Direction::Read, Support::No);
            }
            self.shared.mounts.asks_first.set(is_refused);
        }
        if let Some((mount, _)) = known.as_ref().filter(|(mount, _)| mount.reads_wait()) {
            // SAFETY: as above.
            attempt = unsafe { core.act_timed(OpKind::Read, read, mount) };
        }
        // After a failure or a refusal to block, an operation repeats the read and gives the result.
        let count = attempt.done().map_or(0, |count| usize::try_from(count).unwrap_or(0));
        let count = count.min(len as usize);
        // SAFETY: the kernel has filled `count` bytes, and the room is no smaller.
        unsafe { bytes.set_len(count) };
        // A read may be short before the end; the size tells where the end is.
        let is_short = count > 0 && count < bytes.capacity();
        let told = known.and_then(|(_, size)| size);
        // SAFETY: the descriptor was just opened.
        let size = || told.or_else(|| unsafe { core.size_now(file.raw) });
        let is_whole = is_short && size() == Some(count as u64);
        if !is_whole {
            drop(core);
            let owner = self.owner();
            // SAFETY: the descriptor was just opened, and has no other owner.
            let fd =
                unsafe { Fd::opened(file.into_raw(), owner, flags & !O_NONBLOCK, nonblock_added) };
            return Ok(WholeFile::Opened(fd, bytes));
        }
        let close = Call::Close { raw: file.into_raw() };
        // SAFETY: the descriptor was just opened, and has no other owner.
        let closed = unsafe { core.act_now(OpKind::Close, close, CallMode::Blocking) };
        if closed != Attempt::Done(0) {
            core.counters.close_errors += 1;
        }
        Ok(WholeFile::Read(bytes))
    }

    /// Returns the mount and the size of an open file; `None` if operations on it may wait for others.
    ///
    /// # Safety
    ///
    /// - The descriptor stays open during the call.
    unsafe fn mount_and_size(&self, raw: i32) -> Option<(Rc<Mount>, Option<u64>)> {
        // SAFETY: the caller's duty is the same.
        let facts = unsafe { self.shared.facts(raw, None) };
        // SAFETY: likewise.
        let mount = || unsafe { self.shared.mount(raw, &facts) };
        (facts.kind == FileKind::Bounded).then(|| (mount(), facts.size))
    }
}

/// A descriptor without an owner yet. Dropping this closes it, unless it is taken out.
struct Opened<'a> {
    raw: i32,
    calls: &'a dyn Calls,
}

impl<'a> Opened<'a> {
    /// # Safety
    ///
    /// - The descriptor is open, and has no other owner.
    unsafe fn new(raw: i32, calls: &'a dyn Calls) -> Self {
        Self { raw, calls }
    }

    fn into_raw(self) -> i32 {
        std::mem::ManuallyDrop::new(self).raw
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        // SAFETY: the promise of `new`, and it was not taken out. An error changes nothing here: the caller
        // gets another error, or a panic is under way.
        let _ = unsafe { self.calls.close(self.raw, true) };
    }
}
