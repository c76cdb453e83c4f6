//! Datagrams that are received and sent back in batches, by a thread that waits in `recvmmsg(2)`: the minimum
//! for a datagram server. Also one datagram at a time, for which the thread waits on a ring: the minimum for
//! a server on a ring.
//!
//! The batch owns its memory, and passes it to the kernel with each call.
//!
//! Source: `recvmmsg(2)`, `sendmmsg(2)`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use libc::{iovec, mmsghdr, msghdr, sockaddr_storage, socklen_t};
use sakia_ring::{Cqe, Ring, Sqe};

/// Bytes of an address of any family.
const NAME_BYTES: socklen_t = size_of::<sockaddr_storage>() as socklen_t;

/// Memory for datagrams, and those received last.
#[derive(Debug)]
pub struct DatagramBatch {
    datagram_bytes: usize,
    bytes: Vec<u8>,
    names: Vec<sockaddr_storage>,
    /// The bytes of each that was received, and of its sender's address.
    received: Vec<(usize, socklen_t)>,
}

impl DatagramBatch {
    /// Returns memory for this many datagrams, of this many bytes each.
    pub fn new(datagrams: usize, datagram_bytes: usize) -> Self {
        // SAFETY: zeros are an address of no family.
        let name: sockaddr_storage = unsafe { std::mem::zeroed() };
        Self {
            datagram_bytes,
            bytes: vec![0; datagrams * datagram_bytes],
            names: vec![name; datagrams],
            received: Vec::with_capacity(datagrams),
        }
    }

    /// Returns the datagrams received last.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let rooms = self.bytes.chunks(self.datagram_bytes);
        rooms.zip(&self.received).map(|(room, &(len, _))| &room[..len])
    }

    /// Waits for a datagram, and receives those that have arrived by then. Returns their number.
    ///
    /// # Errors
    /// As `recvmmsg(2)`, but for `EINTR`.
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.received.clear();
        let rooms = self.bytes.chunks_mut(self.datagram_bytes);
        let mut parts: Vec<iovec> = rooms
            .map(|room| iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() })
            .collect();
        let names = self.names.iter_mut().map(|name| (ptr::from_mut(name), NAME_BYTES));
        let mut headers: Vec<mmsghdr> = parts
            .iter_mut()
            .zip(names)
            .map(|(part, (name, len))| header(part, name, len))
            .collect();
        let (fd, count) = (socket.as_fd().as_raw_fd(), headers.len() as u32);
        let flags = libc::MSG_WAITFORONE;
        // SAFETY: the headers name parts, rooms and names that are borrowed mutably until after the call.
        let call =
            || unsafe { libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags, ptr::null_mut()) };
        let count = retry(call)?;
        let told = headers.iter().take(count);
        self.received.extend(told.map(|header| {
            let len = (header.msg_len as usize).min(self.datagram_bytes);
            (len, header.msg_hdr.msg_namelen.min(NAME_BYTES))
        }));
        Ok(count)
    }

    /// Waits on a ring, which has nothing else to do, for one datagram, and receives it.
    ///
    /// # Errors
    /// As `recvmsg(2)`, but for `EINTR`.
    ///
    /// # Panics
    /// If the ring fails while the kernel may write to the memory, the process ends.
    pub fn receive_by_ring(&mut self, ring: &mut Ring, socket: impl AsFd) -> io::Result<()> {
        self.received.clear();
        let (room, name) = (&mut self.bytes[..self.datagram_bytes], &mut self.names[0]);
        let mut part = iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let mut header = header(&mut part, ptr::from_mut(name), NAME_BYTES).msg_hdr;
        let entry = Sqe::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, 0);
        // SAFETY: the header, and the part, room and name that it names, are borrowed mutably, and so is the
        // descriptor, until the completion, below; without it the process ends.
        unsafe { ring.push(entry) }.ok_or(io::ErrorKind::WouldBlock)?;
        let mut completions = [Cqe::default()];
        while ring.reap(&mut completions) == 0 {
            match ring.enter(1, None) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => std::process::abort(),
                _ => {}
            }
        }
        let len = (completions[0].result()? as usize).min(self.datagram_bytes);
        self.received.push((len, header.msg_namelen.min(NAME_BYTES)));
        Ok(())
    }

    /// Sends the datagrams that were received last to their senders.
    ///
    /// # Errors
    /// As `sendmmsg(2)`, but for `EINTR`.
    pub fn send_back(&mut self, socket: impl AsFd) -> io::Result<()> {
        let rooms = self.bytes.chunks_mut(self.datagram_bytes).zip(&self.received);
        let mut parts: Vec<iovec> = rooms
            .map(|(room, &(len, _))| iovec { iov_base: room.as_mut_ptr().cast(), iov_len: len })
            .collect();
        let names = self.names.iter_mut().zip(&self.received);
        let names = names.map(|(name, &(_, len))| (ptr::from_mut(name), len));
        let mut headers: Vec<mmsghdr> = parts
            .iter_mut()
            .zip(names)
            .map(|(part, (name, len))| header(part, name, len))
            .collect();
        let fd = socket.as_fd().as_raw_fd();
        let mut rest = &mut headers[..];
        while !rest.is_empty() {
            let (first, count) = (rest.as_mut_ptr(), rest.len() as u32);
            // SAFETY: the headers name parts, rooms and names that are borrowed until after the call.
            let sent = retry(|| unsafe { libc::sendmmsg(fd, first, count, libc::MSG_NOSIGNAL) })?;
            rest = &mut rest[sent..];
        }
        Ok(())
    }
}

fn header(part: &mut iovec, name: *mut sockaddr_storage, name_len: socklen_t) -> mmsghdr {
    let part = ptr::from_mut(part);
    // SAFETY: zeros are a header without anything.
    let empty: msghdr = unsafe { std::mem::zeroed() };
    let msg_hdr = msghdr {
        msg_name: name.cast(),
        msg_namelen: name_len,
        msg_iov: part,
        msg_iovlen: 1,
        ..empty
    };
    mmsghdr { msg_hdr, msg_len: 0 }
}

fn retry(mut call: impl FnMut() -> i32) -> io::Result<usize> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_came_is_sent_back() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        let mut batch = DatagramBatch::new(4, 3);
        assert_eq!(batch.datagrams().count(), 0);
        for text in ["a", "", "long"] {
            one.send(text.as_bytes()).unwrap();
        }
        assert_eq!(batch.receive(&other).unwrap(), 3);
        assert!(batch.datagrams().eq([&b"a"[..], b"", b"lon"]));
        batch.send_back(&other).unwrap();
        let mut buf = [0; 9];
        for text in ["a", "", "lon"] {
            let len = one.recv(&mut buf).unwrap();
            assert_eq!(&buf[..len], text.as_bytes());
        }
        // No datagram is sent twice, and only received ones are reported.
        one.send(b"b").unwrap();
        assert_eq!(batch.receive(&other).unwrap(), 1);
        assert!(batch.datagrams().eq([b"b"]));
        let mut ring = match Ring::builder().sq_entries(8).build() {
            Ok(ring) => ring,
            Err(error) => return crate::place::announce_skip("a ring", &error.to_string()),
        };
        for text in ["c", "", "long"] {
            one.send(text.as_bytes()).unwrap();
            batch.receive_by_ring(&mut ring, &other).unwrap();
            assert!(batch.datagrams().eq([&text.as_bytes()[..text.len().min(3)]]));
            batch.send_back(&other).unwrap();
            let len = one.recv(&mut buf).unwrap();
            assert_eq!(&buf[..len], &text.as_bytes()[..text.len().min(3)]);
        }
    }
}
