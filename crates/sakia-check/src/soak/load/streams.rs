//! Steps with pipes and connections.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::ensure;
use sakia::io::{Async, PipeWriter, Reader, pipe};
use sakia::time::sleep;
use sakia::{JoinHandle, spawn, yield_now};

use super::{Context, same};

/// Writes all bytes into the pipe in random pieces, then closes it.
fn feed(
    mut writer: PipeWriter,
    bytes: Vec<u8>,
    mut random: fastrand::Rng,
) -> JoinHandle<io::Result<()>> {
    spawn(async move {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(random.usize(1..=rest.len().min(20_000)));
            writer.write_all(now.to_vec()).await.0?;
            rest = later;
            if random.bool() {
                yield_now().await;
            }
        }
        writer.close().await
    })
}

/// Sends more bytes than a pipe has room for.
pub(super) async fn pipe_bytes(mut context: Context) -> anyhow::Result<()> {
    let sent = context.bytes(200_000);
    let (mut reader, writer) = pipe()?;
    let feeding = feed(writer, sent.clone(), context.random.fork());
    let (result, received) = reader.read_to_end(Vec::new()).await;
    same("bytes of a pipe", &result?, &sent.len())?;
    context.verify("a pipe", &received, &sent)?;
    feeding.await??;
    Ok(())
}

/// Reads with a reader that has its own buffer: most reads are given up, and no byte is missed.
pub(super) async fn given_up_reads(mut context: Context) -> anyhow::Result<()> {
    let sent = context.bytes(60_000);
    let (reader, writer) = pipe()?;
    let feeding = feed(writer, sent.clone(), context.random.fork());
    let mut reader = Reader::new(reader);
    let mut received = Vec::new();
    loop {
        let filled = match context.give_up(reader.fill()).await {
            None if context.random.u8(0..4) > 0 => {
                yield_now().await;
                continue;
            }
            None => reader.fill().await?,
            Some(filled) => filled?,
        };
        if filled.is_empty() {
            break;
        }
        let count = context.random.usize(1..=filled.len());
        received.extend_from_slice(&filled[..count]);
        reader.consume(count);
    }
    context.verify("a pipe with reads that were given up", &received, &sent)?;
    feeding.await??;
    Ok(())
}

/// Gives up a read and frees its memory, as far as the program can see. The bytes that arrive then must not
/// appear in memory allocated meanwhile.
pub(super) async fn freed_memory(mut context: Context) -> anyhow::Result<()> {
    const PATTERN: u8 = 0xa5;
    let len = 1 << context.random.u32(6..15);
    let (mut reader, mut writer) = pipe()?;
    for _ in 0..context.random.u32(1..4) {
        let read = reader.read(vec![0; len]);
        drop(context.give_up(read).await);
        let memory: Vec<_> = (0..8).map(|_| vec![PATTERN; len]).collect();
        writer.write_all(vec![!PATTERN; 10]).await.0?;
        for _ in 0..context.random.u32(0..8) {
            yield_now().await;
        }
        let expected = vec![PATTERN; len];
        for part in &memory {
            context.verify("memory that no operation has", part, &expected)?;
        }
        // The bytes that the dropped read did not take.
        while let Some((result, _)) = context.give_up(reader.read(vec![0; 16])).await {
            result?;
        }
    }
    Ok(())
}

/// Uses connections to an echo server, with waits that are given up.
pub(super) async fn tcp(mut context: Context) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let listener = Async::new(listener)?;
    for _ in 0..context.random.u32(1..4) {
        // The connection is in the listener's queue at once.
        let stream = connection(TcpStream::connect(address)?)?;
        let accepted = loop {
            let accept = listener.read_with(TcpListener::accept);
            match context.give_up(accept).await {
                Some(accepted) => break accepted?.0,
                None => continue,
            }
        };
        let serving = spawn(echo(connection(accepted)?));
        for _ in 0..context.random.u32(1..4) {
            exchange(&mut context, &stream).await?;
        }
        if context.random.bool() {
            stream.get_ref().shutdown(std::net::Shutdown::Write)?;
            serving.await??;
        }
    }
    Ok(())
}

/// Sends bytes to the echo server and verifies the answer.
async fn exchange(context: &mut Context, stream: &Async<TcpStream>) -> anyhow::Result<()> {
    let sent = context.bytes(30_000);
    send(stream, &sent).await?;
    let mut received = vec![0; sent.len()];
    let mut filled = 0;
    while filled < received.len() {
        if context.random.bool() {
            // Only a wait for readiness; dropping it loses nothing.
            let _ = context.give_up(stream.readable()).await;
        }
        let rest = &mut received[filled..];
        let count = stream.read_with(|mut stream| stream.read(rest)).await?;
        ensure!(count > 0, "a connection ended early");
        filled += count;
    }
    context.verify("a connection", &received, &sent)
}

fn connection(stream: TcpStream) -> io::Result<Async<TcpStream>> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Async::new(stream)
}

async fn send(stream: &Async<TcpStream>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = stream.write_with(|mut stream| stream.write(bytes)).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Sends received bytes back until the end of the stream.
async fn echo(stream: Async<TcpStream>) -> io::Result<()> {
    let mut buf = vec![0; 5000];
    loop {
        match stream.read_with(|mut stream| stream.read(&mut buf)).await? {
            0 => return Ok(()),
            count => send(&stream, &buf[..count]).await?,
        }
        if buf[0] == 0 {
            sleep(Duration::from_micros(50)).await;
        }
    }
}
