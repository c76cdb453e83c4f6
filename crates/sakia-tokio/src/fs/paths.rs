//! Operations by path: those of the engine, except for opens for writing, which use `std`.

use std::fs::{Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use sakia_driver::Lane;
use sakia_driver::calls::opens_by_itself;

use crate::lane::{Lasting, ask, begin, begin_lasting, order};

/// Runs a function that opens paths: on the elastic lane if one of them may block for ever. It is finished
/// even if the future is dropped; if it `changes` a file, a runtime that ends waits for it.
pub(super) async fn opening<T: Send + 'static, const N: usize>(
    paths: [PathBuf; N],
    changes: bool,
    open: impl FnOnce(&[PathBuf; N]) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let first = move || {
        if paths.iter().all(|path| opens_by_itself(path)) {
            Ok(open(&paths))
        } else {
            // From here, since the future may be dropped by now.
            Err(begin(Lane::Elastic, move || open(&paths)))
        }
    };
    let opened = match changes {
        true => begin_lasting(Lane::Bounded, first).await?,
        false => begin(Lane::Bounded, first).await?,
    };
    match opened {
        Ok(result) => result,
        Err(job) if changes => Lasting::new(Lane::Elastic, job).await?,
        Err(job) => job.await?,
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
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-path-metadata-{}", std::process::id()));
    /// fs::write(&path, "hello").await?;
    /// assert_eq!(fs::metadata(&path).await?.len(), 5);
    /// assert!(fs::try_exists(&path).await?);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "statx")]
    metadata(path;) -> Metadata;
    /// Returns the metadata of a path, without following a link at its end.
    ///
    /// # Examples
    /// See [`symlink()`](symlink()#examples).
    #[doc(alias = "statx")]
    symlink_metadata(path;) -> Metadata;
    /// Returns whether a path leads to an existing entry. A dangling link does not.
    ///
    /// # Examples
    /// See [`metadata()`](metadata()#examples).
    try_exists(path;) -> bool;
    /// Returns the contents of a UTF-8 file.
    ///
    /// # Examples
    /// See [`write()`](write()#examples).
    read_to_string(path;) -> String;
    /// Returns the target of a symbolic link.
    ///
    /// # Examples
    /// See [`symlink()`](symlink()#examples).
    #[doc(alias = "readlink")]
    read_link(path;) -> PathBuf;
    /// Returns the absolute path without links, `.` and `..`.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let program = fs::canonicalize("/proc/self/exe").await?;
    /// assert_eq!(program, std::env::current_exe()?.canonicalize()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "realpath")]
    canonicalize(path;) -> PathBuf;
}

by_path! { order:
    /// Creates a directory.
    ///
    /// # Examples
    /// ```
    /// use std::io::ErrorKind;
    ///
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sakia-tokio-create-dir-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// fs::create_dir(dir.join("new")).await?;
    /// let error = fs::create_dir(dir.join("new")).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    /// fs::remove_dir(dir.join("new")).await?;
    /// assert!(!fs::try_exists(dir.join("new")).await?);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "mkdir")]
    create_dir(path;) -> ();
    /// Creates a directory and its missing parents.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sakia-tokio-create-all-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// fs::create_dir_all(dir.join("a/b/c")).await?;
    /// fs::rename(dir.join("a"), dir.join("z")).await?;
    /// assert!(fs::try_exists(dir.join("z/b/c")).await?);
    /// fs::remove_dir_all(dir.join("z")).await?;
    /// assert!(!fs::try_exists(dir.join("z")).await?);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    create_dir_all(path;) -> ();
    /// Removes a name of a file or link.
    ///
    /// # Examples
    /// See [`sakia_tokio`](crate#examples).
    #[doc(alias = "unlink")]
    remove_file(path;) -> ();
    /// Removes an empty directory.
    ///
    /// # Examples
    /// See [`create_dir()`](create_dir()#examples).
    #[doc(alias = "rmdir")]
    remove_dir(path;) -> ();
    /// Removes a directory with its contents.
    ///
    /// # Examples
    /// See [`create_dir_all()`](create_dir_all()#examples).
    remove_dir_all(path;) -> ();
    /// Renames an entry. An existing entry of the new name is replaced.
    ///
    /// # Examples
    /// See [`create_dir_all()`](create_dir_all()#examples).
    rename(from, to;) -> ();
    /// Creates a hard link.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sakia-tokio-hard-link-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// fs::write(dir.join("one"), "shared").await?;
    /// fs::hard_link(dir.join("one"), dir.join("two")).await?;
    /// assert_eq!(fs::read(dir.join("two")).await?, b"shared");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "link")]
    hard_link(original, link;) -> ();
    /// Creates a symbolic link.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sakia-tokio-symlink-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let link = dir.join("link");
    /// fs::symlink("target", &link).await?;
    /// assert_eq!(fs::read_link(&link).await?.to_str(), Some("target"));
    /// assert!(fs::symlink_metadata(&link).await?.is_symlink());
    /// assert!(!fs::try_exists(&link).await?, "there is no target");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok(())
    /// # }
    /// ```
    symlink(original, link;) -> ();
    /// Sets the permissions.
    ///
    /// # Examples
    /// ```
    /// use std::fs::Permissions;
    /// use std::os::unix::fs::PermissionsExt;
    ///
    /// use sakia_tokio::fs;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("sakia-tokio-chmod-{}", std::process::id()));
    /// fs::write(&path, "for me alone").await?;
    /// fs::set_permissions(&path, Permissions::from_mode(0o600)).await?;
    /// assert_eq!(fs::metadata(&path).await?.permissions().mode() & 0o777, 0o600);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
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
