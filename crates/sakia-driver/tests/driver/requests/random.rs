//! Random programs of requests, against a model of their files: each token is answered once, reads see what
//! was written, canceled or not, and all memory comes back.

use std::collections::HashMap;
use std::ops::Range;

use sakia_driver::{
    CURRENT_POSITION, FileHandle, Loop, Outcome, Request, Target, Ticket, Value, Wait,
};

use super::on_both;
use crate::support::{Random, TempDir};

/// The size of each file in bytes.
const FILE_BYTES: u64 = 4_096;
const FILES: usize = 3;

/// A request that is under way, and what it must bring.
enum Expected {
    /// Bytes of a file, none of which is being written.
    Read { file: usize, range: Range<u64> },
    /// Bytes that are to be in a file afterwards.
    Written { file: usize, range: Range<u64>, bytes: Vec<u8> },
    /// A read of an empty pipe, which only a cancellation ends.
    Endless,
    /// No value.
    Nothing,
}

struct Program {
    random: Random,
    files: Vec<FileHandle>,
    /// The contents of the files; `None` for bytes that a canceled or failed write may have changed.
    contents: Vec<Vec<Option<u8>>>,
    pipe: FileHandle,
    under_way: HashMap<u64, (Ticket, Expected)>,
    answered: u64,
    canceled: u64,
}

impl Program {
    fn submit(&mut self, ring: &mut Loop, token: u64) {
        let file = self.random.below(FILES as u64) as usize;
        let from = self.random.below(FILE_BYTES - 1);
        let range = from..from + 1 + self.random.below((FILE_BYTES - from).min(500));
        let len = (range.end - range.start) as usize;
        let handle = &self.files[file];
        // SAFETY: the handle is kept open to the end of the program, and the file is this program's.
        let by_number = || unsafe { Target::number(handle.raw()) };
        let target = if self.random.below(4) == 0 { by_number() } else { handle.into() };
        let is_free = |range: &Range<u64>, with_reads: bool| {
            !self.under_way.values().any(|(_, expected)| match expected {
                Expected::Written { file: other, range: written, .. } => {
                    *other == file && written.start < range.end && range.start < written.end
                }
                Expected::Read { file: other, range: read } => {
                    with_reads && *other == file && read.start < range.end && range.start < read.end
                }
                Expected::Endless | Expected::Nothing => false,
            })
        };
        let (request, expected) = match self.random.below(10) {
            0..4 if is_free(&range, false) => {
                let request = Request::read(target, vec![0; len].into(), range.start);
                (request, Expected::Read { file, range })
            }
            4..7 if is_free(&range, true) => {
                let bytes: Vec<u8> = (0..len).map(|_| self.random.next() as u8).collect();
                let request = Request::write(target, bytes.clone().into(), range.start);
                (request, Expected::Written { file, range, bytes })
            }
            7 => (Request::Sync { file: target, data_only: true }, Expected::Nothing),
            8 => {
                let read = Request::read(&self.pipe, vec![0; 8].into(), CURRENT_POSITION);
                (read, Expected::Endless)
            }
            _ => (Request::Nop, Expected::Nothing),
        };
        let ticket = ring.submit(request, token).unwrap();
        assert!(self.under_way.insert(token, (ticket, expected)).is_none());
    }

    fn check(&mut self, outcome: Outcome) {
        assert!(!outcome.more);
        let (_, expected) =
            self.under_way.remove(&outcome.token).expect("each token is answered once");
        self.answered += 1;
        let is_canceled = match &outcome.result {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
                true
            }
        };
        self.canceled += u64::from(is_canceled);
        let number = outcome.result.unwrap_or(0);
        match expected {
            Expected::Nothing => assert!(number == 0 && matches!(outcome.value, Value::None)),
            Expected::Endless => {
                assert!(is_canceled);
                assert!(matches!(outcome.value, Value::Buffer(_)), "its memory comes back");
            }
            Expected::Read { file, range } => {
                let len = (range.end - range.start) as usize;
                let Value::Buffer(buffer) = outcome.value else { panic!("its memory comes back") };
                let got = buffer.into_vec().unwrap();
                assert!(got.len() == len && (is_canceled || number == len));
                for (place, byte) in range.zip(got).take(number) {
                    let expected = self.contents[file][place as usize];
                    assert!(expected.is_none_or(|expected| expected == byte), "byte {place}");
                }
            }
            Expected::Written { file, range, bytes } => {
                let Value::Buffer(buffer) = outcome.value else { panic!("its memory comes back") };
                assert_eq!(buffer.into_vec().unwrap(), bytes);
                assert!(is_canceled || number == bytes.len());
                for (place, byte) in range.zip(bytes) {
                    self.contents[file][place as usize] = (!is_canceled).then_some(byte);
                }
            }
        }
    }
}

/// Runs a program. Returns the numbers of requests and of those that were canceled.
fn run(ring: &mut Loop, seed: u64) -> (u64, u64) {
    let folder = TempDir::new();
    let open = |index: usize| {
        let name = folder.join(&format!("{index}"));
        std::fs::write(&name, vec![index as u8; FILE_BYTES as usize]).unwrap();
        FileHandle::new(std::fs::File::options().read(true).write(true).open(name).unwrap())
    };
    let (reader, _writer) = std::io::pipe().unwrap();
    let mut program = Program {
        random: Random::new(seed),
        files: (0..FILES).map(open).collect(),
        contents: (0..FILES).map(|index| vec![Some(index as u8); FILE_BYTES as usize]).collect(),
        pipe: FileHandle::new(reader),
        under_way: HashMap::new(),
        answered: 0,
        canceled: 0,
    };
    let steps = 300;
    for step in 0..steps {
        // Any number is a token.
        let token = match program.random.below(3) {
            0 => u64::MAX - step,
            1 => step,
            _ => program.random.next() << 9 | step,
        };
        program.submit(ring, token);
        if program.random.below(3) == 0 {
            let ticket = program.under_way[&token].0;
            ring.cancel(ticket); // before the kernel has it, or after its end
        }
        if program.random.below(4) == 0 {
            ring.wait(Wait::Poll).unwrap();
            let tokens: Vec<u64> = program.under_way.keys().copied().collect();
            if !tokens.is_empty() {
                let at = program.random.below(tokens.len() as u64) as usize;
                ring.cancel(program.under_way[&tokens[at]].0);
            }
        }
        while program.random.below(3) == 0
            && let Some(outcome) = ring.take()
        {
            program.check(outcome);
        }
    }
    for (ticket, expected) in program.under_way.values() {
        if matches!(expected, Expected::Endless) {
            ring.cancel(*ticket);
        }
    }
    while ring.under_way() > 0 {
        match ring.take() {
            Some(outcome) => program.check(outcome),
            None => drop(ring.wait(Wait::Forever).unwrap()),
        }
    }
    assert!(program.under_way.is_empty() && program.answered == steps);
    for (index, expected) in program.contents.iter().enumerate() {
        let got = std::fs::read(folder.join(&format!("{index}"))).unwrap();
        let is_same =
            |(got, expected): (&u8, &Option<u8>)| expected.is_none_or(|byte| byte == *got);
        assert!(got.iter().zip(expected).all(is_same), "file {index} of seed {seed}");
    }
    (program.answered, program.canceled)
}

#[test]
fn programs_do_what_their_model_says() {
    on_both(|ring| {
        let (mut requests, mut canceled) = (0, 0);
        for seed in 0..40 {
            let (more, of_these) = run(ring, seed);
            (requests, canceled) = (requests + more, canceled + of_these);
        }
        assert!(canceled * 20 > requests, "{canceled} of {requests} were canceled");
    });
}
