//! A program on a log and on the model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use sakia_bench_support::mix;

use super::file::HeldFile;
use super::model::{Model, Request, State};
use super::program::{Answer, Step};
use super::{Flight, How, Log, What};
use crate::fuse::Fuse;

/// Set when a request is woken.
#[derive(Debug, Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A request of the program.
struct Open {
    number: usize,
    flight: Flight,
    bytes: Vec<u8>,
    /// That of the last poll.
    flag: Option<Arc<Flag>>,
}

/// A log and its model.
pub struct Run<'f, L> {
    fuse: &'f Fuse,
    open_log: &'f dyn Fn(&Path) -> L,
    patience: Duration,
    /// Before the log, which waits for its gates when it is dropped.
    file: HeldFile,
    log: Option<L>,
    model: Model,
    open: Vec<Open>,
    /// Of the bytes of the next record.
    seed: u64,
}

impl<'f, L: Log> Run<'f, L> {
    /// Makes a file, which is empty or not, and opens the log.
    pub fn new(
        fuse: &'f Fuse,
        open_log: &'f dyn Fn(&Path) -> L,
        seed: u64,
        patience: Duration,
    ) -> Self {
        let file = HeldFile::new(fuse, &vec![b'0'; (mix(seed) % 3 * 700) as usize]);
        let model = Model::new(fuse.content(&file.name));
        let log = Some(open_log(&fuse.join(&file.name)));
        Self { fuse, open_log, patience, file, log, model, open: Vec::new(), seed }
    }

    fn log(&self) -> &L {
        self.log.as_ref().expect("it is open")
    }

    /// Performs the program, and then finishes what is under way.
    pub fn perform(mut self, steps: &[Step]) {
        self.settle();
        for &step in steps {
            self.step(step);
            self.settle();
        }
        if !L::CLOSES_WELL && self.seed.is_multiple_of(4) {
            self.abandon();
        } else {
            self.drain();
            self.poll_all();
        }
        self.reopen();
        self.settle();
        self.close();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Start(what, how) => self.start(what, how),
            Step::Poll(index) => {
                if let Some(index) = index.checked_rem(self.open.len()) {
                    self.poll(index);
                }
            }
            Step::Drop(index) => {
                if let Some(index) = index.checked_rem(self.open.len()) {
                    self.discard(index);
                }
            }
            Step::Answer(answer) => self.answer(answer),
            Step::Pass(count) => {
                for _ in 0..count {
                    self.answer(Answer::Done);
                    self.settle();
                }
            }
            Step::Reopen => {
                while !self.open.is_empty() {
                    self.discard(0);
                }
                self.drain();
                self.reopen();
            }
            Step::Stop => {
                if let Some(log) = &mut self.log {
                    self.model.is_stopped |= log.stop().is_some();
                }
            }
        }
    }

    fn start(&mut self, what: What, how: How) {
        let len = match what {
            What::Append(len) | What::Durable(len) => len,
            What::Commit => 0,
        };
        self.seed = mix(self.seed);
        let bytes: Vec<u8> = (0..len).map(|index| record_byte(self.seed, index)).collect();
        // One that brings no byte joins unseen, so a thread waits for it only if it is the first.
        let how = if how == How::Wait && len == 0 && self.model.expects_call() {
            How::Submit
        } else {
            how
        };
        let number = self.model.add(what);
        let flight = self.log().start(what, bytes.clone(), how);
        if matches!(how, How::Submit | How::Wait) {
            self.model.begin(number, &bytes, how == How::Submit);
        }
        self.open.push(Open { number, flight, bytes, flag: None });
        if how == How::Poll {
            self.poll(self.open.len() - 1);
        }
    }

    /// Polls a request, and forgets it if it is over.
    fn poll(&mut self, index: usize) {
        let Open { number, flight, bytes, flag } = &mut self.open[index];
        if let Flight::Thread(_) = flight {
            return;
        }
        let log = self.log.as_ref().expect("it is open");
        if self.model.requests[*number].state == State::New {
            self.model.begin(*number, bytes, true);
        }
        let was_polled = flag.is_some();
        // Every other poll is by another task.
        let flag = match flag {
            Some(flag) if bytes.len() % 2 == 0 => Arc::clone(flag),
            _ => Arc::clone(flag.insert(Arc::default())),
        };
        flag.0.store(false, Ordering::Release);
        let mut polled = log.poll(flight, &Waker::from(flag));
        let request = &mut self.model.requests[*number];
        let State::Over(expected) = request.state else {
            return assert_eq!(polled, Poll::Pending, "request {number} is under way");
        };
        request.is_to_be_woken = false;
        if matches!(request.what, What::Append(_)) || !was_polled {
            // Its last call has an answer, of which the log has yet to learn: no wake was waited for.
            let deadline = Instant::now() + self.patience;
            while polled.is_pending() && Instant::now() < deadline {
                log.turn();
                polled = log.poll(flight, Waker::noop());
            }
        }
        assert_eq!(polled, Poll::Ready(expected), "request {number}");
        let over = self.open.remove(index);
        self.log().discard(over.flight);
    }

    fn discard(&mut self, index: usize) {
        let Open { number, flight, .. } = self.open.remove(index);
        let is_thread = matches!(flight, Flight::Thread(_));
        self.model.forget(number, L::FINISHES || is_thread);
        self.log().discard(flight);
    }

    /// Answers the call under way, if there is one.
    fn answer(&mut self, answer: Answer) {
        let Some(call) = self.file.held() else { return };
        self.model.answer(call, answer);
        self.file.answer(call, answer);
        self.push_appends();
    }

    /// Polls the appends that go on only in this way, and takes their failures.
    fn push_appends(&mut self) {
        if !L::APPENDS_BY_POLLS {
            return;
        }
        for index in (0..self.open.len()).rev() {
            let Request { what, state, .. } = self.model.requests[self.open[index].number];
            if matches!((what, state), (What::Append(_), State::Waits | State::Over(Err(_)))) {
                self.poll(index);
            }
        }
    }

    /// Waits until the log is where the model is.
    fn settle(&mut self) {
        let deadline = Instant::now() + self.patience;
        loop {
            match self.file.held() {
                Some(call) if self.model.is_optional(call) => self.answer(Answer::Done),
                Some(call) => {
                    self.model.check_call(call);
                    break;
                }
                None if !self.model.expects_call() => break,
                None => {
                    assert!(Instant::now() < deadline, "a call is missing");
                    self.push_appends();
                    self.log().turn();
                }
            }
        }
        self.check_counts(deadline);
        self.check_wakes(deadline);
    }

    fn check_counts(&mut self, deadline: Instant) {
        let (least, most) = self.model.live();
        let expected = (self.model.end, self.model.syncs, self.model.failure);
        loop {
            let log = self.log();
            let found = (log.end(), log.syncs(), log.failure());
            let live = log.live().unwrap_or(least);
            if found == expected && (least..=most).contains(&live) {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "end, syncs, failure are {found:?}, not {expected:?}; {live} live, not {least} to {most}"
            );
            log.turn();
        }
        if self.model.is_stopped {
            let log = self.log.as_mut().expect("it is open");
            while most == 0 && log.stop() == Some(false) {
                assert!(Instant::now() < deadline, "the engine does not stop");
                log.turn();
            }
            assert!(least == 0 || log.stop() == Some(false), "the engine has stopped too early");
        }
    }

    fn check_wakes(&mut self, deadline: Instant) {
        let mut index = 0;
        while index < self.open.len() {
            let Open { number, flight, flag, .. } = &self.open[index];
            let request = &self.model.requests[*number];
            // A thread may perform the round, and learns of an append's failure after it.
            let is_busy = !matches!(request.what, What::Append(_)) && self.model.is_performing();
            if let (Flight::Thread(receiver), State::Over(expected), false) =
                (flight, request.state, is_busy)
            {
                loop {
                    match receiver.recv_timeout(Duration::from_millis(1)) {
                        Ok(outcome) => break assert_eq!(outcome, expected, "request {number}"),
                        Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                            self.log().turn()
                        }
                        Err(error) => {
                            panic!("no thread has the result of request {number}: {error}")
                        }
                    }
                }
                self.open.remove(index);
                continue;
            }
            let is_woken = || flag.as_ref().is_some_and(|flag| flag.0.load(Ordering::Acquire));
            if request.is_to_be_woken && flag.is_some() {
                while !is_woken() {
                    assert!(Instant::now() < deadline, "request {number} is not woken");
                    self.log().turn();
                }
            } else if request.state == State::Waits && !matches!(request.what, What::Append(_)) {
                assert!(!is_woken(), "request {number} is woken before its round ends");
            }
            index += 1;
        }
    }

    /// Answers all calls well.
    fn drain(&mut self) {
        self.settle();
        while self.file.held().is_some() {
            self.answer(Answer::Done);
            self.settle();
        }
    }

    /// Polls what is over, and drops what never began.
    fn poll_all(&mut self) {
        while let Some(open) = self.open.first() {
            match self.model.requests[open.number].state {
                State::New => self.discard(0),
                _ => self.poll(0),
            }
        }
    }

    /// Ends the executor in the middle of a round: what was not acknowledged is failed.
    fn abandon(&mut self) {
        self.file.open_gates();
        self.log.take().expect("it is open").close();
        let acknowledged = |state| matches!(state, State::Over(Ok(_)));
        self.model.abandon();
        for Open { number, flight, .. } in self.open.drain(..) {
            let request = &self.model.requests[number];
            let (Flight::Future(mut future), State::Over(expected)) = (flight, request.state)
            else {
                continue;
            };
            if matches!(request.what, What::Append(_)) {
                continue;
            }
            let polled = future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()));
            // The round may have been finished at the last moment, unless it was not begun.
            let is_at_last = matches!(polled, Poll::Ready(Ok(_))) && !acknowledged(request.state);
            assert!(
                polled == Poll::Ready(expected) || is_at_last,
                "request {number} is {polled:?}"
            );
        }
    }

    /// Drops the log, compares the bytes of the file, and opens a copy: a dropped append may still be under
    /// way.
    fn reopen(&mut self) {
        let contents = self.close();
        self.file = HeldFile::new(self.fuse, &contents);
        self.log = Some((self.open_log)(&self.fuse.join(&self.file.name)));
    }

    /// Drops the log, and compares the bytes of the file.
    fn close(&mut self) -> Vec<u8> {
        self.file.open_gates();
        if let Some(log) = self.log.take() {
            log.close();
        }
        // A thread of a dropped request may not have its last answer yet.
        while self.fuse.waiting() > 0 {
            std::thread::yield_now();
        }
        let contents = self.fuse.content(&self.file.name);
        self.model.check_contents(contents.clone());
        self.model.reopen();
        contents
    }
}

/// Returns a byte of a record: none is 0, so that a gap is seen.
fn record_byte(seed: u64, index: usize) -> u8 {
    (mix(seed ^ (index as u64 / 8)) >> (index % 8 * 8)) as u8 | 1
}
