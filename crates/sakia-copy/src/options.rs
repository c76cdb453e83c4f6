//! What is to be copied of an entry, and what if there is one already.

use rustix::fs::AtFlags;
use sakia::Budget;

use crate::sys;

/// With less room for memory than this there are no threads of its own, whose stacks and heaps take more.
const CRAMPED: u64 = 64 << 20;
/// The largest buffer then.
const BUFFER_CRAMPED: usize = 64 << 10;
/// What an entry under way takes beside its buffer.
const SPARE: u64 = 64 << 10;

/// What is done where the destination has an entry of that name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Files are overwritten, as `cp` does: the file stays the same one, and gets new contents. At the root,
    /// which the caller has named, what a link points to is overwritten, and a device or FIFO is written to.
    /// Within a tree, where others may have put them, links are replaced and never written through, and
    /// devices, FIFOs and sockets are replaced by [force](Options::force) only, or by their like.
    #[default]
    Overwrite,
    /// It is kept.
    Keep,
    /// It is overwritten if the source was modified later.
    Update,
}

/// Which symbolic links are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// None: links are copied as links.
    #[default]
    Never,
    /// All: what they point to is copied.
    Always,
}

impl Follow {
    /// How a name is looked up to ask what it is.
    pub(crate) fn flags(self) -> AtFlags {
        match self {
            Self::Never => AtFlags::SYMLINK_NOFOLLOW,
            Self::Always => AtFlags::empty(),
        }
    }
}

/// How holes are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sparse {
    /// Holes of the source become holes.
    #[default]
    Auto,
    /// Blocks of zeros become holes, too.
    Always,
    /// There are no holes.
    Never,
}

/// Whether a file's blocks are shared with its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Where the file system can.
    #[default]
    Auto,
    /// Or else the copy of a file fails.
    Always,
    /// Nowhere.
    Never,
}

/// What a copy has of its source beside contents. Without `mode` a new file has the source's permissions
/// less the process's mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preserve {
    /// Permissions, set-id bits included, and access control lists.
    pub mode: bool,
    /// User and group, as far as the process may.
    pub ownership: bool,
    /// When it was read and modified, to the nanosecond.
    pub timestamps: bool,
    /// Names of the same file stay names of the same file.
    pub links: bool,
    /// Extended attributes, as far as the process may.
    pub xattrs: bool,
}

impl Preserve {
    /// Nothing.
    pub const NONE: Self =
        Self { mode: false, ownership: false, timestamps: false, links: false, xattrs: false };
    /// All of it.
    pub const ALL: Self =
        Self { mode: true, ownership: true, timestamps: true, links: true, xattrs: true };

    /// Whether anything of a new entry has to be set after it was made.
    pub(crate) fn has_attributes(self) -> bool {
        self.mode || self.ownership || self.timestamps || self.xattrs
    }
}

/// How a tree is copied. Made by [`Options::new`], changed by assigning to its fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What if there is one already.
    pub existing: Existing,
    /// A destination that cannot be opened, or is no file, is removed, and made anew.
    pub force: bool,
    /// Which links are followed.
    pub follow: Follow,
    /// What copies have of their sources.
    pub preserve: Preserve,
    /// FIFOs and devices are read, and files made of their contents, as `cp` does without `-r`.
    pub read_special: bool,
    /// Directories on another file system than the root are copied, but nothing that is in them.
    pub one_file_system: bool,
    /// Holes.
    pub sparse: Sparse,
    /// Shared blocks.
    pub reflink: Reflink,
    /// The copy is durable before it is said to be done: one `syncfs(2)` of its file system.
    pub durable: bool,
    /// What was written is read again, past the cache, and compared.
    pub verify: bool,
    /// Nothing is written; what would be is counted.
    pub dry_run: bool,
    /// Bytes read at a time, of each entry under way; at least 4096.
    pub buffer: usize,
    /// Entries that may be under way at a time, at least 1. There is one for each thread as long as nothing
    /// is waited for.
    pub limit: usize,
    /// The descriptors and bytes that it may use; without, what the process has left when it begins.
    pub budget: Option<Budget>,
}

impl Options {
    /// Bytes read at a time unless it is said otherwise.
    pub const BUFFER: usize = 256 << 10;
    /// Entries under way unless it is said otherwise.
    pub const LIMIT: usize = 64;

    /// What `cp -r` does: contents, and permissions less the mask.
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

    /// Lowers [`limit`](Self::limit) and [`buffer`](Self::buffer) to what the process's address space has room
    /// for, where that is limited (`RLIMIT_AS`, `ulimit -v`). A [`Copier`](crate::Copier) does so by itself;
    /// a program that makes a thread for each entry under way asks before.
    pub fn fit_memory(&mut self) {
        if let Some(room) = sys::address_space() {
            self.fit(room);
        }
    }

    fn fit(&mut self, room: u64) {
        if room < CRAMPED {
            // One that never waits needs no other threads.
            (self.limit, self.buffer) = (1, self.buffer.min(BUFFER_CRAMPED));
            return;
        }
        let entries = room / 4 / (self.buffer as u64 + SPARE);
        self.limit = self.limit.min(usize::try_from(entries).unwrap_or(usize::MAX)).max(1);
    }

    /// What `cp -a` does: an exact copy.
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
