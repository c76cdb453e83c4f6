//! The kernel as the host, with a door before each sleep. At the door, events that would need an unlucky
//! moment happen each time.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType,
};
use sakia_socket::{Entry, EpollChange, EpollEvent, Host, Kernel, Received};

/// Counters and switches of a [`Doored`] host.
#[derive(Debug, Default)]
pub struct State {
    /// Sends fail with this errno; 0 for none.
    pub send_error: AtomicI32,
    /// All calls but those for time, memory and parking, of which the pump makes some at any time.
    pub calls: AtomicU32,
    pub signals: AtomicU32,
    pub waits: AtomicU32,
    /// Threads that are about to sleep knock here, and wait for their turn.
    has_door: AtomicBool,
    door: Mutex<Option<Sender<Sender<()>>>>,
    /// The threads that sleep by `park`, and their clock.
    pub parking: Parking,
    /// The number of pieces of memory that are held.
    pub held: Arc<AtomicU32>,
    /// The next answer of `epoll_wait`, in place of the kernel's: what it writes and what it returns.
    pub lie: Mutex<Option<(Vec<EpollEvent>, usize)>>,
}

/// A clock that stands still until a test advances it, and the thread that sleeps by it.
#[derive(Debug, Default)]
pub struct Parking {
    pub unparks: AtomicU32,
    is_manual: AtomicBool,
    state: Mutex<Clock>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Clock {
    now: Duration,
    /// The timeouts of all parks.
    parks: Vec<Option<Duration>>,
    /// The time at which the sleeping thread is to wake.
    sleeps_until: Option<Duration>,
    is_asleep: bool,
}

impl Parking {
    /// Stops the clock.
    pub fn stop_clock(&self) {
        self.is_manual.store(true, Ordering::SeqCst);
    }

    fn now(&self) -> Option<Duration> {
        let is_manual = self.is_manual.load(Ordering::SeqCst);
        is_manual.then(|| self.state.lock().expect("no panic").now)
    }

    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        let mut state = self.state.lock().expect("no panic");
        state.parks.push(timeout);
        state.sleeps_until = timeout.map(|timeout| state.now + timeout);
        while word.load(Ordering::SeqCst) == expected
            && state.sleeps_until.is_none_or(|until| state.now < until)
        {
            state.is_asleep = true;
            self.changed.notify_all();
            state = self.changed.wait(state).expect("no panic");
        }
        state.is_asleep = false;
        self.changed.notify_all();
    }

    fn unpark(&self) {
        self.unparks.fetch_add(1, Ordering::SeqCst);
        self.state.lock().expect("no panic").is_asleep = false;
        self.changed.notify_all();
    }

    /// Advances the clock to the time at which the sleeping thread wakes. Returns the length of its sleep,
    /// or `None` if only a wake ends it.
    pub fn sleep_over(&self) -> Option<Duration> {
        let timeout = self.until_asleep()?;
        let mut state = self.state.lock().expect("no panic");
        state.now += timeout;
        // The next sleep of the thread is another one.
        state.is_asleep = false;
        self.changed.notify_all();
        drop(state);
        self.until_asleep();
        Some(timeout)
    }

    /// Waits until the thread sleeps. Returns the length of its sleep.
    pub fn until_asleep(&self) -> Option<Duration> {
        let mut state = self.state.lock().expect("no panic");
        while !state.is_asleep {
            state = self.changed.wait(state).expect("no panic");
        }
        state.parks.last().copied().flatten()
    }
}

/// Memory whose pieces are counted.
#[derive(Debug)]
pub struct Memory {
    bytes: Box<[u8]>,
    held: Arc<AtomicU32>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl State {
    /// Closes the door: from now on each thread that is about to sleep sends a sender, and sleeps when it
    /// has received from it or the sender is dropped.
    pub fn close_door(&self) -> Receiver<Sender<()>> {
        let (knocks, door) = mpsc::channel();
        *self.door.lock().expect("no panic") = Some(knocks);
        self.has_door.store(true, Ordering::SeqCst);
        door
    }

    /// Opens the door: from now on threads sleep at once. Call this before the last thread at the door may
    /// continue, since it may come to the door again.
    pub fn open_door(&self) {
        self.has_door.store(false, Ordering::SeqCst);
    }

    fn before_sleep(&self, timeout: Option<Duration>) {
        if timeout == Some(Duration::ZERO) || !self.has_door.load(Ordering::SeqCst) {
            return;
        }
        let (go, may_go) = mpsc::channel();
        let knocks = self.door.lock().expect("no panic").clone();
        if knocks.is_some_and(|knocks| knocks.send(go).is_ok()) {
            // A dropped sender opens, too.
            let _ = may_go.recv();
        }
    }

    fn count(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Clone, Debug, Default)]
pub struct Doored {
    pub state: Arc<State>,
}

impl Host for Doored {
    type Fd = OwnedFd;
    type Memory = Memory;

    fn socket(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
        protocol: Option<Protocol>,
    ) -> Result<OwnedFd, Errno> {
        Kernel.socket(family, kind, flags, protocol)
    }

    fn pair(
        &self,
        family: AddressFamily,
        kind: SocketType,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, OwnedFd), Errno> {
        Kernel.pair(family, kind, flags)
    }

    fn bind(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        Kernel.bind(fd, address)
    }

    fn listen(&self, fd: &OwnedFd, backlog: i32) -> Result<(), Errno> {
        Kernel.listen(fd, backlog)
    }

    fn accept(
        &self,
        fd: &OwnedFd,
        flags: SocketFlags,
    ) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
        Kernel.accept(fd, flags)
    }

    fn connect(&self, fd: &OwnedFd, address: &SocketAddrAny) -> Result<(), Errno> {
        Kernel.connect(fd, address)
    }

    fn shutdown(&self, fd: &OwnedFd, how: Shutdown) -> Result<(), Errno> {
        Kernel.shutdown(fd, how)
    }

    fn local_address(&self, fd: &OwnedFd) -> Result<SocketAddrAny, Errno> {
        Kernel.local_address(fd)
    }

    fn peer_address(&self, fd: &OwnedFd) -> Result<Option<SocketAddrAny>, Errno> {
        Kernel.peer_address(fd)
    }

    fn receive(
        &self,
        fd: &OwnedFd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        self.state.count();
        if !flags.contains(RecvFlags::DONTWAIT) {
            self.state.before_sleep(None);
        }
        Kernel.receive(fd, buffers, flags)
    }

    fn send(
        &self,
        fd: &OwnedFd,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        self.state.count();
        match self.state.send_error.load(Ordering::SeqCst) {
            0 => Kernel.send(fd, buffers, flags, to),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    fn unread(&self, fd: &OwnedFd) -> Result<u64, Errno> {
        Kernel.unread(fd)
    }

    fn take_error(&self, fd: &OwnedFd) -> Result<Option<Errno>, Errno> {
        Kernel.take_error(fd)
    }

    fn set_option(&self, fd: &OwnedFd, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        Kernel.set_option(fd, level, name, value)
    }

    fn option(
        &self,
        fd: &OwnedFd,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> Result<usize, Errno> {
        Kernel.option(fd, level, name, value)
    }

    fn reset_on_close(&self, fd: &OwnedFd) -> Result<(), Errno> {
        Kernel.reset_on_close(fd)
    }

    fn set_nonblocking(&self, fd: &OwnedFd, is_nonblocking: bool) -> Result<(), Errno> {
        Kernel.set_nonblocking(fd, is_nonblocking)
    }

    fn wait(
        &self,
        entries: &mut [Entry<'_, OwnedFd>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.state.count();
        self.state.waits.fetch_add(1, Ordering::SeqCst);
        self.state.before_sleep(timeout);
        Kernel.wait(entries, timeout)
    }

    fn epoll_create(&self) -> Result<OwnedFd, Errno> {
        Kernel.epoll_create()
    }

    fn epoll_control(&self, set: &OwnedFd, change: EpollChange, fd: &OwnedFd) -> Result<(), Errno> {
        Kernel.epoll_control(set, change, fd)
    }

    fn epoll_wait(
        &self,
        set: &OwnedFd,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.state.count();
        if let Some((lies, count)) = self.state.lie.lock().expect("no panic").take() {
            events.iter_mut().zip(lies).for_each(|(event, lie)| *event = lie);
            return Ok(count);
        }
        self.state.before_sleep(timeout);
        Kernel.epoll_wait(set, events, timeout)
    }

    fn event(&self) -> Result<OwnedFd, Errno> {
        Kernel.event()
    }

    fn signal(&self, event: &OwnedFd) -> Result<(), Errno> {
        self.state.signals.fetch_add(1, Ordering::SeqCst);
        Kernel.signal(event)
    }

    fn drain(&self, event: &OwnedFd) -> Result<(), Errno> {
        Kernel.drain(event)
    }

    fn park(&self, word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        if self.state.parking.is_manual.load(Ordering::SeqCst) {
            self.state.parking.park(word, expected, timeout);
        } else {
            Kernel.park(word, expected, timeout);
        }
    }

    fn unpark(&self, word: &AtomicU32) {
        self.state.parking.unpark();
        Kernel.unpark(word);
    }

    fn now(&self) -> Duration {
        self.state.parking.now().unwrap_or_else(|| Kernel.now())
    }

    fn memory(&self, len: usize) -> Memory {
        let held = Arc::clone(&self.state.held);
        held.fetch_add(1, Ordering::SeqCst);
        Memory { bytes: Kernel.memory(len), held }
    }
}
