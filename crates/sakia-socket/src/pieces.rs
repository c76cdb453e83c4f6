//! Buffers in several pieces, some bytes of which are transferred already.

use std::io::{IoSlice, IoSliceMut};

/// The most pieces of one system call (`IOV_MAX`).
pub(crate) const PIECES_MAX: usize = 1024;

/// Returns the number of bytes in `pieces`.
pub(crate) fn len<P: std::ops::Deref<Target = [u8]>>(pieces: &[P]) -> usize {
    pieces.iter().fold(0, |len: usize, piece| len.saturating_add(piece.len()))
}

/// Returns `pieces` without their first `count` bytes.
pub(crate) fn rest<'a>(pieces: &'a [IoSlice<'_>], mut count: usize) -> Vec<IoSlice<'a>> {
    let mut rest = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let done = count.min(piece.len());
        count -= done;
        if done < piece.len() {
            rest.push(IoSlice::new(&piece[done..]));
        }
    }
    rest
}

/// Returns `pieces` without their first `count` bytes, to be filled.
pub(crate) fn rest_mut<'a>(
    pieces: &'a mut [IoSliceMut<'_>],
    mut count: usize,
) -> Vec<IoSliceMut<'a>> {
    let mut rest = Vec::with_capacity(pieces.len() + 1);
    for piece in pieces {
        let done = count.min(piece.len());
        count -= done;
        if done < piece.len() {
            rest.push(IoSliceMut::new(&mut piece[done..]));
        }
    }
    rest
}

/// Copies `bytes` to `pieces`, which have room for them.
pub(crate) fn scatter(mut bytes: &[u8], pieces: &mut [IoSliceMut<'_>]) {
    for piece in pieces {
        let (here, more) = bytes.split_at(bytes.len().min(piece.len()));
        piece[..here.len()].copy_from_slice(here);
        bytes = more;
    }
}
