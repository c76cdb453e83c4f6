//! Recordings of this process, read back.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use sakia_testkit::children::copy_program;
use sakia_trace::{
    EventKind, EventType, FILE_VARIABLE, Name, Queued, Recording, Slice, StaticName, Summary,
    Trace, TraceOptions, Value, Workers, add_handed_over, is_on, now, record,
    record_as_environment_says, record_call, span, task_runs,
};

/// Guards the recording, of which a process has one at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sakia-trace-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn read(path: &std::path::Path) -> Trace {
    Trace::read(&fs::read(path).expect("a file")).expect("a trace")
}

#[test]
fn what_threads_record_is_read_back() {
    let _alone = alone();
    let folder = Folder::new("read-back");
    let path = folder.0.join("trace");
    assert!(!is_on());
    let recording = Recording::to_file(&path, TraceOptions::default()).expect("a recording");
    assert!(is_on());
    let kind = Name::register("read").number() as u16;
    let found = EventKind::register("found", ["key", "bytes"]);
    thread::Builder::new()
        .name("reader".into())
        .spawn(move || {
            static PARSE: StaticName = StaticName::new("parse");
            let mut early = 0;
            task_runs(&mut early).ends(early, true);
            assert_ne!(early, 0);
            record(EventType::TaskSpawned, 7, 0, Name::register("src/main.rs:3").number().into());
            record(EventType::PollBegin, 7, 0, 0);
            record(EventType::Queued, 1, Queued { kind, fd: 5, bytes: 4096 }.pack(), 7);
            record(EventType::Submitted, 1, 0, 0);
            found.record(17, 4096);
            drop(span(&PARSE));
            record(EventType::PollEnd, 7, 0, 0);
            let begin = now();
            record_call(begin, 426, 3, 1); // io_uring_enter
            record(EventType::Completed, 1, -5_i64 as u64, 0);
            record(EventType::Resumed, 1, 0, 0);
        })
        .expect("a thread")
        .join()
        .expect("no panic");
    let summary = recording.stop().expect("a file");
    assert_eq!((summary.events, summary.lost), (14, 0));
    assert!(!is_on());

    assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o7777, 0o600);
    let trace = read(&path);
    assert!(!trace.is_truncated);
    assert_eq!(trace.pid, u64::from(std::process::id()));
    let program = std::env::current_exe().expect("a path");
    assert_eq!(Some(trace.process.as_str()), program.file_name().and_then(|name| name.to_str()));
    let thread = trace.tracks.iter().find(|track| track.name == "reader").expect("a thread");
    assert!(thread.tid.is_some());
    let names: Vec<_> =
        thread.slices.iter().map(|slice| (slice.name.as_str(), slice.depth)).collect();
    let expected = [("task runs", 0), ("parse", 1), ("task runs", 0), ("io_uring_enter", 0)];
    assert_eq!(names, expected);
    assert_eq!(thread.slices[2].number("task"), Some(7));
    assert_eq!(thread.slices[3].number("result"), Some(1));
    let [early, spawned, moment] = &thread.instants[..] else { panic!("{:?}", thread.instants) };
    for (spawned, place) in [(early, "before the recording"), (spawned, "src/main.rs:3")] {
        let found = (spawned.name.as_str(), spawned.text("place"));
        assert_eq!(found, ("task spawned", Some(place)));
    }
    assert_eq!(
        moment.arguments,
        [("key".into(), Value::Number(17)), ("bytes".into(), Value::Number(4096))]
    );

    let operations =
        trace.tracks.iter().find(|track| track.parent == thread.uuid).expect("its operations");
    assert_eq!(operations.name, "operations");
    let [inner, outer] = &operations.slices[..] else { panic!("{:?}", operations.slices) };
    assert_eq!((inner.name.as_str(), inner.depth), ("in the kernel", 1));
    assert_eq!((outer.name.as_str(), outer.category.as_str()), ("read", "operation"));
    let number = |slice: &Slice, name| slice.number(name).expect("an argument");
    assert_eq!(
        ["descriptor", "bytes", "task", "result"].map(|name| number(outer, name)),
        [5, 4096, 7, -5]
    );
    assert_eq!(outer.text("way"), Some("queue"));
    assert!(outer.begin <= inner.begin && inner.end <= outer.end);
}

#[test]
fn events_beyond_the_buffer_are_counted_and_none_is_torn() {
    const COUNT: u64 = 5_000_000;
    let _alone = alone();
    let folder = Folder::new("lost");
    let path = folder.0.join("trace");
    let mut options = TraceOptions::default();
    options.buffer_events = 1 << 10;
    let recording = Recording::to_file(&path, options).expect("a recording");
    let kind = EventKind::register("counted", ["number", "reverse"]);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..COUNT).for_each(|number| kind.record(number, !number >> 1)));
        }
    });
    let summary = recording.stop().expect("a file");
    assert_eq!(summary.events + summary.lost, 2 * COUNT);
    assert!(summary.lost > 0, "the buffers are small");
    let trace = read(&path);
    let (mut events, mut lost) = (0, 0);
    for moment in trace.tracks.iter().flat_map(|track| &track.instants) {
        if moment.name == "events lost" {
            lost += moment.number("count").expect("a count") as u64;
        } else if moment.name == "counted" {
            let number = moment.number("number").expect("a number") as u64;
            assert_eq!(moment.number("reverse"), Some((!number >> 1) as i64));
            events += 1;
        }
    }
    assert_eq!((events, lost), (summary.events, summary.lost));
}

const CHILD: &str = "SAKIA_TRACE_TEST_CHILD";

/// Runs as a child process of the next test.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let _alone = alone();
    // `leaves_a_recording` reads this file.
    let groups = fs::read_to_string("/proc/thread-self/status").expect("/proc");
    println!("{}", groups.lines().find(|line| line.starts_with("Gid:")).expect("a line"));
    record_as_environment_says();
    record_as_environment_says();
    EventKind::register("of the child", ["pid", "none"]).record(std::process::id().into(), 0);
    // The thread of the test ends, and so its events are written.
}

#[test]
fn the_environment_begins_a_recording() {
    let folder = Folder::new("environment");
    let path = folder.0.join("trace");
    let run = |is_asked: bool| {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "child"]).env(CHILD, "1").env_remove(FILE_VARIABLE);
        if is_asked {
            command.env(FILE_VARIABLE, &path);
        }
        let output = command.output().expect("a process");
        assert!(output.status.success(), "{output:?}");
    };
    run(false);
    assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 0);
    run(true);
    run(true);
    let mut pids = Vec::new();
    for entry in fs::read_dir(&folder.0).expect("a folder") {
        let trace = read(&entry.expect("an entry").path());
        let mut moments = trace.tracks.iter().flat_map(|track| &track.instants);
        let moment = moments.find(|moment| moment.name == "of the child").expect("its event");
        assert_eq!(moment.number("pid"), Some(trace.pid as i64));
        pids.push(trace.pid);
    }
    assert_eq!(pids.len(), 2, "each process has its own file");
    assert_ne!(pids[0], pids[1]);
}

/// The program runs as it does without a recording, but for one line.
#[test]
fn a_recording_that_the_environment_cannot_begin_is_reported() {
    let folder = Folder::new("no-environment");
    let path = |name: &str| folder.0.join(name).display().to_string();
    fs::write(path("file"), "").expect("a file");
    let cannot = |name: &str, cause: &str| {
        (path(name), "", format!("cannot record to {}: {cause}", path(name)))
    };
    for (path, events, problem) in [
        cannot("missing/trace", "No such file or directory (os error 2)"),
        cannot("file/trace", "Not a directory (os error 20)"),
        cannot(&"long".repeat(100), "File name too long (os error 36)"),
        (path("trace"), "many", "SAKIA_TRACE_EVENTS is \"many\", which is no number".to_owned()),
    ] {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "child"]).env(CHILD, "1").env(FILE_VARIABLE, path);
        if !events.is_empty() {
            command.env("SAKIA_TRACE_EVENTS", events);
        }
        let output = command.output().expect("a process");
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told, format!("sakia: no trace: {problem}\n"));
        assert_eq!(fs::read_dir(&folder.0).expect("a folder").count(), 1);
    }
}

/// Runs a copy of this program as another user, which may write to the folder. Returns whether it left a
/// recording; `None` if the file system does not give it another group.
fn leaves_a_recording(folder: &Folder, mode: u32) -> Option<bool> {
    const GROUP: u32 = 2;
    const NOBODY: u32 = 65_534;
    let (program, file) = (folder.0.join(format!("program-{mode:o}")), folder.0.join("trace"));
    copy_program(std::env::current_exe().expect("a path"), &program);
    chown(&program, None, Some(GROUP)).expect("root");
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("its owner");
    let output = Command::new(&program)
        .args(["--exact", "child", "--nocapture"])
        .current_dir(&folder.0)
        .env(CHILD, "1")
        .env(FILE_VARIABLE, &file)
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .expect("a process");
    assert!(output.status.success(), "{output:?}");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let ids = output.lines().find_map(|line| line.split_once("Gid:")).expect("its groups").1;
    let effective = ids.split_ascii_whitespace().nth(1).expect("an effective one");
    let expected = if mode & 0o2000 != 0 { GROUP } else { NOBODY };
    (effective == expected.to_string()).then(|| file.exists())
}

/// `AT_SECURE`: a program with more rights than its caller leaves the caller's variable alone.
#[test]
fn a_program_with_more_rights_than_its_caller_is_not_recorded() {
    if !rustix::process::geteuid().is_root() {
        sakia_testkit::skip!("only root makes programs of other groups");
    }
    let folder = Folder::new("more-rights");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).expect("its owner");
    match leaves_a_recording(&folder, 0o2755) {
        Some(left) => assert!(!left),
        None => sakia_testkit::skip!("set-group-ID has no effect in {}", folder.0.display()),
    }
    assert_eq!(
        leaves_a_recording(&folder, 0o755),
        Some(true),
        "the same user without these rights"
    );
}

/// Operations that the kernel handed to its workers are added for the threads of the recording.
#[test]
fn operations_handed_over_are_added() {
    let _alone = alone();
    let folder = Folder::new("handed-over");
    let path = folder.0.join("trace");
    let recording = Recording::to_file(&path, TraceOptions::default()).expect("a recording");
    EventKind::register("moment", ["a", "b"]).record(0, 0);
    recording.stop().expect("a file");
    let before = Summary::of(&read(&path));
    assert_eq!(before.workers, Workers::Inferred(0));
    let mine = rustix::thread::gettid().as_raw_nonzero().get() as u64;
    let events = [(mine, "FSYNC"), (mine + 1, "FSYNC"), (mine, "MKDIRAT"), (mine, "MKDIRAT")];
    assert_eq!(add_handed_over(&path, events).expect("a file"), 3);
    let after = Summary::of(&read(&path));
    let counted = vec![("MKDIRAT".into(), 2), ("FSYNC".into(), 1)];
    assert_eq!(after.workers, Workers::Counted(counted));
    let expected =
        "handed 3 operations to worker threads (counted by its tracepoint: MKDIRAT 2, FSYNC 1)";
    assert!(after.findings.iter().any(|finding| finding.contains(expected)), "{after}");
    let advice = "Let writers share a sync, by `GroupCommit`.";
    assert!(after.findings.iter().any(|finding| finding.ends_with(advice)), "{after}");
    assert_eq!(after.duration, before.duration);

    // A count of none differs from an unknown count.
    let path = folder.0.join("none");
    Recording::to_file(&path, TraceOptions::default())
        .expect("a recording")
        .stop()
        .expect("a file");
    assert_eq!(add_handed_over(&path, []).expect("a file"), 0);
    let summary = Summary::of(&read(&path));
    assert_eq!((summary.workers, summary.findings), (Workers::Counted(Vec::new()), Vec::new()));

    // A file that ends within a packet stays as it is, and so do a file that is no recording and a link.
    let bytes = fs::read(&path).expect("a file");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("a file");
    assert_eq!(add_handed_over(&path, [(mine, "FSYNC")]).expect("a file"), 0);
    assert_eq!(fs::read(&path).expect("a file"), &bytes[..bytes.len() - 1]);
    fs::write(&path, "text").expect("a file");
    let error = add_handed_over(&path, []).expect_err("no recording");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert_eq!(fs::read(&path).expect("a file"), b"text");
    symlink(&path, folder.0.join("link")).expect("a link");
    add_handed_over(&folder.0.join("link"), []).expect_err("a link");
}
