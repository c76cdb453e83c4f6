//! A small Redis, sufficient for `redis-cli` and `redis-benchmark`.
//!
//! The server is written as for tokio, with its traits, channels and `select!`, and names no runtime:
//!
//! - [`protocol`] finds commands in received bytes and writes replies.
//! - [`database`] has the keys, their expiry, and the channels of `PUBLISH` and `SUBSCRIBE`.
//! - [`serve`] answers one connection, of any type that is `AsyncRead + AsyncWrite`.
//! - [`remove_expired`] removes keys when they expire, with the timer that the caller passes.
//!
//! `main.rs` runs them on Sakia. Memory is bounded, whatever a client sends: [`Limits`] bounds lines, strings
//! and commands, the database has a limit of bytes, and [`QUEUE_MESSAGES_MAX`](database::QUEUE_MESSAGES_MAX)
//! and [`QUEUE_BYTES_MAX`](database::QUEUE_BYTES_MAX) bound the messages queued for a subscriber.

mod command;
mod connection;
pub mod database;
mod input;
pub mod protocol;

pub use connection::serve;
pub use database::{Database, remove_expired};
pub use protocol::Limits;
