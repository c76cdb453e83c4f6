//! `setsockopt(2)` and `getsockopt(2)`, and the effect of options on bytes in memory.

use std::time::Duration;

use linux_raw_sys::net as raw;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::open::Open;
use crate::settings::Time;
use crate::sockopt::{
    OptionValue, Part, SO_ERROR, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, SocketOption,
    WORD, sealed,
};
use crate::{Host, Socket};

impl<H: Host> Socket<H> {
    /// `setsockopt(2)` of an option of [this list](crate::sockopt).
    ///
    /// # Errors
    /// Those of the call. `EDOM` for a time that is too long.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use rustix::io::Errno;
    /// use rustix::net::{AddressFamily, RecvFlags, SocketType};
    /// use sakia_socket::{Kernel, Layer, Options, sockopt};
    ///
    /// # fn main() -> rustix::io::Result<()> {
    /// let layer = Layer::new(Kernel, Options::default());
    /// let (a, _b) = layer.pair(AddressFamily::UNIX, SocketType::STREAM)?;
    /// let wait = Some(Duration::from_millis(10));
    /// a.set_option(sockopt::SO_RCVTIMEO, wait)?;
    /// assert!(a.option(sockopt::SO_RCVTIMEO)?.is_some());
    /// assert_eq!(a.recv(&mut [0; 16], RecvFlags::empty()), Err(Errno::AGAIN));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_option<T: OptionValue>(
        &self,
        option: SocketOption<T>,
        value: T,
    ) -> Result<(), Errno> {
        self.set_option_raw(option.level, option.name, &value.to_bytes(option.name)?)
    }

    /// `getsockopt(2)` of an option of [this list](crate::sockopt).
    ///
    /// # Errors
    /// Those of the call. `ECONNRESET` if the host's answer does not have the form of a `T`.
    ///
    /// # Examples
    /// See [`Socket::set_option`].
    pub fn option<T: OptionValue>(&self, option: SocketOption<T>) -> Result<T, Errno> {
        let mut bytes = [0; 2 * WORD];
        let count = self.option_raw(option.level, option.name, &mut bytes)?;
        T::of_bytes(option.name, &bytes[..count]).ok_or(Errno::CONNRESET)
    }

    /// `setsockopt(2)` of any option, with the kernel's numbers and bytes.
    ///
    /// # Errors
    /// Those of the call. `ENOPROTOOPT` if the host does not have the option: [`Kernel`](crate::Kernel) has
    /// those that rustix can set. `EBUSY` and `EAGAIN` as for [`hand_back`](Socket::hand_back), for the few
    /// options that require the kernel to have all bytes.
    pub fn set_option_raw(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let open = self.open();
        self.prepare(level, name, value)?;
        open.host().set_option(&open.fd, level, name, value)?;
        open.note_option(level, name, value);
        Ok(())
    }

    /// `getsockopt(2)` of any option: fills `value`, and returns the number of its bytes.
    ///
    /// # Errors
    /// As [`set_option_raw`](Socket::set_option_raw).
    pub fn option_raw(&self, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
        let open = self.open();
        if (level, name) == (SOL_SOCKET, SO_ERROR.name) {
            let errno = self.take_error()?.map_or(0, Errno::raw_os_error);
            let bytes = errno.to_ne_bytes();
            let count = bytes.len().min(value.len());
            value[..count].copy_from_slice(&bytes[..count]);
            return Ok(count);
        }
        if Part::of(level, name, &[]) == Part::All {
            self.prepare(level, name, &[])?;
        }
        let count = open.host().option(&open.fd, level, name, value)?;
        if count > value.len() { Err(open.break_off()) } else { Ok(count) }
    }

    /// Brings the bytes in memory into the state that an option needs.
    fn prepare(&self, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
        let open = self.open();
        if !open.is_stream() {
            return Ok(());
        }
        match Part::of(level, name, value) {
            Part::None => {}
            Part::Sending => open.send_some(),
            Part::Receiving => {
                open.be_plain();
                open.send_some();
            }
            Part::All => {
                open.be_plain();
                if open.delayed() > 0 {
                    open.drain(SendFlags::NOSIGNAL)?;
                }
                self.hand_back()?;
            }
        }
        Ok(())
    }
}

impl<H: Host> Open<H> {
    /// Sets an option that the layer itself needs.
    pub(crate) fn host_set<T: OptionValue>(
        &self,
        option: SocketOption<T>,
        value: T,
    ) -> Result<(), Errno> {
        let bytes = value.to_bytes(option.name)?;
        self.host().set_option(&self.fd, option.level, option.name, &bytes)?;
        self.note_option(option.level, option.name, &bytes);
        Ok(())
    }

    /// Reads the options that the program set elsewhere on the host's socket.
    pub(crate) fn load_settings(&self) {
        for (option, time) in self.kept() {
            let mut bytes = [0; 2 * WORD];
            let found = self.host().option(&self.fd, option.level, option.name, &mut bytes);
            let value = found.ok().and_then(|count| bytes.get(..count));
            if let Some(value) = value.and_then(|value| sealed::Form::of_bytes(option.name, value))
            {
                time.set(value);
            }
        }
    }

    /// Keeps the value of an option that also applies to bytes in memory.
    fn note_option(&self, level: i32, name: i32, value: &[u8]) {
        // The numbers for 64-bit times stand for the same options.
        let name = match name as u32 {
            raw::SO_RCVTIMEO_NEW => SO_RCVTIMEO.name,
            raw::SO_SNDTIMEO_NEW => SO_SNDTIMEO.name,
            _ => name,
        };
        for (option, time) in self.kept() {
            if (level, name) == (option.level, option.name)
                && let Some(value) = sealed::Form::of_bytes(name, value)
            {
                time.set(value);
            }
        }
    }

    fn kept(&self) -> [(SocketOption<Option<Duration>>, &Time); 3] {
        [
            (SO_RCVTIMEO, &self.settings.receive_timeout),
            (SO_SNDTIMEO, &self.settings.send_timeout),
            (SO_LINGER, &self.settings.linger),
        ]
    }
}
