//! Operations by path: those of the engine, except for opens for writing, which use `std`.

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use crate::lane::{Lane, ask, order};
use crate::now;

/// Runs a function that opens paths: on the wide lane if one of them may block for ever. A function that
/// changes a file is finished even if the future is dropped.
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
    /// Returns the metadata of a path's target, following links.
    #[doc(alias = "statx")]
    metadata(path;) -> Metadata;
    /// Returns the metadata of a path, without following a link at its end.
    #[doc(alias = "statx")]
    symlink_metadata(path;) -> Metadata;
    /// Returns whether a path leads to an existing entry. A dangling link does not.
    try_exists(path;) -> bool;
    /// Returns the contents of a UTF-8 file.
    read_to_string(path;) -> String;
    /// Returns the target of a symbolic link.
    #[doc(alias = "readlink")]
    read_link(path;) -> PathBuf;
    /// Returns the absolute path without links, `.` and `..`.
    #[doc(alias = "realpath")]
    canonicalize(path;) -> PathBuf;
}

by_path! { order:
    /// Creates a directory.
    #[doc(alias = "mkdir")]
    create_dir(path;) -> ();
    /// Creates a directory and its missing parents.
    create_dir_all(path;) -> ();
    /// Removes a name of a file or link.
    #[doc(alias = "unlink")]
    remove_file(path;) -> ();
    /// Removes an empty directory.
    #[doc(alias = "rmdir")]
    remove_dir(path;) -> ();
    /// Removes a directory with its contents.
    remove_dir_all(path;) -> ();
    /// Renames an entry. An existing entry of the new name is replaced.
    rename(from, to;) -> ();
    /// Creates a hard link.
    #[doc(alias = "link")]
    hard_link(original, link;) -> ();
    /// Creates a symbolic link.
    symlink(original, link;) -> ();
    /// Sets the permissions.
    #[doc(alias = "chmod")]
    set_permissions(path; permissions: Permissions) -> ();
}

/// Returns the contents of a file.
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

/// Writes a file with these contents, replacing an existing one's. `contents` are copied first.
///
/// After its first poll it is finished even if it is dropped.
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

/// Copies contents and permissions of a file, and returns the number of bytes.
///
/// # Errors
/// As [`std::fs::copy`].
///
/// # Examples
/// ```
/// use sakia_tokio::fs;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("sakia-tokio-copy-{}", std::process::id()));
/// # std::fs::create_dir(&dir)?;
/// let (from, to) = (dir.join("from"), dir.join("to"));
/// fs::write(&from, "contents").await?;
/// assert_eq!(fs::copy(&from, &to).await?, 8);
/// assert_eq!(fs::read(&to).await?, b"contents");
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok(())
/// # }
/// ```
pub async fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    let paths = [from.as_ref().to_owned(), to.as_ref().to_owned()];
    opening(paths, true, |[from, to]| std::fs::copy(from, to)).await
}
