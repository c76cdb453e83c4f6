//! Ends of pipes and connections, which a child process may share for a moment.
//!
//! A child that one test starts has all descriptors of the process until it executes a program, those of
//! other tests as well. So an end that a test has just closed may still be open there.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until the other end of a pipe or a connection is closed in all processes.
///
/// # Panics
/// If it is not after half a minute, or the number of seconds in `SAKIA_TEST_PATIENCE_S`.
///
/// # Examples
/// ```
/// let (reader, writer) = std::io::pipe()?;
/// drop(reader);
/// sakia_testkit::ends::wait_until_closed(&writer);
/// # std::io::Result::Ok(())
/// ```
pub fn wait_until_closed(fd: impl AsFd) {
    let seconds = std::env::var("SAKIA_TEST_PATIENCE_S").ok().and_then(|text| text.parse().ok());
    let patience = Duration::from_secs(seconds.unwrap_or(30));
    let mut ends = [PollFd::new(&fd, PollFlags::empty())];
    loop {
        let patience = Timespec::try_from(patience).expect("it is short");
        match poll(&mut ends, Some(&patience)) {
            Err(rustix::io::Errno::INTR) => {}
            result => {
                assert_ne!(result, Ok(0), "the other end is open");
                return;
            }
        }
    }
}
