//! The experiments on monoio.

use std::future::Future;
use std::process::ExitCode;

use peers_common::Peer;

struct Monoio;

impl Peer for Monoio {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        let runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build();
        runtime.expect("monoio has what it needs").block_on(future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        monoio::spawn(future)
    }

    fn yield_now() -> impl Future<Output = ()> {
        peers_common::yield_now()
    }
}

fn main() -> ExitCode {
    peers_common::main::<Monoio>()
}
