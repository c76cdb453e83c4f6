//! Small private file systems: soon full, or on a disk that loses its end.
//!
//! ```
//! use std::fs;
//!
//! use sakia_bench_support::available;
//! use sakia_bench_support::small_fs::SmallFs;
//!
//! # fn main() {
//! const ENOSPC: i32 = 28;
//! let small = available!(SmallFs::tmpfs(1 << 20));
//! let error = fs::write(small.path().join("a"), vec![0; 2 << 20]).unwrap_err();
//! assert_eq!(error.raw_os_error(), Some(ENOSPC));
//! # }
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::loop_device::LoopDevice;
use crate::place::{Mounted, PlaceError, Scratch};
use crate::throttled::{make_ext4, make_image};

/// The overhead of a tmpfs besides the one file on it.
const SPARE_BYTES: u64 = 1 << 20;

/// A mounted file system, with its disk if it has one. Both end with the value.
#[derive(Debug)]
pub struct SmallFs {
    mounted: Mounted,
    /// The device and the file behind it.
    disk: Option<(LoopDevice, PathBuf)>,
    /// The file system below, which is unmounted after it.
    _below: Option<Box<SmallFs>>,
}

impl SmallFs {
    /// Mounts a tmpfs of `size_bytes`, rounded up to pages.
    ///
    /// # Errors
    /// Without the privilege to mount, the error says what is missing.
    pub fn tmpfs(size_bytes: u64) -> Result<Self, PlaceError> {
        let data = format!("size={size_bytes},mode=755");
        let mounted = Mounted::new(Scratch::new()?, Path::new("sakia-testkit"), "tmpfs", &data)?;
        Ok(Self { mounted, disk: None, _below: None })
    }

    /// Mounts a ramfs, which has neither access control lists nor extended attributes, and no size.
    ///
    /// # Errors
    /// As [`Self::tmpfs`].
    pub fn ramfs() -> Result<Self, PlaceError> {
        let mounted =
            Mounted::new(Scratch::new()?, Path::new("sakia-testkit"), "ramfs", "mode=755")?;
        Ok(Self { mounted, disk: None, _below: None })
    }

    /// Mounts an ext4 without a journal on a disk of `size_bytes`; 1 MiB is about the minimum.
    ///
    /// # Errors
    /// Without loop devices, `mkfs.ext4` or the privilege to mount, the error says what is missing.
    pub fn ext4(size_bytes: u64) -> Result<Self, PlaceError> {
        let scratch = Scratch::new()?;
        let image = make_ext4(scratch.path(), size_bytes, false)?;
        Self::on_loop(scratch, image, "ext4", "errors=continue,noinit_itable")
    }

    /// Mounts an ext4 on a disk of `size_bytes` that is a file on a tmpfs of its own: it takes only the
    /// memory that is written, and no disk. With or without a journal; an inode for each 16 KiB, or 4 KiB
    /// below 512 MiB.
    ///
    /// # Errors
    /// As [`Self::ext4`].
    pub fn ext4_in_memory(size_bytes: u64, journal: bool) -> Result<Self, PlaceError> {
        let below = Self::tmpfs(size_bytes + SPARE_BYTES)?;
        let image = make_ext4(below.path(), size_bytes, journal)?;
        let options = "errors=continue,noinit_itable";
        let mut ext4 = Self::on_loop(Scratch::new()?, image, "ext4", options)?;
        ext4._below = Some(Box::new(below));
        Ok(ext4)
    }

    /// Mounts an xfs, on a sparse disk of 300 MiB.
    ///
    /// # Errors
    /// As [`Self::ext4`], with `mkfs.xfs`.
    pub fn xfs() -> Result<Self, PlaceError> {
        Self::made_by("mkfs.xfs", "xfs")
    }

    /// Mounts a btrfs, on a sparse disk of 300 MiB.
    ///
    /// # Errors
    /// As [`Self::ext4`], with `mkfs.btrfs`.
    pub fn btrfs() -> Result<Self, PlaceError> {
        // It asks for the files below all loop devices of the machine. One of them may be on a file system
        // whose server is just ending.
        const TRIES: usize = 100;
        let is_passing = |error: &PlaceError| error.to_string().contains("check mount status");
        for _ in 1..TRIES {
            match Self::made_by("mkfs.btrfs", "btrfs") {
                Err(error) if is_passing(&error) => thread::sleep(Duration::from_millis(20)),
                result => return result,
            }
        }
        Self::made_by("mkfs.btrfs", "btrfs")
    }

    /// Mounts an overlay whose layers are directories on this file system. The lower layer is empty.
    ///
    /// # Errors
    /// Without the privilege to mount, or the kernel's support, the error says what is missing.
    pub fn overlay(self) -> Result<Self, PlaceError> {
        let layers = ["lower", "upper", "work"].map(|name| self.path().join(name));
        for layer in &layers {
            fs::create_dir(layer)
                .map_err(|error| PlaceError::failed(format!("make {}", layer.display()), error))?;
        }
        let [lower, upper, work] = layers.each_ref().map(|layer| layer.display());
        let data = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mounted = Mounted::new(Scratch::new()?, Path::new("sakia-testkit"), "overlay", &data)?;
        Ok(Self { mounted, disk: None, _below: Some(Box::new(self)) })
    }

    fn made_by(program: &str, kind: &str) -> Result<Self, PlaceError> {
        let scratch = Scratch::new()?;
        let image = make_image(scratch.path(), 300 << 20, program, &["-q", "-f"])?;
        Self::on_loop(scratch, image, kind, "")
    }

    fn on_loop(
        scratch: Scratch,
        image: PathBuf,
        kind: &str,
        options: &str,
    ) -> Result<Self, PlaceError> {
        let device = LoopDevice::attach(&image)?;
        let mounted = Mounted::new(scratch, &device.path(), kind, options)?;
        Ok(Self { mounted, disk: Some((device, image)), _below: None })
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Returns the block device under it, if it has one.
    pub fn device(&self) -> Option<PathBuf> {
        self.disk.as_ref().map(|(device, _)| device.path())
    }

    /// Cuts off the disk after byte `keep`: reads there fail with `EIO`. Pages in the page cache can still
    /// be read, and a write makes the disk grow again.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    ///
    /// # Panics
    /// If the file system has no disk.
    pub fn cut_disk(&self, keep: u64) -> io::Result<()> {
        let (_, image) = self.disk.as_ref().expect("a file system on a disk");
        File::options().write(true).open(image)?.set_len(keep)
    }
}
