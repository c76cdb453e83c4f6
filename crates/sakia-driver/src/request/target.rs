//! The file that a request is for.

use std::os::fd::RawFd;

use super::FileHandle;

/// The file that a request is for.
///
/// # Examples
/// See [`Target::number`].
#[derive(Clone, Debug)]
pub struct Target(pub(crate) Named);

#[derive(Clone, Debug)]
pub(crate) enum Named {
    File(FileHandle),
    Number(RawFd),
}

impl Target {
    /// Names a descriptor by its number alone. Nothing is remembered for it: each request finds out anew what
    /// kind of file it is.
    ///
    /// # Safety
    ///
    /// - The number is open, and refers to the same open file, until the outcome of each request with this
    ///   value was taken; for ever if it never is.
    /// - The file may be read, written or changed as these requests do: its owner lets the caller.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsRawFd;
    ///
    /// use sakia_driver::{Loop, Request, Target, Wait};
    ///
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// // SAFETY: the file is closed after the loop, which ends its requests.
    /// let target = unsafe { Target::number(file.as_raw_fd()) };
    /// let mut ring = Loop::new()?;
    /// ring.submit(Request::read(&target, vec![0; 9].into(), 0), 1)?;
    /// let outcome = loop {
    ///     match ring.take() {
    ///         Some(outcome) => break outcome,
    ///         None => ring.wait(Wait::Forever)?,
    ///     };
    /// };
    /// assert_eq!(outcome.result?, 9);
    /// drop(ring);
    /// # std::io::Result::Ok(())
    /// ```
    pub unsafe fn number(raw: RawFd) -> Self {
        Self(Named::Number(raw))
    }
}

impl From<FileHandle> for Target {
    fn from(file: FileHandle) -> Self {
        Self(Named::File(file))
    }
}

impl From<&FileHandle> for Target {
    fn from(file: &FileHandle) -> Self {
        Self(Named::File(file.clone()))
    }
}

impl From<&Self> for Target {
    fn from(target: &Self) -> Self {
        target.clone()
    }
}
