//! Foreign code that reads, writes and serves on this runtime.

mod files;
mod http;
mod streams;

/// Bytes of which a missing or a doubled block is seen.
fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}
