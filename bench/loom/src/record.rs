//! The records of a board: a reader gets all words of one write, the newest that it must see.

use super::model;

/// The code under test and its checks.
macro_rules! checked {
    ($name:ident) => {
        #[allow(dead_code)] // each check uses a part of it
        mod $name {
            use std::sync::Arc;
            use std::sync::atomic::AtomicBool as Seen;
            use std::sync::atomic::Ordering::Relaxed;

            use loom::thread;

            use self::record::Record;
            use super::model;

            mod record {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".rs"));
            }

            /// One thread writes twice while another reads.
            pub(super) fn is_whole() {
                model(|| {
                    let record = Arc::new(Record::<2>::new());
                    let writer = Arc::clone(&record);
                    let writer = thread::spawn(move || {
                        writer.write([1, 1]);
                        writer.write([2, 2]);
                    });
                    if let Some([first, second]) = record.try_read() {
                        assert_eq!(first, second, "words of two writes");
                    }
                    writer.join().expect("the writer does not panic");
                    assert_eq!(record.try_read(), Some([2, 2]));
                });
            }

            /// Checks that each possible value, and a write in progress, is seen in some interleaving.
            pub(super) fn is_read() {
                static SEEN: [Seen; 3] = [const { Seen::new(false) }; 3];
                model(|| {
                    let record = Arc::new(Record::<2>::new());
                    let writer = Arc::clone(&record);
                    let writer = thread::spawn(move || writer.write([1, 1]));
                    let index = record.try_read().map_or(2, |[value, _]| value as usize);
                    SEEN[index].store(true, Relaxed);
                    writer.join().expect("the writer does not panic");
                });
                assert!(SEEN.iter().all(|seen| seen.load(Relaxed)));
            }
        }
    };
}

checked!(record);
checked!(record_unmarked);
checked!(record_second_look_missing);
checked!(record_writer_unfenced);
checked!(record_reader_unfenced);
checked!(record_first_look_relaxed);

#[test]
fn a_reader_has_the_words_of_one_write() {
    record::is_whole();
}

#[test]
fn a_reader_sees_what_is_there() {
    record::is_read();
}

#[test]
#[should_panic(expected = "words of two writes")]
fn without_a_mark_a_write_under_way_is_read() {
    record_unmarked::is_whole();
}

#[test]
#[should_panic(expected = "words of two writes")]
fn without_a_second_look_words_of_two_writes_are_read() {
    record_second_look_missing::is_whole();
}

#[test]
#[should_panic(expected = "words of two writes")]
fn without_the_writers_fence_words_come_before_the_mark() {
    record_writer_unfenced::is_whole();
}

#[test]
#[should_panic(expected = "words of two writes")]
fn without_the_readers_fence_the_second_look_is_too_early() {
    record_reader_unfenced::is_whole();
}

#[test]
#[should_panic(expected = "words of two writes")]
fn without_acquire_the_first_look_brings_old_words() {
    record_first_look_relaxed::is_whole();
}
