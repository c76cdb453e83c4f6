//! Scopes of both kinds against a list of children, which end one after the other, each when its gate opens
//! and the child that it waits for has ended. After each step, the body and the children must know of all who
//! have ended.
//!
//! Left out: children that panic, and scopes that are dropped, which tests of their own have.

use std::cell::{Cell, RefCell};
use std::convert::identity;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sakia::{Runtime, TaskScope, scope, spawned_scope};
use sakia_testkit::random::{Random, programs};

use super::counts::{Polled, differ, settle};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A child is made, which waits for an earlier one if nobody else does: for that of this number, modulo
    /// those there are.
    Child(Option<usize>),
    /// The gate of a child opens.
    Open(usize),
}

fn steps(random: &mut Random) -> Vec<Step> {
    let step = |random: &mut Random| {
        let number = random.below(64) as usize;
        match random.below(5) {
            0 | 1 => Step::Child(random.percent(40).then_some(number)),
            _ => Step::Open(number),
        }
    };
    (0..random.below(24) + 1).map(|_| step(random)).collect()
}

/// Opens once.
#[derive(Default)]
struct Gate {
    is_open: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Gate {
    fn open(&self) {
        self.is_open.set(true);
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    async fn pass(&self) {
        poll_fn(|cx| {
            self.waker.replace(Some(cx.waker().clone()));
            if self.is_open.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Returns the earlier child that each one waits for, and those that the body waits for, in order.
fn line(steps: &[Step]) -> (Vec<Option<usize>>, Vec<usize>) {
    let (mut waits, mut free) = (Vec::new(), Vec::new());
    for step in steps {
        let Step::Child(earlier) = step else { continue };
        let count = free.len();
        let earlier = earlier.filter(|_| count > 0).map(|number| free.remove(number % count));
        free.push(waits.len());
        waits.push(earlier);
    }
    (waits, free)
}

async fn play(steps: &[Step], is_of_tasks: bool) -> Option<String> {
    let (waits, of_body) = line(steps);
    let gates: Rc<[Gate]> = waits.iter().map(|_| Gate::default()).collect();
    let (ended, known) = (Rc::new(RefCell::new(Vec::new())), RefCell::new(Vec::new()));
    let of_tasks: RefCell<Option<TaskScope<()>>> = RefCell::default();
    macro_rules! body {
        ($scope:ident, $output:expr) => {
            let mut handles = Vec::new();
            for (number, earlier) in waits.iter().enumerate() {
                let earlier = earlier.and_then(|earlier| Option::take(&mut handles[earlier]));
                let (gates, ended) = (Rc::clone(&gates), Rc::clone(&ended));
                handles.push(Some($scope.spawn(async move {
                    gates[number].pass().await;
                    if let Some(earlier) = earlier {
                        earlier.await;
                    }
                    ended.borrow_mut().push(number);
                    $output(number)
                })));
            }
            for handle in handles.into_iter().flatten() {
                let number = handle.await;
                known.borrow_mut().push(number);
            }
        };
    }
    let future: Pin<Box<dyn Future<Output = ()> + '_>> = if is_of_tasks {
        let scope = spawned_scope(async |scope| {
            of_tasks.replace(Some(scope.clone()));
            body!(scope, Ok);
            Ok(())
        });
        Box::pin(async { assert!(scope.await.is_ok()) })
    } else {
        Box::pin(scope(async |scope| {
            body!(scope, identity);
        }))
    };
    let mut scope = Polled::new(future);
    // The first poll has no wake before it.
    let (mut is_over, mut seen) = (false, u32::MAX);
    let opens = steps.iter().filter_map(|step| match step {
        Step::Open(number) if !gates.is_empty() => Some(number % gates.len()),
        _ => None,
    });
    for open in [None].into_iter().chain(opens.map(Some)) {
        open.into_iter().for_each(|number| gates[number].open());
        settle().await;
        while !is_over && scope.wakes() != std::mem::replace(&mut seen, scope.wakes()) {
            is_over = scope.poll().is_ready();
            settle().await;
        }
        let has_ended = |mut number: usize| loop {
            match (gates[number].is_open.get(), waits[number]) {
                (false, _) => return false,
                (true, None) => return true,
                (true, Some(earlier)) => number = earlier,
            }
        };
        let model: Vec<usize> = (0..gates.len()).filter(|&number| has_ended(number)).collect();
        let is_known = of_body.iter().copied().take_while(|&number| has_ended(number));
        let mut found = ended.borrow().clone();
        found.sort_unstable();
        let difference = differ("ended", &found, &model)
            .or_else(|| differ("known to the body", known.borrow().clone(), is_known.collect()))
            .or_else(|| differ("over", is_over, model.len() == gates.len()))
            .or_else(|| {
                let live = of_tasks.borrow().as_ref().map(TaskScope::live_children);
                differ("live", live, is_of_tasks.then_some(gates.len() - model.len()))
            });
        if difference.is_some() {
            return difference;
        }
    }
    None
}

#[test]
fn scopes_tell_who_waits_for_a_child() {
    let runtime = Runtime::new().unwrap();
    for is_of_tasks in [false, true] {
        programs(2000, steps, |program| runtime.block_on(play(program, is_of_tasks)));
    }
}
