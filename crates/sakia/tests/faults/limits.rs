//! Limits of the process that are reached and then raised again: descriptors, locked memory, the size of
//! files, threads.

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sakia::fs::{self, File};
use sakia::io::{Async, Level, Reader, Writer, pipe};
use sakia::net::lookup_host;
use sakia::process::Command;
use sakia::{Runtime, spawn, spawn_blocking, yield_now};
use sakia_driver::{Driver, Policy, Uring, Wait};
use sakia_ring::Ring;

use crate::support::{TempDir, names, on_each_backend, runtime};
use crate::{children, load};

on_each_backend! {
    of_descriptors
    of_the_size_of_files
    of_threads
}

const EMFILE: Option<i32> = Some(libc::EMFILE);

fn of_descriptors(policy: Policy) {
    children::run("no_descriptors", policy);
}

fn of_the_size_of_files(policy: Policy) {
    children::run("limited_file_size", policy);
    children::run("limited_file_size_of_callers", policy);
}

fn of_threads(policy: Policy) {
    children::run("no_threads", policy);
}

#[test]
fn of_locked_memory() {
    children::run("no_locked_memory", Policy::Uring);
}

fn limit(resource: Resource, to: Option<u64>) {
    setrlimit(resource, Rlimit { current: to, maximum: getrlimit(resource).maximum }).unwrap();
}

/// Becomes a user without other processes or files.
fn become_somebody_else() -> Result<(), String> {
    const USERS: u32 = 1 << 20; // and more, which no system assigns
    let user = USERS + std::process::id();
    // SAFETY: take numbers and no memory; this process has one thread.
    let is_changed = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0
            && libc::setgid(user) == 0
            && libc::setuid(user) == 0
    };
    is_changed.then_some(()).ok_or_else(|| format!("setuid: {}", io::Error::last_os_error()))
}

// ---- descriptors -------------------------------------------------------------------------------

pub fn scene_no_descriptors(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let path = folder.join("file");
    std::fs::write(&path, "text").unwrap();
    let runtime = runtime(policy);
    let before = getrlimit(Resource::Nofile).current;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = Async::new(listener).unwrap();
        // Waiting operations keep waiting.
        let (mut reader, writer) = pipe().unwrap();
        let waiting = spawn(async move { reader.read(vec![0; 8]).await });
        yield_now().await;
        let client = TcpStream::connect(address).unwrap();

        limit(Resource::Nofile, Some(64));
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        for error in [
            pipe().err().unwrap(),
            File::open(&path).await.err().unwrap().into(),
            Command::new("true").output().await.err().unwrap(),
            Async::new(listener.get_ref()).err().unwrap(),
            listener.read_with(TcpListener::accept).await.err().unwrap(),
            runtime.pollable().err().unwrap(),
        ] {
            assert_eq!(fs::os_error(&error), EMFILE, "{error}");
        }
        // Neither a ring nor an epoll set can be made: operations end with the error, and the choice names
        // the limit.
        let late = Runtime::builder().backend(Policy::Auto).build().unwrap();
        for _ in 0..2 {
            let error = late.block_on_nested(fs::metadata("/proc/self/stat")).unwrap_err();
            assert_eq!(error.raw_os_error(), EMFILE, "{error}");
            let choice = late.choice();
            let text = choice.to_string();
            assert!(choice.name() == "none" && text.contains("ulimit -n"), "{text}");
            let error = late.pollable().unwrap_err();
            assert_eq!(fs::os_error(&error), EMFILE, "{error}");
        }
        assert_eq!(late.block_on_nested(async { spawn(async { 7 }).await.unwrap() }), 7);

        drop(taken);
        assert!(late.block_on_nested(fs::metadata("/proc/self/stat")).is_ok());
        assert_ne!(late.choice().name(), "none");
        load::assert_sound(&late);
        assert_eq!(fs::read(&path).await.unwrap(), b"text");
        let (stream, _) = listener.read_with(TcpListener::accept).await.unwrap();
        let echoing = spawn(load::echo(stream));
        load::send_and_compare(client, vec![5; 10_000]).await;
        echoing.await.unwrap();
        let output = Command::new("echo").arg("there").output().await.unwrap();
        assert_eq!(output.stdout, b"there\n");
        let mut writer = writer;
        writer.write_all("waited").await.0.unwrap();
        let (result, bytes) = waiting.await.unwrap();
        assert_eq!(&bytes[..result.unwrap()], b"waited");
        limit(Resource::Nofile, before);
    });
    load::assert_sound(&runtime);
    Ok(())
}

// ---- locked memory -----------------------------------------------------------------------------

pub fn scene_no_locked_memory(_: Policy) -> Result<(), String> {
    // Enough for a small ring on kernels that charge rings to the limit, and too little for the arena.
    const LOCKED: u64 = 64 << 10;
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } == 0 {
        become_somebody_else()?;
    }
    setrlimit(Resource::Memlock, Rlimit { current: Some(LOCKED), maximum: Some(LOCKED) }).unwrap();
    let ring = Ring::builder().sq_entries(8).cq_entries(16);
    let ring = ring.build().map_err(|error| error.to_string())?;
    let driver = Driver::new(Uring::from_ring(ring));
    let Err(error) = driver.register_arena(4, 65_536) else {
        return Err("registered memory is not charged to the limit on locked memory".into());
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    // The failed request leaves nothing behind, and ordinary memory works as well.
    let error = driver.register_arena(2, 65_536).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "not that there is one already");
    let file = driver.adopt(std::fs::File::open("/dev/zero").unwrap().into());
    let mut read = driver.read(&file, vec![1; 5000], 0);
    let (result, bytes) = loop {
        match read.try_take() {
            Some(done) => break done,
            None => driver.turn(Wait::Forever).unwrap(),
        };
    };
    assert_eq!((result.unwrap(), bytes), (5000, vec![0; 5000]));
    Ok(())
}

// ---- the size of files -------------------------------------------------------------------------

pub fn scene_limited_file_size(policy: Policy) -> Result<(), String> {
    const LIMIT: usize = 64 << 10;
    let folder = TempDir::new();
    // The kernel's own answer to what exceeds the limit would be to end the process.
    // SAFETY: takes numbers only.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit(Resource::Fsize, Some(LIMIT as u64));
    let runtime = runtime(policy);
    runtime.block_on(async {
        let bytes = vec![7; LIMIT + 1000];
        // One write is short and the next one fails; the position is at the end of the written bytes.
        let path = folder.join("plain");
        let mut file = File::create(&path).await.unwrap();
        let (result, back) = file.write(bytes.clone()).await;
        assert_eq!((result.unwrap(), back.len()), (LIMIT, bytes.len()));
        assert_eq!(file.write("more").await.0.unwrap_err().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(file.stream_position().await.unwrap(), LIMIT as u64);
        file.close().await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), LIMIT as u64);

        // The error of a write of a whole file names the operation and the file.
        let error = fs::write(&path, bytes.clone()).await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::FileTooLarge, "write"));
        assert_eq!(error.path(), Some(&*path));
        let saved = folder.join("saved");
        fs::save(&saved, "old").await.unwrap();
        let error = fs::save(&saved, bytes.clone()).await.unwrap_err();
        assert_eq!((error.kind(), error.operation()), (ErrorKind::FileTooLarge, "write"));
        assert_eq!(fs::read(&saved).await.unwrap(), b"old");
        assert_eq!(names(folder.path()), ["plain", "saved"], "half a file is left");

        let mut writer = Writer::at(File::create(&path).await.unwrap(), 0).block_bytes(10_000);
        let mut error = writer.write_all(&bytes).await.err();
        if error.is_none() {
            error = writer.flush(Level::Accepted).await.err();
        }
        assert_eq!(error.unwrap().raw_os_error(), Some(libc::EFBIG));
        assert_eq!(writer.written(), std::fs::metadata(&path).unwrap().len());
        // After the writer is closed the file can be written again.
        assert_eq!(writer.close().await.unwrap_err().raw_os_error(), Some(libc::EFBIG));
        fs::write(&path, "short").await.unwrap();
        assert_eq!(fs::read(&path).await.unwrap(), b"short");
    });
    load::assert_sound(&runtime);
    Ok(())
}

/// Those who await an engine's write are not ended by the kernel's signal.
pub fn scene_limited_file_size_of_callers(policy: Policy) -> Result<(), String> {
    const LIMIT: u64 = 64 << 10;
    let folder = TempDir::new();
    limit(Resource::Fsize, Some(LIMIT));
    let engine = Runtime::builder().backend(policy).threads(1).build_engine().unwrap();
    let in_memory = format!("/dev/shm/sakia-limits-{}", std::process::id());
    for path in [folder.join("a"), in_memory.into()] {
        for appends in [false, true] {
            let mut options = fs::OpenOptions::new();
            options.create(true).write(true).append(appends);
            let file = engine.open_with(&path, &options).wait().unwrap();
            let all = file.write_at(vec![7; LIMIT as usize - 10], 0);
            sakia::block_on(all).0.map_err(|error| error.to_string())?;
            // A part of it has room.
            let (result, _) = sakia::block_on(file.write_at(vec![7; 20], LIMIT - 10));
            assert_eq!(result.unwrap(), 10, "{path:?}");
            let (result, _) = sakia::block_on(file.write_at(vec![7; 20], LIMIT));
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EFBIG), "{path:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }
    Ok(())
}

// ---- threads -----------------------------------------------------------------------------------

pub fn scene_no_threads(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.join("file");
    let runtime = Runtime::builder().backend(policy).threads(1).build().unwrap();
    become_somebody_else()?;
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), maximum: Some(1) }).unwrap();
    if std::thread::Builder::new().spawn(|| ()).is_ok() {
        return Err("threads are not limited".into());
    }
    runtime.block_on(async {
        // Operations that cannot block for ever run without threads.
        fs::write(&path, vec![3; 100_000]).await.unwrap();
        fs::rename(&path, folder.join("renamed")).await.unwrap();
        assert_eq!(fs::read(folder.join("renamed")).await.unwrap(), [3; 100_000]);
        fs::remove_file(folder.join("renamed")).await.unwrap();
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all("through").await.0.unwrap();
        assert_eq!(reader.read(vec![0; 7]).await.1, b"through");
        // Work that needs a new thread or process is refused.
        for _ in 0..3 {
            assert!(spawn_blocking(|| 1).await.unwrap_err().is_canceled());
            let error = lookup_host("localhost:80").await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Other, "nobody could ask: {error}");
        }
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(Reader::offload(zeros).err().unwrap().raw_os_error(), Some(libc::EAGAIN));
        let error = Runtime::builder().backend(policy).threads(2).build().err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
        let error = Command::new("true").spawn().err().unwrap();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
    });
    load::assert_sound(&runtime);
    Ok(())
}
