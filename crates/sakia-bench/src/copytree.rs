//! The experiment `copytree`: a tree of files, copied by whole programs.
//!
//! Each run is a program from its start to its end: `cp -r`, the same again to show the random variation,
//! Sakia with its defaults or with the buffers and limits of an article, and other copiers that are
//! installed. Between runs the destination is made anew, the memory that the copy will need is touched, and
//! the source is read or dropped; none of that is measured. An incomplete copy makes its variant fail.

mod place;
mod run;
mod source;
mod ways;

use std::ffi::OsString;
use std::hint::black_box;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::bytes::bytes;
use crate::cell::{Outcome, Spec};
use crate::experiment::{About, Experiment, Focus, Params, Point, Work};
use crate::machine::memory_available_bytes;
use crate::mktree::{self, Even, Layout};
use crate::results::{Missing, Row};
use crate::scratch;

pub use self::place::Place;
pub use self::ways::Peer;

use self::place::Ground;
use self::run::Task;
use self::source::{Census, Chill};
use self::ways::Way;

/// The name of the experiment.
pub const NAME: &str = "copytree";
/// The default size in bytes of the tree that is one file.
pub const FILE_BYTES: u64 = 1 << 30;
/// The same in a quick look.
pub const QUICK_FILE_BYTES: u64 = 64 << 20;

/// The variant that others are compared with.
const BASE: &str = "cp";
/// The same variant once more.
const AGAIN: &str = "cp-again";
/// The variant that is compared with all others, and the prefix of its names.
const SAKIA: &str = "sakia";

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The trees to copy.
    pub trees: Vec<Tree>,
    /// The places to copy to; each tree at each place is a point.
    pub places: Vec<Place>,
    /// Bytes of [`Tree::File`].
    pub file_bytes: u64,
    /// The programs, and their options.
    pub mode: Mode,
    /// Set if the source is not in the page cache.
    pub cold: bool,
    /// Set if a copy is made and deleted just before each run, in the place of the next one.
    pub after_delete: bool,
    /// The number of processors that programs may use.
    pub cores: Option<usize>,
    /// Use small trees.
    pub quick: bool,
    /// Programs besides the known ones, or in place of them.
    pub peers: Vec<Peer>,
    /// The names of the variants; the default ones if there is none.
    pub variants: Vec<String>,
    /// The program `sakia`.
    pub program: Option<PathBuf>,
    /// The directories in which programs are searched for: the value of `PATH`.
    pub search: Option<OsString>,
    /// The directory in which the experiment makes a directory for the sources.
    pub directory: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            trees: vec![Tree::Small],
            places: vec![Place::Tmpfs],
            file_bytes: FILE_BYTES,
            mode: Mode::Plain,
            cold: false,
            after_delete: false,
            cores: None,
            quick: false,
            peers: Vec::new(),
            variants: Vec::new(),
            program: None,
            search: None,
            directory: std::env::temp_dir(),
        }
    }
}

impl Options {
    /// Checks that the options name only variants that exist.
    ///
    /// # Errors
    /// A variant that does not exist.
    pub fn check(&self) -> anyhow::Result<()> {
        let names = ways::names(self);
        for variant in &self.variants {
            let is_known = names.contains(&variant.as_str());
            ensure!(is_known, "there is no variant {variant}; there are {}", names.join(", "));
        }
        Ok(())
    }
}

/// The programs, and their options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Recursively: `-r`.
    #[default]
    Plain,
    /// Recursively, with Sakia's buffers and limits as in the article.
    Article,
    /// With all attributes: `-a`.
    Archive,
    /// Durably: `--fsync`.
    Durable,
}

/// A tree to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    /// 117,649 files of 4 KiB, in leaf directories.
    Small,
    /// 780 files of 1 MiB.
    Large,
    /// 32,000 files with the sizes of source code.
    Source,
    /// One file.
    File,
    /// The user's tree.
    Path(PathBuf),
}

impl Tree {
    /// The trees with names.
    pub const NAMED: [Self; 4] = [Self::Small, Self::Large, Self::Source, Self::File];

    /// Returns the name of the tree: for a path its last part.
    pub fn name(&self) -> String {
        match self {
            Self::Small => "small".into(),
            Self::Large => "large".into(),
            Self::Source => "source".into(),
            Self::File => "file".into(),
            Self::Path(path) => {
                let name = path.file_name().unwrap_or(path.as_os_str());
                name.to_string_lossy().into_owned()
            }
        }
    }

    /// Returns the tree of this name, or the user's at this path: with a slash, or `.`.
    pub fn by_name(name: &str) -> Option<Self> {
        let named = Self::NAMED.into_iter().find(|tree| tree.name() == name);
        named.or_else(|| as_path(name).map(Self::Path))
    }

    /// Returns the tree's shape, if the experiment makes it.
    fn layout(&self, quick: bool, file_bytes: u64) -> Option<mktree::Options> {
        let even = |fanout, levels, files, leaves, size_bytes| {
            Layout::Even(Even { fanout, levels, files, leaves, size_bytes })
        };
        let layout = match (self, quick) {
            (Self::Small, false) => even(7, 6, 7, true, 4096),
            (Self::Small, true) => even(7, 4, 7, true, 4096),
            (Self::Large, false) => even(5, 4, 5, false, 1 << 20),
            (Self::Large, true) => even(5, 2, 5, false, 1 << 20),
            (Self::Source, false) => Layout::Source { files: 32_000 },
            (Self::Source, true) => Layout::Source { files: 1000 },
            // A directory; only the file in it is copied.
            (Self::File, _) => even(0, 1, 1, false, file_bytes),
            (Self::Path(_), _) => return None,
        };
        Some(mktree::Options { layout, seed: mktree::SEED })
    }
}

/// Returns `name` as a path if it is one, and not the name of a tree.
fn as_path(name: &str) -> Option<PathBuf> {
    (name.contains('/') || name == ".").then(|| name.into())
}

/// A tree at a place.
#[derive(Debug)]
struct Cell {
    tree: Tree,
    place: Place,
    census: Census,
}

/// The experiment, with the sources and the place of the current point. Dropping it removes them.
#[derive(Debug)]
pub struct CopyTree {
    options: Options,
    ways: Vec<Way>,
    about: About,
    cells: Vec<Cell>,
    chill: Option<Chill>,
    source: PathBuf,
    /// The ground for copies of the current point.
    ground: Option<Ground>,
    /// The next copy.
    destination: PathBuf,
    /// Set if earlier copies on the same disk were deleted for the next.
    is_disturbed: bool,
    /// Keeps the sources until the end.
    scratch: TempDir,
}

impl CopyTree {
    /// Searches programs and places, and makes a directory for the sources. Those that are missing are [left
    /// out](About::left_out).
    ///
    /// # Errors
    /// As `mkdir(2)` and [`check`](Options::check); if the user's tree cannot be read.
    pub fn new(options: Options) -> anyhow::Result<Self> {
        options.check()?;
        let scratch = scratch::directory("sakia-bench-", &options.directory)?;
        let (ways, mut left_out) = ways::find(&options);
        let mut places = Vec::new();
        for place in &options.places {
            match place.lacks()? {
                None => places.push(place),
                Some(reason) => {
                    let variant = ways::lasting(&format!("place {}", place.name()));
                    left_out.push(Missing { variant, reason, is_failure: false });
                }
            }
        }
        let mut cells = Vec::new();
        for tree in &options.trees {
            let census = source::plan(tree, options.quick, options.file_bytes)?;
            let cell = |&place: &&Place| Cell { tree: tree.clone(), place: place.clone(), census };
            cells.extend(places.iter().map(cell));
        }
        let chill = options.cold.then(Chill::possible);
        let variants: Vec<_> = ways.iter().map(|way| ways::lasting(&way.name)).collect();
        let mut about = About {
            title: title(&options, chill),
            notes: notes(&ways),
            pairs: pairs(&variants),
            variants,
            points: cells.iter().map(|cell| point(cell, &options)).collect(),
            left_out,
            ..About::new(NAME, Focus::Files, scratch.path())
        };
        let mut names: Vec<_> = places.iter().map(|place| place.name()).collect();
        names.dedup();
        about.machine.file_system += &format!(" to {}", names.join(", "));
        Ok(Self {
            options,
            ways,
            about,
            cells,
            chill,
            source: PathBuf::new(),
            ground: None,
            destination: PathBuf::new(),
            is_disturbed: false,
            scratch,
        })
    }
}

fn title(options: &Options, chill: Option<Chill>) -> String {
    let how = match options.mode {
        Mode::Plain => "copying a tree (cp -r)",
        Mode::Article => "copying a tree (cp -r) with set buffers and limits",
        Mode::Archive => "copying a tree with all attributes (cp -a)",
        Mode::Durable => "copying a tree durably",
    };
    let state = match chill {
        None => "source in the page cache",
        Some(chill) => chill.words(),
    };
    let before =
        if options.after_delete { "; where another copy was just made and deleted" } else { "" };
    format!("{how}, {state}{before}")
}

fn notes(ways: &[Way]) -> Vec<String> {
    let mut notes: Vec<String> = vec![
        "Times are those of a program from its start to its end, its processor time included, without \
         what the kernel writes back afterwards. cp-again is cp once more: what it differs by is \
         chance."
            .into(),
        "Before each run memory is touched as the copy will need it, then the source is read once. A \
         run whose source was read from disk all the same counts as noisy."
            .into(),
        "After each run files, directories, links and bytes of the copy are counted, and compared \
         with the source."
            .into(),
        "tmpfs is mounted for each run. ext4 is made for each run, on a loop device over a file on a \
         tmpfs: the code of ext4, and no disk; another file system than that of the source, so that \
         no blocks are shared. On a disk each copy has a new directory, and earlier ones stay until \
         the end, as long as there is room."
            .into(),
        "Memory and threads are sampled every 20 ms, at first more often: in a short run the values are \
         too small. They are those of the first process, without others that it starts \
         (rsync does)."
            .into(),
    ];
    for way in ways {
        let words = way.arguments.iter().map(|word| format!(" {}", word.to_string_lossy()));
        let words: String = words.collect();
        notes.push(format!("{}: {}{words}", way.name, way.program.display()));
    }
    notes
}

/// Returns the pairs to compare: all with `cp`, then Sakia with all others.
fn pairs(variants: &[&'static str]) -> Vec<(&'static str, &'static str)> {
    let others = |base: &'static str| {
        let has_base = variants.contains(&base);
        variants.iter().copied().filter(move |name| has_base && *name != base)
    };
    let with_base = others(BASE).map(|name| (name, BASE));
    let known = |name: &&str| !name.starts_with(SAKIA) && ![BASE, AGAIN].contains(name);
    let with_peers = others(SAKIA).filter(known).map(|name| (SAKIA, name));
    with_base.chain(with_peers).collect()
}

fn point(cell: &Cell, options: &Options) -> Point {
    let Cell { tree, place, census } = cell;
    let mut params = Params::new();
    params.insert("tree".into(), tree.name().into());
    params.insert("place".into(), place.name().into());
    for (name, count) in
        [("files", census.files), ("directories", census.directories), ("bytes", census.bytes)]
    {
        params.insert(name.into(), count.into());
    }
    let mut label = format!("{}, {}", tree.name(), place.name());
    let flags = [
        ("cold", options.cold),
        ("after_delete", options.after_delete),
        ("article", options.mode == Mode::Article),
        ("archive", options.mode == Mode::Archive),
        ("fsync", options.mode == Mode::Durable),
    ];
    for (name, _) in flags.iter().filter(|(_, is_so)| *is_so) {
        params.insert((*name).into(), true.into());
        label = format!("{label}, {}", name.replace('_', " "));
    }
    if let Some(cores) = options.cores {
        params.insert("cores".into(), cores.into());
        label = format!("{label}, {cores} CPU");
    }
    Point { params, label, work: Work { operations: census.files, bytes: census.bytes } }
}

/// Makes the kernel find memory now, so that the copy need not wait for it: hosts take back memory that
/// guests do not use, and the page cache has to give up pages.
fn touch(needed_bytes: u64) {
    let available = memory_available_bytes().unwrap_or(0);
    let count = needed_bytes.min(available / 2);
    black_box(vec![1u8; usize::try_from(count).unwrap_or(0)]);
}

impl Experiment for CopyTree {
    fn about(&self) -> &About {
        &self.about
    }

    fn prepare(&mut self, point: usize, is_stopped: &dyn Fn() -> bool) -> anyhow::Result<u64> {
        let Options { quick, file_bytes, .. } = self.options;
        let Cell { tree, place, census } = &self.cells[point];
        self.ground = None;
        let source = source::make(tree, quick, file_bytes, self.scratch.path(), is_stopped)?;
        // The program runs in another working directory.
        self.source = source.canonicalize().with_context(|| format!("{}", source.display()))?;
        if !is_stopped() {
            let made = Census::of(&self.source)?;
            ensure!(made == *census, "the source has {made} instead of {census}");
        }
        if let (Place::Path(path), true) = (place, self.source.is_dir()) {
            let path = path.canonicalize().with_context(|| format!("{}", path.display()))?;
            if path.starts_with(&self.source) {
                bail!("{} is inside of the source", path.display());
            }
        }
        let beside = match tree {
            Tree::Path(_) => self.source.parent().unwrap_or(&self.source),
            _ => self.scratch.path(),
        };
        self.ground = Some(Ground::new(place, *census, beside)?);
        Ok(census.sum())
    }

    fn reset(&mut self, point: usize) -> anyhow::Result<()> {
        let Cell { place, census, .. } = &self.cells[point];
        let ground = self.ground.as_mut().context("no place is prepared")?;
        (self.destination, self.is_disturbed) = ground.fresh()?;
        if self.options.after_delete {
            source::copy(&self.source, &self.destination)?;
            source::remove(&self.destination)?;
        }
        if let Some(chill) = self.chill {
            chill.apply(&self.source)?;
            // Only the sources are to be cold, not the programs.
            self.ways.iter().try_for_each(|way| source::warm(&way.program))?;
        }
        touch(place.memory_bytes(census));
        if self.chill.is_none() {
            source::warm(&self.source)?;
        }
        Ok(())
    }

    fn input(&self, point: usize) -> Value {
        json!(Task {
            ways: self.ways.clone(),
            source: self.source.clone(),
            destination: self.destination.clone(),
            census: self.cells[point].census,
            cores: self.options.cores,
            is_hot: self.chill.is_none(),
            is_disturbed: self.is_disturbed,
        })
    }

    fn reason(&self, row: &Row) -> Option<String> {
        let mut parts = explained(row);
        let read = row.count("disk_read_bytes");
        if self.chill.is_none() && read > self.cells[row.point].census.bytes / 20 {
            parts.push(format!("read {} from disk", bytes(read >> 20 << 20)));
        }
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

/// Returns phrases for the figures that a program reported about its work.
fn explained(row: &Row) -> Vec<String> {
    // With the smallest value that is shown.
    const COUNTS: [(&str, &str, u64); 14] = [
        ("workers", "workers", 0),
        ("plain_calls", "plain calls", 0),
        ("uncached_opens", "uncached opens", 0),
        ("ring_opens", "of these by the ring's workers", 0),
        ("ring_reads", "reads by the ring", 0),
        ("pool_lists", "directories read by threads", 1),
        ("parts", "parts of directories handed over", 1),
        ("ranges", "files with helpers", 1),
        ("depth_max", "of all these at most at a time", 0),
        ("enters", "enters", 0),
        ("laid_off", "times laid off", 1),
        ("apart", "directories put apart", 1),
        ("skipped", "skipped", 1),
        ("failures", "failures", 1),
    ];
    const TIMES: [(&str, &str); 3] =
        [("create_us", "creating"), ("read_us", "reading"), ("write_us", "writing")];
    let count = |name: &str| row.counters.get(name).copied();
    let counts = COUNTS.iter().filter_map(|&(name, words, least)| {
        let count = count(name).filter(|&count| count >= least)?;
        Some(format!("{count} {words}"))
    });
    let times = TIMES
        .iter()
        .filter_map(|&(name, words)| Some(format!("{:.2} s {words}", count(name)? as f64 / 1e6)));
    let lists = [counts.collect::<Vec<_>>().join(", "), times.collect::<Vec<_>>().join(", ")];
    lists.into_iter().filter(|list| !list.is_empty()).collect()
}

/// See [`cell::run_cell`](crate::cell::run_cell).
pub(crate) fn run_cell(spec: &Spec) -> anyhow::Result<Outcome> {
    let task: Task = spec.task()?;
    run::run(&spec.variant, &task)
}

#[cfg(test)]
mod tests;
