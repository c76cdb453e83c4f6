//! The ends of a task, in each of its states.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::*;

/// The state of a task at the moment of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Queued,
    Waiting,
    Woken,
    Done,
}

/// The event.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Aborted,
    Closed,
    HandleDropped,
    AbortedAndDropped,
    QueueDropped,
    HandleThenQueueDropped,
}

const WHENS: [When; 4] = [When::Queued, When::Waiting, When::Woken, When::Done];
const HOWS: [How; 6] = [
    How::Aborted,
    How::Closed,
    How::HandleDropped,
    How::AbortedAndDropped,
    How::QueueDropped,
    How::HandleThenQueueDropped,
];

fn drop_queue() {
    while let Some(task) = QUEUE.with(Queue::pop) {
        drop(task);
    }
}

#[test]
fn everything_is_dropped_once_however_a_task_ends_in_each_state() {
    for when in WHENS {
        for how in HOWS {
            let (to, left) = (To::default(), Arc::default());
            let (future, output) = (Counter::new(), Counter::new());
            let mut task = Some(to.spawn(waits_once(&future, &output, &left)));
            if when != When::Queued {
                to.run();
            }
            if matches!(when, When::Woken | When::Done) {
                left.lock().unwrap().as_ref().unwrap().wake_by_ref();
            }
            if when == When::Done {
                to.run();
            }
            match how {
                How::Aborted => task.as_ref().unwrap().abort(),
                How::Closed => task.as_ref().unwrap().close(),
                How::HandleDropped => task = None,
                How::AbortedAndDropped => {
                    task.as_ref().unwrap().abort();
                    task = None;
                }
                How::QueueDropped => drop_queue(),
                How::HandleThenQueueDropped => {
                    task = None;
                    drop_queue();
                }
            }
            let case = format!("{how:?} when {when:?}");
            if let Some(task) = &task {
                let is_finished =
                    when == When::Done || how == How::QueueDropped && when != When::Waiting;
                assert_eq!(task.is_finished(), is_finished, "{case}");
            }
            to.run();
            if let Some(waker) = left.lock().unwrap().take() {
                waker.wake();
            }
            to.run();
            // Everything that is left ends now.
            let result = task.as_mut().map(poll_once);
            let has_value = matches!(result, Some(Poll::Ready(Some(Ok(_)))));
            if let Some(result) = &result {
                assert!(result.is_ready(), "{case}");
                let goes_on = how == How::QueueDropped && when == When::Waiting;
                let is_kept = matches!(how, How::Closed | How::QueueDropped) && when == When::Done;
                let is_expected = is_kept || goes_on;
                assert_eq!(has_value, is_expected, "{case}");
            }
            drop((result, task));
            assert_eq!(future.drops(), (1, 0), "the future: {case}");
            assert_eq!(output.drops(), (1, 0), "the value: {case}");
        }
    }
}

#[test]
fn an_aborted_task_is_not_polled_again() {
    let (to, polls) = (To::default(), Rc::new(RefCell::new(0)));
    let counted = Rc::clone(&polls);
    let mut task = to.spawn(poll_fn(move |_| -> Poll<()> {
        *counted.borrow_mut() += 1;
        Poll::Pending
    }));
    task.abort();
    assert!(task.is_aborted() && !task.is_finished() && poll_once(&mut task).is_pending());
    to.run();
    assert_eq!((*polls.borrow(), Rc::strong_count(&polls)), (0, 1));
    assert!(task.is_finished() && matches!(poll_once(&mut task), Poll::Ready(None)));
}

#[test]
fn a_closed_task_resolves_when_its_future_is_gone() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let mut task = to.spawn(waits_once(&future, &output, &left));
    to.run();
    let wakes = Arc::new(Wakes::default());
    task.close();
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    assert!(pin!(&mut task).poll(&mut cx).is_pending() && !task.is_finished());
    to.run();
    assert_eq!((wakes.0.load(Ordering::SeqCst), future.drops()), (1, (1, 0)));
    assert!(matches!(poll_once(&mut task), Poll::Ready(None)));
}

#[test]
fn a_task_may_abort_itself_and_drop_its_own_handle() {
    let to = To::default();
    let (future, output) = (Counter::new(), Counter::new());
    for drops in [false, true] {
        let own: Rc<RefCell<Option<Task<Probe>>>> = Rc::default();
        let (mine, held, given) = (Rc::clone(&own), future.probe(), output.clone());
        let task = to.spawn(async move {
            let _held = held;
            mine.borrow().as_ref().expect("it is there").abort();
            if drops {
                *mine.borrow_mut() = None;
            }
            std::future::pending::<()>().await;
            given.probe()
        });
        *own.borrow_mut() = Some(task);
        assert_eq!(to.run(), 1);
        assert!(own.borrow().as_ref().is_none_or(Task::is_finished));
    }
    assert_eq!((future.drops(), output.drops()), ((2, 0), (0, 0)));
}

#[test]
fn a_future_that_drops_its_handle_at_its_end_has_no_heir() {
    let to = To::default();
    let (future, output) = (Counter::new(), Counter::new());
    let own: Rc<RefCell<Option<Task<Probe>>>> = Rc::default();
    /// Drops the handle of the task whose future it is part of.
    struct Last(Rc<RefCell<Option<Task<Probe>>>>, #[expect(dead_code, reason = "counted")] Probe);
    impl Drop for Last {
        fn drop(&mut self) {
            drop(self.0.take());
        }
    }
    let (last, given) = (Last(Rc::clone(&own), future.probe()), output.probe());
    let mut given = Some(given);
    let task = to.spawn(poll_fn(move |_| {
        let _last = &last;
        Poll::Ready(given.take().expect("polled once"))
    }));
    *own.borrow_mut() = Some(task);
    to.run();
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}

#[test]
fn a_task_that_nothing_can_wake_ends() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    // Without a handle, a task ends as soon as it waits without a waker,
    let held = future.probe();
    drop(to.spawn(async move {
        let _held = held;
        std::future::pending::<()>().await;
    }));
    to.run();
    assert_eq!(future.drops(), (1, 0));
    // or when the last waker is dropped.
    drop(to.spawn(waits_once(&future, &output, &left)));
    to.run();
    assert_eq!(future.drops(), (1, 0));
    drop(taken(&left));
    to.run();
    assert_eq!((future.drops(), output.drops()), ((2, 0), (1, 0)));
    // With a handle a task may still be closed, and so it is kept.
    let mut task = to.spawn(std::future::pending::<()>());
    to.run();
    task.close();
    to.run();
    assert!(matches!(poll_once(&mut task), Poll::Ready(None)));
}

#[test]
fn a_panic_is_the_outcome() {
    let (to, future) = (To::default(), Counter::new());
    let held = future.probe();
    let mut task = to.spawn(async move {
        let _held = held;
        if true {
            std::panic::panic_any(7_u8);
        }
    });
    to.run();
    assert_eq!(future.drops(), (1, 0));
    let Poll::Ready(Some(Err(payload))) = poll_once(&mut task) else { panic!("it panicked") };
    assert_eq!(payload.downcast_ref(), Some(&7_u8));
}

/// Panics when dropped.
struct Bomb(#[expect(dead_code, reason = "counted")] Probe);

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(()); // takes no memory, which would be leaked with the panic
    }
}

#[test]
fn a_panic_of_a_destructor_is_kept() {
    let (to, future) = (To::default(), Counter::new());
    // The future panics when it is dropped, after a value and without one.
    let bomb = Bomb(future.probe());
    let mut task = to.spawn(poll_fn(move |_| {
        let _bomb = &bomb;
        Poll::Ready(7)
    }));
    to.run();
    assert_eq!((value(&mut task), future.drops()), (Some(7), (1, 0)));
    let bomb = Bomb(future.probe());
    drop(to.spawn(async move {
        let _bomb = bomb;
        std::future::pending::<()>().await;
    }));
    drop_queue();
    assert_eq!(future.drops(), (2, 0));
    // A value that nothing takes panics when it is dropped.
    let bomb = Bomb(future.probe());
    drop(to.spawn(std::future::ready(Some(bomb))));
    to.run();
    assert_eq!(future.drops(), (3, 0));
    // If a value still has its handle, the panic reaches the caller that drops or aborts it.
    let task = to.spawn(std::future::ready(Some(Bomb(future.probe()))));
    to.run();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(task))).is_err());
    let task = to.spawn(std::future::ready(Some(Bomb(future.probe()))));
    to.run();
    assert!(catch_unwind(AssertUnwindSafe(|| task.abort())).is_err());
    drop(task);
    assert_eq!(future.drops(), (5, 0));
}

#[test]
fn a_destructor_may_use_the_task_that_ends() {
    let to = To::default();
    let own: Rc<RefCell<Option<Task<()>>>> = Rc::default();
    let waker: Rc<RefCell<Option<Waker>>> = Rc::default();
    struct Busy(Rc<RefCell<Option<Task<()>>>>, Rc<RefCell<Option<Waker>>>);
    impl Drop for Busy {
        fn drop(&mut self) {
            let waker = self.1.take().expect("it was polled");
            waker.wake_by_ref();
            let mut task = self.0.borrow_mut();
            let task = task.as_mut().expect("it is there");
            task.close();
            task.abort();
            waker.wake();
        }
    }
    for is_closed in [false, true] {
        let busy = Busy(Rc::clone(&own), Rc::clone(&waker));
        let left = Rc::clone(&waker);
        *own.borrow_mut() = Some(to.spawn(poll_fn(move |cx| {
            let _busy = &busy;
            *left.borrow_mut() = Some(cx.waker().clone());
            if is_closed { Poll::Pending } else { Poll::Ready(()) }
        })));
        to.run();
        if is_closed {
            own.borrow().as_ref().expect("it is there").close();
        }
        assert!(to.run() <= 1);
        assert!(matches!(poll_once(own.borrow_mut().as_mut().unwrap()), Poll::Ready(None)));
        assert!(own.take().expect("it is there").is_finished());
    }
}

#[test]
fn a_forgotten_waker_leaks_no_more_than_the_memory() {
    if cfg!(miri) {
        return; // which would find that
    }
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let task = to.spawn(waits_once(&future, &output, &left));
    to.run();
    std::mem::forget(taken(&left).clone());
    task.close();
    to.run();
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}
