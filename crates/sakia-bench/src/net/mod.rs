//! Experiments on connections. A server is measured, in its own process; a load in another process, the same
//! for all variants, uses it.
//!
//! 1. The server's process goes to its [`Place`]: a network namespace and a processor of its own.
//! 2. It starts the load, which listens for one connection, *control*, and reports the address.
//! 3. The server listens for the load's other connections, connects control, and reports their port.
//! 4. The load connects, sends the warm-up, and waits for all answers. Then it sends [`BEGIN`], and goes on
//!    when the server has sent the same: between these two the measured section begins.
//! 5. It sends the measured messages, waits for all answers, and sends [`END`]; the section ends before the
//!    server answers that.
//! 6. The load closes all connections, and reports.
//!
//! With datagrams there are no connections: the server reports the port of its socket. With streams to the
//! server the section ends when the server has received all.
//!
//! If either process ends early, the other one learns of it from control.

mod datagrams;
pub mod load;
mod place;
mod server;
mod streams;

pub(crate) use self::datagrams::{serve_datagrams, serve_datagrams_blocking};
pub use self::load::Order;
pub use self::place::{CONGESTION, Place};
pub(crate) use self::server::{
    LOAD, Load, Task, done, hear_blocking, run_cell, run_load, serve_blocking, through_runtime,
};
pub(crate) use self::streams::Sampled;
pub use self::streams::Streams;

/// Sent by the load before the measured section, and by the server when it is ready for it.
pub const BEGIN: u8 = b'b';
/// Sent by the load after the measured section, and by the server when it has stopped measuring.
pub const END: u8 = b'e';
