//! Steady operation allocates nothing. The allocator is shared by a whole program, so this is a program of
//! its own.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::task::{Context, Waker};

use sakia_driver::{
    Bypass, CURRENT_POSITION, ControlMessages, Driver, FileHandle, Op, OpKind, OpenHow, Operation,
    PollEvents, Rules, SocketAddress, Wait,
};
use sakia_testkit::alloc_count::{CountingAllocator, Counts, measure};

#[global_allocator]
static GLOBAL: CountingAllocator = CountingAllocator::new();

/// The number of operations in flight.
const DEPTH: usize = 64;

fn finish<O: Operation>(driver: &Driver, op: &mut Op<O>) -> O::Output {
    for _ in 0..1_000_000 {
        if let Some(output) = op.try_take() {
            return output;
        }
        driver.turn(Wait::Forever).expect("a turn");
    }
    panic!("not done after a million turns");
}

/// Counts the allocations of 1,000 rounds, after a hundred rounds of warm-up.
fn steady(mut round: impl FnMut()) -> Counts {
    (0..100).for_each(|_| round());
    measure(|| (0..1000).for_each(|_| round()))
}

const NOTHING: Counts = Counts {
    allocations: 0,
    deallocations: 0,
    reallocations: 0,
    bytes_allocated: 0,
    bytes_deallocated: 0,
};

/// Makes a file for one test and removes its name.
fn file(test: &str) -> File {
    let name = format!("allocations-{}-{test}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, vec![7; 1 << 16]).expect("a file");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("the file");
    std::fs::remove_file(path).expect("the file's name is removed");
    file
}

#[test]
fn reads_and_writes_of_a_file() {
    let driver = Driver::uring().expect("a ring");
    let fd = driver.adopt(file("one").into());
    let mut buf = Some(vec![0; 4096]);
    let counts = steady(|| {
        let mut read = driver.read(&fd, buf.take().expect("it came back"), 4096);
        let (result, back) = finish(&driver, &mut read);
        assert_eq!(result.expect("read"), 4096);
        let (result, back) = finish(&driver, &mut driver.write(&fd, back, 4096));
        assert_eq!(result.expect("written"), 4096);
        buf = Some(back);
    });
    assert_eq!(counts, NOTHING);
}

/// Messages in both directions of a connection, and datagrams with addresses, allocate nothing.
#[test]
fn messages_between_sockets() {
    let driver = Driver::uring().expect("a ring");
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let (near, far) = (driver.adopt(near.into()), driver.adopt(far.into()));
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    let address = SocketAddress::from(socket.local_addr().expect("its address"));
    let datagrams = driver.adopt(socket.into());
    let mut buf = Some(vec![0; 256]);
    let counts = steady(|| {
        let mut back = buf.take().expect("it came back");
        for (from, to) in [(&near, &far), (&far, &near)] {
            let mut recv = driver.recv(to, back, 0);
            let (sent, _) = finish(&driver, &mut driver.send(from, "hello", 0));
            assert_eq!(sent.expect("sent"), 5);
            let received;
            (received, back) = finish(&driver, &mut recv);
            assert_eq!(received.expect("received"), 5);
        }
        let mut recv = driver.recv_from(&datagrams, back, 0);
        let (sent, _) = finish(&driver, &mut driver.send_to(&datagrams, "hi", &address, 0));
        assert_eq!(sent.expect("sent"), 2);
        let (received, back) = finish(&driver, &mut recv);
        assert_eq!(received.expect("received").from, address);
        let mut recv = driver.recv_message(&datagrams, back, 128, 0);
        let control = ControlMessages::new().ip_tos(2).segment_bytes(100);
        let mut send = driver.send_message(&datagrams, "hi", &address, control, 0);
        assert_eq!(finish(&driver, &mut send).0.expect("sent"), 2);
        let (received, back) = finish(&driver, &mut recv);
        assert_eq!(received.expect("received").0.from, address);
        buf = Some(back);
    });
    assert_eq!(counts, NOTHING);
}

#[test]
fn many_reads_at_a_time() {
    let driver = Driver::uring().expect("a ring");
    let fd = driver.adopt(file("many").into());
    let mut bufs: Vec<Vec<u8>> = vec![vec![0; 512]; DEPTH];
    let mut reads = Vec::with_capacity(DEPTH);
    let counts = steady(|| {
        while let Some(buf) = bufs.pop() {
            let mut read = driver.read(&fd, buf, 512);
            read.set_token(reads.len() as u64);
            reads.push(read);
        }
        let mut done = 0;
        while done < DEPTH {
            driver.turn(Wait::Forever).expect("a turn");
            while let Some(token) = driver.next_done() {
                let (result, buf) = reads[token as usize].try_take().expect("it is done");
                assert_eq!(result.expect("read"), 512);
                bufs.push(buf);
                done += 1;
            }
        }
        reads.clear();
    });
    assert_eq!(counts, NOTHING);
}

#[test]
fn reads_and_polls_of_a_pipe_that_tasks_await() {
    let driver = Driver::uring().expect("a ring");
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let fd = driver.adopt(read);
    let mut buf = Some(vec![0; 64]);
    let mut context = Context::from_waker(Waker::noop());
    let counts = steady(|| {
        let mut poll = driver.poll(&fd, PollEvents::READABLE);
        let free = buf.take().expect("it came back");
        let mut read = driver.read(&fd, free, CURRENT_POSITION);
        assert!(std::pin::Pin::new(&mut poll).poll(&mut context).is_pending());
        assert!(std::pin::Pin::new(&mut read).poll(&mut context).is_pending());
        driver.turn(Wait::Poll).expect("a turn");
        rustix::io::write(&write, &[1; 64]).expect("written");
        let (result, back) = finish(&driver, &mut read);
        assert_eq!(result.expect("read"), 64);
        drop(poll); // done, or canceled by the drop
        buf = Some(back);
    });
    while driver.in_flight() > 0 {
        driver.turn(Wait::Forever).expect("a turn");
    }
    assert_eq!(counts, NOTHING);
}

#[test]
fn operations_that_are_dropped_in_flight() {
    let driver = Driver::uring().expect("a ring");
    let (read, _write) = rustix::pipe::pipe().expect("a pipe");
    let fd = driver.adopt(read);
    let counts = steady(|| {
        let polls: [_; 8] = std::array::from_fn(|_| driver.poll(&fd, PollEvents::READABLE));
        driver.turn(Wait::Poll).expect("a turn");
        drop(polls);
        drop(driver.nop());
        while driver.in_flight() > 0 {
            driver.turn(Wait::Forever).expect("a turn");
        }
    });
    assert_eq!(counts, NOTHING);
}

/// A driver that received into its own memory frees it at its end.
#[test]
fn the_end_of_a_driver_frees_what_it_received_into() {
    let receive = || {
        let driver = Driver::uring().expect("a ring");
        let (near, far) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let connection = driver.connection(driver.adopt(near.into()));
        rustix::io::write(&far, b"text").expect("room");
        let mut recv = Box::pin(connection.recv());
        let mut cx = Context::from_waker(Waker::noop());
        let buf = loop {
            if let std::task::Poll::Ready(buf) = recv.as_mut().poll(&mut cx) {
                break buf.expect("received");
            }
            driver.turn(Wait::Forever).expect("a turn");
        };
        assert_eq!(&buf[..], b"text");
    };
    receive();
    let counts = measure(receive);
    let left = counts.bytes_allocated - counts.bytes_deallocated;
    // A buffer that leaked would have 4 KiB or more.
    assert!(left < 1000, "{left} bytes: {counts:?}");
}

#[test]
fn large_operations_and_registered_memory() {
    let driver = Driver::uring().expect("a ring");
    let fd = driver.adopt(file("large").into());
    let counts = steady(|| {
        let mut statx: [_; 8] = std::array::from_fn(|_| driver.statx_fd(&fd));
        for statx in &mut statx {
            assert_eq!(finish(&driver, statx).expect("known").size, 1 << 16);
        }
    });
    assert_eq!(counts, NOTHING);

    let Ok(arena) = driver.register_arena(2, 4096) else {
        assert!(std::env::var_os("SAKIA_DENY_SKIPS").is_none(), "no memory may be locked");
        eprintln!("SKIP allocations: no memory may be locked");
        return;
    };
    let counts = steady(|| {
        let block = arena.block().expect("a block");
        let (result, _block) = finish(&driver, &mut driver.read_fixed(&fd, block, 0));
        assert_eq!(result.expect("read"), 4096);
    });
    assert_eq!(counts, NOTHING);
}

#[test]
fn plain_calls() {
    let driver = Driver::uring().expect("a ring");
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let fd = driver.adopt(file("plain").into());
    let mut buf = Some(vec![0; 4096]);
    let counts = steady(|| {
        let mut read = driver.read(&fd, buf.take().expect("it came back"), 4096);
        let (result, back) = finish(&driver, &mut read);
        assert_eq!(result.expect("read"), 4096);
        buf = Some(back);
        finish(&driver, &mut driver.statx_fd(&fd)).expect("known");
    });
    assert_eq!(counts, NOTHING);
    let counters = driver.counters();
    assert!(counters.of(OpKind::Read).inline >= 1000, "{:?}", counters.of(OpKind::Read));

    // More reads than a turn makes.
    let mut bufs: Vec<Vec<u8>> = vec![vec![0; 512]; 2 * DEPTH];
    let mut reads = Vec::with_capacity(2 * DEPTH);
    let counts = steady(|| {
        while let Some(buf) = bufs.pop() {
            reads.push(driver.read(&fd, buf, 512));
        }
        for mut read in reads.drain(..) {
            let (result, buf) = finish(&driver, &mut read);
            assert_eq!(result.expect("read"), 512);
            bufs.push(buf);
        }
    });
    assert_eq!(counts, NOTHING);
    assert!(driver.counters().deferred > 0);
}

/// Calls on file handles that never wait allocate nothing but the handle that an open makes.
#[test]
fn attempts_on_file_handles() {
    let handle = FileHandle::new(file("attempts"));
    let (near, far) = std::os::unix::net::UnixStream::pair().expect("two sockets");
    let [near, far] = [near, far].map(|end| FileHandle::new(OwnedFd::from(end)));
    let mut buf = [7; 512];
    let counts = steady(|| {
        assert_eq!(near.try_send(&buf, 0).expect("there is room").expect("sent"), 512);
        assert_eq!(far.try_recv(&mut buf, 0).expect("it is there").expect("received"), 512);
        assert!(far.try_recv(&mut buf, 0).is_none());
        handle.try_stat().expect("it is here").expect("its status");
        handle.try_read(&mut buf, Some(0)).map(|read| read.expect("read"));
        handle.try_write(&buf, Some(0)).map(|written| written.expect("written"));
    });
    assert_eq!(counts, NOTHING);
    let counts = steady(|| drop(FileHandle::try_stat_at(None, c"/", 0)));
    assert_eq!(counts, NOTHING);
    let file_alone = steady(|| drop(FileHandle::new(File::open("/").expect("it is there"))));
    let opened = steady(|| drop(FileHandle::try_open(None, c"/", OpenHow::default())));
    assert!(opened.allocations <= file_alone.allocations, "{opened:?} and {file_alone:?}");
}
