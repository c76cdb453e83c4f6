//! Paths and files that cause errors: an error has the kernel's errno, names operation and path, and is the
//! same as that of `std`.

use std::future::pending;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Resource, getrlimit, setrlimit};
use sakia::fs::{self, Dir, File, OpenOptions};
use sakia::time::timeout;
use sakia::{block_on, spawn, yield_now};
use sakia_testkit::children::{copy_program, wait_until_closed};

use super::{TempDir, run};
use crate::refused::children::announce_skip;

/// Asserts that our error and that of `std` for the same path are the same.
#[track_caller]
fn same<T, U>(ours: fs::Result<T>, theirs: std::io::Result<U>, operation: &str, path: &Path) {
    let (Err(ours), Err(theirs)) = (ours, theirs) else {
        panic!("{operation} {} went well", path.display())
    };
    assert_eq!(ours.raw_os_error(), theirs.raw_os_error(), "{ours}");
    assert_eq!(
        (ours.kind(), ours.operation(), ours.path()),
        (theirs.kind(), operation, Some(path))
    );
    assert_eq!(ours.to_string(), format!("{operation} {}: {theirs}", path.display()));
    let io = std::io::Error::from(ours);
    assert_eq!((io.kind(), fs::os_error(&io)), (theirs.kind(), theirs.raw_os_error()));
}

#[test]
fn paths_that_cannot_be_opened() {
    let dir = TempDir::new();
    let (file, folder) = (dir.join("file"), dir.join("folder"));
    std::fs::write(&file, "text").unwrap();
    std::fs::create_dir(&folder).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    block_on(async {
        let paths = [
            dir.join("missing"),
            file.join("below"),
            dir.join("loop"),
            dir.join("x".repeat(256)),
            dir.join("y/".repeat(3000)),
            Path::new("").to_owned(),
        ];
        for path in &paths {
            same(File::open(path).await, std::fs::File::open(path), "open", path);
            same(fs::read(path).await, std::fs::read(path), "open", path);
            same(fs::metadata(path).await, std::fs::metadata(path), "metadata", path);
            same(
                fs::remove_file(path).await,
                {
                    let result = std::fs::remove_file(path);
                    if path.ends_with("loop") {
                        symlink("loop", path).unwrap();
                        continue; // a link can be removed, wherever it leads
                    }
                    result
                },
                "remove",
                path,
            );
        }
        same(File::create(&folder).await, std::fs::File::create(&folder), "open", &folder);
        same(File::create_new(&file).await, std::fs::File::create_new(&file), "open", &file);
        same(fs::read(&folder).await, std::fs::read(&folder), "read", &folder);
        same(fs::write(&folder, "").await, std::fs::write(&folder, ""), "open", &folder);
        let error = OpenOptions::new().open(&file).await.unwrap_err();
        assert_eq!(error.kind(), std::fs::OpenOptions::new().open(&file).unwrap_err().kind());
        let zero = Path::new("a\0b");
        let error = File::open(zero).await.unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::InvalidInput, None));
    });
}

/// The kernel takes no such path, so each operation refuses it by itself, on every way, and does nothing.
#[test]
fn paths_with_a_zero_byte_reach_no_operation() {
    let dir = TempDir::new();
    std::fs::create_dir(dir.join("sub")).unwrap();
    std::fs::write(dir.join("file"), "text").unwrap();
    std::fs::write(dir.join("sub/a"), "text").unwrap();
    let names = |path| {
        let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    let before = (names(dir.join("")), names(dir.join("sub")));
    macro_rules! refuse {
        ($($call:expr;)*) => {$(
            let error = $call.await.map(drop).unwrap_err();
            let found = (error.kind(), error.raw_os_error());
            assert_eq!(found, (ErrorKind::InvalidInput, None), "{}: {error}", stringify!($call));
        )*};
    }
    run(async || {
        let (beneath, file) = (Dir::open(dir.join("")).await.unwrap(), &dir.join("file"));
        let new = OpenOptions::new().write(true).create(true).clone();
        for path in ["a\0b", "sub/a\0b", "sub/\0", "a\0b/c", "sub\0/a"] {
            let at = &dir.join(path);
            let mode = || fs::Permissions::from_mode(0o600);
            refuse! {
                File::open(at);
                File::create(at);
                fs::read(at);
                fs::read_to_string(at);
                fs::write(at, "new");
                fs::write_durable(at, "new");
                fs::save(at, "new");
                fs::copy(at, file);
                fs::copy(file, at);
                fs::create_dir(at);
                fs::create_dir_all(at);
                fs::remove_file(at);
                fs::remove_dir(at);
                fs::remove_dir_all(at);
                fs::rename(at, file);
                fs::rename(file, at);
                fs::hard_link(at, file);
                fs::hard_link(file, at);
                fs::symlink(at, dir.join("new"));
                fs::symlink(file, at);
                fs::read_link(at);
                fs::metadata(at);
                fs::symlink_metadata(at);
                fs::try_exists(at);
                fs::set_permissions(at, mode());
                fs::set_times(at, fs::FileTimes::new());
                fs::chown(at, None, None);
                fs::canonicalize(at);
                fs::read_dir(at);
                Dir::open(at);
                beneath.open_dir(path);
                beneath.open_file(path);
                beneath.create(path);
                beneath.open_with(path, &new);
                beneath.create_dir(path);
                beneath.remove_file(path);
                beneath.remove_dir(path);
                beneath.rename(path, &beneath, "new");
                beneath.rename("file", &beneath, path);
                beneath.symlink(path, "new");
                beneath.symlink("file", path);
                beneath.read_link(path);
                beneath.metadata(path);
                beneath.symlink_metadata(path);
            }
        }
    });
    assert_eq!((names(dir.join("")), names(dir.join("sub"))), before);
    assert_eq!(std::fs::read(dir.join("file")).unwrap(), b"text");
}

#[test]
fn files_that_refuse_their_use() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "text").unwrap();
    block_on(async {
        const EBADF: Option<i32> = Some(9);
        let reading = File::open(&path).await.unwrap();
        let (result, buf) = reading.write_at("x", 0).await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf), (EBADF, "x"));
        assert_eq!(reading.append("x").await.0.unwrap_err().raw_os_error(), EBADF);
        assert_eq!(reading.set_len(1).await.unwrap_err().raw_os_error(), Some(22));
        let writing = OpenOptions::new().write(true).open(&path).await.unwrap();
        let (result, buf) = writing.read_at(vec![1; 3], 0).await;
        assert_eq!((result.unwrap_err().raw_os_error(), buf), (EBADF, vec![1; 3]));
        let folder = File::open(&dir.0).await.unwrap();
        let (result, _) = folder.read_at(vec![0; 8], 0).await;
        assert_eq!(result.unwrap_err().kind(), ErrorKind::IsADirectory);
        // Writes of any length find no room.
        let full = OpenOptions::new().write(true).open("/dev/full").await.unwrap();
        let (result, buf) = full.write_all_at(vec![1; 100], 0).await;
        assert_eq!((result.unwrap_err().kind(), buf.len()), (ErrorKind::StorageFull, 100));
        let error = fs::write("/dev/full", "x").await.unwrap_err();
        assert_eq!((error.operation(), error.raw_os_error()), ("write", Some(28)));
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"text");
}

#[test]
fn other_file_systems_and_programs_that_run() {
    let dir = TempDir::new();
    let program = dir.join("program");
    copy_program("/bin/sleep", &program);
    let mut child = Command::new(&program).arg("600").spawn().unwrap();
    run(async || {
        let open = std::fs::File::options().write(true).open(&program);
        let ours = OpenOptions::new().write(true).open(&program).await;
        assert_eq!(ours.as_ref().err().and_then(fs::Error::raw_os_error), Some(26)); // ETXTBSY
        same(ours, open, "open", &program);
        // A running program can still be replaced.
        fs::save(&program, "another").await.unwrap();
        if Path::new("/dev/shm").is_dir() {
            let other = TempDir::within("/dev/shm".as_ref());
            let to = other.join("file");
            for error in [
                fs::rename(&program, &to).await.unwrap_err(),
                fs::hard_link(&program, &to).await.unwrap_err(),
            ] {
                assert_eq!(error.kind(), ErrorKind::CrossesDevices);
                let (from, to) = (program.display(), to.display());
                assert!(error.to_string().contains(&format!("{from} to {to}: ")), "{error}");
            }
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn fifos_hold_up_nobody() {
    let dir = TempDir::new();
    let path = dir.join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    run(async || {
        let reading = spawn({
            let path = path.clone();
            async move {
                let mut fifo = File::open(&path).await?;
                let (result, bytes) = fifo.read_exact(vec![0; 5]).await;
                result?;
                let error = fifo.seek(std::io::SeekFrom::Start(0)).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(29));
                fifo.close().await?;
                std::io::Result::Ok(bytes)
            }
        });
        // Other files are served while an open waits for the other end.
        for _ in 0..10 {
            fs::write(dir.join("file"), "text").await.unwrap();
            assert_eq!(fs::read(dir.join("file")).await.unwrap(), b"text");
        }
        let mut fifo = OpenOptions::new().write(true).open(&path).await.unwrap();
        fifo.write_all("hello").await.0.unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), b"hello");
        wait_until_closed(&fifo);
        assert_eq!(fifo.write("x").await.0.unwrap_err().kind(), ErrorKind::BrokenPipe);

        fifo.close().await.unwrap();

        // Reads a whole FIFO to its end.
        let writing = std::thread::spawn({
            let path = path.clone();
            move || std::fs::write(path, vec![7; 300_000]).unwrap()
        });
        assert_eq!(fs::read(&path).await.unwrap(), [7; 300_000]);
        writing.join().unwrap();
    });
}

#[test]
fn terminals_hold_up_nobody() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let Ok(master) = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY) else {
        return announce_skip("there are no terminals to be had");
    };
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let mut master = std::fs::File::from(master);
    block_on(async {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let mut terminal = options.open(&path).await.unwrap();
        assert!(timeout(Duration::from_millis(1), terminal.read(vec![0; 64])).await.is_err());
        master.write_all(b"typed\n").unwrap();
        let (result, line) = terminal.read(vec![0; 64]).await;
        assert_eq!(&line[..result.unwrap()], b"typed\n");
        terminal.write_all("shown").await.0.unwrap();
        let mut shown = [0; 12];
        master.read_exact(&mut shown).unwrap();
        assert_eq!(&shown, b"typed\r\nshown");
        // A clone of the terminal can be closed while a read waits.
        let closing = spawn(async move {
            let clone = terminal.try_clone().unwrap();
            let waiting = spawn(async move { { terminal }.read(vec![0; 64]).await.0 });
            yield_now().await;
            (clone.close().await, waiting)
        });
        let (closed, waiting) = closing.await.unwrap();
        closed.unwrap();
        waiting.abort();
    });
}

/// Uses up all descriptors. Another test starts this one as a program.
#[test]
fn runs_out_of_descriptors_when_asked() {
    if std::env::var_os("SAKIA_TEST_EMFILE").is_none() {
        return; // the test that asks is below
    }
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, "old").unwrap();
    run(async || {
        fs::save(&path, "old").await.unwrap(); // whatever the runtime needs, it has now
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = Some(64);
        setrlimit(Resource::Nofile, limit).unwrap();
        let mut files = Vec::new();
        let error = loop {
            match File::open(&path).await {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
        };
        assert_eq!((error.raw_os_error(), error.operation()), (Some(24), "open"));
        for error in [
            fs::read(&path).await.unwrap_err(),
            fs::read_dir(&dir.0).await.unwrap_err(),
            fs::save(&path, "new").await.unwrap_err(),
            fs::remove_dir_all(&dir.0).await.unwrap_err(),
            fs::copy(&path, dir.join("copy")).await.unwrap_err(),
        ] {
            assert_eq!(error.raw_os_error(), Some(24), "{error}");
        }
        assert_eq!(files[0].try_clone().unwrap_err().raw_os_error(), Some(24));
        drop(files.split_off(files.len() - 4));
        while fs::read(&path).await.is_err() {
            yield_now().await; // they are closed with the next turns
        }
        fs::save(&path, "new").await.unwrap();
        drop(files);
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}

#[test]
fn without_descriptors_the_reason_is_told_and_files_stay() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::bad_places::runs_out_of_descriptors_when_asked"])
        .env("SAKIA_TEST_EMFILE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_is_dropped_half_done_is_closed_in_the_end() {
    let dir = TempDir::new();
    let path = dir.join("file");
    std::fs::write(&path, vec![1; 100_000]).unwrap();
    run(async || {
        let open = || {
            std::fs::read_dir("/proc/self/fd").unwrap().filter(|entry| {
                let link = std::fs::read_link(entry.as_ref().unwrap().path());
                link.is_ok_and(|link| link == path)
            })
        };
        for _ in 0..50 {
            let mut reading = Box::pin(fs::read(&path));
            let pending = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(reading.as_mut().poll(cx).is_pending())
            });
            pending.await;
            yield_now().await;
            drop(reading);
        }
        while open().count() > 0 {
            yield_now().await;
        }
    });
    drop(pending::<()>());
}
