//! Connections on Sakia: a task for each, which sends back what it received from the same memory.

use std::io;

use peers_common::{Door, Job, Net};
use sakia::Runtime;
use sakia::net::{TcpListener, TcpStream};
use sakia_driver::Policy;

use crate::Sakia;

impl Net for Sakia {
    fn serve(job: &Job, door: Door) -> io::Result<()> {
        let policy = if job.variant == "poll" { Policy::Poll } else { Policy::Auto };
        let runtime = Runtime::builder().backend(policy).build()?;
        runtime.block_on(async {
            let listener = TcpListener::from_std(door.listen()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                sakia::spawn(echo(stream)).detach();
            }
        })
    }
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
