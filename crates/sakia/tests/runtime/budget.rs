//! Budgets: order, returned shares, and a program with few descriptors.

use std::cell::RefCell;
use std::fs::File;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::{env, pin::Pin, thread};

use rustix::process::{Resource as Rlimit, getrlimit, setrlimit};
use sakia::{Acquire, Budget, Limits, Permit, Resource, Runtime, block_on, spawn, yield_now};

fn poll(request: &mut Acquire) -> Poll<Permit> {
    Pin::new(request).poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn granted(request: &mut Acquire) -> Permit {
    match poll(request) {
        Poll::Ready(permit) => permit,
        Poll::Pending => panic!("not granted"),
    }
}

/// A waker that panics.
struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        // Not `panic!`, whose hook would print this expected panic.
        resume_unwind(Box::new("wake"));
    }
}

/// A waker that counts its calls.
#[derive(Default)]
struct Count(AtomicU64);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_waker_that_panics_keeps_nobody_asleep() {
    let budget = Budget::new(Limits::new().bytes(10));
    let acquire = |amount| budget.acquire(Resource::Bytes, amount);
    let count = Arc::new(Count::default());
    let wait = |request: &mut Acquire, waker: &Waker| {
        assert!(Pin::new(request).poll(&mut Context::from_waker(waker)).is_pending());
    };
    let (bad, good) = (Waker::from(Arc::new(Bad)), Waker::from(Arc::clone(&count)));
    // Either the holder returns its share, or the first waiter is dropped.
    for is_first_dropped in [false, true] {
        count.0.store(0, Ordering::Relaxed);
        let held = granted(&mut acquire(if is_first_dropped { 1 } else { 10 }));
        let mut first = acquire(10);
        let (mut second, mut third) = (acquire(2), acquire(2));
        if is_first_dropped {
            wait(&mut first, &good);
        }
        wait(&mut second, &bad);
        wait(&mut third, &good);
        let result = catch_unwind(AssertUnwindSafe(|| match is_first_dropped {
            true => drop(first),
            false => drop(held),
        }));
        assert_eq!(result.unwrap_err().downcast_ref(), Some(&"wake"));
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "granted, and not told");
        drop((granted(&mut second), granted(&mut third)));
    }
}

#[test]
fn a_panic_gives_its_share_back() {
    block_on(async {
        let budget = Budget::new(Limits::new().operations(1));
        let share = budget.clone();
        let task = spawn(async move {
            let _permit = share.acquire(Resource::Operations, 1).await;
            panic!("a reason");
        });
        assert!(task.await.unwrap_err().is_panic());
        let aborted = spawn(budget.acquire(Resource::Operations, 1));
        yield_now().await;
        aborted.abort();
        let _permit = budget.acquire(Resource::Operations, 1).await;
    });
}

#[test]
fn threads_share_one_budget() {
    const TOTAL: u64 = 5;
    static HELD: AtomicU64 = AtomicU64::new(0);
    let budget = Budget::new(Limits::new().bytes(TOTAL));
    let work = |seed: u64| {
        let budget = budget.clone();
        move || {
            block_on(async {
                for turn in 0..2000 {
                    let amount = (seed + turn) % TOTAL + 1;
                    let mut permit = budget.acquire(Resource::Bytes, amount).await;
                    let held = HELD.fetch_add(amount, Ordering::SeqCst) + amount;
                    assert!(held <= TOTAL, "{held}");
                    yield_now().await;
                    HELD.fetch_sub(amount, Ordering::SeqCst);
                    permit.shrink_to(amount / 2);
                }
            })
        }
    };
    let threads: Vec<_> = (0..4).map(|seed| thread::spawn(work(seed))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(budget.available(Resource::Bytes), TOTAL);
}

/// The variable of the process that [`a_thousand_files_fit_in_sixty_four_descriptors`] starts.
const CHILD: &str = "SAKIA_TEST_FEW_DESCRIPTORS";

#[test]
fn a_thousand_files_fit_in_sixty_four_descriptors() {
    if env::var_os(CHILD).is_some() {
        return with_few_descriptors();
    }
    // The limit is one of the process, and other tests run in this one.
    let name = "budget::a_thousand_files_fit_in_sixty_four_descriptors";
    let mut child = Command::new(env::current_exe().unwrap());
    let output = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("files opened: 1000"), "the child ran no test: {text}");
}

fn with_few_descriptors() {
    let mut limit = getrlimit(Rlimit::Nofile);
    limit.current = Some(64);
    setrlimit(Rlimit::Nofile, limit).expect("a soft limit may be lowered");
    let runtime = Runtime::new().expect("64 are enough for a runtime");
    let budget = Budget::from_limits();
    let total = budget.total(Resource::Descriptors);
    assert!((10..60).contains(&total), "{total}");
    let opened = Rc::new(RefCell::new((0, 0)));
    runtime.block_on(async {
        let mut tasks = sakia::JoinSet::new();
        for _ in 0..1000 {
            let (budget, opened) = (budget.clone(), Rc::clone(&opened));
            tasks.spawn(async move {
                let _permit = budget.acquire(Resource::Descriptors, 1).await;
                let file = File::open("/dev/null").expect("there is room for it");
                opened.borrow_mut().0 += 1;
                let held =
                    budget.total(Resource::Descriptors) - budget.available(Resource::Descriptors);
                let most = opened.borrow().1.max(held);
                opened.borrow_mut().1 = most;
                for _ in 0..5 {
                    yield_now().await;
                }
                drop(file);
            });
        }
        while let Some(outcome) = tasks.join_next().await {
            outcome.expect("no task panics");
        }
    });
    let (count, most) = *opened.borrow();
    assert_eq!((count, most), (1000, total), "the budget was used in full");
    assert_eq!(budget.available(Resource::Descriptors), total);
    println!("files opened: {count}");
}
