//! The methods that transfer bytes, of a stream and of its halves.

/// The methods that receive.
macro_rules! readers {
    () => {
        /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity), as soon as there are any.
        ///
        /// The kernel owns `buf` until the future resolves. Dropping the future gives up the buffer, and no
        /// byte: what had come by then goes to the next call.
        ///
        /// Resolves to the number of bytes read and the buffer; 0 means that the peer sends no more. A `Vec`
        /// that was empty has as many bytes as were read: clear it before the next read, or that asks for no
        /// more than this one brought.
        ///
        /// # Errors
        /// - `EINVAL`: a buffer without room (an empty one without capacity).
        /// - `ECONNRESET`: the peer broke the connection off. `ETIMEDOUT`: it is no longer there.
        /// - `ECANCELED`: the runtime has ended. Otherwise as `recv(2)`; never `EINTR` or `EAGAIN`.
        ///
        /// # Kernel
        /// 5.6. Source: `io_uring_prep_recv(3)`.
        pub async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().read_some(buf).await
        }

        /// As [`read`](Self::read), filling one buffer after the other, each `Vec` that is empty up to its
        /// capacity. At most the first 1024 are used.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        ///
        /// # Kernel
        /// 5.3. Source: `io_uring_prep_recvmsg(3)`.
        pub async fn read_vectored<T: IoBufMut>(
            &mut self,
            bufs: Vec<T>,
        ) -> BufResult<usize, Vec<T>> {
            self.socket().read_some_vectored(bufs).await
        }

        /// Reads until `buf` is full (an empty `Vec`: its capacity). One without room is full.
        ///
        /// # Errors
        /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof): the peer sends no more. What came before is
        /// in the buffer. Otherwise as [`read`](Self::read).
        pub async fn read_exact<T: IoBufMut>(&mut self, buf: T) -> BufResult<(), T> {
            $crate::io::transfer::read_exact(buf, async |rest| self.read(rest).await).await
        }

        /// Reads until the peer sends no more, and appends to `buf`.
        ///
        /// Resolves to the number of bytes appended and the buffer, which has what was read before an error
        /// too.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        pub async fn read_to_end(&mut self, mut buf: Vec<u8>) -> BufResult<usize, Vec<u8>> {
            let begin = buf.len();
            loop {
                match self.recv().await {
                    Ok(bytes) if bytes.is_empty() => return (Ok(buf.len() - begin), buf),
                    Ok(bytes) => buf.extend_from_slice(&bytes),
                    Err(error) => return (Err(error), buf),
                }
            }
        }

        /// Receives some bytes, as soon as there are any, in memory of the runtime: while nothing comes, none
        /// is used. Dropping the future loses nothing.
        ///
        /// From the first call on the kernel receives ahead, 256 KiB or 32 pieces for a connection. Then the
        /// peer has to wait.
        ///
        /// Resolves to at least one byte, or to none when the peer sends no more.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        ///
        /// # Kernel
        /// 5.6; 6.0 to receive several times with one entry. Source: `io_uring_prep_recv_multishot(3)`.
        pub async fn recv(&mut self) -> std::io::Result<RecvBuf> {
            self.socket().recv_some().await
        }

        /// As [`read`](Self::read), but leaves the bytes to the next call.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        pub async fn peek<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().peek_some(buf).await
        }
    };
}

/// The methods that send.
macro_rules! writers {
    () => {
        /// Writes up to `buf.bytes_len()` bytes, as soon as there is room for any.
        ///
        /// The kernel reads `buf` until the future resolves. Dropping the future gives up the write; some
        /// bytes may have been sent by then.
        ///
        /// Resolves to the number of bytes written and the buffer. It may be fewer than asked. That they were
        /// written means that the kernel has them, not the peer.
        ///
        /// # Errors
        /// - `EPIPE`: the connection was ended, here or there; no signal is raised.
        /// - `ECONNRESET`: the peer broke it off. `ETIMEDOUT`: it is no longer there.
        /// - `ECANCELED`: the runtime has ended. Otherwise as `send(2)`; never `EINTR` or `EAGAIN`.
        ///
        /// # Kernel
        /// 5.6. Source: `io_uring_prep_send(3)`.
        pub async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().write_some(buf).await
        }

        /// As [`write`](Self::write), taking one buffer after the other. At most the first 1024 are used.
        ///
        /// # Errors
        /// As [`write`](Self::write).
        ///
        /// # Kernel
        /// 5.3. Source: `io_uring_prep_sendmsg(3)`.
        #[doc(alias = "writev")]
        pub async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
            self.socket().write_some_vectored(bufs).await
        }

        /// Writes all of `buf`. Dropping the future leaves an unknown part of it sent.
        ///
        /// # Errors
        /// As [`write`](Self::write); `WriteZero` if the kernel takes nothing.
        pub async fn write_all<T: IoBuf>(&mut self, buf: T) -> BufResult<(), T> {
            let socket = self.socket();
            $crate::io::transfer::write_all(buf, |rest, _| socket.write_some(rest)).await
        }
    };
}

/// The methods that tell addresses.
macro_rules! addresses {
    ($address:ty) => {
        /// Returns the socket's own address, by a plain call.
        ///
        /// # Errors
        /// As `getsockname(2)`.
        pub fn local_addr(&self) -> std::io::Result<$address> {
            $crate::net::Address::of(&self.socket().connection().local_address()?)
        }

        /// Returns the peer's address, by a plain call.
        ///
        /// # Errors
        /// `ENOTCONN`: the connection has broken off. Otherwise as `getpeername(2)`.
        pub fn peer_addr(&self) -> std::io::Result<$address> {
            $crate::net::Address::of(&self.socket().connection().peer_address()?)
        }
    };
}

/// The trait of reading, of a type with these parameters.
macro_rules! async_read {
    ([$($parameters:tt)*] $type:ty) => {
        impl<$($parameters)*> $crate::io::AsyncRead for $type {
            async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
                self.socket().read_some(buf).await
            }
        }
    };
}

/// The methods of the trait of writing, but for `close`.
macro_rules! async_writes {
    () => {
        async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().write_some(buf).await
        }

        async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
            self.socket().write_some_vectored(bufs).await
        }
    };
}

pub(super) use {addresses, async_read, async_writes, readers, writers};
