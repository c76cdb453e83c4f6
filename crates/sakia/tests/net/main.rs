//! Tests of `sakia::net`: each on the ring and on epoll, and on the simulated kernel as far as that
//! supports it.
//!
//! `arrivals` mixes all methods of an object at random. `bad_peers` has one test for each way in which a peer
//! can fail; `scenes` has tests that would disturb other tests of their process.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod ahead;
mod arrivals;
mod bad_peers;
mod closed;
mod datagram_errors;
mod datagrams;
#[cfg(all(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod foreign;
mod hostile;
mod listeners;
mod options;
mod scenes;
mod send_file;
mod serve_model;
mod serving;
#[cfg(feature = "sim")]
mod simulated;
#[cfg(feature = "sim")]
mod simulated_datagrams;
mod streams;
mod support;
mod unix;
