//! Results of steps, and trees of files, in forms in which they can be compared.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The result of a step.
#[derive(Clone, PartialEq)]
pub struct Outcome {
    pub result: Result<Value, Fault>,
    /// Bytes that were read, also before an error.
    pub bytes: Vec<u8>,
}

/// The value of a step that succeeds.
#[derive(Clone, PartialEq)]
pub enum Value {
    Nothing,
    Bytes(Vec<u8>),
    Number(u64),
    Text(String),
}

/// An error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    pub kind: ErrorKind,
    pub errno: Option<i32>,
}

impl Default for Outcome {
    fn default() -> Self {
        Value::Nothing.into()
    }
}

impl From<Value> for Outcome {
    fn from(value: Value) -> Self {
        Self { result: Ok(value), bytes: Vec::new() }
    }
}

/// The outcome of taking a file back that is in use.
pub fn in_flight() -> Outcome {
    Value::Text("in flight".into()).into()
}

impl From<io::Result<Value>> for Outcome {
    fn from(result: io::Result<Value>) -> Self {
        let fault = |error: io::Error| Fault { kind: error.kind(), errno: error.raw_os_error() };
        Self { result: result.map_err(fault), bytes: Vec::new() }
    }
}

impl From<io::Result<()>> for Outcome {
    fn from(result: io::Result<()>) -> Self {
        result.map(|()| Value::Nothing).into()
    }
}

impl Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Ok(Value::Nothing) => write!(f, "ok")?,
            Ok(Value::Bytes(bytes)) => write!(f, "{}", brief(bytes))?,
            Ok(Value::Number(number)) => write!(f, "{number}")?,
            Ok(Value::Text(text)) => write!(f, "{text:.400}")?,
            Err(fault) => write!(f, "{fault:?}")?,
        }
        if self.bytes.is_empty() { Ok(()) } else { write!(f, " after {}", brief(&self.bytes)) }
    }
}

/// Returns the length and the first bytes, and a sum of all.
fn brief(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    format!("{} bytes {:?}.. {sum:x}", bytes.len(), &bytes[..bytes.len().min(6)])
}

/// Returns what is the same for equal files: type, mode and owner; size and links of files only, since the
/// file system decides for directories.
pub fn facts(metadata: Metadata) -> Value {
    let (kind, mode, links) = (metadata.file_type(), metadata.mode(), metadata.nlink());
    let size = metadata.is_file().then_some((metadata.len(), links));
    Value::Text(format!("{kind:?} {mode:o} {size:?} {} {}", metadata.uid(), metadata.gid()))
}

/// An entry of a tree: its facts, and its contents or target.
#[derive(PartialEq)]
pub struct Entry(Value, Vec<u8>);

impl Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {}", Outcome::from(self.0.clone()), brief(&self.1))
    }
}

/// The entries below a directory.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// Returns the entries below a directory.
pub fn tree(root: &Path) -> Tree {
    let mut entries = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        let contents = match metadata.file_type() {
            kind if kind.is_file() => std::fs::read(&path).unwrap(),
            kind if kind.is_symlink() => {
                let to = std::fs::read_link(&path).unwrap();
                to.strip_prefix(root).unwrap_or(&to).as_os_str().as_bytes().to_vec()
            }
            kind if kind.is_dir() => {
                left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            }
            _ => Vec::new(),
        };
        let name = path.strip_prefix(root).expect("it is below").to_owned();
        entries.insert(name, Entry(facts(metadata), contents));
    }
    entries
}
