//! The kernel takes no entry for a while, the queue is full, and the operations that would end the queued
//! ones wait for a place in it.

use std::io;
use std::time::Duration;

use sakia_driver::sim::{EnterFault, Routes, Sim, SimHandle};
use sakia_driver::{CURRENT_POSITION, Driver, Fd, Wait};
use sakia_ring::Opcode;

use crate::scripted::{FILE, scripted};

/// The number of turns in which every test ends; none of them may wait for an event that never comes.
const TURNS_MAX: u32 = 10;

/// Makes a driver with a queue of two entries, and two pipes.
fn tiny() -> (Driver, SimHandle, [(Fd, Fd); 2]) {
    let sim = Sim::builder(0).entries(2, 4).routes(Routes::INLINE).build();
    let kernel = sim.handle();
    let driver = Driver::new(sim);
    let pipes = [(); 2].map(|()| {
        let (reader, writer) = kernel.pipe();
        (driver.adopt_simulated(reader), driver.adopt_simulated(writer))
    });
    (driver, kernel, pipes)
}

/// Makes the kernel take no entry in the next enters.
fn refuse(kernel: &SimHandle, enters: u32) {
    (0..enters).for_each(|_| kernel.script_enter(0, EnterFault::Partial(0)));
}

/// Takes turns that may sleep for ever, until `is_over` returns true.
fn turn_until(driver: &Driver, mut is_over: impl FnMut() -> bool) -> io::Result<()> {
    for _ in 0..TURNS_MAX {
        driver.turn(Wait::Forever)?;
        if is_over() {
            return Ok(());
        }
    }
    panic!("not over after {TURNS_MAX} turns");
}

#[test]
fn reads_wait_for_a_write_that_has_no_place() {
    let (driver, kernel, [one, two]) = tiny();
    refuse(&kernel, 2);
    let mut first = driver.read(&one.0, vec![0; 4], CURRENT_POSITION);
    let second = driver.read(&two.0, vec![0; 4], CURRENT_POSITION);
    let write = driver.write(&one.1, b"text".to_vec(), CURRENT_POSITION);
    assert_eq!(kernel.in_flight(), 0, "the kernel has taken nothing");
    let mut result = None;
    turn_until(&driver, || {
        result = result.take().or_else(|| first.try_take());
        result.is_some()
    })
    .unwrap();
    let (count, bytes) = result.unwrap();
    assert_eq!((count.unwrap(), &bytes[..]), (4, &b"text"[..]));
    drop((second, write));
}

#[test]
fn a_cancel_has_no_place() {
    let (driver, kernel, [one, two]) = tiny();
    let mut canceled = driver.read(&one.0, vec![0; 4], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!(kernel.in_flight(), 1);
    refuse(&kernel, 2);
    let others = [(); 2].map(|()| driver.read(&two.0, vec![0; 4], CURRENT_POSITION));
    canceled.cancel();
    let mut result = None;
    turn_until(&driver, || {
        result = result.take().or_else(|| canceled.try_take());
        result.is_some()
    })
    .unwrap();
    let (result, _) = result.unwrap();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(125));
    drop(others);
}

/// Operations that wait for the end of others, and not for a place in the queue, do not keep a turn awake.
#[test]
fn a_turn_sleeps_while_operations_wait_for_others() {
    let (driver, stage) = scripted(8, 4);
    let fd = stage.open(&driver, FILE);
    let mut reads: Vec<_> = (0..8).map(|_| driver.read(&fd, vec![0; 1], 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    let in_flight = stage.in_flight(Opcode::READ).len();
    assert!((1..8).contains(&in_flight), "{in_flight} of 8");
    let figures = || {
        let state = stage.state();
        (state.now, state.enters)
    };
    let (now, enters) = figures();
    driver.turn(Wait::For(Duration::from_secs(7))).unwrap();
    assert_eq!(figures(), (now + Duration::from_secs(7), enters + 1), "it stayed awake");
    for read in &mut reads {
        stage.complete(Opcode::READ, 1);
        driver.turn(Wait::Poll).unwrap();
        assert_eq!(read.try_take().expect("the oldest is done").0.unwrap(), 1);
        driver.turn(Wait::Poll).unwrap();
    }
}
