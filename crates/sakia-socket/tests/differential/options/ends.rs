//! Sockets of the kernel, and of the library, behind the same calls.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{self as kernel_options, Timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketFlags};
use sakia_socket::sockopt::{self, SOL_SOCKET};
use sakia_socket::{Host, Layer, Socket};

use super::steps::Kind;
use super::typed::{self, TYPED};
use crate::support::watched::Watched;

/// A socket of the kernel or of the library.
pub trait One: Sized + Sync {
    fn set(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno>;
    fn get(&self, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno>;
    fn set_time(&self, which: usize, time: Option<Duration>) -> Result<(), Errno>;
    fn time(&self, which: usize) -> Result<Option<Duration>, Errno>;
    fn set_typed(&self, which: usize, value: i32) -> Result<(), Errno>;
    fn typed(&self, which: usize) -> Result<i32, Errno>;
    fn bind(&self, address: &SocketAddrAny) -> Result<(), Errno>;
    fn listen(&self) -> Result<(), Errno>;
    fn connect(&self, address: &SocketAddrAny) -> Result<(), Errno>;
    fn local(&self) -> SocketAddrAny;
    fn accept(&self) -> Result<Self, Errno>;
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;
    fn recv(&self, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno>;
    fn shutdown(&self, how: Shutdown) -> Result<(), Errno>;
    fn flush(&self) {}
}

/// Makes them.
pub trait Source {
    type One: One;
    fn one(&self, kind: Kind) -> Self::One;
    fn two(&self, kind: Kind) -> (Self::One, Self::One);
}

pub struct OfKernel;

impl Source for OfKernel {
    type One = OwnedFd;

    fn one(&self, kind: Kind) -> OwnedFd {
        let (family, kind) = kind.of();
        rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket")
    }

    fn two(&self, kind: Kind) -> (OwnedFd, OwnedFd) {
        let (family, kind) = kind.of();
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair")
    }
}

impl One for OwnedFd {
    fn set(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        Watched::default().set_option(self, level, name, value)
    }

    fn get(&self, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
        Watched::default().option(self, level, name, value)
    }

    /// The smallest time that the kernel has and that is not shorter.
    fn set_time(&self, which: usize, time: Option<Duration>) -> Result<(), Errno> {
        if which == 2 {
            let seconds = time.map_or(0, |time| time.as_secs() as i32);
            let bytes = [i32::from(time.is_some()), seconds].map(i32::to_ne_bytes).concat();
            return self.set(SOL_SOCKET, 13, &bytes);
        }
        let microseconds = time.map_or(0, |time| time.as_nanos().div_ceil(1000).max(1) as isize);
        let parts = [microseconds / 1_000_000, microseconds % 1_000_000];
        self.set(SOL_SOCKET, [20, 21][which], &parts.map(isize::to_ne_bytes).concat())
    }

    fn time(&self, which: usize) -> Result<Option<Duration>, Errno> {
        match which {
            0 => kernel_options::socket_timeout(self, Timeout::Recv),
            1 => kernel_options::socket_timeout(self, Timeout::Send),
            _ => kernel_options::socket_linger(self),
        }
    }

    fn set_typed(&self, which: usize, value: i32) -> Result<(), Errno> {
        let (level, name, is_switch) = TYPED[which];
        let value = if is_switch { i32::from(value != 0) } else { value };
        self.set(level, name, &value.to_ne_bytes())
    }

    fn typed(&self, which: usize) -> Result<i32, Errno> {
        let (level, name, is_switch) = TYPED[which];
        let mut bytes = [0; 4];
        self.get(level, name, &mut bytes)?;
        let value = i32::from_ne_bytes(bytes);
        Ok(if is_switch { i32::from(value != 0) } else { value })
    }

    fn bind(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        rustix::net::bind(self, address)
    }

    fn listen(&self) -> Result<(), Errno> {
        rustix::net::listen(self, 8)
    }

    fn connect(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        rustix::net::connect(self, address)
    }

    fn local(&self) -> SocketAddrAny {
        rustix::net::getsockname(self).expect("a socket")
    }

    fn accept(&self) -> Result<Self, Errno> {
        rustix::net::accept_with(self, SocketFlags::CLOEXEC)
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn recv(&self, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        rustix::net::recv(self, out, flags).map(|(_, count)| count)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        rustix::net::shutdown(self, how)
    }
}

impl<H: Host> Source for Layer<H> {
    type One = (Self, Socket<H>);

    fn one(&self, kind: Kind) -> Self::One {
        let (family, kind) = kind.of();
        (self.clone(), self.socket(family, kind, None).expect("a socket"))
    }

    fn two(&self, kind: Kind) -> (Self::One, Self::One) {
        let (family, kind) = kind.of();
        let (a, b) = self.pair(family, kind).expect("a pair");
        ((self.clone(), a), (self.clone(), b))
    }
}

impl<H: Host> One for (Layer<H>, Socket<H>) {
    fn set(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        self.1.set_option_raw(level, name, value)
    }

    fn get(&self, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
        self.1.option_raw(level, name, value)
    }

    fn set_time(&self, which: usize, time: Option<Duration>) -> Result<(), Errno> {
        let option = [sockopt::SO_RCVTIMEO, sockopt::SO_SNDTIMEO, sockopt::SO_LINGER][which];
        self.1.set_option(option, time)
    }

    fn time(&self, which: usize) -> Result<Option<Duration>, Errno> {
        let option = [sockopt::SO_RCVTIMEO, sockopt::SO_SNDTIMEO, sockopt::SO_LINGER][which];
        self.1.option(option)
    }

    fn set_typed(&self, which: usize, value: i32) -> Result<(), Errno> {
        typed::set(&self.1, which, value)
    }

    fn typed(&self, which: usize) -> Result<i32, Errno> {
        typed::get(&self.1, which)
    }

    fn bind(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        self.1.bind(address)
    }

    fn listen(&self) -> Result<(), Errno> {
        self.1.listen(8)
    }

    fn connect(&self, address: &SocketAddrAny) -> Result<(), Errno> {
        self.1.connect(address)
    }

    fn local(&self) -> SocketAddrAny {
        self.1.local_address().expect("a socket")
    }

    fn accept(&self) -> Result<Self, Errno> {
        self.1.accept().map(|(socket, _)| (self.0.clone(), socket))
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.1.send_vectored(&[IoSlice::new(bytes)], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn recv(&self, out: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        self.1.recv_vectored(&mut [IoSliceMut::new(out)], flags)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        self.1.shutdown(how)
    }

    fn flush(&self) {
        self.0.flush();
    }
}
