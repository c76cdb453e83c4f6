//! An open socket: what all its handles share.

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
    /// A number that no other thread has, and that changes with each wait of this one.
    static WAITS: Cell<u64> = const { Cell::new(0) };
}

/// The first numbers of threads.
static THREADS: AtomicU64 = AtomicU64::new(1);

/// The state that all sockets of a layer share.
#[derive(Debug)]
pub(crate) struct Shared<H: Host> {
    pub(crate) host: Arc<H>,
    pub(crate) options: Options,
    pub(crate) pump: Arc<Pump<Open<H>>>,
    pub(crate) beds: Beds<H>,
    /// Held while a set is put into another one.
    pub(crate) nesting: Mutex<()>,
    /// Memory of write queues that are empty, for the next ones.
    pub(crate) spare: Mutex<Vec<H::Memory>>,
}

/// Pieces of memory that a layer keeps for write queues: with the usual limit 1 MiB.
const SPARE_MAX: usize = 16;

/// The transport of a socket's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As a stream of the Internet's protocols: bytes may be read ahead.
    Internet,
    /// As another stream. Bytes that a Unix socket reads ahead would lose the descriptors that came with
    /// them, and the peer would not learn that they were not read.
    Stream,
    /// In pieces.
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

/// The protocols of streams; others of the Internet's, as SCTP, keep messages apart.
const STREAMS: [Protocol; 2] = [ipproto::TCP, ipproto::MPTCP];

/// An open socket.
#[derive(Debug)]
pub(crate) struct Open<H: Host> {
    pub(crate) shared: Arc<Shared<H>>,
    pub(crate) fd: H::Fd,
    pub(crate) kind: Kind,
    pub(crate) is_nonblocking: AtomicBool,
    /// The kernel serves it alone from now on.
    pub(crate) is_plain: AtomicBool,
    /// It was connected at a time: only then bytes may be delayed, and the kernel refuses them before.
    pub(crate) is_connected: AtomicBool,
    /// The host reported what cannot be true, and the connection counts as reset.
    is_broken: AtomicBool,
    /// A look showed bytes of the host behind those in memory, which the next read is to have, too.
    pub(crate) has_looked: AtomicBool,
    /// The options of the socket that hold for bytes in memory, too.
    pub(crate) settings: Settings,
    /// Handles of the program.
    pub(crate) handles: AtomicUsize,
    /// The errno of a call that the program did not make, until one of its calls reports it; 0 for none.
    /// As the kernel's `sk_err` exactly one call reports it, a later error replaces one that no call did.
    error: AtomicI32,
    pub(crate) news: News,
    receiving: Mutex<ReadAhead<H::Memory>>,
    sending: Mutex<Sending<H>>,
}

/// The sending side.
#[derive(Debug)]
pub(crate) struct Sending<H: Host> {
    pub(crate) queue: WriteQueue<H::Memory>,
    /// The pump knows of it.
    pub(crate) is_listed: bool,
    /// The [number](wait_number) at the last write.
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

    /// The host reported what cannot be true: the connection counts as reset from now on, since bytes of
    /// it may be missing. Returns the error of the call.
    pub(crate) fn break_off(&self) -> Errno {
        self.is_broken.store(true, Ordering::SeqCst);
        self.news.arrived();
        // The peer learns of it when the socket is closed.
        let _ = self.host().reset_on_close(&self.fd);
        Errno::CONNRESET
    }

    /// The kernel serves it alone from now on, behind the bytes in memory.
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

    /// The socket has another connection from now on.
    pub(crate) fn mend(&self) {
        self.is_broken.store(false, Ordering::SeqCst);
        self.error.store(0, Ordering::Relaxed);
    }

    /// `recv(2)` or `send(2)` with these flags on a socket in this mode does not wait.
    pub(crate) fn is_nonblocking(&self, is_dontwait: bool) -> bool {
        is_dontwait || self.is_nonblocking.load(Ordering::Relaxed)
    }

    /// Bytes that wait in memory to be read.
    pub(crate) fn unread(&self) -> usize {
        if self.kind == Kind::Internet { self.receiving().len() } else { 0 }
    }
}

impl<H: Host> Drop for Open<H> {
    fn drop(&mut self) {
        let receiving = self.receiving.get_mut().unwrap_or_else(PoisonError::into_inner);
        // As with bytes that the kernel holds: the peer learns that they were not read.
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
        let has_room = self.shared.options.gather == When::Never || self.sending().queue.has_room();
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
    /// The calling thread may wait: delayed bytes are sent first, and small writes are direct again.
    pub(crate) fn before_wait(&self) {
        self.wait_began();
        self.pump.send_all(&*self.host, Occasion::Wait);
    }

    /// Small writes of the calling thread are direct again.
    pub(crate) fn wait_began(&self) {
        WAITS.set(wait_number() + 1);
    }

    /// Returns memory for a write queue.
    pub(crate) fn queue_memory(&self) -> H::Memory {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| self.host.memory(self.options.limits.bytes))
    }

    /// Keeps the memory of a write queue for another one. It still has bytes of the program, of which a queue
    /// sends none that it did not put there.
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
