//! Rings that reject one opcode each: operations that need it fail with an error or take another way, all
//! others work, and none waits for ever.

use std::io;
use std::path::Path;
use std::time::Duration;

use sakia::fs::{self, File};
use sakia::io::{Async, BufResult, PipeReader, pipe};
use sakia::time::timeout;
use sakia::{Runtime, spawn_on};
use sakia_driver::{Bypass, Policy};
use sakia_ring::{Opcode, Restriction, Ring};

use crate::support::{TempDir, announce_skip, why_no_ring};

/// The opcodes that the runtime uses, and the attempts below that may fail without them, the first of which
/// does.
const NEEDED_BY: &[(Opcode, &[&str])] = &[
    (Opcode::NOP, &[]),
    (Opcode::READ, &["read", "read a pipe", "read whole"]),
    (Opcode::WRITE, &["write", "write a pipe", "write whole", "save"]),
    (Opcode::READV, &["read parts"]),
    (Opcode::WRITEV, &["write parts"]),
    (Opcode::FSYNC, &["sync", "save"]),
    (Opcode::POLL_ADD, &["readable"]),
    (Opcode::ASYNC_CANCEL, &[]),
    (Opcode::FALLOCATE, &["allocate"]),
    (Opcode::FTRUNCATE, &["set length"]),
    (Opcode::OPENAT, &["open", "read whole", "write whole", "save", "list"]),
    (Opcode::CLOSE, &["close", "save"]),
    (Opcode::STATX, &["metadata", "save"]),
    (Opcode::RENAMEAT, &["rename", "save"]),
    (Opcode::UNLINKAT, &["remove"]),
    (Opcode::MKDIRAT, &["make a directory"]),
    (Opcode::SYMLINKAT, &["link"]),
    (Opcode::MSG_RING, &[]),
];

/// Returns a runtime whose rings support all known opcodes except this one.
fn runtime_without(missing: Opcode) -> Runtime {
    const REGISTERS: u8 = 21; // up to `REGISTER_RING_FDS` (5.18), which each later kernel knows
    let probe = Ring::builder().build().unwrap().probe().unwrap();
    let known = (0..=u8::MAX).map(Opcode).filter(|&opcode| probe.is_supported(opcode));
    let opcodes = known.filter(|&opcode| opcode != missing).map(Restriction::Opcode);
    let registers = (0..REGISTERS).map(Restriction::Register);
    let allowed = opcodes.chain(registers).chain([Restriction::FlagsAllowed(0xff)]);
    let ring = Ring::builder().restrict(allowed);
    let builder = Runtime::builder().backend(Policy::Uring).threads(2).ring(ring);
    builder.bypass(Bypass::Never).build().unwrap()
}

#[test]
fn without_one_operation_after_the_other() {
    if let Some(reason) = why_no_ring() {
        return announce_skip(module_path!(), &reason);
    }
    for &(missing, needed_by) in NEEDED_BY {
        let folder = TempDir::new();
        let runtime = runtime_without(missing);
        let attempts = runtime.block_on(everything(folder.path()));
        let mut failed = Vec::new();
        for (name, result) in attempts {
            match result {
                Ok(()) => {}
                Err(error) => {
                    failed.push(name);
                    assert_eq!(fs::os_error(&error), Some(libc::EACCES), "{name}: {error}");
                    assert!(
                        needed_by.contains(&name),
                        "{missing:?} is missing for {name}: {error}"
                    );
                }
            }
        }
        let first_fails = needed_by.first().is_none_or(|first| failed.contains(first));
        assert!(first_fails, "{missing:?} was not needed: {failed:?}");
        let counters = runtime.counters();
        assert_eq!((counters.leaked, counters.stale), (0, 0), "{missing:?}");
    }
}

type Attempts = Vec<(&'static str, io::Result<()>)>;

fn of<T, U>((result, _): BufResult<T, U>) -> io::Result<()> {
    result.map(drop)
}

/// Performs each operation once on its own files, so that no attempt depends on another.
async fn everything(folder: &Path) -> Attempts {
    let join = |name: &str| {
        let path = folder.join(name);
        std::fs::write(&path, vec![1; 1000]).unwrap();
        path
    };
    let open = |name: &str| {
        let options = std::fs::File::options().read(true).write(true).open(join(name)).unwrap();
        File::from_std(options).unwrap()
    };
    let io = |result: fs::Result<()>| result.map_err(io::Error::from);
    let mut attempts: Attempts = vec![
        ("read", of(open("a").read_at(vec![0; 10], 0).await)),
        ("read parts", of(open("b").read_vectored_at(vec![vec![0; 5]; 2], 0).await)),
        ("write", of(open("c").write_at(vec![0; 10], 0).await)),
        ("write parts", of(open("d").write_vectored_at(vec![vec![0; 5]; 2], 0).await)),
        ("sync", open("e").sync_all().await),
        ("allocate", open("f").allocate(0..5000).await),
        ("set length", open("g").set_len(5).await),
        ("advise", open("h").advise(0..0, fs::Advice::Sequential).await),
        ("close", open("i").close().await),
        ("open", io(File::open(join("j")).await.map(drop))),
        ("read whole", io(fs::read(join("k")).await.map(drop))),
        ("write whole", io(fs::write(join("l"), "new").await)),
        ("metadata", io(fs::metadata(join("m")).await.map(drop))),
        ("rename", io(fs::rename(join("n"), folder.join("o")).await)),
        ("remove", io(fs::remove_file(join("p")).await)),
        ("make a directory", io(fs::create_dir(folder.join("q")).await)),
        ("link", io(fs::symlink("anywhere", folder.join("r")).await)),
        ("save", io(fs::save(join("s"), "new").await)),
        ("list", io(fs::read_dir(folder).await.map(drop))),
    ];
    attempts.extend(streams().await);
    attempts
}

/// Performs the operations on pipes, readiness and another thread.
async fn streams() -> Attempts {
    let (mut reader, mut writer) = pipe().unwrap();
    let written = of(writer.write("x").await);
    let (full, mut other) = std::io::pipe().unwrap();
    io::Write::write(&mut other, b"x").unwrap();
    let read = of(PipeReader::from_fd(full.into()).read(vec![0; 1]).await);
    // A dropped read, which is canceled if the ring can cancel.
    let given_up = timeout(Duration::from_millis(1), reader.read(vec![0; 8])).await;
    drop(given_up);
    drop(writer);
    let (socket, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = Async::new(socket).unwrap();
    io::Write::write(&mut other, b"x").unwrap();
    let readable = socket.readable().await;
    let elsewhere = spawn_on(1, || async { 5 }).await.map(|five| assert_eq!(five, 5));
    elsewhere.unwrap();
    vec![("write a pipe", written), ("read a pipe", read), ("readable", readable)]
}
