//! The experiments on glommio.

use std::future::Future;
use std::process::ExitCode;

use glommio::{LocalExecutorBuilder, Placement};
use peers_common::Peer;

struct Glommio;

impl Peer for Glommio {
    fn block_on(future: impl Future<Output = ()> + 'static) {
        // Little locked memory, so that the usual limit of 8 MiB suffices.
        let builder = LocalExecutorBuilder::new(Placement::Unbound).io_memory(64 << 10);
        builder.make().expect("glommio has what it needs").run(future);
    }

    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        glommio::spawn_local(future)
    }

    async fn yield_now() {
        glommio::executor().yield_now().await;
    }
}

fn main() -> ExitCode {
    peers_common::main::<Glommio>()
}
