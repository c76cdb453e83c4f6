//! The names of `tokio::fs` on Sakia.

#![forbid(unsafe_code)]

pub mod fs;
mod lane;
mod now;
