//! A file that fails is reported, and the others are summed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{
    TempDir, needs_ring, plain_sum, program_for_all, random_bytes, run, sakia, sum,
    without_privileges,
};

#[test]
fn missing_file_among_several() {
    needs_ring!();
    let directory = TempDir::new();
    let bytes = random_bytes(1, 5000);
    let (first, last) = (directory.file("first", &bytes), directory.file("last", &bytes));
    let missing = directory.path().join("missing");
    let ended = sum([&first, &missing, &last]);
    assert_eq!(ended.code, Some(1));
    let sum = plain_sum(&bytes);
    assert_eq!(
        ended.rows(),
        [
            (sum, 5000, first.to_str().unwrap()),
            (sum, 5000, last.to_str().unwrap()),
            (2 * sum, 10000, "total"),
        ]
    );
    let expected =
        format!("sakia: {}: open: No such file or directory (os error 2)\n", missing.display());
    assert_eq!(ended.stderr, expected);
}

#[test]
fn directory() {
    needs_ring!();
    let directory = TempDir::new();
    let ended = sum([directory.path()]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let expected =
        format!("sakia: {}: read: Is a directory (os error 21)\n", directory.path().display());
    assert_eq!(ended.stderr, expected);
}

#[test]
fn path_through_a_file() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("file", b"").join("below");
    let ended = sum([&path]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.ends_with(": open: Not a directory (os error 20)\n"), "{ended:?}");
}

#[test]
fn unreadable_file() {
    needs_ring!();
    let directory = TempDir::for_all();
    let path = directory.file("secret", b"secret");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    let (_copy, program) = program_for_all();
    let mut command = Command::new(program);
    command.args(["sum", "-q"]).arg(&path);
    without_privileges(&mut command);
    let ended = run(&mut command);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    let expected = format!("sakia: {}: open: Permission denied (os error 13)\n", path.display());
    assert_eq!(ended.stderr, expected);
}

#[test]
fn control_characters_are_not_repeated() {
    needs_ring!();
    let ended = sum(["no\x1b[2Jsuch"]);
    assert_eq!(
        ended.stderr,
        "sakia: no\\u{1b}[2Jsuch: open: No such file or directory (os error 2)\n"
    );
}

/// No statistics are printed if no file was summed.
#[test]
fn statistics_are_those_of_what_was_summed() {
    let directory = TempDir::new();
    let missing = directory.path().join("missing");
    let ended = run(sakia(["sum"]).args([&missing, &missing]));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 2), "{ended:?}");
    let good = directory.file("good", b"abc");
    let ended = run(sakia(["sum"]).args([&missing, &good]));
    assert!(ended.stderr.contains("elapsed"), "{ended:?}");
}
