//! Signals during a load: a thousand a second with a handler, and `SIGSTOP` with `SIGCONT`.

use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{ptr, thread};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sakia::Runtime;
use sakia_driver::Policy;

use crate::support::{TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! { a_thousand_signals_a_second stopped_and_continued }

fn a_thousand_signals_a_second(policy: Policy) {
    children::run("a_thousand_signals_a_second", policy);
}

/// The number of signals received.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

/// Interrupts each interruptible call of this process every millisecond.
fn interrupt_all_the_time() {
    count(libc::SIGALRM);
    let each = libc::timeval { tv_sec: 0, tv_usec: 1000 };
    let timer = libc::itimerval { it_interval: each, it_value: each };
    // SAFETY: reads one timer, which outlives the call.
    let result = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    assert_eq!(result, 0);
}

/// Counts signals of this kind.
fn count(kind: libc::c_int) {
    // SAFETY: the handler adds to a number; without `SA_RESTART`, so that calls end with `EINTR`.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(kind, &raw const action, ptr::null_mut())
    };
    assert_eq!(result, 0);
}

/// Runs the load until this number of signals has arrived.
fn load_until_signals(runtime: &Runtime, folder: &TempDir, signals: u64) {
    let mut seed = 1;
    while SIGNALS.load(Ordering::Relaxed) < signals {
        runtime.block_on(async { load::run(folder.path(), seed, 1).await });
        seed += 1;
    }
}

pub fn scene_a_thousand_signals_a_second(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    interrupt_all_the_time();
    load_until_signals(&runtime, &folder, 300);
    load::assert_sound(&runtime);
    assert!(runtime.counters().retries > 0, "no wait was interrupted");
    Ok(())
}

/// When a stopped process continues, its waits are interrupted or its timeouts long over.
fn stopped_and_continued(policy: Policy) {
    let child = children::command("stopped_and_continued", policy, "").spawn().unwrap();
    let storm = stop_and_continue(&child);
    let output = children::finish(child);
    children::judge("stopped_and_continued", &output);
    storm.join().unwrap();
}

/// Stops and continues a process until it ends.
fn stop_and_continue(child: &Child) -> thread::JoinHandle<()> {
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    // By a pidfd, since the process number may belong to another process after the end.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    thread::spawn(move || {
        while pidfd_send_signal(&pidfd, Signal::STOP).is_ok() {
            thread::sleep(Duration::from_micros(300));
            pidfd_send_signal(&pidfd, Signal::CONT).ok();
            thread::sleep(Duration::from_millis(2));
        }
    })
}

pub fn scene_stopped_and_continued(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let runtime = load::runtime(policy);
    count(libc::SIGCONT);
    load_until_signals(&runtime, &folder, 30);
    load::assert_sound(&runtime);
    Ok(())
}
