//! Files and directories, with the names, signatures and semantics of `tokio::fs`.

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
