//! An open socket: the state that all its handles share.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketType, ipproto};
use sakia_socket_core::{InMemory, ReadAhead, WriteQueue};

use crate::pump::{Occasion, Pump};
use crate::settings::Settings;
use crate::wake::{Beds, News, Source};
use crate::{Events, Host, Options, When};

thread_local! {
    /// The calling thread's wait number: it differs from those of all other threads, and changes with each
    /// wait.
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// The next thread's first wait number.
static THREADS: AtomicU64 = AtomicU64::new(1);

/// The state that all sockets of a layer share.
#[derive(Debug)]
pub(crate) struct Shared<H: Host> {
    pub(crate) host: Arc<H>,
    pub(crate) options: Options,
    pub(crate) pump: Arc<Pump<Open<H>>>,
    pub(crate) beds: Beds<H>,
    /// Held while a set is added to another one.
    pub(crate) nesting: Mutex<()>,
    /// Memory of empty write queues, for reuse.
    pub(crate) spare: Mutex<Vec<H::Memory>>,
}

/// The most pieces of memory that a layer keeps for write queues: 1 MiB with the default limit.
const SPARE_MAX: usize = 16;

/// The transport of a socket's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A stream of an Internet protocol: bytes may be read ahead.
    Internet,
    /// Another stream. Reading ahead on a Unix socket would lose the descriptors that come with bytes, and
    /// the peer would not learn that bytes were not read.
    Stream,
    /// Messages with boundaries.
    Datagrams,
}

impl Kind {
    pub(crate) fn of(family: AddressFamily, kind: SocketType, protocol: Option<Protocol>) -> Self {
        let is_internet = matches!(family, AddressFamily::INET | AddressFamily::INET6);
        match kind {
            SocketType::STREAM if !is_internet => Self::Stream,
            SocketType::STREAM if protocol.is_none_or(|protocol| STREAMS.contains(&protocol)) => {
                Self::Internet
            }
            _ => Self::Datagrams,
        }
    }
}

/// The Internet's stream protocols; others, such as SCTP, keep message boundaries.
const STREAMS: [Protocol; 2] = [ipproto::TCP, ipproto::MPTCP];

/// An open socket.
#[derive(Debug)]
pub(crate) struct Open<H: Host> {
    pub(crate) shared: Arc<Shared<H>>,
    pub(crate) fd: H::Fd,
    pub(crate) kind: Kind,
    pub(crate) is_nonblocking: AtomicBool,
    /// Set when the kernel alone serves the socket from now on.
    pub(crate) is_plain: AtomicBool,
    /// Set once it was connected: bytes may be delayed only then, and before that the kernel refuses them.
    pub(crate) is_connected: AtomicBool,
    /// Set when it was shut down for reading.
    pub(crate) is_deaf: AtomicBool,
    /// Set when the host reported something impossible: the connection then counts as reset.
    is_broken: AtomicBool,
    /// Set when a peek has shown bytes of the host after those in memory: the next read has to return them,
    /// too.
    pub(crate) has_looked: AtomicBool,
    /// The options that also apply to bytes in memory.
    pub(crate) settings: Settings,
    /// The number of the program's handles.
    pub(crate) handles: AtomicUsize,
    /// The errno of a call that the program did not make itself, until one of its calls reports it; 0 for
    /// none. Like the kernel's `sk_err`, exactly one call reports it, and a later error replaces an
    /// unreported one.
    error: AtomicI32,
    pub(crate) news: News,
    receiving: Mutex<ReadAhead<H::Memory>>,
    sending: Mutex<Sending<H>>,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Sending<H: Host> {
    pub(crate) queue: WriteQueue<H::Memory>,
    /// Set while the pump's list has the socket.
    pub(crate) is_listed: bool,
    /// The [wait number](wait_number) at the last write.
    pub(crate) waits: u64,
}

impl<H: Host> Open<H> {
    /// Makes an open socket of a descriptor in blocking mode.
    pub(crate) fn new(shared: &Arc<Shared<H>>, fd: H::Fd, kind: Kind) -> Arc<Self> {
        let queue = WriteQueue::new(shared.options.limits);
        let sending = Sending { queue, is_listed: false, waits: 0 };
        Arc::new(Self {
            shared: Arc::clone(shared),
            fd,
            kind,
            is_nonblocking: AtomicBool::new(false),
            is_plain: AtomicBool::new(kind == Kind::Datagrams),
            is_connected: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            has_looked: AtomicBool::new(false),
            settings: Settings::default(),
            handles: AtomicUsize::new(1),
            error: AtomicI32::new(0),
            news: News::default(),
            receiving: Mutex::new(ReadAhead::new()),
            sending: Mutex::new(sending),
        })
    }

    pub(crate) fn host(&self) -> &H {
        &self.shared.host
    }

    pub(crate) fn receiving(&self) -> MutexGuard<'_, ReadAhead<H::Memory>> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn sending(&self) -> MutexGuard<'_, Sending<H>> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `error` for the next call of the program.
    pub(crate) fn set_error(&self, error: Errno) {
        self.error.store(error.raw_os_error(), Ordering::SeqCst);
        self.news.arrived();
    }

    /// Returns true if an error is kept.
    pub(crate) fn has_error(&self) -> bool {
        self.error.load(Ordering::SeqCst) != 0
    }

    /// Takes the kept error.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        if !self.has_error() {
            return None;
        }
        match self.error.swap(0, Ordering::Relaxed) {
            0 => None,
            errno => Some(Errno::from_raw_os_error(errno)),
        }
    }

    /// Keeps the error of a call whose other part succeeded, unless it says only that the call had to end.
    pub(crate) fn keep_error(&self, error: Errno) {
        if error != Errno::AGAIN && error != Errno::INTR {
            self.set_error(error);
        }
    }

    /// Returns true if the connection counts as reset.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    /// Marks the connection as reset, since the host reported something impossible and bytes of it may be
    /// missing. Returns the error of the call.
    pub(crate) fn break_off(&self) -> Errno {
        self.is_broken.store(true, Ordering::SeqCst);
        self.news.arrived();
        // The peer learns of it when the socket is closed.
        let _ = self.host().reset_on_close(&self.fd);
        Errno::CONNRESET
    }

    /// Has the kernel alone serve the socket from now on, after the bytes in memory.
    pub(crate) fn be_plain(&self) {
        self.is_plain.store(true, Ordering::Relaxed);
    }

    /// Returns true if bytes of it may be in memory.
    pub(crate) fn is_stream(&self) -> bool {
        self.kind != Kind::Datagrams
    }

    /// Returns the number of delayed bytes.
    pub(crate) fn delayed(&self) -> usize {
        if self.is_stream() { self.sending().queue.len() } else { 0 }
    }

    /// Clears the state of the previous connection, for a new one.
    pub(crate) fn mend(&self) {
        self.is_deaf.store(false, Ordering::SeqCst);
        self.is_broken.store(false, Ordering::SeqCst);
        self.error.store(0, Ordering::Relaxed);
    }

    /// Returns true if a `recv(2)` or `send(2)` with these flags does not wait on this socket.
    pub(crate) fn is_nonblocking(&self, is_dontwait: bool) -> bool {
        is_dontwait || self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that wait in memory to be read.
    pub(crate) fn unread(&self) -> usize {
        if self.kind == Kind::Internet { self.receiving().len() } else { 0 }
    }
}

impl<H: Host> Drop for Open<H> {
    fn drop(&mut self) {
        let receiving = self.receiving.get_mut().unwrap_or_else(PoisonError::into_inner);
        // As with bytes in the kernel: the peer learns that they were not read.
        if !receiving.is_empty() {
            let _ = self.shared.host.reset_on_close(&self.fd);
        }
    }
}

impl<H: Host> Source<H> for Open<H> {
    fn fd(&self) -> &H::Fd {
        &self.fd
    }

    fn news(&self) -> &News {
        &self.news
    }

    fn memory(&self) -> InMemory {
        let (arrivals, rooms) = self.news.counts();
        let mut ready = Events::NONE;
        if self.unread() > 0 {
            ready |= Events::IN | Events::RDNORM;
        }
        if self.has_error() {
            ready |= Events::ERR;
        }
        if self.is_broken() {
            ready |= Events::IN | Events::OUT | Events::RDHUP | Events::HUP;
        }
        let mut has_room = true;
        if self.shared.options.gather != When::Never {
            let queue = &self.sending().queue;
            has_room = queue.has_room();
            // The host does not know yet that the sending side has ended, too.
            if queue.has_end() && self.is_deaf.load(Ordering::SeqCst) {
                ready |= Events::HUP;
            }
        }
        InMemory { ready, arrivals, has_room, rooms }
    }

    fn make_room(&self) {
        self.send_rest();
    }

    fn may_keep(&self) -> bool {
        let options = &self.shared.options;
        options.gather != When::Never
            || self.kind == Kind::Internet && options.read_ahead != When::Never
    }

    fn can_be_undisturbed(&self) -> bool {
        let options = &self.shared.options;
        options.gather == When::Never
            && (self.kind != Kind::Internet || options.read_ahead != When::Always)
    }

    fn wait_began(&self) {
        if self.kind == Kind::Internet {
            self.receiving().wait_began();
        }
    }

    fn wait_ended(&self) {
        if self.kind == Kind::Internet {
            self.receiving().wait_ended();
        }
    }
}

impl<H: Host> Shared<H> {
    /// Sends delayed bytes, and makes small writes direct again, since the calling thread may wait.
    pub(crate) fn before_wait(&self) {
        self.wait_began();
        self.pump.send_all(&*self.host, Occasion::Wait);
    }

    /// Makes small writes of the calling thread direct again.
    pub(crate) fn wait_began(&self) {
        WAITS.set(wait_number() + 1);
    }

    /// Returns memory for a write queue.
    pub(crate) fn queue_memory(&self) -> H::Memory {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| self.host.memory(self.options.limits.bytes))
    }

    /// Keeps the memory of a write queue for another one. It still contains bytes of the program, but a queue
    /// sends only bytes that were put into it.
    pub(crate) fn keep_memory(&self, memory: H::Memory) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }
}

impl<H: Host> Drop for Shared<H> {
    fn drop(&mut self) {
        self.pump.end(&*self.host);
    }
}

/// Returns a number that changes with each wait of this thread, and differs from those of other threads.
pub(crate) fn wait_number() -> u64 {
    let number = WAITS.get();
    if number != 0 {
        return number;
    }
    let first = THREADS.fetch_add(1, Ordering::Relaxed) << 40;
    WAITS.set(first);
    first
}
