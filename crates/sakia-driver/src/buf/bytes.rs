//! The buffers of the `bytes` crate: `Bytes` to write, `BytesMut` to read into and to write.

use bytes::{Bytes, BytesMut};

use super::{IoBuf, IoBufMut};

// SAFETY: the bytes lie in memory that the value and its clones keep, or that is static: they do not move
// with the value. They are never written while a `Bytes` exists: only a value without clones can become a
// `BytesMut`, and it is moved for that.
unsafe impl IoBuf for Bytes {
    bytes_of_slice!();
}

// SAFETY: the bytes lie on the heap, and do not move with the value: only methods with a `&mut` to it, such
// as `reserve`, move them. Other values may own parts of the same allocation (`split_off`, `freeze`), but
// none that overlap with its `capacity` bytes, and none can take the allocation while this value has a share
// in it.
unsafe impl IoBuf for BytesMut {
    bytes_of_slice!();
}

// SAFETY: as above: the whole capacity belongs to the value alone, and so does an empty one's room. Setting
// the length moves nothing.
unsafe impl IoBufMut for BytesMut {
    room_of_vec!(BytesMut::capacity);
}
