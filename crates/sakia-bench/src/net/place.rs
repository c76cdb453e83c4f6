//! Places for connections, the same on every machine.
//!
//! A machine's default congestion control may pace, which limits throughput on a loopback: BBR halves it. So
//! servers run in a network namespace, in which all sockets have the congestion control that the results
//! name. If a namespace is not allowed, servers run on the machine's loopback, and the congestion control is
//! set on each socket.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with, sockopt,
};
use serde::{Deserialize, Serialize};

use crate::experiment::{About, Focus};
use crate::machine::{keep_to, processors};

/// The default congestion control: every kernel has it, and every user may choose it.
pub const CONGESTION: &str = "reno";

/// The default for new sockets in the reader's namespace.
const CONGESTION_FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// A place for connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Set if they are in a network namespace of their own; otherwise on the machine's loopback.
    pub namespace: bool,
    /// The congestion control of both sides.
    pub congestion: String,
    /// The processors of the server and of the load; `None` if there is only one.
    pub processors: Option<[usize; 2]>,
}

impl Place {
    /// Returns the best place that this process may have.
    ///
    /// # Errors
    /// The congestion control does not exist.
    pub fn detect(congestion: &str) -> anyhow::Result<Self> {
        let mut usable = processors().into_iter().flatten();
        let processors = usable.next().zip(usable.next()).map(|(server, load)| [server, load]);
        let mut place = Self { namespace: true, congestion: congestion.to_owned(), processors };
        // Tried on a separate thread, which ends afterwards: only that thread's namespace changes.
        let tried = thread::scope(|scope| scope.spawn(|| place.enter_namespace()).join());
        place.namespace = matches!(tried, Ok(Ok(())));
        if !place.namespace {
            let socket =
                socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            place.tell(&socket)?;
        }
        Ok(place)
    }

    /// Moves this process there, as the server's. Must be called while it has one thread.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn enter(&self) -> anyhow::Result<()> {
        if self.namespace {
            self.enter_namespace()?;
        }
        if let Some([server, _]) = self.processors {
            keep_to(&[server])?;
        }
        Ok(())
    }

    fn enter_namespace(&self) -> anyhow::Result<()> {
        unshare(CloneFlags::CLONE_NEWNET).context("unshare")?;
        raise_loopback().context("cannot bring the loopback up")?;
        fs::write(CONGESTION_FILE, &self.congestion)
            .with_context(|| format!("cannot choose {} in {CONGESTION_FILE}", self.congestion))
    }

    /// Sets the TCP options of this experiment on a socket, and on those that it will accept.
    ///
    /// # Errors
    /// The congestion control does not exist, or not every user may choose it.
    pub fn tell(&self, socket: impl AsFd) -> anyhow::Result<()> {
        let Self { congestion, .. } = self;
        sockopt::set_tcp_congestion(&socket, congestion)
            .with_context(|| format!("cannot choose the congestion control {congestion}"))?;
        let chosen = sockopt::tcp_congestion(&socket)?;
        if chosen != *congestion {
            bail!("a socket has the congestion control {chosen}, not {congestion}");
        }
        // Parts of a message are sent at once, so that no TCP timer is measured.
        sockopt::set_tcp_nodelay(&socket, true).context("cannot set TCP_NODELAY")
    }

    /// Returns an experiment on connections in this place.
    pub(crate) fn about(&self, name: &'static str, focus: Focus) -> About {
        let mut about = About::new(name, focus, Path::new("/"));
        about.machine.network = Some(self.clone());
        about
    }

    /// Returns a short description.
    pub fn describe(&self) -> String {
        let Self { namespace, congestion, processors } = self;
        let place = if *namespace { "network namespace" } else { "the machine's own loopback" };
        let processors = match processors {
            Some([server, load]) => format!("server on CPU {server}, load on CPU {load}"),
            None => "server and load on the same CPU".into(),
        };
        format!("{place}, {congestion}, {processors}")
    }
}

/// Sets the first interface up, which in a fresh namespace is the loopback, by an rtnetlink(7) message.
fn raise_loopback() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const REQUEST_AND_ACKNOWLEDGE: u16 = 5;
    const LOOPBACK: i32 = 1;
    const UP: u32 = 1;
    let message = [
        // The header: length, type, flags, sequence number, port.
        &32u32.to_ne_bytes()[..],
        &NEW_LINK.to_ne_bytes(),
        &REQUEST_AND_ACKNOWLEDGE.to_ne_bytes(),
        &[0; 8],
        // The interface: family, type, index, flags, and which of these are changed.
        &[0; 4],
        &LOOPBACK.to_ne_bytes(),
        &UP.to_ne_bytes(),
        &UP.to_ne_bytes(),
    ]
    .concat();
    // The protocol defaults to rtnetlink, the first one.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0; 256];
    let (count, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
    // A header, and an error number, which is 0 on success.
    let error = answer[..count].get(16..20).and_then(|bytes| bytes.try_into().ok());
    match error.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_thread_can_go_there() {
        let place = Place::detect(CONGESTION).unwrap();
        assert!(place.describe().contains("reno"));
        thread::spawn(move || {
            if place.namespace {
                place.enter_namespace().unwrap();
                assert_eq!(fs::read_to_string(CONGESTION_FILE).unwrap().trim(), CONGESTION);
            }
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            place.tell(&listener).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_congestion_control_that_is_none_is_named() {
        let error = Place::detect("none-such").unwrap_err();
        assert!(error.to_string().contains("none-such"), "{error}");
    }
}
