//! Counts that one thread changes without atomic operations, and others with them.

use std::thread;

use super::*;

/// Returns a counted value, and the counter of its drops.
fn counted() -> (Root<Probe>, Counter) {
    let counter = Counter::new();
    (Root::new(counter.probe()), counter)
}

#[test]
fn the_last_one_at_home_drops_the_value() {
    let (root, counter) = counted();
    let shares = [root.share(), root.share().clone()];
    drop(root);
    assert_eq!(counter.drops(), (0, 0));
    drop(shares);
    assert_eq!(counter.drops(), (1, 0));
    let (root, counter) = counted();
    drop(root.share());
    drop(root);
    assert_eq!(counter.drops(), (1, 0));
}

#[test]
fn shares_that_are_dropped_elsewhere_are_known_when_the_root_is_dropped() {
    let (root, counter) = counted();
    let shares: Vec<_> = (0..10).map(|_| root.share()).collect();
    thread::spawn(move || drop(shares)).join().unwrap();
    assert_eq!(counter.drops(), (0, 0));
    drop(root);
    assert_eq!(counter.drops(), (1, 0));
}

#[test]
fn the_last_one_may_be_elsewhere() {
    let (root, counter) = counted();
    let share = root.share();
    let thread = thread::spawn(move || {
        let more = share.clone();
        (share, more)
    });
    let (one, two) = thread.join().unwrap();
    drop(one); // made here, counted there
    drop(root);
    assert_eq!(counter.drops(), (0, 0));
    thread::spawn(move || drop(two)).join().unwrap();
    assert_eq!(counter.drops(), (0, 1));
}

#[test]
fn shares_made_elsewhere_and_dropped_at_home_are_counted() {
    let (root, counter) = counted();
    let share = root.share();
    let thread = thread::spawn(move || {
        let made: Vec<_> = (0..10).map(|_| share.clone()).collect();
        (made, share)
    });
    let (made, share) = thread.join().unwrap();
    drop(made);
    assert_eq!(counter.drops(), (0, 0));
    drop((share, root));
    assert_eq!(counter.drops(), (1, 0));
}

#[test]
fn threads_that_clone_and_drop_at_once_drop_the_value_once() {
    for _ in 0..if cfg!(miri) { 5 } else { 500 } {
        let (root, counter) = counted();
        thread::scope(|scope| {
            for _ in 0..2 {
                let share = root.share();
                scope.spawn(move || {
                    for _ in 0..10 {
                        drop((share.clone(), share.clone()));
                    }
                });
            }
            for _ in 0..10 {
                drop((root.share(), root.share()));
            }
            drop(root);
        });
        let (here, elsewhere) = counter.drops();
        assert_eq!(here + elsewhere, 1);
    }
}
