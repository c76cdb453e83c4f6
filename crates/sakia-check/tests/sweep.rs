//! The programs of a thousand seeds on the simulated kernel, and those that failed before.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sakia_check::program::Program;
use sakia_check::run::simulated;
use sakia_check::stats::Stats;
use sakia_check::sweep::{check, sweep};

/// `cargo xtask mutants` runs this with known bugs, which shows that a thousand seeds find them.
#[test]
fn a_thousand_seeds_do_what_the_models_say_and_the_same_twice() {
    const SEEDS: u64 = 1000;
    let mut report = sweep(0..SEEDS, 2, true, |_| ());
    let mut end = SEEDS;
    // Some events are rare, such as a failed fsync: there are more seeds for these.
    while report.failures.is_empty() && !report.stats.never().is_empty() && end < 10 * SEEDS {
        let more = sweep(end..end + SEEDS, 2, true, |_| ());
        report.stats.add(more.stats);
        report.failures.extend(more.failures);
        end += SEEDS;
    }
    let again = "to see it smaller: cargo xtask sim --seeds 1 --first-seed";
    if let Some((seed, failure)) = report.failures.first() {
        panic!("seed {seed}: {}; {again} {seed}", failure.what);
    }
    assert_eq!(report.stats.never(), [""; 0], "these never happened");
    assert_eq!(report.stats.programs, end);
}

/// A seed found each of these programs, which was then made smaller; each shows a bug that was fixed.
#[test]
fn programs_that_failed_once_do_not_fail_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let program = Program::from_text(&fs::read_to_string(&path).unwrap()).unwrap();
        if let Err(failure) = check(&program, true, &mut Stats::default()) {
            panic!("{}: {}", path.display(), failure.what);
        }
        count += 1;
    }
    assert!(count > 0, "there are none");
}

/// Another seed gives another hash.
#[test]
fn hashes_follow_from_seeds() {
    // Short programs may do nothing, and have equal hashes.
    let programs = (0..200).map(Program::random).filter(|program| program.steps.len() > 30);
    let programs: Vec<Program> = programs.collect();
    let hash = |program| simulated(program, false, &mut Stats::default()).unwrap().hash;
    let different: BTreeSet<u64> = programs.iter().map(hash).collect();
    assert_eq!(different.len(), programs.len());
}
