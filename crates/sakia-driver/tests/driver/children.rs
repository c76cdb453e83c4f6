//! Child processes for actions that would disturb other tests: fork, count descriptors.
//!
//! The test binary runs itself with the name of a scene in the environment. The scene runs before libtest
//! begins, alone in a process of one thread.

use std::panic::catch_unwind;
use std::process::{Command, Stdio, exit};

use crate::{
    bypass, bypass_lanes, descriptor_reused, forked_child, numbers, queued_cancel, recorded,
    requests, writing,
};

const SCENE: &str = "SAKIA_DRIVER_SCENE";

const SCENES: &[(&str, fn())] = &[
    ("fork", forked_child::scene),
    ("fork_with_done_operations", forked_child::scene_with_done_operations),
    ("descriptors", descriptor_reused::scene),
    ("file_size_limit", bypass::scene_file_size_limit),
    ("fork_with_lanes", bypass_lanes::scene_fork),
    ("broken_pipe", writing::scene_broken_pipe),
    ("next_owner", queued_cancel::scene_next_owner),
    ("numbers_on_the_ring", numbers::scene_ring),
    ("numbers_on_epoll", numbers::scene_epoll),
    ("recorded_closes", recorded::scene_closes),
    ("recorded_reads", recorded::scene_reads),
    ("recorded_lanes", recorded::scene_lanes),
    ("requests_fork", requests::ends::scene_fork),
    ("requests_signals", requests::wakes::scene_signals),
    ("signals_pending", requests::signals::scene_pending),
    ("signals_blocked", requests::signals::scene_blocked),
    ("signals_together", requests::signals::scene_together),
    ("signals_at_random_on_the_ring", requests::signals::scene_at_random_on_the_ring),
    ("signals_at_random_on_epoll", requests::signals::scene_at_random_on_epoll),
    ("signals_plain", requests::signals::scene_plain),
];

/// Runs a scene in a child process, and panics if it fails.
pub fn run(scene: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .env(SCENE, scene)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scene {scene}: {}\n{stdout}\n{stderr}", output.status);
    print!("{stdout}");
}

/// Calls `play` before `main`.
#[used]
// SAFETY: the section holds the addresses of functions that are called in turn, with arguments that
// this one ignores.
#[unsafe(link_section = ".init_array")]
static PLAY: extern "C" fn() = play;

/// Runs the scene that this process was started for, and exits. Does nothing in any other process.
extern "C" fn play() {
    let Ok(name) = std::env::var(SCENE) else {
        return;
    };
    let result = catch_unwind(|| {
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert_eq!(threads, 1, "the process of a scene has one thread");
        let known = SCENES.iter().find(|(known, _)| *known == name);
        let (_, scene) = known.unwrap_or_else(|| panic!("no scene {name}"));
        scene();
    });
    exit(if result.is_ok() { 0 } else { 1 });
}
