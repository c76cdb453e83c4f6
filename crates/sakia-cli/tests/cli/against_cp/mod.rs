//! `sakia cp` against GNU `cp` (coreutils 9.1): random trees, destinations, flags and users, on several file
//! systems.
//!
//! Each case is run twice at the same place, once for each program, and the results are compared: types,
//! contents, modes, owners, times, attributes, hard links, holes; the program's success; and the entries it
//! complained about. An intended difference is in [`known`], with its reason. The commands of a failing case
//! are printed, after removing those that it does not need.
//!
//! `SAKIA_TEST_CP_CASES` is the number of cases, and `SAKIA_TEST_CP_SEED` the first of them. With
//! `SAKIA_TEST_CP_EXAMPLES` small cases of each intended difference are printed.

mod case;
mod equal;
mod examples;
mod known;
mod odd;
mod tree;
mod umasks;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::{self, Display};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sakia_testkit::settings::number;
use sakia_testkit::small_fs::SmallFs;

use self::case::Case;
use self::tree::{Fifos, Roots, Tree};
use crate::support::{TempDir, program_for_all};

/// The default number of cases.
const CASES: u64 = 300;
/// The number of cases in which every intended difference occurs.
const CASES_ALL: u64 = 20_000;
/// Seconds after which a program counts as hanging.
const PATIENCE: u32 = 20;
/// The difference of a file that has the contents of no single one. It has no reason.
const MIXED: &str = "mixed contents";
/// The number of differences shown per case.
const SHOWN: usize = 8;
/// Stack of a thread that runs cases: removing a directory that `cp` has copied into itself takes much of
/// it.
const STACK_BYTES: usize = 256 << 20;
/// The limit of failures.
const FAILURES_MAX: usize = 10;

/// The place of the cases.
struct Place {
    name: &'static str,
    here: PathBuf,
    other: PathBuf,
}

/// The outcome of one program.
struct Done {
    tree: Tree,
    succeeded: bool,
    /// It ran for [`PATIENCE`] seconds.
    is_timed_out: bool,
    /// Names of entries in its complaints.
    blamed: BTreeSet<String>,
    /// Copies that it reported.
    told: BTreeSet<String>,
    said: String,
}

/// A difference, and its place: the name of an entry, or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Difference {
    path: String,
    of: &'static str,
    theirs: String,
    ours: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, of, theirs, ours } = self;
        write!(f, "{of} of {path:?}\n    cp    {theirs}\n    sakia {ours}")
    }
}

/// A case, before and after both programs.
struct Tried<'a> {
    case: &'a Case,
    before: Tree,
    theirs: Done,
    ours: Done,
}

fn run(program: &Path, arguments: &[&str], case: &Case, roots: &Roots) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).args(&case.flags);
    let path = |name: &String| match name.starts_with("O/") {
        true => roots.path(name),
        false => PathBuf::from(name),
    };
    command.args(case.operands.iter().map(path)).current_dir(&roots.here);
    command.env("LC_ALL", "C").env_remove("SAKIA_DRIVER");
    command.stdin(Stdio::null());
    if rustix::process::geteuid().is_root() && case.user != 0 {
        command.uid(case.user).gid(case.user);
    }
    let mask = case.mask;
    let set = move || {
        // SAFETY: both calls may be made between fork and exec, and touch no memory.
        unsafe {
            libc::umask(mask);
            libc::alarm(PATIENCE);
        }
        Ok(())
    };
    // SAFETY: `set` makes two calls that are safe there, and takes no lock and no memory.
    unsafe { command.pre_exec(set) };
    command.output().unwrap()
}

fn try_with(program: &Path, arguments: &[&str], case: &Case, roots: &Roots) -> (Tree, Done) {
    roots.make(case.user);
    for step in &case.steps {
        step.apply(roots, case.user);
    }
    // FIFOs without a reader would block both for ever.
    let nothing = HashSet::new();
    let before = tree::look(roots, &nothing);
    let inodes = before.values().map(|facts| facts.inode).collect();
    let fifos = Fifos::open(roots, &before);
    let output = run(program, arguments, case, roots);
    let mut after = tree::look(roots, &inodes);
    fifos.drain(&mut after);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let unquoted = |line: &str| {
        let path = |path: &str| PathBuf::from(path.trim_matches('\'')).join("x");
        let (from, to) = line.split_once(" -> ").unwrap();
        format!("{:?} -> {:?}", path(from).components(), path(to).components())
    };
    let told = stdout.lines().filter(|line| line.contains(" -> ")).map(unquoted).collect();
    let said = match output.status.signal() {
        Some(signal) => format!("{stderr}(signal {signal})"),
        None => stderr,
    };
    let is_timed_out = output.status.signal() == Some(libc::SIGALRM);
    let succeeded = output.status.success();
    (before, Done { tree: after, succeeded, is_timed_out, blamed: blamed(&said), told, said })
}

/// Returns the last names of paths in messages: a letter and a digit each.
fn blamed(said: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let words = said.split(|letter| !is_part(letter));
    let last = |word: &str| {
        let word = word.trim_end_matches(['/', '.', ':']);
        word.rsplit('/').next().unwrap_or(word).to_owned()
    };
    let is_name = |name: &String| {
        let bytes = name.as_bytes();
        bytes.len() == 2 && bytes[0].is_ascii_lowercase() && bytes[1].is_ascii_digit()
    };
    words.map(last).filter(is_name).collect()
}

/// Returns all differences.
fn differences(before: &Tree, theirs: &Done, ours: &Done, is_verbose: bool) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut note = |path: &str, of, theirs: String, ours: String| {
        if theirs != ours {
            found.push(Difference { path: path.to_owned(), of, theirs, ours });
        }
    };
    let paths: BTreeSet<_> = theirs.tree.keys().chain(ours.tree.keys()).collect();
    for path in paths {
        let (is, other) = (theirs.tree.get(path), ours.tree.get(path));
        let (Some(is), Some(other)) = (is, other) else {
            let shown = |facts: Option<&tree::Facts>| {
                facts.map_or("nothing".to_owned(), |facts| facts.kind.to_string())
            };
            note(path, "presence", shown(is), shown(other));
            continue;
        };
        note(path, "kind", is.kind.into(), other.kind.into());
        if is.kind != other.kind {
            continue;
        }
        note(path, "mode", format!("{:04o}", is.mode), format!("{:04o}", other.mode));
        note(path, "owner", format!("{:?}", is.owner), format!("{:?}", other.owner));
        note(path, "time", format!("{:?}", is.modified), format!("{:?}", other.modified));
        // A new file may have the inode of a removed one.
        if let (Some(is), Some(other)) = (is.accessed, other.accessed) {
            note(path, "access", format!("{is:?}"), format!("{other:?}"));
        }
        note(path, "device", is.device.to_string(), other.device.to_string());
        if is.contents != other.contents {
            note(path, "contents", is.contents.to_string(), other.contents.to_string());
        }
        note(path, "holes", is.has_holes.to_string(), other.has_holes.to_string());
        note(
            path,
            "attributes",
            format!("{:x?}", is.attributes),
            format!("{:x?}", other.attributes),
        );
        note(path, "names", format!("{:?}", is.names), format!("{:?}", other.names));
    }
    // The order in which sources are written to the same file does not matter.
    let all = [before, &theirs.tree].into_iter().flat_map(Tree::values);
    let whole: HashSet<_> = all.map(|is| &is.contents).collect();
    for (path, is) in ours.tree.iter().filter(|(_, is)| is.kind == 'f') {
        if is.contents.len > 0 && !whole.contains(&is.contents) {
            note(path, MIXED, "contents of one file".to_owned(), is.contents.to_string());
        }
    }
    note("", "success", theirs.succeeded.to_string(), ours.succeeded.to_string());
    let blamed = |done: &Done| format!("{:?}", done.blamed);
    if theirs.blamed.is_empty() != ours.blamed.is_empty()
        || theirs.blamed.is_disjoint(&ours.blamed) && !theirs.blamed.is_empty()
    {
        note("", "blame", blamed(theirs), blamed(ours));
    }
    // cp reports a copy before it makes it.
    if is_verbose && theirs.succeeded && ours.succeeded {
        note("", "told", format!("{:?}", theirs.told), format!("{:?}", ours.told));
    }
    found
}

/// The result of a case.
#[derive(Default)]
struct Verdict {
    /// The reason why the case proves nothing.
    skipped: Option<&'static str>,
    /// The reasons of intended differences.
    reasons: BTreeSet<&'static str>,
    /// Differences without a reason.
    unknown: Vec<Difference>,
    said: String,
}

impl Verdict {
    fn skipped(why: &'static str) -> Self {
        Self { skipped: Some(why), ..Self::default() }
    }
}

/// The number of times each was found.
type Tally = Mutex<BTreeMap<&'static str, u64>>;

fn add(tally: &Tally, found: impl IntoIterator<Item = &'static str>) {
    let mut tally = tally.lock().unwrap();
    found.into_iter().for_each(|what| *tally.entry(what).or_default() += 1);
}

/// The program that is compared with `cp`.
struct Trial {
    sakia: PathBuf,
}

impl Trial {
    /// Returns whether `cp` would read from a FIFO, and so block for ever.
    fn waits(&self, case: &Case, place: &Roots) -> bool {
        use std::os::unix::fs::FileTypeExt;
        if case.is_recursive() {
            return false;
        }
        place.make(case.user);
        for step in &case.steps {
            step.apply(place, case.user);
        }
        let is_fifo = |path: &String| {
            place.path(path).metadata().is_ok_and(|stat| stat.file_type().is_fifo())
        };
        case.operands.iter().any(is_fifo)
    }

    fn check(&self, case: &Case, place: &Place, number: u64) -> Verdict {
        let roots = Roots {
            here: place.here.join(format!("{number}/w")),
            other: place.other.join(number.to_string()),
        };
        if self.waits(case, &roots) {
            return Verdict::skipped("cp would wait for a FIFO for ever");
        }
        let (before, theirs) = try_with(Path::new("cp"), &[], case, &roots);
        if theirs.is_timed_out && before.values().any(|facts| facts.kind == 'p') {
            return Verdict::skipped("cp writes more to a FIFO than it holds");
        }
        let (before_ours, ours) = try_with(&self.sakia, &["cp"], case, &roots);
        if !tree::is_alike(&before, &before_ours) {
            rustix::fs::sync();
            return Verdict::skipped("the file system was full while the case was made");
        }
        // A tree that was copied into itself has filled the disk: the case proves nothing.
        let is_full = |done: &Done| done.said.contains("No space left");
        if is_full(&theirs) || is_full(&ours) {
            return Verdict::skipped("the file system is full");
        }
        let found = differences(&before, &theirs, &ours, case.has("-v"));
        let said = format!("cp says\n{}sakia says\n{}", theirs.said, ours.said);
        let tried = Tried { case, before, theirs, ours };
        let mut verdict = Verdict { said, ..Verdict::default() };
        for difference in found {
            match known::reason(&tried, &difference) {
                Some(reason) => {
                    verdict.reasons.insert(reason);
                }
                None => verdict.unknown.push(difference),
            }
        }
        verdict
    }

    /// Removes the irrelevant parts of a case.
    fn shrink(
        &self,
        case: &Case,
        place: &Place,
        number: u64,
        is_it: impl Fn(&Verdict) -> bool,
    ) -> Case {
        let mut case = case.clone();
        let fails = |case: &Case| is_it(&self.check(case, place, number));
        let mut is_smaller = true;
        while is_smaller {
            is_smaller = false;
            for index in (0..case.steps.len()).rev() {
                let mut smaller = case.clone();
                smaller.steps.remove(index);
                if fails(&smaller) {
                    (case, is_smaller) = (smaller, true);
                }
            }
            for index in (0..case.flags.len()).rev() {
                let mut smaller = case.clone();
                smaller.flags.remove(index);
                if fails(&smaller) {
                    (case, is_smaller) = (smaller, true);
                }
            }
            for index in (0..case.operands.len()).rev() {
                let mut smaller = case.clone();
                smaller.operands.remove(index);
                if smaller.operands.len() > 1 && fails(&smaller) {
                    (case, is_smaller) = (smaller, true);
                }
            }
        }
        case
    }
}

const FILE_SYSTEMS: usize = 5;

/// Returns the file systems that this machine can mount, besides the one for temporary files.
fn file_systems() -> Vec<(&'static str, SmallFs)> {
    let made: [_; FILE_SYSTEMS] = [
        ("ext4", SmallFs::ext4_in_memory(96 << 20, true)),
        ("tmpfs", SmallFs::tmpfs(256 << 20)),
        ("xfs", SmallFs::xfs()),
        ("btrfs", SmallFs::btrfs()),
        ("overlay", SmallFs::tmpfs(256 << 20).and_then(SmallFs::overlay)),
    ];
    let mut found = Vec::new();
    for (name, made) in made {
        match made {
            Ok(made) => found.push((name, made)),
            Err(error) if error.is_missing() => {
                sakia_testkit::place::announce_skip(module_path!(), &format!("{name}: {error}"))
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    found
}

/// Returns the places of the cases on these file systems, and in these directories for temporary files.
fn places(mounted: &[(&'static str, SmallFs)], temporary: &[TempDir; 2]) -> Vec<Place> {
    let paths: Vec<_> = mounted.iter().map(|(name, fs)| (*name, fs.path())).collect();
    let mut places: Vec<_> = vec![Place {
        name: "temporary files",
        here: temporary[0].path().to_owned(),
        other: temporary[1].path().to_owned(),
    }];
    for (index, (name, path)) in paths.iter().enumerate() {
        let other = paths[(index + 1) % paths.len()].1;
        places.push(Place { name, here: path.join("here"), other: other.join("other") });
    }
    places
}

/// Each intended difference has an example, on at least one of the file systems.
#[test]
fn each_intended_difference_has_an_example() {
    if !rustix::process::geteuid().is_root() {
        sakia_testkit::skip!("root, to become other users and to make devices");
    }
    let (_program, sakia) = program_for_all();
    let (mounted, temporary) = (file_systems(), [TempDir::for_all(), TempDir::for_all()]);
    let places = places(&mounted, &temporary);
    let trial = Trial { sakia };
    let mut found = BTreeMap::<_, u32>::new();
    for (begin, case) in examples::examples() {
        let mut all = known::KNOWN.iter().chain(known::KNOWN_RARE).map(|(reason, _)| *reason);
        let reason = all.find(|reason| reason.starts_with(begin)).expect("a reason begins so");
        for place in &places {
            let verdict = trial.check(&case, place, 0);
            assert!(verdict.skipped.is_none(), "{case}: {:?}", verdict.skipped);
            let unknown: Vec<_> = verdict.unknown.iter().map(ToString::to_string).collect();
            let text = unknown.join("\n");
            assert!(unknown.is_empty(), "on {}\n{case}\n{}{text}", place.name, verdict.said);
            *found.entry(reason).or_default() += u32::from(verdict.reasons.contains(reason));
        }
    }
    for (reason, _) in known::KNOWN.iter().chain(known::KNOWN_RARE) {
        println!("{:6} {reason}", found.get(reason).copied().unwrap_or(0));
    }
    let missing: Vec<_> = known::KNOWN
        .iter()
        .chain(known::KNOWN_RARE)
        .map(|(reason, _)| reason)
        .filter(|reason| found.get(**reason).is_none_or(|count| *count == 0))
        .collect();
    // Some need a file system that cannot be mounted here.
    assert!(missing.is_empty() || mounted.len() < FILE_SYSTEMS, "no example shows {missing:#?}");
}

#[test]
fn fixed_cases_are_equal() {
    if !rustix::process::geteuid().is_root() {
        sakia_testkit::skip!("root, to become other users");
    }
    let (_program, sakia) = program_for_all();
    let (mounted, temporary) = (file_systems(), [TempDir::for_all(), TempDir::for_all()]);
    let trial = Trial { sakia };
    let (places, mut failed) = (places(&mounted, &temporary), Vec::new());
    for (number, place) in places.iter().enumerate() {
        for case in equal::cases(number, places.len()) {
            let verdict = trial.check(&case, place, 0);
            let Verdict { skipped, reasons, unknown, said } = verdict;
            if skipped.is_some() || !unknown.is_empty() || !reasons.is_empty() {
                let all: Vec<_> = unknown.iter().map(ToString::to_string).collect();
                let all = all.join("\n");
                let name = place.name;
                failed.push(format!("on {name}\n{case}\n{said}{all}{reasons:?}{skipped:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{} cases differ\n\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn copies_are_those_of_cp() {
    let is_root = rustix::process::geteuid().is_root();
    let (_program, sakia) = program_for_all();
    let mounted = file_systems();
    let has_all = is_root && mounted.len() == FILE_SYSTEMS;
    let temporary = [TempDir::for_all(), TempDir::for_all()];
    let places = places(&mounted, &temporary);
    let trial = Trial { sakia };
    let wants_examples = std::env::var_os("SAKIA_TEST_CP_EXAMPLES").is_some();
    let (used, skipped) = (Tally::default(), Tally::default());
    let (first, count) = (number("SAKIA_TEST_CP_SEED", 1), number("SAKIA_TEST_CP_CASES", CASES));
    let next = AtomicU64::new(first);
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (trial, places, next, failed) = (&trial, &places, &next, &failed);
            let (used, skipped) = (&used, &skipped);
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            let try_all = move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().unwrap().len() >= FAILURES_MAX {
                        return;
                    }
                    let place = &places[(seed % places.len() as u64) as usize];
                    let mut case = Case::new(seed, is_root);
                    umasks::vary(&mut case, is_root);
                    let verdict = trial.check(&case, place, thread);
                    if wants_examples && verdict.unknown.is_empty() {
                        for reason in &verdict.reasons {
                            if used.lock().unwrap().get(reason).is_some_and(|count| *count > 2) {
                                continue;
                            }
                            let is_it = |verdict: &Verdict| {
                                verdict.unknown.is_empty() && verdict.reasons.contains(reason)
                            };
                            let smaller = trial.shrink(&case, place, thread, is_it);
                            println!("EXAMPLE {reason:?} on {}: {smaller:?}", place.name);
                        }
                    }
                    add(used, verdict.reasons.iter().copied());
                    add(skipped, verdict.skipped);
                    let Some(difference) = verdict.unknown.first() else { continue };
                    let is_it = |verdict: &Verdict| {
                        verdict.unknown.iter().any(|one| one.of == difference.of)
                    };
                    let smaller = trial.shrink(&case, place, thread, is_it);
                    let again = trial.check(&smaller, place, thread);
                    let (case, how, Verdict { unknown, said, .. }) = match again.unknown.is_empty()
                    {
                        false => (smaller, "", again),
                        true => (case, ", but not each time", verdict),
                    };
                    let shown: Vec<_> =
                        unknown.iter().take(SHOWN).map(ToString::to_string).collect();
                    let shown = shown.join("\n");
                    let text = format!("on {}{how}\n{case}\n{said}{shown}", place.name);
                    eprintln!("{text}\n");
                    failed.lock().unwrap().push(text);
                }
            };
            builder.spawn_scoped(scope, try_all).unwrap();
        }
    });
    let (used, skipped) = (used.into_inner().unwrap(), skipped.into_inner().unwrap());
    println!("{count} cases from {first} on; differences that are meant:");
    for (reason, _) in known::KNOWN.iter().chain(known::KNOWN_RARE) {
        println!("{:6} {reason}", used.get(reason).copied().unwrap_or(0));
    }
    println!("{} cases were skipped:", skipped.values().sum::<u64>());
    for (why, times) in &skipped {
        println!("{times:6} {why}");
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} cases differ\n\n{}", failed.len(), failed.join("\n\n"));
    assert!(skipped.values().sum::<u64>() <= count / 20, "too many cases are skipped: {skipped:?}");
    // An unused reason could excuse a later bug.
    let is_used = |reason| used.contains_key(reason) || count < CASES_ALL || !has_all;
    let unused: Vec<_> =
        known::KNOWN.iter().map(|(reason, _)| reason).filter(|reason| !is_used(**reason)).collect();
    assert!(unused.is_empty(), "nothing has these reasons: {unused:#?}");
}
