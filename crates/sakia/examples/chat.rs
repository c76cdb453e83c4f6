//! A chat with rooms and back-pressure, by TCP.
//!
//! The first line of a member is its name, the second its room; each further line goes to all in that room,
//! its author included. A member that does not read holds up those who talk to it: the server stops reading
//! from them, so memory is bounded, and no line is lost. After half a minute it is thrown out.
//!
//! `cargo run --release -p sakia --example chat -- PORT` serves until SIGINT; talk to it with
//! `nc 127.0.0.1 PORT`. Without an argument it plays a chat by itself, and checks what everybody hears.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use async_channel::{Receiver, Sender, bounded};
use sakia::io::{BufResultExt, Reader, Streamed};
use sakia::net::{
    ListenOptions, OwnedReadHalf, OwnedWriteHalf, ServeOptions, TcpListener, TcpStream, serve,
};
use sakia::shutdown::on_signals;
use sakia::signal::SignalKind;
use sakia::time::{sleep, timeout};
use sakia::{CancellationToken, select};

/// Bytes of a line, at most.
const LINE_BYTES_MAX: usize = 1000;
/// Lines that wait for a member that does not read, besides those in the buffers of its socket.
const LINES_MAX: usize = 16;
/// The buffer that the kernel keeps for a connection, for each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// A member that takes no line for so long is thrown out.
const PATIENCE: Duration = Duration::from_secs(30);

/// A member's lines go here. `Rc`: all members share the bytes of a line.
type Lines = Sender<Rc<str>>;
/// The members of each room, by number.
type Rooms = Rc<RefCell<HashMap<String, BTreeMap<u64, Lines>>>>;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(port) = std::env::args().nth(1) else { return sakia::block_on(play()) };
    let port: u16 = port.parse()?;
    sakia::block_on(async {
        let listener = listen(port).await?;
        println!("listening on {}", listener.local_addr()?);
        let shutdown = on_signals([SignalKind::INTERRUPT, SignalKind::TERMINATE])?;
        chat(listener, async move { shutdown.requested().await }).await
    })
}

/// Listens with small buffers, which the connections inherit. The kernel would hold tens of megabytes each.
async fn listen(port: u16) -> sakia::Result<TcpListener> {
    let options =
        ListenOptions::new().recv_buffer_size(BUFFER_BYTES).send_buffer_size(BUFFER_BYTES);
    options.bind(("127.0.0.1", port)).await
}

async fn chat(
    listener: TcpListener,
    stop: impl Future<Output = ()> + 'static,
) -> Result<(), Box<dyn Error>> {
    let rooms = Rooms::default();
    let numbers = Cell::new(0);
    let options = ServeOptions::new()
        .stop(stop)
        .deadline(Duration::from_secs(1))
        .on_error(|error| eprintln!("{error}"));
    let served = serve(listener, options, move |stream, _| {
        numbers.set(numbers.get() + 1);
        member(stream, numbers.get(), Rc::clone(&rooms))
    });
    println!("{:?}", served.await?);
    Ok(())
}

/// Serves a member until it leaves, or does not read.
async fn member(stream: TcpStream, number: u64, rooms: Rooms) -> io::Result<()> {
    let (reader, writer) = stream.into_split();
    let mut reader = Reader::new(reader);
    let mut line = async || {
        let line = reader.line(LINE_BYTES_MAX).await?;
        io::Result::Ok(line.map(str::to_owned))
    };
    let (Some(name), Some(room)) = (line().await?, line().await?) else { return Ok(()) };
    let (lines, to_tell) = bounded(LINES_MAX);
    rooms.borrow_mut().entry(room.clone()).or_default().insert(number, lines);
    let hear = async {
        while let Some(said) = line().await? {
            let said: Rc<str> = format!("{name}: {said}\n").into();
            // A copy, since members come and go while this one waits for room.
            let members: Vec<Lines> = rooms.borrow()[&room].values().cloned().collect();
            for member in members {
                // A failure says that it has left.
                member.send(Rc::clone(&said)).await.ok();
            }
        }
        io::Result::Ok(())
    };
    let result = select! {
        result = hear => result,
        result = tell(writer, to_tell) => result,
    };
    leave(&rooms, &room, number);
    result
}

fn leave(rooms: &Rooms, room: &str, number: u64) {
    let mut rooms = rooms.borrow_mut();
    let Some(members) = rooms.get_mut(room) else { return };
    members.remove(&number);
    if members.is_empty() {
        rooms.remove(room);
    }
}

/// Writes a member's lines, all that wait at a time.
async fn tell(mut writer: OwnedWriteHalf<TcpStream>, lines: Receiver<Rc<str>>) -> io::Result<()> {
    while let Ok(first) = lines.recv().await {
        let mut text = first.to_string();
        while let Ok(line) = lines.try_recv() {
            text += &line;
        }
        timeout(PATIENCE, writer.write_all(text)).await?.value()?;
    }
    Ok(())
}

/// A member of the chat that is played.
struct Player {
    heard: Reader<Streamed<OwnedReadHalf<TcpStream>>>,
    writer: OwnedWriteHalf<TcpStream>,
}

impl Player {
    /// Joins, and waits until the server has let it in.
    async fn join(address: SocketAddr, name: &str, room: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_recv_buffer_size(BUFFER_BYTES)?;
        let (reader, writer) = stream.into_split();
        let mut player = Self { heard: Reader::new(reader), writer };
        player.say(&format!("{name}\n{room}\nhello")).await?;
        assert_eq!(player.hear().await?, format!("{name}: hello"));
        Ok(player)
    }

    async fn say(&mut self, text: &str) -> io::Result<()> {
        self.writer.write_all(format!("{text}\n")).await.value()
    }

    async fn hear(&mut self) -> io::Result<String> {
        let line = self.heard.line(LINE_BYTES_MAX).await?;
        Ok(line.ok_or(io::ErrorKind::UnexpectedEof)?.to_owned())
    }
}

async fn play() -> Result<(), Box<dyn Error>> {
    let listener = listen(0).await?;
    let address = listener.local_addr()?;
    let token = CancellationToken::new();
    let stopped = token.clone();
    let server = sakia::spawn(async move {
        chat(listener, async move { stopped.canceled().await }).await.map_err(|e| e.to_string())
    });

    let mut ada = Player::join(address, "ada", "engines").await?;
    let mut ben = Player::join(address, "ben", "engines").await?;
    let mut cleo = Player::join(address, "cleo", "gardens").await?;
    assert_eq!(ada.hear().await?, "ben: hello");
    cleo.say("roses").await?;
    assert_eq!(cleo.hear().await?, "cleo: roses");
    ben.say("steam?").await?;
    // Ada hears nothing of the other room.
    assert_eq!([ada.hear().await?, ben.hear().await?], ["ben: steam?", "ben: steam?"]);

    // Ben talks and does not read. What he says fills his own way back, and then he has to wait.
    const LINES: usize = 10_000;
    let said = Rc::new(Cell::new(0));
    let counted = Rc::clone(&said);
    let Player { mut heard, mut writer } = ben;
    let talking = sakia::spawn(async move {
        for number in 0..LINES {
            let line = format!("{number:0900}\n");
            writer.write_all(line).await.value()?;
            counted.set(number + 1);
        }
        io::Result::Ok(writer)
    });
    let listening = sakia::spawn(async move {
        for number in 0..LINES {
            assert_eq!(ada.hear().await?, format!("ben: {number:0900}"));
        }
        io::Result::Ok(ada)
    });
    let mut before = 0;
    while before == 0 || before != said.get() {
        before = said.get();
        sleep(Duration::from_millis(200)).await;
    }
    println!("{before} of {LINES} lines until the speaker had to wait");
    assert!(before < LINES, "who does not read must feel it");
    // The other room goes on.
    cleo.say("tulips").await?;
    assert_eq!(cleo.hear().await?, "cleo: tulips");
    for number in 0..LINES {
        let line = heard.line(LINE_BYTES_MAX).await?.map(str::to_owned);
        assert_eq!(line.as_deref(), Some(&*format!("ben: {number:0900}")));
    }
    drop((talking.await??, listening.await??, heard, cleo));

    token.cancel();
    server.await??;
    Ok(())
}
