//! Connections on Sakia: a task for each, which sends back what it received from the same memory.

use std::io;

use peers_common::net::Attendant;
use peers_common::{Door, Job, Net};
use sakia::net::{TcpListener, TcpStream};

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
}

/// What a thread does otherwise.
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
