//! Files that are registered with the ring.
//!
//! The kernel looks a descriptor up for each entry that names it, and counts a reference to the open file
//! up and down again. It saves both for a file that is registered, which was measured to be worth 35 to
//! 50 ns of an entry. Registering one and taking it back costs some 2 us. So a descriptor is registered
//! once a number of transfers have gone through the ring on it.
//!
//! The ring refers to a registered file as the descriptor does: it stays open until it is taken back. That
//! is done before the descriptor is closed or given away, when no operation uses it any more. An entry
//! names a place of the table, and what is there must not change as long as the kernel may look: the same
//! moment is the only one at which it does.

use std::os::fd::BorrowedFd;

use sakia_ring::{Host, Opcode, Ring, Sqe, sqe_flags};

/// Places of the table: as many as a word has bits.
const PLACES: u32 = u64::BITS;
/// Transfers after which a descriptor is worth a place.
const TRANSFERS: i16 = 64;
/// Numbers that are counted: a descriptor with a higher one is not registered.
const NUMBERS: usize = 4096;

/// The operations that save something: those of which there are many on the same descriptor.
const TRANSFER_BITS: u64 = 1 << Opcode::READV.0
    | 1 << Opcode::WRITEV.0
    | 1 << Opcode::READ_FIXED.0
    | 1 << Opcode::WRITE_FIXED.0
    | 1 << Opcode::READ.0
    | 1 << Opcode::WRITE.0;

/// What is registered, and what will be.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// For each descriptor number its place; below 0, how many transfers are left until it gets one.
    by_number: Vec<i16>,
    /// A bit for each place that is free. `None` before the table is made.
    free: Option<u64>,
    /// How many files were registered.
    pub(super) registered: u64,
}

impl Files {
    /// Has an entry name the place of its file, if that has one.
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

    /// Begins to count a descriptor's transfers, or registers it after the last of them, for the next.
    #[cold]
    #[inline(never)]
    fn count_slowly<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) {
        let Ok(number) = usize::try_from(raw) else { return };
        if number >= NUMBERS {
            return;
        }
        if number >= self.by_number.len() {
            self.by_number.resize(number + 1, -TRANSFERS);
            return;
        }
        // Without a place the count begins again: there may be one then.
        self.by_number[number] = self.register(ring, raw).unwrap_or(-TRANSFERS);
    }

    fn register<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) -> Option<i16> {
        let free = self.free.get_or_insert_with(|| {
            // Fails before Linux 5.19 and in a ring that is restricted: then there are no places.
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

    /// Takes a file back that is about to be closed or given away. No operation uses it any more.
    #[inline(always)]
    ///
    /// # Safety
    ///
    /// - No entry that is not complete names the descriptor: the place that it was given may get another
    ///   file.
    pub(super) unsafe fn forget<H: Host>(&mut self, ring: &mut Ring<H>, raw: i32) {
        let Some(place) = self.by_number.get_mut(raw as usize) else { return };
        let place = std::mem::replace(place, -TRANSFERS);
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
