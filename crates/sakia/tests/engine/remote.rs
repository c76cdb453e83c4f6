//! Files of a server that does not answer.

use std::path::Path;

use sakia::fs::OpenOptions;
use sakia::{Builder, Engine};
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};

use crate::support::{Folder, engine, on_each_backend, on_tokio, poll_once, with_remote_mounts};

on_each_backend! {
    to_open_holds_up_nobody
    to_read_holds_up_nobody
    to_write_holds_up_nobody
    to_close_holds_up_nobody
}

/// Waits until the engine knows the mount, which was made after the engine.
fn await_knowledge(engine: &Engine, path: &Path) {
    // A lookup also fails if the name is not in the dentry cache, and now and then for other reasons.
    std::fs::metadata(path).unwrap();
    let mut refused = 0;
    while refused < 100 {
        refused = if engine.try_lookup(path, true).is_none() { refused + 1 } else { 0 };
        std::thread::yield_now();
    }
}

fn to_open_holds_up_nobody(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let local = folder.file("x", "local");
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    let path = fuse.join("a");
    await_knowledge(&engine, &path);
    // The dentry cache has the name, and the name of a link to it.
    let link = folder.path("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::fs::read(&link).unwrap();
    let gate = fuse.hold(Rule::on(Opcode::OPEN));
    let mut by_path = engine.read(&path);
    let mut by_link = engine.read(&link);
    assert!(poll_once(&mut by_path).is_pending() && poll_once(&mut by_link).is_pending());
    on_tokio(1, async {
        assert_eq!(engine.read(&local).await.unwrap(), b"local");
        assert_eq!(engine.open(&local).await.unwrap().metadata().await.unwrap().len(), 5);
    });
    gate.open();
    assert_eq!(by_path.wait().unwrap(), pattern(5000));
    assert_eq!(by_link.wait().unwrap(), pattern(5000));
}

fn to_read_holds_up_nobody(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    await_knowledge(&engine, &fuse.join("a"));
    let file = engine.open(fuse.join("a")).wait().unwrap();
    let local = engine.open(folder.file("x", "local")).wait().unwrap();
    let gate = fuse.hold(Rule::on(Opcode::READ));
    let mut held = file.read_at(vec![0; 5000], 0);
    assert!(file.try_read_at(&mut [0], 0).is_none() && poll_once(&mut held).is_pending());
    on_tokio(1, async {
        for _ in 0..3 {
            // The engine's thread is not blocked either.
            assert_eq!(local.read_at(vec![0; 100_000], 0).await.0.unwrap(), 5);
        }
    });
    gate.open();
    let (result, read) = held.wait();
    assert_eq!((result.unwrap(), read), (5000, pattern(5000)));
}

fn to_write_holds_up_nobody(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    await_knowledge(&engine, &fuse.join("a"));
    let mut options = OpenOptions::new();
    options.append(true);
    // Not looked up at its mount before: the first write is held, too.
    let file = engine.open_with(fuse.join("a"), &options).wait().unwrap();
    let local = engine.open_with(folder.file("x", ""), &options).wait().unwrap();
    let gate = fuse.hold(Rule::on(Opcode::WRITE));
    let mut held = file.write_at(b"held".to_vec(), 0);
    assert!(poll_once(&mut held).is_pending());
    on_tokio(1, async {
        for _ in 0..3 {
            assert_eq!(local.write_at(vec![7; 100_000], 0).await.0.unwrap(), 100_000);
        }
    });
    gate.open();
    assert_eq!(held.wait().0.unwrap(), 4);
    assert_eq!(std::fs::read(folder.path("x")).unwrap(), [7; 300_000]);
}

fn to_close_holds_up_nobody(builder: &Builder) {
    let engine = engine(builder);
    let _mounts = with_remote_mounts();
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    await_knowledge(&engine, &fuse.join("a"));
    let unknown = engine.open(fuse.join("a")).wait().unwrap();
    let known = engine.open(fuse.join("a")).wait().unwrap();
    on_tokio(1, known.read_at(vec![0; 10], 0)).0.unwrap();
    let gate = fuse.hold(Rule::on(Opcode::FLUSH));
    drop((unknown, known));
    gate.wait_held(2);
    assert_eq!(on_tokio(1, engine.run(|| async { 1 })).unwrap(), 1);
    gate.open();
}
