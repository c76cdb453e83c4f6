//! The environments of programs: the simulated kernel, or this machine.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use sakia_driver::sim::{Sim, SimBuf, SimHandle};
use sakia_driver::{Driver, Fd, IoBufMut, SocketAddress};

use crate::program::Config;

/// Files with contents, and their initial sizes in bytes.
pub(crate) const FILES: [(&str, usize); 4] = [("d0", 0), ("d1", 100), ("d2", 300), ("d3", 4096)];
/// The directory of empty files.
pub(crate) const NAMES: &str = "n";
/// A byte sent through a pipe to find its other end.
const MARK: [u8; 1] = [0x5a];
/// The first descriptor of a simulated kernel.
const DESCRIPTOR_FIRST: usize = 3;

/// Returns the initial bytes of a file.
pub(crate) fn initial(file: usize) -> Vec<u8> {
    let (_, len) = FILES[file];
    (0..len).map(|index| (index * 7 + file * 31 + index / 251) as u8).collect()
}

/// A kernel with the files of a program.
pub(crate) trait Env {
    /// The buffers lent to the kernel.
    type Buf: IoBufMut + Deref<Target = [u8]> + fmt::Debug;

    /// Returns a buffer with these bytes.
    fn buffer(&self, bytes: Vec<u8>) -> Self::Buf;
    /// Makes a pipe and returns its reader and its writer; `None` when there are no descriptors left.
    fn pipe(&self, driver: &Driver) -> io::Result<Option<(Fd, Fd)>>;
    /// Writes a mark to a pipe, which is empty. Returns false if that fails.
    fn mark(&self, writer: &Fd) -> bool;
    /// Takes the mark out of a pipe; returns whether there was one.
    fn is_marked(&self, reader: &Fd) -> bool;
    /// Returns the name of a socket of a program: a path or an abstract name.
    fn socket(&self, number: u64, has_path: bool) -> SocketAddress;
    /// Returns the path of a name in a program.
    fn path(&self, name: &str) -> CString;
    /// Returns the bytes of a file.
    fn contents(&self, name: &str) -> io::Result<Vec<u8>>;
}

/// The simulated kernel.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    pub(crate) kernel: SimHandle,
    descriptors_max: usize,
}

impl Simulated {
    /// Makes the kernel of a program, with its files.
    pub(crate) fn new(config: &Config, keep_log: bool) -> anyhow::Result<(Self, Sim)> {
        let sim = config.build(keep_log)?;
        let kernel = sim.handle();
        for (index, (name, _)) in FILES.iter().enumerate() {
            kernel.create_file(name, initial(index));
        }
        kernel.create_directory(NAMES);
        let descriptors_max = config.descriptors_max as usize;
        Ok((Self { kernel, descriptors_max }, sim))
    }
}

impl Env for Simulated {
    type Buf = SimBuf;

    fn buffer(&self, bytes: Vec<u8>) -> SimBuf {
        self.kernel.buffer(bytes)
    }

    fn pipe(&self, driver: &Driver) -> io::Result<Option<(Fd, Fd)>> {
        if self.kernel.open_descriptors() + DESCRIPTOR_FIRST + 2 > self.descriptors_max {
            return Ok(None);
        }
        let (reader, writer) = self.kernel.pipe();
        Ok(Some((driver.adopt_simulated(reader), driver.adopt_simulated(writer))))
    }

    fn mark(&self, writer: &Fd) -> bool {
        self.kernel.write_pipe(writer.raw(), &MARK).is_ok()
    }

    fn is_marked(&self, reader: &Fd) -> bool {
        self.kernel.read_pipe(reader.raw(), 1).is_ok_and(|bytes| bytes == MARK)
    }

    fn socket(&self, number: u64, has_path: bool) -> SocketAddress {
        let name = format!("socket-{number}");
        let address =
            if has_path { SocketAddress::unix(name) } else { SocketAddress::abstract_name(name) };
        address.expect("it is short")
    }

    fn path(&self, name: &str) -> CString {
        CString::new(name).expect("a name has no NUL")
    }

    fn contents(&self, name: &str) -> io::Result<Vec<u8>> {
        self.kernel.contents(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// This machine, in a private directory.
#[derive(Debug)]
pub(crate) struct Real {
    folder: PathBuf,
}

impl Real {
    /// Makes the files of a program in `folder`, which must not exist yet.
    pub(crate) fn new(folder: PathBuf) -> anyhow::Result<Self> {
        let context = || format!("make {}", folder.display());
        fs::create_dir(&folder).with_context(context)?;
        fs::create_dir(folder.join(NAMES)).with_context(context)?;
        for (index, (name, _)) in FILES.iter().enumerate() {
            fs::write(folder.join(name), initial(index)).with_context(context)?;
        }
        Ok(Self { folder })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

impl Env for Real {
    type Buf = Vec<u8>;

    fn buffer(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    fn pipe(&self, driver: &Driver) -> io::Result<Option<(Fd, Fd)>> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        Ok(Some((driver.adopt(reader), driver.adopt(writer))))
    }

    fn mark(&self, writer: &Fd) -> bool {
        rustix::io::write(writer, &MARK).is_ok()
    }

    fn is_marked(&self, reader: &Fd) -> bool {
        let mut ready = [PollFd::new(reader, PollFlags::IN)];
        let is_there = rustix::event::poll(&mut ready, Some(&Timespec::default())) == Ok(1);
        let mut byte = [0];
        is_there && rustix::io::read(reader, &mut byte) == Ok(1) && byte == MARK
    }

    fn socket(&self, number: u64, has_path: bool) -> SocketAddress {
        let name = format!("socket-{number}");
        // Programs run side by side, each in its own folder.
        let path = self.folder.join(name);
        let address = if has_path {
            SocketAddress::unix(path)
        } else {
            SocketAddress::abstract_name(path.as_os_str().as_bytes())
        };
        address.expect("the folder for temporary files has a short path")
    }

    fn path(&self, name: &str) -> CString {
        let path = self.folder.join(name);
        CString::new(path.as_os_str().as_bytes()).expect("a name has no NUL")
    }

    fn contents(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.folder.join(name))
    }
}
