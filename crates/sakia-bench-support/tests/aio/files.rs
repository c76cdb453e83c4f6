//! Files that look as if their calls blocked.

use std::fs;
use std::sync::Arc;
use std::thread;

use sakia_bench_support::aio::{Buf, File, Scheduler};

use crate::{TempFile, aio, errno, pattern};

/// Reads and writes without an offset go on where the last one ended.
#[test]
fn reads_and_writes_follow_the_position() {
    let file = TempFile::new(&pattern(100));
    let scheduler = Arc::new(aio!(Scheduler::new()));
    let open = File::open(&scheduler, file.path()).unwrap();
    let (result, buf) = open.read(Buf::zeroed(30));
    assert_eq!((result.unwrap(), &buf[..]), (30, &pattern(100)[..30]));
    assert_eq!(open.write(Buf::from(&b"here"[..])).0.unwrap(), 4);
    let (result, buf) = open.read(Buf::zeroed(100));
    assert_eq!((result.unwrap(), &buf[..66]), (66, &pattern(100)[34..]));
    assert_eq!(open.read(buf).0.unwrap(), 0);
    let (result, buf) = open.read_at(Buf::zeroed(4), 30);
    assert_eq!((result.unwrap(), &buf[..]), (4, &b"here"[..]), "which leaves the position");
    assert_eq!(open.read(buf).0.unwrap(), 0);
}

/// Each request has memory of its own, and each reader gets bytes that no other does.
#[test]
fn threads_that_share_a_file_get_different_bytes() {
    const PARTS: usize = 64;
    let scheduler = Arc::new(aio!(Scheduler::new()));
    let file = TempFile::new(b"");
    let open = File::create(&scheduler, file.path()).unwrap();
    thread::scope(|scope| {
        for first in 0..4u8 {
            let open = &open;
            scope.spawn(move || {
                for index in 0..(PARTS / 4) as u8 {
                    let part = [first * 16 + index; 100];
                    assert_eq!(open.write(Buf::from(&part[..])).0.unwrap(), 100);
                }
            });
        }
    });
    open.sync_all().unwrap();
    let content = fs::read(file.path()).unwrap();
    let mut seen: Vec<u8> = content.chunks(100).map(|part| part[0]).collect();
    assert!(content.chunks(100).all(|part| part.iter().all(|&byte| byte == part[0])));
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..PARTS as u8), "{seen:?}");

    let again = File::open(&scheduler, file.path()).unwrap();
    let read = |_| {
        let again = &again;
        move || (0..PARTS / 4).map(|_| again.read(Buf::zeroed(100)).1[0]).collect::<Vec<_>>()
    };
    let mut seen: Vec<u8> = thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(read).map(|read| scope.spawn(read)).collect();
        readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert!(seen.iter().copied().eq(0..PARTS as u8), "{seen:?}");
}

#[test]
fn files_are_closed_and_errors_kept() {
    let scheduler = Arc::new(aio!(Scheduler::new()));
    let missing = std::env::temp_dir().join("sakia-aio-none-such");
    assert_eq!(errno(File::open(&scheduler, missing)), libc::ENOENT);
    let file = TempFile::new(b"x");
    let read_only = File::from_std(&scheduler, fs::File::open(file.path()).unwrap());
    assert_eq!(errno(read_only.write(Buf::from(&b"y"[..])).0), libc::EBADF);
    assert_eq!(fs::read(file.path()).unwrap(), b"x");
}
