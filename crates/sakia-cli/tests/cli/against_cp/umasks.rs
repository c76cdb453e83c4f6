//! Cases of other users and with umasks that take rights from the owner.

use sakia_testkit::random::Random;

use super::case::{Case, USER};

/// Umasks that take rights from the owner, and one that takes none.
const MASKS: [u32; 8] = [0o200, 0o300, 0o700, 0o777, 0o400, 0o277, 0o100, 0o002];
/// A user who owns nothing but the tree.
const ORDINARY: u32 = 1000;
/// The percentage of cases that are changed.
const CHANCE: u64 = 15;

/// Gives some cases such a user or umask.
pub fn vary(case: &mut Case, is_root: bool) {
    let random = &mut Random::new(case.seed ^ 0x75_6d61_736b);
    if !random.percent(CHANCE) {
        return;
    }
    case.mask = random.one_of(&MASKS);
    if is_root {
        case.user = random.one_of(&[0, ORDINARY, ORDINARY, USER]);
    }
}
