//! A backend that takes only entries: it never sees an operation that no ring has, and promises nothing of
//! its plain calls.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::call::{Buffers, Call, Function, System, Transfer};
use sakia_driver::sim::Sim;
use sakia_driver::{
    Attempt, Backend, Begun, Bypass, CallMode, Calls, Domain, Driver, Fd, Features, FileFacts,
    Lane, Op, OpKind, Operation, Rule, Rules, SetTime, SocketType, SpliceFlags, StatxResult, Uring,
    Wait, WholeFile,
};
use sakia_ring::{Cqe, Entered, Opcode, Position, SignalMask, Sqe};

use crate::hosts::rigged;
use crate::support::errno;

const O_CREAT: u32 = rustix::fs::OFlags::CREATE.bits();

/// A backend that, like a ring, takes only entries and has no threads.
struct Ringlike(Sim, Rc<Unfilled>);

// SAFETY: each call goes to a backend that keeps the contract.
unsafe impl Backend for Ringlike {
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.0.push(sqe) }
    }

    fn features(&self) -> Features {
        let Features { sq_entries, cq_entries, .. } = self.0.features();
        Features { plain_calls: self.1.is_used, ..Features::new(sq_entries, cq_entries) }
    }

    fn sq_pending(&self) -> u32 {
        self.0.sq_pending()
    }

    fn make_nop(&mut self, position: Position, user_data: u64) -> bool {
        self.0.make_nop(position, user_data)
    }

    fn submit(&mut self) -> io::Result<()> {
        self.0.submit()
    }

    fn enter(
        &mut self,
        min_complete: u32,
        timeout: Option<Duration>,
        signals: Option<&SignalMask>,
    ) -> io::Result<Entered> {
        self.0.enter(min_complete, timeout, signals)
    }

    fn cq_ready(&self) -> u32 {
        self.0.cq_ready()
    }

    fn reap(&mut self, out: &mut [Cqe]) -> usize {
        self.0.reap(out)
    }

    fn needs_enter(&self) -> bool {
        self.0.needs_enter()
    }

    fn is_overflowing(&self) -> bool {
        self.0.is_overflowing()
    }

    fn is_intact(&self) -> bool {
        self.0.is_intact()
    }

    unsafe fn register_buffer(&mut self, addr: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.0.register_buffer(addr, len) }
    }

    fn now(&self) -> Duration {
        self.0.now()
    }

    fn nap(&mut self, duration: Duration) {
        self.0.nap(duration);
    }

    fn calls(&self) -> Rc<dyn Calls> {
        self.1.clone()
    }
}

/// Calls that report all bytes as read, fill none, and keep those that they are asked for.
struct Unfilled {
    /// Operations may be performed by them.
    is_used: bool,
    of_sim: Rc<dyn Calls>,
    asked: RefCell<Vec<Call>>,
}

impl Calls for Unfilled {
    unsafe fn try_now(&self, call: Call, _: CallMode) -> Attempt {
        self.asked.borrow_mut().push(call);
        match call {
            Call::Transfer(Transfer { buffers: Buffers::One { len, .. }, .. }) => {
                Attempt::Done(len as i32)
            }
            _ => Attempt::Unsupported,
        }
    }

    unsafe fn close(&self, raw: i32, may_wait: bool) -> io::Result<()> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.of_sim.close(raw, may_wait) }
    }

    unsafe fn facts(&self, raw: i32, stat: Option<&mut StatxResult>) -> FileFacts {
        // SAFETY: the caller's duties are the same.
        unsafe { self.of_sim.facts(raw, stat) }
    }

    fn are_of_this_process(&self) -> bool {
        false
    }
}

/// Returns a driver of such a backend, an open file, and the calls.
fn ringlike(is_used: bool) -> (Driver, Fd, Rc<Unfilled>) {
    let sim = Sim::new(1);
    sim.handle().create_file("file", "");
    let calls = Rc::new(Unfilled { is_used, of_sim: sim.calls(), asked: RefCell::default() });
    let driver = Driver::new(Ringlike(sim, Rc::clone(&calls)));
    let mut open = driver.open(None, c"file".to_owned(), 0, 0);
    driver.turn(Wait::Forever).unwrap();
    let fd = open.try_take().expect("it is open").unwrap();
    (driver, fd, calls)
}

/// Returns the output of an operation, which must be done already.
#[track_caller]
fn done<O: Operation>(mut op: Op<O>) -> O::Output {
    op.try_take().expect("it is refused at once")
}

/// Starts each of these operations. Every one must be refused at once and return its buffer.
fn refuse_each(driver: &Driver, fd: &Fd) {
    let before = driver.counters();
    let path = || c"path".to_owned();
    let refused = |result: io::Result<()>| assert_eq!(errno(result), Errno::OPNOTSUPP);
    let with_buf = |(result, buf): (io::Result<usize>, Vec<u8>)| {
        refused(result.map(|_| ()));
        assert_eq!(buf, [7; 64]);
    };
    let buf = || vec![7; 64];
    with_buf(done(driver.read_directory(fd, buf())));
    with_buf(done(driver.readlink(None, path(), buf())));
    with_buf(done(driver.list_xattr(fd, buf())));
    refused(done(driver.remove_xattr(fd, path())));
    refused(done(driver.chmod(Some(fd), path(), 0o600, 0)));
    refused(done(driver.chmod_fd(fd, 0o600)));
    refused(done(driver.chown(None, path(), None, None, 0)));
    refused(done(driver.chown_fd(fd, None, None)));
    refused(done(driver.utimens(None, path(), SetTime::Now, SetTime::Keep, 0)));
    refused(done(driver.utimens_fd(fd, SetTime::Now, SetTime::Keep)));
    refused(done(driver.copy_file_range(fd, 0, fd, 0, 1)).map(|_| ()));
    let mut splice = driver.splice(fd, 0, fd, 0, 1, SpliceFlags::MOVE);
    match Pin::new(&mut splice).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => refused(result.map(|_| ())),
        Poll::Pending => panic!("it is refused at once"),
    }
    let connection = driver.connection(fd.clone());
    let mut sending = std::pin::pin!(connection.send_file(fd, 0, 1));
    match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => refused(result.map(|_| ())),
        Poll::Pending => panic!("it is refused at once"),
    }
    refused(done(driver.syncfs(fd)));
    refused(done(driver.flock(fd, 1)));
    refused(done(driver.statfs(fd)).map(|_| ()));
    // An operation without a waiter.
    drop(driver.flock(fd, 1));
    let after = driver.counters();
    assert_eq!((after.started - before.started, after.finished - before.finished), (17, 17));
    assert_eq!((after.pushed - before.pushed, after.of(OpKind::Lock).submitted), (0, 0));
    assert_eq!((driver.live_operations(), driver.in_flight()), (0, 0));
}

#[test]
fn reach_no_backend_without_them() {
    let (driver, fd, _) = ringlike(true);
    refuse_each(&driver, &fd);
    assert_eq!(driver.turn(Wait::Poll).unwrap(), 0);
}

/// Memory that a plain call reports as filled, and is not, shows nothing of what it held before.
#[test]
fn memory_that_no_call_fills_is_zeroed() {
    let (driver, fd, _) = ringlike(true);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let used = || {
        let mut buf = vec![0xaa; 64];
        buf.clear();
        buf
    };
    let (result, read) = match driver.begin_read(&fd, used(), 0) {
        Begun::Done(output) => output,
        Begun::Op(op) => done(op),
    };
    assert_eq!((result.unwrap(), read), (64, vec![0; 64]));
    let (result, read) = done(driver.read(&fd, used(), 0));
    assert_eq!((result.unwrap(), read), (64, vec![0; 64]));
    assert_eq!(driver.counters().of(OpKind::Read).inline, 2);
}

/// Returns rules that try a plain call for each operation.
fn plain_first() -> Bypass {
    let rules =
        OpKind::ALL.iter().fold(Rules::default(), |rules, &kind| rules.with(kind, Rule::NOW));
    Bypass::Rules(rules)
}

/// Starts operations that have plain calls, and returns how many they are.
fn start_each(driver: &Driver, fd: &Fd) -> u64 {
    let path = || c"/proc/self/exe".to_owned();
    let before = driver.counters().started;
    drop(driver.begin_read(fd, vec![0; 8], 0));
    drop(driver.read(fd, vec![0; 8], 0));
    drop(driver.read_vectored(fd, vec![vec![0; 8]], 0));
    drop(driver.write(fd, vec![0; 8], 0));
    drop(driver.open(None, path(), 0, 0));
    drop(driver.open(None, path(), O_CREAT, 0o600));
    drop(driver.mkdir(None, path(), 0o700));
    drop(driver.statx(None, path(), 0));
    drop(driver.statx_fd(fd));
    drop(driver.socket(Domain::UNIX, SocketType::STREAM, 0));
    assert!(matches!(driver.read_file_now(&path(), 64), Ok(WholeFile::NotNow)));
    drop(driver.close(fd.clone()));
    driver.counters().started - before
}

/// Whatever the rules say.
#[test]
fn no_operation_is_a_plain_call_if_the_backend_has_none() {
    let (driver, fd, calls) = ringlike(false);
    driver.set_bypass(plain_first());
    calls.asked.borrow_mut().clear(); // for a limit
    assert!(start_each(&driver, &fd) >= 10);
    drop(fd);
    while driver.in_flight() > 0 {
        driver.turn(Wait::Forever).unwrap();
    }
    let asked = calls.asked.take();
    // The status flags of a descriptor are no operation's.
    let is_aside =
        |call: &Call| matches!(call, Call::System(System { function: Function::Fcntl, .. }));
    assert!(asked.iter().all(is_aside), "{asked:?}");
    let counters = driver.counters();
    for kind in OpKind::ALL.iter().filter(|&&kind| kind != OpKind::Close) {
        assert_eq!(counters.of(*kind).inline, 0, "{}", kind.name());
    }
}

/// A call of this process's kernel would open, read and describe the file of the same path or number.
#[test]
fn no_plain_call_escapes_the_simulated_kernel() {
    let sim = Sim::builder(1).plain_calls(true).build();
    let kernel = sim.handle();
    kernel.create_file("file", "simulated");
    let driver = Driver::new(sim);
    driver.set_bypass(plain_first());
    let fd = done(driver.open(None, c"file".to_owned(), 0, 0)).unwrap();
    let (result, buf) = done(driver.read(&fd, vec![0; 16], 0));
    assert_eq!(&buf[..result.unwrap()], b"simulated");
    let real = c"/proc/self/exe".to_owned();
    let missing = done(driver.open(None, real.clone(), 0, 0)).map(|_| ());
    assert_eq!(errno(missing), Errno::NOENT);
    assert_eq!(errno(done(driver.statx(None, real.clone(), 0)).map(|_| ())), Errno::NOENT);
    let missing = driver.read_file_now(&real, 64).map(|_| ());
    assert_eq!(errno(missing), Errno::NOENT);
    let Ok(WholeFile::Read(bytes)) = driver.read_file_now(c"file", 64) else {
        panic!("it is small")
    };
    assert_eq!(bytes, b"simulated");
    let (near, _far) = driver.socket_pair(SocketType::STREAM).unwrap();
    assert_eq!(driver.peer_credentials(&near).unwrap().process, 1, "the only one there");
    assert!(driver.local_address(&near).unwrap().is_unnamed());
    assert_eq!(errno(driver.local_address(&fd).map(|_| ())), Errno::NOTSOCK);
    let counters = driver.counters();
    assert_eq!((counters.of(OpKind::Read).submitted, counters.of(OpKind::Open).submitted), (0, 0));
    let handle = driver.handle().clone();
    drop((near, _far, fd));
    assert_eq!(kernel.open_descriptors(), 0);
    // Nor are there any after the end.
    drop(driver);
    let events = kernel.events();
    let ended = done(handle.open(None, c"file".to_owned(), 0, 0)).map(|_| ());
    assert_eq!((errno(ended), kernel.events()), (Errno::CANCELED, events));
}

/// The host answers each entry itself; a plain call would bring the file's bytes and its size.
#[test]
fn no_plain_call_escapes_an_embedders_host() {
    let (driver, rig) = rigged(8, 16);
    driver.set_bypass(plain_first());
    let file = driver.adopt(std::fs::File::open("/proc/self/exe").unwrap().into());
    rig.injects.set(Some(4));
    let mut read = driver.read(&file, vec![0; 4], 0);
    let mut vectored = driver.read_vectored(&file, vec![vec![0; 4]], 0);
    let mut described = driver.statx_fd(&file);
    let begun = driver.begin_read(&file, vec![0; 4], 0);
    while driver.in_flight() > 0 {
        driver.turn(Wait::Forever).unwrap();
    }
    let (result, buf) = read.try_take().unwrap();
    assert_eq!((result.unwrap(), buf), (4, vec![0; 4]));
    let (result, bufs) = vectored.try_take().unwrap();
    assert_eq!((result.unwrap(), bufs), (4, vec![vec![0; 4]]));
    assert_eq!(described.try_take().unwrap().unwrap().size, 0);
    let Begun::Op(mut begun) = begun else { panic!("it is the host's") };
    assert_eq!(begun.try_take().unwrap().1, [0; 4]);
    let counters = driver.counters();
    assert_eq!((counters.of(OpKind::Read).inline, counters.of(OpKind::Statx).inline), (0, 0));
    rig.injects.set(None);
}

/// No kernel has operations with this number or a larger one.
const NONE_YET: u8 = 0xe0;

/// The operations are performed by threads: a ring would refuse them with `EINVAL`.
#[test]
fn reach_no_ring() {
    let backend = Uring::from_builder(sakia_ring::Ring::builder().sq_entries(4)).unwrap();
    for code in NONE_YET..=u8::MAX {
        assert!(!backend.supports(Opcode(code)), "{code}");
    }
    let driver = Driver::new(backend);
    let file = driver.adopt(std::fs::File::open("/proc/self/comm").unwrap().into());
    let mut described = driver.statfs(&file);
    let mut synced = driver.syncfs(&file);
    let mut listed = driver.read_directory(&file, vec![7; 64]);
    while driver.in_flight() > 0 {
        driver.turn(Wait::Forever).unwrap();
    }
    assert_ne!(described.try_take().unwrap().unwrap().magic, 0);
    synced.try_take().unwrap().unwrap();
    let (result, buf) = listed.try_take().unwrap();
    assert_eq!(errno(result.map(|_| ())), Errno::NOTDIR);
    assert_eq!(buf, [7; 64]);
    let counters = driver.counters();
    for kind in [OpKind::Statx, OpKind::Fsync, OpKind::List] {
        assert_eq!(counters.of(kind).lane, 1, "{}", kind.name());
    }
    let finished = driver.with_backend(|ring: &Uring| ring.lane_statistics(Lane::Bounded).finished);
    assert_eq!(finished, Some(3));
}
