//! The file systems for tests: scripts take effect, and nothing is left behind.
//!
//! Without the privilege to mount, each test is a loud skip, which `SAKIA_DENY_SKIPS` turns into a failure.

mod fuse;
mod leftovers;
mod small_fs;
mod throttled;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error of the kernel")
}
