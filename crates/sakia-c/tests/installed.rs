//! Programs in C and C++, built by pkg-config with the library as it is installed, on a ring and without one.

#![forbid(unsafe_code)]

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const HERE: &str = env!("CARGO_MANIFEST_DIR");
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
const DRIVERS: [&str; 2] = ["auto", "poll"];

/// A folder with an installation, which is removed at the end.
struct Installed(PathBuf);

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    output
}

fn text_of(command: &mut Command) -> String {
    String::from_utf8(run(command).stdout).expect("text")
}

/// Returns whether this machine has the programs that the test needs.
fn has(programs: &[&str]) -> bool {
    let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let Some(missing) = programs.iter().find(|name| !is_there(name)) else { return true };
    assert!(env::var_os("SAKIA_DENY_SKIPS").is_none_or(|deny| deny.is_empty()), "no {missing}");
    println!("SKIP: this machine has no {missing}");
    false
}

impl Installed {
    fn new() -> Self {
        let installed = Self(env::temp_dir().join(format!("sakia-c-{}", std::process::id())));
        let mut install = Command::new(env!("CARGO"));
        install.args(["run", "--quiet", "--locked", "--package", "xtask", "--", "dist"]);
        install.args(["--profile", "dev", "--prefix"]).arg(&installed.0);
        run(install.current_dir(Path::new(HERE).join("../..")));
        installed
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Builds a program of this crate's, and returns its path.
    fn build(&self, source: &str, language: &[&str], is_static: bool) -> String {
        let mut flags = Command::new("pkg-config");
        flags
            .env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"))
            .args(["--cflags", "--libs", "sakia"]);
        if is_static {
            flags.arg("--static");
        }
        let mut flags = text_of(&mut flags);
        if is_static {
            flags = flags.replace("-lsakia", &self.path("lib/libsakia.a"));
        }
        let stem = Path::new(source).file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let program = self.path(&format!("{stem}-{}-{is_static}", language[0]));
        let mut build = Command::new(language[0]);
        build.args(&language[1..]).args(WARNINGS).arg("-pthread").arg(Path::new(HERE).join(source));
        build.args(["-x", "none", "-o", &program, &format!("-Wl,-rpath,{}", self.path("lib"))]);
        run(build.args(flags.split_whitespace()));
        program
    }
}

/// One installation serves all, since it takes a while.
#[test]
fn programs_are_built_and_run() {
    if !has(&["cc", "c++", "pkg-config", "nm", "readelf"]) {
        return;
    }
    let installed = Installed::new();
    symbols_are_the_listed_ones(&installed);
    let c: &[&str] = &["cc", "-std=c11"];
    let cpp: &[&str] = &["c++", "-std=c++17", "-x", "c++"];
    for (language, is_static) in [(c, false), (cpp, false), (c, true)] {
        let build = |source| installed.build(source, language, is_static);
        let tests = ["tests/hostile.c", "tests/operations.c", "tests/queue.c"];
        let [hostile, operations, queue] = tests.map(build);
        let sums = ["examples/file_sum.c", "examples/queue_sum.c"].map(build);
        let epoll = build("examples/in_epoll.c");
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
            let lines = text_of(&mut on_it(&epoll));
            assert_eq!(lines, "read a\nread b\nread c\nread d\nread e\n");
            for sum in &sums {
                sums_are_right(&installed, on_it(sum));
            }
            echoes_come_back(on_it(&echo));
        }
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
