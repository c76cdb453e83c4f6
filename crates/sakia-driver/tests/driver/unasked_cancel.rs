//! An operation ends with `ECANCELED` without a request to cancel: for lack of a kernel worker, or because a
//! file server returns it. An operation that may have had an effect is not repeated.

use std::ffi::CString;

use rustix::io::Errno;
use sakia_driver::call::Call;
use sakia_driver::{CURRENT_POSITION, Driver, Fd, Handle, Op, Operation, Wait};
use sakia_ring::{CqeFlags, Opcode};

use crate::scripted::{Cancels, FILE, PIPE, Stage, scripted, scripted_with};
use crate::support::{drain, errno, finish};

const CANCELED: i32 = -Errno::CANCELED.raw_os_error();

/// Makes a driver whose kernel lacks workers, on files of this type.
fn lacking(file_system: &'static str) -> (Driver, Stage) {
    scripted_with(8, 32, |state| (state.lacks_workers, state.file_system) = (true, file_system))
}

/// Ends the only operation in flight as if it had been canceled.
fn answer_canceled(stage: &Stage) {
    let entries = stage.state().in_flight.clone();
    assert_eq!(entries.len(), 1);
    stage.complete(entries[0].opcode, CANCELED);
}

/// Starts an operation, which ends as if canceled, and returns whether it was repeated.
fn is_repeated<O: Operation>(
    file_system: &'static str,
    raw: i32,
    start: impl FnOnce(&Handle, &Fd) -> Op<O>,
) -> bool {
    let (driver, stage) = lacking(file_system);
    let fd = stage.open(&driver, raw);
    let mut op = start(driver.handle(), &fd);
    driver.turn(Wait::Poll).unwrap();
    answer_canceled(&stage);
    driver.turn(Wait::Poll).unwrap();
    let is_repeated = !stage.state().laned.is_empty();
    assert_eq!(is_repeated, op.try_take().is_none());
    if is_repeated {
        // The same answer from a thread stands, whatever its source.
        answer_canceled(&stage);
        driver.turn(Wait::Poll).unwrap();
        assert!(op.try_take().is_some(), "done more than twice");
    }
    assert_eq!(stage.state().laned.len(), usize::from(is_repeated));
    drop(fd);
    drain(&driver);
    assert_eq!(stage.state().closed, [raw]);
    is_repeated
}

fn name(name: &str) -> CString {
    CString::new(name).unwrap()
}

/// Types of file systems: local, layered, remote, and unknown ones.
const FILE_SYSTEMS: [&str; 6] = ["ext4", "overlay", "fuse", "nfs4", "future", ""];

/// Asserts for each file system whether an operation is repeated.
macro_rules! assert_repeats {
    ($expected:expr, $raw:expr, $($start:expr),* $(,)?) => {$(
        for file_system in FILE_SYSTEMS {
            let expected: fn(&str) -> bool = $expected;
            let repeated = is_repeated(file_system, $raw, $start);
            assert_eq!(repeated, expected(file_system), "{} on {file_system}", stringify!($start));
        }
    )*};
}

#[test]
fn pure_reads_are_done_again_everywhere() {
    assert_repeats!(
        |_| true,
        FILE,
        |driver, fd| driver.read(fd, vec![0; 8], 5),
        |driver, fd| driver.read_vectored(fd, vec![vec![0; 8]], 5),
        |driver, fd| driver.statx_fd(fd),
        |driver, _| driver.statx(None, name("a"), 0),
        |driver, fd| driver.get_xattr(fd, name("user.a"), vec![0; 8]),
    );
}

#[test]
fn what_changes_something_is_done_again_on_local_file_systems_only() {
    assert_repeats!(
        |file_system| file_system == "ext4",
        FILE,
        |driver, fd| driver.write(fd, vec![0; 8], 5),
        |driver, fd| driver.write_vectored(fd, vec![vec![0; 8]], 5),
        |driver, fd| driver.fsync(fd, false),
        |driver, fd| driver.truncate(fd, 5),
        |driver, fd| driver.fallocate(fd, 0, 0, 5),
        |driver, fd| driver.set_xattr(fd, name("user.a"), vec![0; 8], 0),
        |driver, _| driver.open(None, name("a"), 0, 0),
        |driver, _| driver.mkdir(None, name("a"), 0),
        |driver, _| driver.unlink(None, name("a"), 0),
        |driver, _| driver.rename(None, name("a"), None, name("b"), 0),
        |driver, _| driver.link(None, name("a"), None, name("b"), 0),
        |driver, _| driver.symlink(name("a"), None, name("b")),
    );
}

/// The queue performed the operation, since there were no threads for it.
#[test]
fn what_moved_the_position_in_a_queue_is_done_again_on_local_file_systems_only() {
    for file_system in FILE_SYSTEMS {
        let (driver, stage) = lacking(file_system);
        let fd = stage.open(&driver, FILE);
        stage.state().lacks_workers = false;
        let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        assert!(stage.state().laned.is_empty());
        stage.state().lacks_workers = true;
        answer_canceled(&stage);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(read.try_take().is_none(), file_system == "ext4", "on {file_system}");
        if file_system == "ext4" {
            answer_canceled(&stage);
        }
        drop(fd);
        drain(&driver);
    }
}

/// A thread performs the operation the first time.
#[test]
fn what_moves_the_position_is_never_done_again() {
    for file_system in FILE_SYSTEMS {
        let (driver, stage) = lacking(file_system);
        let fd = stage.open(&driver, FILE);
        let mut read = driver.read(&fd, vec![0; 8], CURRENT_POSITION);
        let mut write = driver.write_vectored(&fd, vec![vec![0; 8]], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(stage.state().laned.len(), 2);
        for opcode in [Opcode::READ, Opcode::WRITEV] {
            stage.complete(opcode, CANCELED);
        }
        driver.turn(Wait::Poll).unwrap();
        assert!(read.try_take().is_some() && write.try_take().is_some(), "on {file_system}");
        assert_eq!(stage.state().laned.len(), 2);
        drop(fd);
        drain(&driver);
    }
}

#[test]
fn what_waits_for_others_needs_no_worker() {
    assert_repeats!(|_| false, PIPE, |driver, fd| driver.read(fd, vec![0; 8], 0), |driver, fd| {
        driver.write(fd, vec![0; 8], 0)
    },);
}

#[test]
fn nothing_is_done_again_where_no_worker_can_lack() {
    let (driver, stage) = scripted(8, 32);
    let fd = stage.open(&driver, FILE);
    let mut read = driver.read(&fd, vec![0; 8], 0);
    driver.turn(Wait::Poll).unwrap();
    answer_canceled(&stage);
    assert_eq!(errno(finish(&driver, &mut read).0), Errno::CANCELED);
}

type Reading = Op<sakia_driver::Read<Vec<u8>>>;

/// Starts a read that may be repeated.
fn reading() -> (Driver, Stage, Fd, Reading) {
    let (driver, stage) = lacking("ext4");
    let fd = stage.open(&driver, FILE);
    let read = driver.read(&fd, vec![0; 8], 0);
    driver.turn(Wait::Poll).unwrap();
    (driver, stage, fd, read)
}

/// A duplicate completion ends nothing: it belongs to the first attempt, not to the repetition.
#[test]
fn what_is_done_again_is_not_ended_by_the_first_answer_a_second_time() {
    let (driver, stage, _fd, mut read) = reading();
    let first = stage.in_flight(Opcode::READ)[0];
    answer_canceled(&stage);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(stage.state().laned.len(), 1);
    let stale = driver.counters().stale;
    stage.post(first.user_data, 8, CqeFlags(0));
    driver.turn(Wait::Poll).unwrap();
    assert!(read.try_take().is_none(), "its memory is still a thread's");
    assert_eq!(driver.counters().stale, stale + 1);
    let again = stage.state().in_flight[0];
    assert_ne!(again.user_data, first.user_data);
    stage.complete(again.opcode, 5);
    assert_eq!(finish(&driver, &mut read).0.unwrap(), 5);
}

#[test]
fn nothing_is_done_again_for_nobody() {
    let (driver, stage, fd, read) = reading();
    drop(read);
    answer_canceled(&stage);
    drain(&driver);
    assert_eq!((stage.state().laned.len(), driver.live_operations()), (0, 0));
    drop(fd);
}

#[test]
fn what_is_to_be_canceled_is_not_done_again() {
    // The request to cancel has no place in the queue yet, or the kernel has it.
    for is_sent in [false, true] {
        let (driver, stage, _fd, mut read) = reading();
        stage.state().cancels = Cancels::Manual;
        let mut nops = Vec::new();
        if !is_sent {
            stage.state().consume_max = 0;
            nops.extend((0..8).map(|_| driver.nop()));
        }
        read.cancel();
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(stage.in_flight(Opcode::ASYNC_CANCEL).len(), usize::from(is_sent));
        stage.complete(Opcode::READ, CANCELED);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(errno(read.try_take().expect("it is over").0), Errno::CANCELED);
        assert_eq!(stage.state().laned, []);
        stage.state().consume_max = usize::MAX;
        if is_sent {
            stage.complete(Opcode::ASYNC_CANCEL, 0);
        }
        for nop in &mut nops {
            finish(&driver, nop).unwrap();
        }
        drain(&driver);
        assert_eq!(driver.in_flight(), 0);
    }
}

#[test]
fn what_is_being_closed_is_not_done_again() {
    let (driver, stage, fd, mut read) = reading();
    stage.state().cancels = Cancels::Fail;
    let mut close = driver.close(fd);
    driver.turn(Wait::Poll).unwrap();
    answer_canceled(&stage);
    assert_eq!(errno(finish(&driver, &mut read).0), Errno::CANCELED);
    drop(read);
    finish(&driver, &mut close).unwrap();
    assert_eq!(stage.state().laned, []);
}

#[test]
fn nothing_is_done_again_at_the_end() {
    let (driver, stage, fd, mut read) = reading();
    stage.state().cancels = Cancels::Work;
    drop(driver);
    assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
    assert_eq!(stage.state().laned, []);
    drop(fd);
}

#[test]
fn a_close_is_never_done_again() {
    for file_system in FILE_SYSTEMS {
        for is_dropped in [false, true] {
            let (driver, stage) = lacking(file_system);
            for answer in [Errno::CANCELED, Errno::INTR, Errno::AGAIN, Errno::BADF, Errno::IO] {
                let fd = stage.open(&driver, FILE);
                stage.state().closed.clear();
                stage.state().close_error = Some(answer);
                let before = driver.counters().close_errors;
                if is_dropped {
                    drop(fd);
                    drain(&driver);
                    assert_eq!(driver.counters().close_errors, before + 1);
                } else {
                    assert_eq!(errno(finish(&driver, &mut driver.close(fd))), answer);
                }
                assert_eq!(stage.state().closed, [FILE], "{file_system}, {answer}");
            }
        }
    }
}

#[test]
fn a_close_that_was_not_begun_is_made_up_for() {
    // The queue is full, so the close is dropped, or the driver ends, before the kernel has seen the close.
    for is_ended in [false, true] {
        let (driver, stage) = scripted(2, 4);
        let fd = stage.open(&driver, FILE);
        stage.state().consume_max = 0;
        let close = driver.close(fd);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(stage.state().closed, [0; 0]);
        if is_ended {
            stage.state().consume_max = usize::MAX;
            drop((driver, close));
        } else {
            drop(close);
            stage.state().consume_max = usize::MAX;
            drain(&driver);
        }
        assert_eq!(stage.state().closed, [FILE]);
    }
}

#[test]
fn a_close_is_not_canceled() {
    let (driver, stage) = lacking("fuse");
    stage.state().cancels = Cancels::Work;
    let fd = stage.open(&driver, FILE);
    let mut close = driver.close(fd);
    close.cancel();
    finish(&driver, &mut close).unwrap();
    assert!(stage.state().laned.iter().all(|call| matches!(call, Call::Close { .. })));
    assert!(stage.state().consumed.iter().all(|sqe| sqe.opcode != Opcode::ASYNC_CANCEL));
    assert_eq!(stage.state().closed, [FILE]);
}
