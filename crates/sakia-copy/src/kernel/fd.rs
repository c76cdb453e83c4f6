//! Descriptors whose close is an event in a recording.

use std::os::fd::{AsFd, BorrowedFd};

/// A descriptor, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnedFd(Option<std::os::fd::OwnedFd>);

impl From<std::os::fd::OwnedFd> for OwnedFd {
    fn from(fd: std::os::fd::OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl From<OwnedFd> for std::os::fd::OwnedFd {
    fn from(mut fd: OwnedFd) -> Self {
        fd.0.take().expect("a descriptor is there until it is dropped")
    }
}

impl AsFd for OwnedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("a descriptor is there until it is dropped").as_fd()
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            super::traced("close", || {
                drop(fd);
                Ok(())
            })
            .ok();
        }
    }
}
