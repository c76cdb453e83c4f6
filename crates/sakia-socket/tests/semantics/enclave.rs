//! The calls that leave a toy enclave: their number, and that the kernel sees these and no others.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;
use std::{env, fs, thread};

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_nodelay;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, ipproto,
};
use sakia_socket::{
    EnclaveFd, Entry, EpollChange, EpollEvent, Events, Host, HostCall, Kernel, Layer, Options,
    PollEntry, SelectEntry, Selection, Socket, ToyEnclave, When,
};

use crate::support::watched::{Failing, Watched};

type Sockets = Layer<ToyEnclave<Kernel>>;

fn sockets(read_ahead: When, gather: When) -> Sockets {
    let mut options = Options::default();
    (options.read_ahead, options.gather) = (read_ahead, gather);
    Layer::new(ToyEnclave::new(Kernel, Duration::ZERO), options)
}

fn tcp(sockets: &Sockets) -> (Socket<ToyEnclave>, Socket<ToyEnclave>) {
    let make = || sockets.socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP));
    let (listener, a) = (make().expect("a socket"), make().expect("a socket"));
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    listener.listen(1).expect("a listener");
    a.connect(&listener.local_address().expect("an address")).expect("a connection");
    let b = listener.accept().expect("a connection").0;
    (a, b)
}

/// Makes a call on a descriptor. Returns its error; `None` too if it has none to tell.
fn error_of(host: &ToyEnclave<Watched>, fd: &EnclaveFd<OwnedFd>, call: HostCall) -> Option<Errno> {
    let (family, kind, flags) = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
    let address = SocketAddr::from(([127, 0, 0, 1], 0)).into();
    let mut bytes = [0; 4];
    let buffers = &mut [IoSliceMut::new(&mut bytes)];
    let sent = [IoSlice::new(b"abc")];
    match call {
        HostCall::Socket => host.socket(family, kind, flags, None).err(),
        HostCall::Pair => host.pair(family, kind, flags).err(),
        HostCall::Bind => host.bind(fd, &address).err(),
        HostCall::Listen => host.listen(fd, 1).err(),
        HostCall::Accept => host.accept(fd, flags).err(),
        HostCall::Connect => host.connect(fd, &address).err(),
        HostCall::Shutdown => host.shutdown(fd, Shutdown::Both).err(),
        HostCall::LocalAddress => host.local_address(fd).err(),
        HostCall::PeerAddress => host.peer_address(fd).err(),
        HostCall::Receive => host.receive(fd, buffers, RecvFlags::empty()).err(),
        HostCall::Send => host.send(fd, &sent, SendFlags::NOSIGNAL, None).err(),
        HostCall::Unread => host.unread(fd).err(),
        HostCall::TakeError => host.take_error(fd).err(),
        HostCall::SetOption => host.set_option(fd, 1, 2, &[0; 4]).err(),
        HostCall::GetOption => host.option(fd, 1, 2, &mut [0; 4]).err(),
        HostCall::ReceiveMessage => host.receive_message(fd, buffers, 0, RecvFlags::empty()).err(),
        HostCall::SendMessage => host.send_message(fd, &sent, &[], SendFlags::NOSIGNAL, None).err(),
        HostCall::Disconnect => host.disconnect(fd).err(),
        HostCall::Unsent => host.unsent(fd).err(),
        HostCall::IsAtMark => host.is_at_mark(fd).err(),
        HostCall::ResetOnClose => host.reset_on_close(fd).err(),
        HostCall::SetNonblocking => host.set_nonblocking(fd, true).err(),
        HostCall::Wait => {
            let mut entries = [Entry { fd, wanted: Events::IN, ready: Events::NONE }];
            host.wait(&mut entries, Some(Duration::ZERO)).err()
        }
        HostCall::EpollCreate => host.epoll_create().err(),
        HostCall::EpollControl => host.epoll_control(fd, EpollChange::Delete, fd).err(),
        HostCall::EpollWait => {
            let mut events = [EpollEvent { events: Events::NONE, data: 0 }];
            host.epoll_wait(fd, &mut events, Some(Duration::ZERO)).err()
        }
        HostCall::Event => host.event().err(),
        HostCall::Signal => host.signal(fd).err(),
        HostCall::Drain => host.drain(fd).err(),
        _ => None,
    }
}

/// Each call of the host fails once, and the program in the enclave is told.
#[test]
fn the_errors_of_the_host_come_into_the_enclave() {
    use HostCall::{Close, Memory, Now, Park, RaiseBrokenPipe, Unpark};
    for call in HostCall::ALL {
        // The first call is the one that makes the descriptor.
        let failing = Failing { at: Some((2, Errno::UCLEAN)), ..Failing::default() };
        let host = Watched { failing: failing.into(), ..Watched::default() };
        let host = ToyEnclave::new(host, Duration::ZERO);
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        let fd = host.socket(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        let has_error = ![Close, Memory, Now, Park, RaiseBrokenPipe, Unpark].contains(&call);
        let expected = has_error.then_some(Errno::UCLEAN);
        assert_eq!(error_of(&host, &fd, call), expected, "{}", call.name());
    }
}

/// For messages that fill the buffer, one under way at a time, no call can be saved, and none must be
/// added.
#[test]
fn messages_one_by_one_take_the_calls_of_the_kernel() {
    const MESSAGES: u64 = 10_000;
    let sockets = sockets(When::OnEvidence, When::OnEvidence);
    let (a, b) = tcp(&sockets);
    for end in [&a, &b] {
        set_tcp_nodelay(end.fd(), true).expect("an option");
    }
    let before = sockets.host().counts();
    let server = thread::spawn(move || {
        let mut message = [0; 64];
        while b.recv(&mut message, RecvFlags::empty()).expect("an open connection") == 64 {
            b.send(&message, SendFlags::NOSIGNAL).expect("an open connection");
        }
    });
    let mut answer = [0; 64];
    for number in 0..MESSAGES {
        let message = [number as u8; 64];
        a.send(&message, SendFlags::NOSIGNAL).expect("an open connection");
        assert_eq!(a.recv(&mut answer, RecvFlags::empty()), Ok(64));
        assert_eq!(answer, message);
    }
    a.shutdown(Shutdown::Write).expect("an open connection");
    server.join().expect("no panic");
    let counts = sockets.host().counts().since(&before);
    assert_eq!(counts.of(HostCall::Send), 2 * MESSAGES);
    // Each end reads ahead after 32, 64, 128 ... reads; the end of the stream is one more read.
    let receives = counts.of(HostCall::Receive);
    assert!(receives <= 2 * MESSAGES + 2 * 9 + 1, "{receives} for {MESSAGES} messages");
}

/// The environment variable with the variant, in the process of the scene.
const SCENE: &str = "SAKIA_TEST_SCENE";
/// The variants of the experiment `sockets`.
const VARIANTS: [(&str, When, When); 5] = [
    ("plain", When::Never, When::Never),
    ("default", When::OnEvidence, When::Never),
    ("gathered", When::OnEvidence, When::OnEvidence),
    ("ahead", When::Always, When::Never),
    ("all", When::Always, When::Always),
];
/// Rounds of the scene that are compared; every tenth makes connections.
const ROUNDS: usize = 60;
const MADE: &str = "a layer is made\n";
const BEGINS: &str = "steady state begins\n";
const ENDS: &str = "steady state ends\n";

/// Does the work that is traced: streams, bursts, waits in each way, datagrams, and connections that open
/// and close. It uses one thread; with gathered writes, another one sends.
#[test]
#[ignore = "a process of another test"]
fn scene() {
    let variant = env::var(SCENE).expect("the name of a variant");
    let variant = VARIANTS.into_iter().find(|(name, ..)| *name == variant);
    let (_, read_ahead, gather) = variant.expect("a variant");
    let is_gathered = gather != When::Never;
    let mut marks = std::io::stderr();
    marks.write_all(MADE.as_bytes()).expect("standard error");
    let sockets = sockets(read_ahead, gather);
    let (a, b) = tcp(&sockets);
    let datagrams = sockets.pair(AddressFamily::UNIX, SocketType::DGRAM).expect("two sockets");
    let set = sockets.epoll().expect("a set");
    set.add(&b, EpollEvent { events: Events::IN, data: 1 }).expect("an entry");
    let round = |number: usize| {
        let bytes = vec![7; 20 + number % 5 * 700];
        for _ in 0..3 {
            a.send(&bytes, SendFlags::NOSIGNAL).expect("an open connection");
        }
        let mut entries = [PollEntry::new(&b, Events::IN)];
        assert_eq!(sockets.poll(&mut entries, None), Ok(1));
        let mut got = 0;
        while got < 3 * bytes.len() {
            let mut buffer = vec![0; 100];
            got += b.recv(&mut buffer, RecvFlags::empty()).expect("an open connection");
        }
        b.unread().expect("an open connection");
        // A burst of small writes, and small reads of the backlog.
        for _ in 0..60 {
            a.send(b"12345678", SendFlags::NOSIGNAL).expect("an open connection");
        }
        assert_eq!(set.wait(&mut [EpollEvent::default(); 4], None), Ok(1));
        for _ in 0..60 {
            assert_eq!(b.recv(&mut [0; 8], RecvFlags::WAITALL), Ok(8));
        }
        assert_eq!(set.wait(&mut [EpollEvent::default()], Some(Duration::ZERO)), Ok(0));
        datagrams.0.send(b"a datagram", SendFlags::NOSIGNAL).expect("an open socket");
        let readable = Selection { readable: true, ..Selection::default() };
        let mut entries = [SelectEntry::new(&datagrams.1, readable)];
        assert_eq!(sockets.select(&mut entries, None), Ok(1));
        assert_eq!(datagrams.1.recv(&mut [0; 20], RecvFlags::empty()), Ok(10));
        if number.is_multiple_of(10) {
            let (c, d) = tcp(&sockets);
            c.set_nonblocking(true).expect("an option");
            c.send(b"unread", SendFlags::NOSIGNAL).expect("an open connection");
            sockets.flush();
            assert_eq!(d.recv(&mut [0], RecvFlags::empty()), Ok(1));
            assert_eq!(d.take_error(), Ok(None));
            d.shutdown(Shutdown::Write).expect("an open connection");
        }
    };
    (0..20).for_each(round);
    sockets.flush();
    // The other thread has begun when it parks for the first time.
    while is_gathered && sockets.host().counts().of(HostCall::Park) == 0 {
        thread::yield_now();
    }
    let before = sockets.host().counts();
    marks.write_all(BEGINS.as_bytes()).expect("standard error");
    (0..ROUNDS).for_each(round);
    sockets.flush();
    marks.write_all(ENDS.as_bytes()).expect("standard error");
    for (call, count) in sockets.host().counts().since(&before).iter() {
        println!("\ncounted {} {count}", call.name());
    }
}

/// Returns the system call of a host call, and the number of these that it makes.
fn system_calls(call: &str) -> (&'static str, u64) {
    match call {
        "socket" => ("socket", 1),
        "bind" => ("bind", 1),
        "listen" => ("listen", 1),
        "accept" => ("accept4", 1),
        "connect" => ("connect", 1),
        "shutdown" => ("shutdown", 1),
        "local_address" => ("getsockname", 1),
        "receive" => ("receive", 1),
        "send" => ("send", 1),
        "unread" => ("ioctl", 1),
        "take_error" | "option" => ("getsockopt", 1),
        "reset_on_close" | "set_option" => ("setsockopt", 1),
        // The flags are read before they are changed.
        "set_nonblocking" => ("fcntl", 2),
        "wait" => ("poll", 1),
        "park" | "unpark" => ("futex", 1),
        "epoll_create" => ("epoll_create1", 1),
        "epoll_control" => ("epoll_ctl", 1),
        "epoll_wait" => ("epoll_wait", 1),
        "event" => ("eventfd2", 1),
        "signal" => ("write", 1),
        "drain" => ("read", 1),
        "close" => ("close", 1),
        other => panic!("{other} is not known"),
    }
}

/// Returns the system calls between the marks in a log of `strace`. Calls of the same meaning have one
/// name.
fn seen(log: &str) -> BTreeMap<String, u64> {
    let mut seen = BTreeMap::new();
    let lines = log.lines().skip_while(|line| !line.contains(BEGINS.trim())).skip(1);
    for line in lines.take_while(|line| !line.contains(ENDS.trim())) {
        let call = line.split_once(' ').map_or("", |(_pid, call)| call.trim_start());
        let Some((name, arguments)) = call.split_once('(') else { continue };
        if name == "fcntl" && arguments.contains("F_GETFD") {
            continue; // with debug assertions the standard library looks before it closes
        }
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue; // the second half of a call, a signal, an end
        }
        let name = match name {
            "recvfrom" | "recvmsg" => "receive",
            "sendto" | "sendmsg" => "send",
            "ppoll" => "poll",
            "epoll_pwait" | "epoll_pwait2" => "epoll_wait",
            name => name,
        };
        *seen.entry(name.to_owned()).or_default() += 1;
    }
    seen
}

#[test]
fn strace_sees_the_calls_that_were_counted() {
    let about = "strace_sees_the_calls_that_were_counted";
    let can_trace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        return sakia_testkit::place::announce_skip(about, "strace is not here, or may not trace");
    }
    for (mode, read_ahead, gather) in VARIANTS {
        let path = format!("{}/trace-{mode}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
        let mut command = Command::new("strace");
        command.args(["-f", "-o", &path]).arg(env::current_exe().expect("this program"));
        command.args(["--exact", "enclave::scene", "--ignored", "--nocapture", "--test-threads=1"]);
        let output = command.env(SCENE, mode).output().expect("strace");
        assert!(output.status.success(), "{mode}: {output:?}");
        let log = fs::read_to_string(&path).expect("the log");
        let mut seen = seen(&log);
        fs::remove_file(&path).expect("the log");
        // No signal has a handler of the library. That of the C library is for `setuid` on all threads.
        let (_, made) = log.split_once(MADE.trim()).expect("a layer was made");
        let handlers = made.lines().filter(|line| line.contains("rt_sigaction("));
        let handlers: Vec<&str> = handlers.filter(|line| !line.contains("SIGRT_1")).collect();
        assert_eq!(handlers, [""; 0], "{mode}");
        // Memory is not a call of the host.
        for name in ["brk", "madvise", "mmap", "mprotect", "mremap", "munmap"] {
            seen.remove(name);
        }
        let mut counted = BTreeMap::new();
        let said = String::from_utf8(output.stdout).expect("text");
        for line in said.lines().filter_map(|line| line.strip_prefix("counted ")) {
            let (name, count) = line.split_once(' ').expect("a name and a count");
            if ["now", "memory"].contains(&name) {
                continue; // these do not leave
            }
            let (call, each) = system_calls(name);
            let count: u64 = count.parse().expect("a number");
            *counted.entry(call.to_owned()).or_default() += each * count;
        }
        if gather != When::Never {
            // Locks of the standard library sleep by the same call, and the other thread continues to park.
            let parked = [counted.remove("futex"), seen.remove("futex")];
            assert!(parked.iter().all(Option::is_some), "{parked:?}");
        }
        let (rounds, made) = (ROUNDS as u64, ROUNDS as u64 / 10);
        assert!(
            counted["receive"] > rounds && counted["close"] > made * 5 / 2,
            "{mode}: {counted:?}"
        );
        // Each round has 60 small reads and writes, of which variants save most.
        let is_saved = |call: &str| counted[call] < rounds * 60;
        assert_eq!(is_saved("receive"), read_ahead != When::Never, "{mode}: {counted:?}");
        assert_eq!(is_saved("send"), gather != When::Never, "{mode}: {counted:?}");
        assert_eq!(seen, counted, "{mode}");
    }
}
