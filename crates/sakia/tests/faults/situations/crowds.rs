//! More operations, clients or runtimes than there is room for.

use std::cell::Cell;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread;

use sakia::fs::{self, File};
use sakia::io::{Async, PipeReader};
use sakia::{Runtime, spawn, yield_now};
use sakia_driver::{Bypass, Policy};
use sakia_ring::Ring;
use sakia_testkit::settings::patience;

use crate::load;
use crate::support::{TempDir, on_each_backend, runtime};

on_each_backend! {
    more_clients_than_entries
    an_exhausted_queue_submits_and_goes_on
    a_batch_leaves_the_others_in_flight
    a_hundred_thousand_tasks_with_wakes_from_another_thread
    descriptors_return_after_many_runtimes
    threads_return_after_many_runtimes
}

/// Returns a runtime with the smallest possible number of entries.
fn tiny(policy: Policy) -> Runtime {
    let ring = Ring::builder().sq_entries(2).cq_entries(4);
    Runtime::builder().backend(policy).ring(ring).bypass(Bypass::Never).build().unwrap()
}

fn more_clients_than_entries(policy: Policy) {
    const CLIENTS: usize = 150;
    let runtime = tiny(policy);
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = Async::new(listener).unwrap();
        let server = spawn(async move {
            let mut connections = Vec::new();
            for _ in 0..CLIENTS {
                let (stream, _) = listener.read_with(TcpListener::accept).await.unwrap();
                connections.push(spawn(load::echo(stream)));
            }
            for connection in connections {
                connection.await.unwrap();
            }
        });
        // The clients connect faster than they are accepted, and all wait for an answer at the same time.
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let stream = TcpStream::connect(address).unwrap();
            clients.push(spawn(load::send_and_compare(stream, vec![number as u8; 20_000])));
            if number % 16 == 0 {
                yield_now().await;
            }
        }
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
    });
    load::assert_sound(&runtime);
}

fn an_exhausted_queue_submits_and_goes_on(policy: Policy) {
    const READS: usize = 500;
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, (0..READS).map(|at| at as u8).collect::<Vec<_>>()).unwrap();
    let runtime = tiny(policy);
    runtime.block_on(async {
        let file = Rc::new(File::open(&path).await.unwrap());
        let reads = (0..READS).map(|at| {
            let file = Rc::clone(&file);
            spawn(async move {
                let (result, byte) = file.read_at(vec![0; 1], at as u64).await;
                assert_eq!((result.unwrap(), byte), (1, vec![at as u8]));
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
    });
    let counters = runtime.counters();
    assert!(counters.backlogged > READS as u64 / 2, "{} waited", counters.backlogged);
    load::assert_sound(&runtime);
}

/// Operations complete in several batches, and none begins between them.
fn a_batch_leaves_the_others_in_flight(policy: Policy) {
    const BATCHES: usize = 5;
    const EACH: usize = 30;
    let runtime = tiny(policy);
    let done = Rc::new(Cell::new(0));
    let mut writers = Vec::new();
    for number in 0..BATCHES * EACH {
        let (reader, writer) = std::io::pipe().unwrap();
        writers.push(writer);
        let done = Rc::clone(&done);
        let read = runtime.spawn(async move {
            let (result, byte) = PipeReader::from_fd(reader.into()).read(vec![0; 8]).await;
            assert_eq!((result.unwrap(), byte[0]), (1, number as u8));
            done.set(done.get() + 1);
        });
        read.detach();
    }
    runtime.block_on(async {
        for _ in 0..10 {
            yield_now().await;
        }
        for batch in 0..BATCHES {
            let batched = writers.iter().enumerate().skip(batch * EACH).take(EACH);
            for (number, writer) in batched {
                rustix::io::write(writer, &[number as u8]).unwrap();
            }
            while done.get() < (batch + 1) * EACH {
                yield_now().await;
            }
        }
    });
    load::assert_sound(&runtime);
}

fn a_hundred_thousand_tasks_with_wakes_from_another_thread(policy: Policy) {
    const TASKS: usize = 100_000;
    let runtime = runtime(policy);
    let (sender, receiver) = channel::<async_channel::Sender<usize>>();
    let answering = thread::spawn(move || {
        for (number, task) in receiver.iter().enumerate() {
            task.try_send(number).unwrap();
        }
    });
    let sum = Rc::new(Cell::new(0));
    for _ in 0..TASKS {
        let (task, answer) = async_channel::bounded(1);
        let (sender, sum) = (sender.clone(), Rc::clone(&sum));
        let task = runtime.spawn(async move {
            sender.send(task).unwrap();
            drop(sender);
            let answer = answer.recv().await.unwrap();
            sum.set(sum.get() + answer);
        });
        task.detach();
    }
    drop(sender);
    assert_eq!(runtime.live_tasks(), TASKS);
    runtime.block_on(async {
        while runtime.live_tasks() > 0 {
            yield_now().await;
        }
    });
    assert_eq!(sum.get(), TASKS * (TASKS - 1) / 2);
    answering.join().unwrap();
}

fn descriptors_return_after_many_runtimes(policy: Policy) {
    crate::children::run("many_runtimes", policy);
}

fn threads_return_after_many_runtimes(policy: Policy) {
    crate::children::run("many_runtimes_of_two_threads", policy);
}

pub fn scene_many_runtimes(policy: Policy) -> Result<(), String> {
    start_and_end(policy, 1, 100);
    Ok(())
}

pub fn scene_many_runtimes_of_two_threads(policy: Policy) -> Result<(), String> {
    start_and_end(policy, 2, 50);
    Ok(())
}

/// Starts runtimes and ends them with all their operations in flight.
fn start_and_end(policy: Policy, threads: usize, count: usize) {
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, vec![1; 100_000]).unwrap();
    let use_one = || {
        let runtime = Runtime::builder().backend(policy).threads(threads).build().unwrap();
        let path = path.clone();
        for _ in 0..5 {
            let path = path.clone();
            let task = runtime.spawn(async move {
                let file = File::open(&path).await.unwrap();
                let (reader, _writer) = std::io::pipe().unwrap();
                let mut reader = PipeReader::from_fd(reader.into());
                let reads = (file.read_at(vec![0; 50_000], 0), reader.read(vec![0; 10]));
                drop(sakia::join!(reads.0, reads.1));
            });
            task.detach();
        }
        runtime.block_on(async {
            assert_eq!(fs::read(&path).await.unwrap().len(), 100_000);
            let mut entries = fs::read_dir(&folder.path()).await.unwrap();
            entries.next_entry().await.unwrap().unwrap();
        });
    };
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    use_one(); // what the process keeps, it has from now on
    let (descriptors, before) = (crate::support::open_descriptors(), threads());
    for _ in 0..count {
        use_one();
    }
    // Idle threads of the lanes and the kernel's workers end by themselves some time later.
    let watch = std::time::Instant::now();
    while crate::support::open_descriptors() > descriptors || threads() > before + 2 {
        assert!(watch.elapsed() < patience(), "something is left of the runtimes");
        thread::sleep(std::time::Duration::from_millis(10));
    }
}
