//! Threads that start in a forked child, too, whatever the threads of its parent were doing.
//!
//! A thread of the standard library takes a lock of the process when it begins and when it ends: it notes
//! where its stack is, so that an overflow can be told. A child that was forked while another thread held
//! that lock has it locked for ever, and each of its `std` threads hangs before it runs. The C library's
//! own threads have no such lock: it makes its locks anew in a child.
//!
//! So [`start_thread`] starts a thread of the standard library, but in a forked child one of the C library.
//! Of what `std` adds, such a thread lacks two things: a name in the messages of its panics (the kernel has
//! it), and the message of a stack overflow, which ends the process all the same.
//!
//! # Examples
//! ```
//! use sakia_thread::start_thread;
//!
//! let thread = start_thread("worker", None, Box::new(|| println!("it runs")))?;
//! thread.join();
//! # std::io::Result::Ok(())
//! ```

mod forks;
mod raw;

use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::thread;

/// Starts a thread with a name and a stack of at least so many bytes; `None`: the default of
/// [`std::thread`], and 2 MiB in a forked child. A panic of `main` ends this thread alone.
///
/// Every thread of Sakia starts here, for the reason of this crate, and since the standard library's function
/// has code for each closure, more than a kilobyte: with one type of closure a program has it once.
///
/// # Errors
/// `EAGAIN`: the limit of threads or of memory is reached. `main` is dropped then.
///
/// # Panics
/// The name has a null byte.
///
/// # Examples
/// See the [crate](crate#examples).
#[inline(never)]
pub fn start_thread(
    name: &str,
    stack_bytes: Option<NonZeroUsize>,
    main: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle> {
    let forks = forks::count();
    let thread = if forks > 0 {
        Thread::Raw(raw::start(name, stack_bytes, main)?)
    } else {
        let mut builder = thread::Builder::new().name(name.to_owned());
        if let Some(bytes) = stack_bytes {
            builder = builder.stack_size(bytes.get());
        }
        Thread::Std(builder.spawn(main)?)
    };
    Ok(JoinHandle { forks, thread: ManuallyDrop::new(thread) })
}

/// Returns the name with which the calling thread was started, here or by [`std::thread`].
///
/// # Examples
/// ```
/// let thread = sakia_thread::start_thread(
///     "worker",
///     None,
///     Box::new(|| assert_eq!(sakia_thread::current_name().as_deref(), Some("worker"))),
/// )?;
/// thread.join();
/// # std::io::Result::Ok(())
/// ```
pub fn current_name() -> Option<String> {
    raw::name().or_else(|| thread::current().name().map(str::to_owned))
}

/// A thread, which goes on if this is dropped.
///
/// In a forked child, which does not have its parent's threads, a parent's handle is inert.
#[derive(Debug)]
pub struct JoinHandle {
    /// That of the process with the thread.
    forks: u32,
    /// Taken by the end of this handle, and in a process without the thread never.
    thread: ManuallyDrop<Thread>,
}

#[derive(Debug)]
enum Thread {
    Std(thread::JoinHandle<()>),
    Raw(raw::Thread),
}

impl JoinHandle {
    /// Waits for the end of the thread. A panic of its has been printed, and is not told here. A handle of
    /// the parent's process waits for nothing.
    ///
    /// # Panics
    /// This is the calling thread, which would wait for itself.
    ///
    /// # Examples
    /// See the [crate](crate#examples).
    pub fn join(self) {
        assert!(!self.is_current(), "a thread cannot wait for its own end");
        let mut handle = ManuallyDrop::new(self);
        if !handle.is_of_process() {
            return;
        }
        // SAFETY: the handle is not dropped, nor used again.
        match unsafe { ManuallyDrop::take(&mut handle.thread) } {
            Thread::Std(thread) => drop(thread.join()),
            Thread::Raw(thread) => thread.join(),
        }
    }

    /// Returns whether this is the calling thread.
    ///
    /// # Examples
    /// ```
    /// let thread = sakia_thread::start_thread("other", None, Box::new(|| ()))?;
    /// assert!(!thread.is_current());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn is_current(&self) -> bool {
        self.is_of_process()
            && match &*self.thread {
                Thread::Std(thread) => thread.thread().id() == thread::current().id(),
                Thread::Raw(thread) => thread.is_current(),
            }
    }

    fn is_of_process(&self) -> bool {
        self.forks == forks::count()
    }
}

impl Drop for JoinHandle {
    fn drop(&mut self) {
        if self.is_of_process() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.thread) };
        }
    }
}
