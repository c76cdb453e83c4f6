//! Accepting TCP connections.

use std::io;
use std::net::SocketAddr;

use sakia_driver::{Auto, Domain, Incoming, SocketAddress, SocketType};

use super::TcpStream;
use crate::executor::current;

/// A socket that accepts TCP connections. Dropping it closes it.
#[derive(Debug)]
pub struct TcpListener {
    incoming: Incoming<Auto>,
}

impl TcpListener {
    /// Listens on `address`.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let driver = current().driver.handle().clone();
        let domain = if address.is_ipv4() { Domain::INET } else { Domain::INET6 };
        let fd = driver.socket(domain, SocketType::STREAM, 0).await?;
        driver.bind(&fd, &SocketAddress::from(address)).await?;
        driver.listen(&fd, 1024).await?;
        Ok(Self { incoming: driver.incoming(fd) })
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// As `accept(2)`.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let driver = current().driver.handle().clone();
        let connection = driver.connection(self.incoming.accept().await?);
        let peer = connection.peer_address()?.inet().ok_or(io::ErrorKind::Unsupported)?;
        Ok((TcpStream { connection }, peer))
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let driver = current().driver.handle().clone();
        let address = driver.local_address(self.incoming.fd())?;
        Ok(address.inet().ok_or(io::ErrorKind::Unsupported)?)
    }
}
