//! Child processes.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use sakia::process::{Child, Command, Stdio};
use sakia::signal::SignalKind;
use sakia::{Runtime, block_on, spawn};

/// The time after which a test fails that waits for an event.
const PATIENCE: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Returns a child that sleeps for longer than any test takes.
fn sleeper() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

/// Returns the state that the kernel shows for a process, or `None` if it has ended without leaving a
/// zombie.
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn wait_until_gone(pid: u32) {
    let begin = Instant::now();
    while let Some(state) = state_of(pid) {
        assert!(begin.elapsed() < PATIENCE, "process {pid} is still there: {state}");
        thread::yield_now();
    }
}

fn kill(pid: u32) {
    kill_with(pid, rustix::process::Signal::KILL);
}

fn kill_with(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

async fn give_up_wait(child: &mut Child) {
    let mut wait = pin!(child.wait());
    poll_fn(|cx| {
        assert!(wait.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[test]
fn the_status_is_told_as_often_as_asked() {
    block_on(async {
        let mut child = shell("exit 42").spawn().unwrap();
        assert!(child.id().is_some());
        for _ in 0..3 {
            assert_eq!(child.wait().await.unwrap().code(), Some(42));
        }
        assert_eq!(child.id(), None);
        assert_eq!(child.try_wait().unwrap().unwrap().code(), Some(42));
        child.kill().unwrap(); // it has ended
        child.signal(SignalKind::TERMINATE).unwrap();
    });
}

#[test]
fn many_children_at_once() {
    block_on(async {
        let start = |number: i32| {
            let mut command = shell(&format!("exit {number}"));
            spawn(async move { command.status().await.unwrap().code() })
        };
        let handles: Vec<_> = (0..50).map(start).collect();
        for (number, handle) in (0..).zip(handles) {
            assert_eq!(handle.await.unwrap(), Some(number));
        }
    });
}

#[test]
fn output_of_both_kinds_is_read_at_once() {
    block_on(async {
        // More bytes than a pipe holds, to both streams in turn.
        let script = "i=0; while [ $i -lt 300 ]; do printf '%01000d' 1; printf '%01000d' 2 >&2; \
                      i=$((i+1)); done";
        let output = shell(script).output().await.unwrap();
        assert!(output.status.success());
        assert_eq!((output.stdout.len(), output.stderr.len()), (300_000, 300_000));
        assert!(output.stdout.ends_with(b"1") && output.stderr.ends_with(b"2"));
    });
}

#[test]
fn output_keeps_what_was_set() {
    block_on(async {
        let mut command = shell("cat; echo out; echo err >&2");
        let output = command.stderr(Stdio::null()).output().await.unwrap();
        assert_eq!((&output.stdout[..], output.stderr.len()), (&b"out\n"[..], 0));
    });
}

#[test]
fn waiting_closes_the_standard_input() {
    block_on(async {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        assert!(child.wait().await.unwrap().success());
    });
}

#[test]
fn signals_reach_the_child() {
    block_on(async {
        let mut child = sleeper().spawn().unwrap();
        child.signal(SignalKind::TERMINATE).unwrap();
        assert_eq!(child.wait().await.unwrap().signal(), Some(15));
        let mut child = sleeper().spawn().unwrap();
        let error = child.signal(SignalKind::from_raw(1000)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        child.kill().unwrap();
        child.kill().unwrap(); // a zombie by now, perhaps
        assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    });
}

#[test]
fn a_wait_can_be_given_up_and_taken_up_again() {
    block_on(async {
        let mut child = sleeper().spawn().unwrap();
        drop(child.wait());
        give_up_wait(&mut child).await;
        give_up_wait(&mut child).await;
        child.kill().unwrap();
        assert_eq!(child.wait().await.unwrap().signal(), Some(9));
    });
}

#[test]
fn a_dropped_child_goes_on_and_leaves_no_zombie() {
    block_on(async {
        let mut child = sleeper().spawn().unwrap();
        let pid = child.id().unwrap();
        give_up_wait(&mut child).await;
        drop(child);
        assert!(state_of(pid).is_some_and(|state| state != 'Z'));
        kill(pid);
        wait_until_gone(pid);
    });
}

#[test]
fn a_child_that_ended_is_reaped_by_its_drop() {
    block_on(async {
        let child = shell("exit 0").spawn().unwrap();
        let pid = child.id().unwrap();
        while state_of(pid) != Some('Z') {
            thread::yield_now();
        }
        drop(child);
        assert_eq!(state_of(pid), None);
    });
}

#[test]
fn kill_on_drop_kills_and_leaves_no_zombie() {
    block_on(async {
        let pids: Vec<u32> =
            (0..20).map(|_| sleeper().kill_on_drop(true).spawn().unwrap().id().unwrap()).collect();
        pids.into_iter().for_each(wait_until_gone);
    });
}

#[test]
fn children_end_with_the_tasks_of_their_runtime() {
    let runtime = Runtime::new().unwrap();
    let (sender, receiver) = async_channel::bounded(1);
    let task = async move {
        let mut child = sleeper().kill_on_drop(true).spawn().unwrap();
        sender.send(child.id().unwrap()).await.unwrap();
        child.wait().await.unwrap();
    };
    runtime.spawn(task).detach();
    let pid = runtime.block_on(receiver.recv()).unwrap();
    drop(runtime);
    wait_until_gone(pid);
}

#[test]
fn after_the_runtime_a_wait_fails_and_the_child_is_reaped() {
    let runtime = Runtime::new().unwrap();
    let mut child = runtime.block_on(async { sleeper().kill_on_drop(true).spawn() }).unwrap();
    let pid = child.id().unwrap();
    drop(runtime);
    assert_eq!(block_on(child.wait()).unwrap_err().raw_os_error(), Some(125));
    drop(child);
    wait_until_gone(pid);
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    block_on(async {
        let error = Command::new("/nonexistent/program").spawn().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

/// Kills a child and reaps it, as other code of the process may do.
fn reap_elsewhere(pid: u32) {
    kill(pid);
    let pid = rustix::process::Pid::from_raw(pid as i32);
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
}

/// Returns a child with this number, which is free: the kernel gives the number after the last one, which may
/// be set.
fn with_number(pid: u32) -> Result<std::process::Child, String> {
    for _ in 0..1000 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string())
            .map_err(|error| format!("ns_last_pid: {error}"))?;
        let mut child = sleeper().as_std_mut().spawn().unwrap();
        if child.id() == pid {
            return Ok(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    Err(format!("the number {pid} was not given again"))
}

#[test]
fn a_child_that_was_reaped_elsewhere_is_gone() {
    block_on(async {
        let mut child = sleeper().spawn().unwrap();
        reap_elsewhere(child.id().unwrap());
        for _ in 0..2 {
            let signaled = child.signal(SignalKind::TERMINATE).unwrap_err();
            assert_eq!(signaled.raw_os_error(), Some(libc::ESRCH));
            assert_eq!(child.kill().unwrap_err().raw_os_error(), Some(libc::ESRCH));
            assert_eq!(child.try_wait().unwrap_err().raw_os_error(), Some(libc::ECHILD));
            assert_eq!(child.wait().await.unwrap_err().raw_os_error(), Some(libc::ECHILD));
        }
    });
}

/// The number of a child that other code has reaped belongs to another process: it gets no signal, and its
/// status is not taken.
#[test]
fn the_next_process_of_a_number_is_left_alone() {
    crate::refused::children::run_with_own_numbers("reused_number");
}

pub fn scene_reused_number() -> Result<(), String> {
    block_on(async {
        let mut child = sleeper().kill_on_drop(true).spawn().unwrap();
        let pid = child.id().unwrap();
        reap_elsewhere(pid);
        let mut stranger = with_number(pid)?;
        assert_eq!(child.kill().unwrap_err().raw_os_error(), Some(libc::ESRCH));
        let signaled = child.signal(SignalKind::INTERRUPT).unwrap_err();
        assert_eq!(signaled.raw_os_error(), Some(libc::ESRCH));
        assert_eq!(child.wait().await.unwrap_err().raw_os_error(), Some(libc::ECHILD));
        drop(child);
        // Had it got a signal, this one would come too late.
        kill_with(pid, rustix::process::Signal::TERM);
        assert_eq!(stranger.wait().unwrap().signal(), Some(15));
        Ok(())
    })
}
