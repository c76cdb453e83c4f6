//! A request to cancel all operations on a descriptor names its number. Until the kernel has read the
//! request, the number stays in use, however long the kernel takes no entry.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Driver, Fd, Op, Read, Wait};
use sakia_ring::{Opcode, Sqe};

use crate::children;
use crate::hosts::{Fault, rigged};
use crate::scripted::{Cancels, PIPE, Stage, scripted};
use crate::support::{errno, finish, pipe_ends, turn_until, write_all};

/// The owner of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Lent,
}

/// A driver with a read in flight on a descriptor, which the driver owns or was lent.
struct Scene {
    driver: Driver,
    stage: Stage,
    read: Op<Read<Vec<u8>>>,
    fd: Option<Fd>,
    raw: i32,
    lender: Weak<OwnedFd>,
}

impl Scene {
    fn new(whose: Whose) -> Self {
        let (driver, stage) = scripted(4, 8);
        let mut lender = Weak::new();
        let fd = match whose {
            Whose::Ours => stage.open(&driver, PIPE),
            Whose::Lent => {
                stage.state().of_process = true;
                let owner = Arc::new(pipe_ends().0);
                lender = Arc::downgrade(&owner);
                driver.lend(owner)
            }
        };
        let read = driver.read(&fd, vec![0; 8], 0);
        driver.turn(Wait::Poll).unwrap();
        let raw = fd.raw();
        Self { driver, stage, read, fd: Some(fd), raw, lender }
    }

    /// Returns whether the number may refer to another file by now.
    fn is_given_up(&self) -> bool {
        !self.stage.state().closed.is_empty() || self.fd.is_none() && self.is_returned()
    }

    fn is_returned(&self) -> bool {
        self.stage.state().of_process && self.lender.upgrade().is_none()
    }

    /// Returns the requests for this number that the kernel has read.
    fn requests(&self) -> Vec<Sqe> {
        let state = self.stage.state();
        let is_it = |sqe: &&Sqe| sqe.opcode == Opcode::ASYNC_CANCEL && sqe.fd == self.raw;
        state.consumed.iter().filter(is_it).copied().collect()
    }
}

/// A way in which the kernel takes no entry.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Errno(Errno),
    /// The enter succeeds and takes none.
    Nothing,
}

const REFUSALS: [Refusal; 4] = [
    Refusal::Errno(Errno::BUSY),
    Refusal::Errno(Errno::AGAIN),
    Refusal::Errno(Errno::INTR),
    Refusal::Nothing,
];

impl Refusal {
    fn begin(self, stage: &Stage) {
        match self {
            Self::Errno(errno) => stage.state().failing = Some(errno),
            Self::Nothing => stage.state().consume_max = 0,
        }
    }

    fn end(stage: &Stage) {
        stage.state().failing = None;
        stage.state().consume_max = usize::MAX;
    }
}

fn each(test: impl Fn(Scene, Refusal)) {
    for whose in [Whose::Ours, Whose::Lent] {
        for refusal in REFUSALS {
            test(Scene::new(whose), refusal);
        }
    }
}

#[test]
fn the_number_stays_until_the_kernel_has_looked_at_the_request() {
    each(|mut scene, refusal| {
        scene.stage.state().cancels = Cancels::Manual;
        refusal.begin(&scene.stage);
        let mut close = scene.driver.close(scene.fd.take().unwrap());
        scene.driver.turn(Wait::Poll).unwrap();
        // The read ends by itself meanwhile; only the request still uses the descriptor.
        scene.stage.complete_read(b"1234");
        scene.driver.turn(Wait::Poll).unwrap();
        assert_eq!(scene.read.try_take().unwrap().0.unwrap(), 4);
        for _ in 0..5 {
            scene.driver.turn(Wait::Poll).unwrap();
            assert!(!scene.is_given_up() && close.try_take().is_none(), "{refusal:?}");
        }
        assert_eq!(scene.requests(), []);
        Refusal::end(&scene.stage);
        scene.driver.turn(Wait::Poll).unwrap();
        assert_eq!(scene.requests().len(), 1);
        assert!(!scene.is_given_up(), "the kernel may still read the request");
        scene.stage.complete(Opcode::ASYNC_CANCEL, 0);
        finish(&scene.driver, &mut close).unwrap();
        assert!(scene.is_given_up());
        drop(close);
        assert_eq!((scene.driver.live_operations(), scene.driver.in_flight()), (0, 0));
    });
}

#[test]
fn the_number_stays_when_the_driver_ends_meanwhile() {
    each(|mut scene, refusal| {
        if matches!(refusal, Refusal::Errno(Errno::INTR)) {
            return; // with signals alone no time passes here, and the driver would never end
        }
        scene.stage.state().cancels = Cancels::Work;
        refusal.begin(&scene.stage);
        let close = scene.driver.close(scene.fd.take().unwrap());
        scene.driver.turn(Wait::Poll).unwrap();
        scene.stage.complete_read(b"1234");
        scene.driver.turn(Wait::Poll).unwrap();
        assert_eq!(scene.read.try_take().unwrap().0.unwrap(), 4);
        let Scene { driver, stage, raw, lender, .. } = scene;
        let is_lent = stage.state().of_process;
        // The request cannot be taken back: it is leaked, and its descriptor with it.
        assert_eq!(driver.shutdown(Duration::from_millis(30)).leaked, 1, "{refusal:?}");
        assert_eq!(stage.state().closed, [0; 0], "{refusal:?}");
        assert_eq!(lender.upgrade().is_some(), is_lent);
        let pending = stage.state().pending.clone();
        assert!(pending.iter().any(|sqe| sqe.opcode == Opcode::ASYNC_CANCEL && sqe.fd == raw));
        drop(close);
    });
}

#[test]
fn the_end_of_a_driver_lets_the_request_through() {
    for whose in [Whose::Ours, Whose::Lent] {
        let mut scene = Scene::new(whose);
        scene.stage.state().cancels = Cancels::Work;
        let mut close = scene.driver.close(scene.fd.take().unwrap());
        let Scene { driver, stage, raw, lender, mut read, .. } = scene;
        assert_eq!(driver.shutdown(Duration::from_secs(1)).leaked, 0);
        assert_eq!(errno(read.try_take().unwrap().0), Errno::CANCELED);
        drop(read);
        close.try_take().unwrap().unwrap();
        let closed: &[i32] = if whose == Whose::Ours { &[raw] } else { &[] };
        assert_eq!(stage.state().closed, closed);
        assert!(lender.upgrade().is_none());
        let pending = stage.state().pending.clone();
        assert!(
            pending.iter().all(|sqe| sqe.fd != raw || sqe.opcode == Opcode::NOP),
            "{pending:?}"
        );
    }
}

#[test]
fn requests_find_a_place_whatever_is_in_flight() {
    let (driver, stage) = scripted(2, 2);
    stage.state().cancels = Cancels::Work;
    let fds: Vec<_> = (0..9).map(|number| stage.open(&driver, PIPE + number)).collect();
    let mut reads: Vec<_> = fds.iter().map(|fd| driver.read(fd, vec![0; 8], 0)).collect();
    driver.turn(Wait::Poll).unwrap();
    let mut closes: Vec<_> = fds.into_iter().map(|fd| driver.close(fd)).collect();
    for read in &mut reads {
        assert_eq!(errno(finish(&driver, read).0), Errno::CANCELED);
    }
    for close in &mut closes {
        finish(&driver, close).unwrap();
    }
    assert_eq!(stage.state().closed.len(), 9);
}

#[test]
fn the_next_owner_of_a_number_is_left_alone() {
    children::run("next_owner");
}

/// Runs alone in its process, so that no other thread gets the number.
pub fn scene_next_owner() {
    for is_lent in [false, true] {
        let (driver, rig) = rigged(8, 16);
        let (reader, writer) = pipe_ends();
        let (other, other_writer) = pipe_ends();
        let copy = other.try_clone().unwrap();
        let raw = reader.as_raw_fd();
        let fd = if is_lent { driver.lend(Arc::new(reader)) } else { driver.adopt(reader) };
        let other = driver.adopt(other);
        let mut read = driver.read(&fd, vec![0; 4], 0);
        let mut waiting = driver.read(&other, vec![0; 4], CURRENT_POSITION);
        driver.turn(Wait::Poll).unwrap();
        // The read ends, and is reaped, while the kernel takes no entry.
        write_all(&writer, b"text");
        rig.faults.borrow_mut().extend([Fault::Submits(0); 4]);
        let mut close = driver.close(fd);
        turn_until(&driver, || read.try_take().is_some());
        // From now on a new file could get the number.
        let copies: Vec<_> = (0..8).map(|_| copy.try_clone().unwrap()).collect();
        assert!(copies.iter().all(|copy| copy.as_raw_fd() != raw), "lent: {is_lent}");
        rig.faults.borrow_mut().clear();
        finish(&driver, &mut close).unwrap();
        assert_eq!(copy.try_clone().unwrap().as_raw_fd(), raw);
        driver.turn(Wait::Poll).unwrap();
        assert!(waiting.try_take().is_none(), "canceled for another");
        write_all(&other_writer, b"next");
        assert_eq!(finish(&driver, &mut waiting).0.unwrap(), 4);
        drop(copies);
    }
}
