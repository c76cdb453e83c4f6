//! The reference.

use tokio::fs;

#[path = "play.rs"]
mod play;

pub use self::play::World;
