//! The thread that serves a mount.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

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
    mounted: SyncSender<Result<(), PlaceError>>,
) {
    let device = own_table(&shared).and_then(|()| open_and_mount(&point));
    let (device, told) = match device {
        Ok(device) => (Some(device), mounted.send(Ok(()))),
        Err(error) => (None, mounted.send(Err(error))),
    };
    if let (Some(device), Ok(())) = (device, told) {
        serve(&device, &shared);
        // Ends the connection: whoever waits for it gets an error.
        drop(device);
    }
    shared.lock().ended = true;
    shared.tell();
}

/// Gives the calling thread a table of descriptors with only the standard streams and the waker.
fn own_table(shared: &Shared) -> Result<(), PlaceError> {
    // SAFETY: the thread was started for this. Of descriptors made elsewhere it uses the waker's
    // only, which stays open in the copy, below, under the same number; what it opens from here on
    // it closes itself and never hands out.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }
        .map_err(|errno| PlaceError::needing("unshare the table of descriptors", errno))?;
    let numbers: Vec<RawFd> = fs::read_dir("/proc/thread-self/fd")
        .and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        })
        .map_err(|error| PlaceError::needing("list descriptors", error))?
        .iter()
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect();
    for number in numbers.into_iter().filter(|&n| n > 2 && n != shared.waker.as_raw_fd()) {
        // SAFETY: the table belongs to this thread, which owns no descriptor yet: all of these are
        // copies whose originals stay open in the other table. The listing's own is closed already,
        // which makes this one fail, without effect.
        let _ = unsafe { rustix::io::try_close(number) };
    }
    Ok(())
}

fn open_and_mount(point: &std::path::Path) -> Result<OwnedFd, PlaceError> {
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

fn serve(device: &OwnedFd, shared: &Shared) {
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
        let mut ready = [
            PollFd::new(device, PollFlags::IN),
            PollFd::from_borrowed_fd(shared.waker.as_fd(), PollFlags::IN),
        ];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("poll of the device: {errno}"),
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&shared.waker, &mut count);
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
