//! Programs that do what they need not: handles that share a descriptor, owners with code of their own, equal
//! tokens, requests after the end.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::CWD;
use sakia_driver::{
    Buffer, Bypass, CURRENT_POSITION, Driver, Epoll, FileHandle, Loop, Outcome, Request, Target,
    Value, Wait,
};

use super::{finish, next, on_both, perform};
use crate::support::assert_unread;

fn pipe() -> (FileHandle, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (FileHandle::new(reader), writer)
}

fn read(file: &FileHandle) -> Request {
    Request::read(file, vec![0; 8].into(), CURRENT_POSITION)
}

fn errno_of(outcome: &Outcome) -> Option<i32> {
    outcome.result.as_ref().err().and_then(|error| error.raw_os_error())
}

#[test]
fn memory_comes_back_from_requests_for_a_closed_file() {
    on_both(|ring| {
        let (file, _writer) = pipe();
        perform(ring, Request::Close { file: file.clone() }).result.unwrap();
        let target = || Target::from(&file);
        let memory = || Buffer::from(vec![7; 8]);
        let address = || Box::new("127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap().into());
        let several = || vec![memory(), memory()];
        let requests = [
            Request::Read { file: target(), buffer: memory(), offset: 0 },
            Request::Write { file: target(), buffer: memory(), offset: 0 },
            Request::ReadVectored { file: target(), buffers: several(), offset: 0, flags: 0 },
            Request::WriteVectored { file: target(), buffers: several(), offset: 0, flags: 0 },
            Request::ReadLink { directory: Some(target()), path: c"x".into(), buffer: memory() },
            Request::ReadDirectory { file: target(), buffer: memory() },
            Request::Send { socket: target(), buffer: memory(), flags: 0 },
            Request::Receive { socket: target(), buffer: memory(), flags: 0 },
            Request::SendMessage {
                socket: target(),
                buffer: memory(),
                address: address(),
                control: Box::default(),
                flags: 0,
            },
            Request::ReceiveMessage {
                socket: target(),
                buffer: memory(),
                control_bytes: 0,
                flags: 0,
            },
        ];
        for request in requests {
            let name = format!("{request:?}");
            let outcome = perform(ring, request);
            assert_eq!(errno_of(&outcome), Some(libc::EBADF), "{name}");
            let bytes: Vec<u8> = match outcome.value {
                Value::Buffer(buffer) => buffer.into_vec().unwrap(),
                Value::Buffers(buffers) => {
                    buffers.into_iter().flat_map(|buffer| buffer.into_vec().unwrap()).collect()
                }
                other => panic!("{name}: {other:?}"),
            };
            assert!(bytes.len() >= 8 && bytes.iter().all(|&byte| byte == 7), "{name}");
        }
        for begun in
            [ring.submit_read(&file, memory(), 0, 1), ring.submit_write(&file, memory(), 0, 1)]
        {
            begun.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(next(ring).into_vec().unwrap(), [7; 8]);
        }
    });
}

/// No machine has that much memory, so an allocation would end the process.
#[test]
fn room_for_control_messages_is_bounded() {
    on_both(|ring| {
        let (near, far) = std::os::unix::net::UnixDatagram::pair().unwrap();
        far.send(b"hello").unwrap();
        let socket = FileHandle::new(OwnedFd::from(near));
        let buffer = Buffer::from(vec![0; 8]);
        let outcome = perform(
            ring,
            Request::ReceiveMessage {
                socket: (&socket).into(),
                buffer,
                control_bytes: usize::MAX,
                flags: 0,
            },
        );
        assert_eq!(outcome.result.unwrap(), 5);
    });
}

#[test]
fn a_loop_that_has_stopped_refuses_closes_and_keeps_no_file() {
    on_both(|ring| {
        let (file, writer) = pipe();
        assert!(ring.stop(Duration::MAX).leaked.is_empty());
        // Each is answered.
        ring.submit(read(&file), 1).unwrap();
        ring.submit_read(&file, vec![0; 8].into(), 0, 2).unwrap();
        ring.submit(Request::Close { file: file.clone() }, 3).unwrap();
        for token in 1..=3 {
            let outcome = ring.take().expect("it has an outcome");
            assert_eq!((outcome.token, errno_of(&outcome)), (token, Some(libc::ECANCELED)));
            assert_eq!(outcome.into_vec().is_some(), token < 3);
        }
        assert_eq!(ring.under_way(), 0);
        // Another loop need not wait for this one.
        let mut other = Loop::new().unwrap();
        perform(&mut other, Request::Close { file }).result.unwrap();
        assert_unread(&writer);
    });
}

#[test]
fn closes_with_equal_tokens_are_each_answered() {
    on_both(|ring| {
        let pipes = [pipe(), pipe()];
        let mut other = Loop::new().unwrap();
        for (file, writer) in &pipes {
            let mut writer = writer;
            writer.write_all(b"x").unwrap();
            perform(&mut other, read(file)).result.unwrap();
        }
        for (file, _) in &pipes {
            ring.submit(Request::Close { file: file.clone() }, 1).unwrap();
        }
        ring.submit(Request::Close { file: pipe().0 }, 1).unwrap();
        assert!(next(ring).result.is_ok(), "no loop has used it");
        assert!(ring.stop(Duration::MAX).leaked.is_empty());
        for _ in &pipes {
            assert_eq!(errno_of(&ring.take().unwrap()), Some(libc::ECANCELED));
        }
        assert_eq!(ring.under_way(), 0);
    });
}

/// Two handles of one descriptor, on one loop.
#[test]
fn a_descriptor_that_is_lent_twice_is_given_back_by_both() {
    for closed_first in 0..2 {
        on_both(|ring| {
            let (reader, _writer) = std::io::pipe().unwrap();
            let owner = Arc::new(OwnedFd::from(reader));
            let files = [0, 1].map(|_| FileHandle::lent(Arc::clone(&owner)));
            ring.submit(read(&files[0]), 0).unwrap();
            ring.submit(read(&files[1]), 1).unwrap();
            ring.submit(read(&files[0]), 2).unwrap();
            ring.wait(Wait::Poll).unwrap();
            ring.submit(Request::Close { file: files[closed_first].clone() }, 3).unwrap();
            // The kernel cancels by file.
            let mut order = Vec::new();
            while ring.under_way() > 0 {
                let outcome = next(ring);
                assert_eq!(outcome.result.is_ok(), outcome.token == 3);
                order.push(outcome.token);
            }
            assert_eq!((order.len(), order[3]), (4, 3), "the close comes last: {order:?}");
            let other = &files[1 - closed_first];
            let ticket = ring.submit(read(other), 4).unwrap();
            ring.wait(Wait::Poll).unwrap();
            ring.cancel(ticket);
            assert_eq!(errno_of(&next(ring)), Some(libc::ECANCELED));
            perform(ring, Request::Close { file: other.clone() }).result.unwrap();
            assert_eq!(Arc::strong_count(&owner), 1, "nothing keeps the owner");
        });
    }
}

/// Lends one of two files, in turns.
struct Fickle {
    files: [OwnedFd; 2],
    is_second: AtomicBool,
}

impl AsFd for Fickle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.files[usize::from(self.is_second.fetch_xor(true, Ordering::Relaxed))].as_fd()
    }
}

/// Lends no file.
struct Nowhere;

impl AsFd for Nowhere {
    fn as_fd(&self) -> BorrowedFd<'_> {
        CWD
    }
}

#[test]
fn owners_that_lend_other_descriptors_harm_only_themselves() {
    on_both(|ring| {
        ring.set_bypass(Bypass::Never);
        let (readers, writers): (Vec<_>, Vec<_>) = (0..2).map(|_| std::io::pipe().unwrap()).unzip();
        let files: Vec<OwnedFd> = readers.into_iter().map(OwnedFd::from).collect();
        let owner = Arc::new(Fickle {
            files: files.try_into().unwrap(),
            is_second: AtomicBool::new(false),
        });
        let file = FileHandle::lent(Arc::clone(&owner));
        let again = FileHandle::lent(Arc::clone(&owner));
        for token in 0..6 {
            ring.submit(read(if token % 2 == 0 { &file } else { &again }), token).unwrap();
        }
        ring.wait(Wait::Poll).unwrap();
        ring.submit(Request::Close { file }, 6).unwrap();
        ring.submit(Request::Close { file: again }, 7).unwrap();
        assert_eq!(finish(ring).len(), 8);
        assert_eq!(Arc::strong_count(&owner), 1);
        drop(writers);
        let nowhere = FileHandle::lent(Arc::new(Nowhere));
        for _ in 0..100 {
            let outcome = perform(ring, read(&nowhere));
            assert_eq!(errno_of(&outcome), Some(libc::EBADF));
        }
        perform(ring, Request::Close { file: nowhere }).result.unwrap();
    });
}

/// A close is answered once its owner was dropped, on whatever thread, and also if that drop panics.
#[test]
fn a_close_is_answered_after_the_owner_was_let_go() {
    struct Owner {
        file: OwnedFd,
        is_dropped: Arc<AtomicBool>,
        panics: bool,
    }
    impl AsFd for Owner {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.file.as_fd()
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(20));
            self.is_dropped.store(true, Ordering::Release);
            if self.panics {
                std::panic::resume_unwind(Box::new("a drop that panics"));
            }
        }
    }
    for panics in [false, true] {
        on_both(|ring| {
            let is_dropped = Arc::new(AtomicBool::new(false));
            let file = OwnedFd::from(std::io::pipe().unwrap().0);
            let owner = Owner { file, is_dropped: Arc::clone(&is_dropped), panics };
            let file = FileHandle::lent(Arc::new(owner));
            let (sender, receiver) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let copy = file.clone();
            let user = thread::spawn(move || {
                copy.with_fd(|_| {
                    sender.send(()).unwrap();
                    ended.recv().unwrap();
                })
                .unwrap();
            });
            receiver.recv().unwrap();
            ring.submit(Request::Close { file }, 1).unwrap();
            ring.wait(Wait::Poll).unwrap();
            assert!(ring.take().is_none());
            end.send(()).unwrap();
            next(ring).result.unwrap();
            assert!(is_dropped.load(Ordering::Acquire));
            assert_eq!(user.join().is_err(), panics);
        });
    }
}

/// A handle of the driver that is older than the loop.
#[test]
fn operations_of_others_on_the_driver_hide_no_outcome() {
    for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
        let handle = driver.handle().clone();
        let mut ring = Loop::on(driver).unwrap();
        let mut nop = handle.nop();
        nop.set_token(5);
        ring.submit_nop(1).unwrap();
        assert_eq!(next(&mut ring).token, 1);
        assert!(ring.take().is_none());
        assert!(nop.try_take().is_some());
    }
}

#[test]
fn a_foreign_loop_sees_each_wake() {
    /// Each of these must be seen before the next.
    const WAKES: u64 = 500;
    on_both(|ring| {
        let pollable = ring.pollable().unwrap();
        let (seen, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            let (waker, seen, asked) = (ring.waker(), &seen, &asked);
            scope.spawn(move || {
                for wake in 1..=WAKES {
                    asked.store(wake, Ordering::Release);
                    waker.wake();
                    while seen.load(Ordering::Acquire) < wake {
                        thread::yield_now();
                    }
                }
            });
            loop {
                assert_eq!(ring.wait(Wait::Poll).unwrap(), 0);
                let wake = asked.load(Ordering::Acquire);
                seen.store(wake, Ordering::Release);
                if wake == WAKES {
                    break;
                }
                poll(&mut [PollFd::new(&pollable, PollFlags::IN)], None).unwrap();
            }
        });
    });
}
