//! Datagrams.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;

use proptest::prelude::*;
use rustix::net::{SendFlags, send};
use sakia::net::{UdpSocket, UnixDatagram};
use sakia_driver::Policy;

use super::receives::{Object, Step, run, steps};
use super::{check, on_backends};

on_backends! {
    udp_datagrams_come_in_order
    udp_datagrams_of_a_peer_come_in_order
    unix_datagrams_come_in_order
}

/// A receiving method, and the room for bytes.
#[derive(Clone, Debug)]
enum Method {
    Recv(usize),
    RecvFrom(usize),
    RecvMessage(usize, usize),
    RecvDatagram,
    RecvBatch(usize, usize),
    Peek(usize),
    PeekFrom(usize),
}

fn methods() -> impl Strategy<Value = Method> + Clone {
    let room = || 2usize..24;
    prop_oneof![
        2 => room().prop_map(Method::Recv),
        1 => room().prop_map(Method::RecvFrom),
        1 => (room(), 0usize..100).prop_map(|(room, control)| Method::RecvMessage(room, control)),
        4 => Just(Method::RecvDatagram),
        4 => (1usize..9, room()).prop_map(|(count, room)| Method::RecvBatch(count, room)),
        1 => room().prop_map(Method::Peek),
        1 => room().prop_map(Method::PeekFrom),
    ]
}

enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

/// A sender and a receiver.
struct Pair {
    near: Socket,
    far: Socket,
}

/// Returns the bytes of the datagram with this number, which are longer than some rooms.
fn bytes(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; 2 + number * 5 % 20];
    bytes[..2].copy_from_slice(&(number as u16).to_le_bytes());
    bytes
}

/// Returns the number of a datagram, of which `bytes` are the first.
fn number(received: &[u8]) -> usize {
    let number = usize::from(u16::from_le_bytes([received[0], received[1]]));
    assert!(bytes(number).starts_with(received), "{received:?}");
    number
}

impl Object for Pair {
    type Method = Method;

    fn most(method: &Method) -> usize {
        match *method {
            Method::Peek(_) | Method::PeekFrom(_) => 0,
            Method::RecvBatch(count, _) => count,
            _ => 1,
        }
    }

    fn send(&self, number: usize) -> bool {
        let near = match &self.near {
            Socket::Udp(near) => near.as_fd(),
            Socket::Unix(near) => near.as_fd(),
        };
        send(near, &bytes(number), SendFlags::DONTWAIT).is_ok()
    }

    async fn receive(self: Rc<Self>, method: Method) -> Vec<usize> {
        /// The methods that both types have.
        macro_rules! receive {
            ($far:expr) => {
                match method {
                    Method::RecvFrom(room) => {
                        let (result, buf) = $far.recv_from(vec![0; room]).await;
                        vec![number(&buf[..result.unwrap().0])]
                    }
                    Method::RecvMessage(room, control) => {
                        let (result, buf) =
                            $far.recv_message(Vec::with_capacity(room), control).await;
                        vec![number(&buf[..result.unwrap().0.len])]
                    }
                    Method::RecvDatagram => {
                        vec![number(&$far.recv_datagram().await.unwrap().bytes)]
                    }
                    Method::Peek(room) => {
                        let (result, buf) = $far.peek(vec![0; room]).await;
                        vec![number(&buf[..result.unwrap()])]
                    }
                    Method::PeekFrom(room) => {
                        let (result, buf) = $far.peek_from(Vec::with_capacity(room)).await;
                        vec![number(&buf[..result.unwrap().0])]
                    }
                    Method::Recv(room) | Method::RecvBatch(_, room) => {
                        let (result, buf) = $far.recv(vec![0; room]).await;
                        vec![number(&buf[..result.unwrap()])]
                    }
                }
            };
        }
        match (&self.far, method.clone()) {
            (Socket::Udp(far), Method::RecvBatch(count, room)) => {
                let (result, bufs) = far.recv_batch(vec![vec![0; room]; count]).await;
                let received = result.unwrap();
                received.iter().zip(&bufs).map(|(one, buf)| number(&buf[..one.len])).collect()
            }
            (Socket::Udp(far), _) => receive!(far),
            (Socket::Unix(far), _) => receive!(far),
        }
    }
}

async fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").await.unwrap()
}

/// The order of datagrams on a network is not certain. Within a machine they keep it.
fn udp_datagrams(policy: Policy, has_peer: bool) {
    check(
        policy,
        (any::<bool>(), steps(methods())),
        |(is_adopted, steps): (_, Vec<Step<_>>)| async move {
            let (near, mut far) = (udp().await, udp().await);
            near.connect(far.local_addr().unwrap()).await.unwrap();
            if has_peer {
                let near: SocketAddr = near.local_addr().unwrap();
                far.connect(near).await.unwrap();
            }
            if is_adopted {
                far = UdpSocket::from_std(far.into_std().await.unwrap()).unwrap();
            }
            let pair = Pair { near: Socket::Udp(near), far: Socket::Udp(far) };
            run(pair, steps, Method::Recv(30)).await;
        },
    );
}

fn udp_datagrams_come_in_order(policy: Policy) {
    udp_datagrams(policy, false);
}

fn udp_datagrams_of_a_peer_come_in_order(policy: Policy) {
    udp_datagrams(policy, true);
}

fn unix_datagrams_come_in_order(policy: Policy) {
    check(
        policy,
        (any::<bool>(), steps(methods())),
        |(is_adopted, steps): (_, Vec<Step<_>>)| async move {
            let (near, mut far) = UnixDatagram::pair().unwrap();
            if is_adopted {
                far = UnixDatagram::from_std(far.into_std().await.unwrap()).unwrap();
            }
            let pair = Pair { near: Socket::Unix(near), far: Socket::Unix(far) };
            run(pair, steps, Method::Recv(30)).await;
        },
    );
}
