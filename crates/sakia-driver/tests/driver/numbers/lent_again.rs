//! A number that the driver has already is lent, or given, to it once more.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{
    CURRENT_POSITION, Connection, ControlMessage, ControlMessages, Driver, Epoll, Fd, PollEvents,
    SocketAddress, SocketType, Streams, Uring, Wait,
};

use crate::support::{
    TempDir, content, drain, errno, finish, identity, panic_of, pipe, pipe_ends, turn_until,
};

const LEN: usize = 4096;

/// A borrowed descriptor, whose owner keeps it open.
struct Lent(BorrowedFd<'static>);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// Lends the number of a descriptor of the driver.
fn lend_again(driver: &Driver, fd: &Fd) -> Fd {
    // SAFETY: the loan is a clone of `fd`, which keeps the number open.
    let lent = unsafe { BorrowedFd::borrow_raw(fd.raw()) };
    driver.lend(Arc::new(Lent(lent)))
}

/// Offers a number of the driver to it as its own.
fn adopt_again(driver: &Driver, raw: i32) -> String {
    // SAFETY: the driver refuses the second owner, and closes nothing.
    panic_of(|| driver.adopt(unsafe { OwnedFd::from_raw_fd(raw) }))
}

/// The ring, with registration after the first transfer, the same with streams that receive by readiness, and
/// epoll.
fn drivers() -> [Driver; 3] {
    let [ring, readiness] = [(); 2].map(|()| {
        let mut ring = Uring::new().unwrap();
        ring.register_files_after(1);
        Driver::new(ring)
    });
    readiness.set_streams(Streams::Readiness);
    [ring, readiness, Driver::new(Epoll::new().unwrap())]
}

fn adopt(driver: &Driver, path: &Path) -> Fd {
    driver.adopt(File::options().read(true).write(true).open(path).unwrap().into())
}

fn read(driver: &Driver, fd: &Fd) -> Vec<u8> {
    let (result, buf) = finish(driver, &mut driver.read(fd, vec![0; LEN], 0));
    assert_eq!(result.unwrap(), LEN);
    buf
}

/// Makes two files of different bytes.
fn files(dir: &TempDir) -> [std::path::PathBuf; 2] {
    [b'A', b'C'].map(|byte| {
        let path = dir.join(&char::from(byte).to_string());
        fs::write(&path, [byte; LEN]).unwrap();
        path
    })
}

#[test]
fn a_write_that_waits_in_the_queue_goes_to_its_own_file() {
    for driver in drivers() {
        let dir = TempDir::new();
        let [first, other] = files(&dir);
        let (fd, third) = (adopt(&driver, &first), adopt(&driver, &other));
        read(&driver, &fd); // registered from now on
        let mut write = driver.write(&fd, vec![b'w'; LEN], 0);
        drop(lend_again(&driver, &fd));
        // Would be registered in the place that the loan has left.
        let mut read_third = driver.read(&third, vec![0; LEN], 0);
        assert_eq!(finish(&driver, &mut write).0.unwrap(), LEN);
        assert_eq!(finish(&driver, &mut read_third).1, [b'C'; LEN]);
        assert_eq!(fs::read(&first).unwrap(), [b'w'; LEN]);
        assert_eq!(fs::read(&other).unwrap(), [b'C'; LEN]);
    }
}

#[test]
fn a_read_that_waits_in_the_queue_reads_its_own_file() {
    for driver in drivers() {
        let dir = TempDir::new();
        let [first, other] = files(&dir);
        let (fd, third) = (adopt(&driver, &first), adopt(&driver, &other));
        read(&driver, &fd);
        let mut pending = driver.read(&fd, vec![0; LEN], 0);
        drop(lend_again(&driver, &fd));
        let mut next = driver.read(&third, vec![0; LEN], 0);
        assert_eq!(finish(&driver, &mut pending).1, [b'A'; LEN]);
        assert_eq!(finish(&driver, &mut next).1, [b'C'; LEN]);
        assert_eq!(read(&driver, &fd), [b'A'; LEN]);
    }
}

/// Makes a descriptor of the driver in each way.
fn descriptors(driver: &Driver, path: &Path) -> Vec<(&'static str, Fd)> {
    let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let opened = finish(driver, &mut driver.open(None, c_path, 2, 0)).unwrap();
    let (near, far) = driver.socket_pair(SocketType::STREAM).unwrap();
    let control = ControlMessages::new().descriptor(&opened);
    let unnamed = SocketAddress::UNNAMED;
    finish(driver, &mut driver.send_message(&near, "x", &unnamed, control, 0)).0.unwrap();
    let mut receive = driver.recv_message(&far, vec![0; 1], ControlMessage::space(4), 0);
    let received = finish(driver, &mut receive).0.unwrap().1.descriptors.pop().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let listener = driver.adopt(listener.into());
    let (accepted, _) = finish(driver, &mut driver.accept(&listener)).unwrap();
    let domain = sakia_driver::Domain::INET;
    let made = finish(driver, &mut driver.socket(domain, SocketType::STREAM, 0)).unwrap();
    let lent = driver.lend(Arc::new(File::open(path).unwrap()));
    vec![
        ("adopted", adopt(driver, path)),
        ("opened", opened),
        ("of a pair", near),
        ("received", received),
        ("accepted", accepted),
        ("made", made),
        ("lent", lent),
    ]
}

#[test]
fn a_loan_of_any_descriptor_is_a_clone_of_it() {
    for driver in drivers() {
        let dir = TempDir::new();
        let path = dir.file("x", LEN);
        for (kind, fd) in descriptors(&driver, &path) {
            let before = identity(fd.raw());
            let (lent, again) = (lend_again(&driver, &fd), lend_again(&driver, &fd));
            assert_eq!((lent.raw(), again.raw()), (fd.raw(), fd.raw()));
            let fd = fd.into_owned().expect_err("there are clones");
            drop(fd);
            let lent = lent.into_owned().expect_err("there is a clone");
            drop(again);
            drain(&driver);
            assert_eq!(identity(lent.raw()), before, "{kind}: it is in use");
            let raw = lent.raw();
            match lent.into_owned() {
                Ok(owned) => assert_eq!((owned.as_raw_fd(), kind == "lent"), (raw, false)),
                Err(lent) => assert_eq!((lent.raw(), kind), (raw, "lent")),
            }
        }
    }
}

#[test]
fn a_number_that_is_in_use_is_not_adopted() {
    for driver in drivers() {
        let dir = TempDir::new();
        let path = dir.file("x", LEN);
        for (kind, fd) in descriptors(&driver, &path) {
            let (raw, before) = (fd.raw(), identity(fd.raw()));
            let message = adopt_again(&driver, raw);
            assert!(message.contains(&format!("descriptor {raw} is in use")), "{kind}: {message}");
            assert_eq!(identity(raw), before, "{kind}: it was closed");
            // The next call is as if nothing had been.
            let clone = lend_again(&driver, &fd);
            assert_eq!(finish(&driver, &mut driver.statx_fd(&clone)).is_ok(), kind != "closed");
        }
    }
}

#[test]
fn a_number_is_free_again_after_its_end() {
    for driver in drivers() {
        let dir = TempDir::new();
        let path = dir.file("x", LEN);
        // Given away, and back.
        let fd = adopt(&driver, &path);
        let raw = fd.raw();
        let owned = Arc::new(fd.into_owned().unwrap());
        let lent = driver.lend(Arc::clone(&owned));
        assert_eq!((lent.raw(), Arc::strong_count(&owned)), (raw, 2), "a loan of its own");
        assert!(adopt_again(&driver, raw).contains("in use"));
        drop(lent);
        let fd = driver.adopt(Arc::try_unwrap(owned).unwrap());
        assert_eq!(read(&driver, &fd)[7], content(7));
        finish(&driver, &mut driver.close(fd)).unwrap();
        // Closed, and another file.
        let fd = adopt(&driver, &path);
        assert_eq!(read(&driver, &fd)[7], content(7));
    }
}

#[test]
fn an_operation_keeps_its_descriptor_for_the_next_loan() {
    for driver in drivers() {
        let (fd, write) = pipe(&driver);
        let raw = fd.raw();
        let mut reading = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        let lent = lend_again(&driver, &fd);
        drop(fd);
        let lent = lent.into_owned().expect_err("a read is under way");
        assert!(adopt_again(&driver, raw).contains("in use"));
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(finish(&driver, &mut reading).0.unwrap(), 1);
        drop(reading);
        assert_eq!(lent.into_owned().unwrap().as_raw_fd(), raw);
    }
}

#[test]
fn a_close_waits_for_a_loan_that_began_meanwhile() {
    for driver in drivers() {
        let (fd, write) = pipe(&driver);
        let (raw, before) = (fd.raw(), identity(fd.raw()));
        let mut reading = driver.read(&fd, vec![0; 1], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        let clone = fd.clone();
        let mut close = driver.close(fd);
        let lent = lend_again(&driver, &clone);
        drop(clone);
        assert_eq!(errno(finish(&driver, &mut reading).0), Errno::CANCELED);
        drop(reading);
        drain(&driver);
        assert!(close.try_take().is_none(), "closed under a loan");
        // During the close it can be used, but is not given away, and closed once.
        let mut reading = driver.read(&lent, vec![0; 1], CURRENT_POSITION);
        rustix::io::write(&write, b"x").unwrap();
        assert_eq!(finish(&driver, &mut reading).0.unwrap(), 1);
        drop(reading);
        let lent = lent.into_owned().expect_err("it is being closed");
        assert_eq!(identity(raw), before);
        assert_eq!(errno(finish(&driver, &mut driver.close(lent))), Errno::BADF);
        finish(&driver, &mut close).unwrap();
        assert_ne!(identity(raw), before);
    }
}

#[test]
fn the_end_of_a_loan_leaves_the_operations_on_its_number() {
    for driver in drivers() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = driver.adopt(near.into());
        let mut poll = driver.poll(&near, PollEvents::READABLE);
        let connection = driver.connection(near.clone());
        receive(&driver, &connection, b"x", || {
            for _ in 0..3 {
                drop(lend_again(&driver, &near));
                driver.turn(Wait::Poll).unwrap();
            }
            far.write_all(b"x").unwrap();
        });
        finish(&driver, &mut poll).unwrap();
    }
}

#[test]
fn a_socket_that_is_lent_is_in_blocking_mode() {
    for driver in drivers() {
        let dir = TempDir::new();
        let file = driver.adopt(File::open(dir.file("x", LEN)).unwrap().into());
        let (near, far) = driver.socket_pair(SocketType::STREAM).unwrap();
        let connection = driver.connection(near.clone());
        let is_blocking =
            || !rustix::fs::fcntl_getfl(near.peek()).unwrap().contains(OFlags::NONBLOCK);
        {
            let mut send = pin!(connection.send_file(&file, 0, LEN));
            let mut context = Context::from_waker(Waker::noop());
            turn_until(&driver, || send.as_mut().poll(&mut context).is_ready());
        }
        let was_blocking = is_blocking();
        drop(lend_again(&driver, &near));
        assert!(is_blocking(), "it was {}", if was_blocking { "before" } else { "not before" });
        drop(far);
    }
}

/// The next file of a number does not inherit what the backend knew of the last one.
#[test]
fn the_next_stream_of_a_number_is_waited_for() {
    for driver in drivers() {
        for is_lent in [false, true] {
            let (near, far) = UnixStream::pair().unwrap();
            let raw = near.as_raw_fd();
            // The file stays open, so epoll does not forget it by itself.
            let copy = near.try_clone().unwrap();
            let near: Arc<OwnedFd> = Arc::new(near.into());
            let (fd, kept) = match is_lent {
                true => (driver.lend(Arc::clone(&near)), Some(near)),
                false => (driver.adopt(Arc::try_unwrap(near).unwrap()), None),
            };
            let connection = driver.connection(fd);
            receive(&driver, &connection, b"", || far.shutdown(Shutdown::Write).unwrap());
            let owned = match kept {
                Some(kept) => {
                    drop(connection);
                    drain(&driver);
                    Arc::try_unwrap(kept).expect("the loan is over")
                }
                None => {
                    let fd = connection.fd().clone();
                    drop(connection);
                    drain(&driver);
                    fd.into_owned().unwrap()
                }
            };
            let (next, mut peer) = UnixStream::pair().unwrap();
            drop(owned);
            let next = rustix::io::fcntl_dupfd_cloexec(&next, raw).unwrap();
            if next.as_raw_fd() != raw {
                continue; // another test took the number
            }
            let connection = driver.connection(driver.adopt(next));
            receive(&driver, &connection, b"hello", || peer.write_all(b"hello").unwrap());
            drop(copy);
        }
    }
}

/// Waits for these bytes, which come after the call of `send`.
fn receive(driver: &Driver, connection: &Connection, expected: &[u8], send: impl FnOnce()) {
    let mut receive = pin!(connection.recv());
    let mut context = Context::from_waker(Waker::noop());
    assert!(receive.as_mut().poll(&mut context).is_pending());
    driver.turn(Wait::Poll).unwrap();
    send();
    turn_until(driver, || match receive.as_mut().poll(&mut context) {
        Poll::Pending => false,
        Poll::Ready(bytes) => &*bytes.unwrap() == expected,
    });
}

#[test]
fn two_connections_of_a_descriptor_are_one() {
    for driver in drivers() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = driver.adopt(near.into());
        let first = driver.connection(near.clone());
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(first.recv()).poll(&mut context).is_pending());
        driver.turn(Wait::Poll).unwrap();
        let second = driver.connection(lend_again(&driver, &near));
        far.write_all(b"kept").unwrap();
        (0..3).for_each(|_| assert!(driver.turn(Wait::Poll).is_ok())); // it arrives
        // The dropped receive's bytes are kept for the next, by whichever of them.
        drop(first);
        {
            let mut kept = pin!(second.recv());
            turn_until(&driver, || match kept.as_mut().poll(&mut context) {
                Poll::Pending => false,
                Poll::Ready(bytes) => &*bytes.unwrap() == b"kept",
            });
        }
        drop(second);
        let next = driver.connection(near);
        receive(&driver, &next, b"next", || far.write_all(b"next").unwrap());
    }
}

#[test]
fn standard_streams_stay_open() {
    for driver in drivers() {
        let before = identity(0);
        let lent = driver.lend(Arc::new(std::io::stdin()));
        assert_eq!((lent.raw(), lend_again(&driver, &lent).raw()), (0, 0));
        finish(&driver, &mut driver.close(lent)).unwrap();
        assert_eq!(identity(0), before);
        let lent = driver.lend(Arc::new(std::io::stdin()));
        drop(driver);
        drop(lent);
        assert_eq!(identity(0), before);
    }
}

#[test]
fn each_driver_has_a_descriptor_of_its_own_for_a_number() {
    let [one, _, other] = drivers();
    let (read, write) = pipe_ends();
    let fd = one.adopt(read);
    let lent = lend_again(&other, &fd);
    let second = lend_again(&other, &lent);
    drop(second);
    let mut reading = other.read(&lent, vec![0; 1], CURRENT_POSITION);
    rustix::io::write(&write, b"x").unwrap();
    assert_eq!(finish(&other, &mut reading).0.unwrap(), 1);
    drop(reading);
    finish(&other, &mut other.close(lent)).unwrap();
    let fd = fd.into_owned().expect("the other driver's loan is none of this one's clones");
    drop(fd);
    assert_eq!(rustix::io::write(&write, b"x"), Err(Errno::PIPE));
}
