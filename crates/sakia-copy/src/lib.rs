//! Walking, copying and removing trees of files.
//!
//! [`copy_tree`] copies a tree, as `cp -r` or, with [`Options::archive`], as `cp -a` does, on the threads of
//! the calling [runtime](sakia::Runtime). A [`Copier`] copies several, and can be told to stop. What goes on
//! is told to a [`Progress`], and what came of it by a [`Report`].
//!
//! All is done by descriptor, relative to directories that are open, so paths may be longer than the kernel
//! takes them, and nobody can put a link in the way. Directories are closed and opened again where there
//! are too few descriptors.

#![forbid(unsafe_code)]

mod copy;
mod crew;
mod delays;
mod kernel;
mod options;
mod pace;
mod place;
mod progress;
mod remove;
mod report;
mod source;
mod stopped;
mod sys;
mod walk;

pub use copy::{Copier, copy_tree};
pub use options::{Existing, Follow, Options, Preserve, Reflink, Sparse};
pub use progress::Progress;
pub use remove::remove_tree;
pub use report::{Counters, Counts, Failure, Report};
pub use walk::{Entry, walk};

/// The guide's chapter, whose code runs as tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/copying.md")]
    mod copying {}
}
