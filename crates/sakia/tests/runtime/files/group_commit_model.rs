//! Random programs on a runtime's log, against the model of `sakia_testkit::rounds`.

use std::future::poll_fn;
use std::path::Path;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sakia::Runtime;
use sakia::fs::{GroupCommit, OpenOptions};
use sakia::time::sleep;
use sakia_testkit::available;
use sakia_testkit::fuse::Fuse;
use sakia_testkit::rounds::{self, Flight, How, Log, Outcome, What, outcome};

/// The number of programs.
const PROGRAMS: u64 = 60;

#[test]
fn programs_agree_with_the_model() {
    let fuse = available!(Fuse::builder().direct_io(true).mount());
    rounds::check(&fuse, PROGRAMS, RuntimeLog::open);
}

/// A log on a runtime of its own.
struct RuntimeLog {
    log: GroupCommit,
    runtime: Runtime,
}

impl RuntimeLog {
    fn open(path: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        let log = runtime.block_on(async {
            let file = OpenOptions::new().write(true).open(path).await?;
            GroupCommit::new(file).await
        });
        Self { log: log.unwrap(), runtime }
    }
}

impl Log for RuntimeLog {
    const WAYS: &[How] = &[How::Poll, How::Poll, How::Poll, How::Later];
    const FINISHES: bool = false;
    const APPENDS_BY_POLLS: bool = true;
    const CLOSES_WELL: bool = false;

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
            let copy = bytes.clone();
            let (result, back) = match what {
                What::Append(_) => log.append(bytes).await,
                What::Durable(_) => log.append_durable(bytes).await,
                What::Commit => (log.commit().await.map(|()| 0), bytes),
            };
            assert!(back == copy, "other bytes come back");
            outcome(result)
        }))
    }

    fn poll(&self, flight: &mut Flight, waker: &Waker) -> Poll<Outcome> {
        let Flight::Future(future) = flight else { unreachable!("no thread waits") };
        let mut poll = || future.as_mut().poll(&mut Context::from_waker(waker));
        self.runtime.block_on(poll_fn(|_| Poll::Ready(poll())))
    }

    fn discard(&self, flight: Flight) {
        self.runtime.block_on(async { drop(flight) });
    }

    fn turn(&self) {
        self.runtime.block_on(async { sleep(Duration::from_micros(20)).await });
    }

    fn close(self) {}
}
