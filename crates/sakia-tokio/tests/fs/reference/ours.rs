//! The implementation that is tested.

use sakia_tokio::fs;

#[path = "play.rs"]
mod play;

pub use self::play::World;
