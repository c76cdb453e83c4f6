//! Options of a copy: the parts of an entry to copy, and the treatment of existing ones.

use rustix::fs::AtFlags;
use sakia::Budget;

use crate::sys;

/// Below this address space the copy starts no threads, whose stacks and heaps take more.
const CRAMPED: u64 = 64 << 20;
/// The largest buffer in that case.
const BUFFER_CRAMPED: usize = 64 << 10;
/// Memory of an entry in progress besides its buffer.
const SPARE: u64 = 64 << 10;

/// The treatment of an existing entry at the destination.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Files are overwritten, as `cp` does: the file stays the same one, and gets new contents. At the root,
    /// which the caller has named, the target of a link is overwritten, and a device or FIFO is written to.
    /// Within a tree, where another user may have put them, links are replaced and never written through,
    /// and devices, FIFOs and sockets are replaced only with [`force`](Options::force), or by an entry of
    /// the same kind.
    #[default]
    Overwrite,
    /// It is kept.
    Keep,
    /// It is overwritten if the source was modified later.
    Update,
}

/// The symbolic links to follow.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// None: links are copied as links.
    #[default]
    Never,
    /// All: their targets are copied.
    Always,
}

impl Follow {
    /// Returns the flags to look up a name's status.
    pub(crate) fn flags(self) -> AtFlags {
        match self {
            Self::Never => AtFlags::SYMLINK_NOFOLLOW,
            Self::Always => AtFlags::empty(),
        }
    }
}

/// The treatment of holes.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sparse {
    /// Holes of the source become holes.
    #[default]
    Auto,
    /// Blocks of zeros become holes, too.
    Always,
    /// The copy has no holes.
    Never,
}

/// The sharing of blocks between a file and its copy.
///
/// # Examples
/// See [`Options`](Options#examples).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// If the file system supports it.
    #[default]
    Auto,
    /// Required: otherwise the copy of a file fails.
    Always,
    /// Never.
    Never,
}

/// The attributes to copy besides contents. Without `mode` a new file has the source's permissions without
/// the bits of the process's umask.
///
/// # Examples
/// ```
/// use sakia_copy::{Options, Preserve};
///
/// let mut options = Options::new();
/// options.preserve.timestamps = true;
/// assert!(!options.preserve.ownership && options.preserve != Preserve::ALL);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preserve {
    /// Permissions, set-id bits included, and access control lists. An access control list that cannot be
    /// kept is a failure; the copy is complete otherwise, and stays.
    pub mode: bool,
    /// User and group, as far as the process may. For root, a user or group that cannot be set is a failure.
    pub ownership: bool,
    /// Times of access and modification, in nanoseconds.
    pub timestamps: bool,
    /// Hard links between copied files.
    pub links: bool,
    /// Extended attributes. Those that the process may not set, or that the file system of the copy does not
    /// have, are counted.
    pub xattrs: bool,
    /// With `xattrs`: to lose one of them is a failure, too.
    pub all_xattrs: bool,
}

impl Preserve {
    /// Nothing.
    pub const NONE: Self = Self {
        mode: false,
        ownership: false,
        timestamps: false,
        links: false,
        xattrs: false,
        all_xattrs: false,
    };
    /// All of it, extended attributes as far as possible.
    pub const ALL: Self = Self {
        mode: true,
        ownership: true,
        timestamps: true,
        links: true,
        xattrs: true,
        all_xattrs: false,
    };

    /// Returns whether a new entry has attributes to set after its creation.
    pub(crate) fn has_attributes(self) -> bool {
        self.mode || self.ownership || self.timestamps || self.xattrs
    }
}

/// Options of a copy. Created by [`Options::new`], changed by assigning to its fields.
///
/// # Examples
/// ```
/// use sakia_copy::{Existing, Options, Progress, copy_tree};
///
/// # let dir = std::env::temp_dir().join(format!("sakia-copy-options-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let mut options = Options::archive();
/// options.existing = Existing::Keep;
/// options.preserve.xattrs = false;
/// options.limit = 16;
/// let to = dir.join("to");
/// std::fs::create_dir(&to)?;
/// std::fs::write(to.join("lib.rs"), "mine")?;
/// let progress = Progress::new().into();
/// let report = sakia::block_on(copy_tree("src", &to, &options, &progress))?;
/// assert!(report.is_complete() && report.counts.skipped == 1);
/// assert_eq!(std::fs::read(to.join("lib.rs"))?, b"mine");
/// # std::fs::remove_dir_all(&dir)?;
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The treatment of existing entries.
    pub existing: Existing,
    /// A destination that cannot be opened, or is no file, is removed and created anew.
    pub force: bool,
    /// The links to follow.
    pub follow: Follow,
    /// The attributes to copy.
    pub preserve: Preserve,
    /// FIFOs and devices are read, and files created from their contents, as `cp` does without `-r`.
    pub read_special: bool,
    /// Directories on another file system than the root are copied, but not their contents.
    pub one_file_system: bool,
    /// The treatment of holes.
    pub sparse: Sparse,
    /// The sharing of blocks.
    pub reflink: Reflink,
    /// The copy is durable before it is reported as done: one `syncfs(2)` of its file system.
    pub durable: bool,
    /// The copy is read again, bypassing the cache, and compared.
    pub verify: bool,
    /// Nothing is written; the report has the counts.
    pub dry_run: bool,
    /// Size of reads in bytes, for each entry in progress; at least 4096.
    pub buffer: usize,
    /// The limit of entries in progress, at least 1. Each thread has only one as long as it need not wait.
    pub limit: usize,
    /// The descriptors and bytes that the copy may use; `None`: those that the process has left at the
    /// beginning.
    pub budget: Option<Budget>,
}

impl Options {
    /// The default size of reads in bytes.
    pub const BUFFER: usize = 256 << 10;
    /// The default limit of entries in progress.
    pub const LIMIT: usize = 64;

    /// Returns the options of `cp -r`: contents, and permissions without the umask.
    ///
    /// # Examples
    /// ```
    /// use sakia_copy::{Options, Preserve};
    ///
    /// assert_eq!(Options::new().limit, Options::LIMIT);
    /// assert!(Options::archive().preserve.xattrs && !Options::new().preserve.xattrs);
    /// ```
    pub fn new() -> Self {
        Self {
            existing: Existing::default(),
            force: false,
            follow: Follow::default(),
            preserve: Preserve::NONE,
            read_special: false,
            one_file_system: false,
            sparse: Sparse::default(),
            reflink: Reflink::default(),
            durable: false,
            verify: false,
            dry_run: false,
            buffer: Self::BUFFER,
            limit: Self::LIMIT,
            budget: None,
        }
    }

    /// Lowers [`limit`](Self::limit) and [`buffer`](Self::buffer) to the room in the process's address
    /// space, if that is limited (`RLIMIT_AS`, `ulimit -v`). A [`Copier`](crate::Copier) does so by itself;
    /// a program that starts a thread for each entry in progress calls this first.
    pub fn fit_memory(&mut self) {
        if let Some(room) = sys::address_space() {
            self.fit(room);
        }
    }

    fn fit(&mut self, room: u64) {
        if room < CRAMPED {
            // With one entry at a time, no other threads are needed.
            (self.limit, self.buffer) = (1, self.buffer.min(BUFFER_CRAMPED));
            return;
        }
        let entries = room / 4 / (self.buffer as u64 + SPARE);
        self.limit = self.limit.min(usize::try_from(entries).unwrap_or(usize::MAX)).max(1);
    }

    /// Returns the options of `cp -a`: an exact copy.
    ///
    /// # Examples
    /// See [`copy_tree`](crate::copy_tree#examples).
    pub fn archive() -> Self {
        Self { preserve: Preserve::ALL, ..Self::new() }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_under_way_fit_into_memory() {
        let fitted = |room: u64| {
            let mut options = Options::new();
            options.fit(room);
            (options.limit, options.buffer)
        };
        assert_eq!(fitted(1 << 40), (Options::LIMIT, Options::BUFFER));
        assert_eq!(fitted(0), (1, BUFFER_CRAMPED));
        assert_eq!(fitted(CRAMPED - 1), (1, BUFFER_CRAMPED));
        for room in (CRAMPED..1 << 30).step_by(1 << 20) {
            let (limit, buffer) = fitted(room);
            assert!(limit >= 1 && (limit * buffer) as u64 <= room / 4, "{room}: {limit}");
        }
    }
}
