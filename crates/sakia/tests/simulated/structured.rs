//! Scopes, sets, loops and the macros for a few futures at once, over operations.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use sakia::fs::{self, File};
use sakia::io::{PipeReader, Reader, pipe};
use sakia::sim::{Fault, Opcode, Target};
use sakia::time::sleep;
use sakia::{
    Budget, JoinSet, Limits, Resource, join, scope, select, spawn, spawned_scope,
    try_for_each_concurrent, try_join,
};

use super::awkward;

#[test]
fn a_set_gives_each_outcome_once() {
    awkward().run(async |_| {
        let mut set = JoinSet::new();
        for number in 0..15_usize {
            set.spawn(async move {
                fs::write(format!("{number}"), vec![1; number]).await.unwrap();
                number
            });
        }
        let mut numbers = Vec::new();
        while let Some(number) = set.join_next().await {
            numbers.push(number.unwrap());
        }
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..15));
    });
}

#[test]
fn a_dropped_set_gives_everything_back() {
    awkward().run(async |kernel| {
        let mut set = JoinSet::new();
        for number in 0..10 {
            set.spawn(async move {
                let file = File::create(format!("{number}")).await.unwrap();
                file.write_all_at(vec![1; 300], 0).await.0.unwrap();
                file.close().await.unwrap();
            });
        }
        for _ in 0..kernel.seed() % 10 {
            set.join_next().await.unwrap().unwrap();
        }
    });
}

#[test]
fn children_of_a_scope_borrow_while_they_write() {
    awkward().run(async |kernel| {
        let names = RefCell::new(Vec::new());
        scope(async |scope| {
            for number in 0..8 {
                let (scope, names) = (scope.clone(), &names);
                drop(scope.clone().spawn(async move {
                    let name = format!("file-{number}");
                    fs::write(&name, &b"outer"[..]).await.unwrap();
                    names.borrow_mut().push(name.clone());
                    drop(scope.spawn(async move {
                        fs::write(&name, &b"inner"[..]).await.unwrap();
                    }));
                }));
            }
        })
        .await;
        let names = names.into_inner();
        assert_eq!(names.len(), 8);
        assert!(names.iter().all(|name| kernel.contents(name).unwrap() == b"inner"));
    });
}

#[test]
fn the_first_failure_ends_a_spawned_scope_and_its_operations() {
    awkward().run(async |_| {
        let (mut reader, _writer) = pipe().unwrap();
        let outcome: Result<(), _> = spawned_scope(async |scope| {
            drop(scope.spawn(async move { reader.read(vec![0; 1]).await.0.map(drop) }));
            drop(scope.spawn(async { Ok(fs::write("file", vec![0; 2000]).await?) }));
            drop(scope.spawn(async { Ok(fs::read("missing").await.map(drop)?) }));
            std::future::pending().await
        })
        .await;
        let error = outcome.unwrap_err().into_error().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn a_failing_loop_keeps_its_limit() {
    awkward().run(async |_| {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let outcome = try_for_each_concurrent(3, 0..20, |number| {
            let (running, most) = (&running, &most);
            async move {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                let written = fs::write(format!("{number}"), vec![0; 100]).await;
                running.set(running.get() - 1);
                if number == 12 { fs::read("missing").await.map(drop) } else { written }
            }
        })
        .await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(most.get(), 3);
    });
}

#[test]
fn a_select_takes_one_and_drops_the_other() {
    awkward().run(async |kernel| {
        let (raw, other_end) = kernel.pipe();
        kernel.write_pipe_after(Duration::from_millis(kernel.seed() % 8), other_end, b"x");
        // A dropped fill of a reader loses no bytes; a dropped read of the pipe may.
        let mut reader = Reader::new(PipeReader::from_simulated(raw));
        let was_read = select! {
            bytes = reader.fill() => bytes.unwrap() == b"x",
            () = sleep(Duration::from_millis(4)) => false,
        };
        if !was_read {
            assert_eq!(reader.fill().await.unwrap(), b"x");
        }
        kernel.close(other_end)
    });
}

#[test]
fn joins_wait_for_all_or_for_the_first_error() {
    awkward()
        .before(|kernel| {
            kernel.create_file("one", vec![1; 100]);
            kernel.create_file("two", vec![2; 200]);
        })
        .run(async |_| {
            let (one, two) = join!(fs::read("one"), fs::read("two"));
            assert_eq!((one.unwrap().len(), two.unwrap().len()), (100, 200));
            let failed = try_join!(fs::read("one"), fs::read("missing"), fs::read("two"));
            assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        });
}

#[test]
fn a_budget_of_descriptors_is_never_exceeded() {
    let test = awkward().kernel(|kernel| kernel.descriptors_max(3 + 4));
    test.run(async |kernel| {
        let budget = Budget::new(Limits::new().descriptors(4));
        let tasks: Vec<_> = (0..12)
            .map(|number| {
                let (budget, kernel) = (budget.clone(), kernel.clone());
                spawn(async move {
                    let _permit = budget.acquire(Resource::Descriptors, 1).await;
                    let file = File::create(format!("{number}")).await.unwrap();
                    assert!(kernel.open_descriptors() <= 4);
                    file.close().await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn an_error_reaches_whoever_joins() {
    awkward().before(|kernel| kernel.script(Target::opcode(Opcode::WRITE), Fault::Errno(28))).run(
        async |_| {
            let writing = spawn(async {
                let file = File::create("file").await?;
                let written = file.write_all_at(vec![0; 100], 0).await.0;
                file.close().await?;
                written
            });
            assert_eq!(writing.await.unwrap().unwrap_err().raw_os_error(), Some(28));
        },
    );
}
