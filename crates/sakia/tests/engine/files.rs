//! Reads and writes.

use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sakia::engine::{File, ReadAt, Request};
use sakia::fs::{AlignedBuf, OpenOptions};
use sakia::{Builder, Engine};
use sakia_driver::{Counters, OpKind};

use crate::support::{Folder, bytes, engine, on_each_backend, on_tokio, poll_once};

on_each_backend! {
    a_plain_thread_waits
    a_task_of_another_runtime_awaits
    what_is_cached_is_read_where_it_is_awaited
    what_is_not_cached_is_read_by_the_engine
    changes_of_a_file_system_leave_the_caller_alone
    the_end_of_a_file_is_told
    empty_vectors_are_read_into_up_to_their_capacity
    several_buffers_go_as_one
    many_requests_go_to_all_threads
    what_is_large_is_done_in_parts
    many_requests_are_one
    a_batch_leaves_others_their_turn
    what_is_submitted_is_under_way
    what_is_written_is_read_and_made_durable
    what_is_there_is_read_into_borrowed_memory
    the_position_is_that_of_all_descriptors
    reads_at_the_position_each_bring_another_part
    what_was_opened_to_append_appends
    what_is_in_memory_takes_no_thread
    a_fifo_is_a_file_too
    errors_bring_buffers_back
    a_file_is_closed_with_its_last_clone
}

fn a_plain_thread_waits(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", "hello, world")).wait().unwrap();
    let (result, read) = file.read_at(vec![0; 5], 7).wait();
    assert_eq!((result.unwrap(), &read[..]), (5, &b"world"[..]));
    let before = engine.statistics();
    file.read_at(vec![0; 5], 7).wait().0.unwrap();
    let after = engine.statistics();
    assert_eq!((after.waited - before.waited, after.submitted), (1, before.submitted));
}

fn a_task_of_another_runtime_awaits(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let contents = bytes(1 << 20);
    let path = folder.file("x", &contents);
    for threads in [1, 2] {
        on_tokio(threads, async {
            let file = engine.open(&path).await.unwrap();
            let reads = (0..64).map(|part| {
                let file = file.clone();
                let offset = part * (16 << 10);
                let read = async move { (offset, file.read_at(vec![0; 16 << 10], offset).await) };
                tokio::spawn(read)
            });
            for read in reads.collect::<Vec<_>>() {
                let (offset, (result, read)) = read.await.unwrap();
                let begin = offset as usize;
                assert_eq!(result.unwrap(), 16 << 10);
                assert!(read == contents[begin..begin + (16 << 10)]);
            }
        });
    }
}

fn what_is_cached_is_read_where_it_is_awaited(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", bytes(4096))).wait().unwrap();
    let before = engine.statistics();
    on_tokio(1, async {
        for _ in 0..100 {
            file.read_at(vec![0; 4096], 0).await.0.unwrap();
        }
    });
    let after = engine.statistics();
    assert_eq!((after.now - before.now, after.submitted), (100, before.submitted));
}

/// They may wait for a device, or for the locks of others. A call that only reads what is in memory need not.
fn changes_of_a_file_system_leave_the_caller_alone(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let path = |name: &str| folder.path(name);
    let file = engine.create(path("x")).wait().unwrap();
    let permissions = file.metadata().wait().unwrap().permissions();
    // The numbers of requests that were done by the caller and by others.
    let parts = || {
        let statistics = engine.statistics();
        (statistics.now, statistics.submitted)
    };
    macro_rules! leave_it_alone {
        ($($request:expr;)*) => {$(
            let (now, submitted) = parts();
            $request.await.unwrap();
            assert_eq!(parts(), (now, submitted + 1), "{}", stringify!($request));
        )*};
    }
    on_tokio(1, async {
        leave_it_alone! {
            file.set_len(10);
            file.set_permissions(permissions.clone());
            file.sync_all();
            file.sync_data();
            engine.set_permissions(path("x"), permissions);
            engine.create_dir(path("d"));
            engine.create_dir_all(path("d/e"));
            engine.rename(path("x"), path("y"));
            engine.hard_link(path("y"), path("x"));
            engine.symlink("y", path("z"));
            engine.copy(path("y"), path("w"));
            engine.write(path("v"), "v");
            engine.create(path("u"));
            engine.remove_file(path("x"));
            engine.remove_dir(path("d/e"));
            engine.remove_dir_all(path("d"));
        }
        let (now, submitted) = parts();
        assert_eq!(file.metadata().await.unwrap().len(), 10);
        assert_eq!(parts(), (now + 1, submitted));
    });
}

fn what_is_not_cached_is_read_by_the_engine(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let path = folder.file("x", bytes(8192));
    let mut options = OpenOptions::new();
    options.read(true).direct(true);
    let file = match engine.open_with(&path, &options).wait() {
        Ok(file) => file,
        Err(error) => {
            let reason = format!("no direct I/O here: {error}");
            return sakia_testkit::place::announce_skip("engine::direct", &reason);
        }
    };
    let before = engine.statistics();
    on_tokio(1, async {
        let (result, read) = file.read_at(AlignedBuf::zeroed(4096), 4096).await;
        assert_eq!(result.unwrap(), 4096);
        assert!(read[..] == bytes(8192)[4096..]);
    });
    let after = engine.statistics();
    assert_eq!((after.submitted - before.submitted, after.now), (1, before.now));
    assert_eq!(after.live, 0);
}

fn the_end_of_a_file_is_told(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", "four")).wait().unwrap();
    let before = engine.statistics();
    on_tokio(1, async {
        assert_eq!(file.read_at(vec![0; 9], 0).await.0.unwrap(), 4);
        assert_eq!(file.read_at(vec![0; 9], 4).await.0.unwrap(), 0);
        assert_eq!(file.read_at(vec![0; 9], 1 << 40).await.0.unwrap(), 0);
        let no_room = file.read_at(Vec::new(), 0).await.0.unwrap_err();
        assert_eq!(no_room.raw_os_error(), Some(22));
        let (result, _) = file.read_vectored_at(vec![Vec::new(); 3], 0).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(22));
    });
    assert_eq!(file.read_at(Vec::new(), 0).wait().0.unwrap_err().raw_os_error(), Some(22));
    let (result, _) = file.read_vectored_at(vec![Vec::new(); 3], 0).wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(22));
    assert_eq!(engine.statistics().submitted, before.submitted);
    assert_eq!(file.read_at(vec![0; 9], 4).wait().0.unwrap(), 0);
}

fn empty_vectors_are_read_into_up_to_their_capacity(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let contents = bytes(700_000);
    let path = folder.file("x", &contents);
    let check = |(result, buf): (std::io::Result<usize>, Vec<u8>), offset: usize, len: usize| {
        assert_eq!((result.unwrap(), buf.len()), (len, len));
        assert!(buf == contents[offset..offset + len]);
    };
    let empty = |len| Vec::with_capacity(len);
    // The reads run on the caller, on threads of the engine, in parts, and at the end of the file.
    for (offset, room, len) in [(3, 5000, 5000), (0, 600_000, 600_000), (699_000, 5000, 1000)] {
        let file = engine.open(&path).wait().unwrap();
        check(file.read_at(empty(room), offset as u64).wait(), offset, len);
        on_tokio(1, async {
            check(file.read_at(empty(room), offset as u64).await, offset, len);
            let bufs = vec![empty(room / 2), Vec::new(), empty(room - room / 2)];
            let (result, bufs) = file.read_vectored_at(bufs, offset as u64).await;
            check((result, bufs.concat()), offset, len);
        });
        let bufs = vec![empty(room / 2), empty(room - room / 2)];
        let (result, bufs) = file.read_vectored_at(bufs, offset as u64).wait();
        check((result, bufs.concat()), offset, len);
        let (result, buf) = file.read_at(empty(room), 1 << 40).wait();
        assert_eq!((result.unwrap(), buf.len()), (0, 0));
        // The same reads at the file's position.
        let file = engine.open(&path).wait().unwrap();
        on_tokio(1, async { check(file.read(empty(room)).await, 0, room) });
        let shared = Arc::new(std::fs::File::open(&path).unwrap());
        check(engine.read_shared(&shared, empty(room), offset as u64).wait(), offset, len);
    }
    let mut write_only = OpenOptions::new();
    write_only.write(true);
    let file = engine.open_with(&path, &write_only).wait().unwrap();
    on_tokio(1, async {
        let (result, buf) = file.read_at(empty(10), 0).await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf.len()), (Some(9), 0));
    });
}

fn several_buffers_go_as_one(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    let file = engine.open_with(folder.path("x"), &options).wait().unwrap();
    let parts = || vec![b"one ".to_vec(), Vec::new(), b"two".to_vec()];
    let room = || vec![vec![0; 3], vec![0; 9]];
    let (result, back) = file.write_vectored_at(parts(), 0).wait();
    assert_eq!((result.unwrap(), back), (7, parts()));
    on_tokio(1, async {
        assert_eq!(file.write_vectored_at(parts(), 7).await.0.unwrap(), 7);
        let (result, read) = file.read_vectored_at(room(), 4).await;
        assert_eq!((result.unwrap(), read.concat().as_slice()), (10, &b"twoone two\0\0"[..]));
    });
    let (result, read) = file.read_vectored_at(room(), 4).wait();
    assert_eq!((result.unwrap(), read.concat().as_slice()), (10, &b"twoone two\0\0"[..]));
}

fn many_requests_go_to_all_threads(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(&builder.clone().threads(3)));
    let file = engine.open(folder.file("x", bytes(100))).wait().unwrap();
    let ids = || async { std::thread::current().id() };
    on_tokio(2, async {
        let syncs = (0..30).map(|_| tokio::spawn(file.sync_data()));
        for sync in syncs.collect::<Vec<_>>() {
            sync.await.unwrap().unwrap();
        }
        let mut threads = std::collections::HashSet::new();
        for _ in 0..30 {
            threads.insert(engine.run(ids).await.unwrap());
        }
        assert_eq!(threads.len(), 3);
    });
    assert_eq!(engine.statistics().submitted, 60);
    let counters = engine.counters().wait().unwrap();
    let syncs = |counters: &Counters| -> u64 {
        counters.of(OpKind::Fsync).iter().map(|(_, count)| count).sum()
    };
    let syncs: Vec<u64> = counters.iter().map(syncs).collect();
    assert_eq!(syncs.len(), 3);
    assert!(syncs.iter().sum::<u64>() >= 30, "{syncs:?}");
}

fn what_is_large_is_done_in_parts(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let contents = bytes(1 << 20);
    let path = folder.file("x", &contents);
    let std = std::fs::File::open(&path).unwrap();
    std.sync_all().unwrap();
    let file = engine.adopt(std).unwrap();
    let read = |file: &File| on_tokio(1, file.read_at(vec![0; 2 << 20], 0));
    let check = |(result, read): (std::io::Result<usize>, Vec<u8>)| {
        assert_eq!(result.unwrap(), 1 << 20);
        assert!(read[..1 << 20] == contents);
    };
    check(read(&file));
    if file.try_read_at(&mut [0], 0).is_some() {
        assert_eq!(engine.statistics().submitted, 0);
        // Other requests have a turn before the end of this one.
        let mut request = file.read_at(vec![0; 1 << 20], 0);
        assert!(poll_once(&mut request).is_pending());
        check(request.wait());
    }
    // The page cache is empty; then it holds the beginning and the pages read ahead.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    check(read(&file));
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file.read_at(vec![0; 64 << 10], 0).wait().0.unwrap();
    check(read(&file));
    // A single page is cached: the first page of the read needs no wait, the rest does.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file.read_at(vec![0; 4096], 8192).wait().0.unwrap();
    let (result, read) = on_tokio(1, file.read_at(vec![0; 10_000], 8192));
    assert_eq!(result.unwrap(), 10_000);
    assert!(read == contents[8192..18_192]);
    // Reads at the file's position, and writes.
    let target = engine.create(folder.path("y")).wait().unwrap();
    let (result, _) = on_tokio(1, target.write(contents.clone()));
    assert_eq!(result.unwrap(), 1 << 20);
    let (result, read) = on_tokio(1, file.read(vec![0; 1 << 20]));
    check((result, read));
    assert!(std::fs::read(folder.path("y")).unwrap() == contents);
}

fn many_requests_are_one(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    let writes = (0..100).map(|part| file.write_at(vec![part as u8; 512], part * 512));
    let before = engine.statistics().submitted;
    for (result, _) in engine.submit_many(writes).wait() {
        assert_eq!(result.unwrap(), 512);
    }
    // On file systems that write without waiting, none of the requests is submitted.
    assert!(engine.statistics().submitted - before <= 1);
    let file = engine.open(folder.path("x")).wait().unwrap();
    let reads = |engine: &Engine| {
        engine.submit_many((0..100).map(|part| file.read_at(vec![0; 512], part * 512)))
    };
    for (part, (result, read)) in on_tokio(1, reads(&engine)).into_iter().enumerate() {
        assert_eq!((result.unwrap(), read), (512, vec![part as u8; 512]));
    }
    assert!(engine.submit_many(std::iter::empty::<Request<ReadAt<Vec<u8>>>>()).wait().is_empty());
    engine.stop_and_wait();
    let large = (0..3).map(|_| file.read_at(vec![0; 1 << 20], 0));
    for (result, buf) in on_tokio(1, engine.submit_many(large)) {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
        assert_eq!(buf.len(), 1 << 20);
    }
}

fn a_batch_leaves_others_their_turn(builder: &Builder) {
    let engine = engine(builder);
    let (sender, receiver) = async_channel::bounded::<()>(1);
    let begun = Arc::new(AtomicUsize::new(0));
    let parts = (0..10_000).map(|_| {
        let (receiver, begun) = (receiver.clone(), Arc::clone(&begun));
        engine.run(move || async move {
            begun.fetch_add(1, Ordering::Relaxed);
            receiver.recv().await.is_err()
        })
    });
    let mut batch = engine.submit_many(parts);
    assert!(poll_once(&mut batch).is_pending());
    // Later requests are served while the batch has at most its share in flight.
    while begun.load(Ordering::Relaxed) == 0 {
        engine.run(|| async {}).wait().unwrap();
    }
    assert!(begun.load(Ordering::Relaxed) <= 1024);
    drop(sender);
    assert!(batch.wait().into_iter().all(|result| result.unwrap()));
    assert_eq!(begun.load(Ordering::Relaxed), 10_000);
}

fn what_is_submitted_is_under_way(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", bytes(100))).wait().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let sent = engine.run(move || async move { sender.send(()).unwrap() }).submit();
    receiver.recv().unwrap();
    sent.submit().wait().unwrap();
    let read = file.read_at(vec![0; 100], 0).submit();
    assert_eq!(engine.statistics().submitted, 2);
    let (result, read) = on_tokio(1, read);
    assert_eq!((result.unwrap(), read), (100, bytes(100)));
    engine.stop_and_wait();
    let (result, back) = file.read_at(vec![0; 100], 0).submit().wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(back.len(), 100);
    assert_eq!(engine.statistics().refused, 1);
}

fn what_is_written_is_read_and_made_durable(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.create(folder.path("x")).wait().unwrap();
    on_tokio(2, async {
        for part in 0..16 {
            let (result, _) = file.write_at(bytes(4096), part * 4096).await;
            assert_eq!(result.unwrap(), 4096);
        }
        file.sync_data().await.unwrap();
        assert_eq!(file.metadata().await.unwrap().len(), 16 * 4096);
        file.set_len(10).await.unwrap();
        file.sync_all().await.unwrap();
        file.write_durable_at(bytes(5), 10).await.0.unwrap();
    });
    file.sync_all().wait().unwrap();
    let (result, back) = file.write_durable_at(bytes(5), 15).wait();
    result.unwrap();
    assert_eq!(back, bytes(5));
    let expected = [bytes(10), bytes(5), bytes(5)].concat();
    assert_eq!(std::fs::read(folder.path("x")).unwrap(), expected);
    let (result, _) = file.write_durable_at(bytes(5), u64::MAX).wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
}

fn what_is_there_is_read_into_borrowed_memory(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let contents = bytes(300_000);
    let file = engine.open(folder.file("x", &contents)).wait().unwrap();
    let mut room = vec![0; 300_000];
    if file.try_read_at(&mut room[..10], 0).is_none() {
        // This file system cannot refuse to wait.
        return;
    }
    // A read without waiting takes at most 256 KiB, so that other work gets a turn.
    let count = file.try_read_at(&mut room, 1).unwrap().unwrap();
    assert_eq!(count, 256 << 10);
    assert!(room[..count] == contents[1..=count]);
    assert_eq!(file.try_read_at(&mut room, 300_000).unwrap().unwrap(), 0);
    assert_eq!(file.try_read_at(&mut [], 0).unwrap().unwrap_err().raw_os_error(), Some(22));
    for part in contents.chunks(120_000) {
        let count = file.try_read(&mut room[..120_000]).unwrap().unwrap();
        assert!(room[..count] == *part);
    }
    assert_eq!(file.try_read(&mut room).unwrap().unwrap(), 0);
    let error = file.try_write(b"no").map(Result::unwrap_err);
    assert!(error.is_none_or(|error| error.raw_os_error() == Some(libc::EBADF)));
    assert_eq!(engine.statistics().submitted, 0);
}

/// Reads with `O_DIRECT`, for which a ring does not advance the position.
fn reads_at_the_position_each_bring_another_part(builder: &Builder) {
    const PART: usize = 4096;
    const PARTS: usize = 12;
    let (folder, engine) = (Folder::new(), engine(builder));
    let contents = bytes(PARTS * PART);
    let mut std = std::fs::File::options();
    let std = std.read(true).custom_flags(libc::O_DIRECT);
    let Ok(std) = std.open(folder.file("x", &contents)) else {
        return eprintln!("SKIP reads_at_the_position: the file system has no O_DIRECT");
    };
    let file = engine.adopt(std.try_clone().unwrap()).unwrap();
    let requests: Vec<_> =
        (0..PARTS).map(|_| file.read(AlignedBuf::zeroed(PART)).submit()).collect();
    let mut came: Vec<Vec<u8>> = requests
        .into_iter()
        .map(|request| {
            let (result, buf) = on_tokio(1, request);
            buf[..result.unwrap()].to_vec()
        })
        .collect();
    let mut expected: Vec<Vec<u8>> = contents.chunks(PART).map(<[u8]>::to_vec).collect();
    came.sort_unstable();
    expected.sort_unstable();
    assert!(came == expected);
    assert_eq!(rustix::fs::tell(&std).unwrap(), contents.len() as u64);
}

fn the_position_is_that_of_all_descriptors(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let mut std = std::fs::File::options();
    let std = std.read(true).write(true).open(folder.file("x", "one two three")).unwrap();
    let file = engine.adopt(std.try_clone().unwrap()).unwrap();
    let read = |count| {
        let (result, mut read) = on_tokio(1, file.read(vec![0; count]));
        read.truncate(result.unwrap());
        read
    };
    assert_eq!(read(4), b"one ");
    let (result, back) = file.read(vec![0; 4]).wait();
    assert_eq!((result.unwrap(), &back[..]), (4, &b"two "[..]));
    assert_eq!(on_tokio(1, file.write(b"TH".to_vec())).0.unwrap(), 2);
    assert_eq!(file.write(b"R".to_vec()).wait().0.unwrap(), 1);
    assert_eq!(rustix::fs::tell(&std).unwrap(), 11);
    assert_eq!(read(9), b"ee");
    assert_eq!(read(9), b"");
    // Reads a file that is not the engine's. The engine drops its reference when the read ends.
    let mut shared = std::sync::Arc::new(std.try_clone().unwrap());
    let (result, read_there) = on_tokio(1, engine.read_shared(&shared, vec![0; 3], 8));
    assert_eq!((result.unwrap(), &read_there[..]), (3, &b"THR"[..]));
    assert!(Arc::get_mut(&mut shared).is_some());
    let (result, read_there) = engine.read_shared(&shared, vec![0; 9], 11).wait();
    assert_eq!((result.unwrap(), &read_there[..2]), (2, &b"ee"[..]));
    for result in [
        engine.read_shared(&shared, vec![0; 9], u64::MAX).wait().0,
        on_tokio(1, engine.read_shared(&shared, vec![0; 9], u64::MAX)).0,
    ] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    }
    assert_eq!(rustix::fs::tell(&std).unwrap(), 13, "the position is left alone");
    // The engine's thread reads the part that cannot be read here, at the same position.
    rustix::fs::seek(&std, rustix::fs::SeekFrom::Start(8)).unwrap();
    assert_eq!(read(1 << 20), b"THRee");
    // The kernel would interpret this offset as the file's position.
    let (result, _) = on_tokio(1, file.read_at(vec![0; 4], u64::MAX));
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let (result, _) = file.read_at(vec![0; 4], u64::MAX).wait();
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let error = file.try_write_at(b"x", u64::MAX).map(Result::unwrap_err);
    assert!(error.is_none_or(|error| error.raw_os_error() == Some(libc::EINVAL)));
}

fn what_was_opened_to_append_appends(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let path = folder.file("x", "begin");
    let mut options = OpenOptions::new();
    options.append(true);
    let file = engine.open_with(&path, &options).wait().unwrap();
    on_tokio(1, async {
        assert_eq!(file.write_at(b" at".to_vec(), 0).await.0.unwrap(), 3);
        assert_eq!(file.write(b" position".to_vec()).await.0.unwrap(), 9);
        let parts = vec![b" in".to_vec(), b" parts".to_vec()];
        assert_eq!(file.write_vectored_at(parts, 0).await.0.unwrap(), 9);
        file.write_durable_at(b" for".to_vec(), 0).await.0.unwrap();
    });
    file.write_durable_at(b" ever".to_vec(), 0).wait().0.unwrap();
    file.write_at(b" end".to_vec(), 0).wait().0.unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text, "begin at position in parts for ever end");
}

fn what_is_in_memory_takes_no_thread(builder: &Builder) {
    let engine = engine(builder);
    let path = format!("/dev/shm/sakia-engine-{}-{builder:p}", std::process::id());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    let file = match engine.open_with(&path, &options).wait() {
        Ok(file) => file,
        Err(error) => {
            let reason = format!("no memory file system: {error}");
            return sakia_testkit::place::announce_skip("engine::in_memory", &reason);
        }
    };
    on_tokio(1, async {
        for part in 0..10 {
            assert_eq!(file.write_at(bytes(100), part * 100).await.0.unwrap(), 100);
            let (result, read) = file.read_at(vec![0; 200], part * 100).await;
            assert_eq!(result.unwrap(), 100);
            assert!(read[..100] == bytes(100));
        }
        for _ in 0..10 {
            let again = engine.open(&path).await.unwrap();
            assert_eq!(again.read_at(vec![0; 100], 0).await.0.unwrap(), 100);
            assert_eq!(engine.read(&path).await.unwrap().len(), 1000);
        }
    });
    assert_eq!(engine.statistics().submitted, 0);
    // Two parts might be appended at different places, so these are written by one call.
    let appended = engine.open_with(&path, OpenOptions::new().append(true)).wait().unwrap();
    assert!(appended.try_write(b"no").is_none() && appended.try_write_at(b"no", 0).is_none());
    let before = engine.statistics();
    let parts = || vec![bytes(100)[..60].to_vec(), bytes(100)[60..].to_vec()];
    on_tokio(1, async {
        for _ in 0..10 {
            assert_eq!(appended.write_at(bytes(100), 0).await.0.unwrap(), 100);
            assert_eq!(appended.write_vectored_at(parts(), 0).await.0.unwrap(), 100);
        }
    });
    assert!(std::fs::read(&path).unwrap() == bytes(100).repeat(30));
    // On a busy machine one of them may be slow; the next ones go to the engine's threads.
    let after = engine.statistics();
    assert!(after.now > before.now);
    assert_eq!(after.now + after.submitted - before.now - before.submitted, 20);
    // A longer one could hold up the caller, and goes there, too.
    let large = bytes((64 << 10) + 1);
    assert_eq!(on_tokio(1, appended.write_at(large, 0)).0.unwrap(), (64 << 10) + 1);
    assert_eq!(engine.statistics().submitted, after.submitted + 1);
    std::fs::remove_file(&path).unwrap();
}

fn a_fifo_is_a_file_too(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    // Each case has its own FIFO: a file is closed some time after its drop, and until then writers find
    // its end open.
    let [first, second] = ["first", "second"].map(|name| {
        let fifo = folder.path(name);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, 0o600.into(), 0).unwrap();
        fifo
    });
    let write = |fifo: &Path, text: &'static str| {
        let fifo = fifo.to_owned();
        std::thread::spawn(move || std::fs::write(fifo, text).unwrap())
    };
    on_tokio(1, async {
        // The open waits for the writer, as a plain call would.
        let mut file = engine.open(&first);
        assert!(poll_once(&mut file).is_pending());
        let writer = write(&first, "hello");
        let file = file.await.unwrap();
        let (result, read) = file.read(vec![0; 9]).await;
        assert_eq!((result.unwrap(), &read[..5]), (5, &b"hello"[..]));
        writer.join().unwrap();
        assert_eq!(file.read(vec![0; 9]).await.0.unwrap(), 0);
        let mut text = engine.read_to_string(&second);
        assert!(poll_once(&mut text).is_pending());
        let writer = write(&second, "whole");
        assert_eq!(text.await.unwrap(), "whole");
        writer.join().unwrap();
    });
}

fn errors_bring_buffers_back(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let file = engine.open(folder.file("x", "read only")).wait().unwrap();
    let (result, back) = file.write_at(b"no".to_vec(), 0).wait();
    assert_eq!((result.unwrap_err().raw_os_error(), &back[..]), (Some(libc::EBADF), &b"no"[..]));
    on_tokio(1, async {
        let (result, back) = file.write_at(b"no".to_vec(), 0).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(back, b"no");
    });
    let error = engine.open(folder.path("missing")).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("missing"), "{error}");
}

fn a_file_is_closed_with_its_last_clone(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(&builder.clone().threads(2)));
    let fifo = folder.path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let mut options = std::fs::OpenOptions::new();
    let reader = options.read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    let writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let file = engine.adopt(writer).unwrap();
    for clone in [file.clone(), file.clone(), file] {
        // Both threads know the failed sync.
        on_tokio(1, clone.sync_all()).unwrap_err();
        on_tokio(1, clone.sync_all()).unwrap_err();
    }
    let mut waited = [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut waited, None).unwrap();
    assert!(waited[0].revents().contains(rustix::event::PollFlags::HUP));
}
