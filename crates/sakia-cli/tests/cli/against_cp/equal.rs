//! Fixed cases in which both programs do the same.

use sakia_testkit::random::Random;

use super::case::{Case, USER, acl};
use super::examples::{default_list, s, two};
use super::tree::Step;
use super::tree::Step::{Attribute, Directory, Fifo, File, Link, Mode, Name, Null, Owner, Time};

/// The steps, flags and operands of the command, and its user and umask.
type Equal = (Vec<Step>, &'static str, &'static str, u32, u32);

/// Cases that once differed.
fn once_different() -> Vec<Equal> {
    let file = || File(s("s0/n0"), 10, b'a');
    vec![
        // The umask takes what is given last, even if the list would give it.
        (
            two([file(), default_list("d0", [5, 5, 7, 1])]),
            "-r --preserve=ownership",
            "s0/. d0",
            0,
            0o077,
        ),
        (
            two([Fifo(s("s0/n0")), Mode(s("s0/n0"), 0o666), default_list("d0", [7, 7, 4, 0])]),
            "-r --preserve=ownership",
            "s0/. d0",
            0,
            0o022,
        ),
        // Root sets attributes without a right to write, so that the list holds. For others the umask does.
        (
            two([file(), Mode(s("s0/n0"), 0o541), default_list("d0", [5, 5, 4, 1])]),
            "-r --preserve=xattr",
            "s0/. d0",
            0,
            0o027,
        ),
        (
            two([file(), Mode(s("s0/n0"), 0o541), default_list("d0", [5, 5, 4, 1])]),
            "-r --preserve=xattr",
            "s0/. d0",
            USER,
            0o027,
        ),
        // A new directory inherits the group and its bit, though its owner has to get rights first.
        (two([Mode(s("d0"), 0o2755), default_list("d0", [5, 5, 7, 1])]), "-r", "s0 d0", 0, 0o022),
        (two([Mode(s("d0"), 0o2755)]), "-r", "s0 d0", 0, 0o300),
        (two([Mode(s("d0"), 0o2755)]), "-r --preserve=ownership", "s0 d0", 0, 0o300),
        // A source that is not needed cannot be opened.
        (two([file(), Mode(s("s0/n0"), 0), File(s("f0"), 5, b'g')]), "-a -n", "s0/n0 f0", USER, 0),
        (
            two([file(), Mode(s("s0/n0"), 0), Link(s("l0"), s("s0/n0")), File(s("f0"), 5, b'g')]),
            "-a -L -n",
            "l0 f0",
            USER,
            0,
        ),
        // Another user's directory, of which nothing is needed.
        (
            two([Directory(s("d0/s0")), Mode(s("d0/s0"), 0o700), Owner(s("d0/s0"), 1234, 0)]),
            "-r --preserve=ownership",
            "s0 d0",
            USER,
            0,
        ),
        (
            two([Directory(s("d0/s0")), Mode(s("d0/s0"), 0o700), Owner(s("d0/s0"), 1234, 0)]),
            "-r -p",
            "s0 d0",
            USER,
            0,
        ),
    ]
}

/// Destinations, and the entries that are in the way.
fn in_the_way() -> Vec<Equal> {
    let file = |path: &str| File(s(path), 10, b'a');
    let old = |path: &str| File(s(path), 25, b'g');
    let mut all = Vec::new();
    // A file is overwritten in place: another name shows its contents.
    for size in [10, 1_000_000] {
        let there = [old("d0/n0"), Name(s("d0/n0"), s("d0/n1")), Mode(s("d0/n0"), 0o640)];
        let steps = two([File(s("s0/n0"), size, b'a')].into_iter().chain(there));
        all.extend(["s0/. d0", "s0/n0 d0/n0"].map(|of| (steps.clone(), "-r", of, 0)));
    }
    let times = [(1000, 4), (1000, 5), (1000, 6), (-6, 6)].into_iter().enumerate();
    let timed = times.flat_map(|(number, (seconds, nanoseconds))| {
        let [from, to] = ["s0", "d0"].map(|folder| format!("{folder}/n{number}"));
        let source = if seconds < 0 { -5 } else { 1000 };
        let times = [Time(from.clone(), source, 5), Time(to.clone(), seconds, nanoseconds)];
        [file(&from), old(&to)].into_iter().chain(times)
    });
    all.push((two(timed), "-r -u", "s0/. d0", 0));
    // Entries of other kinds, in the tree and as its root.
    let kinds = two([
        Directory(s("s0/n0")),
        old("d0/n0"),
        file("s0/n1"),
        Directory(s("d0/n1")),
        file("s0/n2"),
        Directory(s("s0/n3")),
        Link(s("d0/n3"), s("nowhere")),
        Link(s("s0/n4"), s("nowhere")),
        Directory(s("d0/n4")),
        old("d0/n4/n0"),
    ]);
    for operands in ["s0/. d0", "s0 d0/n0", "s0/n1 d0/n4"] {
        all.extend(["-r -T", "-r -T -f"].map(|flags| (kinds.clone(), flags, operands, 0)));
    }
    // The caller has named the link, which is written through.
    let links = vec![
        file("f0"),
        old("f1"),
        Mode(s("f1"), 0o600),
        Link(s("l0"), s("f1")),
        Link(s("l1"), s("nowhere")),
        Fifo(s("p0")),
        Link(s("l2"), s("p0")),
    ];
    for operands in ["f0 l0", "f0 l1", "l0 l0", "f0 f0", "f0 ./f0"] {
        all.extend(["", "-f", "-a -f"].map(|flags| (links.clone(), flags, operands, 0)));
    }
    // A FIFO's bytes are in the pipe afterwards.
    all.extend(["-r", "-r -f"].map(|flags| (links.clone(), flags, "f0 l2", 0)));
    all.extend(["l1 l1", "p0 p0"].map(|operands| (links.clone(), "-a", operands, 0)));
    // A link onto another name of itself stays.
    let names =
        two([Link(s("l0"), s("nowhere")), Name(s("l0"), s("l1")), Name(s("l0"), s("d0/l1"))]);
    all.extend(["l0 d0/l1", "l0 l1 d0"].map(|operands| (names.clone(), "-a", operands, 0)));
    // Directories that links lead to are completed.
    let completed = two([
        Directory(s("s0/n0")),
        Directory(s("o0")),
        Link(s("s0/n1"), s("../o0")),
        file("s0/n0/n2"),
        file("s0/n0/n3"),
        file("o0/n2"),
        file("o0/n3"),
        Directory(s("d0/n0")),
        Directory(s("d0/n1")),
        old("d0/n0/n2"),
        old("d0/n1/n2"),
    ]);
    all.extend(["-r -L -n", "-a -L -n"].map(|flags| (completed.clone(), flags, "s0/. d0", 0)));
    // A device that cannot be opened is replaced by force, whatever name it is called by.
    let device = two([
        file("f0"),
        Null(s("c0")),
        Mode(s("c0"), 0),
        Owner(s("c0"), 0, 0),
        Link(s("d0/n0"), s("../c0")),
        Name(s("c0"), s("d0/n1")),
    ]);
    for operands in ["f0 d0/n0", "f0 d0/n1"] {
        all.extend(["-r", "-r -f"].map(|flags| (device.clone(), flags, operands, USER)));
    }
    with_umask(all)
}

/// Rights and access control lists of new entries, and of those that get new contents.
fn rights() -> Vec<Equal> {
    let file = || File(s("s0/n0"), 10, b'a');
    let old = || File(s("d0/n0"), 25, b'g');
    let list = |path: &str, name| Attribute(s(path), name, acl(&mut Random::new(1)));
    let mut all = Vec::new();
    // An exact copy takes rights away that others had.
    let lists = [
        list("d0/n0", "system.posix_acl_access"),
        list("d0", "system.posix_acl_access"),
        list("d0", "system.posix_acl_default"),
    ];
    let exact = [file(), Mode(s("s0/n0"), 0o640), old()].into_iter().chain(lists);
    all.push((two(exact), "-a", "s0/. d0", 0));
    // A list from above holds unless the mode must be exact.
    for flags in ["-r", "-r --preserve=xattr", "-r --preserve=ownership"] {
        let above = list("d0", "system.posix_acl_default");
        let steps = [file(), Mode(s("s0/n0"), 0o640), Fifo(s("s0/n1")), above];
        all.push((two(steps), flags, "s0/. d0", 0));
    }
    // Bits of another identity are lost with new contents, or with the owner.
    for mode in [0o4755, 0o6755, 0o2644, 0o6745, 0o4700] {
        let there = || [file(), old(), Mode(s("d0/n0"), mode)];
        all.extend([0, USER].map(|user| (two(there()), "-r", "s0/. d0", user)));
        for owner in [0, USER] {
            let steps = two(there().into_iter().chain([Owner(s("s0/n0"), owner, owner)]));
            all.push((steps, "-r --preserve=ownership", "s0/. d0", 0));
        }
    }
    // A user who may write to a file of another sets its contents and nothing else.
    for size in [10, 1_000_000] {
        let there = [old(), Mode(s("d0/n0"), 0o666), Owner(s("d0/n0"), 0, 0)];
        let steps = two([File(s("s0/n0"), size, b'a')].into_iter().chain(there));
        all.push((steps, "-a", "s0/n0 d0", USER));
    }
    // Attributes as they are asked for.
    let known = [Mode(s("s0/n0"), 0o604), Name(s("s0/n0"), s("s0/n1")), Time(s("s0/n0"), 0, 0)];
    let known = two([file()].into_iter().chain(known));
    for flags in ["-r", "-p", "-r --preserve=timestamps", "--preserve=links", "-a"] {
        all.push((known.clone(), flags, "s0/n0 s0/n1 d0", 0));
    }
    with_umask(all)
}

/// Operands that are followed or not, and destinations with and without a slash.
fn operands() -> Vec<Equal> {
    let tree = || {
        let link = [Link(s("l0"), s("f0")), Link(s("l1"), s("s0"))];
        let files = [File(s("f0"), 10, b'a'), File(s("s0/n0"), 10, b'b')];
        two(files.into_iter().chain(link))
    };
    let links = ["", "-P", "-r", "-r -L", "-a"].map(|flags| (flags, "l0 d0"));
    let others = [
        ("-r", "l1/ d0"),
        ("", "f0 m0"),
        ("-T", "f0 m0"),
        ("", "f0 d0"),
        ("", "f0 d0/"),
        ("", "f0 s0/n0 d0"),
        ("-t d0", "f0 s0/n0"),
        ("-r", "s0 d0"),
        ("-r", "s0/ d0/"),
        ("-r", "s0 m0"),
        ("-r", "s0/ m0/"),
        ("-r -T", "s0 d0"),
        ("-r", "s0/. d0"),
        ("-a", "s0/. m0"),
        ("-r", "f0 s0 d0"),
    ];
    let all = links.into_iter().chain(others);
    with_umask(all.map(|(flags, operands)| (tree(), flags, operands, 0)))
}

fn with_umask(
    all: impl IntoIterator<Item = (Vec<Step>, &'static str, &'static str, u32)>,
) -> Vec<Equal> {
    let usual = |(steps, flags, operands, user)| (steps, flags, operands, user, 0o022);
    all.into_iter().map(usual).collect()
}

fn case((steps, flags, operands, user, mask): Equal) -> Case {
    Case {
        seed: 0,
        steps,
        flags: flags.split_whitespace().collect(),
        operands: operands.split(' ').map(str::to_owned).collect(),
        user,
        mask,
    }
}

/// Returns the cases for one of so many places: some are for all, the others are dealt out.
pub fn cases(place: usize, places: usize) -> impl Iterator<Item = Case> {
    let others = [in_the_way(), rights(), operands()].into_iter().flatten();
    let its = others.skip(place).step_by(places);
    once_different().into_iter().chain(its).map(case)
}
