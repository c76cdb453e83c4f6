//! Processes that are killed while they save files and commit records: all acknowledged work is there, and
//! nothing is half done.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sakia::fs::{self, File, GroupCommit, OpenOptions};
use sakia::{spawn, yield_now};
use sakia_driver::Policy;

use crate::children;
use crate::support::{Random, TempDir, names, on_each_backend, runtime};

on_each_backend! { in_the_middle_of_saves_and_commits }

const KILLS: u64 = 160;
/// Tasks that share the journal.
const WRITERS: u64 = 4;
/// Tasks that each save a file of their own.
const SAVERS: u64 = 2;
const RECORD_BYTES: usize = 200;

fn in_the_middle_of_saves_and_commits(policy: Policy) {
    // Half of the rounds use tmpfs, which is faster and takes other ways.
    let bases = [Path::new(env!("CARGO_TARGET_TMPDIR")), Path::new("/dev/shm")];
    for base in bases.into_iter().filter(|base| base.is_dir()) {
        let mut victims = Victims::new(TempDir::within(base));
        for kill in 0..KILLS / 2 {
            victims.kill_one(policy, kill);
        }
        assert!(victims.acknowledged as u64 >= KILLS / 2, "they ended before they were killed");
        assert!(victims.saved.values().any(|&version| version > 0), "nothing was ever saved");
    }
}

/// The acknowledgements of the processes killed so far.
struct Victims {
    folder: TempDir,
    /// The last version of each saved file.
    saved: BTreeMap<u64, u64>,
    acknowledged: usize,
}

impl Victims {
    fn new(folder: TempDir) -> Self {
        let saved = (0..SAVERS).map(|saver| (saver, 0)).collect();
        Self { folder, saved, acknowledged: 0 }
    }

    /// Starts a process that saves and commits, and kills it some time after its first acknowledgement.
    fn kill_one(&mut self, policy: Policy, number: u64) {
        let begin = 1 + number * 1_000_000;
        let argument = format!("{begin} {}", self.folder.path().display());
        let mut child = children::command("saves_and_commits", policy, &argument).spawn().unwrap();
        let mut pipe = child.stdout.take().unwrap();
        let mut said = vec![0; 16];
        if pipe.read_exact(&mut said).is_ok() {
            std::thread::sleep(Duration::from_micros(Random::new(number).below(6000) as u64));
        }
        child.kill().unwrap();
        pipe.read_to_end(&mut said).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        self.verify(&said);
    }

    /// Compares the files with the acknowledgements.
    fn verify(&mut self, said: &[u8]) {
        let journal = std::fs::read(self.folder.join("journal")).unwrap_or_default();
        for said in said.chunks_exact(16).map(Acknowledgement::from_bytes) {
            self.acknowledged += 1;
            match said {
                Acknowledgement::Saved { saver, version } => {
                    self.saved.insert(saver, version);
                }
                Acknowledgement::Committed { at, number } => {
                    let found = journal.get(at..at + RECORD_BYTES);
                    assert!(found == Some(&record(number)), "record {number} at {at} is lost");
                }
            }
        }
        for (&saver, &acknowledged) in &self.saved {
            let path = self.folder.join(format!("saved-{saver}"));
            let Ok(bytes) = std::fs::read(&path) else {
                assert_eq!(acknowledged, 0, "{} is gone", path.display());
                continue;
            };
            let version = u64::from_le_bytes(*bytes.first_chunk().unwrap());
            assert!(bytes == contents(version), "version {version} is not whole");
            assert!(version >= acknowledged, "{version} came after {acknowledged}");
        }
        // Leftover files have names that tell their origin, and disturb no program.
        for name in names(self.folder.path()) {
            let is_ours = name == "journal" || name.starts_with("saved-") || name.ends_with(".tmp");
            assert!(is_ours, "{name}");
        }
    }
}

/// An acknowledgement of a victim, written before it continues: 16 bytes in one write, so that it arrives
/// whole or not at all.
enum Acknowledgement {
    Saved { saver: u64, version: u64 },
    Committed { at: usize, number: u64 },
}

impl Acknowledgement {
    const COMMITTED: u64 = 1 << 63;

    fn say(&self) {
        let (first, second) = match *self {
            Self::Saved { saver, version } => (saver, version),
            Self::Committed { at, number } => (at as u64 | Self::COMMITTED, number),
        };
        let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
        std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush()).unwrap();
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
        match number(0) {
            first if first & Self::COMMITTED != 0 => {
                Self::Committed { at: (first & !Self::COMMITTED) as usize, number: number(8) }
            }
            saver => Self::Saved { saver, version: number(8) },
        }
    }
}

/// Returns contents from which a reader can tell whether they are whole.
fn contents(version: u64) -> Vec<u8> {
    let mut bytes = Random::new(version).bytes(100 + version as usize % 7 * 9000);
    bytes.splice(..0, version.to_le_bytes());
    bytes
}

fn record(number: u64) -> Vec<u8> {
    Random::new(number).bytes(RECORD_BYTES)
}

pub fn scene_saves_and_commits(policy: Policy) -> Result<(), String> {
    let argument = children::argument();
    let (begin, folder) = argument.split_once(' ').unwrap();
    let (begin, folder) = (begin.parse::<u64>().unwrap(), Path::new(folder));
    runtime(policy).block_on(async {
        let mut options = OpenOptions::new();
        let file: File =
            options.read(true).write(true).create(true).open(folder.join("journal")).await.unwrap();
        let journal = GroupCommit::new(file).await.unwrap();
        for saver in 0..SAVERS {
            let path = folder.join(format!("saved-{saver}"));
            spawn(async move {
                for version in begin.. {
                    fs::save(&path, contents(version)).await.unwrap();
                    Acknowledgement::Saved { saver, version }.say();
                }
            })
            .detach();
        }
        for writer in 0..WRITERS {
            let journal = journal.clone();
            spawn(async move {
                for number in (begin + writer..).step_by(WRITERS as usize) {
                    let at = journal.append(record(number)).await.0.unwrap() as usize;
                    journal.commit().await.unwrap();
                    Acknowledgement::Committed { at, number }.say();
                }
            })
            .detach();
        }
        loop {
            yield_now().await;
        }
    })
}
