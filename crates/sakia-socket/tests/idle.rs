//! An idle program takes no processor time: its threads sleep, and none wakes.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fs, thread};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};
use sakia_socket::{EpollEvent, Events, HostCall, Kernel, Layer, Options, ToyEnclave, When};

/// Returns the number of context switches of each thread of this process, except the calling one and that
/// of the test harness.
fn switches() -> BTreeMap<String, u64> {
    let mine = rustix::thread::gettid().as_raw_nonzero().to_string();
    let main = std::process::id().to_string();
    let mut switches = BTreeMap::new();
    for task in fs::read_dir("/proc/self/task").expect("threads").flatten() {
        let number = task.file_name().into_string().expect("a number");
        if number == mine || number == main {
            continue;
        }
        let read = |name| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        let count = counts.map(|(_, count)| count.trim().parse::<u64>().expect("a number")).sum();
        switches.insert(format!("{number} {}", read("comm").trim()), count);
    }
    switches
}

#[test]
fn an_idle_program_makes_no_call_and_no_switch() {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (When::Always, When::Always);
    let layer = Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), options);
    let (a, b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM).expect("a pair");
    // The thread waits for an event that does not come.
    let set = layer.epoll().expect("a set");
    set.add(&a, EpollEvent { events: Events::IN, data: 1 }).expect("an entry");
    let sleeper = {
        let set = set.clone();
        thread::spawn(move || set.wait(&mut [EpollEvent::default()], None))
    };
    for _ in 0..100 {
        for _ in 0..50 {
            assert_eq!(a.send(b".", SendFlags::empty()), Ok(1));
        }
        assert_eq!(b.recv(&mut [0; 50], RecvFlags::WAITALL), Ok(50));
    }
    // The threads need a moment to begin and to fall asleep.
    for attempt in 0.. {
        let (before, calls) = (switches(), layer.host().counts());
        thread::sleep(Duration::from_secs(1));
        let (after, made) = (switches(), layer.host().counts().since(&calls));
        let is_idle = before == after && made.iter().all(|(_, count)| count == 0);
        if is_idle && before.keys().any(|name| name.ends_with("sakia-pump")) {
            break;
        }
        assert!(attempt < 20, "{before:?} {after:?} {made:?}");
    }
    // One wake is enough when there is work to do.
    let before = layer.host().counts();
    for _ in 0..50 {
        assert_eq!(b.send(b".", SendFlags::empty()), Ok(1));
    }
    assert_eq!(sleeper.join().expect("no panic"), Ok(1));
    assert_eq!(a.recv(&mut [0; 50], RecvFlags::WAITALL), Ok(50));
    assert!(layer.host().counts().since(&before).of(HostCall::Unpark) >= 1);
}
