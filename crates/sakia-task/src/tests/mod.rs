//! Tasks in every state, with everything counted: each future and each value is dropped once, on a thread
//! where that is allowed.
//!
//! Run under Miri, which also finds memory that is never freed.

mod across;
mod ends;
mod queue;
mod shares;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

thread_local! {
    static QUEUE: Queue<To> = const { Queue::new() };
}

/// The inbox of an executor.
#[derive(Default)]
struct Inbox {
    mail: Mutex<VecDeque<Mail<To>>>,
    /// The inbox takes no more mail.
    is_closed: AtomicBool,
    /// The number of mails sent to it.
    sent: AtomicUsize,
}

/// The scheduler of the tests.
#[derive(Clone, Default)]
struct To(Arc<Inbox>);

impl Schedule for To {
    fn here(task: Runnable<Self>) {
        QUEUE.with(|queue| queue.push(task));
    }

    fn elsewhere(mail: Mail<Self>) {
        let to = mail.scheduler().clone();
        to.0.sent.fetch_add(1, Ordering::Relaxed);
        if !to.0.is_closed.load(Ordering::Relaxed) {
            to.0.mail.lock().expect("no test panics with it").push_back(mail);
        }
    }
}

impl To {
    /// Opens all mail.
    fn receive(&self) {
        let mail: Vec<_> = self.0.mail.lock().expect("no test panics with it").drain(..).collect();
        for mail in mail {
            let opened = mail.open().expect("this is its thread");
            opened.into_iter().for_each(To::here);
        }
    }

    /// Runs tasks of this thread until none is ready. Returns how many were polled.
    fn run(&self) -> usize {
        let mut polls = 0;
        loop {
            self.receive();
            let Some(task) = QUEUE.with(Queue::pop) else { return polls };
            task.run();
            polls += 1;
        }
    }

    fn spawn<F: Future<Output: 'static> + 'static>(&self, future: F) -> Task<F::Output> {
        let (runnable, task) = spawn(future, self.clone());
        To::here(runnable);
        task
    }

    fn sent(&self) -> usize {
        self.0.sent.load(Ordering::Relaxed)
    }
}

/// A count of drops, by whether they happened on the home thread.
#[derive(Clone)]
struct Counter(Arc<(AtomicUsize, AtomicUsize)>);

struct Probe {
    counter: Counter,
    home: ThreadId,
}

impl Counter {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn probe(&self) -> Probe {
        Probe { counter: self.clone(), home: ThreadId::current() }
    }

    /// Returns the numbers of drops at home and elsewhere.
    fn drops(&self) -> (usize, usize) {
        let (here, elsewhere) = &*self.0;
        (here.load(Ordering::SeqCst), elsewhere.load(Ordering::SeqCst))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let (here, elsewhere) = &*self.counter.0;
        let of = if self.home.is_current() { here } else { elsewhere };
        of.fetch_add(1, Ordering::SeqCst);
    }
}

/// A waker that counts.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn value<T>(task: &mut Task<T>) -> Option<T> {
    match poll_once(task) {
        Poll::Ready(Some(Ok(value))) => Some(value),
        _ => None,
    }
}

/// Returns a future that keeps a probe, leaves its waker, and is ready with another probe at its second
/// poll.
fn waits_once(
    future: &Counter,
    output: &Counter,
    left: &Arc<Mutex<Option<Waker>>>,
) -> impl Future<Output = Probe> + use<> {
    let (held, output, left) = (future.probe(), output.probe(), Arc::clone(left));
    let mut output = Some(output);
    let mut is_first = true;
    poll_fn(move |cx| {
        let _held = &held;
        if is_first {
            is_first = false;
            *left.lock().expect("no test panics with it") = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(output.take().expect("polled twice"))
    })
}

fn taken(left: &Arc<Mutex<Option<Waker>>>) -> Waker {
    left.lock().expect("no test panics with it").take().expect("the task was polled")
}

#[test]
fn values_come_back() {
    let to = To::default();
    let mut task = to.spawn(async { 7 });
    assert!(!task.is_finished() && poll_once(&mut task).is_pending());
    assert_eq!(to.run(), 1);
    assert!(task.is_finished());
    assert_eq!(value(&mut task), Some(7));
    assert!(matches!(poll_once(&mut task), Poll::Ready(None)), "it comes once");
}

#[test]
fn a_task_awaits_another() {
    let to = To::default();
    let first = to.spawn(async { 1 });
    let mut second =
        to.spawn(async move { first.await.expect("not canceled").expect("no panic") + 1 });
    to.run();
    assert_eq!(value(&mut second), Some(2));
    // In the other order the second task waits in the handle of the first.
    let (runnable, first) = spawn(async { 1 }, to.clone());
    let mut second =
        to.spawn(async move { first.await.expect("not canceled").expect("no panic") + 1 });
    assert_eq!(to.run(), 1);
    To::here(runnable);
    assert_eq!(to.run(), 2);
    assert_eq!(value(&mut second), Some(2));
    assert_eq!(to.sent(), 0);
}

#[test]
fn a_wake_at_home_runs_it_once() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let mut task = to.spawn(waits_once(&future, &output, &left));
    assert_eq!(to.run(), 1);
    assert_eq!(to.run(), 0);
    let waker = taken(&left);
    waker.wake_by_ref();
    let more = waker.clone();
    more.wake();
    waker.wake_by_ref();
    assert_eq!(to.run(), 1, "three wakes are one poll");
    waker.wake();
    assert_eq!((to.run(), to.sent()), (0, 0));
    assert_eq!((future.drops(), output.drops()), ((1, 0), (0, 0)));
    drop(value(&mut task).expect("it ended"));
    assert_eq!(output.drops(), (1, 0));
}

#[test]
fn a_wake_while_it_is_polled_runs_it_again() {
    let to = To::default();
    let mut polls = 0;
    let mut task = to.spawn(poll_fn(move |cx| {
        polls += 1;
        if polls == 5 {
            return Poll::Ready(polls);
        }
        cx.waker().wake_by_ref();
        let more = cx.waker().clone();
        more.wake();
        Poll::Pending
    }));
    assert_eq!(to.run(), 5);
    assert_eq!(value(&mut task), Some(5));
}

#[test]
fn all_wakers_of_a_task_are_equal_and_no_other_tasks() {
    let to = To::default();
    let (one, first) = spawn(async {}, to.clone());
    let (two, second) = spawn(async { 1 }, to.clone());
    assert!(one.waker().will_wake(&one.waker()) && one.waker().will_wake(&one.waker().clone()));
    assert!(!one.waker().will_wake(&two.waker()));
    assert!(Arc::ptr_eq(&one.scheduler().0, &to.0));
    drop((one, first, two, second));
}

#[test]
fn a_future_of_a_page_and_one_of_nothing_keep_their_place() {
    #[repr(align(128))]
    struct Large([u8; 4096]);

    let to = To::default();
    let large = Large([3; 4096]);
    let mut task = to.spawn(async move {
        let large = large;
        let before = &raw const large as usize;
        let mut has_yielded = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::replace(&mut has_yielded, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        (before == &raw const large as usize && before.is_multiple_of(128)).then_some(large)
    });
    let mut nothing = to.spawn(std::future::ready(()));
    to.run();
    assert!(value(&mut task).flatten().is_some_and(|large| large.0[4095] == 3));
    assert_eq!(value(&mut nothing), Some(()));
}

#[test]
fn the_handle_is_told_once_by_the_waker_that_it_left_last() {
    let to = To::default();
    let (runnable, mut task) = spawn(async { 1 }, to.clone());
    let (old, new) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    for wakes in [&old, &new, &new] {
        let waker = Waker::from(Arc::clone(wakes));
        assert!(pin!(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    runnable.run();
    assert_eq!((old.0.load(Ordering::SeqCst), new.0.load(Ordering::SeqCst)), (0, 1));
    assert_eq!(value(&mut task), Some(1));
}
