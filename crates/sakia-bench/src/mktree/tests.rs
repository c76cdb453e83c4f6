use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

use super::*;

fn even(fanout: u32, levels: u32, files: u32, leaves: bool, size_bytes: u64) -> Options {
    Options { layout: Layout::Even(Even { fanout, levels, files, leaves, size_bytes }), seed: SEED }
}

fn source(files: u64, seed: u64) -> Options {
    Options { layout: Layout::Source { files }, seed }
}

/// Returns every file and directory below `root`, with the bytes of files.
fn content(root: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                directories.push(path);
                found.insert(name, None);
            } else {
                found.insert(name, Some(fs::read(path).unwrap()));
            }
        }
    }
    found
}

fn counts(content: &BTreeMap<PathBuf, Option<Vec<u8>>>) -> Counts {
    let files = content.values().flatten();
    Counts {
        files: files.clone().count() as u64,
        directories: 1 + content.values().filter(|bytes| bytes.is_none()).count() as u64,
        bytes: files.map(|bytes| bytes.len() as u64).sum(),
    }
}

#[test]
fn trees_of_the_articles_have_their_counts() {
    for (options, files, directories) in [
        (even(5, 7, 5, false, 4096), 97_655, 19_531),
        (even(5, 4, 5, false, 1 << 20), 780, 156),
        (even(7, 6, 7, true, 4096), 117_649, 19_608),
    ] {
        let Layout::Even(Even { size_bytes, .. }) = options.layout else { unreachable!() };
        let expected = Counts { files, directories, bytes: files * size_bytes };
        assert_eq!(plan(&options).unwrap(), expected);
    }
}

#[test]
fn what_is_made_is_what_was_planned() {
    let scratch = tempfile::tempdir().unwrap();
    let trees = [
        even(3, 3, 2, false, 1000),
        even(3, 3, 2, true, 1),
        even(9, 1, 3, true, 0),
        even(0, 2, 1, false, PART_BYTES as u64 + 5),
        source(500, 3),
    ];
    for (index, options) in trees.iter().enumerate() {
        let path = scratch.path().join(format!("a/{index}"));
        let made = make(&path, options, &|| false).unwrap();
        assert_eq!(made, plan(options).unwrap(), "{options:?}");
        assert_eq!(made, counts(&content(&path)), "{options:?}");
    }
}

#[test]
fn seed_fixes_every_name_and_byte() {
    let scratch = tempfile::tempdir().unwrap();
    let made = |name: &str, options| {
        let path = scratch.path().join(name);
        make(&path, &options, &|| false).unwrap();
        content(&path)
    };
    let first = made("a", source(300, 1));
    assert!(first == made("b", source(300, 1)));
    assert!(first != made("c", source(300, 2)));
    let even = made("d", even(2, 2, 2, false, 4096));
    let mut bytes: Vec<_> = even.values().flatten().collect();
    assert!(bytes.iter().all(|bytes| bytes.iter().filter(|&&byte| byte == 0).count() < 100));
    bytes.sort();
    bytes.dedup();
    assert_eq!(bytes.len(), 6, "no two files are alike");
}

#[test]
fn source_is_as_source_is() {
    let counts = plan(&source(32_000, SEED)).unwrap();
    assert_eq!(counts.files, 32_000);
    assert!((300 << 20..900 << 20).contains(&counts.bytes), "{counts:?}");
    let options = source(0, SEED);
    let mut maker = Maker::new(&options, false, &|| false);
    let mut sizes: Vec<u64> = (0..32_000).map(|_| maker.source_size()).collect();
    sizes.sort_unstable();
    assert!((2500..2900).contains(&sizes[16_000]), "{}", sizes[16_000]);
    assert!((180_000..270_000).contains(&sizes[31_680]), "{}", sizes[31_680]);
    let scratch = tempfile::tempdir().unwrap();
    make(scratch.path(), &source(1000, SEED), &|| false).unwrap();
    let content = content(scratch.path());
    let deepest = content.keys().map(|path| path.components().count()).max().unwrap();
    assert!((4..=DEPTH_MAX + 1).contains(&deepest), "{deepest}");
    let is_plain = |path: &PathBuf| path.as_os_str().as_bytes().is_ascii();
    assert!(content.keys().all(is_plain));
}

#[test]
fn directory_that_is_not_empty_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let options = even(1, 1, 1, false, 1);
    assert_eq!(make(scratch.path(), &options, &|| false).unwrap().files, 1);
    let error = make(scratch.path(), &options, &|| false).unwrap_err().to_string();
    assert_eq!(error, format!("{} is not empty", scratch.path().display()));
    let file = scratch.path().join("f0");
    assert!(make(&file, &options, &|| false).is_err());
}

#[test]
fn trees_without_end_are_refused() {
    for options in [even(10, 20, 0, false, 0), even(9, 9, 9, false, 0), source(u64::MAX, 0)] {
        let error = plan(&options).unwrap_err().to_string();
        assert!(error.starts_with("more than 100000000 files"), "{error}");
    }
    for levels in [0, LEVELS_MAX + 1] {
        let error = plan(&even(1, levels, 1, false, 0)).unwrap_err().to_string();
        assert_eq!(error, "a tree has 1 to 256 levels");
    }
}

#[test]
fn what_is_stopped_ends_early() {
    let scratch = tempfile::tempdir().unwrap();
    let made = make(scratch.path(), &even(3, 3, 2, false, 10), &|| true).unwrap();
    assert_eq!((made.files, made.directories), (2, 1));
}
