//! The inbox of a runtime thread: the thread never sleeps past a task, and no task is lost at the end.
//!
//! A missing wake shows as a deadlock: all threads wait.

use loom::sync::Notify;
use loom::thread;
use sakia_driver::RemoteWake;

use super::model;

/// The sleep of the thread: an earlier wake ends it at once, as in the driver.
struct Sleep(Notify);

impl RemoteWake for Sleep {
    fn wake(&self) {
        self.0.notify();
    }
}

/// The message that is sent, as a stub.
#[derive(Debug)]
struct Mail;

/// The thread of the inbox, as a stub; these models do not use it.
#[derive(Clone, Copy, Debug)]
struct ThreadId;

impl ThreadId {
    const NONE: Self = Self;
}

/// The code under test and its checks.
macro_rules! checked {
    ($name:ident) => {
        #[allow(dead_code)] // each check uses a part of it
        mod $name {
            use loom::sync::atomic::AtomicBool as Flag;

            use super::{Notify, Sleep, model, thread};

            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));

            fn remote() -> (Arc<Remote>, Arc<Sleep>) {
                let (remote, sleep) = (Arc::new(Remote::default()), Arc::new(Sleep(Notify::new())));
                remote.set_wake(Arc::clone(&sleep) as Arc<dyn RemoteWake>);
                (remote, sleep)
            }

            fn park(remote: &Remote, sleep: &Sleep) {
                if remote.prepare_to_park() {
                    sleep.0.wait();
                    remote.unpark();
                }
            }

            /// Sends a task from each of `senders` threads to a thread that sleeps when it has none.
            pub(super) fn wakes(senders: usize) {
                model(move || {
                    let (remote, sleep) = remote();
                    for _ in 0..senders {
                        let remote = Arc::clone(&remote);
                        thread::spawn(move || assert!(remote.send(Mail, true).is_ok()));
                    }
                    let mut queue = VecDeque::new();
                    loop {
                        remote.take(&mut queue);
                        if queue.len() == senders {
                            break;
                        }
                        park(&remote, &sleep);
                    }
                });
            }

            /// One thread sends a task; another sets a flag and signals, as the waker of `block_on` does.
            pub(super) fn signals() {
                model(|| {
                    let ((remote, sleep), flag) = (remote(), Arc::new(Flag::new(false)));
                    let sender = Arc::clone(&remote);
                    thread::spawn(move || assert!(sender.send(Mail, true).is_ok()));
                    let (signaler, raised) = (Arc::clone(&remote), Arc::clone(&flag));
                    thread::spawn(move || {
                        raised.store(true, Ordering::Release);
                        signaler.signal();
                    });
                    let mut queue = VecDeque::new();
                    loop {
                        remote.take(&mut queue);
                        if flag.load(Ordering::Acquire) {
                            break;
                        }
                        park(&remote, &sleep);
                    }
                });
            }

            /// One thread sends a task and another asks the thread to stop. The task is taken, left in the
            /// inbox or refused.
            pub(super) fn stops() {
                model(|| {
                    let (remote, sleep) = remote();
                    let sender = Arc::clone(&remote);
                    let sender = thread::spawn(move || sender.send(Mail, true).is_ok());
                    let stopper = Arc::clone(&remote);
                    thread::spawn(move || stopper.stop());
                    let mut queue = VecDeque::new();
                    while !remote.is_stopping() {
                        remote.take(&mut queue);
                        park(&remote, &sleep);
                    }
                    queue.extend(remote.close());
                    let is_sent = sender.join().expect("the sender does not panic");
                    assert_eq!(queue.len(), usize::from(is_sent));
                });
            }
        }
    };
}

checked!(remote);
checked!(no_recheck);
checked!(weak_sender);
checked!(weak_thread);
checked!(blind_take);
checked!(no_stop_recheck);

#[test]
fn a_task_that_is_sent_wakes_the_thread() {
    remote::wakes(1);
}

#[test]
fn tasks_of_two_senders_wake_the_thread() {
    remote::wakes(2);
}

#[test]
fn a_signal_wakes_the_thread_and_what_it_says_is_seen() {
    remote::signals();
}

#[test]
fn a_stop_wakes_the_thread_and_no_task_is_lost() {
    remote::stops();
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_looking_again_a_wake_is_missed() {
    no_recheck::wakes(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_senders_order_a_wake_is_missed() {
    weak_sender::wakes(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_threads_order_a_wake_is_missed() {
    weak_thread::wakes(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn taken_blindly_a_signal_is_missed() {
    blind_take::signals();
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_looking_for_a_stop_again_it_is_missed() {
    no_stop_recheck::stops();
}
