//! Threads of the C library, without the lock of the standard library's.

use std::cell::OnceCell;
use std::ffi::{CString, c_void};
use std::io;
use std::mem::{self, MaybeUninit};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// The stack of a thread for which no size was asked: that of a thread of the standard library.
const STACK_BYTES: usize = 2 << 20;
/// Sizes of stacks are multiples of this: the largest page of a supported machine.
const PAGE_BYTES: usize = 64 << 10;
/// The longest name that the kernel takes.
const NAME_BYTES: usize = 15;

/// A thread of this process, which goes on if this is dropped. It may be used and dropped in this process
/// only.
#[derive(Debug)]
pub(crate) struct Thread(libc::pthread_t);

thread_local! {
    /// The name of a thread that was started here; of others empty.
    static NAME: OnceCell<String> = const { OnceCell::new() };
}

/// Returns the name of the calling thread, if it was started here.
pub(crate) fn name() -> Option<String> {
    NAME.try_with(|name| name.get().cloned()).ok().flatten()
}

struct Start {
    name: String,
    main: Box<dyn FnOnce() + Send>,
}

/// See [`start_thread`](crate::start_thread).
pub(crate) fn start(
    name: &str,
    stack_bytes: Option<NonZeroUsize>,
    main: Box<dyn FnOnce() + Send>,
) -> io::Result<Thread> {
    assert!(!name.contains('\0'), "a thread's name has no null byte");
    let stack_bytes =
        stack_bytes.map_or(STACK_BYTES, NonZeroUsize::get).max(libc::PTHREAD_STACK_MIN);
    let start = Box::into_raw(Box::new(Start { name: name.to_owned(), main }));
    let mut attributes = MaybeUninit::uninit();
    let mut id = MaybeUninit::uninit();
    // SAFETY: the attributes are initialized before they are used, and destroyed once. `begin` takes the box,
    // which is sent to the new thread alone: all that it holds is `Send`.
    let result = unsafe {
        match libc::pthread_attr_init(attributes.as_mut_ptr()) {
            0 => {
                // It refuses sizes that are too small or no multiples of a page; these are neither.
                let bytes = stack_bytes.next_multiple_of(PAGE_BYTES);
                libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), bytes);
                let attributes = attributes.as_mut_ptr();
                let result = libc::pthread_create(id.as_mut_ptr(), attributes, begin, start.cast());
                libc::pthread_attr_destroy(attributes);
                result
            }
            error => error,
        }
    };
    if result != 0 {
        // SAFETY: no thread was made, so the box is still this function's.
        drop(unsafe { Box::from_raw(start) });
        return Err(io::Error::from_raw_os_error(result));
    }
    // SAFETY: the thread was made, and its number written.
    Ok(Thread(unsafe { id.assume_init() }))
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `start` has made it of a box, for this call alone.
    let Start { name, main } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let short = &name[..name.floor_char_boundary(NAME_BYTES)];
    if let Ok(short) = CString::new(short) {
        // SAFETY: a string with its end, and this thread. It fails only for longer names.
        unsafe { libc::pthread_setname_np(libc::pthread_self(), short.as_ptr()) };
    }
    NAME.with(|own| own.set(name)).ok();
    // A panic was printed where it began.
    drop(catch_unwind(AssertUnwindSafe(main)));
    ptr::null_mut()
}

impl Thread {
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: compares numbers of threads. This one's is in use until the handle ends.
        unsafe { libc::pthread_equal(self.0, libc::pthread_self()) != 0 }
    }

    /// Waits for the end of the thread, which is not the calling one.
    pub(crate) fn join(self) {
        // SAFETY: the thread was neither joined nor detached before: that takes the handle, which is
        // forgotten.
        unsafe { libc::pthread_join(self.0, ptr::null_mut()) };
        mem::forget(self);
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: as in `join`; a handle that was joined is not dropped.
        unsafe { libc::pthread_detach(self.0) };
    }
}
