//! Operations on sockets, in two steps as in [`ops`](crate::sim::ops).

use std::mem::offset_of;
use std::rc::Rc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, ReturnFlags, SendFlags};

use super::{Role, SocketId, Transport};
use crate::address::{Domain, SocketAddress};
use crate::address::{ShutdownHow, SocketType};
use crate::buf::MAX_RW_BYTES;
use crate::call::{Call, Function, MessageRooms, SocketCall, System, Verb};
use crate::sim::kernel::{Kernel, Object, OpenFile, Passed};
use crate::sim::memory::{Lent, Segment, read_bytes, read_plain, read_vector};
use crate::sim::ops::{Kind, OpOutcome, PreparedCall, note_data};
use crate::sys::{ControlMessage, Message, array};

/// Maximum number of bytes of an address that the kernel accepts.
const ADDRESS_BYTES_MAX: u64 = 128;

const DONT_WAIT: u32 = RecvFlags::DONTWAIT.bits();
const PEEK: u32 = RecvFlags::PEEK.bits();
/// `MSG_TRUNC`: the result is the whole length of the datagram.
const OF_ALL: u32 = RecvFlags::TRUNC.bits();
/// Without effect: descriptors are never inherited here.
const CLOSE_ON_EXEC: u32 = RecvFlags::CMSG_CLOEXEC.bits();
const SOL_UDP: u32 = 17;
const UDP_SEGMENT: u32 = 103;
/// `SCM_MAX_FD`: maximum number of descriptors in a message.
const PASSED_MAX: usize = 253;
/// Flags of a send without an effect here: `MSG_MORE`, and those about signals.
const SEND_WITHOUT_EFFECT: u32 = SendFlags::MORE.bits() | SendFlags::NOSIGNAL.bits();

/// An operation on a socket.
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
    /// The peer's address goes to the first `room` lent bytes, and its length behind them.
    Accept {
        room: usize,
    },
    Connect {
        address: SocketAddress,
    },
    Send {
        to: Option<SocketAddress>,
        nowait: bool,
        extras: Extras,
    },
    Recv {
        tells: Option<Tells>,
        nowait: bool,
        peeks: bool,
    },
    Shutdown {
        how: ShutdownHow,
    },
    /// Accepts connections one after the other.
    AcceptMultishot,
    /// Receives whenever data has come, into buffers of this group.
    RecvMultishot {
        group: u16,
        /// Set to receive messages, with these rooms in front.
        message: Option<MessageRooms>,
    },
}

/// The data that accompanies the bytes of a send.
#[derive(Debug, Default)]
pub(in super::super) struct Extras {
    /// Open files for the receiver.
    files: Vec<Rc<OpenFile>>,
    /// The size of each datagram into which the bytes are split.
    segment: Option<usize>,
}

/// The places of a receive's other results in its lent memory. Behind the buffers come the address, its
/// length, the flags, control messages, and their length.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Tells {
    buffers: usize,
    room: usize,
    control: usize,
    /// The result is the length of the datagram, even if it is longer than the buffers.
    of_all: bool,
}

/// Checks a call about sockets and resolves its operands.
///
/// # Errors
/// The immediate result of the operation.
///
/// # Safety
///
/// - As [`ops::prepare`](crate::sim::ops::prepare).
pub(in super::super) unsafe fn prepare(
    kernel: &Kernel,
    call: &Call,
) -> Result<PreparedCall, Errno> {
    let mut lent = Lent::Nothing;
    let (raw, op) = match *call {
        Call::System(System { function, args }) => {
            let [raw, first, second, ..] = args;
            let op = match function {
                Function::Socket => {
                    let domain = u16::try_from(raw).map_err(|_| Errno::AFNOSUPPORT)?;
                    let (domain, kind) = (Domain(domain), SocketType(first as u32));
                    let kind = SocketOp::Create { domain, kind, protocol: second as u32 };
                    return Ok(PreparedCall { kind: Kind::Socket(kind), lent, file: None });
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
        Call::RecvMany { flags, .. } if flags & !CLOSE_ON_EXEC != 0 => {
            return Err(Errno::OPNOTSUPP);
        }
        Call::RecvMany { group, .. } if !kernel.groups.contains(group) => {
            return Err(Errno::NOBUFS);
        }
        Call::RecvMany { raw, group, message, .. } => {
            (raw, SocketOp::RecvMultishot { group, message })
        }
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
                    let (op, memory) = unsafe { prepare_transfer(kernel, &call) }?;
                    lent = memory;
                    op
                }
            };
            (call.raw, op)
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    let (_, file) = kernel.socket_of(raw)?;
    Ok(PreparedCall { kind: Kind::Socket(op), lent, file: Some(file) })
}

/// # Safety
///
/// - As [`prepare`].
unsafe fn prepare_transfer(kernel: &Kernel, call: &SocketCall) -> Result<(SocketOp, Lent), Errno> {
    let &SocketCall { verb, args: [addr, len], flags, .. } = call;
    let addr = addr as u64;
    let is_send = matches!(verb, Verb::Send | Verb::SendMessage);
    let known = match verb {
        _ if is_send => DONT_WAIT | SEND_WITHOUT_EFFECT,
        Verb::RecvMessage => DONT_WAIT | PEEK | CLOSE_ON_EXEC | OF_ALL,
        _ => DONT_WAIT | PEEK,
    };
    if flags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let (nowait, peeks) = (flags & DONT_WAIT != 0, flags & PEEK != 0);
    let one = || vec![Segment::new(addr, len.min(MAX_RW_BYTES))];
    match verb {
        Verb::Send => {
            let extras = Extras::default();
            Ok((SocketOp::Send { to: None, nowait, extras }, Lent::to_take(one())?))
        }
        Verb::Recv => Ok((SocketOp::Recv { tells: None, nowait, peeks }, Lent::to_fill(one())?)),
        _ => {
            // SAFETY: the caller's promise; the address is that of a `struct msghdr`.
            let message: Message = unsafe { read_plain(addr) }?;
            let vector = message.vector.expose_provenance() as u64;
            // SAFETY: the caller's promise; the message names a vector of this many parts.
            let mut segments = unsafe { read_vector(vector, message.vector_len as u32) }?;
            let name = message.name.expose_provenance() as u64;
            let len = u64::from(message.name_len);
            if is_send {
                // SAFETY: the caller's promise; the message names an address of that length.
                let to = if name == 0 { None } else { Some(unsafe { read_address(name, len) }?) };
                // SAFETY: the caller's promise; the message names control messages of that length.
                let extras = unsafe { read_extras(kernel, &message) }?;
                return Ok((SocketOp::Send { to, nowait, extras }, Lent::to_take(segments)?));
            }
            let buffers = Lent::to_fill(segments.clone())?.len();
            let room = if name == 0 { 0 } else { len as usize };
            let field = |offset: usize, len| Segment::new(addr + offset as u64, len);
            segments.push(Segment::new(name, room));
            segments.push(field(offset_of!(Message, name_len), 4));
            segments.push(field(offset_of!(Message, flags), 4));
            let control = message.control_len;
            segments.push(Segment::new(message.control.expose_provenance() as u64, control));
            segments.push(field(offset_of!(Message, control_len), size_of::<usize>()));
            let of_all = flags & OF_ALL != 0;
            let tells = Some(Tells { buffers, room, control, of_all });
            Ok((SocketOp::Recv { tells, nowait, peeks }, Lent::to_fill(segments)?))
        }
    }
}

/// Reads control messages, and takes hold of the files that they name.
///
/// # Errors
/// `EFAULT`; `EBADF`: no such descriptor; `EINVAL`: too many.
///
/// # Safety
///
/// - The message names lent memory.
unsafe fn read_extras(kernel: &Kernel, message: &Message) -> Result<Extras, Errno> {
    let control = message.control.expose_provenance() as u64;
    // SAFETY: the caller's promise.
    let bytes = unsafe { read_bytes(control, message.control_len) }?;
    let mut extras = Extras::default();
    for message in ControlMessage::all(&bytes) {
        for raw in message.numbers() {
            extras.files.push(Rc::clone(kernel.file(raw)?));
        }
        if (message.level, message.kind, message.bytes.len()) == (SOL_UDP, UDP_SEGMENT, 2) {
            extras.segment = Some(u16::from_ne_bytes(array(message.bytes, 0)).into());
        }
    }
    if extras.files.len() > PASSED_MAX { Err(Errno::INVAL) } else { Ok(extras) }
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
    /// Returns the address that the operation names.
    pub(in super::super) fn address(&self) -> Option<&SocketAddress> {
        match self {
            Self::Bind { address } | Self::Connect { address } => Some(address),
            Self::Send { to, .. } => to.as_ref(),
            _ => None,
        }
    }

    /// Returns whether the operation may wait for ever.
    pub(in super::super) fn may_wait(&self) -> bool {
        match self {
            Self::Accept { .. } | Self::Connect { .. } => true,
            Self::AcceptMultishot | Self::RecvMultishot { .. } => true,
            Self::Send { nowait, .. } | Self::Recv { nowait, .. } => !nowait,
            _ => false,
        }
    }

    /// Returns whether the operation moves bytes of a stream or of a datagram.
    pub(in super::super) fn is_transfer(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvMultishot { .. })
    }

    /// Returns whether the operation would not have to wait now, with `len` bytes of memory.
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

    /// Performs the operation, moving at most `len_max` bytes of a stream.
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
    ) -> OpOutcome {
        if let Some(&OpenFile { object: Object::Socket(id), .. }) = file {
            match self {
                Self::AcceptMultishot => return kernel.accept_next(id),
                // SAFETY: a buffer is in its group from when it was provided, which lends it, until a
                // completion names it.
                Self::RecvMultishot { group, message: None } => unsafe {
                    return kernel.receive_next(id, *group, len_max);
                },
                // SAFETY: as above.
                &Self::RecvMultishot { group, message: Some(rooms) } => unsafe {
                    return kernel.receive_next_message(id, group, rooms);
                },
                _ => {}
            }
        }
        // SAFETY: the caller's promise.
        let result = unsafe { self.try_perform(kernel, file, lent, len_max) };
        let nowait = !self.may_wait();
        match result {
            Ok(None) if nowait => Err(Errno::AGAIN).into(),
            Ok(None) => OpOutcome::WouldBlock,
            Ok(Some(count)) => {
                kernel.has_changed = true;
                Ok(count).into()
            }
            Err(errno) => Err(errno).into(),
        }
    }

    /// Returns the result; `None` if the operation has to wait.
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
            Self::Send { to, extras, .. } => unsafe {
                send(kernel, id, lent, len_max, *to, extras)
            },
            // As on Linux, where only receives that may wait report it.
            Self::Recv { nowait: true, .. } if sockets.has_no_more_datagrams(id) => Ok(None),
            Self::Recv { tells, peeks, .. } => {
                let buffers = tells.map_or(lent.len(), |tells| tells.buffers);
                let received = receive(kernel, id, buffers, len_max, *peeks)?;
                let Some(received) = received else { return Ok(None) };
                note_data(kernel, "  received {} bytes {x}", &received.bytes);
                // SAFETY: the caller's promise.
                Ok(Some(unsafe { received.put(kernel, lent, *tells) }))
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

/// Sends bytes, on a stream as many as there is room for. `None` if it has to wait.
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
    extras: &Extras,
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
        Transport::Datagram => {
            let is_unix = sockets.get(id).domain == Domain::UNIX;
            let segment = extras.segment.filter(|&its| !is_unix && its > 0 && its < bytes.len());
            for datagram in bytes.chunks(segment.unwrap_or(usize::MAX)) {
                if !sockets.datagram_send(id, datagram, to)? {
                    return Ok(None);
                }
            }
            if bytes.is_empty() && !sockets.datagram_send(id, &bytes, to)? {
                return Ok(None);
            }
        }
    }
    kernel.pass(id, bytes.len(), to, &extras.files);
    note_data(kernel, "  sent {} bytes {x}", &bytes);
    Ok(Some(bytes.len()))
}

/// The result of a receive.
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    from: SocketAddress,
    /// The length of the datagram, if it was longer than the buffer.
    truncated: Option<usize>,
    /// Open files that came with the bytes.
    files: Vec<Rc<OpenFile>>,
}

impl Received {
    /// Writes a multishot receive into a provided buffer: the header, the address and the control messages
    /// in their rooms, and the bytes.
    pub(super) fn into_buffer(self, kernel: &mut Kernel, rooms: MessageRooms) -> Vec<u8> {
        let room = rooms.control as usize;
        let (messages, flags) = tell_files(kernel, self.files, self.truncated.is_some(), room);
        let name = self.from.as_bytes();
        let facts = [name.len(), messages.len(), self.bytes.len(), flags.bits() as usize];
        let mut all: Vec<u8> = facts.iter().flat_map(|&its| (its as u32).to_ne_bytes()).collect();
        all.extend(&name[..name.len().min(rooms.name as usize)]);
        all.resize(rooms.control_at(), 0);
        all.extend(messages);
        all.resize(rooms.payload_at(), 0);
        all.extend(self.bytes);
        all
    }

    /// Writes the result to the lent memory. Returns the number of bytes.
    ///
    /// # Safety
    ///
    /// - `lent` is still lent.
    unsafe fn put(self, kernel: &mut Kernel, lent: &Lent, tells: Option<Tells>) -> usize {
        // SAFETY: the caller's promise, here and below.
        unsafe { lent.fill(&self.bytes) };
        let Some(Tells { buffers, room, control, of_all }) = tells else { return self.bytes.len() };
        let is_truncated = self.truncated.is_some();
        let (messages, flags) = tell_files(kernel, self.files, is_truncated, control);
        let flags_at = buffers + room + 4;
        // SAFETY: as above.
        unsafe {
            tell_address(lent, buffers, room, &self.from);
            lent.fill_at(flags_at, &flags.bits().to_ne_bytes());
            lent.fill_at(flags_at + 4, &messages);
            lent.fill_at(flags_at + 4 + control, &messages.len().to_ne_bytes());
        }
        self.truncated.filter(|_| of_all).unwrap_or(self.bytes.len())
    }
}

/// Installs files as descriptors, as far as `room` bytes of control messages allow. Returns the control
/// messages that name them, and the flags.
fn tell_files(
    kernel: &mut Kernel,
    files: Vec<Rc<OpenFile>>,
    is_truncated: bool,
    room: usize,
) -> (Vec<u8>, ReturnFlags) {
    let sent = files.len();
    let numbers = kernel.take_over(files, room);
    let mut flags = ReturnFlags::empty();
    flags.set(ReturnFlags::TRUNC, is_truncated);
    flags.set(ReturnFlags::CTRUNC, numbers.len() < sent);
    let mut messages = Vec::new();
    if !numbers.is_empty() {
        let numbers: Vec<u8> = numbers.into_iter().flat_map(i32::to_ne_bytes).collect();
        ControlMessage::rights(&numbers).put(&mut messages);
        messages.truncate(room); // of the padding
    }
    (messages, flags)
}

/// Takes a datagram, or at most `len_max` bytes of a stream, into a memory of `room` bytes. `None` if it has
/// to wait.
///
/// # Errors
/// As `recv(2)`.
pub(super) fn receive(
    kernel: &mut Kernel,
    id: SocketId,
    room: usize,
    len_max: usize,
    peeks: bool,
) -> Result<Option<Received>, Errno> {
    let sockets = &mut kernel.sockets;
    // On a network stream no address is reported.
    let peer = sockets.peer_address(id).ok().filter(|peer| peer.inet().is_none());
    let from = peer.unwrap_or(SocketAddress::UNNAMED);
    Ok(match sockets.get(id).transport {
        Transport::Stream => {
            let len_max = len_max.min(room);
            // A receive ends with the bytes with which files were sent.
            let first = kernel.passed.iter().find(|passed| passed.to == id);
            let end = first.filter(|first| first.place.start < len_max).map(|it| it.place.end);
            let len_max = len_max.min(end.unwrap_or(len_max));
            let received = sockets.stream_receive(id, len_max, peeks)?;
            received.map(|bytes| {
                let files = kernel.take_passed(id, bytes.len(), peeks);
                Received { bytes, from, truncated: None, files }
            })
        }
        Transport::Datagram => sockets.datagram_receive(id, peeks)?.map(|datagram| {
            let mut bytes = datagram.bytes;
            let truncated = Some(bytes.len()).filter(|&len| len > room);
            bytes.truncate(room);
            let files = kernel.take_passed(id, 1, peeks);
            Received { bytes, from: datagram.from, truncated, files }
        }),
    })
}

// Plain calls that do not wait.
impl Kernel {
    /// Sends bytes on a stream as far as there is room.
    ///
    /// # Errors
    /// As `send(2)`.
    pub(in super::super) fn send_at_once(
        &mut self,
        id: SocketId,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let count = self.sockets.stream_room(id, bytes.len())?.ok_or(Errno::AGAIN)?;
        self.sockets.stream_send(id, &bytes[..count]);
        self.has_changed = true;
        Ok(count)
    }

    /// Takes bytes, without files that were sent with them.
    ///
    /// # Errors
    /// As `recv(2)`.
    pub(in super::super) fn receive_at_once(
        &mut self,
        id: SocketId,
        len_max: usize,
    ) -> Result<Vec<u8>, Errno> {
        let received = receive(self, id, len_max, len_max, false)?.ok_or(Errno::AGAIN)?;
        self.has_changed = true;
        Ok(received.bytes)
    }
}

// Open files in transit.
impl Kernel {
    /// Sends open files with the last `count` bytes that were sent. Only sockets within the machine pass them
    /// on.
    fn pass(
        &mut self,
        from: SocketId,
        len: usize,
        to: Option<SocketAddress>,
        files: &[Rc<OpenFile>],
    ) {
        let socket = self.sockets.get(from);
        if files.is_empty() || socket.domain != Domain::UNIX {
            return;
        }
        let named = |name| self.sockets.find(socket.domain, Transport::Datagram, &name);
        let (to, units) = match (to, &socket.role) {
            (_, Role::Connected(peer)) if socket.transport == Transport::Stream => {
                (Some(*peer), len)
            }
            (Some(name), _) | (None, &Role::Directed(name)) => (named(name), 1),
            (None, Role::Connected(peer)) => (Some(*peer), 1),
            _ => (None, 0),
        };
        let Some(to) = to.filter(|_| units > 0) else { return };
        let receiver = self.sockets.get(to);
        let end = match receiver.transport {
            Transport::Stream => receiver.bytes.len(),
            Transport::Datagram => receiver.datagrams.len(),
        };
        self.passed.push(Passed { to, place: end - units..end, files: files.to_vec() });
        self.note("  {} files along", &[files.len() as i64]);
    }

    /// Takes the files that came with the first `count` bytes of a stream, or with the first datagram.
    fn take_passed(&mut self, to: SocketId, count: usize, peeks: bool) -> Vec<Rc<OpenFile>> {
        let is_taken = |passed: &Passed| passed.to == to && passed.place.start < count;
        let taken = self.passed.iter().filter(|passed| is_taken(passed));
        let files = taken.flat_map(|passed| passed.files.iter().cloned()).collect();
        if !peeks {
            self.passed.retain(|passed| !is_taken(passed));
            for Passed { place, .. } in self.passed.iter_mut().filter(|passed| passed.to == to) {
                *place = place.start - count..place.end - count;
            }
        }
        files
    }

    /// Installs files as descriptors, as far as the room in bytes and the table allow.
    fn take_over(&mut self, files: Vec<Rc<OpenFile>>, room: usize) -> Vec<i32> {
        let fitting = room.saturating_sub(ControlMessage::space(0)) / size_of::<i32>();
        let install = |file| self.install(file).ok().map(|(raw, _)| raw);
        files.into_iter().take(fitting).map_while(install).collect()
    }

    /// Closes files in transit to sockets that are gone, which may be the last references to other sockets.
    pub(in super::super) fn drop_undelivered(&mut self) {
        loop {
            let sockets = &self.sockets;
            let is_lost = |passed: &mut Passed| sockets.is_gone(passed.to);
            if self.passed.extract_if(.., is_lost).count() == 0 {
                return;
            }
        }
    }
}

impl Kernel {
    /// Performs `read(2)` on a socket. `None` if it has to wait.
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
        let received = receive(self, id, len_max, len_max, false)?;
        self.has_changed |= received.is_some();
        Ok(received.map(|received| received.bytes))
    }

    /// Performs `write(2)` of lent memory on a socket. `None` if it has to wait.
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
        let count = unsafe { send(self, id, lent, len_max, None, &Extras::default()) }?;
        self.has_changed |= count.is_some();
        Ok(count)
    }

    /// Sends bytes of a test, without waiting.
    ///
    /// # Errors
    /// As `send(2)`; `EAGAIN` if it would have to wait.
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
    /// Returns whether a send of this number of bytes would not wait.
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

    /// Returns whether a receive would not wait.
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
