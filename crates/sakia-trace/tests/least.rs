//! The example `least` writes a recording that can be read, so its size is that of a working program.

// The example has a `main`, and items that only `main` uses.
#[allow(dead_code)]
#[path = "../examples/least.rs"]
mod least;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;

use sakia_trace::Trace;

#[test]
fn least_recording_is_read_back() {
    let folder = std::env::temp_dir().join(format!("sakia-trace-least-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let (path, link) = (folder.join("trace"), folder.join("link"));
    symlink(&path, &link).expect("a link");
    least::begin(&link).expect_err("a link");
    least::begin(&path).expect("a new file");
    let thread = thread::spawn(|| {
        least::event(8, 0, 3); // a turn begins
        for operation in [1, 2] {
            least::event(0, operation, 4096);
            least::event(1, operation, 0);
            least::event(4, operation, 0);
        }
        least::event(5, 2, 0);
        least::event(5, 1, 0);
        least::event(9, 0, 0);
        // These are more events than a buffer holds: the others are lost and counted.
        (0..1 << 20).for_each(|number| least::event(10, 0, number));
    });
    thread.join().expect("no panic");
    least::flush();
    let bytes = fs::read(&path).expect("a file");
    let mode = fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
    fs::remove_dir_all(&folder).expect("a folder");
    assert_eq!(mode, 0o600);
    let trace = Trace::read(&bytes).expect("a trace");
    let slices = trace.tracks.iter().flat_map(|track| &track.slices);
    let mut names: Vec<_> =
        slices.filter(|it| it.end.is_some()).map(|it| it.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["in the kernel", "in the kernel", "operation", "operation", "turn"]);
    let moments = || trace.tracks.iter().flat_map(|track| &track.instants);
    let written = moments().filter(|it| it.name == "task spawned").count() as i64;
    let lost: i64 = moments()
        .filter(|it| it.name == "events lost")
        .map(|it| it.number("value").expect("a number"))
        .sum();
    assert_eq!(written + lost, 1 << 20);
}
