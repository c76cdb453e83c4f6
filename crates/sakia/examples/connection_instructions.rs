//! Lives of a connection, and nothing else, for counting instructions: two runs under callgrind with
//! different counts differ by the cost of the connections alone.
//!
//! Apart from `runtime_instructions`: one more caller of a method there would have the compiler lay out the
//! others in another way.
//!
//! Usage: `connection_instructions uring|poll COUNT`

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use sakia::io::BufResultExt;
use sakia::{Runtime, net};
use sakia_driver::{Policy, Streams};

const MESSAGE_BYTES: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [driver, count] = &arguments[..] else {
        return Err("usage: connection_instructions uring|poll COUNT".into());
    };
    let policy = match driver.as_str() {
        "uring" => Policy::Uring,
        "poll" => Policy::Poll,
        other => return Err(format!("no driver {other}").into()),
    };
    // One way for all streams: learning would have some go the other.
    let runtime = Runtime::builder().backend(policy).streams(Streams::Queue).build()?;
    let lives = runtime.spawn(lives(count.parse()?));
    Ok(runtime.block_on(lives).expect("no task here panics or is aborted")?)
}

/// Accepts a connection, takes its request, answers, and drops it without waiting for its end, again and
/// again. The client's calls are plain ones of this thread, and counted along.
async fn lives(count: usize) -> io::Result<()> {
    let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let mut answer = [0; MESSAGE_BYTES];
    for _ in 0..count {
        let mut client = TcpStream::connect(address)?;
        let (mut stream, _) = listener.accept().await?;
        client.write_all(&answer)?;
        let request = stream.recv().await?;
        stream.write_all(request).await.value()?;
        drop(stream);
        client.read_exact(&mut answer)?;
    }
    Ok(())
}
