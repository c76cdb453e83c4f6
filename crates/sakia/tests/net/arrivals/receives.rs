//! Programs of receives that share an object, and how they run.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use sakia::{JoinHandle, spawn};

use super::model::Arrivals;
use super::{must, turns};
use crate::support::poll_once;

/// The number of receives that a program's main task has under way.
const SLOTS: usize = 4;

/// A step of a program. `M` is a receiving method.
#[derive(Clone, Debug)]
pub enum Step<M> {
    /// Has this number arrive.
    Send(u8),
    /// Starts a receive, and polls it once.
    Start(usize, M),
    Poll(usize),
    Drop(usize),
    /// Forgets a receive, which keeps all that it has.
    Forget(usize),
    /// Has a task receive.
    Spawn(M),
    Abort(usize),
    /// Has enough arrive, and receives.
    Receive(M),
    /// Receives for at most some microseconds.
    Limit(M, u16),
    Turns(u8),
}

/// An object with arrivals.
pub trait Object: 'static {
    type Method: Clone + 'static;

    /// Returns the most arrivals that the method takes.
    fn most(method: &Self::Method) -> usize;

    /// Has one arrive. Returns false if there is no room for more.
    fn send(&self, number: usize) -> bool;

    /// Receives. Resolves to the arrivals.
    fn receive(self: Rc<Self>, method: Self::Method) -> impl Future<Output = Vec<usize>>;
}

/// Returns the steps of a program.
pub fn steps<M: Clone + std::fmt::Debug + 'static>(
    methods: impl Strategy<Value = M> + Clone + 'static,
) -> impl Strategy<Value = Vec<Step<M>>> {
    let slot = || 0..SLOTS;
    let step = prop_oneof![
        12 => (1u8..5).prop_map(Step::Send),
        8 => (slot(), methods.clone()).prop_map(|(slot, method)| Step::Start(slot, method)),
        6 => slot().prop_map(Step::Poll),
        6 => slot().prop_map(Step::Drop),
        1 => slot().prop_map(Step::Forget),
        3 => methods.clone().prop_map(Step::Spawn),
        1 => (0usize..4).prop_map(Step::Abort),
        12 => methods.clone().prop_map(Step::Receive),
        2 => (methods, 0u16..300).prop_map(|(method, limit)| Step::Limit(method, limit)),
        6 => (1u8..4).prop_map(Step::Turns),
    ];
    prop::collection::vec(step.boxed(), 0..40).boxed()
}

type Receiving = Pin<Box<dyn Future<Output = ()>>>;

struct Run<O> {
    object: Rc<O>,
    arrivals: Arrivals,
    slots: [Option<Receiving>; SLOTS],
    tasks: Vec<JoinHandle<()>>,
    /// The number of forgotten receives.
    forgotten: usize,
}

/// Runs a program, and then receives all that is left.
pub async fn run<O: Object>(object: O, steps: Vec<Step<O::Method>>, last: O::Method) {
    let (object, arrivals) = (Rc::new(object), Arrivals::default());
    let slots = Default::default();
    let mut run = Run { object, arrivals, slots, tasks: Vec::new(), forgotten: 0 };
    for step in steps {
        run.step(step).await;
    }
    run.end(last).await;
}

impl<O: Object> Run<O> {
    fn send(&self) -> bool {
        let is_sent = self.object.send(self.arrivals.next());
        if is_sent {
            self.arrivals.add();
        }
        is_sent
    }

    /// Has as many arrive as all receives under way may hold, and one more; fewer if there is no room for
    /// them.
    fn send_enough(&self) {
        while self.arrivals.left() <= self.arrivals.held_max() && self.send() {}
    }

    /// Awaits a task's receive, and has enough arrive for it. Only its wakes have the task poll it.
    async fn served(&self, mut task: JoinHandle<()>) {
        loop {
            // There may be room for fewer than are needed until some were taken, and tasks begin to receive.
            self.send_enough();
            match sakia::time::timeout(Duration::from_millis(1), &mut task).await {
                Ok(Err(error)) if error.is_panic() => panic!("{error}"),
                Ok(_) => return,
                Err(_) => {}
            }
        }
    }

    fn receive(&self, method: O::Method) -> Receiving {
        let (object, arrivals) = (Rc::clone(&self.object), self.arrivals.clone());
        Box::pin(async move {
            let most = O::most(&method);
            let under_way = arrivals.begin(most);
            let got = object.receive(method).await;
            match most {
                0 => under_way.saw(got[0]),
                _ => under_way.end(&got),
            }
        })
    }

    async fn step(&mut self, step: Step<O::Method>) {
        match step {
            Step::Send(count) => {
                for _ in 0..count {
                    self.send();
                }
            }
            Step::Start(slot, method) => {
                let mut receiving = self.receive(method);
                let is_pending = poll_once(&mut receiving).await.is_pending();
                self.slots[slot] = is_pending.then_some(receiving);
            }
            Step::Poll(slot) => {
                if let Some(receiving) = &mut self.slots[slot]
                    && poll_once(receiving).await.is_ready()
                {
                    self.slots[slot] = None;
                }
            }
            Step::Drop(slot) => self.slots[slot] = None,
            Step::Forget(slot) => {
                if let Some(receiving) = self.slots[slot].take() {
                    mem::forget(receiving);
                    self.forgotten += 1;
                }
            }
            Step::Spawn(method) => self.tasks.push(spawn(self.receive(method))),
            Step::Abort(task) => {
                if let Some(task) = self.tasks.get(task) {
                    task.abort();
                }
            }
            Step::Receive(method) => {
                let task = spawn(self.receive(method));
                must("a receive", self.served(task)).await;
            }
            Step::Limit(method, limit) => {
                let limit = Duration::from_micros(limit.into());
                let _ = sakia::time::timeout(limit, self.receive(method)).await;
            }
            Step::Turns(count) => turns(count).await,
        }
    }

    /// Ends all receives, and takes what is left.
    async fn end(mut self, last: O::Method) {
        let left = self.slots.iter_mut().filter_map(Option::take);
        self.tasks.extend(left.map(spawn));
        while let Some(task) = self.tasks.pop() {
            must("a task's receive", self.served(task)).await;
        }
        // The future of a canceled task is dropped a little later.
        while self.arrivals.under_way() > self.forgotten {
            must("the end of a task", turns(1)).await;
        }
        while self.arrivals.left() > self.arrivals.held_max() {
            must("the last", spawn(self.receive(last.clone()))).await.unwrap();
        }
        let mut one_more = Box::pin(Rc::clone(&self.object).receive(last));
        for _ in 0..3 {
            let is_empty =
                self.arrivals.held_max() > 0 || poll_once(&mut one_more).await.is_pending();
            assert!(is_empty, "one came that was never sent");
            turns(1).await;
        }
    }
}
