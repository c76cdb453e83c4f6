//! Threads: when they start and end, what they are called, and what happens at the end.

use rustix::event::PollFlags;

use super::*;
use crate::Lane;
use crate::epoll::transfer::poll_now;
use crate::sys;

#[test]
fn threads_start_when_there_is_work_and_end_without() {
    let dir = TempDir::new();
    let mut test = Loop::with(EpollOptions::new().idle_time(Duration::from_millis(1)));
    let path = dir.file("file", b"abc");
    assert_eq!(test.epoll.statistics(Lane::Bounded).threads, 0);
    for _ in 0..20 {
        drop(test.open(&path, OFlags::RDONLY).unwrap());
        wait_until(|| test.epoll.statistics(Lane::Bounded).threads == 0);
    }
    let bounded = test.epoll.statistics(Lane::Bounded);
    assert_eq!((bounded.finished, bounded.running, bounded.queued), (20, 0, 0));
    assert_eq!(bounded.threads_peak, 1);
    assert_eq!(bounded.oldest_running, None);
}

/// Threads stop waiting at the moment when new work arrives.
#[test]
fn work_that_comes_when_threads_end_is_done() {
    let dir = TempDir::new();
    let options = EpollOptions::new().idle_time(Duration::ZERO).threads_max(Lane::Bounded, 2);
    let mut test = Loop::with(options);
    let file = test.open(&dir.file("file", b"abc"), OFlags::RDONLY).unwrap();
    let buffers: Vec<_> = (0..4).map(|_| Lendable::zeroed(3)).collect();
    for round in 0..1000 {
        let count = 1 + round % 4;
        for (index, buffer) in buffers[..count].iter().enumerate() {
            test.push(index as u64, read(&file, buffer, 0));
        }
        let mut ends = test.enter(count as u32);
        ends.sort_unstable();
        assert!(ends.into_iter().eq((0..count as u64).map(|index| (index, 3))));
    }
    let bounded = test.epoll.statistics(Lane::Bounded);
    assert_eq!(bounded.finished, 2501);
    assert!(bounded.threads_peak <= 2);
}

#[test]
fn a_sleep_without_jobs_is_not_interrupted_to_look_after_them() {
    let mut test = Loop::new();
    let before = sys::voluntary_switches();
    for _ in 0..20 {
        test.epoll.enter(1, Some(Duration::from_millis(20)), None).unwrap();
    }
    // Each sleep needs one wake; it would need two if it began with a check for jobs.
    let switches = sys::voluntary_switches() - before;
    assert!(switches < 30, "it slept {switches} times");
}

#[test]
fn jobs_begin_in_the_order_of_admission() {
    let dir = TempDir::new();
    let options = EpollOptions::new().threads_max(Lane::Bounded, 1).entries(64, 64);
    let mut test = Loop::with(options);
    let file = test.open(&dir.file("file", b""), OFlags::WRONLY | OFlags::APPEND).unwrap();
    let letters: Vec<_> = (b'a'..=b'z').map(|letter| Lendable::new(&[letter])).collect();
    for (index, letter) in letters.iter().enumerate() {
        test.push(index as u64, write(&file, letter, 0));
    }
    let ends = test.enter(26);
    assert!(ends.into_iter().eq((0..26).map(|index| (index, 1))));
    let written = std::fs::read(dir.join("file")).unwrap();
    assert_eq!(written, (b'a'..=b'z').collect::<Vec<_>>());
}

#[test]
fn threads_have_names_and_see_no_signals() {
    let (dir, mut test) = (TempDir::new(), Loop::new());
    let fifo = dir.fifo("fifo");
    let lent = Lendable::path(&fifo);
    test.push(1, Sqe::openat(AT_FDCWD, lent.ptr(), OFlags::CLOEXEC.bits(), 0));
    test.turn_until(|test| test.epoll.statistics(Lane::Elastic).running == 1);
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let statuses =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    // Threads of other tests are among them. A thread that is just ending counts no threads, and shows no
    // mask.
    let is_ours = |status: &String| {
        status.contains("Name:\tsakia-elastic-0\n") && !status.contains("Threads:\t0\n")
    };
    let ours: Vec<_> = statuses.filter(is_ours).collect();
    assert!(!ours.is_empty());
    for status in ours {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
        assert_ne!(blocked & 1 << (libc::SIGTERM - 1), 0);
        assert_eq!(blocked & 1 << (libc::SIGSEGV - 1), 0);
    }
    let _both = open_both_ends(&fifo);
    // SAFETY: the operation has just opened it.
    drop(unsafe { OwnedFd::from_raw_fd(test.enter(1)[0].1) });
}

/// The end waits for no thread; the last thread frees the rest.
#[test]
fn the_end_does_not_wait_for_a_stuck_thread() {
    let dir = TempDir::new();
    // With more threads on the bounded lane, the second path may be found to be a FIFO before the first.
    let options = EpollOptions::new().threads_max(Lane::Bounded, 1).threads_max(Lane::Elastic, 1);
    let mut test = Loop::with(options);
    let fifos = [dir.fifo("first"), dir.fifo("second")];
    for (index, fifo) in fifos.iter().enumerate() {
        let lent = Box::leak(Box::new(Lendable::path(fifo))); // a thread has it after the end
        let flags = (OFlags::WRONLY | OFlags::CLOEXEC).bits();
        test.push(index as u64, Sqe::openat(AT_FDCWD, lent.ptr(), flags, 0));
    }
    test.turn_until(|test| {
        let elastic = test.epoll.statistics(Lane::Elastic);
        (elastic.running, elastic.queued) == (1, 1)
    });
    let pool = test.epoll.machine.pool.alive();
    drop(test);
    assert!(pool.upgrade().is_some(), "a thread is in there");
    let readers = fifos.each_ref().map(|fifo| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(fifo, flags, rustix::fs::Mode::empty()).unwrap()
    });
    wait_until(|| pool.upgrade().is_none());
    // After the end, an opened file is closed, and a queued open never begins: a reader gets a hang-up only
    // if there was a writer.
    let was_opened = readers.map(|reader| {
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(0));
        // SAFETY: the pipe is open.
        let ready = unsafe { poll_now(reader.as_raw_fd(), PollFlags::IN) }.unwrap();
        ready.contains(PollFlags::HUP)
    });
    assert_eq!(was_opened, [true, false]);
}

#[test]
fn a_backend_that_did_nothing_ends_at_once_and_one_with_idle_threads_too() {
    drop(Loop::new());
    let (dir, mut test) = (TempDir::new(), Loop::new());
    drop(test.open(&dir.file("file", b""), OFlags::RDONLY).unwrap());
    let pool = test.epoll.machine.pool.alive();
    drop(test);
    wait_until(|| pool.upgrade().is_none());
}
