//! `libsakia`: loops and queues of requests, for C and other languages.
//!
//! The contract is in the header, `include/sakia.h`, which `cargo xtask header` makes of the comments here.
//! The types and functions have the names that they have in C.
//!
//! - `interface` has the structures and numbers that cross the boundary.
//! - `guard` turns panics and bad arguments into errors with a text.
//! - `event_loop` has the functions of a loop, and `queue` those of a queue. `options` checks their
//!   arguments, `request` makes what a request of C is in Rust, and `answer` the way back. `message` is the
//!   part of both that is about datagrams.
//! - `tree` has copies and removals of trees, on threads of their own.
//! - `file` and `waker` have the two handles that any thread may use.
//!
//! # Invariants
//! - No panic leaves a function, see [`guard::guarded`].
//! - A loop is used on its thread and in its process only, and by one call at a time: `event_loop` checks
//!   that before it makes a reference to it. A queue is read by all threads, but for what has a lock.
//! - Memory that a request names is given to the driver, or kept as an address in `pending` until its result
//!   is taken. Nothing else keeps an address of the program.

#![expect(non_camel_case_types, reason = "the names in C")]

mod answer;
mod event_loop;
mod file;
mod guard;
mod interface;
mod message;
mod options;
mod pending;
mod queue;
mod request;
mod tree;
mod waker;
