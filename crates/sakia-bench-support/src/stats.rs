//! Medians, and their confidence intervals.
//!
//! Intervals come from order statistics: the median of the distribution lies between the k-th smallest and
//! the k-th largest value with a probability that only depends on k and the number of values. Nothing is
//! assumed about the distribution, and nothing is drawn at random.

use serde::Serialize;

/// Intervals cover the median with at least this probability.
const CONFIDENCE: f64 = 0.95;

/// The smallest number of values that has an [`interval`].
pub const INTERVAL_MIN: usize = 6;

/// The largest number of values that [`interval`] uses.
pub const VALUES_MAX: usize = 1000;

/// Median and extremes of whole numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The middle value; of an even number of values the mean of the two in the middle, rounded.
    pub median: u64,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
}

impl Range {
    /// Returns the range of these values; zeros if there are none.
    pub fn of(values: impl IntoIterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.into_iter().collect();
        values.sort_unstable();
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Self { median: low + (high - low).div_ceil(2), min, max }
    }
}

/// Median and extremes of any numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value, as [`median`] computes it.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let sorted = sorted(&values);
        Some(Self { min: *sorted.first()?, max: *sorted.last()?, median: median(&values) })
    }
}

/// The median of ratios, and its confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// As [`median`] computes it.
    pub median: f64,
    /// Their [`interval`], if there are enough.
    pub ci95: Option<[f64; 2]>,
    /// The smallest and the largest.
    pub range: [f64; 2],
}

impl Ratio {
    /// Returns the ratios of these pairs, each of the same round; `None` if there are none.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios: Vec<f64> = pairs.into_iter().map(|(one, other)| one / other).collect();
        let Spread { median, min, max } = Spread::of(ratios.iter().copied())?;
        Some(Self { median, ci95: interval(&ratios), range: [min, max] })
    }

    /// Returns the interval, or the range if there is no interval.
    #[must_use]
    pub fn bounds(&self) -> [f64; 2] {
        self.ci95.unwrap_or(self.range)
    }
}

/// Returns the middle value; of an even number of values the mean of the two in the middle.
///
/// # Panics
/// If there is no value.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// Returns the narrowest interval between two of the values that holds the median of their distribution with
/// 95 % probability. `None` for fewer than [`INTERVAL_MIN`] values: not even their whole range does. It uses
/// the first [`VALUES_MAX`] values only.
pub fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let sorted = sorted(&values[..values.len().min(VALUES_MAX)]);
    let outside = outside(sorted.len())?;
    Some([sorted[outside], sorted[sorted.len() - 1 - outside]])
}

/// Returns the number of `count` values that may be left out at each end.
fn outside(count: usize) -> Option<usize> {
    // The probability that exactly k values are below the median, and that at most k are.
    let mut exactly = 0.5f64.powi(i32::try_from(count).ok()?);
    let mut at_most = exactly;
    let mut outside = None;
    for below in 0..count {
        if 2.0 * at_most > 1.0 - CONFIDENCE {
            break;
        }
        outside = Some(below);
        exactly *= (count - below) as f64 / (below + 1) as f64;
        at_most += exactly;
    }
    outside
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_the_middle_and_the_ends() {
        assert_eq!(Range::of([3, 1, 2]), Range { median: 2, min: 1, max: 3 });
        assert_eq!(Range::of([4, 1, 2, 8]), Range { median: 3, min: 1, max: 8 });
        assert_eq!(Range::of([7]), Range { median: 7, min: 7, max: 7 });
        assert_eq!(Range::of([u64::MAX, u64::MAX]).median, u64::MAX);
        assert_eq!(Range::of([]), Range::default());
    }

    #[test]
    fn median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let ratio = Ratio::of([(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)]).unwrap();
        assert_eq!(ratio, Ratio { median: 2.0, ci95: None, range: [1.0, 3.0] });
        assert_eq!(ratio.bounds(), [1.0, 3.0]);
        assert_eq!(Ratio::of([]), None);
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn interval_leaves_out_as_many_as_the_tables_say() {
        // Values from tables of the two-sided sign test at 5 %.
        assert_eq!([1, 3, 5].map(outside), [None; 3]);
        let table =
            [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7), (100, 39)];
        for (count, left_out) in table {
            assert_eq!(outside(count), Some(left_out), "{count}");
        }
        assert_eq!(outside(VALUES_MAX), Some(468));
    }

    #[test]
    fn few_values_have_no_interval() {
        for count in 0..INTERVAL_MIN {
            assert_eq!(interval(&vec![1.0; count]), None);
        }
        let values: Vec<f64> = (1..=9).rev().map(f64::from).collect();
        assert_eq!(interval(&values), Some([2.0, 8.0]));
        assert_eq!(interval(&vec![1.0; 2000]), Some([1.0, 1.0]));
    }
}
