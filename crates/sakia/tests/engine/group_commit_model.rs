//! Random programs on an engine's log, against the model of `sakia_testkit::rounds`.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use sakia::engine::GroupCommit;
use sakia::fs::OpenOptions;
use sakia::{Builder, Engine};
use sakia_testkit::available;
use sakia_testkit::fuse::Fuse;
use sakia_testkit::rounds::{self, Flight, How, Log, Outcome, What, outcome};

use crate::support::{engine, on_each_backend, poll_once, with_remote_mounts};

on_each_backend! {
    programs_agree_with_the_model
}

/// The number of programs on each backend.
const PROGRAMS: u64 = 100;

fn programs_agree_with_the_model(builder: &Builder) {
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().direct_io(true).mount());
    rounds::check(&fuse, PROGRAMS, |path| EngineLog::open(builder, path));
}

/// A log on an engine of its own.
struct EngineLog {
    engine: Engine,
    log: GroupCommit,
}

/// Returns the outcome of a record, which has to come back.
fn of_record(written: (io::Result<u64>, Vec<u8>), bytes: &[u8]) -> Outcome {
    assert!(written.1 == bytes, "other bytes come back");
    outcome(written.0)
}

impl EngineLog {
    fn open(builder: &Builder, path: &Path) -> Self {
        let engine = engine(builder);
        let file = engine.open_with(path, OpenOptions::new().write(true)).wait().unwrap();
        let log = GroupCommit::new(file).wait().unwrap();
        Self { engine, log }
    }
}

/// Begins a request in one of the ways.
macro_rules! begin {
    ($request:expr, $how:expr, $outcome:expr) => {{
        let (request, outcome) = ($request, $outcome);
        match $how {
            How::Wait => {
                let (sender, receiver) = mpsc::channel();
                thread::spawn(move || _ = sender.send(outcome(request.wait())));
                Flight::Thread(receiver)
            }
            How::Submit => {
                let request = request.submit();
                Flight::Future(Box::pin(async move { outcome(request.await) }))
            }
            How::Later | How::Poll => {
                Flight::Future(Box::pin(async move { outcome(request.await) }))
            }
        }
    }};
}

impl Log for EngineLog {
    const WAYS: &[How] = &[How::Poll, How::Poll, How::Submit, How::Wait, How::Later];
    const FINISHES: bool = false;
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

    fn start(&self, what: What, bytes: Vec<u8>, how: How) -> Flight {
        let copy = bytes.clone();
        match what {
            What::Append(_) => {
                begin!(self.log.append(bytes), how, move |written| of_record(written, &copy))
            }
            What::Durable(_) => {
                begin!(self.log.append_durable(bytes), how, move |written| of_record(
                    written, &copy
                ))
            }
            What::Commit => {
                begin!(self.log.commit(), how, |result: io::Result<()>| outcome(result.map(|()| 0)))
            }
        }
    }

    fn poll(&self, flight: &mut Flight, waker: &Waker) -> Poll<Outcome> {
        let Flight::Future(future) = flight else { unreachable!("a thread waits for it") };
        future.as_mut().poll(&mut Context::from_waker(waker))
    }

    fn discard(&self, flight: Flight) {
        drop(flight);
    }

    fn turn(&self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn live(&self) -> Option<u64> {
        Some(self.engine.statistics().live)
    }

    fn stop(&mut self) -> Option<bool> {
        Some(poll_once(&mut Box::pin(self.engine.stop())).is_ready())
    }

    fn close(self) {
        self.engine.stop_and_wait();
        assert_eq!(self.engine.statistics().live, 0);
    }
}
