//! Fixed cases on odd file systems: one without access control lists and attributes as the destination, and
//! files in `/proc` and `/sys`, whose size is not their length, as sources.

use sakia_testkit::available;
use sakia_testkit::random::Random;
use sakia_testkit::small_fs::SmallFs;

use super::case::{self, Case};
use super::known::Known;
use super::tree::{Facts, Step};
use super::{Place, Trial};
use crate::support::{TempDir, program_for_all};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// Differences on a file system without access control lists and attributes.
pub const KNOWN: &[Known] = &[
    (
        "a directory gets its mode even if an attribute of it cannot be kept; cp leaves it to its owner",
        |tried, difference| {
            let name = difference.path.rsplit('/').next().unwrap_or_default();
            let said = format!("/{name}': Operation not supported");
            let is_told = |line: &str| line.contains("setting attributes") && line.ends_with(&said);
            difference.of == "mode"
                && tried.theirs.tree[&difference.path].kind == 'd'
                && tried.theirs.said.lines().any(is_told)
        },
    ),
    (
        "a default access control list that cannot be kept is a failure, too; cp says nothing",
        |tried, difference| {
            let has_default = |is: &Facts| is.attributes.contains_key(DEFAULT);
            ["success", "blame"].contains(&difference.of)
                && tried.ours.said.contains("set an access control list of")
                && tried.before.values().any(has_default)
                && !tried
                    .ours
                    .tree
                    .iter()
                    .any(|(path, is)| path.starts_with("O/") && has_default(is))
        },
    ),
];

/// Returns entries with access control lists and attributes, and without.
fn entries() -> Vec<Step> {
    let acl = || case::acl(&mut Random::new(1));
    let file = |name: &str| Step::File(name.into(), 100, b'a');
    let set = |name: &str, attribute, value: &[u8]| {
        Step::Attribute(name.into(), attribute, value.to_vec())
    };
    let long = [b'x'; 3000];
    vec![
        Step::Directory("s0".into()),
        file("s0/a0"),
        set("s0/a0", ACCESS, &acl()),
        file("s0/a1"),
        set("s0/a1", "user.test", b"x"),
        file("s0/a2"),
        set("s0/a2", "user.test", &long),
        set("s0/a2", "user.more", b"y"),
        file("s0/a3"),
        set("s0/a3", "trusted.test", b"x"),
        file("s0/a4"),
        Step::Directory("s0/b0".into()),
        file("s0/b0/c0"),
        set("s0/b0", ACCESS, &acl()),
        Step::Directory("s0/b1".into()),
        set("s0/b1", "user.test", b"x"),
        Step::Directory("s0/b2".into()),
        set("s0/b2", DEFAULT, &acl()),
        Step::Fifo("s0/p0".into()),
        set("s0/p0", ACCESS, &acl()),
        Step::Directory("O/d0".into()),
    ]
}

/// Checks all cases at a place, and prints the commands of those that differ.
fn check(place: &Place, cases: impl IntoIterator<Item = Case>) {
    let (_program, sakia) = program_for_all();
    let trial = Trial { sakia };
    let mut failed = Vec::new();
    for case in cases {
        let verdict = trial.check(&case, place, 0);
        assert_eq!(verdict.skipped, None, "{case}");
        if let Some(difference) = verdict.unknown.first() {
            failed.push(format!("{case}\n{}{difference}", verdict.said));
        }
    }
    let all = failed.join("\n\n");
    assert!(failed.is_empty(), "on {}, {} cases differ\n\n{all}", place.name, failed.len());
}

fn case(steps: &[Step], flags: &[&'static str], operands: &[&str], user: u32) -> Case {
    Case {
        seed: 0,
        steps: steps.to_vec(),
        flags: flags.to_vec(),
        operands: operands.iter().map(|&operand| operand.to_owned()).collect(),
        user,
        mask: 0o022,
    }
}

/// An access control list, or an attribute named by `--preserve=xattr`, that the destination cannot have is a
/// failure of that entry, which is copied otherwise.
#[test]
fn attributes_that_cannot_be_kept() {
    let flags: [&[&str]; 8] = [
        &["-r"],
        &["-r", "-p"],
        &["-a"],
        &["-r", "--preserve=mode"],
        &["-r", "--preserve=ownership"],
        &["-r", "--preserve=xattr"],
        &["-r", "--preserve=all"],
        &["-a", "--preserve=xattr"],
    ];
    let from = ["ext4", "xfs", "btrfs", "tmpfs"];
    let to = ["ramfs", "tmpfs", "ext4"];
    let made = |name| match name {
        "ext4" => SmallFs::ext4_in_memory(16 << 20, true),
        "xfs" => SmallFs::xfs(),
        "btrfs" => SmallFs::btrfs(),
        "ramfs" => SmallFs::ramfs(),
        _ => SmallFs::tmpfs(16 << 20),
    };
    for (from, to) in from.into_iter().zip(to.into_iter().cycle()).chain([("ext4", "ramfs")]) {
        let (here, other) = (available!(made(from)), available!(made(to)));
        let place =
            Place { name: to, here: here.path().join("here"), other: other.path().join("other") };
        let steps = entries();
        let single =
            ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2", "p0"].map(|name| format!("s0/{name}"));
        let operands = ["s0"].into_iter().chain(single.iter().map(String::as_str));
        let cases: Vec<_> = operands
            .flat_map(|from| flags.map(|flags| case(&steps, flags, &[from, "O/d0"], 0)))
            .collect();
        check(&place, cases);
    }
}

/// Files that the kernel makes up have a size of 0 or of a page. Every source here is the same each time that
/// it is read: of one that counts, `cp` and `sakia cp` may each read another count.
#[test]
fn sizes_that_are_not_lengths() {
    let sources = [
        "/proc/version",
        "/proc/sys/kernel/osrelease",
        "/proc/cmdline",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/notes",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/cpu/vulnerabilities",
    ];
    let flags: [&[&str]; 8] = [
        &["-r"],
        &["-a"],
        &["-r", "-u"],
        &["-r", "-L", "-p"],
        &["-r", "--sparse=always"],
        &["-r", "--sparse=never"],
        &["-r", "--reflink=never"],
        &["-r", "--preserve=mode,xattr"],
    ];
    let temporary = [TempDir::for_all(), TempDir::for_all()];
    let [here, other] = temporary.each_ref().map(|directory| directory.path().to_owned());
    let place = Place { name: "temporary files", here, other };
    let steps = [Step::Directory("d0".into()), Step::Directory("O/d0".into())];
    let present = sources.into_iter().filter(|source| std::path::Path::new(source).exists());
    let with = |source, flags| ["d0", "O/d0"].map(|to| case(&steps, flags, &[source, to], 0));
    let cases =
        present.flat_map(|source| flags.into_iter().flat_map(move |flags| with(source, flags)));
    check(&place, cases);
}
