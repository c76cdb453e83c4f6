//! The buffers of the `bytes` crate: `Bytes` to write, `BytesMut` to read into and to write.

use bytes::{Bytes, BytesMut};

use super::{IoBuf, IoBufMut};

// SAFETY: the bytes lie in memory that the value and its clones keep, or that is static: it does not move
// with the value. They are never written to while one of these is there: only a value that has them alone can
// become a `BytesMut`, and this one is moved for that.
unsafe impl IoBuf for Bytes {
    bytes_of_slice!();
}

// SAFETY: the bytes lie on the heap, and do not move with the value: only methods with a `&mut` to it, such
// as `reserve`, move them. Others may have parts of the same allocation (`split_off`, `freeze`), but none
// that overlap with its `capacity` bytes, and none can take the allocation while this value has a share in
// it.
unsafe impl IoBuf for BytesMut {
    bytes_of_slice!();
}

// SAFETY: as above: all of the capacity is the value's alone, and an empty one's room. To set the length
// moves nothing.
unsafe impl IoBufMut for BytesMut {
    room_of_vec!(BytesMut::capacity);
}
