//! Parser of the table of edge cases, `vectors/http1/edge-cases.txt`.

use super::{CONNECT, GET, HEAD, UPGRADE};
use http1::RequestTraits;
use std::fmt;

const TEXT: &str = include_str!("../../../../vectors/http1/edge-cases.txt");

/// Abbreviations in the table and their expansions.
const ABBREVIATIONS: [(&str, &str); 4] = [
    ("{CHUNKED}", r"{POST}Transfer-Encoding: chunked\r\n\r\n"),
    ("{POST}", r"POST / HTTP/1.1\r\nHost: a\r\n"),
    ("{GET}", r"GET / HTTP/1.1\r\nHost: a\r\n"),
    ("{OK}", r"HTTP/1.1 200 OK\r\n"),
];

/// Sender of a row's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server(RequestTraits),
}

/// Expected result of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Refused { status: u16, reason: String, offset: u64 },
    Taken { messages: usize, framing: String, body: Vec<u8> },
}

/// Edge case: one row of the table.
pub struct Row {
    pub sender: Sender,
    pub source: &'static str,
    pub bytes: Vec<u8>,
    pub expected: Expected,
}

impl Row {
    /// Returns true if the refusal concerns bytes after a complete message.
    pub fn may_follow(&self) -> bool {
        matches!(&self.expected, Expected::Refused { reason, .. } if reason == "Unsolicited")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.source, self.bytes.escape_ascii())
    }
}

/// Returns all rows.
pub fn rows() -> Vec<Row> {
    let lines = TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| row(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

fn row(line: &'static str) -> Option<Row> {
    let mut columns = line.split(" | ");
    let sender = match columns.next()? {
        "request" => Sender::Client,
        "response to GET" => Sender::Server(GET),
        "response to HEAD" => Sender::Server(HEAD),
        "response to CONNECT" => Sender::Server(CONNECT),
        "response to Upgrade" => Sender::Server(UPGRADE),
        _ => return None,
    };
    let source = columns.next()?;
    let mut text = columns.next()?.to_owned();
    for (short, long) in ABBREVIATIONS {
        text = text.replace(short, long);
    }
    let mut outcome = columns.next()?.splitn(4, ' ');
    let expected = match outcome.next()? {
        "taken" => Expected::Taken {
            messages: outcome.next()?.parse().ok()?,
            framing: outcome.next()?.to_owned(),
            body: unescape(outcome.next().unwrap_or_default())?,
        },
        status => Expected::Refused {
            status: status.parse().ok()?,
            reason: outcome.next()?.to_owned(),
            offset: outcome.next()?.parse().ok()?,
        },
    };
    columns.next().is_none().then_some(Row { sender, source, bytes: unescape(&text)?, expected })
}

/// Reverses `escape_ascii`.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other @ (b'\\' | b'"' | b'\'') => other,
            _ => return None,
        });
    }
    Some(bytes)
}
