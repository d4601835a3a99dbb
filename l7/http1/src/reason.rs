//! What can be wrong with a message, and what a client is told.

use crate::limits::{
    BODY_LENGTH_MAX, CHUNK_EXTENSIONS_LENGTH_MAX, CHUNK_LINE_LENGTH_MAX, CHUNK_SIZE_DIGITS_MAX,
    EMPTY_LINES_MAX, FIELD_LINE_LENGTH_MAX, INTERIM_COUNT_MAX, METHOD_LENGTH_MAX,
    START_LINE_LENGTH_MAX,
};

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From client to server.
    Request,
    /// From server to client.
    Response,
}

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Lines of one head end with LF alone, others with CRLF: which of them are line ends is open.
    #[error("some lines of the head end with LF alone, others with CRLF")]
    LineEnds,
    /// A chunk's line ends with LF alone.
    #[error("a chunk's line ends with LF alone, it has to end with CRLF")]
    BareLf,
    /// A CR without LF behind it.
    #[error("a CR has no LF behind it")]
    BareCr,
    /// Too many empty lines in front of a message.
    #[error("there are more than {EMPTY_LINES_MAX} empty lines where a message has to begin")]
    EmptyLine,
    /// The method is not a token.
    #[error("the method is not a token with one space behind it")]
    Method,
    /// The method is longer than any that is known.
    #[error("the method has more than {METHOD_LENGTH_MAX} bytes")]
    MethodTooLong,
    /// The request line is not three parts with one space between them.
    #[error("the request line is not method, target and version with one space between them")]
    RequestLine,
    /// The request line is too long.
    #[error("the request line has more than {START_LINE_LENGTH_MAX} bytes")]
    TargetTooLong,
    /// A byte that no target has.
    #[error("the target has a byte that is not allowed in it")]
    TargetByte,
    /// A target that this method does not have, or none of the four forms.
    #[error("the target has none of the forms that its method can have")]
    TargetForm,
    /// The authority of the target cannot be read.
    #[error("the target's authority is not a host and a port")]
    TargetAuthority,
    /// The authority of the target has a user in it.
    #[error("the target's authority has a user in it")]
    TargetUser,
    /// A request without a version.
    #[error("HTTP/0.9 is not spoken here")]
    Http09,
    /// The first line of HTTP/2.
    #[error("this is HTTP/2, which is not spoken here")]
    Http2Preface,
    /// Another version than 1.0 and 1.1.
    #[error("this version is not spoken here, HTTP/1.1 and HTTP/1.0 are")]
    VersionUnknown,
    /// Something that is not a version.
    #[error("this is not an HTTP version")]
    Version,
    /// The status line is not version, status and reason.
    #[error("the status line is not version, three digits and a reason")]
    StatusLine,
    /// The status line is too long.
    #[error("the status line has more than {START_LINE_LENGTH_MAX} bytes")]
    StatusLineTooLong,
    /// A field of a request goes on in the next line.
    #[error("a field line begins with a space: folded fields are not taken in requests")]
    ObsFold,
    /// The line behind the first line begins with whitespace.
    #[error("there is a space in front of the first field")]
    SpaceInFront,
    /// A field line without a colon.
    #[error("a field line has no colon")]
    NoColon,
    /// A field line that begins with the colon.
    #[error("a field has no name")]
    NameEmpty,
    /// A space between name and colon of a request's field.
    #[error("there is a space between a field's name and its colon")]
    SpaceBeforeColon,
    /// A byte that no name has.
    #[error("a field's name has a byte that is not allowed in it")]
    NameByte,
    /// A control character in a value.
    #[error("a field's value has a control character")]
    ValueByte,
    /// One line is too long.
    #[error("a field line has more than {FIELD_LINE_LENGTH_MAX} bytes")]
    FieldTooLong,
    /// All lines together are too long.
    #[error("the fields have more than {limit} bytes together")]
    FieldsTooLong {
        /// How many they may have.
        limit: usize,
    },
    /// Too many lines.
    #[error("there are more than {limit} fields")]
    FieldsTooMany {
        /// How many there may be.
        limit: usize,
    },
    /// HTTP/1.1 without Host.
    #[error("a request of HTTP/1.1 has no Host")]
    HostMissing,
    /// More than one Host.
    #[error("there is more than one Host")]
    HostRepeated,
    /// A Host that is not a host and a port.
    #[error("Host is not a host and a port")]
    Host,
    /// Host and the target's authority are different.
    #[error("Host is not what the target says")]
    HostDisagrees,
    /// Both say how long the body is.
    #[error("there are both Content-Length and Transfer-Encoding")]
    LengthAndCoding,
    /// Lengths that differ, or a list that is none.
    #[error("there is more than one Content-Length, and they are not all the same")]
    LengthRepeated,
    /// A length that is not a number, or too large a one.
    #[error("Content-Length is not a number of digits up to {BODY_LENGTH_MAX}")]
    Length,
    /// An empty element or a parameter in Transfer-Encoding.
    #[error("Transfer-Encoding is not a list of codings")]
    Coding,
    /// The last coding is not chunked.
    #[error("the last coding of Transfer-Encoding is not chunked")]
    CodingNotChunked,
    /// Chunked more than once.
    #[error("Transfer-Encoding has chunked more than once")]
    CodingRepeated,
    /// Another coding than chunked.
    #[error("Transfer-Encoding has another coding than chunked")]
    CodingUnknown,
    /// HTTP/1.0 has no transfer codings.
    #[error("there is a Transfer-Encoding in HTTP/1.0")]
    CodingInHttp10,
    /// A body of CONNECT or TRACE.
    #[error("there is a body where there must not be one")]
    BodyForbidden,
    /// Connection names a field that framing or routing depend on.
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
    /// A control character in a chunk extension.
    #[error("a chunk extension has a control character")]
    ChunkExtension,
    /// A chunk's line is too long.
    #[error("a chunk's line has more than {CHUNK_LINE_LENGTH_MAX} bytes")]
    ChunkLineTooLong,
    /// All chunk extensions are too long.
    #[error("the chunk extensions have more than {CHUNK_EXTENSIONS_LENGTH_MAX} bytes together")]
    ChunkExtensionsTooLong,
    /// A chunk does not end where its size says.
    #[error("a chunk's data does not end with CRLF where its size says")]
    ChunkEnd,
    /// A trailer that is for heads only.
    #[error("there is a trailer that only a head may have")]
    TrailerForbidden,
    /// A response without a request.
    #[error("there is a response, but no request that it could belong to")]
    Unsolicited,
    /// 101 without Upgrade in it, or nobody asked.
    #[error("the server switches protocols, which nobody asked it for")]
    SwitchUnasked,
    /// Too many interim responses.
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
    /// The status to answer a request with.
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
