//! Processes of their own, for what a test must not do to the others: fork, count descriptors.
//!
//! The test binary runs itself with the name of a scene in the environment and one test thread,
//! which libtest then runs on the main thread: the scene is alone in a process of one thread.

use std::process::{Command, Stdio};

use crate::{descriptor_reused, forked_child, writing};

const SCENE: &str = "SAKIA_DRIVER_SCENE";

const SCENES: &[(&str, fn())] = &[
    ("fork", forked_child::scene),
    ("fork_with_done_operations", forked_child::scene_with_done_operations),
    ("descriptors", descriptor_reused::scene),
    ("broken_pipe", writing::scene_broken_pipe),
];

/// Runs a scene in a process of its own.
pub fn run(scene: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "children::scene", "--ignored", "--nocapture"])
        .args(["--test-threads", "1"])
        .env(SCENE, scene)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "scene {scene}: {}\n{stdout}\n{stderr}",
        output.status
    );
}

#[test]
#[ignore = "the stage for scenes of other tests, which start it in a process of its own"]
fn scene() {
    let Ok(name) = std::env::var(SCENE) else {
        crate::support::announce_skip(module_path!(), "only other tests give it a scene");
        return;
    };
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1, "the process of a scene has one thread");
    let scene = SCENES.iter().find(|(known, _)| *known == name);
    let (_, scene) = scene.unwrap_or_else(|| panic!("no scene {name}"));
    scene();
}
