//! Packets under way on the loopback interface.

use std::net::UdpSocket;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A reply to a packet, and the reply to that one, are under way after the packet itself.
const HOPS: usize = 3;

thread_local! {
    /// A socket whose peer is itself.
    static SOCKET: UdpSocket = {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.connect(socket.local_addr().expect("it is bound")).expect("a peer");
        socket
    };
}

/// Waits until the kernel has delivered every packet sent on the loopback interface before the call, and the
/// packets sent in reply.
///
/// Of some packets, no call reports the arrival: the receiver drops them, or resets the connection. On an
/// idle machine they have arrived when the call that sends them returns. On a busy one a kernel thread
/// delivers them later. Each processor has one queue for the packets sent on it, so a datagram sent there by
/// this function arrives after them.
///
/// # Panics
/// If there is no socket, or the thread must not move to its processors.
///
/// # Examples
/// ```
/// use std::io::{ErrorKind, Write};
/// use std::net::{TcpListener, TcpStream};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let mut stream = TcpStream::connect(listener.local_addr()?)?;
/// drop(listener);
/// sakia_testkit::loopback::settle();
/// assert_eq!(stream.write(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
/// # std::io::Result::Ok(())
/// ```
pub fn settle() {
    let processors = sched_getaffinity(None).expect("a running thread has processors");
    let is_allowed = |&processor: &usize| processors.is_set(processor);
    for processor in (0..CpuSet::MAX_CPU).filter(is_allowed) {
        let mut alone = CpuSet::new();
        alone.set(processor);
        sched_setaffinity(None, &alone).expect("the thread may run there");
        for _ in 0..HOPS {
            SOCKET.with(|socket| {
                socket.send(&[1]).expect("an empty queue has room");
                assert_eq!(socket.recv(&mut [0; 2]).expect("it is sent"), 1);
            });
        }
    }
    sched_setaffinity(None, &processors).expect("the thread could run there");
}
