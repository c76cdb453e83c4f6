//! Threads of forked children, whose parent's other threads begin and end.

#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};

use sakia_testkit::forked;
use sakia_thread::{JoinHandle, current_name, start_thread};

/// Forks so often, while two threads of the parent start others.
const FORKS: usize = 2_000;

fn start(main: impl FnOnce() + Send + 'static) -> JoinHandle {
    start_thread("sakia-thread-of-test", None, Box::new(main)).unwrap()
}

/// The kernel's name of the calling thread.
fn name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim().to_owned()
}

#[test]
fn no_thread_of_a_child_waits_for_those_of_its_parent() {
    let is_over = AtomicBool::new(false);
    let ended: Vec<_> = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::spawn(|| ()).join().unwrap();
                }
            });
        }
        let starts = || start(|| ()).join();
        let ended = (0..FORKS).map(|_| forked::run(starts)).take_while(Result::is_ok).collect();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    assert_eq!(ended.len(), FORKS, "the next child did not end well");
}

/// Does all that a thread can do, in a child or not.
fn do_everything() {
    // A join sees all that the thread did, and the kernel knows its name.
    let (sender, names) = mpsc::channel();
    let thread = start(move || sender.send((name(), current_name())).unwrap());
    assert!(!thread.is_current());
    thread.join();
    let (kernels, own) = names.try_recv().unwrap();
    assert_eq!((&*kernels, own.as_deref()), ("sakia-thread-of", Some("sakia-thread-of-test")));

    // Thread-locals are dropped by then.
    struct Counted(Arc<AtomicU32>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    thread_local! {
        static LOCAL: std::cell::RefCell<Option<Counted>> = const { std::cell::RefCell::new(None) };
    }
    let drops = Arc::new(AtomicU32::new(0));
    let counted = Counted(Arc::clone(&drops));
    start(|| LOCAL.with(|local| *local.borrow_mut() = Some(counted))).join();
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    // A panic ends the thread alone. Not `panic!`, which prints.
    start(|| std::panic::resume_unwind(Box::new("in a thread"))).join();

    // A dropped handle lets its thread go on.
    let (sender, sent) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    drop(start(move || {
        gone.recv().unwrap();
        sender.send(3).unwrap();
    }));
    go.send(()).unwrap();
    assert_eq!(sent.recv(), Ok(3));

    // A thread that has its own handle knows itself.
    let (sender, own) = mpsc::channel::<JoinHandle>();
    let (tell, told) = mpsc::channel();
    let thread = start(move || tell.send(own.recv().unwrap().is_current()).unwrap());
    sender.send(thread).unwrap();
    assert_eq!(told.recv(), Ok(true));

    // A stack is as large as was asked, and at least as large as a thread needs.
    let deep = || {
        let used = std::hint::black_box([1_u8; 3 << 20]);
        assert_eq!(used.iter().fold(0, |sum, &byte| sum + usize::from(byte)), 3 << 20);
    };
    start_thread("deep", NonZeroUsize::new(8 << 20), Box::new(deep)).unwrap().join();
    start_thread("flat", NonZeroUsize::new(1), Box::new(|| ())).unwrap().join();
}

#[test]
fn a_thread_is_the_same_in_a_child() {
    do_everything();
    assert_eq!(forked::run(do_everything), Ok(()));
    let in_grandchild = || assert_eq!(forked::run(do_everything), Ok(()));
    assert_eq!(forked::run(in_grandchild), Ok(()));
}

#[test]
fn a_handle_of_the_parent_is_inert_in_a_child() {
    let (go, gone) = mpsc::channel::<()>();
    let waits = || {
        let (go, gone) = mpsc::channel::<()>();
        (go, start(move || gone.recv().unwrap_or_default()))
    };
    let in_child = |thread: JoinHandle, other: JoinHandle| {
        assert!(!thread.is_current());
        drop(thread);
        other.join();
    };
    let (_keep, thread) = waits();
    let other = start(move || gone.recv().unwrap_or_default());
    // Taken by the child alone: the parent's copies stay.
    let mut handles = Some((thread, other));
    assert_eq!(
        forked::run(|| handles.take().into_iter().for_each(|(a, b)| in_child(a, b))),
        Ok(())
    );
    drop(go);
    // A child's own, in a child of its.
    let in_grandchild = || {
        let mut handles = Some((waits(), waits()));
        let inert = || handles.take().into_iter().for_each(|((_, a), (_, b))| in_child(a, b));
        assert_eq!(forked::run(inert), Ok(()));
    };
    assert_eq!(forked::run(in_grandchild), Ok(()));
}
