//! A file that any thread, loop or queue may use.

mod tries;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::io::Errno;
use sakia_ring::may_be_forked;

use super::mailbox::{FileId, Letter, Mailbox};
use crate::file_calls::FileCalls;

/// The serial number of the next file.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// A file, for requests on any number of loops. Clones are the same file.
///
/// The facts that are learned of the file belong to the handle, so its requests are cheaper than those on a
/// bare [number](crate::Target::number). The file is closed when the last clone is dropped and no request
/// uses it; if a loop has used it, that loop closes it, in its next wait.
/// [`Request::Close`](crate::Request::Close) cancels what is under way on all loops, waits for it, and
/// tells the result of the close.
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
