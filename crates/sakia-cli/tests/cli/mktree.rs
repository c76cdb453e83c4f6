//! `sakia mktree`.

use std::fs;

use crate::support::{TempDir, run, sakia};

#[test]
fn tree_is_made_and_counted() {
    let directory = TempDir::new();
    let tree = directory.path().join("a/tree");
    let shape = ["--fanout", "3", "--levels", "3", "--files", "2", "--size", "1K"];
    let ended = run(sakia(["mktree"]).arg(&tree).args(shape));
    ended.assert_quiet_success();
    assert_eq!(ended.stdout, "26 files in 13 directories, 26624 bytes\n");
    assert_eq!(fs::read(tree.join("d2/d0/f1")).unwrap().len(), 1024);

    let again = run(sakia(["mktree"]).arg(&tree).args(shape));
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""));
    assert_eq!(again.stderr, format!("sakia: {} is not empty\n", tree.display()));
}

#[test]
fn shapes_are_those_of_the_flags() {
    let directory = TempDir::new();
    let made = |name: &str, args: &[&str]| {
        let tree = directory.path().join(name);
        let ended = run(sakia(["mktree", "--json"]).arg(tree).args(args));
        ended.assert_quiet_success();
        let line = ended.json();
        assert_eq!(line["type"], "mktree");
        ["files", "directories", "bytes"].map(|name| line[name].as_u64().unwrap())
    };
    assert_eq!(made("usual", &[]), [780, 156, 780 << 12]);
    let leaves = ["--fanout", "3", "--levels", "3", "--leaves", "--size", "0"];
    assert_eq!(made("leaves", &leaves), [27, 13, 0]);
    let source = made("source", &["--sizes", "source", "--files", "200"]);
    assert_eq!(source[0], 200);
    assert_eq!(source, made("same", &["--sizes", "source", "--files", "200"]));
    assert_ne!(source, made("other", &["--sizes", "source", "--files", "200", "--seed", "3"]));
}

#[test]
fn wrong_shapes_are_wrong_usage() {
    for wrong in [
        &[][..],
        &["d", "--levels", "0"],
        &["d", "--sizes", "prose"],
        &["d", "--sizes", "source", "--size", "1"],
        &["d", "--sizes", "source", "--leaves"],
    ] {
        assert_eq!(run(sakia(["mktree"]).args(wrong)).code, Some(2), "{wrong:?}");
    }
}
