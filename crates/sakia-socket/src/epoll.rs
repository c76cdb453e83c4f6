//! `epoll` sets.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::set::Set;
use crate::wake::Source;
use crate::{EpollEvent, Host, Kernel, Layer, Socket};

/// A set of files to wait for, as in `epoll(7)`, which also reports bytes and errors in memory. Its methods
/// may be called from any thread. A clone is the same set, as after `dup(2)`; the last one closes it.
///
/// An entry stands for an open socket with all its clones. So adding a clone fails with `EEXIST`, while the
/// kernel has an entry for each descriptor made by `dup(2)`. Closing the last clone removes the entry, even
/// if delayed bytes keep the host's descriptor open.
///
/// Other differences from the kernel alone:
/// - An entry with [`Events::EDGE`](crate::Events::EDGE) is also reported when a read has brought more bytes
///   to memory than the program asked for, even if their event was reported before.
/// - A set within a set may be reported although its own wait then finds nothing, if an entry of it with
///   [`Events::ONE_SHOT`](crate::Events::ONE_SHOT) was reported because of memory.
/// - With [`Events::EXCLUSIVE`](crate::Events::EXCLUSIVE) changes in memory wake the waiters of all sets.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use rustix::net::{AddressFamily, SendFlags, SocketType};
/// use sakia_socket::{EpollEvent, Events, Kernel, Layer, Options};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(Kernel, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// let set = layer.epoll()?;
/// set.add(&b, EpollEvent { events: Events::IN, data: 7 })?;
///
/// let mut events = [EpollEvent::default(); 8];
/// assert_eq!(set.wait(&mut events, Some(Duration::ZERO))?, 0);
/// a.send(b"hello", SendFlags::empty())?;
/// assert_eq!(set.wait(&mut events, None)?, 1);
/// assert_eq!(events[0], EpollEvent { events: Events::IN, data: 7 });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Epoll<H: Host = Kernel> {
    handle: Arc<Handle<H>>,
}

/// Shared by all clones; dropping it closes the set.
#[derive(Debug)]
struct Handle<H: Host> {
    set: Arc<Set<H>>,
}

impl<H: Host> Drop for Handle<H> {
    fn drop(&mut self) {
        self.set.close();
    }
}

impl<H: Host> Clone for Epoll<H> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<H: Host> Layer<H> {
    /// Makes an empty set, as `epoll_create1(2)` does; `EPOLL_CLOEXEC` is set. If bytes may wait in memory,
    /// it has an event descriptor of the host, too.
    ///
    /// # Errors
    /// Those of `epoll_create1(2)` and `eventfd(2)`.
    ///
    /// # Examples
    /// See [`Epoll`](Epoll#examples).
    #[doc(alias = "epoll_create1")]
    pub fn epoll(&self) -> Result<Epoll<H>, Errno> {
        let set = Set::new(self.shared())?;
        Ok(Epoll { handle: Arc::new(Handle { set }) })
    }
}

impl<H: Host> Epoll<H> {
    /// `epoll_ctl(2)` with `EPOLL_CTL_ADD`: waits for `event.events` of `file` from now on, and reports them
    /// with `event.data`.
    ///
    /// # Errors
    /// - `EEXIST` if `file` or a clone of it is an entry.
    /// - `EINVAL` if `file` is the set itself, or belongs to another layer, and with `EPOLLEXCLUSIVE` if the
    ///   kernel refuses that.
    /// - `ELOOP` if `file` is a set that leads to this one, or sets would be nested deeper than the kernel
    ///   allows.
    /// - Otherwise those of the call.
    ///
    /// # Examples
    /// See [`Epoll`](Epoll#examples).
    #[doc(alias = "epoll_ctl")]
    #[doc(alias = "EPOLL_CTL_ADD")]
    pub fn add<'a>(
        &self,
        file: impl Into<Pollable<'a, H>>,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        let file = file.into();
        if !file.is_of(self) {
            return Err(Errno::INVAL);
        }
        self.handle.set.add(&file.to_source(), event)
    }

    /// `epoll_ctl(2)` with `EPOLL_CTL_MOD`: waits for `event.events` of `file`, and reports its current
    /// events again.
    ///
    /// # Errors
    /// - `ENOENT` if `file` is no entry.
    /// - `EINVAL` if `EPOLLEXCLUSIVE` was or is among the events.
    /// - Otherwise those of the call.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use rustix::io::Errno;
    /// use rustix::net::{AddressFamily, SocketType};
    /// use sakia_socket::{EpollEvent, Events, Kernel, Layer, Options};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, _b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// let set = layer.epoll()?;
    /// let mut events = [EpollEvent::default(); 8];
    /// set.add(&a, EpollEvent { events: Events::IN, data: 7 })?;
    /// assert_eq!(set.wait(&mut events, Some(Duration::ZERO))?, 0);
    /// set.modify(&a, EpollEvent { events: Events::OUT, data: 8 })?;
    /// assert_eq!((set.wait(&mut events, None)?, events[0].data), (1, 8));
    /// set.remove(&a)?;
    /// assert_eq!(set.remove(&a), Err(Errno::NOENT));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "EPOLL_CTL_MOD")]
    pub fn modify<'a>(
        &self,
        file: impl Into<Pollable<'a, H>>,
        event: EpollEvent,
    ) -> Result<(), Errno> {
        self.handle.set.modify(file.into().source(), event)
    }

    /// `epoll_ctl(2)` with `EPOLL_CTL_DEL`.
    ///
    /// # Errors
    /// `ENOENT` if `file` is no entry. Otherwise those of the call.
    ///
    /// # Examples
    /// See [`Epoll::modify`].
    #[doc(alias = "EPOLL_CTL_DEL")]
    pub fn remove<'a>(&self, file: impl Into<Pollable<'a, H>>) -> Result<(), Errno> {
        self.handle.set.remove(file.into().source())
    }

    /// `epoll_wait(2)`: waits until an entry is ready, at most for `timeout`, for ever with `None`. Returns
    /// the number of `events` that were filled; none after the timeout. Delayed bytes of all sockets are sent
    /// first. If more entries are ready than fit, later waits report the others first.
    ///
    /// # Errors
    /// - `EINVAL` if `events` is empty.
    /// - `EIO` if the host reports more events than were requested.
    /// - Otherwise those of the call, such as `EINTR`.
    ///
    /// # Examples
    /// See [`Epoll`](Epoll#examples).
    #[doc(alias = "epoll_wait")]
    pub fn wait(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        self.handle.set.wait(events, timeout)
    }
}

/// A file that can be waited for.
///
/// # Examples
/// A set of sets:
/// ```
/// use rustix::net::{AddressFamily, SendFlags, SocketType};
/// use sakia_socket::{EpollEvent, Events, Kernel, Layer, Options};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(Kernel, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// let (inner, outer) = (layer.epoll()?, layer.epoll()?);
/// inner.add(&b, EpollEvent { events: Events::IN, data: 1 })?;
/// outer.add(&inner, EpollEvent { events: Events::IN, data: 2 })?;
/// a.send(b"x", SendFlags::empty())?;
/// let mut events = [EpollEvent::default(); 8];
/// assert_eq!((outer.wait(&mut events, None)?, events[0].data), (1, 2));
/// assert_eq!((inner.wait(&mut events, None)?, events[0].data), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub enum Pollable<'a, H: Host = Kernel> {
    /// A socket.
    Socket(&'a Socket<H>),
    /// An `epoll` set, which is readable while it has events.
    Epoll(&'a Epoll<H>),
}

impl<H: Host> Clone for Pollable<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H: Host> Copy for Pollable<'_, H> {}

impl<'a, H: Host> From<&'a Socket<H>> for Pollable<'a, H> {
    fn from(socket: &'a Socket<H>) -> Self {
        Self::Socket(socket)
    }
}

impl<'a, H: Host> From<&'a Epoll<H>> for Pollable<'a, H> {
    fn from(set: &'a Epoll<H>) -> Self {
        Self::Epoll(set)
    }
}

impl<'a, H: Host> Pollable<'a, H> {
    pub(crate) fn source(self) -> &'a dyn Source<H> {
        match self {
            Self::Socket(socket) => &**socket.open(),
            Self::Epoll(set) => &*set.handle.set,
        }
    }

    fn to_source(self) -> Arc<dyn Source<H>> {
        match self {
            Self::Socket(socket) => Arc::clone(socket.open()) as _,
            Self::Epoll(set) => Arc::clone(&set.handle.set) as _,
        }
    }

    /// Returns true if this belongs to the layer of `set`.
    fn is_of(self, set: &Epoll<H>) -> bool {
        let shared = match self {
            Self::Socket(socket) => &socket.open().shared,
            Self::Epoll(other) => &other.handle.set.shared,
        };
        Arc::ptr_eq(shared, &set.handle.set.shared)
    }
}
