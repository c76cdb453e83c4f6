//! The descriptors of file handles on a loop's driver.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::fd::{Fd, Lender};
use crate::handle::Handle;
use crate::request::{Descriptor, FileHandle, FileId, Files, Mailbox, Named, Target};

/// The files that a loop has used, by the numbers of their descriptors. A file stays until its last handle is
/// gone or it is closed, of which a [letter](crate::request::Letter) tells.
pub(super) struct KnownFiles {
    by_number: Vec<Option<Known>>,
    /// Those whose descriptor another handle has lent, too, or whose owner lends another than it did.
    others: Vec<Known>,
    mailbox: Arc<Mailbox>,
    /// The eventfd of wakes.
    wake: Fd,
    /// The lender of bare numbers, which their user keeps open.
    user: Lender,
}

struct Known {
    id: FileId,
    fd: Fd,
    descriptor: Weak<Descriptor>,
}

/// The files together with the driver that has their descriptors.
pub(super) struct FilesOf<'a> {
    files: &'a mut KnownFiles,
    driver: &'a Handle,
}

impl KnownFiles {
    pub(super) fn new(mailbox: Arc<Mailbox>, driver: &Handle) -> Self {
        let wake = driver.lend(Arc::clone(mailbox.signal()));
        Self { by_number: Vec::new(), others: Vec::new(), mailbox, wake, user: Arc::new(()) }
    }

    #[inline(always)]
    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    pub(super) fn wake_fd(&self) -> &Fd {
        &self.wake
    }

    #[inline(always)]
    pub(super) fn of<'a>(&'a mut self, driver: &'a Handle) -> FilesOf<'a> {
        FilesOf { files: self, driver }
    }

    /// Forgets a file; with `cancels`, also what is under way on it.
    pub(super) fn forget(&mut self, file: FileId, cancels: bool, driver: &Handle) {
        let Some(Known { fd, descriptor, .. }) = self.remove(file) else { return };
        // The descriptor is given back by all of its handles. Their next requests learn it anew.
        self.others.retain(|known| !known.fd.is(&fd));
        if let Some(place) = self.by_number.get_mut(fd.raw() as usize) {
            place.take_if(|known| known.fd.is(&fd));
        }
        if cancels {
            // Ends the loan, once all operations have ended. Dropped, it goes on by itself.
            drop(driver.close(fd));
            return;
        }
        let descriptor = descriptor.upgrade();
        drop(fd);
        // In the way that the driver chooses: a file server may have to be told first.
        if let Some(fd) = descriptor.and_then(Descriptor::give_up_on_loop) {
            drop(self.adopt(fd, driver));
        }
    }

    fn remove(&mut self, file: FileId) -> Option<Known> {
        let place = self.by_number.get_mut(file.raw as usize);
        place.and_then(|place| place.take_if(|known| known.id == file)).or_else(|| {
            let place = self.others.iter().position(|known| known.id == file)?;
            Some(self.others.swap_remove(place))
        })
    }

    /// Makes the driver the owner of a descriptor that had users on this loop. `None`, with the descriptor
    /// closed, if requests by its bare number are under way, whose user has broken a promise.
    pub(super) fn adopt(&self, fd: OwnedFd, driver: &Handle) -> Option<Fd> {
        let is_in_use = driver.shared.table.find(fd.as_raw_fd()).is_some();
        (!is_in_use).then(|| driver.adopt(fd))
    }

    pub(super) fn forget_all(&mut self) {
        self.by_number.clear();
        self.others.clear();
    }
}

impl Files for FilesOf<'_> {
    #[inline(always)]
    fn find(&mut self, target: &Target) -> Result<Fd, Errno> {
        match &target.0 {
            Named::File(file) => self.find_file(file),
            Named::Number(raw) => self.borrow(*raw),
        }
    }
}

impl FilesOf<'_> {
    /// Returns the descriptor of a file on this driver.
    ///
    /// # Errors
    /// `EBADF`: it was closed. `ECANCELED`: the driver has ended.
    #[inline(always)]
    pub(super) fn find_file(&mut self, file: &FileHandle) -> Result<Fd, Errno> {
        let id = file.id();
        match self.files.by_number.get(id.raw as usize) {
            Some(Some(known)) if known.id == id => Ok(known.fd.clone()),
            _ => self.learn(file),
        }
    }

    #[cold]
    #[inline(never)]
    fn learn(&mut self, file: &FileHandle) -> Result<Fd, Errno> {
        if self.driver.has_ended() {
            return Err(Errno::CANCELED); // no letter would tell when it is to be forgotten
        }
        let id = file.id();
        if let Some(known) = self.files.others.iter().find(|known| known.id == id) {
            return Ok(known.fd.clone());
        }
        let lender = file.use_by(&self.files.mailbox)?;
        let fd = self.driver.lend(Arc::clone(&lender));
        let Ok(number) = usize::try_from(fd.raw()) else {
            return Err(Errno::BADF); // an owner may lend the working directory
        };
        if fd.is_closing() {
            return Err(Errno::CANCELED); // by another handle of the descriptor
        }
        // Requests by the bare number or by another handle may have a clone already, which their user or
        // their owner keeps open. From now on this handle does, too, until the last request is gone.
        fd.add_lender(Arc::clone(&lender) as Lender);
        let KnownFiles { by_number, others, .. } = &mut *self.files;
        if by_number.len() <= number {
            by_number.resize_with((number + 1).next_multiple_of(64), || None);
        }
        let known = Known { id, fd: fd.clone(), descriptor: lender.descriptor() };
        match &mut by_number[number] {
            place @ None if id.raw == fd.raw() => *place = Some(known),
            _ => others.push(known),
        }
        Ok(fd)
    }

    #[cold]
    #[inline(never)]
    fn borrow(&self, raw: i32) -> Result<Fd, Errno> {
        if raw < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: the promise of `Target::number`: the number is open, and the same file, until the outcome
        // of each request was taken; by then its operation, which has a clone, is gone.
        Ok(unsafe { self.driver.borrow(raw, Arc::clone(&self.files.user)) })
    }
}
