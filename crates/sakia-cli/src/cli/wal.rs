//! The arguments of `sakia bench wal`.

use std::path::PathBuf;

use clap::Args;
use sakia_bench::named::Named;
use sakia_bench::wal;

use super::bytes;
use super::experiments::{CommonArgs, expected, or, parse_count, parse_named};
use super::notes::{WAL_NOTES, bench_json_help};

/// A log of which each record is durable before its writer goes on
///
/// runtime has a runtime of one thread with a task for each writer, direct the same past the page cache;
/// engine has one thread that awaits all writers, wait a thread for each of them; std-group has threads and
/// a group commit by hand, std threads of which each writes and syncs; tokio has the group commit of
/// sakia-tokio, and tasks of tokio. The log is read at the end, and every byte compared.
///
/// fixed and by-latency are measured only if they are named: writes without a group, up to 64 at a time, or
/// as many as their latency allows.
///
/// memory is an ext4 whose disk is in memory, slow one whose disk takes 2 ms for each write. Both take root,
/// loop devices and mkfs.ext4, and slow /dev/fuse. With --path only a directory is needed.
///
/// The exit status is 0 if everything was measured and all bytes are right, 1 if something failed, 2 for
/// wrong usage. A variant that this machine does not offer is no failure.
#[derive(Debug, Args)]
#[command(after_long_help = bench_json_help(WAL_NOTES))]
pub(super) struct WalArgs {
    #[command(flatten)]
    pub(super) common: CommonArgs,

    /// Numbers of writers; 1,8,32,64, or 1,32 with --quick
    #[arg(long, value_name = "COUNT,…", value_delimiter = ',')]
    #[arg(value_parser = parse_count::<{ wal::WRITERS_MAX }>)]
    writers: Vec<usize>,

    /// Bytes of a record, 16 to 1M; 256,4K, or 256 with --quick
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',')]
    #[arg(value_parser = bytes(wal::RECORD_BYTES_MIN as u64, wal::RECORD_BYTES_MAX as u64))]
    record: Vec<u64>,

    /// Records of each writer; by default as many as take about half a second
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    records: Option<u64>,

    /// Places of the log: memory, slow
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_place)]
    places: Vec<wal::Place>,

    /// A directory for the log, for a place named path; it alone, unless others are named
    #[arg(long, value_name = "DIR")]
    path: Option<PathBuf>,

    /// Variants: runtime, direct, engine, wait, std-group, std, tokio; besides fixed, by-latency
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(value_parser = parse_named::<wal::Variant>)]
    variants: Vec<wal::Variant>,
}

impl WalArgs {
    pub(super) fn resolve(self) -> wal::Options {
        use wal::{Place, Variant};
        let quick = self.common.quick;
        let mut places = self.places;
        if self.path.is_some() {
            places.push(Place::Path);
        }
        let record_bytes: Vec<_> = self.record.into_iter().map(|bytes| bytes as usize).collect();
        let usual_bytes: &[_] = if quick { &wal::QUICK_RECORD_BYTES } else { &wal::RECORD_BYTES };
        wal::Options {
            writers: or(self.writers, if quick { &wal::QUICK_WRITERS } else { &wal::WRITERS }),
            record_bytes: or(record_bytes, usual_bytes),
            records: self.records,
            quick,
            places: Place::in_order(&or(places, &Place::DEFAULT)),
            directory: self.path,
            variants: Variant::in_order(&or(self.variants, &Variant::DEFAULT)),
        }
    }
}

fn parse_place(text: &str) -> Result<wal::Place, String> {
    use wal::Place;
    let place = Place::by_name(text).filter(|place| Place::DEFAULT.contains(place));
    place.ok_or_else(|| expected(&Place::DEFAULT.map(Place::name)))
}

#[cfg(test)]
mod tests {
    use super::super::{Surroundings, Task, parse_from};
    use super::*;
    use crate::bench::Which;

    fn options(args: &[&str]) -> Option<(wal::Options, usize)> {
        let args = [&["sakia", "bench", "wal"], args].concat();
        match parse_from(args, Surroundings::default()) {
            Ok(Task::Bench(options)) => match options.experiment {
                Which::Wal(wal) => Some((wal, options.runs)),
                _ => None,
            },
            _ => None,
        }
    }

    #[test]
    fn a_log_has_all_writers_and_places_unless_told() {
        let (all, runs) = options(&[]).unwrap();
        assert_eq!((all.writers, all.record_bytes, runs), (vec![1, 8, 32, 64], vec![256, 4096], 9));
        assert_eq!(
            (&all.places[..], &all.variants[..]),
            (&wal::Place::DEFAULT[..], &wal::Variant::DEFAULT[..])
        );
        let (some, runs) =
            options(&["--quick", "--path", "d", "--variants", "std,engine", "--record", "1K"])
                .unwrap();
        assert_eq!((some.writers, some.record_bytes, runs), (vec![1, 32], vec![1024], 3));
        assert_eq!((some.places, some.quick), (vec![wal::Place::Path], true));
        assert_eq!(some.variants, [wal::Variant::Engine, wal::Variant::Std]);
        for wrong in [
            ["--writers", "0"],
            ["--writers", "1025"],
            ["--record", "15"],
            ["--record", "2M"],
            ["--records", "0"],
            ["--places", "path"],
            ["--variants", "glommio"],
        ] {
            assert!(options(&wrong).is_none(), "{wrong:?}");
        }
    }
}
