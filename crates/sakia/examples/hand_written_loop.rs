//! The engine below a loop that knows of no futures: `poll(2)` over descriptors, and callbacks.
//!
//! The loop has requests under way by their numbers. A waker notes its request's number and makes one
//! descriptor readable; then the loop asks that request how it went. Nothing else of an executor is needed.
//!
//! It serves a peer who asks for parts of a file, which are not in the page cache at first.
//!
//! Run it with `cargo run -p sakia --example hand_written_loop`.

use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sakia::Engine;
use sakia::engine::{ReadAt, Request};

const PART_BYTES: usize = 4096;
const PARTS: u64 = 64;

/// Numbers of requests that are to be asked, and the descriptor that tells the loop so.
struct Ready {
    numbers: Mutex<Vec<u64>>,
    event: OwnedFd,
}

/// Of one request.
struct Note {
    ready: Arc<Ready>,
    number: u64,
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        let mut numbers = self.ready.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.push(self.number);
        if numbers.len() == 1 {
            // One who is full has been told.
            rustix::io::write(&self.ready.event, &1_u64.to_ne_bytes()).ok();
        }
    }
}

impl Ready {
    fn new() -> rustix::io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { numbers: Mutex::default(), event }))
    }

    /// Takes all numbers.
    fn take(&self) -> Vec<u64> {
        rustix::io::read(&self.event, &mut [0; 8]).ok();
        std::mem::take(&mut *self.numbers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A read for the peer.
struct Answer {
    part: u64,
    request: Request<ReadAt<Vec<u8>>>,
    waker: Waker,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("sakia-hand-written-{}", std::process::id()));
    let contents: Vec<u8> = (0..PARTS).flat_map(|part| vec![part as u8; PART_BYTES]).collect();
    std::fs::write(&path, contents)?;
    let served = serve(&path);
    std::fs::remove_file(&path)?;
    served
}

fn serve(path: &std::path::Path) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new()?;
    let file = engine.open(path).wait()?;
    file.sync_all().wait()?;
    // Nothing is in the page cache any more. The first reads that miss bring more than they ask for.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;

    let (mut stream, peer) = UnixStream::pair()?;
    stream.set_nonblocking(true)?;
    let peer = thread::spawn(move || ask(peer));

    let ready = Ready::new()?;
    let mut answers: HashMap<u64, Answer> = HashMap::new();
    let (mut input, mut next, mut is_asking) = (Vec::new(), 0, true);
    while is_asking || !answers.is_empty() {
        let events = if is_asking { PollFlags::IN } else { PollFlags::empty() };
        let mut polled = [PollFd::new(&stream, events), PollFd::new(&ready.event, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut polled, None))?;
        let mut to_ask = if polled[1].revents().is_empty() { Vec::new() } else { ready.take() };
        if polled[0].revents().contains(PollFlags::IN) {
            let mut bytes = [0; 256];
            let count = stream.read(&mut bytes)?;
            input.extend_from_slice(&bytes[..count]);
            is_asking = count > 0;
        }
        // A byte is a question: which part?
        for part in input.drain(..).map(u64::from) {
            let request = file.read_at(vec![0; PART_BYTES], part * PART_BYTES as u64);
            let waker = Waker::from(Arc::new(Note { ready: Arc::clone(&ready), number: next }));
            answers.insert(next, Answer { part, request, waker });
            to_ask.push(next);
            next += 1;
        }
        for number in to_ask {
            // It may have been told twice.
            let Some(answer) = answers.get_mut(&number) else { continue };
            let mut cx = Context::from_waker(&answer.waker);
            let Poll::Ready((result, bytes)) = Pin::new(&mut answer.request).poll(&mut cx) else {
                continue;
            };
            let sum: u64 = bytes[..result?].iter().map(|&byte| u64::from(byte)).sum();
            writeln!(stream, "{} {sum}", answer.part)?;
            answers.remove(&number);
        }
    }
    drop(stream);
    peer.join().map_err(|_| "the peer failed")??;
    let sakia::engine::Statistics { now, submitted, .. } = engine.statistics();
    println!("{now} reads done by the loop's thread, {submitted} by the engine's");
    Ok(())
}

/// The peer: asks for all parts, twice, and checks what it is told.
fn ask(mut stream: UnixStream) -> std::io::Result<()> {
    let questions: Vec<u8> = (0..PARTS as u8).rev().collect();
    let mut answers = BufReader::new(stream.try_clone()?).lines();
    for _ in 0..2 {
        stream.write_all(&questions)?;
        for line in answers.by_ref().take(questions.len()) {
            let line = line?;
            let mut words = line.split(' ').map(str::parse::<u64>);
            let (Some(Ok(part)), Some(Ok(sum))) = (words.next(), words.next()) else {
                return Err(std::io::Error::other(format!("no answer: {line}")));
            };
            assert_eq!(sum, part * PART_BYTES as u64, "part {part}");
        }
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    assert!(answers.next().is_none(), "all questions are answered");
    Ok(())
}
