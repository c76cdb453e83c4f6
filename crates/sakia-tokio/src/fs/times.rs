//! Times of a file that are to be set.

use std::time::SystemTime;

/// Times that [`File::set_times`](super::File::set_times) is to set.
///
/// # Examples
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use sakia_tokio::fs::{File, FileTimes};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let path = std::env::temp_dir().join(format!("sakia-tokio-times-{}", std::process::id()));
/// let file = File::create(&path).await?;
/// let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
/// file.set_times(FileTimes::new().set_modified(then)).await?;
/// assert_eq!(file.metadata().await?.modified()?, then);
/// # std::fs::remove_file(&path)
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing happens before they are given to a file"]
pub struct FileTimes {
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
}

impl FileTimes {
    /// Changes none.
    pub fn new() -> Self {
        Self::default()
    }

    /// When it was last read.
    pub fn set_accessed(mut self, time: SystemTime) -> Self {
        self.accessed = Some(time);
        self
    }

    /// When its contents last changed.
    pub fn set_modified(mut self, time: SystemTime) -> Self {
        self.modified = Some(time);
        self
    }

    pub(super) fn into_std(self) -> std::fs::FileTimes {
        let mut times = std::fs::FileTimes::new();
        if let Some(time) = self.accessed {
            times = times.set_accessed(time);
        }
        if let Some(time) = self.modified {
            times = times.set_modified(time);
        }
        times
    }
}
