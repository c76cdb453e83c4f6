//! A case, or several, for each intended difference.

use super::case::{Case, USER};
use super::tree::Step;
use super::tree::Step::{
    Attribute, Directory, Fifo, File, Link, Mode, Name, Null, Owner, Socket, Time,
};

/// The begin of a reason, the steps, flags and operands of the command, and its user.
type Example = (&'static str, Vec<Step>, &'static str, &'static str, u32);

pub fn s(path: &str) -> String {
    path.to_owned()
}

pub fn directories<const N: usize>(paths: [&str; N]) -> Vec<Step> {
    paths.map(|path| Directory(s(path))).to_vec()
}

/// Two directories, and these entries.
pub fn two(more: impl IntoIterator<Item = Step>) -> Vec<Step> {
    directories(["s0", "d0"]).into_iter().chain(more).collect()
}

/// A source with two names, and a file in the way of one of them.
fn names(source: Step, there: &str, more: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let name = Name(s("s0/n0"), s("s0/n1"));
    two([source, name, File(s(there), 5, b'g')].into_iter().chain(more))
}

/// A default access control list of a directory: rights of its owner, group, the mask, and others.
pub fn default_list(path: &str, [owner, group, mask, others]: [u8; 4]) -> Step {
    let mut list = vec![2, 0, 0, 0];
    for (kind, rights) in [(1, owner), (4, group), (0x10, mask), (0x20, others)] {
        list.extend([kind, 0, rights, 0, 255, 255, 255, 255]);
    }
    Attribute(s(path), "system.posix_acl_default", list)
}

fn all() -> Vec<Example> {
    let file = |path: &str, size, byte| File(s(path), size, byte);
    let mut all: Vec<Example> = vec![
        (
            "the target of a link has its own",
            two([
                Directory(s("f1")),
                Attribute(s("f1"), "user.test", vec![1]),
                Link(s("s0/n0"), s("../f1")),
            ]),
            "-a -L",
            "s0 d0",
            0,
        ),
        ("a directory is not copied into itself", directories(["s0"]), "-a", "s0 s0/n0", 0),
        (
            "within a tree links are replaced",
            two([file("s0/n0", 20_000, b'b'), Link(s("d0/n0"), s("../s0/n0"))]),
            "-r",
            "s0/. d0",
            0,
        ),
        (
            "a FIFO or socket in the way, and within a tree a device, is refused",
            two([file("s0/n0", 10, b'b'), Fifo(s("d0/n0"))]),
            "-r",
            "s0/. d0",
            USER,
        ),
        (
            "a FIFO or socket in the way, and within a tree a device, is replaced",
            two([file("s0/n0", 10, b'b'), Fifo(s("d0/n0"))]),
            "-r -f",
            "s0/. d0",
            USER,
        ),
        (
            "a FIFO or socket in the way, and within a tree a device, is replaced",
            two([file("s0/n0", 10, b'b'), Fifo(s("d0/n0"))]),
            "-f",
            "s0/n0 d0",
            USER,
        ),
        (
            "a special file that cannot be made",
            two([Null(s("s0/n0")), file("d0/n0", 10, b'g')]),
            "-a",
            "s0/. d0",
            USER,
        ),
        (
            "a mode that is to be exact",
            two([file("s0/n0", 10, b'a'), file("d0/n0", 20, b'g'), Mode(s("d0/n0"), 0o6711)]),
            "-a",
            "s0/. d0",
            0,
        ),
        (
            "a directory that is named, and is in another",
            two([file("s0/n0", 10, b'a')]),
            "-r",
            "s0 s0/. d0",
            0,
        ),
        (
            "what is there is kept, a link to nothing too",
            two([file("s0/n0", 10, b'a'), Link(s("d0/n0"), s("nowhere"))]),
            "-r -n",
            "s0/. d0",
            0,
        ),
        (
            "a source that cp has written to, through a link",
            two([
                file("s0/n1", 10, b'a'),
                file("s0/n0", 20, b'b'),
                Link(s("d0/n1"), s("../s0/n0")),
            ]),
            "-r",
            "s0/. d0",
            0,
        ),
        (
            "what takes the place of a link to the directory",
            two([Fifo(s("s0/n0")), Link(s("d0/n0"), s("."))]),
            "-a",
            "s0/n0 d0/n0",
            0,
        ),
        (
            "a directory is changed by its descriptor",
            two([Mode(s("d0"), 0o600)]),
            "-a",
            "s0/. d0",
            USER,
        ),
        (
            "a device that is written to is left",
            vec![file("f0", 10, b'a'), Null(s("f1")), Mode(s("f1"), 0o666)],
            "-p",
            "f0 f1",
            0,
        ),
        (
            "a directory is marked until it is complete",
            two([Owner(s("d0"), USER, 1234), Mode(s("d0"), 0o2777)]),
            "-r",
            "s0 d0",
            USER,
        ),
        (
            "of a source and a destination that are both of no use",
            vec![file("f0", 10, b'a'), Mode(s("f0"), 0)],
            "",
            "f0 m0/",
            USER,
        ),
        (
            "a source is opened before what is in the way",
            two([
                file("s0/n0", 10, b'a'),
                Mode(s("s0/n0"), 0),
                file("d0/n0", 10, b'g'),
                Name(s("d0/n0"), s("d0/n1")),
            ]),
            "-a",
            "s0/. d0",
            USER,
        ),
        (
            "if blocks cannot be shared",
            two([file("s0/n0", 10, b'a'), file("d0/n0", 10, b'g')]),
            "-r --reflink=always",
            "s0/. d0",
            0,
        ),
        (
            "nothing is made of a directory",
            two([Directory(s("s0/n0")), Mode(s("s0/n0"), 0)]),
            "-r",
            "s0/. d0",
            USER,
        ),
        // Files come before directories, and with cp those that were made first.
        (
            "of several sources that are written to one file",
            two([
                Directory(s("s0/n0")),
                file("s0/n0/n2", 10, b'a'),
                file("s0/n1", 20, b'b'),
                Directory(s("d0/n0")),
                file("d0/n1", 5, b'g'),
                Name(s("d0/n1"), s("d0/n0/n2")),
            ]),
            "-r",
            "s0/. d0",
            0,
        ),
        (
            "a source that is a destination by another name",
            two([
                Directory(s("s0/n0")),
                file("s0/n0/n2", 10, b'a'),
                file("s0/n1", 20, b'b'),
                Directory(s("d0/n0")),
                Name(s("s0/n1"), s("d0/n0/n2")),
            ]),
            "-r",
            "s0/. d0",
            0,
        ),
        (
            "with -u a link to what is copied first is newer",
            two([
                Directory(s("s0/n3")),
                file("s0/n3/n1", 10, b'a'),
                Time(s("s0/n3/n1"), 0, 0),
                file("s0/n0", 20, b'b'),
                Directory(s("d0/n3")),
                Link(s("d0/n3/n1"), s("../n0")),
            ]),
            "-r -u",
            "s0/. d0",
            0,
        ),
        (
            "with -n what is there stays without a look",
            two([
                Directory(s("s0/n0")),
                file("s0/n0/n1", 10, b'a'),
                Mode(s("s0/n0"), 0o444),
                Directory(s("d0/n0")),
                file("d0/n0/n1", 10, b'g'),
            ]),
            "-r -n",
            "s0/. d0",
            USER,
        ),
        (
            "who may not write to an entry of his own",
            two([Attribute(s("s0"), "user.test", vec![1]), Mode(s("d0"), 0o111)]),
            "-a",
            "s0/. d0",
            USER,
        ),
        (
            "who may not write to an entry of his own",
            two([
                file("s0/n0", 10, b'a'),
                Attribute(s("s0/n0"), "user.test", vec![1]),
                default_list("d0", [5, 0, 0, 0]),
            ]),
            "-a",
            "s0/. d0",
            USER,
        ),
        (
            "who may not write to an entry of his own",
            two([
                file("s0/n0", 10, b'a'),
                Attribute(s("s0/n0"), "user.test", vec![1]),
                default_list("d0", [5, 0, 0, 0]),
            ]),
            "--preserve=xattr",
            "s0/n0 d0",
            USER,
        ),
        (
            "a link is read before another one",
            two([Link(s("s0/n0"), s("nowhere")), Link(s("d0/n0"), s("../s0"))]),
            "-r",
            "d0/n0/n0 d0",
            0,
        ),
        (
            "a link is read before another one",
            two([Link(s("s0/n0"), s("nowhere")), Link(s("d0/n0"), s("../s0"))]),
            "-r",
            "s1 d0/n0/n0 d0",
            0,
        ),
        (
            "with -n a directory that would be copied onto itself",
            two([Directory(s("f0")), Directory(s("d0/s0")), Link(s("d0/s0/n0"), s("../../f0"))]),
            "-r -L -n",
            "d0/s0 d0",
            0,
        ),
        (
            "a link gets its source's group",
            two([
                Link(s("s0/n0"), s("nowhere")),
                Owner(s("s0/n0"), 0, USER),
                Owner(s("d0"), USER, 1234),
                Mode(s("d0"), 0o2755),
            ]),
            "-r --preserve=ownership",
            "s0/n0 d0",
            USER,
        ),
        (
            "what is there is kept, a link to nothing too",
            two([file("s0/n0", 10, b'a'), Mode(s("s0/n0"), 0), Link(s("d0/n0"), s("nowhere"))]),
            "-r -n",
            "s0/. d0",
            USER,
        ),
        (
            "a special file that cannot be made",
            two([Null(s("s0/n0")), file("d0/n0", 10, b'g'), Name(s("d0/n0"), s("d0/n1"))]),
            "-a",
            "s0/. d0",
            USER,
        ),
    ];
    // Which name is found first depends on the file system.
    for there in ["d0/n0", "d0/n1"] {
        let source = || file("s0/n0", 20, b'b');
        all.extend([
            (
                "names of the same special file",
                names(Socket(s("s0/n0")), there, []),
                "-a -L",
                "s0/. d0",
                0,
            ),
            (
                "names of the same file are found in another order, and the first one is overwritten",
                names(source(), there, [Mode(s(there), 0o600)]),
                "-r --preserve=links",
                "s0/. d0",
                0,
            ),
            (
                "names of the same file are found in another order, and the first one cannot be",
                names(source(), there, [Mode(s(there), 0o444)]),
                "-r --preserve=links",
                "s0/. d0",
                USER,
            ),
            (
                "a newer file stays with -u",
                names(source(), there, [Time(s("s0/n0"), 0, 0), Time(s(there), 1_000_000_000, 0)]),
                "-r -u --preserve=links",
                "s0/. d0",
                0,
            ),
        ]);
    }
    all
}

/// Returns the cases for each intended difference.
pub fn examples() -> Vec<(&'static str, Case)> {
    let case = |(reason, steps, flags, operands, user): Example| {
        let flags = flags.split_whitespace().collect();
        let operands = operands.split(' ').map(str::to_owned).collect();
        (reason, Case { seed: 0, steps, flags, operands, user, mask: 0o022 })
    };
    all().into_iter().map(case).collect()
}
