//! Connections on Sakia: a task for each, which sends received bytes from the memory they were received
//! into.

use std::io;

use peers_common::net::{Attendant, DATAGRAM_BYTES};
use peers_common::{Door, Job, Net};
use sakia::io::BufResultExt;
use sakia::net::{TcpListener, TcpStream, UdpSocket};

use crate::Sakia;

impl Net for Sakia {
    async fn serve(job: Job, door: Door) -> io::Result<()> {
        let listener = if job.variant == "attended" {
            let (listener, control, attendant) = door.listen_attended()?;
            sakia::spawn(attend(TcpStream::from_std(control)?, attendant)).detach();
            TcpListener::from_std(listener)?
        } else {
            TcpListener::from_std(door.listen()?)?
        };
        loop {
            let (stream, _) = listener.accept().await?;
            sakia::spawn(echo(stream)).detach();
        }
    }

    async fn serve_datagrams(job: Job, door: Door) -> io::Result<()> {
        let socket = UdpSocket::from_std(door.bind_datagrams()?)?;
        if job.variant != "single" {
            return echo_batches(&socket).await;
        }
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        loop {
            let ((_, from), received) = socket.recv_from(buffer).await.both()?;
            buffer = socket.send_to(received, from).await.buffer()?;
            buffer.clear();
        }
    }
}

/// Sends all arrived datagrams back together.
async fn echo_batches(socket: &UdpSocket) -> io::Result<()> {
    let mut buffers: Vec<_> = (0..32).map(|_| Vec::with_capacity(DATAGRAM_BYTES)).collect();
    loop {
        let (received, mut filled) = socket.recv_batch(buffers).await.both()?;
        let rest = filled.split_off(received.len());
        let messages = filled.into_iter().zip(received.iter().map(|datagram| datagram.from));
        buffers = Vec::with_capacity(rest.len() + received.len());
        for sent in socket.send_batch(messages.collect()).await {
            let mut buffer = sent.buffer()?;
            buffer.clear();
            buffers.push(buffer);
        }
        buffers.extend(rest);
    }
}

/// Runs a thread's other tasks.
async fn attend(mut control: TcpStream, attendant: Attendant) -> io::Result<()> {
    let (result, word) = control.read_exact(vec![0; 1]).await;
    result?;
    attendant.gate.begin();
    control.write_all(word).await.0?;
    let (result, word) = control.read_exact(vec![0; 1]).await;
    result?;
    attendant.gate.end();
    control.write_all(word).await.0?;
    attendant.exit()
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    loop {
        let bytes = stream.recv().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        stream.write_all(bytes).await.0?;
    }
}
