//! A forked child of a process that uses Sakia: it makes a runtime, an engine and a driver of its own, and
//! everything works, whatever other threads of the parent did at the fork. The parent's own are errors that
//! name the fork, and the parent goes on.
//!
//! The smoke set: files, sockets, timers, blocking code, lookups, processes, dropped children, signals,
//! requests of an engine, an operation of a driver. `sakia-tokio` has its files in its own tests.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use sakia::blocking::Pool;
use sakia::io::{Reader, pipe};
use sakia::net::{TcpListener, TcpStream, lookup_host};
use sakia::process::Command;
use sakia::signal::{SignalKind, signal};
use sakia::time::{sleep, timeout};
use sakia::{Engine, Runtime, fs, spawn, spawn_blocking};
use sakia_driver::{Driver, Policy, Wait};
use sakia_testkit::forked;
use sakia_testkit::settings::{number, patience};
use sakia_thread::start_thread;

use crate::support::{Random, TempDir, on_each_backend};
use crate::{children, load};

on_each_backend! {
    children_of_each_parent_do_everything
    a_child_of_a_task_does_everything
    futures_of_the_parent_say_that_it_has_them
    drops_in_a_child_leave_alone_what_is_the_parents
    signals_of_a_child_are_its_own
    a_thousand_forks_while_locks_are_held
}

fn children_of_each_parent_do_everything(policy: Policy) {
    children::run("children_of_each_parent", policy);
}

fn a_child_of_a_task_does_everything(policy: Policy) {
    children::run("child_of_a_task", policy);
}

fn futures_of_the_parent_say_that_it_has_them(policy: Policy) {
    children::run("futures_of_the_parent", policy);
}

fn drops_in_a_child_leave_alone_what_is_the_parents(policy: Policy) {
    children::run("drops_in_a_child", policy);
}

fn signals_of_a_child_are_its_own(policy: Policy) {
    children::run("signals_of_a_child", policy);
}

fn a_thousand_forks_while_locks_are_held(policy: Policy) {
    children::run("a_thousand_forks", policy);
}

/// Waits for a future, but not for ever.
async fn within<F: Future>(what: &str, future: F) -> F::Output {
    timeout(patience(), future).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

fn raise(kind: SignalKind) {
    // SAFETY: a handler is installed.
    assert_eq!(unsafe { libc::raise(kind.as_raw()) }, 0);
}

/// Does the things that most programs do first. It takes a millisecond or two.
async fn does_little(folder: &Path) {
    let path = folder.join(format!("little-{}", std::process::id()));
    within("a file", async {
        fs::write(&path, "some text").await.unwrap();
        assert_eq!(fs::read(&path).await.unwrap(), b"some text");
        fs::remove_file(&path).await.unwrap();
    })
    .await;
    within("a timer", sleep(Duration::from_millis(1))).await;
    assert_eq!(within("blocking code", spawn_blocking(|| 6 * 7)).await.unwrap(), 42);
    assert!(sakia::blocking::statistics().completed >= 1);
    within("a signal", async {
        let mut signals = signal(SignalKind::USER_1).unwrap();
        raise(SignalKind::USER_1);
        signals.recv().await.unwrap();
    })
    .await;
    within("a request", async {
        let engine = Engine::global().unwrap();
        assert_eq!(engine.run(|| async { sleep(Duration::ZERO).await }).await.unwrap(), ());
        assert!(engine.read_dir("/proc/self").await.is_ok());
    })
    .await;
}

/// The smoke set.
fn does_everything(policy: Policy, folder: &Path) {
    let runtime = Runtime::builder().backend(policy).inspection(true).threads(2).build().unwrap();
    runtime.block_on(async {
        does_little(folder).await;
        within("a socket", async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (count, bytes) = stream.read(vec![0; 100]).await;
                stream.write_all(bytes[..count.unwrap()].to_vec()).await.0.unwrap();
            });
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all("to and fro").await.0.unwrap();
            serving.await.unwrap();
            assert_eq!(stream.read(vec![0; 10]).await.1, b"to and fro");
        })
        .await;
        let mut found = within("a lookup", lookup_host("localhost:1")).await.unwrap();
        assert!(found.all(|address| address.ip().is_loopback()));
        let status = within("a process", Command::new("true").status()).await.unwrap();
        assert!(status.success());
        let there = sakia::spawn_on(1, || async { spawn_blocking(|| 5).await.unwrap() });
        assert_eq!(within("another thread", there).await.unwrap(), 5);
        within("a dropped child", async {
            let child = Command::new("sleep").arg("0.01").spawn().unwrap();
            let entry = format!("/proc/{}", child.id().unwrap());
            drop(child);
            while Path::new(&entry).exists() {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let path = folder.join(format!("offloaded-{}", std::process::id()));
        fs::write(&path, vec![7; 300_000]).await.unwrap();
        let mut reader = Reader::offload(std::fs::File::open(&path).unwrap()).unwrap();
        let mut bytes = Vec::new();
        let read = within("a reading thread", reader.read_to_end(&mut bytes, 1 << 20)).await;
        assert_eq!(read.unwrap(), 300_000);
        fs::remove_file(&path).await.unwrap();
    });
    drop(runtime);
    let engine = Runtime::builder().backend(policy).build_engine().unwrap();
    assert_eq!(engine.run(|| async { 3 }).wait().unwrap(), 3);
    assert!(engine.read("/proc/self/comm").submit().wait().is_ok());
    engine.stop_and_wait();
    drop(engine);
    let (backend, _) = sakia_driver::Auto::new(policy, sakia_ring::Ring::builder()).unwrap();
    let driver = Driver::new(backend);
    let mut nop = driver.nop();
    while nop.try_take().is_none() {
        driver.turn(Wait::Forever).unwrap();
    }
}

#[track_caller]
fn child_does_everything(policy: Policy, folder: &TempDir) {
    assert_eq!(forked::run(|| does_everything(policy, folder.path())), Ok(()));
}

pub fn scene_children_of_each_parent(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    child_does_everything(policy, &folder); // the parent has used nothing
    let runtime = Runtime::builder().backend(policy).threads(2).build().unwrap();
    child_does_everything(policy, &folder); // the parent has a runtime that has done nothing
    does_everything(policy, folder.path());
    let mut global = Engine::global().unwrap().clone();
    child_does_everything(policy, &folder); // the parent has used everything, and has a runtime
    // The child's end of a runtime does not wait for what its parent runs.
    let (open, gate) = channel::<()>();
    runtime.block_on(async { spawn_blocking(move || gate.recv()).detach() });
    let mut given = Some((runtime, Runtime::builder().threads(2).build_engine().unwrap()));
    let ends = || {
        let (runtime, engine) = given.take().unwrap();
        drop(runtime);
        engine.stop_and_wait();
        drop(engine);
        does_everything(policy, folder.path());
        global = Engine::global().unwrap().clone();
        assert_eq!(global.run(|| async { 1 }).wait().unwrap(), 1);
        // A child of the child is the same.
        child_does_everything(policy, &folder);
    };
    assert_eq!(forked::run(ends), Ok(())); // the child ends the parent's first
    drop(open);
    drop(given.take());
    let within_a_closure = {
        let path = folder.path().to_owned();
        move || forked::run(|| does_everything(policy, &path))
    };
    let ended = sakia::block_on(spawn_blocking(within_a_closure));
    assert_eq!(ended.unwrap(), Ok(()));
    child_does_everything(policy, &folder); // the parent's have ended
    does_everything(policy, folder.path());
    Ok(())
}

pub fn scene_child_of_a_task(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        does_little(folder.path()).await;
        child_does_everything(policy, &folder);
        let task = spawn(async move { child_does_everything(policy, &folder) });
        task.await.unwrap();
    });
    Ok(())
}

/// Polls a future once, and returns its output.
async fn at_once<F: Future>(what: &str, future: F) -> F::Output {
    let mut future = pin!(future);
    let poll = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    let Poll::Ready(output) = poll else { panic!("{what} waits in vain") };
    output
}

/// Polls a future, which panics, and returns the panic's message.
fn panic_of(mut future: impl Future + Unpin) -> String {
    let cx = &mut Context::from_waker(Waker::noop());
    let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut future).poll(cx).is_ready()));
    *polled.expect_err("the future does not panic").downcast().expect("its message has arguments")
}

pub fn scene_futures_of_the_parent(policy: Policy) -> Result<(), String> {
    let names_fork = |text: String| assert!(text.contains("fork"), "{text}");
    let folder = TempDir::new();
    let runtime = Runtime::builder().backend(policy).threads(2).build().unwrap();
    let engine = Runtime::builder().backend(policy).build_engine().unwrap();
    let pool = Pool::builder().threads(1).queue(1).build();
    let idle = Pool::builder().build(); // its queue has room
    let (open, gate) = channel::<()>();
    let (done, was_done, running, waiting) = runtime.block_on(async {
        let done = pool.spawn(|| 1);
        while !done.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        let running = pool.spawn(move || gate.recv().is_err());
        while pool.statistics().queued > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let queued = pool.spawn(|| true);
        // The queue is full, so that its handle holds it.
        let handles = vec![running, queued, pool.spawn(|| true)];
        (done, spawn(async { 2 }), handles, signal(SignalKind::USER_2).unwrap())
    });
    let mut waiting = Some(waiting);
    let (held, _writer) = runtime.block_on(async { pipe().unwrap() });
    let never = runtime.spawn(std::future::pending::<()>());
    let elsewhere =
        runtime.block_on(async { Some(sakia::spawn_on(1, std::future::pending::<()>)) });
    let mut request = engine.run(std::future::pending::<()>).submit();
    let asked = engine.spawn_blocking(|| {
        thread::park();
        Ok(())
    });
    let mut asked = asked.submit();
    // Requests of an engine whose thread is busy.
    let busy = Runtime::builder().backend(policy).threads(1).build_engine().unwrap();
    let file = busy.create(folder.join("asked")).wait().unwrap();
    let (begin, begun) = channel::<()>();
    let (end, ended) = channel::<()>();
    let holding = busy.run(move || {
        begin.send(()).unwrap();
        ended.recv().unwrap();
        std::future::ready(())
    });
    let holding = holding.submit();
    begun.recv().unwrap();
    let mut write = file.write_at(vec![1; 8], 0).submit();
    let mut read = file.read_at(vec![0; 8], 0).submit();
    let mut many = busy.submit_many([file.read_at(vec![0; 8], 0)]).submit();
    let mut sync = file.sync_data().submit();
    let mut opened = busy.open(folder.join("asked")).submit();
    let mut whole = busy.read(folder.join("asked")).submit();

    let path = folder.join("offloaded");
    std::fs::write(&path, vec![1; 10_000_000]).unwrap();
    let reader = Reader::offload(std::fs::File::open(&path).unwrap()).unwrap();
    let slept = runtime.block_on(async {
        let mut slept = Box::pin(sleep(Duration::from_millis(20)));
        assert!(crate::support::poll_once(&mut slept).await.is_pending());
        Some(slept)
    });
    let mut given = Some((done, was_done, running, never, elsewhere, held, reader, slept));
    let child = || {
        let (done, was_done, running, never, elsewhere, mut held, mut reader, slept) =
            given.take().unwrap();
        let (elsewhere, slept) = (elsewhere.unwrap(), slept.unwrap());
        let own = Runtime::builder().backend(policy).build().unwrap();
        own.block_on(async {
            assert_eq!(at_once("a result", done).await.unwrap(), 1);
            drop(was_done);
            within("a timer", slept).await;
            for handle in running {
                names_fork(at_once("blocking code", handle).await.unwrap_err().to_string());
            }
            for pool in [&pool, &idle] {
                let late = pool.spawn(|| 3);
                names_fork(at_once("late blocking code", late).await.unwrap_err().to_string());
                assert!(pool.try_spawn(|| 3).is_err());
                assert_eq!(pool.statistics().threads, 0);
            }
            names_fork(at_once("a task", never).await.unwrap_err().to_string());
            names_fork(at_once("a far task", elsewhere).await.unwrap_err().to_string());
            names_fork(at_once("a request", &mut request).await.unwrap_err().to_string());
            names_fork(at_once("a blocking request", &mut asked).await.unwrap_err().to_string());
            names_fork(at_once("a sync", &mut sync).await.unwrap_err().to_string());
            names_fork(at_once("an open", &mut opened).await.unwrap_err().to_string());
            names_fork(at_once("a whole file", &mut whole).await.unwrap_err().to_string());
            // Their results have buffers, which the parent has.
            names_fork(panic_of(&mut write));
            names_fork(panic_of(&mut read));
            names_fork(panic_of(&mut many));
            let late = engine.run(|| async {});
            names_fork(at_once("a late request", late).await.unwrap_err().to_string());
            let mut signals = waiting.take().unwrap();
            names_fork(at_once("a signal", signals.recv()).await.unwrap_err().to_string());
            names_fork(at_once("a pipe", held.read(vec![0; 1])).await.0.unwrap_err().to_string());
            names_fork(at_once("a reader", reader.fill()).await.unwrap_err().to_string());
        });
        engine.stop_and_wait();
        drop((runtime.spawn(async {}), pool, idle));
    };
    assert_eq!(forked::run(child), Ok(()));
    drop(open);
    end.send(()).unwrap();
    holding.wait().unwrap();
    assert_eq!(write.wait().0.unwrap(), 8);
    Ok(())
}

pub fn scene_drops_in_a_child(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let process = Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
        let saved = fs::AtomicFile::create(folder.join("saved")).await.unwrap();
        let (reader, writer) = stream.into_split();
        let mut given = Some((process, saved, writer));
        let child = || {
            let own = Runtime::builder().backend(policy).build().unwrap();
            own.block_on(async {
                drop(given.take());
                sleep(Duration::from_millis(5)).await;
            });
        };
        assert_eq!(forked::run(child), Ok(()));
        let (mut process, saved, mut writer) = given.take().unwrap();
        assert!(process.try_wait().unwrap().is_none(), "the child has killed a process");
        saved.file().write_all_at("whole", 0).await.0.unwrap();
        saved.commit().await.unwrap();
        assert_eq!(fs::read(folder.join("saved")).await.unwrap(), b"whole");
        writer.write_all("goes on").await.0.unwrap();
        assert_eq!(peer.read(vec![0; 7]).await.1, b"goes on");
        drop((reader, process));
    });
    Ok(())
}

pub fn scene_signals_of_a_child(policy: Policy) -> Result<(), String> {
    let runtime = Runtime::builder().backend(policy).build().unwrap();
    runtime.block_on(async {
        let mut signals = signal(SignalKind::USER_1).unwrap();
        let heard = || {
            raise(SignalKind::USER_1); // before the child listens: no effect
            let own = Runtime::builder().backend(policy).build().unwrap();
            own.block_on(async {
                let mut own = signal(SignalKind::USER_1).unwrap();
                let other = signal(SignalKind::USER_2).unwrap();
                assert!(timeout(Duration::from_millis(5), own.recv()).await.is_err());
                raise(SignalKind::USER_1);
                within("a signal", own.recv()).await.unwrap();
                drop((own, other));
                raise(SignalKind::USER_1);
            });
        };
        assert_eq!(forked::run(heard), Ok(()));
        let waited = timeout(Duration::from_millis(5), signals.recv()).await;
        assert!(waited.is_err(), "a signal of the child came to the parent: {waited:?}");
        raise(SignalKind::USER_1);
        // It is the parent's, which has not taken it yet.
        let takes = || {
            let own = Runtime::builder().backend(policy).build().unwrap();
            let error = own.block_on(at_once("a signal", signals.recv())).unwrap_err();
            assert!(error.to_string().contains("fork"), "{error}");
        };
        assert_eq!(forked::run(takes), Ok(()));
        within("a signal", signals.recv()).await.unwrap();
    });
    Ok(())
}

/// Uses everything that a process has once, on a thread of a parent, until told to stop.
fn hold_locks(random: u64, is_over: &AtomicBool) {
    let mut random = Random::new(random);
    let mut children = 0;
    while !is_over.load(Ordering::Relaxed) {
        match random.below(8) {
            0 => (0..random.below(20)).for_each(|_| drop(spawn_blocking(|| ()))),
            1 => drop(sakia::blocking::statistics()),
            2 => drop(Engine::global().unwrap().spawn_blocking(|| Ok(())).submit()),
            3 => {
                let engine = Engine::global().unwrap();
                drop(engine.run(|| async {}).wait());
            }
            4 => drop(sakia_trace::Name::register(&format!("name {}", random.below(1000)))),
            5 => drop(sakia_trace::measure()),
            6 => {
                let listener = sakia_driver::signals::SignalListener::new([
                    libc::SIGUSR1 as u32,
                    libc::SIGWINCH as u32,
                ])
                .unwrap();
                raise(SignalKind::WINDOW_CHANGE);
                assert!(listener.take().unwrap());
            }
            _ if children < 20 => {
                children += 1;
                sakia::block_on(async { drop(Command::new("true").spawn()) });
            }
            _ => thread::yield_now(),
        }
    }
}

pub fn scene_a_thousand_forks(policy: Policy) -> Result<(), String> {
    let forks = number("SAKIA_TEST_FORKS", 1000);
    let folder = TempDir::new();
    let little = |folder: &Path| {
        let runtime = Runtime::builder().backend(policy).build().unwrap();
        runtime.block_on(does_little(folder));
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stop = Stop(&is_over);
        for seed in 0..2 {
            let is_over = &is_over;
            scope.spawn(move || hold_locks(seed, is_over));
        }
        for fork in 0..forks {
            let ended = match fork % 10 {
                // While another thread of the child makes everything anew, the child forks again.
                0 => forked::run(|| {
                    let is_over: &'static AtomicBool = Box::leak(Box::default());
                    let make = Box::new(move || hold_locks(fork, is_over));
                    let making = start_thread("making", None, make).unwrap();
                    let ended = forked::run(|| little(folder.path()));
                    is_over.store(true, Ordering::Relaxed);
                    making.join();
                    assert_eq!(ended, Ok(()));
                    little(folder.path());
                }),
                _ => forked::run(|| little(folder.path())),
            };
            assert_eq!(ended, Ok(()), "the child of fork {fork}");
        }
        drop(stop);
    });
    let runtime = load::runtime(policy);
    runtime.block_on(does_little(folder.path()));
    Ok(())
}

/// Ends threads, also when this thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
