//! Budgets against a line of requests, cancellation tokens against a tree of flags, sets of tasks against two
//! lists. After each step every count, flag and outcome is compared, and so is the number of wakes of each
//! future that waits: one when its turn comes, none before.
//!
//! Left out: several threads, which tests of their own have, and the order in which a set gives the outcomes
//! of tasks that have ended already.

use std::cell::Cell;
use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use sakia::{
    Acquire, Budget, CancellationToken, DropGuard, JoinError, JoinSet, Limits, Permit, Resource,
    Runtime, yield_now,
};
use sakia_testkit::random::{Random, programs};

/// Counts its wakes.
#[derive(Default)]
struct Counter(AtomicU32);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A future that is polled by hand.
pub(super) struct Polled<F> {
    future: F,
    counter: Arc<Counter>,
}

impl<F: Future + Unpin> Polled<F> {
    pub(super) fn new(future: F) -> Self {
        Self { future, counter: Arc::default() }
    }

    pub(super) fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.counter));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }

    pub(super) fn wakes(&self) -> u32 {
        self.counter.0.load(Ordering::Relaxed)
    }
}

/// Says how two values differ.
pub(super) fn differ<T: PartialEq + Debug>(name: &str, is: T, model: T) -> Option<String> {
    (is != model).then(|| format!("{name}: {is:?}, in the model {model:?}"))
}

// ---- budgets -----------------------------------------------------------------------------------

const SLOTS: u64 = 6;
const TOTALS: [u64; 3] = [1, 5, 12];
const RESOURCES: [Resource; 3] = [Resource::Descriptors, Resource::Bytes, Resource::Operations];

#[derive(Clone, Copy, Debug)]
enum Ask {
    /// Makes a request, in the place of what the slot holds.
    Request {
        slot: usize,
        resource: usize,
        amount: u64,
    },
    Poll {
        slot: usize,
    },
    Try {
        slot: usize,
        resource: usize,
        amount: u64,
    },
    Shrink {
        slot: usize,
        amount: u64,
    },
    Drop {
        slot: usize,
    },
}

fn asks(random: &mut Random) -> Vec<Ask> {
    let count = 1 + random.below(50);
    let ask = |_| {
        let (slot, resource) = (random.below(SLOTS) as usize, random.below(3) as usize);
        let amount = random.below(TOTALS[resource] + 3);
        match random.below(10) {
            0..=2 => Ask::Request { slot, resource, amount },
            3..=5 => Ask::Poll { slot },
            6 => Ask::Try { slot, resource, amount },
            7 => Ask::Shrink { slot, amount },
            _ => Ask::Drop { slot },
        }
    };
    (0..count).map(ask).collect()
}

enum Share {
    Request(Polled<Acquire>),
    Permit(Permit),
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Waits,
    Granted,
    Holds,
}

/// A slot of the model.
#[derive(Clone, Copy)]
struct Held {
    resource: usize,
    amount: u64,
    state: State,
    wakes: u32,
}

/// Three resources, and who waits for them.
struct Line {
    free: [u64; 3],
    slots: [Option<Held>; SLOTS as usize],
    /// The slots that wait, in the order of their first polls.
    waiting: Vec<usize>,
}

impl Line {
    fn has_line(&self, resource: usize) -> bool {
        self.waiting.iter().any(|&slot| self.slots[slot].unwrap().resource == resource)
    }

    /// Takes the amount if nobody waits and it is there.
    fn take(&mut self, resource: usize, amount: u64) -> bool {
        let is_there = !self.has_line(resource) && amount <= self.free[resource];
        if is_there {
            self.free[resource] -= amount;
        }
        is_there
    }

    /// Serves those who wait: the first of each resource, as long as there is enough for it.
    fn serve(&mut self) {
        let mut stuck = [false; 3];
        self.waiting.retain(|&slot| {
            let held = self.slots[slot].as_mut().unwrap();
            let free = &mut self.free[held.resource];
            if stuck[held.resource] || *free < held.amount {
                stuck[held.resource] = true;
                return true;
            }
            *free -= held.amount;
            (held.state, held.wakes) = (State::Granted, held.wakes + 1);
            false
        });
    }

    fn empty(&mut self, slot: usize) {
        let Some(held) = self.slots[slot].take() else { return };
        self.waiting.retain(|&waiting| waiting != slot);
        if matches!(held.state, State::Granted | State::Holds) {
            self.free[held.resource] += held.amount;
        }
        self.serve();
    }

    /// Polls a request. Returns whether it has its share.
    fn poll(&mut self, slot: usize) -> bool {
        let mut held = self.slots[slot].unwrap();
        let is_served = match held.state {
            State::New => self.take(held.resource, held.amount),
            state => state == State::Granted,
        };
        if is_served {
            held.state = State::Holds;
        } else if held.state == State::New {
            held.state = State::Waits;
            self.waiting.push(slot);
        }
        self.slots[slot] = Some(held);
        is_served
    }

    fn shrink(&mut self, slot: usize, amount: u64) {
        let held = self.slots[slot].as_mut().unwrap();
        let less = held.amount.min(amount);
        self.free[held.resource] += held.amount - less;
        held.amount = less;
        self.serve();
    }
}

#[test]
fn budgets_serve_their_line() {
    programs(4000, asks, |program| {
        let [descriptors, bytes, operations] = TOTALS;
        let limits = Limits::new().descriptors(descriptors).bytes(bytes).operations(operations);
        let budget = Budget::new(limits);
        let mut shares: Vec<Option<Share>> = (0..SLOTS).map(|_| None).collect();
        let mut line = Line { free: TOTALS, slots: [None; SLOTS as usize], waiting: Vec::new() };
        for &ask in program {
            let held = |resource: usize, amount: u64, state| {
                let amount = amount.min(TOTALS[resource]);
                Some(Held { resource, amount, state, wakes: 0 })
            };
            match ask {
                Ask::Request { slot, resource, amount } => {
                    shares[slot] = None;
                    line.empty(slot);
                    let request = budget.acquire(RESOURCES[resource], amount);
                    shares[slot] = Some(Share::Request(Polled::new(request)));
                    line.slots[slot] = held(resource, amount, State::New);
                }
                Ask::Poll { slot } => {
                    let Some(Share::Request(request)) = &mut shares[slot] else { continue };
                    let polled = request.poll();
                    let difference = differ("granted", polled.is_ready(), line.poll(slot));
                    if difference.is_some() {
                        return difference;
                    }
                    if let Poll::Ready(permit) = polled {
                        shares[slot] = Some(Share::Permit(permit));
                    }
                }
                Ask::Try { slot, resource, amount } => {
                    shares[slot] = None;
                    line.empty(slot);
                    let permit = budget.try_acquire(RESOURCES[resource], amount);
                    let is_taken = line.take(resource, amount.min(TOTALS[resource]));
                    let difference = differ("taken", permit.is_some(), is_taken);
                    if difference.is_some() {
                        return difference;
                    }
                    shares[slot] = permit.map(Share::Permit);
                    line.slots[slot] =
                        is_taken.then(|| held(resource, amount, State::Holds)).flatten();
                }
                Ask::Shrink { slot, amount } => {
                    let Some(Share::Permit(permit)) = &mut shares[slot] else { continue };
                    permit.shrink_to(amount);
                    line.shrink(slot, amount);
                }
                Ask::Drop { slot } => {
                    shares[slot] = None;
                    line.empty(slot);
                }
            }
            let is = shares.iter().map(|share| match share {
                None => (None, 0),
                Some(Share::Request(request)) => (None, request.wakes()),
                Some(Share::Permit(permit)) => (Some((permit.resource(), permit.amount())), 0),
            });
            let model = line.slots.iter().map(|held| match held {
                Some(Held { state: State::Holds, resource, amount, .. }) => {
                    (Some((RESOURCES[*resource], *amount)), 0)
                }
                Some(held) => (None, held.wakes),
                None => (None, 0),
            });
            let (is, model): (Vec<_>, Vec<_>) = (is.collect(), model.collect());
            let free = RESOURCES.map(|resource| budget.available(resource));
            let difference =
                differ("free", free, line.free).or_else(|| differ("permits and wakes", is, model));
            if difference.is_some() {
                return difference;
            }
        }
        drop(shares);
        differ("left", RESOURCES.map(|resource| budget.available(resource)), TOTALS)
    });
}

// ---- tokens ------------------------------------------------------------------------------------

/// A step with a token of the tree, or a future that waits, by its number modulo those there are.
#[derive(Clone, Copy, Debug)]
enum Tree {
    New,
    Child(usize),
    Clone(usize),
    Cancel(usize),
    Drop(usize),
    Guard(usize),
    DropGuard(usize),
    Disarm(usize),
    Wait(usize),
    /// Runs a future that is ready once its flag is set.
    Run(usize),
    SetFlag(usize),
    Poll(usize),
    DropWait(usize),
}

fn trees(random: &mut Random) -> Vec<Tree> {
    let count = 1 + random.below(50);
    let step = |_| {
        let kind = random.below(16);
        let number = random.below(64) as usize;
        match kind {
            0 => Tree::New,
            1..=3 => Tree::Child(number),
            4 => Tree::Clone(number),
            5 => Tree::Cancel(number),
            6 => Tree::Drop(number),
            7 => Tree::Guard(number),
            8 => Tree::DropGuard(number),
            9 => Tree::Disarm(number),
            10 => Tree::Wait(number),
            11 => Tree::Run(number),
            12 => Tree::SetFlag(number),
            13 | 14 => Tree::Poll(number),
            _ => Tree::DropWait(number),
        }
    };
    (0..count).map(step).collect()
}

/// A future on a token: its outcome is whether the inner future has given its value.
struct Waits {
    polled: Polled<Pin<Box<dyn Future<Output = bool>>>>,
    node: usize,
    /// Of a future that is run.
    flag: Option<Rc<Cell<bool>>>,
    is_polled: bool,
}

#[derive(Default)]
struct Tokens {
    tokens: Vec<(CancellationToken, usize)>,
    guards: Vec<(DropGuard, usize)>,
    waits: Vec<Waits>,
    /// The model: the parent of each node, and whether it is canceled.
    nodes: Vec<(Option<usize>, bool)>,
}

impl Tokens {
    fn add(&mut self, token: CancellationToken, parent: Option<usize>) {
        let is_canceled = parent.is_some_and(|parent| self.nodes[parent].1);
        self.nodes.push((parent, is_canceled));
        self.tokens.push((token, self.nodes.len() - 1));
    }

    /// Cancels a node of the model, and all below it.
    fn cancel(&mut self, node: usize) {
        self.nodes[node].1 = true;
        // Children come after their parents.
        for node in 0..self.nodes.len() {
            self.nodes[node].1 |= self.nodes[node].0.is_some_and(|parent| self.nodes[parent].1);
        }
    }

    fn wait(&mut self, number: usize, flag: Option<Rc<Cell<bool>>>) {
        let (token, node) = self.tokens[number % self.tokens.len()].clone();
        let inner = flag.clone();
        let future: Pin<Box<dyn Future<Output = bool>>> = Box::pin(async move {
            let Some(flag) = inner else {
                token.canceled().await;
                return false;
            };
            let is_set = || if flag.get() { Poll::Ready(()) } else { Poll::Pending };
            token.run_until_canceled(poll_fn(|_| is_set())).await.is_some()
        });
        self.waits.push(Waits { polled: Polled::new(future), node, flag, is_polled: false });
    }

    /// Polls a future that waits, and removes it if it has ended.
    fn poll(&mut self, number: usize) -> Option<String> {
        let number = number % self.waits.len();
        let wait = &mut self.waits[number];
        let (is_canceled, is_polled) = (self.nodes[wait.node].1, wait.is_polled);
        let is_set = wait.flag.as_ref().is_some_and(|flag| flag.get());
        // A value counts as long as the future is polled for it.
        let model = match is_set && (is_polled || !is_canceled) {
            true => Poll::Ready(true),
            false if is_canceled => Poll::Ready(false),
            false => Poll::Pending,
        };
        let polled = wait.polled.poll();
        wait.is_polled = true;
        if polled.is_ready() {
            drop(self.waits.swap_remove(number));
        }
        differ("polled", polled, model)
    }

    fn perform(&mut self, step: Tree) -> Option<String> {
        let count = self.tokens.len();
        match step {
            Tree::New => self.add(CancellationToken::new(), None),
            Tree::Child(number) if count > 0 => {
                let (token, node) = &self.tokens[number % count];
                let (child, node) = (token.child(), *node);
                self.add(child, Some(node));
            }
            Tree::Clone(number) if count > 0 => {
                self.tokens.push(self.tokens[number % count].clone())
            }
            Tree::Cancel(number) if count > 0 => {
                let (token, node) = self.tokens[number % count].clone();
                token.cancel();
                self.cancel(node);
            }
            Tree::Drop(number) if count > 0 => drop(self.tokens.swap_remove(number % count)),
            Tree::Guard(number) if count > 0 => {
                let (token, node) = self.tokens[number % count].clone();
                self.guards.push((token.drop_guard(), node));
            }
            Tree::DropGuard(number) if !self.guards.is_empty() => {
                let (guard, node) = self.guards.swap_remove(number % self.guards.len());
                drop(guard);
                self.cancel(node);
            }
            Tree::Disarm(number) if !self.guards.is_empty() => {
                let (guard, node) = self.guards.swap_remove(number % self.guards.len());
                self.tokens.push((guard.disarm(), node));
            }
            Tree::Wait(number) if count > 0 => self.wait(number, None),
            Tree::Run(number) if count > 0 => self.wait(number, Some(Rc::default())),
            Tree::SetFlag(number) if !self.waits.is_empty() => {
                let number = number % self.waits.len();
                self.waits[number].flag.iter().for_each(|flag| flag.set(true));
            }
            Tree::Poll(number) if !self.waits.is_empty() => return self.poll(number),
            Tree::DropWait(number) if !self.waits.is_empty() => {
                drop(self.waits.swap_remove(number % self.waits.len()));
            }
            _ => {}
        }
        None
    }

    fn compare(&self) -> Option<String> {
        let flags: Vec<_> = self.tokens.iter().map(|(token, _)| token.is_canceled()).collect();
        let model: Vec<_> = self.tokens.iter().map(|(_, node)| self.nodes[*node].1).collect();
        // One that was polled before the cancellation has been woken by it, once.
        let is_waiting = |wait: &&Waits| wait.is_polled;
        let wakes: Vec<_> =
            self.waits.iter().filter(is_waiting).map(|w| w.polled.wakes()).collect();
        let woken = |wait: &Waits| u32::from(self.nodes[wait.node].1);
        let model_wakes = self.waits.iter().filter(is_waiting).map(woken).collect();
        differ("canceled", flags, model).or_else(|| differ("wakes", wakes, model_wakes))
    }
}

#[test]
fn tokens_are_a_tree_of_flags() {
    programs(4000, trees, |program| {
        let mut tokens = Tokens::default();
        program.iter().find_map(|&step| tokens.perform(step).or_else(|| tokens.compare()))
    });
}

// ---- sets of tasks -----------------------------------------------------------------------------

#[derive(Clone, Copy, Debug)]
enum Join {
    Spawn,
    /// Ends a task that runs, by its number modulo those that do.
    End {
        number: usize,
        panics: bool,
    },
    Next,
    Abort,
    Detach,
}

fn joins(random: &mut Random) -> Vec<Join> {
    let count = 1 + random.below(40);
    let step = |_| match random.below(12) {
        0..=3 => Join::Spawn,
        4..=6 => Join::End { number: random.below(64) as usize, panics: random.percent(20) },
        7..=9 => Join::Next,
        10 => Join::Abort,
        _ => random.one_of(&[Join::Detach, Join::Next]),
    };
    (0..count).map(step).collect()
}

/// The outcome of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Value(usize),
    Panic,
    Canceled,
}

/// Tells a task how to end: by its value, or a panic.
type Order = Rc<Cell<Option<bool>>>;

async fn obey(number: usize, order: Order) -> usize {
    while order.get().is_none() {
        yield_now().await;
    }
    if order.get() == Some(true) {
        // Not `panic!`, whose hook would print it.
        std::panic::resume_unwind(Box::new("ordered"));
    }
    number
}

/// Lets the tasks run that are ready, and those that they wake. A round may end after one of them.
pub(super) async fn settle() {
    for _ in 0..32 {
        yield_now().await;
    }
}

#[test]
fn sets_give_each_outcome_once() {
    let runtime = Runtime::new().unwrap();
    programs(1000, joins, |program| {
        runtime.block_on(async {
            let mut set: JoinSet<usize> = JoinSet::new();
            let (mut running, mut ended) = (Vec::<(usize, Order)>::new(), Vec::new());
            let mut detached = Vec::new();
            for (number, &step) in program.iter().enumerate() {
                match step {
                    Join::Spawn => {
                        let order = Order::default();
                        set.spawn(obey(number, Rc::clone(&order)));
                        running.push((number, order));
                    }
                    Join::End { number, panics } if !running.is_empty() => {
                        let (number, order) = running.swap_remove(number % running.len());
                        order.set(Some(panics));
                        ended.push(if panics { Outcome::Panic } else { Outcome::Value(number) });
                    }
                    Join::End { .. } => {}
                    Join::Abort => {
                        set.abort_all();
                        ended.extend(running.drain(..).map(|_| Outcome::Canceled));
                    }
                    Join::Detach => {
                        set.detach_all();
                        ended.clear();
                        detached.append(&mut running);
                    }
                    Join::Next => {
                        let next = poll_fn(|cx| Poll::Ready(set.poll_join_next(cx))).await;
                        let outcome = next.map(outcome_of);
                        let expected = match outcome {
                            Poll::Ready(Some(outcome)) => {
                                ended.iter().position(|&ended| ended == outcome).map(|index| {
                                    ended.swap_remove(index);
                                    Poll::Ready(Some(outcome))
                                })
                            }
                            _ if !ended.is_empty() => None,
                            _ if running.is_empty() => Some(Poll::Ready(None)),
                            _ => Some(Poll::Pending),
                        };
                        if expected != Some(outcome) {
                            return Some(format!("{outcome:?}, with {ended:?} and {running:?}"));
                        }
                    }
                }
                settle().await;
                let difference =
                    differ("length", set.len(), running.len() + ended.len()).or_else(|| {
                        differ("empty", set.is_empty(), ended.is_empty() && running.is_empty())
                    });
                if difference.is_some() {
                    return difference;
                }
            }
            // A detached task still runs, and one of a dropped set does not.
            drop(set);
            detached.iter().for_each(|(_, order)| assert_eq!(Rc::strong_count(order), 2));
            detached.iter().for_each(|(_, order)| order.set(Some(false)));
            settle().await;
            let holders = |orders: &[(usize, Order)]| -> Vec<usize> {
                orders.iter().map(|(_, order)| Rc::strong_count(order)).collect()
            };
            differ("still runs", holders(&running), vec![1; running.len()])
                .or_else(|| differ("does not end", holders(&detached), vec![1; detached.len()]))
        })
    });
}

fn outcome_of(outcome: Option<Result<usize, JoinError>>) -> Option<Outcome> {
    outcome.map(|outcome| match outcome {
        Ok(number) => Outcome::Value(number),
        Err(error) if error.is_canceled() => Outcome::Canceled,
        Err(error) => {
            assert!(error.is_panic());
            Outcome::Panic
        }
    })
}
