//! The methods that transfer bytes, of a stream and of its halves.

/// The methods that receive.
macro_rules! readers {
    () => {
        /// Reads up to `buf.len()` bytes (an empty `Vec`: up to its capacity), as soon as any are available.
        ///
        /// The kernel owns `buf` until the future resolves.
        ///
        /// Resolves to the number of bytes read and the buffer; 0 means that the peer sends no more. A `Vec`
        /// that was empty then has as many bytes as were read: clear it before the next read, which would
        /// otherwise ask for no more than that.
        ///
        /// # Cancel safety
        /// Dropping the future gives up the buffer, but loses no byte: bytes that had come by then go to the
        /// next call.
        ///
        /// # Errors
        /// - `EINVAL`: a buffer without room (an empty one without capacity).
        /// - `ECONNRESET`: the peer reset the connection. `ETIMEDOUT`: the peer no longer answers.
        /// - `ECANCELED`: the runtime has ended. Otherwise as `recv(2)`; never `EINTR` or `EAGAIN`.
        ///
        /// # Examples
        /// See [`TcpListener`](crate::net::TcpListener#examples).
        ///
        /// # Kernel
        /// 5.6. Source: `io_uring_prep_recv(3)`.
        pub async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().read_some(buf).await
        }

        /// As [`read`](Self::read), filling one buffer after the other, each `Vec` that is empty up to its
        /// capacity. At most the first 1024 are used.
        ///
        /// # Cancel safety
        /// As [`read`](Self::read).
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

        /// Reads until `buf` is full (an empty `Vec`: its capacity). A buffer without room counts as full.
        ///
        /// # Cancel safety
        /// **None**: dropping the future loses the bytes that are in the buffer by then. A
        /// [`Reader`](crate::io::Reader) keeps them: see [`Reader::peek`](crate::io::Reader::peek).
        ///
        /// # Errors
        /// [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof): the peer sends no more. The bytes before it
        /// are in the buffer. Otherwise as [`read`](Self::read).
        ///
        /// # Examples
        /// See [`OwnedReadHalf`](crate::net::OwnedReadHalf#examples).
        pub async fn read_exact<T: IoBufMut>(&mut self, buf: T) -> BufResult<(), T> {
            $crate::io::transfer::read_exact(buf, async |rest| self.read(rest).await).await
        }

        /// Reads until the peer sends no more, and appends to `buf`.
        ///
        /// Resolves to the number of bytes appended and the buffer, which has the bytes read before an error
        /// too.
        ///
        /// # Cancel safety
        /// **None**: dropping the future loses the bytes that are in the buffer by then.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        ///
        /// # Examples
        /// See [`OwnedReadHalf`](crate::net::OwnedReadHalf#examples).
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

        /// Receives some bytes, as soon as any are available, into memory of the runtime: no memory is used
        /// until they come.
        ///
        /// From the first call on the kernel receives ahead, up to 256 KiB or 32 pieces per connection.
        /// Beyond that the peer has to wait.
        ///
        /// Resolves to at least one byte, or to none when the peer sends no more.
        ///
        /// # Cancel safety
        /// Dropping the future loses nothing: the next call returns what came for it.
        ///
        /// # Errors
        /// As [`read`](Self::read).
        ///
        /// # Examples
        /// See [`TcpListener`](crate::net::TcpListener#examples).
        ///
        /// # Kernel
        /// 5.6; 6.0 to receive several times with one entry. Source: `io_uring_prep_recv_multishot(3)`.
        pub async fn recv(&mut self) -> std::io::Result<RecvBuf> {
            self.socket().recv_some().await
        }

        /// As [`read`](Self::read), but leaves the bytes to the next call.
        ///
        /// # Cancel safety
        /// Dropping the future gives up the buffer, and changes nothing else.
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
        /// The kernel reads `buf` until the future resolves.
        ///
        /// Resolves to the number of bytes written and the buffer. It may be fewer than asked. A written byte
        /// has reached the kernel, not necessarily the peer.
        ///
        /// # Cancel safety
        /// Dropping the future gives up the write; some bytes may have been sent by then. Later writes follow
        /// them.
        ///
        /// # Errors
        /// - `EPIPE`: the sends were ended, here or by the peer; no signal is raised.
        /// - `ECONNRESET`: the peer reset the connection. `ETIMEDOUT`: the peer no longer answers.
        /// - `ECANCELED`: the runtime has ended. Otherwise as `send(2)`; never `EINTR` or `EAGAIN`.
        ///
        /// # Kernel
        /// 5.6. Source: `io_uring_prep_send(3)`.
        pub async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().write_some(buf).await
        }

        /// As [`write`](Self::write), taking one buffer after the other. At most the first 1024 are used.
        ///
        /// # Cancel safety
        /// As [`write`](Self::write).
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

        /// Writes all of `buf`.
        ///
        /// # Cancel safety
        /// **None**: dropping the future leaves an unknown part of `buf` sent. To end a write by a timeout,
        /// end the connection with it, or await the future by `&mut`, and again later.
        ///
        /// # Errors
        /// As [`write`](Self::write); `WriteZero` if the kernel takes nothing.
        ///
        /// # Examples
        /// See [`TcpStream`](crate::net::TcpStream#examples).
        pub async fn write_all<T: IoBuf>(&mut self, buf: T) -> BufResult<(), T> {
            self.socket().write_all(buf).await
        }

        /// Sends the bytes of `file` in `range`, `..` for all of it, without passing them through this
        /// process if the kernel can do that. The file's position is neither used nor moved.
        ///
        /// Resolves to the outcome, and to the number of bytes sent, on error too. They are fewer than asked
        /// if the file ends early. Without an upper bound, the bytes up to the end that the file has at the
        /// beginning of the call are sent. An empty range, also one that ends before it begins, sends
        /// nothing. A FIFO has no offsets: as many of its next bytes are sent as the range is long.
        ///
        /// The kernel sends the bytes that the file has when it takes them, or even later: it may send the
        /// pages of its cache without copying, and again if a packet was lost. Do not change them before the
        /// peer has them.
        ///
        /// # Cancel safety
        /// **None**: dropping the future stops it after an unknown number of bytes, at most 1 MiB more than
        /// at its last poll. Later writes follow these bytes.
        ///
        /// # Waiting
        /// This thread sends bytes in the page cache, 1 MiB at a time; a thread that may wait for a device
        /// sends the others. A peer that does not read delays the future, but blocks no thread. During each
        /// call the socket is in non-blocking mode, which other processes that share it might notice.
        ///
        /// Some files are read and written by pieces of 64 KiB instead: many files of `/proc`, parts of
        /// blocks with direct I/O, and all files on a stream in blocking mode that `std` or another process
        /// has made, such as those of [`UnixStream::pair`](crate::net::UnixStream::pair). Its mode is left
        /// unchanged.
        ///
        /// # Errors
        /// - As [`write`](Self::write): `EPIPE` if the sends were ended, without a signal.
        /// - As [`File::read_at`](crate::fs::File::read_at): `EINVAL` for an offset above `i64::MAX`,
        ///   `EISDIR`, `EBADF` for a file not open to read, `EIO`.
        ///
        /// # Panics
        /// When the file belongs to another runtime.
        ///
        /// # Kernel
        /// 2.6.33; 6.5 to ask the page cache. On older kernels, and for other users' files that this user may
        /// not write to, calls are timed instead. Source: `sendfile(2)`, `cachestat(2)`.
        ///
        /// # Examples
        /// ```
        /// use sakia::fs::File;
        /// use sakia::io::BufResultExt;
        /// use sakia::net::{TcpListener, TcpStream};
        ///
        /// # fn main() -> std::io::Result<()> {
        /// sakia::block_on(async {
        ///     let listener = TcpListener::bind("127.0.0.1:0").await?;
        ///     let mut client = TcpStream::connect(listener.local_addr()?).await?;
        ///     let (mut server, _) = listener.accept().await?;
        ///
        ///     let program = File::open(std::env::current_exe()?).await?;
        ///     let (result, sent) = server.send_file(&program, 1..4).await;
        ///     result?;
        ///     assert_eq!(sent, 3);
        ///     assert_eq!(client.read_exact(vec![0; 3]).await.buffer()?, b"ELF");
        ///     Ok(())
        /// })
        /// # }
        /// ```
        #[doc(alias = "sendfile")]
        pub async fn send_file(
            &mut self,
            file: &$crate::fs::File,
            range: impl std::ops::RangeBounds<u64>,
        ) -> BufResult<(), u64> {
            self.socket().send_file(file, range).await
        }
    };
}

/// The methods that return addresses.
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
        /// `ENOTCONN`: the connection is broken. Otherwise as `getpeername(2)`.
        pub fn peer_addr(&self) -> std::io::Result<$address> {
            $crate::net::Address::of(&self.socket().connection().peer_address()?)
        }
    };
}

/// Implements the trait of reading for a type with these parameters.
macro_rules! async_read {
    ([$($parameters:tt)*] $type:ty) => {
        impl<$($parameters)*> $crate::io::AsyncRead for $type {
            async fn read<T: IoBufMut>(&mut self, buf: T) -> BufResult<usize, T> {
                self.socket().read_some(buf).await
            }
        }
    };
}

/// Implements the trait of writing, but for `close`.
macro_rules! async_writes {
    () => {
        async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
            self.socket().write_some(buf).await
        }

        async fn write_vectored<T: IoBuf>(&mut self, bufs: Vec<T>) -> BufResult<usize, Vec<T>> {
            self.socket().write_some_vectored(bufs).await
        }

        const SENDS_FILES: bool = true;

        async fn send_range(
            &mut self,
            range: $crate::io::file_range::FileRange,
        ) -> BufResult<(), u64> {
            self.socket().send_range(range).await
        }
    };
}

pub(super) use {addresses, async_read, async_writes, readers, writers};
