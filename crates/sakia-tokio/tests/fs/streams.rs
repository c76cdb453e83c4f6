//! Files used by tokio's own tools.

use std::io::SeekFrom;

use futures_util::{StreamExt, TryStreamExt};
use sakia_tokio::fs::File;
use tokio::io::{
    AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, BufReader, BufStream, BufWriter,
};
use tokio_util::io::{ReaderStream, StreamReader};

use crate::support::{Folder, bytes, cool_down, on_each_flavor};

on_each_flavor! {
    one_file_is_copied_to_another
    lines_are_counted
    small_writes_are_gathered
    both_ways_are_buffered
    halves_share_the_file
    a_file_is_a_stream
    a_stream_becomes_a_file
    a_socket_gets_a_file
}

async fn one_file_is_copied_to_another() {
    let folder = Folder::new();
    let from = folder.file("from", bytes(1_000_000));
    for round in 0..2 {
        if round == 0 {
            cool_down(&from);
        }
        let mut reader = File::open(&from).await.unwrap();
        let mut writer = File::create(folder.path("to")).await.unwrap();
        let count = tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        assert_eq!(count, 1_000_000);
        writer.shutdown().await.unwrap();
        assert!(std::fs::read(folder.path("to")).unwrap() == bytes(1_000_000));
    }
}

async fn lines_are_counted() {
    let folder = Folder::new();
    let text: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
    let file = File::open(folder.file("x", &text)).await.unwrap();
    let mut lines = BufReader::new(file).lines();
    let mut count = 0;
    while let Some(line) = lines.next_line().await.unwrap() {
        assert_eq!(line, format!("line {count}"));
        count += 1;
    }
    assert_eq!(count, 10_000);
}

async fn small_writes_are_gathered() {
    let folder = Folder::new();
    let mut writer = BufWriter::new(File::create(folder.path("x")).await.unwrap());
    let mut expected = Vec::new();
    for number in 0..5000 {
        let line = format!("line {number}\n");
        writer.write_all(line.as_bytes()).await.unwrap();
        expected.extend_from_slice(line.as_bytes());
    }
    writer.flush().await.unwrap();
    assert!(std::fs::read(folder.path("x")).unwrap() == expected);
    writer.get_mut().set_len(5).await.unwrap();
    writer.seek(SeekFrom::End(0)).await.unwrap();
    writer.write_all(b"d").await.unwrap();
    writer.shutdown().await.unwrap();
    assert_eq!(std::fs::read(folder.path("x")).unwrap(), b"line d");
}

async fn both_ways_are_buffered() {
    let folder = Folder::new();
    let path = folder.file("x", "one two three");
    let file = File::options().read(true).write(true).open(&path).await.unwrap();
    let mut stream = BufStream::new(file);
    let mut word = [0; 4];
    stream.read_exact(&mut word).await.unwrap();
    // The read-ahead of the buffer does not count in the position of the file.
    stream.seek(SeekFrom::Start(4)).await.unwrap();
    stream.write_all(b"TWO").await.unwrap();
    stream.rewind().await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "one TWO three");
}

async fn halves_share_the_file() {
    let folder = Folder::new();
    let file = File::create_new(folder.path("x")).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(file);
    let writing = tokio::spawn(async move {
        for _ in 0..100 {
            writer.write_all(&bytes(1000)).await.unwrap();
        }
        writer.flush().await.unwrap();
        writer
    });
    let reading = tokio::spawn(async move {
        // The reader is at the end that the file has at this time.
        for _ in 0..100 {
            assert_eq!(reader.read(&mut [0; 10]).await.unwrap(), 0);
        }
        reader
    });
    let mut file = reading.await.unwrap().unsplit(writing.await.unwrap());
    assert_eq!(file.stream_position().await.unwrap(), 100_000);
}

async fn a_file_is_a_stream() {
    let folder = Folder::new();
    let file = File::open(folder.file("x", bytes(300_000))).await.unwrap();
    let mut stream = ReaderStream::with_capacity(file, 64 << 10);
    let mut all = Vec::new();
    while let Some(part) = stream.next().await {
        all.extend_from_slice(&part.unwrap());
    }
    assert!(all == bytes(300_000));
}

async fn a_stream_becomes_a_file() {
    let folder = Folder::new();
    let from = File::open(folder.file("from", bytes(300_000))).await.unwrap();
    let mut to = File::create(folder.path("to")).await.unwrap();
    let mut reader = StreamReader::new(ReaderStream::new(from).map_err(std::io::Error::other));
    tokio::io::copy_buf(&mut reader, &mut to).await.unwrap();
    to.flush().await.unwrap();
    assert!(std::fs::read(folder.path("to")).unwrap() == bytes(300_000));
}

async fn a_socket_gets_a_file() {
    let folder = Folder::new();
    let path = folder.file("x", bytes(500_000));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sending = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await?;
        let mut file = File::open(path).await?;
        tokio::io::copy(&mut file, &mut socket).await
    });
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut all = Vec::new();
    socket.read_to_end(&mut all).await.unwrap();
    assert!(all == bytes(500_000));
    assert_eq!(sending.await.unwrap().unwrap(), 500_000);
}
