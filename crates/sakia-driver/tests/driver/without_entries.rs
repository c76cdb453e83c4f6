//! A backend that takes only entries: it never sees an operation that no ring has, and promises nothing of
//! its plain calls.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::call::{Buffers, Call, Transfer};
use sakia_driver::sim::Sim;
use sakia_driver::{
    Attempt, Backend, Begun, Bypass, CallMode, Descriptors, Driver, Fd, Lane, Op, OpKind,
    Operation, Rules, SetTime, SpliceFlags, Uring, Wait,
};
use sakia_ring::{Cqe, Entered, Opcode, Position, Sqe};

use crate::support::errno;

/// A backend that, like a ring, takes only entries and has no threads. Its plain calls report all bytes as
/// read, and fill none.
struct Ringlike(Sim);

// SAFETY: each call goes to a backend that keeps the contract.
unsafe impl Backend for Ringlike {
    unsafe fn push(&mut self, sqe: Sqe) -> Option<Position> {
        // SAFETY: the caller's duties are the same.
        unsafe { self.0.push(sqe) }
    }

    unsafe fn try_now(&mut self, call: Call, _: CallMode) -> Attempt {
        match call {
            Call::Transfer(Transfer { buffers: Buffers::One { len, .. }, .. }) => {
                Attempt::Done(len as i32)
            }
            _ => Attempt::Unsupported,
        }
    }

    fn sq_entries(&self) -> u32 {
        self.0.sq_entries()
    }

    fn cq_entries(&self) -> u32 {
        self.0.cq_entries()
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

    fn enter(&mut self, min_complete: u32, timeout: Option<Duration>) -> io::Result<Entered> {
        self.0.enter(min_complete, timeout)
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

    fn descriptors(&self) -> Rc<dyn Descriptors> {
        self.0.descriptors()
    }
}

/// Returns a driver of such a backend, and an open file.
fn ringlike() -> (Driver, Fd) {
    let sim = Sim::new(1);
    sim.handle().create_file("file", "");
    let driver = Driver::new(Ringlike(sim));
    let mut open = driver.open(None, c"file".to_owned(), 0, 0);
    driver.turn(Wait::Forever).unwrap();
    let fd = open.try_take().expect("it is open").unwrap();
    (driver, fd)
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
    let (driver, fd) = ringlike();
    refuse_each(&driver, &fd);
    assert_eq!(driver.turn(Wait::Poll).unwrap(), 0);
}

/// Memory that a plain call reports as filled, and is not, shows nothing of what it held before.
#[test]
fn memory_that_no_call_fills_is_zeroed() {
    let (driver, fd) = ringlike();
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
