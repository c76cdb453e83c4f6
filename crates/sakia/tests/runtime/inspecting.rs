//! Snapshots and warnings of a runtime on each backend: from its tasks and from other threads, of stuck
//! threads, during teardown, and from hostile callbacks.

use std::io::Read;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use sakia::fs::File;
use sakia::inspect::{
    Doing, Inspection, Inspector, OpKind, Operation, OperationState, Source, Warning, Warnings,
    inspector,
};
use sakia::io::{Async, PipeReader, pipe};
use sakia::{Engine, Runtime, spawn, spawn_on, yield_now};
use sakia_driver::Policy;

use crate::files::TempDir;

on_each_backend! {
    a_thread_that_is_stuck_in_a_task_is_seen
    a_thread_that_is_stuck_in_a_system_call_is_seen
    operations_are_shown_from_their_start_to_their_end
    a_dropped_wait_is_an_orphan_that_is_canceled
    an_open_on_the_elastic_lane_is_no_bounded_operation
    a_thread_that_is_not_inspected_shows_itself_what_its_slots_have
    settings_say_where_they_came_from
    a_long_turn_is_warned_of_with_its_task
    an_operation_that_has_not_ended_is_warned_of_once
    nothing_that_may_wait_sets_a_timer
    a_callback_may_use_the_runtime
    a_callback_that_panics_ends_nothing
    inspectors_outlive_their_runtime
    runtimes_end_while_they_are_inspected
    each_thread_shows_itself
}

fn inspected(policy: Policy) -> Runtime {
    Runtime::builder().backend(policy).inspection(true).build().unwrap()
}

/// Returns the line where the task of an operation was spawned.
fn line_of(operation: &Operation) -> Option<u32> {
    let task = operation.task.filter(|task| task.spawned_at.file() == file!());
    task.map(|task| task.spawned_at.line())
}

/// Returns the line of the caller.
#[track_caller]
fn line() -> u32 {
    Location::caller().line()
}

/// Lets other tasks run and the driver take its turn.
async fn turns() {
    for _ in 0..3 {
        yield_now().await;
        sakia::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Spawns a task that reads from a pipe. Returns its line.
fn spawn_reader(mut reader: PipeReader) -> u32 {
    let (task, line) = (spawn(async move { drop(reader.read(vec![0; 8]).await) }), line());
    task.detach();
    line
}

fn reads(seen: &Inspection) -> Vec<&Operation> {
    seen.threads[0].operations.iter().filter(|one| one.kind == OpKind::Read).collect()
}

/// Inspects, from another thread, a runtime whose thread `hold` keeps in a task.
fn see_stuck(policy: Policy, hold: impl FnOnce(mpsc::Receiver<()>) + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let (go_on, held) = mpsc::channel();
    let stuck = thread::spawn(move || {
        inspected(policy).block_on(async move {
            let (reader, writer) = pipe().unwrap();
            let read = spawn_reader(reader);
            turns().await;
            let task = spawn(async move {
                tell.send((inspector(), read, line())).unwrap();
                hold(held);
            });
            task.await.unwrap();
            drop(writer);
        });
    });
    let (inspector, read, task): (Inspector, u32, u32) = told.recv().unwrap();
    let seen = inspector.inspect();
    let thread = &seen.threads[0];
    let Some(Doing::Task(running)) = thread.doing else { panic!("{seen}") };
    // The task was spawned one line before the line that it sends.
    assert_eq!((running.spawned_at.file(), running.spawned_at.line()), (file!(), task - 1));
    assert!(thread.doing_for.is_some() && thread.is_recorded && thread.thread_id.is_some());
    let reads = reads(&seen);
    let [operation] = &reads[..] else { panic!("{seen}") };
    assert_eq!(operation.state, OperationState::Submitted);
    assert_eq!(line_of(operation), Some(read));
    let path = operation.path_now.as_ref().map(|path| path.display().to_string());
    assert!(path.is_some_and(|path| path.starts_with("pipe:")), "{operation}");
    assert!(operation.age.is_some() && !operation.is_bounded && !operation.is_orphan);
    let status = thread.status.unwrap();
    assert!(status.in_flight >= 1 && status.credits <= status.credits_max, "{status:?}");
    go_on.send(()).unwrap();
    stuck.join().unwrap();
    assert_eq!(inspector.inspect().threads[0].doing, Some(Doing::Ended));
}

fn a_thread_that_is_stuck_in_a_task_is_seen(policy: Policy) {
    see_stuck(policy, |held| held.recv().unwrap());
}

fn a_thread_that_is_stuck_in_a_system_call_is_seen(policy: Policy) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    see_stuck(policy, move |held| {
        // This thread ends the read below after it was seen.
        let closer = thread::spawn(move || {
            held.recv().unwrap();
            drop(writer);
        });
        reader.read_to_end(&mut Vec::new()).unwrap();
        closer.join().unwrap();
    });
}

fn operations_are_shown_from_their_start_to_their_end(policy: Policy) {
    inspected(policy).block_on(async {
        let inspector = inspector();
        assert_eq!(reads(&inspector.inspect()).len(), 0);
        let (reader, mut writer) = pipe().unwrap();
        let line = spawn_reader(reader);
        turns().await;
        let seen = inspector.inspect();
        assert_eq!(reads(&seen).len(), 1, "{seen}");
        assert_eq!(line_of(reads(&seen)[0]), Some(line));
        writer.write_all("x").await.0.unwrap();
        turns().await;
        assert_eq!(reads(&inspector.inspect()).len(), 0);
        // The text has the operation's kind, state and task.
        let text = seen.to_string();
        assert!(text.contains("read of descriptor") && text.contains("as of now"), "{text}");
        assert!(text.contains("submitted") && text.contains(file!()), "{text}");
    });
}

fn a_dropped_wait_is_an_orphan_that_is_canceled(policy: Policy) {
    inspected(policy).block_on(async {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let near = Async::new(near).unwrap();
        let mut waits = Box::pin(near.readable());
        let first =
            std::future::poll_fn(|cx| std::task::Poll::Ready(waits.as_mut().poll(cx).is_pending()));
        assert!(first.await);
        turns().await;
        // The driver's turn cancels it, after this poll.
        drop(waits);
        let seen = inspector().inspect();
        let [operation] = &seen.threads[0].operations[..] else { panic!("{seen}") };
        assert!(operation.is_orphan && operation.is_cancel_asked, "{operation}");
        turns().await;
        assert_eq!(inspector().inspect().threads[0].operations, []);
    });
}

fn an_open_on_the_elastic_lane_is_no_bounded_operation(policy: Policy) {
    let folder = TempDir::new();
    let path = folder.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let (sender, receiver) = mpsc::channel();
    let warnings = Warnings::callback(move |warning| drop(sender.send(warning.clone())))
        .turn(None)
        .operation(Duration::ZERO)
        .lane(Duration::from_millis(5));
    let runtime = Runtime::builder().backend(policy).warnings(warnings).build().unwrap();
    runtime.block_on(async {
        let fifo = path.clone();
        let open = spawn(async move { File::open(fifo).await.map(drop) });
        let operation = loop {
            turns().await;
            // Other operations, such as the lookup of the path, cause warnings of operations.
            if let Ok(Warning::Lane { operation, .. }) = receiver.try_recv() {
                break operation;
            }
        };
        assert_eq!(operation.kind, OpKind::Open);
        assert!(!operation.is_bounded, "{operation}");
        drop(std::fs::OpenOptions::new().write(true).open(&path).unwrap());
        open.await.unwrap().unwrap();
    });
}

fn a_thread_that_is_not_inspected_shows_itself_what_its_slots_have(policy: Policy) {
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        let (reader, _writer) = pipe().unwrap();
        spawn_reader(reader);
        turns().await;
        let inspector = inspector();
        let seen = inspector.inspect();
        let reads = reads(&seen);
        let [operation] = &reads[..] else { panic!("{seen}") };
        assert_eq!((operation.age, operation.task, operation.is_orphan), (None, None, false));
        assert!(seen.threads[0].status.is_some() && !seen.threads[0].is_recorded);
        let elsewhere = thread::spawn(move || inspector.inspect()).join().unwrap();
        assert_eq!((elsewhere.threads[0].operations.len(), elsewhere.threads[0].doing), (0, None));
        assert!(elsewhere.to_string().contains("SAKIA_INSPECT"), "{elsewhere}");
        assert_eq!(elsewhere.configuration, seen.configuration);
    });
    // This also holds outside of a loop.
    assert_eq!(reads(&runtime.inspect()).len(), 1);
}

fn settings_say_where_they_came_from(policy: Policy) {
    let warnings = Warnings::callback(|_| ()).lane(None);
    let builder = Runtime::builder().backend(policy).spin(Duration::ZERO).warnings(warnings);
    let runtime = builder.build().unwrap();
    let before = runtime.inspect();
    let backend = before.configuration.iter().find(|setting| setting.name == "backend").unwrap();
    let is_early = policy == Policy::Uring; // an error of the builder if there is none
    assert_eq!(backend.granted.as_deref() == Some("not set up yet"), !is_early, "{before}");
    runtime.choice();
    let seen = runtime.inspect();
    let of = |name: &str| {
        let mut settings = seen.configuration.iter();
        settings.find(|setting| setting.name == name).unwrap_or_else(|| panic!("no {name}"))
    };
    assert_eq!(of("backend").source, Source::Builder);
    let granted = if policy == Policy::Uring { "uring" } else { "poll" };
    assert_eq!(of("backend").granted.as_deref(), Some(granted));
    assert_eq!((of("threads").source, of("threads").value.as_str()), (Source::Default, "1"));
    assert_eq!(of("spin").source, Source::Builder);
    assert_eq!(of("warnings").value, "callback,turn=100ms,operation=1s,lane=off");
    assert_eq!((of("inspection").value.as_str(), of("bypass").value.as_str()), ("true", "rules"));
    let entries = of("ring.sq_entries");
    assert_eq!((entries.value.as_str(), entries.source), ("256", Source::Default));
    assert_eq!(entries.granted.is_some(), policy == Policy::Uring);
}

/// Returns a runtime that appends its warnings to the list.
fn warned(
    policy: Policy,
    warnings: impl FnOnce(Warnings) -> Warnings,
) -> (Runtime, Arc<Mutex<Vec<Warning>>>) {
    let list: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let told = Arc::clone(&list);
    let callback = Warnings::callback(move |warning| told.lock().unwrap().push(warning.clone()));
    let none = callback.turn(None).operation(None).lane(None);
    let runtime = Runtime::builder().backend(policy).warnings(warnings(none)).build().unwrap();
    (runtime, list)
}

fn a_long_turn_is_warned_of_with_its_task(policy: Policy) {
    const LIMIT: Duration = Duration::from_millis(50);
    let (runtime, list) = warned(policy, |warnings| warnings.turn(LIMIT));
    let place = runtime.block_on(async {
        let (task, line) = (spawn(async { thread::sleep(LIMIT) }), line());
        task.await.unwrap();
        turns().await;
        line
    });
    let list = list.lock().unwrap();
    let its = |warning: &&Warning| match warning {
        Warning::Turn { longest: Some((task, _)), .. } => task.spawned_at.line() == place,
        _ => false,
    };
    // On a busy machine other turns may be long, too.
    let [warning] = &list.iter().filter(its).collect::<Vec<_>>()[..] else { panic!("{list:?}") };
    let Warning::Turn { thread, took, longest, .. } = warning else { panic!("{warning}") };
    assert_eq!(*thread, 0);
    assert!(*took >= LIMIT && longest.is_some_and(|(_, longest)| longest >= LIMIT));
    assert!(warning.to_string().contains(&format!("{}:{place}", file!())), "{warning}");
}

fn an_operation_that_has_not_ended_is_warned_of_once(policy: Policy) {
    let (runtime, list) = warned(policy, |warnings| warnings.operation(Duration::ZERO));
    runtime.block_on(async {
        let folder = TempDir::new();
        let file = File::create(folder.join("file")).await.unwrap();
        list.lock().unwrap().clear();
        // The sync is in flight when the loop next checks: by then it exceeds this limit.
        file.sync_all().await.unwrap();
        turns().await;
        file.close().await.unwrap();
    });
    let list = list.lock().unwrap();
    let syncs: Vec<_> = list
        .iter()
        .filter_map(|warning| match warning {
            Warning::Operation { operation, .. } if operation.kind == OpKind::Fsync => {
                Some(operation)
            }
            _ => None,
        })
        .collect();
    let [operation] = &syncs[..] else { panic!("{list:?}") };
    assert!(operation.is_bounded && operation.descriptor.is_some(), "{operation}");
    let path = operation.path_now.as_ref().unwrap();
    assert!(path.ends_with("file"), "{operation}");
}

/// Warnings never wake an idle thread.
fn nothing_that_may_wait_sets_a_timer(policy: Policy) {
    let (runtime, list) = warned(policy, |warnings| {
        warnings.operation(Duration::from_millis(1)).turn(Duration::from_secs(60))
    });
    let writer = runtime.block_on(async {
        let (reader, writer) = pipe().unwrap();
        spawn_reader(reader);
        turns().await;
        writer
    });
    runtime.run_once(Duration::ZERO).unwrap();
    assert_eq!(runtime.next_timer(), None);
    let before = runtime.counters().waits;
    runtime.run_once(Duration::from_millis(30)).unwrap();
    assert_eq!(runtime.counters().waits - before, 1, "it was woken");
    let is_read = |warning: &Warning| match warning {
        Warning::Operation { operation, .. } => operation.kind == OpKind::Read,
        _ => false,
    };
    assert!(!list.lock().unwrap().iter().any(is_read));
    drop(writer);
}

fn a_callback_may_use_the_runtime(policy: Policy) {
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    static RAN: AtomicUsize = AtomicUsize::new(0);
    let place: Arc<OnceLock<Inspector>> = Arc::default();
    let inside = Arc::clone(&place);
    let warnings = Warnings::callback(move |warning| {
        CALLED.fetch_add(1, Ordering::Relaxed);
        let seen = inside.get().unwrap().inspect();
        assert!(!seen.to_string().is_empty() && !warning.to_string().is_empty());
        assert!(inspector().inspect().threads.len() == 1);
        spawn(async { RAN.fetch_add(1, Ordering::Relaxed) }).detach();
        // The callback starts a runtime within the runtime, whose loop has warnings of its own.
        assert_eq!(sakia::block_on_nested(async { 3 }), 3);
    });
    let warnings = warnings.turn(Duration::from_millis(5));
    let runtime = Runtime::builder().backend(policy).warnings(warnings).build().unwrap();
    assert!(place.set(runtime.inspector()).is_ok());
    let (called, ran) = (CALLED.load(Ordering::Relaxed), RAN.load(Ordering::Relaxed));
    runtime.block_on(async {
        spawn(async { thread::sleep(Duration::from_millis(10)) }).await.unwrap();
        turns().await;
    });
    let called = CALLED.load(Ordering::Relaxed) - called;
    assert!(called >= 1);
    assert!(RAN.load(Ordering::Relaxed) > ran, "what it spawned did not run");
}

fn a_callback_that_panics_ends_nothing(policy: Policy) {
    let called = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&called);
    let warnings = Warnings::callback(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        panic!("a callback's panic, which is to be seen here");
    });
    let warnings = warnings.turn(Duration::from_millis(5));
    let runtime = Runtime::builder().backend(policy).warnings(warnings).build().unwrap();
    for _ in 0..2 {
        runtime.block_on(async {
            spawn(async { thread::sleep(Duration::from_millis(10)) }).await.unwrap();
            turns().await;
        });
    }
    assert!(called.load(Ordering::Relaxed) >= 2, "it is told of later ones, too");
}

/// A value that inspects the runtime when it is dropped.
struct InspectsAtItsEnd(Arc<AtomicBool>);

impl Drop for InspectsAtItsEnd {
    fn drop(&mut self) {
        let seen = inspector().inspect();
        assert_eq!(seen.threads.len(), 1);
        self.0.store(true, Ordering::Relaxed);
    }
}

fn inspectors_outlive_their_runtime(policy: Policy) {
    let runtime = inspected(policy);
    let has_inspected = Arc::new(AtomicBool::new(false));
    let held = InspectsAtItsEnd(Arc::clone(&has_inspected));
    let inspector = runtime.block_on(async {
        let (reader, writer) = pipe().unwrap();
        spawn_reader(reader);
        spawn(async move {
            let _held = (held, writer);
            std::future::pending::<()>().await;
        })
        .detach();
        turns().await;
        inspector()
    });
    assert_eq!(inspector.inspect().threads[0].doing, Some(Doing::Outside));
    drop(runtime);
    assert!(has_inspected.load(Ordering::Relaxed));
    let seen = inspector.inspect();
    assert_eq!(seen.threads[0].doing, Some(Doing::Ended));
    assert_eq!(seen.threads[0].operations, []);
    assert!(!seen.configuration.is_empty());
}

fn runtimes_end_while_they_are_inspected(policy: Policy) {
    let current: Arc<Mutex<Option<Inspector>>> = Arc::default();
    let (is_over, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let watcher = {
        let (current, is_over, looks) =
            (Arc::clone(&current), Arc::clone(&is_over), Arc::clone(&looks));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let inspector = current.lock().unwrap().clone();
                let Some(inspector) = inspector else { continue };
                let seen = inspector.inspect();
                assert!(!seen.to_string().is_empty());
                looks.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut rounds = 0;
    while rounds < 10 || looks.load(Ordering::Relaxed) < 100 {
        let runtime =
            Runtime::builder().backend(policy).inspection(true).threads(2).build().unwrap();
        *current.lock().unwrap() = Some(runtime.inspector());
        runtime.block_on(async {
            let (reader, _writer) = pipe().unwrap();
            spawn_reader(reader);
            let other = spawn_on(1, || async {
                for _ in 0..50 {
                    let (mut reader, mut writer) = pipe().unwrap();
                    writer.write_all("abc").await.0.unwrap();
                    assert_eq!(reader.read(vec![0; 3]).await.0.unwrap(), 3);
                }
            });
            other.await.unwrap();
        });
        rounds += 1;
    }
    is_over.store(true, Ordering::Relaxed);
    watcher.join().unwrap();
}

fn each_thread_shows_itself(policy: Policy) {
    let runtime = Runtime::builder().backend(policy).threads(2).inspection(true).build().unwrap();
    runtime.block_on(async {
        let (go_on, held) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let stuck = spawn_on(1, move || async move {
            tell.send(()).unwrap();
            held.recv().unwrap();
        });
        told.recv().unwrap();
        let seen = inspector().inspect();
        let [own, other] = &seen.threads[..] else { panic!("{seen}") };
        assert!(matches!(own.doing, Some(Doing::Task(_))), "{seen}");
        let Some(Doing::Task(task)) = other.doing else { panic!("{seen}") };
        assert_eq!(task.spawned_at.file(), file!());
        assert_ne!(own.thread_id, other.thread_id);
        go_on.send(()).unwrap();
        stuck.await.unwrap();
    });
    let engine = Engine::new().unwrap();
    assert_eq!(engine.inspector().inspect().threads.len(), 1);
}

// ---- what the environment says -----------------------------------------------------------------

#[test]
fn the_environment_says_who_is_told_and_what_is_shown() {
    crate::refused::children::run("inspect_environment");
}

#[test]
fn a_log_goes_to_standard_error() {
    crate::refused::children::run("warnings_log");
}

/// Sets a variable of a process with one thread.
fn set(name: &str, value: &str) {
    // SAFETY: the process of a scene has one thread.
    unsafe { std::env::set_var(name, value) };
}

pub fn scene_inspect_environment() -> Result<(), String> {
    let build = || Runtime::builder().backend(Policy::Poll).build();
    for (name, value) in [("SAKIA_INSPECT", "yes"), ("SAKIA_WARNINGS", "loud")] {
        set(name, value);
        let error = build().err().unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(name), "{error}");
        set(name, "");
    }
    let source = |seen: &Inspection, name: &str| {
        seen.configuration.iter().find(|setting| setting.name == name).unwrap().source
    };
    let seen = build().unwrap().inspect();
    assert!(!seen.threads[0].is_recorded);
    assert_eq!(source(&seen, "inspection"), Source::Default);
    set("SAKIA_INSPECT", "1");
    set("SAKIA_DRIVER", "poll");
    let seen = Runtime::builder().build().unwrap().inspect();
    assert!(seen.threads[0].is_recorded);
    assert_eq!(source(&seen, "inspection"), Source::Environment);
    assert_eq!(source(&seen, "backend"), Source::Environment);
    // The builder takes precedence over the environment.
    let seen = Runtime::builder().inspection(false).build().unwrap().inspect();
    assert!(!seen.threads[0].is_recorded);
    set("SAKIA_INSPECT", "0");
    set("SAKIA_WARNINGS", "log,turn=1s");
    let seen = build().unwrap().inspect();
    assert!(seen.threads[0].is_recorded, "warnings need records");
    assert_eq!(source(&seen, "warnings"), Source::Environment);
    Ok(())
}

pub fn scene_warnings_log() -> Result<(), String> {
    use std::os::fd::AsRawFd;

    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: both are open; the process has one thread.
    let result = unsafe { libc::dup2(writer.as_raw_fd(), 2) };
    assert_eq!(result, 2);
    drop(writer);
    set("SAKIA_WARNINGS", "log,turn=10ms");
    let runtime = Runtime::builder().backend(Policy::Poll).build().unwrap();
    runtime.block_on(async {
        spawn(async { thread::sleep(Duration::from_millis(20)) }).await.unwrap();
        turns().await;
    });
    drop(runtime);
    // SAFETY: as above; nothing else writes to it.
    unsafe { libc::close(2) };
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let expected = "sakia: tasks kept thread 0 for ";
    assert!(
        text.lines().any(|line| line.starts_with(expected) && line.contains(file!())),
        "{text}"
    );
    Ok(())
}
