//! Sockets that a service manager opened.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;

use rustix::net::{AddressFamily, SocketType, sockopt};
use sakia_driver::inherited::{self, Inherited};

/// Sockets that a service manager opened and passed to this process when it started it. A service can so be
/// started by its first connection, or keep its sockets over a restart.
///
/// The manager passes their number (`LISTEN_FDS`), the process that they are for (`LISTEN_PID`), and their
/// names (`LISTEN_FDNAMES`), as in `sd_listen_fds(3)`. They are looked at before `main`, so that no
/// descriptor that the program has opened itself is ever taken for one of them; see
/// [`inherited`](sakia_driver::inherited). They are listeners of `std`, which any thread may take to its
/// [`TcpListener::from_std`](super::TcpListener::from_std) or
/// [`UnixListener::from_std`](super::UnixListener::from_std).
///
/// # Examples
/// ```
/// use sakia::net::{Activation, TcpListener};
///
/// # fn main() -> std::io::Result<()> {
/// let mut activation = Activation::from_env();
/// sakia::block_on(async {
///     // The first one, or one of our own when started by hand.
///     let listener = match activation.tcp_listener(0)? {
///         Some(listener) => TcpListener::from_std(listener)?,
///         None => TcpListener::bind("127.0.0.1:0").await?,
///     };
///     assert!(listener.local_addr()?.ip().is_loopback());
///     Ok(())
/// })
/// # }
/// ```
pub struct Activation {
    /// `None` for those that were taken.
    sockets: Vec<Option<OwnedFd>>,
    names: Vec<String>,
}

impl Activation {
    /// Takes the sockets that were passed to this process, once: a second call finds none. None are found,
    /// too, if they are for another process, such as the parent of this one.
    ///
    /// The variables stay as they are. Child processes do not take the sockets for theirs, since the process
    /// that they name is another one.
    ///
    /// # Examples
    /// See [`Activation`](Activation#examples).
    pub fn from_env() -> Self {
        let Inherited { descriptors, names } = inherited::take();
        let names = names.and_then(|names| names.into_string().ok());
        let names = names.iter().flat_map(|names| names.split(':')).map(str::to_owned);
        Self { names: names.take(descriptors.len()).collect(), sockets: descriptors }
    }

    /// Returns the number of sockets that were passed.
    #[expect(clippy::len_without_is_empty, reason = "those that were taken count, too")]
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Returns the manager's name for socket number `index`.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.names.get(index).map(String::as_str)
    }

    /// Returns the number of the first socket of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|its| its == name)
    }

    /// Takes socket number `index`. `None` when it was taken already, or does not exist.
    ///
    /// # Errors
    /// `InvalidInput`: it is no TCP listener. It can then be taken as another kind.
    ///
    /// # Examples
    /// See [`Activation`](Activation#examples).
    pub fn tcp_listener(&mut self, index: usize) -> io::Result<Option<TcpListener>> {
        let families = [AddressFamily::INET, AddressFamily::INET6];
        Ok(self.listener(index, &families, "TCP")?.map(TcpListener::from))
    }

    /// As [`tcp_listener`](Activation::tcp_listener), for a listener of Unix connections.
    ///
    /// # Errors
    /// `InvalidInput`: it is no listener of that kind. It can then be taken as another kind.
    pub fn unix_listener(&mut self, index: usize) -> io::Result<Option<UnixListener>> {
        Ok(self.listener(index, &[AddressFamily::UNIX], "Unix")?.map(UnixListener::from))
    }

    /// Takes descriptor number `index`, of whatever kind. `None` when it was taken already, or does not
    /// exist.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.sockets.get_mut(index)?.take()
    }

    fn listener(
        &mut self,
        index: usize,
        families: &[AddressFamily],
        kind: &str,
    ) -> io::Result<Option<OwnedFd>> {
        let Some(socket) = self.sockets.get_mut(index) else { return Ok(None) };
        let is_listener = |fd: &OwnedFd| {
            sockopt::socket_type(fd) == Ok(SocketType::STREAM)
                && sockopt::socket_domain(fd).is_ok_and(|family| families.contains(&family))
                && sockopt::socket_acceptconn(fd) == Ok(true)
        };
        if socket.as_ref().is_some_and(|fd| !is_listener(fd)) {
            let message =
                format!("descriptor {index} of the service manager is no {kind} listener");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(socket.take())
    }
}

impl std::fmt::Debug for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Activation");
        f.field("len", &self.len()).field("names", &self.names).finish_non_exhaustive()
    }
}
