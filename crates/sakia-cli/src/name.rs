//! File names for display.

use std::ffi::{CString, OsStr};
use std::fmt::{self, Write};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// A name that is safe to print on a terminal: control characters, and those that change the text direction,
/// are shown as `\n`, `\u{202e}` and so on, bytes that are not UTF-8 as `\xff`, and no name as `''`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a OsStr);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("''");
        }
        for chunk in self.0.as_bytes().utf8_chunks() {
            for char in chunk.valid().chars() {
                if char.is_control() || is_directional(char) {
                    write!(f, "{}", char.escape_default())?;
                } else {
                    f.write_char(char)?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Returns whether the character changes the order in which a terminal shows the text.
fn is_directional(char: char) -> bool {
    matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the bytes of a path without slashes at its end: none for `/`.
pub fn without_slashes(path: &Path) -> &[u8] {
    let text = path.as_os_str().as_bytes();
    let end = text.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    &text[..end]
}

/// Converts a path to the kernel's form.
///
/// # Errors
/// It has a zero byte.
pub fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A name as a member of a JSON object: `"path"`, or `"path_bytes"` in base64 if it is not UTF-8. Use it
/// flattened.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a>(pub &'a OsStr);

impl Serialize for Member<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match self.0.to_str() {
            Some(path) => map.serialize_entry("path", path)?,
            None => {
                let encoded = BASE64_STANDARD.encode(self.0.as_bytes());
                map.serialize_entry("path_bytes", &encoded)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        let shown = |bytes: &[u8]| Shown(OsStr::from_bytes(bytes)).to_string();
        assert_eq!(shown("plain ü \\ name".as_bytes()), "plain ü \\ name");
        assert_eq!(shown(b""), "''");
        assert_eq!(shown(b"a\nb\x1b[31mc\x7f"), "a\\nb\\u{1b}[31mc\\u{7f}");
        assert_eq!(shown("exe.\u{202e}txt".as_bytes()), "exe.\\u{202e}txt");
        assert_eq!(shown(b"\xff\xfeq\xc3"), "\\xff\\xfeq\\xc3");
    }

    #[test]
    fn names_in_json_keep_every_byte() {
        let json = |bytes: &[u8]| serde_json::to_string(&Member(OsStr::from_bytes(bytes))).unwrap();
        assert_eq!(json(b"a\nb"), r#"{"path":"a\nb"}"#);
        assert_eq!(json(b"a\xff"), r#"{"path_bytes":"Yf8="}"#);
    }
}
