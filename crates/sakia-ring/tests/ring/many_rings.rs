//! Many rings on a thread, rings on many threads, and a ring that changes its thread once.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::thread;

use rustix::io::Errno;
use sakia_ring::{Host, Kernel, Ring, Sqe};

use crate::support::{Random, assert_works, complete, errno_of, push, push_nops, user_data};

/// The maximum number of registered rings per thread.
const PLACES: usize = 16;

fn small() -> Ring {
    Ring::builder().sq_entries(4).cq_entries(8).build().unwrap()
}

fn registered(rings: &[Ring]) -> usize {
    rings.iter().filter(|ring| ring.report().registered_fd).count()
}

/// Runs `f` on a new thread, which can register all of its rings.
fn on_new_thread(f: impl FnOnce() + Send + 'static) {
    thread::spawn(f).join().unwrap();
}

#[test]
fn forty_rings_use_the_sixteen_places_and_then_their_descriptors() {
    on_new_thread(|| {
        let mut rings: Vec<Ring> = (0..40).map(|_| small()).collect();
        assert_eq!(registered(&rings[..PLACES]), PLACES);
        assert_eq!(registered(&rings), PLACES);
        for ring in &mut rings[PLACES..] {
            let steps = &ring.report().steps;
            assert_eq!(steps.len(), 1, "{steps:?}");
            assert_eq!(steps[0].errno, Errno::BUSY.raw_os_error());
        }
        rings.iter_mut().for_each(assert_works);
    });
}

#[test]
fn a_dropped_ring_gives_its_place_back() {
    on_new_thread(|| {
        let mut random = Random::new(40);
        for _ in 0..5 {
            let mut rings: Vec<Ring> = (0..40).map(|_| small()).collect();
            assert_eq!(registered(&rings), PLACES, "places of an earlier round");
            while !rings.is_empty() {
                rings.swap_remove(random.below(rings.len() as u64) as usize);
                rings.iter_mut().take(3).for_each(assert_works);
            }
        }
        let rings: Vec<Ring> = (0..PLACES).map(|_| small()).collect();
        assert_eq!(registered(&rings), PLACES);
    });
}

#[test]
fn a_ring_may_do_without_a_place() {
    let mut ring = Ring::builder().registered_fd(false).build().unwrap();
    assert!(!ring.report().registered_fd && ring.report().steps.is_empty());
    assert_works(&mut ring);
}

#[test]
fn rings_on_several_threads_do_not_meet() {
    let threads: Vec<_> = (0..8u64)
        .map(|thread| {
            thread::spawn(move || {
                let mut ring = small();
                for round in 0..500 {
                    let mine = [0, 1, 2, 3].map(|i| thread << 32 | round << 2 | i);
                    push_nops(&mut ring, mine);
                    assert_eq!(user_data(&complete(&mut ring, 4)), mine);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

/// Makes an enter that the type system does not allow for a [`Ring`].
fn enter_by_number(ring: i32, flags: u32) -> Result<u32, Option<Errno>> {
    // SAFETY: nothing is submitted, and there is no argument.
    unsafe { Kernel.enter(ring as u32, 0, 0, flags, ptr::null::<c_void>(), 0) }
        .map_err(|error| errno_of(&error))
}

#[test]
fn a_disabled_ring_belongs_to_the_thread_that_enables_it() {
    const GETEVENTS: u32 = 1;
    let disabled = Ring::builder().build_disabled().unwrap();
    let (to_main, from_owner) = std::sync::mpsc::channel();
    let (to_owner, from_main) = std::sync::mpsc::channel();
    let owner = thread::spawn(move || {
        let mut ring = disabled.enable().unwrap();
        assert!(ring.report().registered_fd);
        assert_works(&mut ring);
        let number = ring.as_fd().as_raw_fd();
        assert_eq!(enter_by_number(number, GETEVENTS), Ok(0));
        to_main.send(number).unwrap();
        from_main.recv().unwrap();
        assert_works(&mut ring);
    });
    let number = from_owner.recv().unwrap();
    assert_eq!(enter_by_number(number, GETEVENTS), Err(Some(Errno::EXIST)));
    to_owner.send(()).unwrap();
    owner.join().unwrap();
}

#[test]
fn a_disabled_ring_may_be_dropped_on_any_thread() {
    let disabled = Ring::builder().build_disabled().unwrap();
    thread::spawn(move || drop(disabled)).join().unwrap();
}

#[test]
fn a_ring_dropped_with_operations_in_flight_leaves_others_alone() {
    let mut other = small();
    for _ in 0..20 {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let mut ring = small();
        push(&mut ring, Sqe::poll_add(read.as_raw_fd(), 1)).unwrap();
        ring.submit().unwrap();
        drop(ring);
        assert_works(&mut other);
    }
}
