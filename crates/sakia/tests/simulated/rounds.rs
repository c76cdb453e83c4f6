//! Tasks that compute for long and never wait: events are noticed between any two of their polls.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use sakia::fs::File;
use sakia::io::PipeReader;
use sakia::sim::{EnterFault, Sim, SimHandle, Test};
use sakia::time::{now, sleep};
use sakia::{Runtime, for_each_concurrent, scope, spawn, yield_now};

const MS: Duration = Duration::from_millis(1);
/// The time that a busy task works before it lets others run.
const WORK: Duration = Duration::from_millis(10);
/// The maximum delay of an event: the poll during which it happens, and a little.
const LATE_MAX: Duration = Duration::from_millis(11);

/// Tasks that count their polls and compute, each for the time that `work` returns.
struct Busy {
    polls: Rc<Cell<u32>>,
    is_over: Rc<Cell<bool>>,
}

impl Busy {
    fn start(kernel: &SimHandle, count: u32, work: impl Fn(u32) -> Duration + 'static) -> Self {
        let busy = Self { polls: Rc::default(), is_over: Rc::default() };
        let work = Rc::new(work);
        for _ in 0..count {
            let (kernel, work) = (kernel.clone(), Rc::clone(&work));
            let (polls, is_over) = (Rc::clone(&busy.polls), Rc::clone(&busy.is_over));
            spawn(async move {
                while !is_over.get() {
                    polls.set(polls.get() + 1);
                    kernel.advance(work(polls.get()));
                    yield_now().await;
                }
            })
            .detach();
        }
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.is_over.set(true);
    }
}

/// Returns the work of a poll: long phases of mere yields alternate with phases of work.
fn by_turns(poll: u32) -> Duration {
    if poll % 700 < 600 { Duration::ZERO } else { WORK }
}

#[test]
fn a_timer_fires_after_the_poll_during_which_it_is_due() {
    for count in [1, 2, 40, 300] {
        Test::new().seeds(0..3).run(async |kernel| {
            let busy = Busy::start(&kernel, count, |_| WORK);
            for _ in 0..20 {
                let (polls, begin) = (busy.polls.get(), now());
                sleep(MS).await;
                assert!(busy.polls.get() - polls <= 1, "{} polls", busy.polls.get() - polls);
                assert!(begin.elapsed() <= LATE_MAX, "{:?}", begin.elapsed());
            }
        });
    }
}

#[test]
fn a_timer_fires_in_time_when_polls_become_long() {
    for count in [1, 7, 300] {
        Test::new().seeds(0..3).run(async |kernel| {
            let busy = Busy::start(&kernel, count, by_turns);
            for round in 0..200 {
                let wait = MS * (1 + round % 23);
                let begin = now();
                sleep(wait).await;
                assert!(begin.elapsed() <= wait + LATE_MAX, "{:?}", begin.elapsed());
            }
            assert!(busy.polls.get() > 1400);
        });
    }
}

#[test]
fn many_timers_in_any_order_fire_in_time() {
    Test::new().seeds(0..3).run(async |kernel| {
        let _busy = Busy::start(&kernel, 3, by_turns);
        // A third of the children set timers, each earlier than the one before except at one place, so that
        // the alarms pile up. A timeout drops each sleep after half of its time.
        for round in 0..30_u32 {
            let mut waits: Vec<_> = (0..40).map(|number| 400 - 10 * number).collect();
            waits.rotate_left(round as usize);
            let begin = now();
            scope(async |s| {
                for wait in waits {
                    s.spawn(async move {
                        if wait % 3 == round % 3 {
                            sakia::time::timeout(MS * (wait / 2), sleep(MS * wait)).await.ok();
                        }
                        yield_now().await;
                    });
                }
            })
            .await;
            let end = MS * 400;
            assert!(begin.elapsed() <= end + 4 * LATE_MAX, "{:?}", begin.elapsed());
            sleep(MS * 7).await;
        }
    });
}

#[test]
fn what_comes_through_a_pipe_is_heard() {
    for (work, name) in [(10, "always"), (0, "by turns")] {
        Test::new().seeds(0..5).run(async |kernel| {
            let (raw, other_end) = kernel.pipe();
            let mut reader = PipeReader::from_simulated(raw);
            let always = work > 0;
            let _busy =
                Busy::start(&kernel, 5, move |poll| if always { WORK } else { by_turns(poll) });
            for _ in 0..50 {
                let (wait, begin) = (MS * 25, now());
                kernel.write_pipe_after(wait, other_end, b"x");
                let (result, _) = reader.read(vec![0; 1]).await;
                assert_eq!(result.unwrap(), 1);
                let elapsed = begin.elapsed();
                assert!(elapsed <= wait + LATE_MAX, "{name}: {elapsed:?}");
            }
            kernel.close(other_end)
        });
    }
}

#[test]
fn an_operation_is_submitted_before_others_work_long() {
    Test::new().seeds(0..5).run(async |kernel| {
        let (raw, other_end) = kernel.pipe();
        let mut reader = PipeReader::from_simulated(raw);
        let busy = Busy::start(&kernel, 50, |_| WORK);
        for _ in 0..10 {
            kernel.write_pipe_after(Duration::ZERO, other_end, b"x");
            let polls = busy.polls.get();
            assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 1);
            // One poll until the operation is submitted, and one until its completion is noticed.
            assert!(busy.polls.get() - polls <= 2, "{} polls", busy.polls.get() - polls);
        }
        kernel.close(other_end)
    });
}

#[test]
fn an_idle_kernel_gets_an_operation_after_short_work() {
    const SHORT: Duration = Duration::from_micros(60);
    Test::new().seeds(0..5).run(async |kernel| {
        let (raw, other_end) = kernel.pipe();
        let mut reader = PipeReader::from_simulated(raw);
        let begun = Rc::new(Cell::new(None));
        let seen = Rc::new(Cell::new(None));
        let watched = (kernel.clone(), Rc::clone(&begun), Rc::clone(&seen));
        let busy = Busy::start(&kernel, 50, move |polls| {
            let (kernel, begun, seen) = &watched;
            if let Some(begun) = begun.get().filter(|_| kernel.in_flight() > 0) {
                seen.set(seen.get().or(Some(polls - begun)));
            }
            SHORT
        });
        let polls = Rc::clone(&busy.polls);
        yield_now().await;
        begun.set(Some(polls.get()));
        kernel.write_pipe_after(MS * 5, other_end, b"x");
        assert_eq!(reader.read(vec![0; 1]).await.0.unwrap(), 1);
        let seen = seen.get().expect("the kernel had the read");
        assert!(seen <= 3, "{seen} polls");
        kernel.close(other_end)
    });
}

#[test]
fn children_of_one_task_do_not_keep_others_waiting() {
    Test::new().seeds(0..5).run(async |kernel| {
        let worker = kernel.clone();
        let parent = spawn(async move {
            for_each_concurrent(100, 0..100, async |_| {
                for _ in 0..3 {
                    worker.advance(WORK);
                    yield_now().await;
                    worker.advance(WORK);
                    sleep(MS).await;
                }
            })
            .await;
            scope(async |s| {
                for _ in 0..100 {
                    s.spawn(async { worker.advance(WORK) });
                }
            })
            .await;
        });
        while !parent.is_finished() {
            let begin = now();
            sleep(MS).await;
            // A child that begins may be polled right after a child that took long.
            assert!(begin.elapsed() <= LATE_MAX + MS, "{:?}", begin.elapsed());
        }
        parent.await
    });
}

#[test]
fn each_child_of_a_task_gets_its_share() {
    for count in 2..=8 {
        Test::new().seeds(0..3).run(async |kernel| {
            const POLLS: u32 = 60;
            let polls: Vec<Cell<u32>> = (0..count).map(|_| Cell::new(0)).collect();
            let is_over = Cell::new(false);
            scope(async |s| {
                for mine in &polls {
                    s.spawn(async {
                        while !is_over.get() {
                            mine.set(mine.get() + 1);
                            is_over.set(mine.get() == POLLS);
                            kernel.advance(MS);
                            yield_now().await;
                        }
                    });
                }
            })
            .await;
            let least = polls.iter().map(Cell::get).min().unwrap();
            assert!(least >= POLLS - 2, "{polls:?}");
        });
    }
}

#[test]
fn a_child_that_works_does_not_keep_its_siblings_waiting() {
    Test::new().seeds(0..3).run(async |kernel| {
        let (is_over, polls) = (Cell::new(false), Cell::new(0));
        scope(async |s| {
            s.spawn(async {
                while !is_over.get() {
                    polls.set(polls.get() + 1);
                    kernel.advance(WORK);
                    yield_now().await;
                }
            });
            s.spawn(async {
                for _ in 0..20 {
                    let before = polls.get();
                    sleep(MS).await;
                    assert!(polls.get() - before <= 3, "{} polls", polls.get() - before);
                }
                is_over.set(true);
            });
        })
        .await;
    });
}

/// Starts tasks that read cached data and compute after each read, for the time that `work` returns for the
/// number of the read. They wait for nothing else.
async fn start_reading(kernel: &SimHandle, count: u32, work: fn(u32) -> Duration) -> Busy {
    sakia::fs::write("file", vec![7; 100]).await.unwrap();
    let file = Rc::new(sakia::fs::File::open("file").await.unwrap());
    let busy = Busy { polls: Rc::default(), is_over: Rc::default() };
    for number in 0..count {
        let (kernel, file) = (kernel.clone(), Rc::clone(&file));
        let (reads, is_over) = (Rc::clone(&busy.polls), Rc::clone(&busy.is_over));
        spawn(async move {
            while !is_over.get() {
                if number % 2 == 0 {
                    let (result, _) = file.read_at(vec![0; 10], 0).await;
                    assert_eq!(result.unwrap(), 10);
                } else {
                    assert_eq!(sakia::fs::read("file").await.unwrap().len(), 100);
                }
                reads.set(reads.get() + 1);
                kernel.advance(work(reads.get()));
            }
        })
        .detach();
    }
    busy
}

fn with_plain_calls() -> Test<'static> {
    Test::new().seeds(0..5).kernel(|kernel| kernel.plain_calls(true))
}

#[test]
fn a_timer_fires_between_reads_that_are_done_at_once() {
    for count in [1, 2, 40] {
        with_plain_calls().run(async |kernel| {
            let busy = start_reading(&kernel, count, |_| WORK).await;
            sleep(MS).await; // by then it is known that reads take long
            for _ in 0..20 {
                let (reads, begin) = (busy.polls.get(), now());
                sleep(MS).await;
                let reads = busy.polls.get() - reads;
                assert!(reads <= 1, "{count} tasks: {reads} reads");
                assert!(begin.elapsed() <= LATE_MAX, "{count} tasks: {:?}", begin.elapsed());
            }
        });
    }
}

#[test]
fn tasks_take_turns_though_their_reads_are_done_at_once() {
    with_plain_calls().run(async |kernel| {
        let busy = start_reading(&kernel, 4, |_| WORK).await;
        sleep(MS).await;
        let reads = Rc::clone(&busy.polls);
        let waiting = spawn(async move {
            for _ in 0..20 {
                let before = reads.get();
                sleep(MS).await;
                // One poll until the timer fires, and one of each task that was ready before.
                assert!(reads.get() - before <= 1 + 4, "{} reads", reads.get() - before);
            }
        });
        waiting.await.unwrap();
    });
}

#[test]
fn a_timer_fires_when_work_between_reads_becomes_long() {
    for count in [1, 7] {
        with_plain_calls().run(async |kernel| {
            let busy = start_reading(&kernel, count, by_turns).await;
            let mut round = 0;
            while busy.polls.get() < 1400 {
                round += 1;
                let wait = MS * (1 + round % 23);
                let begin = now();
                sleep(wait).await;
                // After many short reads, up to 32 further reads may pass before the runtime learns that
                // they now take long.
                assert!(begin.elapsed() <= wait + LATE_MAX + 31 * WORK, "{:?}", begin.elapsed());
            }
        });
    }
}

/// A foreign loop would wait for an event before the next run, which does not come.
#[test]
fn an_enter_that_is_refused_is_made_again_by_the_next_run() {
    let sim = Sim::new(1);
    let kernel = sim.handle();
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let opening = runtime.spawn(async { File::create("file").await.map(drop) });
    // More enters than a run makes.
    (0..8).for_each(|_| kernel.script_enter(0, EnterFault::Errno(Errno::BUSY.raw_os_error())));
    let mut runs = 0;
    while runtime.run_once(Duration::ZERO).unwrap() {
        runs += 1;
        assert!(runs < 100);
    }
    assert_eq!((kernel.scripted(), runtime.in_flight()), (0, 1));
    runtime.block_on(opening).unwrap().unwrap();
}

/// The caller comes first, who may wait for these tasks.
#[test]
fn a_run_that_had_tasks_does_not_sleep() {
    let sim = Sim::new(1);
    let kernel = sim.handle();
    let runtime = Runtime::builder().build_simulated(sim).unwrap();
    let task = runtime.spawn(async {});
    let begin = kernel.now();
    runtime.run_once(Duration::from_secs(1)).unwrap();
    assert!(task.is_finished());
    assert!(kernel.now() - begin < Duration::from_secs(1));
    runtime.run_once(Duration::from_secs(1)).unwrap();
    assert!(kernel.now() - begin >= Duration::from_secs(1));
}
