//! Datagrams on the simulated kernel, with many seeds.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::time::Duration;

use sakia::fs::{File, OpenOptions};
use sakia::net::{ControlMessage, ControlMessages, UdpOptions, UdpSocket, UnixDatagram, os_error};
use sakia::sim::{FaultKind, Test};
use sakia::time::{sleep, timeout};
use sakia::{join, spawn};

use crate::support::bytes;

/// Returns a test on kernels that are as awkward as a correct kernel may be.
fn awkward() -> Test<'static> {
    Test::new()
        .seeds(0..200)
        .kernel(|kernel| kernel.entries(2, 4).late_writes(1 << 13))
        .masked_faults(1 << 12)
}

fn name(text: &str) -> UnixAddr {
    UnixAddr::from_abstract_name(text).unwrap()
}

/// Returns a datagram that contains its number.
fn numbered(number: u64) -> Vec<u8> {
    let mut datagram = number.to_le_bytes().to_vec();
    datagram.extend(bytes(number as usize * 7 % 40));
    datagram
}

/// Returns the number of a datagram, and asserts that it is whole.
fn number_of(datagram: &[u8]) -> u64 {
    let number = u64::from_le_bytes(datagram[..8].try_into().unwrap());
    assert_eq!(datagram, numbered(number));
    number
}

/// Receives this number of datagrams by all kinds of receives, some of which are dropped.
async fn receive_all(socket: &UnixDatagram, count: u64) -> io::Result<()> {
    let mut next = 0;
    for step in 0.. {
        if next == count {
            return Ok(());
        }
        // Simulated time passes while no task can run; some of these timeouts expire when a datagram has
        // arrived.
        let patience = Duration::from_micros(step % 5);
        let received = match step % 5 {
            3 | 4 => {
                timeout(patience, async {
                    let datagram = socket.recv_datagram().await;
                    let bytes = datagram.as_ref().map_or(Vec::new(), |its| its.bytes.to_vec());
                    (datagram.map(|_| bytes.len()), bytes)
                })
                .await
            }
            0 => timeout(patience, socket.recv(vec![0; 100])).await,
            1 => {
                timeout(patience, async {
                    let (result, buf) = socket.recv_from(Vec::with_capacity(100)).await;
                    (result.map(|(len, _)| len), buf)
                })
                .await
            }
            _ => {
                timeout(patience, async {
                    let (result, buf) = socket.recv_message(vec![0; 100], 64).await;
                    (result.map(|(received, _)| received.len), buf)
                })
                .await
            }
        };
        if let Ok((result, buf)) = received {
            assert_eq!(number_of(&buf[..result?]), next, "in order, and none twice");
            next += 1;
        }
        if step % 4 == 0
            && let Ok((result, buf)) = timeout(patience, socket.peek(vec![0; 100])).await
        {
            assert_eq!(number_of(&buf[..result?]), next, "the one that comes next");
        }
    }
    unreachable!("it goes on until all have come")
}

#[test]
fn within_the_machine_each_comes_once_whatever_is_dropped() {
    const COUNT: u64 = 60;
    awkward().kernel(|kernel| kernel.socket_bytes(200)).run(async |_| {
        let server = UnixDatagram::bind_addr(&name("server")).await?;
        let client = UnixDatagram::unbound().await?;
        client.connect_addr(&name("server")).await?;
        let sending = spawn(async move {
            for number in 0..COUNT {
                client.send(numbered(number)).await.0?;
                sleep(Duration::from_micros(number % 3)).await;
            }
            io::Result::Ok(())
        });
        receive_all(&server, COUNT).await?;
        sending.await.unwrap()
    });
}

#[test]
fn by_a_network_some_are_lost_and_others_come_twice() {
    let kinds =
        [FaultKind::DatagramLost, FaultKind::DatagramDuplicated, FaultKind::DatagramReordered];
    let faulty = |kernel| kinds.into_iter().fold(kernel, kernel_fault);
    let summary = awkward().kernel(faulty).run(async |_| {
        let server = UdpSocket::bind("127.0.0.1:0").await?;
        let client = UdpSocket::bind("[::1]:0").await?;
        assert!(client.connect(server.local_addr()?).await.is_err(), "of the other version");
        let client = UdpSocket::bind("127.0.0.1:0").await?;
        let (to, from) = (server.local_addr()?, client.local_addr()?);
        let sending = spawn(async move {
            for number in 0..20 {
                match number % 3 {
                    0 => client.send_to(numbered(number), to).await.0?,
                    1 => client.send_batch(vec![(numbered(number), to)]).await.remove(0).0?,
                    _ => {
                        let control = ControlMessages::new();
                        client.send_message(numbered(number), Some(to), control).await.0?
                    }
                };
            }
            io::Result::Ok(())
        });
        let mut times = BTreeMap::new();
        let bufs = || vec![vec![0; 100]; 5];
        while let Ok((result, bufs)) =
            timeout(Duration::from_secs(1), server.recv_batch(bufs())).await
        {
            for (received, buf) in result?.iter().zip(&bufs) {
                assert_eq!((received.from, received.is_truncated), (from, false));
                *times.entry(number_of(&buf[..received.len])).or_insert(0) += 1;
            }
        }
        assert!(times.keys().all(|&number| number < 20) && times.values().all(|&its| its <= 2));
        sending.await.unwrap()
    });
    assert!(kinds.iter().all(|&kind| summary.injected(kind) > 0));
}

fn kernel_fault(kernel: sakia::sim::SimBuilder, kind: FaultKind) -> sakia::sim::SimBuilder {
    kernel.fault(kind, 1 << 13)
}

#[test]
fn questions_are_asked_until_they_are_answered() {
    let test = awkward().kernel(|kernel| kernel_fault(kernel, FaultKind::DatagramLost));
    test.run(async |_| {
        let server = UdpSocket::bind("127.0.0.1:0").await?;
        let address = server.local_addr()?;
        let serving = spawn(async move {
            loop {
                let (result, buf) = server.recv_from(vec![0; 100]).await;
                let (len, peer) = result?;
                let answer = number_of(&buf[..len]);
                server.send_to(numbered(answer + 1), peer).await.0?;
                if answer == 8 {
                    return io::Result::Ok(());
                }
            }
        });
        let client = UdpSocket::bind("127.0.0.1:0").await?;
        client.connect(address).await?;
        let mut number = 0;
        while number < 9 {
            let asking = async {
                client.send(numbered(number)).await.0?;
                let (result, buf) = client.recv(vec![0; 100]).await;
                io::Result::Ok(number_of(&buf[..result?]))
            };
            match timeout(Duration::from_secs(1), asking).await {
                // The answer to an earlier question may arrive late.
                Ok(Ok(answer)) => number = number.max(answer),
                // The server has ended, so its last answer was lost.
                Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => break,
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        assert!(number >= 8);
        serving.await.unwrap()
    });
}

#[test]
fn batches_bring_what_is_there_and_lose_nothing_when_dropped() {
    awkward().run(async |_| {
        let server = UdpSocket::bind("127.0.0.1:0").await?;
        let client = UdpSocket::bind("127.0.0.1:0").await?;
        let to = server.local_addr()?;
        let sent = client.send_batch((0..30).map(|number| (numbered(number), to)).collect()).await;
        assert!(sent.iter().enumerate().all(|(index, (result, buf))| {
            result.as_ref().is_ok_and(|&len| len == buf.len()) && *buf == numbered(index as u64)
        }));
        let mut seen = Vec::new();
        for step in 0.. {
            let bufs = (0..7).map(|_| Vec::with_capacity(100)).collect();
            match timeout(Duration::from_micros(step % 4), server.recv_batch(bufs)).await {
                Ok((result, bufs)) => {
                    let count = result?.len();
                    seen.extend(bufs[..count].iter().map(|buf| number_of(buf)));
                    assert!(bufs.len() == 7 && bufs[count..].iter().all(Vec::is_empty));
                }
                Err(_) if seen.len() == 30 => break,
                Err(_) => {}
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, Vec::from_iter(0..30));
        io::Result::Ok(())
    });
}

#[test]
fn empty_truncated_oversized_and_refused() {
    awkward().run(async |_| {
        let (one, other) = join!(UdpSocket::bind("localhost:0"), UdpSocket::bind("127.0.0.1:0"));
        let (one, other) = (one?, other?);
        one.connect(other.local_addr()?).await?;
        assert_eq!(one.peer_addr()?, other.local_addr()?);
        let (near, far) = (UnixDatagram::unbound().await?, UnixDatagram::bind("/far").await?);
        near.connect("/far").await?;
        for text in ["", "longer than it"] {
            one.send(text).await.0?;
            near.send(text).await.0?;
            let of_udp = other.recv_message(vec![0; 6], 0).await.0?.0;
            let (of_unix, control) = far.recv_message(vec![0; 6], 64).await.0?;
            for (len, is_truncated, datagram_len) in [
                (of_udp.len, of_udp.is_truncated, of_udp.datagram_len),
                (of_unix.len, of_unix.is_truncated, of_unix.datagram_len),
            ] {
                assert_eq!((len, is_truncated), (text.len().min(6), text.len() > 6));
                assert_eq!(datagram_len, text.len());
            }
            assert!(of_unix.from.is_unnamed() && !control.is_truncated);
        }
        const MSGSIZE: Option<i32> = Some(90);
        assert_eq!(one.send(vec![0; 65_508]).await.0.unwrap_err().raw_os_error(), MSGSIZE);
        assert_eq!(near.send(vec![0; 1 << 18]).await.0.unwrap_err().raw_os_error(), MSGSIZE);
        assert_eq!(one.recv(Vec::new()).await.0.unwrap_err().kind(), ErrorKind::InvalidInput);

        other.close().await?;
        far.close().await?;
        one.send("x").await.0?;
        let error = one.recv(vec![0; 6]).await.0.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = near.send("x").await.0.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound));
        let error = UnixDatagram::bind("x".repeat(108)).await.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(36));
        let error = UdpSocket::bind(one.local_addr()?).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.addresses()),
            (ErrorKind::AddrInUse, &[one.local_addr()?][..])
        );
        io::Result::Ok(())
    });
}

#[test]
fn descriptors_are_passed_and_those_for_nobody_closed() {
    awkward().run(async |_| {
        let server = UnixDatagram::bind_addr(&name("server")).await?;
        let client = UnixDatagram::unbound().await?;
        let far = name("server");
        let room = ControlMessage::space(4);
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let file = options.open("/file").await?;
        file.write_at("x", 0).await.0?;
        for step in 0..6_u64 {
            let control = ControlMessages::new().descriptor(file.as_ref());
            client.send_message(numbered(step), Some(&far), control).await.0?;
            let patience = Duration::from_micros(step % 3);
            // The receive may be dropped after its message has arrived; then the next receive takes it.
            let receive = || server.recv_message(vec![0; 100], room);
            let (result, buf) = match timeout(patience, receive()).await {
                Ok(output) => output,
                Err(_) => receive().await,
            };
            let (received, mut control) = result?;
            assert_eq!(number_of(&buf[..received.len]), step);
            assert_eq!((control.descriptors.len(), control.is_truncated), (1, false));
            let passed = File::try_from(control.descriptors.remove(0))?;
            let (result, buf) = passed.read_at(vec![0; 1], 0).await;
            assert_eq!(&buf[..result?], b"x");
            client.send_message("nobody takes it", Some(&far), ControlMessages::new()).await.0?;
            server.recv(vec![0; 100]).await.0?;
        }
        io::Result::Ok(())
    });
}

#[test]
fn options_that_ask_or_matter_are_refused() {
    awkward().run(async |_| {
        let socket =
            UdpOptions::new().reuse_addr(true).recv_buffer_size(1).bind("127.0.0.1:0").await?;
        socket.set_ttl(3)?;
        socket.set_tos(3)?;
        socket.set_multicast_ttl_v4(3)?;
        socket.set_send_buffer_size(1)?;
        socket.set_recv_buffer_size(1)?;
        let unix = UnixDatagram::unbound().await?;
        let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        let on = "127.0.0.1:0";
        for error in [
            socket.ttl().unwrap_err(),
            socket.tos().unwrap_err(),
            socket.set_broadcast(true).unwrap_err(),
            socket.broadcast().unwrap_err(),
            socket.join_multicast_v4(v4, v4).unwrap_err(),
            socket.leave_multicast_v4(v4, v4).unwrap_err(),
            socket.join_multicast_v6(v6, 0).unwrap_err(),
            socket.leave_multicast_v6(v6, 0).unwrap_err(),
            socket.set_multicast_loop_v4(false).unwrap_err(),
            socket.set_multicast_loop_v6(false).unwrap_err(),
            socket.set_recv_tos(true).unwrap_err(),
            socket.set_recv_ttl(true).unwrap_err(),
            socket.set_recv_packet_info(true).unwrap_err(),
            socket.set_gro(true).unwrap_err(),
            socket.only_v6().unwrap_err(),
            socket.take_error().unwrap_err(),
            unix.set_passcred(true).unwrap_err(),
            unix.passcred().unwrap_err(),
            unix.take_error().unwrap_err(),
            UdpOptions::new().reuse_port(true).bind(on).await.unwrap_err().into(),
            UdpOptions::new().only_v6(true).bind("[::1]:0").await.unwrap_err().into(),
        ] {
            assert_eq!(os_error(&error), Some(95), "{error}");
        }
        io::Result::Ok(())
    });
}
