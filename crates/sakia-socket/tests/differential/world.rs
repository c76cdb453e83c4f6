//! Sockets and sets of the kernel, and of the library, behind the same calls.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{
    FdSetElement, FdSetIter, PollFd, PollFlags, Timespec, epoll, fd_set_insert,
    fd_set_num_elements, poll, select,
};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt::socket_error;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType};
use sakia_socket::{
    Epoll, EpollEvent, Events, Kernel, Layer, PollEntry, Pollable, SelectEntry, Selection, Socket,
};

/// Sockets and sets of the kernel, or of the library.
pub trait World {
    type Socket: Clone;
    type Set;
    /// Makes a socket of a descriptor, and puts it into non-blocking mode.
    fn socket(&self, fd: OwnedFd, kind: SocketType) -> Self::Socket;
    fn fd<'a>(&self, socket: &'a Self::Socket) -> BorrowedFd<'a>;
    fn connect(&self, socket: &Self::Socket, address: &SocketAddrAny) -> Result<(), Errno>;
    fn accept(&self, socket: &Self::Socket) -> Result<Self::Socket, Errno>;
    fn send(&self, socket: &Self::Socket, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno>;
    fn recv(&self, socket: &Self::Socket, out: &mut [u8], flags: RecvFlags)
    -> Result<usize, Errno>;
    fn unread(&self, socket: &Self::Socket) -> u64;
    fn shutdown(&self, socket: &Self::Socket, how: Shutdown) -> Result<(), Errno>;
    fn take_error(&self, socket: &Self::Socket) -> Option<Errno>;
    fn set(&self) -> Self::Set;
    fn control(
        &self,
        set: &Self::Set,
        operation: Operation,
        file: File<'_, Self>,
        event: EpollEvent,
    ) -> Result<(), Errno>;
    fn wait(
        &self,
        set: &Self::Set,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<EpollEvent>, Errno>;
    /// Waits, and again after each of `between`, with the same entries. Returns the events found.
    fn poll(
        &self,
        entries: &[(File<'_, Self>, Events)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<Vec<Events>>;
    /// The same for `select(2)`, in which no file may be twice.
    fn select(
        &self,
        entries: &[(File<'_, Self>, Selection)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<(usize, Vec<Selection>)>;
    /// Sends delayed bytes.
    fn flush(&self) {}
}

pub enum File<'a, W: World + ?Sized> {
    Socket(&'a W::Socket),
    Set(&'a W::Set),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Add,
    Modify,
    Remove,
}

/// Sockets and sets of the kernel.
#[derive(Debug)]
pub struct Plain;

impl Plain {
    fn of<'a>(file: &'a File<'a, Self>) -> BorrowedFd<'a> {
        match file {
            File::Socket(socket) => socket.as_fd(),
            File::Set(set) => set.as_fd(),
        }
    }
}

impl World for Plain {
    type Socket = Rc<OwnedFd>;
    type Set = OwnedFd;

    fn socket(&self, fd: OwnedFd, _: SocketType) -> Rc<OwnedFd> {
        rustix::io::ioctl_fionbio(&fd, true).expect("a mode");
        Rc::new(fd)
    }

    fn connect(&self, socket: &Rc<OwnedFd>, address: &SocketAddrAny) -> Result<(), Errno> {
        rustix::net::connect(socket, address)
    }

    fn accept(&self, socket: &Rc<OwnedFd>) -> Result<Rc<OwnedFd>, Errno> {
        let fd = rustix::net::accept_with(socket, SocketFlags::CLOEXEC)?;
        Ok(self.socket(fd, SocketType::STREAM))
    }

    fn fd<'a>(&self, socket: &'a Rc<OwnedFd>) -> BorrowedFd<'a> {
        socket.as_fd()
    }

    fn send(&self, socket: &Rc<OwnedFd>, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL)
    }

    fn recv(&self, socket: &Rc<OwnedFd>, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        rustix::net::recv(socket, out, flags).map(|(_, count)| count)
    }

    fn unread(&self, socket: &Rc<OwnedFd>) -> u64 {
        ioctl_fionread(socket).expect("a socket")
    }

    fn shutdown(&self, socket: &Rc<OwnedFd>, how: Shutdown) -> Result<(), Errno> {
        rustix::net::shutdown(socket, how)
    }

    fn take_error(&self, socket: &Rc<OwnedFd>) -> Option<Errno> {
        socket_error(socket).expect("a socket").err()
    }

    fn set(&self) -> OwnedFd {
        epoll::create(epoll::CreateFlags::CLOEXEC).expect("a set")
    }

    fn control(
        &self,
        set: &OwnedFd,
        operation: Operation,
        file: File<'_, Self>,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        let flags = epoll::EventFlags::from_bits_retain(event.events.0);
        let data = epoll::EventData::new_u64(event.data);
        match operation {
            Operation::Add => epoll::add(set, Self::of(&file), data, flags),
            Operation::Modify => epoll::modify(set, Self::of(&file), data, flags),
            Operation::Remove => epoll::delete(set, Self::of(&file)),
        }
    }

    fn wait(
        &self,
        set: &OwnedFd,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<EpollEvent>, Errno> {
        let mut events = Vec::with_capacity(max);
        let timeout = timespec(timeout);
        if max == 0 {
            let none: &mut [MaybeUninit<epoll::Event>] = &mut [];
            return epoll::wait(set, none, timeout.as_ref()).map(|_| Vec::new());
        }
        epoll::wait(set, rustix::buffer::spare_capacity(&mut events), timeout.as_ref())?;
        let event = |event: epoll::Event| {
            let (flags, data) = (event.flags, event.data);
            EpollEvent { events: Events(flags.bits()), data: data.u64() }
        };
        Ok(events.into_iter().map(event).collect())
    }

    fn poll(
        &self,
        entries: &[(File<'_, Self>, Events)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<Vec<Events>> {
        let timeout = timespec(timeout);
        let mut fds: Vec<PollFd<'_>> = entries
            .iter()
            .map(|(file, wanted)| {
                let wanted = PollFlags::from_bits_retain(wanted.0 as u16);
                PollFd::from_borrowed_fd(Self::of(file), wanted)
            })
            .collect();
        let mut one = || {
            poll(&mut fds, timeout.as_ref()).expect("no signal");
            fds.iter().map(|fd| Events(fd.revents().bits().into())).collect()
        };
        twice(between, &mut one)
    }

    fn select(
        &self,
        entries: &[(File<'_, Self>, Selection)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<(usize, Vec<Selection>)> {
        let timeout = timespec(timeout);
        let fds: Vec<i32> = entries.iter().map(|(file, _)| Self::of(file).as_raw_fd()).collect();
        let end = fds.iter().max().map_or(0, |fd| fd + 1);
        let has: [fn(&Selection) -> bool; 3] =
            [|sets| sets.readable, |sets| sets.writable, |sets| sets.exceptional];
        let mut one = || {
            let mut sets = has.map(|has| {
                let mut set = vec![FdSetElement::default(); fd_set_num_elements(fds.len(), end)];
                let chosen = fds.iter().zip(entries).filter(|(_, (_, sets))| has(sets));
                chosen.for_each(|(fd, _)| fd_set_insert(&mut set, *fd));
                // A set without files may be left out.
                entries.iter().any(|(_, sets)| has(sets)).then_some(set)
            });
            let [first, second, third] = &mut sets;
            let [first, second, third] = [first, second, third].map(|set| set.as_deref_mut());
            // SAFETY: the descriptors are open as long as `entries` borrows them, and each set has a bit for
            // each number below `end`.
            let count = unsafe { select(end, first, second, third, timeout.as_ref()) };
            let is = |set: &Option<Vec<FdSetElement>>, fd| {
                set.as_ref().is_some_and(|set| FdSetIter::new(set).any(|other| other == fd))
            };
            let left = fds.iter().map(|&fd| {
                let [readable, writable, exceptional] = [0, 1, 2].map(|place| is(&sets[place], fd));
                Selection { readable, writable, exceptional }
            });
            (count.expect("no signal") as usize, left.collect())
        };
        twice(between, &mut one)
    }
}

impl World for Layer<Kernel> {
    type Socket = Socket<Kernel>;
    type Set = Epoll<Kernel>;

    fn socket(&self, fd: OwnedFd, kind: SocketType) -> Socket<Kernel> {
        let socket = self.adopt(fd, kind).expect("a socket");
        socket.set_nonblocking(true).expect("a mode");
        socket
    }

    fn fd<'a>(&self, socket: &'a Socket<Kernel>) -> BorrowedFd<'a> {
        socket.fd().as_fd()
    }

    fn connect(&self, socket: &Socket<Kernel>, address: &SocketAddrAny) -> Result<(), Errno> {
        socket.connect(address)
    }

    fn accept(&self, socket: &Socket<Kernel>) -> Result<Socket<Kernel>, Errno> {
        let (socket, _) = socket.accept()?;
        socket.set_nonblocking(true).expect("a mode");
        Ok(socket)
    }

    fn send(
        &self,
        socket: &Socket<Kernel>,
        bytes: &[u8],
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        socket.send(bytes, flags | SendFlags::NOSIGNAL)
    }

    fn recv(
        &self,
        socket: &Socket<Kernel>,
        out: &mut [u8],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        socket.recv(out, flags)
    }

    fn unread(&self, socket: &Socket<Kernel>) -> u64 {
        socket.unread().expect("a socket")
    }

    fn shutdown(&self, socket: &Socket<Kernel>, how: Shutdown) -> Result<(), Errno> {
        socket.shutdown(how)
    }

    fn take_error(&self, socket: &Socket<Kernel>) -> Option<Errno> {
        socket.take_error().expect("a socket")
    }

    fn set(&self) -> Epoll<Kernel> {
        self.epoll().expect("a set")
    }

    fn control(
        &self,
        set: &Epoll<Kernel>,
        operation: Operation,
        file: File<'_, Self>,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        match operation {
            Operation::Add => set.add(pollable(&file), event),
            Operation::Modify => set.modify(pollable(&file), event),
            Operation::Remove => set.remove(pollable(&file)),
        }
    }

    fn wait(
        &self,
        set: &Epoll<Kernel>,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<EpollEvent>, Errno> {
        let mut events = vec![EpollEvent::default(); max];
        let begin = Instant::now();
        let count = set.wait(&mut events, timeout)?;
        assert!(count > 0 || timeout.is_some_and(|timeout| begin.elapsed() >= timeout));
        events.truncate(count);
        Ok(events)
    }

    fn poll(
        &self,
        entries: &[(File<'_, Self>, Events)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<Vec<Events>> {
        let mut entries: Vec<PollEntry<'_, Kernel>> =
            entries.iter().map(|(file, wanted)| PollEntry::new(pollable(file), *wanted)).collect();
        let mut one = || {
            let begin = Instant::now();
            let count = self.poll(&mut entries, timeout).expect("no signal");
            assert!(count > 0 || timeout.is_some_and(|timeout| begin.elapsed() >= timeout));
            let ready: Vec<Events> = entries.iter().map(PollEntry::ready).collect();
            assert_eq!(count, ready.iter().filter(|ready| !ready.is_empty()).count());
            ready
        };
        twice(between, &mut one)
    }

    fn select(
        &self,
        entries: &[(File<'_, Self>, Selection)],
        timeout: Option<Duration>,
        between: Option<&dyn Fn()>,
    ) -> Vec<(usize, Vec<Selection>)> {
        let mut entries: Vec<SelectEntry<'_, Kernel>> =
            entries.iter().map(|(file, sets)| SelectEntry::new(pollable(file), *sets)).collect();
        let mut one = || {
            let begin = Instant::now();
            let count = self.select(&mut entries, timeout).expect("no signal");
            assert!(count > 0 || timeout.is_some_and(|timeout| begin.elapsed() >= timeout));
            (count, entries.iter().map(SelectEntry::ready).collect())
        };
        twice(between, &mut one)
    }

    fn flush(&self) {
        self.flush();
    }
}

fn pollable<'a>(file: &File<'a, Layer<Kernel>>) -> Pollable<'a, Kernel> {
    match *file {
        File::Socket(socket) => socket.into(),
        File::Set(set) => set.into(),
    }
}

/// Returns the results of a wait, and of a second one after `between`.
fn twice<T>(between: Option<&dyn Fn()>, one: &mut dyn FnMut() -> T) -> Vec<T> {
    let mut found = vec![one()];
    if let Some(between) = between {
        between();
        found.push(one());
    }
    found
}

fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    let seconds = |timeout: Duration| timeout.as_secs().try_into().unwrap_or(i64::MAX / 2);
    timeout.map(|timeout| Timespec {
        tv_sec: seconds(timeout),
        tv_nsec: timeout.subsec_nanos().into(),
    })
}
