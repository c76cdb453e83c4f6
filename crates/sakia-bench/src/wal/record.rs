//! Records, and the log that they make.

use anyhow::ensure;

use super::Load;

/// Bytes of a record before its content: the numbers of its writer and of the record.
pub(super) const HEADER_BYTES: usize = 16;

/// Fills a record, of which its numbers tell every byte.
pub(super) fn fill(buf: &mut [u8], writer: usize, number: u64) {
    let writer = writer as u64;
    buf[..8].copy_from_slice(&writer.to_le_bytes());
    buf[8..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
    // Not zero, which a gap has.
    buf[HEADER_BYTES..].fill((writer * 31 + number * 7) as u8 | 1);
}

/// Returns a hash (FNV-1a) of a record.
fn hash(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    bytes.iter().fold(BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// Returns the sum of all records of a load, in any order.
pub(super) fn sum_of(load: &Load) -> u64 {
    let mut buf = vec![0; load.record_bytes];
    let mut sum = 0u64;
    for writer in 0..load.writers {
        for number in 0..load.records {
            fill(&mut buf, writer, number);
            sum = sum.wrapping_add(hash(&buf));
        }
    }
    sum
}

/// Returns the sum of the records in a log, of which one begins every `stride` bytes.
///
/// # Errors
/// A record is not there, is there twice, is not what was written, or comes before an earlier one of its
/// writer.
pub(super) fn sum_in(log: &[u8], load: &Load, stride: usize) -> anyhow::Result<u64> {
    let expected = load.all() * stride as u64;
    ensure!(log.len() as u64 == expected, "the log has {} bytes, not {expected}", log.len());
    let mut next = vec![0u64; load.writers];
    let mut whole = vec![0; load.record_bytes];
    let mut sum = 0u64;
    for (index, slot) in log.chunks(stride).enumerate() {
        let (record, padding) = slot.split_at(load.record_bytes);
        let number = |at: usize| {
            let bytes = record[at..at + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let (writer, number) = (number(0) as usize, number(8));
        ensure!(writer < load.writers, "record {index} is of no writer: {writer}");
        let due = &mut next[writer];
        ensure!(number == *due, "writer {writer}: record {number} is there, and {due} is due");
        *due += 1;
        fill(&mut whole, writer, number);
        ensure!(record == whole, "writer {writer}: record {number} is damaged");
        ensure!(padding.iter().all(|&byte| byte == 0), "writer {writer}: padding is not zero");
        sum = sum.wrapping_add(hash(record));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Load = Load { writers: 2, record_bytes: 20, records: 2 };

    fn log(order: &[(usize, u64)], stride: usize) -> Vec<u8> {
        let mut log = vec![0; order.len() * stride];
        for (slot, &(writer, number)) in log.chunks_mut(stride).zip(order) {
            fill(&mut slot[..20], writer, number);
        }
        log
    }

    #[test]
    fn logs_in_any_order_of_writers_have_the_same_sum() {
        let sum = sum_of(&LOAD);
        for stride in [20, 32] {
            for order in [[(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 0), (0, 0), (1, 1), (0, 1)]] {
                assert_eq!(sum_in(&log(&order, stride), &LOAD, stride).unwrap(), sum);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let wrong = |order: &[(usize, u64)], change: fn(&mut Vec<u8>)| {
            let mut log = log(order, 24);
            change(&mut log);
            sum_in(&log, &LOAD, 24).unwrap_err().to_string()
        };
        let right = [(0, 0), (0, 1), (1, 0), (1, 1)];
        assert!(wrong(&right[..3], |_| ()).contains("bytes"));
        assert!(wrong(&[(0, 1), (0, 0), (1, 0), (1, 1)], |_| ()).contains("is due"));
        assert!(wrong(&[(0, 0), (0, 0), (1, 0), (1, 1)], |_| ()).contains("is due"));
        assert!(wrong(&right, |log| log[0] = 9).contains("no writer"));
        assert!(wrong(&right, |log| log[19] = 0).contains("damaged"));
        assert!(wrong(&right, |log| log[23] = 1).contains("padding"));
        assert!(wrong(&right, |log| log[24..48].fill(0)).contains("is due"));
    }
}
