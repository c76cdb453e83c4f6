//! The pool by itself: its threads grow with the work, and no job waits without need. Most tests start no
//! thread: the work of a thread is kept, and the test performs it at a moment of its choice.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::*;

type Job = Box<dyn FnOnce() + Send>;
type Starts = Receiver<Job>;

#[derive(Default)]
struct Queue(VecDeque<Job>);

impl Jobs for Queue {
    type Job = Job;

    fn take(&mut self) -> Option<Job> {
        self.0.pop_front()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

struct Test {
    /// The number of threads that can be started.
    supply: AtomicU32,
    /// The list to which new threads' work is added; `None` starts real threads.
    starts: Option<Sender<Job>>,
    /// Runs while a start fails.
    meanwhile: Mutex<Option<Job>>,
    stranded: AtomicU32,
}

impl Test {
    fn new(supply: u32, starts: Option<Sender<Job>>) -> Self {
        Self { supply: supply.into(), starts, meanwhile: Mutex::default(), stranded: 0.into() }
    }
}

impl Worker for Test {
    type Jobs = Queue;

    fn start(&self, _: usize, _: u32, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let take = |left: u32| left.checked_sub(1);
        if self.supply.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            let meanwhile = self.meanwhile.lock().expect("no test panics with it").take();
            meanwhile.into_iter().for_each(|run| run());
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match &self.starts {
            Some(starts) => starts.send(Box::new(run)).map_err(|_| io::ErrorKind::Other.into()),
            None => thread::Builder::new().spawn(run).map(drop),
        }
    }

    fn perform(_: &Pool<Self>, _: usize, job: Job) {
        job();
    }

    fn strand(pool: &Pool<Self>, _: usize, _: Job, _: &io::Error) {
        pool.worker().stranded.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a pool whose threads the test runs, and the work of these threads. The idle time is zero.
fn led(threads_max: &[u32], supply: u32) -> (Pool<Test>, Starts) {
    let (sender, starts) = channel();
    (Pool::new(Test::new(supply, Some(sender)), threads_max, Duration::ZERO), starts)
}

/// Returns a pool with real threads.
fn real(threads_max: u32, idle: Duration) -> Pool<Test> {
    Pool::new(Test::new(u32::MAX, None), &[threads_max], idle)
}

fn push(pool: &Pool<Test>, lane: usize, job: impl FnOnce() + Send + 'static) {
    pool.push(lane, |state| state.jobs(lane).0.push_back(Box::new(job)));
}

fn push_count(pool: &Pool<Test>, count: &Arc<AtomicU32>) {
    let count = Arc::clone(count);
    push(pool, 0, move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
}

fn threads(pool: &Pool<Test>) -> Threads {
    pool.update(|state| state.threads(0))
}

#[test]
fn many_jobs_that_are_short_are_done_by_one_thread() {
    let ((pool, starts), done) = (led(&[8], 8), Arc::default());
    (0..100).for_each(|_| push_count(&pool, &done));
    let first = starts.try_recv().expect("a thread is started");
    assert!(starts.try_recv().is_err(), "only one is coming");
    first();
    assert_eq!(done.load(Ordering::Relaxed), 100);
    // The first thread started another one for the jobs that it left; that one finds none.
    starts.try_recv().expect("the next is coming")();
    assert!(starts.try_recv().is_err());
    let Threads { count, idle, peak, start_errors } = threads(&pool);
    assert_eq!((count, idle, peak, start_errors), (0, 0, 1, 0));
}

#[test]
fn a_thread_with_a_job_has_another_come_for_the_next_up_to_the_maximum() {
    const MAX: usize = 3;
    let (pool, starts) = led(&[MAX as u32], u32::MAX);
    let starts = Arc::new(Mutex::new(starts));
    // Each job blocks: the next thread runs within it.
    for _ in 0..MAX + 2 {
        let starts = Arc::clone(&starts);
        push(&pool, 0, move || {
            let next = starts.lock().expect("no test panics with it").try_recv();
            next.into_iter().for_each(|live| live());
        });
    }
    let first = starts.lock().expect("no test panics with it").try_recv();
    first.expect("a thread is started")();
    assert_eq!((threads(&pool).count, threads(&pool).peak), (0, MAX as u32));
    assert!(pool.update(|state| state.jobs(0).is_empty()));
}

#[test]
fn lanes_have_threads_of_their_own() {
    let (pool, starts) = led(&[1, 1], u32::MAX);
    for lane in [0, 1, 0, 1] {
        push(&pool, lane, || ());
    }
    assert_eq!(starts.try_iter().count(), 2);
    let counts = pool.update(|state| [0, 1].map(|lane| state.threads(lane).count));
    assert_eq!(counts, [1, 1]);
}

#[test]
fn jobs_of_a_lane_without_a_thread_are_ended_and_a_start_is_tried_again() {
    let ((pool, starts), done) = (led(&[2], 0), Arc::default());
    pool.push(0, |state| state.jobs(0).0.extend((0..5).map(|_| Box::new(|| ()) as Job)));
    assert_eq!(pool.worker().stranded.load(Ordering::Relaxed), 5);
    assert_eq!((threads(&pool).count, threads(&pool).start_errors), (0, 1));
    // With one thread, a start fails for each job that it takes and for each that is pushed, and the thread
    // performs all.
    pool.worker().supply.store(1, Ordering::Relaxed);
    (0..3).for_each(|_| push_count(&pool, &done));
    starts.try_recv().expect("a thread is started")();
    assert_eq!((done.load(Ordering::Relaxed), threads(&pool).start_errors), (3, 3));
    assert_eq!(pool.worker().stranded.load(Ordering::Relaxed), 5);
}

/// A job that comes while a start fails relies on that start. Here the only thread has become idle by then.
#[test]
fn a_failed_start_wakes_a_thread_that_became_idle_meanwhile() {
    let pool = Pool::new(Test::new(1, None), &[2], Duration::MAX);
    let (done, all_done) = channel();
    let (gate, opened) = channel::<()>();
    let (begin, begun) = channel();
    push(&pool, 0, move || {
        begin.send(()).expect("the test waits");
        opened.recv().expect("the gate is opened");
    });
    begun.recv().expect("the thread comes"); // or it would be the one that tries to start another
    let (its_pool, its_done) = (pool.clone(), done.clone());
    *pool.worker().meanwhile.lock().expect("no test panics with it") = Some(Box::new(move || {
        gate.send(()).expect("the thread waits");
        while threads(&its_pool).idle == 0 {
            thread::yield_now();
        }
        push(&its_pool, 0, move || its_done.send(2).expect("the test waits"));
    }));
    push(&pool, 0, move || done.send(1).expect("the test waits"));
    assert_eq!(all_done.iter().take(2).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((threads(&pool).peak, threads(&pool).start_errors), (1, 1));
    pool.close(|_| ());
}

#[test]
fn a_panic_ends_only_its_job() {
    let ((pool, starts), done) = (led(&[1], u32::MAX), Arc::default());
    /// Panics again when the panic's payload is dropped.
    struct Again;
    impl Drop for Again {
        fn drop(&mut self) {
            panic!("its destructor ran");
        }
    }
    push(&pool, 0, || std::panic::resume_unwind(Box::new(Again)));
    push_count(&pool, &done);
    starts.try_recv().expect("a thread is started")();
    assert_eq!((done.load(Ordering::Relaxed), threads(&pool).count), (1, 0));
    pool.worker().supply.store(0, Ordering::Relaxed);
    let again = Again;
    let panics = Box::new(move || drop(again)) as Job;
    pool.push(0, |state| state.jobs(0).0.extend([panics, Box::new(|| ())]));
    assert_eq!(pool.worker().stranded.load(Ordering::Relaxed), 2);
}

#[test]
fn a_closed_pool_performs_what_it_has_and_keeps_no_thread() {
    let pool = real(2, Duration::MAX);
    let (sender, receiver) = channel();
    let (gate, closed) = channel::<()>();
    let done = sender.clone();
    push(&pool, 0, move || {
        let _ = closed.recv();
        done.send(1).expect("the test waits");
    });
    push(&pool, 0, move || sender.send(2).expect("the test waits"));
    assert_eq!(receiver.recv(), Ok(2));
    pool.close(|state| assert!(state.is_closed()));
    let alive = pool.downgrade();
    drop((pool, gate));
    assert_eq!(receiver.recv(), Ok(1));
    while alive.strong_count() > 0 {
        thread::yield_now();
    }
}

/// Jobs come from several threads, in bursts, while threads give up waiting. The jobs of a burst end only
/// together, and each burst is as large as the threads allow: the test hangs if a job waits although it could
/// be performed.
#[test]
fn jobs_that_need_each_other_never_wait_for_a_thread() {
    const THREADS: u32 = 4;
    let rounds: u64 = if cfg!(miri) { 3 } else { 500 };
    for idle in [Duration::ZERO, Duration::from_micros(30), Duration::MAX] {
        let pool = real(2 * THREADS, idle);
        thread::scope(|scope| {
            for seed in 1..=2_u64 {
                let pool = &pool;
                scope.spawn(move || {
                    let mut random = seed;
                    for _ in 0..rounds {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        burst(pool, 1 + (random >> 40) as u32 % THREADS);
                        (0..random >> 56).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
        });
        assert!(threads(&pool).peak <= 2 * THREADS);
        pool.close(|_| ());
    }
}

fn burst(pool: &Pool<Test>, count: u32) {
    let barrier = Arc::new(std::sync::Barrier::new(count as usize + 1));
    for _ in 0..count {
        let barrier = Arc::clone(&barrier);
        push(pool, 0, move || {
            barrier.wait();
        });
    }
    barrier.wait();
}
