//! How a file is opened.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{File, paths};

/// How a file is to be opened: [`std::fs::OpenOptions`], opening without blocking the task.
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
pub struct OpenOptions(std::fs::OpenOptions);

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Setters of the same names.
macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        pub fn $name(&mut self, $name: bool) -> &mut Self {
            self.0.$name($name);
            self
        }
    )*};
}

impl OpenOptions {
    /// Nothing is allowed, nothing is made.
    #[must_use]
    pub fn new() -> Self {
        Self(std::fs::OpenOptions::new())
    }

    flags! {
        /// It can be read.
        read
        /// It can be written.
        write
        /// What is written goes to its end, wherever that is by then.
        append
        /// It is emptied.
        truncate
        /// It is made if it is not there.
        create
        /// It is made, and must not be there yet.
        create_new
    }

    /// Who may do what with a file that is made, less the process's mask. Without this call `0o666`.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.0.mode(mode);
        self
    }

    /// Flags of `open(2)` besides those that the other options come to. The access mode in them is ignored.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.0.custom_flags(flags);
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As [`std::fs::OpenOptions::open`].
    #[doc(alias = "openat")]
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let options = self.0.clone();
        let path = [path.as_ref().to_owned()];
        let file = paths::opening(path, move |[path]| options.open(path)).await?;
        Ok(File::from_std(file))
    }
}

/// With all that was set.
impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(options: std::fs::OpenOptions) -> Self {
        Self(options)
    }
}
