//! Random programs: steps on files and paths.

use std::io::SeekFrom;
use std::ops::{Deref, DerefMut};

use sakia_testkit::random::Random;

use super::steps::{Action, Call, How, MOST, Opt, PathCall, PathsCall, SLOTS, Step};

/// A generator of programs.
pub struct Programs(Random);

impl Deref for Programs {
    type Target = Random;

    fn deref(&self) -> &Random {
        &self.0
    }
}

impl DerefMut for Programs {
    fn deref_mut(&mut self) -> &mut Random {
        &mut self.0
    }
}

impl Programs {
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn count(&mut self) -> usize {
        let most = self.one_of(&[1, 12, 300, 4100, 20_000, 65_536, 70_000, MOST]);
        if self.percent(20) { most } else { self.below(most as u64 + 1) as usize }
    }

    fn place(&mut self) -> SeekFrom {
        match self.below(12) {
            0..4 => SeekFrom::Start(self.count() as u64),
            4..7 => SeekFrom::Current(self.count() as i64 - self.count() as i64),
            7..10 => SeekFrom::End(self.count() as i64 / 8 - self.count() as i64),
            10 => self.one_of(&[SeekFrom::Start(0), SeekFrom::Current(0), SeekFrom::End(0)]),
            _ => self.one_of(&[
                SeekFrom::Start(u64::MAX),
                SeekFrom::Current(i64::MIN),
                SeekFrom::End(i64::MIN),
            ]),
        }
    }

    fn mode(&mut self) -> u32 {
        self.one_of(&[0, 0o400, 0o600, 0o640, 0o644, 0o666, 0o751, 0o777, 0o1777, 0o4755])
    }

    fn path(&mut self, is_flat: bool) -> String {
        const FILES: [&str; 6] = ["a", "a", "b", "c", "big", "new"];
        if is_flat && self.percent(90) {
            return self.one_of(&FILES).to_owned();
        }
        const FIRST: [&str; 17] = [
            "a", "a", "b", "c", "big", "new", "other", "dir", "dir", "link", "dirlink", "dangling",
            "loop", "text", "no-text", ".", "empty",
        ];
        const NEXT: [&str; 8] = ["x", "x", "sub", "sub", "sub/y", "deep", "deep/er", ".."];
        let mut path = self.one_of(&FIRST).to_owned();
        if self.percent(35) {
            path = self.one_of(&["dir", "dir", "dirlink", "empty", "new", "a"]).to_owned();
            path = format!("{path}/{}", self.one_of(&NEXT));
        }
        match self.below(60) {
            0..3 => path += "/",
            3 => path += "/.",
            4 => path += "//",
            5 => return String::new(),
            6 => return "a\0b".into(),
            7 => return "x".repeat(300),
            _ => {}
        }
        path
    }

    fn options(&mut self) -> Vec<Opt> {
        let mut set = Vec::new();
        match self.below(8) {
            0..2 => set.push(Opt::Read(true)),
            2 => set.push(Opt::Write(true)),
            3 => set.push(Opt::Append(true)),
            4..7 => set.extend([Opt::Read(true), Opt::Write(true)]),
            _ => {}
        }
        for _ in 0..self.one_of(&[0, 0, 1, 1, 2, 3]) {
            let is_on = self.percent(80);
            let flags = [
                0,
                libc::O_NOFOLLOW,
                libc::O_DIRECTORY,
                libc::O_DSYNC,
                libc::O_APPEND,
                libc::O_CREAT,
                libc::O_CREAT | libc::O_EXCL,
                libc::O_TRUNC,
                libc::O_PATH,
                libc::O_RDWR,
                libc::O_NOATIME,
                libc::O_TMPFILE,
            ];
            set.push(match self.below(12) {
                0 => Opt::Read(is_on),
                1 => Opt::Write(is_on),
                2 => Opt::Append(is_on),
                3 => Opt::Truncate(is_on),
                4 | 5 => Opt::Create(is_on),
                6 => Opt::CreateNew(is_on),
                7 | 8 => Opt::Mode(self.mode()),
                _ => Opt::Flags(self.one_of(&flags)),
            });
        }
        set
    }

    fn how(&mut self) -> How {
        match self.below(10) {
            0 => How::Open,
            1 => How::Create,
            2 => How::CreateNew,
            _ => How::Options {
                set: self.options(),
                std: self.percent(10),
                cloned: self.percent(10),
                again: self.percent(10),
            },
        }
    }

    fn call(&mut self) -> Call {
        match self.below(40) {
            0..8 => Call::Read(self.count()),
            8 => Call::ReadExact(self.count()),
            9 => Call::ReadToEnd,
            10 => Call::ReadToString,
            11..15 => Call::Write(self.count()),
            15..18 => Call::WriteAll(self.count()),
            18 | 19 => {
                let many = self.percent(5);
                let count = if many { 1100 } else { self.below(5) };
                let most = if many { 9 } else { self.count() as u64 + 1 };
                Call::WriteVectored((0..count).map(|_| self.below(most) as usize).collect())
            }
            20..25 => Call::Seek(self.place()),
            25 => Call::StartSeek(if self.percent(40) {
                SeekFrom::End(i64::MIN)
            } else {
                self.place()
            }),
            26 => Call::PollComplete,
            27 | 28 => Call::Flush,
            29 => Call::Shutdown,
            30 => Call::SyncAll,
            31 => Call::SyncData,
            32 | 33 => Call::SetLen(self.one_of(&[0, 1, 5000, 100_000, u64::MAX])),
            34 => Call::Metadata,
            35 => Call::SetPermissions(self.mode()),
            36 => Call::SetTimes { accessed: self.percent(50), modified: self.percent(70) },
            37 => Call::MaxBufSize(self.one_of(&[1, 10, 1000, 1 << 16, 100_000, 2 << 20])),
            38 => Call::IntoStd,
            _ => Call::TryIntoStd,
        }
    }

    /// Returns a call to which it matters how a read or seek before it ended.
    fn next_call(&mut self) -> Call {
        match self.below(10) {
            0 | 1 => Call::Read(self.count()),
            2..5 => Call::Write(self.count()),
            5 => Call::Seek(self.place()),
            6 => Call::SetLen(self.one_of(&[0, 1, 5000])),
            7 => Call::Flush,
            8 => Call::IntoStd,
            _ => Call::TryIntoStd,
        }
    }

    fn path_call(&mut self) -> PathCall {
        match self.below(24) {
            0..3 => PathCall::Read,
            3 => PathCall::ReadToString,
            4..6 => PathCall::Write(self.count()),
            6 => PathCall::ReadLink,
            7 | 8 => PathCall::Canonicalize,
            9 => PathCall::Metadata,
            10 => PathCall::SymlinkMetadata,
            11 => PathCall::TryExists,
            12 => PathCall::RemoveFile,
            13 => PathCall::RemoveDir,
            14 => PathCall::RemoveDirAll,
            15 => PathCall::CreateDir,
            16 | 17 => PathCall::CreateDirAll,
            18 | 19 => {
                let recursive = (0..self.below(3)).map(|_| self.percent(70)).collect();
                PathCall::BuildDir { recursive, mode: self.percent(60).then(|| self.mode()) }
            }
            20 | 21 => PathCall::SetPermissions(self.mode()),
            _ => self.listing(),
        }
    }

    fn listing(&mut self) -> PathCall {
        PathCall::ReadDir { dropped: self.percent(40), gone: self.percent(30) }
    }

    fn paths_call(&mut self) -> PathsCall {
        match self.below(4) {
            0 => PathsCall::Copy,
            1 => PathsCall::Rename,
            2 => PathsCall::HardLink,
            _ => PathsCall::Symlink { is_absolute: self.percent(30) },
        }
    }

    /// Returns an action, mostly on this file if one is used.
    fn action(&mut self, last: usize, is_served: bool) -> Action {
        let slot = if self.percent(60) { last } else { self.below(SLOTS as u64) as usize };
        let to = (slot + 1 + self.below(SLOTS as u64 - 1) as usize) % SLOTS;
        match self.below(if is_served { 75 } else { 100 }) {
            0..51 => Action::File { slot, call: self.call() },
            51..58 => Action::Open { slot, path: self.path(is_served), how: self.how() },
            58..61 => Action::Clone { slot, to },
            61..63 => Action::Drop { slot },
            63 if is_served => Action::Fail {
                is_write: self.percent(50),
                errno: self.one_of(&[libc::EIO, libc::ENOSPC]),
            },
            64..66 if is_served => {
                let call = match self.below(4) {
                    0 => Call::Read(self.count()),
                    1 => Call::Write(self.count()),
                    2 => Call::Seek(SeekFrom::Current(3)),
                    _ => Call::Seek(SeekFrom::End(-2)),
                };
                Action::Overlap { slot, to, call }
            }
            63 => Action::OpenPipe { slot },
            64 => Action::OpenFull { slot },
            65 | 66 => Action::CoolDown { path: self.path(is_served) },
            67 => Action::Compare,
            68 => Action::Fill {
                path: self.one_of(&["dir", "empty"]).to_owned(),
                count: self.one_of(&[1, 30, 31, 32, 33, 70, 100, 400]),
            },
            69..75 => Action::Paths {
                from: self.path(is_served),
                to: self.path(is_served),
                call: self.paths_call(),
            },
            _ => Action::Path { path: self.path(is_served), call: self.path_call() },
        }
    }

    /// Returns a program, for a file server or another place.
    pub fn program(&mut self, is_served: bool) -> Vec<Step> {
        // Some are mostly about one file.
        let fewest = u64::from(is_served);
        let opened = (0..SLOTS).take((fewest + self.below(SLOTS as u64 + 1 - fewest)) as usize);
        let mut steps: Vec<Action> = Vec::new();
        for slot in opened {
            let set = match self.below(8) {
                0 => vec![Opt::Read(true)],
                1 => vec![Opt::Write(true)],
                2 => vec![Opt::Read(true), Opt::Append(true)],
                // With this flag nothing is tried inline.
                3 | 4 => vec![Opt::Read(true), Opt::Write(true), Opt::Flags(libc::O_DSYNC)],
                _ => vec![Opt::Read(true), Opt::Write(true)],
            };
            // The server has no large one.
            let all = if is_served { &["a", "c"][..] } else { &["a", "c", "big"] };
            let (path, how) = (self.one_of(all).into(), How::options(set));
            steps.push(Action::Open { slot, path, how });
        }
        let chance = self.one_of(&[0, 10, 30]) + if is_served { 10 } else { 0 };
        let mut last = 0;
        for _ in 0..8 + self.below(30) {
            let action = self.action(last, is_served);
            last = match &action {
                Action::Open { slot, .. } | Action::OpenPipe { slot } => *slot,
                Action::Clone { slot, to } => self.one_of(&[*slot, *to]),
                Action::File { slot, .. } => *slot,
                _ => last,
            };
            let next = match &action {
                Action::Fill { path, .. } => {
                    vec![Action::Path { path: path.clone(), call: self.listing() }]
                }
                Action::File { slot, call: Call::Read(_) | Call::StartSeek(_) } => {
                    let calls = (0..1 + self.below(3)).map(|_| self.next_call());
                    let mut next: Vec<_> =
                        calls.map(|call| Action::File { slot: *slot, call }).collect();
                    if self.percent(15) {
                        // It begins at the same position.
                        let to = (slot + 1) % SLOTS;
                        let read = Action::File { slot: to, call: Call::Read(self.count()) };
                        next.extend([Action::Clone { slot: *slot, to }, read]);
                    }
                    next
                }
                _ => Vec::new(),
            };
            steps.push(action);
            steps.extend(next);
        }
        let with = |action| {
            // Its bytes matter to the next steps.
            let is_read = matches!(action, Action::File { call: Call::Read(_), .. });
            let chance = if is_read { chance * 2 + chance.min(30) } else { chance };
            Step { is_dropped: self.percent(chance), action }
        };
        steps.into_iter().map(with).collect()
    }
}
