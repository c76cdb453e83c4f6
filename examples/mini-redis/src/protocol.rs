//! RESP2, the protocol of Redis: commands in, replies out.
//!
//! A command is an array of strings, such as `*2\r\n$3\r\nGET\r\n$1\r\na\r\n`, or a line of words, as typed
//! by a person. Source: <https://redis.io/docs/latest/develop/reference/protocol-spec/>.

use std::fmt;
use std::io::Write as _;
use std::ops::Range;

/// The limits of a client's input.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The length of a line: the length of a string, or a command typed by a person.
    pub line_bytes: usize,
    /// The number of parts of a command, including its name.
    pub parts: usize,
    /// The length of a string.
    pub string_bytes: usize,
    /// The length of a command with all of its parts.
    pub command_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line_bytes: 64 << 10, parts: 1024, string_bytes: 1 << 20, command_bytes: 4 << 20 }
    }
}

/// A violation of the protocol or the limits. The connection ends after the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// A line does not end within the limit.
    LongLine,
    /// The number of parts is not a number, or too large.
    Parts,
    /// The length of a string is not a number or too large, or it makes the command too long.
    Length,
    /// A part is not a string.
    Part,
    /// No end of line follows a string.
    Unterminated,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LongLine => "Protocol error: too big inline request",
            Self::Parts => "Protocol error: invalid multibulk length",
            Self::Length => "Protocol error: invalid bulk length",
            Self::Part => "Protocol error: expected '$'",
            Self::Unterminated => "Protocol error: expected the end of a line",
        })
    }
}

impl std::error::Error for ProtocolError {}

/// A command within the bytes that were received.
#[derive(Clone, Copy)]
pub struct Command<'a> {
    bytes: &'a [u8],
    parts: &'a [Range<usize>],
}

impl<'a> Command<'a> {
    /// Returns the parts: a name, then arguments. An empty line has none.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let bytes = self.bytes;
        self.parts.iter().map(move |part| &bytes[part.clone()])
    }

    /// Returns the length of the command in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the command has no bytes, which never holds.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// Finds commands in bytes that arrive in pieces. It scans each byte once, however the bytes are split.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    /// The parts found so far, by their place in the command.
    parts: Vec<Range<usize>>,
    /// The number of bytes of the command that are parsed.
    position: usize,
    /// The number of bytes after the position that are known to contain no end of line.
    scanned: usize,
    /// The number of parts still missing, once known.
    missing: Option<usize>,
    /// The length of the next string, once known.
    string_bytes: Option<usize>,
    /// The last command was complete, so the next call begins another.
    is_complete: bool,
}

impl Parser {
    /// Returns a parser at the start of a command.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            parts: Vec::new(),
            position: 0,
            scanned: 0,
            missing: None,
            string_bytes: None,
            is_complete: false,
        }
    }

    /// Returns the command at the start of `bytes`, or `None` if it is incomplete.
    ///
    /// After a command, the next call passes the bytes that follow it; after `None`, the same bytes and more.
    ///
    /// # Errors
    /// The client violates the protocol. The parser must not be used afterwards.
    pub fn parse<'a>(&'a mut self, bytes: &'a [u8]) -> Result<Option<Command<'a>>, ProtocolError> {
        if self.is_complete {
            self.parts.clear();
            (self.position, self.scanned, self.missing, self.is_complete) = (0, 0, None, false);
        }
        self.is_complete = self.advance(bytes)?;
        let command = || Command { bytes: &bytes[..self.position], parts: &self.parts };
        Ok(self.is_complete.then(command))
    }

    /// Parses as far as possible and returns whether the command is complete.
    fn advance(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let mut missing = match self.missing {
            Some(missing) => missing,
            None => {
                let Some(line) = self.line(bytes)? else { return Ok(false) };
                let Some(count) = bytes[line.clone()].strip_prefix(b"*") else {
                    return self.words(&bytes[line.clone()], line.start).map(|()| true);
                };
                let count = number(count).ok_or(ProtocolError::Parts)?;
                // A negative count means no parts; Redis skips such a command.
                let count = usize::try_from(count).unwrap_or(0);
                if count > self.limits.parts {
                    return Err(ProtocolError::Parts);
                }
                count
            }
        };
        while missing > 0 && self.string(bytes)? {
            missing -= 1;
        }
        self.missing = Some(missing);
        Ok(missing == 0)
    }

    /// Parses a string and returns whether it is complete.
    fn string(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let len = match self.string_bytes {
            Some(len) => len,
            None => {
                let Some(line) = self.line(bytes)? else { return Ok(false) };
                let len = bytes[line].strip_prefix(b"$").ok_or(ProtocolError::Part)?;
                let len = number(len).and_then(|len| usize::try_from(len).ok());
                let fits = |len: &usize| {
                    *len <= self.limits.string_bytes
                        && self.position + *len + 2 <= self.limits.command_bytes
                };
                let len = len.filter(fits).ok_or(ProtocolError::Length)?;
                self.string_bytes = Some(len);
                len
            }
        };
        let string = self.position..self.position + len;
        let Some(end) = bytes.get(string.end..string.end + 2) else { return Ok(false) };
        if end != b"\r\n" {
            return Err(ProtocolError::Unterminated);
        }
        self.position = string.end + 2;
        self.string_bytes = None;
        self.parts.push(string);
        Ok(true)
    }

    /// Advances past the next line and returns its place, without its end.
    fn line(&mut self, bytes: &[u8]) -> Result<Option<Range<usize>>, ProtocolError> {
        let rest = &bytes[self.position..];
        let found = rest[self.scanned..].iter().position(|&byte| byte == b'\n');
        let len = found.map_or(rest.len(), |place| self.scanned + place);
        if len > self.limits.line_bytes {
            return Err(ProtocolError::LongLine);
        }
        if found.is_none() {
            self.scanned = len;
            return Ok(None);
        }
        let line = rest[..len].strip_suffix(b"\r").unwrap_or(&rest[..len]);
        let line = self.position..self.position + line.len();
        self.position += len + 1;
        self.scanned = 0;
        Ok(Some(line))
    }

    /// Parses a line of words that begins at `start`.
    fn words(&mut self, line: &[u8], start: usize) -> Result<(), ProtocolError> {
        let is_space = |byte: &u8| byte.is_ascii_whitespace();
        let mut place = start;
        for word in line.split(is_space) {
            if !word.is_empty() {
                self.parts.push(place..place + word.len());
            }
            place += word.len() + 1;
        }
        if self.parts.len() > self.limits.parts {
            return Err(ProtocolError::Parts);
        }
        Ok(())
    }
}

/// Parses an integer.
pub(crate) fn number(digits: &[u8]) -> Option<i64> {
    // No valid number is longer, and `parse` would accept any number of leading zeros.
    if digits.len() > 20 || digits.first() == Some(&b'+') {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Writes replies, one after the other.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
}

impl Replies {
    /// Returns the bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Discards the sent bytes and frees memory beyond `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// Writes a simple string, which has no end of line.
    pub fn simple(&mut self, text: &str) {
        self.line(format_args!("+{text}"));
    }

    /// Writes an error, whose text has no end of line.
    pub fn error(&mut self, text: impl fmt::Display) {
        self.line(format_args!("-{text}"));
    }

    /// Writes a number.
    pub fn integer(&mut self, number: i64) {
        self.line(format_args!(":{number}"));
    }

    /// Writes a string, or the null string.
    pub fn string(&mut self, string: Option<&[u8]>) {
        let Some(string) = string else { return self.line(format_args!("$-1")) };
        self.line(format_args!("${}", string.len()));
        self.bytes.extend_from_slice(string);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes the head of an array; the next `len` replies are its elements.
    pub fn array(&mut self, len: usize) {
        self.line(format_args!("*{len}"));
    }

    fn line(&mut self, text: fmt::Arguments<'_>) {
        write!(self.bytes, "{text}\r\n").expect("memory takes what is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands in bytes that arrive in pieces, and the error that ends them.
    fn commands(pieces: &[&[u8]], limits: Limits) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let mut parser = Parser::new(limits);
        let (mut commands, mut input) = (Vec::new(), Vec::new());
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                let len = match parser.parse(&input) {
                    Ok(Some(command)) => {
                        commands.push(command.parts().map(<[u8]>::to_vec).collect());
                        command.len()
                    }
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                };
                input.drain(..len);
            }
        }
        (commands, None)
    }

    fn whole(bytes: &[u8]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        commands(&[bytes], Limits::default())
    }

    #[test]
    fn pieces_make_no_difference() {
        let bytes = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n\r\n\r\n\r\nPING\r\n\r\n\
            *0\r\n*-1\r\n  get  b \n*1\r\n$0\r\n\r\n";
        let (expected, error) = whole(bytes);
        assert_eq!(error, None);
        let texts: Vec<Vec<&[u8]>> =
            expected.iter().map(|command| command.iter().map(Vec::as_slice).collect()).collect();
        assert_eq!(texts.len(), 7);
        assert_eq!(texts[0], [&b"SET"[..], b"a", b"\r\n\r\n"]);
        assert_eq!(texts[1], [b"PING"]);
        assert!(texts[2].is_empty() && texts[3].is_empty() && texts[4].is_empty());
        assert_eq!(texts[5], [&b"get"[..], b"b"]);
        assert_eq!(texts[6], [b""]);
        let singly: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(commands(&singly, Limits::default()), (expected.clone(), None));
        for place in 0..=bytes.len() {
            let (before, after) = bytes.split_at(place);
            assert_eq!(commands(&[before, after], Limits::default()), (expected.clone(), None));
        }
    }

    #[test]
    fn every_prefix_of_a_command_is_incomplete() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
        for len in 0..bytes.len() {
            assert_eq!(whole(&bytes[..len]), (Vec::new(), None));
        }
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let cases: &[(&[u8], ProtocolError)] = &[
            (b"*1025\r\n", ProtocolError::Parts),
            (b"*9223372036854775807\r\n", ProtocolError::Parts),
            (b"*99999999999999999999\r\n", ProtocolError::Parts),
            (b"*x\r\n", ProtocolError::Parts),
            (b"*\r\n", ProtocolError::Parts),
            (b"*+1\r\n", ProtocolError::Parts),
            (b"*1\r\n$1048577\r\n", ProtocolError::Length),
            (b"*1\r\n$9223372036854775807\r\n", ProtocolError::Length),
            (b"*1\r\n$-1\r\n", ProtocolError::Length),
            (b"*1\r\n$000000000000000000001\r\n", ProtocolError::Length),
            (b"*1\r\n$\xff\r\n", ProtocolError::Length),
            (b"*1\r\n*1\r\n", ProtocolError::Part),
            (b"*1\r\n\r\n", ProtocolError::Part),
            (b"*1\r\n$1\r\nabc", ProtocolError::Unterminated),
        ];
        for (bytes, error) in cases {
            assert_eq!(whole(bytes), (Vec::new(), Some(*error)), "{}", bytes.escape_ascii());
        }
        let mut line = vec![b'a'; Limits::default().line_bytes];
        assert_eq!(whole(&line), (Vec::new(), None));
        line.push(b'a');
        assert_eq!(whole(&line), (Vec::new(), Some(ProtocolError::LongLine)));
        assert_eq!(whole(&b"a ".repeat(1025)), (Vec::new(), None));
        let words = [&b"a ".repeat(1025)[..], b"\n"].concat();
        assert_eq!(whole(&words), (Vec::new(), Some(ProtocolError::Parts)));
    }

    #[test]
    fn a_command_has_a_limit_as_a_whole() {
        let limits = Limits { command_bytes: 40, ..Limits::default() };
        let fits = b"*2\r\n$3\r\nGET\r\n$19\r\n";
        assert_eq!(fits.len() + 19 + 2, 39);
        assert_eq!(commands(&[fits], limits), (Vec::new(), None));
        let beyond = b"*2\r\n$3\r\nGET\r\n$21\r\n";
        assert_eq!(commands(&[beyond], limits), (Vec::new(), Some(ProtocolError::Length)));
    }

    #[test]
    fn replies_are_written() {
        let mut replies = Replies::default();
        replies.simple("OK");
        replies.error("ERR no");
        replies.integer(-2);
        replies.array(2);
        replies.string(Some(b"a\r\n"));
        replies.string(None);
        assert_eq!(replies.bytes(), b"+OK\r\n-ERR no\r\n:-2\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n");
    }
}
