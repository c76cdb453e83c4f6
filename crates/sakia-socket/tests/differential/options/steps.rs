//! Options by their numbers, the steps of a program, and programs at random.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketType};
use sakia_socket::sockopt::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use sakia_testkit::random::Random;

use super::typed::TYPED;

pub const IP: i32 = IPPROTO_IP;
pub const TCP: i32 = IPPROTO_TCP;
pub const IPV6: i32 = IPPROTO_IPV6;
pub const LEVELS: [i32; 6] = [SOL_SOCKET, IP, TCP, IPV6, 17, 1000];

/// Options that [`Kernel`] sets, by level and name.
pub const SETS: &[(i32, &[i32])] = &[
    (SOL_SOCKET, &[2, 6, 7, 8, 9, 10, 13, 15, 16, 20, 21, 32, 33, 49]),
    (TCP, &[1, 3, 4, 5, 6, 12, 16, 18]),
    (IP, &[1, 2, 13, 15, 33, 34]),
    (IPV6, &[16, 18, 19, 26, 67, 78]),
];
/// Options that it only reads: `SO_TYPE`, `SO_ERROR`, `SO_ACCEPTCONN`, `SO_PROTOCOL`, `SO_DOMAIN`,
/// `SO_COOKIE`, `IP_MTU` and `IPV6_MTU`.
pub const READS: &[(i32, &[i32])] =
    &[(SOL_SOCKET, &[3, 4, 30, 38, 39, 57]), (IP, &[14]), (IPV6, &[24])];
/// `SO_RCVBUFFORCE` and `SO_SNDBUFFORCE`, which cannot be read.
pub const UNREADABLE: &[(i32, &[i32])] = &[(SOL_SOCKET, &[32, 33])];
/// Options that only a complete host has: among others `SO_RCVLOWAT`, `SO_PRIORITY`, `SO_RCVTIMEO_NEW`,
/// `TCP_MAXSEG`, `TCP_LINGER2` and `IP_RECVORIGDSTADDR`.
pub const OTHERS: &[(i32, &[i32])] = &[
    (SOL_SOCKET, &[5, 12, 18, 29, 46, 47, 66, 67]),
    (TCP, &[2, 7, 8, 9, 10, 13, 23, 25]),
    (IP, &[10, 20, 24]),
    (IPV6, &[23, 66]),
];
/// Numbers that no program puts together: their bytes are an address or a program, or they change what a
/// descriptor is.
pub const NEVER: &[(i32, &[i32])] = &[
    (SOL_SOCKET, &[25, 26, 27, 36, 44, 50, 51, 52, 68, 78]),
    (TCP, &[14, 19, 20, 21, 22, 26, 27, 28, 31, 33, 38, 39]),
    (IP, &[16, 17, 66, 67, 78]),
    (IPV6, &[1, 6, 34, 35, 44, 57, 64, 65, 68, 69, 80]),
];

pub fn is_in(list: &[(i32, &[i32])], level: i32, name: i32) -> bool {
    list.iter().any(|(of, names)| *of == level && names.contains(&name))
}

/// The kinds of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Tcp6,
    Udp,
    Udp6,
    UnixStream,
    UnixDatagrams,
}

pub const KINDS: [Kind; 6] =
    [Kind::Tcp, Kind::Tcp6, Kind::Udp, Kind::Udp6, Kind::UnixStream, Kind::UnixDatagrams];

impl Kind {
    pub fn of(self) -> (AddressFamily, SocketType) {
        match self {
            Self::Tcp => (AddressFamily::INET, SocketType::STREAM),
            Self::Tcp6 => (AddressFamily::INET6, SocketType::STREAM),
            Self::Udp => (AddressFamily::INET, SocketType::DGRAM),
            Self::Udp6 => (AddressFamily::INET6, SocketType::DGRAM),
            Self::UnixStream => (AddressFamily::UNIX, SocketType::STREAM),
            Self::UnixDatagrams => (AddressFamily::UNIX, SocketType::DGRAM),
        }
    }

    pub fn address(self) -> Option<SocketAddrAny> {
        match self.of().0 {
            AddressFamily::INET => Some(SocketAddr::from(([127, 0, 0, 1], 0)).into()),
            AddressFamily::INET6 => {
                Some(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0)).into())
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum Step {
    /// The first step: the kind of the socket.
    Kind(Kind),
    Set {
        level: i32,
        name: i32,
        value: Vec<u8>,
    },
    Get {
        level: i32,
        name: i32,
        len: usize,
    },
    /// Sets a time by its type: `SO_RCVTIMEO`, `SO_SNDTIMEO` or `SO_LINGER`.
    Time {
        which: usize,
        time: Option<Duration>,
    },
    /// Sets and reads an option by its type; the number is its place in the list.
    Typed {
        which: usize,
        value: i32,
    },
    Bind,
    Listen,
    /// Connects to a peer, from which bytes can be received.
    Connect,
    Send,
    Shutdown(Shutdown),
}

pub fn pair(random: &mut Random) -> (i32, i32) {
    let lists = [SETS, SETS, SETS, READS, OTHERS];
    let list = random.one_of(&lists);
    let all = list.iter().flat_map(|(level, names)| names.iter().map(|name| (*level, *name)));
    let (level, name) = random.one_of(&all.collect::<Vec<_>>());
    let mut pair = (level, name);
    if random.percent(15) {
        pair.0 = random.one_of(&LEVELS);
    }
    if random.percent(3) {
        pair.1 = random.one_of(&[0, -1, 9999]);
    }
    if is_in(NEVER, pair.0, pair.1) { (level, name) } else { pair }
}

pub fn number(random: &mut Random) -> i32 {
    let usual = [0, 0, 1, 1, 2, -1, -2, 5, 77, 127, 128, 255, 256, 4096, 999_999, 1_000_000];
    let rare = [i32::MAX, i32::MIN, 32_767, 32_768, 100_000];
    if random.percent(85) { random.one_of(&usual) } else { random.one_of(&rare) }
}

impl Step {
    pub fn random(random: &mut Random) -> Self {
        let (level, name) = pair(random);
        match random.below(100) {
            0..45 => {
                let is_time = level == SOL_SOCKET && [20, 21].contains(&name);
                let mut value: Vec<u8> = if is_time {
                    let word = |random: &mut Random| isize::to_ne_bytes(number(random) as isize);
                    [word(random), word(random)].concat()
                } else {
                    [number(random), number(random)].map(i32::to_ne_bytes).concat()
                };
                value.resize(20, 0);
                let usual = if is_time {
                    16
                } else if name == 13 {
                    8
                } else {
                    4
                };
                let len = match random.below(10) {
                    0..7 => usual,
                    _ => random.one_of(&[0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20]),
                };
                value.truncate(len);
                Self::Set { level, name, value }
            }
            45..55 => {
                let which = random.below(TYPED.len() as u64) as usize;
                Self::Typed { which, value: number(random) }
            }
            55..80 => {
                let len = match random.below(4) {
                    0 => random.one_of(&[0, 1, 2, 3, 5, 7, 9, 15, 20]),
                    1 => 4,
                    2 => 8,
                    _ => 16,
                };
                Self::Get { level, name, len }
            }
            80..88 => {
                let nanoseconds =
                    random.one_of(&[0, 1, 999, 1000, 3_999_001, 4_000_000, 999_999_999]);
                let seconds = random.one_of(&[0, 0, 1, 70_000]);
                let time = random.percent(70).then(|| Duration::new(seconds, nanoseconds));
                Self::Time { which: random.below(3) as usize, time }
            }
            88..90 => Self::Bind,
            90 => Self::Listen,
            91..95 => Self::Connect,
            95..98 => Self::Send,
            _ => {
                let hows = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                Self::Shutdown(random.one_of(&hows))
            }
        }
    }
}

pub fn program(random: &mut Random) -> Vec<Step> {
    let mut steps = vec![Step::Kind(random.one_of(&KINDS))];
    steps.extend((0..1 + random.below(30)).map(|_| Step::random(random)));
    steps
}
