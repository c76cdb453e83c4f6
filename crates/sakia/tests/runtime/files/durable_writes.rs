//! Durable writes: a write and a sync of its bytes with a ring, one call without one.

use sakia::Runtime;
use sakia::fs::{File, OpenOptions};
use sakia_driver::{OpKind, Policy};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode};

use super::TempDir;

on_each_backend! {
    each_syncs_its_file_once
    with_a_ring_each_is_a_write_and_a_sync
    a_write_that_is_durable_by_itself_is_not_synced_again
    what_is_written_to_nothing_is_durable
}

const LEN: usize = 5000;

fn runtime(policy: Policy) -> Runtime {
    Runtime::builder().backend(policy).build().unwrap()
}

fn to_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true).clone()
}

/// A server sees one request to sync for each durable write, and none for the others.
fn each_syncs_its_file_once(policy: Policy) {
    let fuse = available!(Fuse::builder().file("file", vec![0; 2 * LEN]).mount());
    runtime(policy).block_on(async {
        let file = to_write().open(fuse.join("file")).await.unwrap();
        file.write_all_at(vec![1; LEN], 7).await.0.unwrap();
        assert_eq!(fuse.count(Opcode::FSYNC), 0);
        for count in 1..4 {
            file.write_durable_at(vec![2; LEN], 7).await.0.unwrap();
            assert_eq!(fuse.count(Opcode::FSYNC), count);
        }
        assert_eq!(file.read_at(vec![0; 8], 3).await.1, [0, 0, 0, 0, 2, 2, 2, 2]);
    });
}

/// With a ring several durable writes of a file are synced at once, and not one after the other by the
/// kernel's workers.
fn with_a_ring_each_is_a_write_and_a_sync(policy: Policy) {
    let dir = TempDir::new();
    let by_ring = u64::from(policy == Policy::Uring);
    let runtime = runtime(policy);
    let syncs = || runtime.counters().of(OpKind::Fsync).submitted;
    runtime.block_on(async {
        let file = File::create(dir.join("file")).await.unwrap();
        file.write_durable_at(vec![1; LEN], 3).await.0.unwrap();
        assert_eq!(syncs(), by_ring);
        // Nothing was written, so there is nothing to sync.
        file.write_durable_at(Vec::new(), 3).await.0.unwrap();
        assert_eq!(syncs(), by_ring);
    });
    assert_eq!(std::fs::read(dir.join("file")).unwrap()[3..], [1; LEN]);
}

/// The kernel syncs each write to a file that was opened so.
fn a_write_that_is_durable_by_itself_is_not_synced_again(policy: Policy) {
    let fuse = available!(Fuse::builder().file("file", vec![0; 2 * LEN]).mount());
    let runtime = runtime(policy);
    runtime.block_on(async {
        for flag in [libc::O_DSYNC, libc::O_SYNC] {
            let file = to_write().custom_flags(flag).open(fuse.join("file")).await.unwrap();
            let before = fuse.count(Opcode::FSYNC);
            file.write_durable_at(vec![1; LEN], 3).await.0.unwrap();
            assert_eq!(fuse.count(Opcode::FSYNC), before + 1);
            file.try_clone().unwrap().write_durable_at(vec![2; LEN], 3).await.0.unwrap();
            assert_eq!(fuse.count(Opcode::FSYNC), before + 2);
            file.write_durable_at(Vec::new(), 3).await.0.unwrap();
            assert_eq!(fuse.count(Opcode::FSYNC), before + 2);
        }
    });
    assert_eq!(runtime.counters().of(OpKind::Fsync).submitted, 0);
}

/// A device that keeps nothing has nothing to make durable.
fn what_is_written_to_nothing_is_durable(policy: Policy) {
    runtime(policy).block_on(async {
        let null = to_write().open("/dev/null").await.unwrap();
        null.write_durable_at("gone", 0).await.0.unwrap();
        let full = to_write().open("/dev/full").await.unwrap();
        let error = full.write_durable_at("no room", 0).await.0.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    });
}
