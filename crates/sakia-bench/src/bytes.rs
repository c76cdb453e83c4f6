//! Work on bytes that all experiments share, and the display of byte counts.

use std::io::{self, Read};

use sakia_driver::AlignedBuf;

/// Returns the sum of the bytes, modulo 2^64. All variants share its compiled code: compiled separately into
/// a loop, it may be only half as fast.
#[inline(never)]
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    // Sums of parts fit 32 bits, which makes the compiled loop twice as fast.
    let part = |part: &[u8]| part.iter().map(|&byte| u32::from(byte)).sum::<u32>();
    bytes.chunks(1 << 16).map(part).fold(0, |sum, part| sum.wrapping_add(part.into()))
}

/// Returns the sum of all bytes, read by one plain call after the other into the same memory, and the number
/// of calls.
pub(crate) fn sum_plainly(mut source: impl Read, block_bytes: usize) -> io::Result<(u64, u64)> {
    let mut block = AlignedBuf::zeroed(block_bytes);
    let (mut total, mut reads) = (0u64, 0);
    loop {
        reads += 1;
        match source.read(&mut block) {
            Ok(0) => return Ok((total, reads)),
            Ok(len) => total = total.wrapping_add(sum(&block[..len])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns a number with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Returns a number of bytes in the largest unit that divides it.
pub fn bytes(count: u64) -> String {
    match count.trailing_zeros() {
        64 => "0 bytes".into(),
        40.. => format!("{} TiB", count >> 40),
        30.. => format!("{} GiB", count >> 30),
        20.. => format!("{} MiB", count >> 20),
        10.. => format!("{} KiB", count >> 10),
        _ => counted(count, "byte", "bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_is_that_of_plain_addition() {
        let data: Vec<u8> =
            (0..200_000u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for len in [0, 1, 31, 65535, 65536, 65537, 131_072, data.len()] {
            let plain: u64 = data[..len].iter().map(|&byte| u64::from(byte)).sum();
            assert_eq!(sum(&data[..len]), plain, "{len}");
        }
        assert_eq!(sum(&vec![0xff; 1 << 20]), 255 << 20);
    }

    #[test]
    fn sizes_are_shown_in_their_unit() {
        let shown = [0, 1, 4096, 1 << 20, 3 << 29, 1 << 30].map(bytes);
        assert_eq!(shown, ["0 bytes", "1 byte", "4 KiB", "1 MiB", "1536 MiB", "1 GiB"]);
    }
}
