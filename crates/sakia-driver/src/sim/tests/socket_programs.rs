//! The driver on the simulated kernel: random programs on sockets, under every fault of the kernel and of the
//! network, that drop any of their values at any moment.

use std::time::Duration;

use crate::sim::random::Random;
use crate::sim::{FaultKind, Sim, SimHandle};
use crate::{
    Accept, Connect, Driver, Fd, Op, ShutdownHow, SocketAddress, SocketRecv, SocketSend,
    SocketType, Wait,
};

/// The maximum number of sockets at a time.
const SOCKETS_MAX: usize = 6;

type Recv = Op<SocketRecv<Vec<u8>>>;
type Send = Op<SocketSend<Vec<u8>>>;

/// One end of a connection.
struct End {
    fd: Fd,
    /// The next byte to send; bytes count up from 1.
    sent: u8,
    /// The last number that was received.
    received: u8,
    /// A receive was dropped, and with it the bytes that it receives, now or later.
    has_gap: bool,
    send: Option<Send>,
    recv: Option<Recv>,
}

impl End {
    fn new(fd: Fd) -> Self {
        Self { fd, sent: 0, received: 0, has_gap: false, send: None, recv: None }
    }

    /// Takes the results that are ready. Returns false if the connection is of no more use.
    fn check(&mut self) -> bool {
        if let Some((result, buf)) = self.recv.as_mut().and_then(Op::try_take) {
            self.recv = None;
            let Ok(len) = result else { return false };
            for &byte in &buf[..len] {
                let follows = byte == self.received + 1;
                assert!(follows || self.has_gap && byte > self.received, "{byte}");
                self.received = byte;
            }
        }
        if let Some((result, _)) = self.send.as_mut().and_then(Op::try_take) {
            self.send = None;
            let Ok(len) = result else { return false };
            self.sent += len as u8;
        }
        true
    }

    /// Starts or drops an operation. Returns false if the connection is of no more use.
    fn step(&mut self, driver: &Driver, random: &mut Random) -> bool {
        match random.below(12) {
            0..4 if self.recv.is_none() => {
                self.recv = Some(driver.recv(&self.fd, vec![0; 7], 0));
            }
            4..8 if self.send.is_none() && self.sent < 200 => {
                let bytes = (1..=random.below(9) as u8).map(|step| self.sent + step).collect();
                self.send = Some(driver.send(&self.fd, bytes, 0));
            }
            8 => self.has_gap |= self.recv.take().is_some(),
            9 if self.recv.is_some() => self.recv.iter_mut().for_each(Op::cancel),
            10 if random.below(8) == 0 => {
                drop(driver.shutdown_socket(&self.fd, ShutdownHow::Sends));
            }
            // After a drop the number of bytes sent is unknown.
            11 if random.below(4) == 0 => return self.send.take().is_none(),
            _ => {}
        }
        true
    }
}

struct Program {
    driver: Driver,
    random: Random,
    address: SocketAddress,
    ends: Vec<End>,
    accepts: Vec<Op<Accept>>,
    connects: Vec<(Fd, Op<Connect>)>,
    /// Connections that were made, and bytes that came over them.
    made: u64,
    moved: u64,
}

impl Program {
    fn step(&mut self, listener: &Fd) {
        let Self { driver, random, .. } = self;
        match random.below(8) {
            0 if self.accepts.len() < 3 => self.accepts.push(driver.accept(listener)),
            1 if self.ends.len() + self.connects.len() < SOCKETS_MAX => {
                let domain = self.address.domain();
                if let Some(fd) =
                    eventually(driver, || driver.socket(domain, SocketType::STREAM, 0))
                {
                    let connect = driver.connect(&fd, &self.address);
                    self.connects.push((fd, connect));
                }
            }
            2 if random.below(4) == 0 => drop(self.accepts.pop()),
            3 if random.below(4) == 0 => drop(self.connects.pop()),
            4 if random.below(8) == 0 => drop(self.ends.pop()),
            _ => {}
        }
        let moved = &mut self.moved;
        self.ends.retain_mut(|end| {
            let before = end.received;
            let is_of_use = end.check();
            *moved += u64::from(end.received - before);
            is_of_use && end.step(driver, random)
        });
        match random.below(3) {
            0 => {
                driver.turn(Wait::Poll).unwrap();
            }
            1 => {
                driver.turn(Wait::For(Duration::from_micros(300))).unwrap();
            }
            _ => {}
        }
        self.take_connections();
    }

    fn take_connections(&mut self) {
        let (ends, made) = (&mut self.ends, &mut self.made);
        self.accepts.retain_mut(|accept| match accept.try_take() {
            Some(Ok((fd, _))) => {
                ends.push(End::new(fd));
                false
            }
            Some(Err(_)) => false,
            None => true,
        });
        self.connects.retain_mut(|(fd, connect)| match connect.try_take() {
            Some(result) => {
                if result.is_ok() {
                    *made += 1;
                    ends.push(End::new(fd.clone()));
                }
                false
            }
            None => true,
        });
    }
}

/// Returns the result of an operation, unless it fails.
fn eventually<O, T>(driver: &Driver, start: impl FnOnce() -> Op<O>) -> Option<T>
where
    O: crate::Operation<Output = std::io::Result<T>>,
{
    let mut op = start();
    loop {
        if let Some(result) = op.try_take() {
            return result.ok();
        }
        driver.turn(Wait::For(Duration::from_millis(2))).unwrap();
    }
}

/// Returns the result of an operation, repeated until it does not fail.
fn surely<O, T>(driver: &Driver, start: impl Fn() -> Op<O>) -> T
where
    O: crate::Operation<Output = std::io::Result<T>>,
{
    (0..1000).find_map(|_| eventually(driver, &start)).expect("it does not fail for ever")
}

/// Runs a program. Returns its kernel, and the numbers of connections and bytes.
fn run(seed: u64, address: SocketAddress) -> (SimHandle, [u64; 2]) {
    let builder = Sim::builder(seed).entries(4, 8).socket_bytes(5).late_writes(1 << 13);
    let sim = builder.chaos(1 << 11).network_chaos(1 << 9).build();
    let kernel = sim.handle();
    let driver = Driver::new(sim);
    let listener = surely(&driver, || driver.socket(address.domain(), SocketType::STREAM, 0));
    surely(&driver, || driver.bind(&listener, &address));
    surely(&driver, || driver.listen(&listener, 1));
    let (ends, accepts, connects) = (Vec::new(), Vec::new(), Vec::new());
    let random = Random::new(seed);
    let mut program =
        Program { driver, random, address, ends, accepts, connects, made: 0, moved: 0 };
    for _ in 0..if cfg!(miri) { 60 } else { 300 } {
        program.step(&listener);
    }
    let Program { driver, ends, accepts, connects, made, moved, .. } = program;
    drop((ends, accepts, connects, listener));
    for _ in 0..10_000 {
        if driver.live_operations() == 0 && driver.in_flight() == 0 {
            break;
        }
        driver.turn(Wait::For(Duration::from_millis(2))).unwrap();
    }
    assert_eq!((driver.live_operations(), driver.in_flight()), (0, 0), "seed {seed}");
    assert_eq!(kernel.open_descriptors(), 0, "seed {seed}");
    drop(driver);
    assert_eq!(kernel.run_late(), 0, "seed {seed}");
    (kernel, [made, moved])
}

fn addresses() -> [SocketAddress; 2] {
    let inet = core::net::SocketAddr::from(([127, 0, 0, 1], 80)).into();
    [SocketAddress::abstract_name("program").unwrap(), inet]
}

#[test]
fn nothing_is_lost_doubled_or_left_open() {
    let (mut resets, mut made, mut moved) = (0, 0, 0);
    for seed in 0..if cfg!(miri) { 2 } else { 150 } {
        for address in addresses() {
            let (kernel, [connections, bytes]) = run(seed, address);
            resets += kernel.injected(FaultKind::Reset);
            made += connections;
            moved += bytes;
        }
    }
    // Otherwise the test proves nothing.
    assert!(cfg!(miri) || resets > 10 && made > 1000 && moved > 10_000, "{resets} {made} {moved}");
}
