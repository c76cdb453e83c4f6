//! Output to a terminal.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;
use std::ptr;
use std::thread;
use std::time::Duration;

use crate::support::{TempDir, needs_ring, sakia};

/// Runs the command with a terminal as its output, and returns the output.
fn show(command: &mut Command) -> String {
    let (mut controller, mut terminal) = (0, 0);
    // SAFETY: fills two numbers; null asks for no name and for the defaults.
    let result = unsafe {
        libc::openpty(
            &raw mut controller,
            &raw mut terminal,
            ptr::null_mut(),
            ptr::null(),
            ptr::null(),
        )
    };
    assert_eq!(result, 0);
    // SAFETY: two new descriptors without another owner.
    let (controller, terminal) =
        unsafe { (OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal)) };
    let mut child = command.stdout(terminal.try_clone().unwrap()).stderr(terminal).spawn().unwrap();
    // The command keeps its ends of the terminal open; a read fails when all of them are closed.
    *command = Command::new("true");
    let mut shown = Vec::new();
    let mut controller = File::from(controller);
    let mut chunk = [0; 4096];
    while let Ok(len @ 1..) = controller.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..len]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(shown).unwrap()
}

#[test]
fn names_do_nothing_to_it() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("a\x1b[31mb\n", b"abc");
    let shown = show(sakia(["sum", "-q"]).arg(&path));
    assert!(shown.ends_with("a\\u{1b}[31mb\\n\r\n"), "{shown:?}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
}

#[test]
fn bar_is_drawn_for_what_takes_long_and_is_removed() {
    needs_ring!();
    let directory = TempDir::new();
    let path = directory.file("file", &[1; 2 << 20]);
    let run_slowly = |args: &[&str]| {
        let (reader, mut writer) = pipe().unwrap();
        let writer = thread::spawn(move || {
            for _ in 0..8 {
                thread::sleep(Duration::from_millis(100));
                writer.write_all(&[1; 1 << 10]).unwrap();
            }
        });
        let shown = show(sakia(args).arg(&path).arg("-").stdin(reader));
        writer.join().unwrap();
        shown
    };
    let shown = run_slowly(&["sum"]);
    assert!(shown.contains(" MiB"), "{shown:?}");
    assert!(shown.contains("\x1b[2K"), "the bar is erased: {shown:?}");
    assert!(shown.contains("           8192          8192  -\r\n"), "{shown:?}");
    let shown = run_slowly(&["sum", "-q"]);
    assert!(!shown.contains('\x1b'), "{shown:?}");
}
