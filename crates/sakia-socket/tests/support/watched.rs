//! The kernel as the host, with the calls that safe Rust lacks, and with counters.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType,
};
use sakia_socket::{
    Entry, EpollChange, EpollEvent, Host, Kernel, Received, ReceivedMessage, SendControl,
};

#[derive(Debug, Default)]
pub struct Watched {
    /// Calls that receive, send or wait.
    pub calls: AtomicUsize,
    /// Signals for broken pipes.
    pub signals: AtomicUsize,
    /// The options that were set, by level and name.
    pub set: Mutex<Vec<(i32, i32)>>,
    /// The next send that has delayed bytes fails with this errno; 0 for none.
    pub fails: AtomicU32,
    /// The next reading of the clock by the thread that sends delayed bytes is a second old, as if the
    /// thread had slept after it.
    pub is_late: AtomicBool,
    /// The number of times that this thread has slept.
    pub parks: AtomicUsize,
    /// A send takes at most so many bytes; 0 for no limit.
    pub most: AtomicUsize,
    /// The call of the host that fails.
    pub failing: Mutex<Failing>,
}

/// Counts all calls that can fail, and makes one of them do so.
#[derive(Debug, Default)]
pub struct Failing {
    /// The calls so far, but those of the thread that sends delayed bytes.
    pub made: usize,
    /// The number of the call that fails, with this errno.
    pub at: Option<(usize, Errno)>,
    /// Its name.
    pub failed: Option<&'static str>,
}

impl Watched {
    fn count(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Fails if it is the turn of this call.
    fn may(&self, call: &'static str) -> Result<(), Errno> {
        if is_pump() {
            return Ok(());
        }
        let mut failing = self.failing.lock().expect("no panic");
        failing.made += 1;
        match failing.at {
            Some((number, errno)) if number == failing.made => {
                failing.failed = Some(call);
                Err(errno)
            }
            _ => Ok(()),
        }
    }
}

/// `ioctl(SIOCOUTQNSD)`: the number of bytes that TCP has not sent yet; 0x894b on all architectures.
pub const SIOCOUTQNSD: libc::Ioctl = 0x894b;
const SIOCATMARK: libc::Ioctl = 0x8905;

/// Returns the number that one of these requests reads.
pub fn ioctl(fd: &OwnedFd, request: libc::Ioctl) -> Result<i32, Errno> {
    assert!([SIOCOUTQNSD, SIOCATMARK, libc::TIOCOUTQ].contains(&request), "of unknown effect");
    let mut value: libc::c_int = 0;
    // SAFETY: the descriptor is open, and each of these requests writes one number to the address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut value) };
    if result < 0 { Err(last()) } else { Ok(value) }
}

/// Returns whether the congestion window of a TCP socket has room, so that the end of the stream is sent at
/// once.
pub fn has_window(fd: &OwnedFd) -> bool {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes to the structure.
    let result = unsafe {
        let info = info.as_mut_ptr().cast();
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, &raw mut len)
    };
    assert_eq!(result, 0, "{:?}", last());
    // SAFETY: it consists of integers, and is zeroed where the kernel wrote nothing.
    let info = unsafe { info.assume_init() };
    info.tcpi_unacked < info.tcpi_snd_cwnd
}

fn is_pump() -> bool {
    std::thread::current().name() == Some("sakia-pump")
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("an errno")
}

impl Host for Watched {
    type Fd = OwnedFd;
    type Memory = Box<[u8]>;

    fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
        protocol: Option<Protocol>,
    ) -> Result<OwnedFd, Errno> {
        self.may("socket")?;
        Kernel.socket(family, kind, flags, protocol)
    }

    fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, OwnedFd), Errno> {
        self.may("pair")?;
        Kernel.pair(family, kind, flags)
    }

    fn bind(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        self.may("bind")?;
        Kernel.bind(fd, address)
    }

    fn listen(&self, fd: &OwnedFd, backlog: i32) -> Result<(), Errno> {
        self.may("listen")?;
        Kernel.listen(fd, backlog)
    }

    fn accept(
        &self,
        fd: &OwnedFd,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
        self.may("accept")?;
        Kernel.accept(fd, flags)
    }

    fn connect(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        self.may("connect")?;
        Kernel.connect(fd, address)
    }

    fn shutdown(&self, fd: &OwnedFd, how: Shutdown) -> Result<(), Errno> {
        self.may("shutdown")?;
        Kernel.shutdown(fd, how)
    }

    fn local_address(&self, fd: &OwnedFd) -> Result<SocketAddrAny, Errno> {
        self.may("local_address")?;
        Kernel.local_address(fd)
    }

    fn peer_address(&self, fd: &OwnedFd) -> Result<Option<SocketAddrAny>, Errno> {
        self.may("peer_address")?;
        Kernel.peer_address(fd)
    }

    fn receive(
        &self,
        fd: &OwnedFd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        self.may("receive")?;
        self.count();
        Kernel.receive(fd, buffers, flags)
    }

    fn send(
        &self,
        fd: &OwnedFd,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        self.may("send")?;
        self.count();
        if buffers.len() > 1 {
            let errno = self.fails.swap(0, Ordering::Relaxed);
            if errno != 0 {
                return Err(Errno::from_raw_os_error(errno as i32));
            }
        }
        match self.most.load(Ordering::Relaxed) {
            0 => Kernel.send(fd, buffers, flags, to),
            most => {
                let bytes: Vec<u8> =
                    buffers.iter().flat_map(|piece| piece.iter().copied()).collect();
                let taken = &bytes[..bytes.len().min(most)];
                Kernel.send(fd, &[IoSlice::new(taken)], flags, to)
            }
        }
    }

    fn unread(&self, fd: &OwnedFd) -> Result<u64, Errno> {
        self.may("unread")?;
        Kernel.unread(fd)
    }

    fn take_error(&self, fd: &OwnedFd) -> Result<Option<Errno>, Errno> {
        self.may("take_error")?;
        Kernel.take_error(fd)
    }

    fn reset_on_close(&self, fd: &OwnedFd) -> Result<(), Errno> {
        self.may("reset_on_close")?;
        Kernel.reset_on_close(fd)
    }

    fn set_option(&self, fd: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.may("set_option")?;
        self.set.lock().expect("no panic").push((level, name));
        let (bytes, len) = (value.as_ptr().cast(), value.len() as libc::socklen_t);
        // SAFETY: the descriptor is open, the bytes are as many, and the tests set no option with an address.
        let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, bytes, len) };
        if result < 0 { Err(last()) } else { Ok(()) }
    }

    fn option(
        &self,
        fd: &OwnedFd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Errno> {
        self.may("option")?;
        let mut len = value.len() as libc::socklen_t;
        let (bytes, len_at) = (value.as_mut_ptr().cast(), &raw mut len);
        // SAFETY: the descriptor is open, there are as many bytes, and no option of the tests has an address.
        let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, bytes, len_at) };
        if result < 0 { Err(last()) } else { Ok(len as usize) }
    }

    fn receive_message(
        &self,
        fd: &OwnedFd,
        buffers: &mut [IoSliceMut<'_>],
        room: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<OwnedFd>, Errno> {
        self.may("receive_message")?;
        self.count();
        Kernel.receive_message(fd, buffers, room, flags)
    }

    fn send_message(
        &self,
        fd: &OwnedFd,
        buffers: &[IoSlice<'_>],
        control: &[SendControl<'_, OwnedFd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        self.may("send_message")?;
        self.count();
        Kernel.send_message(fd, buffers, control, flags, to)
    }

    fn disconnect(&self, fd: &OwnedFd) -> Result<(), Errno> {
        self.may("disconnect")?;
        Kernel.disconnect(fd)
    }

    fn unsent(&self, fd: &OwnedFd) -> Result<u64, Errno> {
        self.may("unsent")?;
        ioctl(fd, libc::TIOCOUTQ).map(|count| count as u64)
    }

    fn is_at_mark(&self, fd: &OwnedFd) -> Result<bool, Errno> {
        self.may("is_at_mark")?;
        ioctl(fd, SIOCATMARK).map(|is_at_mark| is_at_mark != 0)
    }

    fn raise_broken_pipe(&self) {
        self.signals.fetch_add(1, Ordering::Relaxed);
    }

    fn set_nonblocking(&self, fd: &OwnedFd, is_nonblocking: bool) -> Result<(), Errno> {
        self.may("set_nonblocking")?;
        Kernel.set_nonblocking(fd, is_nonblocking)
    }

    fn wait(
        &self,
        entries: &mut [Entry<'_, OwnedFd>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.may("wait")?;
        self.count();
        Kernel.wait(entries, timeout)
    }

    fn epoll_create(&self) -> Result<OwnedFd, Errno> {
        self.may("epoll_create")?;
        Kernel.epoll_create()
    }

    fn epoll_control(&self, set: &OwnedFd, change: EpollChange, fd: &OwnedFd) -> Result<(), Errno> {
        self.may("epoll_control")?;
        Kernel.epoll_control(set, change, fd)
    }

    fn epoll_wait(
        &self,
        set: &OwnedFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.may("epoll_wait")?;
        Kernel.epoll_wait(set, events, timeout)
    }

    fn event(&self) -> Result<OwnedFd, Errno> {
        self.may("event")?;
        Kernel.event()
    }

    fn signal(&self, event: &OwnedFd) -> Result<(), Errno> {
        self.may("signal")?;
        Kernel.signal(event)
    }

    fn drain(&self, event: &OwnedFd) -> Result<(), Errno> {
        self.may("drain")?;
        Kernel.drain(event)
    }

    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        self.parks.fetch_add(1, Ordering::Relaxed);
        Kernel.park(word, expected, timeout);
    }

    fn unpark(&self, word: &AtomicU32) {
        Kernel.unpark(word);
    }

    fn now(&self) -> Duration {
        let is_late = is_pump() && self.is_late.swap(false, Ordering::Relaxed);
        Kernel.now() - Duration::from_secs(u64::from(is_late))
    }

    fn memory(&self, len: usize) -> Box<[u8]> {
        Kernel.memory(len)
    }
}
