//! Walking, copying and removing trees of files.
//!
//! [`copy_tree`] copies a tree, as `cp -r` or, with [`Options::archive`], as `cp -a` does, on the threads of
//! the calling [runtime](sakia::Runtime). All calls are relative to open directories, so paths may be longer
//! than the kernel accepts, and no other user can redirect them with a link, or by exchanging a new entry for
//! another one. If descriptors run short, directories are closed and opened again.
//!
//! # Examples
//! ```
//! use sakia_copy::{Options, Progress, copy_tree};
//!
//! #[sakia::main(threads = 2)]
//! async fn main() -> std::io::Result<()> {
//! #   let to = std::env::temp_dir().join(format!("sakia-copy-first-{}", std::process::id()));
//!     let report = copy_tree("src", &to, &Options::archive(), &Progress::new().into()).await?;
//!     for failure in &report.failures {
//!         eprintln!("{failure}");
//!     }
//!     assert!(report.is_complete() && report.counts.files > 10);
//!     assert!(to.join("lib.rs").exists());
//! #   std::fs::remove_dir_all(&to)?;
//!     Ok(())
//! }
//! ```
//!
//! # Contents
//! - [`copy_tree`] copies one tree. A [`Copier`] copies several, and can be stopped. [`Options`] say how.
//! - [`remove_tree`] removes one, [`walk`] visits its entries.
//! - A [`Progress`] gets reports during the work, and a [`Report`] has the result.

#![forbid(unsafe_code)]

mod copy;
mod crew;
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
