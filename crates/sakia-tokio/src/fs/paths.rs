//! Operations by path: those of the engine, but for what `std` opens to write.

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use crate::lane::{Lane, ask, order};
use crate::now;

/// Runs what opens paths: where it may wait for ever, if that is so of one of them. If that changes something
/// it is done even if the future is dropped.
pub(super) async fn opening<T: Send + 'static, const N: usize>(
    paths: [PathBuf; N],
    changes: bool,
    open: impl FnOnce(&[PathBuf; N]) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let first = move || {
        if paths.iter().all(|path| now::opens_by_itself(path)) {
            Ok(open(&paths))
        } else {
            Err((paths, open))
        }
    };
    match Lane::Narrow.finish(changes, first).await? {
        Ok(result) => result,
        Err((paths, open)) => Lane::Wide.finish(changes, move || open(&paths)).await?,
    }
}

/// Forwards to the engine, with paths and values.
macro_rules! by_path {
    ($how:ident: $(
        $(#[$doc:meta])*
        $name:ident($($path:ident),*; $($value:ident: $type:ty),*) -> $output:ty;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As `", stringify!($name), "` of [`std::fs`]. `ECANCELED`: the engine was stopped.")]
        pub async fn $name(
            $($path: impl AsRef<Path>,)*
            $($value: $type,)*
        ) -> io::Result<$output> {
            $how(|engine| engine.$name($($path,)* $($value,)*)).await
        }
    )*};
}

by_path! { ask:
    /// What a path leads to, links followed.
    #[doc(alias = "statx")]
    metadata(path;) -> Metadata;
    /// What is at a path, if only a link.
    #[doc(alias = "statx")]
    symlink_metadata(path;) -> Metadata;
    /// Whether a path leads to something. A link that leads nowhere does not.
    try_exists(path;) -> bool;
    /// The contents of a file that is text in UTF-8.
    read_to_string(path;) -> String;
    /// Where a symbolic link leads.
    #[doc(alias = "readlink")]
    read_link(path;) -> PathBuf;
    /// The path without links and detours.
    #[doc(alias = "realpath")]
    canonicalize(path;) -> PathBuf;
}

by_path! { order:
    /// Makes a directory.
    #[doc(alias = "mkdir")]
    create_dir(path;) -> ();
    /// Makes a directory, and those above it that are missing.
    create_dir_all(path;) -> ();
    /// Removes a name that is not a directory's.
    #[doc(alias = "unlink")]
    remove_file(path;) -> ();
    /// Removes an empty directory.
    #[doc(alias = "rmdir")]
    remove_dir(path;) -> ();
    /// Removes a directory with all that is in it.
    remove_dir_all(path;) -> ();
    /// Gives something another name. What had that name before is replaced.
    rename(from, to;) -> ();
    /// Gives a file one more name.
    #[doc(alias = "link")]
    hard_link(original, link;) -> ();
    /// Makes a symbolic link.
    symlink(original, link;) -> ();
    /// Says who may do what.
    #[doc(alias = "chmod")]
    set_permissions(path; permissions: Permissions) -> ();
}

/// The contents of a file.
///
/// # Errors
/// As [`std::fs::read`]. `ECANCELED`: the engine was stopped.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let program = sakia_tokio::fs::read(std::env::current_exe()?).await?;
/// assert!(program.starts_with(b"\x7fELF"));
/// # Ok(())
/// # }
/// ```
pub async fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    ask(|engine| engine.read(path)).await
}

/// Replaces the contents of a file, or makes it. `contents` are copied first.
///
/// Once it was polled it is done to its end, even if it is dropped.
///
/// # Errors
/// As [`std::fs::write`].
///
/// # Examples
/// ```
/// use sakia_tokio::fs;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-write-{}", std::process::id()));
/// fs::write(&path, "some text").await?;
/// assert_eq!(fs::read_to_string(&path).await?, "some text");
/// # std::fs::remove_file(&path)
/// # }
/// ```
pub async fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let contents = contents.as_ref().to_owned();
    opening([path.as_ref().to_owned()], true, move |[path]| std::fs::write(path, contents)).await
}

/// Copies contents and permissions of a file, and says how many bytes these are.
///
/// # Errors
/// As [`std::fs::copy`].
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let paths = [from.as_ref().to_owned(), to.as_ref().to_owned()];
    opening(paths, true, |[from, to]| std::fs::copy(from, to)).await
}
