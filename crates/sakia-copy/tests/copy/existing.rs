//! Existing entries at the destination, and copies that must be refused.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::FileType;
use sakia_copy::{Existing, Follow, Options};

use crate::children::{Nobody, give_to_nobody};
use crate::support::{
    Folder, acl, assert_same, attributes, copy, copy_all, failure, needs_root, set_attribute,
    some_acl, tree,
};
use crate::tree::{make_node, set_time};

fn options(existing: Existing) -> Options {
    let mut options = Options::new();
    options.existing = existing;
    options
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A copy overwrites a file in place, alone or in a tree.
#[test]
fn a_file_is_overwritten_in_place() {
    let folder = Folder::new();
    folder.dir("from");
    folder.dir("to");
    for contents in ["short".to_owned(), "long ".repeat(200_000)] {
        folder.file("from/a", &contents);
        let there = folder.file("to/a", "there before, and longer");
        fs::hard_link(&there, folder.path("to/other name")).unwrap();
        set_mode(&there, 0o640);
        let before = fs::metadata(&there).unwrap();
        for [from, to] in [["from", "to"], ["from/a", "to/a"]] {
            copy_all(folder.path(from), folder.path(to), &Options::new());
            let after = fs::metadata(&there).unwrap();
            assert_eq!((after.ino(), after.mode()), (before.ino(), 0o100640));
            assert!(text(folder.path("to/other name")) == contents);
        }
        for name in ["to/a", "to/other name"] {
            fs::remove_file(folder.path(name)).unwrap();
        }
    }
}

/// An exact copy removes rights that other users had before, as `cp -p` does.
#[test]
fn an_exact_copy_leaves_no_list_behind() {
    let folder = Folder::new();
    folder.dir("from");
    let (there, dir) = (folder.dir("to").join("a"), folder.path("to"));
    set_mode(&folder.file("from/a", "x"), 0o640);
    fs::write(&there, "y").unwrap();
    set_attribute(&there, "system.posix_acl_access", &some_acl());
    for name in ["system.posix_acl_access", "system.posix_acl_default"] {
        set_attribute(&dir, name, &some_acl());
    }
    copy_all(folder.path("from"), &dir, &Options::archive());
    assert!(attributes(&there).is_empty(), "{:?}", attributes(&there));
    assert!(attributes(&dir).is_empty(), "{:?}", attributes(&dir));
    assert_same(&tree(&dir), &tree(&folder.path("from")));
}

/// A new entry inherits the parent's list unless the mode must be exact, whatever is preserved.
#[test]
fn a_list_from_above_stays_where_the_mode_is_not_preserved() {
    let folder = Folder::new();
    let (from, to) = (folder.dir("from"), folder.dir("to"));
    set_attribute(&to, "system.posix_acl_default", &some_acl());
    folder.file("from/file", "x");
    let (mode, kind) = (rustix::fs::Mode::RUSR, rustix::fs::FileType::Fifo);
    rustix::fs::mknodat(rustix::fs::CWD, from.join("fifo"), kind, mode, 0).unwrap();
    for xattrs in [false, true] {
        for name in ["file", "fifo"] {
            let mut options = Options::new();
            options.preserve.xattrs = xattrs;
            let made = to.join(format!("{name} {xattrs}"));
            copy_all(from.join(name), &made, &options);
            let names: Vec<_> = attributes(&made).into_keys().collect();
            assert_eq!(names, [b"system.posix_acl_access"], "{name} {xattrs}");
        }
    }
}

#[test]
fn what_is_there_is_kept() {
    let folder = Folder::new();
    for name in ["from", "from/inner", "to", "to/inner"] {
        folder.dir(name);
    }
    for name in ["a", "inner/b", "inner/new"] {
        folder.file(&format!("from/{name}"), "new");
    }
    symlink("new", folder.path("from/link")).unwrap();
    folder.file("to/a", "old");
    folder.file("to/link", "old");
    symlink("nowhere", folder.path("to/inner/b")).unwrap();
    for dry_run in [true, false] {
        let mut options = options(Existing::Keep);
        options.dry_run = dry_run;
        let counts = copy_all(folder.path("from"), folder.path("to"), &options).counts;
        assert_eq!((counts.skipped, counts.files, counts.directories), (3, 1, 2), "{dry_run}");
        assert_eq!(folder.path("to/inner/new").exists(), !dry_run);
    }
    assert_eq!(
        (text(folder.path("to/a")), text(folder.path("to/link"))),
        ("old".into(), "old".into())
    );
    assert_eq!(fs::read_link(folder.path("to/inner/b")).unwrap(), Path::new("nowhere"));
}

#[test]
fn what_is_older_is_updated() {
    let folder = Folder::new();
    folder.dir("from");
    folder.dir("to");
    for (name, source, there) in [
        ("older", (1000, 5), (1000, 4)),
        ("same", (1000, 5), (1000, 5)),
        ("newer", (1000, 5), (1000, 6)),
        ("ancient", (-5, 5), (-6, 6)),
    ] {
        set_time(&folder.file(&format!("from/{name}"), "new"), source);
        set_time(&folder.file(&format!("to/{name}"), "old"), there);
    }
    let report = copy_all(folder.path("from"), folder.path("to"), &options(Existing::Update));
    assert_eq!((report.counts.files, report.counts.skipped), (2, 2));
    for (name, expected) in
        [("older", "new"), ("same", "old"), ("newer", "old"), ("ancient", "new")]
    {
        assert_eq!(text(folder.path("to").join(name)), expected, "{name}");
    }
}

/// A running program cannot be opened for writing, not even by root.
#[test]
fn what_cannot_be_opened_is_replaced_by_force() {
    let folder = Folder::new();
    let from = folder.file("from", "new");
    let to = folder.path("to");
    // In another process: a test that forks meanwhile would keep a writable descriptor of it.
    crate::support::run(std::process::Command::new("cp").arg("/bin/sleep").arg(&to));
    let mut running = std::process::Command::new(&to).arg("60").spawn().unwrap();
    let mut options = Options::new();
    let failed = copy(&from, &to, &options);
    options.force = true;
    let forced = copy(&from, &to, &options);
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(failure(&failed).starts_with("open "), "{failed:#?}");
    assert!(forced.is_complete(), "{forced:#?}");
    assert_eq!(text(&to), "new");
}

#[test]
fn directories_and_others_do_not_replace_each_other() {
    let folder = Folder::new();
    for name in ["from/a", "to/b", "from/inner"] {
        folder.dir(name);
    }
    folder.file("from/b", "file");
    folder.file("to/a", "file");
    folder.file("from/c", "c");
    symlink("nowhere", folder.path("to/inner")).unwrap();
    symlink("nowhere", folder.path("from/d")).unwrap();
    folder.dir("to/d");
    folder.file("to/d/inside", "");
    let mut options = Options::new();
    for force in [false, true] {
        options.force = force;
        let report = copy(folder.path("from"), folder.path("to"), &options);
        assert_eq!((report.counts.failures, report.counts.files), (4, 1), "{report:#?}");
        assert_eq!(
            (text(folder.path("to/a")), text(folder.path("to/c"))),
            ("file".into(), "c".into())
        );
        assert!(folder.path("to/d/inside").exists() && folder.path("to/b").is_dir());
        // The same for the roots themselves.
        let report = copy(folder.path("from"), folder.path("to/a"), &options);
        assert!(failure(&report).contains("to/a"), "{report:?}");
        let report = copy(folder.path("from/b"), folder.path("to/d"), &options);
        assert!(failure(&report).contains("to/d"), "{report:?}");
    }
}

#[test]
fn links_at_the_destination_are_replaced() {
    let folder = Folder::new();
    let precious = folder.file("precious", "precious");
    let kept = folder.dir("kept");
    folder.dir("from/inner");
    for name in ["a", "b", "inner/c"] {
        folder.file(&format!("from/{name}"), "new");
    }
    folder.dir("to");
    symlink(&precious, folder.path("to/a")).unwrap();
    symlink("nowhere", folder.path("to/b")).unwrap();
    copy_all(folder.path("from"), folder.path("to"), &Options::new());
    for name in ["to/a", "to/b", "to/inner/c"] {
        assert!(fs::symlink_metadata(folder.path(name)).unwrap().is_file());
        assert_eq!(text(folder.path(name)), "new");
    }
    assert_eq!(text(&precious), "precious");
    // A link to a directory does not take a directory's place within a tree; at the root it does.
    fs::remove_dir_all(folder.path("to/inner")).unwrap();
    symlink(&kept, folder.path("to/inner")).unwrap();
    let report = copy(folder.path("from"), folder.path("to"), &Options::new());
    assert!(failure(&report).contains("to/inner"), "{report:?}");
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
    copy_all(folder.path("from"), folder.path("to/inner"), &Options::archive());
    assert_same(&tree(&kept), &tree(&folder.path("from")));
}

#[test]
fn a_fifo_at_the_destination_is_replaced_by_force_or_by_its_like() {
    let folder = Folder::new();
    folder.dir("from");
    folder.dir("to");
    let new = folder.file("from/a", "new");
    make_node(&folder.path("to/a"), FileType::Fifo, 0);
    for (from, to) in [("from", "to"), ("from/a", "to/a")] {
        let report = copy(folder.path(from), folder.path(to), &Options::new());
        assert!(failure(&report).contains("force"), "{report:?}");
        assert!(fs::metadata(folder.path("to/a")).unwrap().file_type().is_fifo());
    }
    let mut forced = Options::new();
    forced.force = true;
    copy_all(folder.path("from"), folder.path("to"), &forced);
    assert_eq!(text(folder.path("to/a")), "new");
    // The same in the other direction.
    fs::remove_file(&new).unwrap();
    make_node(&new, FileType::Fifo, 0);
    for _ in 0..2 {
        copy_all(folder.path("from"), folder.path("to"), &Options::new());
        assert!(fs::metadata(folder.path("to/a")).unwrap().file_type().is_fifo());
    }
}

#[test]
fn a_device_that_is_the_destination_is_written_to() {
    let folder = Folder::new();
    let file = folder.file("a", "new");
    let before = fs::metadata("/dev/null").unwrap();
    copy_all(&file, "/dev/null", &Options::archive());
    let after = fs::metadata("/dev/null").unwrap();
    assert_eq!((before.ino(), before.mode()), (after.ino(), after.mode()));
}

#[test]
fn a_file_is_not_copied_to_itself() {
    let folder = Folder::new();
    let file = folder.file("a", "precious");
    fs::hard_link(&file, folder.path("b")).unwrap();
    symlink("a", folder.path("link")).unwrap();
    let mut follows = Options::new();
    follows.follow = Follow::Always;
    let mut forced = Options::new();
    forced.force = true;
    for options in [Options::new(), forced, follows.clone()] {
        for to in ["a", "b", "./a"] {
            let report = copy(&file, folder.path(to), &options);
            assert!(failure(&report).contains("itself"), "{report:?}");
        }
    }
    let report = copy(folder.path("link"), &file, &follows);
    assert!(failure(&report).contains("itself"), "{report:?}");
    assert_eq!(text(&file), "precious");
    let report = copy(folder.root(), folder.root(), &Options::new());
    assert!(failure(&report).contains("itself"), "{report:?}");
    // The same within a tree, through links of the destination.
    folder.dir("from");
    fs::hard_link(&file, folder.path("from/a")).unwrap();
    symlink("from", folder.path("to")).unwrap();
    let report = copy(folder.path("from"), folder.path("to"), &Options::new());
    assert!(failure(&report).contains("itself"), "{report:?}");
    assert_eq!(text(&file), "precious");
    // The same through a link that the caller has named. Within a tree a copy takes the link's place.
    let report = copy(&file, folder.path("link"), &Options::new());
    assert!(failure(&report).contains("itself"), "{report:?}");
    folder.dir("tree");
    fs::hard_link(&file, folder.path("tree/link")).unwrap();
    folder.dir("copy");
    symlink("../a", folder.path("copy/link")).unwrap();
    copy_all(folder.path("tree"), folder.path("copy"), &Options::new());
    assert!(!folder.path("copy/link").is_symlink());
    assert_eq!(
        (text(&file), text(folder.path("copy/link"))),
        ("precious".into(), "precious".into())
    );
}

/// The caller has named the link, and `/dev/stdout` is such a link. `cp` does the same.
#[test]
fn a_link_that_is_the_destination_is_written_through() {
    let folder = Folder::new();
    let (from, there) = (folder.file("from", "new"), folder.file("there", "there before"));
    set_mode(&there, 0o600);
    symlink("there", folder.path("link")).unwrap();
    for options in [Options::new(), {
        let mut forced = Options::archive();
        forced.force = true;
        forced
    }] {
        fs::write(&there, "there before").unwrap();
        copy_all(&from, folder.path("link"), &options);
        assert!(folder.path("link").is_symlink());
        assert_eq!(text(&there), "new");
    }
    symlink("nowhere", folder.path("dangling")).unwrap();
    let report = copy(&from, folder.path("dangling"), &Options::new());
    assert!(failure(&report).contains("link to nothing"), "{report:?}");
    assert!(!folder.path("nowhere").exists());
    // A link's target that is not a regular file is written to, even with force, and keeps its kind.
    make_node(&folder.path("fifo"), FileType::Fifo, 0);
    symlink("fifo", folder.path("to fifo")).unwrap();
    let mut forced = Options::new();
    forced.force = true;
    for options in [Options::new(), forced] {
        let fifo = File::options().read(true).write(true).open(folder.path("fifo")).unwrap();
        copy_all(&from, folder.path("to fifo"), &options);
        let mut bytes = [0; 3];
        std::io::Read::read_exact(&mut &fifo, &mut bytes).unwrap();
        assert_eq!(&bytes, b"new");
        assert!(folder.path("to fifo").is_symlink());
        assert!(fs::metadata(folder.path("fifo")).unwrap().file_type().is_fifo());
    }
}

/// A link copied onto its target would become a loop, and the contents would be lost.
#[test]
fn a_link_does_not_take_the_place_of_what_it_leads_to() {
    let folder = Folder::new();
    folder.dir("from");
    folder.dir("to");
    folder.file("to/f", "precious");
    symlink("../to/f", folder.path("from/f")).unwrap();
    for existing in [Existing::Overwrite, Existing::Update] {
        for force in [false, true] {
            let mut options = Options::archive();
            (options.existing, options.force) = (existing, force);
            set_time(&folder.path("from/f"), (4_000_000_000, 0));
            for [from, to] in [["from", "to"], ["from/f", "to/f"]] {
                let report = copy(folder.path(from), folder.path(to), &options);
                assert!(failure(&report).contains("itself"), "{report:?}");
                assert_eq!(text(folder.path("to/f")), "precious");
            }
        }
    }
    // The two names belong to one link, and one of them stays.
    fs::remove_file(folder.path("to/f")).unwrap();
    fs::hard_link(folder.path("from/f"), folder.path("to/f")).unwrap();
    let report = copy_all(folder.path("from"), folder.path("to"), &Options::archive());
    assert_eq!((report.counts.skipped, report.counts.symlinks), (1, 0));
    // A link to another file is not replaced if it is a name of the source.
    for name in ["from", "to"] {
        fs::remove_file(folder.path(name).join("f")).unwrap();
    }
    folder.file("from/a", "text");
    fs::hard_link(folder.path("from/a"), folder.path("from/b")).unwrap();
    fs::hard_link(folder.path("from/a"), folder.path("to/b")).unwrap();
    let report = copy(folder.path("from"), folder.path("to"), &Options::archive());
    assert!(failure(&report).contains("itself"), "{report:?}");
}

#[test]
fn a_device_that_is_the_destination_is_not_replaced_by_force() {
    needs_root!();
    let folder = Folder::new();
    let file = folder.file("a", "new");
    make_node(&folder.path("null"), FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let mut forced = Options::new();
    forced.force = true;
    let before = fs::metadata(folder.path("null")).unwrap().ino();
    let copied = copy(&file, folder.path("null"), &forced);
    assert!(copied.is_complete(), "{copied:?}");
    assert_eq!(fs::metadata(folder.path("null")).unwrap().ino(), before);
}

/// Devices and FIFOs are read on request, as without `-r`.
#[test]
fn special_files_are_read() {
    let folder = Folder::new();
    let (fifo, to) = (folder.path("fifo"), folder.file("to", "there before"));
    make_node(&fifo, FileType::Fifo, 0);
    let mut options = Options::new();
    (options.read_special, options.follow) = (true, Follow::Always);
    let contents = crate::support::bytes(300_000, 4);
    let writer = std::thread::spawn({
        let (fifo, contents) = (fifo.clone(), contents.clone());
        move || fs::write(fifo, contents).unwrap()
    });
    let report = copy_all(&fifo, &to, &options);
    writer.join().unwrap();
    assert_eq!((report.counts.files, report.counts.bytes), (1, 300_000));
    assert!(fs::read(&to).unwrap() == contents);
    copy_all("/dev/null", &to, &options);
    assert!(fs::read(&to).unwrap().is_empty());
    let report = copy_all("/dev/null", folder.path("new"), &options);
    assert_eq!((report.counts.files, report.counts.others), (1, 0));
    assert!(fs::symlink_metadata(folder.path("new")).unwrap().is_file());
}

/// The copy clears the bits, as the kernel does at a write of an unprivileged user.
#[test]
fn an_overwritten_file_loses_its_set_id_bits() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    let from = folder.file("from", "new");
    for (mode, expected) in [(0o4755, 0o755), (0o6755, 0o755), (0o2644, 0o2644)] {
        let to = folder.file("to", "old");
        give_to_nobody(&to);
        set_mode(&to, mode);
        let said = nobody.run("r", &from, &to);
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_eq!(text(&to), "new");
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, expected, "{mode:o}");
        // The bits stay if the user has the right to keep them.
        set_mode(&to, mode);
        copy_all(&from, &to, &Options::new());
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, mode);
        fs::remove_file(&to).unwrap();
    }
}

/// A directory can receive a copy without being readable.
#[test]
fn a_directory_that_cannot_be_read_is_copied_to() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    folder.dir("from/inner");
    folder.file("from/a", "text");
    folder.file("from/inner/b", "text");
    for letters in ["r", "a", "rs", "as"] {
        let to = folder.dir("to");
        folder.dir("to/inner");
        for name in ["to", "to/inner"] {
            give_to_nobody(&folder.path(name));
            set_mode(&folder.path(name), 0o300);
        }
        let said = nobody.run(letters, &folder.path("from"), &to);
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_eq!((text(to.join("a")), text(to.join("inner/b"))), ("text".into(), "text".into()));
        let expected = if letters.contains('a') { 0o755 } else { 0o300 };
        for name in ["to", "to/inner"] {
            assert_eq!(
                fs::metadata(folder.path(name)).unwrap().mode() & 0o7777,
                expected,
                "{name}"
            );
        }
        fs::remove_dir_all(&to).unwrap();
    }
}

/// A new directory may be unreadable, if its default access control list denies its owner to read it.
#[test]
fn a_directory_is_made_that_cannot_be_read() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    folder.dir("from/inner");
    folder.file("from/inner/b", "text");
    // The version, then tag, permissions and no identifier: others have no rights.
    let list_of = |owner: u8| {
        let list = [&[2, 0, 0, 0][..], &[1, 0, owner, 0], &[255; 4], &[4, 0, 0, 0], &[255; 4]];
        [&list.concat()[..], &[32, 0, 0, 0], &[255; 4]].concat()
    };
    // The owner may write and search, or only read, which a copy has to change meanwhile.
    for (letters, owner) in [("r", 3), ("a", 3), ("rs", 3), ("r", 4), ("a", 4), ("rs", 4)] {
        let list = list_of(owner);
        let above = folder.dir("above");
        give_to_nobody(&above);
        crate::support::set_attribute(&above, "system.posix_acl_default", &list);
        let to = above.join("to");
        let said = nobody.run(letters, &folder.path("from"), &to);
        assert_eq!(said.failures, 0, "{}", said.output);
        assert_eq!(text(to.join("inner/b")), "text");
        let expected = if letters == "a" { 0o755 } else { u32::from(owner) << 6 };
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, expected, "{letters}, {owner}");
        fs::remove_dir_all(&above).unwrap();
    }
}

/// A user who may write to a file without owning it can set its contents and nothing else.
#[test]
fn a_file_stays_that_gets_contents_and_no_attributes() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    for (number, contents) in ["short".to_owned(), "long ".repeat(200_000)].iter().enumerate() {
        let from = folder.file(&format!("{number}"), contents);
        let to = folder.dir(&format!("to {number}"));
        give_to_nobody(&to);
        let there = folder.file(&format!("to {number}/file"), "there before");
        set_mode(&there, 0o666);
        let said = nobody.run("a", &from, &there);
        assert_eq!(said.failures, 1, "{}", said.output);
        assert_eq!(&text(&there), contents);
        let stat = fs::metadata(&there).unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.uid()), (0o666, 0));
    }
}

/// A new owner does not inherit the right to run it as the old one.
#[test]
fn set_id_bits_do_not_outlive_a_change_of_owner() {
    needs_root!();
    let folder = Folder::new();
    let (from, same) = (folder.file("from", "new"), folder.file("same", "new"));
    give_to_nobody(&from);
    let mut options = Options::new();
    options.preserve.ownership = true;
    for (mode, expected) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4700, 0o700)] {
        for (source, expected) in [(&from, expected), (&same, mode)] {
            let there = folder.file("there", "old");
            set_mode(&there, mode);
            copy_all(source, &there, &options);
            let made = fs::metadata(&there).unwrap().mode() & 0o7777;
            assert_eq!(made, expected, "{made:o} of {mode:o}, {}", source.display());
            fs::remove_file(&there).unwrap();
        }
    }
}

/// A user's attributes can be set only on a writable file.
#[test]
fn a_file_that_its_owner_cannot_write_to_has_its_attributes_under_a_list_from_above() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    let (from, to) = (folder.file("from", "text"), folder.dir("to"));
    set_attribute(&from, "user.test", b"value");
    set_mode(&from, 0o555);
    set_attribute(&to, "system.posix_acl_default", &some_acl());
    for path in [&from, &to] {
        give_to_nobody(path);
    }
    let said = nobody.run("a", &from, &to.join("file"));
    assert_eq!(said.failures, 0, "{}", said.output);
    let made = attributes(&to.join("file"));
    assert_eq!(made.get(&b"user.test"[..]).map(Vec::as_slice), Some(&b"value"[..]));
    assert_eq!(fs::metadata(to.join("file")).unwrap().mode() & 0o7777, 0o555);
}

/// A file whose owner will change is created for that owner alone; then it gets the source's permissions.
#[test]
fn a_list_from_above_does_not_keep_permissions_from_a_new_owner() {
    let folder = Folder::new();
    folder.dir("to");
    // The owner, a named group and the others may read.
    let list = acl(&[
        (1, 5, u32::MAX),
        (4, 5, u32::MAX),
        (8, 6, 1234),
        (16, 7, u32::MAX),
        (32, 5, u32::MAX),
    ]);
    set_attribute(&folder.path("to"), "system.posix_acl_default", &list);
    let (from, to) = (folder.file("from", "x"), folder.path("to/file"));
    set_mode(&from, 0o640);
    let mut options = Options::new();
    options.preserve.ownership = true;
    copy_all(&from, &to, &options);
    assert_eq!(fs::metadata(&to).unwrap().mode() & 0o7777, 0o640);
}

/// Contents of the directories are kept and completed, with or without a link to them.
#[test]
fn directories_that_links_lead_to_are_completed() {
    let folder = Folder::new();
    folder.dir("from/inner");
    folder.dir("other");
    symlink("../other", folder.path("from/link")).unwrap();
    for name in ["from/inner", "other"] {
        folder.file(&format!("{name}/a"), "new");
        folder.file(&format!("{name}/b"), "new");
    }
    for name in ["to/inner", "to/link"] {
        folder.dir(name);
        folder.file(&format!("{name}/a"), "there before");
    }
    for preserve in [Options::new().preserve, Options::archive().preserve] {
        let mut options = options(Existing::Keep);
        (options.follow, options.preserve) = (sakia_copy::Follow::Always, preserve);
        copy_all(folder.path("from"), folder.path("to"), &options);
        for name in ["to/inner", "to/link"] {
            let name = folder.path(name);
            assert_eq!(
                (text(name.join("a")), text(name.join("b"))),
                ("there before".into(), "new".into())
            );
            fs::remove_file(name.join("b")).unwrap();
        }
    }
}

/// A link older than the source may lead to a newer file, which is kept. `cp` does the same.
#[test]
fn what_a_link_leads_to_is_compared() {
    let folder = Folder::new();
    folder.dir("from");
    folder.file("from/a", "new");
    folder.dir("to");
    let there = folder.file("there", "there before");
    symlink("../there", folder.path("to/a")).unwrap();
    for (time, is_kept) in [(4_000_000_000, true), (1_000_000_000, false)] {
        set_time(&there, (time, 0));
        copy_all(folder.path("from"), folder.path("to"), &options(Existing::Update));
        assert_eq!(folder.path("to/a").is_symlink(), is_kept);
        assert_eq!(text(&there), "there before");
    }
}

/// Force replaces the device if the caller names it or a link to it.
#[test]
fn a_device_that_cannot_be_opened_is_replaced() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    let from = folder.file("from", "text");
    set_mode(&from, 0o644);
    make_node(&folder.path("device"), FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    set_mode(&folder.path("device"), 0);
    let to = folder.dir("to");
    give_to_nobody(&to);
    symlink("../device", to.join("link")).unwrap();
    fs::hard_link(folder.path("device"), to.join("name")).unwrap();
    for name in ["link", "name"] {
        for (letters, failures) in [("r", 1), ("rf", 0)] {
            let said = nobody.run(letters, &from, &to.join(name));
            assert_eq!(said.failures, failures, "{name}, {letters}: {}", said.output);
        }
        assert_eq!(text(to.join(name)), "text");
        assert!(to.join(name).symlink_metadata().unwrap().is_file());
    }
}

/// Nothing would change or be lost. `cp` does the same.
#[test]
fn a_link_onto_another_name_of_itself_stays() {
    let folder = Folder::new();
    symlink("nowhere", folder.path("a")).unwrap();
    folder.dir("to");
    for name in ["b", "to/b"] {
        fs::hard_link(folder.path("a"), folder.path(name)).unwrap();
    }
    let copier = sakia_copy::Copier::new(Options::archive());
    let progress = Default::default();
    crate::support::runtime().block_on(async {
        // The second is a name of a file copied before.
        for name in ["a", "b"] {
            let to = folder.path("to").join(name);
            let copied = copier.copy(folder.path(name), to, &progress).await.unwrap();
            assert!(copied.is_complete(), "{name}: {copied:?}");
        }
    });
    assert_eq!(fs::read_link(folder.path("to/b")).unwrap(), Path::new("nowhere"));
}

/// The copy identifies the link by its own name, whatever path the caller has used.
#[test]
fn a_link_to_its_own_directory_is_replaced() {
    let folder = Folder::new();
    folder.dir("in");
    symlink("nowhere", folder.path("from")).unwrap();
    fs::hard_link(folder.path("from"), folder.path("name")).unwrap();
    make_node(&folder.path("fifo"), FileType::Fifo, 0);
    for name in ["from", "fifo"] {
        symlink(".", folder.path("in/link")).unwrap();
        let to = folder.path("in/link/link");
        copy_all(folder.path(name), &to, &Options::archive());
        let (is, expected) = (folder.path("in/link"), folder.path(name));
        let kind = |path: &Path| fs::symlink_metadata(path).unwrap().file_type();
        assert_eq!(kind(&is), kind(&expected), "{name}");
        fs::remove_file(is).unwrap();
    }
    // The same for a name of a file copied before.
    symlink(".", folder.path("in/link")).unwrap();
    let copier = sakia_copy::Copier::new(Options::archive());
    let progress = Default::default();
    crate::support::runtime().block_on(async {
        for (from, to) in [("from", "in/first"), ("name", "in/link/link")] {
            let copied = copier.copy(folder.path(from), folder.path(to), &progress).await;
            assert!(copied.unwrap().is_complete(), "{from}");
        }
    });
    let number = |name: &str| fs::symlink_metadata(folder.path(name)).unwrap().ino();
    assert_eq!(number("in/first"), number("in/link"));
}

#[test]
fn a_link_is_not_replaced_by_itself() {
    let folder = Folder::new();
    symlink("nowhere", folder.path("link")).unwrap();
    make_node(&folder.path("fifo"), FileType::Fifo, 0);
    for name in ["link", "fifo"] {
        let before = fs::symlink_metadata(folder.path(name)).unwrap().ino();
        let report = copy(folder.path(name), folder.path(name), &Options::new());
        assert!(failure(&report).contains("itself"), "{report:?}");
        assert_eq!(fs::symlink_metadata(folder.path(name)).unwrap().ino(), before);
    }
}

/// The copy fails before it creates anything.
#[test]
fn a_tree_is_not_copied_into_itself() {
    let folder = Folder::new();
    folder.dir("from/inner/deep");
    folder.file("from/a", "x");
    symlink("from/inner", folder.path("way in")).unwrap();
    symlink("..", folder.path("from/inner/up")).unwrap();
    let before = tree(folder.root());
    for to in
        ["from/new", "from/inner/new", "from/inner/deep", "way in", "way in/new", "from/./new/"]
    {
        for dry_run in [false, true] {
            let mut options = Options::archive();
            options.dry_run = dry_run;
            let report = copy(folder.path("from"), folder.path(to), &options);
            let says = ["it is inside its source", "it is the source itself"];
            let said = failure(&report);
            assert!(says.iter().any(|text| said.contains(text)), "{to}: {report:?}");
            assert_eq!(report.counts.entries(), 0, "{to}");
            assert_same(&tree(folder.root()), &before);
        }
    }
    // These names only look similar.
    copy_all(folder.path("from"), folder.path("from/../from too"), &Options::new());
    copy_all(folder.path("from/inner"), folder.path("from/new"), &Options::new());
}

/// The walk meets the copy through a link that leads out of the source.
#[test]
fn a_link_to_the_copy_is_not_followed_for_ever() {
    let folder = Folder::new();
    folder.dir("from");
    folder.file("from/a", "x");
    symlink("..", folder.path("from/up")).unwrap();
    let mut options = Options::new();
    options.follow = Follow::Always;
    let report = copy(folder.path("from"), folder.path("to"), &options);
    assert_eq!(report.counts.failures, 2, "{report:#?}");
    assert_eq!(text(folder.path("to/a")), "x");
}

#[test]
fn what_a_killed_copy_left_is_replaced() {
    let folder = Folder::new();
    folder.dir("from/inner");
    set_time(&folder.file("from/a", "all of it"), (1000, 0));
    folder.file("from/inner/b", "all of it");
    for existing in [Existing::Keep, Existing::Update, Existing::Overwrite] {
        for options in [options(existing), {
            let mut options = Options::archive();
            options.existing = existing;
            options
        }] {
            folder.dir("to/inner");
            set_mode(&folder.file("to/a", "half"), 0o1200);
            set_mode(&folder.path("to/inner"), 0o1700);
            let report = copy_all(folder.path("from"), folder.path("to"), &options);
            assert_eq!((report.counts.files, report.counts.skipped), (2, 0), "{options:?}");
            assert_eq!(text(folder.path("to/a")), "all of it");
            let modes =
                ["to/a", "to/inner"].map(|name| fs::metadata(folder.path(name)).unwrap().mode());
            let expected = ["from/a", "from/inner"];
            assert_eq!(modes, expected.map(|name| fs::metadata(folder.path(name)).unwrap().mode()));
            fs::remove_dir_all(folder.path("to")).unwrap();
        }
    }
}

/// A file with the mode of an incomplete one is kept if it belongs to another user.
#[test]
fn what_somebody_else_left_is_kept() {
    needs_root!();
    let folder = Folder::new();
    let (from, to) = (folder.file("from", "new"), folder.file("to", "old"));
    set_mode(&to, 0o1200);
    std::os::unix::fs::chown(&to, Some(1234), None).unwrap();
    set_mode(&to, 0o1200);
    copy_all(from, &to, &options(Existing::Keep));
    assert_eq!(text(&to), "old");
}

#[test]
fn nothing_is_there_to_be_copied_or_copied_to() {
    let folder = Folder::new();
    let report = copy(folder.path("from"), folder.path("to"), &Options::new());
    assert!(failure(&report).starts_with("stat "), "{report:?}");
    File::create(folder.path("from")).unwrap();
    let report = copy(folder.path("from"), folder.path("none/to"), &Options::new());
    assert!(failure(&report).starts_with("create "), "{report:?}");
    let nul = std::ffi::OsStr::new("a\0b");
    let progress = sakia_copy::Progress::new().into();
    let copying = sakia_copy::copy_tree(nul, nul, &Options::new(), &progress).await_here();
    assert_eq!(copying.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

trait AwaitHere: Future + Sized {
    fn await_here(self) -> Self::Output {
        crate::support::runtime().block_on(self)
    }
}

impl<F: Future> AwaitHere for F {}
