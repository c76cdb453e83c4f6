//! A handle of an operation on a socket dropped in each state: what was lent is kept until the last
//! completion, and a connection that nobody waits for is closed.

use core::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sakia_driver::{Domain, Driver, Fd, SocketAddress, Wait};
use sakia_ring::{Opcode, Sqe};

use crate::scripted::{Cancels, PIPE, scripted, write_to};
use crate::support::{
    Buf, DropCounter, Reuse, drain, driver, errno, finish, poll_once, turn_until, write_all,
};

/// The number of a connection that is accepted.
const ACCEPTED: i32 = 11;
/// `ECANCELED` as a completion has it.
const CANCELED: i32 = -125;

fn internet() -> SocketAddress {
    SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// What the kernel does for an accept that it has not completed yet.
fn tell_peer(accept: &Sqe, address: &SocketAddress) {
    assert_eq!(accept.opcode, Opcode::ACCEPT);
    let room = std::ptr::with_exposed_provenance_mut::<u8>(accept.addr as usize);
    let len = std::ptr::with_exposed_provenance_mut::<u32>(accept.off as usize);
    let bytes = address.as_bytes();
    // SAFETY: `Backend::push` got the promise that the memory of an entry stays valid until it is
    // reaped, which the tests let happen afterwards.
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

/// Takes the turns in which a completion leads to a close, and that is done.
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
    assert_eq!(stage.state().closed, [0; 0], "somebody may still take it");
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
        assert!(!was_closed, "somebody may still take it");
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
        assert_eq!(counter.dropped(), 0, "a request to cancel says nothing about memory");
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

// ---- on the real kernel --------------------------------------------------------------------------

/// A listener and where it is.
fn listener(driver: &Driver) -> (Fd, SocketAddress) {
    let socket =
        finish(driver, &mut driver.socket(Domain::INET, sakia_driver::SocketType::STREAM, 0));
    let socket = socket.unwrap();
    finish(driver, &mut driver.bind(&socket, &internet())).unwrap();
    finish(driver, &mut driver.listen(&socket, 64)).unwrap();
    let address = driver.local_address(&socket).unwrap();
    (socket, address)
}

/// Peers of connections that were accepted for nobody see their end, whenever the handle was dropped.
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
        // It was accepted and closed, or waits for somebody who wants it.
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
        // They got the bytes, or were canceled before.
        let _ = finish(&driver, &mut driver.recv(&fd, vec![0; 8], 0x40));
    }
    counter.assert_each_dropped_once();
}
