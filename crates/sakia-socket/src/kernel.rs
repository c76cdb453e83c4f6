//! The kernel of this process as the host.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt::{set_socket_linger, socket_error};
use rustix::net::{
    AddressFamily, Protocol, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags,
    Shutdown, SocketAddrAny, SocketFlags, SocketType,
};
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::control::{Received, ReceivedMessage, SendControl};
use crate::{Entry, EpollChange, EpollEvent, Events, Host};
use crate::{kernel_messages, kernel_options};

/// Events that one `epoll_wait` reports without a heap allocation.
const FEW: usize = 64;

/// `MSG_ZEROCOPY`: the kernel would read the bytes after the call, when their memory may be reused.
const ZERO_COPY: SendFlags = SendFlags::from_bits_retain(0x400_0000);

/// The kernel that this process runs on: each call is a system call, without a symbol of libc.
///
/// `MSG_ZEROCOPY` is dropped from sends, as by a kernel that does not have it.
///
/// # Examples
/// See [`Socket`](crate::Socket#examples).
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Host for Kernel {
    type Fd = OwnedFd;
    type Memory = Box<[u8]>;

    fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
        protocol: Option<Protocol>,
    ) -> Result<OwnedFd, Errno> {
        rustix::net::socket_with(family, kind, flags, protocol)
    }

    fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, OwnedFd), Errno> {
        rustix::net::socketpair(family, kind, flags, None)
    }

    fn bind(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        rustix::net::bind(fd, address)
    }

    fn listen(&self, fd: &OwnedFd, backlog: i32) -> Result<(), Errno> {
        rustix::net::listen(fd, backlog)
    }

    fn accept(
        &self,
        fd: &OwnedFd,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
        rustix::net::acceptfrom_with(fd, flags)
    }

    fn connect(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        rustix::net::connect(fd, address)
    }

    fn shutdown(&self, fd: &OwnedFd, how: Shutdown) -> Result<(), Errno> {
        rustix::net::shutdown(fd, how)
    }

    fn local_address(&self, fd: &OwnedFd) -> Result<SocketAddrAny, Errno> {
        rustix::net::getsockname(fd)
    }

    fn peer_address(&self, fd: &OwnedFd) -> Result<Option<SocketAddrAny>, Errno> {
        rustix::net::getpeername(fd)
    }

    fn receive(
        &self,
        fd: &OwnedFd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        if let [buffer] = buffers {
            // Cheaper than `recvmsg`, by about a tenth of a small read.
            let (_, bytes, from) = rustix::net::recvfrom(fd, &mut **buffer, flags)?;
            return Ok(Received { bytes, flags: rustix::net::ReturnFlags::empty(), from });
        }
        let message =
            rustix::net::recvmsg(fd, buffers, &mut RecvAncillaryBuffer::default(), flags)?;
        Ok(Received { bytes: message.bytes, flags: message.flags, from: message.address })
    }

    fn send(
        &self,
        fd: &OwnedFd,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let flags = flags - ZERO_COPY;
        match (buffers, to) {
            ([buffer], None) => rustix::net::send(fd, buffer, flags),
            (_, None) => {
                rustix::net::sendmsg(fd, buffers, &mut SendAncillaryBuffer::default(), flags)
            }
            (_, Some(to)) => rustix::net::sendmsg_addr(
                fd,
                to,
                buffers,
                &mut SendAncillaryBuffer::default(),
                flags,
            ),
        }
    }

    fn unread(&self, fd: &OwnedFd) -> Result<u64, Errno> {
        ioctl_fionread(fd)
    }

    fn take_error(&self, fd: &OwnedFd) -> Result<Option<Errno>, Errno> {
        socket_error(fd).map(Result::err)
    }

    fn reset_on_close(&self, fd: &OwnedFd) -> Result<(), Errno> {
        set_socket_linger(fd, Some(Duration::ZERO))
    }

    fn set_option(&self, fd: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        kernel_options::set(fd, level, name, value)
    }

    fn option(
        &self,
        fd: &OwnedFd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Errno> {
        kernel_options::get(fd, level, name, value)
    }

    fn receive_message(
        &self,
        fd: &OwnedFd,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<OwnedFd>, Errno> {
        kernel_messages::receive(fd, buffers, room, flags)
    }

    fn send_message(
        &self,
        fd: &OwnedFd,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, OwnedFd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        kernel_messages::send(fd, buffers, control, flags - ZERO_COPY, to)
    }

    fn disconnect(&self, fd: &OwnedFd) -> Result<(), Errno> {
        rustix::net::connect_unspec(fd)
    }

    fn raise_broken_pipe(&self) {
        // The kernel raises the signal for this thread, as it does for a socket. Without free descriptors
        // there is none.
        if let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
            drop(reader);
            let _ = rustix::io::write(&writer, b"-");
        }
    }

    fn set_nonblocking(&self, fd: &OwnedFd, is_nonblocking: bool) -> Result<(), Errno> {
        let mut flags = fcntl_getfl(fd)?;
        flags.set(OFlags::NONBLOCK, is_nonblocking);
        fcntl_setfl(fd, flags)
    }

    fn wait(
        &self,
        entries: &mut [Entry<'_, OwnedFd>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        // The bits of `Events` are those of `poll(2)`.
        let flags = |events: Events| PollFlags::from_bits_retain(events.0 as u16);
        let mut fds: Vec<PollFd<'_>> =
            entries.iter().map(|entry| PollFd::new(entry.fd, flags(entry.wanted))).collect();
        let count = poll(&mut fds, timeout.and_then(timespec).as_ref())?;
        for (entry, fd) in entries.iter_mut().zip(&fds) {
            entry.ready = Events(fd.revents().bits().into());
        }
        Ok(count)
    }

    fn epoll_create(&self) -> Result<OwnedFd, Errno> {
        epoll::create(epoll::CreateFlags::CLOEXEC)
    }

    fn epoll_control(&self, set: &OwnedFd, change: EpollChange, fd: &OwnedFd) -> Result<(), Errno> {
        let flags = |event: EpollEvent| epoll::EventFlags::from_bits_retain(event.events.0);
        let data = |event: EpollEvent| epoll::EventData::new_u64(event.data);
        match change {
            EpollChange::Add(event) => epoll::add(set, fd, data(event), flags(event)),
            EpollChange::Modify(event) => epoll::modify(set, fd, data(event), flags(event)),
            EpollChange::Delete => epoll::delete(set, fd),
        }
    }

    fn epoll_wait(
        &self,
        set: &OwnedFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let timeout = timeout.and_then(timespec);
        let mut few = [const { MaybeUninit::<epoll::Event>::uninit() }; FEW];
        let mut many = Vec::new();
        let buffer = if events.len() <= FEW {
            &mut few[..events.len()]
        } else {
            many.resize_with(events.len(), MaybeUninit::uninit);
            &mut many[..]
        };
        let (found, _) = epoll::wait(set, buffer, timeout.as_ref())?;
        for (event, found) in events.iter_mut().zip(&*found) {
            let (flags, data) = (found.flags, found.data);
            *event = EpollEvent { events: Events(flags.bits()), data: data.u64() };
        }
        Ok(found.len())
    }

    fn event(&self) -> Result<OwnedFd, Errno> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
    }

    fn signal(&self, event: &OwnedFd) -> Result<(), Errno> {
        rustix::io::write(event, &1_u64.to_ne_bytes()).map(drop)
    }

    fn drain(&self, event: &OwnedFd) -> Result<(), Errno> {
        rustix::io::read(event, &mut [0; 8]).map(drop)
    }

    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let timeout = timeout.and_then(timespec);
        // Whatever ends the wait, the caller checks again.
        let _ = futex::wait(word, futex::Flags::PRIVATE, expected, timeout.as_ref());
    }

    fn unpark(&self, word: &AtomicU32) {
        // It fails only for an invalid address.
        let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
    }

    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn memory(&self, len: usize) -> Box<[u8]> {
        vec![0; len].into()
    }
}

/// Returns the kernel's form of a time; `None`, which means for ever, if the time is out of its range.
fn timespec(duration: Duration) -> Option<Timespec> {
    let tv_sec = duration.as_secs().try_into().ok()?;
    Some(Timespec { tv_sec, tv_nsec: duration.subsec_nanos().into() })
}
