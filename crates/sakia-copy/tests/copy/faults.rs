//! File systems that are full, refuse or fail, and sources that change during the copy.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{FileType, OFlags};
use rustix::mount::{MountFlags, mount_remount};
use sakia_copy::{Options, Sparse};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_testkit::small_fs::SmallFs;

use crate::children::{Nobody, give_to_nobody};
use crate::support::{
    Folder, Random, assert_same, attributes, bytes, copy, copy_all, failure, needs_root,
    set_attribute, tree,
};
use crate::tree::make_node;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Copies a tree that does not fit, and returns the number of files with contents.
fn fill(from: &Path, small: &Path, options: &Options) -> usize {
    let (to, expected) = (small.join("to"), tree(from));
    let report = copy(from, &to, options);
    assert!(report.is_stopped, "{report:#?}");
    let is_full = |failure: &sakia_copy::Failure| failure.raw_os_error() == Some(ENOSPC);
    // The stop for that reason does not count as a failure.
    assert!(report.counts.failures > 0 && report.failures.iter().all(is_full), "{report:#?}");
    // At most one failure per entry in progress.
    assert!(report.counts.failures <= Options::LIMIT as u64, "{report:#?}");
    let is = tree(&to);
    let files: Vec<_> =
        is.iter().filter(|(_, facts)| facts.mode & 0o170_000 == 0o100_000).collect();
    for (name, facts) in &files {
        assert!(facts.contents == expected[*name].contents, "{name:?} is half-written");
        assert_eq!(facts.mode, expected[*name].mode, "{name:?}");
    }
    assert_eq!(report.counts.files, files.len() as u64);
    files.len()
}

#[test]
fn a_full_file_system_ends_the_copy() {
    let folder = Folder::new();
    for number in 0..100 {
        folder.dir(&format!("from/{}", number % 5));
        let len = if number % 10 == 3 { 1_500_000 } else { 60_000 };
        folder.file(&format!("from/{}/{number}", number % 5), bytes(len, number));
    }
    for options in [Options::new(), Options::archive()] {
        for small in [SmallFs::tmpfs(6 << 20), SmallFs::ext4(6 << 20)] {
            let small = available!(small);
            assert!(fill(&folder.path("from"), small.path(), &options) > 0);
        }
    }
}

#[test]
fn a_file_system_without_inodes_ends_the_copy() {
    let folder = Folder::new();
    for number in 0..3000 {
        folder.dir(&format!("from/{}", number % 5));
        folder.file(&format!("from/{}/{number}", number % 5), "");
    }
    let small = available!(SmallFs::ext4(1 << 20));
    assert!(fill(&folder.path("from"), small.path(), &Options::new()) > 0);
}

/// Attributes that do not fit are counted as lost; a full file system is another case.
#[test]
fn attributes_that_do_not_fit_are_counted() {
    let folder = Folder::in_memory();
    let from = folder.dir("from");
    let long = bytes(20_000, 1);
    let set = |path: &Path| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "user.long", &long, flags)
    };
    if let Err(errno) = set(&folder.file("from/a", "text")) {
        sakia_testkit::skip!("long attributes of files in memory: {errno}");
    }
    folder.file("from/b", "text");
    let small = available!(SmallFs::ext4(4 << 20));
    let to = small.path().join("to");
    let report = copy_all(&from, &to, &Options::archive());
    assert_eq!((report.counts.files, report.counters.attributes_lost), (2, 1));
    assert_eq!(fs::read_to_string(to.join("a")).unwrap(), "text");
    // On another file system they are copied, however long they are.
    copy_all(&from, folder.path("to"), &Options::archive());
    assert_eq!(attributes(&folder.path("to/a"))[&b"user.long"[..]], long);
}

/// The directories were not accessed since the mount, so no cache knows them.
#[test]
fn directories_that_no_cache_knows() {
    let small = available!(SmallFs::ext4(8 << 20));
    let from = small.path().join("from");
    for number in 0..20 {
        let inner = from.join(number.to_string()).join("inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("file"), bytes(5000, number)).unwrap();
    }
    let folder = Folder::new();
    let expected = tree(&from);
    for options in [Options::new(), Options::archive()] {
        // Drops names from the cache.
        mount_remount(small.path(), MountFlags::empty(), "").unwrap();
        let report = copy_all(&from, folder.path("to"), &options);
        assert!(report.counters.uncached_opens > 0, "they were known: {report:#?}");
    }
    assert_same(&tree(&folder.path("to")), &expected);
}

/// A slow disk gets many requests at once, for names and for the entries of a directory.
#[test]
fn what_takes_long_is_waited_for_by_others() {
    const FILES: usize = 1200;
    let name = |number: usize| format!("{number:060}");
    let fuse = (0..FILES)
        .fold(Fuse::builder(), |fuse, number| fuse.file(&name(number), pattern(number + 1)));
    let fuse = available!(fuse.mount());
    for opcode in [Opcode::LOOKUP, Opcode::READDIR] {
        fuse.script(Rule::on(opcode).delay(Duration::from_millis(1)));
    }
    let folder = Folder::new();
    let to = folder.path("to");
    let report = copy_all(fuse.path(), &to, &Options::new());
    let counters = &report.counters;
    assert!(counters.ring_opens > 0, "{report:#?}");
    assert!(counters.ring_opens < counters.uncached_opens, "none was tried: {report:#?}");
    assert!(counters.pool_lists > 0, "{report:#?}");
    assert_eq!(report.counts.files, FILES as u64);
    for number in 0..FILES {
        assert!(fs::read(to.join(name(number))).unwrap() == pattern(number + 1));
    }
}

/// A copy by an unprivileged user copies everything possible, and reports each failure.
#[test]
fn what_must_not_be_read_or_written() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    for name in ["from/open", "from/closed", "to/full"] {
        folder.dir(name);
    }
    set_mode(&folder.file("from/secret", "secret"), 0o600);
    folder.file("from/closed/file", "x");
    set_mode(&folder.path("from/closed"), 0o700);
    set_mode(&folder.file("from/open/set-id", "x"), 0o6755);
    let read_only = folder.file("from/open/read-only", "read");
    set_attribute(&read_only, "user.test", b"value");
    set_mode(&read_only, 0o444);
    set_mode(&folder.path("from/open"), 0o555);
    folder.dir("from/full");
    folder.file("from/full/new", "x");
    give_to_nobody(&folder.path("to"));
    set_mode(&folder.path("to"), 0o755);
    for work in ["r", "a"] {
        let to = folder.path("to");
        let said = nobody.run(work, &folder.path("from"), &to);
        // With attributes, those of the other user's directory fail, too.
        let expected = if work == "a" { 4 } else { 3 };
        assert_eq!(said.failures, expected, "{}", said.output);
        for name in ["from/secret", "from/closed", "to/full/new"] {
            assert!(said.output.contains(name), "{name}: {}", said.output);
        }
        assert_eq!(fs::read_to_string(to.join("open/read-only")).unwrap(), "read");
        let modes = ["set-id", "read-only", "."]
            .map(|name| fs::metadata(to.join("open").join(name)).unwrap().mode() & 0o7777);
        assert_eq!(modes, [0o755, 0o444, 0o555]);
        let is_there = attributes(&to.join("open/read-only")).contains_key(&b"user.test"[..]);
        assert_eq!(is_there, work == "a");
        assert!(!to.join("secret").exists() && !to.join("full/new").exists());
        set_mode(&to.join("open"), 0o755);
        let said = nobody.run("remove", &to.join("open"), &to);
        assert_eq!((said.failures, said.entries), (0, 3), "{}", said.output);
    }
    // The root of the tree cannot be removed, nor the entries of `full`, which belongs to another user.
    folder.file("to/full/kept", "");
    let said = nobody.run("remove", &folder.path("to"), &folder.path("to"));
    assert!(said.failures >= 3, "{}", said.output);
    assert!(folder.path("to/full/kept").exists());
}

/// A directory of files, of which one cannot be read.
#[test]
fn errors_of_a_disk() {
    let len = 700_000;
    let fuse = Fuse::builder().file("bad", pattern(len)).file("good", pattern(len));
    let fuse = available!(fuse.file("small", pattern(100)).mount());
    let folder = Folder::new();
    for (opcode, skip) in [(Opcode::READ, 0), (Opcode::READ, 2), (Opcode::OPEN, 0)] {
        fuse.script(Rule::on(opcode).file("bad").skip(skip).errno(EIO));
        let to = folder.path("to");
        let report = copy(fuse.path(), &to, &Options::new());
        assert!(failure(&report).contains("bad"), "{report:#?}");
        assert_eq!(report.failures[0].raw_os_error(), Some(EIO));
        assert_eq!(fs::read_dir(&to).unwrap().count(), 2);
        assert!(fs::read(to.join("good")).unwrap() == pattern(len));
        assert!(fs::read(to.join("small")).unwrap() == pattern(100));
        fuse.release();
        fs::remove_dir_all(to).unwrap();
    }
}

#[test]
fn errors_of_the_disk_that_is_written_to() {
    let fuse = available!(Fuse::builder().mount());
    let folder = Folder::new();
    folder.dir("from");
    for name in ["bad", "good"] {
        folder.file(&format!("from/{name}"), pattern(600_000));
    }
    for opcode in [Opcode::WRITE, Opcode::CREATE] {
        fuse.script(Rule::on(opcode).file("bad").errno(EIO));
        let report = copy(folder.path("from"), fuse.path(), &Options::new());
        assert!(failure(&report).contains("bad"), "{report:#?}");
        assert!(fuse.content("good") == pattern(600_000));
        assert!(!fuse.join("bad").exists());
        fuse.release();
    }
}

/// The size of a file in `/sys` is a page, and its contents are shorter.
#[test]
fn a_size_that_is_no_length() {
    let from = Path::new("/sys/devices/system/cpu/online");
    let Ok(stat) = from.metadata() else { sakia_testkit::skip!("no files in /sys") };
    let contents = fs::read(from).unwrap();
    assert!(stat.len() > contents.len() as u64);
    let folder = Folder::new();
    for sparse in [Sparse::Auto, Sparse::Always, Sparse::Never] {
        let mut options = Options::new();
        options.sparse = sparse;
        options.verify = true;
        let to = folder.path("to");
        assert_eq!(copy_all(from, &to, &options).counts.bytes, contents.len() as u64);
        assert_eq!(fs::read(&to).unwrap(), contents);
        fs::remove_file(to).unwrap();
    }
}

/// A source that becomes shorter is reported, and the rest is copied.
#[test]
fn a_file_becomes_shorter_while_it_is_read() {
    let len = 2_000_000;
    let builder = Fuse::builder().file("victim", pattern(len)).file("other", pattern(5000));
    let fuse = available!(builder.direct_io(true).attributes_expire(true).mount());
    let folder = Folder::new();
    let (from, to) = (fuse.path().to_owned(), folder.path("to"));
    let gate = fuse.hold(Rule::on(Opcode::READ).file("victim").skip(1));
    let report = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&from, &to, &Options::new()));
        gate.wait_held(1);
        fuse.edit("victim", |contents| contents.truncate(300_000));
        gate.open();
        copying.join().unwrap()
    });
    let text = failure(&report);
    assert!(text.contains("victim") && text.contains("changed"), "{text}");
    assert!(fs::read(to.join("other")).unwrap() == pattern(5000));
}

/// Files that grow, shrink, vanish or become FIFOs and links do not affect other files.
#[test]
fn sources_that_change() {
    let folder = Folder::in_memory();
    let from = folder.dir("from");
    for number in 0..400 {
        folder.dir(&format!("from/{}", number % 7));
        folder.file(&format!("from/{}/{number}", number % 7), bytes(10_000, number));
    }
    let expected = tree(&from);
    let victims: Vec<_> = (0..7).map(|number| from.join(format!("{number}/victim"))).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(5);
            while !is_over.load(Ordering::Relaxed) {
                for victim in &victims {
                    disturb(victim, &mut random);
                }
            }
        });
        // The other thread stops also if this one fails.
        let over = Over(&is_over);
        for round in 0..12 {
            let mut options = if round % 2 == 0 { Options::archive() } else { Options::new() };
            options.sparse = [Sparse::Auto, Sparse::Always, Sparse::Never][round % 3];
            let to = folder.path("to");
            let report = copy(&from, &to, &options);
            for failure in &report.failures {
                // The failure may name the replacement of the victim.
                let name = failure.path().file_stem();
                assert_eq!(name, Some("victim".as_ref()), "{failure}");
            }
            for (name, facts) in expected.iter().filter(|(_, facts)| !facts.contents.is_empty()) {
                assert!(fs::read(to.join(name)).unwrap() == facts.contents, "{name:?}");
            }
            fs::remove_dir_all(to).unwrap();
        }
        drop(over);
    });
}

/// Sets its flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Changes a file, or its kind.
fn disturb(path: &Path, random: &mut Random) {
    match random.below(6) {
        0 | 1 => {
            // The file may be a FIFO by now.
            let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
            if let Ok(mut file) = File::options().write(true).custom_flags(flags).open(path) {
                file.write_all(&bytes(random.below(900_000) as usize, 1)).ok();
                file.set_len(random.below(2_000_000)).ok();
            }
        }
        2 => {
            fs::remove_file(path).ok();
        }
        kind => {
            let other = path.with_extension("other");
            match kind {
                3 => make_node(&other, FileType::Fifo, 0),
                4 => std::os::unix::fs::symlink("nowhere", &other).unwrap(),
                _ => fs::write(&other, bytes(400_000, 2)).unwrap(),
            }
            fs::rename(&other, path).unwrap();
        }
    }
}

/// No name of a file with several names is removed, and no incomplete name looks complete.
#[test]
fn a_full_file_system_leaves_all_names_of_a_file() {
    let folder = Folder::new();
    let from = folder.dir("from");
    let small = available!(SmallFs::tmpfs(2 << 20));
    let to = small.path().join("to");
    fs::create_dir(&to).unwrap();
    for options in [Options::new(), {
        let mut options = Options::archive();
        options.preserve.links = false;
        options
    }] {
        folder.file("from/a", bytes(6 << 20, 1));
        fs::write(to.join("a"), "there before").unwrap();
        fs::hard_link(to.join("a"), to.join("other name")).unwrap();
        let report = copy(&from, &to, &options);
        assert!(report.is_stopped, "{report:#?}");
        let stats = ["a", "other name"].map(|name| fs::metadata(to.join(name)).unwrap());
        assert_eq!(stats[0].ino(), stats[1].ino());
        assert_eq!(stats[0].mode() & 0o7777, 0o1200);
        // When there is room, a later copy completes it under both names.
        folder.file("from/a", "short");
        let mut update = options.clone();
        update.existing = sakia_copy::Existing::Update;
        copy_all(&from, &to, &update);
        for name in ["a", "other name"] {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), "short");
            assert_eq!(fs::metadata(to.join(name)).unwrap().mode() & 0o7777, 0o644);
            fs::remove_file(to.join(name)).unwrap();
        }
    }
}

/// Directories on other file systems are created, without their contents.
#[test]
fn one_file_system_only() {
    needs_root!();
    let folder = Folder::new();
    let small = available!(SmallFs::tmpfs(1 << 20));
    folder.dir("from/inner/mounted");
    folder.file("from/inner/a", "text");
    fs::create_dir(small.path().join("deep")).unwrap();
    fs::write(small.path().join("b"), "text").unwrap();
    fs::set_permissions(small.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let mounted = folder.path("from/inner/mounted");
    rustix::mount::mount_bind(small.path(), &mounted).unwrap();
    let mut options = Options::archive();
    options.one_file_system = true;
    for dry_run in [true, false] {
        options.dry_run = dry_run;
        let counts = copy(folder.path("from"), folder.path("to"), &options).counts;
        assert_eq!((counts.directories, counts.files, counts.failures), (3, 1, 0), "{dry_run}");
    }
    options.dry_run = false;
    // A directory named by the caller is copied.
    let named = copy(&mounted, folder.path("named"), &options).counts;
    rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(fs::read_dir(folder.path("to/inner/mounted")).unwrap().count(), 0);
    assert_eq!(fs::metadata(folder.path("to/inner/mounted")).unwrap().mode() & 0o7777, 0o711);
    assert_eq!((named.directories, named.files), (2, 1));
}
