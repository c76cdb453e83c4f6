//! The experiments on Sakia.
//!
//! A runtime per thread, as it is by default: each operation takes the ring or the plain call by
//! Sakia's own rules. On connections and datagrams there is a variant `poll`: on epoll; on datagrams
//! `single`: one after the other, where otherwise all that have come go back together.

mod files;
mod net;

use std::future::Future;
use std::process::ExitCode;

use peers_common::{Job, Peer, Runtime, joined};
use sakia_driver::Policy;

struct Sakia;

impl Runtime for Sakia {
    fn block_on<T: 'static>(job: &Job, future: impl Future<Output = T> + 'static) -> T {
        if job.variant != "poll" {
            return sakia::block_on(future);
        }
        let runtime = sakia::Runtime::builder().backend(Policy::Poll).build();
        runtime.expect("Sakia has what it needs").block_on(future)
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
