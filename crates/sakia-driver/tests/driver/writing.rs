//! Writes from every kind of buffer, and to files that do not accept them. `conformance` has the rules.

use std::fs::{self, File, OpenOptions};
use std::io::Seek;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use sakia_driver::{AlignedBuf, CURRENT_POSITION, IoBuf, Wait};
use sakia_testkit::children::wait_until_closed;

use crate::children;
use crate::support::{TempDir, driver, errno, finish, open_direct, pipe};

#[test]
fn from_every_kind_of_buffer() {
    let folder = TempDir::new();
    let path = folder.join("file");
    let driver = driver();
    let fd = driver.adopt(File::create(&path).unwrap().into());
    let mut at = 0;
    macro_rules! write {
        ($buf:expr) => {{
            let (result, _buf) = finish(&driver, &mut driver.write(&fd, $buf, at));
            at += result.unwrap() as u64;
        }};
    }
    write!(b"a".to_vec());
    write!(&b"b"[..]);
    write!("c");
    write!(String::from("d"));
    write!(Arc::<[u8]>::from(&b"e"[..]));
    write!(Rc::<[u8]>::from(&b"f"[..]));
    write!(Box::<[u8]>::from(&b"g"[..]));
    write!(Box::new(*b"h"));
    write!("xijx".slice(1..3));
    assert_eq!((at, fs::read_to_string(&path).unwrap().as_str()), (10, "abcdefghij"));
}

#[test]
fn a_full_pipe_makes_a_write_wait_and_be_canceled() {
    let driver = driver();
    let (read, write_end) = pipe(&driver);
    let write_end = driver.adopt(write_end);
    let mut fill = driver.write(&write_end, vec![1; 1 << 20], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    fill.cancel();
    // Some bytes have been written already and are reported, or the whole write was canceled.
    let filled = match finish(&driver, &mut fill).0 {
        Ok(filled) => filled,
        Err(error) => {
            assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
            0
        }
    };
    let mut waiting = driver.write(&write_end, vec![2; 1 << 20], CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    let mut total = 0;
    drop(write_end);
    let mut written = None;
    loop {
        let (result, buf) =
            finish(&driver, &mut driver.read(&read, vec![0; 1 << 16], CURRENT_POSITION));
        let count = result.unwrap();
        if count == 0 {
            break;
        }
        total += buf[..count].iter().filter(|&&byte| byte == 2).count();
        if let Some((result, _)) = waiting.try_take() {
            written = Some(result.unwrap());
        }
    }
    assert!(filled <= 1 << 20);
    assert_eq!(written, Some(total), "bytes arrived that were not reported");
}

#[test]
fn to_nobody_is_an_error_whatever_becomes_of_the_signal() {
    children::run("broken_pipe");
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn at_the_position_of_a_direct_file() {
    const PART: usize = 4096;
    let folder = TempDir::new();
    let path = folder.file("file", 0);
    if open_direct(&path).is_none() {
        return;
    }
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut file = OpenOptions::new().write(true).custom_flags(direct).open(&path).unwrap();
    let driver = driver();
    let fd = driver.adopt(file.try_clone().unwrap().into());
    let part = |number: u8| {
        let mut buf = AlignedBuf::zeroed(PART);
        buf.fill(number);
        buf
    };
    for number in 1..=6 {
        let result = if number % 2 == 0 {
            let mut write = driver.write(&fd, part(number), CURRENT_POSITION);
            finish(&driver, &mut write).0
        } else {
            let mut write = driver.write_vectored(&fd, vec![part(number)], CURRENT_POSITION);
            finish(&driver, &mut write).0
        };
        assert_eq!(result.unwrap(), PART);
        assert_eq!(file.stream_position().unwrap(), u64::from(number) * PART as u64);
    }
    let expected: Vec<u8> = (1..=6).flat_map(|number| [number; PART]).collect();
    assert!(fs::read(&path).unwrap() == expected);
}

/// Runs alone in its process, since it changes the disposition of `SIGPIPE`. The kernel sends that signal for
/// ring writes as for any others; a program that does not ignore it gets the error all the same.
pub fn scene_broken_pipe() {
    // SAFETY: a handler that only adds to an atomic.
    unsafe {
        let handler = count_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::signal(libc::SIGPIPE, handler);
    }
    let driver = driver();
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    wait_until_closed(&ours);
    let socket = driver.adopt(ours.into());
    assert_eq!(
        errno(finish(&driver, &mut driver.write(&socket, "x", CURRENT_POSITION)).0),
        Errno::PIPE
    );
    let (read, write) = pipe(&driver);
    finish(&driver, &mut driver.close(read)).unwrap();
    wait_until_closed(&write);
    let write = driver.adopt(write);
    assert_eq!(
        errno(finish(&driver, &mut driver.write(&write, "x", CURRENT_POSITION)).0),
        Errno::PIPE
    );
    assert!(SIGNALS.load(Ordering::Relaxed) <= 2, "a signal a write, or none");
    // A signal that arrives with the completion must not make an operation complete twice, or never.
    assert_eq!((driver.counters().finished, driver.live_operations()), (3, 0));
}
