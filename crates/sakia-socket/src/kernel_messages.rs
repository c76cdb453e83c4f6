//! Control messages of this process's kernel, as far as rustix supports them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrAny, UCred,
};
use rustix::thread::{Gid, Pid, Uid};

use crate::control::{Control, Credentials, Received, ReceivedMessage, SendControl, control_space};

/// Room for the largest number of descriptors of a message (`SCM_MAX_FD`), and for credentials: more room is
/// of no use.
const ROOM_MAX: usize = control_space(253 * 4) + control_space(12);
/// The alignment of control messages.
const ALIGN: usize = align_of::<usize>();

/// `recvmsg(2)`.
pub(crate) fn receive(
    fd: &OwnedFd,
    buffers: &mut [IoSliceMut<'_>],
    room: usize,
    flags: RecvFlags,
) -> Result<ReceivedMessage<OwnedFd>, Errno> {
    let room = room.min(ROOM_MAX);
    let mut memory = vec![MaybeUninit::uninit(); room + ALIGN];
    // Exactly the caller's room, so that the kernel cuts control messages that do not fit.
    let begin = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
    let mut ancillary = RecvAncillaryBuffer::new(&mut memory[begin..begin + room]);
    let message = rustix::net::recvmsg(fd, buffers, &mut ancillary, flags)?;
    let control = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(Control::Rights(fds.collect())),
        RecvAncillaryMessage::ScmCredentials(sender) => Some(Control::Credentials(Credentials {
            process: sender.pid.as_raw_nonzero().get(),
            user: sender.uid.as_raw(),
            group: sender.gid.as_raw(),
        })),
        _ => None,
    });
    let control = control.collect();
    let received = Received { bytes: message.bytes, flags: message.flags, from: message.address };
    Ok(ReceivedMessage { received, control })
}

/// `sendmsg(2)`.
pub(crate) fn send(
    fd: &OwnedFd,
    buffers: &[IoSlice<'_>],
    control: &[SendControl<'_, OwnedFd>],
    flags: SendFlags,
    to: Option<&SocketAddrAny>,
) -> Result<usize, Errno> {
    // The descriptors of each message, in the form of the call.
    let rights: Vec<Vec<BorrowedFd<'_>>> = control
        .iter()
        .map(|message| match message {
            SendControl::Rights(fds) => fds.iter().map(|fd| fd.as_fd()).collect(),
            _ => Vec::new(),
        })
        .collect();
    let mut messages = Vec::with_capacity(control.len());
    for (message, fds) in control.iter().zip(&rights) {
        messages.push(match *message {
            SendControl::Rights(_) => SendAncillaryMessage::ScmRights(fds),
            SendControl::Credentials(sender) => {
                SendAncillaryMessage::ScmCredentials(credentials(sender)?)
            }
            SendControl::TransmitTime(time) => SendAncillaryMessage::TxTime(time),
            SendControl::Other { .. } => return Err(Errno::OPNOTSUPP),
        });
    }
    let room: usize = messages.iter().map(SendAncillaryMessage::size).sum();
    let mut memory = vec![MaybeUninit::uninit(); room];
    let mut ancillary = SendAncillaryBuffer::new(&mut memory);
    for message in messages {
        if !ancillary.push(message) {
            return Err(Errno::INVAL);
        }
    }
    match to {
        None => rustix::net::sendmsg(fd, buffers, &mut ancillary, flags),
        Some(to) => rustix::net::sendmsg_addr(fd, to, buffers, &mut ancillary, flags),
    }
}

fn credentials(sender: Credentials) -> Result<UCred, Errno> {
    // No process has a number below 1.
    let process = Some(sender.process).filter(|&process| process > 0);
    let process = process.and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    if sender.user == u32::MAX || sender.group == u32::MAX {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (Uid::from_raw(sender.user), Gid::from_raw(sender.group));
    Ok(UCred { pid: process, uid, gid })
}
