//! Operations that a program holds.

use std::cell::{Cell, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;
use sakia_driver::{Fd, Op, Operation, PollEvents, ReceivedControl, SocketAddress};

use crate::mailbox::Receipt;
use crate::names::Kind;

/// The result of an operation of any type.
#[derive(Debug)]
pub(crate) enum Output {
    /// Success or failure.
    Done(io::Result<()>),
    /// The number of bytes, and the concatenated bytes of the buffers.
    Bytes(io::Result<usize>, Vec<u8>),
    /// An open file.
    Opened(io::Result<Fd>),
    /// A kind and a size in bytes.
    Asked(io::Result<(Kind, u64)>),
    /// The number of bytes, the buffer's bytes and the control messages.
    Message(io::Result<usize>, Vec<u8>, ReceivedControl),
    /// Datagrams.
    Datagrams(io::Result<Vec<Arrival>>),
    /// The results of several sends, and the bytes of their buffers.
    Sent(Vec<(io::Result<usize>, Vec<u8>)>),
    /// The ready events.
    Ready(io::Result<PollEvents>),
}

/// A datagram that arrived.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Its bytes, the room for them, and its reported length.
    pub(crate) receipt: Receipt,
    /// Its sender, if reported.
    pub(crate) from: Option<SocketAddress>,
    /// Its control messages, if requested.
    pub(crate) control: Option<ReceivedControl>,
}

impl Output {
    /// Returns the error, if the operation failed.
    pub(crate) fn error(&self) -> Option<&io::Error> {
        match self {
            Self::Done(result) => result.as_ref().err(),
            Self::Bytes(result, _) => result.as_ref().err(),
            Self::Opened(result) => result.as_ref().err(),
            Self::Asked(result) => result.as_ref().err(),
            Self::Message(result, ..) => result.as_ref().err(),
            Self::Datagrams(result) => result.as_ref().err(),
            Self::Sent(results) => results.iter().find_map(|(result, _)| result.as_ref().err()),
            Self::Ready(result) => result.as_ref().err(),
        }
    }
}

/// An operation of some type.
pub(crate) trait Pending {
    fn try_take(&mut self) -> Option<Output>;
    fn poll(&mut self, waker: &Waker) -> Option<Output>;
    /// Returns false if the operation has no token: then its waker is the only notice.
    fn set_token(&mut self, token: u64) -> bool;
    fn cancel(&mut self);
}

struct Running<O: Operation, F> {
    op: Op<O>,
    read: F,
}

impl<O: Operation, F: Fn(O::Output) -> Output> Pending for Running<O, F> {
    fn try_take(&mut self) -> Option<Output> {
        self.op.try_take().map(&self.read)
    }

    fn poll(&mut self, waker: &Waker) -> Option<Output> {
        match Pin::new(&mut self.op).poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => Some((self.read)(output)),
            Poll::Pending => None,
        }
    }

    fn set_token(&mut self, token: u64) -> bool {
        self.op.set_token(token);
        true
    }

    fn cancel(&mut self) {
        self.op.cancel();
    }
}

/// Returns an operation together with the conversion of its result.
pub(crate) fn pending<O: Operation>(
    op: Op<O>,
    read: impl Fn(O::Output) -> Output + 'static,
) -> Box<dyn Pending> {
    Box::new(Running { op, read })
}

/// A future that runs several operations. `None` after cancellation.
struct Driven {
    future: Option<Pin<Box<dyn Future<Output = Output>>>>,
    /// The waker of the last poll.
    waker: Option<Waker>,
}

impl Pending for Driven {
    fn try_take(&mut self) -> Option<Output> {
        self.poll(Waker::noop())
    }

    fn poll(&mut self, waker: &Waker) -> Option<Output> {
        let Some(future) = &mut self.future else {
            return Some(Output::Bytes(Err(Errno::CANCELED.into()), Vec::new()));
        };
        self.waker = Some(waker.clone());
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn set_token(&mut self, _: u64) -> bool {
        false
    }

    /// A future can only be dropped.
    fn cancel(&mut self) {
        // Its destructors may wake other tasks; a panic would interrupt them.
        let may_panic = MAY_PANIC.replace(false);
        self.future = None;
        MAY_PANIC.set(may_panic);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// Returns a future as an operation. After cancellation it has no bytes.
pub(crate) fn driven(future: impl Future<Output = Output> + 'static) -> Box<dyn Pending> {
    Box::new(Driven { future: Some(Box::pin(future)), waker: None })
}

/// One in this many operations has a waker that panics.
const PANICS: u64 = 24;

/// The way in which a program learns that an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// By its waker.
    Waker,
    /// By its token.
    Token,
    /// By polling it.
    None,
}

/// An effect of wakers besides raising their flags.
type Hook = Rc<dyn Fn()>;

thread_local! {
    /// Called by each waker of this thread: it uses the driver, as woken tasks do.
    static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    /// Wakers of this thread may panic now.
    static MAY_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f`, whose wakers may panic. `None` if one of them did.
pub(crate) fn survive_wakers<T>(f: impl FnOnce() -> T) -> Option<T> {
    let could_panic = MAY_PANIC.replace(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    MAY_PANIC.set(could_panic);
    match result {
        Ok(value) => Some(value),
        Err(payload) if payload.is::<WakerPanic>() => None,
        Err(payload) => resume_unwind(payload),
    }
}

/// Lets every waker of this thread call `hook`, and some of them panic inside [`survive_wakers`], until the
/// returned value is dropped.
pub(crate) fn hook_wakers(hook: Hook) -> impl Drop {
    struct Unhook;
    impl Drop for Unhook {
        fn drop(&mut self) {
            HOOK.set(None);
        }
    }
    HOOK.set(Some(hook));
    Unhook
}

/// The payload of a waker's panic.
struct WakerPanic;

/// Raised when an operation is done.
#[derive(Debug, Default)]
pub(crate) struct Flag {
    is_raised: AtomicBool,
    panics: bool,
}

impl Flag {
    pub(crate) fn raise(&self) {
        self.is_raised.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.is_raised.load(Ordering::Relaxed)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.raise();
        let Some(hook) = HOOK.with_borrow(Clone::clone) else { return };
        hook();
        if self.panics && MAY_PANIC.get() {
            std::panic::resume_unwind(Box::new(WakerPanic));
        }
    }
}

/// An operation that a program holds. `role` is its purpose.
pub(crate) struct Held<R> {
    pub(crate) id: u64,
    pub(crate) role: R,
    pub(crate) pending: Box<dyn Pending>,
    notice: Notice,
    /// It was polled at least once, so a notice will come.
    is_registered: bool,
    flag: Arc<Flag>,
    /// The program requested its cancellation.
    pub(crate) is_canceled: bool,
    /// The number of turns taken while the program held it.
    pub(crate) turns: u32,
}

impl<R> Held<R> {
    pub(crate) fn new(id: u64, role: R, mut pending: Box<dyn Pending>) -> Self {
        let mut notice = [Notice::Waker, Notice::Token, Notice::None][(id % 3) as usize];
        if notice == Notice::Token && !pending.set_token(id) {
            notice = Notice::Waker;
        }
        let flag = Arc::new(Flag::default());
        let is_registered = false;
        Self { id, role, pending, notice, is_registered, flag, is_canceled: false, turns: 0 }
    }

    /// Polls the operation only after a notice, like a program that relies on notices.
    pub(crate) fn ask(&mut self) -> Option<Output> {
        let waits = self.is_registered && !self.flag.is_raised();
        if waits && self.notice != Notice::None {
            return None;
        }
        self.ask_anyway()
    }

    /// Polls the operation, with or without a notice.
    pub(crate) fn ask_anyway(&mut self) -> Option<Output> {
        self.is_registered = true;
        match self.notice {
            Notice::Waker => {
                // A new waker each time: only the last one counts.
                let panics = self.id.is_multiple_of(PANICS);
                self.flag = Arc::new(Flag { panics, ..Flag::default() });
                self.pending.poll(&Waker::from(Arc::clone(&self.flag)))
            }
            Notice::Token | Notice::None => self.pending.try_take(),
        }
    }

    /// Returns whether the operation still waits although its driver has ended, so that it would wait for
    /// ever. An operation given up together with its memory reports this by a panic.
    pub(crate) fn is_left_waiting(&mut self) -> bool {
        let waker = Waker::from(Arc::clone(&self.flag));
        let poll = AssertUnwindSafe(|| self.pending.poll(&waker).is_none());
        catch_unwind(poll).unwrap_or(false)
    }

    /// Records that the driver reported the token.
    pub(crate) fn notify(&self) {
        self.flag.raise();
    }

    /// Returns whether the operation has a notice and was not polled since.
    pub(crate) fn is_noticed(&self) -> bool {
        self.awaits_notice() && self.flag.is_raised()
    }

    /// Returns whether a notice is missing if the operation is done.
    pub(crate) fn is_unnoticed(&self) -> bool {
        self.awaits_notice() && !self.flag.is_raised()
    }

    fn awaits_notice(&self) -> bool {
        self.notice != Notice::None && self.is_registered
    }
}
