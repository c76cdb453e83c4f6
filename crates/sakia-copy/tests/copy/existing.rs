//! Existing entries at the destination, and copies that must be refused.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::FileType;
use sakia_copy::{Existing, Follow, Options};

use crate::children::{Nobody, give_to_nobody};
use crate::support::{
    Folder, assert_same, attributes, copy, copy_all, failure, needs_root, set_attribute, some_acl,
    tree,
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
