//! `cargo xtask peers engine`: files in tasks of tokio, by `tokio::fs`, by plain calls in its pool, and by
//! Sakia's engine, by the clock.

use super::files::{Cells, Experiment, Needs, Peer, Sizes, Suite, peer};

/// Below tokio.
pub(super) const SUITE: Suite =
    Suite { experiments: &EXPERIMENTS, peers: &PEERS, bases: ["tokio-fs-mt", "tokio-pread-mt"] };

const PEERS: [Peer; 9] = [
    peer("tokio-fs-mt", "peers-tokio", "fs-mt", Cells::Only(BY_NAMES)),
    peer("tokio-fs-ct", "peers-tokio", "fs-ct", Cells::Only(BY_NAMES)),
    peer("tokio-pread-mt", "peers-tokio", "mt", Cells::Only(BY_OFFSETS)),
    peer("tokio-pread-ct", "peers-tokio", "ct", Cells::Only(BY_OFFSETS)),
    peer("sakia-engine-mt", "peers-engine", "mt", Cells::Only(BY_OFFSETS)),
    peer("sakia-engine-ct", "peers-engine", "ct", Cells::Only(BY_OFFSETS)),
    peer("sakia-tokio-mt", "peers-engine", "fs-mt", Cells::Only(BY_NAMES)),
    peer("sakia-tokio-ct", "peers-engine", "fs-ct", Cells::Only(BY_NAMES)),
    peer("std", "peers-std", "", Cells::All),
];

/// Cells with the names of `tokio::fs`: it has no direct reads.
const BY_NAMES: &[&str] = &[
    "1k",
    "4k",
    "16k",
    "64k",
    "256k",
    "1m",
    "tmpfs-1k",
    "tmpfs-4k",
    "tmpfs-16k",
    "tmpfs-64k",
    "tmpfs-256k",
    "tmpfs-1m",
    "smallfiles",
    "write",
    "write-tmpfs",
];

/// Cells with offsets: whole files have none.
const BY_OFFSETS: &[&str] = &[
    "1k",
    "4k",
    "16k",
    "64k",
    "256k",
    "1m",
    "tmpfs-1k",
    "tmpfs-4k",
    "tmpfs-16k",
    "tmpfs-64k",
    "tmpfs-256k",
    "tmpfs-1m",
    "direct",
    "write",
    "write-tmpfs",
];

/// Random reads of so many bytes.
const fn reads(
    name: &'static str,
    title: &'static str,
    arguments: &'static [&'static str],
    needs: Needs,
    ops: fn(&Sizes) -> u64,
) -> Experiment {
    Experiment { name, title, arguments, needs, ops }
}

/// Cells of hot reads: name, name on tmpfs, block, and the part of the operations that is made.
macro_rules! experiments {
    ($($name:literal, $block:literal, $part:literal;)*) => {
        [
            $(reads(
                $name,
                concat!("random reads of ", $name, ", cached file, 64 tasks"),
                &["randread", "tasks=64", concat!("block=", $block)],
                Needs::File,
                |sizes| sizes.reads / $part,
            ),)*
            $(reads(
                concat!("tmpfs-", $name),
                concat!("random reads of ", $name, ", file on tmpfs, 64 tasks"),
                &["randread", "tasks=64", concat!("block=", $block)],
                Needs::FileInMemory,
                |sizes| sizes.reads / $part,
            ),)*
            reads(
                "direct",
                "random reads of 4 KiB by O_DIRECT, 64 tasks",
                &["randread", "tasks=64", "direct=1"],
                Needs::File,
                |sizes| sizes.direct_reads / 2,
            ),
            reads(
                "smallfiles",
                "small files opened, read whole and closed, 4 KiB each, cached, 64 tasks",
                &["smallfiles", "tasks=64"],
                Needs::Tree,
                |sizes| sizes.small_files,
            ),
            reads(
                "write",
                "random overwrites of 4 KiB, cached file, 64 tasks",
                &["write", "tasks=64"],
                Needs::FileToWrite,
                |sizes| sizes.writes / 4,
            ),
            reads(
                "write-tmpfs",
                "random overwrites of 4 KiB, file on tmpfs, 64 tasks",
                &["write", "tasks=64"],
                Needs::FileToWriteInMemory,
                |sizes| sizes.writes / 4,
            ),
        ]
    };
}

const EXPERIMENTS: [Experiment; 16] = experiments! {
    "1k", "1024", 8;
    "4k", "4096", 8;
    "16k", "16384", 8;
    "64k", "65536", 16;
    "256k", "262144", 64;
    "1m", "1048576", 256;
};
