//! The experiments on compio.

use std::future::Future;
use std::process::ExitCode;

use peers_common::Peer;

struct Compio;

impl Peer for Compio {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        let runtime = compio::runtime::Runtime::new();
        runtime.expect("compio has what it needs").block_on(future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        let handle = compio::runtime::spawn(future);
        async { handle.await.expect("no task here panics or is aborted") }
    }

    fn yield_now() -> impl Future<Output = ()> {
        peers_common::yield_now()
    }
}

fn main() -> ExitCode {
    peers_common::main::<Compio>()
}
