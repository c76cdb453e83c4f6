//! The results of receiving datagrams.

use std::io;

use sakia_driver::{self as driver, ReceivedControl, RecvBuf};

use super::Address;

/// A datagram that was received into a buffer.
///
/// # Examples
/// See [`UdpSocket::recv_message`](super::UdpSocket::recv_message).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received<A> {
    /// The number of bytes of the buffer that it fills.
    pub len: usize,
    /// Its sender.
    pub from: A,
    /// Set if it was longer than the buffer, and the rest is lost.
    pub is_truncated: bool,
    /// The full length of the datagram in bytes. Only `recv_message` asks the kernel for it: in a batch this
    /// is `len`, and also for a datagram that came for an earlier receive by another method.
    pub datagram_len: usize,
}

impl<A: Address> Received<A> {
    /// Converts the driver's facts about a datagram.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: a sender of another family.
    pub(super) fn of(received: driver::Received) -> io::Result<Self> {
        let driver::Received { len, from, is_truncated, datagram_len, .. } = received;
        Ok(Self { len, from: A::of(&from)?, is_truncated, datagram_len })
    }

    /// Converts the driver's facts about a batch, up to the first entry without a sender, such as the end of
    /// receives.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: there is no entry before that.
    pub(super) fn of_batch(batch: Vec<driver::Received>) -> io::Result<Vec<Self>> {
        let mut told = Vec::with_capacity(batch.len());
        for received in batch {
            match Self::of(received) {
                Ok(received) => told.push(received),
                Err(error) if told.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(told)
    }
}

/// A datagram that was received into memory of the runtime.
///
/// # Examples
/// ```
/// use sakia::io::BufResultExt;
/// use sakia::net::UdpSocket;
///
/// # sakia::block_on(async {
/// let (one, other) = (UdpSocket::bind("127.0.0.1:0").await?, UdpSocket::bind("127.0.0.1:0").await?);
/// one.send_to("hello", other.local_addr()?).await.value()?;
/// let datagram = other.recv_datagram().await?;
/// assert_eq!((&*datagram.bytes, datagram.from), (&b"hello"[..], one.local_addr()?));
/// assert!(!datagram.is_truncated);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Datagram<A> {
    /// Its bytes, perhaps none. Dropping them returns the memory to the runtime: copy bytes that are to be
    /// kept.
    pub bytes: RecvBuf,
    /// Its sender.
    pub from: A,
    /// Set if it was longer than the room for it, and the rest is lost.
    pub is_truncated: bool,
    /// Its control messages, if `set_datagram_room` has provided room for them. Descriptors that are not
    /// taken out are closed.
    pub control: ReceivedControl,
}

impl<A: Address> Datagram<A> {
    /// Converts a datagram of the driver's.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: a sender of another family.
    pub(super) fn of(datagram: driver::Datagram) -> io::Result<Self> {
        let driver::Datagram { bytes, from, is_truncated, control, .. } = datagram;
        Ok(Self { bytes, from: A::of(&from)?, is_truncated, control })
    }
}

/// Returns the result of a receive without control messages.
pub(super) fn len_and_sender<A: Address>(received: driver::Received) -> io::Result<(usize, A)> {
    Ok((received.len, A::of(&received.from)?))
}
