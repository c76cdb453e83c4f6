//! Calls of this process that a supervisor answers: a filter passes them to a thread without a filter,
//! which refuses some and lets the kernel perform the others.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::Random;

/// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`, which libc lacks.
const NOTIF_RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
const NOTIF_SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;

/// A call that is sometimes refused.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The number of the call.
    pub call: libc::c_long,
    /// The errors that replace the call, as far as its arguments allow them.
    pub errnos: &'static [i32],
    /// The index of an argument, and the bits without which `EAGAIN` is not a possible error.
    pub try_again_flag: Option<(usize, u64)>,
}

impl Refused {
    pub const fn new(call: libc::c_long, errnos: &'static [i32]) -> Self {
        Self { call, errnos, try_again_flag: None }
    }
}

/// The number of times that each errno was returned.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Mutex<Vec<(libc::c_long, i32)>>>);

impl Refusals {
    pub fn count(&self, call: libc::c_long, errno: i32) -> usize {
        self.0.lock().unwrap().iter().filter(|&&entry| entry == (call, errno)).count()
    }
}

/// Refuses some of these calls, on the calling thread and on threads that it starts later, for ever.
///
/// # Errors
/// The reason why the kernel has no such filters.
pub fn refuse(calls: &'static [Refused], seed: u64) -> Result<Refusals, String> {
    let refusals = Refusals::default();
    let (its, mut random) = (refusals.clone(), Random::new(seed));
    let numbers: Vec<_> = calls.iter().map(|it| it.call).collect();
    supervise(&numbers, move |data| {
        let refused = calls.iter().find(|it| it.call == libc::c_long::from(data.nr));
        let errno = choose(refused.expect("no other call is told of"), data, &mut random);
        its.0.lock().unwrap().extend(errno.map(|errno| (data.nr.into(), errno)));
        errno
    })?;
    Ok(refusals)
}

/// As [`refuse`]: those of these calls for which `choose` returns an errno. With the errno 0 a call does
/// nothing and returns 0.
///
/// # Errors
/// As for that.
pub fn supervise(
    calls: &[libc::c_long],
    choose: impl FnMut(&libc::seccomp_data) -> Option<i32> + Send + 'static,
) -> Result<(), String> {
    let (sender, receiver) = channel();
    // The thread starts before the filter is installed, so it has none.
    thread::spawn(move || answer(&receiver, choose));
    let listener = install(calls)?;
    sender.send(listener).unwrap();
    Ok(())
}

/// Installs the filter, and returns the descriptor of its notifications.
fn install(calls: &[libc::c_long]) -> Result<OwnedFd, String> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first field of a filter's input.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &call in calls {
        let equal = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32);
        program.push(libc::sock_filter { jf: 1, ..equal });
        program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_USER_NOTIF));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "PR_SET_NO_NEW_PRIVS: {}", io::Error::last_os_error());
    // SAFETY: the program outlives the call, which copies it.
    let result = unsafe {
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if result < 0 {
        return Err(format!("no filter with a supervisor: {}", io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was made for us just now.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// Answers the notifications until the process ends.
fn answer(
    listener: &Receiver<OwnedFd>,
    mut choose: impl FnMut(&libc::seccomp_data) -> Option<i32>,
) {
    let Ok(listener) = listener.recv() else { return };
    loop {
        // SAFETY: zeros are a value of this struct, and the one that the kernel asks for.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one such struct.
        if unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut call) } != 0 {
            continue; // interrupted, or the caller is gone
        }
        let errno = choose(&call.data);
        let goes_on = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: errno.map_or(0, |errno| -errno),
            flags: if errno.is_some() { 0 } else { goes_on },
        };
        // SAFETY: the kernel reads one such struct. It fails when the caller is gone.
        unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut answer) };
    }
}

/// Returns the errno to refuse the call with, if any.
fn choose(refused: &Refused, data: &libc::seccomp_data, random: &mut Random) -> Option<i32> {
    if random.below(3) > 0 {
        return None;
    }
    let errno = refused.errnos[random.below(refused.errnos.len())];
    let may_try_again = refused.try_again_flag.is_none_or(|(at, flag)| data.args[at] & flag != 0);
    (errno != libc::EAGAIN || may_try_again).then_some(errno)
}
