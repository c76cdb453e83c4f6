//! The experiments on Sakia.
//!
//! A runtime per thread, as it is by default: each operation takes the ring or the plain call by
//! Sakia's own rules. On connections there is a variant `poll`: on epoll.

mod files;
mod net;

use std::future::Future;
use std::process::ExitCode;

use peers_common::Peer;

struct Sakia;

impl Peer for Sakia {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        sakia::block_on(future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        let handle = sakia::spawn(future);
        async { handle.await.expect("no task here panics or is aborted") }
    }

    fn yield_now() -> impl Future<Output = ()> {
        sakia::yield_now()
    }
}

fn main() -> ExitCode {
    peers_common::main::<Sakia>()
}
