//! The steps of programs.

use std::io::SeekFrom;
use std::sync::OnceLock;

use crate::support::bytes;

/// The largest number of bytes of a step.
pub const MOST: usize = 300_000;
/// The number of files that a program may have open.
pub const SLOTS: usize = 3;

/// A step of a program.
#[derive(Clone, Debug)]
pub struct Step {
    pub action: Action,
    /// It is polled once; if that does not end it, it is dropped.
    pub is_dropped: bool,
}

/// A call, or several that make sense together. Paths are relative to the directory of the program.
#[derive(Clone, Debug)]
pub enum Action {
    Open {
        slot: usize,
        path: String,
        how: How,
    },
    /// A non-blocking FIFO, open for both.
    OpenPipe {
        slot: usize,
    },
    /// `/dev/full`, to be written.
    OpenFull {
        slot: usize,
    },
    Clone {
        slot: usize,
        to: usize,
    },
    Drop {
        slot: usize,
    },
    File {
        slot: usize,
        call: Call,
    },
    Path {
        path: String,
        call: PathCall,
    },
    Paths {
        from: String,
        to: String,
        call: PathsCall,
    },
    /// Makes files, by `std`, in a directory.
    Fill {
        path: String,
        count: usize,
    },
    /// Removes the file's pages from the page cache.
    CoolDown {
        path: String,
    },
    /// Compares the trees.
    Compare,
    /// Lets the next request of the file server fail.
    Fail {
        is_write: bool,
        errno: i32,
    },
    /// Uses a clone while the server holds a write, see [`pair`](super::pair).
    Overlap {
        slot: usize,
        to: usize,
        call: Call,
    },
}

/// A way to open a file.
#[derive(Clone, Debug)]
pub enum How {
    Open,
    Create,
    CreateNew,
    /// Twice if `again`, by the same options; `std`: by those of `std`; `cloned`: by a clone of the options.
    Options {
        set: Vec<Opt>,
        std: bool,
        cloned: bool,
        again: bool,
    },
}

impl How {
    pub fn read_write() -> Self {
        Self::options(vec![Opt::Read(true), Opt::Write(true), Opt::Create(true)])
    }

    pub fn options(set: Vec<Opt>) -> Self {
        Self::Options { set, std: false, cloned: false, again: false }
    }
}

/// A setter of [`OpenOptions`](sakia_tokio::fs::OpenOptions).
#[derive(Clone, Copy, Debug)]
pub enum Opt {
    Read(bool),
    Write(bool),
    Append(bool),
    Truncate(bool),
    Create(bool),
    CreateNew(bool),
    Mode(u32),
    Flags(i32),
}

/// A call on an open file.
#[derive(Clone, Debug)]
pub enum Call {
    Read(usize),
    ReadExact(usize),
    ReadToEnd,
    ReadToString,
    Write(usize),
    WriteAll(usize),
    WriteVectored(Vec<usize>),
    Seek(SeekFrom),
    /// Begins a seek, and does not wait for its end.
    StartSeek(SeekFrom),
    PollComplete,
    Flush,
    Shutdown,
    SyncAll,
    SyncData,
    SetLen(u64),
    Metadata,
    SetPermissions(u32),
    /// Sets a time, and returns the file's times.
    SetTimes {
        accessed: bool,
        modified: bool,
    },
    MaxBufSize(usize),
    /// To `std`, and back from it.
    IntoStd,
    TryIntoStd,
}

/// A function of one path.
#[derive(Clone, Debug)]
pub enum PathCall {
    Read,
    ReadToString,
    Write(usize),
    ReadLink,
    Canonicalize,
    Metadata,
    SymlinkMetadata,
    TryExists,
    RemoveFile,
    RemoveDir,
    RemoveDirAll,
    CreateDir,
    CreateDirAll,
    /// With a builder: recursively, and twice; with a mode.
    BuildDir {
        recursive: Vec<bool>,
        mode: Option<u32>,
    },
    SetPermissions(u32),
    /// Lists a directory; futures are dropped in between if `dropped`, and files removed first if `gone`.
    ReadDir {
        dropped: bool,
        gone: bool,
    },
}

/// A function of two paths.
#[derive(Clone, Debug)]
pub enum PathsCall {
    Copy,
    Rename,
    HardLink,
    /// To the other path, as it is or with the directory of the program before it.
    Symlink {
        is_absolute: bool,
    },
}

/// Returns this number of bytes.
pub fn some_bytes(count: usize) -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    &BYTES.get_or_init(|| bytes(MOST))[..count]
}
