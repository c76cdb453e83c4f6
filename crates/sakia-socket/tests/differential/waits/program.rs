//! The sockets of a program, and the steps in which something happens.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_tcp_nodelay};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags, SocketType,
    getsockname, socket_with, socketpair,
};
use sakia_socket::Events;
use sakia_testkit::loopback;

use super::steps::{DATAGRAMS, Kind, SETS, Step, UNDER_WAY, is_tcp};
use crate::world::World;

/// The answer of a step; `true` if it is not compared.
pub type Line = (String, bool);

/// An end of a pair.
#[derive(Debug)]
pub struct End<S> {
    pub socket: S,
    pub kind: Kind,
    /// Sent and received bytes, or datagrams.
    pub sent: usize,
    pub received: usize,
    pub is_connected: bool,
    pub has_ended: bool,
    pub is_deaf: bool,
    /// The number of the byte behind an urgent one that is under way.
    pub mark: Option<usize>,
}

/// An entry of a set.
#[derive(Clone, Copy, Debug)]
pub struct Interest {
    pub data: u64,
    pub behavior: Events,
    pub is_tcp: bool,
}

pub struct Program<'a, W: World> {
    pub world: &'a W,
    pub ends: [Option<End<W::Socket>>; SETS],
    pub sets: Rc<[W::Set; 2]>,
    /// By set and file.
    pub entries: BTreeMap<(usize, usize), Interest>,
    /// Bytes may wait in memory.
    pub has_memory: bool,
}

pub fn address() -> SocketAddrAny {
    SocketAddr::from(([127, 0, 0, 1], 0)).into()
}

pub fn internet(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

/// Makes two sockets, of which the second may listen.
pub fn two(kind: Kind) -> (OwnedFd, OwnedFd) {
    let unix =
        |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    match kind {
        Kind::Unix => unix(SocketType::STREAM),
        Kind::UnixDatagrams => unix(SocketType::DGRAM),
        Kind::Udp => {
            let [a, b] = [(); 2].map(|()| internet(SocketType::DGRAM));
            for fd in [&a, &b] {
                rustix::net::bind(fd, &address()).expect("a port");
            }
            for (from, to) in [(&a, &b), (&b, &a)] {
                let to = getsockname(to).expect("an address");
                rustix::net::connect(from, &to).expect("a peer");
            }
            (a, b)
        }
        Kind::Unused => {
            let unix =
                socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            (unix.expect("a socket"), internet(SocketType::DGRAM))
        }
        Kind::Alone | Kind::Tcp => {
            let listener = internet(SocketType::STREAM);
            rustix::net::bind(&listener, &address()).expect("a port");
            rustix::net::listen(&listener, 4).expect("a listener");
            let a = internet(SocketType::STREAM);
            set_tcp_nodelay(&a, true).expect("an option");
            if kind == Kind::Alone {
                return (a, listener);
            }
            rustix::net::connect(&a, &getsockname(&listener).expect("an address"))
                .expect("a connection");
            let b = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC);
            let b = b.expect("a connection");
            set_tcp_nodelay(&b, true).expect("an option");
            (a, b)
        }
    }
}

impl<'a, W: World> Program<'a, W> {
    pub fn new(world: &'a W, has_memory: bool) -> Self {
        let (ends, sets) = ([const { None }; SETS], Rc::new([world.set(), world.set()]));
        Self { world, ends, sets, entries: BTreeMap::new(), has_memory }
    }

    pub fn run(mut self, steps: &[Step]) -> Vec<Line> {
        let mut log = Vec::new();
        for step in steps {
            if let Some((seen, is_loose)) = self.step(step) {
                log.push((format!("{step:?}: {seen}"), is_loose));
            }
        }
        // Otherwise thousands of connections would stay in `TIME_WAIT`.
        for end in self.ends.iter().flatten().filter(|end| is_tcp(end.kind)) {
            let fd = self.world.fd(&end.socket);
            set_socket_linger(fd, Some(Duration::ZERO)).expect("an option");
        }
        log
    }

    fn step(&mut self, step: &Step) -> Option<Line> {
        match step {
            Step::Poll { entries, timeout, between } => self.poll(entries, *timeout, between),
            Step::Select { entries, timeout, between } => self.select(entries, *timeout, between),
            Step::Wait { set, max, is_once, timeout } => self.wait(*set, *max, *is_once, *timeout),
            Step::Control { set, operation, file, events, data } => {
                self.world.flush();
                self.control(*set, *operation, *file, *events, *data).map(|said| (said, false))
            }
            deed => self.deed(deed).map(|said| (said, false)),
        }
    }

    /// Does what is no wait. Delayed bytes of Unix sockets are left for a wait to send.
    pub fn deed(&mut self, step: &Step) -> Option<String> {
        let is_unix_send = matches!(step, Step::Send { end, .. } if self.ends[*end]
            .as_ref()
            .is_some_and(|end| end.kind == Kind::Unix));
        if !is_unix_send {
            self.world.flush();
        }
        let said = self.act(step);
        if !is_unix_send {
            self.world.flush();
            loopback::settle();
        }
        said
    }

    fn act(&mut self, step: &Step) -> Option<String> {
        let world = self.world;
        Some(match *step {
            Step::Open { place, kind } => {
                self.close(2 * place);
                self.close(2 * place + 1);
                let (a, b) = two(kind);
                for (side, fd) in [a, b].into_iter().enumerate() {
                    let is_datagrams = matches!(kind, Kind::Udp | Kind::UnixDatagrams)
                        || kind == Kind::Unused && side == 1;
                    let of = if is_datagrams { SocketType::DGRAM } else { SocketType::STREAM };
                    self.ends[2 * place + side] = Some(End {
                        socket: world.socket(fd, of),
                        kind,
                        sent: 0,
                        received: 0,
                        is_connected: !matches!(kind, Kind::Alone | Kind::Unused),
                        has_ended: false,
                        is_deaf: false,
                        mark: None,
                    });
                }
                String::new()
            }
            Step::Close { end } => {
                self.close(end);
                String::new()
            }
            Step::Send { end, len } => {
                let (this, peer) = self.pair(end)?;
                let peer = peer?;
                let is_full = match this.kind {
                    Kind::Udp | Kind::UnixDatagrams => this.sent - peer.received >= DATAGRAMS,
                    _ => this.sent + len - peer.received > UNDER_WAY,
                };
                // An error of delayed bytes would be reported later than one of plain ones.
                if is_full || this.has_ended || peer.is_deaf || !this.is_connected {
                    return None;
                }
                let result = world.send(&this.socket, &vec![7; len], SendFlags::empty());
                let is_datagram = matches!(this.kind, Kind::Udp | Kind::UnixDatagrams);
                let count = result.unwrap_or(0);
                this.sent += if is_datagram { usize::from(result.is_ok()) } else { count };
                format!("{result:?}")
            }
            Step::Urge { end } => {
                let (this, peer) = self.pair(end)?;
                let peer = peer?;
                let may = is_tcp(this.kind)
                    && this.is_connected
                    && !this.has_ended
                    && !peer.is_deaf
                    && peer.is_connected
                    && this.sent == peer.received
                    && peer.mark.is_none();
                if !may {
                    return None;
                }
                let result = world.send(&this.socket, b"!", SendFlags::OOB);
                peer.mark = Some(this.sent);
                format!("{result:?}")
            }
            Step::Recv { end, len } => {
                let (this, _) = self.pair(end)?;
                let is_datagram = matches!(this.kind, Kind::Udp | Kind::UnixDatagrams);
                // The bytes in memory and those behind them take two calls.
                let mut all = 0;
                let result = loop {
                    let mut bytes = vec![0; len - all];
                    match world.recv(&this.socket, &mut bytes, RecvFlags::DONTWAIT) {
                        Ok(0) => break Ok(()),
                        Ok(count) => all += count,
                        Err(errno) => break Err(errno),
                    }
                    if is_datagram {
                        this.received += 1;
                    }
                    if all == len || is_datagram {
                        break Ok(());
                    }
                };
                if !is_datagram {
                    this.received += all;
                    this.mark = this.mark.filter(|&mark| this.received <= mark);
                }
                format!("{all} {result:?}")
            }
            Step::Shutdown { end, how } => {
                let (this, _) = self.pair(end)?;
                let result = world.shutdown(&this.socket, how);
                if result.is_ok() {
                    this.has_ended |= how != Shutdown::Read;
                    this.is_deaf |= how != Shutdown::Write;
                }
                format!("{result:?}")
            }
            Step::Connect { end, is_refused } => {
                let (this, peer) = self.pair(end & !1)?;
                if this.kind != Kind::Alone || this.is_connected {
                    return None;
                }
                let free = internet(SocketType::STREAM);
                rustix::net::bind(&free, &address()).expect("a port");
                let mut to = getsockname(&free).expect("an address");
                if let (false, Some(peer)) = (is_refused, &peer) {
                    to = getsockname(world.fd(&peer.socket)).expect("an address");
                }
                let result = world.connect(&this.socket, &to);
                format!("{result:?}")
            }
            Step::Accept { end } => {
                let (this, _) = self.pair(end | 1)?;
                if this.kind != Kind::Alone || this.is_connected {
                    return None;
                }
                match world.accept(&this.socket) {
                    Err(errno) => format!("{errno:?}"),
                    Ok(socket) => {
                        let end = end | 1;
                        self.close(end);
                        self.ends[end] = Some(End {
                            socket,
                            kind: Kind::Alone,
                            sent: 0,
                            received: 0,
                            is_connected: true,
                            has_ended: false,
                            is_deaf: false,
                            mark: None,
                        });
                        if let Some(peer) = &mut self.ends[end & !1] {
                            (peer.is_connected, peer.sent, peer.received) = (true, 0, 0);
                        }
                        String::new()
                    }
                }
            }
            Step::Leave { end } => {
                let sent = self.act(&Step::Send { end, len: 300 })?;
                world.flush();
                loopback::settle();
                format!("{sent} {:?}", self.act(&Step::Recv { end: end ^ 1, len: 1 }))
            }
            Step::Hail { end } => {
                let steps = [
                    Step::Connect { end, is_refused: false },
                    Step::Accept { end },
                    Step::Urge { end },
                ];
                let said = steps.map(|step| {
                    loopback::settle();
                    self.act(&step)
                });
                format!("{said:?}")
            }
            Step::Error { end } => {
                let (this, _) = self.pair(end)?;
                format!("{:?}", world.take_error(&this.socket))
            }
            _ => return None,
        })
    }

    /// Returns an open end, and the other one.
    #[expect(clippy::type_complexity, reason = "two of the same")]
    fn pair(&mut self, end: usize) -> Option<(&mut End<W::Socket>, Option<&mut End<W::Socket>>)> {
        let place = end & !1;
        let [first, second] = &mut self.ends[place..place + 2] else { return None };
        let (this, peer) = if end == place { (first, second) } else { (second, first) };
        Some((this.as_mut()?, peer.as_mut()))
    }

    fn close(&mut self, end: usize) {
        self.ends[end] = None;
        self.entries.retain(|&(_, file), _| file != end);
    }
}
