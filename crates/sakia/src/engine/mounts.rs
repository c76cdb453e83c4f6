//! A watch on the table of mounts, on one of the engine's threads.

use std::io;

use rustix::fs::{Mode, OFlags};
use sakia_driver::{PathCalls, PollEvents};

use crate::executor::current;

/// Has the table read again whenever it has changed. Ends when it cannot be watched.
///
/// # Errors
/// As `open(2)` and `poll(2)`.
pub(super) async fn watch(paths: &PathCalls) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty())?;
    let driver = current().driver.handle().clone();
    let table = current().driver.adopt(table);
    loop {
        // The next poll reports changes from here on.
        let told = driver.poll(&table, PollEvents::PRIORITY);
        paths.read_mounts();
        told.await?;
    }
}
