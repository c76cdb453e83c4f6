//! Signals under load: a thousand a second with a handler, and being stopped and continued.

use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{ptr, thread};

use sakia_driver::Policy;

use crate::support::{TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! { a_thousand_signals_a_second stopped_and_continued }

fn a_thousand_signals_a_second(policy: Policy) {
    children::run("a_thousand_signals_a_second", policy);
}

/// Signals that came.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts whatever call of this process can be interrupted, each millisecond.
fn interrupt_all_the_time() {
    // SAFETY: the handler adds to a number; without `SA_RESTART`, so that calls end with `EINTR`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut()), 0);
        let each = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let timer = libc::itimerval { it_interval: each, it_value: each };
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()), 0);
    }
}

pub fn scene_a_thousand_signals_a_second(policy: Policy) -> Result<(), String> {
    const SIGNALS_MIN: u64 = 300;
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    interrupt_all_the_time();
    let mut seed = 1;
    while SIGNALS.load(Ordering::Relaxed) < SIGNALS_MIN {
        runtime.block_on(async { load::run(folder.path(), seed, 1).await });
        seed += 1;
    }
    load::assert_sound(&runtime);
    assert!(runtime.counters().retries > 0, "no wait was interrupted");
    Ok(())
}

/// A process that is stopped finds its waits interrupted, or its timeouts long over, when it goes on.
fn stopped_and_continued(policy: Policy) {
    let child = children::command("stopped_and_continued", policy, "").spawn().unwrap();
    let stops = stop_and_continue(&child);
    let output = children::finish(child);
    children::judge("stopped_and_continued", &output);
    assert!(stops.join().unwrap() > 20, "it was hardly ever stopped");
}

/// Stops and continues a process until it ends. Answers how often.
fn stop_and_continue(child: &Child) -> thread::JoinHandle<u32> {
    let pid = child.id();
    let pidfd = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(pid as i32).unwrap(),
        rustix::process::PidfdFlags::empty(),
    );
    let pidfd = pidfd.unwrap();
    thread::spawn(move || {
        use rustix::process::{Signal, pidfd_send_signal};
        let mut count = 0;
        while pidfd_send_signal(&pidfd, Signal::STOP).is_ok() {
            thread::sleep(Duration::from_micros(300));
            if pidfd_send_signal(&pidfd, Signal::CONT).is_err() {
                break;
            }
            count += 1;
            thread::sleep(Duration::from_millis(2));
        }
        count
    })
}

pub fn scene_stopped_and_continued(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    runtime.block_on(async { load::run(folder.path(), 7, 3).await });
    load::assert_sound(&runtime);
    Ok(())
}
