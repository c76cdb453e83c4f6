//! The answer of a call: its result, its error, or that it waits.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{Driver, Wait};
use sakia_testkit::waits::LimitedWait;

/// A result in words, or an errno.
pub type Told = Result<String, Errno>;

/// The answer of a call.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    Told(Told),
    Waits,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(Ok(text)) => write!(f, "{text}"),
            Self::Told(Err(errno)) => write!(f, "errno {}", errno.raw_os_error()),
            Self::Waits => f.write_str("waits"),
        }
    }
}

/// The signal that ends a wait.
const SIGNAL: i32 = libc::SIGUSR2;

/// Makes [`SIGNAL`] interrupt system calls, and do nothing else.
pub fn handle_signal() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a zeroed action has no flags and an empty mask; its handler may run at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(SIGNAL, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Returns the answer of a plain call, which is made on a thread. It waits if the thread sleeps in it, and a
/// signal ends the sleep with `EINTR`.
pub fn plainly(call: &(impl Fn() -> Told + Sync + ?Sized)) -> Answer {
    let (thread, is_done) = (AtomicI32::new(0), AtomicBool::new(false));
    let told = thread::scope(|scope| {
        let caller = scope.spawn(|| {
            thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
            let told = call();
            is_done.store(true, Ordering::SeqCst);
            told
        });
        while !is_done.load(Ordering::SeqCst) {
            let id = thread.load(Ordering::SeqCst);
            if id != 0 && state_of(id) == Some('S') {
                // SAFETY: a signal to a thread of this process, with a handler that does nothing.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), id, SIGNAL) };
            }
            thread::yield_now();
        }
        caller.join().expect("the call does not panic")
    });
    if told == Err(Errno::INTR) { Answer::Waits } else { Answer::Told(told) }
}

/// Returns the state of a thread, as in `proc(5)`.
fn state_of(thread: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether all other threads of the process sleep, workers of the kernel included.
fn are_others_asleep() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let threads = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let ids = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(|&id: &i32| id != own).all(|id| state_of(id).is_none_or(|state| state == 'S'))
}

/// Takes turns until the future is ready; or, if the plain call waits (`may_wait`), until nothing more can
/// happen without new input, and otherwise only after a long [wait](LimitedWait). Then the future is dropped,
/// and has to leave nothing in flight.
pub fn ask(
    driver: &Driver,
    mut future: Pin<Box<dyn Future<Output = io::Result<String>>>>,
    may_wait: bool,
) -> Answer {
    const TURN: Duration = Duration::from_micros(200);
    const QUIET_TURNS: u32 = 3;
    let mut context = Context::from_waker(Waker::noop());
    let (wait, mut quiet) = (LimitedWait::begin(), 0);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return Answer::Told(result.map_err(|error| {
                Errno::from_io_error(&error).unwrap_or_else(|| panic!("{error} has no errno"))
            }));
        }
        let finished = driver.turn(Wait::For(TURN)).expect("a turn");
        quiet = if finished == 0 && are_others_asleep() { quiet + 1 } else { 0 };
        if quiet >= QUIET_TURNS && (may_wait || wait.is_over()) {
            break;
        }
    }
    drop((future, wait));
    let wait = LimitedWait::begin();
    while driver.live_operations() > 0 {
        driver.turn(Wait::For(TURN)).expect("a turn");
        assert!(!wait.is_over(), "left in flight: {:?}", driver.operations());
    }
    Answer::Waits
}
