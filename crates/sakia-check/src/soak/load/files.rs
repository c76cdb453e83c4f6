//! Steps with files and directories.

use anyhow::ensure;
use sakia::fs::{self, File, GroupCommit};
use sakia::spawn;

use super::{Context, bytes, same};

/// The size of a file of [`positional`], which is also the largest transfer, in bytes.
const FILE_BYTES: usize = 60_000;
const TRANSFER_BYTES_MAX: usize = 12_000;

/// Reads and writes at random places. Bytes of writes that were given up are the old or the new ones.
pub(super) async fn positional(mut context: Context) -> anyhow::Result<()> {
    context.make_folder().await?;
    let path = context.folder.join("file");
    let file = File::options().read(true).write(true).create(true).open(&path).await?;
    let mut contents = bytes(&mut context.random, FILE_BYTES);
    file.write_all_at(contents.clone(), 0).await.0?;
    for _ in 0..context.random.u32(4..16) {
        let part = context.bytes(TRANSFER_BYTES_MAX);
        let at = context.random.usize(0..FILE_BYTES - part.len());
        let range = at..at + part.len();
        match context.random.u8(0..4) {
            0 => {
                contents[range].copy_from_slice(&part);
                file.write_all_at(part, at as u64).await.0?;
            }
            1 => {
                let read = file.read_exact_at(vec![0; part.len()], at as u64);
                if let Some((result, got)) = context.give_up(read).await {
                    result?;
                    context.verify("a read that was not given up", &got, &contents[range])?;
                }
            }
            2 => {
                file.sync_data().await?;
            }
            _ => {
                let (result, got) = file.read_exact_at(vec![0; part.len()], at as u64).await;
                result?;
                context.verify("a file", &got, &contents[range])?;
            }
        }
    }
    let (part, at) = (context.bytes(TRANSFER_BYTES_MAX), context.random.usize(0..1000));
    let _ = context.give_up(file.write_all_at(part.clone(), at as u64)).await;
    file.close().await?;

    let got = fs::read(&path).await?;
    same("length of a file", &got.len(), &FILE_BYTES)?;
    let end = at + part.len();
    for (place, &byte) in got[at..end].iter().enumerate() {
        let (old, new) = (contents[at + place], part[place]);
        ensure!(byte == old || byte == new, "a write that was given up left a byte of its own");
    }
    context.verify("a file before a write", &got[..at], &contents[..at])?;
    context.verify("a file after a write", &got[end..], &contents[end..])?;
    context.remove_folder().await
}

/// Appends records, through several descriptors.
pub(super) async fn append(mut context: Context) -> anyhow::Result<()> {
    context.make_folder().await?;
    let path = context.folder.join("log");
    let log = File::options().append(true).create(true).open(&path).await?;
    let mut expected = Vec::new();
    for _ in 0..context.random.u32(2..10) {
        let record = context.bytes(3000);
        expected.extend_from_slice(&record);
        log.append(record).await.0?;
    }
    log.close().await?;
    context.verify("a log", &fs::read(&path).await?, &expected)?;
    context.remove_folder().await
}

/// Writes, copies and reads whole files.
pub(super) async fn whole(mut context: Context) -> anyhow::Result<()> {
    context.make_folder().await?;
    let (one, two) = (context.folder.join("one"), context.folder.join("two"));
    let contents = context.bytes(100_000);
    fs::write(&one, contents.clone()).await?;
    let _ = context.give_up(fs::read(&one)).await;
    same("bytes copied", &fs::copy(&one, &two).await?, &(contents.len() as u64))?;
    context.verify("a copy", &fs::read(&two).await?, &contents)?;
    let shorter = context.bytes(1000);
    fs::write(&one, shorter.clone()).await?;
    context.verify("a file written anew", &fs::read(&one).await?, &shorter)?;
    context.remove_folder().await
}

/// Saves files, of which one save is given up: the file has all of the old or all of the new contents.
pub(super) async fn save(mut context: Context) -> anyhow::Result<()> {
    context.make_folder().await?;
    let path = context.folder.join("saved");
    let (old, new, last) = (context.bytes(20_000), context.bytes(20_000), context.bytes(20_000));
    fs::save(&path, old.clone()).await?;
    let is_saved = context.give_up(fs::save(&path, new.clone())).await.transpose()?.is_some();
    let got = fs::read(&path).await?;
    let expected = if is_saved || got == new { &new } else { &old };
    context.verify("a file whose save may have been given up", &got, expected)?;
    fs::save(&path, last.clone()).await?;
    context.verify("a saved file", &fs::read(&path).await?, &last)?;
    context.remove_folder().await
}

/// Runs writers that share syncs.
pub(super) async fn journal(mut context: Context) -> anyhow::Result<()> {
    const WRITERS: usize = 3;
    const RECORDS: usize = 3;
    context.make_folder().await?;
    let path = context.folder.join("journal");
    let journal = GroupCommit::new(File::create(&path).await?).await?;
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (journal, mut random) = (journal.clone(), context.random.fork());
        writers.push(spawn(async move {
            let mut records = Vec::new();
            for _ in 0..RECORDS {
                let (place, record) = journal.append(bytes(&mut random, 300)).await;
                records.push((place?, record));
                journal.commit().await?;
            }
            anyhow::Ok(records)
        }));
    }
    let mut records = Vec::new();
    for writer in writers {
        records.extend(writer.await??);
    }
    drop(journal);
    let contents = fs::read(&path).await?;
    same("length of a journal", &contents.len(), &(WRITERS * RECORDS * 300))?;
    for (place, record) in records {
        let place = usize::try_from(place)?;
        context.verify("a record", &contents[place..][..record.len()], &record)?;
    }
    context.remove_folder().await
}

/// Creates, renames and removes names, and lists them.
pub(super) async fn directory(mut context: Context) -> anyhow::Result<()> {
    context.make_folder().await?;
    let count = context.random.u32(1..30);
    let name = |number: u32| context.folder.join(format!("entry-{number}"));
    let mut expected = Vec::new();
    for number in 0..count {
        match number % 3 {
            0 => fs::create_dir(name(number)).await?,
            1 => drop(File::create_new(name(number)).await?),
            _ => fs::write(name(number), "contents").await?,
        }
    }
    for number in 0..count {
        match number % 5 {
            0 if number % 3 == 0 => fs::remove_dir(name(number)).await?,
            1 if number % 3 != 0 => fs::remove_file(name(number)).await?,
            2 => {
                fs::rename(name(number), name(number + 1000)).await?;
                expected.push(format!("entry-{}", number + 1000));
            }
            _ => expected.push(format!("entry-{number}")),
        }
    }
    let mut names = Vec::new();
    let mut entries = fs::read_dir(&context.folder).await?;
    while let Some(entry) = entries.next_entry().await? {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    expected.sort();
    same("names", &names, &expected)?;
    let list = async {
        let mut entries = fs::read_dir(context.folder.clone()).await?;
        while entries.next_entry().await?.is_some() {}
        anyhow::Ok(())
    };
    let _ = super::give_up(&mut context.random, list).await;
    context.remove_folder().await
}
