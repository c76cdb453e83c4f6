//! The same interface on the simulated kernel, which moves fewer bytes than requested, interrupts, delays
//! and reorders.

use std::io::SeekFrom;
use std::rc::Rc;
use std::time::Duration;

use sakia::fs::{self, Dir, File, GroupCommit, OpenOptions, Permissions};
use sakia::io::IoBuf;
use sakia::time::sleep;
use sakia::{Runtime, spawn};
use sakia_driver::call::Function;
use sakia_driver::sim::{Fault, FaultKind, Sim, SimHandle, Target};
use sakia_ring::Opcode;

use super::Random;

/// Returns a runtime on a kernel that is as awkward as a correct kernel may be.
fn awkward(seed: u64) -> (Runtime, SimHandle) {
    let kinds = [
        FaultKind::PartialSubmit,
        FaultKind::EnterInterrupted,
        FaultKind::EnterBusy,
        FaultKind::ShortTransfer,
        FaultKind::Duplicate,
        FaultKind::Stale,
        FaultKind::Held,
    ];
    let builder = Sim::builder(seed).entries(2, 4).late_writes(1 << 13);
    let sim = kinds.into_iter().fold(builder, |builder, kind| builder.fault(kind, 1 << 13)).build();
    let kernel = sim.handle();
    (Runtime::builder().build_simulated(sim).unwrap(), kernel)
}

#[test]
fn transfers_are_whole_whatever_the_kernel_makes_of_them() {
    for seed in 0..60 {
        let (runtime, kernel) = awkward(seed);
        runtime.block_on(async {
            let mut random = Random(seed + 1);
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true);
            let mut file = options.open("file").await.unwrap();
            let mut model = Vec::new();
            for _ in 0..10 {
                let len = random.below(2000);
                let bytes = random.bytes(len);
                let offset = random.below(4000);
                model.resize(model.len().max(offset + len), 0);
                model[offset..offset + len].copy_from_slice(&bytes);
                if random.below(2) == 0 {
                    file.write_all_at(bytes, offset as u64).await.0.unwrap();
                } else {
                    file.seek(SeekFrom::Start(offset as u64)).await.unwrap();
                    file.write_all(bytes).await.0.unwrap();
                }
                // An empty write does not extend a file.
                if len == 0 {
                    model.truncate(file.len().await.unwrap() as usize);
                }
            }
            file.rewind().await.unwrap();
            let (result, read) = file.read_to_end(Vec::new()).await;
            assert_eq!((result.unwrap(), &read), (model.len(), &model), "seed {seed}");
            assert_eq!(fs::read("file").await.unwrap(), model, "seed {seed}");
            let half = model.len() / 2;
            let (result, part) =
                file.read_exact_at(vec![0; half], (model.len() - half) as u64).await;
            result.unwrap();
            assert_eq!(part, model[model.len() - half..]);
            let parts: Vec<_> = model.chunks(100).map(<[u8]>::to_vec).collect();
            let copy = File::create("copy").await.unwrap();
            copy.write_all_vectored_at(parts, 0).await.0.unwrap();
            copy.write_durable_at(b"durable".to_vec().slice(..), 0).await.0.unwrap();
            copy.append("end").await.0.unwrap();
            model.splice(..model.len().min(7), *b"durable");
            model.extend(b"end");
            copy.close().await.unwrap();
        });
        let copy = kernel.contents("copy").unwrap();
        assert!(copy.starts_with(b"durable") && copy.ends_with(b"end"), "seed {seed}");
    }
}

#[test]
fn interrupted_operations_are_started_again() {
    const EINTR: i32 = 4;
    let sim = Sim::new(3);
    let kernel = sim.handle();
    kernel.create_file("file", b"text");
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    runtime.block_on(async {
        let again = [
            Opcode::OPENAT,
            Opcode::STATX,
            Opcode::READ,
            Opcode::WRITE,
            Opcode::FSYNC,
            Opcode::FTRUNCATE,
            Opcode::READV,
            Opcode::WRITEV,
        ];
        for opcode in again {
            kernel.script(Target::opcode(opcode), Fault::Errno(EINTR));
            kernel.script(Target::opcode(opcode), Fault::Restart);
        }
        let mut file = OpenOptions::new();
        let mut file = file.read(true).write(true).open("file").await.unwrap();
        file.write_all("TEXT, more").await.0.unwrap();
        assert_eq!(file.len().await.unwrap(), 10);
        file.set_len(6).await.unwrap();
        file.sync_all().await.unwrap();
        assert_eq!(file.read_to_end_at(Vec::new(), 0).await.1, b"TEXT, ");
        let (result, parts) = file.read_vectored_at(vec![vec![0; 2], vec![0; 2]], 0).await;
        assert_eq!((result.unwrap(), parts.concat()), (4, b"TEXT".to_vec()));
        file.write_all_vectored_at(vec!["te", "xt"], 0).await.0.unwrap();
    });
    assert_eq!(kernel.scripted(), 0);
    assert_eq!(kernel.contents("file").unwrap(), b"text, ");
}

#[test]
fn trees_are_made_listed_saved_in_and_removed() {
    for seed in 0..20 {
        let (runtime, kernel) = awkward(seed);
        kernel.create_file("kept", b"kept");
        runtime.block_on(async {
            fs::create_dir_all("tree/a/b").await.unwrap();
            let tasks: Vec<_> = (0..40)
                .map(|number| {
                    spawn(async move {
                        let path = format!("tree/a/{number}");
                        fs::write(&path, path.clone()).await?;
                        fs::save(&path, "saved").await?;
                        if number % 2 == 0 {
                            fs::rename(&path, format!("tree/a/b/{number}")).await?;
                        }
                        Ok::<_, fs::Error>(())
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap().unwrap();
            }
            fs::symlink("../../kept", "tree/a/link").await.unwrap();
            fs::hard_link("kept", "tree/hard").await.unwrap();
            fs::set_permissions("tree/hard", Permissions::from_mode(0o400)).await.unwrap();
            let dir = Rc::new(Dir::open("tree").await.unwrap());
            let metadata = fs::metadata("tree/hard").await.unwrap();
            assert_eq!((metadata.permissions().mode(), metadata.nlink()), (0o400, 2));
            assert_eq!(dir.open_file("a/link").await.unwrap_err().raw_os_error(), Some(18));
            let mut entries = dir.open_dir("a/b").await.unwrap().read_dir().await.unwrap();
            let mut count = 0;
            while let Some(entry) = entries.next_entry().await.unwrap() {
                assert!(entry.file_type().await.unwrap().is_file());
                count += 1;
            }
            assert_eq!(count, 20, "seed {seed}");
            assert_eq!(fs::copy("kept", "tree/copy").await.unwrap(), 4);
            assert_eq!(fs::read("tree/copy").await.unwrap(), b"kept");
            fs::remove_dir_all("tree").await.unwrap();
            assert!(!fs::exists("tree").await.unwrap());
        });
        assert_eq!(kernel.contents("kept").unwrap(), b"kept");
    }
}

/// A file that cannot get the owner of the old one keeps its own, and does not run as that one. Any other
/// error of changing the owner is one of the save.
#[test]
fn a_saved_file_that_cannot_be_given_away_runs_as_no_other() {
    const EPERM: i32 = 1;
    const EIO: i32 = 5;
    const EINVAL: i32 = 22;
    for errno in [None, Some(EPERM), Some(EINVAL), Some(EIO)] {
        let sim = Sim::builder(5).plain_calls(false).build();
        let kernel = sim.handle();
        kernel.create_file("file", b"old");
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        let found = runtime.block_on(async {
            fs::chown("file", Some(12), Some(34)).await.unwrap();
            fs::set_permissions("file", Permissions::from_mode(0o6751)).await.unwrap();
            if let Some(errno) = errno {
                kernel.script(Target::function(Function::Fchown), Fault::Errno(errno));
            }
            let result = fs::save("file", "new").await;
            assert_eq!(kernel.scripted(), 0);
            assert_eq!(
                result.err().map(|error| error.raw_os_error()),
                (errno == Some(EIO)).then_some(errno)
            );
            fs::metadata("file").await.unwrap()
        });
        let expected = match errno {
            Some(EPERM | EINVAL) => (0, 0, 0o751),
            _ => (12, 34, 0o6751),
        };
        assert_eq!((found.uid(), found.gid(), found.permissions().mode()), expected, "{errno:?}");
        let contents = if errno == Some(EIO) { b"old" } else { b"new" };
        assert_eq!(kernel.contents("file").unwrap(), contents);
    }
}

#[test]
fn whatever_operation_fails_it_is_old_or_new() {
    const ENOSPC: i32 = 28;
    let mut outcomes = [0; 2];
    for failing in 0.. {
        let sim = Sim::new(failing.into());
        let kernel = sim.handle();
        kernel.create_file("file", b"old");
        let runtime = Runtime::builder().build_simulated(sim).unwrap();
        let (result, names) = runtime.block_on(async {
            kernel.script(Target::any().skip(failing), Fault::Errno(ENOSPC));
            let result = fs::save("file", "new").await;
            let is_over = kernel.scripted() > 0;
            let mut names = Vec::new();
            if is_over {
                return (None, names);
            }
            sleep(Duration::from_secs(1)).await; // what was dropped goes on, in any order
            let mut entries = fs::read_dir(".").await.unwrap();
            while let Some(entry) = entries.next_entry().await.unwrap() {
                names.push(entry.into_file_name());
            }
            (Some(result), names)
        });
        let Some(result) = result else { break };
        let contents = kernel.contents("file").unwrap();
        match result {
            Ok(()) => assert_eq!(contents, b"new"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
                let is_new = error.operation() == "sync directory";
                assert_eq!(contents, if is_new { b"new" } else { b"old" }, "{error}");
                outcomes[usize::from(is_new)] += 1;
            }
        }
        assert_eq!(names, ["file"], "{failing}");
    }
    assert!(outcomes[0] > 5 && outcomes[1] == 1, "{outcomes:?}");
}

/// Returns a runtime on a simulated kernel with one file, `journal`.
fn with_journal() -> (Runtime, SimHandle) {
    let sim = Sim::new(5);
    let kernel = sim.handle();
    kernel.create_file("journal", b"");
    (Runtime::builder().build_simulated(sim).unwrap(), kernel)
}

async fn open_journal() -> GroupCommit {
    let file = OpenOptions::new().write(true).open("journal").await.unwrap();
    GroupCommit::new(file).await.unwrap()
}

#[test]
fn a_failed_sync_is_never_trusted_again() {
    const EIO: i32 = 5;
    let (runtime, kernel) = with_journal();
    runtime.block_on(async {
        let journal = open_journal().await;
        journal.append("first").await.0.unwrap();
        journal.commit().await.unwrap();
        kernel.script(Target::opcode(Opcode::FSYNC), Fault::Errno(EIO));
        journal.append("second").await.0.unwrap();
        let journal = Rc::new(journal);
        let others: Vec<_> = (0..3)
            .map(|_| {
                let journal = Rc::clone(&journal);
                spawn(async move { journal.commit().await })
            })
            .collect();
        assert_eq!(journal.commit().await.unwrap_err().raw_os_error(), Some(EIO));
        for other in others {
            assert_eq!(other.await.unwrap().unwrap_err().raw_os_error(), Some(EIO));
        }
        let syncs = journal.syncs();
        // A further sync would succeed now, so the kernel is not asked.
        assert_eq!(journal.commit().await.unwrap_err().raw_os_error(), Some(EIO));
        let (result, buf) = journal.append("third").await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(EIO), "third"));
        let (result, buf) = journal.append_durable("fourth").await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(EIO), "fourth"));
        assert_eq!((journal.syncs(), journal.failure()), (syncs, Some(EIO)));
    });
    assert_eq!(kernel.contents("journal").unwrap(), b"firstsecond");
}

#[test]
fn a_failed_append_is_final_too() {
    const ENOSPC: i32 = 28;
    let (runtime, kernel) = with_journal();
    runtime.block_on(async {
        let journal = open_journal().await;
        kernel.script(Target::opcode(Opcode::WRITE), Fault::Errno(ENOSPC));
        assert_eq!(journal.append("x").await.0.unwrap_err().raw_os_error(), Some(ENOSPC));
        assert_eq!(journal.commit().await.unwrap_err().raw_os_error(), Some(ENOSPC));
        assert_eq!(journal.syncs(), 0);
    });
}

#[test]
fn a_write_of_a_round_that_fails_is_final_and_not_synced() {
    const ENOSPC: i32 = 28;
    let (runtime, kernel) = with_journal();
    runtime.block_on(async {
        let journal = open_journal().await;
        kernel.script(Target::opcode(Opcode::WRITE), Fault::Errno(ENOSPC));
        let other = spawn({
            let journal = journal.clone();
            async move { journal.append_durable("x").await.0 }
        });
        let (result, buf) = journal.append_durable("y").await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf), (Some(ENOSPC), "y"));
        assert_eq!(other.await.unwrap().unwrap_err().raw_os_error(), Some(ENOSPC));
        assert_eq!((journal.syncs(), journal.failure()), (1, Some(ENOSPC)));
    });
    assert_eq!(kernel.contents("journal").unwrap(), b"");
}

#[test]
fn an_interrupted_sync_is_asked_for_again() {
    let (runtime, kernel) = with_journal();
    runtime.block_on(async {
        let journal = open_journal().await;
        kernel.script(Target::opcode(Opcode::FSYNC), Fault::Errno(4));
        kernel.script(Target::opcode(Opcode::FSYNC), Fault::Restart);
        journal.append("x").await.0.unwrap();
        journal.commit().await.unwrap();
    });
    assert_eq!(kernel.scripted(), 0);
}
