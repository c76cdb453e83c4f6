//! Datagrams: a load that gets them back, and the common code of its servers.
//!
//! On a loopback none is lost as long as the receiver's buffer has room, and the windows are small enough for
//! that. A datagram that is missing for [`PATIENCE`] ends the run.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};

use super::load::{Messages, mark, pattern};
use super::server::{Load, done, hear, hear_blocking};
use super::{BEGIN, END, Task};
use crate::cell::{Counters, Done};
use crate::engine::{self, Engine};
use crate::measure::Meter;

/// The largest datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// The time to wait for a datagram.
const PATIENCE: Duration = Duration::from_secs(10);

/// The load: one socket with a fixed number of datagrams in flight.
pub struct DatagramLoad {
    socket: UdpSocket,
    window: u64,
    /// The number of the next datagram.
    next: u64,
    /// The numbers of the datagrams in flight.
    under_way: Vec<u64>,
    /// A datagram, whose first bytes are set before it is sent.
    datagram: Vec<u8>,
    /// The datagram received last; one byte longer than expected, so that an overlong one is noticed.
    buffer: Vec<u8>,
    /// The sum of the numbers of those that came back.
    pub sum: u64,
}

impl DatagramLoad {
    pub fn new(messages: Messages, server: SocketAddr) -> anyhow::Result<Self> {
        let Messages { message_bytes, window, .. } = messages;
        let sizes = super::load::MESSAGE_BYTES_MIN..=DATAGRAM_BYTES_MAX;
        ensure!(
            sizes.contains(&message_bytes) && window > 0,
            "a datagram size or window out of range"
        );
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a socket")?;
        socket.connect(server).context("connect")?;
        socket.set_read_timeout(Some(PATIENCE)).context("a timeout")?;
        let (datagram, buffer) = (pattern(message_bytes), vec![0; message_bytes + 1]);
        Ok(Self { socket, window, next: 0, under_way: Vec::new(), datagram, buffer, sum: 0 })
    }

    /// Sends `count` datagrams, and waits for all of them.
    pub fn exchange(&mut self, count: u64) -> anyhow::Result<()> {
        let end = self.next + count;
        loop {
            while self.next < end && (self.under_way.len() as u64) < self.window {
                self.send()?;
            }
            if self.under_way.is_empty() {
                return Ok(());
            }
            self.receive()?;
        }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.datagram[..8].copy_from_slice(&mark(0, self.next).to_le_bytes());
        self.socket.send(&self.datagram).context("send")?;
        self.under_way.push(self.next);
        self.next += 1;
        Ok(())
    }

    /// Receives a datagram, and compares it. Servers may change the order.
    fn receive(&mut self) -> anyhow::Result<()> {
        let count = self.socket.recv(&mut self.buffer).context("a datagram was lost, perhaps")?;
        ensure!(count == self.datagram.len(), "{count} bytes came back");
        let (number, rest) = self.buffer[..count].split_at(8);
        let found = |&its: &u64| mark(0, its).to_le_bytes() == number;
        let position = self.under_way.iter().position(found);
        let position = position.context("a datagram came back as another, or twice")?;
        ensure!(rest == &self.datagram[8..], "a datagram came back as another");
        self.sum = self.sum.wrapping_add(mark(0, self.under_way.swap_remove(position)));
        Ok(())
    }
}

/// Serves datagrams by plain calls, on a thread that runs `serve` until an empty one comes.
pub(crate) fn serve_datagrams_blocking(
    task: &Task,
    meter: &mut Meter,
    serve: impl FnOnce(UdpSocket) -> std::io::Result<()> + Send + 'static,
) -> anyhow::Result<Done> {
    let (order, load) = (&task.order, Load::start(task)?);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a socket")?;
    let address = socket.local_addr().context("a socket")?;
    let control = TcpStream::connect(load.control).context("control")?;
    let say = |bytes: &[u8]| (&control).write_all(bytes).context("control");
    let thread = thread::spawn(move || serve(socket));
    say(&address.port().to_be_bytes())?;
    hear_blocking(&control, BEGIN)?;
    meter.note_threads();
    meter.restart()?;
    say(&[BEGIN])?;
    hear_blocking(&control, END)?;
    meter.end()?;
    say(&[END])?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a socket")?;
    other.send_to(&[], address).context("the end")?;
    thread.join().map_err(|_| anyhow!("a thread panicked"))?.context("the server")?;
    done(load, order, 0, Counters::new())
}

/// Serves datagrams on a runtime, by a task that `serve` makes.
pub(crate) fn serve_datagrams<F>(
    task: &Task,
    meter: &mut Meter,
    engine: Engine,
    serve: impl FnOnce(sakia::net::UdpSocket) -> F,
) -> anyhow::Result<Done>
where
    F: Future<Output = std::io::Result<()>> + 'static,
{
    let (order, load) = (&task.order, Load::start(task)?);
    let runtime = engine.start()?;
    let counters = runtime.block_on(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = sakia::net::UdpSocket::bind(address).await.context("a socket")?;
        let port = socket.local_addr().context("a socket")?.port();
        let mut control = sakia::net::TcpStream::connect(load.control).await.context("control")?;
        let serving = sakia::spawn(serve(socket));
        control.write_all(port.to_be_bytes().to_vec()).await.0.context("control")?;
        hear(&mut control, BEGIN).await?;
        meter.note_threads();
        meter.restart()?;
        let before = engine::counted(&runtime);
        control.write_all(vec![BEGIN]).await.0.context("control")?;
        hear(&mut control, END).await?;
        meter.end()?;
        let counters = engine::between(&before, engine::counted(&runtime));
        control.write_all(vec![END]).await.0.context("control")?;
        // A server never ends, unless it has failed.
        ensure!(!serving.is_finished(), "the server ended: {:?}", serving.await);
        drop(serving);
        anyhow::Ok(counters)
    })?;
    drop(runtime);
    done(load, order, 0, counters)
}
