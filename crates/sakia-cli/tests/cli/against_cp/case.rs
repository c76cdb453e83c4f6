//! Test cases: a tree, a command line, and the user of the command.

use std::fmt::{self, Display};

use sakia_testkit::random::Random;

use super::tree::Step;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub seed: u64,
    pub steps: Vec<Step>,
    pub flags: Vec<&'static str>,
    pub operands: Vec<String>,
    /// 0, or a user without privileges.
    pub user: u32,
    pub mask: u32,
}

/// A user without privileges, and another owner of files.
pub const USER: u32 = 65534;
const OTHER: u32 = 1234;
/// No user or group, for an entry of an access control list that needs none.
const NONE: u32 = u32::MAX;

const NAMES: [&str; 5] = ["n0", "n1", "n2", "n3", "n4"];
const SIZES: [usize; 10] = [0, 1, 9, 100, 4095, 4096, 4097, 20_000, 131_072, 300_000];
const MODES: [u32; 14] = [
    0o644, 0o755, 0o600, 0o700, 0o444, 0o555, 0, 0o4755, 0o2755, 0o6711, 0o1777, 0o777, 0o300,
    0o277,
];

/// Entries to copy, and entries in their way.
struct Grown {
    /// Paths and their kinds, by the letters of `find`.
    entries: Vec<(String, char)>,
    steps: Vec<Step>,
    is_root: bool,
}

impl Grown {
    fn add(&mut self, step: Step, kind: char) {
        self.entries.push((step.path().to_owned(), kind));
        self.steps.push(step);
    }

    fn has(&self, path: &str) -> bool {
        self.entries.iter().any(|(there, _)| there == path)
    }

    /// Returns the path of an existing entry, or of one that might exist.
    fn some_path(&self, random: &mut Random) -> String {
        if random.percent(10) {
            return random.one_of(&["m0", "s0/m0", "d0/m0", "d0/n0/m0"]).to_owned();
        }
        random.one_of(&self.entries).0
    }

    /// Returns the text of a link at `path`.
    fn target(&self, random: &mut Random, path: &str) -> String {
        let to = self.some_path(random);
        if path.starts_with("O/") || to.starts_with("O/") || random.percent(20) {
            return format!("@/{}", to.trim_start_matches("O/"));
        }
        let ups = path.matches('/').count();
        match random.below(12) {
            0 => "nowhere".to_owned(),
            1 => ".".to_owned(),
            2 => "..".to_owned(),
            3 => path.rsplit('/').next().unwrap_or(path).to_owned(),
            4 => random.one_of(&NAMES).to_owned(),
            _ => format!("{}{to}", "../".repeat(ups)),
        }
    }

    fn make(&mut self, random: &mut Random, path: String) {
        if self.has(&path) {
            return;
        }
        let byte = b'a' + random.below(4) as u8;
        match random.below(20) {
            0..=5 => self.add(Step::File(path, random.one_of(&SIZES), byte), 'f'),
            6 => {
                let size = random.one_of(&[8192, 600_000, 1_048_576, 2_000_001]);
                self.add(Step::Sparse(path, size), 'f');
            }
            7..=9 => self.add(Step::Directory(path), 'd'),
            10..=13 => {
                let target = self.target(random, &path);
                self.add(Step::Link(path, target), 'l');
            }
            14..=16 => {
                let files: Vec<_> = self.entries.iter().filter(|(_, kind)| *kind != 'd').collect();
                if !files.is_empty() {
                    let (old, kind) = random.one_of(&files).clone();
                    self.add(Step::Name(old, path), kind);
                }
            }
            17 => self.add(Step::Fifo(path), 'p'),
            18 => self.add(Step::Socket(path), 's'),
            _ if self.is_root => self.add(Step::Null(path), 'c'),
            _ => self.add(Step::File(path, 5, byte), 'f'),
        }
    }

    /// Fills a directory.
    fn fill(&mut self, random: &mut Random, root: &str, count: usize) {
        for _ in 0..count {
            let below = |path: &str| path == root || path.starts_with(&format!("{root}/"));
            let folders: Vec<_> = self
                .entries
                .iter()
                .filter(|(path, kind)| *kind == 'd' && below(path))
                .map(|(path, _)| path.clone())
                .collect();
            let path = format!("{}/{}", random.one_of(&folders), random.one_of(&NAMES));
            self.make(random, path);
        }
    }

    /// Puts an entry in the way of the copy of each entry.
    fn mirror(&mut self, random: &mut Random, from: &str, to: &str) {
        for (path, kind) in self.entries.clone() {
            let Some(rest) = path.strip_prefix(&format!("{from}/")) else { continue };
            if random.percent(45) {
                continue;
            }
            let there = format!("{to}/{rest}");
            if self.has(&there) {
                continue;
            }
            let byte = b'e' + random.below(3) as u8;
            match random.below(15) {
                0..=2 if kind == 'd' => self.add(Step::Directory(there), 'd'),
                0..=2 => self.add(Step::File(there, random.one_of(&SIZES), byte), 'f'),
                3 if kind == 'd' => self.add(Step::Directory(there), 'd'),
                3 | 4 => self.add(Step::Name(path, there), kind),
                5 | 6 => {
                    let ups = "../".repeat(there.matches('/').count());
                    let text = if there.starts_with("O/") {
                        format!("@/{path}")
                    } else {
                        format!("{ups}{path}")
                    };
                    self.add(Step::Link(there, text), 'l');
                }
                7 => {
                    let target = self.target(random, &there);
                    self.add(Step::Link(there, target), 'l');
                }
                8..=10 => {
                    // Another name of a file that is in the way, too.
                    let is_there = |path: &str| path.starts_with(&format!("{to}/"));
                    let files = self.entries.iter().filter(|(_, kind)| *kind == 'f');
                    let files: Vec<_> = files.filter(|(path, _)| is_there(path)).collect();
                    if files.is_empty() {
                        self.add(Step::File(there, random.one_of(&SIZES), byte), 'f');
                    } else {
                        let old = random.one_of(&files).0.clone();
                        self.add(Step::Name(old, there), 'f');
                    }
                }
                _ => self.make(random, there),
            }
        }
    }

    /// Adds links by which the source contains the copy, or itself.
    fn cycles(&mut self, random: &mut Random, to: &str) {
        for _ in 0..2 {
            let is_folder = |path: &str| path == "s0" || path.starts_with("s0/");
            let folders = self.entries.iter().filter(|(_, kind)| *kind == 'd');
            let folders: Vec<_> = folders.filter(|(path, _)| is_folder(path)).collect();
            let path = format!("{}/{}", random.one_of(&folders).0, random.one_of(&NAMES));
            if self.has(&path) {
                continue;
            }
            let inner = format!("{to}/{}", random.one_of(&["n0", "s0", "s0/n1"]));
            let target = random.one_of(&["s0", to, to, &inner, "."]).to_owned();
            let target = format!("@/{}", target.trim_start_matches("O/"));
            self.add(Step::Link(path, target), 'l');
        }
    }

    fn attributes(&mut self, random: &mut Random) {
        for (path, kind) in self.entries.clone() {
            if random.percent(30) {
                self.steps.push(Step::Mode(path.clone(), random.one_of(&MODES)));
            }
            if self.is_root && random.percent(12) {
                let user = random.one_of(&[0, USER, OTHER]);
                let group = random.one_of(&[0, USER, OTHER]);
                self.steps.push(Step::Owner(path.clone(), user, group));
                if random.percent(50) {
                    self.steps.push(Step::Mode(path.clone(), random.one_of(&MODES)));
                }
            }
            if "fd".contains(kind) && random.percent(12) {
                let value = vec![random.below(200) as u8; random.below(300) as usize];
                self.steps.push(Step::Attribute(path.clone(), "user.test", value));
            }
            if "fd".contains(kind) && random.percent(8) {
                self.steps.push(Step::Attribute(
                    path.clone(),
                    "system.posix_acl_access",
                    acl(random),
                ));
            }
            if kind == 'd' && random.percent(8) {
                self.steps.push(Step::Attribute(path, "system.posix_acl_default", acl(random)));
            }
        }
        // Creating entries in a directory changes its times.
        for (path, _) in self.entries.clone().into_iter().rev() {
            if random.percent(85) {
                let seconds = random.one_of(&[0, -1, 1_000_000_000, 1_000_000_001]);
                let nanoseconds = random.one_of(&[0, 1, 999_999_999]);
                self.steps.push(Step::Time(path, seconds, nanoseconds));
            }
        }
    }
}

/// Returns an access control list in the kernel's format.
pub fn acl(random: &mut Random) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    let own = random.one_of(&[7, 6, 5]);
    let mask = random.one_of(&[7, 5, 4]);
    for (tag, permissions, id) in
        [(1, own, NONE), (2, 6, OTHER), (4, 5, NONE), (0x10, mask, NONE), (0x20, 1u16, NONE)]
    {
        bytes.extend(u16::to_le_bytes(tag));
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

impl Case {
    pub fn new(seed: u64, is_root: bool) -> Self {
        let random = &mut Random::new(seed);
        let user = if is_root && random.percent(60) { 0 } else { USER };
        let mut grown = Grown { entries: Vec::new(), steps: Vec::new(), is_root };
        grown.add(Step::Directory("s0".into()), 'd');
        let count = random.one_of(&[0, 1, 2, 2, 3, 4, 6, 9]);
        grown.fill(random, "s0", count);
        for name in ["f0", "f1", "l0", "l1"] {
            if random.percent(40) {
                let target = grown.target(random, name);
                let step = match name {
                    "l0" | "l1" => Step::Link(name.into(), target),
                    _ => Step::File(name.into(), random.one_of(&SIZES), b'x'),
                };
                grown.add(step, if name.starts_with('l') { 'l' } else { 'f' });
            }
        }
        let to = if random.percent(15) { "O/d0" } else { "d0" };
        if random.percent(80) {
            grown.add(Step::Directory(to.into()), 'd');
            if random.percent(60) {
                grown.mirror(random, "s0", to);
            }
            if random.percent(25) {
                let inner = format!("{to}/s0");
                grown.add(Step::Directory(inner.clone()), 'd');
                grown.mirror(random, "s0", &inner);
            }
            if random.percent(20) {
                grown.fill(random, to, 2);
            }
        }
        if random.percent(15) {
            grown.cycles(random, to);
        }
        grown.attributes(random);
        let (flags, is_recursive) = flags(random);
        let (operands, more) = operands(random, &grown, to, is_recursive);
        let flags = flags.into_iter().chain(more).collect();
        let mask = random.one_of(&[0o022, 0o022, 0o077, 0o000, 0o027]);
        Self { seed, steps: grown.steps, flags, operands, user, mask }
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains(&flag)
    }

    pub fn is_recursive(&self) -> bool {
        ["-r", "-R", "-a"].iter().any(|flag| self.has(flag))
    }
}

fn flags(random: &mut Random) -> (Vec<&'static str>, bool) {
    let mut flags: Vec<&str> = random.one_of(&[
        vec![],
        vec!["-p"],
        vec!["-P"],
        vec!["-r"],
        vec!["-r"],
        vec!["-R", "-p"],
        vec!["-a"],
        vec!["-a"],
        vec!["-a"],
        vec!["-r", "-L"],
        vec!["-r", "-L", "-p"],
        vec!["-a", "-L"],
        vec!["-r", "-P"],
        vec!["-L"],
    ]);
    let is_recursive = ["-r", "-R", "-a"].iter().any(|flag| flags.contains(flag));
    let mut rare = |flag, chance| {
        if random.percent(chance) {
            flags.push(flag);
        }
    };
    rare("-f", 20);
    rare("-n", 8);
    rare("-u", 10);
    rare("-v", 10);
    rare("-x", 5);
    rare("--sparse=always", 5);
    rare("--sparse=never", 5);
    rare("--reflink=never", 6);
    rare("--reflink=always", 2);
    rare("--preserve=links", 5);
    rare("--preserve=mode", 4);
    rare("--preserve=ownership", 4);
    rare("--preserve=timestamps", 3);
    rare("--preserve=xattr", 3);
    (flags, is_recursive)
}

/// Returns another path of the same entry.
fn by_another_path(random: &mut Random, path: &str) -> String {
    match random.below(4) {
        _ if path.starts_with("O/") => path.to_owned(),
        0 => format!("./{path}"),
        1 => format!("s0/../{path}"),
        2 => path.replacen('/', "/.//", 1),
        _ => format!("{path}/"),
    }
}

/// Adds the operands, and the flags that go with them.
fn operands(
    random: &mut Random,
    grown: &Grown,
    to: &str,
    is_recursive: bool,
) -> (Vec<String>, Vec<&'static str>) {
    let below = |root: &str| -> Vec<String> {
        let below = |path: &&(String, char)| path.0.starts_with(&format!("{root}/"));
        grown.entries.iter().filter(below).map(|(path, _)| path.clone()).collect()
    };
    let inner = |random: &mut Random| {
        let paths = below("s0");
        if paths.is_empty() { "s0/n0".to_owned() } else { random.one_of(&paths) }
    };
    let last = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let to = to.to_owned();
    let choice = if is_recursive { random.below(24) } else { 8 + random.below(15) };
    let operands = match choice {
        0 | 1 => vec!["s0".into(), to],
        2 | 3 => vec!["s0/.".into(), to],
        4 => vec!["s0/".into(), format!("{to}/")],
        5 => return (vec!["s0".into(), to], vec!["-T"]),
        6 => vec![random.one_of(&[".", "..", "l0", "l0/", "l0/."]).to_owned(), to],
        7 => vec!["s0".into(), random.one_of(&["s0/n0", "s0", "s0/n0/n1", "l0", "l1/n0"]).into()],
        8 | 9 => {
            let from = inner(random);
            vec![from.clone(), format!("{to}/{}", last(&from))]
        }
        10 => vec![inner(random), to],
        11 => vec![inner(random), inner(random), to],
        12 => vec![inner(random), inner(random)],
        13 => vec![grown.some_path(random), grown.some_path(random)],
        14 => vec![grown.some_path(random), grown.some_path(random), to],
        15 => return (vec![grown.some_path(random), grown.some_path(random)], vec!["-T"]),
        16 => vec!["f0".into(), random.one_of(&["f1", "l0", "l1", "m0", "m0/", "d0/m0"]).into()],
        17 => vec!["l0".into(), random.one_of(&["f1", "l0", "l1", "m0", "f0"]).into()],
        18 => vec!["f0".into(), "m0".into(), "l0".into(), to],
        19 => {
            let from = inner(random);
            vec![from.clone(), from, to]
        }
        20 => {
            let from = inner(random);
            vec![from.clone(), inner(random), by_another_path(random, &from), to]
        }
        21 => {
            let other = grown.some_path(random);
            vec![grown.some_path(random), by_another_path(random, &other), to]
        }
        23 => vec!["s0".into(), by_another_path(random, "s0"), to],
        _ => vec![inner(random), format!("{to}/{}", random.one_of(&NAMES))],
    };
    (operands, Vec::new())
}

/// Shows the case as shell commands.
impl Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# seed {}, user {}, umask {:03o}", self.seed, self.user, self.mask)?;
        for step in &self.steps {
            writeln!(f, "{step}")?;
        }
        write!(f, "umask {:03o}; ", self.mask)?;
        if self.user != 0 {
            write!(f, "setpriv --reuid={0} --regid={0} --clear-groups ", self.user)?;
        }
        let operands = self.operands.iter().map(|path| path.replace("O/", "$O/"));
        let operands: Vec<_> = operands.collect();
        write!(f, "cp {} {}", self.flags.join(" "), operands.join(" "))
    }
}
