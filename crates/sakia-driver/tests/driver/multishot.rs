//! Multishot receives and accepts: their results, their end, and completions that make no sense.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use sakia_driver::{DatagramOptions, Driver, RecvBuf, Wait};
use sakia_ring::{CqeFlags, Opcode, Sqe};

use crate::hosts::rigged;
use crate::scripted::{Cancels, MORE, PIPE, Stage, scripted};
use crate::support::drain;

/// The flag of a completion that names a buffer; the buffer's number is in the upper half.
const BUFFER: u32 = 1;
/// `IORING_RECV_MULTISHOT`, and `IORING_ACCEPT_MULTISHOT`.
const MULTISHOT: [u16; 2] = [2, 1];

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn named(id: u16) -> CqeFlags {
    CqeFlags(u32::from(id) << 16 | BUFFER)
}

fn named_with_more(id: u16) -> CqeFlags {
    CqeFlags(named(id).0 | MORE.0)
}

/// Returns the entry of the multishot receive in flight.
fn armed(stage: &Stage) -> Option<Sqe> {
    let recv = stage.in_flight(Opcode::RECV).first().copied();
    recv.inspect(|sqe| assert_eq!(sqe.ioprio, MULTISHOT[0]))
}

/// Starts the multishot receive, by a receive that has to wait.
fn arm(driver: &Driver, stage: &Stage, recv: Pin<&mut impl Future>) -> Sqe {
    assert!(poll(recv).is_pending());
    driver.turn(Wait::Poll).unwrap();
    armed(stage).expect("it is in flight")
}

fn taken(driver: &Driver, result: Poll<std::io::Result<RecvBuf>>) -> Vec<u8> {
    let Poll::Ready(buf) = result else { panic!("nothing has arrived") };
    let bytes = buf.unwrap().to_vec();
    driver.turn(Wait::Poll).unwrap();
    bytes
}

#[test]
fn buffers_come_and_go_back() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let entry = arm(&driver, &stage, pin!(connection.recv()));
    let provided = stage.state().provided.len();
    let id = stage.state().provided[0].1;
    stage.fill(id, b"first");
    stage.post(entry.user_data, 5, named_with_more(id));
    driver.turn(Wait::Poll).unwrap();
    let Poll::Ready(Ok(buf)) = poll(pin!(connection.recv())) else { panic!("it has arrived") };
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((&buf[..], stage.state().provided.len()), (&b"first"[..], provided - 1));
    drop(buf);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.state().provided.len(), provided, "it is the kernel's again");
    assert_eq!(stage.state().consumed.iter().filter(|sqe| sqe.opcode == Opcode::RECV).count(), 1);
}

#[test]
fn a_buffer_is_believed_only_if_the_kernel_has_it() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let entry = arm(&driver, &stage, pin!(connection.recv()));
    let id = stage.state().provided[0].1;
    stage.fill(id, b"once");
    // One buffer named twice, and one that was never provided. Then a length beyond the buffer.
    stage.post(entry.user_data, 4, named_with_more(id));
    stage.post(entry.user_data, 4, named_with_more(id));
    stage.post(entry.user_data, 4, named_with_more(u16::MAX));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(taken(&driver, poll(pin!(connection.recv()))), b"once");
    assert!(poll(pin!(connection.recv())).is_pending());
    let (_, id, _, len) = stage.state().provided[0];
    stage.fill(id, b"");
    stage.post(entry.user_data, i32::MAX, named_with_more(id));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(taken(&driver, poll(pin!(connection.recv()))).len(), len as usize);
}

/// Makes pieces of these lengths arrive through the receive in flight, before any of them is taken.
fn bring(driver: &Driver, stage: &Stage, lens: &[usize]) {
    for &len in lens {
        let entry = armed(stage).expect("it is in flight");
        let id = stage.fill_any(entry.buf_index, &vec![7; len]);
        stage.post(entry.user_data, len as i32, named_with_more(id));
    }
    driver.turn(Wait::Poll).unwrap();
}

#[test]
fn messages_that_just_fit_take_no_larger_buffers() {
    let (driver, stage) = scripted(8, 64);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let first = arm(&driver, &stage, pin!(connection.recv()));
    let fits = stage.state().provided[0].3 as usize;
    for _ in 0..100 {
        bring(&driver, &stage, &[fits]);
        assert_eq!(taken(&driver, poll(pin!(connection.recv()))).len(), fits);
    }
    assert_eq!(armed(&stage).map(|sqe| sqe.user_data), Some(first.user_data));
}

#[test]
fn pieces_of_what_came_at_once_take_larger_buffers_while_there_are_such() {
    let (driver, stage) = scripted(8, 64);
    stage.state().cancels = Cancels::Work;
    let connection = driver.connection(stage.open(&driver, PIPE));
    let small = arm(&driver, &stage, pin!(connection.recv())).buf_index;
    let fits = stage.state().provided[0].3 as usize;
    bring(&driver, &stage, &[fits, 1]);
    driver.turn(Wait::Poll).unwrap();
    for len in [fits, 1] {
        assert_eq!(taken(&driver, poll(pin!(connection.recv()))).len(), len);
    }
    let larger = arm(&driver, &stage, pin!(connection.recv())).buf_index;
    assert_ne!(larger, small);
    // It returns to small buffers once all recent messages would have fitted into them.
    let mut small_ones = 0;
    while armed(&stage).is_some_and(|sqe| sqe.buf_index == larger) {
        assert!(small_ones < 1000, "it stays large");
        bring(&driver, &stage, &[fits]);
        driver.turn(Wait::Poll).unwrap();
        taken(&driver, poll(pin!(connection.recv())));
        small_ones += 1;
    }
    assert!(small_ones > 10);
    assert_eq!(arm(&driver, &stage, pin!(connection.recv())).buf_index, small);
}

#[test]
fn a_full_connection_stops_receiving_until_it_is_emptied() {
    let (driver, stage) = scripted(8, 64);
    stage.state().cancels = Cancels::Work;
    let connection = driver.connection(stage.open(&driver, PIPE));
    let entry = arm(&driver, &stage, pin!(connection.recv()));
    let mut came = 0;
    while armed(&stage).is_some() {
        assert!(came < 1000, "it receives without bound");
        let id = stage.state().provided[0].1;
        stage.fill(id, &[came as u8]);
        stage.post(entry.user_data, 1, named_with_more(id));
        came += 1;
        driver.turn(Wait::Poll).unwrap();
        driver.turn(Wait::Poll).unwrap();
    }
    for at in 0..came {
        assert!(armed(&stage).is_none(), "{at} of {came}");
        assert_eq!(taken(&driver, poll(pin!(connection.recv()))), [at as u8]);
    }
    assert_ne!(arm(&driver, &stage, pin!(connection.recv())).user_data, entry.user_data);
}

#[test]
fn a_receive_that_ends_without_being_asked_is_started_again() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let mut recv = pin!(connection.recv());
    let mut entry = arm(&driver, &stage, recv.as_mut());
    for res in [-Errno::NOBUFS.raw_os_error(), -Errno::INTR.raw_os_error()] {
        stage.complete(Opcode::RECV, res);
        driver.turn(Wait::Poll).unwrap();
        let next = arm(&driver, &stage, recv.as_mut());
        assert_ne!(next.user_data, entry.user_data);
        entry = next;
    }
    // A receive may also end with bytes, as when the completion queue overflows.
    let id = stage.state().provided[0].1;
    stage.fill(id, b"last of it");
    stage.state().in_flight.retain(|sqe| sqe.opcode != Opcode::RECV);
    stage.post(entry.user_data, 10, named(id));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(taken(&driver, poll(recv)), b"last of it");
    arm(&driver, &stage, pin!(connection.recv()));
}

#[test]
fn a_kernel_that_receives_once_only_is_asked_each_time() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let mut recv = pin!(connection.recv());
    arm(&driver, &stage, recv.as_mut());
    stage.complete(Opcode::RECV, -Errno::INVAL.raw_os_error());
    driver.turn(Wait::Poll).unwrap();
    assert!(poll(recv.as_mut()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::POLL_ADD, 1);
    driver.turn(Wait::Poll).unwrap();
    assert!(poll(recv.as_mut()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let entry = stage.complete(Opcode::RECV, 2);
    assert_eq!(entry.ioprio, 0);
    crate::scripted::write_to(&entry, b"ok");
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(taken(&driver, poll(recv)), b"ok");
}

#[test]
fn a_dropped_connection_ends_its_receive_and_gives_all_back() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Work;
    let connection = driver.connection(stage.open(&driver, PIPE));
    let entry = arm(&driver, &stage, pin!(connection.recv()));
    let provided = stage.state().provided.len();
    let id = stage.state().provided[0].1;
    stage.fill(id, b"for nobody");
    stage.post(entry.user_data, 10, named_with_more(id));
    driver.turn(Wait::Poll).unwrap();
    drop(connection);
    for _ in 0..4 {
        driver.turn(Wait::Poll).unwrap();
    }
    assert_eq!(stage.state().provided.len(), provided);
    assert_eq!(stage.state().closed, [PIPE]);
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn one_operation_of_each_direction_is_in_flight() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    for opcode in [Opcode::SEND, Opcode::RECV] {
        let begin = || async {
            match opcode {
                Opcode::SEND => connection.send(vec![0; 4]).await.0,
                _ => connection.read(vec![0; 4]).await.0,
            }
        };
        let mut first = Box::pin(begin());
        assert!(poll(first.as_mut()).is_pending());
        driver.turn(Wait::Poll).unwrap();
        drop(first);
        let mut second = pin!(begin());
        for _ in 0..3 {
            assert!(poll(second.as_mut()).is_pending());
            driver.turn(Wait::Poll).unwrap();
        }
        let entry = stage.in_flight(opcode)[0];
        assert_eq!(stage.in_flight(opcode).len(), 1, "the first is still the kernel's");
        stage.complete(opcode, -Errno::CANCELED.raw_os_error());
        stage.complete(Opcode::ASYNC_CANCEL, 0);
        driver.turn(Wait::Poll).unwrap();
        assert!(poll(second.as_mut()).is_pending());
        driver.turn(Wait::Poll).unwrap();
        assert_ne!(stage.in_flight(opcode)[0].user_data, entry.user_data);
        stage.complete(opcode, 4);
        driver.turn(Wait::Poll).unwrap();
        assert!(matches!(poll(second), Poll::Ready(Ok(4))));
    }
}

/// A flag that its waker sets.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_is_told_when_the_driver_gives_the_operation_up() {
    let (driver, stage) = scripted(8, 16);
    let connection = driver.connection(stage.open(&driver, PIPE));
    let incoming = driver.incoming(stage.open(&driver, PIPE + 1));
    let flags: [Arc<Flag>; 2] = Default::default();
    let wakers = flags.each_ref().map(|flag| Waker::from(Arc::clone(flag)));
    let (mut recv, mut accept) = (pin!(connection.recv()), pin!(incoming.accept()));
    assert!(recv.as_mut().poll(&mut Context::from_waker(&wakers[0])).is_pending());
    assert!(accept.as_mut().poll(&mut Context::from_waker(&wakers[1])).is_pending());
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(driver.shutdown(std::time::Duration::ZERO).leaked, 2);
    assert!(flags.iter().all(|flag| flag.0.load(Ordering::Relaxed)));
    let Poll::Ready(Err(error)) = poll(recv) else { panic!("the receive still waits") };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    let Poll::Ready(Err(error)) = poll(accept) else { panic!("the accept still waits") };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
}

#[test]
fn connections_that_nobody_takes_have_a_bound() {
    let (driver, stage) = scripted(8, 256);
    stage.state().cancels = Cancels::Work;
    let incoming = driver.incoming(stage.open(&driver, PIPE));
    assert!(poll(pin!(incoming.accept())).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let entry = stage.in_flight(Opcode::ACCEPT)[0];
    assert_eq!((entry.ioprio, entry.addr), (MULTISHOT[1], 0));
    let mut came = 0;
    while !stage.in_flight(Opcode::ACCEPT).is_empty() {
        assert!(came < 1000, "it accepts without bound");
        stage.post(entry.user_data, PIPE + 1 + came, MORE);
        came += 1;
        driver.turn(Wait::Poll).unwrap();
        driver.turn(Wait::Poll).unwrap();
    }
    for at in 0..came {
        let Poll::Ready(connection) = poll(pin!(incoming.accept())) else { panic!("{at}") };
        assert_eq!(connection.unwrap().raw(), PIPE + 1 + at);
    }
    assert!(poll(pin!(incoming.accept())).is_pending());
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.in_flight(Opcode::ACCEPT).len(), 1, "it goes on");
}

#[test]
fn many_sends_and_what_they_bring_cost_one_enter() {
    const PAIRS: usize = 64;
    let (driver, rig) = rigged(256, 4096);
    let pairs: Vec<_> = (0..PAIRS)
        .map(|_| {
            let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
            [near, far].map(|end| driver.connection(driver.adopt(end.into())))
        })
        .collect();
    for round in 0..10 {
        let mut receives: Vec<_> = pairs.iter().map(|[_, far]| Box::pin(far.recv())).collect();
        assert!(receives.iter_mut().all(|recv| poll(recv.as_mut()).is_pending()));
        if round == 0 {
            driver.turn(Wait::Poll).unwrap(); // now the kernel has them
        }
        let mut sends: Vec<_> = pairs.iter().map(|[near, _]| Box::pin(near.send("x"))).collect();
        assert!(sends.iter_mut().all(|send| poll(send.as_mut()).is_pending()));
        let enters = rig.enters.get();
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(rig.enters.get() - enters, 1, "in round {round}");
        assert!(sends.iter_mut().all(|send| poll(send.as_mut()).is_ready()));
        assert!(receives.iter_mut().all(|recv| poll(recv.as_mut()).is_ready()));
    }
}

#[test]
fn sends_that_did_not_end_are_not_awaited_in_the_next_turns() {
    let (driver, stage) = scripted(512, 4096);
    let fd = stage.open(&driver, PIPE);
    let mut sends = Vec::new();
    let mut awaited = |count: usize| {
        sends.extend((0..count).map(|_| driver.send(&fd, "x", 0)));
        stage.state().awaited.clear();
        driver.turn(Wait::Poll).unwrap();
        stage.state().awaited.clone()
    };
    for _ in 0..2 {
        assert_eq!(awaited(20), [0], "the kernel finishes as many anyway");
    }
    for (turn, expected) in
        [[21].as_slice(), &[0; 15], &[21], &[0; 15], &[64]].concat().iter().enumerate()
    {
        let count = *expected.max(&21);
        assert_eq!(awaited(count as usize), [*expected], "in turn {turn}");
    }
    assert_eq!(driver.counters().drains_missed, 3);
    stage.state().cancels = Cancels::Work;
    drop(sends);
    drain(&driver);
}

/// A result for a future that was dropped goes to the next one.
#[test]
fn what_comes_for_nobody_is_the_next_ones() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Fail;
    let incoming = driver.incoming(stage.open(&driver, PIPE));
    let mut accept = Box::pin(incoming.accept_one());
    assert!(poll(accept.as_mut()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    drop(accept);
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::ACCEPT, 50);
    driver.turn(Wait::Poll).unwrap();
    let Poll::Ready(Ok(fd)) = poll(pin!(incoming.accept_one())) else { panic!("it was lost") };
    assert_eq!(fd.raw(), 50);

    let connection = driver.connection(fd);
    let mut read = Box::pin(connection.read_vectored(vec![b"abc".to_vec(), b"defgh".to_vec()]));
    assert!(poll(read.as_mut()).is_pending());
    driver.turn(Wait::Poll).unwrap();
    drop(read);
    driver.turn(Wait::Poll).unwrap();
    // As if the kernel had written the bytes that are already in the buffers.
    stage.complete(Opcode::RECVMSG, 5);
    driver.turn(Wait::Poll).unwrap();
    let Poll::Ready((result, bytes)) = poll(pin!(connection.read(vec![0; 8]))) else {
        panic!("it was lost")
    };
    assert_eq!((result.unwrap(), &bytes[..5]), (5, &b"abcde"[..]));
}

/// Returns the contents of a buffer with a datagram, whose header has these `facts`.
fn message(facts: [u32; 4], name: &[u8], control: &[u8], bytes: &[u8]) -> Vec<u8> {
    const NAME: usize = 110;
    let mut all: Vec<u8> = facts.iter().flat_map(|its| its.to_ne_bytes()).collect();
    all.extend(name);
    all.resize(16 + NAME, 0);
    all.extend(control);
    all.resize(16 + NAME + CONTROL, 0);
    all.extend(bytes);
    all
}

/// Room for control messages.
const CONTROL: usize = 64;

/// Returns the control message that passes descriptors with these numbers.
fn rights(numbers: &[i32]) -> Vec<u8> {
    let content: Vec<u8> = numbers.iter().flat_map(|raw| raw.to_ne_bytes()).collect();
    let len = size_of::<libc::cmsghdr>() + content.len();
    let kind = [libc::SOL_SOCKET.to_ne_bytes(), libc::SCM_RIGHTS.to_ne_bytes()].concat();
    [&len.to_ne_bytes()[..], &kind, &content].concat()
}

#[test]
fn lengths_of_a_datagram_are_cut_to_its_buffer() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Work;
    let options = DatagramOptions { control_bytes: CONTROL, ..Default::default() };
    let receiver = driver.datagrams(stage.open(&driver, PIPE), options);
    assert!(poll(pin!(receiver.recv())).is_pending());
    driver.turn(Wait::Poll).unwrap();
    let entry = stage.in_flight(Opcode::RECVMSG)[0];
    assert_eq!(entry.ioprio, MULTISHOT[0]);
    let bring = |facts, control: &[u8], bytes: &[u8], res: Option<i32>| {
        let all = message(facts, &[1; 110], control, bytes);
        let id = stage.fill_any(entry.buf_index, &all);
        stage.post(entry.user_data, res.unwrap_or(all.len() as i32), named_with_more(id));
        driver.turn(Wait::Poll).unwrap();
        poll(pin!(receiver.recv()))
    };
    // Old bytes in a buffer are not taken for a datagram's descriptors.
    let Poll::Ready(Ok(datagram)) = bring([0, 0, 3, 0], &rights(&[11]), b"one, two", None) else {
        panic!("it has come")
    };
    assert_eq!((&datagram.bytes[..], datagram.control.descriptors.len()), (&b"one"[..], 0));
    assert!(datagram.from.is_unnamed());
    // Lengths beyond the datagram.
    let lie = [u32::MAX; 4];
    let Poll::Ready(Ok(datagram)) = bring(lie, &rights(&[12]), b"two", None) else {
        panic!("it has come")
    };
    assert_eq!((&datagram.bytes[..], datagram.control.descriptors.len()), (&b"two"[..], 1));
    assert_eq!(datagram.from.as_bytes(), [1; 110]);
    assert!(datagram.is_truncated && datagram.control.is_truncated);
    drop(datagram);
    // Too short for a header and its two fields, and longer than the buffer.
    for res in [0, 15, 16 + 110 + CONTROL as i32 - 1] {
        assert!(bring(lie, &rights(&[13]), b"", Some(res)).is_pending());
    }
    let Poll::Ready(Ok(datagram)) = bring([0, 0, u32::MAX, 0], &[], b"", Some(i32::MAX)) else {
        panic!("it has come")
    };
    assert_eq!(datagram.bytes.len(), 2048 - 16 - 110 - CONTROL);
    // Descriptors of datagrams that are never taken are closed with the receiver.
    let control = rights(&[14, 15]);
    let id = stage.fill_any(entry.buf_index, &message([0, 24, 0, 0], &[], &control, &[]));
    stage.post(entry.user_data, 16 + 110 + CONTROL as i32, named_with_more(id));
    driver.turn(Wait::Poll).unwrap();
    assert!(!stage.state().closed.contains(&14));
    drop(receiver);
    for _ in 0..4 {
        driver.turn(Wait::Poll).unwrap();
    }
    let mut closed = stage.state().closed.clone();
    closed.sort_unstable();
    assert_eq!(closed, [PIPE, 12, 14, 15]);
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn a_datagram_that_comes_for_nobody_is_the_next_ones() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Fail;
    // The driver has no buffer of that size, so each datagram is received alone.
    let options = DatagramOptions { datagram_bytes_max: 200_000, ..Default::default() };
    let receiver = driver.datagrams(stage.open(&driver, PIPE), options);
    // An empty datagram, and an error.
    for res in [0, -Errno::CONNREFUSED.raw_os_error()] {
        let mut recv = Box::pin(receiver.recv());
        assert!(poll(recv.as_mut()).is_pending());
        driver.turn(Wait::Poll).unwrap();
        drop(recv);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(stage.complete(Opcode::RECVMSG, res).ioprio & MULTISHOT[0], 0);
        driver.turn(Wait::Poll).unwrap();
        let Poll::Ready(result) = poll(pin!(receiver.recv())) else { panic!("it was lost") };
        let told = result.map(|datagram| datagram.bytes.len());
        assert_eq!(
            told.map_err(|error| error.raw_os_error()),
            match res {
                0 => Ok(0),
                _ => Err(Some(-res)),
            }
        );
    }
}
