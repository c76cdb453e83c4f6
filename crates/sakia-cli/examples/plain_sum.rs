//! The baseline of `sakia sum`: a plain loop of reads, with the same addition and the same output.
//!
//! ```text
//! plain_sum FILE...
//! ```

#![expect(clippy::disallowed_methods, reason = "it has none of the program's own modules")]

use std::env;
use std::fs::File;
use std::io::{self, Read, Write};

#[path = "../src/bytes.rs"]
mod bytes;

/// Size of a read in bytes, as in `cat`.
const BLOCK_BYTES: usize = 128 << 10;

fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut block = vec![0; BLOCK_BYTES];
    for path in env::args_os().skip(1) {
        let mut file = File::open(&path)?;
        let (mut sum, mut len) = (0_u64, 0);
        loop {
            let count = file.read(&mut block)?;
            if count == 0 {
                break;
            }
            sum = sum.wrapping_add(bytes::sum(&block[..count]));
            len += count;
        }
        writeln!(out, "{sum:>15} {len:>13}  {}", path.display())?;
    }
    Ok(())
}
