//! Bytes in pipes, whose reads and writes are dropped at any time.

use std::future::Future;
use std::time::Duration;

use proptest::prelude::*;
use sakia::io::{BufResult, PipeReader, PipeWriter};
use sakia::spawn;
use sakia_driver::Policy;

use super::{check, must, on_backends, turns};
use crate::support::poll_once;

on_backends! {
    bytes_are_read_in_order
    bytes_are_written_in_order
}

/// The size of pipes that are written, which is less than some writes have.
const PIPE_BYTES: usize = 4096;

/// Something that happens while a read or write is under way.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    Poll,
    /// The other end writes or reads this number of bytes.
    Other(usize),
    Turns(u8),
}

/// A read or a write of a number of bytes.
#[derive(Clone, Debug)]
struct Transfer {
    len: usize,
    is_capacity: bool,
    events: Vec<Event>,
    is_dropped: bool,
}

fn transfers(len_max: usize) -> impl Strategy<Value = Vec<Transfer>> {
    let event = prop_oneof![
        2 => Just(Event::Poll),
        2 => (1..len_max).prop_map(Event::Other),
        2 => (1u8..4).prop_map(Event::Turns),
    ];
    let events = prop::collection::vec(event, 0..6);
    let transfer = (1..len_max, any::<bool>(), events, any::<bool>()).prop_map(
        |(len, is_capacity, events, is_dropped)| Transfer { len, is_capacity, events, is_dropped },
    );
    prop::collection::vec(transfer, 0..30)
}

/// Polls a future once and as the events say. Returns its output, or the future, if it is not to be dropped.
pub async fn during<F: Future + Unpin>(
    events: &[Event],
    is_dropped: bool,
    mut future: F,
    mut other: impl FnMut(usize),
) -> Result<F::Output, Option<F>> {
    for &event in [Event::Poll].iter().chain(events) {
        match event {
            Event::Poll => {
                if let std::task::Poll::Ready(output) = poll_once(&mut future).await {
                    return Ok(output);
                }
            }
            Event::Other(count) => other(count),
            Event::Turns(count) => turns(count).await,
        }
    }
    Err((!is_dropped).then_some(future))
}

/// Returns the byte at this place of the stream.
pub fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// A reader of which bytes are read in the order in which they were written.
async fn read_in_order(transfers: Vec<Transfer>) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty()).unwrap();
    let mut reader = Some(PipeReader::from_fd(reader));
    let (mut written, mut read) = (0, 0);
    let mut write = |count: usize| {
        let bytes: Vec<u8> = (written..written + count).map(byte).collect();
        written += rustix::io::write(&writer, &bytes).unwrap_or(0);
        written
    };
    for transfer in transfers {
        let mut its = reader.take().unwrap();
        let buf = if transfer.is_capacity {
            Vec::with_capacity(transfer.len)
        } else {
            vec![0; transfer.len]
        };
        let ended = {
            let future = Box::pin(its.read(buf));
            match during(&transfer.events, transfer.is_dropped, future, |count| _ = write(count))
                .await
            {
                Ok(output) => Some(output),
                Err(None) => None,
                Err(Some(future)) => {
                    if write(0) == read {
                        write(1);
                    }
                    Some(must("a read", future).await)
                }
            }
        };
        if let Some((result, buf)) = ended {
            let count = result.unwrap();
            assert!(count > 0, "no end");
            let expected: Vec<u8> = (read..read + count).map(byte).collect();
            assert_eq!(buf[..count], expected);
            read += count;
        }
        reader = Some(its);
    }
    drop(writer);
    let (result, rest) = must("the end", reader.unwrap().read_to_end(Vec::new())).await;
    assert_eq!(result.unwrap(), rest.len());
    let expected: Vec<u8> = (read..written).map(byte).collect();
    assert_eq!(rest, expected);
}

/// Each write has bytes of its own: those of one that ended are all read, those of a dropped one in part, and
/// before those of the next.
async fn written_in_order(transfers: Vec<Transfer>) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES).unwrap();
    let mut writer = PipeWriter::from_fd(writer);
    let mut all = Vec::new();
    let mut read = |count: usize| {
        let mut buf = vec![0; count];
        let count = rustix::io::read(&reader, &mut buf).unwrap_or(0);
        all.extend_from_slice(&buf[..count]);
        count
    };
    // The least and the most bytes of each write.
    let mut bounds = Vec::new();
    for (number, transfer) in transfers.iter().enumerate() {
        let future = Box::pin(writer.write(vec![byte(number); transfer.len]));
        let ended: Option<BufResult<usize, Vec<u8>>> =
            match during(&transfer.events, transfer.is_dropped, future, |count| _ = read(count))
                .await
            {
                Ok(output) => Some(output),
                Err(None) => None,
                Err(Some(mut future)) => loop {
                    while read(PIPE_BYTES) > 0 {}
                    let pause = Duration::from_millis(1);
                    if let Ok(output) = sakia::time::timeout(pause, &mut future).await {
                        break Some(output);
                    }
                },
            };
        bounds.push(match ended {
            Some((result, _)) => {
                let count = result.unwrap();
                (count, count)
            }
            None => (0, transfer.len),
        });
    }
    // A thread that writes for a dropped future ends once there is room.
    let mut closing = spawn(writer.close());
    must("the close", async {
        loop {
            while read(PIPE_BYTES) > 0 {}
            let pause = Duration::from_millis(1);
            if let Ok(closed) = sakia::time::timeout(pause, &mut closing).await {
                return closed.unwrap().unwrap();
            }
        }
    })
    .await;
    while read(PIPE_BYTES) > 0 {}
    let mut rest = &all[..];
    for (number, (least, most)) in bounds.into_iter().enumerate() {
        let count = rest.iter().take_while(|&&other| other == byte(number)).count();
        assert!((least..=most).contains(&count), "{count} of write {number}: {least} to {most}");
        rest = &rest[count..];
    }
    assert_eq!(rest, [], "bytes that overtook others, or came twice");
}

fn bytes_are_read_in_order(policy: Policy) {
    check(policy, transfers(20), read_in_order);
}

fn bytes_are_written_in_order(policy: Policy) {
    check(policy, transfers(6000), written_in_order);
}
