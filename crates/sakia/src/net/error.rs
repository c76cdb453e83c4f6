//! Errors of operations on addresses.
//!
//! As in [`fs`](crate::fs), an error keeps the kernel's answer as it came and adds the operation and the
//! addresses. What reads and writes answers with a plain [`io::Error`], which has the errno itself.

use std::error;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// What operations on addresses resolve to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on an address failed: the operation, the addresses, and the kernel's answer.
///
/// It prints as `connect 127.0.0.1:1: Connection refused (os error 111)`. As an [`io::Error`], which `?`
/// makes of it, it prints the same; [`os_error`](super::os_error) finds the errno there.
///
/// # Examples
/// ```
/// use std::io;
///
/// use sakia::net::{self, TcpListener, TcpStream};
///
/// sakia::block_on(async {
///     let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
///     let address = listener.local_addr().unwrap();
///     listener.close().await.unwrap();
///
///     let error = TcpStream::connect(address).await.unwrap_err();
///     assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
///     assert_eq!(error.raw_os_error(), Some(111));
///     assert_eq!(error.addresses(), [address]);
///
///     let error = io::Error::from(error);
///     let text = format!("connect {address}: Connection refused (os error 111)");
///     assert_eq!(error.to_string(), text);
///     assert_eq!(net::os_error(&error), Some(111));
/// });
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    operation: &'static str,
    /// What was looked up, and is no address.
    name: Option<String>,
    addresses: Vec<SocketAddr>,
    source: io::Error,
}

impl Error {
    pub(super) fn new(
        operation: &'static str,
        addresses: impl Into<Vec<SocketAddr>>,
        source: io::Error,
    ) -> Self {
        let addresses = addresses.into();
        Self(Box::new(Inner { operation, name: None, addresses, source }))
    }

    /// Of a name for which there are no addresses.
    pub(super) fn of_name(name: impl Into<String>, source: io::Error) -> Self {
        let name = Some(name.into());
        Self(Box::new(Inner { operation: "look up", name, addresses: Vec::new(), source }))
    }

    /// What was tried: `connect`, `bind`, `look up`, and so on. For people to read; it may be reworded.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The addresses it was tried with, in this order. The failure is that of the last one. None when a
    /// name was to be looked up.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// The name that was to be looked up, with its port if it has one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// The kind of failure.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.source.kind()
    }

    /// The kernel's errno. `None` when the failure is not the kernel's: time that was up, a name that
    /// nobody knows.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.0.source.raw_os_error()
    }

    /// The failure without operation and addresses, as `std` has it.
    pub fn io_error(&self) -> &io::Error {
        &self.0.source
    }

    /// The failure without operation and addresses, as `std` has it.
    pub fn into_io_error(self) -> io::Error {
        self.0.source
    }

    /// Whether it was canceled, or the runtime has ended.
    pub fn is_canceled(&self) -> bool {
        self.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, name, addresses, source } = &*self.0;
        f.write_str(operation)?;
        if let Some(name) = name {
            // Whatever was asked for, it stays on its line.
            write!(f, " {}", name.escape_debug())?;
        }
        for (index, address) in addresses.iter().enumerate() {
            write!(f, "{} {address}", if index == 0 { "" } else { "," })?;
        }
        write!(f, ": {source}")
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { operation, name, addresses, source } = &*self.0;
        let mut f = f.debug_struct("Error");
        f.field("operation", operation);
        match name {
            Some(name) => f.field("name", name),
            None => f.field("addresses", addresses),
        };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_was_tried_is_named() {
        let addresses = ["[::1]:80", "127.0.0.1:80"].map(|text| text.parse().expect("an address"));
        let error = Error::new("connect", addresses, io::Error::from_raw_os_error(111));
        let text = "connect [::1]:80, 127.0.0.1:80: Connection refused (os error 111)";
        assert_eq!(error.to_string(), text);
        assert_eq!(error.addresses(), addresses);
        assert_eq!(error.into_io_error().raw_os_error(), Some(111));
    }

    #[test]
    fn a_name_is_shown_on_one_line() {
        let error = Error::of_name("a\nb:80", io::ErrorKind::NotFound.into());
        assert_eq!(error.to_string(), "look up a\\nb:80: entity not found");
        assert_eq!((error.name(), error.addresses().len()), (Some("a\nb:80"), 0));
        assert_eq!(crate::net::os_error(&error.into()), None);
    }
}
