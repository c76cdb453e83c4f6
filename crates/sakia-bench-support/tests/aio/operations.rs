//! The context alone: the result of each operation, and the owner of its memory.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sakia_bench_support::aio::{Buf, Completion, Context, Request};

use crate::{POLLIN, TempFile, aio, errno, event, pattern, raise};

/// Runs one request and returns its completion.
fn run(context: &mut Context<u32>, request: Request) -> Completion<u32> {
    context.push(request, 7).expect("there is room");
    assert_eq!(context.submit(), 1);
    reap_one(context)
}

/// Returns a read at a negative offset, which every kernel refuses with `EINVAL`.
fn refused(file: &Arc<OwnedFd>) -> Request {
    Request::read(file, Buf::zeroed(1), u64::MAX)
}

fn reap_one(context: &mut Context<u32>) -> Completion<u32> {
    let mut done = Vec::new();
    assert_eq!(context.reap(true, &mut done).expect("no error is known"), 1);
    assert_eq!(context.live(), 0);
    done.pop().expect("it is one")
}

#[test]
fn every_operation_does_what_its_call_does() {
    let file = TempFile::new(&pattern(10_000));
    let fd = file.open();
    let mut context = aio!(Context::new(4));
    let read = run(&mut context, Request::read(&fd, Buf::zeroed(500), 1000));
    assert_eq!((read.tag, read.result.unwrap()), (7, 500));
    assert_eq!(read.memory.unwrap()[..], pattern(10_000)[1000..1500]);
    let write = run(&mut context, Request::write(&fd, Buf::from(&b"written"[..]), 3));
    assert_eq!((write.result.unwrap(), &write.memory.unwrap()[..]), (7, &b"written"[..]));
    let beyond = Request::write(&fd, Buf::from(&b"abc"[..]), 9_999);
    assert_eq!(run(&mut context, beyond).result.unwrap(), 3);
    let mut expected = pattern(9_999);
    expected[3..10].copy_from_slice(b"written");
    expected.extend(b"abc");
    assert_eq!(fs::read(file.path()).unwrap(), expected);
}

#[test]
fn poll_comes_to_its_events_or_to_a_cancel() {
    let mut context = aio!(Context::new(2));
    let event = event();
    for is_raised in [true, false] {
        context.push(Request::poll(&event, POLLIN), 1).unwrap();
        assert_eq!((context.submit(), context.in_flight()), (1, 1));
        let mut done = Vec::new();
        assert_eq!(context.reap(false, &mut done).unwrap(), 0, "nothing has happened");
        if is_raised {
            raise(&event);
            assert_eq!(reap_one(&mut context).result.unwrap(), POLLIN.into());
            rustix::io::read(&*event, &mut [0; 8]).unwrap();
        } else {
            context.cancel_polls();
            assert_eq!(errno(reap_one(&mut context).result), libc::ECANCELED);
        }
    }
}

/// A negative result is an error, not a number of bytes.
#[test]
fn negative_result_is_an_error_with_its_errno() {
    let file = TempFile::new(b"x");
    let read_only = Arc::new(fs::File::open(file.path()).unwrap().into());
    let directory = Arc::new(fs::File::open(std::env::temp_dir()).unwrap().into());
    let mut context = aio!(Context::new(8));
    // The submission refuses this write.
    let buf = Buf::from(&b"unchanged"[..]);
    context.push(Request::write(&read_only, buf, 0), 1).unwrap();
    assert_eq!(context.submit(), 0);
    let done = reap_one(&mut context);
    assert_eq!(errno(done.result), libc::EBADF);
    assert_eq!(&done.memory.unwrap()[..], b"unchanged");
    context.push(refused(&read_only), 1).unwrap();
    assert_eq!(context.submit(), 0);
    assert_eq!(errno(reap_one(&mut context).result), libc::EINVAL);
    // The submission or the completion refuses this read, depending on the file system.
    context.push(Request::read(&directory, Buf::zeroed(8), 0), 1).unwrap();
    context.submit();
    let error = reap_one(&mut context).result.unwrap_err();
    assert!([libc::EISDIR, libc::EINVAL].contains(&error.raw_os_error().unwrap()), "{error}");
    // The completion refuses this write.
    let vast = fs::File::options().write(true).open(file.path()).unwrap();
    let far = i64::MAX as u64 - 1;
    context.push(Request::write(&Arc::new(vast.into()), Buf::zeroed(1), far), 1).unwrap();
    context.submit();
    assert_eq!(errno(reap_one(&mut context).result), libc::EFBIG);
}

#[test]
fn one_that_is_refused_holds_nobody_up() {
    let file = TempFile::new(&pattern(100));
    let fd = file.open();
    let mut context = aio!(Context::new(8));
    for index in 0..5u32 {
        let request = match index {
            0 | 2 => refused(&fd),
            _ => Request::read(&fd, Buf::zeroed(10), u64::from(index) * 10),
        };
        context.push(request, index).unwrap();
    }
    assert_eq!(context.submit(), 3);
    let mut done = Vec::new();
    while context.live() > 0 {
        context.reap(true, &mut done).unwrap();
    }
    done.sort_by_key(|completion| completion.tag);
    for Completion { tag, result, memory } in done {
        match tag {
            0 | 2 => assert_eq!(errno(result), libc::EINVAL),
            _ => {
                let begin = tag as usize * 10;
                assert_eq!(result.unwrap(), 10);
                assert_eq!(memory.unwrap()[..], pattern(100)[begin..begin + 10]);
            }
        }
    }
}

#[test]
fn short_read_is_a_count_and_the_end_is_zero() {
    let file = TempFile::new(b"five!");
    let fd = file.open();
    let mut context = aio!(Context::new(1));
    for (offset, expected) in [(0, 5), (3, 2), (5, 0), (1 << 40, 0)] {
        let done = run(&mut context, Request::read(&fd, Buf::zeroed(100), offset));
        assert_eq!(done.result.unwrap(), expected, "{offset}");
        assert_eq!(done.memory.unwrap().len(), 100);
    }
}

/// Any number of requests can pass through a context with room for only two.
#[test]
fn slot_is_free_again_after_its_completion() {
    let file = TempFile::new(&pattern(1000));
    let fd = file.open();
    let mut context = aio!(Context::new(2));
    for round in 0..100u32 {
        for offset in [0, 1] {
            context.push(Request::read(&fd, Buf::zeroed(4), offset), round).unwrap();
        }
        let (_, tag) = context.push(refused(&fd), 1000).unwrap_err();
        assert_eq!((tag, context.has_room(), context.live()), (1000, false, 2));
        assert_eq!(context.submit(), 2);
        let mut done = Vec::new();
        while context.live() > 0 {
            context.reap(true, &mut done).unwrap();
        }
        assert!(done.len() == 2 && done.iter().all(|completion| completion.tag == round));
        assert!(context.has_room());
    }
}

#[test]
fn descriptor_and_memory_are_kept_until_the_completion() {
    let event = event();
    let weak = Arc::downgrade(&event);
    let mut context = aio!(Context::new(2));
    context.push(Request::poll(&event, POLLIN), 1).unwrap();
    context.submit();
    drop(event);
    let kept = weak.upgrade().expect("in flight");
    raise(&kept);
    drop(kept);
    assert!(reap_one(&mut context).result.is_ok());
    assert!(weak.upgrade().is_none());
}

#[test]
fn context_with_requests_can_be_dropped() {
    let file = TempFile::new(&pattern(100));
    let (fd, event) = (file.open(), event());
    let mut context = aio!(Context::new(4));
    context.push(Request::poll(&event, POLLIN), 1).unwrap();
    context.push(Request::write(&fd, Buf::from(&b"in flight"[..]), 0), 2).unwrap();
    context.submit();
    context.push(Request::read(&fd, Buf::zeroed(8), 0), 3).unwrap();
    assert!(context.in_flight() >= 1);
    drop(context);
    // No other owner is left.
    assert_eq!((Arc::strong_count(&fd), Arc::strong_count(&event)), (1, 1));
}

#[test]
fn room_beyond_the_limit_is_refused() {
    let limit = match fs::read_to_string("/proc/sys/fs/aio-max-nr") {
        Ok(limit) => limit.trim().parse::<u32>().unwrap(),
        Err(error) => sakia_bench_support::skip!("fs.aio-max-nr: {error}"),
    };
    drop(aio!(Context::<u32>::new(1)));
    let refused: io::Result<Context<u32>> = Context::new(limit.saturating_add(1));
    let errno = errno(refused);
    assert!([libc::EAGAIN, libc::EINVAL].contains(&errno), "{errno}");
}
