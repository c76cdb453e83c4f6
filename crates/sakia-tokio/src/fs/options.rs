//! How a file is opened.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sakia::Engine;
use sakia::engine::__private::Ways;
use tokio::task::coop::consume_budget;

use super::handle::Handle;
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
pub struct OpenOptions {
    std: std::fs::OpenOptions,
    /// It can be read.
    reads: bool,
    /// Something else is, or may be, asked for, too.
    other: bool,
    /// Opening makes or empties a file, or may.
    changes: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Setters of the same names.
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
    /// Nothing is allowed, nothing is made.
    #[must_use]
    pub fn new() -> Self {
        Self { std: std::fs::OpenOptions::new(), reads: false, other: false, changes: false }
    }

    /// It can be read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.std.read(read);
        self.reads = read;
        self
    }

    flags! {
        /// It can be written.
        write, false;
        /// What is written goes to its end, wherever that is by then.
        append, false;
        /// It is emptied.
        truncate, true;
        /// It is made if it is not there.
        create, true;
        /// It is made, and must not be there yet.
        create_new, true;
    }

    /// Who may do what with a file that is made, less the process's mask. Without this call `0o666`.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.std.mode(mode);
        self
    }

    /// Flags of `open(2)` besides those that the other options come to. The access mode in them is ignored.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.std.custom_flags(flags);
        self.other |= flags != 0;
        self
    }

    /// Opens a file.
    ///
    /// # Errors
    /// As [`std::fs::OpenOptions::open`].
    #[doc(alias = "openat")]
    pub async fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        if self.reads && !self.other {
            consume_budget().await;
            // Only where the engine knows that no other machine is to be asked.
            if let Ok(engine) = Engine::global()
                && let Some(opened) = engine.try_open_regular(&path)
            {
                return Ok(File::new(Handle::local(opened?.into()), Ways::of_plain()));
            }
        }
        let options = self.std.clone();
        let path = [path.as_ref().to_owned()];
        let file = paths::opening(path, self.changes, move |[path]| options.open(path)).await?;
        Ok(File::new(Handle::new(file), Ways::default()))
    }
}

/// With all that was set.
impl From<std::fs::OpenOptions> for OpenOptions {
    fn from(std: std::fs::OpenOptions) -> Self {
        Self { std, reads: false, other: true, changes: true }
    }
}
