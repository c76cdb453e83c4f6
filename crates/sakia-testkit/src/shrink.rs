//! Makes a failing program of steps smaller.

/// The largest number of runs.
const RUNS_MAX: usize = 3000;

/// Returns the fewest of these steps found with which the program still `fails`: leaves out halves, quarters
/// and so on down to single steps, as long as that helps.
///
/// # Examples
/// ```
/// let fails = |steps: &[i32]| steps.contains(&3) && steps.contains(&5);
/// assert_eq!(sakia_testkit::shrink::smallest(vec![1, 2, 3, 4, 5, 6], fails), [3, 5]);
/// ```
pub fn smallest<T: Clone>(mut steps: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut runs = 0;
    loop {
        let before = steps.len();
        let mut size = before.div_ceil(2);
        while size > 0 {
            let mut start = 0;
            while start < steps.len() {
                let mut candidate = steps.clone();
                candidate.drain(start..(start + size).min(steps.len()));
                runs += 1;
                if runs <= RUNS_MAX && fails(&candidate) {
                    steps = candidate;
                } else {
                    start += size;
                }
            }
            size /= 2;
        }
        if steps.len() == before {
            return steps;
        }
    }
}
