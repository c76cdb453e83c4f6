//! Operations on sockets, in two steps as those in [`ops`](crate::sim::ops).

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags};

use super::{SocketId, Transport};
use crate::address::{Domain, SocketAddress};
use crate::address::{ShutdownHow, SocketType};
use crate::buf::MAX_RW_BYTES;
use crate::call::{Call, Function, SocketCall, System, Verb};
use crate::sim::kernel::{Kernel, Object, OpenFile};
use crate::sim::memory::{Lent, Segment, read_bytes, read_plain, read_vector};
use crate::sim::ops::{Kind, Outcome, Request, note_data};
use crate::sys::Message;

/// The most bytes of an address that the kernel takes.
const ADDRESS_BYTES_MAX: u64 = 128;

const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();
/// What a send may ask for besides. That more is to come means nothing here, and there are no signals.
const SEND_WITHOUT_EFFECT: u32 = SendFlags::MORE.bits() | SendFlags::NOSIGNAL.bits();

/// What to do with a socket.
#[derive(Debug)]
pub(in super::super) enum SocketOp {
    Create {
        domain: Domain,
        kind: SocketType,
        protocol: u32,
    },
    Bind {
        address: SocketAddress,
    },
    Listen {
        backlog: u32,
    },
    /// The peer's address goes to the first `room` bytes lent, and its length behind.
    Accept {
        room: usize,
    },
    Connect {
        address: SocketAddress,
    },
    Send {
        to: Option<SocketAddress>,
        nowait: bool,
    },
    Recv {
        tells: Option<Tells>,
        nowait: bool,
        peeks: bool,
    },
    Shutdown {
        how: ShutdownHow,
    },
    /// Accepts one connection after the other.
    AcceptMultishot,
    /// Receives whenever there is something, into buffers of this group.
    RecvMultishot {
        group: u16,
    },
}

/// Where a receive says more than bytes, in what it was lent: behind the buffers the address, its length,
/// and the flags.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Tells {
    buffers: usize,
    room: usize,
}

/// Checks a call about sockets and takes hold of what it names.
///
/// # Errors
/// What the operation completes with at once.
///
/// # Safety
///
/// - As [`ops::prepare`](crate::sim::ops::prepare).
pub(in super::super) unsafe fn prepare(kernel: &Kernel, call: &Call) -> Result<Request, Errno> {
    let mut lent = Lent::Nothing;
    let (raw, op) = match *call {
        Call::System(System { function, args }) => {
            let [raw, first, second, ..] = args;
            let op = match function {
                Function::Socket => {
                    let domain = u16::try_from(raw).map_err(|_| Errno::AFNOSUPPORT)?;
                    let (domain, kind) = (Domain(domain), SocketType(first as u32));
                    let kind = SocketOp::Create { domain, kind, protocol: second as u32 };
                    return Ok(Request { kind: Kind::Socket(kind), lent, file: None });
                }
                Function::Bind => {
                    // SAFETY: the caller's promise.
                    let address = unsafe { read_address(first as u64, second as u64) }?;
                    SocketOp::Bind { address }
                }
                Function::Listen => SocketOp::Listen { backlog: first as u32 },
                _ => SocketOp::Shutdown {
                    how: match first {
                        0 => ShutdownHow::Receives,
                        1 => ShutdownHow::Sends,
                        2 => ShutdownHow::Both,
                        _ => return Err(Errno::INVAL),
                    },
                },
            };
            (raw as i32, op)
        }
        Call::AcceptMany(SocketCall { raw, .. }) => (raw, SocketOp::AcceptMultishot),
        Call::RecvMany { flags: 1.., .. } => return Err(Errno::OPNOTSUPP),
        Call::RecvMany { group, .. } if !kernel.groups.contains(group) => {
            return Err(Errno::NOBUFS);
        }
        Call::RecvMany { raw, group, .. } => (raw, SocketOp::RecvMultishot { group }),
        Call::Socket(call) => {
            let [addr, second] = call.args.map(|word| word as u64);
            let op = match call.verb {
                Verb::Connect => {
                    // SAFETY: the caller's promise.
                    SocketOp::Connect { address: unsafe { read_address(addr, second) }? }
                }
                Verb::Accept => {
                    let mut room = 0;
                    if addr != 0 {
                        // SAFETY: the caller's promise; the second address is that of the length.
                        room = unsafe { read_plain::<u32>(second) }? as usize;
                        let segments = vec![Segment::new(addr, room), Segment::new(second, 4)];
                        lent = Lent::to_fill(segments)?;
                    }
                    SocketOp::Accept { room }
                }
                _ => {
                    // SAFETY: the caller's promise.
                    let (op, memory) = unsafe { prepare_transfer(&call) }?;
                    lent = memory;
                    op
                }
            };
            (call.raw, op)
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    let (_, file) = kernel.socket_of(raw)?;
    Ok(Request { kind: Kind::Socket(op), lent, file: Some(file) })
}

/// # Safety
///
/// - As [`prepare`].
unsafe fn prepare_transfer(call: &SocketCall) -> Result<(SocketOp, Lent), Errno> {
    let &SocketCall { verb, args: [addr, len], flags, .. } = call;
    let addr = addr as u64;
    let is_send = matches!(verb, Verb::Send | Verb::SendMessage);
    let known = DONT_WAIT | if is_send { SEND_WITHOUT_EFFECT } else { PEEK };
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let (nowait, peeks) = (flags & DONT_WAIT != 0, flags & PEEK != 0);
    let one = || vec![Segment::new(addr, len.min(MAX_RW_BYTES))];
    match verb {
        Verb::Send => Ok((SocketOp::Send { to: None, nowait }, Lent::to_take(one())?)),
        Verb::Recv => Ok((SocketOp::Recv { tells: None, nowait, peeks }, Lent::to_fill(one())?)),
        _ => {
            // SAFETY: the caller's promise; the address is that of a `struct msghdr`.
            let message: Message = unsafe { read_plain(addr) }?;
            let vector = message.vector.expose_provenance() as u64;
            // SAFETY: the caller's promise; the message names a vector of so many parts.
            let mut segments = unsafe { read_vector(vector, message.vector_len as u32) }?;
            let name = message.name.expose_provenance() as u64;
            let len = u64::from(message.name_len);
            if is_send {
                // SAFETY: the caller's promise; the message names an address of that length.
                let to = if name == 0 { None } else { Some(unsafe { read_address(name, len) }?) };
                return Ok((SocketOp::Send { to, nowait }, Lent::to_take(segments)?));
            }
            let buffers = Lent::to_fill(segments.clone())?.len();
            let room = if name == 0 { 0 } else { len as usize };
            let field = |offset: usize| Segment::new(addr + offset as u64, 4);
            segments.push(Segment::new(name, room));
            segments.push(field(std::mem::offset_of!(Message, name_len)));
            segments.push(field(std::mem::offset_of!(Message, flags)));
            let tells = Some(Tells { buffers, room });
            Ok((SocketOp::Recv { tells, nowait, peeks }, Lent::to_fill(segments)?))
        }
    }
}

/// # Errors
/// `EINVAL`, `EFAULT`.
///
/// # Safety
///
/// - Unless `addr` is 0, it is lent memory of `len` bytes.
unsafe fn read_address(addr: u64, len: u64) -> Result<SocketAddress, Errno> {
    if len > ADDRESS_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    Ok(SocketAddress::from_bytes(&unsafe { read_bytes(addr, len as usize) }?))
}

impl SocketOp {
    /// The address that it names.
    pub(in super::super) fn address(&self) -> Option<&SocketAddress> {
        match self {
            Self::Bind { address } | Self::Connect { address } => Some(address),
            Self::Send { to, .. } => to.as_ref(),
            _ => None,
        }
    }

    /// Whether it may wait for ever.
    pub(in super::super) fn may_wait(&self) -> bool {
        match self {
            Self::Accept { .. } | Self::Connect { .. } => true,
            Self::AcceptMultishot | Self::RecvMultishot { .. } => true,
            Self::Send { nowait, .. } | Self::Recv { nowait, .. } => !nowait,
            _ => false,
        }
    }

    /// Whether it moves bytes of a stream or of a datagram.
    pub(in super::super) fn is_transfer(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvMultishot { .. })
    }

    /// Whether it would not have to wait now, with `len` bytes of memory.
    pub(in super::super) fn is_ready(&self, kernel: &Kernel, file: &OpenFile, len: usize) -> bool {
        let Object::Socket(id) = file.object else { return true };
        let sockets = &kernel.sockets;
        match self {
            Self::Accept { .. } | Self::AcceptMultishot => sockets.has_connection(id),
            Self::Connect { address } => sockets.takes_connection(id, address),
            Self::Send { to, .. } => sockets.can_send(id, len, *to),
            Self::Recv { .. } | Self::RecvMultishot { .. } => sockets.can_receive(id),
            _ => true,
        }
    }

    /// Performs it, moving at most `len_max` bytes of a stream.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    pub(in super::super) unsafe fn perform(
        &self,
        kernel: &mut Kernel,
        file: Option<&OpenFile>,
        lent: &Lent,
        len_max: usize,
    ) -> Outcome {
        if let Some(&OpenFile { object: Object::Socket(id), .. }) = file {
            match self {
                Self::AcceptMultishot => return kernel.accept_next(id),
                // SAFETY: a buffer is in its group from when it was provided, which lends it, until a
                // completion names it.
                Self::RecvMultishot { group } => unsafe {
                    return kernel.receive_next(id, *group, len_max);
                },
                _ => {}
            }
        }
        // SAFETY: the caller's promise.
        let result = unsafe { self.try_perform(kernel, file, lent, len_max) };
        let nowait = !self.may_wait();
        match result {
            Ok(None) if nowait => Err(Errno::AGAIN).into(),
            Ok(None) => Outcome::WouldBlock,
            Ok(Some(count)) => {
                kernel.has_changed = true;
                Ok(count).into()
            }
            Err(errno) => Err(errno).into(),
        }
    }

    /// The result; `None` when it has to wait.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    unsafe fn try_perform(
        &self,
        kernel: &mut Kernel,
        file: Option<&OpenFile>,
        lent: &Lent,
        len_max: usize,
    ) -> Result<Option<usize>, Errno> {
        if let Self::Create { domain, kind, protocol } = self {
            return kernel.socket(*domain, *kind, *protocol).map(|raw| Some(raw as usize));
        }
        let Some(&OpenFile { object: Object::Socket(id), .. }) = file else {
            return Err(Errno::NOTSOCK);
        };
        let sockets = &mut kernel.sockets;
        let done = |result: Result<(), Errno>| result.map(|()| Some(0));
        match self {
            Self::Create { .. } => unreachable!("made above, without a file"),
            Self::AcceptMultishot | Self::RecvMultishot { .. } => {
                unreachable!("performed once each")
            }
            Self::Bind { address } => done(sockets.bind(id, *address)),
            Self::Listen { backlog } => done(sockets.listen(id, *backlog)),
            Self::Shutdown { how } => done(sockets.shutdown(id, *how)),
            Self::Connect { address } => Ok(sockets.connect(id, *address)?.then_some(0)),
            Self::Accept { room } => {
                let Some((raw, peer)) = kernel.accept(id)? else { return Ok(None) };
                // SAFETY: the caller's promise.
                unsafe { tell_address(lent, 0, *room, &peer) };
                Ok(Some(raw as usize))
            }
            // SAFETY: the caller's promise.
            Self::Send { to, .. } => unsafe { send(kernel, id, lent, len_max, *to) },
            Self::Recv { tells, peeks, .. } => {
                let buffers = tells.map_or(lent.len(), |tells| tells.buffers);
                let received = receive(kernel, id, buffers.min(len_max), *peeks)?;
                let Some(received) = received else { return Ok(None) };
                // SAFETY: the caller's promise.
                unsafe { received.put(lent, *tells) };
                note_data(kernel, "  received {} bytes {x}", &received.bytes);
                Ok(Some(received.bytes.len()))
            }
        }
    }
}

/// Writes an address, and its length behind the room for it, where that begins at `at`.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn tell_address(lent: &Lent, at: usize, room: usize, address: &SocketAddress) {
    if lent.len() <= at {
        return;
    }
    let bytes = address.as_bytes();
    // SAFETY: the caller's promise, twice.
    unsafe {
        lent.fill_at(at, &bytes[..bytes.len().min(room)]);
        lent.fill_at(at + room, &(bytes.len() as u32).to_ne_bytes());
    }
}

/// Sends, on a stream as much as there is room for. `None` when it has to wait.
///
/// # Safety
///
/// - `lent` is still lent.
unsafe fn send(
    kernel: &mut Kernel,
    id: SocketId,
    lent: &Lent,
    len_max: usize,
    to: Option<SocketAddress>,
) -> Result<Option<usize>, Errno> {
    let sockets = &mut kernel.sockets;
    let len = lent.len().min(MAX_RW_BYTES);
    let transport = sockets.get(id).transport;
    let room = match transport {
        Transport::Datagram => Some(len),
        Transport::Stream if to.is_some() && sockets.get(id).domain == Domain::UNIX => {
            let is_connected = sockets.peer_address(id).is_ok();
            return Err(if is_connected { Errno::ISCONN } else { Errno::OPNOTSUPP });
        }
        Transport::Stream => sockets.stream_room(id, len.min(len_max))?,
    };
    let Some(room) = room else { return Ok(None) };
    // SAFETY: the caller's promise.
    let bytes = unsafe { lent.take(room) };
    match transport {
        Transport::Stream => sockets.stream_send(id, &bytes),
        Transport::Datagram if !sockets.datagram_send(id, &bytes, to)? => return Ok(None),
        Transport::Datagram => {}
    }
    note_data(kernel, "  sent {} bytes {x}", &bytes);
    Ok(Some(bytes.len()))
}

/// What was received.
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    from: SocketAddress,
    is_truncated: bool,
}

impl Received {
    /// Hands it over.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    unsafe fn put(&self, lent: &Lent, tells: Option<Tells>) {
        // SAFETY: the caller's promise, here and below.
        unsafe { lent.fill(&self.bytes) };
        let Some(Tells { buffers, room }) = tells else { return };
        let flags = if self.is_truncated { ReturnFlags::TRUNC } else { ReturnFlags::empty() };
        // SAFETY: as above.
        unsafe {
            tell_address(lent, buffers, room, &self.from);
            lent.fill_at(buffers + room + 4, &flags.bits().to_ne_bytes());
        }
    }
}

/// Takes bytes of a stream or a datagram. `None` when it has to wait.
///
/// # Errors
/// As `recv(2)`.
pub(super) fn receive(
    kernel: &mut Kernel,
    id: SocketId,
    len_max: usize,
    peeks: bool,
) -> Result<Option<Received>, Errno> {
    let sockets = &mut kernel.sockets;
    // On a stream of the network nobody is told.
    let peer = sockets.peer_address(id).ok().filter(|peer| peer.inet().is_none());
    let from = peer.unwrap_or(SocketAddress::UNNAMED);
    Ok(match sockets.get(id).transport {
        Transport::Stream => sockets.stream_receive(id, len_max, peeks)?.map(|bytes| Received {
            bytes,
            from,
            is_truncated: false,
        }),
        Transport::Datagram => sockets.datagram_receive(id, peeks)?.map(|datagram| {
            let mut bytes = datagram.bytes;
            let is_truncated = bytes.len() > len_max;
            bytes.truncate(len_max);
            Received { bytes, from: datagram.from, is_truncated }
        }),
    })
}

impl Kernel {
    /// `read(2)` on a socket. `None` when it has to wait.
    ///
    /// # Errors
    /// As `recv(2)`.
    pub(in super::super) fn socket_read(
        &mut self,
        id: SocketId,
        len_max: usize,
    ) -> Result<Option<Vec<u8>>, Errno> {
        if len_max == 0 {
            return Ok(Some(Vec::new()));
        }
        let received = receive(self, id, len_max, false)?;
        self.has_changed |= received.is_some();
        Ok(received.map(|received| received.bytes))
    }

    /// `write(2)` on a socket, of what was lent. `None` when it has to wait.
    ///
    /// # Errors
    /// As `send(2)`.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    pub(in super::super) unsafe fn socket_write(
        &mut self,
        id: SocketId,
        lent: &Lent,
        len_max: usize,
    ) -> Result<Option<usize>, Errno> {
        // SAFETY: the caller's promise.
        let count = unsafe { send(self, id, lent, len_max, None) }?;
        self.has_changed |= count.is_some();
        Ok(count)
    }

    /// Sends bytes of the test's own, without waiting.
    ///
    /// # Errors
    /// As `send(2)`; `EAGAIN` when it would have to wait.
    pub(in super::super) fn send_bytes(&mut self, raw: i32, bytes: &[u8]) -> Result<usize, Errno> {
        let (id, _) = self.socket_of(raw)?;
        let sockets = &mut self.sockets;
        let count = match sockets.get(id).transport {
            Transport::Datagram => sockets.datagram_send(id, bytes, None)?.then_some(bytes.len()),
            Transport::Stream => sockets.stream_room(id, bytes.len())?,
        };
        let count = count.ok_or(Errno::AGAIN)?;
        if sockets.get(id).transport == Transport::Stream {
            sockets.stream_send(id, &bytes[..count]);
        }
        self.has_changed = true;
        Ok(count)
    }
}

impl super::Sockets {
    /// Whether a send of so many bytes would not wait.
    pub(in super::super) fn can_send(
        &self,
        id: SocketId,
        len: usize,
        to: Option<SocketAddress>,
    ) -> bool {
        match self.get(id).transport {
            Transport::Stream => len == 0 || self.has_room(id),
            Transport::Datagram => self.takes_datagram(id, len, to),
        }
    }

    /// Whether a receive would not wait.
    pub(in super::super) fn can_receive(&self, id: SocketId) -> bool {
        let socket = self.get(id);
        match socket.transport {
            Transport::Stream => self.has_input(id),
            Transport::Datagram => {
                !socket.datagrams.is_empty() || socket.error.is_some() || socket.receives_ended
            }
        }
    }
}
