//! A disk that stalls on command: ext4 on a loop device over a file of a scripted file system.
//!
//! Operations on the mount reach the "disk" as reads, writes and syncs of one file in a [`Fuse`]; there a
//! [`Gate`] holds them, or a [`Rule`] delays them or makes them fail. Dirty memory of this disk alone is
//! limited to a few MiB, so that a writer meets the kernel's throttling soon.
//!
//! With writes held,
//! - a buffered write continues until the limit, then blocks (`balance_dirty_pages`);
//! - `fsync`, and a write with `RWF_DSYNC`, block at once.
//!
//! With reads held, reads of uncached pages block as well.
//!
//! A disk that is held long also blocks `sync` of the whole machine: open gates soon.
//!
//! ```
//! use std::fs::{self, File};
//!
//! use sakia_bench_support::available;
//! use sakia_bench_support::throttled::ThrottledDisk;
//!
//! # fn main() {
//! let disk = available!(ThrottledDisk::builder().build());
//! let file = File::create(disk.path().join("a")).unwrap();
//! fs::write(disk.path().join("a"), "not on the disk yet").unwrap();
//! let gate = disk.hold_writes();
//! std::thread::scope(|scope| {
//!     let synced = scope.spawn(|| file.sync_all());
//!     gate.wait_held(1);
//!     assert!(!synced.is_finished());
//!     gate.open();
//!     synced.join().unwrap().unwrap();
//! });
//! # }
//! ```

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fuse::{Fuse, Gate, Opcode, Rule};
use crate::loop_device::LoopDevice;
use crate::place::{Mounted, PlaceError, Scratch, run_tool};

/// The name of the file that is the disk.
const IMAGE: &str = "disk";

/// The configuration of a disk; see [`ThrottledDisk::builder`].
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is mounted yet"]
pub struct Builder {
    size_bytes: u64,
    dirty_bytes: u64,
    journal: bool,
    requests_max: Option<u32>,
}

impl Builder {
    /// Sets the size of the disk; the default is 64 MiB. The written parts are kept in memory.
    pub fn size_bytes(mut self, bytes: u64) -> Self {
        self.size_bytes = bytes;
        self
    }

    /// Limits the kernel's dirty memory of the disk; the default is 2 MiB. A writer blocks at some point
    /// below twice that.
    pub fn dirty_bytes(mut self, bytes: u64) -> Self {
        self.dirty_bytes = bytes;
        self
    }

    /// Sets whether the file system has a journal, as most have. On by default.
    pub fn journal(mut self, journal: bool) -> Self {
        self.journal = journal;
        self
    }

    /// Sets the number of requests that the kernel queues for the disk before further ones block, even
    /// non-blocking ones; up to 2048. Neighbors are then merged, as on disks with a scheduler. The default
    /// is 128, without merging.
    pub fn requests_max(mut self, count: u32) -> Self {
        self.requests_max = Some(count);
        self
    }

    /// Makes and mounts the disk.
    ///
    /// # Errors
    /// Without `/dev/fuse`, loop devices, `mkfs.ext4`, the privilege to mount, or limits per disk (kernel
    /// 6.2), the error says what is missing.
    pub fn build(self) -> Result<ThrottledDisk, PlaceError> {
        let scratch = Scratch::new()?;
        let image = make_ext4(scratch.path(), self.size_bytes, self.journal)?;
        let content = fs::read(&image)
            .map_err(|error| PlaceError::failed(format!("read {}", image.display()), error))?;
        let _ = fs::remove_file(&image);

        // Without a page cache of its own, so that each read and write of the disk reaches the server.
        let fuse = Fuse::builder().file(IMAGE, content).direct_io(true).mount()?;
        let device = LoopDevice::attach(&fuse.join(IMAGE))?;
        device.limit_dirty(self.dirty_bytes)?;
        if let Some(count) = self.requests_max {
            device.queue_requests(count)?;
        }
        // No background work: no periodic commit, no access times.
        let options = if self.journal { "errors=continue,commit=3600" } else { "errors=continue" };
        let mounted = Mounted::new(scratch, &device.path(), "ext4", options)?;
        Ok(ThrottledDisk { mounted, device, fuse })
    }
}

/// Makes an ext4 in a file of the directory.
pub(crate) fn make_ext4(
    directory: &Path,
    size_bytes: u64,
    journal: bool,
) -> Result<PathBuf, PlaceError> {
    let features = if journal { "has_journal" } else { "^has_journal" };
    // Everything is initialized here: no kernel thread does so later, in the midst of the test.
    let extended = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    let words = ["-q", "-F", "-b", "4096", "-m", "0", "-O", features, "-E", extended];
    make_image(directory, size_bytes, "mkfs.ext4", &words)
}

/// Makes a file system in a file of the directory, by a program with these arguments.
pub(crate) fn make_image(
    directory: &Path,
    size_bytes: u64,
    program: &str,
    words: &[&str],
) -> Result<PathBuf, PlaceError> {
    let image = directory.join("image");
    let sized = File::create(&image).and_then(|file| file.set_len(size_bytes));
    sized.map_err(|error| PlaceError::failed(format!("make {}", image.display()), error))?;
    let words = words.iter().map(OsStr::new).chain([image.as_os_str()]);
    run_tool(program, words)?;
    Ok(image)
}

/// A mounted ext4 whose disk a test controls; see the [module](self). Dropping it releases held requests,
/// unmounts, and detaches.
#[derive(Debug)]
pub struct ThrottledDisk {
    mounted: Mounted,
    device: LoopDevice,
    fuse: Fuse,
}

impl ThrottledDisk {
    /// Returns the configuration of a disk of 64 MiB, of which 2 MiB may be dirty, with a journal.
    pub fn builder() -> Builder {
        Builder { size_bytes: 64 << 20, dirty_bytes: 2 << 20, journal: true, requests_max: None }
    }

    /// Returns the mount point of the ext4.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Returns the block device under the ext4.
    pub fn device(&self) -> PathBuf {
        self.device.path()
    }

    /// Returns the file system that plays the disk, to count and script its requests.
    pub fn disk(&self) -> &Fuse {
        &self.fuse
    }

    /// Holds every write of the disk at a gate: data, metadata, journal.
    pub fn hold_writes(&self) -> Gate {
        self.fuse.hold(Rule::on(Opcode::WRITE))
    }

    /// Holds every read of the disk at a gate.
    pub fn hold_reads(&self) -> Gate {
        self.fuse.hold(Rule::on(Opcode::READ))
    }

    /// Delays every write of the disk, from now on.
    pub fn delay_writes(&self, delay: Duration) {
        self.fuse.script(Rule::on(Opcode::WRITE).delay(delay));
    }

    /// Makes every read or write of the disk fail with `EIO`, from now on.
    ///
    /// Writes in the meantime are lost, and `fsync` reports it once.
    pub fn fail(&self, opcode: Opcode) {
        self.fuse.script(Rule::on(opcode).errno(rustix::io::Errno::IO.raw_os_error()));
    }

    /// Removes all gates and rules of the disk.
    pub fn release(&self) {
        self.fuse.release();
    }

    /// Drops the cached pages of a file, whose content is on the disk, so that reads are cold.
    ///
    /// # Errors
    /// As `fsync(2)` and `posix_fadvise(2)`.
    pub fn make_cold(&self, file: &File) -> std::io::Result<()> {
        file.sync_all()?;
        Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
    }
}

impl Drop for ThrottledDisk {
    fn drop(&mut self) {
        // Otherwise the unmount would wait for held requests. The fields then end from top to bottom.
        self.fuse.release();
    }
}
