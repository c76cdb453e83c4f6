//! Small trees, copied by programs that every machine has and by a stand-in for Sakia.

use std::env;
use std::fs;
use std::path::Path;

use super::*;
use crate::cell::Measured;

/// Returns options with programs of this machine, and a shell script in place of Sakia.
fn options(directory: &Path) -> Options {
    let script =
        r#"cp -r "$1" "$2" && echo '{"failures":0,"counters":{"workers":2,"write_seconds":0.5}}'"#;
    let command = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    Options {
        places: vec![Place::Disk],
        file_bytes: 100_000,
        quick: true,
        peers: vec![Peer { name: SAKIA.into(), command }],
        variants: ["cp", "cp-again", "sakia"].map(str::to_owned).to_vec(),
        search: env::var_os("PATH"),
        directory: directory.to_owned(),
        ..Options::default()
    }
}

/// Runs each variant at each point, checks the result and returns the measurements.
fn run_all(experiment: &mut CopyTree) -> Vec<Measured> {
    let mut all = Vec::new();
    for point in 0..experiment.about.points.len() {
        let expected = experiment.prepare(point, &|| false).unwrap();
        for variant in experiment.about.variants.clone() {
            experiment.reset(point).unwrap();
            let spec = Spec {
                experiment: NAME.into(),
                variant: variant.into(),
                input: experiment.input(point),
            };
            let outcome = crate::run_cell(&serde_json::to_string(&spec).unwrap()).unwrap();
            let Outcome::Measured(measured) = outcome else { panic!("{outcome:?}") };
            assert_eq!(measured.sum, expected, "{variant}");
            assert!(
                measured.section.wall_ns > 0 && measured.section.usage.cpu_ns > 0,
                "{measured:?}"
            );
            all.push(measured);
        }
    }
    all
}

#[test]
fn every_variant_copies_every_tree() {
    let parent = tempfile::tempdir().unwrap();
    let trees = Tree::NAMED.to_vec();
    let mut experiment = CopyTree::new(Options { trees, ..options(parent.path()) }).unwrap();
    let runs = run_all(&mut experiment);
    assert_eq!(runs.len(), 4 * 3);
    assert!(runs.iter().all(|run| run.counters.contains_key("disk_read_bytes")));
    for run in runs.iter().skip(2).step_by(3) {
        assert_eq!((run.counters["workers"], run.counters["write_us"]), (2, 500_000));
    }
    drop(experiment);
    assert!(fs::read_dir(parent.path()).unwrap().next().is_none(), "the files are removed");
}

#[test]
fn durable_copies_are_complete() {
    let parent = tempfile::tempdir().unwrap();
    let usual = options(parent.path());
    let asked =
        Options { mode: Mode::Durable, trees: vec![Tree::File], variants: Vec::new(), ..usual };
    let mut experiment = CopyTree::new(asked).unwrap();
    assert_eq!(experiment.about.variants, ["cp", "cp-fdatasync", "cp-syncfs", "sakia"]);
    assert_eq!(run_all(&mut experiment).len(), 4);
}

#[test]
fn tree_of_the_user_stays() {
    let parent = tempfile::tempdir().unwrap();
    let (tree, to) = (parent.path().join("tree"), parent.path().join("to"));
    fs::create_dir_all(tree.join("a")).unwrap();
    fs::create_dir(&to).unwrap();
    fs::write(tree.join("a/b"), "x").unwrap();
    let asked = Options {
        trees: vec![Tree::Path(tree.clone())],
        places: vec![Place::Disk, Place::Path(to.clone())],
        after_delete: true,
        cores: Some(1),
        ..options(parent.path())
    };
    let copies = std::thread::spawn(move || {
        let mut experiment = CopyTree::new(asked).unwrap();
        assert_eq!(experiment.about.points[1].label, "tree, path, after delete, 1 CPU");
        run_all(&mut experiment).len()
    });
    assert_eq!(copies.join().unwrap(), 6);
    assert_eq!(fs::read(tree.join("a/b")).unwrap(), b"x");
    assert!(fs::read_dir(&to).unwrap().next().is_none());
    let inside = Options {
        trees: vec![Tree::Path(tree.clone())],
        places: vec![Place::Path(tree.join("a"))],
        ..options(parent.path())
    };
    let mut experiment = CopyTree::new(inside).unwrap();
    let error = experiment.prepare(0, &|| false).unwrap_err().to_string();
    assert!(error.ends_with("is inside of the source"), "{error}");
}

#[test]
fn file_systems_are_made_for_each_run() {
    let parent = tempfile::tempdir().unwrap();
    let places = vec![Place::Tmpfs, Place::Ext4, Place::Ext4NoJournal];
    let asked = Options { places, after_delete: true, ..options(parent.path()) };
    let mut experiment = CopyTree::new(asked).unwrap();
    for missing in &experiment.about.left_out {
        sakia_bench_support::place::announce_skip(missing.variant, &missing.reason);
    }
    assert_eq!(run_all(&mut experiment).len(), 3 * experiment.about.points.len());
}

#[test]
fn ratios_are_with_cp_and_with_sakia() {
    let variants = ["cp", "cp-again", "sakia", "sakia-4k", "cpz"];
    let expected =
        [("cp-again", "cp"), ("sakia", "cp"), ("sakia-4k", "cp"), ("cpz", "cp"), ("sakia", "cpz")];
    assert_eq!(pairs(&variants), expected);
    assert_eq!(pairs(&["sakia", "xcp"]), [("sakia", "xcp")]);
}

#[test]
fn reason_is_what_the_program_said() {
    let parent = tempfile::tempdir().unwrap();
    let experiment = CopyTree::new(options(parent.path())).unwrap();
    let said = |counters: &[(&str, u64)]| {
        let counters = counters.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        let results = crate::results::tests::results(&[(1, 1)]);
        experiment.reason(&Row { counters, ..results.rows[0].clone() })
    };
    assert_eq!(said(&[("disk_read_bytes", 0), ("bytes", 9)]), None);
    let counters = [
        ("workers", 2),
        ("plain_calls", 90),
        ("uncached_opens", 7),
        ("ring_opens", 0),
        ("pool_lists", 0),
        ("failures", 0),
        ("create_us", 1_500_000),
        ("disk_read_bytes", 3 << 30),
    ];
    let expected = "2 workers, 90 plain calls, 7 uncached opens, 0 of these by the ring's \
                    workers; 1.50 s creating; read 3 GiB from disk";
    assert_eq!(said(&counters).unwrap(), expected);
}

#[test]
fn unknown_variants_are_refused() {
    let wrong = Options { variants: vec!["dd".into()], ..Options::default() };
    let error = wrong.check().unwrap_err().to_string();
    assert!(error.starts_with("there is no variant dd; there are cp, "), "{error}");
    assert_eq!(Tree::by_name("huge"), None);
    assert_eq!(Tree::by_name("."), Some(Tree::Path(".".into())));
}
