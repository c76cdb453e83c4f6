//! Several entries of a tree that use the same file: by its other names, through links, in directories that
//! are mounted twice. Each has the contents of one source in the end, as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::time::{ClockId, clock_gettime};
use sakia_copy::{Existing, Follow, Options, Preserve, Progress, Report, Sparse, copy_tree};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule};
use sakia_testkit::small_fs::SmallFs;

use crate::support::{
    Folder, Random, bytes, copy, copy_all, failure, needs_root, runtime, set_attribute, some_acl,
    tree,
};

/// The number of random trees.
const CASES: u64 = 20;
const DIRECTORIES: [&str; 4] = ["d0", "d1", "d2", "d3"];
const NAMES: [&str; 3] = ["n0", "n1", "n2"];
const SIZES: [usize; 6] = [0, 10, 5000, 140_000, 1_000_000, 2_500_000];

/// Contents: a byte, and how often it occurs.
type Contents = (u8, usize);

/// A tree to copy, and what is at the place of its copy.
struct Trees {
    folder: Folder,
    random: Random,
    /// The number of files so far: each has a byte of its own.
    files: u8,
}

impl Trees {
    fn new(seed: u64) -> Self {
        let folder = if seed.is_multiple_of(2) { Folder::new() } else { Folder::in_memory() };
        let mut trees = Self { folder, random: Random::new(seed), files: 0 };
        for directory in DIRECTORIES {
            trees.folder.dir(&format!("from/{directory}"));
        }
        for path in paths("from") {
            if trees.random.below(5) > 0 {
                trees.file(&path);
            }
        }
        trees
    }

    fn file(&mut self, path: &str) {
        self.files += 1;
        let size = SIZES[self.random.below(SIZES.len() as u64) as usize];
        self.folder.file(path, vec![self.files; size]);
    }

    fn some_path(&mut self, root: &str) -> PathBuf {
        let paths: Vec<_> = paths(root).collect();
        let some = &paths[self.random.below(paths.len() as u64) as usize];
        self.folder.path(some)
    }

    fn make_target(&self) {
        for directory in DIRECTORIES {
            self.folder.dir(&format!("to/{directory}"));
        }
    }

    /// Puts files at the place of the copy: other names of each other, and of the sources.
    fn fill_target(&mut self) {
        for path in paths("to") {
            let there = self.folder.path(&path);
            let old = match self.random.below(8) {
                0..=3 => self.some_path("to"),
                4 => self.some_path("from"),
                5 => {
                    self.file(&path);
                    continue;
                }
                _ => continue,
            };
            // The other name may be missing.
            if fs::hard_link(old, &there).is_err() {
                self.file(&path);
            }
        }
    }

    /// Adds links from the source to files and directories of the copy.
    fn add_links(&mut self) {
        for (number, place) in DIRECTORIES.iter().enumerate() {
            let to = match self.random.below(2) {
                0 => self.some_path("to"),
                _ => self.folder.path(&format!("to/{place}")),
            };
            let directory = DIRECTORIES[self.random.below(4) as usize];
            symlink(to, self.folder.path(&format!("from/{directory}/link{number}"))).unwrap();
        }
    }

    fn options(&mut self) -> Options {
        let mut options = Options::new();
        options.force = self.random.below(4) == 0;
        options.existing = match self.random.below(6) {
            0 => Existing::Update,
            1 => Existing::Keep,
            _ => Existing::Overwrite,
        };
        options.sparse = if self.random.below(6) == 0 { Sparse::Always } else { Sparse::Auto };
        options.preserve = match self.random.below(6) {
            0 => Preserve::ALL,
            _ => Preserve::NONE,
        };
        options.preserve.timestamps |= self.random.below(3) == 0;
        // Many small reads.
        options.buffer = if self.random.below(2) == 0 { 4096 } else { Options::BUFFER };
        options
    }
}

fn paths(root: &str) -> impl Iterator<Item = String> {
    let below = move |directory| NAMES.map(|name| format!("{root}/{directory}/{name}"));
    DIRECTORIES.into_iter().flat_map(below)
}

/// Returns the contents and the inode of each file.
fn look(root: &Path) -> BTreeMap<PathBuf, (Contents, u64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let path = root.join(&relative);
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            left.extend(names.map(|name| relative.join(name)));
        } else if stat.is_file() {
            let bytes = fs::read(&path).unwrap();
            let first = bytes.first().copied().unwrap_or(0);
            assert!(bytes.iter().all(|byte| *byte == first), "{relative:?} has mixed contents");
            found.insert(relative, ((first, bytes.len()), stat.ino()));
        }
    }
    found
}

/// Checks that each file has the contents of one of its sources, or its own ones. A source may itself have
/// been written to before it was copied.
#[track_caller]
fn check(folder: &Folder, before: &BTreeMap<PathBuf, (Contents, u64)>, report: &Report) {
    let after = look(folder.root());
    let inode = |path: &Path| before.get(path).map_or(0, |(_, inode)| *inode);
    let mut may: BTreeMap<PathBuf, BTreeSet<Contents>> = BTreeMap::new();
    for (path, (contents, _)) in before {
        may.entry(path.clone()).or_default().insert(*contents);
    }
    loop {
        let mut is_same = true;
        for path in after.keys() {
            let mut all = may.get(path).cloned().unwrap_or_default();
            let count = all.len();
            if let Ok(rest) = path.strip_prefix("to") {
                let source = fs::canonicalize(folder.path("from").join(rest));
                let source = source.ok().and_then(|source| {
                    Some(
                        source.strip_prefix(fs::canonicalize(folder.root()).ok()?).ok()?.to_owned(),
                    )
                });
                all.extend(source.and_then(|source| may.get(&source)).into_iter().flatten());
            }
            let names = before.keys().filter(|name| inode(name) == inode(path) && inode(path) > 0);
            // In a directory that is mounted twice.
            let same = after.iter().filter(|(_, is)| is.1 == after[path].1).map(|(name, _)| name);
            all.extend(names.chain(same).filter_map(|name| may.get(name)).flatten().copied());
            is_same &= all.len() == count;
            may.insert(path.clone(), all);
        }
        if is_same {
            break;
        }
    }
    for (path, (contents, _)) in &after {
        assert!(may[path].contains(contents), "{path:?}: {contents:?} of {may:?}\n{report:#?}");
    }
    for failure in &report.failures {
        let text = failure.to_string();
        let is_meant = ["the source itself", "back to it", "the copy itself", "link to nothing"]
            .iter()
            .any(|meant| text.contains(meant))
            || failure.raw_os_error() == Some(2);
        assert!(is_meant, "{text}");
    }
}

#[test]
fn names_of_existing_files() {
    let mut asides = 0;
    for seed in 0..CASES {
        let mut trees = Trees::new(seed);
        trees.make_target();
        trees.fill_target();
        let options = trees.options();
        let before = look(trees.folder.root());
        let report = copy(trees.folder.path("from"), trees.folder.path("to"), &options);
        check(&trees.folder, &before, &report);
        asides += report.counters.asides;
    }
    println!("{asides} entries were put aside");
}

#[test]
fn links_into_the_copy() {
    for seed in 0..CASES {
        let mut trees = Trees::new(seed);
        trees.make_target();
        if trees.random.below(2) == 0 {
            trees.fill_target();
        }
        trees.add_links();
        let mut options = trees.options();
        options.follow = Follow::Always;
        let before = look(trees.folder.root());
        let report = copy(trees.folder.path("from"), trees.folder.path("to"), &options);
        check(&trees.folder, &before, &report);
    }
}

/// Copies a directory whose entries a file server holds back, beside a link to its copy. Returns the report
/// and what was told of the link; `None`: one worker came to the entries before the other one had its share.
fn copy_a_link_to_what_is_being_filled(
    folder: &Folder,
    source: &Fuse,
    leads: &Fuse,
) -> Option<(Report, String)> {
    let entries = source.hold(Rule::on(Opcode::READDIR));
    let link = leads.hold(Rule::on(Opcode::READDIR));
    let mut options = Options::new();
    options.follow = Follow::Always;
    let (sender, told) = mpsc::channel();
    let failed = sender.clone();
    let progress = Progress::new()
        .on_failure(move |failure| failed.send(failure.to_string()).unwrap())
        .on_entry(move |_, to| sender.send(to.display().to_string()).unwrap());
    let (progress, root) = (Arc::new(progress), folder.root());
    thread::scope(|scope| {
        let copied = scope.spawn(|| {
            let copied = copy_tree(root.join("from"), root.join("to"), &options, &progress);
            runtime().block_on(copied).unwrap()
        });
        let deadline = Instant::now() + Duration::from_millis(200);
        while entries.held() + link.held() < 2 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let are_both_read = entries.held() + link.held() == 2;
        link.open();
        let of_link =
            are_both_read.then(|| told.iter().find(|text| text.contains("link")).unwrap());
        entries.open();
        Some((copied.join().unwrap(), of_link?))
    })
}

/// A source is a directory of the copy that is created and still without its entries.
#[test]
fn a_link_to_a_directory_that_is_being_filled() {
    for _ in 0..100 {
        let folder = Folder::new();
        let filled = folder.path("to/filled");
        let source = available!(Fuse::builder().file("file", bytes(10, 1)).mount());
        let leads = available!(Fuse::builder().link("link", &filled).mount());
        folder.dir("from");
        symlink(source.path(), folder.path("from/filled")).unwrap();
        symlink(leads.path(), folder.path("from/leads")).unwrap();
        let tried = copy_a_link_to_what_is_being_filled(&folder, &source, &leads);
        let Some((report, of_link)) = tried else { continue };
        assert!(of_link.contains("the copy itself"), "{of_link}");
        assert_eq!(report.counts.failures, 1, "{report:#?}");
        assert!(!folder.path("to/leads/link").exists());
        assert_eq!(fs::read(filled.join("file")).unwrap(), bytes(10, 1));
        return;
    }
    panic!("the workers never shared the two directories");
}

/// A directory that is mounted at another place, until it is dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn directories_that_are_mounted_twice() {
    needs_root!();
    for seed in 0..CASES {
        let mut trees = Trees::new(seed);
        trees.make_target();
        // Two directories of the copy are one, or one of them is a directory of the source.
        let from = if trees.random.below(3) == 0 { "from/d0" } else { "to/d0" };
        let place = trees.folder.path(&format!("to/d{}", 1 + trees.random.below(3)));
        if let Err(error) = mount_bind(trees.folder.path(from), &place) {
            sakia_testkit::skip!("bind mounts: {error}");
        }
        let _bound = Bound(place);
        if trees.random.below(2) == 0 {
            trees.fill_target();
        }
        let options = trees.options();
        let before = look(trees.folder.root());
        let report = copy(trees.folder.path("from"), trees.folder.path("to"), &options);
        check(&trees.folder, &before, &report);
    }
}

/// Waits until files that change have a later time than those of the test, by the coarse clock, too.
fn await_later_times(folder: &Folder) {
    let stat = fs::metadata(folder.file("early", "")).unwrap();
    let is_earlier = || {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        (stat.ctime(), stat.ctime_nsec()) < (now.tv_sec, now.tv_nsec)
    };
    while !is_earlier() {
        std::thread::yield_now();
    }
}

/// An existing file that has just appeared may be one that this copy makes.
#[test]
fn a_file_that_appears_meanwhile_is_overwritten_at_the_end() {
    let folder = Folder::new();
    let (from, to) = (folder.dir("from/inner"), folder.dir("to/inner"));
    for name in ["a", "b"] {
        fs::write(from.join(name), name.repeat(200_000)).unwrap();
    }
    let place = to.clone();
    let appear = move |path: &Path, _: &Path| {
        let other = if path.ends_with("a") { "b" } else { "a" };
        if !place.join(other).exists() {
            fs::write(place.join(other), "other").unwrap();
        }
    };
    await_later_times(&folder);
    let progress = Arc::new(Progress::new().on_entry(appear));
    let mut options = Options::new();
    options.limit = 1;
    let copied = copy_tree(folder.path("from"), folder.path("to"), &options, &progress);
    let report = sakia::block_on(copied).unwrap();
    assert!(report.is_complete(), "{report:#?}");
    assert_eq!((report.counts.files, report.counts.skipped), (2, 0));
    assert!(report.counters.asides >= 1);
    for name in ["a", "b"] {
        assert_eq!(fs::read_to_string(to.join(name)).unwrap(), name.repeat(200_000));
    }
}

/// Its directories are completed after it.
#[test]
fn directories_wait_for_what_was_put_aside() {
    let folder = Folder::new();
    let source = folder.dir("from/inner/deep");
    // Most files of a directory come before its directories.
    for number in 0..200 {
        folder.file(&format!("from/first-{number}"), "contents");
    }
    symlink(folder.path("to/late"), source.join("link")).unwrap();
    let to = folder.path("to");
    let place = to.clone();
    let appear = move |_: &Path, _: &Path| {
        if !place.join("late").exists() {
            fs::write(place.join("late"), "late").unwrap();
        }
    };
    await_later_times(&folder);
    let progress = Arc::new(Progress::new().on_entry(appear));
    let mut options = Options::archive();
    (options.limit, options.follow) = (1, Follow::Always);
    let copied = copy_tree(folder.path("from"), &to, &options, &progress);
    let report = sakia::block_on(copied).unwrap();
    assert!(report.is_complete(), "{report:#?}");
    assert_eq!(report.counters.asides, 1);
    assert_eq!(fs::read_to_string(to.join("inner/deep/link")).unwrap(), "late");
    for directory in ["", "inner", "inner/deep"] {
        let [is, was] =
            [&to, &folder.path("from")].map(|root| fs::metadata(root.join(directory)).unwrap());
        assert_eq!((is.mode(), is.mtime_nsec()), (was.mode(), was.mtime_nsec()), "{directory}");
    }
}

/// A copy of new files puts nothing aside, whatever the age of the sources.
#[test]
fn new_copies_put_nothing_aside() {
    for seed in 0..5 {
        let trees = Trees::new(seed);
        let report = copy_all(trees.folder.path("from"), trees.folder.path("to"), &Options::new());
        assert_eq!(report.counters.asides, 0);
    }
}

/// Otherwise a directory that the copy makes would be copied into itself, again and again.
#[test]
fn a_copy_is_not_copied_into_itself_through_a_link() {
    // A small file system: it must end in any case.
    let small = available!(SmallFs::tmpfs(2 << 20));
    for (place, has_acl) in [("to", false), ("to/inner", false), ("to", true)] {
        let folder = Folder::below(small.path());
        folder.dir("from/inner");
        folder.file("from/inner/file", "contents");
        let to = folder.dir("to");
        if has_acl {
            set_attribute(&to, "system.posix_acl_default", &some_acl());
        }
        folder.dir("to/inner");
        folder.file("to/inner/old", "old");
        symlink(folder.path(place), folder.path("from/inner/link")).unwrap();
        let mut options = Options::new();
        options.follow = Follow::Always;
        let report = copy(folder.path("from"), &to, &options);
        assert_eq!(fs::read_to_string(to.join("inner/file")).unwrap(), "contents");
        assert!(failure(&report).contains("created inside the source"), "{report:#?}");
        let found = tree(&to);
        assert!(!found.keys().any(|path| path.ends_with("link/link")), "{:?}", found.keys());
    }
}

/// A copy recognizes its own directories, even if others look alike: they have the same mode, and changed
/// after the copy's begin.
#[test]
fn a_source_that_looks_like_an_unfinished_copy() {
    for _ in 0..20 {
        let folder = Folder::in_memory();
        folder.dir("from/marked");
        folder.file("from/marked/file", "contents");
        folder.dir("to");
        // Its time is that of the clock's last step, as is the begin of the copy.
        let marked = Permissions::from_mode(0o1700);
        fs::set_permissions(folder.path("from/marked"), marked).unwrap();
        copy_all(folder.path("from"), folder.path("to"), &Options::new());
        let mut options = Options::new();
        options.follow = Follow::Always;
        copy_all(folder.path("from"), folder.path("followed"), &options);
    }
}
