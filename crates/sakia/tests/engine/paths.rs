//! Operations by path.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use sakia::engine::ReadDir;
use sakia::{Builder, Engine};

use crate::support::{Folder, engine, on_each_backend, on_tokio, poll_once, without_remote_mounts};

/// The time after which a wait of a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

on_each_backend! {
    names_are_those_of_fs
    a_directory_is_listed
    what_is_cached_is_found_where_it_is_awaited
    what_was_opened_is_read_although_its_name_is_gone
    a_link_to_what_is_cached_is_followed
    code_that_blocks_has_threads_of_its_own
}

fn names_are_those_of_fs(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    on_tokio(2, async {
        let (a, b, link) = (folder.path("a/b/a"), folder.path("a/b/b"), folder.path("link"));
        engine.create_dir_all(folder.path("a/b")).await.unwrap();
        engine.create_dir(folder.path("empty")).await.unwrap();
        engine.remove_dir(folder.path("empty")).await.unwrap();
        engine.write(&a, "text").await.unwrap();
        assert_eq!(engine.read(&a).await.unwrap(), b"text");
        assert_eq!(engine.read_to_string(&a).await.unwrap(), "text");
        assert_eq!(engine.metadata(&a).await.unwrap().len(), 4);
        assert_eq!(engine.copy(&a, &b).await.unwrap(), 4);
        engine.set_permissions(&b, Permissions::from_mode(0o600)).await.unwrap();
        assert_eq!(engine.metadata(&b).await.unwrap().permissions().mode() & 0o777, 0o600);
        engine.hard_link(&a, folder.path("hard")).await.unwrap();
        engine.symlink(&a, &link).await.unwrap();
        assert_eq!(engine.read_link(&link).await.unwrap(), a);
        assert!(engine.symlink_metadata(&link).await.unwrap().is_symlink());
        assert_eq!(engine.canonicalize(&link).await.unwrap(), std::fs::canonicalize(&a).unwrap());
        engine.rename(&a, folder.path("c")).await.unwrap();
        assert!(!engine.try_exists(&a).await.unwrap());
        engine.remove_file(folder.path("c")).await.unwrap();
        engine.remove_dir_all(folder.path("a")).await.unwrap();
        assert_eq!(engine.read(&b).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

fn a_directory_is_listed(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    const COUNT: usize = 3 * ReadDir::BATCH / 2;
    for number in 0..COUNT {
        folder.file(&number.to_string(), "");
    }
    std::fs::create_dir(folder.path("directory")).unwrap();
    let mut directory = engine.read_dir(folder.path(".")).wait().unwrap();
    let mut names = Vec::new();
    loop {
        let batch = on_tokio(1, directory.next_batch()).unwrap();
        assert!(batch.len() <= ReadDir::BATCH);
        if batch.is_empty() {
            break;
        }
        names.extend(batch.iter().map(|entry| entry.file_name().into_string().unwrap()));
    }
    assert!(directory.next_batch().wait().unwrap().is_empty());
    names.sort_unstable_by_key(|name| name.parse().unwrap_or(usize::MAX));
    let expected = (0..COUNT).map(|number| number.to_string()).chain(["directory".into()]);
    assert!(names.into_iter().eq(expected));
}

fn what_is_cached_is_found_where_it_is_awaited(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let path = folder.file("x", "four");
    // Now the dentry cache has the name.
    assert!(path.exists() && !folder.path("missing").exists());
    if engine.try_lookup(&path, true).is_none() {
        return sakia_testkit::place::announce_skip("engine::lookup", "no RESOLVE_CACHED here");
    }
    on_tokio(1, async {
        assert_eq!(engine.metadata(&path).await.unwrap().len(), 4);
        assert!(engine.symlink_metadata(&path).await.unwrap().is_file());
        assert!(engine.try_exists(&path).await.unwrap());
        assert!(!engine.try_exists(folder.path("missing")).await.unwrap());
        assert_eq!(engine.read(&path).await.unwrap(), b"four");
        assert_eq!(engine.read_to_string(&path).await.unwrap(), "four");
        let file = engine.open(&path).await.unwrap();
        assert_eq!(file.metadata().await.unwrap().len(), 4);
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        assert_eq!(
            engine.open(folder.path("missing")).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
    });
    assert_eq!(engine.statistics().submitted, 0);
}

/// A file that reports a length of 0 is read on a thread of the engine. That thread must not look up the
/// name again.
fn what_was_opened_is_read_although_its_name_is_gone(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(&builder.clone().threads(1)));
    let path = folder.file("x", "");
    if engine.try_lookup(&path, true).is_none() {
        return sakia_testkit::place::announce_skip("engine::lookup", "no RESOLVE_CACHED here");
    }
    let (release, held) = mpsc::channel::<()>();
    let holder = engine.run(move || async move { held.recv().is_err() }).submit();
    let mut request = engine.read(&path);
    assert!(poll_once(&mut request).is_pending());
    std::fs::remove_file(&path).unwrap();
    drop(release);
    assert_eq!(request.wait().unwrap(), b"");
    assert!(holder.wait().unwrap());
}

fn a_link_to_what_is_cached_is_followed(builder: &Builder) {
    let _mounts = without_remote_mounts();
    let (folder, engine) = (Folder::new(), engine(builder));
    let (path, link) = (folder.file("x", "four"), folder.path("link"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    // Links are not followed while there are remote mounts, possibly of other programs.
    let is_followed = || engine.try_lookup(&link, true).is_some();
    let begin = Instant::now();
    let opened = loop {
        // Following a link may update its access time, which may block once.
        assert!(link.exists());
        let before = is_followed();
        if let Some(opened) = engine.try_open_regular(&link) {
            break opened;
        }
        assert!(!(before && is_followed()), "it takes no wait");
        if begin.elapsed() > PATIENCE {
            return sakia_testkit::place::announce_skip(
                "engine::lookup",
                "no links are followed here",
            );
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(std::io::read_to_string(std::fs::File::from(opened.unwrap())).unwrap(), "four");
    assert!(engine.try_open_regular(folder.path(".")).is_none(), "it is no file");
}

fn code_that_blocks_has_threads_of_its_own(builder: &Builder) {
    let engine = engine(builder);
    let here = std::thread::current().id();
    let id = || engine.spawn_blocking(|| Ok(std::thread::current().id()));
    assert_eq!(id().wait().unwrap(), here);
    assert_ne!(on_tokio(1, id()).unwrap(), here);
    let many = engine.submit_many((0..10).map(|_| id())).wait();
    assert!(many.into_iter().all(|result| result.unwrap() != here));
    let panics = std::panic::AssertUnwindSafe(|| {
        on_tokio(1, engine.spawn_blocking(|| -> std::io::Result<()> { panic!("on purpose") }))
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    engine.stop_and_wait();
    let error = on_tokio(1, id()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
}

#[test]
fn the_engine_of_the_process_is_one() {
    let first = Engine::global().unwrap();
    let other = std::thread::spawn(|| Engine::global().unwrap());
    assert!(std::ptr::eq(first, other.join().unwrap()));
    assert_eq!(first.run(|| async { 1 }).wait().unwrap(), 1);
}
