//! The kernel's FUSE messages, as bytes. Sources: `include/uapi/linux/fuse.h`, `fuse(4)`.
//!
//! Only the messages that the server needs. Numbers are in the machine's byte order, and the fields of a
//! message follow each other without gaps.

/// The first part of every request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub opcode: u32,
    /// The number of the request, repeated in the answer.
    pub unique: u64,
    pub node: u64,
}

pub(super) const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;

/// Reads the fields of a message in order. A missing field reads as 0: an older kernel sends shorter
/// messages, and later fields were added with that meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[cfg(test)]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) =
            self.0.split_first_chunk::<N>().map_or(([0; N], &[][..]), |(b, r)| (*b, r));
        self.0 = rest;
        bytes
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    /// Returns the bytes up to the next NUL.
    pub fn name(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        let name = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or_default();
        name
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Splits a request into its header and its body. `None`: not a request.
pub(super) fn parse(bytes: &[u8]) -> Option<(Header, Fields<'_>)> {
    let (header, body) = bytes.split_at_checked(IN_HEADER)?;
    let mut fields = Fields(header);
    let _length = fields.u32();
    let (opcode, unique, node) = (fields.u32(), fields.u64(), fields.u64());
    Some((Header { opcode, unique, node }, Fields(body)))
}

/// An answer under construction.
#[derive(Debug)]
pub(super) struct Reply(Vec<u8>);

impl Reply {
    pub fn new() -> Self {
        Self(vec![0; OUT_HEADER])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns the length of the body, without the header.
    pub fn body_len(&self) -> usize {
        self.0.len() - OUT_HEADER
    }

    /// Returns the finished answer to the request `unique`, with success or an error number.
    pub fn finish(mut self, unique: u64, errno: i32) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("answers are smaller than 4 GiB");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0[4..8].copy_from_slice(&(-errno.abs()).to_ne_bytes());
        self.0[8..16].copy_from_slice(&unique.to_ne_bytes());
        self.0
    }
}

/// `FUSE_ASYNC_READ`: several reads at once.
pub(super) const ASYNC_READ: u32 = 1;
/// `FUSE_BIG_WRITES`: writes of more than a page.
pub(super) const BIG_WRITES: u32 = 1 << 5;
/// `FUSE_AUTO_INVAL_DATA`: cached pages are dropped when attributes show a change.
pub(super) const AUTO_INVAL_DATA: u32 = 1 << 12;
/// `FUSE_ASYNC_DIO`: direct reads and writes need not wait for each other.
pub(super) const ASYNC_DIO: u32 = 1 << 15;
/// `FUSE_PARALLEL_DIROPS`: several lookups at once.
pub(super) const PARALLEL_DIROPS: u32 = 1 << 18;
/// `FUSE_MAX_PAGES`: the field of that name in the answer is valid.
pub(super) const MAX_PAGES: u32 = 1 << 22;

/// `FOPEN_DIRECT_IO`: no page cache.
pub(super) const OPEN_DIRECT_IO: u32 = 1;
/// `FOPEN_KEEP_CACHE`: an open does not empty the page cache of the file.
pub(super) const OPEN_KEEP_CACHE: u32 = 1 << 1;

/// `FATTR_MODE` and `FATTR_SIZE`: the attributes that `SETATTR` sets.
pub(super) const SET_MODE: u32 = 1;
pub(super) const SET_SIZE: u32 = 1 << 3;

/// Requests that get no answer: `FORGET`, `INTERRUPT` and `BATCH_FORGET`.
pub(super) const UNANSWERED: [u32; 3] = [2, 36, 42];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_messages_read_as_zero() {
        let mut fields = Fields::new(&[1, 0, 0, 0, 9]);
        assert_eq!(
            (fields.u32(), fields.u64(), fields.u32()),
            (u32::from_ne_bytes([1, 0, 0, 0]), 0, 0)
        );
        assert!(parse(&[0; IN_HEADER - 1]).is_none());
        assert!(parse(&[0; IN_HEADER]).is_some());
    }

    #[test]
    fn names_end_at_nul() {
        let mut fields = Fields::new(b"old\0new\0rest");
        assert_eq!(fields.name(), b"old");
        assert_eq!(fields.name(), b"new");
        assert_eq!(fields.name(), b"rest");
        assert_eq!(fields.name(), b"");
    }

    #[test]
    fn replies_carry_their_length() {
        let mut reply = Reply::new();
        reply.u64(5);
        let bytes = reply.finish(3, 0);
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[..4], 24_u32.to_ne_bytes());
        assert_eq!(bytes[8..16], 3_u64.to_ne_bytes());
        let failed = Reply::new().finish(3, 5);
        assert_eq!(failed[4..8], (-5_i32).to_ne_bytes());
    }
}
