//! The file that is summed.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use fastrand::Rng;
use rustix::fs::{Advice, fadvise};
use tempfile::TempDir;

use crate::bytes::sum;
use crate::scratch;

/// The name of the file.
pub(super) const FILE: &str = "data";
/// Bytes written at a time.
const PART_BYTES: usize = 1 << 20;
/// Fixes the bytes of the file.
const SEED: u64 = 0x5aa1_a000;

/// A file of random bytes in a directory of its own; both are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Input {
    directory: TempDir,
    file: File,
    bytes: u64,
    sum: u64,
    rng: Rng,
}

impl Input {
    /// Makes an empty file in a fresh directory below `parent`.
    pub(super) fn new(parent: &Path) -> anyhow::Result<Self> {
        let directory = scratch::directory("sakia-bench-", parent)?;
        let path = directory.path().join(FILE);
        let file = File::options().create_new(true).read(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { directory, file, bytes: 0, sum: 0, rng: Rng::with_seed(SEED) })
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Makes the file `bytes` long, unless it is longer, writes it to its device, reads it once, and returns
    /// its sum.
    pub(super) fn grow(
        &mut self,
        bytes: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<u64> {
        let path = self.directory.path().join(FILE);
        let mut part = vec![0; PART_BYTES];
        while self.bytes < bytes && !is_stopped() {
            let len = (bytes - self.bytes).min(PART_BYTES as u64);
            let part = &mut part[..len as usize];
            self.rng.fill(part);
            self.file.write_all(part).with_context(|| {
                format!("cannot write byte {} of {bytes} to {}", self.bytes, path.display())
            })?;
            self.bytes += len;
            self.sum = self.sum.wrapping_add(sum(part));
        }
        if is_stopped() {
            return Ok(self.sum);
        }
        self.file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        let mut file =
            File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        loop {
            let len =
                file.read(&mut part).with_context(|| format!("cannot read {}", path.display()))?;
            if len == 0 || is_stopped() {
                return Ok(self.sum);
            }
        }
    }

    /// Drops the file from the page cache, if its file system uses it.
    pub(super) fn drop_from_cache(&self) -> anyhow::Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed)
            .context("cannot drop the file from the cache")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_grows_is_summed_and_goes() {
        let mut input = Input::new(&std::env::temp_dir()).unwrap();
        let path = input.directory().join(FILE);
        let mut previous = Vec::new();
        for len in [0usize, 5, PART_BYTES, PART_BYTES + 7] {
            let expected = input.grow(len as u64, &|| false).unwrap();
            let data = fs::read(&path).unwrap();
            assert_eq!((data.len(), sum(&data)), (len, expected));
            assert!(data.starts_with(&previous));
            previous = data;
        }
        assert!((0..=255).all(|byte| previous.contains(&byte)));
        input.drop_from_cache().unwrap();
        let directory = input.directory().to_owned();
        drop(input);
        assert!(!directory.exists());
    }

    #[test]
    fn growing_stops_when_told_to() {
        let mut input = Input::new(&std::env::temp_dir()).unwrap();
        input.grow(1 << 40, &|| true).unwrap();
        assert_eq!(input.bytes, 0);
    }

    #[test]
    fn missing_directory_is_named() {
        let error = Input::new(Path::new("/nonexistent")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent"), "{error}");
    }
}
