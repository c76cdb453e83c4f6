//! Sums equal those of plain additions, for all sizes, file systems, shapes of reads and backends.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use sakia_testkit::skip;

use crate::support::{TempDir, needs_ring, plain_sum, random_bytes, sakia, sum_on};

const SIZES: [usize; 9] = [0, 1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 8 << 20];

/// Makes tests of these functions, on each backend.
macro_rules! on_each_driver {
    ($($name:ident)*) => {
        mod uring {
            $(
                #[test]
                fn $name() {
                    super::needs_ring!();
                    super::$name("uring");
                }
            )*
        }
        mod poll {
            $(
                #[test]
                fn $name() {
                    super::$name("poll");
                }
            )*
        }
    };
}

on_each_driver! {
    of_every_size_where_the_build_is
    of_every_size_in_memory
    of_more_files_than_are_opened_ahead
    of_a_sparse_file_are_zero
    of_files_that_the_kernel_makes_up
    of_a_file_that_changes_its_size
    of_a_file_whose_name_is_not_text
}

fn every_size(driver: &str, directory: &TempDir) {
    let mut paths = Vec::new();
    let mut expected = Vec::new();
    for (seed, size) in SIZES.into_iter().enumerate() {
        let bytes = random_bytes(seed as u64, size);
        paths.push(directory.file(format!("{size}"), &bytes));
        expected.push((plain_sum(&bytes), size as u64));
    }
    for shape in [
        &[][..],
        &["--block", "4K", "--depth", "3"],
        &["--block", "1000", "--depth", "7"],
        &["--depth", "1"],
    ] {
        let shape: Vec<OsString> = shape.iter().map(Into::into).collect();
        for (path, &expected) in paths.iter().zip(&expected) {
            let ended = sum_on(driver, shape.iter().chain([&path.clone().into()]));
            ended.assert_quiet_success();
            assert_eq!(
                ended.rows(),
                [(expected.0, expected.1, path.to_str().unwrap())],
                "{shape:?}"
            );
        }
        let all: Vec<OsString> = paths.iter().map(|path| path.clone().into()).collect();
        let ended = sum_on(driver, shape.iter().chain(&all));
        ended.assert_quiet_success();
        let mut rows: Vec<_> = paths
            .iter()
            .zip(&expected)
            .map(|(path, e)| (e.0, e.1, path.to_str().unwrap()))
            .collect();
        let total = expected.iter().fold((0, 0), |total, e| (total.0 + e.0, total.1 + e.1));
        rows.push((total.0, total.1, "total"));
        assert_eq!(ended.rows(), rows, "{shape:?}");
    }
}

fn of_every_size_where_the_build_is(driver: &str) {
    every_size(driver, &TempDir::new());
}

fn of_every_size_in_memory(driver: &str) {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        skip!("no /dev/shm");
    }
    every_size(driver, &TempDir::below(shm));
}

fn of_more_files_than_are_opened_ahead(driver: &str) {
    let directory = TempDir::new();
    let mut expected = Vec::new();
    let paths: Vec<_> = (0..200)
        .map(|number| {
            let bytes = random_bytes(number, number as usize * 37);
            expected.push((plain_sum(&bytes), bytes.len() as u64));
            directory.file(format!("{number}"), &bytes)
        })
        .collect();
    let ended = sum_on(driver, &paths);
    ended.assert_quiet_success();
    let rows = ended.rows();
    assert_eq!(rows.len(), paths.len() + 1);
    for ((row, path), expected) in rows.iter().zip(&paths).zip(expected) {
        assert_eq!((row.0, row.1, row.2), (expected.0, expected.1, path.to_str().unwrap()));
    }
}

fn of_a_sparse_file_are_zero(driver: &str) {
    let directory = TempDir::new();
    let path = directory.file("sparse", b"");
    fs::File::options().write(true).open(&path).unwrap().set_len(100 << 20).unwrap();
    let ended = sum_on(driver, [&path]);
    ended.assert_quiet_success();
    assert_eq!(ended.rows()[0].0, 0);
    assert_eq!(ended.rows()[0].1, 100 << 20);
}

fn of_files_that_the_kernel_makes_up(driver: &str) {
    // Files without a size, larger than a block, and with a size that is not their length.
    let paths = [
        "/proc/version",
        "/proc/kallsyms",
        "/proc/self/mountinfo",
        "/sys/devices/system/cpu/online",
    ];
    for path in paths {
        let Ok(mut bytes) = fs::read(path) else {
            eprintln!("{path} is not there, or not for us");
            continue;
        };
        let ended = loop {
            let ended = sum_on(driver, [path, "--block", "4K"]);
            ended.assert_quiet_success();
            // Other tests may have mounted something meanwhile.
            let now = fs::read(path).unwrap();
            if now == bytes {
                break ended;
            }
            bytes = now;
        };
        assert_eq!(ended.rows(), [(plain_sum(&bytes), bytes.len() as u64, path)]);
    }
}

/// A file that grows or shrinks during the reads is no error.
fn of_a_file_that_changes_its_size(driver: &str) {
    const LEN: u64 = 4 << 20;
    let directory = TempDir::new();
    let path = directory.file("file", &random_bytes(1, LEN as usize));
    let stop = Arc::new(AtomicBool::new(false));
    let file = fs::File::options().write(true).open(&path).unwrap();
    let writer = thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            while !stop.load(Ordering::Relaxed) {
                for len in [LEN / 2, 2 * LEN, 0, LEN + 1] {
                    file.set_len(len).unwrap();
                }
            }
        }
    });
    for _ in 0..50 {
        let ended = sum_on(driver, [path.as_os_str(), "--block".as_ref(), "64K".as_ref()]);
        ended.assert_quiet_success();
        assert!(ended.rows()[0].1 <= 2 * LEN);
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
}

fn of_a_file_whose_name_is_not_text(driver: &str) {
    let directory = TempDir::new();
    let path = directory.file(OsString::from_vec(b"a\xff".into()), b"ab");
    let mut command = sakia(["sum", "-q"]);
    let output = command.arg(&path).env("SAKIA_DRIVER", driver).output().unwrap();
    assert!(output.status.success());
    // Names are not escaped if the output is no terminal.
    assert!(output.stdout.ends_with(b"a\xff\n"), "{output:?}");
}
