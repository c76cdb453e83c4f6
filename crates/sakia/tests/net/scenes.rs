//! Scenes that run in their own processes, since each changes its whole process. See
//! [`play`](crate::support::play).

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sakia::fs::{Dir, File, OpenOptions};
use sakia::io::{BufResultExt, IoBufMut, Reader, Writer, copy};
use sakia::net::{
    Activation, ServeError, ServeOptions, TcpListener, TcpStream, UnixListener, UnixStream, serve,
};
use sakia::{JoinSet, spawn};
use sakia_driver::{OpKind, Policy};

use crate::support::{
    as_scene, assert_echoes, assert_played, bytes, echo, runtime, scene_arguments, scene_policy,
    why_no_ring,
};

fn limit(resource: Resource, to: Option<u64>) {
    setrlimit(resource, Rlimit { current: to, maximum: getrlimit(resource).maximum }).unwrap();
}

fn status_bytes(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|it: char| !it.is_ascii_digit()).parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "a scene, played in a process of its own"]
fn many_never_read() {
    const PEERS: usize = 64;
    const ROOM: u64 = 96 << 20;
    let Some(policy) = scene_policy() else { return };
    runtime(policy).block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut peers = Vec::new();
        let mut servers = JoinSet::new();
        let sent = Rc::new(Cell::new(0));
        // All their bytes would need a hundred times this room.
        limit(Resource::Data, Some(status_bytes("VmData:") + ROOM));
        for _ in 0..PEERS {
            peers.push(TcpStream::connect(address).await.unwrap());
            let mut stream = listener.accept().await.unwrap().0;
            let sent = Rc::clone(&sent);
            servers.spawn(async move {
                let (_reader, writer) = {
                    stream.write_all("hello").await.0.unwrap();
                    stream.into_split()
                };
                let mut writer = Writer::new(writer);
                for _ in 0..1600 {
                    writer.write_all(&[0; 100_000]).await.unwrap();
                    sent.set(sent.get() + 100_000);
                }
            });
        }
        // Waits until no more bytes are accepted.
        let mut before = usize::MAX;
        while before != sent.get() {
            before = sent.get();
            sakia::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(servers.len(), PEERS, "all of them wait");
        // Other clients are served meanwhile.
        let serving = spawn(async move { echo(listener.accept().await.unwrap().0).await.unwrap() });
        assert_echoes(address).await;
        serving.await.unwrap();
    });
    assert!(status_bytes("VmHWM:") < ROOM, "{} bytes", status_bytes("VmHWM:"));
}

fn socket() -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap()
}

#[test]
#[ignore = "a scene, played in a process of its own"]
fn no_descriptors_are_left() {
    const EMFILE: Option<i32> = Some(24);
    let Some(policy) = scene_policy() else { return };
    let runtime = runtime(policy);
    // An accept keeps the limit of the time when it began.
    limit(Resource::Nofile, Some(64));
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, (mut server, _)) =
            sakia::join!(TcpStream::connect(address), async { listener.accept().await.unwrap() });
        let mut client = client.unwrap();
        let sockets = [socket(), socket()];
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        for socket in &sockets {
            rustix::net::connect(socket, &address).unwrap();
        }
        // Each operation reports the limit, and nothing is lost.
        for _ in 0..3 {
            let error = listener.accept().await.unwrap_err();
            assert_eq!((error.raw_os_error(), error.addresses()), (EMFILE, &[address][..]));
        }
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!((error.raw_os_error(), error.addresses()), (EMFILE, &[address][..]));
        let error = TcpListener::bind("127.0.0.1:0").await.unwrap_err();
        assert_eq!(error.raw_os_error(), EMFILE);
        client.write_all("still here").await.0.unwrap();
        assert_eq!(server.read_exact(vec![0; 10]).await.1, b"still here");

        // A server waits until descriptors are free.
        let (errors, seen) = async_channel::unbounded();
        let token = sakia::CancellationToken::new();
        let stop = token.clone();
        let options = ServeOptions::new()
            .stop(async move { stop.canceled().await })
            .on_error(move |error| errors.try_send(error).unwrap());
        let serving = spawn(serve(listener, options, |stream, _| echo(stream)));
        for _ in 0..5 {
            let error = seen.recv().await.unwrap();
            let ServeError::Accept(error) = error else { panic!("{error}") };
            assert_eq!(error.raw_os_error(), EMFILE);
        }
        drop(taken);
        for socket in sockets {
            let mut stream = TcpStream::from_std(socket.into()).unwrap();
            stream.write_all(bytes(100)).await.0.unwrap();
            stream.shutdown(Shutdown::Write).await.unwrap();
            assert!(stream.read_to_end(Vec::new()).await.1 == bytes(100));
        }
        assert_echoes(address).await;
        token.cancel();
        let served = serving.await.unwrap().unwrap();
        assert_eq!((served.accepted, served.completed), (3, 3));
        assert!(served.accept_errors >= 5);
    });
    let counters = runtime.counters();
    assert_eq!((counters.leaked, counters.stale), (0, 0));
}

/// A server that [`started_by_its_first_connection`] starts as a service manager would.
#[test]
#[ignore = "a scene, played in a process of its own"]
fn an_activated_server() {
    let Some(policy) = scene_policy() else { return };
    let mut activation = Activation::from_env();
    assert_eq!((activation.len(), activation.position("admin")), (2, Some(1)));
    assert_eq!((activation.name(0), activation.name(2)), (Some("web"), None));
    assert_eq!(Activation::from_env().len(), 0, "they are taken once");
    let error = activation.tcp_listener(1).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let listener = activation.tcp_listener(0).unwrap().unwrap();
    assert!(activation.tcp_listener(0).unwrap().is_none());
    let flags = rustix::io::fcntl_getfd(&listener).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    assert!(activation.take(1).is_some() && activation.take(1).is_none());
    runtime(policy).block_on(async {
        let listener = TcpListener::from_std(listener).unwrap();
        echo(listener.accept().await.unwrap().0).await.unwrap();
    });
}

fn started_by_its_first_connection(policy: Policy) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap(); // as managers do
    let address = listener.local_addr().unwrap();
    runtime(policy).block_on(async {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all("anybody?").await.0.unwrap();
        client.shutdown(Shutdown::Write).await.unwrap();
        let mut command = Command::new("sh");
        // The variables are for this process, which the shell becomes.
        let script = "export LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=web:admin
            exec \"$0\" \"$@\" 3<&0 4</dev/null";
        command.args(["-c", script]).arg(std::env::current_exe().unwrap());
        command.args(scene_arguments("an_activated_server"));
        command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped());
        let child = as_scene(&mut command, policy).spawn().unwrap();
        assert_eq!(client.read_to_end(Vec::new()).await.1, b"anybody?");
        assert_played(&child.wait_with_output().unwrap());
    });
}

#[test]
fn started_by_its_first_connection_on_epoll() {
    started_by_its_first_connection(Policy::Poll);
}

#[test]
fn started_by_its_first_connection_on_a_ring() {
    match why_no_ring() {
        Some(reason) => sakia_testkit::place::announce_skip("activation", &reason),
        None => started_by_its_first_connection(Policy::Uring),
    }
}

#[test]
#[ignore = "a scene, played in a process of its own"]
fn many_wait_to_be_connected() {
    const CLIENTS: usize = 20;
    let Some(policy) = scene_policy() else { return };
    runtime(policy).block_on(async {
        let path = std::env::temp_dir().join(format!("sakia-queue-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(UnixStream::connect(path.clone()));
        }
        sakia::time::sleep(Duration::from_millis(100)).await;
        // An attempt may use a thread for a moment, but no thread waits.
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        let is_worker =
            |name: &io::Result<String>| name.as_ref().is_ok_and(|name| name.starts_with("iou-wrk"));
        let workers = names.filter(is_worker).count();
        assert!(workers < CLIENTS / 2, "{workers} workers wait");
        let listener = UnixListener::from_std(listener).unwrap();
        for _ in 0..CLIENTS {
            listener.accept().await.unwrap();
        }
        while let Some(client) = clients.join_next().await {
            let flags = rustix::fs::fcntl_getfl(client.unwrap().unwrap()).unwrap();
            assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
        }
        std::fs::remove_file(&path).unwrap();
    });
}

/// A server that [`a_unix_listener_is_passed_on`] starts.
#[test]
#[ignore = "a scene, played in a process of its own"]
fn an_activated_unix_server() {
    let Some(policy) = scene_policy() else { return };
    let mut activation = Activation::from_env();
    assert_eq!(activation.tcp_listener(0).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    let listener = activation.unix_listener(0).unwrap().unwrap();
    assert!(activation.unix_listener(0).unwrap().is_none());
    runtime(policy).block_on(async {
        let listener = UnixListener::from_std(listener).unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let question = stream.read_to_end(Vec::new()).await.buffer().unwrap();
        stream.write_all(question).await.value().unwrap();
    });
}

#[test]
fn a_unix_listener_is_passed_on() {
    let path = std::env::temp_dir().join(format!("sakia-activation-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    client.write_all(b"anybody?").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut command = Command::new("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\" 3<&0";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.args(scene_arguments("an_activated_unix_server"));
    command.stdin(OwnedFd::from(listener)).stdout(Stdio::piped());
    let child = as_scene(&mut command, Policy::Poll).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_played(&output);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"anybody?");
}

#[test]
#[ignore = "a scene, played in a process of its own"]
fn activated_for_another() {
    let Some(_) = scene_policy() else { return };
    assert_eq!(Activation::from_env().len(), 0);
}

#[test]
fn sockets_of_another_process_are_left() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(scene_arguments("activated_for_another"));
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "web");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    assert_played(&as_scene(&mut command, Policy::Poll).output().unwrap());
}

/// The environment says that descriptors were passed which the program has opened since.
#[test]
#[ignore = "a scene, played in a process of its own"]
fn activated_by_its_own_descriptors() {
    let Some(policy) = scene_policy() else { return };
    runtime(policy).block_on(async {
        let sockets: Vec<_> = (0..8).map(|_| socket()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut activation = Activation::from_env();
        assert_eq!(activation.len(), 0, "of {sockets:?} and {listener:?}");
        assert!(activation.take(0).is_none() && activation.tcp_listener(0).unwrap().is_none());
        // Each descriptor has its one owner still.
        drop(activation);
        let (client, server) =
            sakia::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        drop((client.unwrap(), server.unwrap()));
        assert!(sockets.iter().all(|socket| rustix::io::fcntl_getfd(socket).is_ok()));
    });
}

#[test]
fn descriptors_of_the_program_are_no_sockets_of_the_manager() {
    let mut command = Command::new("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=64; exec \"$0\" \"$@\" 3<&-";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.args(scene_arguments("activated_by_its_own_descriptors"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    assert_played(&as_scene(&mut command, Policy::Poll).output().unwrap());
}

/// Two files are passed. The second one is closed by other code, and its number given to another file.
#[test]
#[ignore = "a scene, played in a process of its own"]
fn activated_and_closed() {
    let Some(_) = scene_policy() else { return };
    // SAFETY: no code owns the number.
    assert_eq!(unsafe { libc::close(4) }, 0);
    let file = std::fs::File::open("/dev/zero").unwrap();
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&file), 4);
    // SAFETY: the child makes system calls and ends, without the parent's destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found = Activation::from_env().len();
        // SAFETY: ends the process.
        unsafe { libc::_exit(found as i32) };
    }
    let pid = rustix::process::Pid::from_raw(child);
    let (_, status) =
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(status.exit_status(), Some(0), "a forked child found its parent's sockets");
    let mut activation = Activation::from_env();
    assert_eq!(activation.len(), 2);
    assert!(activation.take(1).is_none() && activation.take(0).is_some());
    assert!(rustix::io::fcntl_getfd(&file).is_ok());
}

#[test]
fn a_number_that_was_closed_is_not_taken() {
    let mut command = Command::new("sh");
    let script = "export LISTEN_PID=$$ LISTEN_FDS=2; exec \"$0\" \"$@\" 3</dev/null 4</dev/null";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.args(scene_arguments("activated_and_closed"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    assert_played(&as_scene(&mut command, Policy::Poll).output().unwrap());
}

/// The variable with the address to which a traced process sends a file.
const SEND_TO: &str = "SAKIA_SEND_TO";

#[test]
#[ignore = "a scene, played in a process of its own"]
fn files_are_sent() {
    let Some(policy) = scene_policy() else { return };
    let Ok(what) = std::env::var(SEND_TO) else { return };
    let (address, path) = what.split_once(' ').unwrap();
    let runtime = runtime(policy);
    runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let file = File::open(path).await.unwrap();
        let len = file.len().await.unwrap();
        assert_eq!(stream.send_file(&file, ..).await.buffer().unwrap(), len);
        let mut reader = Reader::with_depth(file, 1 << 16, 1);
        let mut writer = Writer::new(stream);
        assert_eq!(copy(&mut reader, &mut writer).await.unwrap(), len);
        writer.close().await.unwrap();
    });
    // A copy makes one read to find the end.
    for (kind, most) in
        [(OpKind::Read, 1), (OpKind::Write, 0), (OpKind::Send, 0), (OpKind::Recv, 0)]
    {
        let count = runtime.counters().of(kind);
        assert!(count.submitted + count.inline <= most, "{}: {count:?}", kind.name());
    }
}

/// Returns the number of bytes that calls of these names moved, by the log of `strace`.
fn bytes_moved(log: &str, names: &[&str]) -> u64 {
    let is_named = |line: &&str| {
        let call = line.split_once(' ').map_or("", |(_pid, call)| call.trim_start());
        names.iter().any(|name| {
            call.strip_prefix(name).is_some_and(|rest| rest.starts_with('('))
                || call.contains(&format!("<... {name} resumed>"))
        })
    };
    let count = |line: &str| line.rsplit_once("= ")?.1.trim().parse::<u64>().ok();
    log.lines().filter(is_named).filter_map(count).sum()
}

/// No byte of a sent file passes through the process.
#[test]
fn a_sent_file_stays_in_the_kernel() {
    const IN_THE_KERNEL: &[&str] = &["sendfile", "splice"];
    const THROUGH_THE_PROCESS: &[&str] = &[
        "read", "pread64", "readv", "preadv", "preadv2", "recvfrom", "recvmsg", "write",
        "pwrite64", "writev", "pwritev", "pwritev2", "sendto", "sendmsg",
    ];
    let about = "a_sent_file_stays_in_the_kernel";
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        return sakia_testkit::place::announce_skip(about, "strace is not here, or may not trace");
    }
    for (policy, len) in [Policy::Uring, Policy::Poll]
        .into_iter()
        .flat_map(|policy| [200 << 10, 64 << 20].map(|len| (policy, len)))
    {
        if policy == Policy::Uring && why_no_ring().is_some() {
            sakia_testkit::place::announce_skip(about, "no ring");
            continue;
        }
        let name =
            |what| format!("{}/{what}-{len}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let (path, log) = (name("sent"), name("trace"));
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("{} {path}", listener.local_addr().unwrap());
        let receiving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            io::copy(&mut stream, &mut io::sink()).unwrap()
        });
        let mut command = Command::new("strace");
        let traced = [IN_THE_KERNEL, THROUGH_THE_PROCESS].concat().join(",");
        command.args([
            "-f",
            "--seccomp-bpf",
            "-s",
            "0",
            "-o",
            &log,
            "-e",
            &format!("trace={traced}"),
        ]);
        command.arg(std::env::current_exe().unwrap()).args(scene_arguments("files_are_sent"));
        command.env(SEND_TO, to).stdout(Stdio::piped());
        assert_played(&as_scene(&mut command, policy).output().unwrap());
        assert_eq!(receiving.join().unwrap(), 2 * len);
        let trace = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&log).unwrap();
        assert_eq!(bytes_moved(&trace, IN_THE_KERNEL), 2 * len);
        // The process reads its libraries and prints the output of the test.
        let own = bytes_moved(&trace, THROUGH_THE_PROCESS);
        assert!(own < 100_000, "{own} bytes of {len}");
    }
}

/// The variable with the folder whose files a traced process reads.
const READ_FROM: &str = "SAKIA_READ_FROM";
const SMALL_FILE_BYTES: usize = 4096;
const SMALL_FILE_READS: usize = 100;

#[test]
#[ignore = "a scene, played in a process of its own"]
fn small_files_are_read() {
    let Some(policy) = scene_policy() else { return };
    let Ok(folder) = std::env::var(READ_FROM) else { return };
    runtime(policy).block_on(async {
        let folder = Dir::open(&folder).await.unwrap();
        let options = OpenOptions::new().read(true).nonblocking(true).clone();
        // The calls of a file server for each request.
        let read = async |name: &str| {
            let (file, metadata) = folder.open_with_metadata(name, &options).await.unwrap();
            let room = Vec::with_capacity(metadata.len() as usize).room(metadata.len() as usize);
            let bytes = file.read_exact_at(room, 0).await.buffer().unwrap().into_inner();
            assert_eq!(bytes, [7; SMALL_FILE_BYTES]);
            // The next request is in another turn, which has its own budget of plain calls.
            sakia::yield_now().await;
        };
        for _ in 0..10 {
            read("small").await; // by then the driver knows the file system
        }
        read("mark").await;
        for _ in 0..SMALL_FILE_READS {
            read("small").await;
        }
        read("mark").await;
    });
}

/// A small file takes one `statx(2)` and one read, and no call concerns the thread.
#[test]
fn a_small_file_is_asked_about_once_and_read_once() {
    let about = "a_small_file_is_asked_about_once_and_read_once";
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        return sakia_testkit::place::announce_skip(about, "strace is not here, or may not trace");
    }
    for policy in [Policy::Uring, Policy::Poll] {
        if policy == Policy::Uring && why_no_ring().is_some() {
            sakia_testkit::place::announce_skip(about, "no ring");
            continue;
        }
        let name = format!("{}/small-files-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        std::fs::create_dir(&name).unwrap();
        for file in ["small", "mark"] {
            std::fs::write(format!("{name}/{file}"), vec![7; SMALL_FILE_BYTES]).unwrap();
        }
        let log = format!("{name}/log");
        let calls =
            "trace=statx,newfstatat,fstat,openat,openat2,read,pread64,preadv,preadv2,getrusage";
        let mut command = Command::new("strace");
        command.args(["-f", "--seccomp-bpf", "-s", "64", "-o", &log, "-e", calls]);
        command.arg(std::env::current_exe().unwrap());
        command.args(scene_arguments("small_files_are_read"));
        command.env(READ_FROM, &name).stdout(Stdio::piped());
        assert_played(&as_scene(&mut command, policy).output().unwrap());
        let trace = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_dir_all(&name).unwrap();
        // The calls between the opens of the marks; the calls on the first mark's file are among them.
        let is_mark = |line: &&str| line.contains("\"mark\"");
        let rest = trace.lines().skip_while(|line| !is_mark(line)).skip_while(is_mark);
        let calls: Vec<_> = rest.take_while(|line| !is_mark(line)).collect();
        let count = |part: &str| calls.iter().filter(|line| line.contains(part)).count();
        let expected = SMALL_FILE_READS + 1;
        let counts = ["statx(", &format!("= {SMALL_FILE_BYTES}"), "getrusage(", "fstat"].map(count);
        assert_eq!(counts, [expected, expected, 0, 0], "{policy:?}");
    }
}
