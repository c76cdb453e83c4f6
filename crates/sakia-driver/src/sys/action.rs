//! The actions of signals: `rt_sigaction(2)`.

use std::ffi::c_void;
use std::mem::{self, MaybeUninit};

use rustix::io::Errno;

use super::{SignalSet, abi, shared_syscall};

/// The kernel's description of a signal, `siginfo_t`, of which only the address is passed on.
pub(crate) type SignalInfo = c_void;
/// The interrupted thread's registers, `ucontext_t`, of which only the address is passed on.
pub(crate) type Context = c_void;
/// A handler with the flag `SA_SIGINFO`.
pub(crate) type SignalHandler = unsafe extern "C" fn(i32, *mut SignalInfo, *mut Context);

const SIG_DFL: usize = 0;
const SIG_IGN: usize = 1;

/// The action of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalAction {
    /// The address of a function, unless it is `SIG_DFL` or `SIG_IGN`.
    handler: *const (),
    /// Set if the function takes three arguments.
    takes_info: bool,
}

impl SignalAction {
    /// Returns whether the signal is ignored.
    pub(crate) fn is_ignored(&self) -> bool {
        self.handler.addr() == SIG_IGN
    }

    /// Returns whether a function handles the signal.
    pub(crate) fn is_function(&self) -> bool {
        ![SIG_DFL, SIG_IGN].contains(&self.handler.addr())
    }

    /// Returns whether this function handles the signal.
    pub(crate) fn is(&self, handler: SignalHandler) -> bool {
        self.handler.addr() == (handler as *const ()).addr()
    }

    /// Calls the function, if there is one.
    ///
    /// # Safety
    ///
    /// - This is the action of `signal`, and the arguments are those that the kernel passes to a handler of
    ///   it with `SA_SIGINFO`.
    pub(crate) unsafe fn call(&self, signal: i32, info: *mut SignalInfo, context: *mut Context) {
        if !self.is_function() {
            return;
        }
        // SAFETY: it was installed as a handler with these arguments, as its flags say, for this signal. The
        // kernel would call it in the same place.
        unsafe {
            if self.takes_info {
                mem::transmute::<*const (), SignalHandler>(self.handler)(signal, info, context);
            } else {
                mem::transmute::<*const (), unsafe extern "C" fn(i32)>(self.handler)(signal);
            }
        }
    }
}

/// Returns the action of a signal.
pub(crate) fn signal_action(signal: u32) -> Result<SignalAction, Errno> {
    let mut action = MaybeUninit::<abi::kernel_sigaction>::zeroed();
    let args = [signal as usize, 0, action.as_mut_ptr() as usize, size_of::<SignalSet>(), 0, 0];
    // SAFETY: nothing is changed, and the structure, which the call fills, outlives it.
    unsafe { shared_syscall(abi::__NR_rt_sigaction, args) }?;
    let action = action.as_ptr();
    // SAFETY: zeroed and then filled by the kernel. The handler is read as an address, since `SIG_IGN` is
    // none of a function.
    unsafe {
        let handler = (&raw const (*action).sa_handler_kernel).cast::<*const ()>().read();
        let flags = (&raw const (*action).sa_flags).read();
        Ok(SignalAction { handler, takes_info: flags as u32 & abi::SA_SIGINFO != 0 })
    }
}

/// Makes a function the handler of a signal. Calls that it interrupts are repeated by the kernel; it runs on
/// the thread's alternate stack if there is one, and no signal but its own is blocked meanwhile.
///
/// # Safety
///
/// - The function may be called on any thread at any time; see `signal-safety(7)`.
pub(crate) unsafe fn set_signal_handler(signal: u32, handler: SignalHandler) -> Result<(), Errno> {
    let mut action = MaybeUninit::<abi::kernel_sigaction>::zeroed();
    let flags = abi::SA_SIGINFO | abi::SA_RESTART | abi::SA_ONSTACK;
    let place = action.as_mut_ptr();
    // SAFETY: the structure is this function's; each field has the type that is written, or is a pointer to a
    // function.
    unsafe {
        (&raw mut (*place).sa_handler_kernel).cast::<SignalHandler>().write(handler);
        #[cfg(not(target_arch = "x86_64"))]
        (&raw mut (*place).sa_flags).write(flags.into());
        #[cfg(target_arch = "x86_64")]
        {
            (&raw mut (*place).sa_flags).write((flags | abi::SA_RESTORER).into());
            (&raw mut (*place).sa_restorer).cast::<unsafe extern "C" fn() -> !>().write(restore);
        }
    }
    let args = [signal as usize, place as usize, 0, size_of::<SignalSet>(), 0, 0];
    // SAFETY: the structure outlives the call. That the handler may be called is the caller's promise; the
    // function that it returns to ends it as the kernel requires.
    unsafe { shared_syscall(abi::__NR_rt_sigaction, args) }.map(drop)
}

/// Ends a handler: `rt_sigreturn(2)`, which has number 15. Other machines' kernels bring this function
/// themselves. The bytes are those by which debuggers and unwinders recognize the frame of a signal.
///
/// # Safety
///
/// - Only the return of a handler of a signal may lead here.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restore() -> ! {
    std::arch::naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", "syscall")
}
