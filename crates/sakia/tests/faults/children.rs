//! Child processes, for actions that would disturb the other tests.
//!
//! The test binary runs itself with the name of a scene in the environment. A function that the loader
//! calls before `main` finds the name and plays the scene: at that time the process has only one thread,
//! while libtest would start more.

use std::os::unix::process::CommandExt;
use std::panic::catch_unwind;
use std::process::{Child, Command, Output, Stdio, exit};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use sakia_driver::Policy;
use sakia_testkit::settings::patience;

use crate::situations::{cancellation, crowds};
use crate::support::announce_skip;
use crate::{
    credentials, each_call, forked_children, forks_and_panics, killed, limits, refused_calls,
    signals,
};

const SCENE: &str = "SAKIA_FAULTS_SCENE";
/// The exit code of a scene that is skipped on this machine. Its last line of output is the reason.
const SKIPPED: i32 = 77;

/// A scene. `Err` is the reason why it is skipped.
pub type Scene = fn(Policy) -> Result<(), String>;

const SCENES: &[(&str, Scene)] = &[
    ("many_runtimes", crowds::scene_many_runtimes),
    ("many_runtimes_of_two_threads", crowds::scene_many_runtimes_of_two_threads),
    ("dropped_opens", cancellation::scene_dropped_opens),
    ("credentials", credentials::scene_credentials),
    ("credentials_without_bypass", credentials::scene_credentials_without_bypass),
    ("each_call", each_call::scene_each_call),
    ("children_of_each_parent", forked_children::scene_children_of_each_parent),
    ("child_of_a_task", forked_children::scene_child_of_a_task),
    ("futures_of_the_parent", forked_children::scene_futures_of_the_parent),
    ("drops_in_a_child", forked_children::scene_drops_in_a_child),
    ("signals_of_a_child", forked_children::scene_signals_of_a_child),
    ("a_thousand_forks", forked_children::scene_a_thousand_forks),
    ("forks_under_load", forks_and_panics::scene_forks_under_load),
    ("saves_and_commits", killed::scene_saves_and_commits),
    ("no_descriptors", limits::scene_no_descriptors),
    ("no_locked_memory", limits::scene_no_locked_memory),
    ("limited_file_size", limits::scene_limited_file_size),
    ("limited_file_size_of_callers", limits::scene_limited_file_size_of_callers),
    ("no_threads", limits::scene_no_threads),
    ("refused_by_a_supervisor", refused_calls::scene_refused_by_a_supervisor),
    ("a_thousand_signals_a_second", signals::scene_a_thousand_signals_a_second),
    ("stopped_and_continued", signals::scene_stopped_and_continued),
];

/// Returns the command that plays a scene. [`argument`] returns `argument` there.
pub fn command(scene: &str, policy: Policy, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env(SCENE, format!("{scene} {argument}"))
        .env("SAKIA_DRIVER", if policy == Policy::Poll { "poll" } else { "uring" })
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // Whatever becomes of the test, its processes do not outlive it.
    // SAFETY: a call that takes numbers only may be made between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        })
    };
    command
}

/// Returns the argument of this scene's process, beside the scene's name.
pub fn argument() -> String {
    let scene = std::env::var(SCENE).unwrap();
    scene.split_once(' ').unwrap().1.to_owned()
}

/// Runs a scene in its own process.
#[track_caller]
pub fn run(scene: &str, policy: Policy) {
    let child = command(scene, policy, "").spawn().unwrap();
    judge(scene, &finish(child));
}

/// Waits for the end of a child. Fails if it takes longer than the patience of the tests.
#[track_caller]
pub fn finish(child: Child) -> Output {
    let pid = child.id();
    let (sender, output) = channel();
    let waiting = thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    match output.recv_timeout(patience()) {
        Ok(output) => {
            waiting.join().unwrap().unwrap();
            output
        }
        Err(RecvTimeoutError::Timeout) => {
            // SAFETY: takes numbers only; the child has not been waited for, so the number is its own.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            let output = output.recv().unwrap();
            panic!("waited in vain for the end of a scene\n{}", text(&output));
        }
        Err(RecvTimeoutError::Disconnected) => panic!("nobody waits for the child"),
    }
}

/// Fails or skips the test if the scene failed or was skipped.
#[track_caller]
pub fn judge(scene: &str, output: &Output) {
    match output.status.code() {
        Some(0) => {}
        Some(SKIPPED) => announce_skip(scene, String::from_utf8_lossy(&output.stdout).trim()),
        _ => panic!("scene {scene}: {}\n{}", output.status, text(output)),
    }
}

fn text(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{stdout}\n{stderr}")
}

/// Called before `main`.
#[used]
// SAFETY: the section holds the addresses of functions that are called in turn, with arguments that
// this one ignores.
#[unsafe(link_section = ".init_array")]
static PLAY: extern "C" fn() = play;

/// Plays the scene of this process and ends it. Does nothing in other processes.
extern "C" fn play() {
    let Ok(name) = std::env::var(SCENE) else {
        return;
    };
    let result = catch_unwind(|| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert_eq!(threads, 1, "the process of a scene has one thread");
        let policy = Policy::from_environment(std::env::var_os("SAKIA_DRIVER").as_deref()).unwrap();
        let name = name.split(' ').next().unwrap();
        let known = SCENES.iter().find(|(known, _)| *known == name);
        let (_, scene) = known.unwrap_or_else(|| panic!("no scene {name}"));
        scene(policy)
    });
    match result {
        Ok(Ok(())) => exit(0),
        Ok(Err(reason)) => {
            println!("{reason}");
            exit(SKIPPED)
        }
        Err(_) => exit(1),
    }
}
