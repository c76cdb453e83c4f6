//! Common parts of the experiments of all runtimes.
//!
//! A program implements [`Runtime`], [`Peer`] for experiments on tasks, [`Files`] for those on files and
//! [`Net`] for those on connections, and calls [`main`]; programs without a runtime have their own loops.
//! Each run of a program is one [`Job`], and prints one line of JSON: the measurements, and a number that
//! shows that the work was done. `cargo xtask peers` runs the programs and compares them.

pub mod block;
pub mod files;
mod job;
pub mod measure;
pub mod net;
mod tasks;

use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;

pub use files::{Access, Files, Moved, PerTask, Task};
pub use job::{Cell, Job, run as main_with};
pub use measure::{Gate, Tally};
pub use net::{Door, Net};
pub use tasks::{Peer, joined, yield_now};

/// A runtime.
pub trait Runtime: Sized + 'static {
    /// Builds the runtime as its documentation recommends for such a job, and runs a future on it.
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T;
}

/// Runs the job of the arguments, on tasks, on files or on connections.
pub fn main<P: Peer + Files + Net>() -> ExitCode {
    job::run(|job| match job.cell {
        Cell::Echo => net::run(job, |job, door| P::block_on(job, P::serve(job.clone(), door))),
        Cell::Udp => {
            net::run(job, |job, door| P::block_on(job, P::serve_datagrams(job.clone(), door)));
        }
        _ if job.cell.is_of_tasks() => tasks::run::<P>(job),
        _ => files::run::<P>(job),
    })
}

/// As [`main`], for a program with experiments on files only.
pub fn main_files<P: Files>() -> ExitCode {
    job::run(|job| {
        if job.cell.is_of_servers() || job.cell.is_of_tasks() {
            fail("run", "it has files only");
        }
        files::run::<P>(job);
    })
}

/// As [`main`], for a program with experiments on tasks only.
pub fn main_tasks<P: Peer>() -> ExitCode {
    job::run(|job| {
        if !job.cell.is_of_tasks() {
            fail("run", "it has no files");
        }
        tasks::run::<P>(job);
    })
}

/// Ends the program with the reason, which `cargo xtask peers` puts into the program's row.
pub fn fail(what: impl Display, error: impl Display) -> ! {
    eprintln!("{what}: {error}");
    std::process::exit(1)
}
