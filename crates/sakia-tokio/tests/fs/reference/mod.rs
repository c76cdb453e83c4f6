//! Random programs on `sakia_tokio::fs` and on `tokio::fs`: everything that can be observed is the same.
//!
//! A [program](program) opens files with random options, below a random umask, and uses them and clones;
//! and it calls the functions by path. It [runs](play) on both, each in a directory of its own with the same
//! initial contents, step by step: in memory, on the machine's disk, in too little memory, and on a file
//! server, where nothing is cached and requests fail. Futures are dropped in the middle. Failing programs are
//! made smaller.
//!
//! `SAKIA_TEST_FS_PROGRAMS` is the number of programs, and `SAKIA_TEST_FS_SEED` the first of them.
//!
//! # Compared
//! - The value of each step, or the kind of its error and its errno; with the bytes read before an error.
//! - After each error, the next call.
//! - At the end, and in between: names, types, modes, owners, links, sizes and contents of all files; of open
//!   ones the position, and the error that is left.
//!
//! # Left out
//! - Times that no step has set, numbers of inodes and devices, the order of entries in a directory, and
//!   numbers of links to directories: they differ between two directories anyway.
//! - The order of operations on one file by two handles, unless the second begins while the first is known
//!   to wait ([`Action::Overlap`](steps::Action)): in both, threads run them in any order. The reference has
//!   one thread for blocking work, and an operation in flight is awaited before another file is used. So it
//!   is before an operation that is dropped, since both must have begun it, or neither.
//! - Writes after a dropped read while a clone may have moved the position: `tokio::fs` may then take bytes
//!   that it has not written for unread ones. A seek comes before.
//! - Another descriptor of the same file, outside of both, that moves the position meanwhile.
//! - FIFOs that block, `O_DIRECT`, and an end of the runtime midway: `special` and `ends` have them. FIFOs of
//!   programs are non-blocking, and nothing is dropped there: a write after a dropped read fails in
//!   `tokio::fs`, which wants to seek.
//! - The value of a `poll_complete` without a seek, which is 0 after `set_len` in `tokio::fs`.
//! - Messages of errors, and panics.
//!
//! # Differences
//! They are meant:
//! - A read may return fewer bytes: at most 256 KiB inline, or those in the cache. The next reads return the
//!   others.
//! - A sync fails if the write before it did. The next write or flush must then return the error, too.
//!   Setting times fails so, too, and a flush comes before it.
//! - The kept error of a write has its errno; that of `tokio::fs` has the kind only.
//! - The error of a dropped `set_len` is lost; `tokio::fs` returns it from the next seek.
//! - Clones, `into_std` and a seek that fails return the bytes of a dropped read to the file, while
//!   `tokio::fs` loses them; so the reference is put at the same position.

mod nature;
mod ours;
mod outcome;
mod pair;
mod place;
mod program;
mod steps;
#[expect(clippy::duplicate_mod, reason = "the same steps, with other types of the same names")]
mod theirs;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use sakia_testkit::place::announce_skip;
use sakia_testkit::settings::number;
use sakia_testkit::{forked, shrink};

use self::pair::{Difference, Pair};
use self::place::{Kind, Place};
use self::program::Programs;
use self::steps::Step;
use crate::support::Folder;

/// The default number of programs.
const PROGRAMS: u64 = 320;
/// The number of programs of one process: it ends within the patience of the tests on a slow machine.
const BATCH: u64 = 32;
/// The name of the file with the difference that a child found.
const REPORT: &str = "report";

/// The seed of a program, and facts that depend on it only.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    kind: Kind,
    umask: u32,
    has_threads: bool,
}

impl Case {
    fn new(seed: u64, kinds: &[Kind]) -> Self {
        let kind = Some(Kind::of(seed)).filter(|kind| kinds.contains(kind));
        let umask = [0o022, 0o022, 0o077, 0, 0o027, 0o777][(seed / 7 % 6) as usize];
        Self {
            seed,
            kind: kind.unwrap_or(Kind::Memory),
            umask,
            has_threads: seed.is_multiple_of(5),
        }
    }

    fn steps(self) -> Vec<Step> {
        Programs::new(self.seed).program(self.kind == Kind::Server)
    }
}

/// Directories of the test, which outlive its children.
struct Folders {
    memory: Folder,
    disk: Folder,
}

impl Folders {
    fn of(&self, kind: Kind) -> &Folder {
        if kind == Kind::Disk { &self.disk } else { &self.memory }
    }

    fn report(&self) -> Option<String> {
        std::fs::read_to_string(self.memory.path(REPORT)).ok()
    }

    /// Runs programs in a child, whose umask is its own. Returns the difference, and its seed.
    fn run(&self, cases: &[(Case, Vec<Step>)]) -> Result<(), (Option<u64>, Difference)> {
        for kind in [Kind::Memory, Kind::Disk] {
            for side in ["ours", "theirs"] {
                std::fs::remove_dir_all(self.of(kind).path(side)).ok();
            }
        }
        std::fs::remove_file(self.memory.path(REPORT)).ok();
        let ended = forked::run_with_threads(|| {
            std::panic::set_hook(Box::new(|_| ()));
            let mut places = BTreeMap::new();
            for (case, steps) in cases {
                let parent = self.of(case.kind).path("");
                let place = places
                    .entry(case.kind as u8)
                    .or_insert_with(|| Place::new(case.kind, &parent).unwrap());
                if let Err(difference) = play(*case, steps, place) {
                    let report = format!("{} {difference}", case.seed);
                    return std::fs::write(self.memory.path(REPORT), report).unwrap();
                }
            }
        });
        match (self.report(), ended) {
            (Some(report), _) => {
                let (seed, difference) = report.split_once(' ').unwrap();
                Err((seed.parse().ok(), difference.to_owned()))
            }
            (None, Err(error)) => Err((None, error)),
            (None, Ok(())) => Ok(()),
        }
    }
}

fn play(case: Case, steps: &[Step], place: &Place) -> Result<(), Difference> {
    rustix::process::umask(0.into());
    let pair = Pair::new(place, case.has_threads);
    rustix::process::umask(case.umask.into());
    let played = catch_unwind(AssertUnwindSafe(|| pair.check(steps)));
    rustix::process::umask(0.into());
    played.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text
            .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into()))
            .unwrap_or_default())
    })
}

/// Returns the kinds of places of this machine.
fn kinds() -> Vec<Kind> {
    let mut kinds = vec![Kind::Memory, Kind::Disk];
    for kind in [Kind::Small, Kind::Server] {
        match Place::new(kind, Path::new("/")) {
            Ok(_) => kinds.push(kind),
            Err(error) => announce_skip(module_path!(), &format!("{kind:?}: {error}")),
        }
    }
    kinds
}

#[test]
fn programs_do_what_they_do_with_tokio() {
    let folders = Folders { memory: Folder::in_memory(), disk: Folder::new() };
    let kinds = kinds();
    let first = number("SAKIA_TEST_FS_SEED", 0);
    let seeds: Vec<u64> = (first..first + number("SAKIA_TEST_FS_PROGRAMS", PROGRAMS)).collect();
    for batch in seeds.chunks(BATCH as usize) {
        let with_steps = |seed: &u64| {
            let case = Case::new(*seed, &kinds);
            (case, case.steps())
        };
        let cases: Vec<_> = batch.iter().map(with_steps).collect();
        let Err((seed, difference)) = folders.run(&cases) else { continue };
        // A child that hangs or dies does not say at what.
        let guilty = cases.iter().find(|(case, steps)| match seed {
            Some(seed) => case.seed == seed,
            None => folders.run(&[(*case, steps.clone())]).is_err(),
        });
        let Some((case, steps)) = guilty else { panic!("{difference}, but not alone: {batch:?}") };
        let mut last = difference;
        // One that hangs would take its time again and again.
        let smallest = if seed.is_none() {
            steps.clone()
        } else {
            shrink::smallest(steps.clone(), |steps| {
                let ended = folders.run(&[(*case, steps.to_vec())]);
                ended.map_err(|(_, difference)| last = difference).is_err()
            })
        };
        let steps: Vec<_> = smallest.iter().map(|step| format!("{step:?}")).collect();
        panic!("{case:?}: {last}\n{}", steps.join("\n"));
    }
}
