//! The experiments on Sakia.
//!
//! Each thread has a runtime with its defaults: Sakia's own rules choose the ring or a plain call for each
//! operation. Connections and datagrams have a variant `poll`, on epoll. Connections have `queue` and
//! `readiness`, which fix one of the two ways. Datagrams have `single`, which sends them back one by one
//! instead of all arrived ones together.

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
