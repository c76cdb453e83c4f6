//! Medians, and what is known of them.

/// A middle value with the least and the greatest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

/// A ratio, taken within each round, over all rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    /// The interval from order statistics that covers the true median in at least 95 % of cases; the
    /// least and the greatest, if there are too few rounds for that.
    pub(super) low: f64,
    pub(super) high: f64,
    /// Whether there are enough rounds for 95 %: six.
    pub(super) covers_95: bool,
}

impl Spread {
    /// Of at least one value.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let values = sorted(values);
        Some(Self { median: median(&values)?, min: *values.first()?, max: *values.last()? })
    }
}

impl Ratio {
    /// Of pairs, one per round, of which there is at least one.
    pub(super) fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios = sorted(pairs.map(|(one, other)| one / other));
        let median = median(&ratios)?;
        let (cut, covers_95) = match cut(ratios.len()) {
            Some(cut) => (cut, true),
            None => (0, false),
        };
        let (low, high) = (ratios[cut], ratios[ratios.len() - 1 - cut]);
        Some(Self { median, low, high, covers_95 })
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// How many of so many sorted values can be left out at each end, so that those left still enclose the
/// median with 95 %. How many of them lie below it is binomial.
fn cut(count: usize) -> Option<usize> {
    let mut term = 0.5_f64.powi(i32::try_from(count).ok()?);
    let mut outside = 0.0;
    let mut cut = None;
    for below in 0..count / 2 {
        outside += 2.0 * term;
        if outside > 0.05 {
            break;
        }
        cut = Some(below);
        term *= (count - below) as f64 / (below + 1) as f64;
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_covers_the_median() {
        // From tables of the sign test: 6 and 8 keep all, 9 to 11 leave one out, 12 two.
        let cuts = [1, 3, 5, 6, 8, 9, 11, 12, 15, 20].map(cut);
        let expected =
            [None, None, None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(3), Some(5)];
        assert_eq!(cuts, expected);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        let pairs = [(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)];
        let ratio = Ratio::of(pairs.into_iter()).unwrap();
        assert_eq!(ratio, Ratio { median: 2.0, low: 1.0, high: 3.0, covers_95: false });
        assert_eq!(Ratio::of(std::iter::empty()), None);
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0].into_iter()).unwrap();
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
    }
}
