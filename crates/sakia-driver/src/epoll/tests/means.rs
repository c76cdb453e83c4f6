//! Streams on kernels that have fewer means to try them.

use std::thread;

use super::*;
use crate::{Lane, epoll::transfer::Means};

pub(super) const MEANS: [Means; 4] = [
    Means { nowait: true, reopen: true, flags: true },
    Means { nowait: true, reopen: false, flags: true },
    Means { nowait: false, reopen: true, flags: true },
    Means { nowait: false, reopen: false, flags: true },
];

/// Returns streams of every kind: an end to read from and one to write to.
fn streams(dir: &TempDir) -> Vec<(&'static str, OwnedFd, OwnedFd)> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let fifo = dir.fifo("fifo");
    let both = open_both_ends(&fifo);
    let end = |access| rustix::fs::open(&fifo, access, rustix::fs::Mode::empty()).unwrap();
    let (from_fifo, to_fifo) = (end(OFlags::RDONLY), end(OFlags::WRONLY));
    drop(both);
    let (near, far) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let (reader, writer) = pipe();
    let mut streams =
        vec![("pipe", reader, writer), ("fifo", from_fifo, to_fifo), ("socket", near, far)];
    if let Some((master, slave)) = super::streams::terminal() {
        // Bytes written to the master arrive as lines.
        streams.push(("terminal", slave, master));
    }
    streams
}

#[test]
fn every_stream_waits_and_moves_bytes_whatever_there_is_to_try_it() {
    for means in MEANS {
        let dir = TempDir::new();
        for (name, reader, writer) in streams(&dir) {
            let mut test = Loop::with(EpollOptions::new().means(means));
            let (first, second) = (Lendable::zeroed(8), Lendable::zeroed(8));
            test.push(1, receive(&reader, &first));
            test.push(2, receive(&reader, &second));
            assert_eq!(test.submit(), [], "{name} {means:?}");
            assert_eq!(test.turn(), [], "{name} {means:?}");
            let texts = [Lendable::new(b"one\n"), Lendable::new(b"two\n")];
            test.push(3, send(&writer, &texts[0]));
            let mut ends = test.enter(2);
            ends.sort_unstable();
            assert_eq!(ends, [(1, 4), (3, 4)], "{name} {means:?}");
            test.push(4, send(&writer, &texts[1]));
            let mut ends = test.enter(2);
            ends.sort_unstable();
            assert_eq!(ends, [(2, 4), (4, 4)], "{name} {means:?}");
            let got = [&first.copy()[..4], &second.copy()[..4]].concat();
            assert_eq!(got, b"one\ntwo\n", "{name} {means:?}");
            assert_eq!(test.flights(), 0);
        }
    }
}

#[test]
fn a_pipe_without_reader_fails_whatever_there_is_to_try_it() {
    for means in MEANS {
        let (reader, writer) = pipe();
        let mut test = Loop::with(EpollOptions::new().means(means));
        let buffer = Lendable::new(b"x");
        drop(reader);
        assert_eq!(test.run(send(&writer, &buffer)), err(Errno::PIPE), "{means:?}");
        let (reader, writer) = pipe();
        assert_eq!(test.run(send(&reader, &buffer)), err(Errno::BADF), "{means:?}");
        assert_eq!(test.run(receive(&writer, &buffer)), err(Errno::BADF), "{means:?}");
    }
}

#[test]
fn a_long_write_is_taken_by_a_slow_reader_whatever_there_is_to_try_it() {
    const TOTAL: usize = 1 << 20;
    for means in MEANS {
        let (reader, writer) = pipe();
        let slow = thread::spawn(move || {
            let mut all = Vec::new();
            let mut part = [0; 3000];
            loop {
                match rustix::io::read(&reader, &mut part).unwrap() {
                    0 => return all,
                    count => all.extend_from_slice(&part[..count]),
                }
            }
        });
        let content: Vec<u8> = (0..TOTAL).map(|index| (index % 251) as u8).collect();
        let buffer = Lendable::new(&content);
        let mut test = Loop::with(EpollOptions::new().means(means));
        let mut done = 0;
        while done < TOTAL {
            let (from, len) = (buffer.ptr().wrapping_add(done), (TOTAL - done) as u32);
            let res = test.run(Sqe::write(writer.as_raw_fd(), from, len, CURRENT_POSITION));
            assert!(res > 0, "{means:?}: {res}");
            done += res as usize;
        }
        drop(writer);
        assert_eq!(slow.join().unwrap(), content);
    }
}

/// Several readers compete for a byte in a pipe: none may get stuck on it.
#[test]
fn somebody_else_is_quicker() {
    for means in &MEANS[..3] {
        let (reader, writer) = pipe();
        let rival = rustix::io::fcntl_dupfd_cloexec(&reader, 3).unwrap();
        let mut test = Loop::with(EpollOptions::new().means(*means));
        let buffer = Lendable::zeroed(1);
        let mut count = 0;
        for round in 0..200 {
            test.push(round, receive(&reader, &buffer));
            assert_eq!(test.submit(), []);
            rustix::io::write(&writer, b"x").unwrap();
            if round % 2 == 0 {
                rustix::io::read(&rival, &mut [0]).unwrap();
                assert_eq!(test.turn(), [], "{means:?}");
                rustix::io::write(&writer, b"y").unwrap();
            }
            assert_eq!(test.enter(1), [(round, 1)], "{means:?}");
            count += 1;
        }
        assert_eq!(count, 200);
        assert_eq!(test.epoll.statistics(Lane::Elastic).running, 0, "{means:?}");
    }
}

#[test]
fn a_kernel_of_today_needs_no_thread_for_a_pipe() {
    let mut test = Loop::new();
    let (reader, writer) = pipe();
    let (out, back) = (Lendable::new(b"x"), Lendable::zeroed(1));
    test.push(1, receive(&reader, &back));
    assert_eq!(test.submit(), []);
    assert_eq!(test.run_both(send(&writer, &out)), [(1, 1), (2, 1)]);
    for lane in Lane::ALL {
        assert_eq!(test.epoll.statistics(lane).threads_peak, 0);
    }
}

impl Loop {
    /// Runs an operation that makes another one end.
    #[track_caller]
    fn run_both(&mut self, sqe: Sqe) -> Vec<(u64, i32)> {
        self.push(2, sqe);
        let mut ends = self.enter(2);
        ends.sort_unstable();
        ends
    }
}
