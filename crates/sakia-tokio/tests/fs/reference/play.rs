//! Runs the steps of a program. This text is compiled twice: with the `fs` of each implementation.

use std::fs::Permissions;
use std::future::poll_fn;
use std::io::{self, IoSlice, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncSeek, AsyncSeekExt, AsyncWriteExt};

use super::super::outcome::{Outcome, Value, facts, in_flight};
use super::super::steps::{Action, Call, How, Opt, PathCall, PathsCall, SLOTS, some_bytes};
use super::fs::{self, DirBuilder, File, FileTimes, OpenOptions, ReadDir};
use crate::support::poll_once;

/// An operation with a small buffer size moves at most this number of buffers.
const BUFFERS: usize = 60;

/// The files of a program, and its directory.
pub struct World {
    /// The part of paths that differs.
    side: PathBuf,
    root: PathBuf,
    pub files: [Option<File>; SLOTS],
}

impl World {
    pub fn new(side: PathBuf, root: PathBuf) -> Self {
        Self { side, root, files: Default::default() }
    }

    fn path(&self, path: &str) -> PathBuf {
        // An empty path remains one.
        if path.is_empty() {
            PathBuf::new()
        } else {
            format!("{}/{path}", self.root.display()).into()
        }
    }

    /// Runs a step; one that no program runs itself returns nothing.
    pub async fn run(&mut self, action: &Action) -> Outcome {
        match action {
            Action::Open { slot, path, how } => {
                let opened = open(self.path(path), how).await;
                self.keep(*slot, opened)
            }
            Action::OpenPipe { slot } => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
                let opened = options.open(self.path("pipe")).await;
                self.keep(*slot, opened)
            }
            Action::OpenFull { slot } => {
                let opened = File::options().write(true).open("/dev/full").await;
                self.keep(*slot, opened)
            }
            Action::Clone { slot, to } => {
                let Some(file) = &self.files[*slot] else { return Outcome::default() };
                let cloned = file.try_clone().await;
                self.keep(*to, cloned)
            }
            Action::Drop { slot } => {
                self.files[*slot] = None;
                Outcome::default()
            }
            Action::File { slot, call } => match &mut self.files[*slot] {
                Some(_) if matches!(call, Call::IntoStd | Call::TryIntoStd) => {
                    self.through_std(*slot, call).await
                }
                Some(file) => on_file(file, call).await,
                None => Outcome::default(),
            },
            Action::Path { path, call } => self.on_path(self.path(path), call).await,
            Action::Paths { from, to, call } => {
                let (from_path, to) = (self.path(from), self.path(to));
                match call {
                    PathsCall::Copy => fs::copy(from_path, to).await.map(Value::Number).into(),
                    PathsCall::Rename => fs::rename(from_path, to).await.into(),
                    PathsCall::HardLink => fs::hard_link(from_path, to).await.into(),
                    PathsCall::Symlink { is_absolute: true } => {
                        fs::symlink(from_path, to).await.into()
                    }
                    PathsCall::Symlink { is_absolute: false } => fs::symlink(from, to).await.into(),
                }
            }
            _ => Outcome::default(),
        }
    }

    /// Begins a seek at once.
    pub fn start_seek(&mut self, slot: usize) -> Outcome {
        let file = self.files[slot].as_mut().expect("it is open");
        Pin::new(file).start_seek(io::SeekFrom::Start(0)).into()
    }

    fn keep(&mut self, slot: usize, opened: io::Result<File>) -> Outcome {
        let opened = opened.map(|file| {
            let size = file.max_buf_size();
            self.files[slot] = Some(file);
            Value::Number(size as u64)
        });
        opened.into()
    }

    async fn through_std(&mut self, slot: usize, call: &Call) -> Outcome {
        let file = self.files[slot].take().expect("there is a file");
        let (size, number) = (file.max_buf_size(), file.as_fd().as_raw_fd());
        let std = match call {
            Call::IntoStd => Ok(file.into_std().await),
            _ => file.try_into_std(),
        };
        let mut std = match std {
            Ok(std) => std,
            Err(file) => {
                self.files[slot] = Some(file);
                return in_flight();
            }
        };
        let is_same = std.as_raw_fd() == number;
        let position = std.stream_position();
        let mut file = if size.is_multiple_of(2) { File::from_std(std) } else { File::from(std) };
        let default = file.max_buf_size();
        file.set_max_buf_size(size);
        self.files[slot] = Some(file);
        position.map(|position| Value::Text(format!("at {position}, {default}, {is_same}"))).into()
    }

    fn text(&self, text: String) -> Value {
        Value::Text(text.replace(&self.side.display().to_string(), "SIDE"))
    }

    async fn on_path(&self, path: PathBuf, call: &PathCall) -> Outcome {
        let text = |path: PathBuf| self.text(path.display().to_string());
        match call {
            PathCall::Read => fs::read(path).await.map(Value::Bytes).into(),
            PathCall::ReadToString => fs::read_to_string(path).await.map(Value::Text).into(),
            PathCall::Write(count) => fs::write(path, some_bytes(*count)).await.into(),
            PathCall::ReadLink => fs::read_link(path).await.map(text).into(),
            PathCall::Canonicalize => fs::canonicalize(path).await.map(text).into(),
            PathCall::Metadata => fs::metadata(path).await.map(facts).into(),
            PathCall::SymlinkMetadata => fs::symlink_metadata(path).await.map(facts).into(),
            PathCall::TryExists => {
                fs::try_exists(path).await.map(u64::from).map(Value::Number).into()
            }
            PathCall::RemoveFile => fs::remove_file(path).await.into(),
            PathCall::RemoveDir => fs::remove_dir(path).await.into(),
            PathCall::RemoveDirAll => fs::remove_dir_all(path).await.into(),
            PathCall::CreateDir => fs::create_dir(path).await.into(),
            PathCall::CreateDirAll => fs::create_dir_all(path).await.into(),
            PathCall::BuildDir { recursive, mode } => {
                let mut builder = DirBuilder::new();
                for is_recursive in recursive {
                    builder.recursive(*is_recursive);
                }
                if let Some(mode) = mode {
                    builder.mode(*mode);
                }
                builder.create(path).await.into()
            }
            PathCall::SetPermissions(mode) => {
                fs::set_permissions(path, Permissions::from_mode(*mode)).await.into()
            }
            PathCall::ReadDir { dropped, gone } => {
                self.list(path, *dropped, *gone).await.map(|text| self.text(text)).into()
            }
        }
    }

    /// Returns a sorted line for each entry.
    async fn list(&self, path: PathBuf, drops: bool, is_gone: bool) -> io::Result<String> {
        let mut entries = fs::read_dir(path).await?;
        let mut lines = Vec::new();
        while let Some(entry) = next_entry(&mut entries, drops).await? {
            let path = entry.path();
            let is_same = std::fs::symlink_metadata(&path).is_ok_and(|metadata| {
                std::os::unix::fs::MetadataExt::ino(&metadata) == entry.ino()
            });
            if is_gone && path.is_file() {
                std::fs::remove_file(&path)?;
            }
            let (name, kind) = (entry.file_name(), entry.file_type().await);
            let metadata = Outcome::from(entry.metadata().await.map(facts));
            let path = path.display();
            lines.push(format!("{path} {name:?} {kind:?} {metadata:?} {is_same}"));
        }
        // The end is final.
        lines.push(format!("{}", entries.next_entry().await?.is_none()));
        lines.sort();
        Ok(lines.join("\n"))
    }
}

async fn next_entry(entries: &mut ReadDir, drops: bool) -> io::Result<Option<fs::DirEntry>> {
    if drops {
        let first = poll_once(Box::pin(entries.next_entry()).as_mut());
        if let std::task::Poll::Ready(entry) = first {
            return entry;
        }
        return poll_fn(|cx| entries.poll_next_entry(cx)).await;
    }
    entries.next_entry().await
}

async fn open(path: PathBuf, how: &How) -> io::Result<File> {
    match how {
        How::Open => File::open(path).await,
        How::Create => File::create(path).await,
        How::CreateNew => File::create_new(path).await,
        How::Options { set, std, cloned, again } => {
            let mut options = if *std { by_std(set).into() } else { by_setters(set) };
            if *cloned {
                options = options.clone();
            }
            if *again {
                drop(options.open(&path).await);
            }
            options.open(path).await
        }
    }
}

/// Sets the options of either type, whose setters have the same names.
macro_rules! with {
    ($options:ident, $set:ident) => {{
        for one in $set {
            match *one {
                Opt::Read(on) => $options.read(on),
                Opt::Write(on) => $options.write(on),
                Opt::Append(on) => $options.append(on),
                Opt::Truncate(on) => $options.truncate(on),
                Opt::Create(on) => $options.create(on),
                Opt::CreateNew(on) => $options.create_new(on),
                Opt::Mode(mode) => $options.mode(mode),
                Opt::Flags(flags) => $options.custom_flags(flags),
            };
        }
        $options
    }};
}

fn by_setters(set: &[Opt]) -> OpenOptions {
    let mut options = OpenOptions::default();
    with!(options, set)
}

fn by_std(set: &[Opt]) -> std::fs::OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = std::fs::OpenOptions::new();
    with!(options, set)
}

async fn on_file(file: &mut File, call: &Call) -> Outcome {
    let most = file.max_buf_size().saturating_mul(BUFFERS);
    match call {
        Call::Read(count) => {
            let mut buf = vec![0; *count];
            let read = file.read(&mut buf).await;
            read.map(|count| Value::Bytes(buf[..count].to_vec())).into()
        }
        Call::ReadExact(count) => {
            let mut buf = vec![0; (*count).min(most)];
            file.read_exact(&mut buf).await.map(|_| Value::Bytes(buf)).into()
        }
        Call::ReadToEnd => {
            let mut buf = Vec::new();
            let read = file.take(most as u64).read_to_end(&mut buf).await;
            Outcome { bytes: buf, ..Outcome::from(read.map(|count| Value::Number(count as u64))) }
        }
        Call::ReadToString => {
            let mut text = String::new();
            let read = file.take(most as u64).read_to_string(&mut text).await;
            Outcome {
                bytes: text.into(),
                ..Outcome::from(read.map(|count| Value::Number(count as u64)))
            }
        }
        Call::Write(count) => {
            file.write(some_bytes(*count)).await.map(|n| Value::Number(n as u64)).into()
        }
        Call::WriteAll(count) => file.write_all(some_bytes((*count).min(most))).await.into(),
        Call::WriteVectored(counts) => {
            let parts: Vec<_> =
                counts.iter().map(|&count| IoSlice::new(some_bytes(count))).collect();
            file.write_vectored(&parts).await.map(|count| Value::Number(count as u64)).into()
        }
        Call::Seek(place) => file.seek(*place).await.map(Value::Number).into(),
        Call::StartSeek(place) => {
            // As the trait demands.
            if let Err(error) = poll_fn(|cx| Pin::new(&mut *file).poll_complete(cx)).await {
                return io::Result::<()>::Err(error).into();
            }
            Pin::new(file).start_seek(*place).into()
        }
        Call::PollComplete => {
            poll_fn(|cx| Pin::new(&mut *file).poll_complete(cx)).await.map(drop).into()
        }
        Call::Flush => file.flush().await.into(),
        Call::Shutdown => file.shutdown().await.into(),
        Call::SyncAll => file.sync_all().await.into(),
        Call::SyncData => file.sync_data().await.into(),
        Call::SetLen(size) => file.set_len(*size).await.into(),
        Call::Metadata => file.metadata().await.map(facts).into(),
        Call::SetPermissions(mode) => {
            file.set_permissions(Permissions::from_mode(*mode)).await.into()
        }
        Call::SetTimes { accessed, modified } => set_times(file, *accessed, *modified).await.into(),
        Call::MaxBufSize(size) => {
            file.set_max_buf_size(*size);
            Value::Number(file.max_buf_size() as u64).into()
        }
        Call::IntoStd | Call::TryIntoStd => unreachable!("the file is taken for it"),
    }
}

async fn set_times(file: &File, accessed: bool, modified: bool) -> io::Result<Value> {
    let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    if accessed {
        let mut times = FileTimes::new().set_accessed(time(1000));
        if modified {
            times = times.set_modified(time(2000));
        }
        file.set_times(times).await?;
    } else if modified {
        file.set_modified(time(3000)).await?;
    }
    let metadata = file.metadata().await?;
    let is_set = |is: io::Result<SystemTime>| is.ok().filter(|time| *time < self::time_of_tests());
    let (accessed, modified) = (is_set(metadata.accessed()), is_set(metadata.modified()));
    Ok(Value::Text(format!("{accessed:?} {modified:?}")))
}

/// Times before it were set.
fn time_of_tests() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)
}
