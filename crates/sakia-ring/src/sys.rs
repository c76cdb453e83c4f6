//! The raw system call instruction, the three io_uring calls, and the kernel's structures.
//!
//! The bottom layer: everything above takes the kernel's constants from here. The calls use an instruction
//! of this crate instead of libc, whose symbols a preload library built on this crate may interpose.
//! `rustix` has the same three calls, but not with the *registered* wait argument (an offset in place of a
//! pointer), so all three are here, in one place. The driver uses the same instruction for calls on lent
//! memory that `rustix` lacks.
//!
//! Any thread may call these. Sources: `io_uring_setup(2)`, `io_uring_enter(2)`,
//! `io_uring_register(2)`, `include/uapi/linux/io_uring.h`.

use std::arch::asm;
use std::io;

pub(crate) use linux_raw_sys::general::{
    __NR_io_uring_enter, __NR_io_uring_register, __NR_io_uring_setup, __NR_rt_sigprocmask,
};
pub(crate) use linux_raw_sys::io_uring::*;

/// The parameters of `io_uring_setup(2)`: requested before the call, granted after it.
pub type Params = io_uring_params;

/// The largest page size of the architecture, a multiple of the page size in use.
pub const PAGE_BYTES_MAX: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 65_536 };

/// Makes a system call by an instruction of this crate, and returns the kernel's result or negated errno.
///
/// No symbol of libc is involved, and no `errno` of the thread changes.
///
/// # Safety
///
/// - `number` and `args` form a call whose effects on memory and descriptors the caller has the right to
///   cause.
///
/// # Kernel
/// Any. Source: `syscall(2)`; the numbers are in `asm/unistd.h`.
#[inline(always)]
pub unsafe fn system_call(number: u32, args: [usize; 6]) -> isize {
    if sakia_trace::is_on() {
        let [a, b, c, d, e, f] = args;
        // SAFETY: the caller's duties are the same.
        return unsafe { traced_call(a, b, c, d, e, f, number) };
    }
    // SAFETY: the caller's duties are the same.
    unsafe { instruction(number, args) }
}

/// Makes a system call, and reports it to an active recording. Takes the arguments one by one, in registers:
/// each caller would write an array to memory before it knows whether to call this.
///
/// # Safety
///
/// - As for [`system_call`].
#[cold]
#[inline(never)]
unsafe fn traced_call(
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
    number: u32,
) -> isize {
    let begin = sakia_trace::now();
    // SAFETY: the caller's duties are the same.
    let result = unsafe { instruction(number, [a, b, c, d, e, f]) };
    sakia_trace::record_call(begin, number, a, result);
    result
}

/// Executes the instruction.
///
/// # Safety
///
/// - As for [`system_call`].
#[inline(always)]
unsafe fn instruction(number: u32, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the x86_64 system call convention: number and result in rax, arguments in rdi, rsi,
    // rdx, r10, r8, r9; the instruction clobbers rcx and r11 and leaves the stack alone. The
    // caller has the right to cause the call's effects.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: the aarch64 system call convention: number in x8, arguments in x0 to x5, result in
    // x0, nothing else is clobbered. The caller has the right to cause the call's effects.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!(
            "svc 0",
            in("x8") number as usize,
            inlateout("x0") a as isize => result,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Makes a system call, and returns a count or an error.
///
/// # Safety
///
/// - As for [`system_call`].
#[inline(always)]
pub(crate) unsafe fn call(number: u32, args: [usize; 6]) -> io::Result<u32> {
    // SAFETY: the caller's duties are the same.
    match unsafe { system_call(number, args) } {
        ret @ 0.. => Ok(ret as u32),
        ret => Err(error_of(ret)),
    }
}

#[cold]
fn error_of(ret: isize) -> io::Error {
    io::Error::from_raw_os_error(-(ret as i32))
}
