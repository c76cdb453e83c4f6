//! Machines that refuse the ring, or parts of it: programs run anyway, and one line tells the reason.
//!
//! Each scene has its own process, since its restrictions cannot be undone. The scene of the sysctl changes
//! the whole machine for a moment, so it is played only with `SAKIA_TEST_SYSCTL` in the environment.

use std::error::Error;
use std::fs::File;
use std::future::pending;
use std::io;
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use sakia::io::{PipeReader, pipe};
use sakia::time::{sleep, timeout};
use sakia::{Engine, Runtime, spawn, spawn_blocking, spawn_on, yield_now};
use sakia_driver::Policy;
use sakia_ring::{Opcode, Restriction, Ring, SetupError};

use self::children::forbid;

const IO_URING_SETUP: u32 = 425;
const IO_URING_ENTER: u32 = 426;
const IO_URING_REGISTER: u32 = 427;
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

#[test]
fn a_filter_that_forbids() {
    children::run("seccomp_eperm");
}

#[test]
fn a_filter_that_hides() {
    children::run("seccomp_enosys");
}

#[test]
fn a_filter_that_forbids_entering_only() {
    children::run("seccomp_enter");
}

#[test]
fn a_filter_that_forbids_registration_only() {
    children::run("seccomp_register");
}

#[test]
fn filters_that_answer_with_any_errno() {
    children::run("seccomp_each_errno");
}

#[test]
fn no_locked_memory() {
    children::run("no_locked_memory");
}

/// The backend is set up by the first operation that needs it: what needs none does not miss it.
#[test]
fn a_filter_that_forbids_every_backend() {
    children::run("no_backend");
}

#[test]
fn closed_by_the_administrator() {
    if std::env::var_os("SAKIA_TEST_SYSCTL").is_none() {
        // The only skip that is always allowed, since other programs may be using rings on this machine.
        return eprintln!("SKIP closed_by_the_administrator: SAKIA_TEST_SYSCTL is not set");
    }
    children::run("sysctl");
}

#[test]
fn an_unknown_driver_is_refused_with_the_known_ones() {
    children::run("unknown_driver");
}

/// A program with tasks on two threads, timers, a pipe, a file, and a dropped read.
async fn program() {
    let (mut reader, mut writer) = pipe().unwrap();
    let writing = spawn(async move {
        sleep(Duration::from_millis(1)).await;
        writer.write_all(vec![7; 300_000]).await.0.unwrap();
        writer.close().await.unwrap();
    });
    let (result, bytes) = reader.read_to_end(Vec::new()).await;
    assert_eq!(result.unwrap(), 300_000);
    assert!(bytes.iter().all(|&byte| byte == 7));
    writing.await.unwrap();

    let path = std::env::current_exe().unwrap();
    let mut file = PipeReader::from_fd(File::open(&path).unwrap().into());
    let (result, start) = file.read(vec![0; 4096]).await;
    assert_eq!(result.unwrap(), 4096);
    assert!(start.starts_with(b"\x7fELF"));
    file.close().await.unwrap();

    let (mut reader, _writer) = pipe().unwrap();
    let read = timeout(Duration::from_millis(1), reader.read(vec![0; 8])).await;
    assert!(read.is_err(), "nothing was written");
    let elsewhere = spawn_on(1, || async {
        yield_now().await;
        spawn_blocking(|| 5).await.unwrap()
    });
    assert_eq!(elsewhere.await.unwrap(), 5);
}

/// Runs the program, and returns its driver's name and the line with the reason.
fn run_program() -> (&'static str, String) {
    let runtime = Runtime::builder().threads(2).build().unwrap();
    runtime.spawn(pending::<()>()).detach(); // ends with the runtime
    runtime.block_on(program());
    let choice = runtime.choice();
    let why = choice.to_string();
    assert_eq!(why.lines().count(), 1, "{why}");
    assert_eq!(choice.refusal().is_some(), choice.name() == "poll");
    let counters = runtime.counters();
    assert_eq!((counters.leaked, counters.stale), (0, 0));
    (choice.name(), why)
}

/// Asserts that there is no ring, that programs run, and that only programs that require a ring are
/// refused.
fn assert_refused(call: &str, errno: i32, remedy: &str) {
    let (name, why) = run_program();
    assert_eq!(name, "poll");
    assert!(why.starts_with(&format!("poll: {call}")) && why.contains(remedy), "{why}");
    let Err(error) = Runtime::builder().backend(Policy::Uring).build() else {
        panic!("there is a ring")
    };
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<SetupError>());
    let refusal = refusal.unwrap_or_else(|| panic!("{error}"));
    assert!(refusal.is_refusal() && refusal.source().is_some());
    assert_eq!(refusal.raw_os_error(), Some(errno), "{error}");
    assert_eq!(why, format!("poll: {error}"));
}

fn seccomp(call: u32, errno: i32, failed: &str, remedy: &str) -> Result<(), String> {
    forbid(call, errno)?;
    assert_refused(failed, errno, remedy);
    Ok(())
}

fn scene_seccomp_eperm() -> Result<(), String> {
    seccomp(IO_URING_SETUP, libc::EPERM, "io_uring_setup: ", "allow io_uring_setup")
}

fn scene_seccomp_enosys() -> Result<(), String> {
    seccomp(IO_URING_SETUP, libc::ENOSYS, "io_uring_setup: ", "use kernel 6.1 or later")
}

fn scene_seccomp_enter() -> Result<(), String> {
    seccomp(IO_URING_ENTER, libc::EPERM, "io_uring_enter: ", "allow io_uring_setup")
}

fn scene_seccomp_register() -> Result<(), String> {
    let call = "io_uring_register(ENABLE_RINGS): ";
    seccomp(IO_URING_REGISTER, libc::EPERM, call, "allow io_uring_setup")
}

/// A program runs with any errno of the ring's system calls. Each filter applies to one thread.
fn scene_seccomp_each_errno() -> Result<(), String> {
    let calls = [IO_URING_SETUP, IO_URING_ENTER, IO_URING_REGISTER];
    for call in calls {
        for errno in 1..=133 {
            let attempt = move || {
                forbid(call, errno)?;
                let built = Runtime::builder().backend(Policy::Auto).build();
                let runtime =
                    built.unwrap_or_else(|error| panic!("call {call}, errno {errno}: {error}"));
                let why = runtime.choice().to_string();
                assert!(why.starts_with("poll: io_uring_"), "call {call}, {errno}: {why}");
                assert!(why.contains(&format!("(os error {errno})")), "call {call}: {why}");
                runtime.block_on(async {
                    let (mut reader, mut writer) = pipe().unwrap();
                    writer.write_all("through").await.0.unwrap();
                    assert_eq!(reader.read(vec![0; 7]).await.1, b"through");
                });
                Ok::<_, String>(())
            };
            let ended = std::thread::spawn(attempt).join();
            ended.unwrap_or_else(|_| panic!("call {call}, errno {errno}: see above"))?;
        }
    }
    Ok(())
}

/// Becomes a user without files.
fn drop_privileges() {
    const NOBODY: u32 = 65_534;
    // SAFETY: take no memory; this process has one thread.
    unsafe {
        if libc::geteuid() == 0 {
            let dropped = libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0;
            assert!(dropped, "setuid: {}", io::Error::last_os_error());
        }
    }
}

fn scene_no_locked_memory() -> Result<(), String> {
    let limit = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Memlock, limit).unwrap();
    drop_privileges();
    match Ring::builder().build() {
        Ok(ring) => {
            drop(ring);
            assert_eq!(run_program().0, "uring");
            Err("rings are not charged to the limit on locked memory (kernels 5.12 to 6.13), or \
                 CAP_IPC_LOCK is held"
                .into())
        }
        Err(_) => {
            assert_refused("io_uring_setup: ", libc::ENOMEM, "locked memory (0 KiB");
            Ok(())
        }
    }
}

/// Restores the sysctl when it is dropped.
struct Sysctl(String);

impl Sysctl {
    fn set(value: &str) -> Result<Self, String> {
        let before =
            std::fs::read_to_string(SYSCTL).map_err(|error| format!("{SYSCTL}: {error}"))?;
        std::fs::write(SYSCTL, value).map_err(|error| format!("{SYSCTL}: {error}"))?;
        Ok(Self(before))
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        std::fs::write(SYSCTL, &self.0).expect("it could be set before");
    }
}

fn scene_sysctl() -> Result<(), String> {
    let closed = Sysctl::set("2")?;
    let built = Runtime::new();
    let insisting = Runtime::builder().backend(Policy::Uring).build();
    drop(closed); // others on this machine want their rings back
    let runtime = built.unwrap();
    let error = insisting.err().unwrap();
    let why = runtime.choice().to_string();
    assert_eq!(why, format!("poll: {error}"));
    // The remedy was determined when the line was printed, after the sysctl was restored.
    assert!(why.starts_with("poll: io_uring_setup: ") && why.contains("(os error 1)"), "{why}");
    runtime.block_on(async {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all("through").await.0.unwrap();
        assert_eq!(reader.read(vec![0; 7]).await.1, b"through");
    });
    Ok(())
}

fn scene_unknown_driver() -> Result<(), String> {
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var("SAKIA_DRIVER", "nonsense") };
    let error = Runtime::new().err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "SAKIA_DRIVER=nonsense is none of auto, uring, poll");
    // An explicit backend has precedence over the environment.
    drop(Runtime::builder().backend(Policy::Auto).build().unwrap());
    for (value, name) in [("poll", "poll"), ("", "uring"), ("auto", "uring"), ("uring", "uring")] {
        // SAFETY: as above: drivers without a ring start their threads when there is work.
        unsafe { std::env::set_var("SAKIA_DRIVER", value) };
        match Runtime::new() {
            Ok(runtime) if runtime.choice().refusal().is_none() => {
                assert_eq!(runtime.choice().name(), name);
            }
            Ok(runtime) => return Err(runtime.choice().to_string()),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Operations that the kernel lacks, as a restricted ring simulates. The required ones are those that the
/// program itself uses.
#[test]
fn a_ring_without_some_operations() {
    const NEEDED: [Opcode; 5] =
        [Opcode::NOP, Opcode::READ, Opcode::WRITE, Opcode::POLL_ADD, Opcode::ASYNC_CANCEL];
    const REGISTERS: u8 = 21; // those of 5.18, for each later kernel knows them
    if let Err(error) = Ring::builder().build() {
        return children::announce_skip(&error.to_string());
    }
    let build = |more: &[Opcode], registers: u8| {
        let opcodes = NEEDED.iter().chain(more).map(|&opcode| Restriction::Opcode(opcode));
        let registers = (0..registers).map(Restriction::Register);
        let allowed = opcodes.chain(registers).chain([Restriction::FlagsAllowed(0xff)]);
        let ring = Ring::builder().restrict(allowed);
        // The backend is explicit, since this test is about the ring.
        Runtime::builder().backend(Policy::Auto).threads(2).ring(ring).build().unwrap()
    };
    for (more, registers) in [
        (&[Opcode::CLOSE, Opcode::MSG_RING, Opcode::STATX][..], REGISTERS),
        (&[Opcode::CLOSE, Opcode::MSG_RING], 0),
        (&[Opcode::CLOSE], REGISTERS),
        (&[Opcode::CLOSE], 0),
    ] {
        let runtime = build(more, registers);
        assert_eq!(runtime.choice().to_string(), "uring");
        runtime.block_on(program());
    }
}

pub fn scene_no_backend() -> Result<(), String> {
    const EPOLL_CREATE1: u32 = libc::SYS_epoll_create1 as u32;
    const EVENTFD2: u32 = libc::SYS_eventfd2 as u32;
    let engine = Engine::new().unwrap();
    let path = "/proc/self/exe"; // of a disk
    let file = engine.open(path).wait().unwrap();
    let expected = std::fs::read(path).unwrap()[..4096].to_vec();
    for call in [IO_URING_SETUP, EPOLL_CREATE1, EVENTFD2] {
        forbid(call, libc::EPERM)?;
    }
    for _ in 0..100 {
        let reads = (0..16).map(|_| file.read_at(vec![0; 4096], 0));
        for (result, bytes) in sakia::block_on(engine.submit_many(reads)) {
            assert!(result.unwrap() == 4096 && bytes == expected);
        }
    }
    let runtime = Runtime::builder().threads(2).build().unwrap();
    for _ in 0..2 {
        // Tasks, timers, wakes from other threads, and threads for blocking code.
        runtime.block_on(async {
            assert_eq!(spawn(async { 1 }).await.unwrap(), 1);
            sleep(Duration::from_millis(1)).await;
            assert!(timeout(Duration::from_millis(1), pending::<()>()).await.is_err());
            let blocking = spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
            blocking.await.unwrap();
            let elsewhere = spawn_on(1, || async {
                sleep(Duration::from_millis(1)).await;
                spawn_blocking(|| 2).await.unwrap()
            });
            assert_eq!(elsewhere.await.unwrap(), 2);
        });
        let task = runtime.spawn(async { sleep(Duration::from_millis(1)).await });
        while !task.is_finished() {
            runtime.run_once(Duration::from_secs(1)).unwrap();
        }
        // An operation that needs a backend tells why there is none, each time.
        let error = runtime.block_on(async {
            let (mut reader, _writer) = pipe().unwrap();
            let read = spawn(async move { reader.read(vec![0; 8]).await.0 });
            read.await.unwrap().unwrap_err()
        });
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let choice = runtime.choice();
        assert!(choice.name() == "none" && choice.to_string().contains("epoll"), "{choice}");
        assert!(runtime.pollable().is_err());
    }
    let error = Runtime::builder().backend(Policy::Uring).build().err().unwrap();
    assert_eq!(sakia::fs::os_error(&error), Some(libc::EPERM));
    Ok(())
}

/// Child processes.
///
/// The test binary runs itself with the name of a scene in the environment. A function that the loader
/// calls before `main` finds the name and plays the scene: at that time the process has only one thread,
/// while libtest would start more.
pub mod children {
    use std::io;
    use std::panic::catch_unwind;
    use std::process::{Command, Stdio, exit};

    const SCENE: &str = "SAKIA_RUNTIME_SCENE";
    /// The exit code of a scene that is skipped on this machine. Its last line of output is the reason.
    const SKIPPED: i32 = 77;

    /// A scene. `Err` is the reason why it is skipped.
    type Scene = fn() -> Result<(), String>;

    const SCENES: &[(&str, Scene)] = &[
        ("seccomp_eperm", super::scene_seccomp_eperm),
        ("seccomp_enosys", super::scene_seccomp_enosys),
        ("seccomp_enter", super::scene_seccomp_enter),
        ("seccomp_register", super::scene_seccomp_register),
        ("seccomp_each_errno", super::scene_seccomp_each_errno),
        ("no_locked_memory", super::scene_no_locked_memory),
        ("no_backend", super::scene_no_backend),
        ("sysctl", super::scene_sysctl),
        ("unknown_driver", super::scene_unknown_driver),
        ("inspect_environment", crate::inspecting::scene_inspect_environment),
        ("warnings_log", crate::inspecting::scene_warnings_log),
        ("latencies", crate::metrics::scene_latencies),
        ("fork_uring", crate::teardown::scene_fork_uring),
        ("fork_poll", crate::teardown::scene_fork_poll),
        ("reused_number", crate::processes::scene_reused_number),
        ("places", crate::places::scene_places),
    ];

    /// Reports that a test proves nothing on this machine. Fails the test instead if `SAKIA_DENY_SKIPS` is
    /// set.
    pub fn announce_skip(reason: &str) {
        let name = std::thread::current().name().unwrap_or("?").to_owned();
        let denied = std::env::var_os("SAKIA_DENY_SKIPS").is_some();
        assert!(!denied, "skips are denied, and {name} must skip: {reason}");
        eprintln!("SKIP {name}: {reason}");
    }

    /// Runs a scene in its own process.
    pub fn run(scene: &str) {
        play_by(&mut Command::new(std::env::current_exe().unwrap()), scene);
    }

    /// Runs a scene as the first process of a new namespace of process numbers.
    pub fn run_with_own_numbers(scene: &str) {
        let probe = Command::new("unshare").args(["--pid", "--fork", "true"]).output();
        match probe {
            Ok(output) if output.status.success() => {}
            Ok(output) => return announce_skip(String::from_utf8_lossy(&output.stderr).trim()),
            Err(error) => return announce_skip(&format!("unshare: {error}")),
        }
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        play_by(&mut command, scene);
    }

    fn play_by(command: &mut Command, scene: &str) {
        let output = command
            .env(SCENE, scene)
            .env_remove("SAKIA_DRIVER")
            .env_remove("SAKIA_INSPECT")
            .env_remove("SAKIA_WARNINGS")
            .env_remove("SAKIA_LATENCIES")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => {}
            Some(SKIPPED) => announce_skip(stdout.trim()),
            _ => panic!("scene {scene}: {}\n{stdout}\n{stderr}", output.status),
        }
    }

    /// Makes a system call fail with `errno` from now on, in this thread and in threads and processes that it
    /// starts.
    pub fn forbid(call: u32, errno: i32) -> Result<(), String> {
        let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut program = [
            // The number of the call is the first field of a filter's input.
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
            libc::sock_filter { jf: 1, ..statement(equal, call) },
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
            statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        let check = |what, result| match result {
            0 => Ok(()),
            _ => Err(format!("{what}: {}", io::Error::last_os_error())),
        };
        // SAFETY: takes numbers only.
        let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        check("PR_SET_NO_NEW_PRIVS", result)?;
        // SAFETY: a filter of four instructions that outlives the call, which copies it.
        check("PR_SET_SECCOMP", unsafe {
            let mode = libc::SECCOMP_MODE_FILTER;
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0)
        })
    }

    /// Called before `main`.
    #[used]
    // SAFETY: the section holds the addresses of functions that are called in turn, with arguments
    // that this one ignores.
    #[unsafe(link_section = ".init_array")]
    static PLAY: extern "C" fn() = play;

    /// Plays the scene of this process and ends it. Does nothing in other processes.
    extern "C" fn play() {
        let Ok(name) = std::env::var(SCENE) else {
            return;
        };
        let result = catch_unwind(|| {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
            assert_eq!(threads, 1, "the process of a scene has one thread");
            let known = SCENES.iter().find(|(known, _)| *known == name);
            let (_, scene) = known.unwrap_or_else(|| panic!("no scene {name}"));
            scene()
        });
        match result {
            Ok(Ok(())) => exit(0),
            Ok(Err(reason)) => {
                println!("{reason}");
                exit(SKIPPED)
            }
            Err(_) => exit(1),
        }
    }
}
