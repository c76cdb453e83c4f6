//! Registered memory.

use std::fs::{self, File};

use rustix::io::Errno;
use sakia_driver::{Arena, CURRENT_POSITION, Driver, FixedBuf, Wait};

use crate::support::{
    TempDir, content, drain, driver, errno, finish, open_direct, pipe, write_all,
};

/// Registers an arena. Returns `None` if that much memory cannot be locked here.
pub fn register(driver: &Driver, blocks: u32, block_bytes: usize) -> Option<Arena> {
    match driver.register_arena(blocks, block_bytes) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOMEM) => None,
        result => Some(result.unwrap()),
    }
}

macro_rules! arena {
    ($driver:expr, $blocks:expr, $bytes:expr) => {
        match $crate::arena::register($driver, $blocks, $bytes) {
            Some(arena) => arena,
            None => $crate::support::skip!("too little memory may be locked"),
        }
    };
}
pub(crate) use arena;

#[test]
fn blocks_are_read_into_and_written_from() {
    let folder = TempDir::new();
    let path = folder.join("written");
    let driver = driver();
    let arena = arena!(&driver, 4, 5000);
    assert_eq!(arena.block_bytes(), 8192, "whole pages");
    let source = driver.adopt(File::open(folder.file("file", 20_000)).unwrap().into());
    let target = driver.adopt(File::create(&path).unwrap().into());
    for offset in [0, 8192, 16_384, 20_000] {
        let block = arena.block().unwrap();
        let (result, block) = finish(&driver, &mut driver.read_fixed(&source, block, offset));
        let len = result.unwrap();
        assert_eq!(len, 8192.min(20_000 - offset as usize));
        let same = |(at, &byte): (usize, &u8)| byte == content(offset as usize + at);
        assert!(block[..len].iter().enumerate().all(same));
        let (result, mut block) = finish(&driver, &mut driver.write_fixed(&target, block, offset));
        assert_eq!((result.unwrap(), block.len()), (8192, 8192));
        block.fill(0);
    }
    let written = fs::read(&path).unwrap();
    assert_eq!(written[..20_000], (0..20_000).map(content).collect::<Vec<u8>>());
    // Ordinary operations take blocks, too.
    let (result, _) = finish(&driver, &mut driver.read(&source, arena.block().unwrap(), 0));
    assert_eq!(result.unwrap(), 8192);
}

#[test]
fn blocks_run_out_and_come_back() {
    let driver = driver();
    let arena = arena!(&driver, 3, 4096);
    let (fd, write) = pipe(&driver);
    let mut blocks: Vec<FixedBuf> = std::iter::from_fn(|| arena.block()).collect();
    assert_eq!(blocks.len(), 3);
    for (number, block) in blocks.iter_mut().enumerate() {
        block.fill(number as u8);
    }
    assert!(blocks.iter().zip(0..).all(|(block, number)| block.iter().all(|&byte| byte == number)));
    let dropped = driver.read_fixed(&fd, blocks.pop().unwrap(), CURRENT_POSITION);
    let mut kept = driver.read_fixed(&fd, blocks.pop().unwrap(), CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(dropped);
    assert!(arena.block().is_none(), "the kernel still has it");
    while arena.block().is_none() {
        driver.turn(Wait::For(std::time::Duration::from_millis(10))).unwrap();
    }
    write_all(&write, b"x");
    let (result, block) = finish(&driver, &mut kept);
    assert_eq!((result.unwrap(), block[0]), (1, b'x'));
    drop(block);
    assert!(arena.block().is_some());
    assert_eq!(blocks[0][4095], 0, "another block was written to");
}

#[test]
fn there_is_one_arena_of_sensible_size() {
    let driver = driver();
    let arena = arena!(&driver, 1, 4096);
    assert_eq!(errno(driver.register_arena(1, 4096)), Errno::BUSY);
    for (blocks, bytes) in [(0, 4096), (1, 0), (1 << 20, 4096), (u32::MAX, usize::MAX >> 20)] {
        assert_eq!(errno(driver.register_arena(blocks, bytes)), Errno::INVAL, "{blocks} x {bytes}");
    }
    let folder = TempDir::new();
    let fd = driver.adopt(File::open(folder.file("file", 100)).unwrap().into());
    let mut read = driver.read_fixed(&fd, arena.block().unwrap(), 0);
    assert_eq!(finish(&driver, &mut read).0.unwrap(), 100, "the first still serves");
}

#[test]
fn a_block_of_another_driver_is_no_block_here() {
    let (ours, other) = (driver(), driver());
    let foreign = arena!(&other, 1, 4096);
    let folder = TempDir::new();
    let fd = ours.adopt(File::open(folder.file("file", 100)).unwrap().into());
    // First without an arena of our own, then with one, whose bounds the kernel knows.
    let block = foreign.block().unwrap();
    let (result, block) = finish(&ours, &mut ours.read_fixed(&fd, block, 0));
    result.unwrap_err();
    let _arena = arena!(&ours, 1, 4096);
    let (result, _) = finish(&ours, &mut ours.read_fixed(&fd, block, 0));
    assert_eq!(errno(result), Errno::FAULT);
}

#[test]
fn dropped_while_blocks_are_in_flight() {
    let folder = TempDir::new();
    let Some(file) = open_direct(&folder.file("file", 1 << 20)) else { return };
    let driver = driver();
    let arena = arena!(&driver, 16, 1 << 16);
    let file = driver.adopt(file);
    let (pipe, write) = pipe(&driver);
    let mut reads: Vec<_> = (0..15)
        .map(|place| driver.read_fixed(&file, arena.block().unwrap(), place << 16))
        .collect();
    let mut waiting = driver.read_fixed(&pipe, arena.block().unwrap(), CURRENT_POSITION);
    driver.turn(Wait::Poll).unwrap();
    drop(arena);
    drop(reads.split_off(8));
    for (place, read) in reads.iter_mut().enumerate() {
        let (result, block) = finish(&driver, read);
        assert_eq!(result.unwrap(), 1 << 16);
        let base = place << 16;
        assert!(block.iter().enumerate().all(|(at, &byte)| byte == content(base + at)));
    }
    write_all(&write, b"x");
    assert_eq!(finish(&driver, &mut waiting).0.unwrap(), 1);
    drain(&driver);
}

#[test]
fn blocks_outlive_the_driver() {
    let driver = driver();
    let arena = arena!(&driver, 3, 4096);
    let (fd, _write) = pipe(&driver);
    let mut block = arena.block().unwrap();
    let mut kept = driver.read_fixed(&fd, arena.block().unwrap(), CURRENT_POSITION);
    drop(driver.read_fixed(&fd, arena.block().unwrap(), CURRENT_POSITION));
    driver.turn(Wait::Poll).unwrap();
    drop(driver);
    block.fill(1);
    let (result, other) = kept.try_take().unwrap();
    assert_eq!(errno(result), Errno::CANCELED);
    assert!(arena.block().is_some(), "the block of the dropped read is free");
    drop(arena);
    drop(block);
    assert_eq!(other.len(), 4096);
}

#[test]
fn an_arena_beyond_all_memory_is_refused() {
    let driver = driver();
    for (blocks, bytes) in [
        (1, usize::MAX),
        (u32::MAX, usize::MAX),
        (1, usize::MAX - 4094),
        (2, 1 << 63),
        (u32::MAX, 1),
        (0, 1),
        (1, 0),
    ] {
        let error = driver.register_arena(blocks, bytes).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "{blocks} {bytes}");
    }
}
