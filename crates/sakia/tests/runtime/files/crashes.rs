//! The power fails at every event of a run: afterwards, all data that was acknowledged as durable is there,
//! and atomically replaced files are whole.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sakia::fs::{self, AtomicFile, Dir, GroupCommit, OpenOptions};
use sakia::io::{Level, Writer};
use sakia::{Runtime, spawn, yield_now};
use sakia_driver::sim::{Disk, FaultKind, Sim, SimBuilder, SimHandle};

/// The number of runs of each program; each run is repeated for all its events.
const SEEDS: u64 = 3;

const EIO: i32 = 5;

/// Returns a kernel that moves fewer bytes than requested, reorders, and writes to its disk at any time.
/// Every other kernel performs plain calls.
fn awkward(seed: u64) -> SimBuilder {
    let builder = Sim::builder(seed).entries(4, 8).write_back(1 << 12).plain_calls(seed % 2 == 1);
    builder.fault(FaultKind::ShortTransfer, 1 << 13).fault(FaultKind::EnterInterrupted, 1 << 12)
}

/// Returns the same kernel with syncs that fail and lose their data.
fn forgetful(seed: u64) -> SimBuilder {
    awkward(seed).fault(FaultKind::FsyncFailed, 1 << 14)
}

/// The acknowledgements of a program.
struct Told<T> {
    kernel: SimHandle,
    said: RefCell<Vec<T>>,
}

impl<T> Told<T> {
    /// Records an acknowledgement, unless the power has failed meanwhile.
    fn say(&self, what: T) {
        if self.kernel.crashed().is_none() {
            self.said.borrow_mut().push(what);
        }
    }
}

/// Returns a disk with these files.
fn disk_with(files: &[(&str, &[u8])]) -> Disk {
    let sim = Sim::new(0);
    for &(path, content) in files {
        sim.handle().create_file(path, content);
    }
    sim.handle().crash()
}

/// Runs a program until the power fails, one event later each time, and checks the disk against the
/// acknowledgements.
fn at_every_event<T>(
    disk: &Disk,
    kernel: impl Fn(u64) -> SimBuilder,
    program: impl AsyncFn(&Rc<Told<T>>),
    check: impl Fn(&Disk, &[T]),
) {
    let mut events = 0;
    for seed in 0..SEEDS {
        for event in 1.. {
            let sim = kernel(seed).disk(disk.clone()).crash_at(event).build();
            let kernel = sim.handle();
            let told = Rc::new(Told { kernel: kernel.clone(), said: RefCell::default() });
            let runtime = Runtime::builder().build_simulated(sim).unwrap();
            runtime.block_on(async { program(&told).await });
            drop(runtime);
            let Some(left) = kernel.crashed() else { break };
            events += 1;
            let said = told.said.take();
            let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(&left, &said);
            }));
            assert!(checked.is_ok(), "seed {seed}, power failed at event {event}");
        }
    }
    assert!(events > 100, "only {events} events");
}

/// Returns contents from which a reader can tell the version of a file and whether it is whole.
fn version(number: u8) -> Vec<u8> {
    vec![number + 1; 3000 + usize::from(number) % 3 * 5000]
}

/// Returns the version of these contents, and asserts that they are whole.
#[track_caller]
fn whole_version(bytes: &[u8]) -> u8 {
    let first = *bytes.first().expect("a file was left empty");
    assert!(first > 0 && bytes == version(first - 1), "version {first} is not whole");
    first - 1
}

/// Asserts that the root has these names, and else only those of temporary files.
fn assert_names(disk: &Disk, expected: &[&str]) {
    let names = disk.names("/").unwrap().into_iter();
    let names = names.map(|name| String::from_utf8(name).unwrap());
    let others: Vec<_> = names.filter(|name| !expected.contains(&&**name)).collect();
    let are_temporary = others.iter().all(|name| name.starts_with('.') && name.ends_with(".tmp"));
    assert!(are_temporary, "{others:?}");
}

#[test]
fn a_saved_file_is_the_old_or_the_new_one() {
    let disk = disk_with(&[("file", &version(0))]);
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk,
            kernel,
            async |told| {
                for number in 1..=3 {
                    match fs::save("file", version(number)).await {
                        Ok(()) => told.say(number),
                        Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "{error}"),
                    }
                }
            },
            |left, said: &[u8]| {
                let number = whole_version(&left.contents("file").expect("there is a file"));
                assert!(number >= said.last().copied().unwrap_or(0), "{number} after {said:?}");
                assert_names(left, &["file"]);
            },
        );
    }
}

#[test]
fn a_file_saved_for_the_first_time_is_whole_or_not_there() {
    let program = async |told: &Rc<Told<u8>>| {
        let mut new = AtomicFile::create("new").await.unwrap();
        for part in version(8).chunks(1000) {
            new.file_mut().write_all(part.to_vec()).await.0.unwrap();
        }
        new.commit().await.unwrap();
        told.say(8);
        // A dropped save changes nothing.
        let other = AtomicFile::create("new").await.unwrap();
        other.file().write_all_at("other", 0).await.0.unwrap();
        other.discard().await.unwrap();
    };
    at_every_event(&disk_with(&[]), awkward, program, |left, said| {
        match left.contents("new") {
            Some(bytes) => assert_eq!(whole_version(&bytes), 8),
            None => assert!(said.is_empty()),
        }
        assert_names(left, &["new"]);
    });
}

#[test]
fn saves_that_are_given_up_leave_the_old_or_the_new_file() {
    let program = async |told: &Rc<Told<u8>>| {
        for number in 1..5 {
            let mut saving = Box::pin(fs::save("file", version(number)));
            for _ in 0..6 * number {
                let is_done = poll_fn(|cx| Poll::Ready(saving.as_mut().poll(cx).is_ready())).await;
                if is_done {
                    told.say(number);
                    break;
                }
                yield_now().await;
            }
        }
        fs::save("file", version(5)).await.unwrap();
        told.say(5);
    };
    at_every_event(&disk_with(&[("file", &version(0))]), awkward, program, |left, said| {
        let number = whole_version(&left.contents("file").expect("there is a file"));
        assert!(number >= said.last().copied().unwrap_or(0), "{number} after {said:?}");
        assert_names(left, &["file"]);
    });
}

#[test]
fn saving_goes_on_after_every_crash() {
    let mut disk = disk_with(&[("file", &version(0))]);
    let mut left_beside = 0;
    for number in 1..=150 {
        let event = 20 + u64::from(number) * 2;
        let sim = awkward(number.into()).disk(disk).crash_at(event).build();
        let kernel = sim.handle();
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        let read = runtime.block_on(async {
            fs::save("file", version(number)).await.unwrap();
            fs::read("file").await.unwrap()
        });
        assert_eq!(whole_version(&read), number);
        disk = kernel.crashed().unwrap_or_else(|| kernel.crash());
        whole_version(&disk.contents("file").unwrap());
        assert_names(&disk, &["file"]);
        left_beside = disk.names("/").unwrap().len() - 1;
    }
    assert!(left_beside > 10, "no crash has left anything: {left_beside}");
}

#[test]
fn the_same_seed_leaves_the_same() {
    let run = |seed| {
        let sim = forgetful(seed).build();
        let kernel = sim.handle();
        Runtime::builder().build_simulated(sim).unwrap().block_on(async {
            for number in 0..3 {
                fs::write_durable("file", version(number)).await.ok();
            }
        });
        (kernel.log_hash(), kernel.crash().contents("file"))
    };
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_durable() {
    let disk = disk_with(&[("file", &version(1))]);
    let kernel = |seed| awkward(seed).disk_bytes_max(5 * 4096);
    let program = async |told: &Rc<Told<u8>>| {
        // Beside a version of 8000 bytes there is room for one of 3000, but not for one of 13000.
        let error = fs::save("file", version(2)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        sakia::time::sleep(std::time::Duration::from_millis(5)).await; // what was made is removed
        fs::save("file", version(3)).await.unwrap();
        told.say(3);
    };
    at_every_event(&disk, kernel, program, |left, said| {
        let number = whole_version(&left.contents("file").unwrap());
        assert!(number == 3 || number == 1 && said.is_empty(), "{number}");
    });
}

#[test]
fn what_was_written_durably_is_there() {
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk_with(&[("f1", b"old")]),
            kernel,
            async |told| {
                for number in 0..4_u8 {
                    let path = format!("f{number}");
                    match fs::write_durable(&path, version(number)).await {
                        Ok(()) => told.say(number),
                        Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "{error}"),
                    }
                }
            },
            |left, said: &[u8]| {
                for &number in said {
                    let content = left.contents(format!("f{number}"));
                    assert_eq!(whole_version(&content.expect("it was durable")), number);
                }
            },
        );
    }
}

#[test]
fn a_file_made_durable_through_a_link_is_there() {
    let program = async |told: &Rc<Told<u8>>| {
        fs::write_durable("link", version(4)).await.unwrap();
        told.say(4);
    };
    let disk = {
        let sim = Sim::new(0);
        let kernel = sim.handle();
        kernel.create_directory("sub");
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        runtime.block_on(async {
            fs::symlink("sub/file", "link").await.unwrap();
            Dir::open(".").await.unwrap().sync().await.unwrap();
        });
        kernel.crash()
    };
    at_every_event(&disk, awkward, program, |left, said| {
        if !said.is_empty() {
            let content = left.contents("sub/file").expect("its name was durable");
            assert_eq!(whole_version(&content), 4);
        }
    });
}

/// An offset, and the bytes that must be there.
type Record = (usize, Vec<u8>);

#[track_caller]
fn assert_records(left: &Disk, said: &[Record]) {
    let content = left.contents("journal").expect("the journal was there before");
    for (at, bytes) in said {
        assert_eq!(content.get(*at..at + bytes.len()), Some(&bytes[..]), "at {at}");
    }
}

fn record(number: u8, len: usize) -> Vec<u8> {
    vec![b'a' + number; len]
}

#[test]
fn single_writes_and_syncs_are_durable_when_they_say_so() {
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk_with(&[("journal", b"")]),
            kernel,
            async |told: &Rc<Told<Record>>| {
                let file = OpenOptions::new().write(true).open("journal").await.unwrap();
                // After a failed sync, earlier writes may be lost unless they were synced.
                let first = record(0, 5000);
                if file.write_durable_at(first.clone(), 100).await.0.is_ok() {
                    told.say((100, first));
                }
                let second = record(1, 300);
                file.write_all_at(second.clone(), 9000).await.0.unwrap();
                if file.sync_data().await.is_ok() {
                    told.say((9000, second));
                }
                let third = record(2, 9000);
                file.write_all_at(third.clone(), 12_000).await.0.unwrap();
                if file.sync_all().await.is_ok() {
                    told.say((12_000, third));
                }
            },
            assert_records,
        );
    }
}

#[test]
fn what_a_group_has_committed_is_there() {
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk_with(&[("journal", b"begun ")]),
            kernel,
            async |told: &Rc<Told<Record>>| {
                let file = OpenOptions::new().write(true).open("journal").await.unwrap();
                let journal = GroupCommit::new(file).await.unwrap();
                let writers: Vec<_> = (0..3_u8)
                    .map(|writer| {
                        let (journal, told) = (journal.clone(), Rc::clone(told));
                        spawn(async move {
                            for round in 0..2 {
                                let bytes = record(writer * 2 + round, 3000);
                                let Ok(at) = journal.append(bytes.clone()).await.0 else { return };
                                if journal.commit().await.is_err() {
                                    assert!(journal.failure().is_some());
                                    return;
                                }
                                told.say((at as usize, bytes));
                            }
                        })
                    })
                    .collect();
                for writer in writers {
                    writer.await.unwrap();
                }
                if journal.failure().is_some() {
                    assert!(journal.commit().await.is_err(), "nothing is trusted any more");
                }
            },
            assert_records,
        );
    }
}

#[test]
fn what_a_group_has_appended_durably_is_there() {
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk_with(&[("journal", b"begun ")]),
            kernel,
            async |told: &Rc<Told<Record>>| {
                let file = OpenOptions::new().write(true).open("journal").await.unwrap();
                let journal = GroupCommit::new(file).await.unwrap();
                let writers: Vec<_> = (0..4_u8)
                    .map(|writer| {
                        let (journal, told) = (journal.clone(), Rc::clone(told));
                        spawn(async move {
                            for round in 0..2 {
                                // The last writer's record has a buffer of its own.
                                let len = if writer == 3 { 70_000 } else { 2000 };
                                let bytes = record(writer * 2 + round, len);
                                let mut append = Box::pin(journal.append_durable(bytes.clone()));
                                if writer == 2 && round == 0 {
                                    // The append is dropped: the next acknowledgement covers it, and its
                                    // bytes are there.
                                    let at = journal.end();
                                    poll_fn(|cx| Poll::Ready(append.as_mut().poll(cx).is_ready()))
                                        .await;
                                    drop(append);
                                    if journal.commit().await.is_ok() {
                                        told.say((at as usize, bytes));
                                    }
                                    continue;
                                }
                                let Ok(at) = append.await.0 else { return };
                                told.say((at as usize, bytes));
                            }
                        })
                    })
                    .collect();
                for writer in writers {
                    writer.await.unwrap();
                }
                if journal.failure().is_some() {
                    assert!(journal.append_durable("x").await.0.is_err(), "nothing is trusted");
                }
            },
            assert_records,
        );
    }
}

#[test]
fn what_a_writer_has_flushed_durably_is_there() {
    for kernel in [awkward, forgetful] {
        at_every_event(
            &disk_with(&[("journal", b"")]),
            kernel,
            async |told: &Rc<Told<Record>>| {
                let file = OpenOptions::new().write(true).open("journal").await.unwrap();
                let mut writer = Writer::at(file, 0);
                let mut at = 0;
                for number in 0..5 {
                    let bytes = record(number, 2000);
                    let written = writer.write_all(&bytes).await;
                    let flushed = writer.flush(Level::Durable).await;
                    match flushed {
                        Ok(Level::Durable) if written.is_ok() => told.say((at, bytes)),
                        Ok(level) => panic!("{level:?}"),
                        Err(_) => {}
                    }
                    at += 2000;
                }
                writer.close().await.ok();
            },
            assert_records,
        );
    }
}

#[test]
fn a_lost_sync_is_told_to_all_who_wait_and_never_trusted_again() {
    let mut failures = 0;
    for seed in 0..200 {
        let sim = forgetful(seed).disk(disk_with(&[("journal", b"")])).build();
        let kernel = sim.handle();
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        runtime.block_on(async {
            let file = OpenOptions::new().write(true).open("journal").await.unwrap();
            let journal = GroupCommit::new(file).await.unwrap();
            for round in 0..4 {
                let at = journal.append(record(round, 100)).await.0;
                let waiting: Vec<_> = (0..5)
                    .map(|_| {
                        let journal = journal.clone();
                        spawn(async move { journal.commit().await })
                    })
                    .collect();
                let mut results = Vec::new();
                for waiting in waiting {
                    results.push(waiting.await.unwrap().map_err(|error| error.raw_os_error()));
                }
                match journal.failure() {
                    None => assert_eq!(results, [Ok(()); 5]),
                    Some(errno) => {
                        assert_eq!(errno, EIO);
                        let syncs = journal.syncs();
                        assert_eq!(results.last(), Some(&Err(Some(EIO))), "seed {seed}");
                        assert!(journal.commit().await.is_err());
                        assert_eq!(journal.syncs(), syncs, "the kernel is not asked again");
                        assert!(at.is_err() || kernel.injected(FaultKind::FsyncFailed) == 1);
                    }
                }
            }
            failures += u32::from(journal.failure().is_some());
        });
    }
    assert!(failures > 50, "{failures}");
}
