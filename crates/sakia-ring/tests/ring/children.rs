//! Child processes for tests that would disturb others: fork, filters, another user.
//!
//! The test binary runs itself with the name of a scene in the environment. A function that the loader calls
//! before `main` reads the name and runs the scene: at that time the process has one thread, which libtest
//! would not guarantee.

use std::panic::catch_unwind;
use std::process::{Command, Stdio, exit};

use crate::{buf_ring, fork, refusal};

const SCENE: &str = "SAKIA_RING_SCENE";
/// Exit code of a scene that cannot run on this machine; its last line of output is the reason.
const SKIPPED: i32 = 77;

/// A scene: `Err` is the reason to skip.
pub type Scene = fn() -> Result<(), String>;

const SCENES: &[(&str, Scene)] = &[
    ("buf_rings_end", buf_ring::end_many),
    ("fork", fork::scene),
    ("fork_twice", fork::scene_twice),
    ("seccomp_eperm", refusal::seccomp_eperm),
    ("seccomp_enosys", refusal::seccomp_enosys),
    ("seccomp_register", refusal::seccomp_register),
    ("seccomp_enter", refusal::seccomp_enter),
    ("no_locked_memory", refusal::no_locked_memory),
    ("no_descriptors", refusal::no_descriptors),
];

/// Runs a scene in its own process. `Err` is the reason for a skip.
pub fn run(scene: &str) -> Result<(), String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .env(SCENE, scene)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(()),
        Some(SKIPPED) => Err(stdout.trim().into()),
        _ => panic!("scene {scene}: {}\n{stdout}\n{stderr}", output.status),
    }
}

/// Calls `play` before `main`.
#[used]
// SAFETY: the section holds the addresses of functions that are called in turn, with arguments that
// this one ignores.
#[unsafe(link_section = ".init_array")]
static PLAY: extern "C" fn() = play;

/// Runs the scene that this process was started for and exits; does nothing in other processes.
extern "C" fn play() {
    let Ok(name) = std::env::var(SCENE) else {
        return;
    };
    let result = catch_unwind(|| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert_eq!(threads, 1, "the process of a scene has one thread");
        let known = SCENES.iter().find(|(known, _)| *known == name);
        let (_, scene) = known.unwrap_or_else(|| panic!("no scene {name}"));
        scene()
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
