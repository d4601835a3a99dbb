//! Message heads: first line and fields. Values of these types have been checked when read and when
//! edited.

use crate::connection::{check_options, expects_continue, is_persistent, upgrades};
use crate::error::Reason;
use crate::grammar::{is_target, is_tchar, is_token, is_value};
use crate::headers::Headers;
use crate::limits::{EMPTY_LINES_MAX, METHOD_LENGTH_MAX, START_LINE_LENGTH_MAX};
use crate::line::{Flaw, StartLine};
use crate::target::{Authority, Target};
use crate::version::Version;

/// Head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    method: Vec<u8>,
    target: Vec<u8>,
    version: Version,
    /// Header fields. The encoder writes the framing fields, and checks Host again.
    pub headers: Headers,
}

impl RequestHead {
    /// Creates a head.
    ///
    /// # Errors
    /// The head would be refused if it were read.
    pub fn new(
        method: &[u8],
        target: &[u8],
        version: Version,
        headers: Headers,
    ) -> Result<Self, Reason> {
        let mut head = Self { method: Vec::new(), target: target.to_vec(), version, headers };
        head.set_method(method)?;
        head.check()?;
        Ok(head)
    }

    /// Returns the method, such as `GET`; methods are case-sensitive.
    #[must_use]
    pub fn method(&self) -> &[u8] {
        &self.method
    }

    /// Returns the target as received.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        &self.target
    }

    /// Returns the version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Sets the method. The encoder checks method and target together.
    ///
    /// # Errors
    /// The method is not a token, or too long.
    pub fn set_method(&mut self, method: &[u8]) -> Result<(), Reason> {
        if !is_token(method) {
            return Err(Reason::Method);
        }
        if method.len() > METHOD_LENGTH_MAX {
            return Err(Reason::MethodTooLong);
        }
        self.method = method.to_vec();
        Ok(())
    }

    /// Sets the target. The encoder checks it together with the method and Host.
    ///
    /// # Errors
    /// The target is empty, too long, or has a byte that is not allowed.
    pub fn set_target(&mut self, target: &[u8]) -> Result<(), Reason> {
        if target.is_empty() || !target.iter().all(|&byte| is_target(byte)) {
            return Err(Reason::TargetByte);
        }
        if target.len() > START_LINE_LENGTH_MAX {
            return Err(Reason::TargetTooLong);
        }
        self.target = target.to_vec();
        Ok(())
    }

    /// Returns true if the connection persists, as far as the request says.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        is_persistent(self.version, &self.headers)
    }

    /// Returns true if the client waits for 100 before it sends the body.
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        expects_continue(self.version, &self.headers)
    }

    /// Returns true if the request asks for another protocol on this connection: by Upgrade, or
    /// CONNECT.
    #[must_use]
    pub fn asks_to_switch(&self) -> bool {
        self.method == b"CONNECT" || upgrades(self.version, &self.headers).next().is_some()
    }

    /// Checks the rules for every head, also of an edited one.
    ///
    /// # Errors
    /// A recipient would refuse the head for this reason.
    pub fn check(&self) -> Result<(), Reason> {
        self.check_fields().map_err(|flaw| flaw.1)
    }

    /// Checks the same; the error has the index of the field, `None` for the first line.
    pub(crate) fn check_fields(&self) -> Result<(), (Option<usize>, Reason)> {
        let line = self.method.len() + self.target.len() + self.version.as_bytes().len() + 2;
        if line > START_LINE_LENGTH_MAX {
            return Err((None, Reason::TargetTooLong));
        }
        let target = Target::parse(&self.method, &self.target).map_err(|reason| (None, reason))?;
        let mut hosts = self.headers.iter().enumerate().filter(|(_, (name, _))| is_host(name));
        match (hosts.next(), hosts.next()) {
            (None, _) if self.version == Version::Http11 => {
                return Err((None, Reason::HostMissing));
            }
            (None, _) => {}
            (_, Some((index, _))) => return Err((Some(index), Reason::HostRepeated)),
            (Some((index, (_, value))), None) => {
                if Authority::parse(value).is_none() {
                    return Err((Some(index), Reason::Host));
                }
                if !target.agrees_with(value) {
                    return Err((Some(index), Reason::HostDisagrees));
                }
            }
        }
        check_options(&self.headers).map_err(|(index, reason)| (Some(index), reason))
    }
}

fn is_host(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"Host")
}

/// Request line.
#[derive(Debug)]
pub(crate) struct RequestLine {
    method: Vec<u8>,
    target: Vec<u8>,
    version: Version,
}

impl RequestLine {
    pub(crate) fn with(self, headers: Headers) -> RequestHead {
        let Self { method, target, version } = self;
        RequestHead { method, target, version, headers }
    }
}

impl StartLine for RequestLine {
    const TOO_LONG: Reason = Reason::TargetTooLong;
    /// RFC 9112, section 2.2: some old clients send empty lines after a body.
    const EMPTY_LINES: u8 = EMPTY_LINES_MAX;

    /// Refuses input that does not begin with a method at once: TLS, for example, or a flood.
    fn check_start(start: &[u8]) -> Result<(), Flaw> {
        let head = &start[..start.len().min(METHOD_LENGTH_MAX + 1)];
        match head.iter().position(|&byte| !is_tchar(byte)) {
            None if head.len() > METHOD_LENGTH_MAX => {
                Err((METHOD_LENGTH_MAX, Reason::MethodTooLong))
            }
            None => Ok(()),
            Some(at) => match head[at] {
                b' ' if at > 0 => Ok(()),
                b'\r' | b'\n' => Ok(()),
                _ => Err((at, Reason::Method)),
            },
        }
    }

    fn parse(line: &[u8]) -> Result<Self, Flaw> {
        let mut parts = line.split(|&byte| byte == b' ');
        let method = parts.next().unwrap_or_default();
        if !is_token(method) {
            return Err((0, Reason::Method));
        }
        let target_at = method.len() + 1;
        let (Some(target), version, None) = (parts.next(), parts.next(), parts.next()) else {
            return Err((target_at.min(line.len()), Reason::RequestLine));
        };
        let Some(version) = version else {
            let is_09 = method == b"GET" && !target.is_empty();
            let reason = if is_09 { Reason::Http09 } else { Reason::RequestLine };
            return Err((line.len(), reason));
        };
        if target.is_empty() {
            return Err((target_at, Reason::RequestLine));
        }
        if line == b"PRI * HTTP/2.0" {
            return Err((0, Reason::Http2Preface));
        }
        let version_at = target_at + target.len() + 1;
        let version = Version::parse(version).map_err(|reason| (version_at, reason))?;
        if let Some(at) = target.iter().position(|&byte| !is_target(byte)) {
            return Err((target_at + at, Reason::TargetByte));
        }
        Target::parse(method, target).map_err(|reason| (target_at, reason))?;
        Ok(Self { method: method.to_vec(), target: target.to_vec(), version })
    }
}

/// Head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    version: Version,
    status: u16,
    reason: Vec<u8>,
    /// Header fields. The encoder writes the framing fields.
    pub headers: Headers,
}

impl ResponseHead {
    /// Creates a head.
    ///
    /// # Errors
    /// The status does not have three digits, or the reason has a control character.
    pub fn new(
        version: Version,
        status: u16,
        reason: &[u8],
        headers: Headers,
    ) -> Result<Self, Reason> {
        let mut head = Self { version, status: 200, reason: Vec::new(), headers };
        head.set_status(status, reason)?;
        Ok(head)
    }

    /// Returns the version of the message.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Returns the status: three digits, 100 or more.
    #[must_use]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Returns the reason phrase as received; may be empty.
    #[must_use]
    pub fn reason(&self) -> &[u8] {
        &self.reason
    }

    /// Sets status and reason phrase.
    ///
    /// # Errors
    /// The status does not have three digits, or the reason has a control character.
    pub fn set_status(&mut self, status: u16, reason: &[u8]) -> Result<(), Reason> {
        let is_status = (100..=999).contains(&status);
        if !is_status || !reason.iter().all(|&byte| is_value(byte)) {
            return Err(Reason::StatusLine);
        }
        if reason.len() > START_LINE_LENGTH_MAX {
            return Err(Reason::StatusLineTooLong);
        }
        self.status = status;
        self.reason = reason.to_vec();
        Ok(())
    }

    /// Returns true if another response to the same request follows: 1xx except 101.
    #[must_use]
    pub const fn is_interim(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// Returns true if the connection persists, as far as the response says.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        is_persistent(self.version, &self.headers)
    }

    /// Checks the rules for every head; the error has the index of the field.
    pub(crate) fn check_fields(&self) -> Result<(), (Option<usize>, Reason)> {
        check_options(&self.headers).map_err(|(index, reason)| (Some(index), reason))
    }
}

/// Status line.
#[derive(Debug)]
pub(crate) struct StatusLine {
    version: Version,
    status: u16,
    reason: Vec<u8>,
}

impl StatusLine {
    pub(crate) fn with(self, headers: Headers) -> ResponseHead {
        let Self { version, status, reason } = self;
        ResponseHead { version, status, reason, headers }
    }
}

impl StartLine for StatusLine {
    const TOO_LONG: Reason = Reason::StatusLineTooLong;
    /// RFC 9112, section 9.2: servers may send empty lines after a body.
    const EMPTY_LINES: u8 = EMPTY_LINES_MAX;

    /// Refuses input that does not begin with a version at once: HTTP/0.9, or another protocol.
    fn check_start(start: &[u8]) -> Result<(), Flaw> {
        let wrong = start.iter().zip(b"HTTP/").position(|(has, wants)| has != wants);
        match wrong {
            Some(0) if matches!(start[0], b'\r' | b'\n') => Ok(()),
            Some(at) => Err((at, Reason::Version)),
            None => Ok(()),
        }
    }

    fn parse(line: &[u8]) -> Result<Self, Flaw> {
        let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let version = Version::parse(&line[..end]).map_err(|reason| (0, reason))?;
        let (digits, reason) = match &line[end..] {
            [b' ', a, b, c] => ([*a, *b, *c], &[][..]),
            [b' ', a, b, c, b' ', reason @ ..] => ([*a, *b, *c], reason),
            _ => return Err((end, Reason::StatusLine)),
        };
        if !digits.iter().all(u8::is_ascii_digit) || digits[0] == b'0' {
            return Err((end + 1, Reason::StatusLine));
        }
        if let Some(at) = reason.iter().position(|&byte| !is_value(byte)) {
            return Err((line.len() - reason.len() + at, Reason::StatusLine));
        }
        let status = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
        Ok(Self { version, status, reason: reason.to_vec() })
    }
}
