//! A pool of threads that read blocks, as asynchronous libraries without a ring have.
//!
//! The summing thread hands each block to the pool and sleeps until it has been read, so that every block
//! costs a hop to another thread and one back. Any free thread takes it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use sakia_driver::AlignedBuf;

/// Threads of the pool.
pub(super) const THREADS: usize = 4;

/// A block to be read.
struct Job {
    block: AlignedBuf,
    offset: u64,
}

/// The result of reading a block, with the block's buffer.
type Answer = (io::Result<usize>, AlignedBuf);

/// Jobs that no thread has taken yet. `None` ends the thread that takes it.
#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Option<Job>>>,
    /// Signaled when there is a job.
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Option<Job>>> {
        // No code that may panic runs while it is locked.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Option<Job>) {
        self.lock().push_back(job);
        self.changed.notify_one();
    }

    /// Waits for a job. `None`: no more jobs will come.
    fn pop(&self) -> Option<Job> {
        let jobs = self.changed.wait_while(self.lock(), |jobs| jobs.is_empty());
        jobs.unwrap_or_else(PoisonError::into_inner).pop_front().flatten()
    }
}

/// Threads that read a file.
pub(super) struct Pool {
    queue: Arc<Queue>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads.
    pub(super) fn start(file: File) -> io::Result<Self> {
        let (sender, answers) = mpsc::channel();
        let mut pool = Self { queue: Arc::default(), answers, threads: Vec::new() };
        let file = Arc::new(file);
        for _ in 0..THREADS {
            let (queue, file, sender) =
                (Arc::clone(&pool.queue), Arc::clone(&file), sender.clone());
            let thread = thread::Builder::new().spawn(move || serve(&queue, &file, &sender))?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Has a thread read a block from `offset`, and waits for it. Returns the number of bytes, which is less
    /// than a block only at the end of the file.
    pub(super) fn read(&self, block: AlignedBuf, offset: u64) -> Answer {
        self.queue.push(Some(Job { block, offset }));
        self.answers.recv().expect("threads live as long as the pool, and answer every job")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.threads.iter().for_each(|_| self.queue.push(None));
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn serve(queue: &Queue, file: &File, answers: &Sender<Answer>) {
    while let Some(Job { mut block, offset }) = queue.pop() {
        let result = read_full_at(file, &mut block, offset);
        if answers.send((result, block)).is_err() {
            return;
        }
    }
}

/// Reads until the buffer is full, or the file ends.
fn read_full_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
