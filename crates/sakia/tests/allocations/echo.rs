//! Client and server as tasks of one thread: the costs of a round trip with one connection and with many.
//!
//! Counts, not times: system calls (enters and plain calls, by the driver's counters) and the thread's
//! allocations. Both are taken in the middle of a run, while no connection begins or ends.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};

use sakia::Runtime;
use sakia::net::{TcpListener, TcpStream};
use sakia_driver::{OpKind, Streams};
use sakia_testkit::alloc_count::{Counts, measure, thread_counts};

use crate::NOTHING;

/// Bytes of a small message, and of a message that fills a buffer of the driver.
const SMALL_BYTES: usize = 64;
const LARGE_BYTES: usize = 16 << 10;
/// Round trips of each connection before the counted ones.
const WARMUP: u64 = 200;
/// The minimum number of counted round trips of all connections.
const COUNTED: u64 = 20_000;

/// The maximum number of periods until one has no allocation.
const PERIODS_MAX: usize = 4;

/// The progress of all clients together.
#[derive(Default)]
struct Progress {
    trips: Cell<u64>,
    /// The number of echoes after which the waiter is woken.
    goal: Cell<u64>,
    waiter: RefCell<Option<Waker>>,
    is_over: Cell<bool>,
}

impl Progress {
    fn count(&self) {
        self.trips.set(self.trips.get() + 1);
        if self.trips.get() == self.goal.get() {
            self.waiter.take().unwrap().wake();
        }
    }

    async fn reach(&self, goal: u64) {
        self.goal.set(goal);
        poll_fn(|cx| {
            if self.trips.get() >= goal {
                return Poll::Ready(());
            }
            *self.waiter.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

async fn serve(mut stream: TcpStream) {
    loop {
        let bytes = stream.recv().await.unwrap();
        if bytes.is_empty() {
            return;
        }
        stream.write_all(bytes).await.0.unwrap();
    }
}

async fn ask(address: SocketAddr, message_bytes: usize, progress: Rc<Progress>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut question = vec![7; message_bytes];
    while !progress.is_over.get() {
        let result;
        (result, question) = stream.write_all(question).await;
        result.unwrap();
        let mut rest = &question[..];
        while !rest.is_empty() {
            let answer = stream.recv().await.unwrap();
            assert!(!answer.is_empty() && rest.starts_with(&answer));
            rest = &rest[answer.len()..];
        }
        progress.count();
    }
}

/// Returns the number of system calls that the driver made on this thread.
fn calls(runtime: &Runtime) -> u64 {
    let counters = runtime.counters();
    let plain = |&kind: &OpKind| counters.of(kind).inline;
    counters.enters + OpKind::ALL.iter().map(plain).sum::<u64>()
}

/// Returns the system calls of a round trip, and all allocations, with this number of connections.
///
/// A list grows if more events arrive at a time than ever before, which depends on the machine's load. It
/// doubles its size, and has at most one entry for each connection: so one of a few periods has no
/// allocation, unless round trips allocate.
fn echo(runtime: &Runtime, connections: u64, message_bytes: usize) -> (f64, Counts) {
    // Panics if allocations are not counted.
    measure(|| ());
    runtime.block_on(async {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any).await.unwrap();
        let address = listener.local_addr().unwrap();
        let progress = Rc::<Progress>::default();
        let mut tasks = Vec::new();
        for _ in 0..connections {
            let client = sakia::spawn(ask(address, message_bytes, Rc::clone(&progress)));
            let (stream, _) = listener.accept().await.unwrap();
            tasks.extend([client, sakia::spawn(serve(stream))]);
        }
        progress.reach(WARMUP * connections).await;
        let period = async || {
            let (trips, calls_before, before) =
                (progress.trips.get(), calls(runtime), thread_counts());
            progress.reach(trips + COUNTED).await;
            let trips = progress.trips.get() - trips;
            let calls = calls(runtime) - calls_before;
            (calls as f64 / trips as f64, thread_counts().since(before))
        };
        let mut counted = period().await;
        for _ in 1..PERIODS_MAX {
            if counted.1 == NOTHING {
                break;
            }
            counted = period().await;
        }
        progress.is_over.set(true);
        for task in tasks {
            task.await.unwrap();
        }
        counted
    })
}

/// Asserts the costs of a round trip with this number of connections on a ring. Epoll makes plain calls,
/// and allocates memory for their bytes.
fn assert_echo(connections: u64, calls_max: f64) {
    let runtime = Runtime::builder().streams(Streams::Queue).build().unwrap();
    let (calls, allocated) = echo(&runtime, connections, SMALL_BYTES);
    eprintln!("{connections} connections: {calls:.4} calls a round trip, {allocated:?}");
    if runtime.choice().name() == "uring" {
        assert_eq!(allocated, NOTHING);
        assert!(calls <= calls_max, "{connections} connections: {calls} calls a round trip");
    }
}

#[test]
fn a_round_trip_of_one_connection_takes_two_calls_and_no_memory() {
    // On a busy machine a turn may start before the answer arrives, and enter once more.
    assert_echo(1, 2.001);
}

#[test]
fn round_trips_of_many_connections_share_their_calls_and_take_no_memory() {
    assert_echo(64, 0.035);
}

/// All connections are ready in the same turn, and each takes a buffer that its message just fills.
#[test]
fn large_messages_of_many_connections_find_buffers() {
    let runtime = Runtime::builder().streams(Streams::Queue).build().unwrap();
    let (calls, allocated) = echo(&runtime, 300, LARGE_BYTES);
    eprintln!("300 large: {calls:.4} calls a round trip, {allocated:?}");
    assert_eq!(runtime.counters().pool_misses, 0);
    if runtime.choice().name() == "uring" {
        assert_eq!(allocated, NOTHING);
    }
}
