//! A server on a ring driven by hand.
//!
//! Each connection has a receive or a send in flight, never both, and its own buffer. In the variant
//! `multishot` each connection has one multishot receive, for which the kernel takes buffers from a buffer
//! ring; each buffer is returned after it was sent.

use std::io;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};
use peers_common::block::aligned;
use peers_common::net::BUFFER_BYTES;
use peers_common::{Door, Job};

use crate::{Ring, result};

/// Entries of the ring: more than connections.
const ENTRIES: u32 = 1024;
/// The number of buffers of `multishot`, a power of two.
const BUFFERS: u16 = 1024;
/// The group of these buffers.
const GROUP: u16 = 0;

/// The kind of a completion, in the bits above the connection's number.
const ACCEPTED: usize = 0;
const RECEIVED: usize = 1 << 32;
const SENT: usize = 2 << 32;
const NUMBER: usize = RECEIVED - 1;

/// A connection's descriptor, and the bytes to send.
struct Connection {
    fd: Fd,
    buffer: &'static mut [u8],
    /// The number of bytes received, and of these sent.
    filled: usize,
    sent: usize,
}

pub(crate) fn serve(job: &Job, door: Door) -> io::Result<()> {
    let ring = Ring::new(ENTRIES)?;
    let listener = Fd(door.listen()?.into_raw_fd());
    if job.variant == "multishot" { multishot(ring, listener) } else { plain(ring, listener) }
}

fn plain(mut ring: Ring, listener: Fd) -> io::Result<()> {
    let accept =
        || opcode::Accept::new(listener, std::ptr::null_mut(), std::ptr::null_mut()).build();
    let mut connections: Vec<Connection> = Vec::new();
    let mut done = Vec::with_capacity(ENTRIES as usize);
    // SAFETY: the entry points to nothing.
    unsafe { ring.push(accept(), ACCEPTED) };
    loop {
        ring.turn(&mut done);
        for entry in &done {
            let count = result(entry)?;
            let number = entry.user_data() as usize & NUMBER;
            if entry.user_data() as usize == ACCEPTED {
                let number = connections.len();
                let buffer = aligned(BUFFER_BYTES);
                let fd = Fd(count as i32);
                connections.push(Connection { fd, buffer, filled: 0, sent: 0 });
                receive(&mut ring, &mut connections[number], number);
                // SAFETY: the entry points to nothing.
                unsafe { ring.push(accept(), ACCEPTED) };
                continue;
            }
            let connection = &mut connections[number];
            if entry.user_data() as usize & !NUMBER == RECEIVED {
                (connection.filled, connection.sent) = (count, 0);
                if count > 0 {
                    send(&mut ring, connection, number);
                }
                continue;
            }
            connection.sent += count;
            if connection.sent < connection.filled {
                send(&mut ring, connection, number);
            } else {
                receive(&mut ring, connection, number);
            }
        }
    }
}

fn receive(ring: &mut Ring, connection: &mut Connection, number: usize) {
    let Connection { fd, buffer, .. } = connection;
    let entry = opcode::Recv::new(*fd, buffer.as_mut_ptr(), buffer.len() as u32).build();
    // SAFETY: the buffer lives for ever, and is used again when this is done.
    unsafe { ring.push(entry, RECEIVED | number) };
}

fn send(ring: &mut Ring, connection: &Connection, number: usize) {
    let Connection { fd, buffer, filled, sent } = connection;
    // SAFETY: the buffer lives for ever, and is used again when this is done.
    unsafe { ring.push(send_entry(*fd, &buffer[*sent..*filled]), SENT | number) };
}

fn send_entry(fd: Fd, bytes: &[u8]) -> squeue::Entry {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    opcode::Send::new(fd, bytes.as_ptr(), bytes.len() as u32).flags(flags).build()
}

/// Buffers that the kernel takes for received bytes.
struct Buffers {
    /// The entries of the ring; the first one also holds the tail.
    ring: &'static mut [u8],
    memory: &'static mut [u8],
    tail: u16,
}

impl Buffers {
    fn register(ring: &IoUring) -> io::Result<Self> {
        let entries = aligned(usize::from(BUFFERS) * size_of::<BufRingEntry>());
        let address = entries.as_mut_ptr() as u64;
        // SAFETY: the memory is aligned to a page, large enough, and lives for ever.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)? };
        let memory = aligned(usize::from(BUFFERS) * BUFFER_BYTES);
        let mut buffers = Self { ring: entries, memory, tail: 0 };
        (0..BUFFERS).for_each(|number| buffers.give(number));
        buffers.publish();
        Ok(buffers)
    }

    fn bytes(&self, number: u16) -> &[u8] {
        &self.memory[usize::from(number) * BUFFER_BYTES..][..BUFFER_BYTES]
    }

    /// Adds a buffer to the ring. The kernel sees it after [`publish`](Self::publish).
    fn give(&mut self, number: u16) {
        let address = self.bytes(number).as_ptr() as u64;
        let place = usize::from(self.tail % BUFFERS);
        let entry = self.ring.as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: the place is within the ring, and the kernel has read it: there are no more buffers than
        // places.
        let entry = unsafe { &mut *entry.add(place) };
        entry.set_addr(address);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(number);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&mut self) {
        let entry = self.ring.as_mut_ptr().cast::<BufRingEntry>().cast_const();
        // SAFETY: the tail lies in the first entry, which lives as long as the ring; it is a `u16` that the
        // kernel only reads, atomically.
        let tail = unsafe { &*BufRingEntry::tail(entry).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

/// A connection's queue in the variant `multishot`: the buffers to be sent, in order, the first of which is
/// in flight.
#[derive(Default)]
struct Queue {
    fd: i32,
    waiting: std::collections::VecDeque<(u16, usize)>,
    /// The number of bytes of the first buffer that were sent.
    sent: usize,
}

fn multishot(mut ring: Ring, listener: Fd) -> io::Result<()> {
    let mut buffers = Buffers::register(&ring.ring)?;
    let mut queues: Vec<Queue> = Vec::new();
    let mut done = Vec::with_capacity(ENTRIES as usize);
    let accept = opcode::AcceptMulti::new(listener).build();
    // SAFETY: the entry points to nothing.
    unsafe { ring.push(accept, ACCEPTED) };
    let receive = |ring: &mut Ring, fd: i32, number: usize| {
        let entry = opcode::RecvMulti::new(Fd(fd), GROUP).build();
        // SAFETY: the entry points to nothing; the group's buffers live for ever.
        unsafe { ring.push(entry, RECEIVED | number) };
    };
    let send = |ring: &mut Ring, buffers: &Buffers, queue: &Queue, number: usize| {
        let Some(&(buffer, len)) = queue.waiting.front() else { return };
        let entry = send_entry(Fd(queue.fd), &buffers.bytes(buffer)[queue.sent..len]);
        // SAFETY: the buffer lives for ever, and is given back when this is done.
        unsafe { ring.push(entry, SENT | number) };
    };
    loop {
        ring.turn(&mut done);
        for entry in &done {
            let number = entry.user_data() as usize & NUMBER;
            if entry.user_data() as usize == ACCEPTED {
                let fd = result(entry)? as i32;
                let number = queues.len();
                queues.push(Queue { fd, ..Queue::default() });
                receive(&mut ring, fd, number);
                continue;
            }
            let queue = &mut queues[number];
            if entry.user_data() as usize & !NUMBER == RECEIVED {
                let is_over = !cqueue::more(entry.flags());
                if entry.result() == -libc::ENOBUFS {
                    receive(&mut ring, queue.fd, number);
                    continue;
                }
                let len = result(entry)?;
                if let (Some(buffer), 1..) = (cqueue::buffer_select(entry.flags()), len) {
                    queue.waiting.push_back((buffer, len));
                    if queue.waiting.len() == 1 {
                        send(&mut ring, &buffers, queue, number);
                    }
                    if is_over {
                        receive(&mut ring, queue.fd, number);
                    }
                }
                continue;
            }
            queue.sent += result(entry)?;
            if let Some(&(buffer, len)) = queue.waiting.front()
                && queue.sent == len
            {
                queue.waiting.pop_front();
                queue.sent = 0;
                buffers.give(buffer);
            }
            send(&mut ring, &buffers, queue, number);
        }
        buffers.publish();
    }
}
