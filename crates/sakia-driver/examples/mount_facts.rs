//! Prints which non-blocking calls each file system supports, and how the ring performs operations on it: one
//! row per path, as two tables in Markdown.
//!
//! ```text
//! mount_facts PATH...     directories, in which a temporary file is made, or files
//! mount_facts --places    small file systems of every kind that this machine can mount (root)
//! ```
//!
//! In the second table, *inline* is an operation that has completed when its submission returns; *async* one
//! that completes later without a thread; *worker* one for which the kernel started a thread (io-wq). Each is
//! tried on a ring and a thread of its own, since workers belong to a thread.

use std::error::Error;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use sakia_driver::MountTable;
use sakia_ring::{AT_FDCWD, Cqe, Ring, Sqe};
use sakia_testkit::fuse::{self, Fuse};
use sakia_testkit::mount_facts::{Answer, MountFacts, probe};
use sakia_testkit::place::PlaceError;
use sakia_testkit::small_fs::SmallFs;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A multiple of every known alignment of direct I/O.
const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: usize = 1 << 20;

fn main() -> Result<()> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if args.is_empty() {
        return Err("usage: mount_facts --places | PATH...".into());
    }
    let mut rows = Vec::new();
    if args == [PathBuf::from("--places")] {
        for (name, place) in places() {
            match place {
                Ok(place) => rows.push(row(name, place.path())),
                Err(error) => eprintln!("SKIP {name}: {error}"),
            }
        }
    } else {
        rows.extend(args.iter().map(|path| row(&path.display().to_string(), path)));
    }
    print(&rows)
}

// ---- places ------------------------------------------------------------------------------------

/// A mounted file system, which is unmounted when the value is dropped.
enum Place {
    Small(SmallFs),
    /// The block device under a file system, and the path of its node.
    Device(#[expect(dead_code, reason = "keeps the device")] SmallFs, PathBuf),
    Fuse(Fuse),
}

impl Place {
    fn path(&self) -> &Path {
        match self {
            Self::Small(small) => small.path(),
            Self::Device(_, node) => node,
            Self::Fuse(fuse) => fuse.path(),
        }
    }
}

/// Returns a place of every kind, or the reason why it is not available.
fn places() -> Vec<(&'static str, std::result::Result<Place, PlaceError>)> {
    const SIZE: u64 = 64 << 20;
    let small = |made: std::result::Result<SmallFs, PlaceError>| made.map(Place::Small);
    let fuse = |builder: fuse::Builder| builder.mount().map(Place::Fuse);
    let device = |made: std::result::Result<SmallFs, PlaceError>| {
        made.map(|small| {
            let node = small.device().expect("it lies on a device");
            Place::Device(small, node)
        })
    };
    let overlay = |below: std::result::Result<SmallFs, PlaceError>| {
        below.and_then(SmallFs::overlay).map(Place::Small)
    };
    vec![
        ("ext4", small(SmallFs::ext4(SIZE))),
        ("xfs", small(SmallFs::xfs())),
        ("btrfs", small(SmallFs::btrfs())),
        ("tmpfs", small(SmallFs::tmpfs(SIZE))),
        ("overlay on ext4", overlay(SmallFs::ext4(SIZE))),
        ("overlay on tmpfs", overlay(SmallFs::tmpfs(SIZE))),
        ("overlay on xfs", overlay(SmallFs::xfs())),
        ("fuse, page cache", fuse(Fuse::builder().keep_cache(true))),
        ("block device", device(SmallFs::ext4(SIZE))),
        ("fuse, direct_io", fuse(Fuse::builder().direct_io(true))),
    ]
}

// ---- the ways of the ring ----------------------------------------------------------------------

/// The way in which the ring performed an operation, and its result.
#[derive(Clone, Copy)]
enum Way {
    Inline(i32),
    Async(i32),
    Worker(i32),
    Untried,
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (word, res) = match *self {
            Self::Untried => return f.write_str("-"),
            Self::Inline(res) => ("inline", res),
            Self::Async(res) => ("async", res),
            Self::Worker(res) => ("worker", res),
        };
        if res < 0 { write!(f, "{word} {}", Answer::Errno(-res)) } else { f.write_str(word) }
    }
}

/// The operations that are tried on the ring, one per column.
const COLUMNS: [&str; 10] = [
    "read hot",
    "read cold",
    "write over",
    "write again",
    "write extend",
    "direct read",
    "direct write",
    "fsync",
    "open",
    "statx",
];

struct Row {
    name: String,
    /// The type of its file system, or the kind of device.
    kind: String,
    facts: std::io::Result<MountFacts>,
    ways: Result<[Way; COLUMNS.len()]>,
}

fn row(name: &str, path: &Path) -> Row {
    Row { name: name.to_owned(), kind: kind(path), facts: probe(path), ways: ways(path) }
}

fn kind(path: &Path) -> String {
    let file_type = fs::metadata(path).map(|metadata| metadata.file_type());
    if file_type.as_ref().is_ok_and(FileTypeExt::is_block_device) {
        // The mount table would name the file system in which the node lies.
        return "block device".to_owned();
    } else if file_type.as_ref().is_ok_and(FileTypeExt::is_char_device) {
        return "character device".to_owned();
    }
    let table = MountTable::read().unwrap_or_default();
    let entry = path.canonicalize().ok().and_then(|path| table.find_by_path(&path));
    entry.map_or("unknown".to_owned(), |entry| entry.file_system.clone())
}

fn ways(path: &Path) -> Result<[Way; COLUMNS.len()]> {
    if !path.is_dir() {
        let mut ways = [Way::Untried; COLUMNS.len()];
        let file = File::open(path)?;
        ways[0] = read(&file, 0)?;
        ways[8] = open(path)?;
        ways[9] = statx(path)?;
        return Ok(ways);
    }
    let name = path.join(format!(".sakia-ring-ways-{}", std::process::id()));
    let ways = ways_of_new_file(&name);
    fs::remove_file(&name)?;
    ways
}

fn ways_of_new_file(name: &Path) -> Result<[Way; COLUMNS.len()]> {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(name)?;
    file.write_all_at(&vec![1; FILE_BYTES], 0)?;
    file.sync_all()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let read_cold = read(&file, (FILE_BYTES / 2) as u64)?;

    file.read_exact_at(&mut [0; BLOCK_BYTES], 0)?;
    let read_hot = read(&file, 0)?;
    let write_over = write(&file, 0)?;
    // Write again at once, so that the timestamps need no update; the clock may tick between the two.
    let mut write_again = Way::Untried;
    for _ in 0..8 {
        file.write_all_at(&[2; BLOCK_BYTES], 0)?;
        write_again = write(&file, 0)?;
        if matches!(write_again, Way::Inline(_)) {
            break;
        }
    }
    let write_extend = write(&file, FILE_BYTES as u64)?;
    let fsync = try_way(Memory::None, |_| Sqe::fsync(file.as_raw_fd(), false))?;

    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let direct = options.truncate(false).custom_flags(flags).open(name).ok();
    let (direct_read, direct_write) = match &direct {
        Some(direct) => {
            // Leave nothing cached and nothing dirty: a direct write would have to write that back first.
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            let read = read(direct, 0)?;
            let mut way = write(direct, 0)?;
            for _ in 0..8 {
                if matches!(way, Way::Worker(_)) {
                    way = write(direct, 0)?;
                }
            }
            (read, way)
        }
        None => (Way::Untried, Way::Untried),
    };
    let (open, statx) = (open(name)?, statx(name)?);
    Ok([
        read_hot,
        read_cold,
        write_over,
        write_again,
        write_extend,
        direct_read,
        direct_write,
        fsync,
        open,
        statx,
    ])
}

fn read(file: &File, offset: u64) -> Result<Way> {
    try_way(Memory::Block, |block| {
        Sqe::read(file.as_raw_fd(), block.cast(), BLOCK_BYTES as u32, offset)
    })
}

fn write(file: &File, offset: u64) -> Result<Way> {
    try_way(Memory::Block, |block| {
        Sqe::write(file.as_raw_fd(), block.cast(), BLOCK_BYTES as u32, offset)
    })
}

fn open(path: &Path) -> Result<Way> {
    let flags = (rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC).bits();
    try_way(Memory::Path(c_path(path)?), |path| Sqe::openat(AT_FDCWD, path.cast(), flags, 0))
}

fn statx(path: &Path) -> Result<Way> {
    let path = c_path(path)?;
    try_way(Memory::Block, |block| {
        const BASIC: u32 = 0x7ff;
        Sqe::statx(AT_FDCWD, path.as_ptr().cast(), 0, BASIC, block)
    })
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The memory that an operation needs besides its entry.
enum Memory {
    None,
    /// A block, at an address that is a multiple of its size.
    Block,
    Path(CString),
}

#[repr(align(4096))]
struct Block {
    /// Filled by the kernel.
    _bytes: [u8; BLOCK_BYTES],
}

/// Performs one operation on a ring and a thread of its own.
fn try_way(memory: Memory, entry: impl FnOnce(*mut Block) -> Sqe + Send) -> Result<Way> {
    let way = thread::scope(|scope| {
        let attempt = scope.spawn(|| -> std::result::Result<Way, String> {
            let mut ring = Ring::builder()
                .sq_entries(4)
                .cq_entries(8)
                .build()
                .map_err(|error| error.to_string())?;
            let mut block = Box::new(Block { _bytes: [0; BLOCK_BYTES] });
            let address = match &memory {
                Memory::None | Memory::Block => &raw mut *block,
                Memory::Path(path) => path.as_ptr().cast_mut().cast(),
            };
            // SAFETY: the block, the path and the file outlive the operation: from here the thread leaves
            // only after the completion, which the loop below waits for without a limit, or aborts the
            // process. Nothing accesses them meanwhile.
            let pushed = unsafe { ring.push(entry(address)) };
            if pushed.is_none() {
                return Err("a new ring has no room".to_owned());
            }
            if let Err(error) = ring.submit() {
                abort(&error);
            }
            let inline = ring.cq_ready() > 0;
            let mut completion = [Cqe::default()];
            while ring.reap(&mut completion) == 0 {
                match ring.enter(1, None) {
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => abort(&error),
                }
            }
            let res = completion[0].res;
            Ok(match (inline, has_worker()) {
                (true, _) => Way::Inline(res),
                (false, true) => Way::Worker(res),
                (false, false) => Way::Async(res),
            })
        });
        attempt.join().expect("the attempt does not panic")
    })?;
    Ok(way)
}

/// Aborts the process after an error of the ring: an unwinding thread would free memory that the operation
/// may still use.
fn abort(error: &std::io::Error) -> ! {
    eprintln!("the ring has failed: {error}");
    std::process::abort()
}

/// Returns whether the kernel has started a worker for the calling thread.
fn has_worker() -> bool {
    let own = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        // The kernel cuts thread names after 15 characters.
        .any(|name| name.trim_end() == &own[..own.len().min(15)])
}

// ---- output ------------------------------------------------------------------------------------

fn print(rows: &[Row]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let heads = [
        "place",
        "file system",
        "read hot",
        "read cold",
        "read at end",
        "write over",
        "write again",
        "write extend",
        "open cached",
        "O_DIRECT",
        "memory / offset align",
        "entry kinds",
    ];
    writeln!(out, "Plain calls with `RWF_NOWAIT`, opens with `RESOLVE_CACHED`:\n")?;
    head(&mut out, &heads)?;
    for row in rows {
        let Row { name, kind, facts, .. } = row;
        match facts {
            Err(error) => writeln!(out, "| {name} | {error} |")?,
            Ok(facts) => {
                let kinds = facts.entry_kinds.map_or("-", |kinds| if kinds { "yes" } else { "no" });
                let direct = facts.direct;
                writeln!(
                    out,
                    "| {name} | {kind} | {} | {} | {} | {} | {} | {} | {} | {} | {} / {} | {kinds} |",
                    facts.read_hot,
                    facts.read_cold,
                    facts.read_end,
                    facts.write_over,
                    facts.write_again,
                    facts.write_extend,
                    facts.open_cached,
                    direct.open,
                    direct.mem_align_bytes,
                    direct.offset_align_bytes,
                )?;
            }
        }
    }
    writeln!(out, "\nThe ring, one operation at a time:\n")?;
    let heads: Vec<&str> = ["place"].into_iter().chain(COLUMNS).collect();
    head(&mut out, &heads)?;
    for Row { name, ways, .. } in rows {
        match ways {
            Err(error) => writeln!(out, "| {name} | {error} |")?,
            Ok(ways) => {
                let ways: Vec<String> = ways.iter().map(Way::to_string).collect();
                writeln!(out, "| {name} | {} |", ways.join(" | "))?;
            }
        }
    }
    Ok(())
}

fn head(out: &mut impl Write, heads: &[&str]) -> std::io::Result<()> {
    writeln!(out, "| {} |", heads.join(" | "))?;
    writeln!(out, "|{}", "---|".repeat(heads.len()))
}
