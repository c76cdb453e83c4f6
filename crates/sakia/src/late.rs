//! [`block_on`], whose runtime is made when the future first needs one.
//!
//! A future that waits for an engine, a blocking call, a channel or a task of another runtime needs none: its
//! thread parks. When the future asks for the runtime that it runs in, that is made, there and then, and goes
//! on with the future. Its next poll has the runtime's waker; before that, the tasks that it has started run.

use std::cell::RefCell;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread;

use crate::executor::{Local, Vacant};
use crate::parked;
use crate::runtime::{Runtime, refuse_nesting};
use crate::trace::{PollRun, flush, is_on};
use crate::unfinished::OfCall;

thread_local! {
    /// The runtime that was made for the innermost call, which has not taken it yet. It has no destructor, so
    /// that destructors of other variables of the thread may call [`block_on`]; each call leaves it empty.
    static MADE: RefCell<ManuallyDrop<Option<Runtime>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Runs a future on a runtime of its own, which is made when the future first needs one. Before it returns,
/// it waits for the code that [`spawn_blocking`](crate::spawn_blocking) has started there.
///
/// # Panics
/// When it needs one and none can be built: see [`Builder::build`](crate::Builder::build). Within a runtime:
/// see [`Runtime::block_on`].
///
/// # Examples
/// ```
/// let name = sakia::block_on(sakia::fs::read_to_string("/proc/self/comm"))?;
/// assert!(name.ends_with('\n'));
/// # std::io::Result::Ok(())
/// ```
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    refuse_nesting();
    block_on_nested(future)
}

/// As [`block_on`], also within a runtime, whose tasks do not run until it returns: see
/// [`Runtime::block_on_nested`].
///
/// # Panics
/// When it needs a runtime and none can be built: see [`Builder::build`](crate::Builder::build).
///
/// # Examples
/// See [`Runtime::block_on_nested`].
#[track_caller]
pub fn block_on_nested<F: Future>(future: F) -> F::Output {
    if is_watched() {
        return new_runtime().block_on_nested(future);
    }
    let late = Late::new();
    let mut runtime = None;
    // Dropped before the runtime, and while that is the current one.
    let mut future = pin!(future);
    let waker = parked::waker();
    let mut cx = Context::from_waker(&waker);
    let mut task = 0;
    loop {
        let run = PollRun::new(&mut task);
        let poll = future.as_mut().poll(&mut cx);
        run.returned(poll.is_ready());
        if let Poll::Ready(output) = poll {
            if is_on() {
                flush();
            }
            return output;
        }
        if let Some(made) = late.take() {
            return runtime.insert(made).run(future, true);
        }
        thread::park();
    }
}

/// Returns whether the environment asks for warnings, or for inspection: a runtime sees a future from its
/// first poll on.
fn is_watched() -> bool {
    ["SAKIA_WARNINGS", "SAKIA_INSPECT"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

#[track_caller]
fn new_runtime() -> Runtime {
    Runtime::new().unwrap_or_else(|error| panic!("no runtime: {error}"))
}

/// Makes the runtime of the innermost call.
fn make() -> Rc<Local> {
    let runtime = new_runtime();
    let local = Rc::clone(&runtime.local);
    replace(Some(runtime));
    local
}

fn replace(made: Option<Runtime>) -> Option<Runtime> {
    ManuallyDrop::into_inner(MADE.replace(ManuallyDrop::new(made)))
}

/// The state of the thread during a call: it has no runtime until it needs one.
struct Late {
    /// The runtime that was made for an outer call, which has not taken it yet.
    outer: Option<Runtime>,
    vacant: Vacant,
    /// Dropped last: waits.
    _closures: OfCall,
}

impl Late {
    fn new() -> Self {
        Self { vacant: Vacant::new(make), outer: replace(None), _closures: OfCall::new() }
    }

    /// Returns the runtime that was made for this call, once.
    fn take(&self) -> Option<Runtime> {
        let made = replace(None)?;
        self.vacant.is_filled();
        Some(made)
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        // The end of the one runs users' code, and may be by a panic.
        drop(replace(self.outer.take()));
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::executor::{is_within, try_current};
    use crate::time::sleep;
    use crate::{Engine, spawn, spawn_blocking, yield_now};

    fn has_runtime() -> bool {
        try_current().is_some()
    }

    #[test]
    fn what_needs_no_runtime_gets_none() {
        let engine = Engine::new().unwrap();
        block_on(async {
            yield_now().await;
            let some = spawn_blocking(|| std::thread::sleep(Duration::from_millis(5))).await;
            assert!(some.is_ok() && engine.read("/proc/self/comm").await.is_ok());
            assert!(!has_runtime() && is_within());
        });
        assert!(!is_within());
    }

    /// Each need is the first one here, after polls without a runtime.
    #[test]
    fn a_need_makes_one_that_goes_on() {
        let task = async || assert_eq!(spawn(async { 7 }).await.unwrap(), 7);
        block_on(task());
        block_on(async {
            let task = spawn(async {});
            yield_now().await;
            assert!(task.is_finished());
        });
        block_on(async {
            spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.unwrap();
            sleep(Duration::from_millis(1)).await;
            assert!(has_runtime());
            yield_now().await;
            task().await;
        });
        block_on(async {
            yield_now().await;
            crate::fs::read("/proc/self/comm").await.unwrap();
            let (mut reader, writer) = crate::io::pipe().unwrap();
            let reads = spawn(async move { reader.read(vec![0; 8]).await });
            yield_now().await;
            drop(writer);
            assert_eq!(reads.await.unwrap().0.unwrap(), 0);
        });
        assert!(!is_within() && !has_runtime());
    }

    #[test]
    fn calls_within_each_other_have_runtimes_of_their_own() {
        let outer = Runtime::new().unwrap();
        outer.block_on(async {
            let is_outer = || try_current().is_some_and(|local| Rc::ptr_eq(&local, &outer.local));
            for needs_one in [false, true] {
                block_on_nested(async {
                    assert!(!has_runtime());
                    if needs_one {
                        sleep(Duration::ZERO).await;
                        block_on_nested(async { assert!(!has_runtime()) });
                        assert!(has_runtime() && !is_outer());
                        block_on_nested(sleep(Duration::ZERO));
                        assert!(has_runtime() && !is_outer());
                    }
                });
                assert!(is_outer());
            }
        });
        // The inner call's is not that of the outer one, which is made before and taken after.
        block_on(async {
            let later = sleep(Duration::from_millis(1));
            let mine = try_current().unwrap();
            block_on_nested(sleep(Duration::ZERO));
            assert!(Rc::ptr_eq(&mine, &try_current().unwrap()));
            assert!(MADE.with_borrow(|made| made.is_some()));
            later.await;
        });
    }

    #[test]
    fn a_panic_leaves_nothing() {
        for needs_one in [false, true] {
            let panics = async {
                if needs_one {
                    drop(sleep(Duration::ZERO));
                }
                panic!("as meant");
            };
            catch_unwind(AssertUnwindSafe(|| block_on(panics))).unwrap_err();
            assert!(!is_within() && !has_runtime());
            assert!(replace(None).is_none());
        }
        assert!(catch_unwind(|| block_on(async { block_on(async {}) })).is_err());
        assert!(!is_within());
    }

    #[test]
    fn a_variable_of_the_thread_may_call_it_at_its_end() {
        struct Calls;

        impl Drop for Calls {
            fn drop(&mut self) {
                block_on(async {});
                block_on(async { sleep(Duration::ZERO).await });
            }
        }

        thread_local!(static CALLS: Calls = const { Calls });
        // Variables are destroyed in the order in which they were first used, or the other way around.
        for is_used_first in [false, true] {
            let thread = thread::spawn(move || {
                if is_used_first {
                    block_on(async { sleep(Duration::ZERO).await });
                }
                CALLS.with(|_| ());
                block_on(async { sleep(Duration::ZERO).await });
            });
            thread.join().unwrap();
        }
    }

    /// Its own values are dropped while their runtime is there.
    #[test]
    fn the_future_ends_before_its_runtime() {
        struct Asks(Arc<AtomicBool>);

        impl Drop for Asks {
            fn drop(&mut self) {
                self.0.store(has_runtime(), Ordering::Relaxed);
            }
        }

        for waits in [false, true] {
            let had = Arc::new(AtomicBool::new(false));
            let asks = Asks(Arc::clone(&had));
            let ready = std::future::poll_fn(move |cx| {
                let _ = &asks;
                let timer = pin!(sleep(Duration::ZERO)).poll(cx);
                if waits && timer.is_pending() { Poll::Pending } else { Poll::Ready(()) }
            });
            let bounded = async {
                let mut ready = pin!(ready);
                let mut polls = 0;
                std::future::poll_fn(|cx| {
                    polls += 1;
                    let poll = ready.as_mut().poll(cx);
                    if polls > 1 { Poll::Ready(()) } else { poll }
                })
                .await;
            };
            block_on(bounded);
            assert!(had.load(Ordering::Relaxed), "{waits}");
        }
    }
}
