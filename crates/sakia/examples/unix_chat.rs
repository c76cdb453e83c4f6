//! A chat among the processes of a machine, in which open files are passed around.
//!
//! A member's input goes to all others, line by line. A line `/open PATH` opens a file here and sends its
//! descriptor: the others read it, though they may have no right to open it, and never see its path.
//!
//! `cargo run --release -p sakia --example unix_chat -- serve /tmp/chat` serves, and
//! `... -- join /tmp/chat NAME` takes part. Without arguments it plays a chat among three members by itself,
//! and checks what they hear.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender, bounded};
use clap::Parser;
use sakia::fs::{self, File};
use sakia::io::{BufResultExt, Fd, Reader, stdin};
use sakia::net::{
    ControlMessage, ControlMessages, OwnedReadHalf, OwnedWriteHalf, ServeOptions, Served,
    UnixListener, UnixStream, serve,
};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;
use sakia::{CancellationToken, select};

/// Bytes of a line, at most.
const LINE_BYTES_MAX: usize = 1000;
/// Lines that wait for a member that does not read. With more it is thrown out.
const LINES_MAX: usize = 64;
/// Files that may have come before the lines that they belong to.
const FILES_MAX: usize = 8;
/// The first byte of a line.
const FILE: char = '+';
const NO_FILE: char = '-';

/// Chats within the machine.
#[derive(Debug, Parser)]
enum Arguments {
    /// Serves a chat at a path, until SIGINT or SIGTERM
    Serve { path: PathBuf },
    /// Takes part in the chat at a path; what is typed is said
    Join { path: PathBuf, name: String },
}

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args_os().len() == 1 {
        return sakia::block_on(play());
    }
    match Arguments::parse() {
        Arguments::Serve { path } => sakia::block_on(async {
            let listener = UnixListener::bind(&path).await?;
            println!("chatting at {}", path.display());
            let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
            let served = serve_chat(listener, async move { shutdown.requested().await }).await;
            fs::remove_file(&path).await?;
            println!("{:?}", served?);
            Ok(())
        }),
        Arguments::Join { path, name } => sakia::block_on(join_chat(&path, &name)),
    }
}

/// A line, and the file that goes with it. All who get it share the descriptor.
#[derive(Clone, Debug)]
struct Line {
    text: String,
    file: Option<Fd>,
}

/// The members by number, and where lines for them go.
type Members = Rc<RefCell<HashMap<u64, Sender<Line>>>>;

async fn serve_chat(
    listener: UnixListener,
    stop: impl Future<Output = ()> + 'static,
) -> io::Result<Served> {
    let members = Members::default();
    let next = Rc::new(RefCell::new(0..));
    let options = ServeOptions::new()
        .stop(stop)
        .deadline(Duration::from_secs(1))
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        let number = next.borrow_mut().next().expect("numbers do not end");
        member(stream, number, Rc::clone(&members))
    });
    Ok(served.await?)
}

/// Serves a member: what it says goes to the others, and what they say comes to it.
async fn member(stream: UnixStream, number: u64, members: Members) -> io::Result<()> {
    let (lines, to_write) = bounded(LINES_MAX);
    members.borrow_mut().insert(number, lines);
    let (reader, writer) = stream.into_split();
    let hearing = pass_on(Lines::new(reader), number, &members);
    let telling = tell(writer, to_write);
    let result = select! {
        result = hearing => result,
        result = telling => result,
    };
    members.borrow_mut().remove(&number);
    result
}

async fn pass_on(mut lines: Lines, from: u64, members: &Members) -> io::Result<()> {
    while let Some(line) = lines.next().await? {
        // A member that does not keep up is removed: its channel closes, and that ends its connection.
        let mut members = members.borrow_mut();
        members.retain(|&number, to| number == from || to.try_send(line.clone()).is_ok());
    }
    Ok(())
}

async fn tell(mut writer: OwnedWriteHalf<UnixStream>, lines: Receiver<Line>) -> io::Result<()> {
    while let Ok(line) = lines.recv().await {
        send(&mut writer, line).await?;
    }
    Ok(())
}

/// Sends a line. Its file goes with the first byte, which says whether there is one.
async fn send(writer: &mut OwnedWriteHalf<UnixStream>, line: Line) -> io::Result<()> {
    let Line { text, file } = line;
    let text = format!("{}{text}\n", if file.is_some() { FILE } else { NO_FILE });
    let control = file.iter().fold(ControlMessages::new(), |all, fd| all.descriptor(fd));
    let (sent, text) = writer.send_message(text, control).await.both()?;
    writer.write_all(text[sent..].to_owned()).await.value()
}

/// The lines that come by a connection, and the files that come with them, in the same order.
struct Lines {
    reader: OwnedReadHalf<UnixStream>,
    bytes: Vec<u8>,
    files: VecDeque<Fd>,
}

impl Lines {
    fn new(reader: OwnedReadHalf<UnixStream>) -> Self {
        Self { reader, bytes: Vec::new(), files: VecDeque::new() }
    }

    async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=end).take(end).collect();
                let line = String::from_utf8_lossy(&line);
                if let Some(text) = line.strip_prefix(NO_FILE) {
                    return Ok(Some(Line { text: text.to_owned(), file: None }));
                }
                let text = line.strip_prefix(FILE).filter(|_| !self.files.is_empty());
                let text = text.ok_or(io::ErrorKind::InvalidData)?.to_owned();
                return Ok(Some(Line { text, file: self.files.pop_front() }));
            }
            if self.bytes.len() > LINE_BYTES_MAX || self.files.len() > FILES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let room = ControlMessage::space(4);
            let buf = Vec::with_capacity(LINE_BYTES_MAX);
            let ((count, control), buf) = self.reader.recv_message(buf, room).await.both()?;
            if count == 0 {
                return Ok(None);
            }
            self.bytes.extend_from_slice(&buf);
            self.files.extend(control.descriptors);
        }
    }
}

/// Takes part: what is typed is said, and what is heard is printed.
async fn join_chat(path: &Path, name: &str) -> Result<(), Box<dyn Error>> {
    let stream = UnixStream::connect(path).await?;
    eprintln!("served by process {:?}", stream.peer_cred()?.pid());
    let (reader, mut writer) = stream.into_split();
    let mut heard = Lines::new(reader);
    let hearing = async {
        while let Some(line) = heard.next().await? {
            println!("{}", shown(line).await?);
        }
        io::Result::Ok(())
    };
    let saying = async {
        let mut typed = Reader::new(stdin()?);
        while let Some(text) = typed.line(LINE_BYTES_MAX).await? {
            send(&mut writer, said(name, text).await?).await?;
        }
        io::Result::Ok(())
    };
    select! {
        result = hearing => Ok(result?),
        result = saying => Ok(result?),
    }
}

/// Returns the line that a member sends by typing this.
async fn said(name: &str, typed: &str) -> io::Result<Line> {
    let Some(path) = typed.strip_prefix("/open ") else {
        return Ok(Line { text: format!("{name}: {typed}"), file: None });
    };
    let file = File::open(path).await?;
    Ok(Line { text: format!("{name} shows a file"), file: Some(file.as_ref().clone()) })
}

/// A line as it is shown: with the beginning of the file, if one came.
async fn shown(line: Line) -> io::Result<String> {
    let Line { text, file } = line;
    let Some(fd) = file else { return Ok(text) };
    let file = File::try_from(fd)?;
    let content = file.read_at(Vec::with_capacity(100), 0).await.buffer()?;
    Ok(format!("{text}: {}", String::from_utf8_lossy(&content).trim_end()))
}

/// A member of the chat that is played.
struct Player {
    name: &'static str,
    heard: Lines,
    writer: OwnedWriteHalf<UnixStream>,
}

impl Player {
    /// Joins, and waits until the server knows.
    async fn join(path: &Path, name: &'static str, others: &mut [Self]) -> io::Result<Self> {
        let (reader, writer) = UnixStream::connect(path).await?.into_split();
        let mut player = Self { name, heard: Lines::new(reader), writer };
        player.say("hello").await?;
        for other in others {
            assert_eq!(other.hear().await?, format!("{name}: hello"));
        }
        Ok(player)
    }

    async fn say(&mut self, typed: &str) -> io::Result<()> {
        let line = said(self.name, typed).await?;
        send(&mut self.writer, line).await
    }

    async fn hear(&mut self) -> io::Result<String> {
        let line = self.heard.next().await?;
        shown(line.ok_or(io::ErrorKind::UnexpectedEof)?).await
    }
}

async fn play() -> Result<(), Box<dyn Error>> {
    let path = std::env::temp_dir().join(format!("sakia-chat-{}", std::process::id()));
    let secret = path.with_extension("secret");
    fs::write(&secret, "nobody can open this any more\n").await?;

    let token = CancellationToken::new();
    let stopped = token.clone();
    let listener = UnixListener::bind(&path).await?;
    let server = sakia::spawn(serve_chat(listener, async move { stopped.canceled().await }));

    let mut players = Vec::new();
    for name in ["ada", "ben", "cleo"] {
        let player = Player::join(&path, name, &mut players).await?;
        players.push(player);
    }
    players[0].say("does anybody know what is in it?").await?;
    players[1].say(&format!("/open {}", secret.display())).await?;
    fs::remove_file(&secret).await?;
    let (asked, showed) = (
        "ada: does anybody know what is in it?",
        "ben shows a file: nobody can open this any more",
    );
    assert_eq!(players[0].hear().await?, showed);
    assert_eq!(players[1].hear().await?, asked);
    // In the order in which the server got them.
    let mut heard = [players[2].hear().await?, players[2].hear().await?];
    heard.sort();
    assert_eq!(heard, [asked, showed]);
    heard.iter().for_each(|line| println!("{line}"));

    drop(players);
    token.cancel();
    let served = server.await??;
    assert_eq!((served.accepted, served.failed, served.panicked), (3, 0, 0));
    fs::remove_file(&path).await?;
    Ok(())
}
