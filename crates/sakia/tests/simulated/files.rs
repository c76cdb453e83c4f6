//! Files: their final contents are the same, whatever the kernel does meanwhile.

use std::rc::Rc;

use sakia::fs::{self, Dir, File, OpenOptions};
use sakia::io::{Reader, Writer};
use sakia::sim::{FaultKind, Summary, Test};
use sakia::{JoinSet, spawn};

use super::awkward;

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 13 % 251) as u8).collect()
}

/// Checks that each of these faults was injected at least once.
fn assert_injected(summary: &Summary, kinds: &[FaultKind]) {
    for &kind in kinds {
        assert!(summary.injected(kind) > 0, "{kind:?}");
    }
}

#[test]
fn tasks_write_one_file_side_by_side() {
    let test = awkward().after(|kernel| assert_eq!(kernel.contents("file").unwrap(), bytes(4000)));
    let summary = test.run(async |_| {
        let mut options = OpenOptions::new();
        let file = Rc::new(options.read(true).write(true).create(true).open("file").await?);
        let mut set = JoinSet::new();
        for (index, chunk) in bytes(4000).chunks(250).enumerate() {
            let (file, chunk) = (Rc::clone(&file), chunk.to_vec());
            set.spawn(async move { file.write_all_at(chunk, index as u64 * 250).await.0 });
        }
        while let Some(written) = set.join_next().await {
            written.unwrap()?;
        }
        let (result, read) = file.read_to_end_at(Vec::new(), 0).await;
        result?;
        assert_eq!(read, bytes(4000));
        std::io::Result::Ok(())
    });
    let kinds =
        [FaultKind::EnterBusy, FaultKind::ShortCq, FaultKind::ShortTransfer, FaultKind::Stale];
    assert_injected(&summary, &kinds);
}

#[test]
fn files_go_through_readers_and_writers() {
    awkward().run(async |_| {
        let mut writer = Writer::at(File::create("file").await?, 0).block_bytes(100);
        for chunk in bytes(3000).chunks(77) {
            writer.write_all(chunk).await?;
        }
        writer.close().await?;
        let mut reader = Reader::with_depth(File::open("file").await?, 64, 4);
        let mut read = Vec::new();
        reader.read_to_end(&mut read, usize::MAX).await?;
        assert_eq!(read, bytes(3000));
        std::io::Result::Ok(())
    });
}

#[test]
fn plain_calls_and_the_queue_agree() {
    let test = awkward().kernel(|kernel| kernel.plain_calls(true));
    let summary = test.run(async |_| {
        for number in 0..10_usize {
            let path = format!("file-{}", number % 3);
            fs::write(&path, bytes(number * 200)).await?;
            assert_eq!(fs::read(&path).await?, bytes(number * 200));
        }
        Ok::<_, fs::Error>(())
    });
    let kinds = [FaultKind::PlainBlocks, FaultKind::PlainEnd, FaultKind::PlainStall];
    assert_injected(&summary, &kinds);
}

#[test]
fn saving_leaves_the_old_or_the_new_and_nothing_beside() {
    awkward()
        .before(|kernel| {
            kernel.create_directory("dir");
            kernel.create_file("dir/file", "old");
        })
        .run(async |kernel| {
            let saving = spawn(async { fs::save("dir/file", bytes(700)).await });
            let seen = fs::read("dir/file").await?;
            assert!(seen == b"old" || seen == bytes(700));
            saving.await.unwrap()?;
            assert_eq!(kernel.contents("dir/file").unwrap(), bytes(700));
            let mut names = Dir::open("dir").await?.read_dir().await?;
            let mut count = 0;
            while names.next_entry().await?.is_some() {
                count += 1;
            }
            assert_eq!(count, 1);
            Ok::<_, fs::Error>(())
        });
}

#[test]
fn operations_that_fail_lose_no_descriptor() {
    // The program sees errors of any kind; the test checks only the descriptors that are left.
    let test = Test::new().seeds(0..300).kernel(|kernel| kernel.entries(2, 4).chaos(1 << 12));
    let summary = test.run(async |_| {
        let mut set = JoinSet::new();
        for number in 0..8 {
            set.spawn(async move {
                let path = format!("file-{number}");
                let file = File::create(&path).await?;
                file.write_all_at(bytes(300), 0).await.0?;
                file.sync_all().await?;
                file.close().await?;
                fs::read(&path).await?;
                fs::save(&path, "saved").await?;
                fs::remove_file(&path).await?;
                std::io::Result::Ok(())
            });
        }
        let mut failed = 0;
        while let Some(outcome) = set.join_next().await {
            failed += u32::from(outcome.unwrap().is_err());
        }
        assert!(failed <= 8);
    });
    assert_injected(&summary, &[FaultKind::Errno, FaultKind::Restart]);
}

#[test]
fn a_large_file_is_read_in_the_same_way_again() {
    // Each seed runs twice, and both runs must be the same.
    Test::new().before(|kernel| kernel.create_file("file", bytes(100_000))).run(async |_| {
        for _ in 0..3 {
            assert_eq!(fs::read("file").await?, bytes(100_000));
        }
        Ok::<_, fs::Error>(())
    });
}
