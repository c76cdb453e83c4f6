//! Experiments: the same work done in several ways, measured.
//!
//! An [`Experiment`] has *variants* (ways to do the work) and *points* (amounts of it). A *cell* is
//! a variant at a point. [`run()`] does every cell several times: each run is a process of its own,
//! which the [`Launcher`] starts and which calls [`run_cell`]; variants alternate in an order that
//! is seeded; every run's result is compared with what is right, and what other programs took of
//! the machine meanwhile is recorded. Out of the runs come [`Results`], which are written for
//! people ([`text`]), as JSON Lines ([`json`]) and as a page with plots ([`report`]).
//!
//! `sakia bench` reads the arguments and prints the results. Of the environment this library reads only the
//! directory for temporary files (`TMPDIR`), and only a load's process prints: the address of its socket.
//!
//! To add an experiment: implement [`Experiment`], and add its cells to [`cell`].

#![forbid(unsafe_code)]

pub mod baseline;
mod bytes;
pub mod cell;
pub mod copytree;
pub mod costs;
pub mod echo;
mod engine;
pub mod experiment;
pub mod file_sum;
pub mod json;
pub mod machine;
pub mod measure;
pub mod mktree;
pub mod named;
pub mod net;
pub mod plot;
pub mod report;
pub mod results;
pub mod run;
pub mod sched;
mod scratch;
pub mod send_file;
pub mod sockets;
pub mod tcp_sum;
pub mod text;
pub mod threads;
pub mod udp;
pub mod wal;

pub use bytes::bytes;
pub use cell::{Measured, Outcome, run_cell};
pub use experiment::{About, Experiment, Focus, Params, Point, Work};
pub use machine::Machine;
pub use results::Results;
pub use run::{Event, Launcher, Settings, run};
pub use scratch::leftovers;
