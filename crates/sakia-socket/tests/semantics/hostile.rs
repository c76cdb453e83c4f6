//! A host that lies: the connection is reset at worst, and no byte is read that the host did not give.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, ReturnFlags, SendFlags, Shutdown, SocketAddrAny,
    SocketFlags, SocketType,
};
use sakia_socket::{
    BrokenPipe, Control, Credentials, Entry, EpollChange, EpollEvent, Events, Host, Layer, Options,
    PollEntry, Received, ReceivedMessage, SendControl, Socket, When, sockopt,
};
use sakia_testkit::settings;

/// The content of buffers before they are filled.
const UNTOUCHED: u8 = 0xee;
/// A descriptor. All are alike, as if their numbers were the same; they are counted.
#[derive(Debug)]
pub struct Fd {
    _open: Arc<()>,
}

/// A host in memory. It gives the bytes of [`given`] in order, and takes any bytes.
#[derive(Debug)]
pub struct Liar {
    state: Mutex<State>,
    /// All descriptors hold a reference to this.
    pub open: Arc<()>,
    /// The next receive or send reports more bytes than there are.
    is_impossible: AtomicBool,
    /// The number of lies in a hundred answers.
    lies: u8,
}

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    now: Duration,
    /// The numbers of bytes given and taken.
    given: u64,
    taken: Vec<u8>,
    /// The host gave an impossible answer: its contents no longer matter.
    is_over: bool,
}

/// Returns the byte of a stream at `place`: never [`UNTOUCHED`].
fn given(place: u64) -> u8 {
    (place % 199) as u8
}

impl State {
    fn lies(&mut self, percent: u8) -> bool {
        self.random.u8(..100) < percent
    }

    fn errno(&mut self) -> Errno {
        let usual = [Errno::AGAIN, Errno::INTR, Errno::CONNRESET, Errno::PIPE, Errno::NOBUFS];
        match self.random.u8(..3) {
            0 => Errno::from_raw_os_error(self.random.i32(1..4095)),
            1 => Errno::AGAIN,
            _ => usual[self.random.usize(..usual.len())],
        }
    }

    fn count(&mut self) -> usize {
        match self.random.u8(..4) {
            0 => usize::MAX,
            1 => isize::MAX as usize + self.random.usize(..100),
            _ => self.random.usize(..200_000),
        }
    }

    fn address(&mut self) -> SocketAddrAny {
        SocketAddr::from((self.random.u32(..).to_be_bytes(), self.random.u16(..))).into()
    }
}

impl Liar {
    pub fn new(seed: u64, lies: u8) -> Self {
        let state = State {
            random: fastrand::Rng::with_seed(seed),
            now: Duration::from_secs(1),
            given: 0,
            taken: Vec::new(),
            is_over: false,
        };
        let is_impossible = AtomicBool::new(false);
        Self { state: Mutex::new(state), open: Arc::new(()), is_impossible, lies }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    /// Returns an answer without a result.
    fn result(&self) -> Result<(), Errno> {
        let mut state = self.state();
        if state.lies(self.lies) { Err(state.errno()) } else { Ok(()) }
    }

    fn fd(&self) -> Result<Fd, Errno> {
        self.result().map(|()| self.opened())
    }

    fn opened(&self) -> Fd {
        Fd { _open: Arc::clone(&self.open) }
    }

    fn is_impossible(&self) -> bool {
        self.is_impossible.swap(false, Ordering::Relaxed)
    }
}

impl Host for Liar {
    type Fd = Fd;
    type Memory = Box<[u8]>;

    fn socket(
        &self,
        _: AddressFamily,
        _: SocketType,
        _: SocketFlags,
        _: Option<Protocol>,
    ) -> Result<Fd, Errno> {
        self.fd()
    }

    fn pair(&self, _: AddressFamily, _: SocketType, _: SocketFlags) -> Result<(Fd, Fd), Errno> {
        Ok((self.fd()?, self.fd()?))
    }

    fn bind(&self, _: &Fd, _: &SocketAddrAny) -> Result<(), Errno> {
        self.result()
    }

    fn listen(&self, _: &Fd, _: i32) -> Result<(), Errno> {
        self.result()
    }

    fn accept(&self, _: &Fd, _: SocketFlags) -> Result<(Fd, Option<SocketAddrAny>), Errno> {
        let address = self.state().address();
        Ok((self.fd()?, Some(address)))
    }

    fn connect(&self, _: &Fd, _: &SocketAddrAny) -> Result<(), Errno> {
        self.result()
    }

    fn shutdown(&self, _: &Fd, _: Shutdown) -> Result<(), Errno> {
        self.result()
    }

    fn local_address(&self, _: &Fd) -> Result<SocketAddrAny, Errno> {
        self.result().map(|()| self.state().address())
    }

    fn peer_address(&self, _: &Fd) -> Result<Option<SocketAddrAny>, Errno> {
        self.result().map(|()| Some(self.state().address()))
    }

    fn receive(
        &self,
        _: &Fd,
        buffers: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<Received, Errno> {
        let mut state = self.state();
        let room: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let from = state.random.bool().then(|| state.address());
        let returned = ReturnFlags::from_bits_retain(state.random.u32(..));
        let is_impossible = self.is_impossible();
        if is_impossible || state.lies(self.lies) {
            return if !is_impossible && state.random.bool() {
                Err(state.errno())
            } else {
                let bytes = room.saturating_add(1).saturating_add(state.count());
                state.is_over = true;
                Ok(Received { bytes, flags: returned, from })
            };
        }
        let bytes = match state.random.u8(..8) {
            0 => return Err(Errno::AGAIN),
            1 | 2 => room,
            _ => state.random.usize(..=room.min(500)),
        };
        let begin = state.given;
        let mut next = begin;
        for place in buffers.iter_mut().flat_map(|buffer| buffer.iter_mut()).take(bytes) {
            if !flags.contains(RecvFlags::TRUNC) {
                *place = given(next);
            }
            next += 1;
        }
        if !flags.contains(RecvFlags::PEEK) {
            state.given = next;
        }
        Ok(Received { bytes, flags: returned, from })
    }

    fn send(
        &self,
        _: &Fd,
        buffers: &[IoSlice<'_>],
        _: SendFlags,
        _: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        let mut state = self.state();
        let all: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let is_impossible = self.is_impossible();
        if is_impossible || state.lies(self.lies) {
            return if !is_impossible && state.random.bool() {
                Err(state.errno())
            } else {
                state.is_over = true;
                Ok(all.len().saturating_add(1).saturating_add(state.count()))
            };
        }
        let count = match state.random.u8(..4) {
            0 => return Err(Errno::AGAIN),
            1 => state.random.usize(..=all.len()),
            _ => all.len(),
        };
        if !state.is_over {
            state.taken.extend(&all[..count]);
        }
        Ok(count)
    }

    fn unread(&self, _: &Fd) -> Result<u64, Errno> {
        self.result().map(|()| self.state().random.u64(..))
    }

    fn take_error(&self, _: &Fd) -> Result<Option<Errno>, Errno> {
        self.result().map(|()| Some(self.state().errno()))
    }

    fn reset_on_close(&self, _: &Fd) -> Result<(), Errno> {
        self.result()
    }

    fn set_option(&self, _: &Fd, _: i32, _: i32, _: &[u8]) -> Result<(), Errno> {
        self.result()
    }

    fn option(&self, _: &Fd, _: i32, _: i32, value: &mut [u8]) -> Result<usize, Errno> {
        self.result()?;
        let mut state = self.state();
        state.random.fill(value);
        if self.is_impossible() {
            return Ok(value.len() + 1);
        }
        Ok(if state.lies(self.lies) { state.count() } else { value.len() })
    }

    fn receive_message(
        &self,
        fd: &Fd,
        buffers: &mut [IoSliceMut<'_>],
        _: usize,
        flags: RecvFlags,
    ) -> Result<ReceivedMessage<Fd>, Errno> {
        let mut message = ReceivedMessage::from(self.receive(fd, buffers, flags)?);
        let count = self.state().random.usize(..4);
        for _ in 0..count {
            let mut state = self.state();
            message.control.push(match state.random.u8(..3) {
                0 => Control::Rights((0..state.random.usize(..9)).map(|_| self.opened()).collect()),
                1 => Control::Credentials(Credentials { process: -5, user: 1, group: u32::MAX }),
                _ => Control::Other {
                    level: state.random.i32(..),
                    kind: state.random.i32(..),
                    data: vec![1; state.random.usize(..9999)],
                },
            });
        }
        Ok(message)
    }

    fn send_message(
        &self,
        fd: &Fd,
        buffers: &[IoSlice<'_>],
        _: &[SendControl<'_, Fd>],
        flags: SendFlags,
        to: Option<&SocketAddrAny>,
    ) -> Result<usize, Errno> {
        self.send(fd, buffers, flags, to)
    }

    fn disconnect(&self, _: &Fd) -> Result<(), Errno> {
        self.result()
    }

    fn unsent(&self, _: &Fd) -> Result<u64, Errno> {
        self.result().map(|()| u64::MAX)
    }

    fn is_at_mark(&self, _: &Fd) -> Result<bool, Errno> {
        self.result().map(|()| self.state().random.bool())
    }

    fn set_nonblocking(&self, _: &Fd, _: bool) -> Result<(), Errno> {
        self.result()
    }

    fn wait(&self, entries: &mut [Entry<'_, Fd>], _: Option<Duration>) -> Result<usize, Errno> {
        self.result()?;
        let mut state = self.state();
        for entry in &mut *entries {
            entry.ready = Events(state.random.u32(..));
        }
        Ok(if state.lies(self.lies) { state.count() } else { entries.len().min(1) })
    }

    fn epoll_create(&self) -> Result<Fd, Errno> {
        self.fd()
    }

    fn epoll_control(&self, _: &Fd, _: EpollChange, _: &Fd) -> Result<(), Errno> {
        self.result()
    }

    fn epoll_wait(
        &self,
        _: &Fd,
        events: &mut [EpollEvent],
        _: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.result()?;
        let mut state = self.state();
        let count = state.random.usize(..=events.len());
        for event in &mut events[..count] {
            let (place, generation) = (state.random.u64(..6), state.random.u64(..4));
            event.data = match state.random.u8(..8) {
                0 => u64::MAX,
                1 => state.random.u64(..),
                _ => generation << 32 | place,
            };
            event.events = Events(state.random.u32(..));
        }
        Ok(if state.lies(self.lies) { state.count() } else { count })
    }

    fn event(&self) -> Result<Fd, Errno> {
        self.fd()
    }

    fn signal(&self, _: &Fd) -> Result<(), Errno> {
        self.result()
    }

    fn drain(&self, _: &Fd) -> Result<(), Errno> {
        self.result()
    }

    fn park(&self, _: &AtomicU32, _: u32, _: Option<Duration>) {
        std::thread::sleep(Duration::from_micros(20));
    }

    fn unpark(&self, _: &AtomicU32) {}

    fn now(&self) -> Duration {
        let mut state = self.state();
        let step = Duration::from_micros(state.random.u64(..5000));
        state.now = match state.random.u8(..20) {
            0 => state.now.saturating_sub(step * 100),
            _ => state.now.saturating_add(step),
        };
        if state.lies(self.lies / 4) { Duration::MAX } else { state.now }
    }

    fn memory(&self, len: usize) -> Box<[u8]> {
        let mut state = self.state();
        let len = match state.random.u8(..6) {
            0 => 0,
            1 => state.random.usize(..=len),
            2 => len + state.random.usize(..1000),
            _ => len,
        };
        vec![UNTOUCHED; len].into()
    }
}

/// The program of one seed.
struct Program {
    random: fastrand::Rng,
    layer: Layer<Liar>,
    /// The next byte that is read, until the connection ended.
    place: Option<u64>,
    /// Bytes that were taken, until the connection ended.
    accepted: Vec<u8>,
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lies = random.choice([0, 1, 5, 30]).expect("some");
        let mut options = Options::default();
        let modes = [When::Never, When::OnEvidence, When::Always];
        options.read_ahead = random.choice(modes).expect("some");
        options.gather = random.choice(modes).expect("some");
        options.limits.bytes = random.usize(1..5000);
        options.ahead_bytes = random.usize(1..5000);
        options.broken_pipe = BrokenPipe::Raise;
        let layer = Layer::new(Liar::new(seed ^ 77, lies), options);
        Self { random, layer, place: Some(0), accepted: Vec::new() }
    }

    fn connection(&mut self) -> Result<Socket<Liar>, Errno> {
        let to = SocketAddr::from(([127, 0, 0, 1], 5)).into();
        let socket = self.layer.socket(AddressFamily::INET, SocketType::STREAM, None)?;
        if self.random.bool() {
            socket.bind(&to)?;
            socket.listen(1)?;
            return Ok(socket.accept()?.0);
        }
        socket.connect(&to)?;
        Ok(socket)
    }

    fn run(mut self) {
        let Ok(socket) = self.connection() else { return };
        for _ in 0..self.random.usize(..120) {
            self.step(&socket);
        }
        let (layer, accepted) = (self.layer.clone(), self.accepted);
        drop((socket, self.layer));
        // The pump holds some descriptors until the host has taken their bytes or failed.
        while Arc::strong_count(&layer.host().open) > 1 {
            std::thread::yield_now();
        }
        // The bytes sent are those of the program, in order, and none was sent twice.
        assert!(accepted.starts_with(&layer.host().state().taken));
    }

    fn step(&mut self, socket: &Socket<Liar>) {
        match self.random.u8(..16) {
            0..=5 => self.receive(socket),
            6..=10 => self.send(socket),
            11 => {
                let mut entries = [PollEntry::new(socket, Events::IN | Events::OUT)];
                let _ = self.layer.poll(&mut entries, Some(Duration::ZERO));
            }
            12 => self.ask(socket),
            13 => drop(socket.flush()),
            14 if self.random.u8(..5) == 0 => {
                if socket.disconnect().is_ok() {
                    // Bytes were dropped on both sides.
                    (self.place, self.layer.host().state().is_over) = (None, true);
                }
            }
            14 => drop(socket.set_nonblocking(self.random.bool())),
            _ => self.set(socket),
        }
    }

    fn receive(&mut self, socket: &Socket<Liar>) {
        let flags = [RecvFlags::PEEK, RecvFlags::WAITALL, RecvFlags::TRUNC, RecvFlags::DONTWAIT];
        let mut flag = RecvFlags::empty();
        for each in flags {
            if self.random.u8(..5) == 0 {
                flag |= each;
            }
        }
        let is_none = flag.contains(RecvFlags::TRUNC);
        let mut first = vec![UNTOUCHED; self.random.usize(..300)];
        let mut second = vec![UNTOUCHED; self.random.usize(..300)];
        let buffers = &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let result = match self.random.u8(..3) {
            0 => socket.recv(&mut buffers[0], flag),
            1 => socket.recv_vectored(buffers, flag),
            _ => socket.recv_message(buffers, 40, flag).map(|message| {
                let fds = |message: &Control<Fd>| match message {
                    Control::Rights(fds) => fds.len(),
                    _ => 0,
                };
                assert!(message.control.iter().map(fds).sum::<usize>() <= 6);
                message.received.bytes
            }),
        };
        let Ok(count) = result else { return };
        let all = [first, second].concat();
        assert!(count <= all.len());
        if self.layer.host().state().is_over {
            // The connection counts as reset. Bytes that are read are still the host's.
            self.place = None;
        }
        let found = &all[..count];
        assert!(is_none || !found.contains(&UNTOUCHED), "a byte that the host did not give");
        let Some(place) = self.place else { return };
        if !is_none {
            assert!((place..).map(given).zip(found).all(|(expected, found)| expected == *found));
        }
        if !flag.contains(RecvFlags::PEEK) {
            self.place = Some(place + count as u64);
        }
    }

    fn send(&mut self, socket: &Socket<Liar>) {
        let len = self.random.usize(..600);
        let begin = self.accepted.len();
        let bytes: Vec<u8> = (begin..begin + len).map(|place| given(place as u64)).collect();
        let (first, second) = bytes.split_at(self.random.usize(..=len));
        let buffers = [IoSlice::new(first), IoSlice::new(second)];
        let flags = match self.random.u8(..6) {
            0 => SendFlags::DONTWAIT,
            1 => SendFlags::MORE,
            2 => SendFlags::NOSIGNAL | SendFlags::OOB,
            _ => SendFlags::empty(),
        };
        let fd = self.layer.host().opened();
        let result = match self.random.u8(..4) {
            0 => socket.send(&bytes, flags),
            1 => {
                let control = [SendControl::Rights(&[&fd])];
                socket.send_message(&buffers, &control, flags, None)
            }
            _ => socket.send_vectored(&buffers, flags),
        };
        if let Ok(count) = result {
            assert!(count <= len);
            self.accepted.extend(&bytes[..count]);
        }
    }

    fn ask(&mut self, socket: &Socket<Liar>) {
        let _ = socket.unread();
        let _ = socket.unsent();
        let _ = socket.take_error();
        let _ = socket.peer_address();
        let _ = socket.is_at_mark();
        let _ = socket.option(sockopt::SO_RCVTIMEO);
        let _ = socket.option(sockopt::SO_TYPE);
        let _ = socket.option_raw(1, 99, &mut [0; 3]);
        let _ = socket.clone();
        let _ = self.layer.adopt(self.layer.host().opened(), SocketType::STREAM);
        if self.random.u8(..4) == 0 {
            let _ = socket.shutdown(Shutdown::Read);
        }
        if self.random.u8(..8) == 0 {
            let _ = socket.shutdown(Shutdown::Write);
            let _ = socket.hand_back();
        }
    }

    fn set(&mut self, socket: &Socket<Liar>) {
        let time = self.random.bool().then(|| Duration::from_millis(self.random.u64(..30)));
        let _ = socket.set_option(sockopt::SO_RCVTIMEO, time);
        let _ = socket.set_option(sockopt::SO_SNDTIMEO, time);
        let _ = socket.set_option(sockopt::SO_LINGER, time);
        let _ = socket.set_option(sockopt::TCP_CORK, true);
        if self.random.u8(..6) == 0 {
            let _ = socket.set_option_raw(6, self.random.i32(..50), &[1; 8]);
        }
    }
}

#[test]
fn a_host_that_lies_resets_connections_at_worst() {
    each_seed(4000, |seed| Program::new(seed).run());
}

/// Runs `program` with many seeds; it must not panic or hang.
pub fn each_seed(usual: u64, program: fn(u64)) {
    let seeds = settings::number("SAKIA_TEST_SOCKET_PROGRAMS", usual);
    let patience = settings::patience();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..seeds {
            let program = std::panic::catch_unwind(|| program(seed));
            sender.send((seed, program.is_ok())).expect("the test waits");
        }
    });
    for expected in 0..seeds {
        let (seed, is_ok) =
            ended.recv_timeout(patience).unwrap_or_else(|_| panic!("a hang of seed {expected}"));
        assert!(is_ok, "seed {seed}");
    }
}

/// After an impossible count, bytes of the stream may be missing, so the stream ends.
#[test]
fn a_lie_ends_the_stream() {
    for (seed, call) in (0..40).flat_map(|seed| (0..6).map(move |call| (seed, call))) {
        let mut options = Options::default();
        let mode = [When::Never, When::Always][seed as usize % 2];
        (options.read_ahead, options.gather) = (mode, mode);
        options.limits.delay = Duration::from_secs(3600);
        let layer = Layer::new(Liar::new(seed, 0), options);
        let to = SocketAddr::from(([127, 0, 0, 1], 5)).into();
        let socket = layer.socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        socket.connect(&to).expect("a connection");
        let lie = || layer.host().is_impossible.store(true, Ordering::Relaxed);
        let mut buffer = [0; 10];
        let reset = match call {
            0 => {
                lie();
                socket.recv(&mut buffer, RecvFlags::empty())
            }
            1 => {
                let buffers = &mut [IoSliceMut::new(&mut buffer)];
                lie();
                let flags = RecvFlags::OOB;
                socket.recv_message(buffers, 9, flags).map(|message| message.received.bytes)
            }
            2 => {
                lie();
                socket.send(&[b'x'; 5000], SendFlags::empty())
            }
            3 => {
                lie();
                socket.option_raw(1, 2, &mut [0; 4])
            }
            4 => {
                // In one of the modes it looks behind bytes in memory, which can be read.
                let _ = socket.recv(&mut buffer, RecvFlags::empty());
                lie();
                let seen = socket.recv(&mut vec![0; 1 << 17], RecvFlags::PEEK);
                let rest = seen.map_or(0, |count| count.div_ceil(buffer.len()));
                let mut recv = || socket.recv(&mut buffer, RecvFlags::empty());
                (0..rest).try_for_each(|_| recv().map(drop)).and(seen).and_then(|_| recv())
            }
            _ => {
                let control = [SendControl::TransmitTime(1)];
                lie();
                socket.send_message(&[IoSlice::new(b"x")], &control, SendFlags::empty(), None)
            }
        };
        assert_eq!(reset, Err(Errno::CONNRESET), "{seed} {call}");
        assert_eq!(socket.recv(&mut buffer, RecvFlags::empty()), Ok(0), "{seed} {call}");
        assert_eq!(socket.send(b"x", SendFlags::empty()), Err(Errno::PIPE), "{seed} {call}");
        let mut entries = [PollEntry::new(&socket, Events::IN)];
        layer.poll(&mut entries, None).expect("a poll");
        assert!(entries[0].ready().contains(Events::IN | Events::HUP));
        // The lie was about this connection, and not about the next.
        socket.disconnect().expect("a connection");
        socket.connect(&to).expect("another connection");
        assert_ne!(socket.send(b"x", SendFlags::empty()), Err(Errno::PIPE), "{seed} {call}");
    }
}
