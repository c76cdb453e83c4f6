//! Makes a failing program smaller.

use crate::program::{Program, Step};

/// The largest number of runs.
const RUNS_MAX: usize = 3000;

/// Returns the smallest program found that still `fails`, by leaving out steps, faults and settings of the
/// kernel as long as that helps.
pub fn shrink(program: &Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut runs = 0;
    let mut try_one = |best: &mut Program, candidate: Program| {
        runs += 1;
        let is_better = runs <= RUNS_MAX && candidate != *best && fails(&candidate);
        if is_better {
            *best = candidate;
        }
        is_better
    };
    loop {
        let before = best.clone();
        shrink_steps(&mut best, &mut try_one);
        shrink_config(&mut best, &mut try_one);
        if best == before {
            return best;
        }
    }
}

/// Removes halves, quarters and so on down to single steps.
fn shrink_steps(best: &mut Program, try_one: &mut impl FnMut(&mut Program, Program) -> bool) {
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 {
        let mut start = 0;
        while start < best.steps.len() {
            let mut candidate = best.clone();
            let end = (start + size).min(candidate.steps.len());
            candidate.steps.drain(start..end);
            if !try_one(best, candidate) {
                start += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    for index in 0..best.steps.len() {
        for step in simpler(best.steps[index]) {
            let mut candidate = best.clone();
            candidate.steps[index] = step;
            try_one(best, candidate);
        }
    }
}

/// Returns simpler forms of a step, the simplest first.
fn simpler(step: Step) -> Vec<Step> {
    use crate::program::Memory::Buffer;
    match step {
        Step::Read { open, at, len, memory } => vec![
            Step::Read { open, at: 0, len: 1, memory: Buffer },
            Step::Read { open, at: 0, len, memory },
            Step::Read { open, at, len: len / 2, memory },
        ],
        Step::Write { open, at, len, memory } => vec![
            Step::Write { open, at: 0, len: 1, memory: Buffer },
            Step::Write { open, at: 0, len, memory },
            Step::Write { open, at, len: len / 2, memory },
        ],
        Step::Send { pipe, len, .. } => vec![
            Step::Send { pipe, len: 1, memory: Buffer },
            Step::Send { pipe, len: len / 2, memory: Buffer },
        ],
        Step::Receive { pipe, len, .. } => vec![
            Step::Receive { pipe, len: 1, memory: Buffer },
            Step::Receive { pipe, len: len / 2, memory: Buffer },
        ],
        Step::Turn { .. } | Step::Pass { .. } => vec![Step::Turn { sleep_us: 0 }],
        _ => Vec::new(),
    }
}

fn shrink_config(best: &mut Program, try_one: &mut impl FnMut(&mut Program, Program) -> bool) {
    for index in (0..best.config.faults.len()).rev() {
        let mut candidate = best.clone();
        candidate.config.faults.remove(index);
        try_one(best, candidate);
    }
    let changes: [fn(&mut Program); 8] = [
        |program| program.config.late_writes = 0,
        |program| program.config.reorders = false,
        |program| program.config.busy_on_overflow = false,
        |program| program.config.rules = false,
        |program| program.config.plain_calls = false,
        |program| program.config.descriptors_max = 1024,
        |program| program.config.pipe_bytes = 65_536,
        |program| program.config.routes = [1, 0, 0],
    ];
    for change in changes {
        let mut candidate = best.clone();
        change(&mut candidate);
        try_one(best, candidate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_left_over() {
        let program = (0..).map(Program::random).find(|program| {
            program.steps.contains(&Step::Peek) && program.steps.contains(&Step::Nop)
        });
        let program = program.unwrap();
        let fails = |program: &Program| {
            program.steps.contains(&Step::Peek) && program.steps.contains(&Step::Nop)
        };
        let small = shrink(&program, fails);
        assert_eq!(small.steps.len(), 2);
        assert_eq!(small.config.faults, []);
    }
}
