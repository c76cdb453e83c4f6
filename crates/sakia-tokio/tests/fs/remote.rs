//! Files on a server that does not answer.

use sakia::Engine;
use sakia_testkit::available;
use sakia_testkit::fuse::{Fuse, Opcode, Rule, pattern};
use sakia_tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use crate::support::{Folder, current_thread};

/// The test runs on one thread, which a blocking call would stop.
#[test]
fn a_server_that_does_not_answer_holds_up_nobody() {
    let folder = Folder::new();
    let local = folder.file("x", "local");
    let fuse = available!(Fuse::builder().file("a", pattern(5000)).mount());
    let path = fuse.join("a");
    // The mount may be newer than the engine's table, which this updates. Uncached names are refused on any
    // mount, and sometimes others.
    std::fs::metadata(&path).unwrap();
    let mut refused = 0;
    while refused < 100 {
        let is_known = Engine::global().unwrap().try_lookup(&path, true).is_none();
        refused = if is_known { refused + 1 } else { 0 };
        std::thread::yield_now();
    }
    current_thread().block_on(async {
        let mut file = File::open(&path).await.unwrap();
        for held in [Opcode::READ, Opcode::OPEN] {
            let gate = fuse.hold(Rule::on(held));
            let reading = tokio::spawn(async move {
                let mut all = Vec::new();
                file.read_to_end(&mut all).await.unwrap();
                (all, file)
            });
            let by_path = tokio::spawn(fs::read(path.clone()));
            let waiting = tokio::task::spawn_blocking(move || {
                gate.wait_held(1);
                gate
            });
            let gate = waiting.await.unwrap();
            let mut other = File::open(&local).await.unwrap();
            for _ in 0..3 {
                let mut text = String::new();
                other.rewind().await.unwrap();
                other.read_to_string(&mut text).await.unwrap();
                assert_eq!(text, "local");
                assert_eq!(fs::metadata(&local).await.unwrap().len(), 5);
                tokio::task::yield_now().await;
            }
            gate.open();
            let all;
            (all, file) = reading.await.unwrap();
            assert!(all == pattern(5000));
            assert!(by_path.await.unwrap().unwrap() == pattern(5000));
            file.rewind().await.unwrap();
        }
    });
}
