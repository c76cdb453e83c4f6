//! Tasks: memory is freed neither early nor never, no wake or end of a task is missed, and only the home
//! thread touches its own data.
//!
//! A missed wake shows as a deadlock. Loom itself reports unsynchronized accesses to memory.

use super::model;

/// The code under test and its checks.
macro_rules! checked {
    ($name:ident) => {
        #[allow(dead_code, unused_imports, unsafe_code, missing_docs)] // each check uses a part of it
        mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));

            /// The types that the code under test shares between threads.
            mod sync {
                use std::any::Any;

                pub(crate) use loom::cell::Cell as HomeCell;
                pub(crate) use loom::sync::Mutex;
                pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU64};
                pub(crate) use std::sync::PoisonError;
                pub(crate) use std::sync::atomic::Ordering;

                /// Memory whose every access counts as a write.
                #[repr(C)]
                pub(crate) struct Slot<T> {
                    /// The first field, as in the code under test.
                    value: std::cell::UnsafeCell<T>,
                    looks: loom::cell::UnsafeCell<()>,
                }

                impl<T> Slot<T> {
                    pub(crate) fn new(value: T) -> Self {
                        let looks = loom::cell::UnsafeCell::new(());
                        Self { value: std::cell::UnsafeCell::new(value), looks }
                    }

                    pub(crate) fn get(&self) -> *mut T {
                        self.looks.with_mut(|_| ());
                        self.value.get()
                    }
                }

                loom::thread_local! {
                    static NUMBER: std::cell::Cell<u64> = std::cell::Cell::new(0);
                }

                pub(crate) fn thread_number() -> u64 {
                    NUMBER.with(|number| number.get())
                }

                pub(crate) fn set_thread_number(to: u64) {
                    NUMBER.with(|number| number.set(to));
                }

                pub(crate) struct AssertUnwindSafe<F>(pub(crate) F);

                /// Catches nothing: loom's own panics must pass.
                pub(crate) fn catch_unwind<T>(
                    run: AssertUnwindSafe<impl FnOnce() -> T>,
                ) -> Result<T, Box<dyn Any + Send>> {
                    Ok((run.0)())
                }
            }

            use std::collections::VecDeque;
            use std::future::{Future, poll_fn};
            use std::pin::Pin;
            use std::sync::Arc;
            use std::sync::atomic::{AtomicUsize, Ordering};
            use std::task::{Context, Poll, Wake, Waker};

            use loom::cell::UnsafeCell;
            use loom::sync::atomic::AtomicBool;
            use loom::sync::{Mutex, Notify};
            use loom::thread;

            use super::model;

            use self::handles::{Mail, Runnable, Schedule};
            use self::queue::Queue;
            use self::share::Root;
            use self::start::{spawn, spawn_to};
            use self::task::Task;
            use self::thread_id::ThreadId;

            /// The mailbox of the home thread.
            struct Inbox {
                mail: Mutex<VecDeque<Mail<To>>>,
                news: Notify,
            }

            #[derive(Clone)]
            struct To(Arc<Inbox>);

            loom::thread_local! {
                static QUEUE: Queue<To> = Queue::new();
            }

            impl Schedule for To {
                fn here(task: Runnable<Self>) {
                    QUEUE.with(|queue| queue.push(task));
                }

                fn elsewhere(mail: Mail<Self>) {
                    let to = mail.scheduler().clone();
                    to.0.mail.lock().expect("no thread panics with it").push_back(mail);
                    to.0.news.notify();
                }
            }

            impl To {
                fn new() -> Self {
                    Self(Arc::new(Inbox { mail: Mutex::new(VecDeque::new()), news: Notify::new() }))
                }

                /// Opens all mail and runs all tasks.
                fn run(&self) {
                    loop {
                        let mail =
                            self.0.mail.lock().expect("no thread panics with it").pop_front();
                        if let Some(mail) = mail {
                            let opened = mail.open().expect("this is its thread");
                            opened.into_iter().for_each(To::here);
                        }
                        let task = QUEUE.with(|queue| queue.pop());
                        let Some(task) = task else {
                            if self.0.mail.lock().expect("no thread panics").is_empty() {
                                return;
                            }
                            continue;
                        };
                        task.run();
                    }
                }

                /// Returns whether all cells are freed, each of which holds a clone of the inbox.
                fn is_last(&self) -> bool {
                    Arc::strong_count(&self.0) == 1
                }
            }

            /// Memory with checked accesses, which counts its drops.
            struct Value(UnsafeCell<()>, Arc<AtomicUsize>);

            impl Value {
                fn new(drops: &Arc<AtomicUsize>) -> Self {
                    Self(UnsafeCell::new(()), Arc::clone(drops))
                }

                fn read(&self) {
                    self.0.with(|_| ());
                }
            }

            impl Drop for Value {
                fn drop(&mut self) {
                    self.0.with_mut(|_| ());
                    self.1.fetch_add(1, Ordering::Relaxed);
                }
            }

            // SAFETY: loom itself checks that the accesses are ordered.
            unsafe impl Send for Value {}
            // SAFETY: as above.
            unsafe impl Sync for Value {}

            /// A waker of another thread.
            struct Told(Notify);

            impl Wake for Told {
                fn wake(self: Arc<Self>) {
                    self.0.notify();
                }
            }

            /// A value that is leaked on a panic, since loom is gone by then.
            struct Kept<T>(Option<T>);

            impl<T> Kept<T> {
                fn new(value: T) -> Self {
                    Self(Some(value))
                }

                fn get(&mut self) -> &mut T {
                    self.0.as_mut().expect("it is there until it is dropped")
                }
            }

            impl<T> Drop for Kept<T> {
                fn drop(&mut self) {
                    if std::thread::panicking() {
                        std::mem::forget(self.0.take());
                    }
                }
            }

            /// Waits for a task on a thread other than its own.
            fn wait<T>(task: Task<T>) -> Option<T> {
                let mut task = Kept::new(task);
                let told = Arc::new(Told(Notify::new()));
                let waker = Waker::from(Arc::clone(&told));
                loop {
                    let poll = Pin::new(task.get()).poll(&mut Context::from_waker(&waker));
                    if let Poll::Ready(outcome) = poll {
                        return outcome.and_then(Result::ok);
                    }
                    told.0.wait();
                }
            }

            /// The home thread and another thread clone and drop shares of a value.
            pub(super) fn shares() {
                model(|| {
                    let drops = Arc::default();
                    let mut root = Kept::new(Root::new(Value::new(&drops)));
                    let mut share = Kept::new(root.get().share());
                    let mut kept = Kept::new(root.get().share());
                    let thread = thread::spawn(move || {
                        let mut more = Kept::new(share.get().clone());
                        drop(share);
                        more.get().read();
                        drop(more);
                    });
                    kept.get().read();
                    drop(kept.get().clone());
                    drop(root);
                    kept.get().read();
                    drop(kept);
                    thread.join().expect("it does not panic");
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                });
            }

            /// A share that the other thread cloned is the home thread's last.
            pub(super) fn shares_come_home() {
                model(|| {
                    let drops = Arc::default();
                    let root = Root::new(Value::new(&drops));
                    let share = root.share();
                    let given = Arc::new(Mutex::new(None));
                    let gift = Arc::clone(&given);
                    let thread = thread::spawn(move || {
                        *gift.lock().expect("no thread panics with it") = Some(share.clone());
                        share.read();
                        drop(share);
                    });
                    let got = given.lock().expect("no thread panics with it").take();
                    drop(root);
                    drop(got);
                    thread.join().expect("it does not panic");
                    drop(given);
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                });
            }

            /// Another thread sets a flag and wakes the task that checks it, `count` times.
            pub(super) fn wakes(count: usize) {
                model(move || {
                    let (to, drops) = (To::new(), Arc::default());
                    let flags: Arc<Vec<AtomicBool>> =
                        Arc::new((0..count).map(|_| AtomicBool::new(false)).collect());
                    let (value, looked) = (Value::new(&drops), Arc::clone(&flags));
                    let left: Arc<std::sync::Mutex<Option<Waker>>> = Arc::default();
                    let leaves = Arc::clone(&left);
                    let mut left = Kept::new(left);
                    let future = poll_fn(move |cx| {
                        value.read();
                        *leaves.lock().expect("no thread panics with it") =
                            Some(cx.waker().clone());
                        let is_done = looked.iter().all(|flag| flag.load(Ordering::Relaxed));
                        if is_done { Poll::Ready(()) } else { Poll::Pending }
                    });
                    let (task, handle) = spawn(future, to.clone());
                    let mut handle = Kept::new(handle);
                    task.run();
                    let waker = left.get().lock().expect("no thread panics with it").take();
                    let waker = waker.expect("it was polled");
                    thread::spawn(move || {
                        for flag in &*flags {
                            flag.store(true, Ordering::Relaxed);
                            waker.wake_by_ref();
                        }
                    });
                    while !handle.get().is_finished() {
                        to.run();
                        if !handle.get().is_finished() {
                            to.0.news.wait();
                        }
                    }
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                });
            }

            /// A handle on another thread waits while the task ends on its home thread.
            pub(super) fn joins() {
                model(|| {
                    let (to, drops) = (To::new(), Arc::default());
                    let value = Value::new(&drops);
                    let (task, handle) = spawn(std::future::ready(value), to.clone());
                    let thread = thread::spawn(move || {
                        let value = wait(handle).expect("it ends by itself");
                        value.read();
                    });
                    task.run();
                    thread.join().expect("it does not panic");
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                    assert!(to.is_last(), "the cell is kept");
                });
            }

            /// A handle on another thread is dropped while the task ends on its home thread.
            pub(super) fn leaves() {
                model(|| {
                    let (to, drops) = (To::new(), Arc::default());
                    let value = Value::new(&drops);
                    let (task, handle) = spawn(std::future::ready(value), to.clone());
                    let thread = thread::spawn(move || drop(handle));
                    task.run();
                    thread.join().expect("it does not panic");
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                    assert!(to.is_last(), "the cell is kept");
                });
            }

            /// Another thread closes a waiting task and drops the last waker.
            pub(super) fn ends() {
                model(|| {
                    let (to, drops) = (To::new(), Arc::default());
                    let value = Value::new(&drops);
                    let left: Arc<std::sync::Mutex<Option<Waker>>> = Arc::default();
                    let leaves = Arc::clone(&left);
                    let future = poll_fn(move |cx| -> Poll<()> {
                        value.read();
                        *leaves.lock().expect("no thread panics with it") =
                            Some(cx.waker().clone());
                        Poll::Pending
                    });
                    let (task, handle) = spawn(future, to.clone());
                    task.run();
                    let waker = left.lock().expect("no thread panics with it").take();
                    let waker = waker.expect("it was polled");
                    let thread = thread::spawn(move || {
                        handle.close();
                        drop(waker);
                        assert!(wait(handle).is_none());
                    });
                    while drops.load(Ordering::Relaxed) == 0 {
                        to.0.news.wait();
                        to.run();
                    }
                    thread.join().expect("it does not panic");
                    to.run();
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                    assert!(to.is_last(), "the cell is kept");
                });
            }

            /// The mail of a new task is dropped on another thread while its handle waits on the home thread.
            pub(super) fn refused() {
                model(|| {
                    let (to, drops) = (To::new(), Arc::default());
                    let value = Value::new(&drops);
                    let home = ThreadId::current();
                    let (mail, handle) = spawn_to(home, async move { value.read() }, to.clone());
                    let thread = thread::spawn(move || drop(mail));
                    assert!(wait(handle).is_none());
                    thread.join().expect("it does not panic");
                    assert_eq!(drops.load(Ordering::Relaxed), 1);
                    assert!(to.is_last(), "the cell is kept");
                });
            }
        }
    };
}

checked!(task);
checked!(task_not_merged);
checked!(task_freed_blindly);
checked!(task_wake_not_seen);
checked!(task_mail_kept);
checked!(task_join_looks_first);
checked!(task_join_not_asked);
checked!(task_value_left);

#[test]
fn a_value_is_dropped_with_its_last_share() {
    task::shares();
}

#[test]
fn a_share_that_comes_home_is_counted() {
    task::shares_come_home();
}

#[test]
fn a_wake_elsewhere_is_followed_by_a_poll_that_sees_what_was_before() {
    task::wakes(1);
}

#[test]
fn each_of_two_wakes_is_seen() {
    task::wakes(2);
}

#[test]
fn a_handle_elsewhere_is_told_of_the_end() {
    task::joins();
}

#[test]
fn a_handle_that_goes_leaves_no_value() {
    task::leaves();
}

#[test]
fn a_handle_elsewhere_ends_the_task_at_home() {
    task::ends();
}

#[test]
fn a_task_that_was_refused_ends() {
    task::refused();
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_value_whose_references_are_not_merged_is_kept() {
    task_not_merged::shares();
}

#[test]
#[should_panic]
fn freed_without_an_order_to_its_last_use() {
    task_freed_blindly::shares();
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_second_wake_that_only_looks_is_not_seen() {
    task_wake_not_seen::wakes(2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn mail_that_counts_as_on_its_way_when_it_has_come_keeps_wakes_away() {
    task_mail_kept::wakes(2);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_handle_that_looks_before_it_says_that_it_waits_is_not_told() {
    task_join_looks_first::joins();
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_end_that_does_not_ask_for_a_handle_elsewhere_tells_none() {
    task_join_not_asked::joins();
}

#[test]
#[should_panic]
fn a_value_that_both_leave_is_kept() {
    task_value_left::leaves();
}
