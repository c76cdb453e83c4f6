//! Wakers, handles and mail on threads other than the task's own.

use std::mem;
use std::sync::mpsc;
use std::thread;

use super::*;

#[test]
fn wakes_elsewhere_are_one_mail_and_one_poll() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let mut task = to.spawn(waits_once(&future, &output, &left));
    to.run();
    let waker = taken(&left);
    let thread = thread::spawn(move || {
        waker.wake_by_ref();
        let more = waker.clone();
        more.wake();
        waker.wake();
    });
    thread.join().unwrap();
    assert_eq!((to.sent(), future.drops()), (1, (0, 0)));
    assert_eq!(to.run(), 1);
    assert_eq!(future.drops(), (1, 0));
    assert!(value(&mut task).is_some());
}

#[test]
fn a_wake_at_home_and_one_elsewhere_are_one_poll() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let task = to.spawn(waits_once(&future, &output, &left));
    to.run();
    let waker = taken(&left);
    waker.wake_by_ref();
    thread::spawn(move || waker.wake()).join().unwrap();
    assert_eq!((to.run(), to.sent()), (1, 1));
    drop(task);
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}

#[test]
fn each_wake_is_followed_by_a_poll() {
    const WAKES: usize = if cfg!(miri) { 20 } else { 2_000 };
    let to = To::default();
    let seen = Arc::new(AtomicUsize::new(0));
    let (count, (waker_to, wakers)) = (Arc::clone(&seen), mpsc::channel());
    let mut task = to.spawn(poll_fn(move |cx| {
        waker_to.send(cx.waker().clone()).ok();
        if count.load(Ordering::Relaxed) == WAKES { Poll::Ready(()) } else { Poll::Pending }
    }));
    to.run();
    let thread = thread::spawn(move || {
        let waker = wakers.recv().unwrap();
        for _ in 0..WAKES {
            seen.fetch_add(1, Ordering::Relaxed); // the wake makes it visible
            waker.wake_by_ref();
        }
        drop(waker);
        wakers.into_iter().for_each(drop);
    });
    while !task.is_finished() {
        to.run();
        thread::yield_now();
    }
    assert_eq!(value(&mut task), Some(()));
    thread.join().unwrap();
}

#[test]
fn mail_opens_on_its_own_thread_only() {
    let to = To::default();
    let (mail, mut task) = spawn_to(ThreadId::current(), async { 1 }, to.clone());
    let thread = thread::spawn(move || mail.open().expect_err("this is another thread"));
    let mail = thread.join().unwrap();
    mail.open().expect("this is its thread").expect("it is new").run();
    assert_eq!(value(&mut task), Some(1));
}

#[test]
fn a_task_for_another_thread_is_polled_and_dropped_there() {
    let to = To::default();
    let home = ThreadId::current();
    let (future, output) = (Counter::new(), Counter::new());
    let (held, given) = (future.probe(), output.probe());
    let their = to.clone();
    // The work is made and awaited on another thread, and runs on this one.
    let (sent, receive) = mpsc::channel();
    let thread = thread::spawn(move || {
        let work = async move {
            let _held = held;
            let mut has_yielded = false;
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                let is_done = mem::replace(&mut has_yielded, true);
                if is_done { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            (home.is_current(), given)
        };
        let (mail, mut task) = spawn_to(home, work, their);
        assert!(poll_once(&mut task).is_pending());
        To::elsewhere(mail);
        sent.send(()).unwrap();
        loop {
            if let Some((is_home, value)) = value(&mut task) {
                assert!(is_home);
                return drop(value);
            }
            thread::yield_now();
        }
    });
    receive.recv().unwrap();
    assert_eq!(to.run(), 2);
    thread.join().unwrap();
    assert_eq!((future.drops(), output.drops()), ((1, 0), (0, 1)));
}

#[test]
fn a_task_whose_mail_is_dropped_is_canceled() {
    let (to, future) = (To::default(), Counter::new());
    let held = future.probe();
    let (mail, mut task) = spawn_to(ThreadId::current(), async move { drop(held) }, to.clone());
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    assert!(pin!(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
    thread::spawn(move || drop(mail)).join().unwrap();
    assert!(task.is_finished() && matches!(poll_once(&mut task), Poll::Ready(None)));
    assert_eq!((future.drops(), wakes.0.load(Ordering::SeqCst)), ((0, 1), 1));
}

#[test]
fn a_task_that_is_told_to_end_before_its_mail_is_opened_does_not_run() {
    for is_aborted in [false, true] {
        let (to, future) = (To::default(), Counter::new());
        let held = future.probe();
        let (mail, mut task) = spawn_to(ThreadId::current(), async move { drop(held) }, to.clone());
        if is_aborted {
            task.abort()
        } else {
            task.close()
        }
        assert!(to.sent() == 0 && !task.is_finished() && poll_once(&mut task).is_pending());
        To::elsewhere(mail);
        to.run();
        assert!(task.is_finished() && matches!(poll_once(&mut task), Poll::Ready(None)));
        assert_eq!(future.drops(), (1, 0));
    }
}

/// An action on a handle on another thread, in a state of the task.
#[derive(Clone, Copy, Debug)]
enum Act {
    Abort,
    Close,
    Drop,
    Await,
}

#[test]
fn handles_elsewhere_end_await_and_leave_tasks_in_each_state() {
    for act in [Act::Abort, Act::Close, Act::Drop, Act::Await] {
        for polls in 0..3 {
            let (to, left) = (To::default(), Arc::default());
            let (future, output) = (Counter::new(), Counter::new());
            let task = to.spawn(waits_once(&future, &output, &left));
            if polls > 0 {
                to.run();
            }
            if polls > 1 {
                taken(&left).wake();
                to.run();
            }
            let thread = thread::spawn(move || {
                let mut task = task;
                match act {
                    Act::Abort => task.abort(),
                    Act::Close => task.close(),
                    Act::Drop => return,
                    Act::Await => {}
                }
                while poll_once(&mut task).is_pending() {
                    thread::yield_now();
                }
            });
            while !thread.is_finished() || !QUEUE.with(Queue::is_empty) {
                to.run();
                if matches!(act, Act::Drop | Act::Await)
                    && let Some(waker) = left.lock().unwrap().take()
                {
                    waker.wake();
                }
                thread::yield_now();
            }
            thread.join().unwrap();
            to.run();
            if let Some(waker) = left.lock().unwrap().take() {
                waker.wake();
            }
            to.run();
            let (here, elsewhere) = output.drops();
            assert_eq!((future.drops(), here + elsewhere), ((1, 0), 1), "{act:?}, {polls}");
        }
    }
}

#[test]
fn a_handle_may_wait_here_and_there_and_then_here() {
    let to = To::default();
    let (runnable, mut task) = spawn(async { 1 }, to.clone());
    assert!(poll_once(&mut task).is_pending());
    let thread = thread::spawn(move || {
        assert!(poll_once(&mut task).is_pending());
        task
    });
    let mut task = thread.join().unwrap();
    assert!(poll_once(&mut task).is_pending());
    runnable.run();
    assert_eq!(value(&mut task), Some(1));
}

#[test]
fn wakers_outlive_their_executor_and_their_thread() {
    let (future, output) = (Counter::new(), Counter::new());
    let (held, given, left) = (future.clone(), output.clone(), Arc::default());
    let leaving = Arc::clone(&left);
    let thread = thread::spawn(move || {
        let to = To::default();
        let task = to.spawn(waits_once(&held, &given, &leaving));
        to.run();
        // The end of an executor.
        to.0.is_closed.store(true, Ordering::Relaxed);
        leaving.lock().unwrap().as_ref().unwrap().wake_by_ref();
        drop(QUEUE.with(Queue::pop));
        task
    });
    let mut task = thread.join().unwrap();
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
    let waker = taken(&left);
    waker.wake_by_ref();
    let more = waker.clone();
    assert!(matches!(poll_once(&mut task), Poll::Ready(None)));
    task.close();
    task.abort();
    drop(task);
    waker.wake();
    drop(more);
}

#[test]
fn wakes_that_were_refused_do_not_keep_later_ones_away() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let task = to.spawn(waits_once(&future, &output, &left));
    to.run();
    let waker = taken(&left);
    to.0.is_closed.store(true, Ordering::Relaxed);
    let waker = thread::spawn(move || {
        waker.wake_by_ref();
        waker
    });
    let waker = waker.join().unwrap();
    assert_eq!(to.run(), 0);
    to.0.is_closed.store(false, Ordering::Relaxed);
    thread::spawn(move || waker.wake()).join().unwrap();
    assert_eq!((to.run(), to.sent()), (1, 2));
    drop(task);
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}

#[test]
fn a_runnable_becomes_mail_and_a_runnable_again() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let (runnable, task) = spawn(waits_once(&future, &output, &left), to.clone());
    let mail = runnable.into_mail().expect("none is on its way");
    To::elsewhere(mail);
    assert_eq!(to.run(), 1);
    // While a mail is on its way, no second one is sent.
    let waker = taken(&left);
    let waker = thread::spawn(move || {
        waker.wake_by_ref();
        waker
    });
    let waker = waker.join().unwrap();
    waker.wake();
    let runnable = QUEUE.with(Queue::pop).expect("it was woken here");
    assert!(runnable.into_mail().is_none());
    assert_eq!((to.run(), to.sent()), (1, 2));
    drop(task);
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}

#[test]
fn the_last_waker_of_a_task_of_another_thread_sends_it_home_to_end() {
    let (to, left) = (To::default(), Arc::default());
    let (future, output) = (Counter::new(), Counter::new());
    let work = waits_once(&future, &output, &left);
    let (mail, task) = spawn_to(ThreadId::current(), work, to.clone());
    drop(task);
    To::elsewhere(mail);
    to.run();
    let waker = taken(&left);
    thread::spawn(move || drop(waker)).join().unwrap();
    assert_eq!(future.drops(), (0, 0));
    to.run();
    assert_eq!((future.drops(), output.drops()), ((1, 0), (1, 0)));
}

#[test]
fn work_is_done_on_any_thread_or_canceled() {
    let (future, output) = (Counter::new(), Counter::new());
    let make = || {
        let (held, given) = (future.probe(), output.probe());
        work(
            move || {
                drop(held);
                given
            },
            To::default(),
        )
    };
    let (work, mut task) = make();
    thread::spawn(move || work.run()).join().unwrap();
    assert!(value(&mut task).is_some());
    assert_eq!((future.drops(), output.drops()), ((0, 1), (1, 0)));
    // The handle is gone, and so is the value.
    let (work, task) = make();
    drop(task);
    thread::spawn(move || work.run()).join().unwrap();
    assert_eq!((future.drops(), output.drops()), ((0, 2), (1, 1)));
    // The work is dropped or aborted before it was run.
    let (work, mut task) = make();
    drop(work);
    assert!(matches!(poll_once(&mut task), Poll::Ready(None)));
    let (work, task) = make();
    task.abort();
    thread::spawn(move || work.run()).join().unwrap();
    assert_eq!((future.drops(), output.drops()), ((1, 3), (2, 2)));
    // A panic is the outcome of the work.
    let (work, mut task) = super::super::work(|| panic!("as planned"), To::default());
    let value: Poll<Option<Outcome<()>>> = {
        work.run();
        poll_once(&mut task)
    };
    assert!(matches!(value, Poll::Ready(Some(Err(_)))));
}

#[test]
fn threads_that_wake_clone_await_and_drop_at_once_leave_nothing() {
    for round in 0..if cfg!(miri) { 6 } else { 600 } {
        let (to, left) = (To::default(), Arc::default());
        let (future, output) = (Counter::new(), Counter::new());
        let task = to.spawn(waits_once(&future, &output, &left));
        to.run();
        let waker = taken(&left);
        thread::scope(|scope| {
            let own = waker.clone();
            scope.spawn(move || {
                drop(own.clone());
                own.wake();
            });
            scope.spawn(move || {
                let mut task = task;
                match round % 3 {
                    0 => {
                        while poll_once(&mut task).is_pending() {
                            thread::yield_now();
                        }
                    }
                    1 => task.abort(),
                    _ => {}
                }
            });
            for _ in 0..3 {
                to.run();
                drop(waker.clone());
            }
            waker.wake();
            // The handle's thread may wait for the end.
            while future.drops() == (0, 0) {
                to.run();
            }
        });
        to.run();
        let (here, elsewhere) = output.drops();
        assert_eq!((future.drops(), here + elsewhere), ((1, 0), 1));
    }
}
