//! A file that any thread, loop or queue may use, and the file that a request is for.

use std::ffi::CStr;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::io::Errno;
use sakia_ring::may_be_forked;

use super::mailbox::{FileId, Letter, Mailbox};
use crate::calls::{recv_nowait, send_nowait};
use crate::decide::{Attempt, limits};
use crate::file_calls::FileCalls;
use crate::ops::{OpenHow, RECV_FLAGS, SEND_FLAGS, StatxResult};
use crate::path_calls::{PathCalls, stat_unless_served};
use crate::sys;

/// The serial number of the next file.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// A file, for requests on any number of loops. Clones are the same file.
///
/// The facts that are learned of the file belong to the handle, so its requests are cheaper than those on a
/// bare [number](Target::number). The file is closed when the last clone is dropped and no request uses it;
/// if a loop has used it, that loop closes it, in its next wait. [`Request::Close`](crate::Request::Close)
/// cancels what is under way on all loops, waits for it, and tells the result of the close.
///
/// # Examples
/// ```
/// use std::os::fd::AsFd;
///
/// use sakia_driver::FileHandle;
///
/// let file = std::fs::File::open("Cargo.toml")?;
/// let copy = FileHandle::duplicate(file.as_fd())?; // its own descriptor
/// let own = FileHandle::new(file); // the file's descriptor
/// let mut start = [0; 9];
/// if let Some(result) = own.try_read(&mut start, Some(0)) {
///     assert_eq!((result?, &start), (9, b"[package]"));
/// }
/// # drop(copy);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct FileHandle {
    inner: Arc<Inner>,
}

struct Inner {
    id: FileId,
    calls: FileCalls,
    /// Set to true if its status needs no answer from a server; by the first that is asked for.
    has_no_server: OnceLock<bool>,
    state: Mutex<State>,
}

/// The shared state of a file.
struct State {
    /// `None` once it is being closed.
    descriptor: Option<Arc<Descriptor>>,
    /// Shared by the loops, so that a driver knows a lender that it has.
    lender: Weak<Use>,
    /// The loops that may keep the descriptor.
    users: Vec<Weak<Mailbox>>,
}

/// The descriptor of a file. Requests keep it through their driver, see
/// [`Driver::lend`](crate::Driver::lend).
pub(crate) struct Descriptor {
    /// `None` once it was handed over to be closed.
    source: Option<Source>,
    /// Set once, under the lock of the file's state. To look at it takes no lock.
    closer: OnceLock<Closer>,
}

enum Source {
    Own(OwnedFd),
    /// Its owner lends it, and closes it.
    Lent(Arc<dyn AsFd + Send + Sync>),
}

/// The request that closes the file, and its loop.
pub(crate) struct Closer {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) token: u64,
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.source.as_ref().expect("it is taken at the end only") {
            Source::Own(fd) => fd.as_fd(),
            Source::Lent(owner) => owner.as_fd(),
        }
    }
}

impl Descriptor {
    /// Returns the descriptor to be closed; `None` if an owner has lent it.
    fn into_owned(mut self) -> Option<OwnedFd> {
        match self.source.take()? {
            Source::Own(fd) => Some(fd),
            Source::Lent(_) => None,
        }
    }

    /// Returns the descriptor, unless an owner has lent it, or it has another user.
    fn try_into_owned(self: Arc<Self>) -> Result<OwnedFd, Arc<Self>> {
        let mut only = Arc::try_unwrap(self)?;
        match only.source.take() {
            Some(Source::Own(fd)) => Ok(fd),
            lent => {
                only.source = lent;
                Err(Arc::new(only))
            }
        }
    }

    /// Gives up a use of the descriptor. Returns it, to be closed, if this was the last.
    pub(crate) fn give_up(self: Arc<Self>) -> Option<OwnedFd> {
        // One that a request closes tells its loop.
        if self.closer.get().is_some() { None } else { Arc::into_inner(self)?.into_owned() }
    }

    /// As [`give_up`](Self::give_up), on the thread of a loop.
    pub(crate) fn give_up_on_loop(self: Arc<Self>) -> Option<OwnedFd> {
        contained(|| self.give_up()).flatten()
    }
}

/// The use of a descriptor by loops.
pub(crate) struct Use(Option<Arc<Descriptor>>);

impl Use {
    pub(crate) fn descriptor(&self) -> Weak<Descriptor> {
        self.0.as_ref().map(Arc::downgrade).unwrap_or_default()
    }
}

impl AsFd for Use {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it is taken at the end only").as_fd()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        contained(|| drop(self.0.take()));
    }
}

/// Contains a panic of an owner's destructor: on the thread of a loop it would end the work of others, such
/// as the delivery of an outcome. The message of the panic hook is its trace.
fn contained<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(std::mem::forget).ok() // the payload may panic, too
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if let (Some(closer), Some(source)) = (self.closer.take(), self.source.take()) {
            let (fd, owner) = match source {
                Source::Own(fd) => (Some(fd), None),
                Source::Lent(owner) => (None, Some(owner)),
            };
            let _report = Report { closer, fd };
            drop(owner); // perhaps the last reference: users' code, which may panic
        }
    }
}

/// Reports to the loop of a close, when dropped, that the file has no user any more.
struct Report {
    closer: Closer,
    fd: Option<OwnedFd>,
}

impl Drop for Report {
    fn drop(&mut self) {
        let (token, fd) = (self.closer.token, self.fd.take());
        self.closer.mailbox.send(Letter::Unused { token, fd });
    }
}

impl FileHandle {
    /// Makes the descriptor of a file, a socket or a pipe the handle's, which closes it.
    ///
    /// # Examples
    /// See [`FileHandle`](FileHandle#examples).
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Self::of(Source::Own(fd.into()))
    }

    fn of(source: Source) -> Self {
        let descriptor = Descriptor { source: Some(source), closer: OnceLock::new() };
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let id = FileId { raw: descriptor.as_fd().as_raw_fd(), serial };
        let (descriptor, lender) = (Some(Arc::new(descriptor)), Weak::new());
        let state = State { descriptor, lender, users: Vec::new() };
        let (calls, has_no_server) = <_>::default();
        let inner = Inner { id, calls, has_no_server, state: Mutex::new(state) };
        Self { inner: Arc::new(inner) }
    }

    /// Uses the descriptor of another owner, who closes it once the last clone and the last request are gone.
    /// Several such handles of one descriptor are one file: to [close](crate::Request::Close) one of them
    /// cancels what is under way by all, and waits for it.
    ///
    /// If the owner's destructor panics on the thread of a loop or a queue, its message is all that comes of
    /// it.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    ///
    /// use sakia_driver::FileHandle;
    ///
    /// let owner = Arc::new(std::fs::File::open("Cargo.toml")?);
    /// let file = FileHandle::lent(Arc::clone(&owner));
    /// drop(file);
    /// assert!(owner.metadata()?.is_file());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn lent<T: AsFd + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        Self::of(Source::Lent(owner))
    }

    /// Makes a descriptor of its own for an open file, closed on exec.
    ///
    /// # Errors
    /// `EMFILE`: none is left.
    ///
    /// # Examples
    /// See [`FileHandle`](FileHandle#examples).
    pub fn duplicate(fd: BorrowedFd<'_>) -> io::Result<Self> {
        fd.try_clone_to_owned().map(Self::from)
    }

    /// Returns the number of its descriptor, to be looked at: it is open as long as there is a clone that was
    /// not [closed](crate::Request::Close).
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// assert!(FileHandle::new(std::fs::File::open("Cargo.toml")?).raw() > 2);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn raw(&self) -> RawFd {
        self.inner.id.raw
    }

    /// Returns the descriptor.
    ///
    /// # Errors
    /// The handle comes back: there is another clone, a loop or a queue that has used the file is still
    /// there, or the descriptor is lent or closed.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// let clone = file.clone();
    /// let clone = clone.into_owned().expect_err("there is another");
    /// drop(file);
    /// let file = std::fs::File::from(clone.into_owned().expect("the only clone"));
    /// assert!(file.metadata()?.is_file());
    /// # std::io::Result::Ok(())
    /// ```
    pub fn into_owned(mut self) -> Result<OwnedFd, Self> {
        self.take_owned().ok_or(self)
    }

    /// As [`into_owned`](Self::into_owned). The handle is a closed one then, and as before if there is no
    /// descriptor to return.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let mut file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// assert!(file.take_owned().is_some());
    /// assert!(file.take_owned().is_none());
    /// assert_eq!(file.with_fd(|_| ()).unwrap_err().raw_os_error(), Some(libc::EBADF));
    /// # std::io::Result::Ok(())
    /// ```
    pub fn take_owned(&mut self) -> Option<OwnedFd> {
        let state = Arc::get_mut(&mut self.inner)?.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        // A loop that knows the file is another user.
        match state.descriptor.take()?.try_into_owned() {
            Ok(fd) => Some(fd),
            Err(descriptor) => {
                state.descriptor = Some(descriptor);
                None
            }
        }
    }

    /// Calls `f` with the descriptor, which stays open until it returns, for system calls that requests do
    /// not offer. A [close](crate::Request::Close) waits for it.
    ///
    /// # Errors
    /// `EBADF`: it was closed.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    ///
    /// use sakia_driver::FileHandle;
    ///
    /// let socket = FileHandle::new(OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0")?));
    /// let address = socket.with_fd(|fd| rustix::net::getsockname(fd))??;
    /// assert!(std::net::SocketAddr::try_from(address)?.port() > 0);
    /// # std::io::Result::Ok(())
    /// ```
    pub fn with_fd<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> T) -> io::Result<T> {
        let descriptor = self.inner.lock()?.descriptor.clone().ok_or(Errno::BADF)?;
        Ok(f(descriptor.as_fd()))
    }

    /// Reads up to 256 KiB, at an offset or at the file's position, on the calling thread. `None` if that may
    /// block, or is not tried because it lately would have. Neither waits nor allocates.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: no room. Otherwise as `pread(2)`.
    ///
    /// # Examples
    /// See [`FileHandle`](FileHandle#examples).
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_read(&self, buf: &mut [u8], at: Option<u64>) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        if len == 0 {
            return Some(Err(Errno::INVAL.into()));
        }
        let parts = &mut [IoSliceMut::new(&mut buf[..len])];
        self.attempt(|fd| self.inner.calls.read(fd, parts, at))
    }

    /// Writes up to 256 KiB, as [`try_read`](FileHandle::try_read) reads.
    ///
    /// # Errors
    /// `EBADF`: it was closed. Otherwise as `pwrite(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let (reader, writer) = std::io::pipe()?;
    /// let writer = FileHandle::new(writer);
    /// if let Some(result) = writer.try_write(b"hello", None) {
    ///     assert_eq!(result?, 5);
    /// }
    /// # drop(reader);
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RWF_NOWAIT")]
    pub fn try_write(&self, buf: &[u8], at: Option<u64>) -> Option<io::Result<usize>> {
        let len = buf.len().min(limits::CALLER_BYTES);
        self.attempt(|fd| self.inner.calls.write(fd, &[IoSlice::new(&buf[..len])], at))
    }

    /// Receives up to `buf.len()` bytes that have arrived at a socket, on a stream up to 256 KiB. `flags` are
    /// `MSG_PEEK` or none. `None` if nothing has arrived. Neither waits nor allocates.
    ///
    /// Bytes that a request on a loop receives at the same time come to either of them.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: no room, or other flags. `ENOTSOCK`: not a socket. Otherwise as
    /// `recv(2)`.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::OwnedFd;
    /// use std::os::unix::net::UnixStream;
    ///
    /// use sakia_driver::FileHandle;
    ///
    /// let (near, far) = UnixStream::pair()?;
    /// let [near, far] = [near, far].map(|end| FileHandle::new(OwnedFd::from(end)));
    /// let mut buf = [0; 8];
    /// assert!(near.try_recv(&mut buf, 0).is_none(), "nothing has arrived");
    /// assert_eq!(far.try_send(b"hello", 0).expect("there is room")?, 5);
    /// assert_eq!(near.try_recv(&mut buf, 0).expect("it has arrived")?, 5);
    /// assert_eq!(&buf[..5], b"hello");
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn try_recv(&self, buf: &mut [u8], flags: u32) -> Option<io::Result<usize>> {
        let is_valid = !buf.is_empty() && flags & !RECV_FLAGS == 0;
        self.attempt_on_socket(is_valid, |fd| recv_nowait(fd, buf, flags))
    }

    /// Sends up to `buf.len()` bytes on a connected socket, on a stream as many as there is room for, up to
    /// 256 KiB. `flags` are `MSG_MORE` or none; no `SIGPIPE` is raised. `None` if there is no room. Neither
    /// waits nor allocates.
    ///
    /// Its bytes may come before those of requests under way, and between their parts.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `EINVAL`: other flags. `ENOTSOCK`: not a socket. Otherwise as `send(2)`.
    ///
    /// # Examples
    /// See [`try_recv`](FileHandle::try_recv).
    #[doc(alias = "MSG_DONTWAIT")]
    pub fn try_send(&self, buf: &[u8], flags: u32) -> Option<io::Result<usize>> {
        self.attempt_on_socket(flags & !SEND_FLAGS == 0, |fd| send_nowait(fd, buf, flags))
    }

    /// Returns the status of the open file. `None` if it may have to come from a server: on a network or FUSE
    /// file system, or on one that the table of mounts does not have. Does not wait, and allocates only the
    /// first time.
    ///
    /// # Errors
    /// `EBADF`: it was closed.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// let file = FileHandle::new(std::fs::File::open("Cargo.toml")?);
    /// if let Some(status) = file.try_stat() {
    ///     assert_eq!(status?.size, std::fs::metadata("Cargo.toml")?.len());
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "fstat")]
    pub fn try_stat(&self) -> Option<io::Result<StatxResult>> {
        self.attempt(|fd| stat_unless_served(fd, &self.inner.has_no_server).map(Ok))
    }

    /// Returns the status of `path`, relative to `directory` or, with `None`, to the working directory.
    /// `flags` are the kernel's `AT_*`. `None` if the kernel's caches do not have all of the path, or if a
    /// server may have to be asked. Does not wait, and allocates only on the first use of a mount.
    ///
    /// While the process has a mount that another machine or process serves, the result is also `None` for a
    /// path with a symbolic link on its way, and for a relative path to another mount.
    ///
    /// # Errors
    /// `EBADF`: the directory was closed. `EINVAL`: a flag newer than the first `statx(2)`. Otherwise as
    /// `statx(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`, `statx(2)`.
    ///
    /// # Examples
    /// ```
    /// use sakia_driver::FileHandle;
    ///
    /// if let Some(status) = FileHandle::try_stat_at(None, c"Cargo.toml", 0) {
    ///     assert!(status?.is_file());
    /// }
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RESOLVE_CACHED")]
    pub fn try_stat_at(
        directory: Option<&Self>,
        path: &CStr,
        flags: u32,
    ) -> Option<io::Result<StatxResult>> {
        let paths = PathCalls::of_process()?;
        Self::attempt_in(directory, |directory| paths.stat_path(directory, path, flags))
    }

    /// Opens `path`, relative to `directory` or, with `None`, to the working directory, closed on exec.
    ///
    /// `None` if the open makes a file or cuts one off; if it may wait: for a device, a server, or the other
    /// end of a FIFO, which does not notice; and for a device file. Does not wait, and allocates only what
    /// the handle needs, and on the first use of a mount.
    ///
    /// While the process has a mount that another machine or process serves, the result is also `None` for
    /// the paths that [`try_stat_at`](FileHandle::try_stat_at) names.
    ///
    /// # Errors
    /// `EBADF`: the directory was closed. Otherwise as `openat2(2)`.
    ///
    /// # Kernel
    /// 5.12 (`RESOLVE_CACHED`); `None` below. Source: `openat2(2)`.
    ///
    /// # Examples
    /// From the caches, or else by a loop:
    /// ```
    /// use sakia_driver::{FileHandle, Loop, OpenHow, Request, Wait};
    ///
    /// let (path, how) = (c"Cargo.toml", OpenHow::default());
    /// let file = match FileHandle::try_open(None, path, how) {
    ///     Some(file) => file?,
    ///     None => {
    ///         let mut ring = Loop::new()?;
    ///         ring.submit(Request::Open { directory: None, path: path.into(), how }, 1)?;
    ///         while ring.wait(Wait::Forever)? == 0 {}
    ///         let outcome = ring.take().expect("it has one");
    ///         outcome.into_file().expect("it is there")
    ///     }
    /// };
    /// assert!(file.with_fd(|fd| rustix::fs::fstat(fd))??.st_size > 0);
    /// # std::io::Result::Ok(())
    /// ```
    #[doc(alias = "RESOLVE_CACHED")]
    pub fn try_open(
        directory: Option<&Self>,
        path: &CStr,
        how: OpenHow,
    ) -> Option<io::Result<Self>> {
        let OpenHow { flags, mode, resolve } = how;
        let how = sys::OpenHow { flags, mode, resolve };
        let paths = PathCalls::of_process()?;
        let opened =
            Self::attempt_in(directory, |directory| paths.open_file(directory, path, how))?;
        Some(opened.map(Self::from))
    }

    /// Calls `f` with the descriptor and its calls that refuse to wait, on this thread. `None` also if
    /// another thread is just looking at the descriptor.
    pub(super) fn with_calls(
        &self,
        f: impl FnOnce(BorrowedFd<'_>, &FileCalls) -> Option<io::Result<usize>>,
    ) -> Option<io::Result<usize>> {
        match self.descriptor()? {
            Ok(descriptor) => f(descriptor.as_fd(), &self.inner.calls),
            Err(errno) => Some(Err(errno.into())),
        }
    }

    pub(crate) fn id(&self) -> FileId {
        self.inner.id
    }

    /// Returns the descriptor for a loop, which is told when it is to be forgotten.
    ///
    /// # Errors
    /// `EBADF`: it is closed, or being closed.
    pub(crate) fn use_by(&self, mailbox: &Arc<Mailbox>) -> Result<Arc<Use>, Errno> {
        let mut state = self.inner.lock()?;
        let descriptor = state.descriptor.clone().ok_or(Errno::BADF)?;
        let lender = state.lender.upgrade().unwrap_or_else(|| Arc::new(Use(Some(descriptor))));
        state.lender = Arc::downgrade(&lender);
        state.users.retain(|user| user.strong_count() > 0);
        let user = Arc::downgrade(mailbox);
        if !state.users.iter().any(|other| other.ptr_eq(&user)) {
            state.users.push(user);
        }
        Ok(lender)
    }

    /// Begins to close it: new requests are refused, and each loop is told to cancel its own. Once no loop
    /// uses it any more, that of `closer` gets the descriptor.
    ///
    /// # Errors
    /// `EBADF`: it is closed, or being closed.
    pub(crate) fn close(&self, closer: Closer) -> Result<(), Errno> {
        let mut state = self.inner.lock()?;
        let descriptor = state.descriptor.take().ok_or(Errno::BADF)?;
        // It is the only one: the next one finds no descriptor.
        descriptor.closer.set(closer).ok();
        state.tell(self.inner.id, true);
        drop(state);
        contained(|| drop(descriptor)); // perhaps the last user
        Ok(())
    }

    /// Makes a call that does not wait, on this thread.
    fn attempt<T>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> Option<io::Result<T>>,
    ) -> Option<io::Result<T>> {
        match self.descriptor()? {
            Ok(descriptor) => call(descriptor.as_fd()),
            Err(errno) => Some(Err(errno.into())),
        }
    }

    /// As [`attempt`](Self::attempt), for a socket. `EINVAL` unless the arguments are valid.
    fn attempt_on_socket(
        &self,
        is_valid: bool,
        call: impl FnOnce(BorrowedFd<'_>) -> Result<Attempt<usize>, Errno>,
    ) -> Option<io::Result<usize>> {
        self.attempt(|fd| {
            let result = if is_valid { call(fd) } else { Err(Errno::INVAL) };
            result.map(Attempt::done).map_err(io::Error::from).transpose()
        })
    }

    /// Makes a call that does not wait, in a directory or in the working directory.
    fn attempt_in<T>(
        directory: Option<&Self>,
        call: impl FnOnce(Option<BorrowedFd<'_>>) -> Option<io::Result<T>>,
    ) -> Option<io::Result<T>> {
        match directory {
            Some(directory) => directory.attempt(|fd| call(Some(fd))),
            None => call(None),
        }
    }

    /// Returns the descriptor for a call on this thread. `None` if another thread is just looking at it.
    fn descriptor(&self) -> Option<Result<Arc<Descriptor>, Errno>> {
        let state = self.inner.state.try_lock().ok()?;
        Some(state.descriptor.clone().ok_or(Errno::BADF))
    }
}

impl State {
    /// Tells the loops that use the file to forget it.
    fn tell(&mut self, file: FileId, is_closed: bool) {
        for user in self.users.drain(..).filter_map(|user| user.upgrade()) {
            user.send(Letter::Forget { file, is_closed });
        }
    }
}

impl Inner {
    /// # Errors
    /// `EBADF`: this is a forked child, and another thread of the parent had the lock, which stays locked.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Errno> {
        if may_be_forked() {
            return self.state.try_lock().map_err(|_| Errno::BADF);
        }
        // No code panics while it holds the lock.
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let id = self.id;
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).tell(id, false);
    }
}

impl From<OwnedFd> for FileHandle {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileHandle({})", self.inner.id.raw)
    }
}

/// The file that a request is for.
///
/// # Examples
/// See [`Target::number`].
#[derive(Clone, Debug)]
pub struct Target(pub(crate) Named);

#[derive(Clone, Debug)]
pub(crate) enum Named {
    File(FileHandle),
    Number(RawFd),
}

impl Target {
    /// Names a descriptor by its number alone. Nothing is remembered for it: each request finds out anew what
    /// kind of file it is.
    ///
    /// # Safety
    ///
    /// - The number is open, and refers to the same open file, until the outcome of each request with this
    ///   value was taken; for ever if it never is.
    /// - The file may be read, written or changed as these requests do: its owner lets the caller.
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsRawFd;
    ///
    /// use sakia_driver::{Loop, Request, Target, Wait};
    ///
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// // SAFETY: the file is closed after the loop, which ends its requests.
    /// let target = unsafe { Target::number(file.as_raw_fd()) };
    /// let mut ring = Loop::new()?;
    /// ring.submit(Request::read(&target, vec![0; 9].into(), 0), 1)?;
    /// let outcome = loop {
    ///     match ring.take() {
    ///         Some(outcome) => break outcome,
    ///         None => ring.wait(Wait::Forever)?,
    ///     };
    /// };
    /// assert_eq!(outcome.result?, 9);
    /// drop(ring);
    /// # std::io::Result::Ok(())
    /// ```
    pub unsafe fn number(raw: RawFd) -> Self {
        Self(Named::Number(raw))
    }
}

impl From<FileHandle> for Target {
    fn from(file: FileHandle) -> Self {
        Self(Named::File(file))
    }
}

impl From<&FileHandle> for Target {
    fn from(file: &FileHandle) -> Self {
        Self(Named::File(file.clone()))
    }
}

impl From<&Self> for Target {
    fn from(target: &Self) -> Self {
        target.clone()
    }
}
