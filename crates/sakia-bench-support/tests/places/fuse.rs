//! The scripted file system.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use sakia_bench_support::blocked::ThreadId;
use sakia_bench_support::fuse::{Fuse, Opcode, Rule, pattern, pattern_byte};
use sakia_bench_support::{available, skip};

use crate::{EIO, ENOENT, errno};

#[test]
fn files_are_read_and_written() {
    let fuse = available!(Fuse::builder().file("a", pattern(300_000)).mount());
    assert_eq!(fs::read(fuse.join("a")).unwrap(), pattern(300_000));
    assert_eq!(fs::metadata(fuse.join("a")).unwrap().len(), 300_000);
    assert_eq!(errno(fs::read(fuse.join("b"))), ENOENT);

    let file = File::options().write(true).open(fuse.join("a")).unwrap();
    file.write_all_at(b"new", 299_999).unwrap();
    file.sync_all().unwrap();
    assert_eq!(fuse.content("a")[299_998..], [pattern_byte(299_998), b'n', b'e', b'w']);
    file.set_len(2).unwrap();
    assert_eq!(fuse.content("a"), pattern(2));
    assert_eq!((fuse.count(Opcode::WRITE), fuse.count(Opcode::FSYNC)), (1, 1));
}

#[test]
fn files_are_made_renamed_and_removed() {
    let fuse = available!(Fuse::builder().file("old", b"old".to_vec()).mount());
    fs::write(fuse.join("temporary"), "new").unwrap();
    fs::rename(fuse.join("temporary"), fuse.join("old")).unwrap();
    assert_eq!(fs::read(fuse.join("old")).unwrap(), b"new");
    let names = |fuse: &Fuse| -> Vec<String> {
        let entries = fs::read_dir(fuse.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(&fuse), ["old"]);
    File::open(fuse.path()).unwrap().sync_all().unwrap();
    assert_eq!(fuse.count(Opcode::FSYNCDIR), 1);
    fs::remove_file(fuse.join("old")).unwrap();
    assert_eq!(names(&fuse), [""; 0]);
}

#[test]
fn entries_are_invented_behind_the_files() {
    let fuse = available!(Fuse::builder().file("a", Vec::new()).invented(1000).mount());
    let entries: Vec<_> = fs::read_dir(fuse.path()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!((entries.len(), entries[0].file_name().to_str()), (1001, Some("a")));
    for (number, entry) in entries[1..].iter().enumerate() {
        assert_eq!(entry.file_name().to_str(), Some(&format!("invented-{number}")[..]));
        let kind = entry.file_type().unwrap();
        let is_expected = [kind.is_file(), kind.is_dir(), kind.is_symlink()][number % 3];
        assert!(is_expected, "{number}: {kind:?}");
    }
    assert!(fuse.count(Opcode::READDIR) > 1 && fuse.count(Opcode::LOOKUP) == 0);
    assert!(!fuse.join("invented-0").exists());
}

#[test]
fn errors_come_as_scripted() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).direct_io(true).mount());
    fuse.script(Rule::on(Opcode::READ).skip(1).times(1).errno(EIO));
    let file = File::open(fuse.join("a")).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 10);
    assert_eq!(errno(file.read_at(&mut buffer, 0)), EIO);
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 10);
    assert_eq!(fuse.count(Opcode::READ), 3);
}

#[test]
fn transfers_are_short_as_scripted() {
    let fuse = available!(Fuse::builder().file("a", pattern(100)).direct_io(true).mount());
    fuse.script(Rule::on(Opcode::READ).times(1).short(7));
    fuse.script(Rule::on(Opcode::WRITE).times(1).short(3));
    let file = File::options().read(true).write(true).open(fuse.join("a")).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 7);
    assert_eq!(buffer[..8], [&pattern(7)[..], &[0]].concat());
    assert_eq!(file.write_at(&[9; 10], 0).unwrap(), 3);
    assert_eq!(fuse.content("a")[..4], [9, 9, 9, pattern_byte(3)]);
}

#[test]
fn gates_hold_until_opened() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).file("b", pattern(5)).mount());
    let gate = fuse.hold(Rule::on(Opcode::READ).file("a"));
    thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(fuse.join("a")));
        gate.wait_held(1);
        // Other requests are answered meanwhile.
        assert_eq!(fs::read(fuse.join("b")).unwrap(), pattern(5));
        assert!(!reader.is_finished());
        assert_eq!((gate.held(), fuse.waiting()), (1, 1));
        gate.pass(1);
        assert_eq!(reader.join().unwrap().unwrap(), pattern(10));

        let again = scope.spawn(|| fs::read(fuse.join("a")));
        gate.wait_held(1);
        drop(gate);
        assert_eq!(again.join().unwrap().unwrap(), pattern(10));
    });
    assert_eq!(fs::read(fuse.join("a")).unwrap(), pattern(10));
}

#[test]
fn the_answer_to_a_held_request_may_be_chosen_late() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).direct_io(true).mount());
    let gate = fuse.hold(Rule::on(Opcode::WRITE).file("a"));
    assert_eq!(gate.first(), None);
    let file = fs::OpenOptions::new().write(true).open(fuse.join("a")).unwrap();
    let answers = [Rule::any().errno(EIO), Rule::any().short(2), Rule::any().short(0), Rule::any()];
    let results = answers.map(|answer| {
        thread::scope(|scope| {
            let writer = scope.spawn(|| file.write_at(&[9; 5], 20));
            gate.wait_held(1);
            let held = gate.first().unwrap();
            assert_eq!((held.opcode, held.offset, held.len), (Opcode::WRITE, 20, 5));
            gate.pass_as(&answer);
            let result = writer.join().unwrap().map_err(|error| error.raw_os_error());
            (result, fuse.content("a").len())
        })
    });
    assert_eq!(results, [(Err(Some(EIO)), 10), (Ok(2), 22), (Ok(0), 22), (Ok(5), 25)]);
}

#[test]
fn later_answers_are_given_in_their_time() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).mount());
    fuse.script(Rule::on(Opcode::OPEN).delay(Duration::from_millis(20)));
    let before = std::time::Instant::now();
    assert_eq!(fs::read(fuse.join("a")).unwrap(), pattern(10));
    // Never earlier; the delay after that depends on the machine.
    assert!(before.elapsed() >= Duration::from_millis(20));
}

#[test]
fn requests_without_answer_end_with_the_release() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).direct_io(true).mount());
    fuse.script(Rule::on(Opcode::READ).never());
    thread::scope(|scope| {
        let reader = scope.spawn(|| fs::read(fuse.join("a")));
        fuse.wait_waiting(1);
        assert!(!reader.is_finished());
        fuse.release();
        assert_eq!(errno(reader.join().unwrap()), EIO);
    });
}

#[test]
fn requests_without_answer_end_with_the_file_system() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).mount());
    fuse.script(Rule::on(Opcode::READ).never());
    let mut file = File::open(fuse.join("a")).unwrap();
    let reader = thread::spawn(move || {
        let mut buffer = [0; 1];
        file.read(&mut buffer)
    });
    fuse.wait_waiting(1);
    let path = fuse.path().to_owned();
    drop(fuse);
    // The error depends on the request's progress.
    const ENOTCONN: i32 = 107;
    const ECONNABORTED: i32 = 103;
    let errno = errno(reader.join().unwrap());
    assert!([EIO, ENOTCONN, ECONNABORTED].contains(&errno), "errno {errno}");
    assert!(!path.exists());
}

#[test]
fn closed_gate_does_not_keep_the_file_system() {
    let fuse = available!(Fuse::builder().file("a", Vec::new()).mount());
    let gate = fuse.hold(Rule::on(Opcode::WRITE));
    let mut file = File::options().write(true).open(fuse.join("a")).unwrap();
    let writer = thread::spawn(move || file.write(b"x"));
    gate.wait_held(1);
    drop(fuse);
    writer.join().unwrap().unwrap_err();
    drop(gate);
}

#[test]
fn edits_show_when_attributes_expire() {
    let fuse = available!(Fuse::builder().file("a", pattern(8192)).attributes_expire(true).mount());
    let file = File::open(fuse.join("a")).unwrap();
    let mut buffer = [0; 8192];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 8192);
    fuse.edit("a", |content| content.truncate(100));
    assert_eq!(file.metadata().unwrap().len(), 100);
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 100);
}

/// The rules for opens rely on this: an answer from the name cache is not yet an open file.
#[test]
fn open_from_the_name_cache_waits_for_the_server() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).mount());
    let path = fuse.join("a");
    fs::metadata(&path).unwrap();
    // A mount or a rename anywhere on the machine spoils a lookup that must not block.
    let open = |flags| loop {
        let flags = flags | OFlags::CLOEXEC;
        match openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::CACHED) {
            Err(Errno::AGAIN) => {}
            opened => break opened,
        }
    };
    if open(OFlags::PATH).is_err_and(|errno| errno == Errno::NOSYS || errno == Errno::INVAL) {
        skip!("no RESOLVE_CACHED (kernel 5.12)");
    }
    let gate = fuse.hold(Rule::on(Opcode::OPEN));
    // `O_PATH` does not open the file itself, so the server gets no request.
    open(OFlags::PATH).unwrap();
    assert_eq!(gate.held(), 0);
    thread::scope(|scope| {
        let opened = scope.spawn(|| open(OFlags::RDONLY | OFlags::NONBLOCK));
        gate.wait_held(1);
        assert!(!opened.is_finished());
        gate.open();
        opened.join().unwrap().unwrap();
    });
}

#[test]
fn waiting_threads_are_seen_to_wait() {
    let fuse = available!(Fuse::builder().file("a", pattern(10)).mount());
    let gate = fuse.hold(Rule::on(Opcode::READ));
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.send(ThreadId::current()).unwrap();
            fs::read(fuse.join("a")).unwrap();
        });
        gate.wait_held(1);
        receiver.recv().unwrap().wait_until_in("");
        gate.open();
    });
}
