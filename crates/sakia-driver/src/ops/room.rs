//! Space within a file: allocation, deallocation, truncation; and advice about its use.

use rustix::io::Errno;
use sakia_ring::Sqe;

use crate::call::{Function, System};
use crate::counters::OpKind;
use crate::fd::Fd;
use crate::handle::{Handle, Op};

/// See [`Handle::fallocate`].
#[derive(Debug)]
pub struct Fallocate {
    fd: Fd,
    mode: u32,
    offset: u64,
    len: u64,
}

/// See [`Handle::truncate`].
#[derive(Debug)]
pub struct Truncate {
    fd: Fd,
    len: u64,
}

/// See [`Handle::advise`].
#[derive(Debug)]
pub struct Advise {
    fd: Fd,
    offset: u64,
    len: u64,
    advice: u32,
}

impl Handle {
    /// Allocates `len` bytes from byte `offset` of `fd`, extending a shorter file; or another effect of the
    /// kernel's `FALLOC_FL_*` bits in `mode`.
    ///
    /// # Errors
    /// - `EINVAL`: no bytes, or more than a file can have. `EBADF`: not open to write.
    /// - `ENOSPC`, `EDQUOT`, `EFBIG`: no room.
    /// - `EOPNOTSUPP`: a bit, or the whole operation, that the file system does not support.
    /// - `ESPIPE`, `ENODEV`: not a regular file. Otherwise as `fallocate(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fallocate(3)`.
    pub fn fallocate(&self, fd: &Fd, mode: u32, offset: u64, len: u64) -> Op<Fallocate> {
        self.start(Fallocate { fd: self.held(fd), mode, offset, len })
    }

    /// Sets the file's length to `len` bytes. An added part reads as zeros and takes no space.
    ///
    /// # Errors
    /// - `EINVAL`: not open to write, not a regular file, or more than a file can have.
    /// - `EFBIG`: more than the file system or the limit of the process allows. Otherwise as
    ///   `ftruncate(2)`.
    ///
    /// # Examples
    /// With `run` of [`Driver`](crate::Driver#examples):
    /// ```
    /// # use std::future::Future;
    /// # fn run<F: Future>(driver: &sakia_driver::Driver, future: F) -> std::io::Result<F::Output> {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return Ok(output);
    /// #         }
    /// #         driver.turn(sakia_driver::Wait::Forever)?;
    /// #     }
    /// # }
    /// # fn main() -> std::io::Result<()> {
    /// # let driver = sakia_driver::Driver::new(sakia_driver::Auto::detect()?.0);
    /// # let path = std::env::temp_dir().join(format!("sakia-driver-truncate-{}", std::process::id()));
    /// let file = driver.adopt(std::fs::File::create(&path)?.into());
    /// run(&driver, driver.truncate(&file, 100))??;
    /// assert_eq!(std::fs::metadata(&path)?.len(), 100);
    /// # std::fs::remove_file(&path)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Kernel
    /// 6.9. Source: `io_uring_prep_ftruncate(3)`.
    #[doc(alias = "ftruncate")]
    pub fn truncate(&self, fd: &Fd, len: u64) -> Op<Truncate> {
        let truncate = Truncate { fd: self.held(fd), len };
        if i64::try_from(len).is_err() {
            return self.refuse(truncate, Errno::INVAL); // before any look at the file
        }
        self.start(truncate)
    }

    /// Announces the use of `len` bytes from byte `offset` of `fd` to the kernel, to the end of the file if
    /// `len` is 0. `advice` is one of the kernel's `POSIX_FADV_*`.
    ///
    /// # Errors
    /// - `EINVAL`: no such advice. On a ring before Linux 6.11 also a length of 4 GiB
    ///   or more.
    /// - `ESPIPE`: a pipe. Otherwise as `posix_fadvise(2)`.
    ///
    /// # Kernel
    /// 5.6. Source: `io_uring_prep_fadvise(3)`.
    #[doc(alias = "posix_fadvise")]
    #[doc(alias = "fadvise64")]
    pub fn advise(&self, fd: &Fd, offset: u64, len: u64, advice: u32) -> Op<Advise> {
        self.start(Advise { fd: self.held(fd), offset, len, advice })
    }
}

of_numbers! {
    |it: Fallocate| Bounded, local; Allocate;
    entry Sqe::fallocate(it.fd.raw(), it.mode, it.offset, it.len);
    call {
        let args = [it.mode as usize, it.offset as usize, it.len as usize];
        System::on(Function::Fallocate, it.fd.raw(), args)
    };
}

of_numbers! {
    |it: Truncate| Bounded, local; Truncate;
    entry Sqe::ftruncate(it.fd.raw(), it.len);
    call System::on(Function::Ftruncate, it.fd.raw(), [it.len as usize]);
}

of_numbers! {
    |it: Advise| Bounded, local; Advise;
    entry Sqe::fadvise(it.fd.raw(), it.offset, it.len, it.advice);
    call {
        let args = [it.offset as usize, it.len as usize, it.advice as usize];
        System::on(Function::Fadvise, it.fd.raw(), args)
    };
    route |rules| it.fd.route_call(rules.of(OpKind::Advise));
}
