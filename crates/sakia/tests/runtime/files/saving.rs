//! Files that are replaced as a whole: if the save is dropped, fails or is killed at any point, they are
//! old or new.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use sakia::fs::{self, AtomicFile};
use sakia::{block_on, yield_now};

use super::{Random, TempDir, run, runtime};
use crate::refused::children::announce_skip;

#[test]
fn a_saved_file_has_contents_owner_and_permissions() {
    let dir = TempDir::new();
    let path = dir.join("file");
    run(async || {
        fs::save(&path, "first").await.unwrap();
        let plain = dir.join("plain");
        std::fs::write(&plain, "").unwrap();
        let mode = |path| std::fs::metadata(path).unwrap().mode();
        assert_eq!(mode(&path), mode(&plain), "as any new file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4751)).unwrap();
        // Only a privileged process can give files away, and so test that the owner is kept.
        let is_given = std::os::unix::fs::chown(&path, Some(12), Some(34)).is_ok();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4751)).unwrap();
        let before = std::fs::metadata(&path).unwrap();
        fs::save(&path, vec![7; 100_000]).await.unwrap();
        let after = std::fs::metadata(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100_000]);
        assert_eq!(after.mode(), before.mode());
        assert_ne!(after.ino(), before.ino());
        if is_given {
            assert_eq!((after.uid(), after.gid()), (12, 34));
        }
    });
    assert_eq!(dir.names(), ["file", "plain"]);
}

#[test]
fn links_are_followed_and_stay() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::fs::write(dir.join("sub/file"), "old").unwrap();
    symlink("sub/file", dir.join("link")).unwrap();
    symlink(dir.join("link"), dir.join("second")).unwrap();
    symlink("sub/new", dir.join("dangling")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    run(async || {
        fs::save(dir.join("second"), "new").await.unwrap();
        fs::save(dir.join("dangling"), "made").await.unwrap();
        assert_eq!(fs::save(dir.join("loop"), "").await.unwrap_err().raw_os_error(), Some(40));
        let error = fs::save(dir.join("sub"), "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        let error = fs::save(dir.join("sub/.."), "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
        let error = fs::save(dir.join("missing/file"), "").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
    assert!(std::fs::symlink_metadata(dir.join("link")).unwrap().is_symlink());
    assert_eq!(std::fs::read(dir.join("sub/file")).unwrap(), b"new");
    assert_eq!(std::fs::read(dir.join("sub/new")).unwrap(), b"made");
}

#[test]
fn what_is_discarded_leaves_nothing() {
    let dir = TempDir::new();
    let path = dir.join("x".repeat(255));
    std::fs::write(&path, "old").unwrap();
    run(async || {
        let mut new = AtomicFile::create(&path).await.unwrap();
        new.file_mut().write_all("half").await.0.unwrap();
        assert_eq!(dir.names().len(), 2);
        new.discard().await.unwrap();
        assert_eq!(dir.names().len(), 1);
        let new = AtomicFile::create(&path).await.unwrap();
        new.file().write_all_at("half", 0).await.0.unwrap();
        drop(new);
        assert_eq!(dir.names().len(), 1);
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
}

#[test]
fn dropped_at_any_point_it_is_old_or_new_and_nothing_is_left() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "old").unwrap();
    let mut outcomes = [0; 2];
    for polls in 0.. {
        let runtime = runtime();
        let is_done = runtime.block_on(async {
            let mut saving = Box::pin(fs::save(&path, "new!"));
            for _ in 0..polls {
                let ready = poll_fn(|cx| Poll::Ready(saving.as_mut().poll(cx).is_ready())).await;
                if ready {
                    return true;
                }
                // A fast machine may complete another operation.
                for _ in 0..3 {
                    yield_now().await;
                }
            }
            false
        });
        // Operations in flight end, and the files that they have created are removed.
        while runtime.live_tasks() > 0 {
            runtime.block_on(yield_now());
        }
        match &std::fs::read(&path).unwrap()[..] {
            b"old" => outcomes[0] += 1,
            b"new!" => outcomes[1] += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(dir.names(), ["file"]);
        if is_done {
            break;
        }
    }
    assert!(outcomes[0] > 5 && outcomes[1] > 0, "{outcomes:?}");
}

/// A file system of 1 MiB, mounted until the drop.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = TempDir::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "sakia-test"]).arg(&dir.0);
        match mount.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => Some(Self(dir)),
            _ => {
                announce_skip("no privilege to mount a file system");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0.0).status().ok();
    }
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.0.join("file");
    run(async || {
        fs::save(&path, vec![1; 300_000]).await.unwrap();
        let error = fs::save(&path, vec![2; 900_000]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert_eq!((error.operation(), error.path()), ("write", Some(&*path)));
        assert_eq!(std::fs::read(&path).unwrap(), [1; 300_000]);
        assert_eq!(disk.0.names(), ["file"]);
        fs::save(&path, vec![3; 300_000]).await.unwrap();
        // Other operations meet the same limit.
        let other = disk.0.join("other");
        let error = fs::write(&other, vec![4; 2 << 20]).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (Some(28), "write"));
        let error = fs::copy("/proc/self/exe", &other).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.operation()), (Some(28), "copy"));
        let file = fs::File::create(&other).await.unwrap();
        assert_eq!(file.allocate(0..2 << 20).await.unwrap_err().raw_os_error(), Some(28));
    });
    assert_eq!(std::fs::read(&path).unwrap(), [3; 300_000]);
}

/// Returns contents from which a reader can tell whether they are whole.
fn version(number: u64) -> Vec<u8> {
    let mut bytes = Random(number + 1).bytes(1000 + number as usize % 7 * 5000);
    bytes.splice(..0, number.to_le_bytes());
    bytes
}

/// Saves new versions for ever. Another test starts this one as a program.
#[test]
fn saves_for_ever_when_asked() {
    let Some(path) = std::env::var_os("SAKIA_TEST_SAVE") else {
        return; // the test that asks is below
    };
    run(async || {
        for number in 0.. {
            fs::save(Path::new(&path), version(number)).await.unwrap();
        }
    });
}

#[test]
fn killed_at_random_points_it_is_a_whole_version() {
    let dir = TempDir::new();
    let path = dir.join("file");
    let mut random = Random(77);
    let mut last = None;
    for _ in 0..25 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "files::saving::saves_for_ever_when_asked"])
            .env("SAKIA_TEST_SAVE", &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The child is killed after its first save, at some point of a later one.
        let begun = std::fs::read(&path).ok();
        while std::fs::read(&path).ok() == begun {
            assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(5000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert!(bytes == version(number), "version {number} is not whole");
        last = last.max(Some(number));
    }
    assert!(last > Some(0), "it was always killed before it could save twice");
    // Leftover files of killed processes have names that tell their origin, and disturb no program.
    assert!(dir.names().iter().all(|name| name == "file" || name.ends_with(".tmp")));
    block_on(async { drop(fs::read(&path).await.unwrap()) });
}
