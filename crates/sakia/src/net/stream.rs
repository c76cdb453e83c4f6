//! A TCP connection.

use std::io;
use std::net::{Shutdown, SocketAddr};

use sakia_driver::{
    Auto, BufResult, Connection, Domain, IoBuf, IoBufMut, RecvBuf, ShutdownHow, SocketAddress,
    SocketType,
};

use crate::executor::current;

/// A TCP connection. Dropping it closes it.
#[derive(Debug)]
pub struct TcpStream {
    pub(super) connection: Connection<Auto>,
}

/// The direction of a [`TcpStream`] in which bytes come.
#[derive(Debug)]
pub struct OwnedReadHalf {
    connection: Connection<Auto>,
}

/// The direction of a [`TcpStream`] in which bytes go.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    connection: Connection<Auto>,
}

impl TcpStream {
    /// Connects to `address`.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let driver = current().driver.handle().clone();
        let domain = if address.is_ipv4() { Domain::INET } else { Domain::INET6 };
        let fd = driver.socket(domain, SocketType::STREAM, 0).await?;
        driver.connect(&fd, &SocketAddress::from(address)).await?;
        Ok(Self { connection: driver.connection(fd) })
    }

    /// Reads up to `buf.bytes_len()` bytes, as soon as there are any.
    ///
    /// # Errors
    /// As `recv(2)`.
    pub async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
        self.connection.read(buf).await
    }

    /// Receives some bytes, as soon as there are any; none at the end.
    ///
    /// # Errors
    /// As `recv(2)`.
    pub async fn recv(&mut self) -> io::Result<RecvBuf> {
        self.connection.recv().await
    }

    /// Writes up to `buf.bytes_len()` bytes.
    ///
    /// # Errors
    /// As `send(2)`.
    pub async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.connection.send(buf).await
    }

    /// Writes all of `buf`.
    ///
    /// # Errors
    /// As `send(2)`.
    pub async fn write_all<T: IoBuf>(&mut self, mut buf: T) -> BufResult<(), T> {
        let mut done = 0;
        while done < buf.bytes_len() {
            let (result, slice) = self.connection.send(buf.slice(done..)).await;
            buf = slice.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buf),
                Ok(count) => done += count,
                Err(error) => return (Err(error), buf),
            }
        }
        (Ok(()), buf)
    }

    /// Ends one or both directions.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub async fn shutdown(&mut self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => ShutdownHow::Receives,
            Shutdown::Write => ShutdownHow::Sends,
            Shutdown::Both => ShutdownHow::Both,
        };
        self.connection.shutdown(how).await
    }

    /// The two directions, for two tasks.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let connection = self.connection.clone();
        (OwnedReadHalf { connection }, OwnedWriteHalf { connection: self.connection })
    }
}
