//! A load of all kinds of operations at once, which checks each byte: pipes, files, a journal, sockets,
//! timers, tasks on two threads, work on threads of the pool, and dropped reads.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sakia::fs::{self, File, GroupCommit};
use sakia::io::{Async, Reader, Writer, copy, pipe};
use sakia::time::{Instant, sleep, timeout};
use sakia::{Runtime, spawn, spawn_blocking, spawn_on, yield_now};
use sakia_driver::Policy;

use crate::support::Random;

/// Returns a runtime for the load: two threads, and few entries, so that they run out.
pub fn runtime(policy: Policy) -> Runtime {
    let ring = sakia_ring::Ring::builder().sq_entries(8).cq_entries(32);
    Runtime::builder().backend(policy).threads(2).ring(ring).build().unwrap()
}

/// Runs the whole load `rounds` times, in its own folder.
pub async fn run(folder: &Path, seed: u64, rounds: u64) {
    fs::create_dir_all(folder).await.unwrap();
    for round in 0..rounds {
        let seed = seed.wrapping_mul(1000) + round;
        let parts = [
            spawn(through_a_pipe(seed)),
            spawn(files(folder.join("files"), seed)),
            spawn(a_journal(folder.join("journal"), seed)),
            spawn(through_sockets(seed)),
            spawn(timers()),
            spawn(on_other_threads(seed)),
            spawn(reads_that_are_given_up()),
        ];
        for part in parts {
            part.await.unwrap();
        }
    }
}

/// Asserts the properties of a runtime after any load: no leak, and no unexpected completion.
#[track_caller]
pub fn assert_sound(runtime: &Runtime) {
    let counters = runtime.counters();
    assert_eq!((counters.leaked, counters.stale, counters.close_errors), (0, 0, 0));
}

async fn through_a_pipe(seed: u64) {
    let sent = Random::new(seed).bytes(200_000);
    let expected = sent.clone();
    let (mut reader, mut writer) = pipe().unwrap();
    let writing = spawn(async move {
        let mut random = Random::new(seed);
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + random.below(20_000)));
            writer.write_all(now.to_vec()).await.0.unwrap();
            rest = later;
        }
        writer.close().await.unwrap();
    });
    let (result, received) = reader.read_to_end(Vec::new()).await;
    assert_eq!(result.unwrap(), expected.len());
    assert!(received == expected, "a pipe changed what went through it");
    writing.await.unwrap();
}

async fn files(folder: PathBuf, seed: u64) {
    let mut random = Random::new(seed);
    let bytes = random.bytes(150_000);
    fs::create_dir_all(&folder).await.unwrap();
    let (one, two) = (folder.join("one"), folder.join("two"));
    let file = File::options().read(true).write(true).create(true).open(&one).await.unwrap();
    let writes = (0..15).map(|at| {
        let (file, part) = (file.try_clone().unwrap(), bytes[at * 10_000..][..10_000].to_vec());
        spawn(async move { file.write_all_at(part, at as u64 * 10_000).await.0.unwrap() })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.unwrap();
    }
    for _ in 0..20 {
        let (at, len) = (random.below(140_000), 1 + random.below(10_000));
        let (result, part) = file.read_exact_at(vec![0; len], at as u64).await;
        result.unwrap();
        assert!(part == bytes[at..][..len], "a file has other bytes at {at}");
    }
    file.close().await.unwrap();
    assert!(fs::read(&one).await.unwrap() == bytes);
    assert_eq!(fs::copy(&one, &two).await.unwrap(), 150_000);
    fs::save(&one, bytes[..70_000].to_vec()).await.unwrap();
    fs::rename(&one, folder.join("three")).await.unwrap();

    let mut reader = Reader::with_depth(File::open(&two).await.unwrap(), 8192, 4);
    let mut writer = Writer::at(File::create(&one).await.unwrap(), 0);
    assert_eq!(copy(&mut reader, &mut writer).await.unwrap(), 150_000);
    writer.close().await.unwrap();
    let mut names = Vec::new();
    let mut entries = fs::read_dir(&folder).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        names.push(entry.into_file_name());
    }
    names.sort();
    assert_eq!(names, ["one", "three", "two"]);
    assert!(fs::read(&one).await.unwrap() == bytes);
    assert!(fs::read(folder.join("three")).await.unwrap() == bytes[..70_000]);
    fs::remove_dir_all(&folder).await.unwrap();
}

async fn a_journal(path: PathBuf, seed: u64) {
    const WRITERS: u64 = 5;
    const RECORDS: u64 = 4;
    let journal = GroupCommit::new(File::create(&path).await.unwrap()).await.unwrap();
    let writers = (0..WRITERS).map(|writer| {
        let journal = journal.clone();
        spawn(async move {
            let mut places = Vec::new();
            for record in 0..RECORDS {
                let bytes = Random::new(seed ^ (writer * 100 + record)).bytes(300);
                let (result, bytes) = journal.append(bytes).await;
                places.push((result.unwrap() as usize, bytes));
                journal.commit().await.unwrap();
            }
            places
        })
    });
    let mut places = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        places.extend(writer.await.unwrap());
    }
    let contents = fs::read(&path).await.unwrap();
    assert_eq!(contents.len() as u64, WRITERS * RECORDS * 300);
    for (at, bytes) in places {
        assert!(contents[at..][..300] == bytes, "a record is not where it was written");
    }
}

/// Sends bytes to an echo server and back, in pieces that exceed the buffer of the server.
async fn through_sockets(seed: u64) {
    const CLIENTS: u64 = 6;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = Async::new(listener).unwrap();
    let server = spawn(async move {
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            let (stream, _) = listener.read_with(TcpListener::accept).await.unwrap();
            connections.push(spawn(echo(stream)));
        }
        for connection in connections {
            connection.await.unwrap();
        }
    });
    let clients = (0..CLIENTS).map(|client| {
        let stream = TcpStream::connect(address).unwrap();
        spawn(send_and_compare(stream, Random::new(seed + client).bytes(60_000)))
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    server.await.unwrap();
}

fn connection(stream: TcpStream) -> Async<TcpStream> {
    stream.set_nonblocking(true).unwrap();
    Async::new(stream).unwrap()
}

/// Writes all bytes.
pub async fn send(stream: &Async<TcpStream>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = stream.write_with(|mut stream| stream.write(bytes)).await.unwrap();
        bytes = &bytes[count..];
    }
}

/// Sends back all bytes until the peer ends its sends.
pub async fn echo(stream: TcpStream) {
    let stream = connection(stream);
    let mut buf = vec![0; 5000];
    loop {
        match stream.read_with(|mut stream| stream.read(&mut buf)).await.unwrap() {
            0 => return,
            count => send(&stream, &buf[..count]).await,
        }
    }
}

/// Sends bytes to an echo server in pieces, and compares the answers.
pub async fn send_and_compare(stream: TcpStream, bytes: Vec<u8>) {
    let stream = connection(stream);
    for piece in bytes.chunks(7000) {
        send(&stream, piece).await;
        let mut received = vec![0; piece.len()];
        let mut filled = 0;
        while filled < received.len() {
            let rest = &mut received[filled..];
            let count = stream.read_with(|mut stream| stream.read(rest)).await.unwrap();
            assert!(count > 0, "the connection ended early");
            filled += count;
        }
        assert!(received == piece, "a connection changed what went through it");
    }
}

async fn timers() {
    let sleeps = (0..10).map(|number| {
        spawn(async move {
            let (begin, duration) = (Instant::now(), Duration::from_micros(500 + 300 * number));
            sleep(duration).await;
            assert!(begin.elapsed() >= duration, "a timer was early");
        })
    });
    for sleep in sleeps.collect::<Vec<_>>() {
        sleep.await.unwrap();
    }
}

async fn on_other_threads(seed: u64) {
    let (sender, receiver) = async_channel::bounded(1);
    let elsewhere = spawn_on(1, move || async move {
        through_a_pipe(seed + 1).await;
        let mut sum = 0;
        while let Ok(number) = receiver.recv().await {
            sum += number;
        }
        sum
    });
    for number in 0..20 {
        let squared = spawn_blocking(move || number * number).await.unwrap();
        sender.send(squared).await.unwrap();
    }
    drop(sender);
    assert_eq!(elsewhere.await.unwrap(), (0..20).map(|number| number * number).sum());
}

/// Reads from a pipe, drops most of the reads before bytes arrive, and misses no byte.
async fn reads_that_are_given_up() {
    const BYTES: u8 = 30;
    let (reader, mut writer) = pipe().unwrap();
    let writing = spawn(async move {
        for byte in 0..BYTES {
            sleep(Duration::from_micros(200)).await;
            writer.write_all(vec![byte]).await.0.unwrap();
        }
    });
    let mut reader = Reader::new(reader);
    let mut next = 0;
    loop {
        let Ok(filled) = timeout(Duration::from_micros(100), reader.fill()).await else {
            yield_now().await;
            continue;
        };
        let bytes = filled.unwrap();
        if bytes.is_empty() {
            break;
        }
        let count = bytes.len();
        for &byte in bytes {
            assert_eq!(byte, next, "a byte was lost, or came twice");
            next += 1;
        }
        reader.consume(count);
    }
    assert_eq!(next, BYTES);
    writing.await.unwrap();
}
