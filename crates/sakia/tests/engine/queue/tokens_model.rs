//! Threads that submit, cancel and take at random, against a model of their files.

use std::collections::HashMap;
use std::io::PipeWriter;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sakia::Builder;
use sakia::engine::Queue;
use sakia::engine::queue::{FileHandle, Full, Outcome, QueueTicket, Request, Submitted, Value};
use sakia_driver::{Bypass, CURRENT_POSITION};
use sakia_testkit::random::Random;
use sakia_testkit::settings::number;

use crate::support::{Folder, engine, on_each_backend};

on_each_backend! {
    programs_of_four_threads
    programs_on_two_threads_without_plain_calls
}

const SUBMITTERS: u64 = 4;
/// The bytes of the file that each submitter has for itself.
const OWN_BYTES: u64 = 4_096;
/// The most requests that are under way.
const BOUND: usize = 48;

/// The value that a request must bring.
enum Expected {
    /// Bytes of a range that is not being written.
    Read(Range<u64>),
    /// Bytes that are in the range afterwards.
    Written(Range<u64>, Vec<u8>),
    /// A read of an empty pipe, which only a cancellation ends.
    Endless,
    /// A file.
    File,
    Nothing,
}

/// The requests of one submitter, and the contents of its part of the file; `None` for bytes that a canceled
/// write may have changed.
struct Model {
    first: u64,
    contents: Vec<Option<u8>>,
    under_way: HashMap<u64, (Option<QueueTicket>, Expected)>,
}

/// The counts of a run.
#[derive(Debug, Default)]
struct Counts {
    answered: AtomicU64,
    canceled: AtomicU64,
    at_once: AtomicU64,
    full: AtomicU64,
}

struct Run {
    queue: Queue,
    file: FileHandle,
    pipe: FileHandle,
    path: std::path::PathBuf,
    models: Vec<Mutex<Model>>,
    counts: Counts,
    /// Set once nothing more is submitted.
    is_over: AtomicBool,
}

fn lock<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the submitter of a token. Any number is a token.
fn owner(token: u64) -> usize {
    (token >> 62) as usize
}

impl Run {
    /// Makes a request at random, and notes what it must bring.
    fn make(&self, random: &mut Random, token: u64) -> Request {
        let mut model = lock(&self.models[owner(token)]);
        let from = random.below(OWN_BYTES - 1);
        let range = from..from + 1 + random.below((OWN_BYTES - from).min(500));
        let (len, offset) = ((range.end - range.start) as usize, model.first + from);
        let file = || (&self.file).into();
        let is_free = |with_reads: bool| {
            !model.under_way.values().any(|(_, expected)| match expected {
                Expected::Written(other, _) => other.start < range.end && range.start < other.end,
                Expected::Read(other) => {
                    with_reads && other.start < range.end && range.start < other.end
                }
                _ => false,
            })
        };
        let (request, expected) = match random.below(16) {
            0..3 if is_free(false) => {
                let request = Request::read(&self.file, vec![0; len].into(), offset);
                (request, Expected::Read(range))
            }
            3..6 if is_free(false) => {
                // An empty vector is read into up to its capacity.
                let buffers = vec![Vec::with_capacity(len).into()];
                let request = Request::ReadVectored { file: file(), buffers, offset, flags: 0 };
                (request, Expected::Read(range))
            }
            kind @ 6..10 if is_free(true) => {
                let bytes: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
                let (file, buffer) = (file(), bytes.clone());
                let request = match kind {
                    6..8 => Request::Write { file, buffer: buffer.into(), offset },
                    _ => {
                        let buffers = vec![buffer.into()];
                        Request::WriteVectored { file, buffers, offset, flags: 0 }
                    }
                };
                (request, Expected::Written(range, bytes))
            }
            10..13 => {
                let read = Request::read(&self.pipe, vec![0; 8].into(), CURRENT_POSITION);
                (read, Expected::Endless)
            }
            13 => {
                let path = std::os::unix::ffi::OsStrExt::as_bytes(self.path.as_os_str());
                let path = std::ffi::CString::new(path).unwrap();
                (Request::Open { directory: None, path, how: Default::default() }, Expected::File)
            }
            14 => {
                (Request::Stat { directory: Some(file()), path: None, flags: 0 }, Expected::Nothing)
            }
            _ => (Request::Nop, Expected::Nothing),
        };
        assert!(model.under_way.insert(token, (None, expected)).is_none());
        request
    }

    fn submit(&self, random: &mut Random, number: u64, steps: u64) {
        let mut step = 0;
        while step < steps {
            let mut batch = self.queue.batch();
            for _ in 0..1 + random.below(6).min(steps - step - 1) {
                let token = number << 62 | random.word() >> 2 & !0xff_ffff | step;
                step += 1;
                let mut request = self.make(random, token);
                let submitted = loop {
                    match batch.add(request, token) {
                        Ok(submitted) => break submitted,
                        Err(Full(back)) => {
                            // The others, or this thread, have to take some first.
                            count(&self.counts.full);
                            request = back;
                            batch.submit();
                            self.make_room(random);
                            batch = self.queue.batch();
                        }
                    }
                };
                match submitted {
                    Submitted::Done(outcome) => {
                        count(&self.counts.at_once);
                        self.check(outcome);
                    }
                    Submitted::UnderWay(ticket) => {
                        if let Some(entry) =
                            lock(&self.models[number as usize]).under_way.get_mut(&token)
                        {
                            entry.0 = Some(ticket);
                        }
                        if random.percent(10) {
                            self.queue.cancel(ticket); // before it is sent
                        }
                    }
                }
            }
            batch.submit();
            self.cancel_some(random, number);
            if random.percent(30) {
                self.take(1 + random.below(8) as usize);
            }
        }
    }

    /// Cancels requests of this submitter, some of which have ended.
    fn cancel_some(&self, random: &mut Random, number: u64) {
        let model = lock(&self.models[number as usize]);
        let tickets: Vec<QueueTicket> = model.under_way.values().filter_map(|of| of.0).collect();
        drop(model);
        for ticket in tickets {
            if random.percent(25) {
                self.queue.cancel(ticket);
            }
        }
    }

    fn make_room(&self, random: &mut Random) {
        for number in 0..SUBMITTERS {
            self.cancel_some(random, number);
        }
        if self.take(8) == 0 {
            self.queue.wait(Some(Duration::from_millis(1))).unwrap();
        }
    }

    fn take(&self, most: usize) -> usize {
        let mut outcomes = Vec::new();
        let taken = self.queue.take(most, &mut outcomes);
        assert_eq!(taken, outcomes.len());
        outcomes.into_iter().for_each(|outcome| self.check(outcome));
        taken
    }

    fn check(&self, outcome: Outcome) {
        assert!(!outcome.more);
        let mut model = lock(&self.models[owner(outcome.token)]);
        let (_, expected) =
            model.under_way.remove(&outcome.token).expect("each token is answered once");
        count(&self.counts.answered);
        let is_canceled = match &outcome.result {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED), "{error}");
                count(&self.counts.canceled);
                true
            }
        };
        let number = outcome.result.unwrap_or(0);
        let memory = match outcome.value {
            Value::Buffer(buffer) => buffer.into_vec(),
            Value::Buffers(mut buffers) => buffers.pop().and_then(|buffer| buffer.into_vec()),
            Value::File(file) => {
                assert!(matches!(expected, Expected::File) && file.raw() > 2);
                return;
            }
            _ => None,
        };
        match expected {
            Expected::Nothing => {}
            Expected::File => assert!(is_canceled),
            Expected::Endless => {
                assert!(is_canceled);
                assert!(memory.is_some(), "its memory comes back");
            }
            Expected::Read(range) => {
                let got = memory.expect("its memory comes back");
                assert!(is_canceled || number as u64 == range.end - range.start);
                assert!(got.len() >= number);
                for (place, byte) in range.zip(got).take(number) {
                    let expected = model.contents[place as usize];
                    assert!(expected.is_none_or(|expected| expected == byte), "byte {place}");
                }
            }
            Expected::Written(range, bytes) => {
                assert_eq!(memory.expect("its memory comes back"), bytes);
                assert!(is_canceled || number == bytes.len());
                for (place, byte) in range.zip(bytes) {
                    model.contents[place as usize] = (!is_canceled).then_some(byte);
                }
            }
        }
    }
}

fn run(queue: &Queue, seed: u64, steps: u64) -> Counts {
    let folder = Folder::new();
    let path = folder.file("shared", vec![0; (SUBMITTERS * OWN_BYTES) as usize]);
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (reader, writer): (_, PipeWriter) = std::io::pipe().unwrap();
    let model = |number: u64| {
        let contents = vec![Some(0); OWN_BYTES as usize];
        Mutex::new(Model { first: number * OWN_BYTES, contents, under_way: HashMap::new() })
    };
    queue.set_under_way_max(BOUND);
    let run = Run {
        queue: queue.clone(),
        file: FileHandle::new(file),
        pipe: FileHandle::new(OwnedFd::from(reader)),
        path: path.clone(),
        models: (0..SUBMITTERS).map(model).collect(),
        counts: Counts::default(),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let submitters: Vec<_> = (0..SUBMITTERS)
            .map(|number| {
                let (run, mut random) = (&run, Random::new(seed << 3 | number));
                scope.spawn(move || run.submit(&mut random, number, steps))
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !(run.is_over.load(Ordering::Acquire) && run.queue.under_way() == 0) {
                    run.queue.wait(Some(Duration::from_millis(20))).unwrap();
                    run.take(usize::MAX);
                }
            });
        }
        for submitter in submitters {
            submitter.join().unwrap();
        }
        run.is_over.store(true, Ordering::Release);
        let mut random = Random::new(seed);
        while run.queue.under_way() > 0 {
            run.make_room(&mut random);
        }
    });
    let got = std::fs::read(path).unwrap();
    for model in &run.models {
        let model = lock(model);
        assert!(model.under_way.is_empty());
        let own = &got[model.first as usize..][..OWN_BYTES as usize];
        let is_same =
            |(got, expected): (&u8, &Option<u8>)| expected.is_none_or(|byte| byte == *got);
        assert!(own.iter().zip(&model.contents).all(is_same), "seed {seed}");
    }
    drop(writer);
    run.counts
}

/// Runs programs of `SAKIA_TEST_TOKENS` requests in all.
fn run_many(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let tokens = number("SAKIA_TEST_TOKENS", 12_000);
    let steps = 500;
    let mut sums = [0; 4];
    for seed in 0..tokens.div_ceil(SUBMITTERS * steps) {
        let Counts { answered, canceled, at_once, full } = run(&queue, seed, steps);
        let counts = [answered, canceled, at_once, full].map(AtomicU64::into_inner);
        assert_eq!(counts[0], SUBMITTERS * steps);
        sums = std::array::from_fn(|which| sums[which] + counts[which]);
    }
    let [answered, canceled, at_once, full] = sums;
    println!("{answered} answered, {canceled} canceled, {at_once} at once, {full} times full");
    assert!(canceled * 5 > answered && full > 0, "{sums:?}");
    let counts = engine.statistics();
    assert_eq!((counts.now, counts.submitted), (at_once, answered - at_once));
    assert_eq!(counts.live, 0);
}

fn programs_of_four_threads(builder: &Builder) {
    run_many(builder);
}

fn programs_on_two_threads_without_plain_calls(builder: &Builder) {
    run_many(&builder.clone().threads(2).bypass(Bypass::Never));
}
