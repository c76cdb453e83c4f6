//! The experiments on Sakia.
//!
//! A runtime per thread, as it is by default: each operation takes the ring or the plain call by
//! Sakia's own rules. On connections and datagrams there is a variant `poll`: on epoll; on connections
//! `queue` and `readiness`, without a choice between the two ways; on datagrams `single`: one after the
//! other, where otherwise all that have come go back together.

mod files;
mod net;

use std::future::Future;
use std::process::ExitCode;

use peers_common::{Job, Peer, Runtime, joined};
use sakia_driver::{Policy, Streams};

struct Sakia;

impl Runtime for Sakia {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        let builder = sakia::Runtime::builder();
        let builder = match job.variant.as_str() {
            "poll" => builder.backend(Policy::Poll),
            "queue" | "attended" => builder.streams(Streams::Queue),
            "readiness" => builder.streams(Streams::Readiness),
            _ => return sakia::block_on(future),
        };
        builder.build().expect("Sakia has what it needs").block_on(future)
    }
}

impl Peer for Sakia {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        joined(sakia::spawn(future))
    }

    fn yield_now() -> impl Future<Output = ()> {
        sakia::yield_now()
    }
}

fn main() -> ExitCode {
    peers_common::main::<Sakia>()
}
