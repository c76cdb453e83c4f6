//! Starts of threads.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. Every thread of Sakia starts here, since the standard library's function has code for
/// each closure, more than a kilobyte: with one type of closure a program has it once.
///
/// # Errors
/// Those of [`Builder::spawn`].
///
/// # Examples
/// ```
/// use std::thread::Builder;
///
/// let thread = Builder::new().name("worker".into());
/// let started = sakia_trace::start_thread(thread, Box::new(|| println!("it runs")))?;
/// started.join().expect("no panic");
/// # std::io::Result::Ok(())
/// ```
#[inline(never)]
pub fn start_thread(thread: Builder, main: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>> {
    thread.spawn(main)
}
