//! Each call of this crate by itself, on the kernel: whichever of its system calls fails, it says so, once.
//!
//! The test of this name on the simulated kernel does that for what there is there. A supervisor refuses the
//! first system call, then the second, and so on. Those that a ring makes do not fail.

use std::fs::OpenOptions as StdOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, mem, thread};

use rustix::fs::{CWD, FileType, mknodat};
use sakia::engine::GroupCommit;
use sakia::fs::{self, File};
use sakia::io::BufResultExt;
use sakia::net::{Keepalive, TcpListener, TcpStream, UdpSocket, UnixStream};
use sakia::{Engine, Runtime, join};
use sakia_driver::Policy;

use crate::children;
use crate::supervisor::supervise;
use crate::support::{TempDir, on_each_backend};

on_each_backend! { each_system_call_that_fails_is_told_by_its_call }

fn each_system_call_that_fails_is_told_by_its_call(policy: Policy) {
    children::run("each_call", policy);
}

/// The system calls that fail.
const FAILING: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_pipe2,
    libc::SYS_tee,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvmsg,
    libc::SYS_sendfile,
    libc::SYS_epoll_ctl,
    libc::SYS_pwritev2,
    libc::SYS_pwrite64,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
];
/// Those that may take no bytes instead.
const WRITES: &[libc::c_long] = &[libc::SYS_pwritev2, libc::SYS_pwrite64];
const ERRNOS: [i32; 2] = [libc::EIO, NOTHING];
/// In place of an errno: the call does nothing and returns 0.
const NOTHING: i32 = 0;

/// The calls of other threads come sooner or later.
const ANY: usize = usize::MAX;
/// They may be refused in place of those of the call, but not as often as this.
const ROUNDS: u32 = 5;
/// Errors that are hidden: the call, or any other; the system call; how many at most; and the reason.
const HIDDEN: &[(&str, libc::c_long, usize, &str)] = &[
    ("", libc::SYS_statx, 2, "another call tells the kind of a file"),
    ("", libc::SYS_fcntl, 2, "a file whose flags are not known is used with care"),
    ("a file of std and to std", libc::SYS_fcntl, 0, "its mode is the caller's again"),
    ("read a FIFO", libc::SYS_openat, ANY, "a pipe is read by a thread then"),
    ("recv_error", libc::SYS_getsockopt, 1, "a close that cannot ask is made by a thread"),
    ("send_file", libc::SYS_statx, ANY, "a close that cannot ask is made by a thread"),
    ("send_file", libc::SYS_getsockopt, ANY, "a close that cannot ask is made by a thread"),
];

/// The objects of the calls.
struct Place {
    fifo: PathBuf,
    file: PathBuf,
    engine: Engine,
    datagrams: UdpSocket,
    stream: TcpStream,
}

type Future = Pin<Box<dyn std::future::Future<Output = io::Result<()>>>>;
type Call = (&'static str, fn(Rc<Place>) -> Future);

/// Makes a list of calls, by their texts.
macro_rules! calls {
    ($place:ident: $($name:literal => $call:expr;)*) => {
        // Not each of them needs the place.
        &[$(($name, |$place| Box::pin(async move { let _ = (&$place, $call?); Ok(()) }))),*]
    };
}

const SECOND: Duration = Duration::from_secs(1);

const CALLS: &[Call] = calls! { place:
    "open a FIFO" => File::open(&place.fifo).await;
    "read a FIFO" => fs::read(&place.fifo).await;
    "a FIFO of std" => File::open(&place.fifo).await?.into_std().await;
    "a file of std" => File::open(&place.file).await?.into_std().await;
    "a file of std and to std" => {
        let flags = libc::O_NONBLOCK;
        let file = StdOptions::new().read(true).custom_flags(flags).open(&place.file)?;
        File::from_std(file)?.into_std().await
    };
    "Engine::open a FIFO" => place.engine.open(&place.fifo).await;
    "Engine::read a FIFO" => place.engine.read(&place.fifo).await;
    "write_all_at" => opened(&place)?.write_all_at("text", 0).await.value();
    "write_durable_at" => opened(&place)?.write_durable_at("text", 0).await.value();
    "Engine::write_durable_at" => {
        let file = place.engine.adopt(with_std(&place)?)?;
        file.write_durable_at("text", 0).wait().value()
    };
    "Engine's GroupCommit" => {
        let journal = GroupCommit::new(place.engine.adopt(with_std(&place)?)?).wait()?;
        journal.append_durable("text").wait().value()
    };
    "send_file" => send_file(&place).await;
    "set_ttl" => place.datagrams.set_ttl(9);
    "ttl" => place.datagrams.ttl();
    "set_tos" => place.datagrams.set_tos(8);
    "tos" => place.datagrams.tos();
    "set_recv_tos" => place.datagrams.set_recv_tos(true);
    "set_recv_ttl" => place.datagrams.set_recv_ttl(true);
    "set_recv_packet_info" => place.datagrams.set_recv_packet_info(true);
    "set_recv_errors" => place.datagrams.set_recv_errors(true);
    "recv_error" => {
        let nowhere: std::net::SocketAddr = "[::1]:1".parse().expect("an address");
        // Another one each time: one whose error was refused finds that of the datagram before.
        let datagrams = UdpSocket::bind("[::1]:0").await?;
        datagrams.set_recv_errors(true)?;
        let (error, sent) =
            join!(datagrams.recv_error(), datagrams.send_to("anybody there?", nowhere));
        sent.value()?;
        error
    };
    "set_keepalive" => {
        let keepalive = Keepalive::new().idle(SECOND).interval(SECOND).probes(2);
        place.stream.set_keepalive(Some(keepalive))
    };
    "keepalive" => place.stream.keepalive();
    "set_linger" => place.stream.set_linger(None);
    "set_user_timeout" => place.stream.set_user_timeout(Some(SECOND));
    "user_timeout" => place.stream.user_timeout();
    "set_send_buffer_size" => place.stream.set_send_buffer_size(9000);
};

fn with_std(place: &Place) -> io::Result<std::fs::File> {
    StdOptions::new().read(true).write(true).open(&place.file)
}

fn opened(place: &Place) -> io::Result<File> {
    File::from_std(with_std(place)?)
}

/// Sends a file on a stream that is full, to a reader that begins late.
async fn send_file(place: &Place) -> io::Result<()> {
    let file = opened(place)?;
    let (mut near, far) = std::os::unix::net::UnixStream::pair()?;
    near.set_nonblocking(true)?;
    while io::Write::write(&mut near, &[1; 1 << 12]).is_ok() {}
    let (mut near, mut far) = (UnixStream::from_std(near)?, UnixStream::from_std(far)?);
    let send = async {
        let (result, _) = near.send_file(&file, ..).await;
        drop(near);
        result
    };
    let receive = async move {
        while !far.recv().await?.is_empty() {}
        io::Result::Ok(())
    };
    let (sent, received) = join!(send, receive);
    received.and(sent)
}

/// The next system call that fails.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// So many succeed before.
    After {
        skip: u32,
        errno: i32,
    },
    /// This one did.
    Was(libc::c_long),
}

impl Fault {
    /// Returns what takes the place of a system call, if anything does.
    fn choose(&mut self, data: &libc::seccomp_data) -> Option<i32> {
        let call = data.nr.into();
        // A drop asks whether what it closes is open, and ends its readiness.
        let of_drop = match call {
            libc::SYS_fcntl => Some(libc::F_GETFD),
            libc::SYS_epoll_ctl => Some(libc::EPOLL_CTL_DEL),
            _ => None,
        };
        match *self {
            _ if of_drop.is_some_and(|action| data.args[1] == action as u64) => None,
            Self::After { errno, .. } if errno == NOTHING && !WRITES.contains(&call) => None,
            Self::After { skip: 0, errno } => {
                *self = Self::Was(call);
                Some(errno)
            }
            Self::After { skip, errno } => {
                *self = Self::After { skip: skip - 1, errno };
                None
            }
            Self::None | Self::Was(_) => None,
        }
    }
}

pub fn scene_each_call(policy: Policy) -> Result<(), String> {
    let folder = TempDir::new();
    let (fifo, file) = (folder.join("fifo"), folder.join("file"));
    mknodat(CWD, &fifo, FileType::Fifo, 0o600.into(), 0).unwrap();
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let writer = fifo.clone();
    // Comes again and again, and is not refused anything.
    thread::spawn(move || while StdOptions::new().write(true).open(&writer).is_ok() {});
    let fault = Arc::new(Mutex::new(Fault::None));
    let its = fault.clone();
    supervise(FAILING, move |data| its.lock().unwrap().choose(data))?;

    let builder = Runtime::builder().backend(policy).threads(1);
    let engine = builder.clone().build_engine().unwrap();
    builder.build().unwrap().block_on(async {
        let datagrams = UdpSocket::bind("[::1]:0").await.unwrap();
        datagrams.set_recv_errors(true).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let place = Rc::new(Place { fifo, file, engine, datagrams, stream });
        let mut told = 0;
        for call in CALLS {
            for round in 1.. {
                let hidden = hidden(call, &place, &fault, &mut told).await;
                let Some(excess) = excess(call.0, &hidden) else { break };
                assert!(round < ROUNDS, "{}: {excess}", call.0);
            }
        }
        assert!(told > 80, "{told}");
    });
    Ok(())
}

/// Makes a call with each of its system calls refused. Returns those of which it did not tell.
async fn hidden(
    (name, call): &Call,
    place: &Rc<Place>,
    fault: &Mutex<Fault>,
    told: &mut u32,
) -> Vec<libc::c_long> {
    let mut hidden = Vec::new();
    for errno in ERRNOS {
        for skip in 0.. {
            call(place.clone()).await.unwrap();
            *fault.lock().unwrap() = Fault::After { skip, errno };
            let result = call(place.clone()).await;
            let fault = mem::replace(&mut *fault.lock().unwrap(), Fault::None);
            let Fault::Was(failed) = fault else { break };
            match result {
                Ok(()) => hidden.push(failed),
                Err(error) => {
                    *told += 1;
                    // A group that fails keeps an errno.
                    let is_told = sakia::os_error(&error) == Some(libc::EIO)
                        || errno == NOTHING && error.kind() == ErrorKind::WriteZero;
                    assert!(is_told, "{name}: {error}");
                }
            }
        }
    }
    hidden
}

/// Returns more hidden errors than there may be.
fn excess(name: &str, hidden: &[libc::c_long]) -> Option<String> {
    FAILING.iter().find_map(|&call| {
        let count = hidden.iter().filter(|&&it| it == call).count();
        let of = |name| HIDDEN.iter().find(|it| it.0 == name && it.1 == call).map(|it| it.2);
        let most = of(name).or_else(|| of("")).unwrap_or(0);
        (count > most).then(|| format!("{count} errors of {call} are hidden"))
    })
}
