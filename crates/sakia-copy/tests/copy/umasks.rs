//! Umasks that take rights from the owner: directories are filled nevertheless, as `cp` does, and all modes
//! are those that `cp` leaves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::children::{Nobody, give_to_nobody};
use crate::support::{Folder, assert_same, needs_root, set_attribute, some_acl, tree, without};

const NOBODY: u32 = 65534;

/// Makes directories in directories, with files, of which one may not be read.
fn make(from: &Path, is_readable: bool) {
    for name in ["a", "a/b", "a/b/c", "a/d"] {
        let dir = from.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), "contents").unwrap();
        fs::write(dir.join("large"), vec![1; 200_000]).unwrap();
        set_attribute(&dir.join("file"), "user.test", b"value");
        give_to_nobody(&dir.join("file"));
        give_to_nobody(&dir.join("large"));
        give_to_nobody(&dir);
    }
    fs::set_permissions(from.join("a/d"), Permissions::from_mode(0o555)).unwrap();
    if !is_readable {
        let secret = from.join("a/b/secret");
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    }
    give_to_nobody(from);
}

#[test]
fn directories_are_filled_whatever_the_umask_takes() {
    needs_root!();
    let folder = Folder::for_all();
    let nobody = Nobody::new(&folder);
    for (number, is_readable) in [(0, true), (1, false)] {
        let from = folder.dir(&format!("from{number}"));
        make(&from, is_readable);
        for (place, mode, inherits) in
            [("own", 0o755, false), ("shared", 0o777, false), ("list", 0o755, true)]
        {
            let dir = folder.dir(&format!("{place}{number}"));
            give_to_nobody(&dir);
            fs::set_permissions(&dir, Permissions::from_mode(mode)).unwrap();
            if inherits {
                set_attribute(&dir, "system.posix_acl_default", &some_acl());
            }
            for (letters, flag) in [("r", "-r"), ("a", "-a"), ("p", "-rp")] {
                for mask in [0o200, 0o300, 0o700, 0o777, 0o400, 0o022] {
                    let umask = format!("umask {mask:04o}");
                    let (theirs, ours) = (dir.join("theirs"), dir.join("ours"));
                    let script = format!("{umask}; exec cp {flag} \"$0\" \"$1\"");
                    let mut cp = Command::new("sh");
                    cp.args(["-c", &script]).args([&from, &theirs]).uid(NOBODY).gid(NOBODY);
                    let done = cp.output().unwrap();
                    let said = nobody.run_after(letters, &umask, &from, &ours);
                    let case = format!("{umask}, {flag}, {place}");
                    assert_eq!(done.status.success(), is_readable, "{case}: {done:?}");
                    assert_eq!(said.failures, u64::from(!is_readable), "{case}: {}", said.output);
                    let comparable = |root: &Path| {
                        without(tree(root), |facts| {
                            // `cp` loses attributes of a file that the umask makes read-only.
                            facts.attributes.remove(&b"user.test"[..]);
                            if letters == "r" {
                                facts.modified = (0, 0);
                            }
                        })
                    };
                    let (is, mut expected) = (comparable(&ours), comparable(&theirs));
                    // `cp` leaves an empty file there.
                    expected.retain(|path, _| is.contains_key(path) || !path.ends_with("secret"));
                    println!("{case}");
                    assert_same(&is, &expected);
                    for root in [theirs, ours] {
                        fs::remove_dir_all(root).unwrap();
                    }
                }
            }
        }
    }
}
