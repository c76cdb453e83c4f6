//! The experiments on the smallest executor that safe code on `async-task` allows: a queue in a
//! thread-local, without I/O, wakes from other threads, handling of panics, or an end.
//!
//! It shows the part of a runtime's cost that is the task library's: no runtime on these tasks can cost
//! less.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};

use async_task::Runnable;
use peers_common::{Job, Peer, Runtime};

thread_local! {
    static QUEUE: RefCell<VecDeque<Runnable>> = const { RefCell::new(VecDeque::new()) };
}

struct Floor;

impl Runtime for Floor {
    fn block_on<T: 'static>(_: &Job, future: impl Future<Output = T> + 'static) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return value;
            }
            while let Some(runnable) = QUEUE.with(|queue| queue.borrow_mut().pop_front()) {
                runnable.run();
            }
        }
    }
}

impl Peer for Floor {
    fn spawn<T: 'static>(
        future: impl Future<Output = T> + 'static,
    ) -> impl Future<Output = T> + 'static {
        let schedule = |runnable| QUEUE.with(|queue| queue.borrow_mut().push_back(runnable));
        let (runnable, task) = async_task::spawn_local(future, schedule);
        runnable.schedule();
        task
    }
}

fn main() -> ExitCode {
    peers_common::main_tasks::<Floor>()
}
