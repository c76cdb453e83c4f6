//! Forked children of threads that hold locks. `life` has their recordings.

use std::sync::atomic::{AtomicBool, Ordering};

use sakia_testkit::forked;
use sakia_trace::{Name, Recording, TraceOptions};

/// A thread registers names without a break, so that it holds the lock at many of the forks.
#[test]
fn no_child_waits_for_a_lock_of_its_parent() {
    let is_over = AtomicBool::new(false);
    let known = Name::register("known");
    let folder = std::env::temp_dir().join(format!("sakia-forked-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
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
            // Without names there is no recording.
            let path = folder.join(std::process::id().to_string());
            let recording = Recording::to_file(&path, TraceOptions::default());
            assert!(name == known || recording.is_err(), "{recording:?}");
        };
        let ended: Vec<_> = (0..300).map(|_| forked::run(child)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    });
}
