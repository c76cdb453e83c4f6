//! `Runtime::metrics`, and the settings that turn latencies on.

use sakia::Runtime;
use sakia_driver::OpKind;

use crate::refused::children;

#[test]
fn each_thread_has_its_own() {
    let runtime = Runtime::builder().threads(2).latencies(true).build().unwrap();
    let there = runtime.block_on(async {
        let folder = std::env::temp_dir();
        sakia::fs::metadata(&folder).await.unwrap();
        sakia::spawn_on(1, || async {
            for _ in 0..3 {
                sakia::fs::metadata(std::env::temp_dir()).await.unwrap();
            }
            sakia::metrics()
        })
        .await
        .unwrap()
    });
    let mut all = runtime.metrics();
    let statx = |metrics: &sakia_driver::Metrics| metrics.latency(OpKind::Statx).unwrap().count();
    assert_eq!((statx(&all), statx(&there)), (1, 3));
    assert_eq!(all.counters, runtime.counters());
    all.add(&there);
    assert_eq!(statx(&all), 4);
}

#[test]
fn engine_adds_those_of_its_threads() {
    let engine = Runtime::builder().threads(2).latencies(true).build_engine().unwrap();
    for _ in 0..4 {
        let metadata = engine.run(|| async { sakia::fs::metadata("/").await.map(drop) });
        metadata.wait().unwrap().unwrap();
    }
    let metrics = engine.metrics().wait().unwrap();
    assert_eq!(metrics.latency(OpKind::Statx).unwrap().count(), 4);
}

#[test]
fn environment_asks_for_latencies() {
    children::run("latencies");
}

pub fn scene_latencies() -> Result<(), String> {
    let measured = |builder: sakia::Builder| {
        let runtime = builder.build().unwrap();
        runtime.block_on(sakia::fs::metadata("/")).unwrap();
        runtime.metrics().latency(OpKind::Statx).is_some()
    };
    for (value, is_measured) in [("1", true), ("0", false), ("", false)] {
        // SAFETY: this process has one thread; a metadata call of the root needs no other.
        unsafe { std::env::set_var("SAKIA_LATENCIES", value) };
        assert_eq!(measured(Runtime::builder()), is_measured, "{value}");
        // The builder takes precedence.
        assert!(measured(Runtime::builder().latencies(true)));
        assert!(!measured(Runtime::builder().latencies(false)));
    }
    // SAFETY: as above.
    unsafe { std::env::set_var("SAKIA_LATENCIES", "yes") };
    let error = Runtime::new().err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "SAKIA_LATENCIES=yes is neither 0 nor 1");
    Ok(())
}
