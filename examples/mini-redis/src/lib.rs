//! A small Redis: enough of it for `redis-cli` and `redis-benchmark`.
//!
//! The server is written as for tokio, with its traits, its channels and its `select!`, and names no runtime:
//!
//! - [`protocol`] finds commands in received bytes, and writes replies.
//! - [`database`] has the keys, their times of expiry, and the channels of `PUBLISH` and `SUBSCRIBE`.
//! - [`serve`] answers one connection, any `AsyncRead + AsyncWrite`.
//! - [`remove_expired`] removes keys when their time is over, by a timer that it is given.
//!
//! `main.rs` runs them on Sakia. Memory is bounded, whatever a client sends: sizes of lines, strings and
//! commands by [`Limits`], the database as a whole by its number of bytes, and the messages that wait for a
//! subscriber by [`QUEUE_MESSAGES_MAX`](database::QUEUE_MESSAGES_MAX) and
//! [`QUEUE_BYTES_MAX`](database::QUEUE_BYTES_MAX).

mod command;
mod connection;
pub mod database;
mod input;
pub mod protocol;

pub use connection::serve;
pub use database::{Database, remove_expired};
pub use protocol::Limits;
