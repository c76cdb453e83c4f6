//! Plain calls that fail, lie or stall, and the driver's reaction.

use std::time::Duration;

use rustix::io::Errno;
use sakia_ring::Opcode;

use crate::sim::random::Random;
use crate::sim::{FaultKind, PlainFault, Routes, Sim, SimBuilder, SimHandle, Target};
use crate::{
    Begun, Bypass, CURRENT_POSITION, Counters, Driver, Fd, KindCounters, MountFacts, Op, OpKind,
    Operation, Rules, Support, Wait, WholeFile,
};

use super::SEEDS;

const READS: Target = Target::opcode(Opcode::READ);
const WRITES: Target = Target::opcode(Opcode::WRITE);
const STALL: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the content of the file: byte `i` is `i`, modulo 256.
fn content(len: usize) -> Vec<u8> {
    (0..len).map(|index| index as u8).collect()
}

/// Returns a driver that makes plain calls, and an open file of 1000 bytes.
fn scene(builder: SimBuilder) -> (Driver, SimHandle, Fd) {
    let sim = builder.plain_calls(true).build();
    let handle = sim.handle();
    handle.create_file("file", content(1000));
    let driver = Driver::new(sim);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let open = &mut driver.open(None, c"file".into(), rustix::fs::OFlags::RDWR.bits(), 0);
    let fd = finish(&driver, open).unwrap();
    (driver, handle, fd)
}

fn plain() -> (Driver, SimHandle, Fd) {
    scene(Sim::builder(1).routes(Routes::INLINE))
}

fn finish<O: Operation>(driver: &Driver, op: &mut Op<O>) -> O::Output {
    for _ in 0..10_000 {
        if let Some(output) = op.try_take() {
            return output;
        }
        driver.turn(Wait::Forever).unwrap();
    }
    panic!("not done after 10,000 turns");
}

fn ways(driver: &Driver, kind: OpKind) -> KindCounters {
    driver.counters().of(kind)
}

fn facts(driver: &Driver) -> MountFacts {
    let [facts] = &driver.mounts()[..] else { panic!("there is one mount") };
    facts.clone()
}

fn read(driver: &Driver, fd: &Fd, len: usize, offset: u64) -> Vec<u8> {
    let (result, mut buf) = finish(driver, &mut driver.read(fd, vec![0; len], offset));
    buf.truncate(result.unwrap());
    buf
}

fn write(driver: &Driver, fd: &Fd) {
    let (result, _) = finish(driver, &mut driver.write(fd, vec![9; 10], 0));
    assert_eq!(result.unwrap(), 10);
}

// ---- refusals and lies -------------------------------------------------------------------------

#[test]
fn a_kernel_without_plain_calls_sees_the_queue_only() {
    let sim = Sim::new(3);
    let handle = sim.handle();
    handle.create_file("file", content(10));
    let driver = Driver::new(sim);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let fd = finish(&driver, &mut driver.open(None, c"file".into(), 0, 0)).unwrap();
    assert_eq!(read(&driver, &fd, 10, 0), content(10));
    assert_eq!((ways(&driver, OpKind::Read).inline, ways(&driver, OpKind::Read).submitted), (0, 1));
}

#[test]
fn plain_calls_need_no_enter() {
    let (driver, handle, fd) = plain();
    assert_eq!(read(&driver, &fd, 100, 7), content(107)[7..]);
    write(&driver, &fd);
    assert_eq!(handle.contents("file").unwrap()[..11], [&[9; 10][..], &[10]].concat());
    assert_eq!(finish(&driver, &mut driver.statx_fd(&fd)).unwrap().size, 1000);
    drop(fd);
    for kind in [OpKind::Open, OpKind::Read, OpKind::Write, OpKind::Statx, OpKind::Close] {
        let KindCounters { inline, submitted, .. } = ways(&driver, kind);
        assert_eq!((inline, submitted), (1, 0), "{}", kind.name());
    }
    assert_eq!((driver.counters().enters, handle.open_descriptors()), (0, 0));
}

#[test]
fn zero_without_waiting_is_not_the_end_of_a_file() {
    let (driver, handle, fd) = plain();
    handle.script_plain(READS, PlainFault::End);
    assert_eq!(read(&driver, &fd, 100, 0), content(100), "there are 1000 bytes");
    assert_eq!(facts(&driver).nowait_read, Support::Lies);
    assert_eq!(read(&driver, &fd, 100, 100), content(200)[100..]);
    let ways = ways(&driver, OpKind::Read);
    assert_eq!((ways.inline, ways.submitted), (1, 1), "a liar is not asked again");
}

#[test]
fn the_end_of_a_file_is_no_lie() {
    let (driver, _handle, fd) = plain();
    assert_eq!(read(&driver, &fd, 100, 1000), []);
    let (result, _) = finish(&driver, &mut driver.read(&fd, Vec::new(), 0));
    assert_eq!(Errno::from_io_error(&result.unwrap_err()), Some(Errno::INVAL), "no room, no read");
    assert_ne!(facts(&driver).nowait_read, Support::Lies);
    assert_eq!(ways(&driver, OpKind::Read).submitted, 0);
}

#[test]
fn a_short_read_is_no_end_and_no_lie() {
    let (driver, handle, fd) = plain();
    handle.script_plain(READS, PlainFault::Short(3));
    let mut bytes = read(&driver, &fd, 2000, 0);
    assert_eq!(bytes.len(), 3);
    loop {
        let more = read(&driver, &fd, 2000, bytes.len() as u64);
        if more.is_empty() {
            break;
        }
        bytes.extend(more);
    }
    assert_eq!(bytes, content(1000));
    assert_eq!(facts(&driver).nowait_read, Support::Yes);
}

#[test]
fn what_cannot_refuse_to_wait_is_asked_once() {
    let (driver, _handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    for _ in 0..3 {
        assert_eq!(read(&driver, &fd, 10, 0).len(), 10);
        write(&driver, &fd);
    }
    let facts = facts(&driver);
    assert_eq!((facts.nowait_read, facts.nowait_write), (Support::No, Support::No));
    assert_eq!((ways(&driver, OpKind::Read).inline, ways(&driver, OpKind::Write).inline), (3, 3));
}

#[test]
fn what_would_block_goes_into_the_queue_and_cold_files_are_tried_seldom() {
    let (driver, handle, fd) = plain();
    let per_65536 = u16::MAX;
    handle.set_fault(FaultKind::PlainBlocks, per_65536);
    for _ in 0..40 {
        assert_eq!(read(&driver, &fd, 10, 5), content(15)[5..]);
    }
    let cold = ways(&driver, OpKind::Read);
    assert_eq!((cold.inline, cold.would_block, cold.submitted), (0, 3, 40));
    handle.set_fault(FaultKind::PlainBlocks, 0);
    for _ in 0..40 {
        read(&driver, &fd, 10, 5);
    }
    let warm = ways(&driver, OpKind::Read);
    assert!(warm.inline >= 25 && warm.would_block == 3, "{warm:?}");
}

/// f2fs answers a non-blocking buffered write with `EINVAL`.
#[test]
fn writes_that_are_invalid_without_waiting_are_made_plainly() {
    let (driver, handle, fd) = plain();
    handle.script_plain(WRITES, PlainFault::Errno(22));
    write(&driver, &fd);
    assert_eq!(facts(&driver).nowait_write, Support::No);
    handle.script_plain(WRITES, PlainFault::End);
    write(&driver, &fd);
    assert_eq!(ways(&driver, OpKind::Write).inline, 2);
    // An invalid write stays invalid, and tells nothing about the file system.
    let (driver, _handle, fd) = plain();
    let (result, _) = finish(&driver, &mut driver.write(&fd, vec![0; 4], i64::MAX as u64 + 9));
    assert_eq!(result.unwrap_err().raw_os_error(), Some(22));
    assert_eq!(facts(&driver).nowait_write, Support::Unknown);
}

#[test]
fn transfers_in_parts_are_judged_as_those_of_one() {
    let readv = Target::opcode(Opcode::READV);
    let read = |driver: &Driver, fd: &Fd, offset| {
        let bufs = vec![vec![0; 60], vec![0; 40]];
        let (result, bufs) = finish(driver, &mut driver.read_vectored(fd, bufs, offset));
        let mut bytes = bufs.concat();
        bytes.truncate(result.unwrap());
        bytes
    };
    let write = |driver: &Driver, fd: &Fd| {
        let bufs = vec![vec![9; 6], vec![9; 4]];
        let (result, _) = finish(driver, &mut driver.write_vectored(fd, bufs, 0));
        assert_eq!(result.unwrap(), 10);
    };
    // Calls that would have blocked go into the queue, and a cold file is rarely tried.
    let (driver, handle, fd) = plain();
    handle.set_fault(FaultKind::PlainBlocks, u16::MAX);
    for _ in 0..40 {
        assert_eq!(read(&driver, &fd, 5), content(105)[5..]);
    }
    let cold = ways(&driver, OpKind::Read);
    assert_eq!((cold.inline, cold.would_block, cold.submitted), (0, 3, 40));
    // The end of the file is no miss, and neither is a read of 0 bytes.
    let (driver, handle, fd) = plain();
    assert_eq!(read(&driver, &fd, 1000), []);
    assert_eq!(read(&driver, &fd, 950), content(1000)[950..]);
    assert_eq!(facts(&driver).nowait_read, Support::Yes);
    handle.script_plain(readv, PlainFault::Short(70));
    assert_eq!(read(&driver, &fd, 0), content(70));
    handle.script_plain(readv, PlainFault::End);
    assert_eq!(read(&driver, &fd, 0), content(100), "there are 1000 bytes");
    assert_eq!(facts(&driver).nowait_read, Support::Lies);
    let ways_of_read = ways(&driver, OpKind::Read);
    assert_eq!((ways_of_read.inline, ways_of_read.submitted), (4, 0));
    // Without non-blocking calls, blocking ones are made, and timed.
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    assert_eq!(read(&driver, &fd, 0), content(100));
    write(&driver, &fd);
    let learned = facts(&driver);
    assert_eq!((learned.nowait_read, learned.nowait_write), (Support::No, Support::No));
    for _ in 0..2 {
        handle.script_plain(Target::opcode(Opcode::WRITEV), PlainFault::Stall(STALL));
        write(&driver, &fd);
    }
    assert!(facts(&driver).is_slow);
    assert_eq!(ways(&driver, OpKind::Write).submitted, 0);
    write(&driver, &fd);
    assert_eq!(ways(&driver, OpKind::Write).submitted, 1);
    assert_eq!(handle.contents("file").unwrap()[..11], [&[9; 10][..], &[10]].concat());
}

#[test]
fn other_errors_are_the_operations_own() {
    let (driver, handle, fd) = plain();
    for (target, is_read) in [(READS, true), (WRITES, false)] {
        handle.script_plain(target, PlainFault::Errno(5));
        let result = if is_read {
            finish(&driver, &mut driver.read(&fd, vec![0; 4], 0)).0
        } else {
            finish(&driver, &mut driver.write(&fd, vec![0; 4], 0)).0
        };
        assert_eq!(result.unwrap_err().raw_os_error(), Some(5));
    }
    assert_eq!(driver.counters().enters, 0);
}

#[test]
fn a_plain_close_that_fails_is_told_or_counted() {
    let (driver, handle, fd) = plain();
    let fds: Vec<_> = (0..2)
        .map(|_| finish(&driver, &mut driver.open(None, c"file".into(), 0, 0)).unwrap())
        .collect();
    for fd in fds.iter().chain([&fd]) {
        read(&driver, fd, 1, 0);
        handle.script_plain(Target::opcode(Opcode::CLOSE), PlainFault::Errno(5));
    }
    let told = driver.close(fd).try_take().expect("closed at once");
    assert_eq!(told.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(driver.counters().close_errors, 0);
    let mut fds = fds.into_iter();
    drop(driver.close(fds.next().unwrap()));
    drop(fds.next());
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((driver.counters().close_errors, driver.counters().enters), (2, 0));
    assert_eq!((handle.scripted(), ways(&driver, OpKind::Close).inline), (0, 3));
    assert_eq!(driver.live_operations(), 0);
}

// ---- whole files -------------------------------------------------------------------------------

#[test]
fn a_whole_file_ends_where_its_size_says() {
    let (driver, handle, _fd) = plain();
    let now = |expected| driver.read_file_now(c"file", expected).unwrap();
    assert!(matches!(now(1000), WholeFile::Read(bytes) if bytes == content(1000)));
    assert_eq!(handle.open_descriptors(), 1);
    for fault in [PlainFault::Short(400), PlainFault::End, PlainFault::WouldBlock] {
        handle.script_plain(READS, fault);
        let WholeFile::Opened(fd, mut bytes) = now(1000) else { panic!("{fault:?}") };
        assert!(bytes.len() <= 400);
        let rest = read(&driver, &fd, 2000, bytes.len() as u64);
        bytes.extend(rest);
        assert_eq!(bytes, content(1000), "{fault:?}");
    }
    handle.script_plain(READS, PlainFault::Errno(5));
    let WholeFile::Opened(fd, bytes) = now(1000) else { panic!("it is open") };
    assert_eq!((bytes.len(), read(&driver, &fd, 5, 0)), (0, content(5)));
    drop(fd);
    let WholeFile::Opened(fd, bytes) = now(400) else { panic!("it is longer") };
    assert!(bytes.len() >= 401 && bytes == content(bytes.len()));
    drop(fd);
    driver.turn(Wait::Poll).unwrap();
    for more_than_memory in [usize::MAX, usize::MAX - 1, isize::MAX as usize] {
        let error = driver.read_file_now(c"file", more_than_memory).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(12), "no memory");
        assert_eq!(handle.open_descriptors(), 1, "the opened file is closed");
    }
    let missing = driver.read_file_now(c"missing", 5).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(2));
    handle.script_plain(Target::opcode(Opcode::OPENAT), PlainFault::WouldBlock);
    assert!(matches!(now(1000), WholeFile::NotNow));
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((handle.open_descriptors(), driver.live_operations()), (1, 0));
}

/// Returns the numbers of plain reads that were tried so far: non-blocking ones, and blocking ones.
fn tried_reads(handle: &SimHandle) -> [usize; 2] {
    let log = handle.log_text();
    let count = |nowait: &str| {
        let is_one = |line: &&str| line.contains("plain READ,") && line.contains(nowait);
        log.lines().filter(is_one).count()
    };
    [count("nowait 1"), count("nowait 0")]
}

/// One file is tried in vain. For the next files, the mounts are queried before the read.
#[test]
fn whole_files_of_a_mount_that_cannot_refuse_to_wait() {
    let builder = Sim::builder(1).keep_log(true).refuses_to_wait(false);
    let (driver, handle, _fd) = scene(builder);
    for round in 1..=5 {
        let now = driver.read_file_now(c"file", 1000).unwrap();
        assert!(matches!(now, WholeFile::Read(bytes) if bytes == content(1000)), "{round}");
        assert_eq!(tried_reads(&handle), [1, round]);
        assert_eq!(ways(&driver, OpKind::Read).inline, round as u64);
    }
    assert_eq!(facts(&driver).nowait_read, Support::No);
    // The size from before the read is the end of the file.
    handle.script_plain(READS, PlainFault::Short(400));
    let WholeFile::Opened(fd, bytes) = driver.read_file_now(c"file", 1000).unwrap() else {
        panic!("the read was short")
    };
    assert_eq!(bytes, content(400));
    drop(fd);
    // Larger files are left to operations, as on other mounts.
    let WholeFile::Opened(fd, bytes) = driver.read_file_now(c"file", 400).unwrap() else {
        panic!("it is longer")
    };
    assert!(bytes.len() >= 401 && bytes == content(bytes.len()));
    drop(fd);
    driver.turn(Wait::Poll).unwrap();
    assert_eq!((handle.open_descriptors(), driver.live_operations()), (1, 0));
}

/// The breaker covers whole files, too: they are not read while it is open, and a stall of theirs opens it.
#[test]
fn whole_files_of_a_mount_that_is_slow() {
    let builder = Sim::builder(1).keep_log(true).refuses_to_wait(false);
    let (driver, handle, _fd) = scene(builder);
    let mut plain = 0;
    for _ in 0..20 {
        handle.script_plain(READS, PlainFault::Stall(Duration::from_millis(1)));
        let now = driver.read_file_now(c"file", 1000).unwrap();
        plain += usize::from(matches!(now, WholeFile::Read(_)));
        drop(now);
        driver.turn(Wait::Poll).unwrap();
    }
    assert!(facts(&driver).is_slow, "{:?}", facts(&driver));
    assert!((1..20).contains(&plain), "{plain}");
    let WholeFile::Opened(fd, bytes) = driver.read_file_now(c"file", 1000).unwrap() else {
        panic!("the breaker is open")
    };
    assert!(bytes.is_empty());
    assert_eq!(read(&driver, &fd, 2000, 0), content(1000));
}

// ---- stalls ------------------------------------------------------------------------------------

/// Makes a write, and returns whether it was a plain call.
fn write_was_plain(driver: &Driver, fd: &Fd) -> bool {
    let before = ways(driver, OpKind::Write).inline;
    write(driver, fd);
    ways(driver, OpKind::Write).inline > before
}

fn stalled_write(driver: &Driver, handle: &SimHandle, fd: &Fd) {
    handle.script_plain(WRITES, PlainFault::Stall(STALL));
    assert!(write_was_plain(driver, fd));
    assert_eq!(handle.scripted(), 0, "it was not made twice");
}

#[test]
fn plain_writes_stop_after_two_stalls_and_are_tried_again_in_ever_longer_intervals() {
    let (driver, handle, fd) =
        scene(Sim::builder(1).refuses_to_wait(false).enter_cost(Duration::ZERO));
    assert!(write_was_plain(&driver, &fd), "the first is watched");
    stalled_write(&driver, &handle, &fd);
    assert!(!facts(&driver).is_slow, "the call may not be the cause");
    stalled_write(&driver, &handle, &fd);
    assert!(facts(&driver).is_slow && facts(&driver).slow_count == 1);
    for round in 0..3 {
        let opened = handle.now();
        let pause = PAUSE * (1 << round);
        assert!(!write_was_plain(&driver, &fd), "it goes into the queue");
        let left = (opened + pause).saturating_sub(handle.now());
        handle.advance(left - Duration::from_nanos(1));
        assert!(!write_was_plain(&driver, &fd), "round {round}");
        let left = (opened + pause).saturating_sub(handle.now());
        handle.advance(left);
        // A trial, which stalls again.
        stalled_write(&driver, &handle, &fd);
        assert_eq!(facts(&driver).slow_count, round + 2);
        assert!(facts(&driver).is_slow);
    }
    // Reads are calls of the same file system, and stop as well.
    let before = ways(&driver, OpKind::Read).submitted;
    read(&driver, &fd, 10, 0);
    assert_eq!(ways(&driver, OpKind::Read).submitted, before + 1);
    // A quick trial ends it. After many more quick calls the pause starts over.
    handle.advance(PAUSE * 8);
    assert!(write_was_plain(&driver, &fd) && !facts(&driver).is_slow);
    for _ in 0..256 {
        assert!(write_was_plain(&driver, &fd));
    }
    stalled_write(&driver, &handle, &fd);
    stalled_write(&driver, &handle, &fd);
    assert!(facts(&driver).is_slow);
    handle.advance(PAUSE);
    assert!(write_was_plain(&driver, &fd), "the pause is the shortest again");
    assert_eq!(facts(&driver).slow_count, 5);
}

/// The kernel blocks a writer for many writes at a time.
#[test]
fn stalls_with_quick_writes_between_them_are_noticed() {
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    let stall_after = |quick: u32| {
        handle.script_plain(WRITES.skip(quick), PlainFault::Stall(STALL));
        (0..=quick).all(|_| write_was_plain(&driver, &fd)) && handle.scripted() == 0
    };
    assert!(stall_after(30) && stall_after(30));
    assert_eq!(facts(&driver).slow_count, 1);
    assert!(facts(&driver).is_slow);
    // A quick call does not make the next pause shorter.
    handle.advance(PAUSE);
    assert!(stall_after(30));
    assert_eq!(facts(&driver).slow_count, 2);
    handle.advance(PAUSE);
    assert!(!write_was_plain(&driver, &fd));
    handle.advance(PAUSE);
    assert!(write_was_plain(&driver, &fd));
}

#[test]
fn a_thread_that_is_kept_busy_has_not_waited() {
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    for _ in 0..20 {
        handle.script_plain(WRITES, PlainFault::Busy(STALL));
        assert!(write_was_plain(&driver, &fd));
    }
    assert_eq!((facts(&driver).is_slow, facts(&driver).slow_count), (false, 0));
}

#[test]
fn time_between_turns_is_nobodys_fault() {
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    for _ in 0..20 {
        assert!(write_was_plain(&driver, &fd));
        handle.advance(STALL);
        driver.turn(Wait::Poll).unwrap();
    }
    assert_eq!(facts(&driver).slow_count, 0);
}

#[test]
fn a_few_slow_calls_in_a_row_are_as_bad_as_one_stall() {
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    let slow = PlainFault::Stall(Duration::from_micros(60));
    let mut count = 0;
    while !facts_of(&driver).is_some_and(|facts| facts.is_slow) {
        handle.script_plain(WRITES, slow);
        write(&driver, &fd);
        count += 1;
        assert!(count <= 5, "{:?}", driver.mounts());
    }
    assert!(count >= 4);
}

fn facts_of(driver: &Driver) -> Option<MountFacts> {
    driver.mounts().into_iter().next()
}

#[test]
fn who_stays_in_the_queue_is_not_slowed_by_who_stalls() {
    let (driver, handle, fd) = scene(Sim::builder(1).refuses_to_wait(false));
    handle.script_plain(WRITES.skip(1), PlainFault::Stall(STALL));
    let queued = driver.without_bypass();
    for _ in 0..4 {
        let (result, _) = finish(&driver, &mut queued.write(&fd, vec![9; 10], 0));
        result.unwrap();
    }
    assert_eq!(handle.scripted(), 1);
    assert_eq!(ways(&driver, OpKind::Write).inline, 0);
}

// ---- everything at once ------------------------------------------------------------------------

/// Random reads, writes, drops and cancels, with every fault.
fn program(seed: u64) -> (u64, u64, [u64; 3]) {
    let builder = Sim::builder(seed).chaos(3000).refuses_to_wait(!seed.is_multiple_of(3));
    let sim = builder.plain_calls(true).build();
    let handle = sim.handle();
    handle.create_file("file", content(1000));
    handle.create_file("sink", Vec::new());
    let driver = Driver::new(sim);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let open = |path: &std::ffi::CStr| loop {
        let op = &mut driver.open(None, path.into(), rustix::fs::OFlags::RDWR.bits(), 0);
        if let Ok(fd) = finish(&driver, op) {
            break fd;
        }
    };
    let (file, sink) = (open(c"file"), open(c"sink"));
    let mut random = Random::new(seed);
    let mut reads = Vec::new();
    let mut vectored = Vec::new();
    for _ in 0..if cfg!(miri) { 20 } else { 200 } {
        let (offset, len) = (random.below(1000), 1 + random.below(40) as usize);
        let mut op = driver.read(&file, vec![0; len], offset);
        match random.below(8) {
            0 => op.cancel(),
            1 => drop(driver.read(&file, vec![0; len], offset)),
            2 => drop(driver.write(&sink, vec![1; len], offset)),
            3 => drop(driver.turn(Wait::Poll)),
            4 => handle.advance(Duration::from_millis(random.below(200))),
            5 => {
                vectored.push((offset, driver.read_vectored(&file, vec![vec![0; 2]; len], offset)))
            }
            _ => {}
        }
        reads.push((offset, op));
        if reads.len() > 30 {
            reads.retain_mut(|(offset, op)| check(*offset, op.try_take()));
        }
    }
    for (offset, op) in &mut reads {
        let mut output = op.try_take();
        while output.is_none() {
            // Every fault of an enter that is injected by chance is temporary.
            driver.turn(Wait::For(Duration::from_millis(1))).unwrap();
            output = op.try_take();
        }
        check(*offset, output);
    }
    for (offset, mut op) in vectored {
        let output = loop {
            if let Some(output) = op.try_take() {
                break output;
            }
            driver.turn(Wait::For(Duration::from_millis(1))).unwrap();
        };
        check(offset, Some((output.0, output.1.concat())));
    }
    drop((reads, file, sink));
    let counters = driver.counters();
    let handle_to_driver = driver.handle().clone();
    assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
    assert_eq!((handle_to_driver.live_operations(), handle.open_descriptors()), (0, 0));
    let counters_at_end = handle_to_driver.counters();
    assert_eq!(counters_at_end.started, counters_at_end.finished, "seed {seed}");
    let kinds = [FaultKind::PlainBlocks, FaultKind::PlainEnd, FaultKind::PlainStall];
    let injected = kinds.map(|kind| handle.injected(kind));
    (handle.log_hash(), counters.of(OpKind::Read).inline, injected)
}

/// Checks that a read is still in flight, or has returned the file's bytes.
fn check(offset: u64, output: Option<(std::io::Result<usize>, Vec<u8>)>) -> bool {
    let Some((result, buf)) = output else { return true };
    if let Ok(count) = result {
        let begin = offset as usize;
        assert_eq!(buf[..count], content(1000)[begin..begin + count]);
        assert!(count > 0, "the file has not ended at {offset}");
    }
    false
}

#[test]
fn random_programs_lose_nothing_and_are_the_same_again() {
    let (mut inline, mut injected) = (0, [0; 3]);
    for seed in 0..SEEDS {
        let first = program(seed);
        inline += first.1;
        injected.iter_mut().zip(first.2).for_each(|(all, count)| *all += count);
        if seed % 8 == 0 {
            assert_eq!(program(seed), first, "seed {seed}");
        }
    }
    let is_long = !cfg!(miri);
    assert!(inline > 0 && !(is_long && injected.contains(&0)), "{inline} {injected:?}");
}

// ---- operations without a slot -----------------------------------------------------------------

/// Awaits an operation that was begun.
fn end<O: Operation>(driver: &Driver, begun: Begun<O>) -> O::Output {
    match begun {
        Begun::Done(output) => output,
        Begun::Op(mut op) => finish(driver, &mut op),
    }
}

/// The result of a transfer, and its bytes.
type Transferred = (Result<usize, Option<i32>>, Vec<u8>);

/// Random reads and writes with every fault, each awaited at once: started, or begun. Returns all results,
/// the counters, and the injected faults.
fn transfers(seed: u64, are_begun: bool) -> (Vec<Transferred>, Counters, [u64; 3]) {
    let builder = Sim::builder(seed).chaos(2000).refuses_to_wait(!seed.is_multiple_of(3));
    let sim = builder.plain_calls(!seed.is_multiple_of(7)).build();
    let handle = sim.handle();
    handle.create_file("file", content(1000));
    let driver = Driver::new(sim);
    driver.set_bypass(Bypass::Rules(Rules::default()));
    let open = |flags: rustix::fs::OFlags| loop {
        if let Ok(fd) = finish(&driver, &mut driver.open(None, c"file".into(), flags.bits(), 0)) {
            break fd;
        }
    };
    let files = [
        open(rustix::fs::OFlags::RDWR),
        open(rustix::fs::OFlags::RDONLY),
        open(rustix::fs::OFlags::RDWR | rustix::fs::OFlags::APPEND),
    ];
    let queued = driver.handle().without_bypass();
    let mut random = Random::new(seed ^ 1);
    let mut results = Vec::new();
    for _ in 0..if cfg!(miri) { 20 } else { 200 } {
        let (offset, len) = (random.below(1100), random.below(40) as usize);
        let file = &files[random.below(3) as usize];
        let offset = if random.below(9) == 0 { CURRENT_POSITION } else { offset };
        let handle_of = if random.below(9) == 0 { &queued } else { driver.handle() };
        let (result, buf) = match random.below(8) {
            0 => {
                handle.advance(Duration::from_millis(random.below(200)));
                // Cold files, and warm ones.
                handle.set_fault(
                    FaultKind::PlainBlocks,
                    [0, 2000, u16::MAX][random.below(3) as usize],
                );
                continue;
            }
            1 => {
                // More than a turn has calls for.
                (0..100).for_each(|_| drop(driver.read(&files[0], vec![0; 1], 0)));
                continue;
            }
            2 | 3 if are_begun => end(&driver, handle_of.begin_write(file, vec![1; len], offset)),
            2 | 3 => finish(&driver, &mut handle_of.write(file, vec![1; len], offset)),
            _ if are_begun => end(&driver, handle_of.begin_read(file, vec![0; len], offset)),
            _ => finish(&driver, &mut handle_of.read(file, vec![0; len], offset)),
        };
        results.push((result.map_err(|error| error.raw_os_error()), buf));
    }
    drop(files);
    let end = driver.handle().clone();
    assert_eq!(driver.shutdown(Duration::from_secs(10)).leaked, 0);
    let kinds = [FaultKind::PlainBlocks, FaultKind::PlainEnd, FaultKind::PlainStall];
    (results, end.counters(), kinds.map(|kind| handle.injected(kind)))
}

/// A transfer that is begun does all that one that is started does, but for the slot.
#[test]
fn what_is_begun_is_what_is_started() {
    for seed in 0..SEEDS {
        let (started, begun) = (transfers(seed, false), transfers(seed, true));
        for (number, (started, begun)) in started.0.iter().zip(&begun.0).enumerate() {
            assert_eq!(begun, started, "seed {seed}, transfer {number}");
        }
        assert_eq!(begun, started, "seed {seed}");
    }
}
