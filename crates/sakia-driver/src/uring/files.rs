//! Files registered with the ring.
//!
//! The kernel looks a descriptor up for each entry that names it, and increments and decrements the reference
//! count of the open file. A registered file saves both, measured as 35 to 50 ns per entry. Registering and
//! unregistering a file costs about 2 us. So a descriptor is registered only after a number of transfers
//! through the ring.
//!
//! The ring holds a reference to a registered file as the descriptor does: the file stays open until it is
//! unregistered. The driver unregisters it before the descriptor is closed or given away, when no operation
//! uses it any more. An entry names a place of the table, whose file must not change as long as the kernel
//! may read the entry: the file changes only at that moment.

use std::os::fd::BorrowedFd;

use sakia_ring::{Host, Opcode, Ring, Sqe, sqe_flags};

/// Places of the table: one for each bit of a word.
const PLACES: u32 = u64::BITS;
/// The number of transfers after which a descriptor gets a place, unless set otherwise.
const TRANSFERS: i16 = 64;
/// Descriptors with this number or a higher one are not counted, and so not registered.
const NUMBERS: usize = 4096;

/// The operations that benefit: those with many entries on the same descriptor.
const TRANSFER_BITS: u64 = 1 << Opcode::READV.0
    | 1 << Opcode::WRITEV.0
    | 1 << Opcode::READ_FIXED.0
    | 1 << Opcode::WRITE_FIXED.0
    | 1 << Opcode::READ.0
    | 1 << Opcode::WRITE.0;

/// Registered files, and transfer counts of the others.
///
/// Both are kept by number. That is the number of one descriptor: the driver has one [`Fd`](crate::Fd) for it,
/// whose end [forgets](Files::forget) it before the number can be used again.
#[derive(Debug)]
pub(super) struct Files {
    /// By descriptor number: its place, or, if negative, the number of transfers left until it gets one.
    by_number: Vec<i16>,
    /// The number of transfers after which a descriptor gets a place.
    transfers: i16,
    /// A bit for each free place. `None` before the table is made.
    free: Option<u64>,
    /// The number of registrations.
    pub(super) registered: u64,
}

impl Default for Files {
    fn default() -> Self {
        Self { by_number: Vec::new(), transfers: TRANSFERS, free: None, registered: 0 }
    }
}

impl Files {
    /// Sets the number of transfers after which a descriptor that has had none gets a place: at least one.
    pub(super) fn register_after(&mut self, transfers: u16) {
        self.transfers = i16::try_from(transfers).unwrap_or(i16::MAX).max(1);
    }

    /// Makes an entry name the place of its file, if the file has one.
    #[inline(always)]
    pub(super) fn resolve<H: Host>(&mut self, ring: &mut Ring<H>, mut sqe: Sqe) -> Sqe {
        let code = sqe.opcode.0;
        if code >= 64 || TRANSFER_BITS >> code & 1 == 0 {
            return sqe;
        }
        let number = sqe.fd as usize;
        match self.by_number.get_mut(number) {
            Some(&mut place) if place >= 0 => {
                sqe.fd = i32::from(place);
                sqe.flags |= sqe_flags::FIXED_FILE;
            }
            Some(left) if *left < -1 => *left += 1,
            _ => self.count_slowly(ring, sqe.fd),
        }
        sqe
    }

    /// Counts a descriptor's transfer, and registers the descriptor for the next transfer once there were
    /// enough.
    #[cold]
    #[inline(never)]
    fn count_slowly<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) {
        let Ok(number) = usize::try_from(raw) else { return };
        if number >= NUMBERS {
            return;
        }
        if number >= self.by_number.len() {
            self.by_number.resize(number + 1, -self.transfers);
        }
        let left = &mut self.by_number[number];
        if *left < -1 {
            *left += 1;
            return;
        }
        // Without a place the count restarts: one may be free later.
        self.by_number[number] = self.register(ring, raw).unwrap_or(-self.transfers);
    }

    fn register<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) -> Option<i16> {
        let free = self.free.get_or_insert_with(|| {
            // Fails before Linux 5.19 and on a restricted ring: then there are no places.
            if ring.register_files_sparse(PLACES).is_ok() { u64::MAX } else { 0 }
        });
        let place = free.trailing_zeros();
        if place == PLACES {
            return None;
        }
        // SAFETY: the operation whose entry is being pushed keeps the descriptor open.
        let file = unsafe { BorrowedFd::borrow_raw(raw) };
        ring.update_file(place, Some(file)).ok()?;
        *free &= !(1 << place);
        self.registered += 1;
        Some(place as i16)
    }

    /// Unregisters a file that is about to be closed or given away. No operation uses it any more.
    ///
    /// # Safety
    ///
    /// - No unfinished entry names the descriptor: its place may get another file.
    #[inline(always)]
    pub(super) unsafe fn forget<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) {
        let Some(place) = self.by_number.get_mut(raw as usize) else { return };
        let place = std::mem::replace(place, -self.transfers);
        if place >= 0 {
            self.take_back(ring, place as u32);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_back<H: Host>(&mut self, ring: &mut Ring<H>, place: u32) {
        // A place that cannot be emptied is not used again.
        if let (Some(free), Ok(())) = (&mut self.free, ring.update_file(place, None)) {
            *free |= 1 << place;
        }
    }
}
