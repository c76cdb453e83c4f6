//! Recordings begin, fail to begin, fail midway and end, in any order, and each leaves what it should.
//!
//! A random program has the steps of a [process](Step) with three threads that come and go. A [model](Model)
//! says after each step which files exist, and whether a recording is on; after its end, which events the
//! file has. Failing programs are made smaller.
//!
//! `SAKIA_TEST_PROGRAMS` is the number of programs, and `SAKIA_TEST_SEED` the first of them.
//!
//! # Compared
//! - The error of a begin, or none: at paths where there is a file, a folder or a link, where no file can be,
//!   while a recording is on, and with a limit on the size of files that is smaller than the begin of one.
//! - After each step, the folder's files. A begin that failed leaves none.
//! - After a flush, at the end of a thread and at the end of the recording, by call or by drop: the file has
//!   the events of each thread, in order, each with the task that ran, and no others. If buffers are small,
//!   those that are missing were counted as lost.
//! - Events come into the file without a flush, again and again.
//! - A recording whose file cannot grow (the limit stands for a full disk, and needs no privileges): the
//!   error comes at the end, the file has nothing wrong before its end, and the next recording begins.
//! - Forked children: they have no part in the parent's recording, and change nothing of it or its file.
//!   They may have a recording of their own, unless another thread worked at the fork.
//!
//! # Left out
//! - A second end of a recording: the first takes it. One that is begun by the environment, which has no end:
//!   `recording` has it.
//! - Missing permission, which root does not miss, and a thread that cannot be started.
//! - Events while another thread ends the recording: they may be in the file or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sakia_testkit::forked;
use sakia_testkit::random::{Random, programs};
use sakia_testkit::settings::patience;
use sakia_trace::{EventKind, EventType, Recording, Trace, TraceOptions, flush, is_on, record};

/// Files of the folder that recordings are written to. Then there are paths where no recording can begin.
const FILES: usize = 3;
const PATHS: [&str; 7] = ["a", "b", "c", "missing/a", "folder", "link", "nul\0"];
/// The thread of the test is the last one.
const THREADS: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin {
        path: usize,
        events: usize,
    },
    Stop,
    Drop,
    Flush,
    /// The thread of the test records moments, and waits until they are in the file, twice.
    Wait,
    /// A thread begins, or ends.
    Comes(usize),
    Goes(usize),
    /// A thread records so many moments, while this task runs on it.
    Record {
        thread: usize,
        count: u64,
        task: u64,
    },
    Remove(usize),
    /// Files may grow by so many bytes, or as they like.
    Limit(u64),
    Unlimited,
    /// A forked child records, and begins a recording of its own.
    Fork {
        path: usize,
    },
}

fn make(random: &mut Random) -> Vec<Step> {
    let mut steps = Vec::new();
    for thread in 0..3 {
        if random.percent(60) {
            steps.push(Step::Comes(thread));
        }
    }
    for _ in 0..random.below(6) + 1 {
        // A begin, the time of a recording, and its end; each may be missing.
        let paths = if random.percent(80) { FILES } else { PATHS.len() };
        let path = random.below(paths as u64) as usize;
        let events = random.one_of(&[0, 2, 64, 1 << 14, 1 << 14]);
        steps.push(Step::Begin { path, events });
        for _ in 0..random.below(12) {
            steps.push(step(random));
        }
        if random.percent(60) {
            steps.push(random.one_of(&[Step::Stop, Step::Stop, Step::Drop]));
        }
    }
    steps
}

fn step(random: &mut Random) -> Step {
    let thread = random.below(THREADS as u64 - 1) as usize;
    let path = random.below(FILES as u64) as usize;
    match random.below(20) {
        0 => Step::Flush,
        1..3 => Step::Comes(thread),
        3..5 => Step::Goes(thread),
        5..14 => {
            let count = random.one_of(&[1, 1, 3, 100, 300]);
            let thread = random.below(THREADS as u64) as usize;
            Step::Record { thread, count, task: random.below(3) }
        }
        14..17 => Step::Remove(path),
        17 => Step::Limit(random.below(40)),
        18 => Step::Unlimited,
        // It takes two periods of the thread that writes.
        19 if random.percent(20) => Step::Wait,
        _ => Step::Fork { path },
    }
}

/// The contents that a file must have.
#[derive(Clone, Debug)]
enum Content {
    /// All events of a recording, and so many of them may be missing.
    Whole(Events),
    /// It was cut short.
    Cut(Events),
    /// The recording of a child, which may have failed to begin.
    Childs,
}

/// The numbers of the moments, with the task, by thread; a thread that comes again is another one.
type Events = BTreeMap<(usize, u64), Vec<(u64, u64)>>;

/// The state that a process must be in.
#[derive(Default)]
struct Model {
    files: BTreeMap<usize, Content>,
    on: Option<On>,
    /// How often each thread has come.
    comings: [u64; THREADS],
    /// The number of the last moment.
    last: u64,
    is_limited: bool,
}

/// A recording that is on.
struct On {
    path: usize,
    is_removed: bool,
    events: Events,
    /// The file could not grow.
    has_failed: bool,
    may_lose: bool,
}

/// A thread, which runs what it gets.
struct Worker {
    work: Sender<Box<dyn FnOnce() + Send>>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn new(index: usize, coming: u64) -> Self {
        let (work, receiver) = channel::<Box<dyn FnOnce() + Send>>();
        let name = thread_name(index, coming);
        let main = move || receiver.into_iter().for_each(|work| work());
        let thread = thread::Builder::new().name(name).spawn(main).expect("a thread");
        Self { work, thread }
    }

    fn run(&self, work: impl FnOnce() + Send + 'static) {
        let (done, wait) = channel();
        let work = move || {
            work();
            done.send(()).expect("it waits");
        };
        self.work.send(Box::new(work)).expect("it runs");
        wait.recv().expect("no panic");
    }

    fn end(self) {
        drop(self.work);
        self.thread.join().expect("no panic");
    }
}

fn thread_name(index: usize, coming: u64) -> String {
    format!("worker {index} {coming}")
}

/// Records moments as the program of a task, or of none.
fn moments(first: u64, count: u64, task: u64) {
    let kind = EventKind::register("counted", ["number", "reverse"]);
    if task > 0 && is_on() {
        record(EventType::PollBegin, task, 0, 0);
    }
    for number in first..first + count {
        kind.record(number, !number);
        if is_on() {
            record(EventType::Queued, number, 0, 99);
            record(EventType::Resumed, number, 0, 0);
        }
    }
    if task > 0 && is_on() {
        record(EventType::PollEnd, task, 0, 0);
    }
}

/// Lets files grow again at the end.
struct Unlimited(PathBuf);

impl Unlimited {
    fn limit(bytes: Option<u64>) {
        let maximum = getrlimit(Resource::Fsize).maximum;
        setrlimit(Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum })
            .expect("a limit");
    }
}

impl Drop for Unlimited {
    fn drop(&mut self) {
        Self::limit(None);
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program under way.
struct Run<'a> {
    folder: &'a Path,
    model: Model,
    recording: Option<Recording>,
    workers: [Option<Worker>; THREADS - 1],
}

fn run(steps: &[Step]) -> Option<String> {
    let folder =
        Unlimited(std::env::temp_dir().join(format!("sakia-trace-life-{}", std::process::id())));
    let _ = fs::remove_dir_all(&folder.0);
    fs::create_dir_all(folder.0.join("folder")).expect("a folder");
    symlink("target", folder.0.join("link")).expect("a link");
    let (model, workers) = (Model::default(), [const { None }; THREADS - 1]);
    let mut run = Run { folder: &folder.0, model, recording: None, workers };
    let mut failure = None;
    for (index, step) in steps.iter().enumerate() {
        failure = run.step(*step).or_else(|| run.look());
        if let Some(failure) = &mut failure {
            *failure = format!("step {index}: {failure}");
            break;
        }
    }
    run.workers.into_iter().flatten().for_each(Worker::end);
    drop(run.recording);
    failure
}

/// Returns a sentence if the two differ.
fn differ<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Option<String> {
    (found != expected).then(|| format!("{what}: {found:?}, expected {expected:?}"))
}

impl Run<'_> {
    fn path(&self, path: usize) -> PathBuf {
        self.folder.join(PATHS[path])
    }

    fn step(&mut self, step: Step) -> Option<String> {
        match step {
            Step::Begin { path, events } => self.begin(path, events),
            Step::Stop | Step::Drop => self.end(matches!(step, Step::Drop)),
            Step::Flush => {
                flush();
                self.model.on.as_ref().and_then(|on| self.file_of(on, None))
            }
            Step::Wait => (0..2).find_map(|_| self.wait()),
            Step::Comes(thread) => {
                let coming = &mut self.model.comings[thread];
                let worker = &mut self.workers[thread];
                if worker.is_none() {
                    *coming += 1;
                    *worker = Some(Worker::new(thread, *coming));
                }
                None
            }
            Step::Goes(thread) => {
                self.workers[thread].take()?.end();
                // One that has recorded something writes what there is.
                let its = (thread, self.model.comings[thread]);
                let on = self.model.on.as_ref().filter(|on| on.events.contains_key(&its));
                on.and_then(|on| self.file_of(on, None))
            }
            Step::Record { thread, count, task } => {
                let first = self.model.last + 1;
                match self.workers.get(thread) {
                    Some(Some(worker)) => worker.run(move || moments(first, count, task)),
                    Some(None) => return None,
                    None => moments(first, count, task),
                }
                self.model.last += count;
                if let Some(on) = &mut self.model.on {
                    let its = on.events.entry((thread, self.model.comings[thread])).or_default();
                    its.extend((first..first + count).map(|number| (number, task)));
                }
                None
            }
            Step::Remove(path) => {
                if self.model.files.remove(&path).is_some() {
                    // The child may have left none.
                    let _ = fs::remove_file(self.path(path));
                }
                if let Some(on) =
                    self.model.on.as_mut().filter(|on| on.path == path && !on.is_removed)
                {
                    on.is_removed = true;
                    fs::remove_file(self.folder.join(PATHS[path])).expect("the recording's file");
                }
                None
            }
            Step::Limit(bytes) => {
                let on = self.model.on.as_mut();
                let file =
                    on.as_ref().and_then(|on| fs::metadata(self.folder.join(PATHS[on.path])).ok());
                if on.as_ref().is_some_and(|on| on.is_removed) {
                    return None;
                }
                // A write is longer than that. The writer may have been at work on one.
                flush();
                Unlimited::limit(Some(file.map_or(0, |file| file.len()) + bytes));
                flush();
                if let Some(on) = on {
                    on.has_failed = true;
                }
                self.model.is_limited = true;
                None
            }
            Step::Unlimited => {
                Unlimited::limit(None);
                self.model.is_limited = false;
                None
            }
            Step::Fork { path } => self.fork(path),
        }
    }

    /// Records moments, and waits until the thread that writes has brought them to the file.
    fn wait(&mut self) -> Option<String> {
        let (thread, count) = (THREADS - 1, 3);
        self.step(Step::Record { thread, count, task: 0 });
        let on = self.model.on.as_ref().filter(|on| !on.is_removed && !on.has_failed)?;
        let begin = Instant::now();
        while let Some(difference) = self.file_of(on, None) {
            if begin.elapsed() > patience() {
                return Some(format!("without a flush: {difference}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn begin(&mut self, path: usize, events: usize) -> Option<String> {
        let mut options = TraceOptions::default();
        options.buffer_events = events;
        let result = Recording::to_file(self.path(path), options);
        let is_taken = || self.model.files.contains_key(&path);
        let expected = if self.model.on.is_some() {
            Err(rustix::io::Errno::ALREADY)
        } else {
            match PATHS[path] {
                "missing/a" => Err(rustix::io::Errno::NOENT),
                "folder" | "link" => Err(rustix::io::Errno::EXIST),
                "nul\0" => Err(rustix::io::Errno::INVAL),
                _ if matches!(self.model.files.get(&path), Some(Content::Childs)) => {
                    // There is one, or not.
                    match self.path(path).exists() && result.is_err() {
                        true => Err(rustix::io::Errno::EXIST),
                        false => Ok(()),
                    }
                }
                _ if is_taken() => Err(rustix::io::Errno::EXIST),
                _ if self.model.is_limited => Err(rustix::io::Errno::FBIG),
                _ => Ok(()),
            }
        };
        match (result, expected) {
            (Ok(recording), Ok(())) => {
                let difference = differ("path", recording.path(), &self.path(path));
                self.recording = Some(recording);
                self.model.files.remove(&path);
                let may_lose = events <= 64;
                self.model.on = Some(On {
                    path,
                    is_removed: false,
                    events: Events::new(),
                    has_failed: false,
                    may_lose,
                });
                difference
            }
            (Ok(_), Err(errno)) => Some(format!("begun, and not {errno}")),
            (Err(error), Ok(())) => Some(format!("not begun: {error}")),
            (Err(error), Err(errno)) => {
                let cause = io::Error::from(errno);
                let expected = format!("cannot record to {}: {cause}", self.path(path).display());
                differ("error", error.kind(), cause.kind())
                    .or_else(|| differ("error", error.to_string(), expected))
            }
        }
    }

    /// Ends the recording, by a call or by the drop.
    fn end(&mut self, by_drop: bool) -> Option<String> {
        let recording = self.recording.take()?;
        let on = self.model.on.take().expect("both, or none");
        let counts = if by_drop {
            drop(recording);
            None
        } else {
            match recording.stop() {
                Ok(_) if on.has_failed => return Some("no error, and the file is cut".into()),
                Err(error) if !on.has_failed => return Some(format!("ended with {error}")),
                Ok(summary) => Some((summary.events, summary.lost)),
                Err(error) if error.kind() == ErrorKind::FileTooLarge => None,
                Err(error) => return Some(format!("another error: {error}")),
            }
        };
        Unlimited::limit(None);
        self.model.is_limited = false;
        let difference = self.file_of(&on, Some(counts));
        if !on.is_removed {
            let content = if on.has_failed { Content::Cut } else { Content::Whole };
            self.model.files.insert(on.path, content(on.events));
        }
        difference
    }

    /// Compares the file of a recording with the events so far. At its end, it is complete, and the counts
    /// are right if there are any.
    fn file_of(&self, on: &On, ended: Option<Option<(u64, u64)>>) -> Option<String> {
        if on.is_removed {
            return None;
        }
        let bytes = fs::read(self.path(on.path)).expect("the recording's file");
        // The thread that writes may be at work.
        let may_end_early = on.has_failed || ended.is_none();
        compare(&bytes, &on.events, [on.has_failed, may_end_early, on.may_lose], ended.flatten())
    }

    /// Compares what there is in the folder, and whether a recording is on.
    fn look(&self) -> Option<String> {
        let names = fs::read_dir(self.folder).expect("a folder").map(|entry| {
            entry.expect("an entry").file_name().into_string().expect("a name of this test")
        });
        let mut found: BTreeSet<String> = names.collect();
        let mut expected: BTreeSet<String> = ["folder", "link"].map(String::from).into();
        for (path, content) in &self.model.files {
            if matches!(content, Content::Childs) {
                found.remove(PATHS[*path]);
            } else {
                expected.insert(PATHS[*path].into());
            }
        }
        let on = self.model.on.as_ref();
        expected.extend(on.filter(|on| !on.is_removed).map(|on| PATHS[on.path].into()));
        differ("files", found, expected)
            .or_else(|| differ("on", is_on(), self.model.on.is_some()))
            .or_else(|| {
                self.model.files.iter().find_map(|(path, content)| self.still(*path, content))
            })
    }

    /// A file whose recording has ended stays as it was.
    fn still(&self, path: usize, content: &Content) -> Option<String> {
        let (events, is_cut) = match content {
            Content::Whole(events) => (events, false),
            Content::Cut(events) => (events, true),
            Content::Childs => return None,
        };
        let metadata = fs::metadata(self.path(path)).expect("a file");
        if let Some(difference) = differ("mode", metadata.mode() & 0o7777, 0o600) {
            return Some(difference);
        }
        let bytes = fs::read(self.path(path)).expect("a file");
        compare(&bytes, events, [is_cut, is_cut, true], None)
            .map(|difference| format!("later: {difference}"))
    }

    fn fork(&mut self, path: usize) -> Option<String> {
        if self.model.is_limited {
            return None;
        }
        let (recording, path_of) = (self.recording.take(), self.path(path));
        let is_free = fs::symlink_metadata(&path_of).is_err();
        let report = self.folder.join("folder/report");
        let mut parents = recording;
        // No other thread is at work for a while, most likely.
        flush();
        let ended = forked::run(|| {
            std::panic::set_hook(Box::new(|_| ()));
            let failure = child(parents.take(), &path_of, is_free);
            fs::write(&report, failure.unwrap_or_default()).expect("a report");
        });
        self.recording = parents;
        let failure = fs::read_to_string(&report).unwrap_or_else(|error| error.to_string());
        let _ = fs::remove_file(&report);
        if is_free {
            self.model.files.insert(path, Content::Childs);
        }
        differ("a child", (ended, failure), (Ok(()), String::new()))
    }
}

/// Runs in a forked child. Returns the fault that it finds.
fn child(parents: Option<Recording>, path: &Path, is_free: bool) -> Option<String> {
    moments(1, 3, 1);
    flush();
    if is_on() {
        return Some("the parent's recording goes on".into());
    }
    let own = Recording::to_file(path, TraceOptions::default());
    match parents.map(Recording::stop) {
        Some(Err(error)) if error.to_string().contains("parent process") => {}
        Some(other) => return Some(format!("a child's end of the parent's recording: {other:?}")),
        None => {}
    }
    let own = match own {
        Ok(own) if is_free => own,
        // The thread that writes worked at the fork.
        Err(error) if error.to_string().contains("fork") => return None,
        Err(error) if error.kind() == ErrorKind::AlreadyExists && !is_free => return None,
        other => return Some(format!("a child's own: {other:?}")),
    };
    if !is_on() {
        return Some("the child's recording is off".into());
    }
    moments(5, 2, 0);
    let summary = match own.stop() {
        Ok(summary) => summary,
        Err(error) => return Some(format!("a child's own ended with {error}")),
    };
    let bytes = fs::read(path).expect("a file");
    let trace = Trace::read(&bytes).expect("a recording");
    let numbers = numbers(&trace).into_values().flatten().collect::<Vec<_>>();
    differ("a child's events", numbers, vec![5, 6])
        .or_else(|| differ("its counts", (summary.events, summary.lost), (6, 0)))
        .or_else(|| differ("its number", trace.pid, std::process::id().into()))
}

/// Returns the numbers of the moments by the names of the threads.
fn numbers(trace: &Trace) -> BTreeMap<String, Vec<u64>> {
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for track in trace.tracks.iter().filter(|track| track.tid.is_some()) {
        let moments = track.instants.iter().filter(|moment| moment.name == "counted");
        let its = moments.map(|moment| {
            let [number, reverse] = ["number", "reverse"].map(|name| moment.number(name));
            assert_eq!(reverse, number.map(|number| !number), "torn");
            number.expect("a number") as u64
        });
        numbers.entry(track.name.clone()).or_default().extend(its);
    }
    numbers
}

/// Compares a file with the events that a recording must have, and its numbers.
fn compare(
    bytes: &[u8],
    events: &Events,
    [is_cut, may_end_early, may_lose]: [bool; 3],
    counts: Option<(u64, u64)>,
) -> Option<String> {
    let trace = match Trace::read(bytes) {
        Ok(trace) => trace,
        // Nothing is readable before the end of the first packet.
        Err(_) if is_cut && bytes.len() < 300 => return None,
        Err(error) => return Some(format!("{} bytes: {error}", bytes.len())),
    };
    let all = || trace.tracks.iter().flat_map(|track| &track.instants);
    let lost: i64 =
        all().filter(|it| it.name == "events lost").filter_map(|it| it.number("count")).sum();
    let mut found = numbers(&trace);
    for ((thread, coming), expected) in events {
        let name = match thread {
            3 => thread::current().name().expect("a test's").to_owned(),
            _ => thread_name(*thread, *coming),
        };
        let its = found.remove(&name).unwrap_or_default();
        let numbers: Vec<u64> = expected.iter().map(|(number, _)| *number).collect();
        let has_order = its.windows(2).all(|pair| pair[0] < pair[1]);
        let are_its = its.iter().all(|number| numbers.binary_search(number).is_ok());
        let is_all = its.len() == numbers.len();
        let is_first = numbers.starts_with(&its);
        if !has_order || !are_its || !(is_all || may_lose || is_cut && is_first) {
            return Some(format!("{name}: {its:?}, and not {numbers:?}; {lost} lost"));
        }
    }
    if let Some(other) = found.into_iter().find(|(_, numbers)| !numbers.is_empty()) {
        return Some(format!("events of another recording: {other:?}"));
    }
    let tasks: BTreeMap<i64, u64> =
        events.values().flatten().map(|(number, task)| (*number as i64, *task)).collect();
    let slices = trace.tracks.iter().flat_map(|track| &track.slices);
    for operation in slices.filter(|slice| slice.category == "operation") {
        let (id, task) = (operation.number("operation"), operation.number("task"));
        // The event at which the task's run ended may be lost.
        let expected = id.and_then(|id| tasks.get(&id)).map(|task| *task as i64);
        if let Some(difference) = differ("the task of an operation", task, expected) {
            return Some(difference);
        }
    }
    if trace.is_truncated && !may_end_early {
        return Some("cut short".into());
    }
    let (events, all_lost) = counts?;
    // Three events for each moment, and two for each run of a task.
    let moments = tasks.len() as u64;
    let has_all = (3 * moments..=3 * moments + 2 * moments).contains(&(events + all_lost));
    differ("lost", all_lost, lost as u64)
        .or_else(|| {
            (!has_all).then(|| format!("{events} events and {all_lost} lost of {moments} moments"))
        })
        .or_else(|| (all_lost > 0 && !may_lose).then(|| format!("{all_lost} events are lost")))
}

#[test]
fn recordings_leave_what_they_should() {
    programs(60, make, run);
}
