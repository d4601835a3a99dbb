//! Defects of messages, with their texts and the status of the response.

use crate::limits::{
    BODY_LENGTH_MAX, CHUNK_EXTENSIONS_LENGTH_MAX, CHUNK_LINE_LENGTH_MAX, CHUNK_SIZE_DIGITS_MAX,
    EMPTY_LINES_MAX, FIELD_LINE_LENGTH_MAX, INTERIM_COUNT_MAX, METHOD_LENGTH_MAX,
    START_LINE_LENGTH_MAX,
};

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Client to server.
    Request,
    /// Server to client.
    Response,
}

/// Defect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Some lines of a head end with LF alone, others with CRLF: the line ends are ambiguous.
    #[error("some lines of the head end with LF alone, others with CRLF")]
    LineEnds,
    /// A chunk's line ends with LF alone.
    #[error("a chunk's line ends with LF alone, it has to end with CRLF")]
    BareLf,
    /// A CR is not followed by LF.
    #[error("a CR is not followed by LF")]
    BareCr,
    /// Too many empty lines precede a message.
    #[error("there are more than {EMPTY_LINES_MAX} empty lines where a message has to begin")]
    EmptyLine,
    /// The method is not a token.
    #[error("the method is not a token with one space behind it")]
    Method,
    /// The method is longer than any known one.
    #[error("the method has more than {METHOD_LENGTH_MAX} bytes")]
    MethodTooLong,
    /// The request line is not three parts with one space between them.
    #[error("the request line is not method, target and version with one space between them")]
    RequestLine,
    /// The request line is too long.
    #[error("the request line has more than {START_LINE_LENGTH_MAX} bytes")]
    TargetTooLong,
    /// The target has a byte that no target may have.
    #[error("the target has a byte that is not allowed in it")]
    TargetByte,
    /// The target has none of the four forms, or one that its method may not have.
    #[error("the target has none of the forms that its method can have")]
    TargetForm,
    /// The authority of the target is not valid.
    #[error("the target's authority is not a host and a port")]
    TargetAuthority,
    /// The authority of the target has a user in it.
    #[error("the target's authority has a user in it")]
    TargetUser,
    /// The request line has no version: HTTP/0.9.
    #[error("HTTP/0.9 is not supported")]
    Http09,
    /// The first line is the preface of HTTP/2.
    #[error("this is HTTP/2; only HTTP/1.1 and HTTP/1.0 are supported")]
    Http2Preface,
    /// The version is neither 1.0 nor 1.1.
    #[error("this version is not supported; only HTTP/1.1 and HTTP/1.0 are")]
    VersionUnknown,
    /// The last part of the line is not a version.
    #[error("this is not an HTTP version")]
    Version,
    /// The status line is not version, status and reason.
    #[error("the status line is not version, three digits and a reason")]
    StatusLine,
    /// The status line is too long.
    #[error("the status line has more than {START_LINE_LENGTH_MAX} bytes")]
    StatusLineTooLong,
    /// A field of a request is folded: it continues in the next line.
    #[error("a field line begins with a space: folded fields are not allowed in requests")]
    ObsFold,
    /// The line after the first line begins with whitespace.
    #[error("there is a space in front of the first field")]
    SpaceInFront,
    /// A field line has no colon.
    #[error("a field line has no colon")]
    NoColon,
    /// A field line begins with the colon.
    #[error("a field has no name")]
    NameEmpty,
    /// A request's field has a space between name and colon.
    #[error("there is a space between a field's name and its colon")]
    SpaceBeforeColon,
    /// A field's name has a byte that is not allowed.
    #[error("a field's name has a byte that is not allowed in it")]
    NameByte,
    /// A field's value has a control character.
    #[error("a field's value has a control character")]
    ValueByte,
    /// A field line is too long.
    #[error("a field line has more than {FIELD_LINE_LENGTH_MAX} bytes")]
    FieldTooLong,
    /// All field lines together are too long.
    #[error("the fields have more than {limit} bytes together")]
    FieldsTooLong {
        /// Limit in bytes.
        limit: usize,
    },
    /// The field lines are too many.
    #[error("there are more than {limit} fields")]
    FieldsTooMany {
        /// Limit of their number.
        limit: usize,
    },
    /// A request of HTTP/1.1 has no Host.
    #[error("a request of HTTP/1.1 has no Host")]
    HostMissing,
    /// The request has more than one Host.
    #[error("there is more than one Host")]
    HostRepeated,
    /// Host is not a host and a port.
    #[error("Host is not a host and a port")]
    Host,
    /// Host and the target's authority are different.
    #[error("Host is not what the target says")]
    HostDisagrees,
    /// Both Content-Length and Transfer-Encoding give the length of the body.
    #[error("there are both Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// Content-Length has several values that differ, or an invalid list.
    #[error("there is more than one Content-Length, and they are not all the same")]
    LengthRepeated,
    /// Content-Length is not a number, or too large.
    #[error("Content-Length is not a number of digits up to {BODY_LENGTH_MAX}")]
    Length,
    /// Transfer-Encoding has an empty element or a parameter.
    #[error("Transfer-Encoding is not a list of codings")]
    Coding,
    /// The last coding is not chunked.
    #[error("the last coding of Transfer-Encoding is not chunked")]
    CodingNotChunked,
    /// Transfer-Encoding has chunked more than once.
    #[error("Transfer-Encoding has chunked more than once")]
    CodingRepeated,
    /// Transfer-Encoding has a coding other than chunked.
    #[error("Transfer-Encoding has another coding than chunked")]
    CodingUnknown,
    /// Transfer-Encoding occurs in HTTP/1.0, which has no transfer codings.
    #[error("there is a Transfer-Encoding in HTTP/1.0")]
    CodingInHttp10,
    /// CONNECT or TRACE has a body.
    #[error("there is a body where there must not be one")]
    BodyForbidden,
    /// Connection names a field that framing or routing depends on.
    #[error("Connection names a field that has to stay")]
    ConnectionOption,
    /// A chunk's size does not begin with hexadecimal digits.
    #[error("a chunk's size is not hexadecimal digits and CRLF or a semicolon")]
    ChunkSize,
    /// A chunk's size has too many digits, or is too large.
    #[error(
        "a chunk's size has more than {CHUNK_SIZE_DIGITS_MAX} digits, or is above {BODY_LENGTH_MAX}"
    )]
    ChunkSizeTooLarge,
    /// A chunk extension has a control character.
    #[error("a chunk extension has a control character")]
    ChunkExtension,
    /// A chunk's line is too long.
    #[error("a chunk's line has more than {CHUNK_LINE_LENGTH_MAX} bytes")]
    ChunkLineTooLong,
    /// All chunk extensions together are too long.
    #[error("the chunk extensions have more than {CHUNK_EXTENSIONS_LENGTH_MAX} bytes together")]
    ChunkExtensionsTooLong,
    /// A chunk does not end at the offset that its size gives.
    #[error("a chunk's data does not end with CRLF where its size says")]
    ChunkEnd,
    /// A trailer is a field that only a head may have.
    #[error("there is a trailer that only a head may have")]
    TrailerForbidden,
    /// A response has no request.
    #[error("there is a response, but no request that it could belong to")]
    Unsolicited,
    /// A response with 101 has no Upgrade, or the client did not ask for one.
    #[error("the server switches protocols, which the client did not ask for")]
    SwitchUnasked,
    /// A request has too many interim responses.
    #[error("there are more than {INTERIM_COUNT_MAX} interim responses to one request")]
    InterimTooMany,
    /// The connection ended within a head.
    #[error("the connection ended within a head")]
    IncompleteHead,
    /// The connection ended within a body.
    #[error("the connection ended within a body")]
    IncompleteBody,
}

impl Reason {
    /// Returns the status of the response to a request with this defect.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::TargetTooLong => 414,
            Self::FieldTooLong | Self::FieldsTooLong { .. } | Self::FieldsTooMany { .. } => 431,
            Self::MethodTooLong | Self::CodingUnknown => 501,
            Self::Http09 | Self::Http2Preface | Self::VersionUnknown => 505,
            _ => 400,
        }
    }
}
