//! Random programs, with `std` as the model.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::driver::{adopt, c_path_of, finish};
use super::*;
use crate::{Driver, Fd, Wait, epoll::transfer::Means};
use sakia_ring::CURRENT_POSITION;

/// The objects of a program: a file twice, and a pipe that is a queue.
struct World {
    ours: Fd,
    theirs: File,
    reader: Fd,
    writer: Fd,
    pipe: VecDeque<u8>,
}

fn run_program(seed: u64, options: EpollOptions) {
    let dir = TempDir::new();
    let driver = Driver::new(Epoll::with_options(options).unwrap());
    let mut random = Random::new(seed);
    let mut worlds: Vec<_> = (0..3).map(|index| world(&driver, &dir, index)).collect();
    for _ in 0..60 {
        // One step in each world at the same time.
        let steps: Vec<_> =
            worlds.iter_mut().map(|world| step(&driver, world, &mut random)).collect();
        driver.turn(Wait::Poll).unwrap();
        for check in steps {
            check(&driver);
        }
    }
    for (index, world) in worlds.iter().enumerate() {
        let ours = std::fs::read(dir.join(&format!("ours{index}"))).unwrap();
        let theirs = std::fs::read(dir.join(&format!("theirs{index}"))).unwrap();
        assert!(ours == theirs, "seed {seed}: file {index} differs");
        let size = world.theirs.metadata().unwrap().len();
        assert_eq!(finish(&driver, driver.statx_fd(&world.ours)).unwrap().size, size);
    }
    drop(worlds);
    assert_eq!(driver.counters().stale, 0);
    assert_eq!(driver.shutdown(PATIENCE).leaked, 0);
}

fn world(driver: &Driver, dir: &TempDir, index: u32) -> World {
    let path = c_path_of(dir, &format!("ours{index}"));
    let flags = (OFlags::CREATE | OFlags::RDWR).bits();
    let ours = finish(driver, driver.open(None, path, flags, 0o600)).unwrap();
    let theirs = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(dir.join(&format!("theirs{index}")))
        .unwrap();
    let (reader, writer) = pipe();
    let (reader, writer) = (adopt(driver, reader), adopt(driver, writer));
    World { ours, theirs, reader, writer, pipe: VecDeque::new() }
}

type Check = Box<dyn FnOnce(&Driver)>;

/// Starts an operation and does the same to the model. The returned function waits for it and compares.
fn step(driver: &Driver, world: &mut World, random: &mut Random) -> Check {
    let offset = random.below(20_000);
    match random.below(6) {
        0 | 1 => {
            let bytes = random.bytes(5000);
            let expected = world.theirs.write_at(&bytes, offset).unwrap();
            let op = driver.write(&world.ours, bytes, offset);
            Box::new(move |driver| assert_eq!(finish(driver, op).0.unwrap(), expected))
        }
        2 => {
            let mut expected = vec![0; random.below(9000) as usize];
            let op = driver.read(&world.ours, expected.clone(), offset);
            let count = world.theirs.read_at(&mut expected, offset).unwrap();
            Box::new(move |driver| {
                let (result, bytes) = finish(driver, op);
                assert_eq!(result.unwrap(), count);
                assert!(bytes == expected);
            })
        }
        3 => {
            let op = driver.fsync(&world.ours, random.below(2) == 0);
            Box::new(move |driver| finish(driver, op).unwrap())
        }
        4 if world.pipe.len() < 50_000 => {
            let bytes = random.bytes(4000);
            world.pipe.extend(&bytes);
            let op = driver.write(&world.writer, bytes.clone(), CURRENT_POSITION);
            Box::new(move |driver| assert_eq!(finish(driver, op).0.unwrap(), bytes.len()))
        }
        _ if world.pipe.is_empty() => {
            // A read that waits, and the write that ends it.
            let bytes = b"late".to_vec();
            let read = driver.read(&world.reader, vec![0; 10], CURRENT_POSITION);
            let write = driver.write(&world.writer, bytes, CURRENT_POSITION);
            Box::new(move |driver| {
                assert_eq!(finish(driver, write).0.unwrap(), 4);
                let (result, bytes) = finish(driver, read);
                assert_eq!((result.unwrap(), &bytes[..4]), (4, &b"late"[..]));
            })
        }
        _ => {
            let len = 1 + random.below(6000) as usize;
            let expected: Vec<u8> = world.pipe.drain(..len.min(world.pipe.len())).collect();
            let op = driver.read(&world.reader, vec![0; len], CURRENT_POSITION);
            Box::new(move |driver| {
                let (result, bytes) = finish(driver, op);
                let count = result.unwrap();
                assert!(count == expected.len() && bytes[..count] == expected);
            })
        }
    }
}

#[test]
fn random_programs_do_what_std_does() {
    for seed in 0..12 {
        let (sq_entries, cq_entries) = [(2, 2), (4, 16), (256, 4096)][seed as usize % 3];
        run_program(seed, EpollOptions::new().entries(sq_entries, cq_entries));
    }
}

#[test]
fn random_programs_do_so_with_fewer_ways_to_try_a_pipe() {
    for seed in 100..106 {
        let means = Means { nowait: false, reopen: seed % 2 == 0, flags: true };
        run_program(seed, EpollOptions::new().entries(4, 8).means(means));
    }
}
