//! Random programs on tokio's log, against the model of `sakia_testkit::rounds`.

use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use sakia_testkit::available;
use sakia_testkit::fuse::Fuse;
use sakia_testkit::rounds::{self, Flight, How, Log, Outcome, What, outcome};
use sakia_tokio::fs::{File, GroupCommit};
use tokio::runtime::Runtime;

use crate::support::{current_thread, multi_thread};

/// The number of programs on each kind of runtime.
const PROGRAMS: u64 = 40;

#[test]
fn programs_agree_with_the_model() {
    let fuse = available!(Fuse::builder().direct_io(true).mount());
    rounds::check(&fuse, PROGRAMS, |path| TokioLog::open(current_thread(), path));
    rounds::check(&fuse, PROGRAMS, |path| TokioLog::open(multi_thread(), path));
}

/// A log on a runtime of its own, and the engine of the process.
struct TokioLog {
    log: GroupCommit,
    runtime: Runtime,
}

impl TokioLog {
    fn open(runtime: Runtime, path: &Path) -> Self {
        let log = runtime.block_on(async {
            let file = File::options().write(true).open(path).await?;
            GroupCommit::new(file).await
        });
        Self { log: log.unwrap(), runtime }
    }
}

impl Log for TokioLog {
    const WAYS: &[How] = &[How::Poll, How::Poll, How::Poll, How::Later];
    const FINISHES: bool = true;
    const APPENDS_BY_POLLS: bool = false;
    const CLOSES_WELL: bool = true;

    fn end(&self) -> u64 {
        self.log.end()
    }

    fn syncs(&self) -> u64 {
        self.log.syncs()
    }

    fn failure(&self) -> Option<i32> {
        self.log.failure()
    }

    fn start(&self, what: What, bytes: Vec<u8>, _: How) -> Flight {
        let log = self.log.clone();
        Flight::Future(Box::pin(async move {
            outcome(match what {
                What::Append(_) => log.append(bytes).await,
                What::Durable(_) => log.append_durable(bytes).await,
                What::Commit => log.commit().await.map(|()| 0),
            })
        }))
    }

    fn poll(&self, flight: &mut Flight, waker: &Waker) -> Poll<Outcome> {
        let Flight::Future(future) = flight else { unreachable!("no thread waits") };
        let _entered = self.runtime.enter();
        future.as_mut().poll(&mut Context::from_waker(waker))
    }

    fn discard(&self, flight: Flight) {
        drop(flight);
    }

    fn turn(&self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn close(self) {}
}
