//! Serves one connection, from its first command to its end.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::command::{Next, execute};
use crate::database::{Database, Message, Subscriber};
use crate::input::Input;
use crate::protocol::{Limits, Parser, Replies};

/// The bytes of replies to gather before they are sent. The last reply may exceed it.
const REPLY_BYTES: usize = 64 << 10;

/// Answers the commands of a connection until the client has no more, or `stop` resolves.
///
/// One write answers all complete commands of a read. After `stop` resolves, the connection ends; all
/// commands received before are answered. A subscriber that does not read is cut off when too many messages
/// are queued for it.
///
/// # Errors
/// - Errors of the connection; `UnexpectedEof` if it ended within a command.
/// - `InvalidData`: the client violated the protocol. It gets an error reply first.
/// - `TimedOut`: the subscriber was cut off.
pub async fn serve<S>(
    mut stream: S,
    database: Arc<Database>,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stop = pin!(stop);
    let mut input = Input::new();
    let mut session = Session::new(database, limits);
    loop {
        let state = session.answer(&mut input);
        session.send(&mut stream).await?;
        match state {
            State::Ends(result) => {
                stream.shutdown().await?;
                return result;
            }
            State::HasMore => continue,
            State::NeedsMore => {}
        }
        let event = tokio::select! {
            biased;
            () = &mut stop => Event::Stop,
            read = stream.read(input.room()) => Event::Read(read?),
            message = next_message(&mut session.subscriber), if session.subscriber.is_some() => {
                Event::Message(message.ok_or_else(cut_off)?)
            }
        };
        match event {
            Event::Stop => return stream.shutdown().await,
            Event::Read(0) if input.bytes().is_empty() => return stream.shutdown().await,
            Event::Read(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Event::Read(count) => input.filled(count),
            Event::Message(message) => session.gather(&message),
        }
    }
}

/// The event that ends a connection's wait.
enum Event {
    Stop,
    Read(usize),
    Message(Arc<Message>),
}

async fn next_message(subscriber: &mut Option<Subscriber>) -> Option<Arc<Message>> {
    match subscriber {
        Some(subscriber) => subscriber.recv().await,
        None => std::future::pending().await,
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "too many messages wait for the subscriber")
}

/// The progress of answering the received commands.
enum State {
    /// The next command is not complete.
    NeedsMore,
    /// More commands may be complete, but the replies so far are sent first.
    HasMore,
    /// The connection ends once the replies are sent.
    Ends(io::Result<()>),
}

struct Session {
    database: Arc<Database>,
    parser: Parser,
    subscriber: Option<Subscriber>,
    replies: Replies,
}

impl Session {
    fn new(database: Arc<Database>, limits: Limits) -> Self {
        let parser = Parser::new(limits);
        Self { database, parser, subscriber: None, replies: Replies::default() }
    }

    /// Executes the complete commands.
    fn answer(&mut self, input: &mut Input) -> State {
        let Self { database, parser, subscriber, replies } = self;
        loop {
            let (len, next) = match parser.parse(input.bytes()) {
                Ok(None) => return State::NeedsMore,
                Ok(Some(command)) => {
                    (command.len(), execute(&command, database, subscriber, replies))
                }
                Err(error) => {
                    replies.error(format_args!("ERR {error}"));
                    return State::Ends(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            };
            input.consume(len);
            if next == Next::Ends {
                return State::Ends(Ok(()));
            }
            if replies.bytes().len() >= REPLY_BYTES {
                return State::HasMore;
            }
        }
    }

    /// Adds a message, and those queued behind it, to the replies.
    fn gather(&mut self, first: &Message) {
        let Self { subscriber, replies, .. } = self;
        push(replies, first);
        while let Some(subscriber) = subscriber
            && replies.bytes().len() < REPLY_BYTES
            && let Some(message) = subscriber.try_recv()
        {
            push(replies, &message);
        }
    }

    /// Sends the gathered replies.
    async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let Self { subscriber, replies, .. } = self;
        if replies.bytes().is_empty() {
            return Ok(());
        }
        let send = async {
            stream.write_all(replies.bytes()).await?;
            stream.flush().await
        };
        match subscriber {
            None => send.await?,
            Some(subscriber) => tokio::select! {
                biased;
                sent = send => sent?,
                () = subscriber.cut_off() => return Err(cut_off()),
            },
        }
        replies.clear(REPLY_BYTES);
        Ok(())
    }
}

fn push(replies: &mut Replies, message: &Message) {
    replies.array(3);
    replies.string(Some(b"message"));
    replies.string(Some(&message.channel));
    replies.string(Some(&message.bytes));
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;

    use super::*;

    /// A connection whose client sends these pieces and then closes.
    struct Script<'a> {
        pieces: Vec<&'a [u8]>,
        writes: Vec<Vec<u8>>,
    }

    impl AsyncRead for Script<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if !self.pieces.is_empty() {
                buf.put_slice(self.pieces.remove(0));
            }
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Script<'_> {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.writes.push(bytes.to_vec());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Returns the writes that answer these pieces.
    fn answers<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, io::Result<()>) {
        let mut script = Script { pieces: pieces.into_iter().collect(), writes: Vec::new() };
        let database = Arc::new(Database::new(64 << 20));
        let served = serve(&mut script, database, Limits::default(), std::future::pending());
        let result = sakia::block_on(served);
        (script.writes, result)
    }

    #[test]
    fn all_commands_of_a_read_are_answered_by_one_write() {
        let (writes, result) =
            answers([&b"PING\r\nSET a 1\r\nINCR a\r\nGE"[..], b"T a\r\nPING x\r\n"]);
        result.unwrap();
        assert_eq!(writes, [&b"+PONG\r\n+OK\r\n:2\r\n"[..], b"$1\r\n2\r\n$1\r\nx\r\n"]);
    }

    #[test]
    fn single_bytes_are_answered_alike() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n\
            GET a\r\nSUBSCRIBE b\nPING\nGET a\nUNSUBSCRIBE\nGET a\n";
        let (writes, result) = answers(bytes.chunks(1));
        result.unwrap();
        let (whole, result) = answers([&bytes[..]]);
        result.unwrap();
        assert_eq!(writes.concat(), whole.concat());
        assert_eq!((writes.len(), whole.len()), (7, 1));
    }

    #[test]
    fn replies_are_sent_before_there_are_too_many() {
        let value = vec![b'v'; REPLY_BYTES];
        let get = b"GET a\r\n".repeat(100);
        let set = [&b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$65536\r\n"[..], &value, b"\r\n"].concat();
        let (writes, result) = answers(set.chunks(4096).chain([&get[..]]));
        result.unwrap();
        assert_eq!(writes.len(), 101);
    }

    #[test]
    fn ends_are_told_apart() {
        let kind = |bytes: &[u8]| answers([bytes]).1.map_err(|error| error.kind());
        assert_eq!(kind(b"PING\r\n"), Ok(()));
        assert_eq!(kind(b"PING\r\nQUIT\r\nPI"), Ok(()));
        assert_eq!(kind(b"PING\r\nPI"), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(kind(b"*1\r\n:1\r\n"), Err(io::ErrorKind::InvalidData));
        let (writes, _) = answers([&b"PING\r\n*1\r\n:1\r\nPING\r\n"[..]]);
        assert_eq!(writes.concat(), b"+PONG\r\n-ERR Protocol error: expected '$'\r\n");
        let (writes, _) = answers([&b"QUIT\r\nPING\r\n"[..]]);
        assert_eq!(writes.concat(), b"+OK\r\n");
    }
}
