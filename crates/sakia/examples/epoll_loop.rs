//! A runtime inside a program that has an epoll loop already.
//!
//! The loop waits for what it always waited for, and for one descriptor more: the runtime's. When that is
//! readable, or the runtime's next timer is due, it lets the runtime run once.
//!
//! Run it with `cargo run -p sakia --example epoll_loop`.

use std::error::Error;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use sakia::Runtime;
use sakia::time::sleep;

/// The loop's events: from the peer, and from the runtime.
const PEER: u64 = 1;
const RUNTIME: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    // The loop as it was: it hears from a peer.
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let (mut peer, ours) = UnixStream::pair()?;
    epoll::add(&epoll, &ours, EventData::new_u64(PEER), EventFlags::IN)?;

    // A runtime joins it, by one descriptor.
    let runtime = Runtime::new()?;
    let pollable = runtime.pollable()?;
    epoll::add(&epoll, &pollable, EventData::new_u64(RUNTIME), EventFlags::IN)?;

    // Tasks as usual: one sleeps, one is woken by another thread.
    let (sender, receiver) = async_channel::bounded(1);
    let ticks = runtime.spawn(async {
        for tick in 1..=3 {
            sleep(Duration::from_millis(20)).await;
            println!("tick {tick}");
        }
    });
    let news = runtime.spawn(async move { receiver.recv().await });
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        sender.send_blocking("news from another thread").ok();
        peer.write_all(b"x").ok();
        peer
    });

    let mut has_heard = false;
    let mut events = Vec::with_capacity(8);
    loop {
        // As long as something is ready the loop does not sleep.
        while runtime.run_once(Duration::ZERO)? {}
        if has_heard && ticks.is_finished() && news.is_finished() {
            break;
        }
        let timeout = runtime.next_timer().map(|left| left.try_into()).transpose()?;
        events.clear();
        match epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            if event.data.u64() == PEER {
                println!("the peer wrote");
                epoll::delete(&epoll, &ours)?;
                has_heard = true;
            }
        }
    }
    println!("{}", runtime.block_on(news)??);
    drop(other.join());
    Ok(())
}
