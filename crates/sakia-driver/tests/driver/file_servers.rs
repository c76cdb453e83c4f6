//! A file server that answers `ECANCELED` by itself, as it may: each request that changes something reaches
//! it once.

use std::fs;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sakia_driver::{Driver, Handle, OpKind};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};

use crate::bypass::{c, each};
use crate::support::{errno, finish, turn_until};

const CANCELED: i32 = Errno::CANCELED.raw_os_error();

fn server() -> Result<Fuse, sakia_testkit::place::PlaceError> {
    // With direct I/O each transfer reaches the server as it is.
    let fuse = Fuse::builder().file("a", pattern(100)).file("b", pattern(10)).direct_io(true);
    fuse.attributes_expire(true).mount()
}

/// Runs a test on each backend, with and without plain calls.
fn on_each(test: impl Fn(&Driver, &Handle)) {
    each(|driver| {
        for handle in [driver.handle().clone(), driver.without_bypass()] {
            test(&driver, &handle);
            turn_until(&driver, || driver.live_operations() == 0);
        }
    });
}

/// Returns the number that the server is given for each descriptor which this process closes. A child of
/// another test closes its copies when it executes a program, but not those of files opened later.
fn own_number(fuse: &Fuse) -> u64 {
    let plainly_closed = || {
        let before = fuse.closers().len();
        drop(fs::File::open(fuse.join("a")).unwrap());
        fuse.closers().split_off(before)
    };
    let (once, again) = (plainly_closed(), plainly_closed());
    once.into_iter().find(|number| again.contains(number)).unwrap()
}

#[test]
fn a_flush_is_sent_once() {
    let fuse = available!(server());
    let own = own_number(&fuse);
    let count = || fuse.closers().iter().filter(|&&number| number == own).count();
    on_each(|driver, handle| {
        for is_dropped in [false, true] {
            let open = &mut handle.open(None, c(fuse.join("a")), OFlags::RDWR.bits(), 0);
            let fd = finish(driver, open).unwrap();
            let before = count();
            let errors = driver.counters().close_errors;
            fuse.script(Rule::on(Opcode::FLUSH).errno(CANCELED));
            if is_dropped {
                drop(fd);
                turn_until(driver, || driver.counters().close_errors == errors + 1);
            } else {
                assert_eq!(errno(finish(driver, &mut handle.close(fd))), Errno::CANCELED);
            }
            assert_eq!(count(), before + 1);
            fuse.release();
        }
    });
}

#[test]
fn a_rename_is_sent_once() {
    let fuse = available!(server());
    on_each(|driver, handle| {
        let count = || fuse.count(Opcode::RENAME) + fuse.count(Opcode::RENAME2);
        let before = count();
        fuse.script(Rule::on(Opcode::RENAME).errno(CANCELED));
        fuse.script(Rule::on(Opcode::RENAME2).errno(CANCELED));
        let (from, to) = (c(fuse.join("a")), c(fuse.join("c")));
        let rename = &mut handle.rename(None, from, None, to, 0);
        assert_eq!(errno(finish(driver, rename)), Errno::CANCELED);
        assert_eq!(count(), before + 1);
        fuse.release();
    });
}

#[test]
fn an_append_is_sent_once() {
    let fuse = available!(server());
    on_each(|driver, handle| {
        let flags = (OFlags::WRONLY | OFlags::APPEND).bits();
        let fd = finish(driver, &mut handle.open(None, c(fuse.join("b")), flags, 0)).unwrap();
        let before = fuse.count(Opcode::WRITE);
        fuse.script(Rule::on(Opcode::WRITE).times(1).errno(CANCELED));
        let (result, _) = finish(driver, &mut handle.write(&fd, b"more".to_vec(), 0));
        assert_eq!(errno(result), Errno::CANCELED);
        assert_eq!(fuse.count(Opcode::WRITE), before + 1);
        finish(driver, &mut handle.close(fd)).unwrap();
        assert_eq!(fuse.content("b"), pattern(10));
        fuse.release();
    });
}

#[test]
fn reads_and_questions_may_be_sent_again() {
    let fuse = available!(server());
    on_each(|driver, handle| {
        let fd = finish(driver, &mut handle.open(None, c(fuse.join("a")), 0, 0)).unwrap();
        let before = fuse.count(Opcode::READ);
        fuse.script(Rule::on(Opcode::READ).errno(CANCELED));
        let (result, _) = finish(driver, &mut handle.read(&fd, vec![0; 8], 3));
        assert_eq!(errno(result), Errno::CANCELED);
        assert!((1..=2).contains(&(fuse.count(Opcode::READ) - before)));
        fuse.release();
        let (result, bytes) = finish(driver, &mut handle.read(&fd, vec![0; 8], 3));
        assert_eq!((result.unwrap(), &bytes[..]), (8, &pattern(100)[3..11]));

        let before = fuse.count(Opcode::GETATTR);
        fuse.script(Rule::on(Opcode::GETATTR).errno(CANCELED));
        let result = finish(driver, &mut handle.statx_fd(&fd));
        assert_eq!(errno(result), Errno::CANCELED);
        assert!((1..=2).contains(&(fuse.count(Opcode::GETATTR) - before)));
        fuse.release();
        finish(driver, &mut handle.close(fd)).unwrap();
    });
}

#[test]
fn what_a_server_answers_to_an_open_stands() {
    let fuse = available!(server());
    on_each(|driver, handle| {
        let before = fuse.count(Opcode::OPEN);
        fuse.script(Rule::on(Opcode::OPEN).errno(CANCELED));
        let open = &mut handle.open(None, c(fuse.join("a")), 0, 0);
        assert_eq!(errno(finish(driver, open)), Errno::CANCELED);
        assert_eq!(fuse.count(Opcode::OPEN), before + 1);
        assert_eq!(driver.counters().of(OpKind::Close).submitted, 0, "nothing was opened");
        fuse.release();
    });
    assert!(fs::metadata(fuse.join("a")).is_ok());
}
