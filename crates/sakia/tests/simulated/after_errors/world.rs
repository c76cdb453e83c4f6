//! The objects that the steps of a program use.

use std::io;
use std::time::Duration;

use sakia::fs::{File, OpenOptions};
use sakia::io::{PipeReader, PipeWriter, Reader, pipe};
use sakia::join;
use sakia::net::{TcpListener, TcpStream, UdpSocket};
use sakia::sim::SimHandle;
use sakia::time::timeout;

/// The names that steps use, in directories of each other.
pub const NAMES: [&str; 7] = ["file", "read", "a", "b", "dir", "dir/a", "dir/sub"];
/// The longest time for which a step waits for what may not come, in virtual time.
const PATIENCE: Duration = Duration::from_millis(200);

pub struct World {
    pub file: File,
    pub reader: Reader<sakia::io::Positional<File>>,
    pub pipe: (PipeReader, PipeWriter),
    pub listener: TcpListener,
    /// Connections that are not accepted yet, or were.
    pub clients: Vec<TcpStream>,
    pub near: TcpStream,
    pub far: TcpStream,
    pub datagrams: (UdpSocket, UdpSocket),
}

/// Returns bytes that differ from each other, by where they begin.
pub fn bytes(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|index| (index * 7 % 251) as u8).collect()
}

impl World {
    /// Makes the files, before the runtime.
    pub fn prepare(kernel: &SimHandle) {
        kernel.create_file("file", bytes(0, 40));
        kernel.create_file("read", bytes(9, 60));
        kernel.create_file("a", bytes(5, 10));
        kernel.create_directory("dir");
    }

    pub async fn new() -> Self {
        let file = OpenOptions::new().read(true).write(true).open("file").await.unwrap();
        // One block at a time: one that is read behind the end reports its error to none.
        let reader = Reader::with_depth(File::open("read").await.unwrap(), 8, 1);
        let listener = TcpListener::bind("127.0.0.1:80").await.unwrap();
        let (near, far) = join!(TcpStream::connect("127.0.0.1:80"), listener.accept());
        let datagrams = (
            UdpSocket::bind("127.0.0.1:81").await.unwrap(),
            UdpSocket::bind("127.0.0.1:82").await.unwrap(),
        );
        let (near, far) = (near.unwrap(), far.unwrap().0);
        let pipe = pipe().unwrap();
        Self { file, reader, pipe, listener, clients: Vec::new(), near, far, datagrams }
    }
}

/// Waits for what may not come. `None` if it has not.
pub async fn patiently<T>(future: impl Future<Output = T>) -> Option<T> {
    timeout(PATIENCE, future).await.ok()
}

/// Receives bytes until there are `count`, none come, or an error does.
pub async fn gather(
    count: usize,
    mut receive: impl AsyncFnMut(usize) -> io::Result<Vec<u8>>,
) -> (io::Result<()>, Vec<u8>) {
    let mut gathered = Vec::new();
    while gathered.len() < count {
        match patiently(receive(count - gathered.len())).await {
            None => break,
            Some(Err(error)) => return (Err(error), gathered),
            Some(Ok(bytes)) if bytes.is_empty() => break,
            Some(Ok(bytes)) => gathered.extend(bytes),
        }
    }
    (Ok(()), gathered)
}
