//! Addresses and kinds of sockets, as the kernel has them.
//!
//! An address is kept in the kernel's own form, so that a system call can use it in place, inside an
//! operation's slot. `rustix` has a type for each family, and one for all of them that is larger than a
//! slot's own memory; this one is as long as the longest address in use.
//!
//! Sources: `ip(7)`, `ipv6(7)`, `unix(7)`.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::Errno;

/// Bytes of a `struct sockaddr_un`, the longest address of those that are in use.
const BYTES_MAX: usize = 110;
/// The offset of the path in a `struct sockaddr_un`.
const PATH_AT: usize = 2;

/// The address family of a socket: one of the kernel's `AF_*`.
///
/// # Examples
/// See [`Handle::accept`](crate::Handle::accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u16);

impl Domain {
    /// No family, such as in the address of a socket without one.
    #[doc(alias = "AF_UNSPEC")]
    pub const UNSPECIFIED: Self = Self(0);
    /// Sockets within one machine.
    #[doc(alias = "AF_UNIX")]
    pub const UNIX: Self = Self(1);
    /// Internet sockets, version 4.
    #[doc(alias = "AF_INET")]
    pub const INET: Self = Self(2);
    /// Internet sockets, version 6.
    #[doc(alias = "AF_INET6")]
    pub const INET6: Self = Self(10);
}

/// The kind of a socket: one of the kernel's `SOCK_*`.
///
/// # Examples
/// See [`Handle::accept`](crate::Handle::accept).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketType(pub u32);

impl SocketType {
    /// A stream of bytes between two sockets.
    #[doc(alias = "SOCK_STREAM")]
    pub const STREAM: Self = Self(1);
    /// Messages, each for itself. Between machines they may get lost, and overtake each other.
    #[doc(alias = "SOCK_DGRAM")]
    pub const DATAGRAM: Self = Self(2);
    /// Messages in order between two sockets.
    #[doc(alias = "SOCK_SEQPACKET")]
    pub const SEQUENCED: Self = Self(5);
}

/// The process at the other end of a socket within the machine, as it was when they were connected.
///
/// # Examples
/// See [`Handle::socket_pair`](crate::Handle::socket_pair).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its number; 0 if it has none in this process's namespace.
    pub process: u32,
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
}

/// The directions of a connection to end: the kernel's `SHUT_*`.
///
/// # Examples
/// See [`Handle::socket_pair`](crate::Handle::socket_pair).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownHow {
    /// Nothing more is received: pending receives return 0.
    #[doc(alias = "SHUT_RD")]
    Receives = 0,
    /// Nothing more is sent: the peer receives 0 after the bytes that were sent.
    #[doc(alias = "SHUT_WR")]
    Sends = 1,
    /// Both.
    #[doc(alias = "SHUT_RDWR")]
    Both = 2,
}

/// The address of a socket of any family.
///
/// Internet addresses come from and go to [`SocketAddr`]. Those within a machine are a path, a name in
/// the *abstract* name space, which is in no file system, or nothing at all: an *unnamed* socket is
/// one of a pair, or one that connected without a name of its own.
///
/// # Examples
/// ```
/// use sakia_driver::SocketAddress;
///
/// let address = SocketAddress::from(std::net::SocketAddr::from(([127, 0, 0, 1], 80)));
/// assert_eq!(address.inet().map(|inet| inet.port()), Some(80));
/// let address = SocketAddress::unix("/run/app")?;
/// assert_eq!(address.path(), Some("/run/app".as_ref()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct SocketAddress {
    /// A `struct sockaddr` of some family; the bytes beyond its length are zero.
    bytes: [u8; BYTES_MAX],
    len: u16,
}

impl SocketAddress {
    /// No address, as an unnamed socket has it.
    pub const UNNAMED: Self = Self { bytes: [0; BYTES_MAX], len: 0 };

    /// Returns the address of a socket that is at `path` in a file system.
    ///
    /// # Errors
    /// `EINVAL`: the path is empty or has a NUL in it. `ENAMETOOLONG`: it has more than 107 bytes.
    ///
    /// # Examples
    /// See [`SocketAddress`](SocketAddress#examples).
    #[doc(alias = "sockaddr_un")]
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().as_os_str().as_bytes();
        if path.is_empty() || path.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        let mut address = Self::of(Domain::UNIX);
        address.add(path)?;
        address.add(b"\0")?;
        Ok(address)
    }

    /// Returns the address of a socket with this name in the abstract name space. Any bytes make a name.
    ///
    /// # Errors
    /// `ENAMETOOLONG`: more than 107 bytes.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Domain, SocketAddress};
    ///
    /// let address = SocketAddress::abstract_name("app/control")?;
    /// assert_eq!(address.name(), Some(&b"app/control"[..]));
    /// assert_eq!((address.domain(), address.path()), (Domain::UNIX, None));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abstract_name(name: impl AsRef<[u8]>) -> io::Result<Self> {
        let mut address = Self::of(Domain::UNIX);
        address.add(b"\0")?;
        address.add(name.as_ref())?;
        Ok(address)
    }

    /// Returns an address in the kernel's form. Bytes beyond the longest address in use are cut off.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let len = bytes.len().min(BYTES_MAX);
        let mut address = Self { len: len as u16, ..Self::UNNAMED };
        address.bytes[..len].copy_from_slice(&bytes[..len]);
        address
    }

    fn of(domain: Domain) -> Self {
        Self::from_bytes(&domain.0.to_ne_bytes())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let begin = usize::from(self.len);
        let room = self.bytes.get_mut(begin..begin + bytes.len()).ok_or(Errno::NAMETOOLONG)?;
        room.copy_from_slice(bytes);
        self.len += bytes.len() as u16;
        Ok(())
    }

    /// Returns the address in the kernel's form, a `struct sockaddr`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the address family; [`Domain::UNSPECIFIED`] if the kernel reported none.
    ///
    /// # Examples
    /// See [`SocketAddress::abstract_name`].
    pub fn domain(&self) -> Domain {
        Domain(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// Returns the internet address, of either version.
    ///
    /// # Examples
    /// See [`SocketAddress`](SocketAddress#examples).
    pub fn inet(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes(self.field(2)?);
        match self.domain() {
            Domain::INET => {
                let ip: [u8; 4] = self.field(4)?;
                Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
            }
            Domain::INET6 => {
                let ip: [u8; 16] = self.field(8)?;
                let flow = u32::from_ne_bytes(self.field(4)?);
                let scope = u32::from_ne_bytes(self.field(24)?);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
            }
            _ => None,
        }
    }

    /// Returns the path of a socket in a file system.
    ///
    /// # Examples
    /// See [`SocketAddress`](SocketAddress#examples).
    pub fn path(&self) -> Option<&Path> {
        let path = self.unix_part()?;
        // The kernel counts the terminating NUL.
        let path = path.split(|&byte| byte == 0).next().filter(|path| !path.is_empty())?;
        Some(Path::new(OsStr::from_bytes(path)))
    }

    /// Returns the name of a socket in the abstract name space.
    ///
    /// # Examples
    /// See [`SocketAddress::abstract_name`].
    pub fn name(&self) -> Option<&[u8]> {
        self.unix_part()?.strip_prefix(b"\0")
    }

    /// Returns whether the socket has no address: it is one of a pair, or was never bound.
    pub fn is_unnamed(&self) -> bool {
        usize::from(self.len) <= PATH_AT
    }

    /// Returns the bytes after the family, if this is a Unix address.
    fn unix_part(&self) -> Option<&[u8]> {
        self.as_bytes().get(PATH_AT..).filter(|_| self.domain() == Domain::UNIX)
    }

    /// Returns the bytes of a field. `None` if the address ends before them.
    fn field<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.as_bytes().get(at..at + N)?.try_into().ok()
    }
}

impl From<SocketAddr> for SocketAddress {
    fn from(inet: SocketAddr) -> Self {
        let mut bytes = [0; 28];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(2, &inet.port().to_be_bytes());
        let len = match inet {
            SocketAddr::V4(inet) => {
                put(0, &Domain::INET.0.to_ne_bytes());
                put(4, &inet.ip().octets());
                16
            }
            SocketAddr::V6(inet) => {
                put(0, &Domain::INET6.0.to_ne_bytes());
                put(4, &inet.flowinfo().to_ne_bytes());
                put(8, &inet.ip().octets());
                put(24, &inet.scope_id().to_ne_bytes());
                28
            }
        };
        Self::from_bytes(&bytes[..len])
    }
}

impl PartialEq for SocketAddress {
    fn eq(&self, other: &Self) -> bool {
        // The kernel accepts a path without its NUL and an unnamed address without its family.
        self.as_bytes() == other.as_bytes()
            || self.is_unnamed() && other.is_unnamed()
            || self.path().is_some() && self.path() == other.path()
    }
}

impl Eq for SocketAddress {}

impl fmt::Debug for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inet) = self.inet() {
            write!(f, "{inet}")
        } else if let Some(path) = self.path() {
            write!(f, "{path:?}")
        } else if let Some(name) = self.name() {
            write!(f, "@\"{}\"", name.escape_ascii())
        } else if self.is_unnamed() {
            f.write_str("unnamed")
        } else {
            write!(f, "family {} {:?}", self.domain().0, self.as_bytes())
        }
    }
}

/// Room, inside an operation, for an address that the kernel writes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AddressRoom {
    bytes: [u8; BYTES_MAX],
    /// The capacity in bytes; after the call, the number of bytes written, or needed if that is more.
    len: u32,
}

impl AddressRoom {
    /// The capacity in bytes.
    pub(crate) const BYTES: u32 = BYTES_MAX as u32;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; BYTES_MAX], len: Self::BYTES }
    }

    /// Returns the pointers to the address and to its length.
    pub(crate) fn pointers(&mut self) -> (*mut u8, *mut u32) {
        let room = &raw mut *self;
        let at = |offset| room.wrapping_byte_add(offset);
        (at(offset_of!(Self, bytes)).cast(), at(offset_of!(Self, len)).cast())
    }

    /// Returns the address that the kernel wrote.
    pub(crate) fn address(&self) -> SocketAddress {
        self.address_of(self.len)
    }

    /// Returns the address that the kernel wrote, with a length from elsewhere.
    pub(crate) fn address_of(&self, len: u32) -> SocketAddress {
        SocketAddress::from_bytes(&self.bytes[..BYTES_MAX.min(len as usize)])
    }
}

const _: () = assert!(size_of::<SocketAddress>() == 112 && size_of::<AddressRoom>() == 116);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internet_addresses_come_back() {
        for text in ["1.2.3.4:5", "[1:2::3]:65535", "[fe80::1%7]:9"] {
            let inet: SocketAddr = text.parse().expect("an address");
            let address = SocketAddress::from(inet);
            assert_eq!(address.inet(), Some(inet));
            assert_eq!(format!("{address:?}"), text);
            assert!(address.path().is_none() && address.name().is_none() && !address.is_unnamed());
        }
    }

    #[test]
    fn the_form_is_the_kernels() {
        let address = SocketAddress::from(SocketAddr::from(([1, 2, 3, 4], 0x0506)));
        let family = Domain::INET.0.to_ne_bytes();
        let expected = [&family[..], &[5, 6, 1, 2, 3, 4], &[0; 8]].concat();
        assert_eq!(address.as_bytes(), expected);
        let address = SocketAddress::unix("ab").expect("a path");
        assert_eq!(address.as_bytes(), [&Domain::UNIX.0.to_ne_bytes()[..], b"ab\0"].concat());
    }

    #[test]
    fn paths_and_names_are_told_apart() {
        let path = SocketAddress::unix("/a/b").expect("a path");
        assert_eq!((path.path(), path.name()), (Some(Path::new("/a/b")), None));
        let name = SocketAddress::abstract_name(b"a\0b").expect("a name");
        assert_eq!((name.path(), name.name()), (None, Some(&b"a\0b"[..])));
        assert!(!path.is_unnamed() && !name.is_unnamed() && SocketAddress::UNNAMED.is_unnamed());
        assert_ne!(path, name);
        assert_eq!(path, SocketAddress::from_bytes(&path.as_bytes()[..path.as_bytes().len() - 1]));
        assert_eq!(format!("{path:?} {name:?}"), r#""/a/b" @"a\x00b""#);
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let errno = |path: &str| SocketAddress::unix(path).map_err(|e| e.raw_os_error());
        assert!(errno(&"x".repeat(107)).is_ok());
        let too_long = Err(Some(Errno::NAMETOOLONG.raw_os_error()));
        assert_eq!(errno(&"x".repeat(108)), too_long);
        for path in ["", "a\0b"] {
            assert_eq!(errno(path), Err(Some(Errno::INVAL.raw_os_error())));
        }
        let name = SocketAddress::abstract_name([1; 107]).expect("just fits");
        assert_eq!(name.name().map(<[u8]>::len), Some(107));
        assert!(SocketAddress::abstract_name([1; 108]).is_err());
    }

    #[test]
    fn what_the_kernel_tells_is_cut_to_what_there_is() {
        let mut room = AddressRoom::new();
        let (bytes, len) = room.pointers();
        // SAFETY: both point into the room, which is alive.
        unsafe {
            assert_eq!(len.read(), BYTES_MAX as u32);
            bytes.write_bytes(7, BYTES_MAX);
            len.write(1000);
        }
        assert_eq!(room.address().as_bytes(), [7; BYTES_MAX]);
        assert_eq!(room.address_of(1).as_bytes(), [7]);
    }
}
