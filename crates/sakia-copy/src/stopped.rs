//! The error of operations interrupted by a stop.
//!
//! It makes incomplete entries be removed on the same path as any other error, and is not counted as a
//! failure: the report says once that the work was stopped. It has no errno, since a file server may return
//! `ECANCELED` too.

use std::error::Error;
use std::fmt;
use std::io;

#[derive(Debug)]
struct Stopped;

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped")
    }
}

impl Error for Stopped {}

/// Returns the error of interrupted operations.
pub(crate) fn error() -> io::Error {
    io::Error::other(Stopped)
}

/// Returns whether an error is that one.
pub(crate) fn is_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
}
