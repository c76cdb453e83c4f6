//! Errors of operations on paths, addresses and names.
//!
//! An [`io::Error`] holds either an errno or a custom error, not both: a custom error that names a path
//! answers `None` to `raw_os_error`. So these operations have their own error type, which keeps the kernel's
//! error and adds the operation and its object. `?` converts it to an [`io::Error`] that prints the same text
//! and contains it; [`os_error`] finds the errno in either. Operations on open files and sockets return a
//! plain [`io::Error`], which has the errno itself.

use std::error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use sakia_driver::NoBackend;
use sakia_ring::SetupError;

use crate::fs::Misaligned;
use crate::time::Elapsed;

/// The result of operations on paths, addresses and names.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of an operation on a path, an address or a name: the operation, its object, and the kernel's
/// error.
///
/// It prints as `open /etc/shadow: Permission denied (os error 13)`, or as
/// `connect 127.0.0.1:1: Connection refused (os error 111)`. As an [`io::Error`], which `?` makes of it, it
/// prints the same; [`os_error`] finds the errno there.
///
/// # Examples
/// ```
/// use std::io;
/// use std::path::Path;
///
/// use sakia::fs::File;
/// use sakia::net::{TcpListener, TcpStream};
///
/// sakia::block_on(async {
///     let error = File::open("/nowhere").await.unwrap_err();
///     assert_eq!(error.to_string(), "open /nowhere: No such file or directory (os error 2)");
///     assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::NotFound, Some(2)));
///     assert_eq!(error.path(), Some(Path::new("/nowhere")));
///
///     let error = io::Error::from(error);
///     assert_eq!(error.to_string(), "open /nowhere: No such file or directory (os error 2)");
///     assert_eq!((error.kind(), sakia::os_error(&error)), (io::ErrorKind::NotFound, Some(2)));
///
///     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
///     let address = listener.local_addr().unwrap();
///     listener.close().await.unwrap();
///     let error = TcpStream::connect(address).await.unwrap_err();
///     let text = format!("connect {address}: Connection refused (os error 111)");
///     assert_eq!(error.to_string(), text);
///     assert_eq!((error.raw_os_error(), error.addresses()), (Some(111), &[address][..]));
/// });
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    object: Object,
    source: io::Error,
}

/// The object of an operation.
pub(crate) enum Object {
    Path(PathBuf),
    /// The source and the target of a move, copy or link.
    Paths(PathBuf, PathBuf),
    /// All addresses that were tried, in this order.
    Addresses(Vec<SocketAddr>),
    /// A name to be looked up.
    Name(String),
    /// The operation has none.
    None,
}

impl Error {
    pub(crate) fn new(operation: &'static str, object: Object, source: io::Error) -> Self {
        Self(Box::new(Inner { operation, object, source }))
    }

    /// Returns the error that `error` contains, or that of `operation` if it is a plain one.
    pub(crate) fn of_io(error: io::Error, operation: &'static str) -> Self {
        error.downcast().unwrap_or_else(|error| Self::new(operation, Object::None, error))
    }

    /// Returns the operation that failed: `open`, `rename`, `connect`, `look up`, and so on. The text is for
    /// people, and may be reworded.
    ///
    /// # Examples
    /// See [`Error`](Error#examples).
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the path of the operation; of two, the first.
    ///
    /// # Examples
    /// See [`Error`](Error#examples).
    pub fn path(&self) -> Option<&Path> {
        match &self.0.object {
            Object::Path(path) | Object::Paths(path, _) => Some(path),
            _ => None,
        }
    }

    /// Returns the second path of an operation that has one: the target of a move, copy or link.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    ///
    /// use sakia::fs;
    ///
    /// # sakia::block_on(async {
    /// let error = fs::rename("/nowhere", "/elsewhere").await.unwrap_err();
    /// assert_eq!(error.path(), Some(Path::new("/nowhere")));
    /// assert_eq!(error.to_path(), Some(Path::new("/elsewhere")));
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    pub fn to_path(&self) -> Option<&Path> {
        match &self.0.object {
            Object::Paths(_, to) => Some(to),
            _ => None,
        }
    }

    /// Returns the addresses that were tried, in this order. The error is that of the last one. Empty when
    /// the operation has another object, such as a name to be looked up.
    ///
    /// # Examples
    /// See [`Error`](Error#examples).
    pub fn addresses(&self) -> &[SocketAddr] {
        match &self.0.object {
            Object::Addresses(addresses) => addresses,
            _ => &[],
        }
    }

    /// Returns the name that could not be looked up, with its port if it has one.
    pub fn name(&self) -> Option<&str> {
        match &self.0.object {
            Object::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the kind of the error.
    ///
    /// # Examples
    /// See [`Error`](Error#examples).
    pub fn kind(&self) -> io::ErrorKind {
        self.0.source.kind()
    }

    /// Returns the kernel's errno. `None` when the error is not the kernel's: a path with a zero byte, a
    /// timeout, a name without addresses.
    ///
    /// # Examples
    /// See [`Error`](Error#examples).
    pub fn raw_os_error(&self) -> Option<i32> {
        os_error(&self.0.source)
    }

    /// Returns the error without the operation and its object, as `std` has it.
    pub fn io_error(&self) -> &io::Error {
        &self.0.source
    }

    /// Converts to the error without the operation and its object, as `std` has it.
    pub fn into_io_error(self) -> io::Error {
        self.0.source
    }

    /// Returns whether the operation was canceled, or the runtime has ended.
    ///
    /// # Examples
    /// ```
    /// use sakia::fs::File;
    ///
    /// let runtime = sakia::Runtime::new().unwrap();
    /// let file = runtime.block_on(File::open("/dev/null")).unwrap();
    /// drop(runtime);
    /// // The runtime has ended, and with it all that belongs to it.
    /// let error = sakia::block_on(file.metadata()).unwrap_err();
    /// assert_eq!(sakia::os_error(&error), Some(libc::ECANCELED));
    /// ```
    pub fn is_canceled(&self) -> bool {
        self.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
    }

    /// Returns whether the kernel or the file system does not support the operation.
    pub fn is_unsupported(&self) -> bool {
        self.kind() == io::ErrorKind::Unsupported
    }
}

/// Returns the kernel's errno of a plain error, or of one that has more to say: an [`Error`], a
/// [`Misaligned`] transfer, or a setup error.
///
/// # Examples
/// See [`Error`](Error#examples).
pub fn os_error(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| {
        let inner = error.get_ref()?;
        let by_object = inner.downcast_ref().and_then(Error::raw_os_error);
        let by_alignment = || inner.downcast_ref().map(Misaligned::raw_os_error);
        let by_setup = || inner.downcast_ref().and_then(SetupError::raw_os_error);
        let by_backend = || inner.downcast_ref().and_then(NoBackend::raw_os_error);
        by_object.or_else(by_alignment).or_else(by_setup).or_else(by_backend)
    })
}

/// Returns a copy of the error.
pub fn copy_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, object, source } = &*self.0;
        f.write_str(operation)?;
        match object {
            Object::Path(path) => write!(f, " {}", path.display())?,
            Object::Paths(path, to) => write!(f, " {} to {}", path.display(), to.display())?,
            Object::Addresses(addresses) => {
                for (index, address) in addresses.iter().enumerate() {
                    write!(f, "{} {address}", if index == 0 { "" } else { "," })?;
                }
            }
            // Escaped, so that any name stays on the message's line.
            Object::Name(name) => write!(f, " {}", name.escape_debug())?,
            Object::None => {}
        }
        write!(f, ": {source}")
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, object, source } = &*self.0;
        let mut f = f.debug_struct("Error");
        f.field("operation", operation);
        match object {
            Object::Path(path) => f.field("path", path),
            Object::Paths(path, to) => f.field("path", path).field("to", to),
            Object::Addresses(addresses) => f.field("addresses", addresses),
            Object::Name(name) => f.field("name", name),
            Object::None => &mut f,
        };
        f.field("source", source).finish()
    }
}

impl error::Error for Error {
    /// Returns the source of the kernel's error, whose own text is in the message already.
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.get_ref().and_then(|inner| inner.source())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<Elapsed> for Error {
    /// Converts to the failure of the operation `wait`, of kind [`TimedOut`](io::ErrorKind::TimedOut).
    fn from(elapsed: Elapsed) -> Self {
        Self::new("wait", Object::None, elapsed.into())
    }
}

/// Adds the operation and the path to a failure.
pub(crate) trait Context<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T>;
    fn between(self, operation: &'static str, path: &Path, to: &Path) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::new(operation, Object::Path(path.to_owned()), source))
    }

    fn between(self, operation: &'static str, path: &Path, to: &Path) -> Result<T> {
        self.map_err(|source| {
            Error::new(operation, Object::Paths(path.to_owned(), to.to_owned()), source)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use super::*;
    use crate::net::{ServeFailed, Served};

    #[test]
    fn both_paths_are_named() {
        let source = io::Error::from_raw_os_error(18);
        let (from, to) = (Path::new("/a"), Path::new("b"));
        let error = Err::<(), _>(source).between("rename", from, to).unwrap_err();
        assert_eq!(error.to_string(), "rename /a to b: Invalid cross-device link (os error 18)");
        assert_eq!((error.path(), error.to_path()), (Some(from), Some(to)));
        assert_eq!((error.addresses(), error.name()), (&[][..], None));
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

    #[test]
    fn all_addresses_that_were_tried_are_named() {
        let addresses = ["[::1]:80", "127.0.0.1:80"].map(|text| text.parse().expect("an address"));
        let object = Object::Addresses(addresses.to_vec());
        let error = Error::new("connect", object, io::Error::from_raw_os_error(111));
        let text = "connect [::1]:80, 127.0.0.1:80: Connection refused (os error 111)";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.addresses(), addresses);
        assert_eq!((error.path(), error.to_path(), error.name()), (None, None, None));
        assert_eq!(error.into_io_error().raw_os_error(), Some(111));

        let none = Error::new("look up", Object::Addresses(vec![]), io::ErrorKind::NotFound.into());
        assert_eq!(none.to_string(), "look up: entity not found");
    }

    /// `?` makes one type of the errors of a function, with the same texts.
    #[test]
    fn errors_of_timeouts_and_servers_convert() {
        async fn both() -> Result<()> {
            crate::time::timeout(Duration::ZERO, pending::<()>()).await?;
            Ok(())
        }
        let error = crate::block_on(both()).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::TimedOut, None));
        assert_eq!((error.to_string(), error.operation()), ("wait: time is up".into(), "wait"));
        assert_eq!((error.path(), error.name(), error.addresses().len()), (None, None, 0));

        let source = || io::Error::from_raw_os_error(18);
        let error = Error::new("bind", Object::Path("/a".into()), source());
        let text = error.to_string();
        let failed = ServeFailed::from(io::Error::from(error));
        assert_eq!((failed.to_string(), failed.served), (text.clone(), Served::default()));
        assert_eq!(Error::from(failed).to_string(), text);
        let failed = ServeFailed::from(source());
        assert_eq!(failed.to_string(), format!("serve: {}", source()));
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        let object = Object::Name("a\nb:80".to_owned());
        let error = Error::new("look up", object, io::ErrorKind::NotFound.into());
        assert_eq!(error.to_string(), "look up a\\nb:80: entity not found");
        assert_eq!(
            (error.name(), error.path(), error.addresses().len()),
            (Some("a\nb:80"), None, 0)
        );
        assert_eq!(os_error(&error.into()), None);
    }

    /// An errno is found with its text and kind, however deep the kernel's answer lies.
    #[test]
    fn an_errno_is_found_whatever_is_around_it() {
        let objects = || {
            [
                Object::Path("/a".into()),
                Object::Paths("/a".into(), "b".into()),
                Object::Addresses(vec![([127, 0, 0, 1], 1).into()]),
                Object::Name("a:80".to_owned()),
            ]
        };
        for (inner, outer) in objects().into_iter().zip(objects()) {
            let error = Error::new("inside", inner, io::Error::from_raw_os_error(95));
            assert!(error.is_unsupported() && !error.is_canceled(), "{error:?}");
            let error = Error::new("around", outer, error.into());
            let (text, kind) = (error.to_string(), error.kind());
            assert_eq!((kind, error.raw_os_error()), (io::ErrorKind::Unsupported, Some(95)));
            assert!(error.is_unsupported());
            let error = io::Error::from(error);
            assert_eq!((error.to_string(), error.kind()), (text, kind));
            assert_eq!((os_error(&error), error.raw_os_error()), (Some(95), None));
        }
        let canceled = io::Error::from_raw_os_error(125);
        let error = Error::new("connect", Object::Addresses(vec![]), canceled);
        assert!(error.is_canceled() && !error.is_unsupported());
    }

    #[test]
    fn a_panic_shows_the_object_by_its_kind() {
        let shown =
            |object| format!("{:?}", Error::new("try", object, io::ErrorKind::NotFound.into()));
        let path = |object| shown(object).replace(", source: Kind(NotFound)", "");
        assert_eq!(path(Object::Path("/a".into())), r#"Error { operation: "try", path: "/a" }"#);
        let both = r#"Error { operation: "try", path: "/a", to: "b" }"#;
        assert_eq!(path(Object::Paths("/a".into(), "b".into())), both);
        let addresses = Object::Addresses(vec![([127, 0, 0, 1], 1).into()]);
        assert_eq!(path(addresses), r#"Error { operation: "try", addresses: [127.0.0.1:1] }"#);
        let name = Object::Name("a".to_owned());
        assert_eq!(path(name), r#"Error { operation: "try", name: "a" }"#);
    }
}
