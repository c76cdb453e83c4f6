//! A run: the layer, the program on it, and the measured section.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rustix::net::{AddressFamily, SocketType, sockopt};
use sakia_socket::{HostCounts, Kernel, Layer, ToyEnclave};

use super::programs::{Socket, Sockets, serve};
use super::{EXITS, Input, Program, Variant};
use crate::cell::{self, Counters, Done, Outcome, Spec};
use crate::measure::Meter;
use crate::named::Named;
use crate::net::load::Work;
use crate::net::{BEGIN, END, Load, done, hear_blocking};

/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let variant: Variant = spec.variant()?;
    let input: Input = spec.task()?;
    if input.task.load.is_some() {
        input.task.order.place.enter()?;
    }
    cell::measure(|meter| work(variant, &input, meter))
}

fn work(variant: Variant, input: &Input, meter: &mut Meter) -> anyhow::Result<Done> {
    let Input { task, program, exit_us } = input;
    let program = Program::by_name(program).with_context(|| format!("no program {program}"))?;
    let load = Load::start(task)?;
    let enclave = ToyEnclave::new(Kernel, Duration::from_micros(*exit_us));
    let sockets = Layer::new(enclave, variant.options());
    let socket = socket(&sockets, input)?;
    let address: SocketAddr = socket.local_address()?.try_into()?;
    let control = TcpStream::connect(load.control).context("control")?;
    let say = |bytes: &[u8]| (&control).write_all(bytes).context("control");
    say(&address.port().to_be_bytes())?;

    let (sender, accepted) = mpsc::channel();
    let (connections, block_bytes) = (task.order.work.connections(), task.block_bytes);
    let its = sockets.clone();
    let is_datagrams = matches!(task.order.work, Work::Datagrams(_));
    let server = thread::spawn(move || {
        let all = if is_datagrams { vec![socket] } else { accept(&socket, connections)? };
        // If the other end is gone, the load has failed, which is reported below.
        let _ = sender.send(());
        serve(program, &its, all, block_bytes)
    });
    let join =
        || server.join().map_err(|_| anyhow!("the program panicked"))?.context("the program");

    hear_blocking(&control, BEGIN)?;
    if accepted.recv().is_err() {
        return Err(join().err().unwrap_or_else(|| anyhow!("the program ended early")));
    }
    meter.note_threads();
    meter.restart()?;
    let before = sockets.host().counts();
    say(&[BEGIN])?;
    hear_blocking(&control, END)?;
    let counted = || counters(&sockets.host().counts().since(&before));
    let (sum, counters) = match task.order.work {
        // The load is done with it, but its last bytes may still be in flight.
        Work::Sources(_) => {
            let sum = join()?;
            meter.end()?;
            let counters = counted();
            say(&[END])?;
            (sum, counters)
        }
        _ => {
            meter.end()?;
            let counters = counted();
            say(&[END])?;
            if is_datagrams {
                let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("a socket")?;
                other.send_to(&[], address).context("the end")?;
            }
            (join()?, counters)
        }
    };
    done(load, &task.order, sum, counters)
}

/// Returns the socket of a server: a listener, or a datagram socket.
fn socket(sockets: &Sockets, input: &Input) -> anyhow::Result<Socket> {
    let order = &input.task.order;
    let is_datagrams = matches!(order.work, Work::Datagrams(_));
    let kind = if is_datagrams { SocketType::DGRAM } else { SocketType::STREAM };
    let socket = sockets.socket(AddressFamily::INET, kind, None).context("a socket")?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).context("bind")?;
    if !is_datagrams {
        order.place.tell(socket.fd())?;
        // In a loop of writes the kernel makes the segments, as for iperf3.
        let is_sink = matches!(order.work, Work::Sinks(_));
        sockopt::set_tcp_nodelay(socket.fd(), !is_sink).context("cannot set TCP_NODELAY")?;
        socket.listen(BACKLOG).context("listen")?;
    }
    Ok(socket)
}

fn accept(listener: &Socket, connections: usize) -> Result<Vec<Socket>, rustix::io::Errno> {
    (0..connections).map(|_| Ok(listener.accept()?.0)).collect()
}

fn counters(counts: &HostCounts) -> Counters {
    let each = counts.iter().map(|(call, count)| (call.name().to_owned(), count));
    each.chain([(EXITS.to_owned(), counts.exits())]).collect()
}
