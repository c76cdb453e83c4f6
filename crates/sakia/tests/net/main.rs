//! Tests of `sakia::net`: each on the ring and on epoll, and what the simulated kernel has there, too.
//!
//! `bad_peers` is about those at the other end, by the situation they bring about; `scenes` about what must
//! not happen to other tests.

#![expect(
    clippy::unwrap_used,
    reason = "the failure of a test, or of what it calls, is its report"
)]

mod ahead;
mod bad_peers;
mod datagram_errors;
mod datagrams;
#[cfg(all(feature = "futures-io", feature = "hyper", feature = "tokio"))]
mod foreign;
mod hostile;
mod listeners;
mod options;
mod scenes;
mod send_file;
mod serving;
#[cfg(feature = "sim")]
mod simulated;
#[cfg(feature = "sim")]
mod simulated_datagrams;
mod streams;
mod support;
mod unix;
