//! The end of a runtime, of its tasks and of its thread, in every state and order: memory that the kernel
//! may use stays, and everything else is dropped once.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use sakia::io::{BufResult, IoBuf, IoBufMut, PipeReader, pipe};
use sakia::{Runtime, spawn, spawn_on, yield_now};
use sakia_driver::Policy;
use sakia_testkit::drop_probe::{DropCounter, DropProbe};

use crate::refused::children;

on_each_backend! {
    with_direct_reads_in_flight
    with_tasks_in_every_state
    after_panics_of_tasks
    after_panics_of_wakers
    in_a_forked_child
    of_a_thread_that_keeps_its_runtime
    of_a_thread_that_forgot_its_runtime
    before_the_wakers
    while_tasks_are_sent_to_it
    of_tasks_that_start_others
    of_tasks_on_other_threads
    of_tasks_that_were_sent
    of_a_million_tasks
    of_a_runtime_without_tasks
    is_not_kept_waiting_by_reads_that_are_always_ready
    is_not_kept_waiting_by_tasks_that_always_yield
    of_one_round
}

fn runtime(policy: Policy) -> Runtime {
    Runtime::builder().backend(policy).build().unwrap()
}

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u8; 4096]);

/// Memory for direct reads, whose drop is counted.
struct Buf {
    pages: Box<[Page]>,
    _probe: DropProbe,
}

impl Buf {
    fn new(byte: u8, len: usize, counter: &DropCounter) -> Self {
        let pages = vec![Page([byte; 4096]); len / 4096].into_boxed_slice();
        Self { pages, _probe: counter.probe() }
    }

    fn is_all(&self, byte: u8) -> bool {
        self.pages.iter().all(|page| page.0 == [byte; 4096])
    }
}

// SAFETY: the pages are on the heap and stay there; only the owner of this touches them.
unsafe impl IoBuf for Buf {
    fn stable_ptr(&self) -> *const u8 {
        self.pages.as_ptr().cast()
    }
    fn bytes_len(&self) -> usize {
        self.pages.len() * 4096
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Buf {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.pages.as_mut_ptr().cast()
    }
}

type Reading<T> = Pin<Box<dyn Future<Output = BufResult<usize, T>>>>;

/// Returns a read that owns its reader.
fn reading<T: IoBufMut + 'static>(mut reader: PipeReader, buf: T) -> Reading<T> {
    Box::pin(async move { reader.read(buf).await })
}

/// Polls a future once, with the caller's waker.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// Returns a pipe whose writing end does not belong to the runtime.
fn half_pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = io::pipe().unwrap();
    (PipeReader::from_fd(reader.into()), writer.into())
}

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let name = format!("teardown-{}-{name}", std::process::id());
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, bytes).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

fn with_direct_reads_in_flight(policy: Policy) {
    const TASKS: usize = 16;
    const READS: usize = 32;
    const LEN: usize = 64 << 10;
    let file = TempFile::new(&format!("{policy:?}"), &[0xd1; LEN]);
    let open = || File::options().read(true).custom_flags(libc::O_DIRECT).open(&file.0);
    if let Err(error) = open() {
        return children::announce_skip(&format!("no direct I/O: {error}"));
    }
    for rounds in [0, 1, 5] {
        let counter = DropCounter::new();
        let runtime = runtime(policy);
        let begun = Rc::new(Cell::new(0));
        for _ in 0..TASKS {
            let files: Vec<File> = (0..READS).map(|_| open().unwrap()).collect();
            let bufs: Vec<Buf> = (0..READS).map(|_| Buf::new(0, LEN, &counter)).collect();
            let begun = Rc::clone(&begun);
            let task = runtime.spawn(async move {
                let reader = |file: File| PipeReader::from_fd(file.into());
                let reads = files.into_iter().zip(bufs).map(|(file, buf)| (reader(file), buf));
                let mut reads: Vec<Reading<Buf>> =
                    reads.map(|(reader, buf)| reading(reader, buf)).collect();
                for read in &mut reads {
                    assert!(poll_once(read).await.is_pending());
                    begun.set(begun.get() + 1);
                }
                for read in reads {
                    let (result, buf) = read.await;
                    assert_eq!(result.unwrap(), LEN);
                    assert!(buf.is_all(0xd1));
                }
            });
            task.detach();
        }
        runtime.block_on(async {
            // A round also ends after some time, so not all tasks may begin in the first one.
            while rounds > 0 && begun.get() < TASKS * READS {
                yield_now().await;
            }
            for _ in 1..rounds {
                yield_now().await;
            }
        });
        assert_eq!(begun.get(), if rounds == 0 { 0 } else { TASKS * READS });
        drop(runtime);
        // Each buffer was freed, which the driver does only after the last completion; later allocations
        // receive no late writes.
        counter.assert_each_dropped_once();
        let other = DropCounter::new();
        let reuse: Vec<Buf> = (0..TASKS * READS).map(|_| Buf::new(0x5c, LEN, &other)).collect();
        thread::sleep(Duration::from_millis(5));
        assert!(reuse.iter().all(|buf| buf.is_all(0x5c)), "somebody wrote into memory of ours");
    }
}

fn with_tasks_in_every_state(policy: Policy) {
    let (never_polled, waiting, done) =
        (DropCounter::new(), DropCounter::new(), DropCounter::new());
    let runtime = runtime(policy);
    let resumed = Rc::new(Cell::new(0));
    let start = |counter: &DropCounter| {
        let (reader, writer) = runtime.block_on(async { half_pipe() });
        let (buf, probe) = (Buf::new(0, 4096, counter), counter.probe());
        let resumed = Rc::clone(&resumed);
        let task = runtime.spawn(async move {
            let _probe = probe;
            let _back = reading(reader, buf).await;
            resumed.set(resumed.get() + 1);
        });
        task.detach();
        writer
    };
    let (_writer, done_writer) = (start(&waiting), start(&done));
    runtime.block_on(yield_now());
    rustix::io::write(&done_writer, b"done").unwrap();
    let before = runtime.counters().finished;
    // `block_on` polls this future after each turn of the driver, before the tasks that the turn woke.
    runtime.block_on(poll_fn(|cx| {
        if runtime.counters().finished > before {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }));
    let _third = start(&never_polled);
    assert_eq!((runtime.live_tasks(), resumed.get()), (3, 0));
    drop(runtime);
    for counter in [never_polled, waiting, done] {
        counter.assert_each_dropped_once();
    }
    assert_eq!(resumed.get(), 0, "a task went on after its runtime");
}

fn after_panics_of_tasks(policy: Policy) {
    let counter = DropCounter::new();
    let runtime = runtime(policy);
    let (buf, probe) = (Buf::new(0, 4096, &counter), counter.probe());
    runtime.block_on(async {
        let (reader, _writer) = half_pipe();
        let panicking = spawn(async move {
            let _probe = probe;
            let mut read = reading(reader, buf);
            assert!(poll_once(&mut read).await.is_pending());
            yield_now().await;
            panic!("with a read in flight");
        });
        assert!(panicking.await.unwrap_err().is_panic());
    });
    let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(async { panic!("outside") })));
    panic.unwrap_err();
    runtime.block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all("still works").await.0.unwrap();
        assert_eq!(reader.read(vec![0; 11]).await.1, b"still works");
    });
    assert_eq!(runtime.live_tasks(), 0);
    drop(runtime);
    counter.assert_each_dropped_once();
}

struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        mem::forget(self.clone());
        panic!("a waker");
    }
}

fn after_panics_of_wakers(policy: Policy) {
    let counter = DropCounter::new();
    let runtime = runtime(policy);
    let polled_badly = |buf| {
        let (reader, writer) = half_pipe();
        let mut read = reading(reader, buf);
        let waker = Waker::from(Arc::new(BadWaker));
        assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        (read, writer)
    };
    let (buf, other_buf) = (Buf::new(0, 4096, &counter), Buf::new(0, 4096, &counter));
    let (read, writer) = runtime.block_on(async { polled_badly(buf) });
    runtime.block_on(yield_now());
    rustix::io::write(&writer, b"woken").unwrap();
    // The turn reports a waker's panic; the operation does not.
    let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(pending::<()>())));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"a waker"));
    let (result, buf) = runtime.block_on(read);
    assert_eq!(result.unwrap(), 5);
    drop(buf);
    runtime.block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all("still works").await.0.unwrap();
        assert_eq!(reader.read(vec![0; 11]).await.1, b"still works");
    });
    // The same at the end of the runtime, which cancels the read.
    let (read, _writer) = runtime.block_on(async { polled_badly(other_buf) });
    runtime.block_on(yield_now());
    catch_unwind(AssertUnwindSafe(|| drop(runtime))).ok();
    drop(read);
    counter.assert_each_dropped_once();
}

fn in_a_forked_child(policy: Policy) {
    children::run(if policy == Policy::Poll { "fork_poll" } else { "fork_uring" });
}

pub fn scene_fork_uring() -> Result<(), String> {
    scene_fork(Policy::Uring)
}

pub fn scene_fork_poll() -> Result<(), String> {
    scene_fork(Policy::Poll)
}

/// Forks. The child runs `child` and exits. Panics if `child` panicked.
fn in_child(child: impl FnOnce()) {
    // SAFETY: the one thread of this process that Rust code runs on; the driver's own, if any, hold
    // no locks that the child needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(child)).is_ok();
        // SAFETY: ends the child at once, without what the parent has registered for its exit.
        unsafe { libc::_exit(if ended_well { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
}

fn scene_fork(policy: Policy) -> Result<(), String> {
    let counter = DropCounter::new();
    let runtime = runtime(policy);
    let (reader, writer) = runtime.block_on(async { half_pipe() });
    let buf = Buf::new(0, 4096, &counter);
    let task = runtime.spawn(async move {
        let (result, buf) = reading(reader, buf).await;
        (result.unwrap(), buf)
    });
    runtime.block_on(yield_now());
    let mut everything = Some((runtime, task));
    in_child(|| {
        let (runtime, task) = everything.take().unwrap();
        let error = runtime.run_once(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("forked child"), "{error}");
        let panic = catch_unwind(AssertUnwindSafe(|| runtime.block_on(pending::<()>())));
        let message = panic.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("forked child"), "{message}");
        drop(runtime);
        drop(task);
        assert_eq!(counter.dropped(), 0, "memory of the parent's read was freed");
        let own = Runtime::builder().backend(policy).build().unwrap();
        own.block_on(async {
            let (mut reader, mut writer) = pipe().unwrap();
            writer.write_all("mine").await.0.unwrap();
            assert_eq!(reader.read(vec![0; 4]).await.1, b"mine");
        });
    });
    let (runtime, task) = everything.take().unwrap();
    assert_eq!(counter.dropped(), 0);
    rustix::io::write(&writer, b"parent").unwrap();
    let (len, buf) = runtime.block_on(task).unwrap();
    assert_eq!((len, &buf.pages[0].0[..6]), (6, &b"parent"[..]));
    drop((buf, runtime));
    counter.assert_each_dropped_once();
    Ok(())
}

/// Returns a runtime with tasks that wait for pipes, and the other ends of the pipes.
fn busy_runtime(policy: Policy, counter: &DropCounter) -> (Runtime, Vec<OwnedFd>) {
    let runtime = runtime(policy);
    let start = |_| {
        let (reader, writer) = runtime.block_on(async { half_pipe() });
        let (buf, probe) = (Buf::new(0, 4096, counter), counter.probe());
        let task = runtime.spawn(async move {
            let _probe = probe;
            let _back = reading(reader, buf).await;
            // A task that continues during the teardown must still find the thread's memory.
            yield_now().await;
        });
        task.detach();
        writer
    };
    let writers = (0..8).map(start).collect();
    runtime.block_on(yield_now());
    (runtime, writers)
}

fn of_a_thread_that_keeps_its_runtime(policy: Policy) {
    struct Kept {
        runtime: Option<Runtime>,
        counter: DropCounter,
        ended: mpsc::Sender<usize>,
    }
    impl Drop for Kept {
        fn drop(&mut self) {
            self.runtime = None;
            self.ended.send(self.counter.live()).unwrap();
        }
    }
    thread_local! {
        static KEPT: RefCell<Option<Kept>> = const { RefCell::new(None) };
    }
    // The order of a thread's destructors depends on the order of first use.
    for used_first in [true, false] {
        let (ended, outcome) = mpsc::channel();
        let writers = thread::spawn(move || {
            if used_first {
                KEPT.with(|kept| assert!(kept.borrow().is_none()));
            }
            let counter = DropCounter::new();
            let (runtime, writers) = busy_runtime(policy, &counter);
            let kept = Kept { runtime: Some(runtime), counter, ended };
            KEPT.with(|place| place.replace(Some(kept)));
            writers
        });
        drop(writers.join().unwrap());
        assert_eq!(outcome.recv(), Ok(0), "used first: {used_first}");
    }
}

fn of_a_thread_that_forgot_its_runtime(policy: Policy) {
    let counter = DropCounter::new();
    let probes = thread::spawn(move || {
        let (runtime, writers) = busy_runtime(policy, &counter);
        mem::forget(runtime);
        (counter, writers)
    });
    let (counter, writers) = probes.join().unwrap();
    for writer in &writers {
        // The pipe has no reader, or only the forgotten one.
        rustix::io::write(writer, b"late").ok();
    }
    assert_eq!(counter.dropped(), 0, "what the kernel may still use was freed");
}

/// Panics if it is dropped on another thread than the one that made it.
struct Homebound(ThreadId, #[expect(dead_code, reason = "its drop reports")] DropProbe);

impl Drop for Homebound {
    fn drop(&mut self) {
        assert_eq!(self.0, thread::current().id(), "dropped on another thread");
    }
}

fn before_the_wakers(policy: Policy) {
    // A waking thread may hold a task at that moment, so this is repeated.
    (0..20).for_each(|_| before_wakers(policy));
}

fn before_wakers(policy: Policy) {
    let counter = DropCounter::new();
    let runtime = runtime(policy);
    let wakers: Rc<RefCell<Vec<Waker>>> = Rc::default();
    for _ in 0..10 {
        let wakers = Rc::clone(&wakers);
        let home = Homebound(thread::current().id(), counter.probe());
        let task = runtime.spawn(poll_fn(move |cx| {
            let _home = &home;
            wakers.borrow_mut().push(cx.waker().clone());
            Poll::<()>::Pending
        }));
        task.detach();
    }
    // A due timer or wake may end a round of tasks early.
    while wakers.borrow().len() < 10 {
        runtime.block_on(yield_now());
    }
    let main = runtime.block_on(poll_fn(|cx| Poll::Ready(cx.waker().clone())));
    let mut wakers = wakers.take();
    wakers.push(main);
    assert_eq!(wakers.len(), 11);
    // Some wakers are called while the runtime ends.
    let early: Vec<Waker> = wakers.clone();
    let waking = thread::spawn(move || {
        for waker in early.iter().cycle().take(10_000) {
            waker.wake_by_ref();
        }
    });
    drop(runtime);
    counter.assert_each_dropped_once();
    waking.join().unwrap();
    let threads = (0..4).map(|_| {
        let wakers = wakers.clone();
        thread::spawn(move || {
            for waker in wakers {
                waker.wake_by_ref();
                let clone = waker.clone();
                drop(waker);
                clone.wake();
            }
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    wakers.into_iter().for_each(Waker::wake);
    counter.assert_each_dropped_once();
}

fn while_tasks_are_sent_to_it(policy: Policy) {
    /// Starts a task on another thread when it is dropped.
    struct Sends(usize, Arc<AtomicUsize>);
    impl Drop for Sends {
        fn drop(&mut self) {
            let Self(thread, started) = self;
            let (thread, started) = (*thread, Arc::clone(started));
            let home = thread::current().id();
            let task = spawn_on(thread, move || {
                assert_ne!(home, thread::current().id(), "started on the wrong thread");
                started.fetch_add(1, Ordering::Relaxed);
                pending::<()>()
            });
            task.detach();
        }
    }
    for _ in 0..20 {
        let started = Arc::new(AtomicUsize::new(0));
        let runtime = Runtime::builder().backend(policy).threads(3).build().unwrap();
        runtime.block_on(async {
            for (from, to) in [(0, 1), (0, 2), (1, 2), (2, 0), (1, 0), (2, 1)] {
                let started = Arc::clone(&started);
                let (ready, is_ready) = async_channel::bounded(1);
                let task = spawn_on(from, move || async move {
                    let _sends = Sends(to, started);
                    ready.send(()).await.unwrap();
                    pending::<()>().await;
                });
                task.detach();
                is_ready.recv().await.unwrap();
            }
        });
        drop(runtime);
        assert!(started.load(Ordering::Relaxed) <= 6);
    }
}

fn of_tasks_that_start_others(policy: Policy) {
    /// When it is dropped, starts a task whose drop does the same, this number of times.
    struct Starts(u32, DropCounter, #[expect(dead_code, reason = "its drop reports")] DropProbe);
    impl Drop for Starts {
        fn drop(&mut self) {
            let Self(times, counter, _) = *self;
            if times > 0 {
                let next = Starts(times - 1, counter, counter.probe());
                spawn(async move {
                    let _next = next;
                    pending::<()>().await;
                })
                .detach();
            }
        }
    }
    let counter = DropCounter::new();
    let runtime = runtime(policy);
    let first = Starts(5, counter, counter.probe());
    let task = runtime.spawn(async move {
        let _first = first;
        pending::<()>().await;
    });
    task.detach();
    runtime.block_on(yield_now());
    drop(runtime);
    assert_eq!(counter.made(), 6);
    counter.assert_each_dropped_once();
}

fn of_tasks_on_other_threads(policy: Policy) {
    /// Its drop is slow, so that a caller that does not wait for it continues too early.
    struct Slow(Arc<AtomicUsize>);
    impl Drop for Slow {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(20));
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let runtime = Runtime::builder().backend(policy).threads(3).build().unwrap();
    let ended = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        for thread in [1, 2] {
            let slow = Slow(Arc::clone(&ended));
            let start = move || async move {
                spawn(async move {
                    let _slow = slow;
                    pending::<()>().await;
                })
                .detach();
            };
            spawn_on(thread, start).await.unwrap();
        }
    });
    drop(runtime);
    assert_eq!(ended.load(Ordering::SeqCst), 2);
}

fn of_tasks_that_were_sent(policy: Policy) {
    let counter = DropCounter::new();
    let runtime = Runtime::builder().backend(policy).threads(2).build().unwrap();
    let (sender, wakers) = mpsc::channel();
    runtime.block_on(async {
        let probe = counter.probe();
        let (ready, is_ready) = async_channel::bounded(1);
        let task = spawn_on(1, move || {
            let home = Homebound(thread::current().id(), probe);
            poll_fn(move |cx| {
                let _home = &home;
                sender.send(cx.waker().clone()).unwrap();
                ready.try_send(()).ok();
                Poll::<()>::Pending
            })
        });
        task.detach();
        is_ready.recv().await.unwrap();
    });
    drop(runtime);
    counter.assert_each_dropped_once();
    wakers.iter().for_each(Waker::wake);
}

fn of_a_million_tasks(policy: Policy) {
    const TASKS: usize = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
    let runtime = runtime(policy);
    let alive = Rc::new(());
    let (open, gate) = async_channel::bounded::<()>(1);
    let polled = Rc::new(Cell::new(0));
    for number in 0..TASKS {
        let (alive, gate, polled) = (Rc::clone(&alive), gate.clone(), Rc::clone(&polled));
        let task = runtime.spawn(async move {
            let _alive = alive;
            polled.set(polled.get() + 1);
            if number % 2 == 0 {
                gate.recv().await.unwrap_err();
            } else {
                pending::<()>().await;
            }
        });
        task.detach();
    }
    runtime.block_on(async {
        while polled.get() < TASKS {
            yield_now().await;
        }
    });
    assert_eq!(runtime.live_tasks(), TASKS);
    drop(open);
    runtime.block_on(async {
        while runtime.live_tasks() > TASKS / 2 {
            yield_now().await;
        }
    });
    assert_eq!(Rc::strong_count(&alive), 1 + TASKS / 2);
    drop(runtime);
    assert_eq!(Rc::strong_count(&alive), 1);
}

fn of_a_runtime_without_tasks(policy: Policy) {
    let runtime = runtime(policy);
    for number in 0..3 {
        assert_eq!(runtime.block_on(async { number }), number);
        runtime.block_on(yield_now());
    }
    assert!(!runtime.run_once(Duration::ZERO).unwrap());
    assert_eq!((runtime.live_tasks(), runtime.next_timer()), (0, None));
}

/// Reads for ever, and counts the reads.
async fn read_zeros(count: Rc<Cell<usize>>) {
    let mut zeros = PipeReader::from_fd(File::open("/dev/zero").unwrap().into());
    let mut buf = vec![1; 64];
    loop {
        let (result, back) = zeros.read(buf).await;
        assert_eq!(result.unwrap(), 64);
        buf = back;
        count.set(count.get() + 1);
    }
}

/// Yields for ever, and counts the yields.
async fn yield_always(count: Rc<Cell<usize>>) {
    loop {
        yield_now().await;
        count.set(count.get() + 1);
    }
}

fn is_not_kept_waiting_by_reads_that_are_always_ready(policy: Policy) {
    const READERS: usize = 40; // more than run in one round
    const ROUNDS: usize = 1000;
    let runtime = runtime(policy);
    let (reads, yields): (Rc<Cell<usize>>, Rc<Cell<usize>>) = Default::default();
    runtime.block_on(async {
        for _ in 0..READERS {
            spawn(read_zeros(Rc::clone(&reads))).detach();
        }
        spawn(yield_always(Rc::clone(&yields))).detach();
        while reads.get() < ROUNDS * READERS {
            yield_now().await;
        }
    });
    // Each round of the loop delivers at most one result to each reader, and runs two batches.
    assert!(yields.get() >= ROUNDS / 2, "{} yields", yields.get());
}

fn is_not_kept_waiting_by_tasks_that_always_yield(policy: Policy) {
    const YIELDERS: usize = 100;
    const READS: usize = 1000;
    let runtime = runtime(policy);
    let (reads, yields): (Rc<Cell<usize>>, Rc<Cell<usize>>) = Default::default();
    runtime.block_on(async {
        for _ in 0..YIELDERS {
            spawn(yield_always(Rc::clone(&yields))).detach();
        }
        spawn(read_zeros(Rc::clone(&reads))).detach();
        while reads.get() < READS {
            yield_now().await;
        }
    });
    if policy == Policy::Uring {
        // Without a ring the result depends on another thread, which rounds do not measure.
        let rounds = yields.get() / YIELDERS;
        assert!(rounds <= 3 * READS, "{rounds} rounds for {READS} reads");
    }
}

fn of_one_round(policy: Policy) {
    let runtime = runtime(policy);
    let count = Rc::new(Cell::new(0));
    for _ in 0..600 {
        let count = Rc::clone(&count);
        let task = runtime.spawn(async move { count.set(count.get() + 1) });
        task.detach();
    }
    let mut seen = Vec::new();
    loop {
        let is_busy = runtime.run_once(Duration::ZERO).unwrap();
        seen.push((count.get(), is_busy));
        if !is_busy {
            break;
        }
    }
    if policy == Policy::Poll {
        // Without a ring a round may also end after some time.
        assert_eq!(seen.last(), Some(&(600, false)));
        let steps = seen.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(seen[0].0 <= 512 && steps.max().is_some_and(|step| step <= 512), "{seen:?}");
        return;
    }
    // Each turn runs two batches of 256 tasks.
    assert_eq!(seen, [(512, true), (600, false)]);
    let busy = runtime.spawn(yield_always(Rc::clone(&count)));
    busy.detach();
    for round in 1..10 {
        assert!(runtime.run_once(Duration::MAX).unwrap(), "there is more to do");
        // A task that is alone fills both batches; its first poll only yields.
        assert_eq!(count.get(), 600 + 512 * round - 1);
    }
}
