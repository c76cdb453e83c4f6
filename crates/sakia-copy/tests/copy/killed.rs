//! Copies that are killed or stopped leave only half-written files that are marked as such, and a later copy
//! completes them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};
use sakia_copy::{Copier, Existing, Options, Progress};
use sakia_testkit::settings::number;

use crate::children;
use crate::support::{
    Folder, Random, Tree, assert_same, bytes, copy_all, runtime, set_attribute, some_acl, tree,
    without,
};

/// The mode of a file that is not complete.
const UNFINISHED: u32 = 0o100_000 | 0o1200;

/// Makes many small files, some large ones and some with holes, and links among them.
fn make(folder: &Folder) -> Tree {
    let mut random = Random::new(7);
    for number in 0..24 {
        let inner = folder.dir(&format!("from/{}/{number}", number % 4));
        for file in 0..8 {
            let len = if file == 0 { 600_000 } else { random.below(20_000) };
            let path = inner.join(file.to_string());
            fs::write(&path, bytes(len as usize, number)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
            set_attribute(&path, "user.test", b"value");
        }
        fs::hard_link(inner.join("0"), folder.path(&format!("from/{number}-large"))).unwrap();
        fs::hard_link(inner.join("1"), inner.join("small")).unwrap();
        symlink("0", inner.join("link")).unwrap();
        let sparse = fs::File::create(inner.join("sparse")).unwrap();
        sparse.set_len(3 << 20).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o555)).unwrap();
    }
    tree(&folder.path("from"))
}

/// Asserts that each file that looks complete equals its source. Returns the number of entries.
fn assert_nothing_half_written(to: &Path, expected: &Tree) -> usize {
    if !to.exists() {
        return 0;
    }
    let is = tree(to);
    for (name, facts) in &is {
        if facts.mode & 0o170_000 == 0o100_000 && facts.mode != UNFINISHED {
            assert!(facts.contents == expected[name].contents, "{name:?}: {facts:?}");
            assert_eq!(facts.modified, expected[name].modified, "{name:?}");
            assert_eq!(facts.attributes, expected[name].attributes, "{name:?}");
        }
    }
    is.len()
}

#[test]
fn killed_and_completed() {
    let mut random = Random::new(3);
    for folder in [Folder::new(), Folder::in_memory()] {
        let (from, to) = (folder.path("from"), folder.path("to"));
        let expected = make(&folder);
        let mut killed = 0;
        for round in 0..12 {
            let letters = ["a", "ak", "au"][round % 3];
            let child = children::command(letters, "true", &from, &to).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(2000 + random.below(30_000)));
            killed += u32::from(children::kill(child));
            assert_nothing_half_written(&to, &expected);
            // In some rounds another copy is killed while it completes the remains.
            if round % 4 == 3 {
                continue;
            }
            let mut options = Options::archive();
            options.existing = [Existing::Keep, Existing::Update][round % 2];
            copy_all(&from, &to, &options);
            assert_same(&tree(&to), &expected);
            fs::remove_dir_all(&to).unwrap();
        }
        assert!(killed > 0, "they ended before they were killed");
    }
}

/// Adds entries of the other kinds, which have owners, modes and times of their own.
fn make_others(folder: &Folder) {
    let (from, mut links) = (folder.path("from"), 0);
    let node = |name: &str, kind, device| {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, from.join(name), kind, mode, device).unwrap();
    };
    for number in 0..200 {
        let dir = format!("{}/others{}", number % 4, number % 8);
        folder.dir(&format!("from/{dir}"));
        node(&format!("{dir}/fifo{number}"), FileType::Fifo, 0);
        node(&format!("{dir}/socket{number}"), FileType::Socket, 0);
        if rustix::process::geteuid().is_root() {
            let device = rustix::fs::makedev(1, 3);
            node(&format!("{dir}/null{number}"), FileType::CharacterDevice, device);
        }
        symlink(format!("to{number}"), from.join(format!("{dir}/link{number}"))).unwrap();
        if number % 5 == 0 {
            links += 1;
            let (fifo, name) = (format!("{dir}/fifo{number}"), format!("{links}-fifo"));
            fs::hard_link(from.join(fifo), from.join(name)).unwrap();
            let (link, name) = (format!("{dir}/link{number}"), format!("{links}-link"));
            fs::hard_link(from.join(link), from.join(name)).unwrap();
        }
    }
    for (number, name) in tree(&from).into_keys().rev().enumerate() {
        let path = from.join(name);
        let (is_link, is_dir) = (path.is_symlink(), path.is_dir());
        if rustix::process::geteuid().is_root() {
            let owner = Some([0, 1000, 1001][number % 3]);
            std::os::unix::fs::lchown(&path, owner, owner).unwrap();
        }
        if !is_link && !is_dir {
            let mode = [0o644, 0o4755, 0o640, 0o777][number % 4];
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        if !is_link && path.is_file() && number % 3 == 0 {
            set_attribute(&path, "system.posix_acl_access", &some_acl());
        }
        let time = Timespec { tv_sec: 1_000_000_000 + number as i64, tv_nsec: 7 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Copies are killed at random times, into new directories, existing ones, and some that others may write to.
/// The same copy that keeps or updates what is there leads to the result of an undisturbed one.
///
/// `SAKIA_TEST_KILLS` is the number of kills.
#[test]
fn entries_of_every_kind_are_completed() {
    let folder = Folder::in_memory();
    make(&folder);
    make_others(&folder);
    let (from, to) = (folder.path("from"), folder.path("to"));
    let prepare = |place| {
        if place > 0 {
            for name in ["", "0", "1/others1", "2/others2"] {
                let dir = folder.dir(&format!("to/{name}"));
                let mode = if place == 1 { 0o755 } else { 0o777 };
                fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
            }
        }
    };
    let expected = [0, 1, 2].map(|place| {
        prepare(place);
        let begin = Instant::now();
        children::run("a", "true", &from, &to);
        let took = begin.elapsed();
        let expected = tree(&to);
        fs::remove_dir_all(&to).unwrap();
        (expected, took)
    });
    let (mut random, mut killed) = (Random::new(5), 0);
    for round in 0..number("SAKIA_TEST_KILLS", 25) as usize {
        let (expected, took) = &expected[round % 3];
        prepare(round % 3);
        let mut letters = "a";
        // Some are killed once more while they complete a copy.
        for _ in 0..=usize::from(round % 4 == 0) {
            let child = children::command(letters, "true", &from, &to).spawn().unwrap();
            let time = random.below(took.as_micros() as u64);
            std::thread::sleep(Duration::from_micros(time));
            killed += u32::from(children::kill(child));
            letters = ["ak", "au"][round % 2];
        }
        let said = children::run(letters, "true", &from, &to);
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_same(&tree(&to), expected);
        fs::remove_dir_all(&to).unwrap();
    }
    println!("{killed} were killed");
    assert!(killed > 0, "they ended before they were killed");
}

/// An entry that a killed copy created and did not name is removed, even if its name becomes a link to
/// another entry. All others stay.
#[test]
fn what_a_killed_copy_did_not_name_is_removed() {
    const PRIVATE: &str = ".sakia-cp";
    let fifo = |path: &Path| {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    };
    for (others, letters) in
        [(false, "a"), (false, "ak"), (false, "au"), (true, "a"), (true, "ak"), (true, "au")]
    {
        let folder = Folder::in_memory();
        for dir in ["one", "two"] {
            folder.dir(&format!("from/{dir}/inner"));
        }
        // The one that is found first is copied, the other one becomes a link.
        fifo(&folder.path("from/one/fifo"));
        fs::hard_link(folder.path("from/one/fifo"), folder.path("from/two/fifo")).unwrap();
        folder.file("from/two/file", "");
        for dir in ["one", "two"] {
            let private = folder.dir(&format!("to/{dir}/{PRIVATE}"));
            fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).unwrap();
            fifo(&private.join("fifo"));
            fs::create_dir(private.join("inner")).unwrap();
        }
        let kept = |name| format!("to/two/{PRIVATE}/{name}");
        if others {
            // Files are never created there, and of a link the source has none.
            folder.file(&kept("file"), "contents");
            symlink("nothing", folder.path(&kept("link"))).unwrap();
        }
        let said = children::run(letters, "sleep 0.05", &folder.path("from"), &folder.path("to"));
        assert_eq!(said.failures, 0, "{}", said.output);
        if others {
            fs::remove_file(folder.path(&kept("file"))).unwrap();
            fs::remove_file(folder.path(&kept("link"))).unwrap();
            fs::remove_dir(folder.path(&kept(""))).unwrap();
        }
        let (is, expected) = (tree(&folder.path("to")), tree(&folder.path("from")));
        let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&is), names(&expected));
    }
}

/// A source that holds such a directory is copied with it.
#[test]
fn the_private_directory_of_a_source_is_copied() {
    let folder = Folder::in_memory();
    for name in ["from/one/.sakia-cp", "from/two/.sakia-cp", "to/one", "to/two"] {
        folder.dir(name);
    }
    symlink("there", folder.path("from/one/.sakia-cp/link")).unwrap();
    for name in ["from/one", "from/two"] {
        symlink("there", folder.path(&format!("{name}/link"))).unwrap();
    }
    for letters in ["a", "ak", "au"] {
        let said = children::run(letters, "sleep 0.05", &folder.path("from"), &folder.path("to"));
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_same(&tree(&folder.path("to")), &tree(&folder.path("from")));
    }
}

/// Returns contents and kinds, without attributes.
fn contents(tree: Tree) -> Tree {
    without(tree, |facts| {
        (facts.modified, facts.mode) = ((0, 0), facts.mode & 0o170_000);
        facts.attributes.clear();
    })
}

#[test]
fn killed_without_attributes_and_completed() {
    let mut random = Random::new(4);
    for folder in [Folder::new(), Folder::in_memory()] {
        let (from, to) = (folder.path("from"), folder.path("to"));
        make(&folder);
        // Without attributes, names of one file become separate files.
        let whole = folder.path("whole");
        copy_all(&from, &whole, &Options::new());
        let expected = contents(tree(&whole));
        let modes = |root: &Path| -> Vec<_> {
            tree(root).into_iter().map(|(name, facts)| (name, facts.mode)).collect()
        };
        for round in 0..12 {
            let child = children::command("r", "true", &from, &to).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(2000 + random.below(20_000)));
            children::kill(child);
            let mut options = Options::new();
            options.existing = [Existing::Keep, Existing::Update][round % 2];
            copy_all(&from, &to, &options);
            assert_same(&contents(tree(&to)), &expected);
            assert_eq!(modes(&to), modes(&whole));
            fs::remove_dir_all(&to).unwrap();
        }
    }
}

#[test]
fn the_beginning_of_a_file_is_completed_and_nothing_else_is_lost() {
    let folder = Folder::new();
    folder.dir("from/inner");
    for name in ["empty", "begun", "other", "longer", "whole"] {
        folder.file(&format!("from/inner/{name}"), "contents");
    }
    let there =
        [("empty", ""), ("begun", "con"), ("other", "xyz"), ("longer", "contents, and more")];
    let there = there.into_iter().chain([("whole", "contents")]);
    for existing in [Existing::Keep, Existing::Update] {
        for (mode, is_completed) in [(0o1700, true), (0o755, false)] {
            folder.dir("to/inner");
            for (name, text) in there.clone() {
                folder.file(&format!("to/inner/{name}"), text);
            }
            let set_mode = |mode| {
                fs::set_permissions(folder.path("to/inner"), fs::Permissions::from_mode(mode))
            };
            set_mode(mode).unwrap();
            let mut options = Options::new();
            options.existing = existing;
            copy_all(folder.path("from"), folder.path("to"), &options);
            for (name, text) in there.clone() {
                let is = fs::read_to_string(folder.path(&format!("to/inner/{name}"))).unwrap();
                let is_begun = ["empty", "begun"].contains(&name);
                assert_eq!(is, if is_completed && is_begun { "contents" } else { text }, "{name}");
            }
            let mode = fs::metadata(folder.path("to/inner")).unwrap().mode();
            assert_eq!(mode & 0o7777, 0o755);
            fs::remove_dir_all(folder.path("to")).unwrap();
        }
    }
}

#[test]
fn stopped_by_its_token() {
    let folder = Folder::in_memory();
    let (from, to) = (folder.path("from"), folder.path("to"));
    let expected = make(&folder);
    for count in [0, 1, 30, 100, 200] {
        let token = sakia::CancellationToken::new();
        let (seen, stop) = (AtomicU64::new(0), token.clone());
        let progress = Progress::new().on_entry(move |_, _| {
            if seen.fetch_add(1, Ordering::Relaxed) == count {
                stop.cancel();
            }
        });
        let report = runtime().block_on(async {
            let copier = Copier::new(Options::archive()).with_token(token);
            copier.copy(&from, &to, &Arc::new(progress)).await.unwrap()
        });
        assert!(report.is_stopped && !report.is_complete());
        assert!(report.counts.entries() < expected.len() as u64, "{report:#?}");
        assert_nothing_half_written(&to, &expected);
        let is_marked = |facts: &crate::support::Facts| facts.mode == UNFINISHED;
        assert!(!tree(&to).values().any(is_marked), "incomplete files are removed");
        let mut options = Options::archive();
        options.existing = Existing::Keep;
        copy_all(&from, &to, &options);
        assert_same(&tree(&to), &expected);
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, 0o755);
        fs::remove_dir_all(&to).unwrap();
    }
}
