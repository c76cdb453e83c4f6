//! Options to open a file.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use sakia::Engine;
use sakia_driver::FileCalls;
use tokio::task::coop::consume_budget;

use super::handle::Handle;
use super::{File, paths};

/// Options to open a file: [`std::fs::OpenOptions`], without blocking the task.
///
/// # Examples
/// ```
/// use sakia_tokio::fs::OpenOptions;
/// use tokio::io::AsyncWriteExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-options-{}", std::process::id()));
/// let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path).await?;
/// file.write_all(b"one more line\n").await?;
/// file.flush().await?;
/// # assert_eq!(std::fs::read(&path)?, b"one more line\n");
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    std: std::fs::OpenOptions,
    /// Reading is allowed.
    reads: bool,
    /// Another option is, or may be, set, too.
    other: bool,
    /// Opening creates or truncates a file, or may.
    changes: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Defines setters of the same names.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident, $changes:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: bool) -> &mut Self {
            self.std.$name($name);
            self.other |= $name;
            self.changes |= $name && $changes;
            self
        }
    )*};
}

impl OpenOptions {
    /// Returns options without any access or creation.
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    #[must_use]
    pub fn new() -> Self {
        Self { std: std::fs::OpenOptions::new(), reads: false, other: false, changes: false }
    }

    /// Sets whether the file can be read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.std.read(read);
        self.reads = read;
        self
    }

    flags! {
        /// Sets whether the file can be written.
        write, false;
        /// Sets whether writes go to the file's end at that time.
        append, false;
        /// Sets whether the file is truncated.
        truncate, true;
        /// Sets whether a missing file is created.
        create, true;
        /// Sets whether the file is created and must not exist yet.
        create_new, true;
    }

    /// Sets the mode of a created file, from which the umask is removed. The default is `0o666`.
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.std.mode(mode);
        self
    }

    /// Adds flags of `open(2)` to those of the other options. Their access mode is ignored.
    ///
    /// # Examples
    /// ```
    /// use sakia_tokio::fs::OpenOptions;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let options = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).clone();
    /// let error = options.open("/proc/self/exe").await.unwrap_err();
    /// assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
    /// # Ok(())
    /// # }
    /// ```
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.std.custom_flags(flags);
        self.other |= flags != 0;
        self.changes |=
            OFlags::from_bits_retain(flags as u32).intersects(OFlags::CREATE | OFlags::TRUNC);
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As [`std::fs::OpenOptions::open`].
    ///
    /// # Examples
    /// See [`OpenOptions`](OpenOptions#examples).
    #[doc(alias = "openat")]
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        if self.reads && !self.other {
            consume_budget().await;
            // Only if the engine knows that no other machine is involved.
            if let Ok(engine) = Engine::global()
                && let Some(opened) = engine.try_open_regular(&path)
            {
                return Ok(File::new(
                    Handle::local(opened?.into()),
                    FileCalls::with_flags(OFlags::empty()),
                ));
            }
        }
        let options = self.std.clone();
        let path = [path.as_ref().to_owned()];
        let file = paths::opening(path, self.changes, move |[path]| options.open(path)).await?;
        Ok(File::new(Handle::new(file), FileCalls::default()))
    }
}

/// Keeps all options.
impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(std: std::fs::OpenOptions) -> Self {
        Self { std, reads: false, other: true, changes: true }
    }
}
