//! The arguments of `sakia bench costs` and `sakia bench baseline`: figures of the machine.

use std::path::PathBuf;

use clap::Args;
use sakia_bench::named::Named;
use sakia_bench::{baseline, costs};

use super::bytes;
use super::experiments::{CommonArgs, FILE_BYTES_MAX, default_directory, or, parse_named};
use super::notes::{BASELINE_NOTES, COSTS_NOTES, bench_json_help};

/// The cost of one system call, thread switch, ring entry, wake, task switch, event, and runtime
///
/// call is getppid. In switch a thread wakes another one on the same processor, and sleeps. In wake a task
/// wakes a task of another thread of a runtime; in yield it lets another one of its thread run. nop-1, nop-8
/// and nop-64 are no-ops through a driver on the ring, 1, 8 or 64 at a time. nop-64-recorded is the same
/// while a recording is on, nop-64-measured while latencies are measured. event is an event of the program's
/// own in a recording, event-off the same without a recording. reads-16-wait is a cached read of an engine,
/// 16 as one request, for which the thread waits; reads-16-block-on makes a runtime for each request.
///
/// The figures show where an operation's time goes on this machine, and which way of waiting pays: an
/// operation that takes less than a switch is best done in place.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(COSTS_NOTES))]
pub(super) struct CostsArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Operations of each kind in a run; 102400, or 12800 with --quick
    ///
    /// Rounded up to a multiple of 64.
    #[arg(long, value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=costs::OPERATIONS_MAX))]
    operations: Option<u64>,

    /// Variants to measure: call, switch, wake, yield, nop-1, nop-8, nop-64, nop-64-recorded,
    /// nop-64-measured, event, event-off, reads-16-wait, reads-16-block-on
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<costs::Variant>)]
    variants: Vec<costs::Variant>,
}

impl CostsArgs {
    pub(super) fn resolve(self) -> costs::Options {
        use costs::Variant;
        let usual = if self.common.quick { costs::QUICK_OPERATIONS } else { costs::OPERATIONS };
        costs::Options {
            operations: self.operations.unwrap_or(usual),
            variants: Variant::in_order(&or(self.variants, &Variant::DEFAULT)),
        }
    }
}

/// Raw reads and writes in a directory, and cp -r of a tree: figures to compare others with
///
/// direct reads and writes a file bypassing the page cache, buffered through it: 1 MiB at a time from
/// beginning to end, and 4 KiB at random offsets. cp copies 3,905 files of 4 KiB. None of this uses Sakia:
/// the figures describe the directory's disk, so that a slow experiment can be distinguished from a slow
/// disk, and figures of two days or two machines can be compared relative to these. Take them in the
/// directory of the other experiment, at about the same time, and keep both in one file:
///
/// sakia bench baseline --dir DIR --keep results.jsonl
///
/// sakia bench copytree --place DIR --keep results.jsonl
///
/// A copy cannot be faster than the slower one of the reads and writes here, unless the page cache has one of
/// them. If baseline itself differs from day to day, the machine differs.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(BASELINE_NOTES))]
pub(super) struct BaselineArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Bytes of the file, a multiple of 1M; 256M, or 32M with --quick
    #[arg(long, value_name = "BYTES")]
    #[arg(value_parser = bytes(baseline::SIZE_BYTES_MIN, FILE_BYTES_MAX))]
    size: Option<u64>,

    /// Directory for the files; by default that of the program's build, or else the one for temporary files
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// Variants to measure: direct, buffered, cp
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<baseline::Variant>)]
    variants: Vec<baseline::Variant>,
}

impl BaselineArgs {
    pub(super) fn resolve(self) -> baseline::Options {
        use baseline::Variant;
        let usual =
            if self.common.quick { baseline::QUICK_SIZE_BYTES } else { baseline::SIZE_BYTES };
        baseline::Options {
            size_bytes: self.size.unwrap_or(usual),
            quick: self.common.quick,
            variants: Variant::in_order(&or(self.variants, &Variant::ALL)),
            directory: self.dir.unwrap_or_else(default_directory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Surroundings, Task, parse_from};
    use super::*;
    use crate::bench::Which;

    fn options(args: &[&str]) -> Option<(Which, usize)> {
        let args = [&["sakia", "bench"], args].concat();
        match parse_from(args, Surroundings::default()) {
            Ok(Task::Bench(options)) => Some((options.experiment, options.runs)),
            _ => None,
        }
    }

    #[test]
    fn costs_are_those_of_everything_unless_told() {
        let Some((Which::Costs(all), 9)) = options(&["costs"]) else { panic!("costs") };
        assert_eq!((all.operations, &all.variants[..]), (102_400, &costs::Variant::ALL[..]));
        let some = options(&["costs", "--quick", "--variants", "yield,call"]);
        let Some((Which::Costs(some), 7)) = some else { panic!("costs") };
        assert_eq!(some.operations, 12_800);
        assert_eq!(some.variants, [costs::Variant::Call, costs::Variant::Yield]);
        assert!(options(&["costs", "--operations", "0"]).is_none());
    }

    #[test]
    fn baseline_has_a_file_and_a_place() {
        let Some((Which::Baseline(usual), 9)) = options(&["baseline"]) else { panic!("baseline") };
        assert_eq!((usual.size_bytes, usual.quick), (256 << 20, false));
        let quick = options(&["baseline", "--quick", "--dir", "d", "--variants", "cp"]);
        let Some((Which::Baseline(quick), 3)) = quick else { panic!("baseline") };
        assert_eq!((quick.size_bytes, quick.quick), (32 << 20, true));
        assert_eq!((quick.variants, quick.directory), (vec![baseline::Variant::Cp], "d".into()));
        assert!(options(&["baseline", "--size", "1000"]).is_none());
    }
}
