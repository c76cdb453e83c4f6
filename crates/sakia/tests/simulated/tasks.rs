//! Starting, joining and ending tasks, with operations under way in them.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

use sakia::fs::{self, File};
use sakia::io::pipe;
use sakia::{CancellationToken, spawn, yield_now};

use super::awkward;

#[test]
fn results_come_back_through_handles() {
    awkward().run(async |_| {
        let tasks: Vec<_> = (0..20_usize)
            .map(|number| {
                spawn(async move {
                    let path = format!("file-{number}");
                    fs::write(&path, vec![7; number * 100]).await.unwrap();
                    fs::read(&path).await.unwrap().len()
                })
            })
            .collect();
        for (number, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), number * 100);
        }
    });
}

#[test]
fn a_panic_ends_its_task_and_its_operations_only() {
    awkward().seeds(0..100).run(async |_| {
        let (mut reader, mut writer) = pipe().unwrap();
        let panicking = spawn(async move {
            let _file = File::create("file").await.unwrap();
            reader.read(vec![0; 1]).await.0.unwrap();
            panic!("contained");
        });
        let other = spawn(async { fs::write("other", "text").await.unwrap() });
        writer.write_all("x").await.0.unwrap();
        assert!(panicking.await.unwrap_err().is_panic());
        other.await.unwrap();
        // The end of the task also closes its reader, a little later.
        while writer.write("y").await.0.is_ok() {}
    });
}

#[test]
fn tasks_are_aborted_in_every_state() {
    awkward().run(async |kernel| {
        let (mut reader, _writer) = pipe().unwrap();
        let is_dropped = Rc::new(Cell::new(false));
        let guard = SetOnDrop(Rc::clone(&is_dropped));
        let task = spawn(async move {
            let _guard = guard;
            for number in 0..4 {
                fs::write("file", vec![number; 500]).await.unwrap();
            }
            reader.read(vec![0; 8]).await.0.unwrap();
        });
        // Each seed aborts the task at another point: before it begins, during a write, or during the read.
        for _ in 0..kernel.seed() % 50 {
            yield_now().await;
        }
        task.abort();
        assert!(task.await.unwrap_err().is_canceled());
        yield_now().await;
        assert!(is_dropped.get());
    });
}

#[test]
fn canceled_tasks_are_gone_when_the_cancel_is() {
    awkward().run(async |kernel| {
        let (mut reader, writer) = pipe().unwrap();
        let is_dropped = Rc::new(Cell::new(false));
        let guard = SetOnDrop(Rc::clone(&is_dropped));
        let task = spawn(async move {
            let _guard = guard;
            reader.read(vec![0; 8]).await.0.unwrap()
        });
        for _ in 0..kernel.seed() % 5 {
            yield_now().await;
        }
        assert!(task.cancel().await.is_none());
        assert!(is_dropped.get());
        writer.close().await
    });
}

#[test]
fn a_token_ends_all_who_look_at_it() {
    awkward().run(async |_| {
        let token = CancellationToken::new();
        let (mut reader, _writer) = pipe().unwrap();
        let reading = spawn({
            let token = token.child();
            async move { token.run_until_canceled(reader.read(vec![0; 1])).await.is_none() }
        });
        let waiting = spawn({
            let token = token.clone();
            async move { token.canceled().await }
        });
        fs::write("file", "text").await.unwrap();
        token.cancel();
        assert!(reading.await.unwrap());
        waiting.await.unwrap();
    });
}

#[test]
fn tasks_that_were_never_joined_end_with_the_runtime() {
    awkward().allow_tasks().run(async |_| {
        let (mut reader, writer) = pipe().unwrap();
        spawn(async move {
            let _writer = writer;
            let _file = File::create("file").await;
            reader.read(vec![0; 1]).await.0.map(drop)
        })
        .detach();
        spawn(pending::<()>()).detach();
        fs::write("other", "text").await
    });
}

struct SetOnDrop(Rc<Cell<bool>>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.set(true);
    }
}
