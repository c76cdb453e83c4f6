//! Descriptors that a runtime has already, and is lent again, or gets from elsewhere while their numbers are
//! in use: each byte goes to its own file.
//!
//! A random program opens, adopts, lends, passes, duplicates and closes files, and drops futures midway.
//! Bytes carry the file for which they were written. `SAKIA_TEST_NUMBER_PROGRAMS` sets the number of
//! programs.

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream as StdStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use sakia::fs::{Dir, File};
use sakia::io::{Async, BufResultExt};
use sakia::net::{ControlMessage, ControlMessages, UnixStream};
use sakia::{Engine, Runtime};
use sakia_driver::{Bypass, Policy};
use sakia_testkit::{settings, shrink};

use crate::files::TempDir;

on_each_backend! {
    a_write_to_a_file_that_is_lent_again_goes_there
    each_byte_goes_to_its_file
    a_loan_is_a_clone_of_what_the_runtime_has
}

/// A number of transfers through the ring after which a file is certainly registered.
const MANY: usize = 70;
/// Large enough for the queue, whatever the rules.
const LEN: usize = 128 << 10;

struct Lent(BorrowedFd<'static>);

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// Opens a file that is never closed, so that its number may be lent.
async fn open_for_ever(path: &PathBuf) -> &'static File {
    let file = File::options().read(true).write(true).open(path).await.unwrap();
    Box::leak(Box::new(file))
}

fn lend(file: &'static File) -> Dir {
    Dir::lend(Arc::new(Lent(file.as_fd())), "the same number")
}

/// Returns whether a loan is of this file.
fn leads_to(loan: &Dir, path: &PathBuf) -> bool {
    rustix::fs::fstat(loan).unwrap().st_ino == std::fs::metadata(path).unwrap().ino()
}

fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn a_write_to_a_file_that_is_lent_again_goes_there(policy: Policy) {
    let folder = TempDir::new();
    let [a, c] = ["a", "c"].map(|name| folder.join(name));
    std::fs::write(&a, vec![b'A'; LEN]).unwrap();
    std::fs::write(&c, vec![b'C'; LEN]).unwrap();
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        let first = open_for_ever(&a).await;
        let other = File::options().read(true).write(true).open(&c).await.unwrap();
        for _ in 0..MANY {
            first.read_at(vec![0; LEN], 0).await.value().unwrap();
        }
        // One transfer less than it takes.
        for _ in 0..63 {
            other.read_at(vec![0; LEN], 0).await.value().unwrap();
        }
        let mut write = Box::pin(first.write_at(vec![b'w'; LEN], 0));
        assert!(poll_once(write.as_mut()).is_pending());
        drop(lend(first));
        let mut reads: Vec<_> = (0..3).map(|_| Box::pin(other.read_at(vec![0; LEN], 0))).collect();
        reads.iter_mut().for_each(|read| drop(poll_once(read.as_mut())));
        assert_eq!(write.await.value().unwrap(), LEN);
        for read in reads {
            assert!(read.await.buffer().unwrap() == vec![b'C'; LEN], "bytes of another file");
        }
    });
    assert!(std::fs::read(&a).unwrap() == vec![b'w'; LEN], "the write went elsewhere");
    assert!(std::fs::read(&c).unwrap() == vec![b'C'; LEN], "a write went here");
}

/// A loan is a clone of the runtime's descriptor; what `std` takes back has no other users.
fn a_loan_is_a_clone_of_what_the_runtime_has(policy: Policy) {
    let folder = TempDir::new();
    let path = folder.join("x");
    std::fs::write(&path, "content").unwrap();
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        let file = File::open(&path).await.unwrap();
        let outside = Arc::new(std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap()));
        let loan = Dir::lend(Arc::clone(&outside), "x");
        assert_eq!(Arc::strong_count(&outside), 2);
        // The same lender, and another one of the same number.
        let again = Dir::lend(Arc::clone(&outside), "x");
        let other = Dir::lend(Arc::new(Arc::clone(&outside)), "x");
        assert_eq!(Arc::strong_count(&outside), 2, "one descriptor, and one lender");
        drop((loan, again));
        assert!(leads_to(&other, &path));
        drop(other);
        let back = Arc::try_unwrap(outside).expect("the loans are over");
        let back = File::try_from(OwnedFd::from(back)).unwrap();
        assert_eq!(back.read_at(vec![0; 7], 0).await.buffer().unwrap(), b"content");
    });
}

// ---- random programs ---------------------------------------------------------------------------

const FILES: usize = 4;
/// Files that are open for ever, and so can be lent by their numbers.
const LENT: usize = 2;
const BLOCK: usize = 512;
const BLOCKS: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    verb: u8,
    which: u8,
    place: u8,
}

type Task = Pin<Box<dyn Future<Output = Option<Vec<u8>>>>>;

/// The objects of a program. Those that lead to files have the number of the file.
struct World<'a> {
    paths: &'a [PathBuf],
    for_ever: &'a [&'static File],
    engine: &'a Engine,
    files: Vec<(usize, Rc<File>)>,
    outside: Vec<(usize, Arc<std::fs::File>)>,
    loans: Vec<(usize, Dir)>,
    engines: Vec<(usize, sakia::engine::File)>,
    tasks: Vec<(usize, Task)>,
    streams: Vec<(Rc<Async<StdStream>>, StdStream)>,
}

fn take<T>(list: &mut Vec<T>, which: u8) -> Option<T> {
    let count = list.len();
    (count > 0).then(|| list.remove(count - 1 - usize::from(which) % count))
}

fn pick<T: Clone>(list: &[T], which: u8) -> Option<T> {
    let count = list.len();
    (count > 0).then(|| list[count - 1 - usize::from(which) % count].clone())
}

impl World<'_> {
    async fn step(&mut self, Step { verb, which, place }: Step) {
        let (file, at) = (usize::from(which) % FILES, u64::from(place) % BLOCKS * BLOCK as u64);
        let options = || std::fs::File::options().read(true).write(true).clone();
        match verb {
            0 | 1 => {
                let opened = File::options().read(true).write(true).open(&self.paths[file]).await;
                self.files.push((file, Rc::new(opened.unwrap())));
            }
            2 => {
                let opened = options().open(&self.paths[file]).unwrap();
                let adopted = File::try_from(OwnedFd::from(opened)).unwrap();
                self.files.push((file, Rc::new(adopted)));
            }
            3 => {
                let opened = options().open(&self.paths[file]).unwrap();
                self.outside.push((file, Arc::new(opened)));
            }
            4 => {
                if let Some((file, owner)) = pick(&self.outside, which) {
                    self.loans.push((file, Dir::lend(owner, "outside")));
                }
            }
            5 | 6 => {
                let file = usize::from(which) % LENT;
                self.loans.push((file, lend(self.for_ever[file])));
            }
            7 => {
                if let Some((file, owned)) = take(&mut self.outside, which)
                    && let Some(owned) = Arc::into_inner(owned)
                {
                    self.engines.push((file, self.engine.adopt(owned).unwrap()));
                }
            }
            8 => {
                if let Some((file, ours)) = pick(&self.files, which) {
                    self.files.push((file, Rc::new(ours.try_clone().unwrap())));
                }
            }
            9 => self.pass(which).await,
            10 => drop(take(&mut self.files, which)),
            11 => drop(take(&mut self.loans, which)),
            12 => drop(take(&mut self.outside, which)),
            13 => drop(take(&mut self.engines, which)),
            14 => {
                if let Some((_, ours)) = take(&mut self.files, which)
                    && let Some(ours) = Rc::into_inner(ours)
                {
                    drop(poll_once(Box::pin(ours.close()).as_mut()));
                }
            }
            15..=17 => {
                if let Some((file, ours)) = pick(&self.files, which) {
                    self.start(file, async move {
                        Some(ours.read_at(vec![0; BLOCK], at).await.buffer().unwrap())
                    });
                }
            }
            18..=20 => {
                if let Some((file, ours)) = pick(&self.files, which) {
                    self.start(file, async move {
                        ours.write_at(vec![file as u8; BLOCK], at).await.value().unwrap();
                        None
                    });
                }
            }
            21 | 22 => {
                let file = usize::from(which) % LENT;
                let ours = self.for_ever[file];
                self.start(file, async move {
                    ours.write_at(vec![file as u8; BLOCK], at).await.value().unwrap();
                    Some(ours.read_at(vec![0; BLOCK], at).await.buffer().unwrap())
                });
            }
            23 => {
                if let Some((file, ours)) = pick(&self.engines, which) {
                    self.start(file, async move {
                        ours.write_at(vec![file as u8; BLOCK], at).await.value().unwrap();
                        Some(ours.read_at(vec![0; BLOCK], at).await.buffer().unwrap())
                    });
                }
            }
            24 => {
                let (near, far) = StdStream::pair().unwrap();
                self.streams.push((Rc::new(Async::new(near).unwrap()), far));
            }
            25 => {
                if let Some((near, _)) = self.streams.last() {
                    let near = Rc::clone(near);
                    self.start(0, async move {
                        near.readable().await.unwrap();
                        None
                    });
                }
            }
            26 => drop(self.streams.pop()),
            27 => drop(take(&mut self.tasks, which)),
            28 => {
                for (file, loan) in &self.loans {
                    assert!(leads_to(loan, &self.paths[*file]), "{loan:?}");
                }
            }
            // The next transfer registers the file, or the one after it, or it is registered.
            29 | 30 => {
                if let Some((_, ours)) = pick(&self.files, which) {
                    for _ in 0..62 + place {
                        ours.read_at(vec![0; BLOCK], at).await.value().unwrap();
                    }
                }
            }
            31 => {
                let file = usize::from(which) % LENT;
                let ours = self.for_ever[file];
                self.start(file, async move {
                    ours.write_at(vec![file as u8; BLOCK], at).await.value().unwrap();
                    None
                });
                drop(lend(self.for_ever[file]));
                if let Some((file, ours)) = pick(&self.files, which) {
                    self.start(file, async move {
                        Some(ours.read_at(vec![0; BLOCK], at).await.buffer().unwrap())
                    });
                }
            }
            _ => self.look(which),
        }
    }

    fn start(&mut self, file: usize, task: impl Future<Output = Option<Vec<u8>>> + 'static) {
        let mut task: Task = Box::pin(task);
        match poll_once(task.as_mut()) {
            Poll::Ready(bytes) => check(file, bytes),
            Poll::Pending => self.tasks.push((file, task)),
        }
    }

    fn look(&mut self, which: u8) {
        let Some((file, mut task)) = take(&mut self.tasks, which) else { return };
        match poll_once(task.as_mut()) {
            Poll::Ready(bytes) => check(file, bytes),
            Poll::Pending => self.tasks.push((file, task)),
        }
    }

    /// Sends a descriptor through a socket to this runtime.
    async fn pass(&mut self, which: u8) {
        let Some((file, ours)) = pick(&self.files, which) else { return };
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let control = ControlMessages::new().descriptor((*ours).as_ref());
        near.send_message("x", control).await.value().unwrap();
        if which.is_multiple_of(2) {
            let receive = far.recv_message(vec![0; 1], ControlMessage::space(4));
            drop(poll_once(Box::pin(receive).as_mut()));
            return;
        }
        let receive = far.recv_message(vec![0; 1], ControlMessage::space(4)).await;
        let (_, mut control) = receive.value().unwrap();
        let passed = File::try_from(control.descriptors.remove(0)).unwrap();
        self.files.push((file, Rc::new(passed)));
    }

    /// Ends all tasks, and checks the files.
    async fn end(mut self) {
        for (_, far) in &mut self.streams {
            std::io::Write::write_all(far, b"x").unwrap();
        }
        let begin = Instant::now();
        while !self.tasks.is_empty() {
            self.look(0);
            sakia::time::sleep(Duration::from_micros(50)).await;
            assert!(begin.elapsed() < settings::patience(), "tasks without an end");
        }
        for (file, path) in self.paths.iter().enumerate() {
            let bytes = std::fs::read(path).unwrap();
            assert_eq!(bytes.len() as u64, BLOCK as u64 * BLOCKS);
            check(file, Some(bytes));
        }
    }
}

fn check(file: usize, bytes: Option<Vec<u8>>) {
    let bytes = bytes.unwrap_or_default();
    let other = bytes.iter().find(|&&byte| usize::from(byte) != file);
    assert_eq!(other, None, "bytes of another file in file {file}");
}

fn each_byte_goes_to_its_file(policy: Policy) {
    let folder = TempDir::new();
    let paths: Vec<_> = (0..FILES).map(|file| folder.join(file.to_string())).collect();
    for (file, path) in paths.iter().enumerate() {
        std::fs::write(path, vec![file as u8; BLOCK * BLOCKS as usize]).unwrap();
    }
    let engine = Runtime::builder().backend(policy).build_engine().unwrap();
    let runtime = Runtime::builder().backend(policy).bypass(Bypass::Never).build().unwrap();
    let for_ever: Vec<_> = paths[..LENT]
        .iter()
        .map(|path| runtime.block_on(async { open_for_ever(path).await }))
        .collect();
    let play = |steps: &[Step]| {
        runtime.block_on(async {
            let mut world = World {
                paths: &paths,
                for_ever: &for_ever,
                engine: &engine,
                files: Vec::new(),
                outside: Vec::new(),
                loans: Vec::new(),
                engines: Vec::new(),
                tasks: Vec::new(),
                streams: Vec::new(),
            };
            for file in &for_ever {
                for _ in 0..MANY {
                    file.read_at(vec![0; BLOCK], 0).await.value().unwrap();
                }
            }
            for step in steps {
                world.step(*step).await;
            }
            world.end().await;
        });
    };
    for seed in 0..settings::number("SAKIA_TEST_NUMBER_PROGRAMS", 300) {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 11) % bound
        };
        let steps: Vec<_> = (0..10 + below(60))
            .map(|_| Step { verb: below(36) as u8, which: below(4) as u8, place: below(4) as u8 })
            .collect();
        let fails = |steps: &[Step]| catch_unwind(AssertUnwindSafe(|| play(steps))).is_err();
        if fails(&steps) {
            panic!("seed {seed}: {:#?}", shrink::smallest(steps, fails));
        }
    }
}
