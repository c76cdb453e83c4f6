//! A header as an older version would have had it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::installation::{Build, C, HERE, Installed, text_of};

/// A program with shorter structures runs with this library.
pub fn programs_of_an_older_header_run(installed: &Installed, drivers: &[&str]) {
    let header = Path::new(HERE).join("include/sakia.h");
    let header = older(&fs::read_to_string(header).expect("the header"));
    let folder = installed.path("older");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(Path::new(&folder).join("sakia.h"), header).expect("an older header");
    // The compiler looks here before the folders of pkg-config.
    let include = format!("-I{folder}");
    let program = installed.build("tests/older.c", Build { flags: &["-std=c11", &include], ..C });
    for driver in drivers {
        let mut command = Command::new(&program);
        command.env("SAKIA_DRIVER", driver).arg(installed.path("file_of_older"));
        assert_eq!(text_of(&mut command), "older: ok\n");
    }
}

/// Returns the header without what follows `fd` in requests, and without the last eight bytes of options.
fn older(header: &str) -> String {
    let mut header = without(header, "  int32_t fd;\n", "} sakia_request;");
    header = without(&header, "  size_t result_size;\n", "} sakia_loop_options;");
    // The same two fields are in both options, so the last ones there are those of a queue.
    header = without(&header, "  uint32_t flags;\n", "} sakia_queue_options;");
    for (name, zeros, left) in [("loop", ", 0, 0", ""), ("queue", ", 0, 0, 0, 0", ", 0, 0")] {
        let sizes = format!("{{ sizeof(sakia_{name}_options), sizeof(sakia_request), ");
        let line = |zeros| format!("{sizes}sizeof(sakia_result){zeros} }}");
        assert_eq!(header.matches(&line(zeros)).count(), 1, "{name}");
        header = header.replace(&line(zeros), &line(left));
    }
    header
}

/// Returns the text without what is between the last `begin` before `end`, and `end`.
fn without(text: &str, begin: &str, end: &str) -> String {
    let (head, tail) = text.split_once(end).unwrap_or_else(|| panic!("no {end}"));
    let (kept, _) = head.rsplit_once(begin).unwrap_or_else(|| panic!("no {begin}"));
    format!("{kept}{begin}{end}{tail}")
}
