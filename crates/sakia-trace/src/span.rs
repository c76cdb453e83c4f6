//! Spans of the program.

use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;

use crate::{EventType, Name, StaticName, is_on, record};

/// A span of the calling thread's time, until it is dropped. It stays on its thread, and must not be held
/// across an `.await`, at which other tasks run: use [`in_span`] there.
///
/// # Examples
/// See [`span()`](span()#examples).
#[derive(Debug)]
#[must_use = "a span ends when this is dropped"]
pub struct Span {
    name: Option<Name>,
    /// The span belongs to the thread on which it began.
    on_thread: PhantomData<*const ()>,
}

/// Begins a span on the calling thread.
///
/// # Examples
/// ```
/// use sakia_trace::{StaticName, span};
///
/// static PARSE: StaticName = StaticName::new("parse");
/// let parsing = span(&PARSE);
/// let sum: u32 = "1 2 3".split(' ').filter_map(|part| part.parse::<u32>().ok()).sum();
/// drop(parsing);
/// # assert_eq!(sum, 6);
/// ```
#[inline]
pub fn span(name: &StaticName) -> Span {
    let name = is_on().then(|| begin(name));
    Span { name, on_thread: PhantomData }
}

#[cold]
fn begin(name: &StaticName) -> Name {
    let name = name.get();
    record(EventType::SpanBegin, name.number().into(), 0, 0);
    name
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(name) = self.name {
            record(EventType::SpanEnd, name.number().into(), 0, 0);
        }
    }
}

/// Runs `future` in spans of this name: one for each time that it is polled.
///
/// # Examples
/// ```
/// use std::future::Future;
/// use std::task::{Context, Poll, Waker};
///
/// use sakia_trace::{StaticName, in_span};
///
/// static ADD: StaticName = StaticName::new("add");
/// let sum = std::pin::pin!(in_span(&ADD, async { 1 + 2 }));
/// // A runtime polls it.
/// assert_eq!(sum.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(3));
/// ```
pub async fn in_span<F: Future>(name: &'static StaticName, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _span = span(name);
        future.as_mut().poll(context)
    })
    .await
}
