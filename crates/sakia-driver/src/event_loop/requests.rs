//! The requests of a driver, whatever gives it its turns: a [`Loop`](crate::Loop), or an executor that has
//! other work for it, too.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;

use super::files::KnownFiles;
use super::lasting::{Lasting, RowTicket};
use super::told::Told;
use super::waker::WakePoll;
use crate::driver::Driver;
use crate::fd::Fd;
use crate::handle::{Begun, Handle};
use crate::key::Key;
use crate::operation::Operation;
use crate::ops::PollEvents;
use crate::request::{
    Answer, Buffer, Closer, Deliveries, FileHandle, Files, Lent, Letter, Mailbox, Outcome, Request,
    Signal, Started, Target, begun, start, under_way, with_memory,
};

/// Performs requests on a driver that has other operations, too, and whose turns another loop gives. A driver
/// has one such value at most. [`Loop`](crate::Loop) is both in one.
///
/// Dropping it cancels what is under way, and throws the outcomes away.
///
/// # Examples
/// ```
/// use std::task::{Context, Poll, Waker};
///
/// use sakia_driver::{Auto, Driver, FileHandle, Request, Requests, Wait};
///
/// let driver = Driver::new(Auto::detect()?.0);
/// let mut requests = Requests::on(&driver)?;
/// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
/// requests.submit(Request::read(&file, vec![0; 9].into(), 0), 7);
/// // A task of an executor whose thread gives the driver its turns is woken when there are some to take.
/// let mut context = Context::from_waker(Waker::noop());
/// while requests.poll_ready(&mut context).is_pending() {
///     driver.turn(Wait::Forever)?;
/// }
/// let outcome = requests.take().expect("it is done");
/// assert_eq!((outcome.token, outcome.into_vec().unwrap()), (7, b"[package]".to_vec()));
/// assert!(Requests::on(&driver).is_err(), "a driver has one");
/// # std::io::Result::Ok(())
/// ```
pub struct Requests {
    driver: Handle,
    files: KnownFiles,
    /// Outcomes that need no slot of the driver, and received bytes that were not given back.
    told: Told,
    /// Requests that go on after an outcome.
    lasting: Lasting,
    /// Outcomes of requests that have more.
    deliveries: Rc<Deliveries>,
    wake: WakePoll,
    /// A task may wait for outcomes.
    is_asked: bool,
    /// Requests whose last outcome was not taken.
    under_way: usize,
    /// The tokens of requests to close a file that is still in use.
    closes: Vec<u64>,
}

/// Names a request, to cancel it. One whose request has ended names nothing.
///
/// # Examples
/// See [`Loop::cancel`](crate::Loop::cancel).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(Named);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Named {
    Nothing,
    /// A request with a slot of the driver.
    Slot(Key),
    /// One that goes on after an outcome.
    Row(RowTicket),
}

/// Marks, in the lowest bits of a ticket's number, which are zero in a key.
const SLOT: u64 = 1;
const ROW: u64 = 2;

impl Ticket {
    /// Returns the ticket as a number, for other languages. That of one that names nothing is 0.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Loop, Request, Ticket};
    ///
    /// let mut ring = Loop::new()?;
    /// let ticket = ring.submit(Request::Nop, 1)?;
    /// assert_eq!(Ticket::from_bits(ticket.to_bits()), ticket);
    /// // Any number is a ticket, at worst one that names nothing.
    /// ring.cancel(Ticket::from_bits(u64::MAX));
    /// ring.cancel(Ticket::from_bits(0));
    /// # std::io::Result::Ok(())
    /// ```
    #[inline]
    pub fn to_bits(self) -> u64 {
        match self.0 {
            Named::Nothing => 0,
            Named::Slot(key) => key.user_data() | SLOT,
            Named::Row(row) => row.to_bits() | ROW,
        }
    }

    /// Returns the ticket with this number.
    ///
    /// # Examples
    /// See [`to_bits`](Ticket::to_bits).
    #[inline]
    pub fn from_bits(bits: u64) -> Self {
        match bits & (SLOT | ROW) {
            0 => Self(Named::Nothing),
            ROW => Self(Named::Row(RowTicket::from_bits(bits))),
            _ => Self(Named::Slot(Key::from_user_data(bits))),
        }
    }
}

impl Requests {
    /// Prepares a driver of the kernel's for requests.
    ///
    /// # Errors
    /// `EBUSY`: the driver has or had such a value. `EMFILE`, `ENFILE`, `ENOMEM`: no descriptor or memory
    /// left.
    ///
    /// # Panics
    /// On the simulated kernel, to which a descriptor of the process means nothing.
    ///
    /// # Examples
    /// See [`Requests`](Requests#examples).
    pub fn on(driver: &Driver) -> io::Result<Self> {
        let driver = driver.handle().clone();
        if driver.shared.has_requests.get() {
            return Err(Errno::BUSY.into());
        }
        let mailbox = Arc::new(Mailbox::new()?);
        let files = KnownFiles::new(mailbox, &driver);
        driver.shared.has_requests.set(true);
        Ok(Self {
            driver,
            files,
            told: Told::default(),
            lasting: Lasting::default(),
            deliveries: Rc::default(),
            wake: WakePoll::default(),
            is_asked: false,
            under_way: 0,
            closes: Vec::new(),
        })
    }

    /// Returns the number of requests whose last outcome was not taken.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::{Auto, Driver, Request, Requests};
    ///
    /// let driver = Driver::new(Auto::detect()?.0);
    /// let mut requests = Requests::on(&driver)?;
    /// let ticket = requests.submit(Request::Nop, 1);
    /// requests.cancel(ticket);
    /// assert_eq!(requests.under_way(), 1);
    /// # std::io::Result::Ok(())
    /// ```
    #[inline(always)]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Submits a request, which reaches the kernel with the driver's next turn at the latest. Its outcome has
    /// this token; an error of the operation is an outcome, too. The number of requests under way is not
    /// bounded.
    ///
    /// # Examples
    /// See [`Requests`](Requests#examples).
    #[inline]
    pub fn submit(&mut self, request: Request, token: u64) -> Ticket {
        let driver = &self.driver;
        let started = match request {
            Request::Close { file } => {
                self.under_way += 1;
                return self.close(&file, token);
            }
            Request::PollMany { file, events } => return self.poll_many(&file, events, token),
            Request::ReceiveMany { socket } => return self.receive_many(&socket, token),
            other => start(other, token, driver, &mut self.files.of(driver), &self.deliveries),
        };
        self.note(token, started)
    }

    #[inline(always)]
    pub(super) fn submit_nop(&mut self, token: u64) -> Ticket {
        let started = under_way(self.driver.nop(), token);
        self.note(token, Ok(started))
    }

    #[inline(always)]
    pub(super) fn submit_read(
        &mut self,
        file: &FileHandle,
        buffer: Buffer,
        offset: u64,
        token: u64,
    ) -> Ticket {
        self.transfer(file, buffer, token, |driver, fd, buffer| {
            driver.begin_read(fd, buffer, offset)
        })
    }

    #[inline(always)]
    pub(super) fn submit_write(
        &mut self,
        file: &FileHandle,
        buffer: Buffer,
        offset: u64,
        token: u64,
    ) -> Ticket {
        self.transfer(file, buffer, token, |driver, fd, buffer| {
            driver.begin_write(fd, buffer, offset)
        })
    }

    #[inline(always)]
    fn transfer<O: Operation<Output: Into<Answer>>>(
        &mut self,
        file: &FileHandle,
        buffer: Buffer,
        token: u64,
        begin: impl FnOnce(&Handle, &Fd, Buffer) -> Begun<O>,
    ) -> Ticket {
        let fd = self.files.of(&self.driver).find_file(file);
        let started =
            with_memory(fd, buffer, |fd, buffer| begun(begin(&self.driver, &fd, buffer), token));
        self.note(token, Ok(started))
    }

    /// Takes note of a request that was started, or could not be.
    #[inline(always)]
    fn note(&mut self, token: u64, started: Result<Started, Errno>) -> Ticket {
        self.under_way += 1;
        match started {
            Ok(Started::As(key)) => Ticket(Named::Slot(key)),
            Ok(Started::Done(answer)) => self.answer(token, answer),
            Err(errno) => self.fail(token, errno),
        }
    }

    /// Takes the outcome of a request, oldest first as far as they came one after the other. Makes no system
    /// call.
    ///
    /// # Examples
    /// See [`Requests`](Requests#examples).
    #[inline(always)]
    pub fn take(&mut self) -> Option<Outcome> {
        if let Some(outcome) = self.told.ready.pop_front() {
            self.under_way -= usize::from(!outcome.more);
            return Some(outcome);
        }
        if !self.deliveries.is_empty()
            && let Some(outcome) = self.take_delivery()
        {
            return Some(outcome);
        }
        // SAFETY: all requests of this driver, which has one such value, were made by `under_way`.
        let (token, answer) = unsafe { self.driver.shared.next_answer::<Answer>()? };
        self.under_way -= 1;
        let Answer { result, value } = answer;
        Some(Outcome { token, more: false, result, value })
    }

    /// Completes with the number of outcomes to [take](Requests::take) once there are some, or once the next
    /// turn of the driver may bring some. Only the waker of the last call is woken.
    ///
    /// # Examples
    /// See [`Requests`](Requests#examples).
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<usize> {
        loop {
            let wake = self.wake.poll(&self.driver, self.files.wake_fd(), cx);
            // The write of a wake may have been taken with an earlier one, after whose mark it came. Its own
            // mark would keep later wakes from writing.
            if wake.is_pending() && !self.signal().is_raised() {
                break;
            }
            self.signal().clear();
            self.read_letters();
            if matches!(wake, Poll::Ready(Err(_))) {
                break; // as all operations would from now on
            }
        }
        self.lasting.ask(cx.waker());
        self.prepare_lasting();
        match self.ready() {
            0 => {
                self.is_asked = true;
                self.driver.shared.ask_for_answers(cx.waker().clone());
                Poll::Pending
            }
            count => Poll::Ready(count),
        }
    }

    /// Requests that a request be canceled. Its outcome comes in any case: its value, if it was quicker, or
    /// `ECANCELED`.
    ///
    /// # Examples
    /// See [`under_way`](Requests::under_way), and [`Loop::cancel`](crate::Loop::cancel).
    pub fn cancel(&mut self, ticket: Ticket) {
        match ticket.0 {
            Named::Nothing => {}
            Named::Slot(key) => self.driver.shared.cancel_request(key),
            Named::Row(row) => self.lasting.cancel(row, &mut self.told),
        }
    }

    /// Returns the bytes of a [`Request::ReceiveMany`] that are lent; none if they are another's.
    ///
    /// # Examples
    /// See [`Request::ReceiveMany`].
    pub fn bytes(&self, lent: &Lent) -> &[u8] {
        self.told.lent.bytes(lent)
    }

    /// Gives memory back to which bytes were received. Nothing happens if it is another's.
    ///
    /// # Examples
    /// See [`Request::ReceiveMany`].
    pub fn give_back(&mut self, lent: Lent) {
        self.told.lent.give_back(&lent);
    }

    #[cold]
    fn poll_many(&mut self, file: &Target, events: PollEvents, token: u64) -> Ticket {
        let found = self.files.of(&self.driver).find(file); // users' code, which may panic
        self.under_way += 1;
        let row = found.and_then(|fd| self.lasting.add_poll(token, fd, events));
        self.lasting_ticket(token, row)
    }

    #[cold]
    fn receive_many(&mut self, socket: &Target, token: u64) -> Ticket {
        let found = self.files.of(&self.driver).find(socket); // as above
        self.under_way += 1;
        let row = found.and_then(|fd| self.lasting.add_stream(token, fd, &self.driver));
        self.lasting_ticket(token, row)
    }

    fn lasting_ticket(&mut self, token: u64, row: Result<RowTicket, Errno>) -> Ticket {
        match row {
            Ok(row) => Ticket(Named::Row(row)),
            Err(errno) => self.fail(token, errno),
        }
    }

    /// Returns whether [`prepare_lasting`](Self::prepare_lasting) has something to do.
    #[inline(always)]
    pub(super) fn is_lasting_due(&self) -> bool {
        self.lasting.is_due() || self.lasting.has_fired()
    }

    /// Does what requests that go on need before a turn.
    pub(super) fn prepare_lasting(&mut self) {
        if self.lasting.is_due() {
            self.lasting.start_polls(&self.driver, &mut self.told);
        }
        self.run_lasting();
    }

    /// Takes the news of requests that go on.
    #[inline(always)]
    pub(super) fn run_lasting(&mut self) {
        if self.lasting.has_fired() {
            self.lasting.run(&self.driver, &mut self.told);
        }
    }

    /// Forgets all files, and expects no more wakes: the driver is about to end.
    pub(super) fn begin_end(&mut self) {
        self.lasting.end_all(&mut self.told);
        self.read_letters();
        self.files.forget_all();
        self.read_letters(); // of files of which this driver was the last user
        self.wake.disarm();
    }

    /// Ends what no turn of the driver ends.
    pub(super) fn end(&mut self) {
        self.read_letters();
        self.files.mailbox().close();
        for token in std::mem::take(&mut self.closes) {
            // The last user of the file closes it.
            self.fail(token, Errno::CANCELED);
        }
    }

    /// Returns the number of outcomes to take.
    #[inline(always)]
    pub(super) fn ready(&self) -> usize {
        self.told.ready.len() + self.deliveries.len() + self.driver.shared.answers()
    }

    #[inline(always)]
    pub(super) fn is_wake_armed(&self) -> bool {
        self.wake.is_armed()
    }

    #[inline(always)]
    pub(super) fn signal(&self) -> &Arc<Signal> {
        self.files.mailbox().signal()
    }

    /// Waits for wakes from the driver's next turn on.
    pub(super) fn arm_wake(&mut self) {
        // A wake that was taken before it had written has ended the last one, and left its write.
        self.signal().drain();
        self.wake.arm(&self.driver, self.files.wake_fd());
    }

    /// Takes the wakes up to now, and what they tell. `is_polled` tells that a foreign loop sleeps next.
    #[cold]
    #[inline(never)]
    pub(super) fn note_wake(&mut self, is_polled: bool) {
        let signal = Arc::clone(self.signal());
        signal.clear();
        self.read_letters();
        if is_polled && signal.is_raised() {
            signal.write(); // the foreign loop sleeps next, and its own write may be taken
        }
    }

    fn take_delivery(&mut self) -> Option<Outcome> {
        let (token, connection) = self.deliveries.pop()?;
        let Answer { result, value } = Answer::file(connection);
        Some(Outcome { token, more: true, result, value })
    }

    /// Adds the last outcome of a request that has no slot.
    #[inline(always)]
    fn answer(&mut self, token: u64, answer: Answer) -> Ticket {
        let Answer { result, value } = answer;
        self.told.ready.push_back(Outcome { token, more: false, result, value });
        if self.is_asked {
            self.wake_asker();
        }
        Ticket(Named::Nothing)
    }

    /// Wakes the task that waits for outcomes: one is there that no turn of the driver brings.
    #[cold]
    #[inline(never)]
    fn wake_asker(&mut self) {
        self.is_asked = false;
        self.lasting.wake_asker();
    }

    #[cold]
    fn fail(&mut self, token: u64, errno: Errno) -> Ticket {
        self.answer(token, Answer::number(Err(errno.into())))
    }

    fn read_letters(&mut self) {
        for letter in self.files.mailbox().take() {
            match letter {
                Letter::Forget { file, is_closed } => {
                    self.files.forget(file, is_closed, &self.driver)
                }
                Letter::Unused { token, fd } => {
                    // One of them: tokens may repeat.
                    let place = self.closes.iter().position(|&other| other == token);
                    self.closes.swap_remove(place.expect("it was noted with the request"));
                    match fd.and_then(|fd| self.files.adopt(fd, &self.driver)) {
                        Some(fd) => {
                            under_way(self.driver.close(fd), token);
                        }
                        None => {
                            self.answer(token, Answer::number(Ok(0)));
                        }
                    }
                }
            }
        }
    }

    #[cold]
    fn close(&mut self, file: &FileHandle, token: u64) -> Ticket {
        if self.driver.has_ended() {
            return self.fail(token, Errno::CANCELED);
        }
        let mailbox = Arc::clone(self.files.mailbox());
        self.closes.push(token);
        if let Err(errno) = file.close(Closer { mailbox, token }) {
            self.closes.pop();
            return self.fail(token, errno);
        }
        self.read_letters();
        Ticket(Named::Nothing)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.begin_end();
        self.end();
        self.driver.shared.abandon_requests();
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("under_way", &self.under_way).finish_non_exhaustive()
    }
}

// All these tests make system calls.
#[cfg(all(test, not(miri)))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::epoll::Epoll;

    /// A wake comes while an earlier one is taken, between the end of its mark and the read.
    #[test]
    fn a_wake_whose_write_was_taken_hides_no_other() {
        for driver in [Driver::uring().unwrap(), Driver::new(Epoll::new().unwrap())] {
            let mut requests = Requests::on(&driver).unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            assert!(requests.poll_ready(&mut cx).is_pending());
            let signal = Arc::clone(requests.signal());
            signal.raise();
            signal.drain();
            assert!(requests.poll_ready(&mut cx).is_pending());
            assert!(!signal.is_raised());
        }
    }
}
