//! Owners with code of their own, threads that fail, stops beside stops, and programs of all of it.

use std::collections::HashMap;
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use sakia::Builder;
use sakia::engine::Queue;
use sakia::engine::queue::{FileHandle, QueueTicket, Request, Submitted};
use sakia::io::PipeReader;
use sakia_driver::PollEvents;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_testkit::random::Random;
use sakia_testkit::settings::patience;
use sakia_testkit::{available, forked};

use super::{endless, errno, next, outcome, pipe};
use crate::support::{engine, on_each_backend, with_remote_mounts};

on_each_backend! {
    a_second_stop_waits_for_what_the_first_gave_up
    a_batch_after_the_stop_leaves_nothing_behind
    a_server_without_descriptors_answers_and_goes_on
    an_owner_that_panics_fails_its_own_request
    owners_that_submit_keep_no_task_waiting
    a_failed_thread_ends_waits_and_stops
    programs_with_stops_and_ends
}

fn poll(file: &FileHandle, events: PollEvents) -> Request {
    Request::Poll { file: file.into(), events }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < patience(), "it does not come");
        thread::yield_now();
    }
}

/// Stops a queue without a limit, which must end.
fn stop(queue: &Queue) -> Vec<u64> {
    let (sender, ended) = channel();
    let queue = queue.clone();
    thread::spawn(move || sender.send(queue.stop(Duration::MAX).leaked));
    ended.recv_timeout(patience()).expect("the stop does not end")
}

fn a_second_stop_waits_for_what_the_first_gave_up(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    let file = FileHandle::new(std::fs::File::open(fuse.join("a")).unwrap());
    let gate = fuse.hold(Rule::on(Opcode::READ));
    let _ = queue.submit(Request::read(&file, vec![0; 5000].into(), 0), 1).unwrap();
    gate.wait_held(1);
    assert_eq!(queue.stop(Duration::ZERO).leaked, [1]);
    thread::scope(|scope| {
        let second = scope.spawn(|| stop(&queue));
        thread::sleep(Duration::from_millis(20)); // it sleeps by then, or does not need to
        gate.open();
        assert!(second.join().unwrap().is_empty());
    });
}

/// Returns how many descriptors of the process are of the same event.
fn descriptors_of(event: &OwnedFd) -> usize {
    let id_of = |info: std::path::PathBuf| {
        let info = std::fs::read_to_string(info).ok()?;
        let id = info.lines().find(|line| line.starts_with("eventfd-id:"))?;
        Some(id.to_owned())
    };
    let folder = std::path::Path::new("/proc/self/fdinfo");
    let raw = std::os::fd::AsRawFd::as_raw_fd(event);
    let own = id_of(folder.join(raw.to_string()));
    assert!(own.is_some());
    let all = std::fs::read_dir(folder).unwrap();
    all.filter(|entry| id_of(entry.as_ref().unwrap().path()) == own).count()
}

fn a_batch_after_the_stop_leaves_nothing_behind(builder: &Builder) {
    let engine = engine(builder);
    for is_used in [false, true] {
        let queue = engine.queue().unwrap();
        let event = queue.pollable().unwrap();
        if is_used {
            outcome(&queue, queue.submit(Request::Nop, 0).unwrap()).result.unwrap();
        }
        let mut batch = queue.batch();
        let _ = batch.add(Request::Nop, 1).unwrap();
        assert!(queue.stop(Duration::ZERO).leaked.is_empty());
        batch.submit();
        drop(queue);
        // That of the queue is closed with it.
        until(|| descriptors_of(&event) == 1);
    }
    assert_eq!(engine.statistics().live, 0);
}

fn a_server_without_descriptors_answers_and_goes_on(builder: &Builder) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let child = forked::run(|| {
        let engine = engine(&builder.clone().threads(1));
        let (queue, other) = (engine.queue().unwrap(), engine.queue().unwrap());
        let (release, held) = channel::<()>();
        let holder = engine.run(move || async move { held.recv().is_err() }).submit();
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: usual.maximum }).unwrap();
        // The thread reads all letters at once.
        for token in 0..3 {
            let _ = queue.submit(Request::Nop, token).unwrap();
            let _ = other.submit(Request::Nop, token).unwrap();
        }
        queue.stop(Duration::ZERO).leaked.sort();
        drop(release);
        assert!(holder.wait().unwrap());
        for token in 0..3 {
            let refused = next(&other);
            assert_eq!((refused.token, errno(&refused.result)), (token, Some(libc::EMFILE)));
        }
        setrlimit(Resource::Nofile, usual).unwrap();
        assert!(stop(&queue).is_empty());
        assert_eq!(engine.statistics().live, 0);
        outcome(&other, other.submit(Request::Nop, 9).unwrap()).result.unwrap();
    });
    child.unwrap();
}

/// Code that runs when the descriptor is asked for, but for the first time.
struct Owner<F> {
    fd: Arc<UnixStream>,
    asked: AtomicU32,
    then: F,
}

impl<F: Fn()> AsFd for Owner<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        if self.asked.fetch_add(1, Ordering::Relaxed) == 1 {
            (self.then)();
        }
        self.fd.as_fd()
    }
}

fn owned_by<F: Fn() + Send + Sync + 'static>(fd: &Arc<UnixStream>, then: F) -> FileHandle {
    let (fd, asked) = (Arc::clone(fd), AtomicU32::new(0));
    FileHandle::lent(Arc::new(Owner { fd, asked, then }))
}

fn an_owner_that_panics_fails_its_own_request(builder: &Builder) {
    let engine = engine(&builder.clone().threads(1));
    let (queue, other) = (engine.queue().unwrap(), engine.queue().unwrap());
    let (pipe, mut writer) = pipe();
    let _ = other.submit(endless(&pipe), 1).unwrap();
    let (socket, _far) = UnixStream::pair().unwrap();
    let socket = Arc::new(socket);
    for _ in 0..3 {
        let file = owned_by(&socket, || resume_unwind(Box::new("the owner's code")));
        let mut batch = queue.batch();
        let _ = batch.add(poll(&file, PollEvents::READABLE), 2).unwrap();
        let _ = batch.add(Request::Nop, 3).unwrap();
        let _ = batch.add(poll(&file, PollEvents::WRITABLE), 4).unwrap();
        batch.submit();
        let mut outcomes = [next(&queue), next(&queue), next(&queue)];
        outcomes.sort_by_key(|outcome| outcome.token);
        let [failed, nop, second] = outcomes;
        assert!(failed.token == 2 && !failed.more, "{failed:?}");
        assert!(failed.result.unwrap_err().to_string().contains("panic"));
        nop.result.unwrap();
        second.result.unwrap();
    }
    std::io::Write::write_all(&mut writer, b"12345678").unwrap();
    assert_eq!(next(&other).result.unwrap(), 8);
    assert_eq!((queue.under_way(), engine.statistics().live), (0, 0));
}

/// Each request is of an owner that submits the next one when the engine's thread asks for the descriptor.
fn owners_that_submit_keep_no_task_waiting(builder: &Builder) {
    struct Chain {
        queue: Queue,
        fd: Arc<UnixStream>,
        length: AtomicU32,
        is_enough: AtomicBool,
    }
    fn link(chain: &Arc<Chain>) {
        let length = chain.length.fetch_add(1, Ordering::Relaxed);
        if length < 3_000 && !chain.is_enough.load(Ordering::Relaxed) {
            let next = Arc::clone(chain);
            let file = owned_by(&chain.fd, move || link(&next));
            let _ = chain.queue.submit(poll(&file, PollEvents::WRITABLE), length.into()).unwrap();
        }
    }
    let engine = engine(&builder.clone().threads(1));
    let (socket, _far) = UnixStream::pair().unwrap();
    let chain = Arc::new(Chain {
        queue: engine.queue().unwrap(),
        fd: Arc::new(socket),
        length: AtomicU32::new(0),
        is_enough: AtomicBool::new(false),
    });
    let (release, held) = channel::<()>();
    let holder = engine.run(move || async move { held.recv().is_err() }).submit();
    link(&chain);
    let of_task = Arc::clone(&chain);
    let task = engine.run(move || async move {
        of_task.is_enough.store(true, Ordering::Relaxed);
    });
    let task = task.submit();
    drop(release);
    holder.wait().unwrap();
    task.wait().unwrap();
    let length = chain.length.load(Ordering::Relaxed);
    assert!(length < 3_000, "the task waited for all of them");
    until(|| {
        chain.queue.take(usize::MAX, &mut Vec::new());
        chain.queue.under_way() == 0
    });
}

/// A waker whose panic ends the thread of the engine.
struct Fatal;

impl Wake for Fatal {
    fn wake(self: Arc<Self>) {
        resume_unwind(Box::new("a waker that panics"));
    }
}

fn a_failed_thread_ends_waits_and_stops(builder: &Builder) {
    for threads in [1, 2] {
        let engine = engine(&builder.clone().threads(threads));
        let (queue, idle) = (engine.queue().unwrap(), engine.queue().unwrap());
        outcome(&idle, idle.submit(Request::Nop, 0).unwrap()).result.unwrap();
        let (pipe, mut writer) = pipe();
        for token in 0..threads as u64 {
            let _ = queue.submit(endless(&pipe), token).unwrap();
        }
        let (reader, mut fatal) = std::io::pipe().unwrap();
        let (sender, is_asleep) = channel();
        let failing = engine.run(move || async move {
            let mut reader = PipeReader::from_fd(reader.into());
            let mut read = pin!(reader.read(vec![0; 1]));
            let waker = Waker::from(Arc::new(Fatal));
            assert!(read.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            sender.send(()).unwrap();
            std::future::pending::<()>().await;
        });
        let _failing = failing.submit();
        is_asleep.recv().unwrap();
        std::io::Write::write_all(&mut fatal, b"x").unwrap();
        let tells =
            |error: std::io::Error| assert!(error.to_string().contains("failed"), "{error}");
        tells(queue.wait(None).unwrap_err());
        match threads {
            1 => tells(queue.wait(None).unwrap_err()), // nothing can come
            _ => assert_eq!(queue.wait(Some(Duration::from_millis(1))).unwrap(), 0, "told once"),
        }
        assert_eq!(idle.wait(Some(Duration::ZERO)).unwrap(), 0, "it had nothing there");
        if threads == 2 {
            // The other thread goes on; what comes to the failed one ends.
            let mut done = [0, 0];
            for token in 5..15 {
                let result = outcome(&idle, idle.submit(Request::Nop, token).unwrap()).result;
                assert!(matches!(errno(&result), None | Some(libc::ECANCELED)));
                done[usize::from(result.is_ok())] += 1;
            }
            assert_eq!(done, [5, 5]);
            std::io::Write::write_all(&mut writer, b"12345678").unwrap();
            let mut outcomes = Vec::new();
            until(|| queue.take(1, &mut outcomes) == 1);
            assert_eq!(*outcomes[0].result.as_ref().unwrap(), 8);
            tells(queue.wait(None).unwrap_err());
        }
        // It leaks what was there, and does not wait for it.
        assert_eq!(stop(&queue).len(), 1);
        assert_eq!(queue.under_way(), 1);
        assert!(stop(&idle).is_empty());
        until(|| engine.statistics().live == 0); // the other task goes with the thread, too
        engine.stop_and_wait();
    }
}

/// Last outcomes of tokens, and the tickets of requests.
type Ends = HashMap<u64, (u32, Option<QueueTicket>)>;

/// Queues of one engine, which several threads use and stop.
struct Shop {
    queues: Vec<Queue>,
    files: Vec<(FileHandle, UnixStream)>,
    /// The last outcomes of requests that were accepted, and tickets, by queue and token.
    ends: Vec<Mutex<Ends>>,
}

impl Shop {
    fn work(&self, random: &mut Random, thread: u64) {
        let mut tokens = (0..).map(|token| token << 3 | thread);
        for _ in 0..60 {
            let number = random.below(self.queues.len() as u64) as usize;
            let queue = &self.queues[number];
            match random.below(12) {
                0..6 => {
                    let mut batch = queue.batch();
                    for _ in 0..random.below(5) {
                        self.submit(random, number, tokens.next().unwrap(), |request, token| {
                            batch.add(request, token).unwrap()
                        });
                    }
                    match random.below(6) {
                        0 => self.stop(random, number),
                        1 => drop(std::mem::replace(&mut batch, queue.batch())),
                        _ => {}
                    }
                    self.cancel(random, number);
                }
                6 => self.cancel(random, number),
                7 if random.below(12) == 0 => self.stop(random, number),
                8 => queue.waker().wake(),
                9 => drop(queue.pollable().unwrap()),
                10 => {
                    queue.wait(Some(Duration::from_micros(random.below(300)))).unwrap();
                }
                _ => self.take(number, 1 + random.below(8) as usize),
            }
        }
    }

    fn submit(
        &self,
        random: &mut Random,
        number: usize,
        token: u64,
        add: impl FnOnce(Request, u64) -> Submitted,
    ) {
        let place = random.below(self.files.len() as u64) as usize;
        let file = &self.files[place].0;
        let (target, events) = (file.into(), PollEvents::READABLE);
        let request = match random.below(8) {
            0 => Request::Nop,
            1 => Request::PollMany { file: target, events },
            2 => Request::Poll { file: target, events: PollEvents::WRITABLE },
            3 => Request::Poll { file: target, events },
            5 if random.below(4) == 0 => Request::Close { file: file.clone() },
            _ => Request::Receive { socket: target, buffer: vec![0; 4].into(), flags: 0 },
        };
        self.ends[number].lock().unwrap().insert(token, (0, None));
        match add(request, token) {
            Submitted::Done(outcome) => self.note(number, outcome),
            Submitted::UnderWay(ticket) => {
                let mut ends = self.ends[number].lock().unwrap();
                ends.get_mut(&token).unwrap().1 = Some(ticket);
            }
        }
    }

    fn stop(&self, random: &mut Random, number: usize) {
        let limit = Duration::from_micros(random.below(200));
        // Those that a short limit gives up have no outcome.
        match random.below(3) {
            0 => assert!(self.queues[number].stop(Duration::MAX).leaked.is_empty()),
            _ => {
                let mut ends = self.ends[number].lock().unwrap();
                for token in self.queues[number].stop(limit).leaked {
                    ends.get_mut(&token).unwrap().0 = 1; // perhaps not the first time
                }
            }
        }
    }

    fn cancel(&self, random: &mut Random, number: usize) {
        let ends = self.ends[number].lock().unwrap();
        let tickets: Vec<_> = ends.values().filter_map(|(_, ticket)| *ticket).collect();
        drop(ends);
        // Tickets of one queue are harmless on another.
        let queue = &self.queues[random.below(self.queues.len() as u64) as usize];
        for ticket in tickets {
            if random.below(4) == 0 {
                queue.cancel(ticket);
            }
        }
    }

    fn take(&self, number: usize, most: usize) {
        let mut outcomes = Vec::new();
        self.queues[number].take(most, &mut outcomes);
        outcomes.into_iter().for_each(|outcome| self.note(number, outcome));
    }

    fn note(&self, number: usize, outcome: sakia::engine::queue::Outcome) {
        let mut ends = self.ends[number].lock().unwrap();
        let (count, _) = ends.get_mut(&outcome.token).unwrap();
        assert!(!outcome.more);
        *count += 1;
    }
}

/// Each token has one end, nothing stays under way, and files and descriptors come back.
fn programs_with_stops_and_ends(builder: &Builder) {
    let engine = engine(&builder.clone().threads(2));
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut owners = Vec::new();
        let mut file = || {
            let (near, far) = UnixStream::pair().unwrap();
            let near = Arc::new(near);
            owners.push(Arc::clone(&near));
            std::io::Write::write_all(&mut &far, b"some bytes").unwrap();
            (FileHandle::lent(near), far)
        };
        let shop = Shop {
            queues: (0..3).map(|_| engine.queue().unwrap()).collect(),
            files: (0..4).map(|_| file()).collect(),
            ends: (0..3).map(|_| Mutex::default()).collect(),
        };
        thread::scope(|scope| {
            for thread in 0..3 {
                let (shop, mut random) = (&shop, Random::new(random.word()));
                scope.spawn(move || shop.work(&mut random, thread));
            }
        });
        let events: Vec<_> = shop.queues.iter().map(|queue| queue.pollable().unwrap()).collect();
        for (number, queue) in shop.queues.iter().enumerate() {
            if random.below(3) == 0 {
                continue; // it is dropped with all that is under way
            }
            assert!(stop(queue).is_empty());
            shop.take(number, usize::MAX);
            for (token, (ends, _)) in &*shop.ends[number].lock().unwrap() {
                assert_eq!(*ends, 1, "seed {seed}, queue {number}, token {token}");
            }
            assert_eq!(queue.under_way(), 0);
        }
        drop(shop);
        until(|| engine.statistics().live == 0);
        for owner in owners {
            until(|| Arc::strong_count(&owner) == 1);
        }
        for event in events {
            until(|| descriptors_of(&event) == 1);
        }
    }
}
