//! Many tasks or futures together: sets, scopes, cancellation, budgets, and macros for a few futures at once.
//!
//! Nothing here makes system calls, and all of it is safe code over [`spawn`](crate::spawn) or over futures
//! polled in place. Dropping always cleans up: sets abort their tasks, scopes end their children, permits
//! return to their budget.

mod budget;
mod cancel;
mod each;
mod join_set;
mod local;
mod scope;
mod select;
mod spawned;

use event_listener::{Event, listener};

use crate::fairness::counted;

pub use budget::{Acquire, Budget, Limits, Permit, Resource};
pub use cancel::{CancellationToken, DropGuard};
pub use each::{
    for_each_concurrent, for_each_concurrent_from, try_for_each_concurrent,
    try_for_each_concurrent_from,
};
pub use join_set::JoinSet;
pub use local::{AccessError, LocalKey, Scoped};
pub use scope::{Scope, ScopedHandle, scope};
pub use spawned::{ScopeError, TaskScope, spawned_scope};

#[doc(hidden)]
pub mod __private {
    pub use super::local::local_key;
    pub use super::select::{Join, Select, Selected, TryJoin};
}

/// The number of children polled in one poll of a future that holds several; then other tasks have their
/// turn.
const TURN: usize = 64;

/// Waits until `is_so` returns true. Code that changes its result must notify the listeners of `event`
/// afterwards.
pub(crate) async fn wait_until(event: &Event, is_so: impl Fn() -> bool) {
    if is_so() {
        return counted().await;
    }
    while !is_so() {
        listener!(event => listener);
        // The result may have changed after the check above, before this task listened.
        if is_so() {
            break;
        }
        listener.await;
    }
}
