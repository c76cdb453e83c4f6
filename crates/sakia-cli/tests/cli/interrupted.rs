//! Signals interrupt copies of every kind, at seeded points.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

use rustix::process::Signal;

use crate::signals::{end, hearing, send, start};
use crate::support::{TempDir, at_once, random_bytes, run, wait};

/// The mode of a file that is not complete.
const UNFINISHED: u32 = 0o1200;
/// Points at which each kind of copy is interrupted.
const POINTS: u64 = 3;

/// A source, and a command that copies it to `to`.
struct Kind {
    name: &'static str,
    arguments: &'static str,
    make: fn(&Path),
    /// The copy is in another file system.
    is_apart: bool,
}

const KINDS: [Kind; 9] = [
    Kind { name: "large", arguments: "cp from to", make: large, is_apart: false },
    Kind { name: "large, sent", arguments: "cp from to", make: large, is_apart: true },
    Kind {
        name: "large, by a buffer",
        arguments: "cp --sparse=always from to",
        make: large,
        is_apart: false,
    },
    Kind { name: "large, verified", arguments: "cp --verify from to", make: large, is_apart: true },
    Kind { name: "sparse", arguments: "cp -a from to", make: sparse, is_apart: false },
    Kind { name: "small", arguments: "cp -r from to", make: small, is_apart: true },
    Kind { name: "exact", arguments: "cp -a --fsync from to", make: small, is_apart: false },
    Kind { name: "links", arguments: "cp -a from to", make: links, is_apart: true },
    Kind { name: "large ones", arguments: "cp -r from to", make: large_ones, is_apart: false },
];

fn large(from: &Path) {
    fs::write(from, random_bytes(1, 1 << 18).repeat(64)).unwrap();
}

fn sparse(from: &Path) {
    let file = File::create(from).unwrap();
    file.set_len(64 << 20).unwrap();
    for part in 0..12 {
        file.write_all_at(&random_bytes(part, 1 << 16).repeat(16), part * (5 << 20)).unwrap();
    }
}

fn small(from: &Path) {
    for number in 0..1500_u32 {
        let inner = from.join(format!("{}/{}", number % 7, number % 30));
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join(number.to_string()), random_bytes(1, 200 * (number as usize % 100)))
            .unwrap();
    }
}

fn links(from: &Path) {
    for number in 0..300 {
        let inner = from.join((number % 10).to_string());
        fs::create_dir_all(&inner).unwrap();
        let file = inner.join(number.to_string());
        fs::write(&file, random_bytes(number, 20_000)).unwrap();
        fs::hard_link(&file, from.join(format!("name of {number}"))).unwrap();
        symlink(number.to_string(), inner.join(format!("link to {number}"))).unwrap();
    }
}

fn large_ones(from: &Path) {
    fs::create_dir(from).unwrap();
    for number in 0..8 {
        fs::write(from.join(number.to_string()), random_bytes(number, 1 << 16).repeat(48)).unwrap();
    }
}

/// The compared facts: kind and mode, contents.
type Tree = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(stat) = path.symlink_metadata() else { continue };
        let contents = if stat.is_dir() {
            // An incomplete directory can be read by its owner.
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if stat.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else if stat.mode() & 0o7777 == UNFINISHED {
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        found.insert(path.strip_prefix(root).unwrap().to_owned(), (stat.mode(), contents));
    }
    found
}

/// Waits until the copy has this many blocks and entries, or is over.
fn await_progress(child: &mut Child, to: &Path, wanted: u64) {
    let mut reached = 0;
    while reached < wanted && child.try_wait().unwrap().is_none() {
        let mut left = vec![to.to_owned()];
        reached = 0;
        while let Some(path) = left.pop() {
            let Ok(stat) = path.symlink_metadata() else { continue };
            reached += 1 + stat.size() / 65536;
            if let Ok(entries) = fs::read_dir(&path) {
                left.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
            }
        }
        std::thread::yield_now();
    }
}

fn places(kind: &Kind) -> (TempDir, TempDir) {
    let apart = if kind.is_apart { "/dev/shm" } else { env!("CARGO_TARGET_TMPDIR") };
    let source = TempDir::new();
    (kind.make)(&source.path().join("from"));
    (source, TempDir::below(Path::new(apart)))
}

fn command(kind: &Kind, extra: &str, source: &TempDir, target: &TempDir) -> std::process::Command {
    let mut words: Vec<_> = kind.arguments.split(' ').map(str::to_owned).collect();
    words.pop();
    if !extra.is_empty() {
        words.insert(1, extra.to_owned());
    }
    words.insert(1, "-T".to_owned());
    let mut command = hearing(words);
    command.arg(target.path().join("to")).current_dir(source.path());
    command
}

/// The remains are as the guide describes, and the same command with -n or -u completes them.
#[test]
fn what_is_left_is_whole_or_can_be_told_and_is_completed() {
    let signals = [Signal::INT, Signal::TERM, Signal::HUP];
    at_once(KINDS.iter().enumerate(), |(number, kind)| {
        let (source, target) = places(kind);
        let to = target.path().join("to");
        run(&mut command(kind, "", &source, &target)).assert_quiet_success();
        let expected = tree(&to);
        let all = fs::metadata(source.path().join("from")).unwrap().len() / 65536;
        let all = expected.len() as u64 + all;
        let remove = |to: &Path| {
            if to.is_dir() { fs::remove_dir_all(to).ok() } else { fs::remove_file(to).ok() }
        };
        remove(&to);
        for point in 0..POINTS {
            let case = format!("{}, point {point}", kind.name);
            let signal = signals[(number + point as usize) % 3];
            let mut child = start(&mut command(kind, "", &source, &target));
            // At the beginning, and at seeded points.
            let random = random_bytes(point + 10 * number as u64, 2)[0];
            await_progress(
                &mut child,
                &to,
                if point == 0 { 0 } else { all * u64::from(random) / 256 },
            );
            // The copy may be over already.
            rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).ok();
            let status = end(&mut child);
            let said = wait(child).stderr;
            if !status.success() {
                assert_eq!(status.signal(), Some(signal.as_raw()), "{case}: {said}");
                assert!(said.contains("sakia: stopped; copied so far: "), "{case}: {said}");
                // Interrupted entries do not count as failures.
                let is_all = said.lines().count() == 1 || said.contains("gave up waiting for ");
                assert!(is_all, "{case}: {said}");
            }
            for (path, (mode, contents)) in tree(&to) {
                if mode & 0o7777 == UNFINISHED {
                    // A busy machine may take longer than the program waits.
                    assert!(said.contains("gave up"), "{case}: {path:?} is not complete: {said}");
                } else if mode & 0o170_000 != 0o040_000 {
                    assert!(contents == expected[&path].1, "{case}: {path:?} is half-written");
                }
            }
            let letter = if point % 2 == 0 { "-n" } else { "-u" };
            run(&mut command(kind, letter, &source, &target)).assert_quiet_success();
            let is = tree(&to);
            let differs = expected.iter().find(|(path, facts)| is.get(*path) != Some(*facts));
            let differs = differs.map(|(path, facts)| (path, facts.0, is.get(path).map(|is| is.0)));
            assert!(is.len() == expected.len() && differs.is_none(), "{case}: {differs:?}");
            remove(&to);
        }
    });
}

/// Prints the time from a signal to the end of a copy of one large file: `cargo test --release -p sakia-cli
/// --test cli -- --ignored --nocapture time_from`.
#[test]
#[ignore = "prints figures, which depend on the machine"]
fn time_from_a_signal_to_the_end() {
    let source = TempDir::new();
    let file = File::create(source.path().join("from")).unwrap();
    for part in 0..48 {
        let bytes = random_bytes(part, 1 << 20).repeat(32);
        file.write_all_at(&bytes, part * (32 << 20)).unwrap();
    }
    for (name, place) in [("disk", env!("CARGO_TARGET_TMPDIR")), ("memory", "/dev/shm")] {
        for way in ["--sparse=auto", "--sparse=always"] {
            let mut figures = Vec::new();
            for round in 0..9 {
                let target = TempDir::below(Path::new(place));
                let to = target.path().join("to");
                let mut command = hearing(["cp", way, "from"]);
                let mut child = start(command.arg(&to).current_dir(source.path()));
                await_progress(&mut child, &to, 2000 + 2000 * round);
                let begin = Instant::now();
                send(&child, Signal::INT);
                let status = end(&mut child);
                if status.signal() == Some(libc::SIGINT) {
                    figures.push(begin.elapsed().as_millis());
                }
                assert!(!to.exists() || status.success());
            }
            figures.sort_unstable();
            println!("1.5 GiB to {name}, {way}: {figures:?} ms");
        }
    }
}
