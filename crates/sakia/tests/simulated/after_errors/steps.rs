//! The public operations that programs consist of.

use std::fmt::Debug;
use std::io::{self, SeekFrom};
use std::net::Shutdown;

use sakia::fs;
use sakia::net::{TcpStream, UdpSocket};
use sakia_testkit::random::Random;

use super::world::{NAMES, World, bytes, gather, patiently};

/// A call of a public operation. Names are places in [`NAMES`]; bytes are told by place and count.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    ReadAt(usize, usize),
    ReadExactAt(usize, usize),
    ReadToEndAt(usize),
    ReadVectoredAt(usize, usize),
    WriteAllAt(usize, usize),
    WriteVectoredAt(usize, usize),
    WriteDurableAt(usize, usize),
    Append(usize),
    Read(usize),
    ReadToEnd,
    WriteAll(usize),
    SeekTo(usize),
    SeekToEnd,
    SetLen(usize),
    Len,
    SyncAll,
    SyncData,
    ReaderRead(usize),
    ReaderRest,
    FsRead(usize),
    FsWrite(usize, usize),
    FsWriteDurable(usize, usize),
    Save(usize, usize),
    Copy(usize, usize),
    Rename(usize, usize),
    HardLink(usize, usize),
    Symlink(usize, usize),
    ReadLink(usize),
    RemoveFile(usize),
    CreateDir(usize),
    CreateDirAll,
    RemoveDir(usize),
    RemoveDirAll,
    List(usize),
    Exists(usize),
    PipeWrite(usize),
    PipeRead(usize),
    NearWrite(usize),
    NearRead(usize),
    FarWrite(usize),
    FarRead(usize),
    FarReceive,
    FarPeek(usize),
    NearEnd,
    Connect,
    Accept,
    Send(usize),
    /// So many datagrams, one of them left out.
    SendBatch(usize, Option<usize>),
    Receive,
    ReceiveBatch(usize),
}

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The errno of its error.
    pub errno: Option<i32>,
    /// Bytes that it read, also before an error.
    pub bytes: Vec<u8>,
    /// Its value, or an error without an errno.
    pub value: String,
}

/// An error with an errno.
pub trait Fails {
    fn errno(&self) -> Option<i32>;
}

impl Fails for io::Error {
    fn errno(&self) -> Option<i32> {
        self.raw_os_error()
    }
}

impl Fails for sakia::Error {
    fn errno(&self) -> Option<i32> {
        self.raw_os_error()
    }
}

impl Done {
    fn of<T: Debug>(result: Result<T, impl Fails + Debug>, bytes: &[u8]) -> Self {
        let bytes = bytes.to_vec();
        match result {
            Ok(value) => Self { errno: None, bytes, value: format!("{value:?}") },
            Err(error) if error.errno().is_some() => {
                Self { errno: error.errno(), bytes, value: String::new() }
            }
            Err(error) => Self { errno: None, bytes, value: format!("{error:?}") },
        }
    }
}

impl Step {
    pub fn random(random: &mut Random) -> Self {
        let mut below = |end: u64| random.below(end) as usize;
        let (kind, at, count) = (below(50), below(60), 1 + below(20));
        let (name, other) = (below(NAMES.len() as u64), below(NAMES.len() as u64));
        match kind {
            0 => Self::ReadAt(at, count),
            1 => Self::ReadExactAt(at, count),
            2 => Self::ReadToEndAt(at),
            3 => Self::ReadVectoredAt(at, count),
            4 => Self::WriteAllAt(at, count),
            5 => Self::WriteVectoredAt(at, count),
            6 => Self::WriteDurableAt(at, count),
            7 => Self::Append(count),
            8 => Self::Read(count),
            9 => Self::ReadToEnd,
            10 => Self::WriteAll(count),
            11 => Self::SeekTo(at),
            12 => Self::SeekToEnd,
            13 => Self::SetLen(at),
            14 => Self::Len,
            15 => Self::SyncAll,
            16 => Self::SyncData,
            17 => Self::ReaderRead(count),
            18 => Self::ReaderRest,
            19 => Self::FsRead(name),
            20 => Self::FsWrite(name, count),
            21 => Self::FsWriteDurable(name, count),
            22 => Self::Save(name, count),
            23 => Self::Copy(name, other),
            24 => Self::Rename(name, other),
            25 => Self::HardLink(name, other),
            26 => Self::Symlink(name, other),
            27 => Self::ReadLink(name),
            28 => Self::RemoveFile(name),
            29 => Self::CreateDir(name),
            30 => Self::CreateDirAll,
            31 => Self::RemoveDir(name),
            32 => Self::RemoveDirAll,
            33 => Self::List(if name % 2 == 0 { 4 } else { 6 }),
            34 => Self::Exists(name),
            35 => Self::PipeWrite(count),
            36 => Self::PipeRead(count),
            37 => Self::NearWrite(count),
            38 => Self::NearRead(count),
            39 => Self::FarWrite(count),
            40 => Self::FarRead(count),
            41 => Self::FarReceive,
            42 => Self::FarPeek(count),
            43 => Self::NearEnd,
            44 => Self::Connect,
            45 => Self::Accept,
            46 => Self::Send(count),
            47 => Self::SendBatch(1 + count % 3, None),
            48 => Self::Receive,
            _ => Self::ReceiveBatch(1 + count % 3),
        }
    }

    /// Returns the steps that this one may have been if it failed at one operation, which had no effect. It
    /// brought what it says.
    pub fn parts(&self, done: &Done) -> Vec<Vec<Self>> {
        let count = done.bytes.len();
        let one = |step| vec![step];
        let mut parts = vec![Vec::new()];
        match *self {
            Self::ReadToEnd => parts.push(one(Self::Read(count))),
            Self::ReaderRead(_) | Self::ReaderRest => parts.push(one(Self::ReaderRead(count))),
            Self::FsWrite(name, len) | Self::FsWriteDurable(name, len) => {
                parts.extend([one(Self::FsWrite(name, 0)), one(Self::FsWrite(name, len))]);
            }
            // The directory could not be synced.
            Self::Save(..) => parts.push(one(self.clone())),
            Self::Copy(from, to) => {
                parts.extend([one(Self::FsWrite(to, 0)), one(Self::Copy(from, to))])
            }
            Self::CreateDirAll => parts.push(one(Self::CreateDir(4))),
            Self::RemoveDirAll => {
                let (file, sub) = (Self::RemoveFile(5), Self::RemoveDir(6));
                parts.extend([one(file.clone()), one(sub.clone()), vec![file, sub]]);
            }
            Self::WriteDurableAt(at, len) => parts.push(one(Self::WriteAllAt(at, len))),
            Self::SendBatch(of, None) => {
                parts.extend((0..of).map(|n| one(Self::SendBatch(of, Some(n)))));
            }
            Self::ReceiveBatch(of) => parts.extend((1..of).map(|n| one(Self::ReceiveBatch(n)))),
            Self::PipeRead(_) => parts.push(one(Self::PipeRead(count))),
            Self::NearRead(_) => parts.push(one(Self::NearRead(count))),
            Self::FarRead(_) => parts.push(one(Self::FarRead(count))),
            _ => {}
        }
        parts
    }

    pub async fn perform(&self, world: &mut World) -> Done {
        match *self {
            Self::ReadAt(at, count) => {
                let (result, buf) = world.file.read_at(vec![0; count], at as u64).await;
                Done::of(result, &buf)
            }
            Self::ReadExactAt(at, count) => {
                let (result, buf) = world.file.read_exact_at(vec![0; count], at as u64).await;
                Done::of(result, &buf)
            }
            Self::ReadToEndAt(at) => {
                let (result, buf) = world.file.read_to_end_at(Vec::new(), at as u64).await;
                Done::of(result, &buf)
            }
            Self::ReadVectoredAt(at, count) => {
                let bufs = vec![vec![0; count], vec![0; 3]];
                let (result, bufs) = world.file.read_vectored_at(bufs, at as u64).await;
                Done::of(result, &bufs.concat())
            }
            Self::WriteAllAt(at, count) => {
                let (result, _) = world.file.write_all_at(bytes(at, count), at as u64).await;
                Done::of(result, &[])
            }
            Self::WriteVectoredAt(at, count) => {
                let bufs = vec![bytes(at, count), bytes(count, 3)];
                let (result, _) = world.file.write_all_vectored_at(bufs, at as u64).await;
                Done::of(result, &[])
            }
            Self::WriteDurableAt(at, count) => {
                let (result, _) = world.file.write_durable_at(bytes(at, count), at as u64).await;
                Done::of(result, &[])
            }
            Self::Append(count) => Done::of(world.file.append(bytes(1, count)).await.0, &[]),
            Self::Read(count) => {
                let (result, buf) = world.file.read(vec![0; count]).await;
                let read = *result.as_ref().unwrap_or(&0);
                Done::of(result, &buf[..read])
            }
            Self::ReadToEnd => {
                let (result, buf) = world.file.read_to_end(Vec::new()).await;
                Done::of(result, &buf)
            }
            Self::WriteAll(count) => Done::of(world.file.write_all(bytes(2, count)).await.0, &[]),
            Self::SeekTo(at) => Done::of(world.file.seek(SeekFrom::Start(at as u64)).await, &[]),
            Self::SeekToEnd => Done::of(world.file.seek(SeekFrom::End(-3)).await, &[]),
            Self::SetLen(len) => Done::of(world.file.set_len(len as u64).await, &[]),
            Self::Len => Done::of(world.file.len().await, &[]),
            Self::SyncAll => Done::of(world.file.sync_all().await, &[]),
            Self::SyncData => Done::of(world.file.sync_data().await, &[]),
            Self::ReaderRead(count) => {
                let mut buf = vec![0; count];
                let (mut at, mut result) = (0, Ok(1));
                while at < count && matches!(result, Ok(1..)) {
                    result = world.reader.read(&mut buf[at..]).await;
                    at += *result.as_ref().unwrap_or(&0);
                }
                Done::of(result.map(drop), &buf[..at])
            }
            Self::ReaderRest => {
                let mut buf = Vec::new();
                let result = world.reader.read_to_end(&mut buf, usize::MAX).await;
                Done::of(result.map(drop), &buf)
            }
            Self::FsRead(name) => {
                let result = fs::read(NAMES[name]).await;
                let buf = result.as_ref().cloned().unwrap_or_default();
                Done::of(result.map(drop), &buf)
            }
            Self::FsWrite(name, count) => {
                Done::of(fs::write(NAMES[name], bytes(3, count)).await, &[])
            }
            Self::FsWriteDurable(name, count) => {
                Done::of(fs::write_durable(NAMES[name], bytes(3, count)).await, &[])
            }
            Self::Save(name, count) => Done::of(fs::save(NAMES[name], bytes(4, count)).await, &[]),
            Self::Copy(from, to) => Done::of(fs::copy(NAMES[from], NAMES[to]).await, &[]),
            Self::Rename(from, to) => Done::of(fs::rename(NAMES[from], NAMES[to]).await, &[]),
            Self::HardLink(from, to) => Done::of(fs::hard_link(NAMES[from], NAMES[to]).await, &[]),
            Self::Symlink(from, to) => Done::of(fs::symlink(NAMES[from], NAMES[to]).await, &[]),
            Self::ReadLink(name) => Done::of(fs::read_link(NAMES[name]).await, &[]),
            Self::RemoveFile(name) => Done::of(fs::remove_file(NAMES[name]).await, &[]),
            Self::CreateDir(name) => Done::of(fs::create_dir(NAMES[name]).await, &[]),
            Self::CreateDirAll => Done::of(fs::create_dir_all("dir/sub").await, &[]),
            Self::RemoveDir(name) => Done::of(fs::remove_dir(NAMES[name]).await, &[]),
            Self::RemoveDirAll => Done::of(fs::remove_dir_all("dir").await, &[]),
            Self::List(name) => Done::of(list(NAMES[name]).await, &[]),
            Self::Exists(name) => Done::of(fs::try_exists(NAMES[name]).await, &[]),
            Self::PipeWrite(count) => {
                let written = patiently(world.pipe.1.write_all(bytes(6, count))).await;
                Done::of(written.map_or(Ok(()), |(result, _)| result), &[])
            }
            Self::PipeRead(count) => {
                let reader = &mut world.pipe.0;
                let receive = async |room| {
                    let (result, mut buf) = reader.read(vec![0; room]).await;
                    buf.truncate(result?);
                    Ok(buf)
                };
                let (result, buf) = gather(count, receive).await;
                Done::of(result, &buf)
            }
            Self::NearWrite(count) => Done::of(world.near.write_all(bytes(7, count)).await.0, &[]),
            Self::NearRead(count) => read(&mut world.near, count).await,
            Self::FarWrite(count) => Done::of(world.far.write_all(bytes(8, count)).await.0, &[]),
            Self::FarRead(count) => read(&mut world.far, count).await,
            Self::FarReceive => {
                let far = &mut world.far;
                let receive = async |_| Ok(far.recv().await?.to_vec());
                let (result, buf) = gather(usize::MAX, receive).await;
                Done::of(result, &buf)
            }
            Self::FarPeek(count) => match patiently(world.far.peek(vec![0; count])).await {
                Some((result, buf)) => {
                    let peeked = *result.as_ref().unwrap_or(&0);
                    Done::of(result, &buf[..peeked])
                }
                None => Done::of(io::Result::Ok("nothing"), &[]),
            },
            Self::NearEnd => Done::of(world.near.shutdown(Shutdown::Write).await, &[]),
            Self::Connect => {
                let connected = TcpStream::connect("127.0.0.1:80").await;
                Done::of(connected.map(|client| world.clients.push(client)), &[])
            }
            Self::Accept => match patiently(world.listener.accept()).await {
                Some(accepted) => Done::of(accepted.map(drop), &[]),
                None => Done::of(io::Result::Ok("nothing"), &[]),
            },
            Self::Send(count) => {
                let (near, _) = &world.datagrams;
                Done::of(near.send_to(bytes(count, count), "127.0.0.1:82").await.0, &[])
            }
            Self::SendBatch(count, but) => {
                let to = "127.0.0.1:82".parse().unwrap();
                let messages = (0..count).filter(|&n| Some(n) != but);
                let messages = messages.map(|_| (bytes(1, 5), to)).collect();
                let sent = world.datagrams.0.send_batch(messages).await;
                let sent: io::Result<Vec<usize>> = sent.into_iter().map(|sent| sent.0).collect();
                Done::of(sent, &[])
            }
            Self::Receive => match patiently(world.datagrams.1.recv_from(vec![0; 30])).await {
                Some((result, buf)) => Done::of(result, &buf),
                None => Done::of(io::Result::Ok("nothing"), &[]),
            },
            Self::ReceiveBatch(count) => receive_batches(&world.datagrams.1, count).await,
        }
    }
}

/// Receives as many datagrams, unless no more come: a batch has those that are there.
async fn receive_batches(socket: &UdpSocket, count: usize) -> Done {
    let (mut gathered, mut received) = (Vec::new(), 0);
    while received < count {
        let bufs = (received..count).map(|_| Vec::with_capacity(30)).collect();
        let Some((result, bufs)) = patiently(socket.recv_batch(bufs)).await else { break };
        gathered.extend(bufs.concat());
        match result {
            Ok(batch) => received += batch.len(),
            Err(error) => return Done::of(io::Result::<()>::Err(error), &gathered),
        }
    }
    Done::of(io::Result::Ok(received), &gathered)
}

async fn read(stream: &mut TcpStream, count: usize) -> Done {
    let receive = async |room| {
        let (result, mut buf) = stream.read(vec![0; room]).await;
        buf.truncate(result?);
        Ok(buf)
    };
    let (result, buf) = gather(count, receive).await;
    Done::of(result, &buf)
}

async fn list(path: &str) -> fs::Result<Vec<String>> {
    let mut entries = fs::read_dir(path).await?;
    let mut names = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns steps that use every object once more.
pub fn epilogue() -> Vec<Step> {
    vec![
        Step::Read(5),
        Step::WriteAll(4),
        Step::Append(2),
        Step::SyncAll,
        Step::ReadToEndAt(0),
        Step::ReaderRest,
        Step::FsWrite(5, 9),
        Step::Save(2, 8),
        Step::Copy(2, 3),
        Step::FsRead(2),
        Step::List(4),
        Step::PipeWrite(3),
        Step::PipeRead(50),
        Step::FarWrite(6),
        Step::NearRead(100),
        Step::NearWrite(6),
        Step::FarReceive,
        Step::Connect,
        Step::Accept,
        Step::Accept,
        Step::Send(3),
        Step::ReceiveBatch(2),
        Step::Receive,
    ]
}

/// Returns a program with every step.
pub fn everything() -> Vec<Step> {
    vec![
        Step::ReadAt(3, 5),
        Step::ReadExactAt(30, 8),
        Step::ReadToEndAt(35),
        Step::ReadVectoredAt(1, 4),
        Step::WriteAllAt(38, 6),
        Step::WriteVectoredAt(2, 7),
        Step::WriteDurableAt(9, 3),
        Step::Read(3),
        Step::ReadToEnd,
        Step::SeekTo(12),
        Step::SeekToEnd,
        Step::SetLen(50),
        Step::Len,
        Step::SyncData,
        Step::ReaderRead(20),
        Step::FsRead(1),
        Step::FsWriteDurable(3, 7),
        Step::HardLink(3, 5),
        Step::Symlink(2, 6),
        Step::ReadLink(6),
        Step::Rename(5, 3),
        Step::RemoveFile(6),
        Step::CreateDir(6),
        Step::RemoveDir(6),
        Step::CreateDirAll,
        Step::FsWrite(5, 4),
        Step::List(6),
        Step::RemoveDirAll,
        Step::CreateDirAll,
        Step::Exists(4),
        Step::NearWrite(9),
        Step::FarPeek(4),
        Step::FarRead(5),
        Step::SendBatch(2, None),
        Step::Receive,
        Step::ReceiveBatch(1),
    ]
}
