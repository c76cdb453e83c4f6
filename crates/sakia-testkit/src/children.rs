//! Descriptors that a child process of another test has for a moment.
//!
//! A child has all descriptors of its process until it executes a program, also those of tests that run at
//! the same time. So an end of a pipe that a test has just closed may still be open there, and a program that
//! it has just written may still be open to be written, and cannot be executed.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::settings;

/// Waits until the other end of a pipe or a connection is closed in all processes.
///
/// # Panics
/// If it is still open after [`patience`](settings::patience).
///
/// # Examples
/// ```
/// let (reader, writer) = std::io::pipe()?;
/// drop(reader);
/// sakia_testkit::children::wait_until_closed(&writer);
/// # std::io::Result::Ok(())
/// ```
pub fn wait_until_closed(fd: impl AsFd) {
    let patience = Timespec::try_from(settings::patience()).expect("it is short");
    let mut ends = [PollFd::new(&fd, PollFlags::empty())];
    loop {
        match poll(&mut ends, Some(&patience)) {
            Err(rustix::io::Errno::INTR) => {}
            result => {
                assert_ne!(result, Ok(0), "the other end is open");
                return;
            }
        }
    }
}

/// Copies a program, in a process of its own, so that the copy can be executed at once.
///
/// # Panics
/// If that fails.
///
/// # Examples
/// ```
/// let copy = std::env::temp_dir().join(format!("copied-program-{}", std::process::id()));
/// sakia_testkit::children::copy_program("/bin/true", &copy);
/// assert!(std::process::Command::new(&copy).status()?.success());
/// std::fs::remove_file(copy)?;
/// # std::io::Result::Ok(())
/// ```
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status();
    assert!(copied.expect("there is cp").success(), "{} was not copied", from.as_ref().display());
}
