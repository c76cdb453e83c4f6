//! Datagrams leave in order: a send that begins after another one has ended, or was dropped, overtakes none
//! of its datagrams. Sends that wait at the same time may overtake each other.

use std::cell::RefCell;
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use rustix::net::{RecvFlags, recv};
use sakia::net::{ControlMessages, UdpSocket, UnixDatagram};
use sakia::{JoinHandle, spawn};
use sakia_driver::Policy;

use super::{check, must, on_backends, turns};
use crate::support::poll_once;

on_backends! {
    udp_datagrams_leave_in_order
    udp_datagrams_to_a_peer_leave_in_order
    unix_datagrams_leave_in_order
}

const SLOTS: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Method {
    Send,
    SendTo,
    SendMessage,
    SendBatch(usize),
}

#[derive(Clone, Debug)]
enum Step {
    /// Starts a send, and polls it once.
    Start(usize, Method),
    Poll(usize),
    Drop(usize),
    /// Has a task send.
    Spawn(Method),
    /// Sends, and receives meanwhile.
    Send(Method),
    /// Receives at most this number of datagrams.
    Receive(u8),
    Turns(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let method = || {
        prop_oneof![
            3 => Just(Method::Send),
            1 => Just(Method::SendTo),
            1 => Just(Method::SendMessage),
            2 => (1usize..6).prop_map(Method::SendBatch),
        ]
    };
    let step = prop_oneof![
        12 => (0..SLOTS, method()).prop_map(|(slot, method)| Step::Start(slot, method)),
        4 => (0..SLOTS).prop_map(Step::Poll),
        4 => (0..SLOTS).prop_map(Step::Drop),
        3 => method().prop_map(Step::Spawn),
        12 => method().prop_map(Step::Send),
        6 => (1u8..8).prop_map(Step::Receive),
        6 => (1u8..4).prop_map(Step::Turns),
    ];
    prop::collection::vec(step.boxed(), 0..60).boxed()
}

/// The datagrams that were sent, and their arrival. Clones share them.
#[derive(Clone, Default)]
struct Departures {
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    sends: Vec<Sent>,
    /// For each datagram, the send that it belongs to, and whether it has arrived.
    datagrams: Vec<(usize, bool)>,
    /// The datagrams that have arrived, in their order.
    arrived: Vec<usize>,
    clock: u64,
}

struct Sent {
    began: u64,
    /// The time at which it had ended or was dropped.
    ended: Option<u64>,
    /// Set if all of its datagrams were sent.
    is_done: bool,
}

/// A send under way.
struct UnderWay {
    departures: Departures,
    number: usize,
}

impl Departures {
    /// Begins a send of `count` datagrams. Returns their numbers.
    fn begin(&self, count: usize) -> (UnderWay, Vec<usize>) {
        let state = &mut *self.state.borrow_mut();
        state.clock += 1;
        let number = state.sends.len();
        state.sends.push(Sent { began: state.clock, ended: None, is_done: false });
        let first = state.datagrams.len();
        state.datagrams.resize(first + count, (number, false));
        (UnderWay { departures: self.clone(), number }, (first..first + count).collect())
    }

    fn arrive(&self, datagram: usize) {
        let state = &mut *self.state.borrow_mut();
        let (send, has_arrived) = &mut state.datagrams[datagram];
        assert!(!*has_arrived, "{datagram} arrived twice");
        *has_arrived = true;
        let send = *send;
        let ended = state.sends[send].ended.unwrap_or(u64::MAX);
        for &before in &state.arrived {
            let (other, _) = state.datagrams[before];
            let is_overtaken = ended < state.sends[other].began;
            assert!(!is_overtaken, "{before} overtook {datagram}, whose send was over by then");
            assert!(other != send || before < datagram, "{before} overtook {datagram} in a batch");
        }
        state.arrived.push(datagram);
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Ok(mut state) = self.departures.state.try_borrow_mut() else { return };
        state.clock += 1;
        state.sends[self.number].ended = Some(state.clock);
    }
}

enum Socket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

type Sending = Pin<Box<dyn Future<Output = ()>>>;

struct Run {
    near: Rc<Socket>,
    far: Socket,
    departures: Departures,
    slots: [Option<Sending>; SLOTS],
    tasks: Vec<JoinHandle<()>>,
}

fn bytes(number: usize) -> Vec<u8> {
    (number as u16).to_le_bytes().to_vec()
}

impl Run {
    fn send(&self, method: Method) -> Sending {
        let (near, departures) = (Rc::clone(&self.near), self.departures.clone());
        let to = match &self.far {
            Socket::Udp(far) => Some(far.local_addr().unwrap()),
            Socket::Unix(_) => None,
        };
        Box::pin(async move {
            let count = match (method, to) {
                (Method::SendBatch(count), Some(_)) => count,
                _ => 1,
            };
            let (under_way, numbers) = departures.begin(count);
            let bytes = bytes(numbers[0]);
            let sent = match (&*near, method, to) {
                (Socket::Udp(near), Method::SendBatch(_), Some(to)) => {
                    let messages = numbers.iter().map(|&number| (self::bytes(number), to));
                    let results = near.send_batch(messages.collect()).await;
                    results.into_iter().map(|(result, _)| result.unwrap()).sum()
                }
                (Socket::Udp(near), Method::SendTo, Some(to)) => {
                    near.send_to(bytes, to).await.0.unwrap()
                }
                (Socket::Udp(near), Method::SendMessage, to) => {
                    near.send_message(bytes, to, ControlMessages::new()).await.0.unwrap()
                }
                (Socket::Udp(near), ..) => near.send(bytes).await.0.unwrap(),
                (Socket::Unix(near), Method::SendMessage, _) => {
                    near.send_message(bytes, None, ControlMessages::new()).await.0.unwrap()
                }
                (Socket::Unix(near), ..) => near.send(bytes).await.0.unwrap(),
            };
            assert_eq!(sent, 2 * count);
            departures.state.borrow_mut().sends[under_way.number].is_done = true;
        })
    }

    /// Receives at most `count` datagrams that have arrived.
    fn receive(&self, count: u8) {
        for _ in 0..count {
            let far = match &self.far {
                Socket::Udp(far) => far.as_fd(),
                Socket::Unix(far) => far.as_fd(),
            };
            let mut buf = [0; 9];
            match recv(far, &mut buf, RecvFlags::DONTWAIT) {
                Ok((2, _)) => {}
                Ok((len, _)) => panic!("{len} bytes"),
                Err(_) => return,
            }
            self.departures.arrive(u16::from_le_bytes([buf[0], buf[1]]).into());
        }
    }

    /// Waits for a send, and makes room for it.
    async fn served(&self, mut sending: JoinHandle<()>) {
        loop {
            let pause = Duration::from_millis(1);
            match sakia::time::timeout(pause, &mut sending).await {
                Ok(outcome) => return outcome.unwrap(),
                Err(_) => self.receive(u8::MAX),
            }
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Start(slot, method) => {
                let mut sending = self.send(method);
                let is_pending = poll_once(&mut sending).await.is_pending();
                self.slots[slot] = is_pending.then_some(sending);
            }
            Step::Poll(slot) => {
                if let Some(sending) = &mut self.slots[slot]
                    && poll_once(sending).await.is_ready()
                {
                    self.slots[slot] = None;
                }
            }
            Step::Drop(slot) => self.slots[slot] = None,
            Step::Spawn(method) => self.tasks.push(spawn(self.send(method))),
            Step::Send(method) => must("a send", self.served(spawn(self.send(method)))).await,
            Step::Receive(count) => self.receive(count),
            Step::Turns(count) => turns(count).await,
        }
    }

    async fn end(mut self) {
        let left = self.slots.iter_mut().filter_map(Option::take);
        self.tasks.extend(left.map(spawn));
        while let Some(task) = self.tasks.pop() {
            must("a task's send", self.served(task)).await;
        }
        self.receive(u8::MAX);
        turns(3).await;
        self.receive(u8::MAX);
        let state = self.departures.state.borrow();
        for (number, &(send, has_arrived)) in state.datagrams.iter().enumerate() {
            assert!(has_arrived || !state.sends[send].is_done, "{number} was lost");
        }
    }
}

async fn run(near: Socket, far: Socket, steps: Vec<Step>) {
    let (departures, slots) = Default::default();
    let mut run = Run { near: Rc::new(near), far, departures, slots, tasks: Vec::new() };
    for step in steps {
        run.step(step).await;
    }
    run.end().await;
}

/// A socket whose receiver is its peer may learn of errors, so its batches are sent by operations.
fn udp_datagrams(policy: Policy, has_peer: bool) {
    check(policy, steps(), |steps| async move {
        let near = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let far = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let steps = if has_peer {
            near.connect(far.local_addr().unwrap()).await.unwrap();
            steps
        } else {
            let addressed = |step| match step {
                Step::Start(slot, Method::Send) => Step::Start(slot, Method::SendTo),
                Step::Spawn(Method::Send) => Step::Spawn(Method::SendTo),
                Step::Send(Method::Send) => Step::Send(Method::SendTo),
                step => step,
            };
            steps.into_iter().map(addressed).collect()
        };
        run(Socket::Udp(near), Socket::Udp(far), steps).await;
    });
}

fn udp_datagrams_leave_in_order(policy: Policy) {
    udp_datagrams(policy, false);
}

fn udp_datagrams_to_a_peer_leave_in_order(policy: Policy) {
    udp_datagrams(policy, true);
}

fn unix_datagrams_leave_in_order(policy: Policy) {
    check(policy, (any::<bool>(), steps()), |(is_adopted, steps): (_, Vec<_>)| async move {
        let (mut near, far) = UnixDatagram::pair().unwrap();
        if is_adopted {
            let std = near.into_std().await.unwrap();
            std.set_nonblocking(true).unwrap();
            near = UnixDatagram::from_std(std).unwrap();
        }
        run(Socket::Unix(near), Socket::Unix(far), steps).await;
    });
}
