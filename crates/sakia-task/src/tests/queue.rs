//! The queue of ready tasks against a list of numbers, by all programs of some steps.

use std::rc::Rc;

use super::*;

/// The steps of a program: each is a bit, and puts a task at the end or takes the oldest.
const STEPS: u32 = 10;

#[test]
fn a_queue_has_what_a_list_has_and_drops_the_rest() {
    for program in 0..1_u32 << STEPS {
        let (queue, mut list, to) = (Queue::new(), VecDeque::new(), To::default());
        let held = Rc::new(());
        // A task that was taken goes to the end again, as one does that is woken.
        let mut taken = VecDeque::new();
        for step in 0..STEPS {
            if program >> step & 1 == 0 {
                let task = taken.pop_front().unwrap_or_else(|| {
                    let (number, held) = (step as usize, Rc::clone(&held));
                    let (task, handle) = spawn(async move { (number, held).0 }, to.clone());
                    (number, task, handle)
                });
                queue.push(task.1);
                list.push_back((task.0, task.2));
            } else if let Some((number, mut handle)) = list.pop_front() {
                let task = queue.pop().expect("the list has one");
                if step % 3 == 0 {
                    task.run();
                    assert!(
                        matches!(poll_once(&mut handle), Poll::Ready(Some(Ok(n))) if n == number)
                    );
                } else {
                    assert!(!handle.is_finished());
                    taken.push_back((number, task, handle));
                }
            } else {
                assert!(queue.pop().is_none());
            }
            assert_eq!(
                (queue.len(), queue.is_empty()),
                (list.len(), list.is_empty()),
                "{program:b}"
            );
        }
        drop(queue);
        assert!(list.iter().all(|(_, handle)| handle.is_finished()));
        drop(taken);
        assert_eq!(Rc::strong_count(&held), 1, "{program:b}");
    }
}
