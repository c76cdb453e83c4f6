//! Loops on several threads share files: each token is answered once, and each file is closed once,
//! also if loops end meanwhile.

use std::collections::HashSet;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use sakia_driver::{
    Bypass, CURRENT_POSITION, Driver, Epoll, FileHandle, Loop, Request, Ticket, Value, Wait,
};

use crate::support::{Random, TempDir, assert_unread};

const LOOPS: u64 = 4;
const FILES: usize = 3;
const STEPS: u64 = 150;

/// A loop's program on files of which the even ones are pipes. The byte of each file's contents tells it.
fn play(files: [FileHandle; FILES], seed: u64) {
    let mut random = Random::new(seed);
    let driver = if seed.is_multiple_of(2) {
        Driver::uring().unwrap()
    } else {
        Driver::new(Epoll::new().unwrap())
    };
    let mut ring = Loop::on(driver).unwrap();
    if random.below(2) == 0 {
        ring.set_bypass(Bypass::Never);
    }
    let mut files = files.map(Some);
    let mut open: HashSet<u64> = HashSet::new();
    let mut tickets: Vec<Ticket> = Vec::new();
    for token in 0..STEPS {
        let at = random.below(FILES as u64) as usize;
        let Some(file) = &files[at] else { continue };
        let (buffer, offset) = (vec![0; 4], if at == 1 { 0 } else { CURRENT_POSITION });
        let request = match random.below(40) {
            0 => Request::Close { file: file.clone() },
            1 => {
                drop(files[at].take());
                continue;
            }
            2 => {
                file.with_fd(|_| thread::yield_now()).ok();
                continue;
            }
            3 => {
                if let Some(Ok(1..)) = file.try_read(&mut [0; 4], (at == 1).then_some(0)) {
                    assert_eq!(at, 1, "pipes are empty");
                }
                continue;
            }
            4 => {
                match file.try_stat() {
                    Some(Ok(stat)) => assert_eq!(stat.is_file(), at == 1, "another file"),
                    Some(Err(error)) => assert_eq!(error.raw_os_error(), Some(libc::EBADF)),
                    None => {}
                }
                continue;
            }
            _ => Request::read(file, buffer.into(), offset),
        };
        tickets.push(ring.submit(request, token << 2 | at as u64).unwrap());
        assert!(open.insert(token << 2 | at as u64));
        match random.below(4) {
            0 => ring.cancel(tickets[random.below(tickets.len() as u64) as usize]),
            1 => drop(ring.wait(Wait::Poll).unwrap()),
            _ => {}
        }
        while random.below(3) > 0
            && let Some(outcome) = ring.take()
        {
            check(outcome, &mut open);
        }
    }
    drop(files);
    if random.below(2) == 0 {
        // The others' files are closed while this one waits, or it is told to stop below.
        for ticket in tickets {
            ring.cancel(ticket);
        }
        for _ in 0..20 {
            ring.wait(Wait::For(Duration::from_millis(1))).unwrap();
            while let Some(outcome) = ring.take() {
                check(outcome, &mut open);
            }
        }
    }
    assert!(ring.stop(Duration::from_secs(60)).leaked.is_empty());
    while let Some(outcome) = ring.take() {
        check(outcome, &mut open);
    }
    assert!(open.is_empty() && ring.under_way() == 0, "{open:?} of seed {seed}");
}

fn check(outcome: sakia_driver::Outcome, open: &mut HashSet<u64>) {
    assert!(open.remove(&outcome.token) && !outcome.more, "{outcome:?}");
    match outcome.result {
        Ok(0) => {}
        Ok(len) => {
            assert_eq!(outcome.token & 3, 1, "pipes are empty");
            let Value::Buffer(buffer) = outcome.value else { panic!("it has its memory") };
            assert_eq!(buffer.into_vec().unwrap()[..len], [b'1'; 4][..len], "another file");
        }
        Err(error) => {
            let errno = error.raw_os_error();
            assert!(matches!(errno, Some(libc::ECANCELED | libc::EBADF)), "{error}");
        }
    }
}

#[test]
fn loops_share_files_that_any_of_them_closes() {
    let folder = TempDir::new();
    let name = folder.join("file");
    std::fs::write(&name, [b'1'; 16]).unwrap();
    for round in 0..60 {
        let (readers, writers): (Vec<_>, Vec<_>) = (0..2).map(|_| std::io::pipe().unwrap()).unzip();
        let [first, last]: [_; 2] = readers.try_into().unwrap();
        let middle = FileHandle::new(std::fs::File::open(&name).unwrap());
        let files = [FileHandle::new(first), middle, FileHandle::lent(Arc::new(last))];
        let begin = Arc::new(Barrier::new(LOOPS as usize));
        let loops: Vec<_> = (0..LOOPS)
            .map(|index| {
                let (files, begin) = (files.clone(), Arc::clone(&begin));
                thread::spawn(move || {
                    begin.wait();
                    play(files, round * LOOPS + index);
                })
            })
            .collect();
        drop(files);
        for one in loops {
            one.join().unwrap();
        }
        for writer in &writers {
            assert_unread(writer);
        }
    }
}
