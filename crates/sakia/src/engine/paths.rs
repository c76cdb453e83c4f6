//! Operations by path: the names of [`std::fs`], and its types.
//!
//! A plain thread that waits for a request makes `std`'s own call. When awaited, files are opened and read at
//! once if the caches have them, and on a thread of the engine otherwise; the other requests make `std`'s
//! calls on the pool for blocking code.

use std::fs::{self, Metadata, Permissions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sakia_driver::limits;

use super::blocking::{Blocking, Calls, Code};
use super::request::{Call, Request, Tried, error_of_lost};
use super::{Engine, File};
use crate::error::{Context, Error};
use crate::fs as tasks;
use crate::fs::OpenOptions;
use crate::io::IoBuf;
use crate::join::JoinError;

/// Forwards to functions of `std` with paths and perhaps a value.
macro_rules! by_path {
    ($context:ident, $named:literal; $(
        $(#[$doc:meta])*
        $name:ident($($path:ident),* $(; $value:ident: $type:ty)?) -> $output:ty = $call:path;
    )*) => {
        impl Engine {$(
            $(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($call), "`]; it names the ", $named, ".")]
            /// `ECANCELED`: the engine was stopped.
            #[track_caller]
            pub fn $name(
                &self,
                $($path: impl AsRef<Path>,)*
                $($value: $type,)?
            ) -> Request<Blocking<$output>> {
                $(let $path = $path.as_ref().to_owned();)*
                let is_remote = [$(&$path),*].iter().any(|path| self.shared.paths.may_wait(path));
                let call = move || {
                    let result = $call($(&$path,)* $($value)?);
                    Ok(result.$context(stringify!($name), $(&$path),*)?)
                };
                self.block_on_pool(Code(call), is_remote)
            }
        )*}
    };
}

by_path! { at, "path";
    /// Makes a directory.
    create_dir(path) -> () = std::fs::create_dir;
    /// Makes a directory, and those above it that are missing.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-engine-dirs-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let engine = Engine::new()?;
    /// sakia::block_on(async {
    ///     engine.create_dir_all(dir.join("a/b")).await?;
    ///     engine.rename(dir.join("a"), dir.join("z")).await?;
    ///     assert!(engine.metadata(dir.join("z/b")).await?.is_dir());
    ///     engine.remove_dir_all(dir.join("z")).await?;
    ///     assert!(!engine.try_exists(dir.join("z")).await?);
    ///     std::io::Result::Ok(())
    /// })?;
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// ```
    create_dir_all(path) -> () = std::fs::create_dir_all;
    /// Removes a file, link, FIFO and so on, but not a directory.
    remove_file(path) -> () = std::fs::remove_file;
    /// Removes an empty directory.
    remove_dir(path) -> () = std::fs::remove_dir;
    /// Removes a directory with all that is in it.
    ///
    /// # Examples
    /// See [`Engine::create_dir_all`].
    remove_dir_all(path) -> () = std::fs::remove_dir_all;
    /// Reads the target of a symbolic link.
    ///
    /// # Examples
    /// See [`Engine::symlink`].
    read_link(path) -> PathBuf = std::fs::read_link;
    /// Returns the absolute path without links, `.` and `..`.
    canonicalize(path) -> PathBuf = std::fs::canonicalize;
    /// Sets the access rights.
    set_permissions(path; permissions: Permissions) -> () = std::fs::set_permissions;
}

by_path! { between, "paths";
    /// Renames a file or a directory.
    ///
    /// # Examples
    /// See [`Engine::create_dir_all`].
    rename(from, to) -> () = std::fs::rename;
    /// Makes another hard link to a file.
    hard_link(original, link) -> () = std::fs::hard_link;
    /// Makes a symbolic link.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-engine-links-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let engine = Engine::new()?;
    /// engine.symlink("target", dir.join("link")).wait()?;
    /// assert_eq!(engine.read_link(dir.join("link")).wait()?.to_str(), Some("target"));
    /// assert!(engine.symlink_metadata(dir.join("link")).wait()?.is_symlink());
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// ```
    symlink(original, link) -> () = std::os::unix::fs::symlink;
    /// Copies contents and permissions.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let dir = std::env::temp_dir().join(format!("sakia-doc-engine-copy-{}", std::process::id()));
    /// # std::fs::create_dir(&dir)?;
    /// let engine = Engine::new()?;
    /// engine.write(dir.join("from"), "contents").wait()?;
    /// assert_eq!(engine.copy(dir.join("from"), dir.join("to")).wait()?, 8);
    /// assert_eq!(sakia::block_on(engine.read(dir.join("to")))?, b"contents");
    /// # std::fs::remove_dir_all(&dir)?;
    /// # std::io::Result::Ok(())
    /// ```
    copy(from, to) -> u64 = std::fs::copy;
}

/// The metadata of a path.
struct Stat {
    path: PathBuf,
    /// Links at the end are followed.
    follows: bool,
}

impl Calls<Metadata> for Stat {
    fn attempt(&mut self, engine: &Engine) -> Option<io::Result<Metadata>> {
        let fd = engine.try_lookup(&self.path, self.follows)?;
        let metadata = fd.and_then(|fd| fs::File::from(fd).metadata());
        Some(metadata.at("metadata", &self.path).map_err(io::Error::from))
    }

    fn block(self: Box<Self>) -> io::Result<Metadata> {
        let call = if self.follows { fs::metadata } else { fs::symlink_metadata };
        Ok(call(&self.path).at("metadata", &self.path)?)
    }
}

/// The existence of a path.
struct Exists(PathBuf);

impl Calls<bool> for Exists {
    fn attempt(&mut self, engine: &Engine) -> Option<io::Result<bool>> {
        match engine.try_lookup(&self.0, true)? {
            Ok(_) => Some(Ok(true)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Ok(false)),
            Err(error) => Some(Err(error).at("metadata", &self.0).map_err(io::Error::from)),
        }
    }

    fn block(self: Box<Self>) -> io::Result<bool> {
        Ok(fs::exists(&self.0).at("metadata", &self.0)?)
    }
}

impl Engine {
    /// Returns the metadata of the file to which a path leads, links followed.
    ///
    /// # Errors
    /// As [`std::fs::metadata`]; it names the path. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-paths-{}", std::process::id()));
    /// let engine = Engine::new()?;
    /// sakia::block_on(async {
    ///     engine.write(&path, "hello").await?;
    ///     assert_eq!(engine.metadata(&path).await?.len(), 5);
    ///     assert_eq!(engine.read_to_string(&path).await?, "hello");
    ///     assert!(engine.try_exists(&path).await?);
    ///     std::io::Result::Ok(())
    /// })?;
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn metadata(&self, path: impl AsRef<Path>) -> Request<Blocking<Metadata>> {
        self.stat(path.as_ref(), true)
    }

    /// Returns the metadata of the file at a path, of the link itself if it is one.
    ///
    /// # Errors
    /// As [`metadata`](Engine::metadata).
    ///
    /// # Examples
    /// See [`Engine::symlink`].
    #[track_caller]
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Request<Blocking<Metadata>> {
        self.stat(path.as_ref(), false)
    }

    #[track_caller]
    fn stat(&self, path: &Path, follows: bool) -> Request<Blocking<Metadata>> {
        let is_remote = self.shared.paths.may_wait(path);
        self.block_on_pool(Stat { path: path.to_owned(), follows }, is_remote)
    }

    /// Returns whether a path leads to a file.
    ///
    /// # Errors
    /// As [`metadata`](Engine::metadata), and never `ENOENT`.
    ///
    /// # Examples
    /// See [`Engine::metadata`].
    #[track_caller]
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Request<Blocking<bool>> {
        let path = path.as_ref();
        self.block_on_pool(Exists(path.to_owned()), self.shared.paths.may_wait(path))
    }

    /// Replaces the contents of a file, and makes the file if there is none.
    ///
    /// # Errors
    /// As [`std::fs::write`]; it names the path. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// See [`Engine::metadata`].
    #[track_caller]
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        contents: impl IoBuf + Send,
    ) -> Request<Blocking<()>> {
        let path = path.as_ref().to_owned();
        let is_remote = self.shared.paths.may_wait(&path);
        let call = move || Ok(fs::write(&path, contents.as_bytes()).at("write", &path)?);
        self.block_on_pool(Code(call), is_remote)
    }

    /// Opens a directory, to read its entries.
    ///
    /// # Errors
    /// As [`std::fs::read_dir`]; it names the path. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// let engine = Engine::new()?;
    /// let mut threads = engine.read_dir("/proc/self/task").wait()?;
    /// let mut count = 0;
    /// loop {
    ///     let entries = sakia::block_on(threads.next_batch())?;
    ///     if entries.is_empty() {
    ///         break;
    ///     }
    ///     count += entries.len();
    /// }
    /// assert!(count > 1, "this thread and the engine's");
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Request<Blocking<ReadDir>> {
        let path = path.as_ref().to_owned();
        let is_remote = self.shared.paths.may_wait(&path);
        let engine = self.clone();
        let call = move || {
            let entries = Arc::new(Mutex::new(fs::read_dir(&path).at("read_dir", &path)?));
            Ok(ReadDir { engine, entries, is_remote })
        };
        self.block_on_pool(Code(call), is_remote)
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// See [`Engine`](Engine#examples).
    #[track_caller]
    pub fn open(&self, path: impl AsRef<Path>) -> Request<Open> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Opens a file to write it: makes it if there is none, and empties it if there is one.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// See [`File::write_at`].
    #[track_caller]
    pub fn create(&self, path: impl AsRef<Path>) -> Request<Open> {
        self.open_with(path, OpenOptions::new().write(true).create(true).truncate(true))
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    /// use sakia::fs::OpenOptions;
    ///
    /// # let path = std::env::temp_dir().join(format!("sakia-doc-engine-open-with-{}", std::process::id()));
    /// let engine = Engine::new()?;
    /// let append = OpenOptions::new().append(true).create(true).clone();
    /// let log = engine.open_with(&path, &append).wait()?;
    /// log.write_at("one line\n", 0).wait().0?;
    /// log.write_at("and another\n", 0).wait().0?;
    /// assert_eq!(std::fs::read(&path)?, b"one line\nand another\n");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(())
    /// ```
    #[track_caller]
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Request<Open> {
        let (path, options) = (path.as_ref().to_owned(), options.clone());
        Request::new(Open { engine: self.clone(), path, options, opened: None })
    }

    /// Takes over a file that `std` opened.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia::Engine;
    ///
    /// let program = std::fs::File::open(std::env::current_exe()?)?;
    /// let file = Engine::new()?.adopt(program)?;
    /// assert_eq!(file.read_at(vec![0; 3], 1).wait().1, b"ELF");
    /// # std::io::Result::Ok(())
    /// ```
    pub fn adopt(&self, file: fs::File) -> io::Result<File> {
        File::new(self, file.into())
    }

    /// Returns the contents of a file.
    ///
    /// # Errors
    /// As [`std::fs::read`]; it names the path. `ECANCELED`: the engine was stopped.
    ///
    /// # Examples
    /// See [`Request`](Request#examples).
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> Request<ReadFile> {
        self.read_as(path.as_ref(), Ok)
    }

    /// Returns the contents of a file that is text in UTF-8.
    ///
    /// # Errors
    /// `InvalidData`: not UTF-8. Otherwise as [`read`](Engine::read).
    ///
    /// # Examples
    /// See [`Engine::metadata`].
    #[track_caller]
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Request<ReadText> {
        self.read_as(path.as_ref(), tasks::into_text)
    }

    #[track_caller]
    fn read_as<T: Send + 'static>(
        &self,
        path: &Path,
        convert: fn(Vec<u8>) -> io::Result<T>,
    ) -> Request<ReadFile<T>> {
        let (engine, path) = (self.clone(), path.to_owned());
        Request::new(ReadFile { engine, path, begun: None, convert })
    }
}

/// Reads the entries of a directory, in the order of the file system. See [`Engine::read_dir`].
///
/// # Examples
/// See [`Engine::read_dir`].
pub struct ReadDir {
    engine: Engine,
    entries: Arc<Mutex<fs::ReadDir>>,
    is_remote: bool,
}

impl ReadDir {
    /// The most entries of a batch.
    pub const BATCH: usize = 512;

    /// Returns the next entries; none at the end of the directory.
    ///
    /// # Errors
    /// As `getdents(2)`. Entries before the error are lost.
    ///
    /// # Examples
    /// See [`Engine::read_dir`].
    #[track_caller]
    pub fn next_batch(&mut self) -> Request<Blocking<Vec<fs::DirEntry>>> {
        let entries = Arc::clone(&self.entries);
        let next = move || {
            let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.by_ref().take(Self::BATCH).collect()
        };
        self.engine.block_on_pool(Code(next), self.is_remote)
    }
}

/// See [`Engine::open`].
pub struct Open {
    engine: Engine,
    path: PathBuf,
    options: OpenOptions,
    /// `Some` if it is a FIFO or a device, opened without waiting: a FIFO may have no writer yet.
    opened: Option<OwnedFd>,
}

impl Call for Open {
    type Output = io::Result<File>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn attempt(mut self) -> Tried<Self> {
        if !self.options.only_reads() {
            return Tried::Waits(self);
        }
        let result = match self.engine.open_to_read_now(&self.path) {
            None => return Tried::Waits(self),
            Some(Ok(opened)) if opened.waits_for_others => {
                self.opened = Some(opened.fd);
                return Tried::Waits(self);
            }
            Some(result) => result.and_then(|opened| {
                let calls = opened.calls();
                Ok(File::with_calls(&self.engine, opened.into_blocking()?, calls))
            }),
        };
        self.engine.shared.tally.count(|part| &part.now);
        Tried::Done(result.at("open", &self.path).map_err(io::Error::from))
    }

    fn block(self) -> Result<Self::Output, Self> {
        match self.options.open_blocking(&self.path) {
            Some(result) => Ok(result.and_then(|fd| File::new(&self.engine, fd))),
            None => Err(self),
        }
    }

    async fn run(self, _thread: usize) -> Self::Output {
        let Self { engine, path, options, opened } = self;
        let fd = match opened {
            Some(fd) => tasks::finish_opening(fd).await.at("open", &path)?,
            None => options.open(path).await?.into_std().await?.into(),
        };
        File::new(&engine, fd)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }

    fn lost(error: JoinError) -> Self::Output {
        Err(error_of_lost(error))
    }
}

/// See [`Engine::read`].
pub struct ReadFile<T = Vec<u8>> {
    engine: Engine,
    path: PathBuf,
    /// `Some` if the file is open and its first bytes were read: the descriptor and these bytes.
    begun: Option<(OwnedFd, Vec<u8>)>,
    /// Converts the bytes to the result.
    convert: fn(Vec<u8>) -> io::Result<T>,
}

/// See [`Engine::read_to_string`].
pub type ReadText = ReadFile<String>;

impl<T> ReadFile<T> {
    /// Reads the file if the caches have it, and otherwise as much as they have.
    fn read_now(&mut self) -> Option<io::Result<Vec<u8>>> {
        let opened = match self.engine.open_to_read_now(&self.path)? {
            Ok(opened) => opened,
            Err(error) => return Some(Err(error)),
        };
        // A file with the size 0 may have contents all the same, as in `/proc`.
        let size = opened.size.and_then(|size| usize::try_from(size).ok());
        let Some(size) = size.filter(|size| (1..=limits::CALLER_BYTES).contains(size)) else {
            self.begun = Some((opened.fd, Vec::new()));
            return None;
        };
        let mut bytes = vec![0; size];
        let part = IoSliceMut::new(&mut bytes);
        let count = match opened.calls().read(opened.fd.as_fd(), &mut [part], Some(0)) {
            Some(Ok(count)) if count == size => return Some(Ok(bytes)),
            Some(Ok(count)) => count,
            // The read is repeated there, fails again, and the error is reported.
            Some(Err(_)) | None => 0,
        };
        bytes.truncate(count);
        self.begun = Some((opened.fd, bytes));
        None
    }

    /// Converts the bytes that were read; an error names the path.
    fn end(&self, bytes: io::Result<Vec<u8>>) -> io::Result<T> {
        Ok(bytes.and_then(self.convert).at("read", &self.path)?)
    }
}

impl<T: Send + 'static> Call for ReadFile<T> {
    type Output = io::Result<T>;

    fn engine(&self) -> &Engine {
        &self.engine
    }

    fn attempt(mut self) -> Tried<Self> {
        let Some(bytes) = self.read_now() else { return Tried::Waits(self) };
        self.engine.shared.tally.count(|part| &part.now);
        Tried::Done(self.end(bytes))
    }

    fn block(self) -> Result<Self::Output, Self> {
        Ok(self.end(fs::read(&self.path)))
    }

    async fn run(mut self, _thread: usize) -> Self::Output {
        let bytes = match self.begun.take() {
            Some((fd, begin)) => tasks::read_opened(fd, begin).await,
            // The plain calls of the other ways do not tell opening from reading.
            None => tasks::read(&self.path).await.map_err(Error::into_io_error),
        };
        self.end(bytes)
    }

    fn refuse(self, error: io::Error) -> Self::Output {
        Err(error)
    }

    fn lost(error: JoinError) -> Self::Output {
        Err(error_of_lost(error))
    }
}
