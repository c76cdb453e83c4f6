//! Random programs of operations, and models of their possible outcomes.
//!
//! A [`Program`](program::Program) is a list of steps: open, read, write, rename, send, cancel, drop, take a
//! turn. It runs with the driver on the simulated kernel, whose every choice and fault follows from a seed,
//! or on this machine, and its outcome is compared with the models.
//!
//! # Examples
//! ```
//! use sakia_check::program::Program;
//! use sakia_check::stats::Stats;
//! use sakia_check::sweep::check;
//!
//! let program = Program::random(17);
//! // A failing one is kept as text.
//! let program = Program::from_text(&program.to_text())?;
//! let mut stats = Stats::default();
//! assert_eq!(check(&program, true, &mut stats), Ok(()));
//! assert!(stats.programs > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//! - [`program`], [`run`]: programs, and their runs.
//! - [`bytes`]: the contents of files, while writes are in flight or were given up.
//! - [`names`]: directories and links, in every possible order.
//! - [`stream`]: the bytes received from a pipe or a connection.
//! - [`mailbox`]: the datagrams that a socket receives.
//! - [`sweep`] runs the programs of many seeds, and counts in [`stats`].
//!
//! The models, [`bytes`] to [`mailbox`], know the possible outcomes.
//! A run also checks that every operation ends, that notice of it is given, that no buffer is freed while
//! the kernel may use it, and that no descriptor, slot or entry is left at the end; [`sweep`] checks that
//! the same seed does the same twice.
//!
//! [`shrink`] makes a failing program smaller; it is written to a file, which the tests run from then on.
//!
//! [`soak`] is another kind of check: a mixed load on the runtime and the real kernel, of any duration,
//! after which the process must be in its initial state.

#![forbid(unsafe_code)]

pub mod bytes;
mod env;
mod held;
pub mod mailbox;
pub mod names;
pub mod program;
pub mod run;
pub mod shrink;
pub mod soak;
pub mod stats;
pub mod stream;
pub mod sweep;
