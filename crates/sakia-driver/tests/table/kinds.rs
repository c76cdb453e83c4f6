//! Kinds of descriptors, each in a stated condition.

use std::any::Any;
use std::ffi::CString;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, inotify};
use rustix::io::Errno;
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use sakia_ring::Ring;

/// A descriptor, and the objects that keep its condition.
pub struct Subject {
    pub fd: OwnedFd,
    /// Peers, watched files and the like.
    _others: Vec<Box<dyn Any>>,
}

impl Subject {
    fn alone(fd: impl Into<OwnedFd>) -> Self {
        Self { fd: fd.into(), _others: Vec::new() }
    }

    fn with(fd: impl Into<OwnedFd>, other: impl Any) -> Self {
        Self { fd: fd.into(), _others: vec![Box::new(other)] }
    }
}

/// A kind of descriptors.
pub struct Kind {
    pub name: &'static str,
    /// Makes a fresh one in the same condition.
    ///
    /// # Errors
    /// This machine does not offer it.
    pub make: fn() -> Result<Subject, Errno>,
}

/// Bytes of the regular files.
pub const CONTENT: &[u8] = b"0123456789abcdef";

/// The next number in the name of a file.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

/// A path that is removed with the value.
pub struct Name(pub PathBuf);

impl Name {
    /// Returns a new path on the file system of the build's directory.
    pub fn on_disk() -> Self {
        Self::within(PathBuf::from(env!("CARGO_TARGET_TMPDIR")))
    }

    /// Returns a new path on a file system in memory.
    fn in_memory() -> Self {
        Self::within(PathBuf::from("/dev/shm"))
    }

    fn within(directory: PathBuf) -> Self {
        let number = NEXT_NAME.fetch_add(1, Ordering::Relaxed);
        Self(directory.join(format!("sakia-table-{}-{number}", std::process::id())))
    }

    fn text(&self) -> CString {
        CString::new(self.0.to_str().expect("it is ours")).expect("it has no NUL")
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if fs::remove_file(&self.0).is_err() {
            fs::remove_dir_all(&self.0).ok();
        }
    }
}

/// Returns the errno of an error of `std`.
fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).expect("it failed with an errno")
}

/// Opens a file with [`CONTENT`].
pub fn file(name: &Name, flags: OFlags) -> Result<OwnedFd, Errno> {
    fs::write(&name.0, CONTENT).map_err(errno)?;
    rustix::fs::open(name.text(), flags | OFlags::CLOEXEC, Mode::empty())
}

fn regular(name: Name, flags: OFlags) -> Result<Subject, Errno> {
    Ok(Subject::with(file(&name, flags)?, name))
}

fn path(path: &str, flags: OFlags) -> Result<Subject, Errno> {
    Ok(Subject::alone(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?))
}

fn directory() -> Name {
    let name = Name::on_disk();
    fs::create_dir(&name.0).expect("a directory can be made");
    fs::write(name.0.join("within"), CONTENT).expect("so can a file");
    name
}

fn fifo(flags: OFlags) -> Result<Subject, Errno> {
    let name = Name::on_disk();
    rustix::fs::mknodat(rustix::fs::CWD, &*name.text(), FileType::Fifo, Mode::RWXU, 0)?;
    Ok(Subject::with(rustix::fs::open(name.text(), flags | OFlags::CLOEXEC, Mode::empty())?, name))
}

/// Makes a pipe. Returns its read end and its write end.
pub fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).expect("there are pipes")
}

fn fill(writer: &OwnedFd) {
    rustix::io::ioctl_fionbio(writer, true).expect("it has a mode");
    while rustix::io::write(writer, &[7; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(writer, false).expect("it has a mode");
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port is there")
}

/// Makes two connected streams.
pub fn streams() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("there are sockets")
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = listener();
    let address = listener.local_addr().expect("it has one");
    let near = TcpStream::connect(address).expect("it listens");
    (near, listener.accept().expect("it was connected").0)
}

fn new_socket(family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(family, kind, SocketFlags::CLOEXEC, None)
}

fn udp() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port is there")
}

fn udp_pair() -> (UdpSocket, UdpSocket) {
    let (near, far) = (udp(), udp());
    let addresses = [&near, &far].map(|socket| socket.local_addr().expect("it has one"));
    near.connect(addresses[1]).expect("it is there");
    far.connect(addresses[0]).expect("it is there");
    (near, far)
}

fn terminal() -> Result<(OwnedFd, OwnedFd), Errno> {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&controller)?;
    let user = ioctl_tiocgptpeer(
        &controller,
        OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC,
    )?;
    Ok((controller, user))
}

fn timer(is_over: bool) -> Result<Subject, Errno> {
    let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
    if is_over {
        let now = Timespec { tv_sec: 0, tv_nsec: 1 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval: never, it_value: now };
        timerfd_settime(&fd, TimerfdTimerFlags::ABSTIME, &value)?;
    }
    Ok(Subject::alone(fd))
}

fn signals() -> Result<Subject, Errno> {
    let none = [0_u64; 16];
    // SAFETY: the mask, which is empty, outlives the call; the descriptor has just been made for it.
    unsafe {
        let raw = libc::signalfd(-1, none.as_ptr().cast(), libc::SFD_CLOEXEC);
        if raw < 0 { Err(Errno::IO) } else { Ok(Subject::alone(OwnedFd::from_raw_fd(raw))) }
    }
}

fn set(is_ready: bool) -> Result<Subject, Errno> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (reader, writer) = pipe();
    epoll::add(&set, &reader, EventData::new_u64(1), EventFlags::IN)?;
    if is_ready {
        rustix::io::write(&writer, b"x")?;
    }
    Ok(Subject::with(set, (reader, writer)))
}

fn count(value: u32) -> Result<OwnedFd, Errno> {
    eventfd(value, EventfdFlags::CLOEXEC)
}

fn ring() -> Result<Subject, Errno> {
    let ring = Ring::builder().sq_entries(2).cq_entries(4).build();
    let ring = ring
        .map_err(|error| Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::ENOSYS)))?;
    let fd = rustix::io::fcntl_dupfd_cloexec(ring.as_fd(), 0)?;
    Ok(Subject::with(fd, ring))
}

macro_rules! kinds {
    ($($name:literal: $make:expr;)*) => {
        pub const KINDS: &[Kind] = &[$(Kind { name: $name, make: || $make },)*];
    };
}

kinds! {
    "file": regular(Name::on_disk(), OFlags::RDWR);
    "file in memory": regular(Name::in_memory(), OFlags::RDWR);
    "file, to read": regular(Name::on_disk(), OFlags::RDONLY);
    "file, to write": regular(Name::on_disk(), OFlags::WRONLY);
    "file, its path": regular(Name::on_disk(), OFlags::PATH);
    "file, to append": regular(Name::on_disk(), OFlags::RDWR | OFlags::APPEND);
    "file, direct": regular(Name::on_disk(), OFlags::RDWR | OFlags::DIRECT);
    "file, non-blocking": regular(Name::on_disk(), OFlags::RDWR | OFlags::NONBLOCK);
    "directory": {
        let name = directory();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Subject::with(rustix::fs::open(name.text(), flags, Mode::empty())?, name))
    };
    "directory, its path": {
        let name = directory();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Subject::with(rustix::fs::open(name.text(), flags, Mode::empty())?, name))
    };
    "FIFO": fifo(OFlags::RDWR);
    "FIFO, to read": fifo(OFlags::RDONLY | OFlags::NONBLOCK);
    "FIFO, its path": fifo(OFlags::PATH);
    "pipe, read end": {
        let (reader, writer) = pipe();
        Ok(Subject::with(reader, writer))
    };
    "pipe, read end with bytes": {
        let (reader, writer) = pipe();
        rustix::io::write(&writer, CONTENT)?;
        Ok(Subject::with(reader, writer))
    };
    "pipe, read end without writers": Ok(Subject::alone(pipe().0));
    "pipe, non-blocking read end": {
        let (reader, writer) = pipe();
        rustix::io::ioctl_fionbio(&reader, true)?;
        Ok(Subject::with(reader, writer))
    };
    "pipe, write end": {
        let (reader, writer) = pipe();
        Ok(Subject::with(writer, reader))
    };
    "pipe, full write end": {
        let (reader, writer) = pipe();
        fill(&writer);
        Ok(Subject::with(writer, reader))
    };
    "pipe, write end without readers": Ok(Subject::alone(pipe().1));
    "stream": {
        let (near, far) = streams();
        Ok(Subject::with(near, far))
    };
    "stream with bytes": {
        let (near, mut far) = streams();
        far.write_all(CONTENT).map_err(errno)?;
        Ok(Subject::with(near, far))
    };
    "stream without peer": Ok(Subject::alone(streams().0));
    "stream, full": {
        let (near, far) = streams();
        let near = OwnedFd::from(near);
        fill(&near);
        Ok(Subject::with(near, far))
    };
    "stream, non-blocking": {
        let (near, far) = streams();
        near.set_nonblocking(true).map_err(errno)?;
        Ok(Subject::with(near, far))
    };
    "stream, unconnected": Ok(Subject::alone(new_socket(AddressFamily::UNIX, SocketType::STREAM)?));
    "stream, listening": {
        let name = Name::on_disk();
        let path = format!("/tmp/{}", name.0.file_name().expect("it has one").display());
        let listener = UnixListener::bind(&path).map_err(errno)?;
        Ok(Subject::with(listener, Name(path.into())))
    };
    "TCP": {
        let (near, far) = tcp();
        Ok(Subject::with(near, far))
    };
    "TCP with bytes": {
        let (near, mut far) = tcp();
        far.write_all(CONTENT).map_err(errno)?;
        Ok(Subject::with(near, far))
    };
    "TCP, unconnected": Ok(Subject::alone(new_socket(AddressFamily::INET, SocketType::STREAM)?));
    "TCP, listening": Ok(Subject::alone(listener()));
    "TCP, listening, with a connection": {
        let listener = listener();
        let near = TcpStream::connect(listener.local_addr().map_err(errno)?).map_err(errno)?;
        Ok(Subject::with(listener, near))
    };
    "UDP": Ok(Subject::alone(udp()));
    "UDP, connected": {
        let (near, far) = udp_pair();
        Ok(Subject::with(near, far))
    };
    "UDP, connected, with a datagram": {
        let (near, far) = udp_pair();
        far.send(CONTENT).map_err(errno)?;
        Ok(Subject::with(near, far))
    };
    "local datagrams": {
        let (near, far) = UnixDatagram::pair().map_err(errno)?;
        Ok(Subject::with(near, far))
    };
    "local datagrams, unbound": Ok(Subject::alone(UnixDatagram::unbound().map_err(errno)?));
    "packets": {
        let kind = SocketType::SEQPACKET;
        let (near, far) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        Ok(Subject::with(near, far))
    };
    "netlink": {
        let socket = new_socket(AddressFamily::NETLINK, SocketType::RAW)?;
        Ok(Subject::alone(socket))
    };
    "eventfd": Ok(Subject::alone(count(0)?));
    "eventfd with a count": Ok(Subject::alone(count(3)?));
    "eventfd, full": {
        let fd = count(0)?;
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes())?;
        Ok(Subject::alone(fd))
    };
    "timerfd": timer(false);
    "timerfd, expired": timer(true);
    "signalfd": signals();
    "inotify": Ok(Subject::alone(inotify::init(inotify::CreateFlags::CLOEXEC)?));
    "inotify with an event": {
        let name = directory();
        let fd = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, name.text(), inotify::WatchFlags::CREATE)?;
        fs::write(name.0.join("another"), b"").map_err(errno)?;
        Ok(Subject::with(fd, name))
    };
    "epoll set": set(false);
    "epoll set with an event": set(true);
    "pidfd": Ok(Subject::alone(pidfd_open(getpid(), PidfdFlags::empty())?));
    "pidfd of an ended process": {
        let mut child = std::process::Command::new("true").spawn().map_err(errno)?;
        let pid = rustix::process::Pid::from_child(&child);
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        child.wait().map_err(errno)?;
        Ok(Subject::alone(fd))
    };
    "memfd": {
        let fd = rustix::fs::memfd_create("table", MemfdFlags::CLOEXEC)?;
        rustix::io::pwrite(&fd, CONTENT, 0)?;
        Ok(Subject::alone(fd))
    };
    "/dev/null": path("/dev/null", OFlags::RDWR);
    "/dev/zero": path("/dev/zero", OFlags::RDWR);
    "/dev/full": path("/dev/full", OFlags::RDWR);
    "/dev/urandom, to write": path("/dev/urandom", OFlags::WRONLY);
    "terminal, controlling side": {
        let (controller, user) = terminal()?;
        Ok(Subject::with(controller, user))
    };
    "terminal, controlling side, with bytes": {
        let (controller, user) = terminal()?;
        rustix::io::write(&user, b"0123456789\n")?;
        Ok(Subject::with(controller, user))
    };
    "terminal, controlling side, abandoned": Ok(Subject::alone(terminal()?.0));
    "terminal": {
        let (controller, user) = terminal()?;
        Ok(Subject::with(user, controller))
    };
    "terminal with a line": {
        let (controller, user) = terminal()?;
        rustix::io::write(&controller, b"0123456789\n")?;
        Ok(Subject::with(user, controller))
    };
    "terminal, hung up": Ok(Subject::alone(terminal()?.1));
    "/proc/self/comm": path("/proc/thread-self/comm", OFlags::RDWR);
    "/proc/self/environ": path("/proc/self/environ", OFlags::RDONLY);
    "/proc/self/mounts": path("/proc/self/mounts", OFlags::RDONLY);
    "/sys": path("/sys/kernel/mm/transparent_hugepage/enabled", OFlags::RDONLY);
    "FIFO, to write": {
        let name = Name::on_disk();
        rustix::fs::mknodat(rustix::fs::CWD, &*name.text(), FileType::Fifo, Mode::RWXU, 0)?;
        let open = |flags| rustix::fs::open(name.text(), flags | OFlags::CLOEXEC, Mode::empty());
        let reader = open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        Ok(Subject::with(open(OFlags::WRONLY)?, (reader, name)))
    };
    "namespace": path("/proc/self/ns/mnt", OFlags::RDONLY);
    "userfaultfd": Ok(Subject::alone({
        // SAFETY: no memory is registered with it.
        unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC)? }
    }));
    "ring": ring();
}

/// A socket's address that nothing listens to.
pub fn unused_address() -> SocketAddr {
    listener().local_addr().expect("it has one")
}
