//! Each system call of a copy fails once, with each of its faults; then several at random.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::io::Errno;

use super::sim::{self, Fault, Plan};
use crate::{Copier, Existing, Options, Progress, Report, copy_tree, remove_tree};

/// The modes of an incomplete file and an incomplete directory.
const UNFINISHED: (u32, u32) = (0o101_200, 0o041_700);
/// One worker, so that the order of all calls is fixed.
const LIMIT: usize = 1;

/// A private directory of a test.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes it with a tree to be copied: `from`.
    pub(super) fn new(name: &str) -> Self {
        Self::below(&std::env::temp_dir(), name)
    }

    /// Makes it on a file system in memory, if the machine has one.
    pub(super) fn in_memory(name: &str) -> Self {
        let place = Path::new("/dev/shm");
        if place.is_dir() { Self::below(place, name) } else { Self::new(name) }
    }

    fn below(place: &Path, name: &str) -> Self {
        let path = place.join(format!("sakia-sim-{name}-{}", std::process::id()));
        fs::remove_dir_all(&path).ok();
        let from = path.join("from");
        fs::create_dir_all(from.join("inner/deep")).unwrap();
        fs::create_dir(from.join("empty")).unwrap();
        fs::write(from.join("file"), "contents").unwrap();
        fs::write(from.join("nothing"), "").unwrap();
        fs::write(from.join("large"), vec![7; 300_000]).unwrap();
        fs::write(from.join("inner/file"), "others").unwrap();
        fs::write(from.join("inner/deep/file"), "more").unwrap();
        let sparse = fs::File::create(from.join("inner/sparse")).unwrap();
        sparse.set_len(200_000).unwrap();
        symlink("nowhere", from.join("inner/link")).unwrap();
        fs::hard_link(from.join("file"), from.join("inner/deep/name")).unwrap();
        let mode = Mode::from_raw_mode(0o640);
        rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, mode, 0).unwrap();
        // If the file system supports them.
        rustix::fs::setxattr(from.join("file"), "user.a", b"b", XattrFlags::empty()).ok();
        fs::set_permissions(from.join("inner"), fs::Permissions::from_mode(0o550)).unwrap();
        Self(path)
    }

    pub(super) fn from(&self) -> PathBuf {
        self.0.join("from")
    }

    /// Returns the place of the copy, after removing the previous copy.
    pub(super) fn to(&self) -> PathBuf {
        let to = self.0.join("to");
        fs::remove_dir_all(&to).ok();
        to
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// The compared facts about an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    mode: u32,
    contents: Vec<u8>,
    /// `None` for entries whose time is not copied or not their own.
    modified: Option<(i64, i64)>,
    attribute: Vec<u8>,
}

type Tree = BTreeMap<PathBuf, Facts>;

fn tree(root: &Path, is_archive: bool) -> Tree {
    let mut found = Tree::new();
    let mut left = vec![PathBuf::new()];
    while let Some(relative) = left.pop() {
        let path = root.join(&relative);
        let path = if relative.as_os_str().is_empty() { root } else { &path };
        let Ok(stat) = fs::symlink_metadata(path) else { continue };
        if stat.is_dir() {
            let entries = fs::read_dir(path).unwrap();
            left.extend(entries.map(|entry| relative.join(entry.unwrap().file_name())));
        }
        found.insert(relative, facts(path, &stat, is_archive));
    }
    found
}

fn facts(path: &Path, stat: &Metadata, is_archive: bool) -> Facts {
    let mut attribute = [0; 16];
    let len = rustix::fs::lgetxattr(path, "user.a", &mut attribute).unwrap_or(0);
    Facts {
        mode: stat.mode(),
        contents: match stat.file_type() {
            kind if kind.is_file() => fs::read(path).unwrap(),
            kind if kind.is_symlink() => {
                fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
            }
            kind => vec![u8::from(kind.is_fifo())],
        },
        modified: is_archive.then(|| (stat.mtime(), stat.mtime_nsec())),
        attribute: if is_archive { attribute[..len].to_vec() } else { Vec::new() },
    }
}

pub(super) fn options(is_archive: bool) -> Options {
    let mut options = if is_archive { Options::archive() } else { Options::new() };
    options.limit = LIMIT;
    options
}

pub(super) fn copy(from: &Path, to: &Path, options: &Options) -> Report {
    let progress = Arc::new(Progress::new());
    sakia::block_on(copy_tree(from, to, options, &progress)).unwrap()
}

/// Checks that a copy under this plan leaves nothing half-written and reports all missing entries, and that
/// another copy completes it.
fn check(folder: &Folder, expected: &Tree, is_archive: bool, plan: Plan) {
    let (from, to) = (folder.from(), folder.to());
    let (report, calls) = sim::run(Some(plan), || copy(&from, &to, &options(is_archive)));
    let case = match plan {
        Plan::One(which, _) | Plan::OneAndRemovals(which, _) => {
            format!("{plan:?} of {}", calls.get(which).unwrap_or(&"none"))
        }
        Plan::Random { .. } | Plan::Refused(..) | Plan::Killed(_) => format!("{plan:?}"),
    };
    let is = tree(&to, is_archive);
    let told = |path: &Path| {
        let failures = report.failures.iter().map(|failure| failure.path());
        let mut names =
            failures.filter_map(|at| at.strip_prefix(&from).or(at.strip_prefix(&to)).ok());
        report.is_stopped || names.any(|name| path.starts_with(name))
    };
    for (path, facts) in expected {
        let found = is.get(path);
        if found != Some(facts) {
            assert!(told(path), "{case}: {path:?} is {found:?}, not told in {report:#?}");
        }
        let is_file = facts.mode & 0o170_000 == 0o100_000;
        if let Some(found) = found
            && is_file
            && found.contents != facts.contents
        {
            let above = path.ancestors().skip(1).map(|above| is[above].mode);
            let is_marked = found.mode == UNFINISHED.0
                || above.into_iter().any(|mode| mode == UNFINISHED.1)
                    && facts.contents.starts_with(&found.contents);
            assert!(is_marked, "{case}: {path:?} is half-written: {:o}", found.mode);
        }
    }
    let is_harmless = match plan {
        Plan::One(which, fault) => {
            calls.get(which).is_none_or(|call| sim::faults(call).0.contains(&fault))
        }
        _ => false,
    };
    assert!(!is_harmless || report.is_complete(), "{case}: {report:#?}");
    let update = Options { existing: Existing::Update, ..options(is_archive) };
    let again = copy(&from, &to, &update);
    assert!(again.is_complete(), "{case}: again: {again:#?}");
    let is = tree(&to, is_archive);
    for (path, facts) in expected {
        // A link or a FIFO has no mark, if even its removal failed.
        let is_marked = [0o100_000, 0o040_000].contains(&(facts.mode & 0o170_000));
        if is.contains_key(path) && !is_marked && !matches!(plan, Plan::One(..)) && told(path) {
            continue;
        }
        assert_eq!(is.get(path), Some(facts), "{case}: again: {path:?}");
    }
}

/// Returns the result of a copy without faults.
fn expected(folder: &Folder, is_archive: bool) -> (Tree, Vec<&'static str>) {
    let (from, to) = (folder.from(), folder.to());
    let (report, calls) = sim::run(None, || copy(&from, &to, &options(is_archive)));
    assert!(report.is_complete(), "{report:#?}");
    let copied = tree(&to, is_archive);
    if is_archive {
        assert_eq!(copied, tree(&from, is_archive));
    }
    (copied, calls)
}

fn each_call_fails(name: &str, is_archive: bool) {
    let folder = Folder::new(name);
    let (expected, calls) = expected(&folder, is_archive);
    for (number, call) in calls.iter().enumerate() {
        let (harmless, others) = sim::faults(call);
        for &fault in harmless.iter().chain(others) {
            check(&folder, &expected, is_archive, Plan::One(number, fault));
        }
        for &fault in others {
            check(&folder, &expected, is_archive, Plan::OneAndRemovals(number, fault));
        }
    }
}

#[test]
fn each_call_of_a_copy_fails() {
    each_call_fails("one", false);
}

#[test]
fn each_call_of_an_exact_copy_fails() {
    each_call_fails("archive", true);
}

#[test]
fn many_calls_fail() {
    for is_archive in [false, true] {
        let folder = Folder::new(if is_archive { "many-archive" } else { "many" });
        let (expected, _) = expected(&folder, is_archive);
        for seed in 0..300 {
            let one_in = [3, 10, 30, 100][seed as usize % 4];
            check(&folder, &expected, is_archive, Plan::Random { one_in, seed });
        }
    }
}

/// Calls that write contents.
const TRANSFERS: [&str; 3] = ["pwrite", "copy_file_range", "sendfile"];

/// The copy is stopped at each of its calls: at most one more part of contents is written, incomplete files
/// are removed, and a later copy completes the rest.
#[test]
fn a_copy_stops_at_each_call() {
    let folder = Folder::new("stopped");
    let bytes: Vec<u8> = (0..5 << 19).map(|index| (index / 4096) as u8 | 1).collect();
    fs::write(folder.from().join("huge"), bytes).unwrap();
    let sparse = fs::File::options().write(true).open(folder.from().join("inner/sparse")).unwrap();
    sparse.set_len(2 << 20).unwrap();
    sparse.write_all_at(&vec![5; 3 << 19], 1 << 18).unwrap();
    let refused: [&'static [&'static str]; 3] =
        [&[], &["copy_file_range"], &["copy_file_range", "sendfile"]];
    for (is_archive, way) in [(true, 0), (false, 0), (false, 1), (false, 2)] {
        let plan = Some(Plan::Refused(refused[way], Errno::NOSYS));
        let from = folder.from();
        let to = folder.to();
        let (report, calls) = sim::run(plan, || copy(&from, &to, &options(is_archive)));
        assert!(report.is_complete(), "{report:#?}");
        let expected = tree(&to, is_archive);
        assert!(calls.iter().filter(|call| TRANSFERS.contains(call)).count() > 8, "{calls:?}");
        for number in 0..calls.len() {
            let to = folder.to();
            let token = sakia::CancellationToken::new();
            let stop = token.clone();
            let copier = Copier::new(options(is_archive)).with_token(token.clone());
            let progress = Arc::new(Progress::new());
            let copy_some = || sakia::block_on(copier.copy(&from, &to, &progress)).unwrap();
            let (report, calls) = sim::run_until(plan, number, move || stop.cancel(), copy_some);
            // The sizes of parts, and so their number, depend on their duration.
            let Some(rest) = calls.get(number..).filter(|_| token.is_canceled()) else { continue };
            let written = rest.iter().filter(|call| TRANSFERS.contains(call)).count();
            assert!(written <= 1, "{number}: {rest:?}");
            assert!(report.is_stopped, "{number}: {report:#?}");
            assert_eq!((report.counts.failures, report.failures.len()), (0, 0), "{report:#?}");
            let left = tree(&to, is_archive);
            for (path, facts) in &left {
                assert_ne!(facts.mode, UNFINISHED.0, "{number}: {path:?} was begun, and is left");
                if facts.mode & 0o170_000 == 0o100_000 {
                    assert!(facts.contents == expected[path].contents, "{number}: {path:?}");
                }
            }
            let bytes: u64 = left
                .values()
                .filter(|facts| facts.mode & 0o170_000 == 0o100_000)
                .map(|facts| facts.contents.len() as u64)
                .sum();
            if !is_archive {
                assert_eq!(report.counts.bytes, bytes, "{number}: removed files are not counted");
            }
            let mut again = options(is_archive);
            again.existing = if number % 2 == 0 { Existing::Keep } else { Existing::Update };
            assert!(copy(&from, &to, &again).is_complete(), "{number}");
            assert!(tree(&to, is_archive) == expected, "{number}: it is not completed");
        }
    }
}

/// A stopped comparison has found no difference.
#[test]
fn a_comparison_stops_at_each_call() {
    let folder = Folder::new("compared");
    let (from, to) = (folder.from(), folder.to());
    let options = Options { verify: true, ..options(false) };
    let (report, calls) = sim::run(None, || copy(&from, &to, &options));
    assert!(report.is_complete(), "{report:#?}");
    for number in 0..calls.len() {
        let (to, token) = (folder.to(), sakia::CancellationToken::new());
        let (stop, progress) = (token.clone(), Arc::new(Progress::new()));
        let copier = Copier::new(options.clone()).with_token(token.clone());
        let copy_some = || sakia::block_on(copier.copy(&from, &to, &progress)).unwrap();
        let (report, _) = sim::run_until(None, number, move || stop.cancel(), copy_some);
        assert_eq!(report.is_stopped, token.is_canceled(), "{number}: {report:#?}");
        assert_eq!(report.counts.failures, 0, "{number}: {report:#?}");
    }
}

/// A file server may cancel a request: that is a failure, unlike the stop of a copy.
#[test]
fn a_cancellation_by_a_file_system_is_a_failure() {
    let folder = Folder::new("canceled");
    let plan = Plan::Refused(&["pwrite"], Errno::CANCELED);
    let (report, _) = sim::run(Some(plan), || copy(&folder.from(), &folder.to(), &options(false)));
    assert!(!report.is_stopped && report.counts.failures > 0, "{report:#?}");
    let errno = Some(Errno::CANCELED.raw_os_error());
    assert!(report.failures.iter().all(|failure| failure.raw_os_error() == errno), "{report:#?}");
}

#[test]
fn a_link_that_cannot_be_read_is_not_counted() {
    let folder = Folder::new("unread");
    let plan = Plan::Refused(&["readlinkat"], Errno::IO);
    let (report, _) = sim::run(Some(plan), || copy(&folder.from(), &folder.to(), &options(false)));
    assert_eq!((report.counts.symlinks, report.counts.failures), (0, 1), "{report:#?}");
}

/// Two copies are killed at any call, the second while it completes the first. A last copy completes them,
/// and names of one file are names of one copy.
#[test]
fn killed_at_each_call_and_completed() {
    let folder = Folder::new("killed");
    let from = folder.0.join("names");
    fs::create_dir_all(from.join("one")).unwrap();
    fs::create_dir(from.join("two")).unwrap();
    fs::write(from.join("one/a"), "contents").unwrap();
    for name in ["one/b", "two/c"] {
        fs::hard_link(from.join("one/a"), from.join(name)).unwrap();
    }
    let by = |existing, plan| {
        let options = Options { existing, ..options(true) };
        let to = folder.0.join("to");
        sim::run(plan, || copy(&from, &to, &options)).1.len()
    };
    let copied = |to: &Path| {
        let number = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
        let numbers = ["one/a", "one/b", "two/c"].map(number);
        numbers.iter().all(|&is| is == numbers[0]) && tree(to, true) == tree(&from, true)
    };
    let calls = by(Existing::Overwrite, None);
    for existing in [Existing::Keep, Existing::Update] {
        for first in 0..=calls {
            // The second copy is killed near its begin, in its middle and near its end.
            for second in (first % 5..calls).step_by(5) {
                let to = folder.to();
                by(Existing::Overwrite, Some(Plan::Killed(first)));
                by(existing, Some(Plan::Killed(second)));
                by(existing, None);
                assert!(
                    copied(&to),
                    "{existing:?}, killed at {first} and {second}: {:#?}",
                    tree(&to, true)
                );
            }
        }
    }
}

/// Copies a file on two threads, of which one has this plan, or panics at its first call: `None`.
fn copy_on_two(from: &Path, to: &Path, plan: Plan, thread: usize, panics: bool) -> Option<Report> {
    let runtime = sakia::Runtime::builder().threads(2).build().unwrap();
    let copying = async {
        let set = move || async move {
            let panic = || -> () { panic!("as asked for") };
            sim::set(Some(plan), panics.then(|| Box::new(panic) as Box<dyn FnOnce()>));
        };
        sakia::spawn_on(thread, set).await.unwrap();
        copy_tree(from, to, &Options::new(), &Arc::new(Progress::new())).await.unwrap()
    };
    let copying = std::panic::AssertUnwindSafe(|| runtime.block_on(copying));
    let report = std::panic::catch_unwind(copying).ok();
    drop(runtime);
    sim::set(None, None);
    report
}

/// If one of two workers cannot write its ranges of a shared file, the file fails once.
#[test]
fn a_failure_of_either_worker_fails_a_shared_file_once() {
    let folder = Folder::new("shared");
    let memory = Folder(format!("/dev/shm/sakia-sim-shared-{}", std::process::id()).into());
    let device = |path: &Path| fs::metadata(path).map(|stat| stat.dev()).ok();
    if fs::create_dir_all(&memory.0).is_err() || device(&memory.0) == device(&folder.0) {
        sakia_testkit::skip!("two file systems, of which one is in memory");
    }
    let bytes: Vec<u8> = (0..24 << 20).map(|index| (index >> 12) as u8 | 1).collect();
    let (from, to) = (memory.0.join("large"), folder.0.join("copy"));
    fs::write(&from, &bytes).unwrap();
    // Until the file is shared, its contents are sent.
    let refused = Plan::Refused(&["pwrite"], Errno::NOSPC);
    let unasked = Plan::Refused(&["preadv2"], Errno::OPNOTSUPP);
    for thread in [0, 1] {
        for plan in [refused, unasked] {
            let mut helped = 0;
            for _ in 0..500 {
                let report = copy_on_two(&from, &to, plan, thread, false).unwrap();
                helped += report.counters.ranges;
                if plan == refused && report.counts.failures > 0 {
                    assert_eq!(report.counts.failures, 1, "{report:#?}");
                    let failure = &report.failures[0];
                    assert_eq!((failure.operation(), failure.path()), ("write", &*to));
                    assert_eq!(failure.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
                    assert!(!to.exists() && report.counts.bytes == 0, "{report:#?}");
                } else {
                    assert!(report.is_complete(), "{report:#?}");
                    assert_eq!(report.counts.bytes, bytes.len() as u64);
                    assert!(fs::read(&to).unwrap() == bytes);
                }
                fs::remove_file(&to).ok();
                if helped > 2 {
                    break;
                }
            }
            assert!(helped > 0, "one worker did it all");
        }
    }
    let mut panics = 0;
    for thread in [0, 1].repeat(10) {
        // A thread that starts too late makes no call, and does not panic.
        let report = copy_on_two(&from, &to, unasked, thread, true);
        panics += u32::from(report.is_none());
        if let Ok(stat) = fs::metadata(&to) {
            let is_marked = stat.mode() == UNFINISHED.0;
            assert!(is_marked || report.is_some() && fs::read(&to).unwrap() == bytes);
            fs::remove_file(&to).unwrap();
        }
    }
    assert!(panics > 0);
}

/// Every copy within the kernel, except by `sendfile`, may share blocks.
#[test]
fn blocks_are_not_shared_when_that_is_not_wanted() {
    let folder = Folder::new("unshared");
    let mut options = options(true);
    options.reflink = crate::Reflink::Never;
    let to = folder.to();
    let (report, calls) = sim::run(None, || copy(&folder.from(), &to, &options));
    assert!(report.is_complete(), "{report:#?}");
    let shares = |call: &&str| ["copy_file_range", "ioctl_ficlone"].contains(call);
    assert!(!calls.iter().any(shares), "{calls:?}");
    assert!(calls.contains(&"sendfile"), "{calls:?}");
}

/// A kernel without attribute lists has no attributes to lose; one that refuses to list them may have.
#[test]
fn attributes_that_are_not_told() {
    let folder = Folder::new("untold");
    for (errno, is_lost) in [(Errno::NOSYS, false), (Errno::NOTSUP, false), (Errno::PERM, true)] {
        let plan = Plan::Refused(&["flistxattr", "llistxattr"], errno);
        let to = folder.to();
        let (report, calls) = sim::run(Some(plan), || copy(&folder.from(), &to, &options(true)));
        assert!(calls.contains(&"flistxattr"), "{calls:?}");
        assert!(report.is_complete(), "{errno}: {report:#?}");
        assert_eq!(report.counters.attributes_lost > 0, is_lost, "{errno}");
    }
}

/// An access control list, or an owner, that cannot be set is a failure of an entry that is complete
/// otherwise; an attribute only if each is required.
#[test]
fn attributes_that_cannot_be_set() {
    // Of the access control lists: its version, and entries of a tag, permissions and an id.
    const ENTRIES: [(u16, u16, u32); 5] = [
        (1, 6, u32::MAX),
        (2, 6, 1234),
        (4, 4, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 4, u32::MAX),
    ];
    let folder = Folder::new("unset");
    let from = folder.from().join("file");
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let acl = [&2_u32.to_le_bytes()[..], &ENTRIES.map(entry).concat()].concat();
    let set = |name, value: &[u8]| rustix::fs::setxattr(&from, name, value, XattrFlags::empty());
    if set("user.a", b"b").and(set("system.posix_acl_access", &acl)).is_err() {
        sakia_testkit::skip!("attributes of temporary files");
    }
    let is_root = rustix::process::geteuid().is_root();
    let mut all = options(true);
    all.preserve.all_xattrs = true;
    for errno in [Errno::NOTSUP, Errno::PERM, Errno::NOSPC] {
        for options in [&options(true), &all] {
            let plan = Plan::Refused(&["fsetxattr"], errno);
            let (report, _) = sim::run(Some(plan), || copy(&from, &folder.to(), options));
            let operations: Vec<_> = report.failures.iter().map(|one| one.operation()).collect();
            let acl = "set an access control list of";
            let (expected, lost) = match options.preserve.all_xattrs {
                true => (vec!["set an attribute of", acl], 0),
                false => (vec![acl], 1),
            };
            assert_eq!(operations, expected, "{errno}");
            assert_eq!((report.counters.attributes_lost, report.counts.files), (lost, 1));
            assert!(!report.is_stopped, "{errno}: {report:#?}");
            let to = folder.0.join("to");
            assert_eq!(fs::read(&to).unwrap(), b"contents");
            assert_eq!(fs::metadata(to).unwrap().mode(), fs::metadata(&from).unwrap().mode());
        }
    }
    if is_root {
        std::os::unix::fs::chown(&from, Some(1234), None).unwrap();
        let plan = Plan::Refused(&["fchown"], Errno::PERM);
        let (report, _) = sim::run(Some(plan), || copy(&from, &folder.to(), &options(true)));
        let operations: Vec<_> = report.failures.iter().map(|one| one.operation()).collect();
        assert_eq!((operations, report.counts.files), (vec!["set owner of"], 1));
    }
}

/// A file that grows at any moment is copied as it was, or with all that was added.
#[test]
fn a_file_that_grows() {
    const READING: [&str; 4] = ["pread", "preadv2", "copy_file_range", "sendfile"];
    let folder = Folder::new("grown");
    for (name, has_hole) in [("large", false), ("inner/sparse", true), ("file", false)] {
        let from = folder.from().join(name);
        if has_hole {
            let file = fs::File::options().write(true).open(&from).unwrap();
            // At the end, where no later hole is looked for.
            file.write_all_at(&[1; 10_000], 190_000).unwrap();
        }
        let before = fs::read(&from).unwrap();
        let added = vec![b'+'; 50_000];
        let after = [&before[..], &added].concat();
        let calls = sim::run(None, || copy(&from, &folder.to(), &options(false))).1;
        let is_read = |call: &&str| READING.contains(call);
        let last = calls.iter().rposition(is_read).unwrap();
        for call in 0..calls.len() {
            let (path, added, len) = (from.clone(), added.clone(), before.len() as u64);
            let grow = move || {
                let file = fs::File::options().write(true).open(path).unwrap();
                file.write_all_at(&added, len).unwrap();
            };
            let to = folder.to();
            let act = || copy(&from, &to, &options(false));
            let (report, _) = sim::run_until(None, call, grow, act);
            assert!(report.is_complete(), "{name}, call {call}: {report:#?}");
            let is = fs::read(&to).unwrap();
            assert!(is == before || is == after, "{name}, call {call}: {} bytes", is.len());
            assert_eq!(report.counts.bytes, is.len() as u64, "{name}, call {call}");
            // A small file is read once, up to the size that it has when it is opened.
            let is_seen = call <= last && name != "file";
            assert!(is == after || !is_seen, "{name}, call {call}: it lacks what was added");
            fs::File::options()
                .write(true)
                .open(&from)
                .unwrap()
                .set_len(before.len() as u64)
                .unwrap();
        }
    }
}

/// A failed removal is reported, and the next attempt succeeds.
#[test]
fn each_call_of_a_removal_fails() {
    let folder = Folder::new("removed");
    let remove = |to: &Path| {
        let (progress, token) = (Arc::new(Progress::new()), sakia::CancellationToken::new());
        sakia::block_on(remove_tree(to, &progress, &token)).unwrap()
    };
    let removed = |plan| {
        let (from, to) = (folder.from(), folder.to());
        assert!(copy(&from, &to, &options(false)).is_complete());
        let (report, calls) = sim::run(plan, || remove(&to));
        assert!(!report.is_complete() || !to.exists(), "{plan:?}: {report:#?}");
        if to.exists() {
            assert!(remove(&to).is_complete(), "{plan:?}");
            assert!(!to.exists());
        }
        calls
    };
    for (number, call) in removed(None).iter().enumerate() {
        let (harmless, others) = sim::faults(call);
        for &fault in harmless.iter().chain(others) {
            removed(Some(Plan::One(number, fault)));
        }
    }
    for seed in 0..100 {
        removed(Some(Plan::Random { one_in: 10, seed }));
    }
}

/// A planned fault happens.
#[test]
fn a_plan_is_kept_to() {
    let folder = Folder::new("plan");
    let first = expected(&folder, false).1.iter().position(|&call| call == "mkdirat").unwrap();
    let plan = Plan::One(first, Fault::Errno(Errno::IO));
    let (report, _) = sim::run(Some(plan), || copy(&folder.from(), &folder.to(), &options(false)));
    assert_eq!((report.counts.failures, report.counts.entries()), (1, 0), "{report:#?}");
    assert_eq!(report.failures[0].raw_os_error(), Some(Errno::IO.raw_os_error()));
}
