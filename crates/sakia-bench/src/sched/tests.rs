//! Small loads, by every variant.

use super::*;
use crate::cell::Measured;
use crate::machine::Noise;
use crate::results::Run;

fn options() -> Options {
    Options {
        mode: Mode::Testbench,
        threads: vec![2],
        read_sizes: Vec::new(),
        write_sizes: Vec::new(),
        reads: Some(20),
        writes: None,
        read_step: None,
        write_step: None,
        files: 1,
        others: Vec::new(),
        mix: false,
        sparse: false,
        hot: false,
        cold: false,
        direct: false,
        depths: Vec::new(),
        computation: None,
        quick: true,
        variants: Variant::ALL.to_vec(),
        // The directory of the build: its file system may support direct I/O where that of temporary files
        // does not.
        directory: std::env::current_exe().unwrap().parent().unwrap().to_owned(),
    }
}

/// Returns options for reads of these sizes.
fn reads(sizes: &[u64]) -> Options {
    Options { read_sizes: sizes.to_vec(), ..options() }
}

/// Returns options for reads and writes of these sizes.
fn both(read: u64, write: u64) -> Options {
    Options { write_sizes: vec![write], writes: Some(10), ..reads(&[read]) }
}

fn run(experiment: &Sched, point: usize, variant: Variant) -> Result<Measured, String> {
    // Tests do not change the working directory.
    let mut task: Task = serde_json::from_value(experiment.input(point)).unwrap();
    for file in &mut task.load.files {
        *file = experiment.about.directory.join(&*file);
    }
    let spec = Spec { experiment: NAME.into(), variant: variant.name().into(), input: json!(task) };
    match cell::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap() {
        Outcome::Measured(measured) => Ok(measured),
        Outcome::Unavailable(reason) => Err(reason),
    }
}

/// Runs every variant at every point, and compares the results. A variant that this machine does not have
/// is skipped with a message, or fails the test if skipping is denied.
fn run_all(options: Options) -> Vec<(Variant, Measured)> {
    let mut experiment = Sched::new(options).unwrap();
    let mut all = Vec::new();
    for point in 0..experiment.about.points.len() {
        let expected = experiment.prepare(point, &|| false).unwrap();
        for variant in experiment.about.variants.clone() {
            let variant = Variant::by_name(variant).unwrap();
            experiment.reset(point).unwrap();
            match run(&experiment, point, variant) {
                Ok(measured) => {
                    let label = &experiment.about.points[point].label;
                    assert_eq!(measured.sum, expected, "{} {label}", variant.name());
                    assert_eq!(
                        measured.counters["operations"],
                        experiment.about.points[point].work.operations
                    );
                    all.push((variant, measured));
                }
                Err(reason) => {
                    let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
                    assert!(
                        !denied,
                        "skips are denied, and {} must skip: {reason}",
                        variant.name()
                    );
                    eprintln!("SKIP {}: {reason}", variant.name());
                }
            }
        }
    }
    all
}

fn refusal(options: Options) -> String {
    Sched::new(options).unwrap_err().to_string()
}

#[test]
fn variants_agree_on_what_is_read() {
    for sparse in [false, true] {
        let sizes = [1, 7, 1000, 4096, 100_000];
        let options = Options { threads: vec![1, 3], sparse, ..reads(&sizes) };
        for (variant, measured) in run_all(options) {
            let count = |name: &str| measured.counters.get(name).copied().unwrap_or(0);
            match variant {
                Variant::Blocking => assert_eq!(count("calls"), 20),
                Variant::Aio => {
                    assert_eq!(count("submitted"), 20);
                    assert!(count("submits") <= 20 && count("batch_max") <= 3);
                }
                // A plain thread waits for its own calls.
                Variant::Sakia => assert_eq!((count("plain"), count("sent")), (20, 0)),
                Variant::Ring => assert_eq!((count("plain"), count("sent")), (0, 20)),
                Variant::Runtime => panic!("its tasks do not wait for calls one by one"),
            }
        }
    }
}

#[test]
fn variants_agree_on_what_is_written() {
    for sparse in [false, true] {
        for write_step in [None, Some(5000)] {
            let options = Options { sparse, write_step, files: 2, ..both(100, 5000) };
            run_all(Options { mix: true, ..options.clone() });
            run_all(Options { read_sizes: Vec::new(), reads: None, ..options });
        }
    }
}

#[test]
fn cold_files_are_read_scattered() {
    run_all(Options { cold: true, files: 3, ..reads(&[1000, 10_000]) });
}

#[test]
fn past_the_page_cache_sizes_are_aligned() {
    let options = Options { direct: true, ..both(1000, 700) };
    match Sched::new(options.clone()) {
        Err(error) if error.to_string().contains("no direct I/O") => eprintln!("SKIP {error}"),
        Err(error) => panic!("{error:#}"),
        Ok(experiment) => {
            let load = &experiment.loads[0];
            assert!(load.reads.size >= 1000 && load.reads.size.is_multiple_of(512), "{load:?}");
            assert!(load.reads.step.is_multiple_of(512) && load.writes.step.is_multiple_of(512));
            run_all(options);
        }
    }
}

#[test]
fn figures_have_the_times_of_operations_and_of_calls() {
    let figure = |mode| Options { mode, threads: Vec::new(), reads: Some(4), ..reads(&[3000]) };
    for (_, measured) in run_all(figure(Mode::Fig4)) {
        assert_eq!(measured.counters["op_count"], 4);
        assert!(measured.counters["op_ns_mean"] > 0);
    }
    for (variant, measured) in run_all(figure(Mode::Fig5)) {
        let count = |name: &str| measured.counters[&format!("{name}_count")];
        match variant {
            Variant::Blocking => assert_eq!(count("pread"), 4),
            Variant::Aio => {
                assert_eq!((count("io_setup"), count("io_submit")), (1, 4));
                assert!(count("io_getevents") >= 4);
            }
            Variant::Ring => assert!((4..=8).contains(&count("enter")), "{measured:?}"),
            Variant::Sakia | Variant::Runtime => panic!("it is not traced"),
        }
    }
    match Sched::new(figure(Mode::Fig6)) {
        Ok(experiment) => assert!(experiment.loads.iter().all(|load| load.direct)),
        Err(error) => assert!(error.to_string().contains("--path"), "{error:#}"),
    }
}

/// Returns options for reads by threads that compute.
fn utilization(depths: &[usize]) -> Options {
    let mode = Mode::Utilization;
    Options { mode, threads: Vec::new(), depths: depths.to_vec(), ..reads(&[1000]) }
}

#[test]
fn variants_agree_on_what_is_computed_and_overlap_as_they_can() {
    let runs = run_all(Options { threads: vec![1, 3], files: 2, ..utilization(&[1, 4]) });
    for (variant, measured) in runs {
        let count = |name: &str| measured.counters[name];
        let (computing, in_flight) = (count("computing_ns"), count("in_flight_ns"));
        assert!(computing > 0 && in_flight > 0, "{measured:?}");
        let overlap = count("overlap_ns");
        assert!(overlap <= computing.min(in_flight), "{measured:?}");
        assert!(count("operations_in_flight_ns") >= in_flight, "{measured:?}");
        let is_idle = overlap == 0;
        match variant {
            Variant::Blocking => assert!(is_idle && count("utilization_permille") == 0),
            // The next read has been handed over before the computation begins.
            Variant::Aio | Variant::Sakia | Variant::Ring => assert!(!is_idle, "{measured:?}"),
            // The runtime may do a read at once, as a plain call.
            Variant::Runtime => {}
        }
    }
}

#[test]
fn utilization_has_a_point_for_each_cache_and_depth() {
    let labels = |options: Options| {
        let experiment = Sched::new(options).unwrap();
        let points = experiment.about.points.iter().filter(|point| !point.label.contains("direct"));
        points.map(|point| point.label.clone()).collect::<Vec<_>>()
    };
    let usual = Options { read_sizes: Vec::new(), ..utilization(&[]) };
    assert_eq!(
        labels(usual.clone()),
        [
            "hot 4 KiB x1, 1 deep",
            "hot 4 KiB x1, 8 deep",
            "cold 4 KiB x1, 1 deep",
            "cold 4 KiB x1, 8 deep"
        ]
    );
    assert_eq!(labels(Options { cold: true, ..utilization(&[2]) }), ["cold 1 kB x1, 2 deep"]);
    let both = Options { hot: true, cold: true, ..utilization(&[2]) };
    assert_eq!(labels(both.clone()), ["hot 1 kB x1, 2 deep", "cold 1 kB x1, 2 deep"]);
    let mut experiment = Sched::new(both).unwrap();
    assert!(experiment.about.variants.contains(&"runtime"));
    let [hot, cold] = [0, 1].map(|point| experiment.about.points[point].params.clone());
    assert_eq!((hot.get("cold"), cold["cold"].as_bool()), (None, Some(true)));
    assert_eq!((cold["depth"].as_u64(), cold["computation_steps"].is_u64()), (Some(2), true));
    // Each block has its own result.
    let before = experiment.prepare(1, &|| false).unwrap();
    let computation = experiment.loads[1].computation.as_mut().unwrap();
    computation.steps += 1;
    assert_ne!(experiment.prepare(1, &|| false).unwrap(), before);
}

#[test]
fn utilization_is_plotted_by_depth() {
    let experiment = Sched::new(Options { hot: true, ..utilization(&[1, 4]) }).unwrap();
    let run = |point, variant| {
        let counters = [("in_flight_ns", 200), ("overlap_ns", 50), ("computing_ns", 60)];
        let counters = crate::engine::counters(counters);
        let mut measured = Measured { counters, ..Measured::default() };
        measured.section.wall_ns = 300;
        let (round, process_wall_ns, noise) = (0, 0, Noise::default());
        Run { point, variant, round, measured, process_wall_ns, noise }
    };
    let runs = vec![run(0, "runtime"), run(0, "runtime"), run(1, "runtime")];
    let results = Results {
        about: experiment.about.clone(),
        runs,
        rows: Vec::new(),
        ratios: Vec::new(),
        reasons: Vec::new(),
        missing: Vec::new(),
        mismatches: Vec::new(),
    };
    let plots = experiment.plots(&results);
    let points = |plot: &Plot| {
        let of = plot.series.iter().find(|series| series.name == "runtime");
        of.unwrap().points.clone()
    };
    assert_eq!(plots.len(), 2);
    assert_eq!(points(&plots[0]), [(1.0, 25.0), (4.0, 25.0)]);
    assert_eq!(points(&plots[1]), [(1.0, 20.0), (4.0, 20.0)]);
    assert!(plots[0].series.iter().any(|series| series.points.is_empty()));
}

#[test]
fn matrix_has_all_of_them_or_says_what_is_left_out() {
    let options = Options { mode: Mode::Matrix, reads: None, threads: vec![], ..options() };
    let experiment = Sched::new(Options { quick: false, ..options.clone() }).unwrap();
    assert_eq!(experiment.about.points.len() + experiment.left_out.len(), 2 * 5 * 6);
    let first = &experiment.about.points[0];
    assert_eq!((first.label.as_str(), first.work.operations), ("r 1 kB x1", 100_000));
    for load in &experiment.loads {
        assert!(load.operations().is_multiple_of(load.threads as u64), "{load:?}");
    }
    let vast = Options { threads: vec![1000], read_sizes: vec![100_000_000, 1000], ..options };
    let experiment = Sched::new(vast).unwrap();
    assert_eq!((experiment.about.points.len(), experiment.left_out.len()), (2, 2));
    assert!(experiment.notes().iter().any(|note| note.contains("its buffers take")));
}

#[test]
fn numbers_of_the_study_can_be_had() {
    let ten = Options { reads: Some(10), ..reads(&[1000]) };
    let experiment = Sched::new(ten).unwrap();
    assert_eq!(experiment.about.points[0].work, Work { operations: 10, bytes: 10_000 });
    assert_eq!(experiment.loads[0].reads.step, 0, "all at the beginning of the file");
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let cases = [
        (Options { mix: true, ..reads(&[1]) }, "--mix needs"),
        (Options { writes: Some(1), ..reads(&[1]) }, "--nwrites needs --wsize"),
        (Options { write_sizes: vec![1], ..options() }, "--nreads needs --rsize"),
        (Options { write_sizes: vec![1, 2], ..reads(&[1, 2, 3]) }, "3 and 2 sizes"),
        (Options { write_step: Some(5), ..both(10, 10) }, "--woff 5 is less than the 10"),
        (Options { files: 0, ..reads(&[1]) }, "--nfiles 0"),
        (Options { others: vec!["/etc/hostname".into()], ..both(1, 1) }, "would overwrite"),
        (Options { others: vec!["a".into()], ..reads(&[1]) }, "not a path from the root"),
        (Options { mode: Mode::Fig4, ..both(1, 1) }, "--wsize is for the testbench"),
        (Options { mode: Mode::Fig6, writes: Some(1), ..reads(&[1]) }, "not for figures"),
        (Options { mode: Mode::Fig5, ..reads(&[1]) }, "--threads is not for --fig5"),
        (Options { depths: vec![2], ..reads(&[1]) }, "--depth and --compute are for"),
        (Options { hot: true, cold: true, ..reads(&[1]) }, "exclude each other"),
        (Options { read_sizes: vec![7], ..utilization(&[2]) }, "8 bytes or more"),
        (Options { variants: vec![Variant::Runtime], ..reads(&[1]) }, "none of them is measured"),
        (Options { read_step: Some(1 << 40), ..reads(&[1]) }, "its files would take"),
        (Options { directory: "/nonexistent".into(), ..reads(&[1]) }, "/nonexistent"),
    ];
    for (options, expected) in cases {
        let error = refusal(options);
        assert!(error.contains(expected), "{error}, not {expected}");
    }
}

#[test]
fn file_of_others_is_read_and_a_short_one_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("mine");
    std::fs::write(&path, [3; 5000]).unwrap();
    let others = vec![path.clone()];
    run_all(Options { others: others.clone(), ..reads(&[5000]) });
    let mut experiment = Sched::new(Options { others, ..reads(&[5001]) }).unwrap();
    let error = experiment.prepare(0, &|| false).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("5000 bytes"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), [3; 5000]);
}

#[test]
fn file_that_is_too_short_in_a_run_is_an_error_and_no_panic() {
    let mut experiment = Sched::new(reads(&[1000])).unwrap();
    experiment.prepare(0, &|| false).unwrap();
    let path = experiment.about.directory.join("data-0");
    std::fs::File::options().write(true).open(&path).unwrap().set_len(999).unwrap();
    for variant in Variant::ALL.into_iter().filter(|variant| *variant != Variant::Runtime) {
        let mut task: Task = serde_json::from_value(experiment.input(0)).unwrap();
        task.load.files = vec![path.clone()];
        let spec =
            Spec { experiment: NAME.into(), variant: variant.name().into(), input: json!(task) };
        match run_cell(&spec) {
            Ok(Outcome::Unavailable(reason)) => eprintln!("SKIP {}: {reason}", variant.name()),
            Ok(other) => panic!("{other:?}"),
            Err(error) => assert!(error.to_string().contains("no more than 999"), "{error:#}"),
        }
    }
}

#[test]
fn labels_are_in_powers_of_ten() {
    let shown = [1000, 100_000_000, 4096, 7, 1_500_000].map(decimal);
    assert_eq!(shown, ["1 kB", "100 MB", "4 KiB", "7 B", "1500 kB"]);
}
