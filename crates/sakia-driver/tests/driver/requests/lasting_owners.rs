//! Requests that go on, beside owners of descriptors whose destructors panic, and rows that are reused.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use sakia_driver::{
    Driver, Epoll, FileHandle, Loop, Outcome, PollEvents, Request, Requests, Ticket, Value, Wait,
};
use sakia_testkit::drop_probe::{DropCounter, DropProbe};

use super::{next, on_both};
use crate::support::Random;

/// A row that told of readiness is due when it is canceled. The next one in its place is due once.
#[test]
fn a_row_in_the_place_of_another_tells_once_in_a_turn() {
    on_both(|ring| {
        let (near, _far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        let submit = |ring: &mut Loop, token| {
            let (file, events) = ((&file).into(), PollEvents::WRITABLE);
            ring.submit(Request::PollMany { file, events }, token).unwrap()
        };
        for token in 0..4 {
            let ticket = submit(ring, token);
            assert!(next(ring).more);
            ring.cancel(ticket);
            let last = next(ring);
            assert!((last.token, last.more) == (token, false), "{last:?}");
        }
        submit(ring, 9);
        for _ in 0..20 {
            assert_eq!(ring.wait(Wait::Forever).unwrap(), 1);
            assert_eq!(ring.take().unwrap().token, 9);
        }
    });
}

thread_local! {
    static DRIVER: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// A waker that gives the driver a turn when it is dropped.
struct Turns;

impl Wake for Turns {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Turns {
    fn drop(&mut self) {
        let driver = DRIVER.with_borrow(|driver| driver.clone());
        driver.map(|driver| driver.turn(Wait::Poll).unwrap());
    }
}

#[test]
fn a_waker_whose_drop_turns_the_driver_holds_nothing_up() {
    for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
        let driver = Rc::new(driver);
        let mut requests = Requests::on(&driver).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let file = FileHandle::new(OwnedFd::from(near));
        let events = PollEvents::READABLE;
        requests.submit(Request::PollMany { file: (&file).into(), events }, 1);
        let waker = Arc::new(Turns).into();
        assert!(requests.poll_ready(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        // This one's outcome takes the waker of answers.
        requests.submit(Request::Nop, 2);
        while requests.take().is_none() {
            driver.turn(Wait::Forever).unwrap();
        }
        far.write_all(b"x").unwrap();
        DRIVER.set(Some(Rc::clone(&driver)));
        let mut cx = Context::from_waker(Waker::noop());
        while requests.poll_ready(&mut cx).is_pending() {
            driver.turn(Wait::Forever).unwrap();
        }
        assert_eq!(requests.take().unwrap().token, 1);
        DRIVER.set(None);
    }
}

/// Counts its wakes.
#[derive(Default)]
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An outcome that is there with its submission, and a request that begins with the next look: no turn of the
/// driver would wake the task.
#[test]
fn a_submission_wakes_the_task_that_looks() {
    for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
        let mut requests = Requests::on(&driver).unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        let near = FileHandle::new(OwnedFd::from(near));
        far.write_all(b"x").unwrap();
        let closed = FileHandle::new(std::fs::File::open("Cargo.toml").unwrap());
        requests.submit(Request::Close { file: closed.clone() }, 0);
        for (token, request, goes_on) in [
            (1, Request::PollMany { file: (&near).into(), events: PollEvents::READABLE }, true),
            (2, Request::ReceiveMany { socket: (&near).into() }, true),
            (3, Request::read(&closed, vec![0; 1].into(), 0), false),
        ] {
            let wakes = Arc::<Wakes>::default();
            let waker = Waker::from(Arc::clone(&wakes));
            let mut cx = Context::from_waker(&waker);
            while requests.poll_ready(&mut cx).is_ready() {
                requests.take();
            }
            let ticket = requests.submit(request, token);
            assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
            while requests.poll_ready(&mut cx).is_pending() {
                driver.turn(Wait::Forever).unwrap();
            }
            let outcome = requests.take().unwrap();
            assert_eq!((outcome.token, outcome.more), (token, goes_on));
            requests.cancel(ticket);
            while requests.under_way() > 0 {
                while requests.poll_ready(&mut cx).is_pending() {
                    driver.turn(Wait::Forever).unwrap();
                }
                drop(requests.take());
            }
        }
    }
}

/// A socket whose destructor panics.
struct Owner {
    socket: UnixStream,
    panics: bool,
    _probe: DropProbe,
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.panics && !std::thread::panicking() {
            resume_unwind(Box::new("the owner's destructor")); // prints nothing
        }
    }
}

/// The files and requests of a random program.
struct Program {
    ring: Loop,
    random: Random,
    counter: DropCounter,
    files: Vec<(FileHandle, UnixStream)>,
    tickets: Vec<Ticket>,
    /// The last outcomes by token, of which each request must have one.
    ends: HashMap<u64, u32>,
    panics: u32,
}

impl Program {
    fn attempt(&mut self, call: impl FnOnce(&mut Loop)) {
        let ring = &mut self.ring;
        self.panics += u32::from(catch_unwind(AssertUnwindSafe(|| call(ring))).is_err());
    }

    fn step(&mut self) {
        let place = self.random.below(self.files.len() as u64) as usize;
        match self.random.below(9) {
            0..3 => {
                let file = self.files[place].0.clone();
                let target = (&file).into();
                let (readable, writable) = (PollEvents::READABLE, PollEvents::WRITABLE);
                let request = match self.random.below(5) {
                    0 => Request::PollMany { file: target, events: readable },
                    1 => Request::PollMany { file: target, events: writable },
                    2 => Request::Poll { file: target, events: readable },
                    3 => Request::Nop,
                    // One receive at most: this file is no other's afterwards.
                    _ => {
                        self.replace(place);
                        Request::ReceiveMany { socket: target }
                    }
                };
                let token = self.ends.len() as u64;
                self.ends.insert(token, 0);
                let ticket = self.ring.submit(request, token).unwrap();
                self.tickets.push(ticket);
                drop(file);
            }
            3 => drop(self.files[place].1.write(b"abc")),
            4 => self.replace(place),
            5 => {
                let file = self.files[place].0.clone();
                self.replace(place);
                let token = self.ends.len() as u64;
                self.ends.insert(token, 0);
                self.attempt(|ring| assert!(ring.submit(Request::Close { file }, token).is_ok()));
            }
            6 if !self.tickets.is_empty() => {
                let which = self.random.below(self.tickets.len() as u64) as usize;
                let ticket = self.tickets[which];
                self.attempt(|ring| ring.cancel(ticket));
            }
            _ => {
                self.attempt(|ring| drop(ring.wait(Wait::Poll)));
                self.take_all();
            }
        }
    }

    fn take_all(&mut self) {
        let mut is_over = false;
        while !is_over {
            let mut taken = None;
            self.attempt(|ring| {
                taken = ring.take();
                is_over = taken.is_none();
            });
            taken.into_iter().for_each(|outcome| self.note(outcome));
        }
    }

    /// Puts a fresh file in the place of one, whose handle is dropped.
    fn replace(&mut self, place: usize) {
        let panics = self.random.below(3) == 0;
        let fresh = file(self.counter, panics);
        let old = std::mem::replace(&mut self.files[place], fresh);
        // It may be the last user: then the panic is this caller's.
        self.panics += u32::from(catch_unwind(AssertUnwindSafe(|| drop(old))).is_err());
    }

    fn note(&mut self, outcome: Outcome) {
        if let Value::Lent(lent) = outcome.value {
            assert_eq!(self.ring.bytes(&lent).len(), *outcome.result.as_ref().unwrap());
            if self.random.below(2) == 0 {
                self.ring.give_back(lent);
            }
        }
        let ends = self.ends.get_mut(&outcome.token).unwrap();
        assert_eq!(*ends, 0, "nothing comes after the last outcome of {}", outcome.token);
        *ends += u32::from(!outcome.more);
    }
}

fn file(counter: DropCounter, panics: bool) -> (FileHandle, UnixStream) {
    let (socket, far) = UnixStream::pair().unwrap();
    let owner = Owner { socket, panics, _probe: counter.probe() };
    (FileHandle::lent(Arc::new(owner)), far)
}

/// Each request has its last outcome, and each owner is dropped once, however many of them panic.
#[test]
fn owners_that_panic_take_nothing_from_others() {
    let mut panics = 0;
    for seed in 0..300 {
        let driver = match seed % 2 {
            0 => Driver::uring().unwrap(),
            _ => Driver::new(Epoll::new().unwrap()),
        };
        let counter = DropCounter::new();
        let mut program = Program {
            ring: Loop::on(driver).unwrap(),
            random: Random::new(seed),
            counter,
            files: (0..3).map(|_| file(counter, false)).collect(),
            tickets: Vec::new(),
            ends: HashMap::new(),
            panics: 0,
        };
        for _ in 0..60 {
            program.step();
        }
        if seed % 4 < 2 {
            let stop = |ring: &mut Loop| {
                assert!(ring.stop(Duration::from_secs(60)).leaked.is_empty());
            };
            program.attempt(stop);
            // After a panic, the next call does the rest.
            program.attempt(stop);
            program.take_all();
            let missing: Vec<_> = program.ends.iter().filter(|(_, ends)| **ends == 0).collect();
            assert!(missing.is_empty(), "seed {seed}: {missing:?}");
            assert_eq!(program.ring.under_way(), 0, "seed {seed}");
        }
        let Program { ring, files, .. } = program;
        panics += program.panics;
        drop(catch_unwind(AssertUnwindSafe(|| drop(ring))));
        drop(catch_unwind(AssertUnwindSafe(|| drop(files))));
        counter.assert_each_dropped_once();
    }
    assert!(panics > 100, "{panics}");
}
