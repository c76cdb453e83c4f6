//! Queues of requests: each token is answered once, whichever threads submit and take, and at every end.

mod ends;
mod hostile;
mod sleeps;
mod tokens_model;

use std::ffi::CString;
use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sakia::Builder;
use sakia::engine::Queue;
use sakia::engine::queue::{FileHandle, Outcome, Request, Submitted, Value};
use sakia_driver::{CURRENT_POSITION, OpenHow, PollEvents};

use crate::support::{Folder, engine, on_each_backend};

on_each_backend! {
    paths_that_the_kernel_knows_are_answered_at_once
    requests_that_go_on_are_refused
}

/// Waits for the next outcome.
fn next(queue: &Queue) -> Outcome {
    let mut outcomes = Vec::new();
    while queue.take(1, &mut outcomes) == 0 {
        queue.wait(None).unwrap();
    }
    outcomes.pop().unwrap()
}

/// Returns the outcome of a request that was submitted alone.
fn outcome(queue: &Queue, submitted: Submitted) -> Outcome {
    match submitted {
        Submitted::Done(outcome) => outcome,
        Submitted::UnderWay(_) => next(queue),
    }
}

fn errno<T>(result: &std::io::Result<T>) -> Option<i32> {
    result.as_ref().err()?.raw_os_error()
}

/// Returns a read that only bytes or a cancellation end.
fn endless(pipe: &FileHandle) -> Request {
    Request::read(pipe, vec![0; 8].into(), CURRENT_POSITION)
}

fn pipe() -> (FileHandle, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (FileHandle::new(OwnedFd::from(reader)), writer)
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The same outcomes as those of the standard library, from the thread that submits, and from the engine's,
/// where the kernel does not know the path.
fn paths_that_the_kernel_knows_are_answered_at_once(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let folder = Folder::new();
    let file = folder.path("file");
    std::fs::write(&file, "contents").unwrap();
    let directory = FileHandle::new(std::fs::File::open(folder.path("")).unwrap());
    let (mut at_once, mut rounds) = (0, 0);
    while at_once < 5 {
        rounds += 1;
        assert!(rounds < 1000, "only {at_once} kinds at once");
        at_once = 0;
        let mut perform = |request| {
            let submitted = queue.submit(request, 1).unwrap();
            at_once += u32::from(matches!(submitted, Submitted::Done(_)));
            outcome(&queue, submitted)
        };
        let inode = std::fs::metadata(&file).unwrap().ino();
        for (at, name) in [(None, path(&file)), (Some((&directory).into()), c"file".into())] {
            let stat = Request::Stat { directory: at, path: Some(name), flags: 0 };
            let Value::Stat(found) = perform(stat).value else { panic!("it is there") };
            assert_eq!((found.inode, found.size), (inode, 8));
        }
        let stat = Request::Stat { directory: Some((&directory).into()), path: None, flags: 0 };
        let Value::Stat(found) = perform(stat).value else { panic!("it is there") };
        assert_eq!(found.inode, std::fs::metadata(folder.path("")).unwrap().ino());
        let how = OpenHow::default();
        let opened = perform(Request::Open { directory: None, path: path(&file), how });
        let opened = opened.into_file().unwrap();
        assert_eq!(perform(Request::read(&opened, vec![0; 8].into(), 0)).result.unwrap(), 8);
        let missing =
            Request::Open { directory: Some((&directory).into()), path: c"none".into(), how };
        assert_eq!(errno(&perform(missing).result), Some(libc::ENOENT));
    }
    // A file that is made is none of these.
    let how = OpenHow { flags: (libc::O_CREAT | libc::O_WRONLY) as u64, mode: 0o600, resolve: 0 };
    let submitted = queue.submit(
        Request::Open { directory: Some((&directory).into()), path: c"new".into(), how },
        2,
    );
    assert!(matches!(submitted, Ok(Submitted::UnderWay(_))));
    drop(outcome(&queue, submitted.unwrap()).into_file().unwrap());
    assert!(folder.path("new").exists());
}

/// No thread would have to take their outcomes.
fn requests_that_go_on_are_refused(builder: &Builder) {
    let engine = engine(builder);
    let queue = engine.queue().unwrap();
    let (near, _far) = UnixStream::pair().unwrap();
    let near = FileHandle::new(OwnedFd::from(near));
    for request in [
        Request::PollMany { file: (&near).into(), events: PollEvents::WRITABLE },
        Request::AcceptMany { socket: (&near).into() },
        Request::ReceiveMany { socket: (&near).into() },
    ] {
        let Submitted::Done(refused) = queue.submit(request, 7).unwrap() else { panic!("refused") };
        assert_eq!((refused.token, refused.more), (7, false));
        assert_eq!(errno(&refused.result), Some(libc::EOPNOTSUPP));
    }
    assert_eq!((queue.under_way(), engine.statistics().live), (0, 0));
}
