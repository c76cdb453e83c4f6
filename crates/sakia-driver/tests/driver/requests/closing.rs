//! Files are closed once: by the last handle, by a request, and never while a request uses them.

use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread;

use rustix::io::dup2;
use sakia_driver::{Bypass, CURRENT_POSITION, FileHandle, Loop, Request, Target, Wait};

use super::{assert_unread, errno, finish, next, on_both, perform, value};
use crate::support::{TempDir, identity};

/// A pipe's end to read, as a handle, and its end to write.
fn pipe() -> (FileHandle, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (FileHandle::new(reader), writer)
}

fn read(file: &FileHandle) -> Request {
    Request::read(file, vec![0; 8].into(), CURRENT_POSITION)
}

/// Returns whether the pipe has no reader any more. That it has one may be another test's fork, for a moment.
fn is_closed(writer: &mut std::io::PipeWriter) -> bool {
    writer.write(b"x").is_err_and(|error| error.raw_os_error() == Some(libc::EPIPE))
}

#[test]
fn the_last_handle_closes_it_in_the_next_wait() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        writer.write_all(b"abc").unwrap();
        assert_eq!(value(ring, read(&reader)).0, 3);
        let clone = reader.clone();
        drop(reader);
        ring.wait(Wait::Poll).unwrap();
        assert!(!is_closed(&mut writer));
        drop(clone);
        ring.wait(Wait::Poll).unwrap();
        ring.wait(Wait::Poll).unwrap(); // a ring closes it by an entry
        assert_unread(&writer);
        // One that no loop has used is closed at once.
        let (reader, writer) = pipe();
        drop(reader);
        assert_unread(&writer);
    });
}

/// A descriptor is given away only by the last handle, of a file that no loop knows.
#[test]
fn a_descriptor_in_use_stays_with_the_library() {
    on_both(|ring| {
        let (mut reader, mut writer) = pipe();
        let raw = reader.raw();
        let clone = reader.clone();
        assert!(reader.take_owned().is_none());
        drop(clone);
        let owned = reader.take_owned().expect("no other has it");
        assert_eq!(owned.as_raw_fd(), raw);
        assert_eq!(errno(ring, read(&reader)), libc::EBADF);
        let reader = FileHandle::new(owned);
        writer.write_all(b"abc").unwrap();
        assert_eq!(value(ring, read(&reader)).0, 3);
        let reader = reader.into_owned().expect_err("the loop has it");
        writer.write_all(b"de").unwrap();
        assert_eq!(value(ring, read(&reader)).0, 2);
        perform(ring, Request::Close { file: reader.clone() }).result.unwrap();
        reader.into_owned().expect_err("it is closed");
        // A loop that has ended uses it no more.
        let (reader, mut writer) = pipe();
        writer.write_all(b"x").unwrap();
        let mut other = Loop::new().unwrap();
        assert_eq!(value(&mut other, read(&reader)).0, 1);
        let reader = reader.into_owned().expect_err("the other loop has it");
        drop(other);
        reader.into_owned().expect("no loop has it");
        let owner = Arc::new(std::io::pipe().unwrap().0);
        FileHandle::lent(Arc::clone(&owner)).into_owned().expect_err("it is the owner's");
    });
}

#[test]
fn a_request_keeps_its_file_open_without_a_handle() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        ring.submit(read(&reader), 1).unwrap();
        drop(reader);
        ring.wait(Wait::Poll).unwrap();
        writer.write_all(b"late").unwrap();
        assert_eq!(next(ring).result.unwrap(), 4);
        ring.wait(Wait::Poll).unwrap();
        assert_unread(&writer);
    });
}

#[test]
fn a_close_cancels_waits_and_closes() {
    on_both(|ring| {
        let (reader, writer) = pipe();
        ring.submit(read(&reader), 1).unwrap();
        ring.wait(Wait::Poll).unwrap();
        let clone = reader.clone();
        ring.submit(Request::Close { file: reader }, 2).unwrap();
        // From now on it is closed for everyone.
        assert_eq!(
            clone.try_read(&mut [0], None).unwrap().unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
        assert_eq!(
            clone.try_write(&[0], None).unwrap().unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
        assert_eq!(clone.with_fd(|_| ()).unwrap_err().raw_os_error(), Some(libc::EBADF));
        let mut outcomes = finish(ring);
        let canceled = outcomes.remove(&1).unwrap().result.unwrap_err();
        assert_eq!(canceled.raw_os_error(), Some(libc::ECANCELED));
        outcomes.remove(&2).unwrap().result.unwrap();
        assert_unread(&writer);
        for request in [read(&clone), Request::Close { file: clone.clone() }] {
            assert_eq!(errno(ring, request), libc::EBADF);
        }
    });
}

#[test]
fn a_lent_file_is_not_closed() {
    on_both(|ring| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let owner = Arc::new(OwnedFd::from(reader));
        let file = FileHandle::lent(Arc::clone(&owner));
        writer.write_all(b"abc").unwrap();
        assert_eq!(value(ring, read(&file)).0, 3);
        value(ring, Request::Close { file });
        assert!(!is_closed(&mut writer));
        assert_eq!(Arc::strong_count(&owner), 1, "nothing keeps the owner");
    });
}

#[test]
fn a_close_waits_for_the_requests_of_other_loops() {
    let (reader, writer) = pipe();
    let (sender, receiver) = mpsc::channel();
    let file = reader.clone();
    let other = thread::spawn(move || {
        let mut ring = Loop::new().unwrap();
        ring.submit(read(&file), 1).unwrap();
        ring.wait(Wait::Poll).unwrap();
        sender.send(()).unwrap();
        // Ended by the close on the other thread.
        let outcome = next(&mut ring);
        outcome.result.unwrap_err().raw_os_error()
    });
    receiver.recv().unwrap();
    on_both(|ring| assert_eq!(ring.under_way(), 0)); // other loops are no users
    let mut ring = Loop::new().unwrap();
    perform(&mut ring, Request::Close { file: reader }).result.unwrap();
    assert_unread(&writer);
    assert_eq!(other.join().unwrap(), Some(libc::ECANCELED));
}

#[test]
fn a_loop_that_ends_gives_its_files_up() {
    on_both(|ring| {
        let (reader, mut writer) = pipe();
        let mut other = Loop::new().unwrap();
        writer.write_all(b"abc").unwrap();
        value(&mut other, read(&reader));
        ring.submit(Request::Close { file: reader }, 1).unwrap();
        ring.wait(Wait::Poll).unwrap();
        assert!(ring.take().is_none(), "the other loop has not heard of it");
        drop(other);
        assert!(next(ring).result.is_ok());
        assert_unread(&writer);
        // A loop that ends before the file has no user any more: its last user closes it.
        let (reader, mut writer) = pipe();
        let mut other = Loop::new().unwrap();
        writer.write_all(b"abc").unwrap();
        value(&mut other, read(&reader));
        let mut ended = Loop::new().unwrap();
        ended.submit(Request::Close { file: reader }, 1).unwrap();
        assert!(ended.stop(std::time::Duration::MAX).leaked.is_empty());
        assert_eq!(ended.take().unwrap().result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        drop(other);
        assert_unread(&writer);
    });
}

/// A number is looked at anew by each request: registered places and facts of the file that had it before do
/// not hold.
#[test]
fn a_number_may_be_another_file_once_its_outcomes_were_taken() {
    on_both(|ring| {
        let folder = TempDir::new();
        let names = ["one", "two"].map(|name| folder.join(name));
        for (name, text) in names.iter().zip(["1111", "2222"]) {
            fs::write(name, text).unwrap();
        }
        let options = || fs::File::options().read(true).write(true).to_owned();
        let mut place = OwnedFd::from(options().open(&names[0]).unwrap());
        let raw = place.as_raw_fd();
        // SAFETY: the number is open, and this test's, until each outcome was taken.
        let target = || unsafe { Target::number(raw) };
        // More than it takes until a ring registers a descriptor.
        for round in 0..65 {
            let outcome = perform(ring, Request::read(target(), vec![0; 4].into(), 0));
            assert!(matches!(outcome.result, Ok(4)), "{round}");
            assert_eq!(outcome.into_vec().unwrap(), b"1111", "{round}");
        }
        // Another file, and a pipe, under the same number.
        dup2(options().open(&names[1]).unwrap(), &mut place).unwrap();
        let outcome = perform(ring, Request::write(target(), b"33".to_vec().into(), 1));
        assert_eq!(outcome.result.unwrap(), 2);
        let texts = names.each_ref().map(|name| fs::read(name).unwrap());
        assert_eq!(texts, [b"1111", b"2332"]);
        let (reader, mut writer) = std::io::pipe().unwrap();
        dup2(reader, &mut place).unwrap();
        assert_eq!(errno(ring, Request::read(target(), vec![0; 4].into(), 0)), libc::ESPIPE);
        ring.submit(Request::read(target(), vec![0; 4].into(), CURRENT_POSITION), 1).unwrap();
        writer.write_all(b"pipe").unwrap();
        assert_eq!(next(ring).into_vec().unwrap(), b"pipe");
        drop(place);
        assert_unread(&writer);
    });
}

/// The same file by its handle and by its number.
#[test]
fn a_number_of_a_handle_is_the_same_file() {
    on_both(|ring| {
        let folder = TempDir::new();
        let name = folder.file("file", 100);
        let file = FileHandle::new(fs::File::open(&name).unwrap());
        // SAFETY: the handle keeps it open, until it is closed below, and it is this test's.
        let target = unsafe { Target::number(file.raw()) };
        for request in [
            Request::read(&file, vec![0; 100].into(), 0),
            Request::read(&target, vec![0; 100].into(), 0),
            Request::read(&file, vec![0; 100].into(), 0),
        ] {
            assert_eq!(perform(ring, request).into_vec().unwrap(), fs::read(&name).unwrap());
        }
        value(ring, Request::Close { file });
    });
}

/// A number that is open again before the descriptor of its handle was forgotten.
#[test]
fn handles_whose_numbers_repeat_are_different_files() {
    on_both(|ring| {
        let folder = TempDir::new();
        for round in 0..200_u8 {
            let name = folder.join("file");
            fs::write(&name, [round; 4]).unwrap();
            let file = FileHandle::new(fs::File::open(&name).unwrap());
            let outcome = perform(ring, Request::read(&file, vec![0; 4].into(), 0));
            assert_eq!(outcome.into_vec().unwrap(), [round; 4]);
            if round % 2 == 0 {
                value(ring, Request::Close { file });
            }
            fs::remove_file(&name).unwrap();
        }
        ring.wait(Wait::Poll).unwrap();
    });
}

/// A request by the number comes first, and its descriptor must become that of the handle: otherwise the
/// handle's end closes it at once, and the next file with this number would be taken for it.
#[test]
fn a_handle_keeps_a_descriptor_open_that_its_number_came_with() {
    on_both(|ring| {
        let folder = TempDir::new();
        let name = folder.file("file", 100);
        ring.set_bypass(Bypass::Never);
        let file = FileHandle::new(fs::File::open(&name).unwrap());
        let raw = file.raw();
        // SAFETY: the handle keeps it open until the outcome was taken, and it is this test's.
        let target = unsafe { Target::number(raw) };
        ring.submit(Request::read(&target, vec![0; 100].into(), 0), 1).unwrap();
        ring.submit(Request::read(&file, vec![0; 100].into(), 0), 2).unwrap();
        finish(ring);
        ring.submit(Request::read(&file, vec![0; 100].into(), 0), 3).unwrap();
        drop(file);
        assert_eq!(identity(raw), Some(name.clone()), "a request uses it");
        let outcome = finish(ring).remove(&3).unwrap();
        assert_eq!(outcome.into_vec().unwrap(), fs::read(&name).unwrap());
        for _ in 0..3 {
            ring.wait(Wait::Poll).unwrap();
        }
        assert_ne!(identity(raw), Some(name), "the last user is gone");
    });
}
