//! Another user exchanges new entries, while they are copied, for files that only the copier may use. No
//! mode, owner, time, attribute or name of those files may change.
//!
//! `SAKIA_TEST_RACE_SECONDS` is the duration of each race; by default a race is a number of copies.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps};
use sakia_copy::{Options, Preserve};
use sakia_testkit::settings::number;

use crate::support::{Folder, Tree, assert_same, copy, set_attribute, tree};

/// The number of copies in each race by default.
const COPIES: u64 = 24;
const OWNER: u32 = 1000;

/// The kinds of entries that are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fifo,
    Socket,
    Link,
    Device,
    Directory,
    File,
    /// Files with a second name in a directory of the copier.
    Names,
    /// The same, of FIFOs.
    FifoNames,
    /// Files that existed before.
    Overwritten,
}

impl Kind {
    /// Returns the number of entries of the kind.
    fn entries(self) -> usize {
        // Those are exchanged between two calls: each of few is exchanged more often.
        if self.is_few() { 4 } else { 64 }
    }

    /// Returns the number of copies by default.
    fn copies(self) -> u64 {
        if self.is_few() { 20 * COPIES } else { COPIES }
    }

    fn is_few(self) -> bool {
        matches!(self, Self::Directory | Self::Overwritten)
    }
}

/// The kinds of entries that they are exchanged for.
#[derive(Clone, Copy, Debug)]
enum Bait {
    Link,
    Name,
    File,
    Directory,
}

const KINDS: [Kind; 9] = [
    Kind::Fifo,
    Kind::Socket,
    Kind::Link,
    Kind::Device,
    Kind::Directory,
    Kind::File,
    Kind::Names,
    Kind::FifoNames,
    Kind::Overwritten,
];
const BAITS: [Bait; 4] = [Bait::Link, Bait::Name, Bait::File, Bait::Directory];

/// Exchanges entries of two directories, the private one of the copy included, until it is dropped.
struct Swapper {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    fn new(user: &Path, baits: &Path, entries: usize) -> Self {
        let open = |path: &Path| -> OwnedFd {
            rustix::fs::open(path, OFlags::DIRECTORY | OFlags::PATH, Mode::empty()).unwrap()
        };
        let (user, baits) = (open(user), open(baits));
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&count));
        let swap_all = move || {
            let names: Vec<_> =
                (0..entries).map(|number| CString::new(format!("n{number}")).unwrap()).collect();
            let private = CString::from(c".sakia-cp");
            let swap = |name: &CString| {
                let flags = RenameFlags::EXCHANGE;
                let swapped = rustix::fs::renameat_with(&user, name, &baits, name, flags);
                counted.fetch_add(u64::from(swapped.is_ok()), Ordering::Relaxed);
            };
            while !stopped.load(Ordering::Relaxed) {
                names.iter().for_each(swap);
                swap(&private);
            }
        };
        Self { stop, count, thread: Some(std::thread::spawn(swap_all)) }
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().ok();
    }
}

fn make_node(path: &Path, kind: FileType) {
    let mode = Mode::from_raw_mode(0o666);
    let device = if kind == FileType::CharacterDevice { rustix::fs::makedev(1, 3) } else { 0 };
    rustix::fs::mknodat(CWD, path, kind, mode, device).unwrap();
    set_mode(path, 0o666);
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes the source: entries with rights, owners and times that the copier's files must not get.
fn make_source(from: &Path, kind: Kind) {
    fs::create_dir_all(from.join("own")).unwrap();
    for number in 0..kind.entries() {
        let path = from.join(format!("n{number}"));
        match kind {
            Kind::Fifo | Kind::FifoNames => make_node(&path, FileType::Fifo),
            Kind::Socket => make_node(&path, FileType::Socket),
            Kind::Device => make_node(&path, FileType::CharacterDevice),
            Kind::Link => symlink("target", &path).unwrap(),
            Kind::Directory => {
                fs::create_dir(&path).unwrap();
                fs::write(path.join("file"), "contents").unwrap();
                set_mode(&path, 0o777);
            }
            Kind::File | Kind::Names | Kind::Overwritten => {
                fs::write(&path, "contents").unwrap();
                set_mode(&path, 0o666);
            }
        }
        if is_root() {
            let owner = (Some(OWNER), Some(OWNER));
            std::os::unix::fs::lchown(&path, owner.0, owner.1).unwrap();
        }
        if kind == Kind::File || kind == Kind::Directory {
            set_attribute(&path, "user.test", b"value");
        }
        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 };
        let times = Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, &path, &times, flags).unwrap();
        if matches!(kind, Kind::Names | Kind::FifoNames) {
            fs::hard_link(&path, from.join(format!("own/n{number}"))).unwrap();
        }
    }
}

/// A race: the directories of the copy.
struct Race {
    folder: Folder,
    kind: Kind,
    bait: Bait,
}

impl Race {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// Makes the other user's directory, and files of the copier in reach of that user.
    fn prepare(&self) {
        for name in ["user", "secret"] {
            fs::remove_dir_all(self.path(name)).ok();
        }
        let (user, secret) = (self.folder.dir("user/to"), self.folder.dir("secret"));
        let baits = self.folder.dir("user/baits");
        for path in [&user, &baits] {
            set_mode(path, 0o777);
        }
        set_mode(&secret, 0o700);
        let own = self.folder.dir("user/to/own");
        set_mode(&own, 0o755);
        for number in 0..self.kind.entries() {
            let (name, hidden) = (format!("n{number}"), secret.join(format!("s{number}")));
            let bait = baits.join(&name);
            match self.bait {
                Bait::Directory => {
                    fs::create_dir(&bait).unwrap();
                    fs::write(bait.join("inner"), "secret").unwrap();
                    set_mode(&bait, 0o700);
                }
                Bait::File => {
                    fs::write(&bait, "secret").unwrap();
                    set_mode(&bait, 0o600);
                }
                Bait::Link | Bait::Name => {
                    fs::write(&hidden, "secret").unwrap();
                    set_mode(&hidden, 0o600);
                    match self.bait {
                        Bait::Link => symlink(&hidden, &bait).unwrap(),
                        _ => fs::hard_link(&hidden, &bait).unwrap(),
                    }
                }
            }
            if self.kind == Kind::Overwritten {
                let there = user.join(&name);
                fs::write(&there, "before").unwrap();
                set_mode(&there, 0o666);
            }
        }
        let private = self.folder.dir("user/baits/.sakia-cp");
        fs::write(private.join("inner"), "secret").unwrap();
        set_mode(&private, 0o700);
    }

    /// Returns the copier's files that the other user can put there, wherever they are now.
    fn secrets(&self) -> Tree {
        let mut secrets = Tree::new();
        for (name, mut facts) in tree(self.folder.root()) {
            if name.starts_with("from") || !(name.starts_with("user") || name.starts_with("secret"))
            {
                continue;
            }
            let last = name.file_name().unwrap().to_owned();
            let above = name.parent().and_then(|above| above.file_name()).unwrap_or_default();
            let is_file = facts.mode & 0o170_000 == 0o100_000;
            let is_secret = is_file && facts.contents == b"secret";
            if name.starts_with("secret") && name != Path::new("secret") || is_secret {
                facts.names.1 = PathBuf::new();
                // Overwriting a file changes its contents and times.
                let shown = if last == "inner" {
                    let dir = self.folder.path("").join(name.parent().unwrap());
                    let mode = fs::metadata(dir).unwrap().mode();
                    PathBuf::from(format!("in {mode:o} {}", above.display()))
                } else {
                    PathBuf::from(&last)
                };
                secrets.insert(shown, facts);
            }
        }
        secrets
    }

    /// Returns the modes, owners and names of the files that may be overwritten.
    fn overwritten(&self) -> Vec<(u64, u32, u32, u64)> {
        let mut found = Vec::new();
        for path in ["secret", "user/baits", "user/to"] {
            for entry in fs::read_dir(self.path(path)).unwrap() {
                let stat = entry.unwrap().path().symlink_metadata().unwrap();
                if stat.is_file() {
                    found.push((stat.ino(), stat.mode(), stat.uid(), stat.nlink()));
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Copies once, and returns the number of exchanges meanwhile.
    fn run(&self, options: &Options) -> u64 {
        self.prepare();
        let case = || format!("{:?} for {:?}, {:?}", self.kind, self.bait, options.preserve);
        let (before, modes) = (self.secrets(), self.overwritten());
        let swapper =
            Swapper::new(&self.path("user/to"), &self.path("user/baits"), self.kind.entries());
        copy(self.path("from"), self.path("user/to"), options);
        let count = swapper.count.load(Ordering::Relaxed);
        drop(swapper);
        if self.kind == Kind::Overwritten {
            assert_eq!(self.overwritten(), modes, "{}", case());
            return count;
        }
        assert_same(&self.secrets(), &before);
        // In a directory of the copier there are only names of the copy.
        for entry in fs::read_dir(self.path("user/to/own")).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let is_own = match self.kind {
                Kind::FifoNames => stat.mode() & 0o170_000 == 0o010_000,
                _ => stat.is_file() && fs::read(&path).unwrap() == b"contents",
            };
            assert!(is_own, "{}: {path:?} is another file", case());
        }
        count
    }
}

#[test]
fn nothing_follows_an_exchanged_name() {
    let seconds = number("SAKIA_TEST_RACE_SECONDS", 0);
    let mut links = Preserve::NONE;
    links.links = true;
    let mut exchanges = 0;
    for kind in KINDS {
        if kind == Kind::Device && !is_root() {
            continue;
        }
        let begin = Instant::now();
        let folder = Folder::in_memory();
        make_source(&folder.path("from"), kind);
        let mut race = Race { folder, kind, bait: Bait::Link };
        let mut copies = 0;
        let enough = |copies| match seconds {
            0 => copies >= kind.copies(),
            _ => begin.elapsed() >= Duration::from_secs(seconds),
        };
        while !enough(copies) {
            race.bait = BAITS[copies as usize % BAITS.len()];
            let mut options = Options::new();
            let is_exact = kind != Kind::Overwritten && copies % 3 < 2;
            options.preserve = if is_exact { Preserve::ALL } else { links };
            if kind == Kind::Overwritten {
                race.bait = [Bait::Name, Bait::File][copies as usize % 2];
                options.preserve = Preserve::NONE;
            }
            exchanges += race.run(&options);
            copies += 1;
        }
        println!("{kind:?}: {copies} copies");
    }
    assert!(exchanges > 0, "nothing was exchanged");
}
