//! Operations by path: those of [`fs`](crate::fs), on a thread of the engine.

use std::io;
use std::path::{Path, PathBuf};

use super::request::{Request, Work};
use super::{Engine, File};
use crate::fs::{self, FileType, Metadata, OpenOptions, Permissions};
use crate::io::IoBuf;

/// An entry of a directory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its path: that of the directory, with its name.
    pub path: PathBuf,
    /// Its number in the file system.
    pub ino: u64,
    /// What it is.
    pub file_type: FileType,
}

/// Forwards to functions of `fs` with paths, and values that can be sent.
macro_rules! by_path {
    ($($(#[$doc:meta])* $name:ident($($path:ident),*; $($value:ident: $type:ty),*) -> $output:ty;)*) => {
        impl Engine {$(
            $(#[$doc])*
            ///
            /// # Errors
            #[doc = concat!("As [`fs::", stringify!($name), "`]. `ECANCELED`: the engine was stopped.")]
            pub fn $name(
                &self,
                $($path: impl AsRef<Path>,)*
                $($value: $type,)*
            ) -> Request<Work<$output>> {
                $(let $path = $path.as_ref().to_owned();)*
                Request::new(self, Work::new(move |_| async move {
                    Ok(fs::$name($($path,)* $($value,)*).await?)
                }))
            }
        )*}
    };
}

by_path! {
    /// The contents of a file.
    read(path;) -> Vec<u8>;
    /// The contents of a file that is text in UTF-8.
    read_to_string(path;) -> String;
    /// What a path leads to, links followed.
    metadata(path;) -> Metadata;
    /// What is at a path, if only a link.
    symlink_metadata(path;) -> Metadata;
    /// Whether a path leads to something.
    try_exists(path;) -> bool;
    /// Makes a directory.
    create_dir(path;) -> ();
    /// Makes a directory, and those above it that are missing.
    create_dir_all(path;) -> ();
    /// Removes a name that is not a directory's.
    remove_file(path;) -> ();
    /// Removes an empty directory.
    remove_dir(path;) -> ();
    /// Removes a directory with all that is in it.
    remove_dir_all(path;) -> ();
    /// Gives something another name.
    rename(from, to;) -> ();
    /// Gives a file one more name.
    hard_link(original, link;) -> ();
    /// Makes a symbolic link.
    symlink(original, link;) -> ();
    /// Where a symbolic link leads.
    read_link(path;) -> PathBuf;
    /// The path without links and detours.
    canonicalize(path;) -> PathBuf;
    /// Copies contents and permissions.
    copy(from, to;) -> u64;
    /// Says who may do what.
    set_permissions(path; permissions: Permissions) -> ();
}

impl Engine {
    /// Opens a file to read it.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    pub fn open(&self, path: impl AsRef<Path>) -> Request<Work<File>> {
        let mut options = OpenOptions::new();
        options.read(true);
        self.open_with(path, &options)
    }

    /// Opens a file to write it: makes it if there is none, and empties it if there is one.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    pub fn create(&self, path: impl AsRef<Path>) -> Request<Work<File>> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        self.open_with(path, &options)
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]. `ECANCELED`: the engine was stopped.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Request<Work<File>> {
        let (path, options) = (path.as_ref().to_owned(), options.clone());
        let engine = self.clone();
        Request::new(
            self,
            Work::new(move |_| async move {
                let file = options.open(path).await?.into_std().await?;
                File::new(&engine, file.into())
            }),
        )
    }

    /// Takes over a file that `std` opened.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub fn adopt(&self, file: std::fs::File) -> io::Result<File> {
        File::new(self, file.into())
    }

    /// Replaces the contents of a file, or makes it.
    ///
    /// # Errors
    /// As [`fs::write`](fs::write()). `ECANCELED`: the engine was stopped.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl IoBuf + Send) -> Request<Work<()>> {
        let path = path.as_ref().to_owned();
        Request::new(self, Work::new(move |_| async move { Ok(fs::write(path, contents).await?) }))
    }

    /// What a directory has, in the order of the file system.
    ///
    /// # Errors
    /// As [`fs::read_dir`]. `ECANCELED`: the engine was stopped.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Request<Work<Vec<Entry>>> {
        let path = path.as_ref().to_owned();
        Request::new(
            self,
            Work::new(move |_| async move {
                let mut entries = Vec::new();
                let mut directory = fs::read_dir(path).await?;
                while let Some(entry) = directory.next_entry().await? {
                    let file_type = entry.file_type().await?;
                    entries.push(Entry { path: entry.path(), ino: entry.ino(), file_type });
                }
                Ok(entries)
            }),
        )
    }
}
