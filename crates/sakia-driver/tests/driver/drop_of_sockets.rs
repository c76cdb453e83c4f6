//! A handle of an operation on a socket dropped in each state: memory that was lent is kept until the last
//! completion, and a connection without a waiter is closed.

use core::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sakia_driver::{Domain, Driver, Fd, SocketAddress, Wait};
use sakia_ring::{Opcode, Sqe};

use crate::scripted::{Cancels, PIPE, scripted, write_to};
use crate::support::{
    Buf, DropCounter, Reuse, drain, driver, errno, finish, poll_once, turn_until, write_all,
};

/// The descriptor number of an accepted connection.
const ACCEPTED: i32 = 11;
/// `ECANCELED` in a completion.
const CANCELED: i32 = -125;

fn internet() -> SocketAddress {
    SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// Writes the peer's address as the kernel does for an accept that is not yet completed.
fn tell_peer(accept: &Sqe, address: &SocketAddress) {
    assert_eq!(accept.opcode, Opcode::ACCEPT);
    let room = std::ptr::with_exposed_provenance_mut::<u8>(accept.addr as usize);
    let len = std::ptr::with_exposed_provenance_mut::<u32>(accept.off as usize);
    let bytes = address.as_bytes();
    // SAFETY: the caller of `Backend::push` has promised that the memory of an entry stays valid until its
    // completion is reaped, which happens only after this call in the tests.
    unsafe {
        assert!(len.read_unaligned() as usize >= bytes.len());
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), room, bytes.len());
        len.write_unaligned(bytes.len() as u32);
    }
}

#[test]
fn an_accept_before_the_kernel_sees_it() {
    let (driver, stage) = scripted(8, 16);
    let listener = stage.open(&driver, PIPE);
    let mut accept = driver.accept(&listener);
    assert!(poll_once(&mut accept).is_pending());
    drop(accept);
    few_turns(&driver);
    // An entry taken back completes as a no-op does, with 0: no descriptor.
    assert_eq!(stage.state().closed, [0; 0]);
    assert_eq!((driver.in_flight(), driver.live_operations()), (0, 0));
}

#[test]
fn an_accept_in_flight() {
    for (cancel_first, res) in
        [(true, CANCELED), (false, CANCELED), (true, ACCEPTED), (false, ACCEPTED)]
    {
        let (driver, stage) = scripted(8, 16);
        let listener = stage.open(&driver, PIPE);
        let accept = driver.accept(&listener);
        driver.turn(Wait::Poll).unwrap();
        drop(accept);
        driver.turn(Wait::Poll).unwrap();
        let entry = stage.in_flight(Opcode::ACCEPT)[0];
        assert_eq!(stage.in_flight(Opcode::ASYNC_CANCEL)[0].addr, entry.user_data);
        if cancel_first {
            stage.complete(Opcode::ASYNC_CANCEL, if res == ACCEPTED { -2 } else { 0 });
            driver.turn(Wait::Poll).unwrap();
        }
        assert_eq!(driver.live_operations(), 1);
        tell_peer(&entry, &internet());
        stage.complete(Opcode::ACCEPT, res);
        few_turns(&driver);
        let closed: &[i32] = if res == ACCEPTED { &[ACCEPTED] } else { &[] };
        assert_eq!(stage.state().closed, closed);
        assert_eq!(driver.live_operations(), 0);
    }
}

/// Takes enough turns for a completion to lead to a close, and for the close to be done.
fn few_turns(driver: &Driver) {
    for _ in 0..3 {
        driver.turn(Wait::Poll).unwrap();
    }
}

#[test]
fn an_accept_that_is_done() {
    let (driver, stage) = scripted(8, 16);
    let listener = stage.open(&driver, PIPE);
    let accept = driver.accept(&listener);
    driver.turn(Wait::Poll).unwrap();
    stage.complete(Opcode::ACCEPT, ACCEPTED);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.state().closed, [0; 0], "the result may still be taken");
    drop(accept);
    few_turns(&driver);
    assert_eq!(stage.state().closed, [ACCEPTED]);
}

#[test]
fn an_accept_that_was_taken() {
    let (driver, stage) = scripted(8, 16);
    let listener = stage.open(&driver, PIPE);
    let mut accept = driver.accept(&listener);
    driver.turn(Wait::Poll).unwrap();
    tell_peer(&stage.in_flight(Opcode::ACCEPT)[0], &internet());
    stage.complete(Opcode::ACCEPT, ACCEPTED);
    driver.turn(Wait::Poll).unwrap();
    let (connection, peer) = accept.try_take().unwrap().unwrap();
    assert_eq!((connection.raw(), peer), (ACCEPTED, internet()));
    drop(accept);
    few_turns(&driver);
    assert_eq!(stage.state().closed, [0; 0]);
    drop(connection);
    few_turns(&driver);
    assert_eq!(stage.state().closed, [ACCEPTED]);
}

#[test]
fn an_accept_when_the_driver_ends() {
    for res in [ACCEPTED, CANCELED] {
        let (driver, stage) = scripted(8, 16);
        let listener = stage.open(&driver, PIPE);
        let accept = driver.accept(&listener);
        driver.turn(Wait::Poll).unwrap();
        stage.complete(Opcode::ACCEPT, res);
        drop(driver);
        let was_closed = stage.state().closed.contains(&ACCEPTED);
        assert!(!was_closed, "the result may still be taken");
        drop(accept);
        assert_eq!(stage.state().closed.contains(&ACCEPTED), res == ACCEPTED);
        drop(listener);
    }
}

#[test]
fn a_receive_in_flight() {
    for (cancel_first, res) in [(true, CANCELED), (false, CANCELED), (true, 4), (false, 4)] {
        let (driver, stage) = scripted(8, 16);
        let fd = stage.open(&driver, PIPE);
        let counter = DropCounter::new();
        let recv = driver.recv(&fd, Buf::new(8, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        drop(recv);
        driver.turn(Wait::Poll).unwrap();
        let entry = stage.in_flight(Opcode::RECV)[0];
        if cancel_first {
            stage.complete(Opcode::ASYNC_CANCEL, 0);
            driver.turn(Wait::Poll).unwrap();
        }
        assert_eq!(counter.dropped(), 0, "the completion of the request frees no memory");
        write_to(&entry, b"late");
        stage.complete(Opcode::RECV, res);
        driver.turn(Wait::Poll).unwrap();
        counter.assert_each_dropped_once();
    }
}

#[test]
fn a_send_in_flight() {
    let (driver, stage) = scripted(8, 16);
    stage.state().cancels = Cancels::Fail;
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let send = driver.send(&fd, Buf::filled(3, 8, &counter), 0);
    driver.turn(Wait::Poll).unwrap();
    drop(send);
    few_turns(&driver);
    assert_eq!((counter.dropped(), driver.counters().cancels), (0, 1), "it may wait for ever");
    stage.complete(Opcode::SEND, 8);
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
}

#[test]
fn messages_in_flight() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let counter = DropCounter::new();
    let recv = driver.recv_from(&fd, Buf::new(8, &counter), 0);
    let send = driver.send_to(&fd, Buf::new(8, &counter), &internet(), 0);
    assert_eq!(driver.counters().pooled, 2, "they have a block each");
    driver.turn(Wait::Poll).unwrap();
    drop((recv, send));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(counter.dropped(), 0);
    stage.complete(Opcode::RECVMSG, CANCELED);
    stage.complete(Opcode::SENDMSG, 8);
    driver.turn(Wait::Poll).unwrap();
    counter.assert_each_dropped_once();
    assert_eq!(driver.live_operations(), 0);
}

/// Writes a control message as the kernel does for a receive that is not yet completed. Reports the length
/// `reported`, whatever was written.
fn bring(recv: &Sqe, kind: u32, numbers: &[i32], reported: usize) {
    assert_eq!(recv.opcode, Opcode::RECVMSG);
    let header = std::ptr::with_exposed_provenance_mut::<libc::msghdr>(recv.addr as usize);
    let content: Vec<u8> = numbers.iter().flat_map(|raw| raw.to_ne_bytes()).collect();
    let len = size_of::<libc::cmsghdr>() + content.len();
    let level = libc::SOL_SOCKET.to_ne_bytes();
    let message = [&len.to_ne_bytes()[..], &level, &kind.to_ne_bytes(), &content].concat();
    // SAFETY: as in `tell_peer`; the header names the room for control messages.
    unsafe {
        let room = (*header).msg_control.cast::<u8>();
        assert!((*header).msg_controllen >= message.len());
        std::ptr::copy_nonoverlapping(message.as_ptr(), room, message.len());
        (*header).msg_controllen = reported;
    }
}

const RIGHTS: u32 = 1;
const PIDFD: u32 = 4;

#[test]
fn descriptors_that_come_for_nobody_are_closed() {
    for (is_dropped_first, res, reported) in [
        (true, 3, 24),
        (false, 3, 24),
        // Only the control messages themselves tell how many descriptors there are.
        (true, 0, 0),
        (false, 3, usize::MAX),
        // A failed operation has received no descriptors.
        (true, CANCELED, 24),
        (false, CANCELED, 24),
    ] {
        for (kind, numbers) in [(RIGHTS, &[ACCEPTED, 12, 13][..]), (PIDFD, &[ACCEPTED])] {
            let (driver, stage) = scripted(8, 16);
            let fd = stage.open(&driver, PIPE);
            let counter = DropCounter::new();
            let mut recv = Some(driver.recv_message(&fd, Buf::new(8, &counter), 64, 0));
            driver.turn(Wait::Poll).unwrap();
            if is_dropped_first {
                recv = None;
                driver.turn(Wait::Poll).unwrap();
            }
            assert_eq!(counter.dropped(), 0);
            bring(&stage.in_flight(Opcode::RECVMSG)[0], kind, numbers, reported);
            stage.complete(Opcode::RECVMSG, res);
            few_turns(&driver);
            assert_eq!(stage.state().closed.is_empty(), !is_dropped_first || res < 0);
            drop(recv);
            few_turns(&driver);
            let expected = if res < 0 { &[] } else { numbers };
            assert_eq!(stage.state().closed, expected);
            counter.assert_each_dropped_once();
            assert_eq!(driver.live_operations(), 0);
        }
    }
}

#[test]
fn descriptors_that_were_taken_are_kept() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    for (kind, raw, is_one) in [(RIGHTS, ACCEPTED, true), (PIDFD, 12, true), (PIDFD, -3, false)] {
        let mut recv = driver.recv_message(&fd, vec![0; 8], 64, 0);
        driver.turn(Wait::Poll).unwrap();
        bring(&stage.in_flight(Opcode::RECVMSG)[0], kind, &[raw], 24);
        stage.complete(Opcode::RECVMSG, 1);
        few_turns(&driver);
        let (_, mut control) = recv.try_take().unwrap().0.unwrap();
        assert_eq!(control.messages().count(), 0, "numbers are told as descriptors only");
        let fd = control.descriptors.pop().or(control.process.take());
        assert_eq!(fd.as_ref().map(Fd::raw), is_one.then_some(raw));
        drop(control);
        few_turns(&driver);
        assert!(!stage.state().closed.contains(&raw));
        drop(fd);
        few_turns(&driver);
        assert_eq!(stage.state().closed.contains(&raw), is_one);
    }
}

/// A buffer that panics when it is told the number of received bytes.
struct Panics(Vec<u8>);

// SAFETY: as its vector.
unsafe impl sakia_driver::IoBuf for Panics {
    fn stable_ptr(&self) -> *const u8 {
        self.0.stable_ptr()
    }

    fn bytes_len(&self) -> usize {
        0
    }
}

// SAFETY: as its vector.
unsafe impl sakia_driver::IoBufMut for Panics {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.0.stable_mut_ptr()
    }

    fn bytes_room(&self) -> usize {
        self.0.len()
    }

    unsafe fn set_init(&mut self, _: usize) {
        panic!("it is not wanted");
    }
}

#[test]
fn descriptors_are_closed_where_a_buffer_panics() {
    let (driver, stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let mut recv = driver.recv_message(&fd, Panics(vec![0; 8]), 64, 0);
    driver.turn(Wait::Poll).unwrap();
    bring(&stage.in_flight(Opcode::RECVMSG)[0], RIGHTS, &[ACCEPTED], 24);
    stage.complete(Opcode::RECVMSG, 1);
    driver.turn(Wait::Poll).unwrap();
    let taken = std::panic::AssertUnwindSafe(|| recv.try_take().is_some());
    assert!(std::panic::catch_unwind(taken).is_err());
    few_turns(&driver);
    assert_eq!(stage.state().closed, [ACCEPTED]);
}

#[test]
fn messages_to_be_sent_keep_their_descriptors() {
    let (driver, stage) = scripted(8, 16);
    let (fd, passed) = (stage.open(&driver, PIPE), stage.open(&driver, PIPE + 1));
    let control = sakia_driver::ControlMessages::new().descriptor(&passed);
    drop(passed);
    let send = driver.send_message(&fd, "x", &SocketAddress::UNNAMED, control, 0);
    driver.turn(Wait::Poll).unwrap();
    drop(send);
    few_turns(&driver);
    assert_eq!(stage.state().closed, [0; 0], "the kernel may still look at it");
    stage.complete(Opcode::SENDMSG, 1);
    few_turns(&driver);
    assert_eq!(stage.state().closed, [PIPE + 1]);
}

#[test]
#[should_panic(expected = "belongs to another driver")]
fn a_descriptor_of_another_driver_is_not_sent() {
    let (driver, stage) = scripted(8, 16);
    let (other, its_stage) = scripted(8, 16);
    let fd = stage.open(&driver, PIPE);
    let control = sakia_driver::ControlMessages::new().descriptor(&its_stage.open(&other, PIPE));
    drop(driver.send_message(&fd, "x", &SocketAddress::UNNAMED, control, 0));
}

// ---- on the real kernel --------------------------------------------------------------------------

/// Returns a listener and its address.
fn listener(driver: &Driver) -> (Fd, SocketAddress) {
    let socket =
        finish(driver, &mut driver.socket(Domain::INET, sakia_driver::SocketType::STREAM, 0));
    let socket = socket.unwrap();
    finish(driver, &mut driver.bind(&socket, &internet())).unwrap();
    finish(driver, &mut driver.listen(&socket, 64)).unwrap();
    let address = driver.local_address(&socket).unwrap();
    (socket, address)
}

/// Peers of connections that no caller took see their end, whenever the handle was dropped.
#[test]
fn late_connections_of_the_real_kernel_are_closed() {
    let driver = driver();
    let (listener, address) = listener(&driver);
    let to = address.inet().unwrap();
    for round in 0..30 {
        let accept = driver.accept(&listener);
        if round % 3 > 0 {
            driver.turn(Wait::Poll).unwrap();
        }
        let peer = std::net::TcpStream::connect(to).unwrap();
        if round % 3 > 1 {
            driver.turn(Wait::Poll).unwrap();
        }
        drop(accept);
        drain(&driver);
        // The connection was accepted and closed, or waits for the next accept.
        let mut next = driver.accept(&listener);
        driver.turn(Wait::Poll).unwrap();
        let was_closed = match next.try_take() {
            Some(connection) => {
                drop(connection.unwrap());
                false
            }
            None => {
                next.cancel();
                assert_eq!(errno(finish(&driver, &mut next)), Errno::CANCELED);
                true
            }
        };
        turn_until(&driver, || driver.live_operations() == 0);
        let end = std::io::Read::read(&mut &peer, &mut [0; 1]);
        assert_eq!(end.unwrap(), 0, "round {round}, closed: {was_closed}");
    }
}

#[test]
fn bytes_of_a_late_receive_go_nowhere_else() {
    let driver = driver();
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let fd = driver.adopt(near);
    let counter = DropCounter::new();
    for _ in 0..100 {
        let recv = driver.recv(&fd, Buf::new(4096, &counter), 0);
        let message = driver.recv_from(&fd, Buf::new(4096, &counter), 0);
        driver.turn(Wait::Poll).unwrap();
        drop((recv, message));
        assert_eq!(counter.live(), 2, "dropped in flight");
        let reuse = Reuse::take(4, 4096);
        write_all(&far, b"xy");
        drain(&driver);
        reuse.assert_untouched();
        assert_eq!(counter.live(), 0);
        // The receives got the bytes, or were canceled before.
        let _ = finish(&driver, &mut driver.recv(&fd, vec![0; 8], 0x40));
    }
    counter.assert_each_dropped_once();
}
