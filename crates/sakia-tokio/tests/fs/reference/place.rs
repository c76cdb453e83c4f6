//! Places for the two directories of a program.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{CWD, FileType, mknodat};
use sakia_testkit::fuse::{Fuse, Gate, Opcode, Rule};
use sakia_testkit::place::PlaceError;
use sakia_testkit::small_fs::SmallFs;

use super::steps::some_bytes;

/// The way from a side's directory to that of the program, whose links lead up a few of them at most.
const WAY: &str = "1/2/3/4/root";
/// The size of the small file systems: the initial files, and two large writes.
const SMALL_BYTES: u64 = 768 << 10;
/// The requests that the server delays, and by how many microseconds.
const SLOW: [(Opcode, u64); 5] = [
    (Opcode::READ, 100),
    (Opcode::WRITE, 100),
    (Opcode::SETATTR, 1000),
    (Opcode::CREATE, 1000),
    (Opcode::RENAME2, 1000),
];

/// A kind of place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In memory, where everything is cached.
    Memory,
    /// Perhaps on a disk, whose cache is sometimes dropped.
    Disk,
    /// In little memory.
    Small,
    /// A file server without a cache.
    Server,
}

impl Kind {
    /// Returns the kind of place of a program.
    pub fn of(seed: u64) -> Self {
        match seed % 16 {
            0..8 => Self::Memory,
            8..10 => Self::Disk,
            10..12 => Self::Small,
            _ => Self::Server,
        }
    }
}

/// Two directories.
pub struct Place {
    pub kind: Kind,
    /// Their own directories, which no program leaves.
    pub sides: [PathBuf; 2],
    servers: Option<[Fuse; 2]>,
    _small: Option<[SmallFs; 2]>,
}

impl Place {
    /// Makes a place of this kind; below `parent` if it is not mounted.
    pub fn new(kind: Kind, parent: &Path) -> Result<Self, PlaceError> {
        let mut place = Self { kind, sides: Default::default(), servers: None, _small: None };
        match kind {
            Kind::Memory | Kind::Disk => {
                let parent = parent.canonicalize().unwrap();
                place.sides = ["ours", "theirs"].map(|side| parent.join(side));
            }
            Kind::Small => {
                let small = [SmallFs::tmpfs(SMALL_BYTES)?, SmallFs::tmpfs(SMALL_BYTES)?];
                place.sides = small.each_ref().map(|small| small.path().join("side"));
                place._small = Some(small);
            }
            Kind::Server => {
                let mount = || Fuse::builder().direct_io(true).mount();
                let servers = [mount()?, mount()?];
                place.sides = servers.each_ref().map(|server| server.path().to_owned());
                place.servers = Some(servers);
            }
        }
        Ok(place)
    }

    /// Returns the directories of a program.
    pub fn roots(&self) -> [PathBuf; 2] {
        match self.kind {
            Kind::Server => self.sides.clone(),
            _ => self.sides.each_ref().map(|side| side.join(WAY)),
        }
    }

    /// Makes the initial files. The server has fewer.
    pub fn fill(&self) {
        self.script(None);
        for root in self.roots() {
            fs::create_dir_all(&root).unwrap();
            let file = |name, len| fs::write(root.join(name), some_bytes(len)).unwrap();
            file("a", 3000);
            file("b", 0);
            file("c", 70_000);
            fs::write(root.join("text"), "täxt\n").unwrap();
            fs::write(root.join("no-text"), [b'a', 0xff]).unwrap();
            if self.kind == Kind::Server {
                continue;
            }
            if self.kind != Kind::Small {
                file("big", 300_000);
            }
            fs::create_dir_all(root.join("dir/sub")).unwrap();
            fs::create_dir(root.join("empty")).unwrap();
            file("dir/x", 100);
            file("dir/sub/y", 5000);
            fs::set_permissions(root.join("dir/x"), Permissions::from_mode(0o4710)).unwrap();
            for (name, to) in
                [("link", "a"), ("dirlink", "dir"), ("dangling", "new"), ("loop", "loop")]
            {
                symlink(to, root.join(name)).unwrap();
            }
            mknodat(CWD, root.join("pipe"), FileType::Fifo, 0o600.into(), 0).unwrap();
        }
    }

    /// Removes all files.
    pub fn clear(&self) {
        for side in &self.sides {
            if self.kind == Kind::Server {
                for entry in fs::read_dir(side).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
            } else {
                fs::remove_dir_all(side).unwrap();
            }
        }
    }

    /// Lets the servers delay requests, and fail the next one if one is to fail.
    pub fn script(&self, failing: Option<(bool, i32)>) {
        for server in self.servers.iter().flatten() {
            server.release();
            if let Some((is_write, errno)) = failing {
                let opcode = if is_write { Opcode::WRITE } else { Opcode::READ };
                server.script(Rule::on(opcode).times(1).errno(errno));
            }
            for (opcode, delay) in SLOW {
                server.script(Rule::on(opcode).delay(Duration::from_micros(delay)));
            }
        }
    }

    /// Lets the servers hold writes.
    pub fn hold_writes(&self) -> Option<[Gate; 2]> {
        self.servers.as_ref().map(|servers| {
            servers.each_ref().map(|server| {
                server.release();
                server.hold(Rule::on(Opcode::WRITE))
            })
        })
    }
}
