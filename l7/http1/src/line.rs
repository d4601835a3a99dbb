//! Reader of the lines of a head or of trailers, from slices cut anywhere. The result does not
//! depend on the cuts: a line is parsed when it is complete, or certainly too long.
//!
//! All lines of one head end alike, with CRLF or with LF alone (RFC 9112, section 2.2). In
//! responses whitespace before a colon is removed and a folded line joined to the one before
//! (sections 5.1, 5.2); in requests both are refused.

use crate::error::{Fault, Reason, Side};
use crate::grammar::{is_space, is_tchar, is_value, trim, trim_end};
use crate::headers::{Field, Headers};
use crate::limits::FIELD_LINE_LENGTH_MAX;
use std::ops::Range;

/// Offset within a line, and its defect.
pub(crate) type Flaw = (usize, Reason);

/// Parser of a first line.
pub(crate) trait StartLine: Sized {
    /// Defect of a first line that exceeds its limit.
    const TOO_LONG: Reason;
    /// Number of empty lines before the first line that are dropped.
    const EMPTY_LINES: u8;

    /// Checks the part of the line that has been received, before its end.
    fn check_start(start: &[u8]) -> Result<(), Flaw>;

    /// Parses the line, without its CRLF; it is not empty.
    fn parse(line: &[u8]) -> Result<Self, Flaw>;
}

/// Limits of the lines: bytes of the first line, bytes of all field lines together, and number of
/// field lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) start_line: usize,
    pub(crate) length: usize,
    pub(crate) count: usize,
}

/// Line terminator: RFC 9112, section 2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Crlf,
    Lf,
}

/// Reader of a first line, field lines and the empty line after them.
#[derive(Debug)]
pub(crate) struct Reader<S> {
    limits: Limits,
    side: Side,
    /// Terminator of the first line, which all others must have; `None` before it is known.
    line_end: Option<LineEnd>,
    /// Bytes from the first byte of the first line on.
    bytes: Vec<u8>,
    /// Start of the current, incomplete line within `bytes`.
    line: usize,
    /// Offset of `bytes` within all bytes of the connection.
    base: u64,
    start: Option<S>,
    empty_lines: u8,
    fields: Vec<Field>,
    fields_length: usize,
}

/// First line and fields, complete.
#[derive(Debug)]
pub(crate) struct Lines<S> {
    pub(crate) start: S,
    pub(crate) headers: Headers,
    /// Offset of the first line within all bytes of the connection.
    pub(crate) base: u64,
}

impl<S> Reader<S> {
    /// Creates a reader of a first line and fields, at this offset within all bytes.
    pub(crate) const fn new(limits: Limits, side: Side, base: u64) -> Self {
        Self::with(limits, side, base, None, None)
    }

    const fn with(
        limits: Limits,
        side: Side,
        base: u64,
        start: Option<S>,
        line_end: Option<LineEnd>,
    ) -> Self {
        Self {
            limits,
            side,
            line_end,
            bytes: Vec::new(),
            line: 0,
            base,
            start,
            empty_lines: 0,
            fields: Vec::new(),
            fields_length: 0,
        }
    }

    /// Returns true if nothing but empty lines was read.
    pub(crate) fn is_untouched(&self) -> bool {
        self.start.is_none() && self.line == self.bytes.len()
    }
}

impl Reader<()> {
    /// Creates a reader of fields only, after a line that ended with CRLF: trailers.
    pub(crate) const fn fields(limits: Limits, side: Side, base: u64) -> Self {
        Self::with(limits, side, base, Some(()), Some(LineEnd::Crlf))
    }
}

impl<S: StartLine> Reader<S> {
    /// Reads bytes, and returns their number and, once they are complete, the lines.
    pub(crate) fn read(&mut self, input: &[u8]) -> Result<(usize, Option<Lines<S>>), Fault> {
        let mut used = 0;
        while let Some((taken, line)) = self.next(&input[used..])? {
            used += taken;
            if line.is_empty() && self.start.is_some() {
                return Ok((used, self.finish()));
            }
            self.take(line)?;
        }
        Ok((input.len(), None))
    }

    fn finish(&mut self) -> Option<Lines<S>> {
        let start = self.start.take()?;
        let bytes = std::mem::take(&mut self.bytes);
        let headers = Headers::of(bytes, std::mem::take(&mut self.fields));
        Some(Lines { start, headers, base: self.base })
    }

    /// Returns the number of bytes taken and the range of the next line, without its CRLF; `None`
    /// if more input is needed, and then all is taken.
    fn next(&mut self, input: &[u8]) -> Result<Option<(usize, Range<usize>)>, Fault> {
        let limit = match &self.start {
            None => self.limits.start_line,
            Some(_) => FIELD_LINE_LENGTH_MAX,
        };
        // Limit with CRLF; a line that does not end within it is too long.
        let space = (limit + 2).saturating_sub(self.bytes.len() - self.line);
        let input = &input[..input.len().min(space)];
        let end = input.iter().position(|&byte| byte == b'\n');
        let taken = end.map_or(input.len(), |end| end + 1);
        self.bytes.extend_from_slice(&input[..taken]);
        let line = &self.bytes[self.line..];
        if self.start.is_none() {
            S::check_start(line).map_err(|flaw| self.fault(flaw))?;
        }
        let Some(text) = line.strip_suffix(b"\n") else {
            if line.len() < limit + 2 {
                return Ok(None);
            }
            return Err(self.fault((limit, self.too_long())));
        };
        let (text, line_end) = match text.strip_suffix(b"\r") {
            Some(text) => (text, LineEnd::Crlf),
            None => (text, LineEnd::Lf),
        };
        if text.len() > limit {
            return Err(self.fault((limit, self.too_long())));
        }
        // Empty lines before the first line do not determine the line end.
        if self.start.is_some() || !text.is_empty() {
            if self.line_end.is_some_and(|first| first != line_end) {
                return Err(self.fault((text.len(), Reason::LineEnds)));
            }
            self.line_end = Some(line_end);
        }
        if let Some(at) = text.iter().position(|&byte| byte == b'\r') {
            return Err(self.fault((at, Reason::BareCr)));
        }
        Ok(Some((taken, self.line..self.line + text.len())))
    }

    const fn too_long(&self) -> Reason {
        if self.start.is_none() { S::TOO_LONG } else { Reason::FieldTooLong }
    }

    /// Handles a complete line.
    fn take(&mut self, line: Range<usize>) -> Result<(), Fault> {
        if self.start.is_some() {
            self.take_field(line)?;
        } else if line.is_empty() {
            if self.empty_lines >= S::EMPTY_LINES {
                return Err(self.fault((0, Reason::EmptyLine)));
            }
            self.empty_lines += 1;
        } else {
            let start = S::parse(&self.bytes[line]).map_err(|flaw| self.fault(flaw))?;
            self.start = Some(start);
        }
        self.line = self.bytes.len();
        Ok(())
    }

    fn take_field(&mut self, line: Range<usize>) -> Result<(), Fault> {
        let text = &self.bytes[line.clone()];
        let length = self.fields_length + text.len() + 2;
        if length > self.limits.length {
            let limit = self.limits.length;
            return Err(self.fault((0, Reason::FieldsTooLong { limit })));
        }
        self.fields_length = length;
        if text.first().is_some_and(|&byte| is_space(byte)) {
            return self.fold(line).map_err(|flaw| self.fault(flaw));
        }
        if self.fields.len() >= self.limits.count {
            let limit = self.limits.count;
            return Err(self.fault((0, Reason::FieldsTooMany { limit })));
        }
        let field = field(text, self.side).map_err(|flaw| self.fault(flaw))?;
        let within = |range: Range<usize>| line.start + range.start..line.start + range.end;
        self.fields.push(Field { name: within(field.name), value: within(field.value) });
        Ok(())
    }

    /// Joins a line that begins with whitespace to the field before it, with spaces in place of the
    /// bytes between: RFC 9112, section 5.2, for responses.
    fn fold(&mut self, line: Range<usize>) -> Result<(), Flaw> {
        let Some(last) = self.fields.last_mut() else {
            return Err((0, Reason::SpaceInFront));
        };
        if self.side == Side::Request {
            return Err((0, Reason::ObsFold));
        }
        let text = &self.bytes[line.clone()];
        if let Some(at) = text.iter().position(|&byte| !is_value(byte)) {
            return Err((at, Reason::ValueByte));
        }
        let trimmed = trim(text);
        if trimmed.is_empty() {
            return Ok(());
        }
        let from = line.start + text.iter().take_while(|&&byte| is_space(byte)).count();
        let to = from + trimmed.len();
        if to - last.name.start > FIELD_LINE_LENGTH_MAX {
            return Err((0, Reason::FieldTooLong));
        }
        if last.value.is_empty() {
            last.value = from..to;
        } else {
            self.bytes[last.value.end..from].fill(b' ');
            last.value.end = to;
        }
        Ok(())
    }

    fn fault(&self, (at, reason): Flaw) -> Fault {
        let at = self.line.saturating_add(at);
        Fault { offset: self.base.saturating_add(at as u64), reason }
    }
}

/// Parses a field line, which is not empty and does not begin with whitespace.
fn field(line: &[u8], side: Side) -> Result<Field, Flaw> {
    let Some(colon) = line.iter().position(|&byte| byte == b':') else {
        return Err((0, Reason::NoColon));
    };
    let (name, rest) = (&line[..colon], &line[colon + 1..]);
    // RFC 9112, section 5.1: a proxy removes such whitespace from a response.
    let name = if side == Side::Response { trim_end(name) } else { name };
    if name.is_empty() {
        return Err((0, Reason::NameEmpty));
    }
    if let Some(at) = name.iter().position(|&byte| !is_tchar(byte)) {
        let only_space = trim(&name[at..]).is_empty();
        return Err((at, if only_space { Reason::SpaceBeforeColon } else { Reason::NameByte }));
    }
    if let Some(at) = rest.iter().position(|&byte| !is_value(byte)) {
        return Err((colon + 1 + at, Reason::ValueByte));
    }
    let value = trim(rest);
    let lead = rest.iter().take_while(|&&byte| is_space(byte)).count();
    let from = if value.is_empty() { line.len() } else { colon + 1 + lead };
    Ok(Field { name: 0..name.len(), value: from..from + value.len() })
}

/// First line of trailers: none.
impl StartLine for () {
    const TOO_LONG: Reason = Reason::FieldTooLong;
    const EMPTY_LINES: u8 = 0;

    fn check_start(_: &[u8]) -> Result<(), Flaw> {
        Ok(())
    }

    fn parse(_: &[u8]) -> Result<Self, Flaw> {
        Ok(())
    }
}
