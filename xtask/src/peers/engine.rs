//! `cargo xtask peers engine`: files in tasks of tokio, by `tokio::fs`, by plain calls in its pool, and by
//! Sakia's engine, by the clock.

use super::files::{Cells, Experiment, Needs, Peer, Suite, peer};

/// Below tokio.
pub(super) const SUITE: Suite =
    Suite { experiments: &EXPERIMENTS, peers: &PEERS, bases: ["tokio-fs-mt", "tokio-pread-mt"] };

const PEERS: [Peer; 9] = [
    peer("tokio-fs-mt", "peers-tokio", "fs-mt", BY_NAMES),
    peer("tokio-fs-ct", "peers-tokio", "fs-ct", BY_NAMES),
    peer("tokio-pread-mt", "peers-tokio", "mt", BY_OFFSETS),
    peer("tokio-pread-ct", "peers-tokio", "ct", BY_OFFSETS),
    peer("sakia-engine-mt", "peers-engine", "mt", BY_OFFSETS),
    peer("sakia-engine-ct", "peers-engine", "ct", BY_OFFSETS),
    peer("sakia-tokio-mt", "peers-engine", "fs-mt", BY_NAMES),
    peer("sakia-tokio-ct", "peers-engine", "fs-ct", BY_NAMES),
    peer("std", "peers-std", "", Cells::All),
];

/// Cells with the names of `tokio::fs`: it has no direct reads.
const BY_NAMES: Cells = Cells::AllBut(&["direct"]);
/// Cells with offsets: whole files have none.
const BY_OFFSETS: Cells = Cells::AllBut(&["smallfiles"]);

/// Cells of hot reads: name, name on tmpfs, block, and the part of the operations that is made.
macro_rules! experiments {
    ($($name:literal, $block:literal, $part:literal;)*) => {
        [
            $(Experiment {
                name: $name,
                title: concat!("random reads of ", $name, ", cached file, 64 tasks"),
                arguments: &["randread", "tasks=64", concat!("block=", $block)],
                needs: Needs::File,
                ops: |sizes| sizes.reads / $part,
            },)*
            $(Experiment {
                name: concat!("tmpfs-", $name),
                title: concat!("random reads of ", $name, ", file on tmpfs, 64 tasks"),
                arguments: &["randread", "tasks=64", concat!("block=", $block)],
                needs: Needs::FileInMemory,
                ops: |sizes| sizes.reads / $part,
            },)*
            Experiment {
                name: "direct",
                title: "random reads of 4 KiB by O_DIRECT, 64 tasks",
                arguments: &["randread", "tasks=64", "direct=1"],
                needs: Needs::File,
                ops: |sizes| sizes.direct_reads / 2,
            },
            Experiment {
                name: "smallfiles",
                title: "small files opened, read whole and closed, 4 KiB each, cached, 64 tasks",
                arguments: &["smallfiles", "tasks=64"],
                needs: Needs::Tree,
                ops: |sizes| sizes.small_files,
            },
            Experiment {
                name: "write",
                title: "random overwrites of 4 KiB, cached file, 64 tasks",
                arguments: &["write", "tasks=64"],
                needs: Needs::FileToWrite,
                ops: |sizes| sizes.writes / 4,
            },
            Experiment {
                name: "write-tmpfs",
                title: "random overwrites of 4 KiB, file on tmpfs, 64 tasks",
                arguments: &["write", "tasks=64"],
                needs: Needs::FileToWriteInMemory,
                ops: |sizes| sizes.writes / 4,
            },
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
