//! `select(2)`.

use std::time::Duration;

use rustix::io::Errno;
use sakia_socket_core::Selection;

use crate::poll::{Item, wait_for};
use crate::{Events, Host, Layer, Pollable};

/// A file of [`Layer::select`], with the sets that it is in. The caller looks descriptor numbers up before,
/// so `EBADF` does not occur here.
///
/// # Examples
/// ```
/// use rustix::net::{AddressFamily, SendFlags, SocketType};
/// use sakia_socket::{Kernel, Layer, Options, SelectEntry, Selection};
///
/// # fn main() -> rustix::io::Result<()> {
/// let layer = Layer::new(Kernel, Options::default());
/// let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
/// a.send(b"x", SendFlags::empty())?;
/// let mut sets = Selection::default();
/// sets.readable = true;
/// let mut entries = [SelectEntry::new(&a, sets), SelectEntry::new(&b, sets)];
/// assert_eq!(layer.select(&mut entries, None)?, 1);
/// assert_eq!((entries[0].ready().readable, entries[1].ready().readable), (false, true));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SelectEntry<'a, H: Host> {
    item: Item<'a, H>,
    sets: Selection,
}

impl<'a, H: Host> SelectEntry<'a, H> {
    /// Makes an entry that is in `sets`.
    ///
    /// # Examples
    /// See [`SelectEntry`](SelectEntry#examples).
    pub fn new(file: impl Into<Pollable<'a, H>>, sets: Selection) -> Self {
        let source = file.into().source();
        let (wanted, ending) = (sets.wanted(), sets.ending());
        let item = Item { source, wanted, ending, ready: Events::NONE, is_left_out: false };
        Self { item, sets }
    }

    /// Returns the sets in which the last wait left the file.
    ///
    /// # Examples
    /// See [`SelectEntry`](SelectEntry#examples).
    pub fn ready(&self) -> Selection {
        self.sets.ready(self.item.ready)
    }
}

impl<H: Host> Layer<H> {
    /// `select(2)`: waits until one of `entries` is ready for one of its sets, at most for `timeout`, for
    /// ever with `None`. Returns the number of files in all three sets; none after the timeout. Delayed
    /// bytes of all sockets are sent first.
    ///
    /// # Errors
    /// Those of the call, such as `EINTR`.
    ///
    /// # Examples
    /// See [`SelectEntry`](SelectEntry#examples).
    pub fn select(
        &self,
        entries: &mut [SelectEntry<'_, H>],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let mut items: Vec<&mut Item<'_, H>> =
            entries.iter_mut().map(|entry| &mut entry.item).collect();
        wait_for(self.shared(), &mut items, timeout)?;
        Ok(entries.iter().map(|entry| entry.ready().count()).sum())
    }
}
