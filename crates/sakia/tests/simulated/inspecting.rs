//! Snapshots and warnings on the simulated kernel, which use its simulated time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sakia::fs::File;
use sakia::inspect::{Doing, OpKind, OperationState, Warning, Warnings, inspector};
use sakia::io::PipeReader;
use sakia::sim::{Fault, Opcode, PlainFault, Sim, Target};
use sakia::time::sleep;
use sakia::{Runtime, spawn};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a runtime that appends its warnings to the list.
fn warned(sim: Sim) -> (Runtime, Arc<Mutex<Vec<Warning>>>) {
    let list: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let told = Arc::clone(&list);
    let warnings = Warnings::callback(move |warning| told.lock().unwrap().push(warning.clone()));
    let runtime = Runtime::builder().warnings(warnings).build_simulated(sim).unwrap();
    (runtime, list)
}

#[test]
fn a_sync_that_takes_long_is_warned_of_when_its_second_is_over() {
    let sim = Sim::new(3);
    let kernel = sim.handle();
    let (runtime, list) = warned(sim);
    runtime.block_on(async {
        let file = File::create("file").await.unwrap();
        sleep(SECOND).await;
        assert_eq!(*list.lock().unwrap(), []);
        kernel.script(Target::opcode(Opcode::FSYNC), Fault::Delay(5 * SECOND));
        let line = line!() + 1;
        let sync = spawn(async move { file.sync_all().await });
        sync.await.unwrap().unwrap();
        let list = list.lock().unwrap();
        let [Warning::Operation { operation, .. }] = &list[..] else { panic!("{list:?}") };
        assert_eq!((operation.kind, operation.state), (OpKind::Fsync, OperationState::Submitted));
        let age = operation.age.unwrap();
        assert!(age >= SECOND && age < SECOND + Duration::from_millis(10), "{age:?}");
        assert_eq!(operation.task.map(|task| task.spawned_at.line()), Some(line));
        assert_eq!(operation.path_now, None, "its numbers are not this process's");
    });
}

#[test]
fn a_turn_is_as_long_as_the_virtual_time_says() {
    let sim = Sim::new(4);
    let kernel = sim.handle();
    let (runtime, list) = warned(sim);
    runtime.block_on(async {
        let line = line!() + 1;
        let busy = spawn(async move { kernel.advance(3 * SECOND) });
        busy.await.unwrap();
        sleep(SECOND).await;
        let list = list.lock().unwrap();
        let [Warning::Turn { took, longest: Some((task, longest)), .. }] = &list[..] else {
            panic!("{list:?}")
        };
        assert!(*took >= 3 * SECOND && *longest == 3 * SECOND, "{took:?}");
        assert_eq!(task.spawned_at.line(), line);
    });
}

/// The longest of the plain calls of a turn, if it took most of the time.
#[test]
fn a_plain_call_that_takes_long_is_named() {
    let sim = Sim::builder(6).plain_calls(true).build();
    let kernel = sim.handle();
    kernel.create_file("file", "a text");
    let (runtime, list) = warned(sim);
    runtime.block_on(async {
        let file = File::open("file").await.unwrap();
        sleep(SECOND).await;
        list.lock().unwrap().clear();
        for seconds in [1, 4, 2] {
            kernel.script_plain(Target::any(), PlainFault::Busy(seconds * SECOND));
            file.read_at(vec![0; 6], 0).await.0.unwrap();
        }
        sleep(SECOND).await;
        let list = list.lock().unwrap();
        let [Warning::Turn { call: Some(call), .. }] = &list[..] else { panic!("{list:?}") };
        assert_eq!((call.kind, call.took), (OpKind::Read, 4 * SECOND));
    });
}

#[test]
fn ages_are_of_the_virtual_time() {
    let sim = Sim::new(5);
    let kernel = sim.handle();
    let runtime = Runtime::builder().inspection(true).build_simulated(sim).unwrap();
    runtime.block_on(async {
        let (raw, other_end) = kernel.pipe();
        let mut reader = PipeReader::from_simulated(raw);
        let read = spawn(async move { reader.read(vec![0; 1]).await.0.unwrap() });
        sleep(30 * SECOND).await;
        let seen = inspector().inspect();
        let thread = &seen.threads[0];
        assert!(matches!(thread.doing, Some(Doing::Task(_))), "{seen}");
        let [operation] = &thread.operations[..] else { panic!("{seen}") };
        let age = operation.age.unwrap();
        assert!(age >= 29 * SECOND && age < 31 * SECOND, "{age:?}");
        assert_eq!(operation.descriptor, Some(raw));
        kernel.write_pipe(other_end, b"x").unwrap();
        assert_eq!(read.await.unwrap(), 1);
    });
}
