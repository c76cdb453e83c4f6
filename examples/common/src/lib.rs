//! Shared by the tests of the examples: server processes, files and their checksums.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use xxhash_rust::xxh3::Xxh3Default;

/// Returns the size of a long transfer: `SAKIA_TEST_TRANSFER_BYTES`, or 5 MB.
pub fn transfer_bytes() -> u64 {
    env::var("SAKIA_TEST_TRANSFER_BYTES")
        .map_or(5_000_000, |bytes| bytes.parse().expect("a number"))
}

/// A server process. Dropping it kills the process.
pub struct Server {
    child: Child,
    /// The address it listens on.
    pub address: SocketAddr,
    output: Option<JoinHandle<io::Result<String>>>,
    errors: Option<JoinHandle<io::Result<String>>>,
}

/// The outcome of a server that was asked to end.
#[derive(Debug)]
pub struct Ended {
    /// The exit status.
    pub status: ExitStatus,
    /// The text on standard output after the address.
    pub output: String,
    /// The text on standard error.
    pub errors: String,
}

impl Server {
    /// Starts a program and waits for its address.
    ///
    /// # Panics
    /// If the program prints no address.
    pub fn start<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program is there");
        let mut output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut errors = child.stderr.take().expect("it is a pipe");
        let errors = thread::spawn(move || io::read_to_string(&mut errors));
        let mut line = String::new();
        output.read_line(&mut line).expect("a pipe can be read");
        let Some(address) = line.trim_end().strip_prefix("listening on ") else {
            panic!("not an address: {line:?}, {:?}", errors.join());
        };
        let address = address.parse().expect("it has an address");
        let output = thread::spawn(move || io::read_to_string(output));
        Self { child, address, output: Some(output), errors: Some(errors) }
    }

    /// Sends SIGTERM, as a service manager does.
    ///
    /// # Panics
    /// If the process has already been waited for.
    pub fn terminate(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process has a small number"));
        kill(pid, Signal::SIGTERM).expect("it runs");
    }

    /// Waits until the process ends.
    ///
    /// # Panics
    /// If its output is not UTF-8.
    pub fn wait(mut self) -> Ended {
        let status = self.child.wait().expect("it is our child");
        let [output, errors] = [self.output.take(), self.errors.take()].map(|text| {
            let text =
                text.expect("it is waited for once").join().expect("a reader does not panic");
            text.expect("it prints text")
        });
        Ended { status, output, errors }
    }

    /// Asks the process to end and waits until it has.
    ///
    /// # Panics
    /// If it fails.
    pub fn stop(self) -> Ended {
        self.terminate();
        let ended = self.wait();
        assert!(ended.status.success(), "{ended:?}");
        ended
    }

    /// Returns the peak memory use of the process (`VmHWM`).
    ///
    /// # Panics
    /// If the process has ended.
    pub fn memory_bytes_max(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("it runs");
        let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map(str::trim);
        let kibibytes = kibibytes.and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        kibibytes.expect("the kernel tells") << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A folder for a test. Dropping it removes the folder.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("sakia-{name}-{}", std::process::id()));
        fs::create_dir(&path).expect("it is new");
        Self { path }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file of `len` bytes, which depend on `seed`, and returns their checksum.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn fill(&self, name: &str, len: u64, seed: u64) -> u128 {
        let mut file = File::create(self.path.join(name)).expect("a file can be made");
        let (mut sum, mut contents) = (Sum::default(), Contents { seed }.take(len));
        let mut bytes = vec![0; 1 << 20];
        loop {
            let count = contents.read(&mut bytes).expect("contents are made here");
            if count == 0 {
                return sum.value();
            }
            sum.add(&bytes[..count]);
            file.write_all(&bytes[..count]).expect("a file can be written");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}

/// An endless sequence of bytes that does not repeat.
pub struct Contents {
    /// Determines the bytes.
    pub seed: u64,
}

impl Read for Contents {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        for word in buf.chunks_mut(8) {
            // The generator `splitmix64`.
            self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (self.seed ^ self.seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes()[..word.len()]);
        }
        Ok(buf.len())
    }
}

/// A checksum to compare contents by.
#[derive(Default)]
pub struct Sum(Xxh3Default);

impl Sum {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of all bytes added so far.
    pub fn value(&self) -> u128 {
        self.0.digest128()
    }
}
