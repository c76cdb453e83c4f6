//! The attributes of the `sakia` crate, which re-exports them: use them from there.
//!
//! Both turn an `async fn` into an ordinary one that builds a runtime and runs the body on it.
//!
//! # Examples
//! It needs the crate `sakia`, whose first page has one that runs as a test:
//! ```ignore
//! #[sakia::main]
//! async fn main() -> std::io::Result<()> {
//!     let bytes = sakia::fs::read("Cargo.toml").await?;
//!     assert!(bytes.starts_with(b"[package]"));
//!     Ok(())
//! }
//! ```
//!
//! # Contents
//! - [`macro@main`] is for programs, [`macro@test`] for tests.
//!
//! The expansion works on `proc_macro2` tokens, so that the tests below can examine it.

#![forbid(unsafe_code)]

mod entry;

use proc_macro::TokenStream;

/// Runs an `async fn` on a runtime of its own: a program's `main`, or any other function or method, with the
/// arguments and generic parameters that it has.
///
/// ```ignore
/// #[sakia::main]
/// async fn main() -> std::io::Result<()> {
///     sakia::yield_now().await;
///     Ok(())
/// }
///
/// #[sakia::main]
/// async fn len(path: &Path) -> sakia::Result<u64> {
///     Ok(sakia::fs::metadata(path).await?.len())
/// }
/// ```
///
/// A function that runs on a runtime already cannot call one with this attribute: it would build a runtime
/// within another, and panics. It calls the function that does the work.
///
/// `#[sakia::main(threads = 4)]` builds a runtime of that many threads. The value is any expression of type
/// `usize`.
///
/// # Panics
/// The function panics when no runtime can be built: see `sakia::Builder::build`; and within a runtime.
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    entry::expand(entry::Kind::Main, options.into(), function.into()).into()
}

/// Runs an `async fn` as a test, on a runtime of its own. Takes the options of `main`.
///
/// # Examples
/// ```ignore
/// #[sakia::test]
/// async fn yields() -> std::io::Result<()> {
///     sakia::yield_now().await;
///     Ok(())
/// }
/// ```
#[proc_macro_attribute]
pub fn test(options: TokenStream, function: TokenStream) -> TokenStream {
    entry::expand(entry::Kind::Test, options.into(), function.into()).into()
}
