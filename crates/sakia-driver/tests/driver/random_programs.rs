//! Random programs of a few operations, run with the driver and with `std::fs`, which must agree.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::io::Errno;
use sakia_driver::{CURRENT_POSITION, Driver, Fd, Wait};

use crate::support::{Random, TempDir, drain, finish, sized};

const PROGRAMS: u64 = 3000;
const STEPS: u64 = 12;
/// The names of a program's files.
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A file opened by the driver and by `std`.
struct Pair {
    ours: Fd,
    model: File,
    name: usize,
}

struct Program<'a> {
    driver: &'a Driver,
    random: Random,
    ours: PathBuf,
    model: PathBuf,
    open: Vec<Pair>,
    story: Vec<String>,
}

fn code<T>(result: std::io::Result<T>) -> Result<T, Option<i32>> {
    result.map_err(|error| error.raw_os_error())
}

impl Program<'_> {
    fn step(&mut self) {
        match self.random.below(12) {
            0..3 => self.open(),
            3 => self.close(),
            4..7 => self.read(),
            7..10 => self.write(),
            10 => self.stat(),
            _ => self.drop_something(),
        }
    }

    fn open(&mut self) {
        let name = self.random.below(3) as usize;
        let kind = self.random.below(5);
        self.story.push(format!("open {} in way {kind}", NAMES[name]));
        let mut options = OpenOptions::new();
        match kind {
            0 => options.read(true),
            1 => options.write(true).create(true),
            2 => options.read(true).write(true).create(true).truncate(true),
            3 => options.append(true).create(true),
            _ => options.write(true).create_new(true),
        };
        let flags = [0, 0o101, 0o1102, 0o2101, 0o301][kind as usize];
        let model = code(options.open(self.model.join(NAMES[name])));
        let path = self.ours.join(NAMES[name]).into_os_string().into_encoded_bytes();
        let mut open = self.driver.open(None, CString::new(path).unwrap(), flags, 0o666);
        match (code(finish(self.driver, &mut open)), model) {
            (Ok(ours), Ok(model)) => self.open.push(Pair { ours, model, name }),
            (ours, model) => assert_eq!(
                ours.map(|_| ()).unwrap_err(),
                model.map(|_| ()).unwrap_err(),
                "{:?}",
                self.story
            ),
        }
    }

    /// Returns the index of one of the open files.
    fn pick(&mut self) -> Option<usize> {
        let count = self.open.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    fn offset(&mut self) -> Option<u64> {
        (self.random.below(3) > 0).then(|| self.random.below(300))
    }

    fn close(&mut self) {
        let Some(place) = self.pick() else { return };
        self.story.push(format!("close {place}"));
        let pair = self.open.swap_remove(place);
        let name = NAMES[pair.name];
        finish(self.driver, &mut self.driver.close(pair.ours)).unwrap();
        drop(pair.model);
        let (ours, model) = (fs::read(self.ours.join(name)), fs::read(self.model.join(name)));
        assert_eq!(ours.unwrap(), model.unwrap(), "{:?}", self.story);
    }

    fn read(&mut self) {
        let Some(place) = self.pick() else { return };
        let (offset, len) = (self.offset(), self.random.below(200) as usize);
        self.story.push(format!("read {len} of {place} at {offset:?}"));
        let Pair { ours, model, .. } = &mut self.open[place];
        let mut expected = vec![0; len];
        let count = match offset {
            // `std` reads zero bytes there; the driver refuses, since zero would mean the end of the file.
            _ if len == 0 => Err(std::io::Error::from_raw_os_error(Errno::INVAL.raw_os_error())),
            Some(offset) => model.read_at(&mut expected, offset),
            None => model.read(&mut expected),
        };
        let (split, into_capacity) = (self.random.below(2) == 0, self.random.below(2) == 0);
        let offset = offset.unwrap_or(CURRENT_POSITION);
        let (result, bytes) = if into_capacity {
            expected.truncate(count.as_ref().map_or(0, |&count| count));
            let exactly = |len| Vec::with_capacity(len);
            if split {
                let bufs = vec![exactly(len / 2), Vec::new(), exactly(len - len / 2)];
                let (result, bufs) =
                    finish(self.driver, &mut self.driver.read_vectored(ours, bufs, offset));
                (result, bufs.concat())
            } else {
                finish(self.driver, &mut self.driver.read(ours, exactly(len), offset))
            }
        } else if split {
            let bufs = vec![vec![0; len / 2], vec![0; len - len / 2]];
            let (result, bufs) =
                finish(self.driver, &mut self.driver.read_vectored(ours, bufs, offset));
            (result, bufs.concat())
        } else {
            finish(self.driver, &mut self.driver.read(ours, vec![0; len], offset))
        };
        assert_eq!((code(result), bytes), (code(count), expected), "{:?}", self.story);
    }

    fn write(&mut self) {
        let Some(place) = self.pick() else { return };
        let (offset, len) = (self.offset(), self.random.below(200) as usize);
        let byte = self.random.next() as u8;
        self.story.push(format!("write {len} of {byte} to {place} at {offset:?}"));
        let Pair { ours, model, .. } = &mut self.open[place];
        let count = match offset {
            Some(offset) => model.write_at(&vec![byte; len], offset),
            None => model.write(&vec![byte; len]),
        };
        let split = self.random.below(2) == 0;
        let offset = offset.unwrap_or(CURRENT_POSITION);
        let result = if split {
            let bufs = vec![vec![byte; len / 3], vec![byte; len - len / 3]];
            finish(self.driver, &mut self.driver.write_vectored(ours, bufs, offset)).0
        } else {
            finish(self.driver, &mut self.driver.write(ours, vec![byte; len], offset)).0
        };
        assert_eq!(code(result), code(count), "{:?}", self.story);
        let position = model.stream_position().unwrap();
        let ours = fs::read_to_string(format!("/proc/self/fdinfo/{}", ours.raw())).unwrap();
        let ours = ours.lines().find_map(|line| line.strip_prefix("pos:")).unwrap();
        assert_eq!(ours.trim().parse(), Ok(position), "{:?}", self.story);
    }

    fn stat(&mut self) {
        let Some(place) = self.pick() else { return };
        self.story.push(format!("stat {place}"));
        let Pair { ours, model, .. } = &self.open[place];
        let ours = finish(self.driver, &mut self.driver.statx_fd(ours)).unwrap();
        let model = model.metadata().unwrap();
        let both = (ours.size, u32::from(ours.mode), u64::from(ours.links));
        assert_eq!(both, (model.len(), model.mode(), model.nlink()), "{:?}", self.story);
    }

    /// Starts operations whose results are never taken: the program must not notice.
    fn drop_something(&mut self) {
        let Some(place) = self.pick() else { return };
        self.story.push(format!("drop a read of {place}"));
        let read = self.driver.read(&self.open[place].ours, vec![0; 100], 0);
        let nop = self.driver.nop();
        if self.random.below(2) == 0 {
            self.driver.turn(Wait::Poll).unwrap();
        }
        drop((read, nop));
    }
}

/// Runs every second program, starting with `first`.
fn run(first: u64) {
    let folder = TempDir::new();
    let driver = sized(4, 8);
    for seed in (first..PROGRAMS).step_by(2) {
        let (ours, model) = (folder.join("ours"), folder.join("model"));
        fs::create_dir(&ours).unwrap();
        fs::create_dir(&model).unwrap();
        let story = vec![format!("seed {seed}")];
        let random = Random::new(seed);
        let mut program = Program { driver: &driver, random, ours, model, open: Vec::new(), story };
        for _ in 0..STEPS {
            program.step();
        }
        while !program.open.is_empty() {
            program.close();
        }
        drain(&driver);
        assert_eq!(driver.live_operations(), 0);
        fs::remove_dir_all(folder.join("ours")).unwrap();
        fs::remove_dir_all(folder.join("model")).unwrap();
    }
    assert_eq!((driver.counters().stale, driver.counters().close_errors), (0, 0));
}

#[test]
fn even_ones_agree_with_std() {
    run(0);
}

#[test]
fn odd_ones_agree_with_std() {
    run(1);
}
