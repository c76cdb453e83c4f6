//! Helpers of the tests: skips, buffers that report their drop, short ways to take turns and wait, wakers
//! with side effects, random numbers.

use std::cell::{Cell, RefCell};
use std::fs;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sakia_driver::{Driver, Fd, IoBuf, IoBufMut, Op, Operation, Uring, Wait};
use sakia_ring::Ring;
pub use sakia_testkit::drop_probe::DropCounter;
use sakia_testkit::drop_probe::DropProbe;
use sakia_testkit::settings::patience;

/// Ends the calling test, which proves nothing on this machine. Makes it fail instead if `SAKIA_DENY_SKIPS`
/// is set.
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::support::announce_skip(module_path!(), &format!($($reason)*));
        return;
    }};
}
pub(crate) use skip;

pub fn announce_skip(test: &str, reason: &str) {
    assert!(
        std::env::var_os("SAKIA_DENY_SKIPS").is_none(),
        "skips are denied, and {test} must skip: {reason}"
    );
    eprintln!("SKIP {test}: {reason}");
}

// ---- drivers -----------------------------------------------------------------------------------

/// Makes a driver on the real ring with these sizes.
pub fn sized(sq_entries: u32, cq_entries: u32) -> Driver {
    let builder = Ring::builder().sq_entries(sq_entries).cq_entries(cq_entries);
    Driver::new(Uring::from_builder(builder).unwrap())
}

pub fn driver() -> Driver {
    Driver::uring().unwrap()
}

/// Makes a pipe. Returns its read end, adopted, and its write end.
pub fn pipe(driver: &Driver) -> (Fd, OwnedFd) {
    let (read, write) = pipe_ends();
    (driver.adopt(read), write)
}

/// Makes a pipe. Returns its read end and its write end.
pub fn pipe_ends() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

pub fn write_all(fd: &OwnedFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = rustix::io::write(fd, bytes).unwrap();
        bytes = &bytes[count..];
    }
}

/// Returns the file that the descriptor with this number refers to now. `None` if it is closed.
pub fn identity(raw: i32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{raw}")).ok()
}

// ---- turning -----------------------------------------------------------------------------------

/// Ends a test in which nothing happens any more; it does not measure speed.
pub struct Watch(Instant);

impl Watch {
    pub fn new() -> Self {
        Self(Instant::now())
    }

    #[track_caller]
    pub fn check(&self, what: impl FnOnce() -> String) {
        assert!(self.0.elapsed() < patience(), "waited in vain for {}", what());
    }
}

/// Asserts that no reader of a pipe is left.
#[track_caller]
pub fn assert_unread(writer: &impl AsFd) {
    sakia_testkit::children::wait_until_closed(writer);
    assert_eq!(rustix::io::write(writer, b"x"), Err(Errno::PIPE));
}

/// Takes turns until `is_done` returns true.
#[track_caller]
pub fn turn_until(driver: &Driver, mut is_done: impl FnMut() -> bool) {
    let watch = Watch::new();
    while !is_done() {
        driver.turn(Wait::For(Duration::from_millis(20))).unwrap();
        watch.check(|| format!("the end; in flight: {}", driver.in_flight()));
    }
}

/// Takes turns until the operation is done, and returns its output.
#[track_caller]
pub fn finish<O: Operation>(driver: &Driver, op: &mut Op<O>) -> O::Output {
    let mut output = None;
    turn_until(driver, || {
        output = op.try_take();
        output.is_some()
    });
    output.unwrap()
}

/// Takes turns until nothing is in flight.
#[track_caller]
pub fn drain(driver: &Driver) {
    turn_until(driver, || driver.in_flight() == 0);
}

/// Polls an operation with a waker that does nothing.
pub fn poll_once<O: Operation>(op: &mut Op<O>) -> Poll<O::Output> {
    poll_with(op, Waker::noop())
}

pub fn poll_with<O: Operation>(op: &mut Op<O>, waker: &Waker) -> Poll<O::Output> {
    std::pin::Pin::new(op).poll(&mut Context::from_waker(waker))
}

pub fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> rustix::io::Errno {
    let error = result.unwrap_err();
    rustix::io::Errno::from_io_error(&error).unwrap_or_else(|| panic!("no errno: {error}"))
}

// ---- buffers -----------------------------------------------------------------------------------

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// The value of untouched bytes of a [`Buf`].
pub const UNTOUCHED: u8 = 0xa5;

/// Bytes at a page boundary, which report their drop.
pub struct Buf {
    pages: Box<[Page]>,
    len: usize,
    probe: DropProbe,
}

impl Buf {
    pub fn new(len: usize, counter: &DropCounter) -> Self {
        let pages = vec![Page([UNTOUCHED; 4096]); len.div_ceil(4096)].into_boxed_slice();
        Self { pages, len, probe: counter.probe() }
    }

    pub fn filled(byte: u8, len: usize, counter: &DropCounter) -> Self {
        let mut buf = Self::new(len, counter);
        buf.pages.fill(Page([byte; 4096]));
        buf
    }

    pub fn bytes(&self) -> &[u8] {
        self.pages.as_flattened_bytes(self.len)
    }
}

trait Flatten {
    fn as_flattened_bytes(&self, len: usize) -> &[u8];
}

impl Flatten for [Page] {
    fn as_flattened_bytes(&self, len: usize) -> &[u8] {
        assert!(len <= size_of_val(self));
        // SAFETY: pages are plain bytes without padding, and at least `len` of them.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), len) }
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes, {:?})", self.len, self.probe)
    }
}

// SAFETY: the bytes lie in a box, which does not move with the value; the value is their only owner, and
// gives access only by `&self`.
unsafe impl IoBuf for Buf {
    fn stable_ptr(&self) -> *const u8 {
        self.pages.as_ptr().cast()
    }
    fn bytes_len(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }
}

/// Memory that was freed before, if any, taken again and filled. A late write shows in it.
pub struct Reuse(Vec<Buf>);

impl Reuse {
    pub fn take(count: usize, len: usize) -> Self {
        let counter = DropCounter::new();
        Self((0..count).map(|_| Buf::filled(0x5c, len, &counter)).collect())
    }

    #[track_caller]
    pub fn assert_untouched(&self) {
        for buf in &self.0 {
            let first = buf.bytes().iter().position(|&byte| byte != 0x5c);
            assert_eq!(first, None, "memory was written that belongs to this test");
        }
    }
}

// ---- wakers ------------------------------------------------------------------------------------

/// The side effects of a waker.
pub struct Hooks {
    pub on_clone: Box<dyn Fn()>,
    pub on_wake: Box<dyn Fn()>,
    pub on_drop: Box<dyn Fn()>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self { on_clone: Box::new(|| ()), on_wake: Box::new(|| ()), on_drop: Box::new(|| ()) }
    }
}

/// Makes a waker that must not leave the thread.
pub fn waker(hooks: Hooks) -> Waker {
    // SAFETY: the table's functions keep the count of an `Rc` as `RawWakerVTable` requires. They are not
    // thread-safe: the wakers go only to the driver of the same thread, which is not `Send`.
    unsafe { Waker::from_raw(RawWaker::new(Rc::into_raw(Rc::new(hooks)).cast(), &VTABLE)) }
}

/// Makes a waker that counts its wakes. Returns it and the count.
pub fn counting_waker() -> (Waker, Rc<Cell<u32>>) {
    let count = Rc::new(Cell::new(0));
    let hooks = Hooks { on_wake: counted(&count), ..Hooks::default() };
    (waker(hooks), count)
}

/// Returns a function that adds one to `count` in each call.
pub fn counted(count: &Rc<Cell<u32>>) -> Box<dyn Fn()> {
    let count = Rc::clone(count);
    Box::new(move || count.set(count.get() + 1))
}

/// Returns a function that panics in each call, unless its thread is already panicking.
pub fn panicking(message: &'static str) -> Box<dyn Fn()> {
    Box::new(move || {
        if !std::thread::panicking() {
            // Not `panic!`: the hook would print a panic that is expected here.
            std::panic::resume_unwind(Box::new(message));
        }
    })
}

/// Runs `f`, which must panic, and returns the panic's message.
#[track_caller]
pub fn panic_of<T>(f: impl FnOnce() -> T) -> String {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    let Err(payload) = result else { panic!("no panic") };
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).expect("a panic with a message")
}

static VTABLE: RawWakerVTable = RawWakerVTable::new(
    |data| {
        // SAFETY: the count that `data` stands for stays with the waker that is being cloned.
        let hooks = ManuallyDrop::new(unsafe { Rc::<Hooks>::from_raw(data.cast()) });
        (hooks.on_clone)();
        RawWaker::new(Rc::into_raw(Rc::clone(&hooks)).cast(), &VTABLE)
    },
    |data| {
        // SAFETY: the wake consumes the waker's count.
        let hooks = unsafe { Rc::<Hooks>::from_raw(data.cast()) };
        (hooks.on_wake)();
    },
    |data| {
        // SAFETY: the count stays with the waker.
        let hooks = ManuallyDrop::new(unsafe { Rc::<Hooks>::from_raw(data.cast()) });
        (hooks.on_wake)();
    },
    |data| {
        // SAFETY: the drop consumes the waker's count.
        let hooks = unsafe { Rc::<Hooks>::from_raw(data.cast()) };
        (hooks.on_drop)();
    },
);

/// A place for a value that a closure needs and that is made after the closure.
pub type Place<T> = Rc<RefCell<Option<T>>>;

pub fn place<T>() -> Place<T> {
    Rc::new(RefCell::new(None))
}

// ---- the rest ----------------------------------------------------------------------------------

/// A sequence of numbers that is the same in every run: xorshift64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A directory on the disk of the build, removed at the end of a test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
    }

    /// Makes a directory on a file system in memory. `None` if there is no such file system.
    pub fn in_memory() -> Option<Self> {
        Self::below(Path::new("/dev/shm")).ok()
    }

    fn below(parent: &Path) -> std::io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("driver-{}-{number}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a file of `len` bytes, each different from its neighbors; see [`content`].
    pub fn file(&self, name: &str, len: usize) -> PathBuf {
        let path = self.join(name);
        let bytes: Vec<u8> = (0..len).map(content).collect();
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// Returns the byte at `offset` in the files made by [`TempDir::file`]. No long run of bytes equals
/// [`UNTOUCHED`].
pub fn content(offset: usize) -> u8 {
    (offset % 251) as u8 ^ (offset / 4096) as u8
}

impl Drop for TempDir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Opens a file for direct I/O. Returns `None`, after a loud skip, if the file system does not support it.
pub fn open_direct(path: &Path) -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => Some(fd),
        Err(errno) => {
            let reason = format!("no direct I/O on {}: {errno}", path.display());
            announce_skip(module_path!(), &reason);
            None
        }
    }
}
