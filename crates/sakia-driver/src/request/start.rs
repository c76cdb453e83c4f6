//! The operations of requests.

use std::rc::Rc;

use rustix::io::Errno;

use super::{AcceptMany, Answer, Deliveries, Request, Target};
use crate::buf::BufResult;
use crate::fd::Fd;
use crate::handle::{Begun, Handle, Op};
use crate::key::Key;
use crate::operation::Operation;

/// Finds the descriptor of a request's file on a driver.
pub(crate) trait Files {
    /// # Errors
    /// `EBADF`: the file was closed.
    fn find(&mut self, target: &Target) -> Result<Fd, Errno>;
}

/// A request that was started.
pub(crate) enum Started {
    /// It is done.
    Done(Answer),
    /// It is under way.
    As(Key),
}

/// Starts a request. Its answers are reported with `token`, see
/// [`next_answer`](crate::driver::Driver::next_answer), and those that are not its last in `deliveries`.
///
/// # Errors
/// `EBADF`: its file was closed. `EINVAL`: it is not for a driver. Only if it has no memory to give back.
pub(crate) fn start(
    request: Request,
    token: u64,
    driver: &Handle,
    files: &mut impl Files,
    deliveries: &Rc<Deliveries>,
) -> Result<Started, Errno> {
    let mut at =
        |directory: Option<Target>| directory.map(|target| files.find(&target)).transpose();
    Ok(match request {
        Request::Close { .. } | Request::PollMany { .. } | Request::ReceiveMany { .. } => {
            return Err(Errno::INVAL);
        }
        Request::Nop => under_way(driver.nop(), token),
        Request::Read { file, buffer, offset } => {
            with_memory(files.find(&file), buffer, |fd, buffer| {
                begun(driver.begin_read(&fd, buffer, offset), token)
            })
        }
        Request::Write { file, buffer, offset } => {
            with_memory(files.find(&file), buffer, |fd, buffer| {
                begun(driver.begin_write(&fd, buffer, offset), token)
            })
        }
        Request::ReadVectored { file, buffers, offset, flags } => {
            with_memory(files.find(&file), buffers, |fd, buffers| {
                under_way(driver.read_vectored_with(&fd, buffers, offset, flags), token)
            })
        }
        Request::WriteVectored { file, buffers, offset, flags } => {
            with_memory(files.find(&file), buffers, |fd, buffers| {
                under_way(driver.write_vectored_with(&fd, buffers, offset, flags), token)
            })
        }
        Request::Open { directory, path, how } => {
            let directory = at(directory)?;
            under_way(driver.openat2(directory.as_ref(), path, how), token)
        }
        Request::Sync { file, data_only } => {
            under_way(driver.fsync(&files.find(&file)?, data_only), token)
        }
        Request::Stat { directory, path: Some(path), flags } => {
            let directory = at(directory)?;
            under_way(driver.statx(directory.as_ref(), path, flags), token)
        }
        Request::Stat { directory, path: None, .. } => {
            under_way(driver.statx_fd(&itself(at(directory)?)?), token)
        }
        Request::StatFs { file } => under_way(driver.statfs(&files.find(&file)?), token),
        Request::Truncate { file, len } => {
            under_way(driver.truncate(&files.find(&file)?, len), token)
        }
        Request::Allocate { file, mode, offset, len } => {
            under_way(driver.fallocate(&files.find(&file)?, mode, offset, len), token)
        }
        Request::Advise { file, offset, len, advice } => {
            under_way(driver.advise(&files.find(&file)?, offset, len, advice), token)
        }
        Request::MakeDirectory { directory, path, mode } => {
            let directory = at(directory)?;
            under_way(driver.mkdir(directory.as_ref(), path, mode), token)
        }
        Request::Unlink { directory, path, flags } => {
            let directory = at(directory)?;
            under_way(driver.unlink(directory.as_ref(), path, flags), token)
        }
        Request::Rename { from_directory, from, to_directory, to, flags } => {
            let (old, new) = (at(from_directory)?, at(to_directory)?);
            under_way(driver.rename(old.as_ref(), from, new.as_ref(), to, flags), token)
        }
        Request::Link { from_directory, from, to_directory, to, flags } => {
            let (old, new) = (at(from_directory)?, at(to_directory)?);
            under_way(driver.link(old.as_ref(), from, new.as_ref(), to, flags), token)
        }
        Request::Symlink { target, directory, link } => {
            let directory = at(directory)?;
            under_way(driver.symlink(target, directory.as_ref(), link), token)
        }
        Request::ReadLink { directory, path, buffer } => {
            with_memory(at(directory), buffer, |directory, buffer| {
                under_way(driver.readlink(directory.as_ref(), path, buffer), token)
            })
        }
        Request::ReadDirectory { file, buffer } => {
            with_memory(files.find(&file), buffer, |fd, buffer| {
                under_way(driver.read_directory(&fd, buffer), token)
            })
        }
        Request::ChangeMode { directory, path: Some(path), mode, flags } => {
            let directory = at(directory)?;
            under_way(driver.chmod(directory.as_ref(), path, mode, flags), token)
        }
        Request::ChangeMode { directory, path: None, mode, .. } => {
            under_way(driver.chmod_fd(&itself(at(directory)?)?, mode), token)
        }
        Request::ChangeOwner { directory, path: Some(path), uid, gid, flags } => {
            let directory = at(directory)?;
            under_way(driver.chown(directory.as_ref(), path, uid, gid, flags), token)
        }
        Request::ChangeOwner { directory, path: None, uid, gid, .. } => {
            under_way(driver.chown_fd(&itself(at(directory)?)?, uid, gid), token)
        }
        Request::SetTimes { directory, path: Some(path), accessed, modified, flags } => {
            let directory = at(directory)?;
            under_way(driver.utimens(directory.as_ref(), path, accessed, modified, flags), token)
        }
        Request::SetTimes { directory, path: None, accessed, modified, .. } => {
            under_way(driver.utimens_fd(&itself(at(directory)?)?, accessed, modified), token)
        }
        Request::CopyRange { from, from_offset, to, to_offset, len } => {
            let (from, to) = (files.find(&from)?, files.find(&to)?);
            under_way(driver.copy_file_range(&from, from_offset, &to, to_offset, len), token)
        }
        Request::Poll { file, events } => {
            under_way(driver.poll(&files.find(&file)?, events), token)
        }
        Request::Socket { domain, kind, protocol } => {
            under_way(driver.socket(domain, kind, protocol), token)
        }
        Request::Bind { socket, address } => {
            under_way(driver.bind(&files.find(&socket)?, &address), token)
        }
        Request::Listen { socket, backlog } => {
            under_way(driver.listen(&files.find(&socket)?, backlog), token)
        }
        Request::Connect { socket, address } => {
            under_way(driver.connect(&files.find(&socket)?, &address), token)
        }
        Request::Accept { socket } => under_way(driver.accept(&files.find(&socket)?), token),
        Request::AcceptMany { socket } => {
            let (fd, deliveries) = (files.find(&socket)?, Rc::clone(deliveries));
            under_way(driver.start(AcceptMany { fd, token, deliveries }), token)
        }
        Request::Send { socket, buffer, flags } => {
            with_memory(files.find(&socket), buffer, |fd, buffer| {
                under_way(driver.send(&fd, buffer, flags), token)
            })
        }
        Request::Receive { socket, buffer, flags } => {
            with_memory(files.find(&socket), buffer, |fd, buffer| {
                under_way(driver.recv(&fd, buffer, flags), token)
            })
        }
        Request::SendMessage { socket, buffer, address, control, flags } => {
            let control = control.on_driver(|file| files.find(&file.into()));
            let found = control.and_then(|control| Ok((files.find(&socket)?, control)));
            with_memory(found, buffer, |(fd, control), buffer| {
                under_way(driver.send_message(&fd, buffer, &address, control, flags), token)
            })
        }
        Request::ReceiveMessage { socket, buffer, control_bytes, flags } => {
            with_memory(files.find(&socket), buffer, |fd, buffer| {
                under_way(driver.recv_message(&fd, buffer, control_bytes, flags), token)
            })
        }
        Request::Shutdown { socket, how } => {
            under_way(driver.shutdown_socket(&files.find(&socket)?, how), token)
        }
    })
}

/// Starts a request that has memory. Without its file it is done, and the answer gives the memory back.
#[inline(always)]
pub(crate) fn with_memory<F, M>(
    file: Result<F, Errno>,
    memory: M,
    start: impl FnOnce(F, M) -> Started,
) -> Started
where
    BufResult<usize, M>: Into<Answer>,
{
    match file {
        Ok(file) => start(file, memory),
        Err(errno) => unbegun(errno, memory),
    }
}

#[cold]
fn unbegun<M>(errno: Errno, memory: M) -> Started
where
    BufResult<usize, M>: Into<Answer>,
{
    let output: BufResult<usize, M> = (Err(errno.into()), memory);
    Started::Done(output.into())
}

/// Returns the file that an operation without a path is for.
fn itself(file: Option<Fd>) -> Result<Fd, Errno> {
    file.ok_or(Errno::BADF)
}

/// Returns a request that is under way.
#[inline(always)]
pub(crate) fn under_way<O: Operation<Output: Into<Answer>>>(op: Op<O>, token: u64) -> Started {
    Started::As(op.into_request::<Answer>(token))
}

/// Returns a request that was begun.
#[inline(always)]
pub(crate) fn begun<O: Operation<Output: Into<Answer>>>(begun: Begun<O>, token: u64) -> Started {
    match begun {
        Begun::Done(output) => Started::Done(output.into()),
        Begun::Op(op) => under_way(op, token),
    }
}
