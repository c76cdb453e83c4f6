//! Addresses and control messages, in the kernel's form.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};
use std::ffi::OsStr;
use std::ffi::c_void;
use std::mem::offset_of;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use sakia_driver::{
    Buffer, ControlMessages, Domain, FileHandle, Foreign, Received, ReceivedControl, SocketAddress,
    limits,
};

use crate::file::{check_memory, duplicate};
use crate::guard::Failure;

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const SCM_PIDFD: u32 = 4;
const MSG_CTRUNC: i32 = 0x08;
const MSG_TRUNC: i32 = 0x20;

/// The kernel's `struct msghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Header {
    name: *mut u8,
    name_len: u32,
    iov: *const Part,
    parts: usize,
    control: *mut u8,
    control_len: usize,
    flags: i32,
}

/// The kernel's `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Part {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
}

/// The kernel's `struct cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ControlHeader {
    len: usize,
    level: u32,
    kind: u32,
}

const HEADER: usize = size_of::<ControlHeader>();

const _: () = assert!(size_of::<Header>() == 56 && size_of::<Part>() == 16 && HEADER == 16);

impl Header {
    /// Copies the structure of a request.
    ///
    /// # Safety
    ///
    /// - `at` is null, or `len` bytes are readable there.
    pub(crate) unsafe fn read(at: *const c_void, len: usize) -> Result<Self, Failure> {
        if at.is_null() {
            return Err(Failure::null("the struct msghdr"));
        }
        if len != size_of::<Self>() {
            return Err(Failure::invalid(format_args!("a struct msghdr of {len} bytes")));
        }
        // SAFETY: not null, so readable.
        let header = unsafe { at.cast::<Self>().read_unaligned() };
        check_memory(header.name, header.name_len as usize)?;
        check_memory(header.control, header.control_len)?;
        match (header.parts, header.iov.is_null()) {
            (0, _) | (1, false) => Ok(header),
            (_, true) => Err(Failure::null("the buffers of a message")),
            (parts, false) => {
                Err(Failure::new(Errno::OPNOTSUPP, format_args!("a message of {parts} buffers")))
            }
        }
    }

    /// Returns the message's memory.
    ///
    /// # Safety
    ///
    /// - The memory that the header names is lent to the library until the result was taken.
    pub(crate) unsafe fn buffer(&self) -> Result<Buffer, Failure> {
        let mut part = Part { base: std::ptr::null_mut(), len: 0 };
        if self.parts > 0 {
            // SAFETY: there is one, as the header says.
            part = unsafe { self.iov.read_unaligned() };
        }
        check_memory(part.base, part.len)?;
        // SAFETY: the caller's promise.
        Ok(Buffer::Foreign(unsafe { Foreign::new(part.base, part.len) }))
    }

    pub(crate) fn control_len(&self) -> usize {
        self.control_len
    }

    /// Returns the address to send to.
    ///
    /// # Safety
    ///
    /// - So many bytes are readable there.
    pub(crate) unsafe fn address(&self) -> Result<SocketAddress, Failure> {
        if self.name_len == 0 {
            return Ok(SocketAddress::UNNAMED);
        }
        // SAFETY: the caller's promise.
        unsafe { address(self.name, self.name_len as usize) }
    }

    /// Returns a copy of the control messages to send, with duplicates of the descriptors.
    ///
    /// # Safety
    ///
    /// - So many bytes are readable there.
    pub(crate) unsafe fn control(&self) -> Result<ControlMessages<FileHandle>, Failure> {
        let mut all = ControlMessages::of_request();
        if self.control_len == 0 {
            return Ok(all);
        }
        if self.control_len > limits::CONTROL_BYTES_MAX {
            let text = format_args!("{} bytes of control messages", self.control_len);
            return Err(Failure::invalid(text));
        }
        // SAFETY: the caller's promise.
        let mut bytes =
            unsafe { std::slice::from_raw_parts(self.control, self.control_len) }.to_vec();
        let mut rest = &mut bytes[..];
        while rest.len() >= HEADER {
            // SAFETY: there are enough bytes.
            let header = unsafe { rest.as_ptr().cast::<ControlHeader>().read_unaligned() };
            if header.len < HEADER || header.len > rest.len() {
                return Err(Failure::invalid(format_args!(
                    "a control message of {} bytes",
                    header.len
                )));
            }
            let content = &rest[HEADER..header.len];
            if (header.level, header.kind) == (SOL_SOCKET, SCM_RIGHTS) {
                for number in content.chunks_exact(4) {
                    let number = i32::from_ne_bytes([number[0], number[1], number[2], number[3]]);
                    all = all.file(&duplicate(number)?);
                }
            } else {
                let added = all.plain(header.level, header.kind, content);
                let (level, kind) = (header.level, header.kind);
                all = added.map_err(|_| {
                    Failure::invalid(format_args!(
                        "a control message of level {level}, type {kind}"
                    ))
                })?;
            }
            let next = header.len.next_multiple_of(8).min(rest.len());
            rest = &mut rest[next..];
        }
        Ok(all)
    }
}

/// Returns a copy of an address of the program's.
///
/// # Safety
///
/// - `at` is null, or so many bytes are readable there.
pub(crate) unsafe fn address(at: *const u8, len: usize) -> Result<SocketAddress, Failure> {
    check_memory(at, len)?;
    if !(2..=128).contains(&len) {
        return Err(Failure::invalid(format_args!("an address of {len} bytes")));
    }
    // SAFETY: not null, and the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
    let family = Domain(u16::from_ne_bytes([bytes[0], bytes[1]]));
    let short =
        || Failure::invalid(format_args!("{len} bytes are too few for an address of its family"));
    match family {
        Domain::INET => {
            let bytes: [u8; 8] =
                bytes.get(..8).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
            let [_, _, p, q, ip @ ..] = bytes;
            let inet = SocketAddrV4::new(Ipv4Addr::from(ip), u16::from_be_bytes([p, q]));
            Ok(SocketAddr::V4(inet).into())
        }
        Domain::INET6 => {
            let field = |at: usize| -> Result<[u8; 4], Failure> {
                bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).ok_or_else(short)
            };
            let ip: [u8; 16] =
                bytes.get(8..24).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
            let (port, flow, scope) = (field(0)?, field(4)?, field(24)?);
            let port = u16::from_be_bytes([port[2], port[3]]);
            let (flow, scope) = (u32::from_ne_bytes(flow), u32::from_ne_bytes(scope));
            Ok(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope)).into())
        }
        Domain::UNIX => {
            let path = &bytes[2..];
            let made = match path.split_first() {
                None => return Err(Failure::invalid("an address without a name")),
                Some((0, name)) => SocketAddress::abstract_name(name),
                Some(_) => {
                    let end = path.iter().position(|&byte| byte == 0).unwrap_or(path.len());
                    SocketAddress::unix(OsStr::from_bytes(&path[..end]))
                }
            };
            made.map_err(|error| Failure::of("an address", &error))
        }
        Domain(family) => {
            Err(Failure::new(Errno::AFNOSUPPORT, format_args!("an address of the family {family}")))
        }
    }
}

/// Fills in the structure of a request that has received a datagram.
///
/// # Safety
///
/// - It and the memory that it names are valid for writes.
pub(crate) unsafe fn fill(
    at: *mut c_void,
    received: &Received,
    control: ReceivedControl<FileHandle>,
) {
    let at = at.cast::<Header>();
    // SAFETY: the caller's promise.
    let mut header = unsafe { at.read_unaligned() };
    let from = received.from.as_bytes();
    if !header.name.is_null() {
        let count = from.len().min(header.name_len as usize);
        // SAFETY: the caller's promise: so many bytes fit.
        unsafe { header.name.copy_from_nonoverlapping(from.as_ptr(), count) };
    }
    header.name_len = from.len() as u32;
    let mut is_cut = received.is_control_truncated || control.is_truncated;
    let mut room = ControlRoom { at: header.control, left: header.control_len, filled: 0 };
    for message in control.messages() {
        // SAFETY: as above.
        is_cut |= !unsafe { room.put(message.level, message.kind, message.bytes) };
    }
    let owned = |file: FileHandle| file.into_owned().ok();
    let process = control.process.and_then(owned);
    let rights: Vec<OwnedFd> = control.descriptors.into_iter().filter_map(owned).collect();
    for (kind, fds) in [(SCM_RIGHTS, rights), (SCM_PIDFD, process.into_iter().collect())] {
        if fds.is_empty() {
            continue;
        }
        if ControlRoom::bytes(4 * fds.len()) > room.left {
            is_cut = true; // they are closed
            continue;
        }
        let numbers: Vec<u8> =
            fds.into_iter().flat_map(|fd| fd.into_raw_fd().to_ne_bytes()).collect();
        // SAFETY: as above.
        unsafe { room.put(SOL_SOCKET, kind, &numbers) };
    }
    header.control_len = room.filled;
    header.flags = 0;
    if received.is_truncated {
        header.flags |= MSG_TRUNC;
    }
    if is_cut {
        header.flags |= MSG_CTRUNC;
    }
    // SAFETY: the caller's promise.
    unsafe { at.write_unaligned(header) };
}

/// Memory for control messages.
struct ControlRoom {
    at: *mut u8,
    left: usize,
    filled: usize,
}

impl ControlRoom {
    /// Returns the bytes of a message without the padding behind it.
    fn bytes(content: usize) -> usize {
        HEADER + content
    }

    /// Adds a message, if it fits.
    ///
    /// # Safety
    ///
    /// - The memory is valid for writes.
    unsafe fn put(&mut self, level: u32, kind: u32, content: &[u8]) -> bool {
        let len = Self::bytes(content.len());
        if len > self.left {
            return false;
        }
        let taken = len.next_multiple_of(8).min(self.left);
        // SAFETY: the caller's promise: there is room for `taken` bytes, the header and the content among
        // them.
        unsafe {
            self.at.write_bytes(0, taken);
            self.at.cast::<ControlHeader>().write_unaligned(ControlHeader { len, level, kind });
            let to = self.at.add(offset_of!(ControlHeader, kind) + 4);
            to.copy_from_nonoverlapping(content.as_ptr(), content.len());
            self.at = self.at.add(taken);
        }
        self.left -= taken;
        self.filled += taken;
        true
    }
}
