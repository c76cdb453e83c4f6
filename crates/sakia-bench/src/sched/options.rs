//! The options of the experiment.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::computation::WORD_BYTES;
use super::variants::Variant;

/// The points to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The points of the options.
    #[default]
    Testbench,
    /// Reads and writes, 1 to 16 threads, 10^3 to 10^8 bytes.
    Matrix,
    /// The time until a read returns, with two threads.
    Fig4,
    /// The time of system calls, with one thread.
    Fig5,
    /// The time until a read that bypasses the page cache returns, with one thread.
    Fig6,
    /// How much a thread computes while its reads are under way.
    Utilization,
}

/// Options of the experiment.
#[derive(Clone, Debug)]
pub struct Options {
    /// The mode: it chooses the points; other options narrow the choice.
    pub mode: Mode,
    /// Numbers of threads; each is a point with each size. Empty: the default.
    pub threads: Vec<usize>,
    /// Sizes of reads. With writes, there must be one size, or as many as sizes of writes.
    pub read_sizes: Vec<u64>,
    /// Sizes of writes.
    pub write_sizes: Vec<u64>,
    /// Reads over all threads; `None`: the default for their size.
    pub reads: Option<u64>,
    /// Writes over all threads.
    pub writes: Option<u64>,
    /// Bytes from one read of a file to the next; `None`: 0 if the page cache has the file, and otherwise the
    /// distance to the next block.
    pub read_step: Option<u64>,
    /// The same for writes; 0, or at least their size.
    pub write_step: Option<u64>,
    /// The number of files to make, which are used in turn.
    pub files: usize,
    /// Existing files to read instead.
    pub others: Vec<PathBuf>,
    /// Set if reads and writes alternate.
    pub mix: bool,
    /// Set if files have holes where nothing was written.
    pub sparse: bool,
    /// Set if the page cache has the files, as it does unless another way is set. With
    /// [`Mode::Utilization`] each way that is set is measured, or all three if none is.
    pub hot: bool,
    /// Set if files are dropped from the page cache before each run.
    pub cold: bool,
    /// Set if the page cache is bypassed.
    pub direct: bool,
    /// Numbers of reads that a thread has under way while it computes. Empty: the default.
    pub depths: Vec<usize>,
    /// The time of the computation with each block; `None`: the default.
    pub computation: Option<Duration>,
    /// Do less of everything.
    pub quick: bool,
    /// The variants, in the order in which they are shown.
    pub variants: Vec<Variant>,
    /// The directory in which the experiment makes a directory for the files.
    pub directory: PathBuf,
}

impl Options {
    /// Checks that the options are consistent.
    ///
    /// # Errors
    /// Two options contradict each other; the error names them by the flags of the command line.
    pub fn check(&self) -> anyhow::Result<()> {
        let Self { read_sizes, write_sizes, reads, writes, write_step, others, mix, .. } = self;
        let is_testbench = self.mode == Mode::Testbench;
        let is_set = !is_testbench; // the mode defines the points
        let is_figure = is_set && self.mode != Mode::Matrix;
        let is_fig5 = self.mode == Mode::Fig5;
        let is_utilization = self.mode == Mode::Utilization;
        let tells_of_computing = !self.depths.is_empty() || self.computation.is_some();
        let is_too_small = is_utilization && read_sizes.iter().any(|&size| size < WORD_BYTES);
        let (has_reads, has_writes) = (!read_sizes.is_empty(), !write_sizes.is_empty());
        let (has_both, has_others) = (has_reads && has_writes, !others.is_empty());
        let lacks_writes = is_testbench && !has_writes;
        let lacks_reads = is_testbench && has_writes && !has_reads;
        let tells_of_writes = writes.is_some() || write_step.is_some();
        let refusals = [
            (self.variants.is_empty(), "no variant is to be measured"),
            (self.files == 0, "--nfiles 0: there is nothing to read"),
            (is_set && has_writes, "--wsize is for the testbench: without --matrix or a figure"),
            (is_set && has_others, "--files is for the testbench: without --matrix or a figure"),
            (is_figure && tells_of_writes, "--nwrites and --woff are not for figures, which read"),
            (is_utilization && *mix, "--mix is not for --utilization, which reads"),
            (is_fig5 && !self.threads.is_empty(), "--threads is not for --fig5, which has one"),
            (is_fig5 && self.direct, "--direct is not for --fig5, which has both ways"),
            (tells_of_computing && !is_utilization, "--depth and --compute are for --utilization"),
            (self.hot && self.cold && !is_utilization, "--hot and --cold exclude each other"),
            (self.depths.contains(&0), "--depth 0: nothing would be under way"),
            (is_too_small, "--rsize: --utilization computes with blocks of 8 bytes or more"),
            (*mix && !has_both, "--mix needs --rsize and --wsize: what is to be mixed"),
            (lacks_writes && writes.is_some(), "--nwrites needs --wsize: how much each writes"),
            (lacks_reads && reads.is_some(), "--nreads needs --rsize: how much each reads"),
            (has_others && has_writes, "--files are only read: --wsize would overwrite them"),
        ];
        if let Some((_, refusal)) = refusals.iter().find(|(is_so, _)| *is_so) {
            bail!("{refusal}");
        }
        let counts = [read_sizes.len(), write_sizes.len()];
        ensure!(
            !is_testbench || counts.contains(&0) || counts.contains(&1) || counts[0] == counts[1],
            "--rsize and --wsize have {} and {} sizes: give as many, or one",
            counts[0],
            counts[1]
        );
        for size in write_sizes {
            let step = write_step.unwrap_or(0);
            ensure!(
                step == 0 || step >= *size,
                "--woff {step} is less than the {size} bytes of a write: what is where would depend on \
                 the order"
            );
        }
        for path in others {
            ensure!(path.is_absolute(), "{}: not a path from the root", path.display());
        }
        Ok(())
    }
}
