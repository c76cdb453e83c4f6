//! Programs in C and C++, built by pkg-config with the library as it is installed, on a ring and without one.

#![forbid(unsafe_code)]

mod checked;
mod installation;
mod older;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use installation::{Build, C, HERE, Installed, has, has_packages, text_of};

const DRIVERS: [&str; 2] = ["auto", "poll"];

/// One installation serves all, since it takes a while.
#[test]
fn programs_are_built_and_run() {
    if !has(&["cc", "c++", "pkg-config", "nm", "readelf"]) {
        return;
    }
    let installed = Installed::new("programs", &[]);
    symbols_are_the_listed_ones(&installed);
    python_calls_it(&installed);
    older::programs_of_an_older_header_run(&installed, &DRIVERS);
    let cpp = Build { compiler: "c++", flags: &["-std=c++17", "-x", "c++"], ..C };
    for how in [C, cpp, Build { is_static: true, ..C }] {
        let build = |source: &str| installed.build(source, how);
        let [hostile, operations, queue, random, tree] =
            ["hostile", "operations", "queue", "random", "tree"]
                .map(|test| build(&format!("tests/{test}.c")));
        let copy = build("examples/tree_copy.c");
        let sums = ["examples/file_sum.c", "examples/queue_sum.c"].map(build);
        let in_loops = in_other_loops(&installed, how);
        let echo = build("examples/echo_server.c");
        for driver in DRIVERS {
            let on_it = |program: &str| {
                let mut command = Command::new(program);
                command.env("SAKIA_DRIVER", driver);
                command
            };
            assert_eq!(text_of(&mut on_it(&hostile)), "hostile: ok\n");
            assert_eq!(text_of(&mut on_it(&operations)), "operations: ok\n");
            let path = installed.path("file_of_queue");
            assert_eq!(text_of(on_it(&queue).arg(path)), "queue: ok\n");
            let path = installed.path("random");
            fs::create_dir(&path).expect("a directory");
            let programs = env::var("SAKIA_TEST_C_PROGRAMS").unwrap_or("40".into());
            let ends = text_of(on_it(&random).args([&path, "0", &programs]));
            assert_eq!(ends, "random: ok\n");
            fs::remove_dir(&path).expect("it is empty");
            let path = installed.path("trees");
            assert_eq!(text_of(on_it(&tree).arg(path)), "tree: ok\n");
            a_tree_is_copied(&installed, on_it(&copy));
            for program in &in_loops {
                let lines = text_of(&mut on_it(program));
                assert_eq!(lines, "read a\nread b\nread c\nread d\nread e\n", "{program}");
            }
            for sum in &sums {
                sums_are_right(&installed, on_it(sum));
            }
            echoes_come_back(on_it(&echo));
        }
    }
}

/// By another language, which has only the header's numbers.
fn python_calls_it(installed: &Installed) {
    if !has(&["python3"]) {
        return;
    }
    let header = fs::read_to_string(installed.path("include/sakia.h")).expect("the header");
    let (_, version) = header.split_once("#define SAKIA_VERSION ").expect("a version");
    let version = version.lines().next().expect("a number");
    let [library, file] = ["lib/libsakia.so", "file_of_python"].map(|name| installed.path(name));
    for driver in DRIVERS {
        let mut python = Command::new("python3");
        python.env("SAKIA_DRIVER", driver).arg(Path::new(HERE).join("tests/abi.py"));
        python.args([&library, version, &file]);
        assert_eq!(text_of(&mut python), "abi: ok\n");
    }
}

/// The exports are what the header declares, and programs are linked with the name that may stay.
fn symbols_are_the_listed_ones(installed: &Installed) {
    let library = installed.path("lib/libsakia.so");
    let names = text_of(Command::new("nm").args(["-D", "--defined-only", &library]));
    let mut names: Vec<&str> = names.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    names.sort();
    let listed = fs::read_to_string(Path::new(HERE).join("symbols.txt")).expect("the list");
    assert_eq!(names, listed.lines().collect::<Vec<_>>());
    let dynamic = text_of(Command::new("readelf").args(["-d", &library]));
    assert!(dynamic.contains("[libsakia.so.0]") && dynamic.contains("NODELETE"), "{dynamic}");
}

/// Builds the examples within event loops of other kinds, as far as this machine has these.
fn in_other_loops(installed: &Installed, how: Build<'_>) -> Vec<String> {
    let all: [(&str, &[&str]); 3] = [
        ("examples/in_epoll.c", &[]),
        ("examples/in_libuv.c", &["libuv"]),
        ("examples/in_libevent.c", &["libevent_core"]),
    ];
    let there = all.into_iter().filter(|(_, packages)| has_packages(packages));
    there.map(|(source, packages)| installed.build(source, Build { packages, ..how })).collect()
}

/// The example copies the repository's C files.
fn a_tree_is_copied(installed: &Installed, mut program: Command) {
    let (from, to) = (Path::new(HERE).join("tests"), installed.path("copied"));
    text_of(program.arg(&from).arg(&to));
    let original = fs::read(from.join("tree.c")).expect("this test");
    assert_eq!(fs::read(Path::new(&to).join("tree.c")).expect("its copy"), original);
    fs::remove_dir_all(to).expect("removed");
}

fn sums_are_right(installed: &Installed, mut program: Command) {
    let bytes: Vec<u8> =
        (0..3_000_001_u32).map(|index| (index.wrapping_mul(7) >> 3) as u8).collect();
    let (large, empty) = (installed.path("large"), installed.path("empty"));
    fs::write(&large, &bytes).expect("a file");
    fs::write(&empty, "").expect("a file");
    let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
    let lines = text_of(program.args([&large, &empty]));
    assert_eq!(lines, format!("{sum} {large}\n0 {empty}\n"));
}

fn echoes_come_back(mut program: Command) {
    let mut server = program.arg("20").stdout(Stdio::piped()).spawn().expect("a server");
    let mut line = String::new();
    let output = server.stdout.take().expect("its output");
    BufReader::new(output).read_line(&mut line).expect("a line");
    let port: u16 = line.trim().parse().expect("a port");
    let mut clients: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.write_all(&vec![index as u8; 20_000]).expect("sent");
        client.shutdown(Shutdown::Write).expect("shut down");
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).expect("received");
        assert_eq!(bytes, vec![index as u8; 20_000]);
    }
    assert!(server.wait().expect("an end").success());
}
