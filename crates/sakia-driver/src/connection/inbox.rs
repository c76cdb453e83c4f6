//! Bytes that were received and not taken out yet.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::task::{Context, Poll};

use super::RecvBuf;
use super::multishot::Multishot;
use crate::ops::ReceivedControl;
use crate::pool::Size;

/// Maximum number of bytes here while the program does not receive. Then the peer has to wait.
pub(super) const BYTES_MAX: usize = 256 << 10;
/// Maximum number of buffers here.
pub(super) const BUFS_MAX: usize = 32;
/// The number of consecutive receives that fit the smaller size after which that size is used.
const SMALL_MAX: u8 = 64;

/// Bytes in the order of their arrival, and the receive that brings them.
#[derive(Default)]
pub(super) struct Inbox {
    bufs: RefCell<VecDeque<RecvBuf>>,
    /// The number of bytes in all of them.
    bytes: Cell<usize>,
    /// Control messages that came with the first bytes, for a dropped receive.
    control: Cell<Option<Box<ReceivedControl>>>,
    /// Set if `control` holds any.
    has_control: Cell<bool>,
    /// The end of the stream, to be reported once.
    end: RefCell<Option<io::Result<()>>>,
    /// The multishot receive that brings bytes.
    pub(super) multishot: Multishot,
    /// The size of buffers to receive into.
    size: Cell<Size>,
    /// The number of consecutive receives that would have fit a smaller buffer.
    small: Cell<u8>,
    /// Sends are tried by plain calls first, since receives are made by plain calls.
    are_sends_plain: Cell<bool>,
}

impl Inbox {
    /// Adds bytes.
    pub(super) fn push(&self, buf: RecvBuf) {
        if !buf.is_empty() {
            self.bytes.set(self.bytes.get() + buf.len());
            self.bufs.borrow_mut().push_back(buf);
        }
    }

    /// Keeps the control messages of the bytes that were added last, before which there were none.
    pub(super) fn keep_control(&self, control: ReceivedControl) {
        if self.bytes.get() > 0 {
            self.has_control.set(true);
            drop(self.control.replace(Some(Box::new(control))));
        }
    }

    /// Takes the control messages of the first bytes.
    #[cold]
    pub(super) fn take_control(&self) -> ReceivedControl {
        self.has_control.set(false);
        self.control.take().map_or_else(ReceivedControl::default, |control| *control)
    }

    /// Drops the control messages of the first bytes, which are taken without them.
    #[inline(always)]
    fn drop_control(&self) {
        if self.has_control.get() {
            drop(self.take_control());
        }
    }

    /// Records the end of the stream, regular or with an error.
    pub(super) fn end(&self, end: io::Result<()>) {
        *self.end.borrow_mut() = Some(end);
    }

    pub(super) fn pop(&self) -> Option<RecvBuf> {
        let buf = self.bufs.borrow_mut().pop_front()?;
        self.drop_control();
        self.bytes.set(self.bytes.get() - buf.len());
        Some(buf)
    }

    /// Takes the end of the stream, if it has come and was not reported.
    pub(super) fn take_end(&self) -> Option<io::Result<()>> {
        self.end.take()
    }

    /// Returns whether the peer has to wait now.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.get() >= BYTES_MAX || self.bufs.borrow().len() >= BUFS_MAX
    }

    /// Moves bytes to the front of `buf`, and returns their number; 0 if there are none. With `keep` they
    /// also stay here.
    pub(super) fn copy_to(&self, buf: &mut [MaybeUninit<u8>], keep: bool) -> usize {
        let mut bufs = self.bufs.borrow_mut();
        let (mut copied, mut kept) = (0, 0);
        while let Some(first) = bufs.get_mut(kept).filter(|_| copied < buf.len()) {
            let count = first.len().min(buf.len() - copied);
            buf[copied..copied + count].write_copy_of_slice(&first[..count]);
            copied += count;
            if keep {
                kept += 1;
                continue;
            }
            first.advance(count);
            self.drop_control();
            self.bytes.set(self.bytes.get() - count);
            if first.is_empty() {
                bufs.pop_front();
            }
        }
        copied
    }

    /// Moves bytes to the front of `buf`, which is initialized, and returns their number.
    pub(super) fn copy_out(&self, buf: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < buf.len() {
            let Some(mut first) = self.bufs.borrow_mut().pop_front() else { break };
            self.drop_control();
            let count = first.len().min(buf.len() - copied);
            buf[copied..copied + count].copy_from_slice(&first[..count]);
            copied += count;
            self.bytes.set(self.bytes.get() - count);
            first.advance(count);
            if !first.is_empty() {
                self.bufs.borrow_mut().push_front(first);
            }
        }
        copied
    }

    /// Waits until bytes come, or the receive in flight ends, if there is one. The end of the stream also
    /// ends that receive.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.multishot.poll_ready(!self.bufs.borrow().is_empty(), cx)
    }

    /// Sets whether sends are tried by plain calls first.
    pub(super) fn sends_now(&self, are_plain: bool) {
        self.are_sends_plain.set(are_plain);
    }

    /// Returns whether sends are tried by plain calls first.
    #[inline(always)]
    pub(super) fn are_sends_plain(&self) -> bool {
        self.are_sends_plain.get()
    }

    /// Returns the size of the buffers to receive into.
    pub(super) fn size(&self) -> Size {
        self.size.get()
    }

    /// Returns whether the last bytes here filled a buffer of the size in use: then bytes that come before
    /// these are taken arrived together with them.
    pub(super) fn ends_full(&self) -> bool {
        let full = self.size.get().bytes() as usize;
        self.bufs.borrow().back().is_some_and(|buf| buf.len() >= full)
    }

    /// Records that a receive into a buffer of the size in use brought `len` bytes, and whether a larger one
    /// would have brought more. Returns true if another size fits better, which is used from now on.
    pub(super) fn is_size_wrong(&self, len: usize, is_more: bool) -> bool {
        let size = self.size.get();
        let larger = size.larger().filter(|_| is_more);
        let is_small = size.smaller().is_some_and(|smaller| len <= smaller.bytes() as usize);
        self.small.set(if is_small { self.small.get() + 1 } else { 0 });
        let smaller = size.smaller().filter(|_| self.small.get() >= SMALL_MAX);
        let Some(better) = larger.or(smaller) else { return false };
        self.size.set(better);
        self.small.set(0);
        true
    }
}
