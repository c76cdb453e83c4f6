//! The ladder of fallbacks from the best ring: each refusal by the kernel, its step and its message.

use std::cell::Cell;
use std::io;

use rustix::io::Errno;
use sakia_ring::{Builder, Ring, SetupError};

use crate::hosts::Rigged;
use crate::support::{assert_works, enter};

const NO_SQARRAY: u32 = 1 << 16;
const ENABLE_RINGS: u32 = 12;
const RING_FDS: u32 = 20;
const MEM_REGION: u32 = 34;

fn build(host: &Rigged) -> Result<Ring<Rigged>, SetupError> {
    Builder::with_host(host.clone()).build()
}

fn step_errnos(ring: &Ring<Rigged>) -> Vec<i32> {
    ring.report().steps.iter().map(|step| step.errno).collect()
}

/// Returns the submission and completion entries of every attempt.
fn attempts(host: &Rigged) -> Vec<(u32, u32)> {
    let setups = host.0.setups.borrow();
    setups.iter().map(|&(sq, _, cq)| (sq, cq)).collect()
}

/// Refuses the first `count` attempts.
fn refusing(count: u32, errno: Errno) -> Rigged {
    let seen = Cell::new(0);
    Rigged::new().refuse_setup(move |_| {
        seen.set(seen.get() + 1);
        (seen.get() <= count).then_some(errno)
    })
}

#[test]
fn without_the_flag_the_array_is_used_and_works() {
    let host =
        Rigged::new().refuse_setup(|flags| (flags & NO_SQARRAY != 0).then_some(Errno::INVAL));
    let mut ring = build(&host).unwrap();
    assert!(!ring.report().setup_flag_names().contains(&"NO_SQARRAY"));
    let step = ring.report().steps[0].to_string();
    assert!(step.contains("indirection array"), "{step}");
    for _ in 0..1000 {
        assert_works(&mut ring);
    }
    assert_eq!(ring.sq_dropped(), 0);
}

#[test]
fn the_array_can_be_asked_for() {
    let mut ring = Ring::builder().sq_array(true).sq_entries(4).build().unwrap();
    assert!(!ring.report().setup_flag_names().contains(&"NO_SQARRAY"));
    assert!(ring.report().steps.is_empty());
    for _ in 0..20 {
        assert_works(&mut ring);
    }
}

#[test]
fn want_of_memory_halves_the_completion_queue_and_then_both() {
    let expected = [(256, 4096), (256, 2048), (256, 1024), (128, 512), (64, 256), (32, 128)];
    for count in 0..=5 {
        let host = refusing(count, Errno::NOMEM);
        let mut ring = build(&host).unwrap();
        assert_eq!(attempts(&host), expected[..=count as usize]);
        assert_eq!(step_errnos(&ring), vec![libc::ENOMEM; count as usize]);
        let granted = (ring.sq_entries(), ring.cq_entries());
        assert_eq!(granted, expected[count as usize]);
        assert_works(&mut ring);
    }
    let host = refusing(6, Errno::NOMEM);
    let error = build(&host).unwrap_err();
    assert_eq!(attempts(&host), expected);
    assert_eq!(error.steps().len(), 5);
    assert!(error.is_refusal());
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_small_ring_is_not_halved_below_its_wish() {
    let host = refusing(u32::MAX, Errno::NOMEM);
    let builder = Builder::with_host(host.clone()).sq_entries(2).cq_entries(2);
    assert!(builder.build().unwrap_err().is_refusal());
    assert_eq!(attempts(&host), [(2, 2)]);
}

#[test]
fn want_of_memory_for_the_maps_is_want_of_memory() {
    let host = Rigged::new().refuse_map(|map| (map < 3).then_some(Errno::NOMEM));
    let mut ring = build(&host).unwrap();
    assert_eq!(step_errnos(&ring), [libc::ENOMEM; 3]);
    assert_eq!(host.0.live_maps.get(), 2, "a map of a failed attempt was left behind");
    assert_works(&mut ring);
    drop(ring);
    assert_eq!(host.0.live_maps.get(), 0);
    // The same when the second map of the first attempt fails.
    let host = Rigged::new().refuse_map(|map| (map == 1).then_some(Errno::NOMEM));
    let ring = build(&host).unwrap();
    assert_eq!(host.0.live_maps.get(), 2);
    drop(ring);
    assert_eq!(host.0.live_maps.get(), 0);
}

#[test]
fn refusals_are_told_from_other_failures() {
    let refusals =
        [Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOMEM];
    for errno in refusals {
        let error = build(&refusing(u32::MAX, errno)).unwrap_err();
        assert!(error.is_refusal(), "{error}");
    }
    for errno in [Errno::MFILE, Errno::NFILE, Errno::FAULT, Errno::IO] {
        let host = refusing(u32::MAX, errno);
        let error = build(&host).unwrap_err();
        assert!(!error.is_refusal(), "{error}");
        assert_eq!(host.0.setups.borrow().len(), 1, "tried again: {error}");
    }
}

#[test]
fn a_first_enter_that_fails_for_now_is_no_refusal() {
    for errno in [Errno::INTR, Errno::AGAIN, Errno::BUSY] {
        let host = Rigged::new().refuse_enter(move |enter| (enter == 0).then_some(errno));
        assert_works(&mut build(&host).unwrap());
    }
    let host = Rigged::new().refuse_enter(|_| Some(Errno::PERM));
    assert!(build(&host).unwrap_err().is_refusal());
}

#[test]
fn messages_are_one_line_with_cause_and_remedy() {
    let cases = [
        (Errno::NOSYS, "kernel 6.1"),
        (Errno::PERM, "io_uring"),
        (Errno::ACCESS, "io_uring"),
        (Errno::OPNOTSUPP, "kernel 6.1"),
        (Errno::INVAL, "kernel 6.1"),
        (Errno::NOMEM, "LimitMEMLOCK="),
        (Errno::MFILE, "ulimit -n"),
        (Errno::NFILE, "fs.file-max"),
    ];
    for (errno, remedy) in cases {
        let error = build(&refusing(u32::MAX, errno)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno.raw_os_error()));
        let text = error.to_string();
        let cause = io::Error::from(errno).to_string();
        assert!(text.starts_with(&format!("io_uring_setup: {cause}: ")), "{text}");
        assert!(text.contains(remedy), "{text}");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
        let kind = error_kind(errno);
        assert_eq!(io::Error::from(error).kind(), kind);
    }
}

fn error_kind(errno: Errno) -> io::ErrorKind {
    io::Error::from(errno).kind()
}

#[test]
fn a_ring_that_may_not_be_enabled_is_a_refusal() {
    let host = Rigged::new().refuse_register(|op| (op == ENABLE_RINGS).then_some(Errno::PERM));
    let error = build(&host).unwrap_err();
    assert!(error.is_refusal());
    assert!(error.to_string().contains("ENABLE_RINGS"), "{error}");
    assert_eq!(host.0.live_maps.get(), 0);
}

#[test]
fn optional_registrations_leave_a_step_and_a_working_ring() {
    let host = Rigged::new().refuse_register(|op| match op {
        RING_FDS => Some(Errno::BUSY),
        MEM_REGION => Some(Errno::INVAL),
        _ => None,
    });
    let mut ring = build(&host).unwrap();
    let report = ring.report();
    assert!(!report.registered_fd && !report.registered_wait);
    assert_eq!(step_errnos(&ring), [libc::EINVAL, libc::EBUSY]);
    assert_works(&mut ring);
    assert!(enter(&mut ring, 1, Some(std::time::Duration::ZERO)).timed_out);
}

#[test]
fn the_report_names_what_was_granted() {
    let ring = Ring::builder().build().unwrap();
    let names = ring.report().setup_flag_names();
    for name in ["SINGLE_ISSUER", "DEFER_TASKRUN", "TASKRUN_FLAG", "SUBMIT_ALL", "CQSIZE"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let known: usize = ring.report().feature_names().len();
    assert!(known >= 12, "{:?}", ring.report().feature_names());
}
