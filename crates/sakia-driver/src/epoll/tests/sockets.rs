//! Sockets: operations with and without a thread, and changes of a socket's mode.

use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketType, accept, bind, connect, getsockname,
    listen, socket,
};

use super::driver::{adopt, finish, turn_until};
use super::*;
use crate::{Domain, Driver, Fd, Lane, SocketAddress, Wait};

fn driver() -> Driver {
    Driver::new(Epoll::new().unwrap())
}

/// Returns the number of elastic threads that have performed a job.
fn threads(driver: &Driver) -> u64 {
    driver.with_backend(|epoll: &Epoll| epoll.statistics(Lane::Elastic).finished).unwrap()
}

fn is_blocking(fd: &Fd) -> bool {
    !rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}

fn localhost() -> SocketAddress {
    core::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

/// Returns a listener that was made outside the driver, in blocking mode, and its address.
fn foreign_listener(family: AddressFamily, backlog: i32) -> (OwnedFd, SocketAddrAny) {
    let listener = socket(family, SocketType::STREAM, None).unwrap();
    if family == AddressFamily::INET {
        bind(&listener, &core::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    } else {
        // Without a name the kernel chooses one.
        let name = format!("sakia-epoll-{}-{}", std::process::id(), listener.as_raw_fd());
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    }
    listen(&listener, backlog).unwrap();
    let address = getsockname(&listener).unwrap();
    (listener, address)
}

/// Returns the same address as the driver has it.
fn address_of(driver: &Driver, listener: &Fd) -> SocketAddress {
    driver.local_address(listener).unwrap()
}

#[test]
fn a_listener_of_others_holds_nobody_up() {
    for family in [AddressFamily::UNIX, AddressFamily::INET] {
        let driver = driver();
        let (listener, address) = foreign_listener(family, 8);
        let listener = adopt(&driver, listener);
        let mut accepts: Vec<_> = (0..2).map(|_| driver.accept(&listener)).collect();
        driver.turn(Wait::Poll).unwrap();
        assert!(accepts.iter_mut().all(|accept| accept.try_take().is_none()));
        assert_eq!(threads(&driver), 0, "nothing is there to be taken");
        for accept in accepts {
            let near = socket(family, SocketType::STREAM, None).unwrap();
            connect(&near, &address).unwrap();
            let (far, _) = finish(&driver, accept).unwrap();
            rustix::io::write(&near, b"x").unwrap();
            assert_eq!(finish(&driver, driver.recv(&far, vec![0; 4], 0)).0.unwrap(), 1);
        }
        assert!(is_blocking(&listener), "its mode is not ours to change");
        assert!(threads(&driver) >= 2);
        let mut canceled = driver.accept(&listener);
        driver.turn(Wait::Poll).unwrap();
        canceled.cancel();
        let error = finish(&driver, canceled).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    }
}

#[test]
fn what_fails_at_once_needs_no_thread() {
    let driver = driver();
    for (family, kind, errno) in [
        (AddressFamily::INET, SocketType::STREAM, Errno::INVAL),
        (AddressFamily::INET, SocketType::DGRAM, Errno::OPNOTSUPP),
        (AddressFamily::UNIX, SocketType::STREAM, Errno::INVAL),
    ] {
        let idle = adopt(&driver, socket(family, kind, None).unwrap());
        let error = finish(&driver, driver.accept(&idle)).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(errno), "{family:?} {kind:?}");
    }
    assert_eq!(threads(&driver), 0);
}

#[test]
fn a_listener_in_non_blocking_mode_needs_no_thread() {
    let driver = driver();
    let (listener, address) = foreign_listener(AddressFamily::INET, 8);
    rustix::fs::fcntl_setfl(&listener, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    let listener = adopt(&driver, listener);
    let accept = driver.accept(&listener);
    driver.turn(Wait::Poll).unwrap();
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    connect(&near, &address).unwrap();
    finish(&driver, accept).unwrap();
    assert_eq!(threads(&driver), 0);
}

#[test]
fn a_connect_that_must_not_wait_needs_no_thread() {
    let driver = driver();
    let (listener, to) = foreign_listener(AddressFamily::UNIX, 0);
    let address = address_of(&driver, &adopt(&driver, listener.try_clone().unwrap()));
    let first = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    connect(&first, &to).unwrap();
    let fd = finish(&driver, driver.socket(Domain::UNIX, crate::SocketType::STREAM, 0)).unwrap();
    rustix::fs::fcntl_setfl(&fd, OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    for _ in 0..3 {
        let error = finish(&driver, driver.connect(&fd, &address)).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::AGAIN));
    }
    assert_eq!(threads(&driver), 0);
    accept(&listener).unwrap();
    finish(&driver, driver.connect(&fd, &address)).unwrap();
    assert_eq!(threads(&driver), 0);
}

#[test]
fn sockets_made_here_keep_their_mode_and_need_no_thread() {
    for rules in [false, true] {
        let driver = driver();
        if rules {
            driver.set_bypass(crate::Bypass::Rules(crate::Rules::default()));
        }
        let make = || {
            let socket = driver.socket(Domain::INET, crate::SocketType::STREAM, 0);
            finish(&driver, socket).unwrap()
        };
        let (listener, near) = (make(), make());
        finish(&driver, driver.bind(&listener, &localhost())).unwrap();
        finish(&driver, driver.listen(&listener, 8)).unwrap();
        let accept = driver.accept(&listener);
        driver.turn(Wait::Poll).unwrap();
        finish(&driver, driver.connect(&near, &address_of(&driver, &listener))).unwrap();
        let (far, _) = finish(&driver, accept).unwrap();
        for socket in [&listener, &near, &far] {
            assert!(is_blocking(socket), "{socket:?}");
        }
        assert_eq!(threads(&driver), 0);
    }
}

#[test]
fn a_connect_of_a_socket_of_others_is_a_threads() {
    let driver = driver();
    let (listener, _) = foreign_listener(AddressFamily::INET, 8);
    let listener = adopt(&driver, listener);
    let address = address_of(&driver, &listener);
    let near = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let near = adopt(&driver, near);
    finish(&driver, driver.connect(&near, &address)).unwrap();
    assert_eq!(threads(&driver), 1);
    assert!(is_blocking(&near));
    let error = finish(&driver, driver.connect(&near, &address)).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::ISCONN));
}

/// A connect to a full listener within the machine takes a thread: no epoll event reports that the listener
/// accepts connections again.
#[test]
fn a_connect_to_a_full_listener_is_a_threads() {
    let driver = driver();
    let (listener, address) = foreign_listener(AddressFamily::UNIX, 0);
    let first = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    connect(&first, &address).unwrap();
    let near = driver.socket(Domain::UNIX, crate::SocketType::STREAM, 0);
    let near = finish(&driver, near).unwrap();
    let listener = adopt(&driver, listener);
    let mut waiting = driver.connect(&near, &address_of(&driver, &listener));
    let running = || driver.with_backend(|epoll: &Epoll| epoll.statistics(Lane::Elastic).running);
    turn_until(&driver, || running() == Some(1));
    assert!(waiting.try_take().is_none());
    accept(&listener).unwrap();
    finish(&driver, waiting).unwrap();
    accept(&listener).unwrap();
}

/// The address does not answer for at least a second: the listener's queue is full, and the kernel retries.
#[test]
fn a_connect_without_an_answer_is_canceled() {
    let driver = driver();
    let (listener, address) = foreign_listener(AddressFamily::INET, 0);
    let first = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    connect(&first, &address).unwrap();
    let listener = adopt(&driver, listener);
    let address = address_of(&driver, &listener);
    let near = finish(&driver, driver.socket(Domain::INET, crate::SocketType::STREAM, 0)).unwrap();
    let mut waiting = driver.connect(&near, &address);
    driver.turn(Wait::Poll).unwrap();
    assert!(waiting.try_take().is_none());
    waiting.cancel();
    let error = finish(&driver, waiting).unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    assert!(is_blocking(&near));
    assert_eq!(threads(&driver), 0);
}

/// A closed number may be the number of another socket next.
#[test]
fn a_socket_that_was_given_away_is_no_longer_ours() {
    let driver = driver();
    let near = finish(&driver, driver.socket(Domain::INET, crate::SocketType::STREAM, 0)).unwrap();
    let (listener, _) = foreign_listener(AddressFamily::INET, 8);
    let listener = adopt(&driver, listener);
    let near = adopt(&driver, near.into_owned().unwrap());
    finish(&driver, driver.connect(&near, &address_of(&driver, &listener))).unwrap();
    assert_eq!(threads(&driver), 1);
}
