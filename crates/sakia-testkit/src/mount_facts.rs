//! The operations that a file system grants without blocking, probed by trying.
//!
//! Support for `RWF_NOWAIT`, its result for cached and uncached pages and at the end of a file, opens
//! answered from the name cache, the alignment of direct I/O: none of this follows from a name or a version,
//! and all of it decides how Sakia does an operation. [`probe`] tries each in one directory, or reads one
//! existing file.

use std::fmt;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    Advice, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fadvise, openat2,
    statfs, statx,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

/// The size of the attempts: one page of a larger file.
const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: usize = 1 << 20;

/// The kernel's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer {
    /// Done, with that many bytes.
    Bytes(usize),
    /// Done, without bytes to count.
    Done,
    /// An error number.
    Errno(i32),
    /// Not tried: it makes no sense here, or its preconditions are missing.
    #[default]
    Untried,
}

impl Answer {
    fn of_bytes(result: rustix::io::Result<usize>) -> Self {
        result.map_or_else(|errno| Self::Errno(errno.raw_os_error()), Self::Bytes)
    }

    fn of<T>(result: rustix::io::Result<T>) -> Self {
        result.map_or_else(|errno| Self::Errno(errno.raw_os_error()), |_| Self::Done)
    }

    /// Returns whether the kernel does not support such a request here.
    pub fn is_unsupported(self) -> bool {
        [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL]
            .iter()
            .any(|errno| self == Self::Errno(errno.raw_os_error()))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = match *self {
            Self::Bytes(count) => return write!(f, "{count}"),
            Self::Done => return f.pad("ok"),
            Self::Untried => return f.pad("-"),
            Self::Errno(number) => number,
        };
        match Errno::from_raw_os_error(number) {
            Errno::AGAIN => f.pad("EAGAIN"),
            Errno::OPNOTSUPP => f.pad("EOPNOTSUPP"),
            Errno::INVAL => f.pad("EINVAL"),
            Errno::NOSYS => f.pad("ENOSYS"),
            Errno::IO => f.pad("EIO"),
            Errno::ACCESS => f.pad("EACCES"),
            Errno::PERM => f.pad("EPERM"),
            Errno::ROFS => f.pad("EROFS"),
            _ => write!(f, "errno {number}"),
        }
    }
}

/// The requirements of direct I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectIo {
    /// The result of an open with `O_DIRECT`.
    pub open: Answer,
    /// Required alignment of addresses; 0: the kernel does not say.
    #[doc(alias = "stx_dio_mem_align")]
    pub mem_align_bytes: u32,
    /// Required alignment of offsets and lengths; 0: the kernel does not say.
    #[doc(alias = "stx_dio_offset_align")]
    pub offset_align_bytes: u32,
}

/// The facts about one directory or file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountFacts {
    /// The magic number of the path's file system.
    #[doc(alias = "f_type")]
    pub magic: u64,
    /// A non-blocking read of 4096 bytes, of pages that were just read.
    pub read_hot: Answer,
    /// The same, after the kernel was asked to drop the pages. A file system that keeps them, as for files
    /// in memory, answers as before.
    pub read_cold: Answer,
    /// The same, at the end of the file.
    pub read_end: Answer,
    /// A non-blocking write of 4096 bytes, over pages that were just read: the first in a while, so that
    /// times must be updated too.
    pub write_over: Answer,
    /// The same, directly after an ordinary write: the best answer of several attempts.
    pub write_again: Answer,
    /// The same, beyond the end of the file.
    pub write_extend: Answer,
    /// An open that must be answered from the name cache, of a name that was just looked up: the best answer
    /// of several attempts.
    #[doc(alias = "RESOLVE_CACHED")]
    pub open_cached: Answer,
    /// The requirements of direct I/O.
    pub direct: DirectIo,
    /// Directory entries include their kinds; `None` if the path is no directory.
    pub entry_kinds: Option<bool>,
}

/// Probes `path`. In a directory it makes a file of 1 MiB and removes it afterwards; a file it only reads.
///
/// # Errors
/// Those of opening, reading and writing without further conditions.
///
/// # Kernel
/// 4.18; 5.12 for `open_cached`, 6.1 for the alignment of direct I/O.
pub fn probe(path: &Path) -> std::io::Result<MountFacts> {
    let magic = statfs(path)?.f_type as u64;
    if !path.is_dir() {
        return of_file(path, magic);
    }
    let name = path.join(format!(".sakia-mount-facts-{}", std::process::id()));
    let facts = of_new_file(&name, path, magic);
    // The file is removed, whatever the outcome.
    let removed = fs::remove_file(&name);
    let facts = facts?;
    removed?;
    Ok(facts)
}

fn of_new_file(name: &Path, directory: &Path, magic: u64) -> std::io::Result<MountFacts> {
    let file = File::options().read(true).write(true).create_new(true).open(name)?;
    file.write_all_at(&vec![1; FILE_BYTES], 0)?;
    file.sync_all()?;

    let mut facts = of_file(name, magic)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    facts.read_cold = read_nowait(&file, (FILE_BYTES / 2) as u64);

    file.read_exact_at(&mut [0; BLOCK_BYTES], 0)?;
    facts.write_over = write_nowait(&file, 0);
    facts.write_again = write_again(&file)?;
    facts.write_extend = write_nowait(&file, FILE_BYTES as u64);
    facts.entry_kinds = Some(has_entry_kinds(directory)?);
    Ok(facts)
}

/// Returns the facts that need no write.
fn of_file(path: &Path, magic: u64) -> std::io::Result<MountFacts> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut block = [0; BLOCK_BYTES];
    let count = file.read(&mut block)?;
    let read_hot = if count == 0 { Answer::Untried } else { read_nowait(&file, 0) };
    // Devices and the kernel's own files do not report their length.
    let read_end = if length == 0 { Answer::Untried } else { read_nowait(&file, length) };
    let (open_cached, direct) = (open_cached(path), direct_io(path));
    Ok(MountFacts { magic, read_hot, read_end, open_cached, direct, ..MountFacts::default() })
}

fn read_nowait(file: &File, offset: u64) -> Answer {
    let mut block = [0; BLOCK_BYTES];
    let mut buffers = [IoSliceMut::new(&mut block)];
    Answer::of_bytes(preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT))
}

fn write_nowait(file: &File, offset: u64) -> Answer {
    let block = [2; BLOCK_BYTES];
    Answer::of_bytes(pwritev2(file, &[IoSlice::new(&block)], offset, ReadWriteFlags::NOWAIT))
}

/// Writes directly after an ordinary write. The clock of files may tick between the two, so this takes some
/// attempts.
fn write_again(file: &File) -> std::io::Result<Answer> {
    let mut answer = Answer::Untried;
    for _ in 0..8 {
        file.write_all_at(&[2; BLOCK_BYTES], 0)?;
        answer = write_nowait(file, 0);
        if matches!(answer, Answer::Bytes(_)) {
            break;
        }
    }
    Ok(answer)
}

/// Opens the path by the name cache. A mount or a rename anywhere on the machine spoils a lookup, so this
/// takes some attempts.
fn open_cached(path: &Path) -> Answer {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut answer = Answer::Untried;
    for _ in 0..8 {
        answer = Answer::of(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED));
        if answer == Answer::Done {
            break;
        }
    }
    answer
}

fn direct_io(path: &Path) -> DirectIo {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let open = Answer::of(rustix::fs::open(path, flags, Mode::empty()));
    // For a device itself the kernel answers only a request about the node.
    let told = statx(CWD, path, AtFlags::empty(), StatxFlags::DIOALIGN)
        .ok()
        .filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    DirectIo {
        open,
        mem_align_bytes: told.as_ref().map_or(0, |told| told.stx_dio_mem_align),
        offset_align_bytes: told.as_ref().map_or(0, |told| told.stx_dio_offset_align),
    }
}

fn has_entry_kinds(directory: &Path) -> std::io::Result<bool> {
    let mut entries = Dir::new(File::open(directory)?)?;
    Ok(entries.all(|entry| entry.is_ok_and(|entry| entry.file_type() != FileType::Unknown)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_files_are_probed() {
        let directory = std::env::temp_dir();
        let facts = probe(&directory).unwrap();
        assert_ne!(facts.read_hot, Answer::Untried);
        assert_ne!(facts.write_over, Answer::Untried);
        let names = fs::read_dir(&directory).unwrap();
        let own = format!(".sakia-mount-facts-{}", std::process::id());
        assert!(names.flatten().all(|entry| entry.file_name() != *own));

        let facts = probe(Path::new("/proc/version")).unwrap();
        assert_eq!(facts.magic, u64::from(linux_raw_sys::general::PROC_SUPER_MAGIC));
        assert_eq!(facts.write_over, Answer::Untried);
        assert_eq!(facts.entry_kinds, None);
    }

    #[test]
    fn answers_print_their_names() {
        assert_eq!(format!("{:>6}", Answer::Done), "    ok");
        assert_eq!(Answer::Errno(11).to_string(), "EAGAIN");
        assert_eq!(Answer::Errno(999).to_string(), "errno 999");
        assert!(Answer::Errno(95).is_unsupported() && !Answer::Errno(11).is_unsupported());
    }
}
