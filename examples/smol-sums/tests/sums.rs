//! Runs the program on files of all sizes, and on what cannot be read.

use std::fs;
use std::process::Command;

use examples_common::{Folder, Sum};

const PROGRAM: &str = env!("CARGO_BIN_EXE_smol-sums");

/// A line for each, in the order of the arguments.
#[test]
fn files_of_all_sizes() {
    let folder = Folder::new("smol-sums");
    let sizes = [0, 1, 4095, 256 << 10, (256 << 10) + 1, 3_000_000];
    let mut expected = String::new();
    let mut command = Command::new(PROGRAM);
    for round in 0..20 {
        for size in sizes {
            let name = format!("{round}-{size}");
            let sum = folder.fill(&name, size, round);
            let path = folder.path().join(name);
            expected += &format!("{sum:032x}  {}\n", path.display());
            command.arg(path);
        }
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

/// The others are read all the same.
#[test]
fn what_cannot_be_read_is_named() {
    let folder = Folder::new("smol-sums-errors");
    let file = folder.path().join("file");
    fs::write(&file, "hello").unwrap();
    let mut sum = Sum::default();
    sum.add(b"hello");
    let (missing, directory) = (folder.path().join("missing"), folder.path());
    let arguments = [missing.as_path(), &file, directory];
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines, format!("{:032x}  {}\n", sum.value(), file.display()));
    let errors = String::from_utf8(output.stderr).unwrap();
    let [first, second] = errors.lines().collect::<Vec<_>>()[..] else { panic!("{errors}") };
    assert!(first.contains("missing: ") && first.contains("No such file"), "{first}");
    assert!(second.contains("Is a directory"), "{second}");
}
