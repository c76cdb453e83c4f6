//! The part of a file that a request asks for: all of it, a range, or none if it has not changed.
//!
//! Ranges and conditions follow RFC 9110, sections 13 and 14. It allows a server to ignore ranges, and this
//! one ignores requests for several ranges.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use hyper::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE};

/// The last second that an HTTP date can represent, at the end of the year 9999. The first is the Unix epoch.
const DATE_MAX: Duration = Duration::from_secs(253_402_300_799);

/// Identifies a version of a file.
pub struct Version {
    /// The entity tag.
    pub tag: String,
    /// The modification time, clamped to the range of HTTP dates.
    pub modified: SystemTime,
}

/// The part of a file to send.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// The whole file.
    All,
    /// These bytes, at least one.
    Part(Range<u64>),
    /// A range outside the file.
    Nothing,
    /// No bytes, since the client has this version.
    Unchanged,
}

impl Version {
    /// Returns the version of a file with this size and modification time.
    pub fn new(size: u64, modified: SystemTime) -> Self {
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default().min(DATE_MAX);
        Self { tag: format!("\"{:x}-{size:x}\"", since.as_nanos()), modified: UNIX_EPOCH + since }
    }

    /// Returns the part that a request with these headers asks for, of a file of `size` bytes.
    pub fn asked(&self, headers: &HeaderMap, size: u64) -> Asked {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let is_known = match (text(IF_NONE_MATCH), text(IF_MODIFIED_SINCE)) {
            (Some(tags), _) => tags.split(',').any(|tag| self.is_named(tag.trim())),
            (None, Some(date)) => httpdate::parse_http_date(date).is_ok_and(|date| {
                // HTTP dates have whole seconds.
                self.modified < date + Duration::from_secs(1)
            }),
            (None, None) => false,
        };
        if is_known {
            return Asked::Unchanged;
        }
        // A part of another version is useless to the client.
        if text(IF_RANGE).is_some_and(|tag| tag != self.tag) {
            return Asked::All;
        }
        match text(RANGE).and_then(|range| parse(range, size)) {
            None => Asked::All,
            Some(range) if range.is_empty() => Asked::Nothing,
            Some(range) => Asked::Part(range),
        }
    }

    fn is_named(&self, tag: &str) -> bool {
        tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.tag
    }
}

/// Returns the requested range, empty if it lies outside the file, or `None` if the header is to be ignored.
fn parse(text: &str, size: u64) -> Option<Range<u64>> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        // A number that overflows is beyond the end of any file.
        is_number.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Some(first..last.saturating_add(1).min(size)),
        (Some(first), None) if last.is_empty() => Some(first..size),
        (None, Some(count)) if first.is_empty() => Some(size.saturating_sub(count)..size),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(headers: &[(&'static str, &str)], size: u64) -> Asked {
        let headers =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let modified = UNIX_EPOCH + Duration::from_millis(1_500);
        Version::new(size, modified).asked(&headers.collect(), size)
    }

    #[test]
    fn ranges_are_those_of_the_standard() {
        let of = |range| asked(&[("range", range)], 10);
        assert_eq!(of("bytes=0-0"), Asked::Part(0..1));
        assert_eq!(of("bytes=2-4"), Asked::Part(2..5));
        assert_eq!(of("bytes=9-"), Asked::Part(9..10));
        assert_eq!(of("bytes=0-99999999999999999999"), Asked::Part(0..10));
        assert_eq!(of("bytes=-3"), Asked::Part(7..10));
        assert_eq!(of("bytes=-30"), Asked::Part(0..10));
        for without_bytes in ["bytes=10-", "bytes=10-11", "bytes=-0", "bytes=99999999999999999999-"]
        {
            assert_eq!(of(without_bytes), Asked::Nothing, "{without_bytes}");
        }
        for ignored in
            ["", "bytes=", "bytes=-", "bytes=4-2", "bytes=1-2,4-5", "bytes=+1-2", "lines=1-2"]
        {
            assert_eq!(of(ignored), Asked::All, "{ignored}");
        }
        assert_eq!(asked(&[("range", "bytes=0-")], 0), Asked::Nothing);
        assert_eq!(asked(&[("range", "bytes=-1")], 0), Asked::Nothing);
    }

    #[test]
    fn all_times_have_dates() {
        let date = |time| httpdate::fmt_http_date(Version::new(1, time).modified);
        let day = Duration::from_secs(24 * 60 * 60);
        assert_eq!(date(UNIX_EPOCH - day), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(UNIX_EPOCH + 4_000_000 * day), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn known_versions_are_not_sent_again() {
        let tag = "\"59682f00-a\"";
        let of = |name, value| asked(&[(name, value), ("range", "bytes=1-1")], 10);
        assert_eq!(of("if-none-match", tag), Asked::Unchanged);
        assert_eq!(of("if-none-match", "\"other\", W/\"59682f00-a\""), Asked::Unchanged);
        assert_eq!(of("if-none-match", "*"), Asked::Unchanged);
        assert_eq!(of("if-none-match", "\"other\""), Asked::Part(1..2));
        assert_eq!(of("if-modified-since", "Thu, 01 Jan 1970 00:00:01 GMT"), Asked::Unchanged);
        assert_eq!(of("if-modified-since", "Thu, 01 Jan 1970 00:00:00 GMT"), Asked::Part(1..2));
        assert_eq!(of("if-modified-since", "yesterday"), Asked::Part(1..2));
        assert_eq!(of("if-range", tag), Asked::Part(1..2));
        assert_eq!(of("if-range", "\"other\""), Asked::All);
        // The tag takes precedence over the date.
        let both = [
            ("if-none-match", "\"other\""),
            ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ];
        assert_eq!(asked(&both, 10), Asked::All);
    }
}
