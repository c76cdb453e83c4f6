//! Registered files, buffers and eventfds, limits of workers, cancellation from outside.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::Duration;

use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use sakia_ring::{AT_FDCWD, CancelTarget, IoVec, IowqMaxWorkers, Ring, Sqe, sqe_flags};

use crate::support::{PATIENCE, TempDir, complete, errno_of, push, push_nops};

fn ring() -> Ring {
    Ring::builder().sq_entries(16).build().unwrap()
}

fn assert_errno<T: std::fmt::Debug>(result: io::Result<T>, expected: Errno) {
    assert_eq!(errno_of(&result.unwrap_err()), Some(expected));
}

/// Makes files that contain their numbers.
fn numbered(dir: &TempDir, count: usize) -> Vec<File> {
    (0..count)
        .map(|number| {
            let path = dir.join(&format!("{number}"));
            fs::write(&path, format!("number {number}")).unwrap();
            File::open(path).unwrap()
        })
        .collect()
}

/// Reads from registered file `index`. Returns its contents, or the errno.
fn read_registered(ring: &mut Ring, index: i32) -> Result<String, i32> {
    let mut buf = [0u8; 32];
    let sqe = Sqe::read(index, buf.as_mut_ptr(), 32, 0).fixed_file();
    // SAFETY: the buffer outlives the read, since its completion is awaited here.
    unsafe { ring.push(sqe) }.unwrap();
    match complete(ring, 1)[0].res {
        len @ 0.. => Ok(String::from_utf8_lossy(&buf[..len as usize]).into()),
        errno => Err(-errno),
    }
}

#[test]
fn files_are_read_by_index_after_their_descriptors_are_closed() {
    let dir = TempDir::new();
    let mut ring = ring();
    let files = numbered(&dir, 3);
    let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    ring.register_files(&fds).unwrap();
    assert_errno(ring.register_files(&fds), Errno::BUSY);
    drop(files);
    for number in 0..3 {
        let text = read_registered(&mut ring, number).unwrap();
        assert_eq!(text, format!("number {number}"));
    }
    assert_eq!(read_registered(&mut ring, 3), Err(libc::EBADF));
    ring.unregister_files().unwrap();
    assert_eq!(read_registered(&mut ring, 0), Err(libc::EBADF));
    assert_errno(ring.unregister_files(), Errno::NXIO);
}

#[test]
fn places_of_files_are_filled_replaced_and_emptied() {
    let dir = TempDir::new();
    let mut ring = ring();
    let files = numbered(&dir, 3);
    assert_errno(ring.update_files(0, &[None]), Errno::NXIO);
    assert_errno(ring.register_files(&[]), Errno::INVAL);
    assert_errno(ring.register_files_sparse(0), Errno::INVAL);
    ring.register_files_sparse(4).unwrap();
    assert_eq!(read_registered(&mut ring, 0), Err(libc::EBADF));

    let update = [Some(files[0].as_fd()), None, Some(files[1].as_fd())];
    assert_eq!(ring.update_files(1, &update).unwrap(), 3);
    assert_eq!(read_registered(&mut ring, 1).unwrap(), "number 0");
    assert_eq!(read_registered(&mut ring, 2), Err(libc::EBADF));
    assert_eq!(read_registered(&mut ring, 3).unwrap(), "number 1");

    assert_eq!(ring.update_files(3, &[Some(files[2].as_fd())]).unwrap(), 1);
    assert_eq!(read_registered(&mut ring, 3).unwrap(), "number 2");
    ring.update_file(1, None).unwrap();
    assert_eq!(read_registered(&mut ring, 1), Err(libc::EBADF));
    assert_errno(ring.update_files(4, &[None]), Errno::INVAL);
    assert_errno(ring.update_file(4, None), Errno::INVAL);
    assert_errno(ring.update_files(u32::MAX, &[None]), Errno::OVERFLOW);
}

#[test]
fn a_ring_cannot_be_a_registered_file_of_a_ring() {
    let (mut ring, other) = (ring(), ring());
    assert_errno(ring.register_files(&[other.as_fd()]), Errno::BADF);
    ring.register_files_sparse(2).unwrap();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    // Updates before the failing one take effect, and the count includes them.
    let update = [Some(read.as_fd()), Some(other.as_fd())];
    assert_eq!(ring.update_files(0, &update).unwrap(), 1);
}

/// Returns memory for registered buffers; never freed, so no test has to prove when that is allowed.
fn leaked(len: usize) -> &'static mut [u8] {
    Box::leak(vec![0u8; len].into_boxed_slice())
}

fn vec_of(buffer: &mut [u8]) -> IoVec {
    IoVec { base: buffer.as_mut_ptr(), len: buffer.len() }
}

fn read_fixed(ring: &mut Ring, file: &File, buffer: IoVec, index: u16) -> i32 {
    let sqe = Sqe::read_fixed(file.as_raw_fd(), buffer.base, buffer.len as u32, 0, index);
    // SAFETY: every buffer of these tests is leaked and not accessed while a read runs.
    unsafe { ring.push(sqe) }.unwrap();
    complete(ring, 1)[0].res
}

#[test]
fn buffers_are_registered_replaced_and_emptied() {
    let dir = TempDir::new();
    let file = numbered(&dir, 1).remove(0);
    let mut ring = ring();
    let (first, second) = (leaked(4096), leaked(100));
    let buffers = [vec_of(first), vec_of(second)];

    // SAFETY: the buffers are leaked, here and below.
    unsafe { ring.register_buffers(&buffers) }.unwrap();
    // SAFETY: as above.
    assert_errno(unsafe { ring.register_buffers(&buffers) }, Errno::BUSY);
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 0), 8);
    assert_eq!(read_fixed(&mut ring, &file, buffers[1], 1), 8);
    assert_eq!((&first[..8], &second[..8]), (&b"number 0"[..], &b"number 0"[..]));
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 1), -libc::EFAULT);
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 2), -libc::EFAULT);
    ring.unregister_buffers().unwrap();
    assert_errno(ring.unregister_buffers(), Errno::NXIO);
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 0), -libc::EFAULT);

    assert_errno(ring.register_buffers_sparse(0), Errno::INVAL);
    ring.register_buffers_sparse(3).unwrap();
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 1), -libc::EFAULT);
    // SAFETY: as above.
    assert_eq!(unsafe { ring.update_buffers(1, &buffers) }.unwrap(), 2);
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 1), 8);
    assert_eq!(read_fixed(&mut ring, &file, buffers[1], 2), 8);
    // SAFETY: no memory.
    assert_eq!(unsafe { ring.update_buffers(1, &[IoVec::EMPTY]) }.unwrap(), 1);
    assert_eq!(read_fixed(&mut ring, &file, buffers[0], 1), -libc::EFAULT);
    // SAFETY: as above.
    assert_errno(unsafe { ring.update_buffers(3, &buffers) }, Errno::INVAL);
}

#[test]
fn memory_that_is_not_there_cannot_be_registered() {
    let mut ring = ring();
    let nowhere = IoVec { base: std::ptr::without_provenance_mut(4096), len: 4096 };
    // SAFETY: the kernel finds no memory there, and refuses.
    assert_errno(unsafe { ring.register_buffers(&[nowhere]) }, Errno::FAULT);
}

#[test]
fn an_eventfd_wakes_an_epoll_loop_for_deferred_work() {
    let mut ring = ring();
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    assert_errno(ring.unregister_eventfd(), Errno::NXIO);
    ring.register_eventfd(event.as_fd()).unwrap();
    assert_errno(ring.register_eventfd(event.as_fd()), Errno::BUSY);

    let set: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let data = epoll::EventData::new_u64(1);
    epoll::add(&set, &event, data, epoll::EventFlags::IN).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    for round in 0..3 {
        push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(round)).unwrap();
        ring.submit().unwrap();
        let writer = thread::spawn({
            let write = write.try_clone().unwrap();
            move || {
                thread::sleep(Duration::from_millis(5));
                rustix::io::write(&write, b"x").unwrap();
            }
        });
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        assert_eq!(epoll::wait(&set, &mut events, Some(&patience)).unwrap(), 1);
        writer.join().unwrap();
        assert!(ring.needs_enter() && ring.cq_ready() == 0, "work is deferred");
        assert_eq!(complete(&mut ring, 1)[0].user_data, round);
        rustix::io::read(&event, &mut [0; 8]).unwrap();
        rustix::io::read(&read, &mut [0; 8]).unwrap();
    }
    ring.unregister_eventfd().unwrap();
    push_nops(&mut ring, [1]);
    complete(&mut ring, 1);
    assert_errno(rustix::io::read(&event, &mut [0; 8]).map_err(io::Error::from), Errno::AGAIN);
}

#[test]
fn only_an_eventfd_is_taken_for_one() {
    let (read, _write) = rustix::pipe::pipe().unwrap();
    assert_errno(ring().register_eventfd(read.as_fd()), Errno::INVAL);
}

/// The limits belong to the thread, and each test has its own thread.
#[test]
fn limits_of_workers_answer_what_they_were() {
    let mut ring = ring();
    let ask = IowqMaxWorkers::default();
    let initial = ring.set_iowq_max_workers(ask).unwrap();
    assert!(initial.bounded > 0 && initial.unbounded > 0, "{initial:?}");
    let limits = IowqMaxWorkers { bounded: 3, unbounded: 5 };
    assert_eq!(ring.set_iowq_max_workers(limits).unwrap(), initial);
    assert_eq!(ring.set_iowq_max_workers(ask).unwrap(), limits);
    let one = IowqMaxWorkers { bounded: 0, unbounded: 7 };
    assert_eq!(ring.set_iowq_max_workers(one).unwrap(), limits);
    let expected = IowqMaxWorkers { bounded: 3, unbounded: 7 };
    assert_eq!(ring.set_iowq_max_workers(ask).unwrap(), expected);
}

#[test]
fn operations_are_canceled_from_outside() {
    let mut ring = ring();
    let (read, _write) = rustix::pipe::pipe().unwrap();
    let patience = Some(PATIENCE);
    assert_errno(ring.sync_cancel(CancelTarget::UserData(1), patience), Errno::NOENT);
    for id in 1..=5 {
        push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(id)).unwrap();
    }
    ring.submit().unwrap();
    ring.sync_cancel(CancelTarget::UserData(3), patience).unwrap();
    let completion = complete(&mut ring, 1)[0];
    assert_eq!((completion.user_data, completion.res), (3, -libc::ECANCELED));

    for timeout in [None, Some(Duration::MAX), Some(Duration::ZERO)] {
        let canceled = ring.sync_cancel(CancelTarget::Any, timeout).unwrap();
        assert_eq!(canceled, 4, "{timeout:?}");
        let completions = complete(&mut ring, 4);
        assert!(completions.iter().all(|cqe| cqe.res == -libc::ECANCELED));
        for id in 1..=4 {
            push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1).user_data(id)).unwrap();
        }
        ring.submit().unwrap();
    }
}

/// An operation on a worker cannot stop at once: an open of a FIFO without a writer sleeps there until it is
/// interrupted.
#[test]
fn canceling_waits_for_what_runs() {
    let dir = TempDir::new();
    let path = dir.join("fifo");
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a path with a final NUL.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let mut ring = ring();
    for timeout in [None, Some(PATIENCE), Some(Duration::MAX), Some(Duration::ZERO)] {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u32;
        let sqe = Sqe::openat(AT_FDCWD, path.as_ptr().cast(), flags, 0);
        // SAFETY: the path outlives the operation, which ends within this round.
        unsafe { ring.push(sqe.flags(sqe_flags::ASYNC).user_data(9)) }.unwrap();
        ring.submit().unwrap();
        thread::sleep(Duration::from_millis(20)); // lets a worker take it; the test is correct without it
        match ring.sync_cancel(CancelTarget::UserData(9), timeout) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => match errno_of(&error) {
                // The kernel interrupted the worker for another reason, so the operation had ended.
                Some(Errno::NOENT) => {}
                errno => assert_eq!((errno, timeout), (Some(Errno::TIME), Some(Duration::ZERO))),
            },
        }
        let error = complete(&mut ring, 1)[0].result().unwrap_err();
        assert!(matches!(errno_of(&error), Some(Errno::CANCELED | Errno::INTR)), "{error}");
    }
}
