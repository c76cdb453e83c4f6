//! A disk whose writes stall on request.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use sakia_bench_support::available;
use sakia_bench_support::blocked::ThreadId;
use sakia_bench_support::fuse::{Opcode, pattern};
use sakia_bench_support::throttled::ThrottledDisk;

use crate::{EIO, errno};

#[test]
fn buffered_writes_stand_still_at_the_limit() {
    const TOTAL: u64 = 32 << 20;
    const LIMIT: u64 = 2 << 20;
    let disk = available!(ThrottledDisk::builder().dirty_bytes(LIMIT).build());
    let file = File::create(disk.path().join("a")).unwrap();
    let gate = disk.hold_writes();
    let written = AtomicU64::new(0);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (written, file) = (&written, &file);
        let writer = scope.spawn(move || {
            sender.send(ThreadId::current()).unwrap();
            let block = vec![7; 64 << 10];
            while written.load(Ordering::Relaxed) < TOTAL {
                let offset = written.load(Ordering::Relaxed);
                file.write_all_at(&block, offset).unwrap();
                written.fetch_add(block.len() as u64, Ordering::Relaxed);
            }
        });
        gate.wait_held(1);
        // The writer ends before it sleeps there only if the kernel accepts all bytes without the disk.
        receiver.recv().unwrap().wait_until_in("balance_dirty_pages");
        let stalled_at = written.load(Ordering::Relaxed);
        assert!(stalled_at <= 4 * LIMIT, "the writer got as far as {stalled_at}");
        assert!(!writer.is_finished());
        gate.open();
        writer.join().unwrap();
    });
    file.sync_all().unwrap();
    assert_eq!(fs::metadata(disk.path().join("a")).unwrap().len(), TOTAL);
}

#[test]
fn fsync_stands_still() {
    let disk = available!(ThrottledDisk::builder().build());
    let file = File::create(disk.path().join("a")).unwrap();
    let gate = disk.hold_writes();
    file.write_all_at(&[1; 4096], 0).unwrap();
    thread::scope(|scope| {
        let synced = scope.spawn(|| file.sync_all());
        gate.wait_held(1);
        assert!(!synced.is_finished());
        gate.open();
        synced.join().unwrap().unwrap();
    });
}

#[test]
fn cold_reads_stand_still_and_hot_ones_do_not() {
    let disk = available!(ThrottledDisk::builder().build());
    let path = disk.path().join("a");
    fs::write(&path, pattern(100_000)).unwrap();
    let file = File::open(&path).unwrap();
    disk.make_cold(&file).unwrap();
    let gate = disk.hold_reads();
    thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(&path));
        gate.wait_held(1);
        assert!(!reader.is_finished());
        gate.open();
        assert_eq!(reader.join().unwrap().unwrap(), pattern(100_000));
    });
    gate.close();
    assert_eq!(fs::read(&path).unwrap(), pattern(100_000));
}

#[test]
fn failing_disk_is_told_by_fsync() {
    let disk = available!(ThrottledDisk::builder().journal(false).build());
    let file = File::create(disk.path().join("a")).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    disk.fail(Opcode::WRITE);
    assert_eq!(errno(file.sync_all()), EIO);
    disk.release();
}

#[test]
fn held_disk_can_be_dropped() {
    let disk = available!(ThrottledDisk::builder().build());
    let file = File::create(disk.path().join("a")).unwrap();
    let gate = disk.hold_writes();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let syncer = thread::spawn(move || file.sync_all());
    gate.wait_held(1);
    let path = disk.path().to_owned();
    drop(disk);
    // The sync succeeds before the disk ends, or fails because of that; it returns in either case.
    drop(syncer.join().unwrap());
    assert!(!path.exists());
}

#[test]
fn longer_queue_takes_more_reads() {
    const FILES: usize = 600;
    let disk = available!(ThrottledDisk::builder().requests_max(1024).build());
    let device = disk.device();
    let queue = std::path::Path::new("/sys/block").join(device.file_name().unwrap()).join("queue");
    assert_eq!(fs::read_to_string(queue.join("nr_requests")).unwrap().trim(), "1024");
    let file = |index: usize| disk.path().join(index.to_string());
    (0..FILES).for_each(|index| fs::write(file(index), index.to_string()).unwrap());
    let files: Vec<_> = (0..FILES).map(|index| File::open(file(index)).unwrap()).collect();
    files.iter().for_each(|file| disk.make_cold(file).unwrap());

    let gate = disk.hold_reads();
    // One thread starts the reads one after another; the device does not block it.
    for file in &files {
        let read = rustix::io::preadv2(
            file,
            &mut [std::io::IoSliceMut::new(&mut [0])],
            0,
            rustix::io::ReadWriteFlags::NOWAIT,
        );
        assert_eq!(read, Err(rustix::io::Errno::AGAIN));
    }
    gate.open();
    for (index, file) in files.iter().enumerate() {
        let mut bytes = vec![0; 8];
        let count = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..count], *index.to_string().as_bytes());
    }
}
