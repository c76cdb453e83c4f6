//! The driver on this backend.

use std::ffi::CString;
use std::os::fd::IntoRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::wakes::Storm;
use super::*;
use crate::sys::borrow;
use crate::{Domain, Driver, Fd, Lane, Op, Operation, PollEvents, SocketAddress, Wait};

fn driver_with(options: EpollOptions) -> Driver {
    Driver::new(Epoll::with_options(options).unwrap())
}

pub(super) fn adopt(driver: &Driver, fd: OwnedFd) -> Fd {
    // SAFETY: the descriptor is open, and its owner gives it up.
    unsafe { driver.handle().own(fd.into_raw_fd()) }
}

#[track_caller]
pub(super) fn turn_until(driver: &Driver, mut is_done: impl FnMut() -> bool) {
    let watch = Instant::now();
    while !is_done() {
        assert!(watch.elapsed() < PATIENCE, "in flight: {}", driver.in_flight());
        driver.turn(Wait::For(Duration::from_millis(20))).unwrap();
    }
}

#[track_caller]
pub(super) fn finish<O: Operation>(driver: &Driver, mut op: Op<O>) -> O::Output {
    let mut output = None;
    turn_until(driver, || {
        output = op.try_take();
        output.is_some()
    });
    output.unwrap()
}

pub(super) fn c_path_of(dir: &TempDir, name: &str) -> CString {
    c_path(&dir.join(name))
}

fn sockets(driver: &Driver) -> (Fd, Fd) {
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    (adopt(driver, near), adopt(driver, far))
}

/// Creates, writes, reads and closes a file.
fn use_a_file(driver: &Driver, dir: &TempDir, name: &str) {
    let path = c_path_of(dir, name);
    let flags = (OFlags::CREATE | OFlags::RDWR).bits();
    let file = finish(driver, driver.open(None, path.clone(), flags, 0o600)).unwrap();
    let (count, _) = finish(driver, driver.write(&file, b"hello world".to_vec(), 0));
    assert_eq!(count.unwrap(), 11);
    finish(driver, driver.fsync(&file, true)).unwrap();
    let bufs = vec![vec![0; 6], vec![0; 9]];
    let (count, bufs) = finish(driver, driver.read_vectored(&file, bufs, 0));
    assert_eq!((count.unwrap(), bufs.concat()), (11, b"hello world\0\0\0\0".to_vec()));
    assert_eq!(finish(driver, driver.statx_fd(&file)).unwrap().size, 11);
    assert!(finish(driver, driver.statx(None, path, 0)).unwrap().is_file());
    finish(driver, driver.close(file)).unwrap();
}

#[test]
fn files_on_queues_of_any_size() {
    let dir = TempDir::new();
    for (sq_entries, cq_entries) in [(1, 1), (2, 2), (2, 4), (256, 4096), (u32::MAX, u32::MAX)] {
        let driver = driver_with(EpollOptions::new().entries(sq_entries, cq_entries));
        use_a_file(&driver, &dir, "file");
        assert_eq!(driver.shutdown(PATIENCE).leaked, 0);
    }
}

#[test]
fn a_thousand_pipes_wait_while_files_are_read() {
    const PIPES: usize = 1000;
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();

    let dir = TempDir::new();
    let path = c_path(&dir.file("file", &[7; 4096]));
    let driver = driver_with(EpollOptions::new().entries(8, 16));
    let file = finish(&driver, driver.open(None, path, 0, 0)).unwrap();
    let pipes: Vec<_> = (0..PIPES).map(|_| pipe()).collect();
    let (readers, writers): (Vec<_>, Vec<_>) = pipes.into_iter().unzip();
    let readers: Vec<_> = readers.into_iter().map(|fd| adopt(&driver, fd)).collect();
    let mut waiting: Vec<_> =
        readers.iter().map(|fd| driver.read(fd, vec![0; 2], CURRENT_POSITION)).collect();
    for round in 0..100 {
        let (count, bytes) = finish(&driver, driver.read(&file, vec![0; 4096], 0));
        assert_eq!((count.unwrap(), bytes), (4096, vec![7; 4096]), "{round}");
    }
    assert!(waiting.iter_mut().all(|op| op.try_take().is_none()));
    for (index, writer) in writers.iter().enumerate() {
        rustix::io::write(writer, &(index as u16).to_ne_bytes()).unwrap();
    }
    for (index, op) in waiting.into_iter().enumerate() {
        let (count, bytes) = finish(&driver, op);
        assert_eq!((count.unwrap(), bytes), (2, (index as u16).to_ne_bytes().to_vec()));
    }
    // The same reads, dropped while they wait.
    let waiting: Vec<_> =
        readers.iter().map(|fd| driver.read(fd, vec![0; 2], CURRENT_POSITION)).collect();
    turn_until(&driver, || driver.in_flight() as usize >= PIPES);
    drop(waiting);
    turn_until(&driver, || driver.in_flight() == 0);
    assert_eq!(driver.counters().stale, 0);
    assert_eq!(driver.shutdown(PATIENCE).leaked, 0);
}

#[test]
fn operations_are_dropped_canceled_and_closed_in_every_state() {
    let dir = TempDir::new();
    let path = c_path(&dir.file("file", &[7; 4096]));
    let driver = driver_with(EpollOptions::new().entries(4, 8));
    let file = finish(&driver, driver.open(None, path.clone(), 0, 0)).unwrap();
    for steps in 0..4 {
        let (reader, writer) = pipe();
        let reader = adopt(&driver, reader);
        let mut canceled = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
        let dropped = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
        let polled = driver.poll(&reader, PollEvents::READABLE);
        let late = driver.open(None, path.clone(), 0, 0);
        let bounded = driver.read(&file, vec![0; 4096], 0);
        let closed = driver.read(&reader, vec![0; 1], CURRENT_POSITION);
        for _ in 0..steps {
            driver.turn(Wait::Poll).unwrap();
        }
        drop((dropped, bounded, late, polled));
        canceled.cancel();
        let (result, _) = finish(&driver, canceled);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(125));
        let close = driver.close(reader);
        let (result, _) = finish(&driver, closed);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(125));
        finish(&driver, close).unwrap();
        turn_until(&driver, || driver.in_flight() == 0);
        drop(writer);
    }
    assert_eq!(driver.live_operations(), 0);
    assert_eq!(driver.counters().stale, 0);
    drop(file);
    assert_eq!(driver.shutdown(PATIENCE).leaked, 0);
}

#[test]
fn the_end_with_a_stuck_open_is_bounded_and_leaks_it() {
    let dir = TempDir::new();
    let fifo = dir.fifo("fifo");
    let driver = driver_with(EpollOptions::new());
    let (near, _far) = sockets(&driver);
    let waiting = driver.read(&near, vec![0; 1], CURRENT_POSITION);
    let stuck = driver.open_waiting(None, c_path(&fifo), OFlags::WRONLY.bits(), 0);
    let statistics =
        || driver.with_backend(|epoll: &Epoll| epoll.statistics(Lane::Elastic)).unwrap();
    turn_until(&driver, || statistics().running == 1);
    let pool = driver.with_backend(|epoll: &Epoll| epoll.machine.pool.alive()).unwrap();
    drop(near);
    assert_eq!(driver.shutdown(Duration::from_millis(30)).leaked, 1);
    drop((waiting, stuck));
    // The thread still uses the path, which must still exist, and closes the file that it opens.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let reader = rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()).unwrap();
    wait_until(|| pool.upgrade().is_none());
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
}

#[test]
fn what_may_wait_goes_to_the_elastic_lane_and_what_ends_by_itself_does_not() {
    let dir = TempDir::new();
    let fifo = dir.fifo("fifo");
    dir.file("file", b"");
    let driver = driver_with(EpollOptions::new());
    let elastic = || driver.with_backend(|epoll: &Epoll| epoll.statistics(Lane::Elastic)).unwrap();
    let how = |flags: OFlags| crate::OpenHow { flags: flags.bits().into(), ..Default::default() };
    let open = |name: &str, flags| driver.openat2(None, c_path(&dir.join(name)), how(flags));
    let [file, other] = [0, 1].map(|_| finish(&driver, open("file", OFlags::RDWR)).unwrap());
    let (exclusive, unlock) = (2, 8);
    finish(&driver, driver.flock(&file, exclusive)).unwrap();
    assert_eq!((elastic().threads_peak, elastic().finished), (0, 0));

    let path = c_path(&dir.join("fifo"));
    let writer = driver.open_waiting(None, path, OFlags::WRONLY.bits(), 0);
    let waiting = driver.flock(&other, exclusive);
    turn_until(&driver, || elastic().running == 2);
    // Both operations wait and block no others.
    finish(&driver, driver.syncfs(&file)).unwrap();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let _reader = rustix::fs::open(&fifo, flags, rustix::fs::Mode::empty()).unwrap();
    let writer = finish(&driver, writer).unwrap();
    // SAFETY: the driver keeps the pipe open.
    let writer_fd = unsafe { borrow(writer.raw()) }.unwrap();
    let is_nonblocking = rustix::fs::fcntl_getfl(writer_fd).unwrap();
    assert!(!is_nonblocking.contains(OFlags::NONBLOCK), "the mode is the requested one");
    finish(&driver, driver.flock(&file, unlock)).unwrap();
    finish(&driver, waiting).unwrap();
    assert_eq!(elastic().finished, 2);
}

#[test]
fn signals_all_the_time_disturb_nothing() {
    let dir = TempDir::new();
    let driver = driver_with(EpollOptions::new().entries(4, 8));
    let _storm = Storm::new();
    let before = Storm::count();
    let (near, far) = sockets(&driver);
    let mut round = 0_u64;
    while round < 50 || Storm::count() < before + 50 {
        use_a_file(&driver, &dir, "file");
        let read = driver.read(&far, vec![0; 8], CURRENT_POSITION);
        let sent =
            finish(&driver, driver.write(&near, round.to_ne_bytes().to_vec(), CURRENT_POSITION));
        assert_eq!(sent.0.unwrap(), 8);
        assert_eq!(finish(&driver, read).1, round.to_ne_bytes());
        round += 1;
    }
    assert_eq!(driver.counters().stale, 0);
}

#[test]
fn a_driver_that_sleeps_without_end_is_woken() {
    let driver = driver_with(EpollOptions::new());
    let (near, _far) = sockets(&driver);
    let mut waiting = driver.read(&near, vec![0; 1], CURRENT_POSITION);
    let wake = driver.with_backend(Epoll::wake_handle).unwrap();
    for _ in 0..500 {
        let wake = wake.clone();
        let thread = std::thread::spawn(move || wake.wake());
        assert_eq!(driver.turn(Wait::Forever).unwrap(), 0);
        thread.join().unwrap();
    }
    assert!(waiting.try_take().is_none());
}

/// Such an open does not end by itself, and occupies a thread.
#[test]
fn an_open_that_occupies_a_lane_is_overdue_for_that_alone() {
    let (dir, limit) = (TempDir::new(), Duration::from_millis(5));
    let driver = driver_with(EpollOptions::new());
    driver.watch(crate::WatchLimits::new(Some(limit), Some(limit)));
    let fifo = dir.fifo("fifo");
    let mut open = driver.open_waiting(None, c_path(&fifo), OFlags::RDONLY.bits(), 0);
    let mut found = Vec::new();
    while found.is_empty() {
        let next = driver.find_overdue(&mut found).unwrap_or(limit);
        driver.turn(Wait::For(next)).unwrap();
    }
    assert_eq!(driver.find_overdue(&mut found), None, "once is enough");
    let [overdue] = &found[..] else { panic!("{found:?}") };
    assert_eq!(overdue.lane, Some(crate::Lane::Elastic));
    assert_eq!(overdue.operation.kind, OpKind::Open);
    assert!(!overdue.operation.is_bounded && overdue.operation.age >= limit);
    let _both_ends = open_both_ends(&fifo);
    let opened = loop {
        match open.try_take() {
            Some(result) => break result,
            None => driver.turn(Wait::For(PATIENCE)).map(drop).unwrap(),
        }
    };
    opened.unwrap();
}

/// A thread binds the socket: a path has to be looked up and created, perhaps on a device.
#[test]
fn a_socket_gets_a_path_from_a_thread() {
    let driver = Driver::new(Epoll::new().unwrap());
    let dir = TempDir::new();
    let make = driver.socket(Domain::UNIX, crate::SocketType::STREAM, 0);
    let socket = finish(&driver, make).unwrap();
    let before = driver.counters().of(OpKind::Socket);
    let address = SocketAddress::unix(dir.join("socket")).unwrap();
    finish(&driver, driver.bind(&socket, &address)).unwrap();
    let after = driver.counters().of(OpKind::Socket);
    assert_eq!((after.inline - before.inline, after.lane - before.lane), (0, 1));
}

#[test]
fn an_operation_that_is_taken_back_is_no_plain_call() {
    let (driver, dir) = (Driver::new(Epoll::new().unwrap()), TempDir::new());
    let path = c_path(&dir.file("file", b"content"));
    let file = finish(&driver, driver.open(None, path, 0, 0)).unwrap();
    drop(driver.read(&file, vec![0; 4], 0));
    driver.turn(Wait::Poll).unwrap();
    let counters = driver.counters();
    assert_eq!((counters.revoked, counters.of(OpKind::Read).inline), (1, 0));
}

/// A thread finds the queue full as well, and does not wait either.
#[test]
fn a_socket_that_does_not_wait_is_refused_by_a_full_listener() {
    use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let driver = Driver::new(Epoll::new().unwrap());
    let new =
        |flags| net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let (listener, first) = (new(SocketFlags::CLOEXEC), new(SocketFlags::CLOEXEC));
    let name = format!("sakia-full-{}", std::process::id());
    net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    net::listen(&listener, 0).unwrap();
    net::connect(&first, &net::getsockname(&listener).unwrap()).unwrap();
    let near = adopt(&driver, new(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK));
    let listener = adopt(&driver, listener);
    let address = driver.local_address(&listener).unwrap();
    let refused = finish(&driver, driver.connect(&near, &address)).unwrap_err();
    assert_eq!(Errno::from_io_error(&refused), Some(Errno::AGAIN));
}

#[test]
fn registered_memory_is_as_other_memory_after_the_end() {
    let (driver, dir) = (Driver::new(Epoll::new().unwrap()), TempDir::new());
    let path = c_path(&dir.file("file", b"content"));
    let file = finish(&driver, driver.open(None, path, 0, 0)).unwrap();
    let block = driver.register_arena(1, 4096).unwrap().block().unwrap();
    let handle = driver.handle().clone();
    let drained = driver.shutdown(PATIENCE);
    assert_eq!(drained.leaked, 0);
    let ended = handle.read_fixed(&file, block, 0).try_take().unwrap().0.unwrap_err();
    assert_eq!(Errno::from_io_error(&ended), Some(Errno::CANCELED));
}

#[test]
fn who_waits_is_shown_with_what_it_acts_on() {
    let driver = Driver::new(Epoll::with_options(EpollOptions::new().entries(1, 1)).unwrap());
    let dir = TempDir::new();
    let path = c_path(&dir.file("file", b"content"));
    let file = finish(&driver, driver.open(None, path, 0, 0)).unwrap();
    let (_pushed, _queued) = (driver.nop(), driver.statx_fd(&file));
    let shown = driver.handle().operations();
    assert_eq!(shown.last().unwrap().descriptor, Some(file.raw()));
}
