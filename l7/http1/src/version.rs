//! Versions of HTTP.

use crate::error::Reason;

/// Version of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0: RFC 1945.
    Http10,
    /// HTTP/1.1: RFC 9112.
    Http11,
}

impl Version {
    /// Returns the version as on the wire.
    #[must_use]
    pub const fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::Http10 => b"HTTP/1.0",
            Self::Http11 => b"HTTP/1.1",
        }
    }

    /// Parses a version. A minor version above 1 is read as 1.1: RFC 9110, section 6.2, allows it.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, Reason> {
        match text {
            b"HTTP/1.0" => Ok(Self::Http10),
            [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => Ok(Self::Http11),
            [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
                Err(Reason::VersionUnknown)
            }
            _ => Err(Reason::Version),
        }
    }
}
