//! The task on each thread of the engine that performs the requests of queues.
//!
//! Other threads put [letters](Letter) into its inbox, and wake it. It starts the requests on the thread's
//! driver, and gives their outcomes to their queues, as many at once as there are.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use sakia_driver::{Outcome, Request, Requests, Ticket};
use slab::Slab;

use super::shared::Shared;
use super::table::{QueueTicket, Slot, ThreadNumber};
use crate::engine::gate::Gate;
use crate::error::copy_error;
use crate::executor::{current, tell_results};

/// A message to the server of a thread.
pub(super) enum Letter {
    /// Start these requests of a queue.
    Start { queue: Arc<Shared>, requests: Vec<(QueueTicket, Request)> },
    /// Cancel one, which was sent before.
    Cancel { queue: Arc<Shared>, ticket: QueueTicket },
    /// Cancel all that were sent before. The queue sends no more.
    CancelAll { queue: Arc<Shared> },
}

/// The inbox of a server.
#[derive(Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    letters: Vec<Letter>,
    /// Woken by the next letter. `None` while the server looks for letters anyway, and before it runs.
    server: Option<Waker>,
    has_ended: bool,
}

impl Inbox {
    /// Adds a letter. Returns the waker to be woken for it. The letter comes back once the server has ended.
    pub(super) fn add(&self, letter: Letter) -> Result<Option<Waker>, Letter> {
        let mut state = self.lock();
        if state.has_ended {
            return Err(letter);
        }
        state.letters.push(letter);
        Ok(state.server.take())
    }

    /// Adds a letter, and wakes the server. After the server's end the letter is dropped.
    pub(super) fn send(&self, letter: Letter) {
        if let Ok(Some(server)) = self.add(letter) {
            server.wake();
        }
    }

    /// Exchanges the letters for an empty list. If there are none, the next one wakes `waker`.
    fn take(&self, letters: &mut Vec<Letter>, waker: &Waker) {
        let mut state = self.lock();
        mem::swap(&mut state.letters, letters);
        if letters.is_empty() && state.server.is_none() {
            state.server = Some(waker.clone());
        }
    }

    /// Refuses letters from now on, and returns the last ones.
    fn end(&self) -> Vec<Letter> {
        let mut state = self.lock();
        state.has_ended = true;
        let server = state.server.take();
        let letters = mem::take(&mut state.letters);
        drop(state);
        drop(server);
        letters
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most times that a server looks for letters before other tasks have their turn.
const ROUNDS_MAX: u32 = 4;

/// Serves queues on the current thread of the engine, until that ends.
pub(super) async fn serve(thread: ThreadNumber, inbox: Arc<Inbox>, gate: Arc<Gate>) {
    let (letters, queues, touched) = (Vec::new(), Slab::new(), Vec::new());
    let mut server = Server { thread, inbox, gate, letters, requests: None, queues, touched };
    poll_fn(|cx| server.poll(cx)).await
}

/// See the module.
struct Server {
    thread: ThreadNumber,
    inbox: Arc<Inbox>,
    /// That of the engine, which each request has passed.
    gate: Arc<Gate>,
    /// Letters to read. Empty but for a moment.
    letters: Vec<Letter>,
    /// Made for the first request. Its tokens are numbers of queues here, and slots in these.
    requests: Option<Requests>,
    /// The queues that have had requests on this thread.
    queues: Slab<Served>,
    /// The numbers of those with outcomes to deliver.
    touched: Vec<usize>,
}

/// A queue on this thread.
struct Served {
    queue: Arc<Shared>,
    /// Requests that have not ended.
    live: usize,
    /// The driver's tickets by slots, the last that each slot had here.
    tickets: Vec<Option<(QueueTicket, Ticket)>>,
    /// Outcomes to deliver, with slots for tokens.
    outcomes: Vec<Outcome>,
    /// No more requests will come.
    is_closed: bool,
}

impl Server {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for round in 1.. {
            let mut letters = mem::take(&mut self.letters);
            self.inbox.take(&mut letters, cx.waker());
            let has_letters = !letters.is_empty();
            if has_letters {
                tell_results(); // requests may begin with plain calls
            }
            letters.drain(..).for_each(|letter| self.read(letter));
            self.letters = letters;
            self.take_outcomes();
            // More letters may have come, without a wake.
            if !has_letters {
                break;
            }
            if round == ROUNDS_MAX {
                cx.waker().wake_by_ref();
                break;
            }
        }
        if let Some(requests) = &mut self.requests
            && requests.poll_ready(cx).is_ready()
        {
            cx.waker().wake_by_ref(); // after other tasks and a turn of the driver
        }
        Poll::Pending
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Start { queue, requests } => self.start(queue, requests),
            Letter::Cancel { queue, ticket } => self.cancel(&queue, ticket),
            Letter::CancelAll { queue } => self.cancel_all(&queue),
        }
    }

    fn find(&self, queue: &Arc<Shared>) -> Option<usize> {
        let mut queues = self.queues.iter();
        Some(queues.find(|(_, served)| Arc::ptr_eq(&served.queue, queue))?.0)
    }

    fn start(&mut self, queue: Arc<Shared>, batch: Vec<(QueueTicket, Request)>) {
        let number = self.find(&queue).unwrap_or_else(|| self.queues.insert(Served::new(queue)));
        let served = &mut self.queues[number];
        served.live += batch.len();
        let requests = match &mut self.requests {
            Some(requests) => requests,
            none => match Requests::on(&current().driver) {
                Ok(requests) => none.insert(requests),
                Err(error) => {
                    for (ticket, request) in batch {
                        let outcome = ticket.refuse(request, copy_error(&error));
                        served.add(outcome, number, &mut self.touched);
                    }
                    return;
                }
            },
        };
        for (ticket, request) in batch {
            let (slot, high) = (ticket.slot as usize, (number as u64) << Slot::BITS);
            let token = high | u64::from(ticket.slot);
            // An owner of a descriptor is asked for it: users' code, of one queue of many.
            let submit = AssertUnwindSafe(|| requests.submit(request, token));
            let known = match catch_unwind(submit) {
                Ok(known) => known,
                Err(payload) => {
                    mem::forget(payload); // its destructor may panic too
                    let outcome = ticket.refuse(Request::Nop, panicked());
                    served.add(outcome, number, &mut self.touched);
                    continue;
                }
            };
            if served.tickets.len() <= slot {
                served.tickets.resize(slot + 1, None);
            }
            served.tickets[slot] = Some((ticket, known));
        }
    }

    fn cancel(&mut self, queue: &Arc<Shared>, ticket: QueueTicket) {
        let Some(number) = self.find(queue) else { return };
        let known = self.queues[number].tickets.get(ticket.slot as usize).copied().flatten();
        if let Some((of, known)) = known
            && of == ticket
            && let Some(requests) = &mut self.requests
        {
            requests.cancel(known);
        }
    }

    fn cancel_all(&mut self, queue: &Arc<Shared>) {
        let Some(number) = self.find(queue) else { return };
        let served = &mut self.queues[number];
        served.is_closed = true;
        if served.live == 0 {
            self.queues.remove(number);
        } else if let Some(requests) = &mut self.requests {
            // Those that have ended name nothing.
            served.tickets.iter().flatten().for_each(|&(_, ticket)| requests.cancel(ticket));
        }
    }

    /// Gives the queues the outcomes that are there.
    fn take_outcomes(&mut self) {
        while let Some(mut outcome) = self.requests.as_mut().and_then(Requests::take) {
            let number = (outcome.token >> Slot::BITS) as usize;
            outcome.token = u64::from(outcome.token as Slot);
            self.queues[number].add(outcome, number, &mut self.touched);
        }
        for number in self.touched.drain(..) {
            let served = &mut self.queues[number];
            let ended = served.queue.deliver(&mut served.outcomes, &self.gate);
            served.live -= ended;
            if served.live == 0 && served.is_closed {
                self.queues.remove(number);
            }
        }
    }
}

#[cold]
fn panicked() -> io::Error {
    io::Error::other("the owner of the descriptor panicked when it was asked for it")
}

impl Served {
    fn new(queue: Arc<Shared>) -> Self {
        let (tickets, outcomes) = (Vec::new(), Vec::new());
        Self { queue, live: 0, tickets, outcomes, is_closed: false }
    }

    /// Adds an outcome to deliver. The queue's number here is touched with the first.
    fn add(&mut self, outcome: Outcome, number: usize, touched: &mut Vec<usize>) {
        if self.outcomes.is_empty() {
            touched.push(number);
        }
        self.outcomes.push(outcome);
    }
}

/// The thread ends, or has failed.
impl Drop for Server {
    fn drop(&mut self) {
        for letter in self.inbox.end() {
            let Letter::Start { queue, requests } = letter else { continue };
            let refused = requests
                .into_iter()
                .map(|(ticket, request)| ticket.refuse(request, Errno::CANCELED.into()));
            queue.deliver(&mut refused.collect(), &self.gate);
        }
        for served in self.queues.drain() {
            self.gate.leave_many(served.live); // before a thread hears of them
            served.queue.fail(self.thread);
        }
    }
}
