//! The driver on the simulated kernel: random programs that pass descriptors on, under every fault, and drop
//! any of their values at any moment.

use std::time::Duration;

use crate::ops::{RecvMessage, SendMessage};
use crate::sim::Sim;
use crate::sim::random::Random;
use crate::{ControlMessage, ControlMessages, Driver, Fd, Op, SocketAddress, Wait};

const PEEK: u32 = rustix::net::RecvFlags::PEEK.bits();
/// The maximum number of operations of one sort at a time.
const OPS_MAX: usize = 3;

struct Program {
    driver: Driver,
    random: Random,
    sockets: [Fd; 2],
    /// Descriptors passed on.
    passed: Vec<Fd>,
    sends: Vec<Op<SendMessage<Vec<u8>>>>,
    recvs: Vec<Op<RecvMessage<Vec<u8>>>>,
    /// Descriptors that were received.
    received: u64,
}

impl Program {
    fn step(&mut self) {
        let Self { driver, random, sockets, passed, .. } = self;
        match random.below(8) {
            0..=2 if self.sends.len() < OPS_MAX => {
                let mut control = ControlMessages::new().segment_bytes(2);
                for _ in 0..random.below(4) {
                    control =
                        control.descriptor(&passed[random.below(passed.len() as u64) as usize]);
                }
                let buf = vec![1; random.below(4) as usize];
                let to = SocketAddress::UNNAMED;
                self.sends.push(driver.send_message(&sockets[0], buf, &to, control, 0));
            }
            3..=5 if self.recvs.len() < OPS_MAX => {
                let room = random.below(ControlMessage::space(16) as u64) as usize;
                let flags = if random.below(4) == 0 { PEEK } else { 0 };
                let buf = vec![0; 1 + random.below(8) as usize];
                self.recvs.push(driver.recv_message(&sockets[1], buf, room, flags));
            }
            6 if random.below(3) == 0 => drop((self.sends.pop(), self.recvs.pop())),
            6 => self.recvs.iter_mut().for_each(Op::cancel),
            // One descriptor is kept, to be passed on.
            7 if random.below(3) == 0 => self.passed.truncate(1),
            _ => {}
        }
        if self.random.below(2) == 0 {
            self.driver.turn(Wait::For(Duration::from_micros(300))).unwrap();
        }
        self.sends.retain_mut(|send| send.try_take().is_none());
        let (passed, received) = (&mut self.passed, &mut self.received);
        self.recvs.retain_mut(|recv| {
            let Some((result, buf)) = recv.try_take() else { return true };
            let Ok((its, control)) = result else { return false };
            assert!(buf[..its.len].iter().all(|&byte| byte == 1));
            assert_eq!(control.messages().count(), 0);
            *received += control.descriptors.len() as u64;
            passed.extend(control.descriptors);
            false
        });
    }
}

/// Runs a program. Returns the number of descriptors received.
fn run(seed: u64) -> u64 {
    let builder = Sim::builder(seed).entries(4, 8).socket_bytes(5).late_writes(1 << 13);
    let sim = builder.descriptors_max(12).chaos(1 << 11).network_chaos(1 << 9).build();
    let kernel = sim.handle();
    let driver = Driver::new(sim);
    let (near, far) = kernel.socket_pair();
    let (reader, writer) = kernel.pipe();
    let sockets = [near, far].map(|raw| driver.adopt_simulated(raw));
    let passed = vec![driver.adopt_simulated(writer)];
    let (sends, recvs) = (Vec::new(), Vec::new());
    let random = Random::new(seed);
    let mut program = Program { driver, random, sockets, passed, sends, recvs, received: 0 };
    for _ in 0..if cfg!(miri) { 60 } else { 300 } {
        program.step();
    }
    let Program { driver, sockets, passed, sends, recvs, received, .. } = program;
    drop((sockets, passed, sends, recvs));
    for _ in 0..10_000 {
        if driver.live_operations() == 0 && driver.in_flight() == 0 {
            break;
        }
        driver.turn(Wait::For(Duration::from_millis(2))).unwrap();
    }
    assert_eq!((driver.live_operations(), driver.in_flight()), (0, 0), "seed {seed}");
    assert_eq!(kernel.open_descriptors(), 1, "seed {seed}: the end that is the test's");
    // No descriptor is in transit, either.
    assert!(kernel.read_pipe(reader, 1).is_ok_and(|bytes| bytes.is_empty()), "seed {seed}");
    drop(driver);
    assert_eq!(kernel.run_late(), 0, "seed {seed}");
    received
}

#[test]
fn no_descriptor_is_left_open_or_on_its_way() {
    let mut received = 0;
    for seed in 0..if cfg!(miri) { 3 } else { 300 } {
        received += run(seed);
    }
    // Otherwise the test proves nothing.
    assert!(received > if cfg!(miri) { 3 } else { 3000 }, "{received}");
}
