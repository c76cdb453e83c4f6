//! The same random programs give the same results here and in the `io-uring` crate.
//!
//! A program is a sequence of batches. The entries of a batch run at once, so each acts on its own object:
//! otherwise their order would decide the results. Everything else is random.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, opcode, types};
use sakia_ring::{AT_FDCWD, CURRENT_POSITION, Cqe, IoVec, Opcode, Ring, Sqe, sqe_flags};

use crate::support::{PATIENCE, Random, TempDir, complete, enter, push, reap_all};

/// One entry, independent of both implementations. The world owns the memory that pointers refer to.
#[derive(Clone, Copy, Debug)]
enum Request {
    Nop,
    Read(Target, *mut u8, u32, u64),
    Write(Target, *const u8, u32, u64),
    ReadFixed(Target, *mut u8, u32, u64),
    WriteFixed(Target, *const u8, u32, u64),
    Fsync(i32, bool),
    Poll(i32, u32),
    Cancel(u64),
    OpenAt(*const u8, i32, u32),
    Statx(*const u8, *mut libc::statx),
    Close(i32),
}

/// A descriptor, or an index of a registered file.
#[derive(Clone, Copy, Debug)]
enum Target {
    Plain(i32),
    Registered(u32),
}

trait Engine {
    fn register(&mut self, files: &[File], buffer: &mut [u8]);

    /// Runs a batch until `expected` completions have arrived. Returns the number and the result of each
    /// entry.
    ///
    /// # Safety
    ///
    /// - The memory that the requests point to stays valid and unused until their completion.
    unsafe fn run(&mut self, batch: &[(u64, Request)], expected: usize) -> Vec<(u64, i32)>;
}

impl Engine for Ring {
    fn register(&mut self, files: &[File], buffer: &mut [u8]) {
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.register_files(&fds).unwrap();
        let buffer = IoVec { base: buffer.as_mut_ptr(), len: buffer.len() };
        // SAFETY: the world keeps its buffer longer than the ring.
        unsafe { self.register_buffers(&[buffer]) }.unwrap();
    }

    unsafe fn run(&mut self, batch: &[(u64, Request)], expected: usize) -> Vec<(u64, i32)> {
        for &(user_data, request) in batch {
            let number = |target| match target {
                Target::Plain(fd) => (fd, 0),
                Target::Registered(index) => (index as i32, sqe_flags::FIXED_FILE),
            };
            let sqe = match request {
                Request::Nop => Sqe::nop(),
                Request::Read(target, buf, len, off) => {
                    let (fd, flags) = number(target);
                    Sqe::read(fd, buf, len, off).flags(flags)
                }
                Request::Write(target, buf, len, off) => {
                    let (fd, flags) = number(target);
                    Sqe::write(fd, buf, len, off).flags(flags)
                }
                Request::ReadFixed(target, buf, len, off) => {
                    let (fd, flags) = number(target);
                    Sqe::read_fixed(fd, buf, len, off, 0).flags(flags)
                }
                Request::WriteFixed(target, buf, len, off) => {
                    let (fd, flags) = number(target);
                    Sqe::write_fixed(fd, buf, len, off, 0).flags(flags)
                }
                Request::Fsync(fd, data_only) => Sqe::fsync(fd, data_only),
                Request::Poll(fd, events) => Sqe::poll_add(fd, events),
                Request::Cancel(target) => Sqe::cancel(target),
                Request::OpenAt(path, flags, mode) => {
                    Sqe::openat(AT_FDCWD, path, flags as u32, mode)
                }
                Request::Statx(path, buf) => {
                    Sqe::statx(AT_FDCWD, path, 0, libc::STATX_BASIC_STATS, buf)
                }
                Request::Close(fd) => Sqe::close(fd),
            };
            // SAFETY: the caller keeps the memory that the requests point to.
            unsafe { self.push(sqe.user_data(user_data)) }.expect("a batch fits");
        }
        complete(self, expected).iter().map(|cqe| (cqe.user_data, cqe.res)).collect()
    }
}

/// Makes a ring of the crate with the same setup as ours.
fn their_ring(sq_entries: u32, cq_entries: u32) -> IoUring {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .setup_cqsize(cq_entries)
        .build(sq_entries)
        .unwrap()
}

impl Engine for IoUring {
    fn register(&mut self, files: &[File], buffer: &mut [u8]) {
        let fds: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        self.submitter().register_files(&fds).unwrap();
        let buffer = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: the world keeps its buffer longer than the ring.
        unsafe { self.submitter().register_buffers(&[buffer]) }.unwrap();
    }

    unsafe fn run(&mut self, batch: &[(u64, Request)], expected: usize) -> Vec<(u64, i32)> {
        for &(user_data, request) in batch {
            macro_rules! on {
                ($target:expr, |$fd:ident| $build:expr) => {
                    match $target {
                        Target::Plain(number) => {
                            let $fd = Fd(number);
                            $build
                        }
                        Target::Registered(index) => {
                            let $fd = Fixed(index);
                            $build
                        }
                    }
                };
            }
            let entry = match request {
                Request::Nop => opcode::Nop::new().build(),
                Request::Read(target, buf, len, off) => {
                    on!(target, |fd| opcode::Read::new(fd, buf, len).offset(off).build())
                }
                Request::Write(target, buf, len, off) => {
                    on!(target, |fd| opcode::Write::new(fd, buf, len).offset(off).build())
                }
                Request::ReadFixed(target, buf, len, off) => {
                    on!(target, |fd| opcode::ReadFixed::new(fd, buf, len, 0).offset(off).build())
                }
                Request::WriteFixed(target, buf, len, off) => {
                    on!(target, |fd| opcode::WriteFixed::new(fd, buf, len, 0).offset(off).build())
                }
                Request::Fsync(fd, data_only) => {
                    let flags = if data_only {
                        types::FsyncFlags::DATASYNC
                    } else {
                        types::FsyncFlags::empty()
                    };
                    opcode::Fsync::new(Fd(fd)).flags(flags).build()
                }
                Request::Poll(fd, events) => opcode::PollAdd::new(Fd(fd), events).build(),
                Request::Cancel(target) => opcode::AsyncCancel::new(target).build(),
                Request::OpenAt(path, flags, mode) => {
                    opcode::OpenAt::new(Fd(AT_FDCWD), path.cast()).flags(flags).mode(mode).build()
                }
                Request::Statx(path, buf) => {
                    opcode::Statx::new(Fd(AT_FDCWD), path.cast(), buf.cast())
                        .mask(libc::STATX_BASIC_STATS)
                        .build()
                }
                Request::Close(fd) => opcode::Close::new(Fd(fd)).build(),
            };
            // SAFETY: the caller keeps the memory that the requests point to.
            unsafe { self.submission().push(&entry.user_data(user_data)) }.expect("a batch fits");
        }
        let mut results = Vec::new();
        while results.len() < expected {
            let timeout = types::Timespec::from(PATIENCE);
            let args = types::SubmitArgs::new().timespec(&timeout);
            // The kernel's own work for this thread may interrupt the wait.
            match self.submitter().submit_with_args(1, &args) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                result => drop(result.unwrap()),
            }
            results.extend(self.completion().map(|cqe| (cqe.user_data(), cqe.result())));
        }
        results
    }
}

const FILES: usize = 4;
const BUFFER_BYTES: usize = 8192;
const FILE_BYTES_MAX: u64 = 20_000;
const FIRST_POLL: u64 = 1 << 32;

/// The observable state of a world after a program.
#[derive(PartialEq)]
struct Seen {
    contents: Vec<Vec<u8>>,
    /// Mask, size and mode from each `statx`.
    stats: Vec<(u32, u64, u16)>,
    buffers: Vec<u8>,
}

/// All objects on which one run of a program acts.
struct World {
    dir: TempDir,
    /// The last file is read-only.
    files: Vec<File>,
    /// One buffer per file; all of them lie in the registered memory.
    buffers: Vec<u8>,
    /// Always has a byte to read.
    full_pipe: (OwnedFd, OwnedFd),
    /// Never has a byte to read.
    empty_pipe: (OwnedFd, OwnedFd),
    paths: Vec<CString>,
    statx: Vec<libc::statx>,
    opened: Vec<i32>,
    /// Polls that wait on the empty pipe.
    polls: Vec<u64>,
    next: u64,
}

impl World {
    fn new() -> Self {
        let dir = TempDir::new();
        let files = (0..FILES)
            .map(|index| {
                let path = dir.join(&format!("file{index}"));
                fs::write(&path, vec![index as u8; 1000 * index]).unwrap();
                let last = index + 1 == FILES;
                OpenOptions::new().read(true).write(!last).open(path)
            })
            .collect::<Result<_, _>>()
            .unwrap();
        let full_pipe = rustix::pipe::pipe().unwrap();
        rustix::io::write(&full_pipe.1, b"x").unwrap();
        // The first names are in the order of the files.
        let names = ["file0", "file1", "file2", "file3", "nothing", "created", "file1/below"];
        let paths = names
            .iter()
            .map(|name| CString::new(dir.join(name).as_os_str().as_bytes()).unwrap())
            .collect::<Vec<_>>();
        // SAFETY: plain integers, for which zero is a valid value.
        let statx = vec![unsafe { std::mem::zeroed() }; paths.len()];
        Self {
            dir,
            files,
            buffers: vec![0; FILES * BUFFER_BYTES],
            full_pipe,
            empty_pipe: rustix::pipe::pipe().unwrap(),
            paths,
            statx,
            opened: Vec::new(),
            polls: Vec::new(),
            next: 0,
        }
    }

    /// Returns a random entry for file `index` and the buffer of the same number.
    fn on_file(&mut self, index: usize, random: &mut Random) -> Request {
        let len = random.pick(&[0, 1, 100, 4096, BUFFER_BYTES as u64]) as u32;
        let off = match random.below(8) {
            0 => CURRENT_POSITION,
            _ => random.below(FILE_BYTES_MAX),
        };
        let target = match random.below(2) {
            0 => Target::Plain(self.files[index].as_raw_fd()),
            _ => Target::Registered(index as u32),
        };
        let buffer = &mut self.buffers[index * BUFFER_BYTES..][..BUFFER_BYTES];
        match random.below(5) {
            0 => Request::Read(target, buffer.as_mut_ptr(), len, off),
            1 => Request::ReadFixed(target, buffer.as_mut_ptr(), len, off),
            2 => Request::Fsync(self.files[index].as_raw_fd(), random.below(2) == 0),
            which => {
                buffer.fill_with(|| random.next() as u8);
                if which == 3 {
                    Request::Write(target, buffer.as_ptr(), len, off)
                } else {
                    Request::WriteFixed(target, buffer.as_ptr(), len, off)
                }
            }
        }
    }

    /// Returns a random batch and the number of its completions.
    fn batch(&mut self, random: &mut Random) -> (Vec<(u64, Request)>, usize) {
        let mut requests = Vec::new();
        let mut expected = 0;
        let path = (random.below(2) == 0).then(|| random.below(self.paths.len() as u64) as usize);
        for index in 0..FILES {
            // A file is not written while its size is requested.
            if random.below(2) == 0 && path != Some(index) {
                requests.push(self.on_file(index, random));
            }
        }
        if let Some(path) = path {
            let buf = &raw mut self.statx[path];
            let path = self.paths[path].as_ptr().cast();
            requests.push(match random.below(3) {
                0 => Request::Statx(path, buf),
                1 => Request::OpenAt(path, libc::O_RDONLY | libc::O_CLOEXEC, 0),
                _ => Request::OpenAt(path, libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600),
            });
        }
        if random.below(4) == 0
            && let Some(fd) = self.opened.pop()
        {
            requests.push(Request::Close(fd));
        }
        match random.below(4) {
            0 => requests.push(Request::Poll(self.full_pipe.0.as_raw_fd(), 1)),
            1 => requests.push(Request::Cancel(1 << 40)),
            2 if !self.polls.is_empty() => {
                let index = random.below(self.polls.len() as u64) as usize;
                requests.push(Request::Cancel(self.polls.swap_remove(index)));
                expected += 1; // the poll's own completion
            }
            _ => requests.push(Request::Nop),
        }
        expected += requests.len();
        let mut batch: Vec<_> = requests
            .into_iter()
            .map(|request| {
                self.next += 1;
                (self.next, request)
            })
            .collect();
        if random.below(4) == 0 {
            self.next += 1;
            let user_data = FIRST_POLL + self.next;
            batch.push((user_data, Request::Poll(self.empty_pipe.0.as_raw_fd(), 1)));
            self.polls.push(user_data);
        }
        (batch, expected)
    }

    /// Keeps the descriptors that a batch opened, and replaces their numbers by one number that is the same
    /// in every run.
    fn collect_opened(&mut self, batch: &[(u64, Request)], results: &mut [(u64, i32)]) {
        for (number, result) in results {
            let is_open = batch.iter().any(|(user_data, request)| {
                user_data == number && matches!(request, Request::OpenAt(..))
            });
            if is_open && *result >= 0 {
                self.opened.push(*result);
                *result = 0;
            }
        }
    }

    /// Returns the observable state.
    fn trace(&self) -> Seen {
        let contents = (0..FILES)
            .map(|index| fs::read(self.dir.join(&format!("file{index}"))).unwrap())
            .collect();
        let stats = self
            .statx
            .iter()
            .map(|statx| (statx.stx_mask, statx.stx_size, statx.stx_mode))
            .collect();
        Seen { contents, stats, buffers: self.buffers.clone() }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for fd in self.opened.drain(..) {
            // SAFETY: opened by an entry of this world, its only owner.
            drop(unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
        }
    }
}

type Results = Vec<Vec<(u64, i32)>>;

/// Runs the program of this seed.
fn run<E: Engine>(mut engine: E, seed: u64) -> (Results, Seen) {
    let mut random = Random::new(seed);
    let mut world = World::new();
    engine.register(&world.files, &mut world.buffers);
    let mut all = Vec::new();
    for _ in 0..60 {
        let (batch, expected) = world.batch(&mut random);
        // SAFETY: the world keeps the memory until after the engine, and touches a file's buffer only when no
        // entry on that file is in flight: `run` waits for the batch's completions.
        let mut results = unsafe { engine.run(&batch, expected) };
        results.sort_unstable();
        world.collect_opened(&batch, &mut results);
        all.push(results);
    }
    drop(engine);
    (all, world.trace())
}

#[test]
fn random_programs_have_the_same_results_and_files() {
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 1..=40 {
        let ours = run(Ring::builder().sq_entries(16).cq_entries(64).build().unwrap(), seed);
        let theirs = run(their_ring(16, 64), seed);
        for (batch, (our, their)) in ours.0.iter().zip(&theirs.0).enumerate() {
            assert_eq!(our, their, "seed {seed}, batch {batch}");
            kinds.extend(our.iter().map(|(_, result)| (*result).min(1)));
        }
        assert!(ours.1 == theirs.1, "seed {seed}: the worlds differ");
    }
    // The programs must include successes and failures of many kinds, or the comparison proves little.
    let met = |errno: i32| kinds.contains(&-errno);
    assert!(kinds.contains(&0) && kinds.contains(&1));
    assert!(met(libc::ENOENT) && met(libc::ECANCELED) && met(libc::EBADF) && met(libc::ENOTDIR));
}

#[test]
fn parameters_and_features_are_the_same() {
    for (sq, cq) in [(1, 2), (8, 16), (100, 300), (256, 4096), (1 << 20, 1 << 20)] {
        let ours = Ring::builder().sq_entries(sq).cq_entries(cq).build().unwrap();
        let theirs = their_ring(sq, cq);
        let (report, params) = (ours.report(), theirs.params());
        assert_eq!(report.sq_entries, params.sq_entries());
        assert_eq!(report.cq_entries, params.cq_entries());
        let has = |name| report.feature_names().contains(&name);
        assert_eq!(has("SINGLE_MMAP"), params.is_feature_single_mmap());
        assert_eq!(has("NODROP"), params.is_feature_nodrop());
        assert_eq!(has("SUBMIT_STABLE"), params.is_feature_submit_stable());
        assert_eq!(has("RW_CUR_POS"), params.is_feature_rw_cur_pos());
        assert_eq!(has("CUR_PERSONALITY"), params.is_feature_cur_personality());
        assert_eq!(has("FAST_POLL"), params.is_feature_fast_poll());
        assert_eq!(has("POLL_32BITS"), params.is_feature_poll_32bits());
        assert_eq!(has("EXT_ARG"), params.is_feature_ext_arg());
        assert_eq!(has("NATIVE_WORKERS"), params.is_feature_native_workers());
        assert_eq!(has("RSRC_TAGS"), params.is_feature_resource_tagging());
        assert_eq!(has("CQE_SKIP"), params.is_feature_skip_cqe_on_success());
        assert_eq!(has("LINKED_FILE"), params.is_feature_linked_file());
        assert_eq!(has("RECVSEND_BUNDLE"), params.is_feature_recvsend_bundle());
        assert_eq!(has("MIN_TIMEOUT"), params.is_feature_min_timeout());
        assert_eq!(has("NO_IOWAIT"), params.is_feature_no_iowait());
    }
}

#[test]
fn probes_are_the_same() {
    let ours = Ring::builder().build().unwrap().probe().unwrap();
    let theirs = their_ring(8, 16);
    let mut probe = io_uring::Probe::new();
    theirs.submitter().register_probe(&mut probe).unwrap();
    for code in 0..=u8::MAX {
        assert_eq!(ours.is_supported(Opcode(code)), probe.is_supported(code), "opcode {code}");
    }
    assert!(ours.is_supported(Opcode::READ));
    assert!(ours.iter().count() > 40, "{ours:?}");
}

/// The tail positions of the queues are not compared, but the effects of their wrap are.
#[test]
fn completions_come_in_the_same_order() {
    let mut ours = Ring::builder().sq_entries(4).cq_entries(8).build().unwrap();
    let mut theirs = their_ring(4, 8);
    let mut random = Random::new(7);
    let mut next = 0;
    for _ in 0..1000 {
        let count = 1 + random.below(4);
        for user_data in next..next + count {
            push(&mut ours, Sqe::nop().user_data(user_data)).unwrap();
            let entry = opcode::Nop::new().build().user_data(user_data);
            // SAFETY: a no-op names no memory and no descriptor.
            unsafe { theirs.submission().push(&entry) }.unwrap();
        }
        next += count;
        enter(&mut ours, count as u32, Some(Duration::ZERO));
        theirs.submit_and_wait(count as usize).unwrap();
        let ours: Vec<Cqe> = reap_all(&mut ours);
        let ours: Vec<u64> = ours.iter().map(|cqe| cqe.user_data).collect();
        let theirs: Vec<u64> = theirs.completion().map(|cqe| cqe.user_data()).collect();
        assert_eq!(ours, theirs);
    }
}
