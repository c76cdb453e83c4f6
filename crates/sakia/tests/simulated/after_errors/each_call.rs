//! Each call by itself: whichever of its operations fails, it says so, once, and of the right thing.
//!
//! A call is made again and again on a new simulated kernel, with a fault at its first operation, at its
//! second, and so on. It must fail with the errno of that fault, and name a path or an address of its own.
//! Made once more, it succeeds: the operation that failed had no effect, and its error was told. Calls that
//! hide an error on purpose are [listed](HIDDEN) with the reason.

use std::fmt::Debug;
use std::io::{self, SeekFrom};
use std::path::Path;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use sakia::fs::{self, Advice, AtomicFile, Dir, File, FileTimes, OpenOptions, Permissions};
use sakia::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram, UnixListener, UnixStream};
use sakia::sim::{Fault, PlainFault, Sim, SimHandle, Target};
use sakia::{Error, Runtime};

/// More levels than the removal of a tree keeps open.
const LEVELS: usize = 17;
/// The owner of some files, who is not the program's user.
const OWNER: u32 = 7;

/// An error: its errno, and that of a [`sakia::Error`] as a whole.
#[derive(Debug)]
struct Told {
    errno: Option<i32>,
    error: Option<Error>,
}

impl From<io::Error> for Told {
    fn from(error: io::Error) -> Self {
        Self { errno: sakia::os_error(&error), error: error.downcast().ok() }
    }
}

impl From<Error> for Told {
    fn from(error: Error) -> Self {
        Self { errno: error.raw_os_error(), error: Some(error) }
    }
}

type Future = Pin<Box<dyn std::future::Future<Output = Result<(), Told>>>>;
type Call = (&'static str, fn() -> Future);

/// Makes a list of calls, by their texts.
macro_rules! calls {
    ($($name:literal => $call:expr;)*) => {
        &[$(($name, || Box::pin(async { let _ = $call; Ok(()) }))),*]
    };
}

const CALLS: &[Call] = calls! {
    "read" => fs::read("file").await?;
    "read_to_string" => fs::read_to_string("file").await?;
    "write" => fs::write("file", "new").await?;
    "write a new one" => fs::write("dir/new", "new").await?;
    "write_durable" => fs::write_durable("dir/a", "new").await?;
    "save" => fs::save("file", "new").await?;
    "save a new one" => fs::save("dir/new", "new").await?;
    "save over a stranger's" => fs::save("owned", "new").await?;
    "save through a link" => fs::save("link", "new").await?;
    "discard" => AtomicFile::create("file").await?.discard().await?;
    "copy" => fs::copy("file", "dir/a").await?;
    "copy by reading" => fs::copy("file", "dir/a").await?;
    "copy to a new one" => fs::copy("file", "dir/new").await?;
    "create_dir" => fs::create_dir("dir/new").await?;
    "create_dir_all" => fs::create_dir_all("new/a/b").await?;
    "remove_file" => fs::remove_file("file").await?;
    "remove_dir" => fs::remove_dir("empty").await?;
    "remove_dir_all" => fs::remove_dir_all("deep").await?;
    "remove_dir_all of a link" => fs::remove_dir_all("link").await?;
    "rename" => fs::rename("file", "dir/a").await?;
    "hard_link" => fs::hard_link("file", "dir/new").await?;
    "symlink" => fs::symlink("file", "dir/new").await?;
    "read_link" => fs::read_link("link").await?;
    "metadata" => fs::metadata("dir/a").await?;
    "symlink_metadata" => fs::symlink_metadata("link").await?;
    "try_exists" => fs::try_exists("file").await?;
    "set_permissions" => fs::set_permissions("file", Permissions::from_mode(0o640)).await?;
    "set_times" => fs::set_times("file", times()).await?;
    "chown" => fs::chown("file", Some(3), Some(4)).await?;
    "read_dir" => entries(fs::read_dir("dir").await?).await?;
    "File::set_len" => file().await?.set_len(3).await?;
    "File::set_permissions" => {
        file().await?.set_permissions(Permissions::from_mode(0o640)).await?
    };
    "File::set_times" => file().await?.set_times(times()).await?;
    "File::allocate" => file().await?.allocate(0..100).await?;
    "File::metadata" => file().await?.metadata().await?;
    "File::sync_all" => file().await?.sync_all().await?;
    "File::read_at" => file().await?.read_at(vec![0; 9], 0).await.0?;
    "File::read_to_end_at" => file().await?.read_to_end_at(Vec::new(), 0).await.0?;
    "File::write_durable_at" => file().await?.write_durable_at("new", 2).await.0?;
    "File::append" => file().await?.append("new").await.0?;
    "File::seek" => file().await?.seek(SeekFrom::End(-1)).await?;
    "File::punch_hole" => file().await?.punch_hole(1..3).await?;
    "File::advise" => file().await?.advise(0..3, Advice::WillNeed).await?;
    "File::lock" => file().await?.lock().await?;
    "Dir::open_dir" => dir().await?.open_dir("1/2").await?;
    "Dir::open_file" => dir().await?.open_file("1/2/file").await?;
    "Dir::create" => dir().await?.create("1/2/new").await?;
    "Dir::open_with_metadata" => {
        dir().await?.open_with_metadata("1/2/file", OpenOptions::new().read(true)).await?
    };
    "Dir::metadata" => dir().await?.metadata("1/2").await?;
    "Dir::symlink_metadata" => dir().await?.symlink_metadata("1/2").await?;
    "Dir::create_dir" => dir().await?.create_dir("1/new").await?;
    "Dir::remove_file" => dir().await?.remove_file("1/2/file").await?;
    "Dir::remove_dir" => dir().await?.remove_dir("1/empty").await?;
    "Dir::rename" => {
        let dir = dir().await?;
        dir.rename("1/2/file", &dir, "1/new").await?
    };
    "Dir::symlink" => dir().await?.symlink("file", "1/new").await?;
    "Dir::read_link" => dir().await?.read_link("1/link").await?;
    "Dir::read_dir" => entries(dir().await?.read_dir().await?).await?;
    "Dir::sync" => dir().await?.sync().await?;
    "TcpStream::connect" => TcpStream::connect("127.0.0.1:80").await?;
    "TcpListener::bind" => TcpListener::bind("127.0.0.1:81").await?;
    "UdpSocket::bind" => UdpSocket::bind("127.0.0.1:81").await?;
    "UnixStream::connect" => UnixStream::connect("socket").await?;
    "UnixListener::bind" => UnixListener::bind("new socket").await?;
    "UnixDatagram::bind" => UnixDatagram::bind("new socket").await?;
};

const ERRNOS: &[Errno] = &[Errno::IO, Errno::PERM];
/// Those that say that something is not possible in this way.
const REFUSALS: &[Errno] = &[Errno::PERM];
/// The call with the most operations, for which one errno is enough.
const DEEP: &str = "remove_dir_all";
/// The call whose first way, by `copy_file_range(2)`, is not possible.
const BY_READING: &str = "copy by reading";

/// Errors that are hidden: the call, or any; the kind of the operation; the errnos; and the reason.
const HIDDEN: &[(&str, &str, &[Errno], &str)] = &[
    ("", "CLOSE", ERRNOS, "what was dropped is closed unseen"),
    ("read", "READ", ERRNOS, "what a plain call cannot read the queue reads"),
    ("read_to_string", "READ", ERRNOS, "what a plain call cannot read the queue reads"),
    ("copy", "COPY_FILE_RANGE", REFUSALS, "bytes are read and written instead"),
    ("copy to a new one", "COPY_FILE_RANGE", REFUSALS, "bytes are read and written instead"),
    ("save over a stranger's", "FCHOWN", REFUSALS, "the new file keeps its owner"),
];

/// Paths that the calls are given, and names that they find there.
const ITS: &[&str] =
    &["file", "dir", "deep", "owned", "empty", "new", "link", "socket", "new socket", "1", "2"];

fn times() -> FileTimes {
    FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)
}

async fn file() -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open("file").await
}

async fn dir() -> Result<Dir, Error> {
    Dir::open("deep").await
}

async fn entries(mut entries: fs::ReadDir) -> Result<(), Error> {
    while let Some(entry) = entries.next_entry().await? {
        entry.metadata().await?;
    }
    Ok(())
}

fn prepare(kernel: &SimHandle) {
    for directory in ["dir", "empty", "deep"] {
        kernel.create_directory(directory);
    }
    let mut level = "deep".to_owned();
    for number in 1..=LEVELS {
        level += &format!("/{number}");
        kernel.create_directory(&level);
    }
    kernel.create_directory("deep/1/empty");
    for file in ["file", "owned", "dir/a", "deep/1/2/file", "deep/1/2/other"] {
        kernel.create_file(file, "a text");
    }
}

/// Makes what only a program can make. Returns what must stay open.
async fn make() -> (TcpListener, UnixListener) {
    fs::chown("owned", Some(OWNER), None).await.unwrap();
    fs::symlink("file", "link").await.unwrap();
    fs::symlink("2/file", "deep/1/link").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:80").await.unwrap();
    (listener, UnixListener::bind("socket").await.unwrap())
}

/// The operation that fails: so many succeed before it.
#[derive(Clone, Copy, Debug)]
struct Failing {
    skip: u32,
    errno: Errno,
    way: Way,
}

/// The way of operations that have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Queue,
    Plain,
    /// The same, when the turn of the call has no time left.
    LatePlain,
}

/// The effect of a fault.
enum Effect {
    /// There are not so many operations.
    None,
    /// The call failed.
    Told,
    /// The call hid it: the index in [`HIDDEN`].
    Hidden(usize),
}

/// Makes a call with a fault, and once more without.
///
/// # Errors
/// How the call hides its error, tells another, or tells it twice.
fn check(&(name, call): &Call, failing: Failing) -> Result<Effect, String> {
    let Failing { skip, errno, way } = failing;
    let is_plain = way != Way::Queue;
    let sim = Sim::builder(9).plain_calls(is_plain).reorders(false).keep_log(true).build();
    let kernel = sim.handle();
    prepare(&kernel);
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let (effect, is_close) = runtime.block_on(async {
        let _listeners = make().await;
        let before = kernel.log_text().len();
        if name == BY_READING {
            kernel.script(Target::copy_file_range(), Fault::Errno(Errno::XDEV.raw_os_error()));
        }
        if way == Way::LatePlain {
            kernel.advance(Duration::from_secs(1));
        }
        let target = Target::any().skip(skip);
        match is_plain {
            true => kernel.script_plain(target, PlainFault::Errno(errno.raw_os_error())),
            false => kernel.script(target, Fault::Errno(errno.raw_os_error())),
        }
        let result = call().await;
        let log = kernel.log_text().split_off(before);
        // The line after the last fault names the operation.
        let failed = log.split("fault Errno\n").skip(1 + usize::from(name == BY_READING)).last();
        let line = failed.and_then(|text| text.lines().next()).unwrap_or_default();
        let is_of = |kind| line.split([' ', ',']).any(|word| word == kind);
        if let Err(told) = result {
            told.check(errno)?;
            let again = call().await.map_err(|told| format!("once more: {told:?}"));
            return again.map(|()| (Effect::Told, is_of("CLOSE")));
        }
        if line.is_empty() {
            return Ok((Effect::None, false));
        }
        let hidden = HIDDEN.iter().position(|&(its_name, kind, its, _)| {
            (its_name.is_empty() || its_name == name) && is_of(kind) && its.contains(&errno)
        });
        let effect = hidden.map(Effect::Hidden).ok_or_else(|| format!("no error:\n{log}"));
        Ok((effect?, is_of("CLOSE")))
    })?;
    drop(runtime);
    // A plain close that fails closes nothing there.
    match kernel.open_descriptors() - usize::from(is_plain && is_close) {
        0 => Ok(effect),
        open => Err(format!("{open} descriptors are left open:\n{}", kernel.log_text())),
    }
}

impl Told {
    /// # Errors
    /// It is another error, or of a thing that is not the call's.
    fn check(&self, errno: Errno) -> Result<(), String> {
        if self.errno != Some(errno.raw_os_error()) {
            return Err(format!("another error: {self:?}"));
        }
        let Some(path) = self.error.as_ref().and_then(Error::path) else { return Ok(()) };
        let is_its = path == Path::new(".") || ITS.iter().any(|its| path.starts_with(its));
        is_its.then_some(()).ok_or_else(|| format!("of another thing: {self:?}"))
    }
}

#[test]
fn each_operation_that_fails_is_told_by_its_call() {
    let (mut told, mut hidden, mut failures) = (0, [0; HIDDEN.len()], Vec::new());
    for call in CALLS {
        for way in [Way::Queue, Way::Plain, Way::LatePlain] {
            for &errno in if call.0 == DEEP { &ERRNOS[..1] } else { ERRNOS } {
                for skip in 0.. {
                    let failing = Failing { skip, errno, way };
                    match check(call, failing) {
                        Ok(Effect::None) => break,
                        Ok(Effect::Told) => told += 1,
                        Ok(Effect::Hidden(index)) => hidden[index] += 1,
                        Err(failure) => {
                            failures.push(format!("{}, {failing:?}: {failure}", call.0));
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(told > 500, "{told}");
    let unused = hidden.iter().position(|&count| count == 0);
    assert_eq!(unused.map(|index| HIDDEN[index]), None, "it is not hidden");
}
