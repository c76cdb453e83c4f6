//! Options by their names and types, beside the kernel's numbers.

use rustix::io::Errno;
use sakia_socket::sockopt::{self, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET};
use sakia_socket::{Host, Socket};

/// A type of numbers and switches.
trait Value {
    fn of(number: i32) -> Self;
    fn number(self) -> i32;
}

impl Value for i32 {
    fn of(number: i32) -> Self {
        number
    }

    fn number(self) -> i32 {
        self
    }
}

impl Value for bool {
    fn of(number: i32) -> Self {
        number != 0
    }

    fn number(self) -> i32 {
        self.into()
    }
}

/// Defines a list of options, with the calls that set and read the one with a place in it.
macro_rules! typed {
    ($($name:ident: $type:ty = $level:ident;)*) => {
        /// Level, number, and whether it is a switch.
        pub const TYPED: &[(i32, i32, bool)] = &[$(
            ($level, libc::$name, matches!(stringify!($type).as_bytes(), b"bool")),
        )*];

        pub fn set<H: Host>(socket: &Socket<H>, which: usize, value: i32) -> Result<(), Errno> {
            let calls = [$(
                |socket: &Socket<H>, value| {
                    socket.set_option(sockopt::$name, <$type as Value>::of(value))
                },
            )*];
            calls[which](socket, value)
        }

        pub fn get<H: Host>(socket: &Socket<H>, which: usize) -> Result<i32, Errno> {
            let calls = [$(
                |socket: &Socket<H>| socket.option(sockopt::$name).map(Value::number),
            )*];
            calls[which](socket)
        }
    };
}

typed! {
    SO_RCVBUF: i32 = SOL_SOCKET;
    SO_SNDBUF: i32 = SOL_SOCKET;
    SO_REUSEADDR: bool = SOL_SOCKET;
    SO_REUSEPORT: bool = SOL_SOCKET;
    SO_KEEPALIVE: bool = SOL_SOCKET;
    SO_BROADCAST: bool = SOL_SOCKET;
    SO_OOBINLINE: bool = SOL_SOCKET;
    SO_PASSCRED: bool = SOL_SOCKET;
    SO_TYPE: i32 = SOL_SOCKET;
    SO_DOMAIN: i32 = SOL_SOCKET;
    SO_PROTOCOL: i32 = SOL_SOCKET;
    SO_ACCEPTCONN: bool = SOL_SOCKET;
    SO_ERROR: i32 = SOL_SOCKET;
    SO_RCVLOWAT: i32 = SOL_SOCKET;
    TCP_NODELAY: bool = IPPROTO_TCP;
    TCP_CORK: bool = IPPROTO_TCP;
    TCP_MAXSEG: i32 = IPPROTO_TCP;
    TCP_QUICKACK: bool = IPPROTO_TCP;
    TCP_KEEPIDLE: i32 = IPPROTO_TCP;
    TCP_KEEPINTVL: i32 = IPPROTO_TCP;
    TCP_KEEPCNT: i32 = IPPROTO_TCP;
    TCP_USER_TIMEOUT: i32 = IPPROTO_TCP;
    IP_TTL: i32 = IPPROTO_IP;
    IP_TOS: i32 = IPPROTO_IP;
    IPV6_V6ONLY: bool = IPPROTO_IPV6;
    IPV6_UNICAST_HOPS: i32 = IPPROTO_IPV6;
}
