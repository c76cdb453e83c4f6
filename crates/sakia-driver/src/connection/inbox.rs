//! What was received and not taken yet.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::RecvBuf;

/// Bytes in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bufs: RefCell<VecDeque<RecvBuf>>,
}

impl Inbox {
    pub(super) fn push(&self, buf: RecvBuf) {
        if !buf.is_empty() {
            self.bufs.borrow_mut().push_back(buf);
        }
    }

    pub(super) fn pop(&self) -> Option<RecvBuf> {
        self.bufs.borrow_mut().pop_front()
    }

    /// Moves bytes to the front of `buf`, and returns how many; none if there are none. With `keep` they
    /// stay here, too.
    pub(super) fn copy_to(&self, buf: &mut [u8], keep: bool) -> usize {
        let mut bufs = self.bufs.borrow_mut();
        let mut copied = 0;
        let mut index = 0;
        while let Some(first) = bufs.get_mut(index).filter(|_| copied < buf.len()) {
            let count = first.len().min(buf.len() - copied);
            buf[copied..copied + count].copy_from_slice(&first[..count]);
            copied += count;
            if keep {
                index += 1;
                continue;
            }
            first.advance(count);
            if first.is_empty() {
                bufs.pop_front();
            }
        }
        copied
    }
}
