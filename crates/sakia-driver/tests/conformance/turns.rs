//! Turns, tokens, and the end of a driver.

use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, OpKind, Wait};

use crate::stage::{Stage, errno, settle, turn_until, wait};

pub fn a_no_op_does_nothing(stage: &Stage) {
    let driver = stage.driver();
    wait(&driver, driver.nop()).unwrap();
    assert_eq!(driver.live_operations(), 0);
}

pub fn an_idle_turn_returns(stage: &Stage) {
    let driver = stage.driver();
    assert_eq!(driver.turn(Wait::Poll).unwrap(), 0);
    assert_eq!(driver.turn(Wait::Forever).unwrap(), 0, "there is nothing to wait for");
}

pub fn a_turn_ends_with_its_time(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, _sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    for _ in 0..3 {
        assert_eq!(driver.turn(Wait::For(Duration::from_millis(2))).unwrap(), 0);
    }
    assert!(read.try_take().is_none());
}

pub fn tokens_come_in_the_order_of_completion(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    read.set_token(1);
    settle(&driver);
    let mut write = driver.write(&sender, "x", CURRENT_POSITION);
    write.set_token(2);
    let mut done = Vec::new();
    turn_until(&driver, || {
        done.extend(driver.next_done());
        done.len() == 2
    });
    done.sort_unstable();
    assert_eq!(done, [1, 2]);
    assert!(read.try_take().is_some() && write.try_take().is_some());
}

pub fn a_queue_of_two_entries_serves_thousands(stage: &Stage) {
    let driver = stage.driver_of(2, 4);
    let file = stage.file(&driver, "file", b"0123456789");
    let mut reads: Vec<_> =
        (0..2000).map(|number| (number, driver.read(&file, vec![0; 1], number % 10))).collect();
    turn_until(&driver, || {
        reads.retain_mut(|(number, read)| match read.try_take() {
            None => true,
            Some((result, buf)) => {
                assert_eq!((result.unwrap(), buf), (1, vec![b'0' + (*number % 10) as u8]));
                false
            }
        });
        reads.is_empty()
    });
}

pub fn the_end_cancels_what_waits(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, sender) = stage.pipe(&driver);
    let ends = [stage.identify(&receiver), stage.identify(&sender)];
    let mut read = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    settle(&driver);
    drop(receiver);
    assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
    assert_eq!(errno(read.try_take().expect("it is over").0), Errno::CANCELED);
    drop(sender);
    assert!(ends.iter().all(|end| !stage.is_open(end)));
}

pub fn results_outlive_the_driver(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    let mut read = driver.read(&file, vec![0; 3], 2);
    turn_until(&driver, || driver.in_flight() == 0);
    drop(file);
    drop(driver);
    let (result, buf) = read.try_take().expect("it was done");
    assert_eq!((result.unwrap(), &buf[..]), (3, &b"234"[..]));
}

pub fn nothing_starts_after_the_end(stage: &Stage) {
    let driver = stage.driver();
    let handle = driver.handle().clone();
    drop(driver);
    assert_eq!(errno(handle.nop().try_take().expect("it is refused")), Errno::CANCELED);
}

pub fn what_is_canceled_before_it_is_submitted_says_so(stage: &Stage) {
    let driver = stage.driver();
    let (receiver, _sender) = stage.pipe(&driver);
    let mut read = driver.read(&receiver, vec![0; 1], CURRENT_POSITION);
    read.cancel();
    read.cancel();
    assert_eq!(errno(wait(&driver, read).0), Errno::CANCELED);
}

pub fn operations_are_counted_by_kind(stage: &Stage) {
    let driver = stage.driver();
    let file = stage.file(&driver, "file", b"0123456789");
    wait(&driver, driver.read(&file, vec![0; 4], 0)).0.unwrap();
    wait(&driver, driver.statx_fd(&file)).unwrap();
    wait(&driver, driver.nop()).unwrap();
    let counters = driver.counters();
    for kind in [OpKind::Open, OpKind::Read, OpKind::Statx, OpKind::Nop] {
        stage.assert_count(kind, counters.of(kind), 1);
    }
    assert_eq!((counters.started, counters.finished), (4, 4));
    assert!(counters.pushed == 4 || stage.bypasses());
}
