//! One write and one sync for the records of many threads. Rounds and their failures are compared with a
//! model in `group_commit_model`.

use std::future::Future;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use sakia::Builder;
use sakia::engine::{Engine, GroupCommit};
use sakia::fs::{AlignedBuf, OpenOptions};

use crate::support::{Folder, bytes, engine, on_each_backend, on_tokio, poll_once};

on_each_backend! {
    threads_and_tasks_share_syncs
    appends_begin_where_the_file_ends
    large_records_are_whole
    a_thread_that_is_alone_needs_no_other
    what_was_accepted_is_written_though_nothing_awaits_it
    a_request_may_move_to_another_thread
    a_write_that_fails_is_told_to_all
    a_stopped_engine_refuses_what_is_awaited
    a_waker_that_panics_holds_up_no_other
    a_waker_may_call_back_when_it_is_dropped
    blocks_go_past_the_page_cache
    a_forked_child_is_told
    what_has_ended_is_not_polled_again
}

const CANCELED: Option<i32> = Some(libc::ECANCELED);

fn journal(engine: &Engine, folder: &Folder) -> GroupCommit {
    GroupCommit::new(engine.create(folder.path("journal")).wait().unwrap()).wait().unwrap()
}

fn record(writer: usize, number: usize) -> String {
    format!("{writer:02} {number:03} {}\n", "x".repeat(writer * 7 % 90))
}

/// Asserts that the journal has each record once, and the records of each writer in order.
#[track_caller]
fn assert_records(folder: &Folder, writers: usize, records: usize) {
    let text = std::fs::read_to_string(folder.path("journal")).unwrap();
    let mut next = vec![0; writers];
    for line in text.lines() {
        let writer: usize = line[..2].parse().unwrap();
        assert_eq!(format!("{line}\n"), record(writer, next[writer]));
        next[writer] += 1;
    }
    assert!(next.iter().all(|&count| count == records), "{next:?}");
}

fn threads_and_tasks_share_syncs(builder: &Builder) {
    const RECORDS: usize = 20;
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let threads: Vec<_> = (0..8)
        .map(|writer| {
            let journal = journal.clone();
            thread::spawn(move || {
                for number in 0..RECORDS {
                    let record = record(writer, number);
                    if writer % 2 == 0 {
                        journal.append_durable(record).wait().0.unwrap();
                    } else {
                        let at = journal.append(record.clone()).wait().0.unwrap();
                        journal.commit().wait().unwrap();
                        assert!(journal.end() >= at + record.len() as u64);
                    }
                }
            })
        })
        .collect();
    on_tokio(2, async {
        let tasks: Vec<_> = (8..24)
            .map(|writer| {
                let journal = journal.clone();
                tokio::spawn(async move {
                    for number in 0..RECORDS {
                        let record = record(writer, number);
                        if writer % 2 == 0 {
                            journal.append_durable(record).await.0.unwrap();
                        } else {
                            journal.append(record).await.0.unwrap();
                            journal.commit().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    for thread in threads {
        thread.join().unwrap();
    }
    let syncs = journal.syncs();
    assert!((20..480).contains(&syncs), "{syncs}");
    assert_eq!(journal.failure(), None);
    assert_records(&folder, 24, RECORDS);
    engine.stop_and_wait();
    assert_eq!(engine.statistics().live, 0);
}

fn appends_begin_where_the_file_ends(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let path = folder.file("journal", "before ");
    let mut options = OpenOptions::new();
    options.write(true);
    let file = engine.open_with(&path, &options).wait().unwrap();
    on_tokio(1, async {
        let journal = GroupCommit::new(file).await.unwrap();
        assert_eq!(journal.append_durable("one ").await.0.unwrap(), 7);
        assert_eq!(journal.append("two ").await.0.unwrap(), 11);
        let (result, back) = journal.append_durable(Vec::new()).await;
        assert_eq!((result.unwrap(), back), (15, Vec::new()));
        assert_eq!(journal.append_durable("three").await.0.unwrap(), 15);
        assert_eq!((journal.end(), journal.syncs()), (20, 3));
        assert_eq!(
            journal.file().read_at(vec![0; 9], 0).await.0.unwrap_err().raw_os_error(),
            Some(9)
        );
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"before one two three");
    let file = engine.open_with(&path, OpenOptions::new().append(true)).wait().unwrap();
    assert_eq!(GroupCommit::new(file).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
}

fn large_records_are_whole(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let mut expected = Vec::new();
    on_tokio(1, async {
        let mut requests = Vec::new();
        // Together, the records are larger than one buffer, with records of all sizes between them.
        for size in [10, 70_000, 30, 60_000, 3_000_000, 1].repeat(20) {
            let record = bytes(size);
            expected.extend_from_slice(&record);
            requests.push((size, journal.append_durable(record).submit()));
        }
        let mut end = 0;
        for (size, request) in requests {
            let (at, back) = request.await;
            assert_eq!((at.unwrap(), back.len()), (end, size));
            end += size as u64;
        }
        let (result, _) = journal.append(bytes(700_000)).await;
        assert_eq!(result.unwrap(), end);
        expected.extend(bytes(700_000));
    });
    assert!(std::fs::read(folder.path("journal")).unwrap() == expected);
}

fn a_thread_that_is_alone_needs_no_other(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let before = engine.statistics();
    for number in 0..10 {
        let (result, back) = journal.append_durable(record(0, number)).wait();
        result.unwrap();
        assert_eq!(back, record(0, number));
    }
    journal.commit().wait().unwrap();
    let after = engine.statistics();
    assert_eq!((after.waited - before.waited, after.submitted), (11, before.submitted));
    assert_eq!(journal.syncs(), 11);
    assert_records(&folder, 1, 10);
}

fn what_was_accepted_is_written_though_nothing_awaits_it(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    // These requests are dropped before their first poll: they write no bytes and leave no gap.
    drop(journal.append_durable(record(0, 7)));
    drop((journal.append(record(0, 7)), journal.commit()));
    let mut begun = 0;
    for number in 0..100 {
        let mut request = journal.append_durable(record(0, number));
        match number % 3 {
            0 => drop(request.submit()),
            1 => drop(poll_once(&mut request)),
            // The request is dropped during a round or after it.
            _ => {
                for _ in 0..number {
                    if poll_once(&mut request).is_ready() {
                        break;
                    }
                    thread::yield_now();
                }
            }
        }
        begun += 1;
    }
    journal.commit().wait().unwrap();
    assert_records(&folder, 1, begun);
}

fn a_request_may_move_to_another_thread(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    for number in 0..50 {
        let mut request = journal.append_durable(record(0, number));
        let (result, _) = match poll_once(&mut request) {
            Poll::Ready(done) => done,
            Poll::Pending => thread::spawn(move || on_tokio(1, request)).join().unwrap(),
        };
        result.unwrap();
    }
    assert_records(&folder, 1, 50);
}

fn a_write_that_fails_is_told_to_all(builder: &Builder) {
    let engine = engine(builder);
    let mut options = OpenOptions::new();
    options.write(true);
    for way in 0..4 {
        let file = engine.open_with("/dev/full", &options).wait().unwrap();
        let journal = GroupCommit::new(file).wait().unwrap();
        let (result, back) = match way {
            0 => journal.append_durable("record").wait(),
            1 => on_tokio(1, journal.append_durable("record")),
            2 => journal.append("record").wait(),
            _ => on_tokio(1, journal.append("record")),
        };
        let full = Some(libc::ENOSPC);
        assert_eq!((result.unwrap_err().raw_os_error(), back), (full, "record"));
        assert_eq!(journal.failure(), full);
        let syncs = journal.syncs();
        assert_eq!(journal.commit().wait().unwrap_err().raw_os_error(), full);
        assert_eq!(journal.append("x").wait().0.unwrap_err().raw_os_error(), full);
        on_tokio(1, async {
            assert_eq!(journal.append_durable("x").await.0.unwrap_err().raw_os_error(), full);
            assert_eq!(journal.append("x").await.0.unwrap_err().raw_os_error(), full);
        });
        assert_eq!(journal.syncs(), syncs, "the kernel is not asked again");
    }
    engine.stop_and_wait();
    assert_eq!(engine.statistics().live, 0);
}

fn a_stopped_engine_refuses_what_is_awaited(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    engine.stop_and_wait();
    on_tokio(1, async {
        let (result, back) = journal.append_durable("no").await;
        assert_eq!((result.unwrap_err().raw_os_error(), back), (CANCELED, "no"));
        let (result, back) = journal.append("no").await;
        assert_eq!((result.unwrap_err().raw_os_error(), back), (CANCELED, "no"));
        assert_eq!(journal.commit().await.unwrap_err().raw_os_error(), CANCELED);
    });
    assert_eq!((engine.statistics().refused, journal.end()), (3, 0));
    // A plain call needs no engine, and the refusal is not a failure of the file.
    assert_eq!(journal.failure(), None);
    journal.append_durable(record(0, 0)).wait().0.unwrap();
    journal.append(record(0, 1)).wait().0.unwrap();
    journal.commit().wait().unwrap();
    assert_records(&folder, 1, 2);
}

/// Counts wakes, and panics at each.
struct Panics(AtomicUsize);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("on purpose");
    }
}

fn a_waker_that_panics_holds_up_no_other(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let panics = Arc::new(Panics(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&panics));
    let mut polled = 0;
    for number in 0..20 {
        let mut request = Box::pin(journal.append_durable(record(0, 2 * number)));
        let is_pending = request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        polled += usize::from(is_pending);
        on_tokio(1, journal.append_durable(record(0, 2 * number + 1))).0.unwrap();
    }
    assert!(polled > 0 && panics.0.load(Ordering::Relaxed) > 0);
    assert_eq!(journal.failure(), None);
    assert_records(&folder, 1, 40);
}

/// Uses the group when it is dropped, as the destructor of a task may.
struct CallsBack(GroupCommit, mpsc::Sender<u64>);

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {}
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        self.1.send(self.0.end()).unwrap();
    }
}

fn a_waker_may_call_back_when_it_is_dropped(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let (sender, receiver) = mpsc::channel();
    for number in 0..20 {
        let mut request = Box::pin(journal.append_durable(record(0, number)));
        let waker = Waker::from(Arc::new(CallsBack(journal.clone(), sender.clone())));
        let is_over = request.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        // The group holds the last clone of the waker until another waker replaces it or the round ends.
        drop(waker);
        if !is_over {
            let _ = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        assert_eq!(receiver.recv().unwrap(), journal.end());
    }
    engine.stop_and_wait();
    assert_records(&folder, 1, 20);
}

fn blocks_go_past_the_page_cache(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let mut options = OpenOptions::new();
    options.write(true).create(true).direct(true);
    let file = match engine.open_with(folder.path("journal"), &options).wait() {
        Ok(file) => file,
        Err(error) => {
            let reason = format!("no direct I/O here: {error}");
            return sakia_testkit::place::announce_skip("engine::group_commit::direct", &reason);
        }
    };
    let journal = GroupCommit::new(file).wait().unwrap();
    on_tokio(1, async {
        let blocks = (0..40_u8).map(|number| {
            let mut block = AlignedBuf::zeroed(4096);
            block.fill(number);
            // The engine copies the record to aligned memory, so the record need not be aligned.
            journal.append_durable(block.to_vec()).submit()
        });
        for (number, request) in blocks.collect::<Vec<_>>().into_iter().enumerate() {
            assert_eq!(request.await.0.unwrap(), number as u64 * 4096);
        }
    });
    let contents = std::fs::read(folder.path("journal")).unwrap();
    for (number, block) in contents.chunks(4096).enumerate() {
        assert!(block.iter().all(|&byte| usize::from(byte) == number));
    }
    assert_eq!(contents.len(), 40 * 4096);
}

fn a_forked_child_is_told(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    journal.append_durable(record(0, 0)).wait().0.unwrap();
    // SAFETY: the child has this thread only. It takes no lock that another thread may have held, allocates,
    // which the C library allows for, and ends by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended_well = catch_unwind(AssertUnwindSafe(|| {
            let (result, back) = journal.append_durable("no").wait();
            assert!(result.unwrap_err().to_string().contains("parent"));
            assert_eq!(back, "no");
            assert!(journal.append("no").wait().0.unwrap_err().to_string().contains("parent"));
            assert!(journal.commit().wait().unwrap_err().to_string().contains("parent"));
            let Poll::Ready(result) = poll_once(&mut journal.commit()) else {
                panic!("it waits for threads that are not here");
            };
            assert!(result.unwrap_err().to_string().contains("parent"));
        }));
        // SAFETY: ends the child at once, without what the parent has registered for its exit.
        unsafe { libc::_exit(i32::from(ended_well.is_err())) };
    }
    let mut status = 0;
    // SAFETY: writes one integer.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child failed");
    journal.append_durable(record(0, 1)).wait().0.unwrap();
    assert_records(&folder, 1, 2);
}

fn what_has_ended_is_not_polled_again(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let journal = journal(&engine, &folder);
    let mut request = journal.commit().submit();
    while poll_once(&mut request).is_pending() {
        thread::yield_now();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| poll_once(&mut request))).is_err());
    // The group still works.
    journal.append_durable(record(0, 0)).wait().0.unwrap();
    assert_records(&folder, 1, 1);
}
