//! The server threads of mounts.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::shared::{Shared, WRITE_BYTES_MAX};
use crate::place::PlaceError;

/// The body of a server's thread.
type Serve = Box<dyn FnOnce() + Send>;

/// Starts a thread for a server.
///
/// The server threads have their own descriptor table, and the devices are open only there. So if the
/// process is killed while another of its threads waits for such a file system in an uninterruptible sleep,
/// the devices are closed all the same, the kernel ends the connections, and that wait ends. With one shared
/// table neither would happen.
pub(super) fn start(serve: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, PlaceError> {
    let (sender, started) = mpsc::sync_channel(1);
    starter()?.send((Box::new(serve), sender)).expect("the starter waits for ever");
    let thread = started.recv().expect("the starter answers");
    thread.map_err(|error| PlaceError::failed("start the server", error))
}

type Starter = Sender<(Serve, SyncSender<io::Result<JoinHandle<()>>>)>;

/// Returns the thread that starts the server threads, which share its table. There is one per process:
/// leaving the process's table means closing copies of the first 61 descriptors, and closing a file of such
/// a file system sends a request to its server.
fn starter() -> Result<Starter, PlaceError> {
    // With the process id: a forked child has no such thread.
    static STARTER: Mutex<Option<(u32, Starter)>> = Mutex::new(None);
    let mut known = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if let Some((_, starter)) = known.as_ref().filter(|(of, _)| *of == process) {
        return Ok(starter.clone());
    }
    let (starter, wanted) = mpsc::channel::<(Serve, SyncSender<_>)>();
    let (sender, left) = mpsc::sync_channel(1);
    let run = move || {
        let result = own_table();
        let is_alone = result.is_ok();
        if sender.send(result).is_err() || !is_alone {
            return;
        }
        for (serve, started) in wanted {
            let named = thread::Builder::new().name("testkit-fuse".into());
            let _ = started.send(named.spawn(serve)); // the requesting thread waits for the answer
        }
    };
    thread::Builder::new()
        .name("testkit-fuse-all".into())
        .spawn(run)
        .map_err(|error| PlaceError::failed("start the servers' first thread", error))?;
    left.recv().expect("the starter tells before it ends")?;
    *known = Some((process, starter.clone()));
    Ok(starter)
}

/// Gives the calling thread a descriptor table with only the standard streams in it.
///
/// The kernel copies the first 64 descriptors and closes the copies of all but the streams: for a moment the
/// others stay open even if their owners close them.
fn own_table() -> Result<(), PlaceError> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes numbers only. The thread was started for this, and owns no descriptor; the
    // descriptors of the other table stay open there, and this thread uses none of them from here on.
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
    let error = io::Error::last_os_error();
    Err(PlaceError::needing("leave the table of descriptors (kernel 5.9)", error))
}

/// Mounts on `point`, reports the outcome to `mounted`, and serves until the stop. For a thread of
/// [`start`].
pub(super) fn run(
    shared: Arc<Shared>,
    point: PathBuf,
    waker: PathBuf,
    mounted: SyncSender<Result<(), PlaceError>>,
) {
    let opened = open_waker(&waker).and_then(|waker| Ok((open_and_mount(&point)?, waker)));
    match opened {
        Ok((device, waker)) => {
            if mounted.send(Ok(())).is_ok() {
                // The device is closed after it, which ends the connection: all waiting calls get an error.
                serve(&device, &waker, &shared);
            }
        }
        Err(error) => drop(mounted.send(Err(error))),
    }
}

/// Opens the server's end of the waker: a FIFO, since it can be opened by name from another table.
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
            // Rounded up, so that the loop does not wake just before.
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut ready = [PollFd::new(device, PollFlags::IN), PollFd::new(waker, PollFlags::IN)];
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => panic!("poll of the device: {errno}"),
        }
        // Reads until the pipe is empty.
        while rustix::io::read(waker, &mut [0; 64]).is_ok_and(|count| count > 0) {}
        if !receive(device, shared, &mut buffer) {
            return;
        }
    }
}

/// Receives all available requests. Returns false when the connection has ended.
fn receive(device: &OwnedFd, shared: &Shared, buffer: &mut [u8]) -> bool {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(length) => {
                let answer = shared.lock().accept(&buffer[..length]);
                answer.iter().for_each(|answer| send(device, answer));
                shared.tell();
            }
            Err(Errno::AGAIN) => return true,
            // A request was withdrawn while it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::NODEV | Errno::CONNABORTED) => return false,
            Err(errno) => panic!("read of the device: {errno}"),
        }
    }
}

fn send(device: &OwnedFd, answer: &[u8]) {
    match rustix::io::write(device, answer) {
        // A request may have been withdrawn meanwhile, or the connection ended.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
        Err(errno) => panic!("an answer that the kernel refuses: {errno}"),
    }
}
