//! Random programs of operations, and the models that their outcome must match.
//!
//! A [`Program`](program::Program) is a list of steps: open, read, write, rename, send, cancel, drop,
//! take a turn. It is run with the driver on the simulated kernel, whose every choice and fault follows
//! from a seed, or on this machine. The models say which outcomes are possible:
//! - [`bytes`]: the contents of files, while writes are under way or were given up;
//! - [`names`]: directories and links, in every order that is possible;
//! - [`stream`]: what comes out of a pipe or a connection;
//! - [`mailbox`]: which datagrams a socket receives.
//!
//! Beside the outcome a run checks that every operation ends, that notice of it is given, that no buffer
//! is freed while the kernel may use it, that no descriptor, slot or entry is left at the end; and
//! [`sweep`] that the same seed does the same twice.
//!
//! What fails is made smaller by [`shrink`] and written to a file, which the tests run for ever.
//!
//! [`soak`] is another kind of check: a mixed load on the runtime and the real kernel, which goes on for as
//! long as one likes, and after which the process must be as it was before.

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
