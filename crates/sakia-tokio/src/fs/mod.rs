//! Files and directories, with the names, signatures and semantics of `tokio::fs`.
//!
//! # Cancel safety
//! As with tokio, an operation that changes a file or a name is finished once it was polled, even if its
//! future is dropped; a runtime that ends waits for it. A dropped query changes nothing, the bytes of a
//! dropped read go to the next read, and the entries of a dropped [`next_entry`](ReadDir::next_entry) to the
//! next call.

mod buffer;
mod dir;
mod file;
mod group_commit;
mod handle;
mod options;
mod paths;

pub use self::dir::{DirBuilder, DirEntry, ReadDir, read_dir};
pub use self::file::File;
pub use self::group_commit::GroupCommit;
pub use self::options::OpenOptions;
pub use self::paths::{
    canonicalize, copy, create_dir, create_dir_all, hard_link, metadata, read, read_link,
    read_to_string, remove_dir, remove_dir_all, remove_file, rename, set_permissions, symlink,
    symlink_metadata, try_exists, write,
};
pub use sakia::fs::FileTimes;
