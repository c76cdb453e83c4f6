//! Sockets that a service manager opened.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

/// Sockets that a service manager opened and passed to this process when it started it. A service can so be
/// started by its first connection, or keep its sockets over a restart.
///
/// The manager passes their number (`LISTEN_FDS`), the process that they are for (`LISTEN_PID`), and their
/// names (`LISTEN_FDNAMES`), as in `sd_listen_fds(3)`. They are listeners of `std`, which any thread may take
/// to its [`TcpListener::from_std`](super::TcpListener::from_std) or
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
    sockets: ListenFd,
    names: Vec<String>,
}

impl Activation {
    /// Takes the sockets that the environment names, once in a process: a second call finds none. None are
    /// found, too, if they are for another process, such as the parent of this one.
    ///
    /// It removes the variables, so that child processes do not take the sockets for theirs. So call it
    /// before there are other threads, which may read the environment.
    ///
    /// # Examples
    /// See [`Activation`](Activation#examples).
    pub fn from_env() -> Self {
        let sockets = ListenFd::from_env();
        let names = env::var("LISTEN_FDNAMES").ok().filter(|_| sockets.len() > 0);
        let names = names.iter().flat_map(|names| names.split(':')).map(str::to_owned);
        Self { names: names.take(sockets.len()).collect(), sockets }
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
    /// `InvalidInput`: it is no TCP socket. It can then be taken as another kind.
    ///
    /// # Examples
    /// See [`Activation`](Activation#examples).
    pub fn tcp_listener(&mut self, index: usize) -> io::Result<Option<TcpListener>> {
        self.sockets.take_tcp_listener(index)
    }

    /// As [`tcp_listener`](Activation::tcp_listener), for a listener of Unix connections.
    ///
    /// # Errors
    /// `InvalidInput`: it is no listener of that kind. It can then be taken as another kind.
    pub fn unix_listener(&mut self, index: usize) -> io::Result<Option<UnixListener>> {
        self.sockets.take_unix_listener(index)
    }
}

impl std::fmt::Debug for Activation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut f = f.debug_struct("Activation");
        f.field("len", &self.len()).field("names", &self.names).finish_non_exhaustive()
    }
}
