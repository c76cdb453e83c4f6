//! Operations by path.

use std::io::ErrorKind;

use sakia::fs::Permissions;
use sakia::{Builder, Engine};

use crate::support::{Folder, engine, on_each_backend, on_tokio};

on_each_backend! {
    names_are_those_of_fs
    a_directory_is_listed
}

fn names_are_those_of_fs(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    on_tokio(2, async {
        let (a, b, link) = (folder.path("a/b/a"), folder.path("a/b/b"), folder.path("link"));
        engine.create_dir_all(folder.path("a/b")).await.unwrap();
        engine.create_dir(folder.path("empty")).await.unwrap();
        engine.remove_dir(folder.path("empty")).await.unwrap();
        engine.write(&a, "text").await.unwrap();
        assert_eq!(engine.read(&a).await.unwrap(), b"text");
        assert_eq!(engine.read_to_string(&a).await.unwrap(), "text");
        assert_eq!(engine.metadata(&a).await.unwrap().len(), 4);
        assert_eq!(engine.copy(&a, &b).await.unwrap(), 4);
        engine.set_permissions(&b, Permissions::from_mode(0o600)).await.unwrap();
        assert_eq!(engine.metadata(&b).await.unwrap().permissions().mode() & 0o777, 0o600);
        engine.hard_link(&a, folder.path("hard")).await.unwrap();
        engine.symlink(&a, &link).await.unwrap();
        assert_eq!(engine.read_link(&link).await.unwrap(), a);
        assert!(engine.symlink_metadata(&link).await.unwrap().is_symlink());
        assert_eq!(engine.canonicalize(&link).await.unwrap(), std::fs::canonicalize(&a).unwrap());
        engine.rename(&a, folder.path("c")).await.unwrap();
        assert!(!engine.try_exists(&a).await.unwrap());
        engine.remove_file(folder.path("c")).await.unwrap();
        engine.remove_dir_all(folder.path("a")).await.unwrap();
        assert_eq!(engine.read(&b).await.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

fn a_directory_is_listed(builder: &Builder) {
    let (folder, engine) = (Folder::new(), engine(builder));
    for number in 0..300 {
        folder.file(&number.to_string(), "");
    }
    std::fs::create_dir(folder.path("directory")).unwrap();
    let entries = engine.read_dir(folder.path(".")).wait().unwrap();
    assert_eq!(entries.len(), 301);
    assert_eq!(entries.iter().filter(|entry| entry.file_type.is_dir()).count(), 1);
}

#[test]
fn the_engine_of_the_process_is_one() {
    let first = Engine::global().unwrap();
    let other = std::thread::spawn(|| Engine::global().unwrap());
    assert!(std::ptr::eq(first, other.join().unwrap()));
    assert_eq!(first.run(|| async { 1 }).wait().unwrap(), 1);
}
