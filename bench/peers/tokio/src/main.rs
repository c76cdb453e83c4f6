//! The experiments on tokio: a runtime of the current thread, and a local set.

use std::future::Future;
use std::process::ExitCode;

use peers_common::Peer;

struct Tokio;

impl Peer for Tokio {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("tokio has what it needs");
        tokio::task::LocalSet::new().block_on(&runtime, future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        let handle = tokio::task::spawn_local(future);
        async { handle.await.expect("no task here panics or is aborted") }
    }

    fn yield_now() -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }
}

fn main() -> ExitCode {
    peers_common::main::<Tokio>()
}
