//! The files that are read and written.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use fastrand::Rng;
use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, StatxFlags, fadvise, fallocate, statx};
use tempfile::TempDir;

use super::load::{Load, UNWRITTEN};
use crate::bytes::sum;
use crate::scratch;

/// Bytes written at a time.
const PART_BYTES: usize = 1 << 20;
/// Fixes the bytes of the files.
const SEED: u64 = 0x5aa1_a001;
/// The assumed alignment of direct I/O if the kernel does not report it: before Linux 6.1.
const ALIGN_GUESS: u64 = 4096;

/// Files in a directory of their own, which is removed when this is dropped; or the user's files, which are
/// only read.
#[derive(Debug)]
pub(super) struct Input {
    directory: TempDir,
    is_sparse: bool,
    /// The number of bytes of each file that are as they were made.
    made: HashMap<PathBuf, u64>,
}

impl Input {
    /// Returns an input without files, in a fresh directory below `parent`.
    pub fn new(parent: &Path, is_sparse: bool) -> anyhow::Result<Self> {
        let directory = scratch::directory("sakia-bench-", parent)?;
        Ok(Self { directory, is_sparse, made: HashMap::new() })
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the alignment of offsets and lengths for direct I/O here; `None` if direct I/O is unsupported.
    pub fn direct_alignment(&self) -> anyhow::Result<Option<u64>> {
        let path = self.directory.path().join("probe");
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let opened = open(&path, Access { direct: true, ..Access::READ });
        let stat = statx(CWD, &path, AtFlags::empty(), StatxFlags::DIOALIGN);
        fs::remove_file(&path).ok();
        if opened.is_err() {
            return Ok(None);
        }
        let is_told = |stat: &rustix::fs::Statx| {
            stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align > 0
        };
        let told = stat.ok().filter(is_told).map(|stat| u64::from(stat.stx_dio_offset_align));
        Ok(Some(told.unwrap_or(ALIGN_GUESS)))
    }

    /// Makes the files of a load, and returns the sum that a run has to compute. The user's files only have
    /// to be long enough.
    pub fn make(&mut self, load: &Load, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        for (index, name) in load.files.iter().enumerate() {
            let (path, bytes) = (self.directory.path().join(name), load.file_bytes(index));
            if name.is_absolute() {
                let file = open(&path, Access::READ)?;
                let found = file.metadata().with_context(|| path.display().to_string())?.len();
                anyhow::ensure!(
                    found >= bytes,
                    "{}: {found} bytes are fewer than the {bytes} that are to be read",
                    path.display()
                );
            } else {
                let seed = SEED + index as u64;
                let made = self.made.get(name).copied().unwrap_or(0);
                if made < bytes {
                    self.make_file(&path, seed, bytes, is_stopped)
                        .with_context(|| format!("cannot make {}", path.display()))?;
                    self.made.insert(name.clone(), bytes);
                }
            }
            if is_stopped() {
                return Ok(0);
            }
        }
        self.expected(load)
    }

    fn make_file(
        &self,
        path: &Path,
        seed: u64,
        bytes: u64,
        is_stopped: &dyn Fn() -> bool,
    ) -> anyhow::Result<()> {
        let mut file = File::create(path)?;
        if self.is_sparse {
            file.set_len(bytes)?;
            return Ok(());
        }
        let (mut rng, mut part) = (Rng::with_seed(seed), vec![0; PART_BYTES]);
        let mut left = bytes;
        while left > 0 && !is_stopped() {
            let part = &mut part[..left.min(PART_BYTES as u64) as usize];
            rng.fill(part);
            file.write_all(part)?;
            left -= part.len() as u64;
        }
        if !is_stopped() {
            file.sync_all()?;
        }
        Ok(())
    }

    /// Restores the state before a run: the areas for writes are unwritten.
    pub fn reset(&mut self, load: &Load, is_cold: bool) -> anyhow::Result<()> {
        for (index, name) in load.files.iter().enumerate() {
            let path = self.directory.path().join(name);
            let context = || format!("cannot restore {}", path.display());
            let written = load.written_bytes(index);
            if written > 0 {
                let file = OpenOptions::new().write(true).open(&path).with_context(context)?;
                self.unwrite(&file, load.writes_begin(), written).with_context(context)?;
                // A later point may read the bytes after it.
                self.made.insert(name.clone(), load.writes_begin());
            }
            if is_cold {
                let file = open(&path, Access::READ)?;
                file.sync_all().with_context(context)?;
                fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).with_context(context)?;
            }
        }
        Ok(())
    }

    fn unwrite(&self, file: &File, begin: u64, bytes: u64) -> anyhow::Result<()> {
        if self.is_sparse {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, begin, bytes)?;
        } else {
            let part = vec![UNWRITTEN; PART_BYTES];
            let mut done = 0;
            while done < bytes {
                let len = (bytes - done).min(PART_BYTES as u64) as usize;
                file.write_all_at(&part[..len], begin + done)?;
                done += len as u64;
            }
        }
        file.sync_all()?;
        Ok(())
    }

    /// Returns the sum that a run has to compute.
    fn expected(&self, load: &Load) -> anyhow::Result<u64> {
        let paths: Vec<_> =
            load.files.iter().map(|name| self.directory.path().join(name)).collect();
        let files: Vec<_> =
            paths.iter().map(|path| open(path, Access::READ)).collect::<Result<_, _>>()?;
        let mut buf = vec![0; load.reads.buffer_bytes()];
        let mut values = HashMap::new();
        let mut total = 0u64;
        for thread in 0..load.threads {
            let mut last = None;
            for one in load.of_thread(thread).filter(|operation| !operation.is_write) {
                let value = match values.get(&(one.file, one.offset)) {
                    Some(&value) => value,
                    None => {
                        let context = || paths[one.file].display().to_string();
                        files[one.file]
                            .read_exact_at(&mut buf, one.offset)
                            .with_context(context)?;
                        let value = load.value(&buf);
                        values.insert((one.file, one.offset), value);
                        value
                    }
                };
                total = total.wrapping_add(value);
                last = Some(one);
            }
            // A thread that computes has several buffers, and keeps none.
            if let Some(one) = last.filter(|_| load.computation.is_none()) {
                files[one.file].read_exact_at(&mut buf, one.offset)?;
                total = total.wrapping_add(sum(&buf));
            }
        }
        let written = (0..files.len()).map(|file| load.written_sum(file, self.is_sparse));
        Ok(written.fold(total, u64::wrapping_add))
    }
}

/// The way to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Access {
    pub write: bool,
    /// Set if the page cache is bypassed.
    pub direct: bool,
}

impl Access {
    const READ: Self = Self { write: false, direct: false };
}

/// Opens a file to be read.
pub(super) fn open(path: &Path, access: Access) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let flags = if access.direct { OFlags::DIRECT } else { OFlags::empty() };
    options.read(true).write(access.write).custom_flags(flags.bits().cast_signed());
    options.open(path).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::load::Share;
    use super::*;

    fn load(reads: Share, writes: Share) -> Load {
        let files = vec!["a".into(), "b".into()];
        Load {
            threads: 2,
            reads,
            writes,
            files,
            mix: false,
            direct: false,
            scattered: false,
            computation: None,
        }
    }

    #[test]
    fn files_are_made_as_long_as_needed_and_restored() {
        for is_sparse in [false, true] {
            let mut input = Input::new(&std::env::temp_dir(), is_sparse).unwrap();
            let share = Share { count: 4, size: 100, step: 1000 };
            let load = load(share, Share { count: 3, size: 10, step: 0 });
            let expected = input.make(&load, &|| false).unwrap();
            input.reset(&load, true).unwrap();
            let path = input.directory().join("a");
            let content = fs::read(&path).unwrap();
            let begin = load.writes_begin() as usize;
            assert_eq!(content.len(), begin + 10);
            let fill = if is_sparse { 0 } else { UNWRITTEN };
            assert!(content[begin..].iter().all(|&byte| byte == fill));
            assert_eq!(is_sparse, content.iter().all(|&byte| byte == 0));
            if is_sparse {
                assert_eq!(expected, 2 * (0..10).sum::<u64>());
            }
            assert_eq!(input.expected(&load).unwrap(), expected, "whatever is written");
        }
    }

    #[test]
    fn file_of_others_has_to_be_long_enough() {
        let mut input = Input::new(&std::env::temp_dir(), false).unwrap();
        let path = input.directory().join("short");
        fs::write(&path, [1; 9]).unwrap();
        let share = Share { count: 1, size: 10, step: 0 };
        let load = Load { files: vec![path.clone()], ..load(share, Share::default()) };
        let error = input.make(&load, &|| false).unwrap_err().to_string();
        assert!(error.contains("9 bytes are fewer than the 10"), "{error}");
        fs::write(&path, [1; 10]).unwrap();
        assert!(input.make(&load, &|| false).is_ok());
    }
}
