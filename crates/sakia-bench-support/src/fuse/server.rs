//! The thread that serves a mount.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::shared::{Shared, WRITE_BYTES_MAX};
use crate::place::PlaceError;

/// Mounts on `point`, tells `mounted` how that went, and serves until told to stop.
///
/// The thread has a table of descriptors of its own, and the device is open there only. So when
/// the process is killed while another of its threads waits for this file system in a sleep that
/// cannot be killed, the device is closed all the same, the kernel ends the connection, and that
/// wait ends. With a shared table neither would.
pub(super) fn run(
    shared: Arc<Shared>,
    point: PathBuf,
    waker: PathBuf,
    mounted: SyncSender<Result<(), PlaceError>>,
) {
    let opened = own_table()
        .and_then(|()| open_waker(&waker))
        .and_then(|waker| Ok((open_and_mount(&point)?, waker)));
    match opened {
        Ok((device, waker)) => {
            if mounted.send(Ok(())).is_ok() {
                // The device is closed after it, which ends the connection: whoever waits for an
                // answer gets an error.
                serve(&device, &waker, &shared);
            }
        }
        Err(error) => drop(mounted.send(Err(error))),
    }
}

/// Gives the calling thread a table of descriptors with only the standard streams in it.
///
/// Nothing else is copied, not even for a moment: a copy would keep open what other threads close,
/// and they may be testing just that.
fn own_table() -> Result<(), PlaceError> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes numbers only. The thread was started for this, and owns no descriptor;
    // those of the other table stay open there, and this thread uses none of them from here on.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE as libc::c_uint,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(PlaceError::needing("leave the table of descriptors (kernel 5.9)", error))
}

/// Opens the server's end of the waker: a FIFO, since that is found by name from another table.
fn open_waker(path: &Path) -> Result<OwnedFd, PlaceError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| PlaceError::failed(format!("open {}", path.display()), errno))
}

fn open_and_mount(point: &Path) -> Result<OwnedFd, PlaceError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| PlaceError::needing("open /dev/fuse", errno))?;
    let data =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).expect("one NUL, at the end");
    mount("sakia-testkit", point, "fuse", MountFlags::NOSUID | MountFlags::NODEV, data)
        .map_err(|errno| PlaceError::needing("mount fuse", errno))?;
    Ok(device)
}

fn serve(device: &OwnedFd, waker: &OwnedFd, shared: &Shared) {
    let mut buffer = vec![0; WRITE_BYTES_MAX + 8192];
    loop {
        let (answers, next) = {
            let mut state = shared.lock();
            if state.stop {
                return;
            }
            state.due()
        };
        answers.iter().for_each(|answer| send(device, answer));
        shared.tell();

        let timeout = next.map(|time| {
            let left = time.saturating_duration_since(Instant::now());
            // Up, so that it is not asked again just before.
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut ready = [PollFd::new(device, PollFlags::IN), PollFd::new(waker, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("poll of the device: {errno}"),
        }
        // Empty, unless it was woken: then as often as it takes.
        while rustix::io::read(waker, &mut [0; 64]).is_ok_and(|count| count > 0) {}
        if !receive(device, shared, &mut buffer) {
            return;
        }
    }
}

/// Takes in all requests that are there. `false`: the connection has ended.
fn receive(device: &OwnedFd, shared: &Shared, buffer: &mut [u8]) -> bool {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(length) => {
                let answer = shared.lock().accept(&buffer[..length]);
                answer.iter().for_each(|answer| send(device, answer));
                shared.tell();
            }
            Err(Errno::AGAIN) => return true,
            // A request was taken back while it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::NODEV | Errno::CONNABORTED) => return false,
            Err(errno) => panic!("read of the device: {errno}"),
        }
    }
}

fn send(device: &OwnedFd, answer: &[u8]) {
    match rustix::io::write(device, answer) {
        // A request may have been taken back meanwhile, or the connection ended.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
        Err(errno) => panic!("an answer that the kernel refuses: {errno}"),
    }
}
