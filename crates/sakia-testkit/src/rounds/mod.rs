//! A model of logs with group commit, and random programs against it.
//!
//! A program makes requests, polls them, drops them, opens the log again and stops its engine, while the
//! log's file is on a [file system](crate::fuse) that holds each write and each sync until the program
//! answers it. So a program decides which requests share a round, and what becomes of it. A seed makes each
//! program, and one that fails is made smaller before it is printed.
//!
//! # Compared
//! After each step:
//! - The calls on the file: the round under way writes its bytes, those that adjoin at once, then syncs once.
//!   There is no write and no sync that no request asked for, nor one after the failure of a round.
//! - Each request's state: pending until its round has ended, then durable at its place or failed, however
//!   late it is polled and whatever became of later rounds. All of a round are woken, and no others.
//! - Positions: in the order of joining and without gaps; `end`, `syncs` and `failure`.
//! - The number of requests that the engine counts as under way, if it is the log's own. A stopped engine
//!   refuses awaited requests, performs those of waiting threads, and has stopped when no request is left.
//!
//! At each reopening and at the end, the bytes of the file: acknowledged records, written parts of a failed
//! round, and nothing else; and that the next log begins where the file ends.
//!
//! # Left out
//! - Durability after a crash: a file system in this process has none. The simulated kernel's crashes check
//!   it.
//! - Writes that the engine makes on the caller's thread, and the pool that performs a round: such a file
//!   system is a remote one, so that no call is made in place. Tests on local files have them.
//! - `ENOSYS` and `EAGAIN`: the kernel takes the first as "no sync needed", and no file gives the second.
//! - Wakers that panic or call back, forked children, direct I/O: tests of their own have them.
//!
//! # Allowed differences
//! - A dropped append of the writer's own is written or not, since a gap is documented. Its bytes are there
//!   or zeros, and nothing else is in their place. Logs for tokio finish it.
//! - A thread that performs the round under way learns of another writer's failure after that round.
//! - A runtime that ends leaves a round half done. Its requests fail, or were finished at the last moment.
//!
//! `SAKIA_TEST_ROUND_PROGRAMS` is the number of programs of each test, and `SAKIA_TEST_ROUND_SEED` the seed
//! of the first.

mod file;
mod model;
mod program;
mod run;

use std::fmt::Write;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::mpsc::Receiver;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use self::program::program;
use self::run::Run;
use crate::fuse::Fuse;
use crate::settings::{number, patience};
use crate::shrink::smallest;

/// The result of a request: where its bytes begin, 0 for a commit; or an errno, `EIO` for an error that has
/// none.
pub type Outcome = Result<u64, i32>;

/// Returns the outcome of a request with this result.
pub fn outcome(result: io::Result<u64>) -> Outcome {
    const EIO: i32 = 5;
    result.map_err(|error| error.raw_os_error().unwrap_or(EIO))
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// `append` of this number of bytes.
    Append(usize),
    /// `append_durable`.
    Durable(usize),
    /// `commit`.
    Commit,
}

/// The way in which a request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It does not: it is polled later, or never.
    Later,
    /// It is polled.
    Poll,
    /// It is submitted, and polled later or never.
    Submit,
    /// A thread waits for it.
    Wait,
}

/// A request that was made.
pub enum Flight {
    /// To be polled.
    Future(Pin<Box<dyn Future<Output = Outcome>>>),
    /// A thread waits for it, and sends its result.
    Thread(Receiver<Outcome>),
}

/// A log under test, with its executor.
pub trait Log {
    /// The ways in which requests begin; each as often as it is here.
    const WAYS: &[How];
    /// A dropped append is finished.
    const FINISHES: bool;
    /// An append goes on only while it is polled.
    const APPENDS_BY_POLLS: bool;
    /// A log that is closed finishes its rounds.
    const CLOSES_WELL: bool;

    /// As the log's method.
    fn end(&self) -> u64;
    /// As the log's method.
    fn syncs(&self) -> u64;
    /// As the log's method.
    fn failure(&self) -> Option<i32>;
    /// Makes a request of these bytes. A polled one is polled by the caller.
    fn start(&self, what: What, bytes: Vec<u8>, how: How) -> Flight;
    /// Polls a request.
    fn poll(&self, flight: &mut Flight, waker: &Waker) -> Poll<Outcome>;
    /// Drops a request.
    fn discard(&self, flight: Flight);
    /// Lets the log's tasks run for a moment.
    fn turn(&self);
    /// The number of requests under way, if that is known.
    fn live(&self) -> Option<u64> {
        None
    }
    /// Stops the engine, if it is the log's own, and returns whether it has stopped by now.
    fn stop(&mut self) -> Option<bool> {
        None
    }
    /// Drops the log and its executor, and waits for what is under way.
    fn close(self);
}

/// Runs random programs on logs, `programs` if the environment has no other number. `open` makes a log of a
/// file, which exists.
///
/// # Panics
/// If a program fails.
pub fn check<L: Log>(fuse: &Fuse, programs: u64, open: impl Fn(&Path) -> L) {
    let first = number("SAKIA_TEST_ROUND_SEED", 0);
    let programs = number("SAKIA_TEST_ROUND_PROGRAMS", programs);
    for seed in first..first + programs {
        let steps = program(seed, L::WAYS);
        let fails = |steps: &[_], patience| {
            let run = || Run::new(fuse, &open, seed, patience).perform(steps);
            catch_unwind(AssertUnwindSafe(run)).is_err()
        };
        if !fails(&steps, patience()) {
            continue;
        }
        // A smaller program fails soon, or is not tried to its end.
        let deadline = Instant::now() + patience();
        let steps = smallest(steps, |steps| {
            Instant::now() < deadline && fails(steps, Duration::from_secs(1))
        });
        let mut text = String::new();
        for step in &steps {
            writeln!(text, "    {step:?}").expect("a string takes it");
        }
        eprintln!("the program of seed {seed} fails; the fewest steps found:\n{text}");
        Run::new(fuse, &open, seed, patience()).perform(&steps);
        panic!("the program of seed {seed} failed, and then no more:\n{text}");
    }
}
