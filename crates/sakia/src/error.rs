//! Errors of operations on paths.
//!
//! An [`io::Error`] holds either an errno or an error of one's own, not both: one that names a path
//! answers `None` to `raw_os_error`. So operations on paths have an error type that keeps the kernel's
//! answer as it came and adds the operation and the path. `?` makes an [`io::Error`] of it that prints
//! the same and still has it inside; [`os_error`] finds the errno in either.

use std::error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use sakia_driver::NoBackend;
use sakia_ring::SetupError;

/// What operations on paths resolve to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a path failed: the operation, the path, and the kernel's answer.
///
/// It prints as `open /etc/shadow: Permission denied (os error 13)`. As an [`io::Error`], which `?`
/// makes of it, it prints the same; [`os_error`] finds the errno there.
///
/// # Examples
/// ```
/// use std::io;
///
/// use sakia::fs::{self, File};
///
/// sakia::block_on(async {
///     let error = File::open("/nowhere").await.unwrap_err();
///     assert_eq!(error.to_string(), "open /nowhere: No such file or directory (os error 2)");
///     assert_eq!(error.kind(), io::ErrorKind::NotFound);
///     assert_eq!(error.raw_os_error(), Some(2));
///
///     let error = io::Error::from(error);
///     assert_eq!(error.to_string(), "open /nowhere: No such file or directory (os error 2)");
///     assert_eq!(error.kind(), io::ErrorKind::NotFound);
///     assert_eq!(fs::os_error(&error), Some(2));
/// });
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    path: PathBuf,
    /// Of operations with two paths, the second.
    to: Option<PathBuf>,
    source: io::Error,
}

impl Error {
    pub(crate) fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self(Box::new(Inner { operation, path: path.to_owned(), to: None, source }))
    }

    pub(crate) fn with_two(
        operation: &'static str,
        path: &Path,
        to: &Path,
        source: io::Error,
    ) -> Self {
        let to = Some(to.to_owned());
        Self(Box::new(Inner { operation, path: path.to_owned(), to, source }))
    }

    /// What was tried: `open`, `rename`, and so on. For people to read; it may be reworded.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The path it was tried with; of two, the first.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The second path of operations that have one: where something was to be moved, copied or linked
    /// to.
    pub fn to_path(&self) -> Option<&Path> {
        self.0.to.as_deref()
    }

    /// The kind of failure.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.source.kind()
    }

    /// The kernel's errno. `None` when the failure is not the kernel's: a path with a zero byte, for
    /// one.
    pub fn raw_os_error(&self) -> Option<i32> {
        os_error(&self.0.source)
    }

    /// The failure without operation and path, as `std` has it.
    pub fn io_error(&self) -> &io::Error {
        &self.0.source
    }

    /// The failure without operation and path, as `std` has it.
    pub fn into_io_error(self) -> io::Error {
        self.0.source
    }

    /// Whether it was canceled, or the runtime has ended.
    pub fn is_canceled(&self) -> bool {
        self.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
    }

    /// Whether the kernel or the file system does not know the operation.
    pub fn is_unsupported(&self) -> bool {
        self.kind() == io::ErrorKind::Unsupported
    }
}

/// The kernel's errno, in a plain error or within one that names a path, an alignment or addresses.
pub fn os_error(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| {
        let inner = error.get_ref()?;
        let by_path = inner.downcast_ref::<Error>().and_then(Error::raw_os_error);
        let by_address =
            || inner.downcast_ref::<crate::net::Error>().and_then(crate::net::Error::raw_os_error);
        let by_alignment = || Some(inner.downcast_ref::<crate::fs::Misaligned>()?.raw_os_error());
        let by_setup = || inner.downcast_ref::<SetupError>().and_then(SetupError::raw_os_error);
        let by_backend = || inner.downcast_ref::<NoBackend>().and_then(NoBackend::raw_os_error);
        by_path.or_else(by_address).or_else(by_alignment).or_else(by_setup).or_else(by_backend)
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, to, source } = &*self.0;
        write!(f, "{operation} {}", path.display())?;
        if let Some(to) = to {
            write!(f, " to {}", to.display())?;
        }
        write!(f, ": {source}")
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, path, to, source } = &*self.0;
        let mut f = f.debug_struct("Error");
        f.field("operation", operation).field("path", path);
        if let Some(to) = to {
            f.field("to", to);
        }
        f.field("source", source).finish()
    }
}

impl error::Error for Error {
    /// What is behind the kernel's answer, which the message has already.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.get_ref().and_then(|inner| inner.source())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

/// Adds the operation and the path to a failure.
pub(crate) trait Context<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T>;
    fn between(self, operation: &'static str, path: &Path, to: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::new(operation, path, source))
    }

    fn between(self, operation: &'static str, path: &Path, to: &Path) -> Result<T> {
        self.map_err(|source| Error::with_two(operation, path, to, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_paths_are_named() {
        let source = io::Error::from_raw_os_error(18);
        let error = Error::with_two("rename", Path::new("/a"), Path::new("b"), source);
        assert_eq!(error.to_string(), "rename /a to b: Invalid cross-device link (os error 18)");
        assert_eq!((error.path(), error.to_path()), (Path::new("/a"), Some(Path::new("b"))));
        assert_eq!(error.raw_os_error(), Some(18));
        assert_eq!(error.into_io_error().raw_os_error(), Some(18));
    }

    #[test]
    fn a_zero_byte_is_no_errno() {
        let path = Path::new("a\0b");
        let error = crate::fs::c_path(path).at("open", path).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::InvalidInput, None));
        assert_eq!(os_error(&error.into()), None);
    }
}
