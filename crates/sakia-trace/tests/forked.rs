//! A forked child has no part in its parent's recording, and may have its own.

use std::sync::atomic::{AtomicBool, Ordering};

use sakia_testkit::forked;
use sakia_trace::{EventKind, Name, Recording, Trace, TraceOptions, flush, is_on};

#[test]
fn a_child_has_a_recording_of_its_own() {
    let dir = std::env::temp_dir().join(format!("sakia-trace-forked-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let recording = Recording::to_file(dir.join("parent"), TraceOptions::default()).unwrap();
    let kind = EventKind::register("seen by", ["whom", "nothing"]);
    kind.record(1, 0);
    flush(); // no other thread is in a lock for a while
    let mut parents = Some(recording);
    let child = || {
        kind.record(2, 0);
        flush();
        assert!(!is_on(), "the parent's recording goes on");
        let own = Recording::to_file(dir.join("child"), TraceOptions::default());
        // The thread that writes may have held a lock.
        let own = own.map_err(|error| assert!(error.to_string().contains("fork"), "{error}")).ok();
        let error = parents.take().unwrap().stop().unwrap_err();
        assert!(error.to_string().contains("parent process"), "{error}");
        if let Some(own) = own {
            EventKind::register("seen by", ["whom", "nothing"]).record(3, 0);
            assert!(own.stop().unwrap().events >= 1);
        }
    };
    assert_eq!(forked::run(child), Ok(()));
    kind.record(4, 0);
    let recording = parents.take().unwrap();
    recording.stop().unwrap();
    let seen = |name: &str| {
        let bytes = std::fs::read(dir.join(name)).unwrap_or_default();
        let trace = Trace::read(&bytes).ok().unwrap_or_default();
        let instants = trace.tracks.iter().flat_map(|track| &track.instants);
        let of = instants.filter(|instant| instant.name == "seen by");
        of.filter_map(|instant| instant.number("whom")).collect::<Vec<_>>()
    };
    assert_eq!(seen("parent"), [1, 4]);
    assert!([vec![3], vec![]].contains(&seen("child")), "{:?}", seen("child"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A thread registers names without a break, so that it holds the lock at many of the forks.
#[test]
fn no_child_waits_for_a_lock_of_its_parent() {
    let is_over = AtomicBool::new(false);
    let known = Name::register("known");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let _ = Name::register(&format!("name {}", number % 1000));
                drop(sakia_trace::measure());
            }
        });
        let child = || {
            let name = Name::register("known");
            assert!(name == known || name == Name::register("unknown"), "{name:?}");
            drop(sakia_trace::measure());
        };
        let ended: Vec<_> = (0..300).map(|_| forked::run(child)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    });
}
