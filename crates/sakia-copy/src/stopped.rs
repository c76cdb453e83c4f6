//! That work was told to stop, as the error of what was under way then.
//!
//! It leaves what cannot be completed on the same path as any other error, and is no failure in the end: the
//! report says once that it was stopped. It has no errno: a file server may answer `ECANCELED` too.

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

/// The error of what was under way.
pub(crate) fn error() -> io::Error {
    io::Error::other(Stopped)
}

/// Whether an error is that one.
pub(crate) fn is_error(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Stopped>())
}
