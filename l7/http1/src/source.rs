//! Sentences of the RFCs by which messages are refused. All of them are in `docs/reference/http1.md`.

use crate::reason::{Reason, Side};

/// Sentence of an RFC that requires or allows the refusal of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// RFC and section.
    pub section: &'static str,
    /// Sentence or grammar rule, verbatim.
    pub sentence: &'static str,
}

const fn source(section: &'static str, sentence: &'static str) -> Source {
    Source { section, sentence }
}

const GRAMMAR: Source = source(
    "RFC 9112, section 2.2",
    "When a server listening only for HTTP request messages, or processing what appears from the \
     start-line to be an HTTP request message, receives a sequence of octets that does not match \
     the HTTP-message grammar aside from the robustness exceptions listed above, the server SHOULD \
     respond with a 400 (Bad Request) response and close the connection.",
);
const TARGET: Source = source(
    "RFC 9112, section 3.2",
    "Recipients of an invalid request-line SHOULD respond with either a 400 (Bad Request) error or a \
     301 (Moved Permanently) redirect with the request-target properly encoded.",
);
const VERSION: Source = source(
    "RFC 9110, section 15.6.6",
    "The 505 (HTTP Version Not Supported) status code indicates that the server does not support, or \
     refuses to support, the major version of HTTP that was used in the request message.",
);
const HOST: Source = source(
    "RFC 9112, section 3.2",
    "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1 request message that \
     lacks a Host header field and to any request message that contains more than one Host header \
     field line or a Host header field with an invalid field value.",
);
const FIELD_LINE: Source = source(
    "RFC 9112, section 5",
    "Each field line consists of a case-insensitive field name followed by a colon (\":\"), optional \
     leading whitespace, the field line value, and optional trailing whitespace.",
);
const LARGE: Source = source(
    "RFC 9110, section 5.4",
    "A server that receives a request header field line, field value, or set of fields larger than it \
     wishes to process MUST respond with an appropriate 4xx (Client Error) status code.",
);
const GATEWAY: Source = source(
    "RFC 9110, section 15.6.3",
    "The 502 (Bad Gateway) status code indicates that the server, while acting as a gateway or proxy, \
     received an invalid response from an inbound server it accessed while attempting to fulfill the \
     request.",
);
const LENGTH: Source = source(
    "RFC 9112, section 6.3",
    "If a message is received without Transfer-Encoding and with an invalid Content-Length header \
     field, then the message framing is invalid and the recipient MUST treat it as an unrecoverable \
     error, unless the field value can be successfully parsed as a comma-separated list (Section \
     5.6.1 of [HTTP]), all values in the list are valid, and all values in the list are the same",
);
const NOT_CHUNKED: Source = source(
    "RFC 9112, section 6.3",
    "If a Transfer-Encoding header field is present in a request and the chunked transfer coding is \
     not the final encoding, the message body length cannot be determined reliably; the server MUST \
     respond with the 400 (Bad Request) status code and then close the connection.",
);
const ONLY_CHUNKED: Source = source(
    "RFC 9112, section 7.4",
    "If the TE field value is empty or if no TE field is present, the only acceptable transfer coding \
     is chunked.",
);
const CHUNK: Source =
    source("RFC 9112, section 7.1", "chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF");
const EXTENSIONS: Source = source(
    "RFC 9112, section 7.1.1",
    "A server ought to limit the total length of chunk extensions received in a request to an amount \
     reasonable for the services provided, in the same way that it applies length limitations and \
     timeouts for other parts of a message, and generate an appropriate 4xx (Client Error) response \
     if that amount is exceeded.",
);

impl Source {
    /// Returns the sentence by which a message of this side is refused for a reason.
    #[must_use]
    pub const fn of(reason: Reason, side: Side) -> Self {
        match reason {
            Reason::LineEnds | Reason::BareCr | Reason::EmptyLine => of_lines(reason),
            Reason::Method
            | Reason::MethodTooLong
            | Reason::RequestLine
            | Reason::TargetTooLong
            | Reason::TargetByte
            | Reason::TargetForm
            | Reason::TargetAuthority
            | Reason::TargetUser => of_request_line(reason),
            Reason::Http09 | Reason::Http2Preface | Reason::VersionUnknown => VERSION,
            Reason::Version | Reason::StatusLine | Reason::StatusLineTooLong => {
                of_status_line(reason)
            }
            Reason::FieldTooLong | Reason::FieldsTooLong { .. } | Reason::FieldsTooMany { .. } => {
                match side {
                    Side::Request => LARGE,
                    Side::Response => GATEWAY,
                }
            }
            Reason::HostMissing | Reason::HostRepeated | Reason::Host => HOST,
            Reason::CodingNotChunked | Reason::CodingUnknown if matches!(side, Side::Response) => {
                ONLY_CHUNKED
            }
            Reason::LengthAndCoding
            | Reason::LengthRepeated
            | Reason::Length
            | Reason::Coding
            | Reason::CodingNotChunked
            | Reason::CodingRepeated
            | Reason::CodingUnknown
            | Reason::CodingInHttp10
            | Reason::BodyForbidden => of_framing(reason),
            Reason::BareLf
            | Reason::ChunkSize
            | Reason::ChunkSizeTooLarge
            | Reason::ChunkExtension
            | Reason::ChunkLineTooLong
            | Reason::ChunkExtensionsTooLong
            | Reason::ChunkEnd => of_chunks(reason),
            Reason::IncompleteHead | Reason::IncompleteBody => incomplete(side),
            _ => of_fields(reason),
        }
    }
}

const fn of_lines(reason: Reason) -> Source {
    const SECTION: &str = "RFC 9112, section 2.2";
    match reason {
        Reason::LineEnds => source(
            SECTION,
            "Although the line terminator for the start-line and fields is the sequence CRLF, a \
             recipient MAY recognize a single LF as a line terminator and ignore any preceding CR.",
        ),
        Reason::BareCr => source(
            SECTION,
            "A recipient of such a bare CR MUST consider that element to be invalid or replace \
             each bare CR with SP before processing the element or forwarding the message.",
        ),
        _ => source(
            SECTION,
            "In the interest of robustness, a server that is expecting to receive and parse a \
             request-line SHOULD ignore at least one empty line (CRLF) received prior to the \
             request-line.",
        ),
    }
}

const fn of_request_line(reason: Reason) -> Source {
    match reason {
        Reason::MethodTooLong => source(
            "RFC 9112, section 3",
            "A server that receives a method longer than any that it implements SHOULD respond \
             with a 501 (Not Implemented) status code.",
        ),
        Reason::TargetTooLong => source(
            "RFC 9112, section 3",
            "A server that receives a request-target longer than any URI it wishes to parse MUST \
             respond with a 414 (URI Too Long) status code (see Section 15.5.15 of [HTTP]).",
        ),
        Reason::RequestLine => source(
            "RFC 9112, section 3",
            "However, lenient parsing can result in request smuggling security vulnerabilities if \
             there are multiple recipients of the message and each has its own unique \
             interpretation of robustness (see Section 11.2).",
        ),
        Reason::TargetUser => source(
            "RFC 9110, section 4.2.4",
            "Before making use of an \"http\" or \"https\" URI reference received from an untrusted \
             source, a recipient SHOULD parse for userinfo and treat its presence as an error",
        ),
        Reason::Method => GRAMMAR,
        _ => TARGET,
    }
}

const fn of_status_line(reason: Reason) -> Source {
    match reason {
        Reason::Version => source(
            "RFC 9112, section 2.3",
            "The version of an HTTP/1.x message is indicated by an HTTP-version field in the \
             start-line. HTTP-version is case-sensitive.",
        ),
        Reason::StatusLine => source(
            "RFC 9112, section 4",
            "However, lenient parsing can result in response splitting security vulnerabilities if \
             there are multiple recipients of the message and each has its own unique \
             interpretation of robustness (see Section 11.1).",
        ),
        _ => GATEWAY,
    }
}

const fn of_framing(reason: Reason) -> Source {
    match reason {
        Reason::LengthAndCoding => source(
            "RFC 9112, section 6.3",
            "Such a message might indicate an attempt to perform request smuggling (Section 11.2) \
             or response splitting (Section 11.1) and ought to be handled as an error.",
        ),
        Reason::Coding => source(
            "RFC 9110, section 5.6.1.1",
            "In any production that uses the list construct, a sender MUST NOT generate empty list \
             elements.",
        ),
        Reason::CodingNotChunked => NOT_CHUNKED,
        Reason::CodingRepeated => source(
            "RFC 9112, section 6.1",
            "A sender MUST NOT apply the chunked transfer coding more than once to a message body \
             (i.e., chunking an already chunked message is not allowed).",
        ),
        Reason::CodingUnknown => source(
            "RFC 9112, section 6.1",
            "A server that receives a request message with a transfer coding it does not \
             understand SHOULD respond with 501 (Not Implemented).",
        ),
        Reason::CodingInHttp10 => source(
            "RFC 9112, section 6.1",
            "A server or client that receives an HTTP/1.0 message containing a Transfer-Encoding \
             header field MUST treat the message as if the framing is faulty, even if a \
             Content-Length is present, and close the connection after processing the message.",
        ),
        Reason::BodyForbidden => source(
            "RFC 9110, sections 9.3.6 and 9.3.8",
            "A CONNECT request message does not have content. A client MUST NOT send content in a \
             TRACE request.",
        ),
        _ => LENGTH,
    }
}

const fn of_chunks(reason: Reason) -> Source {
    match reason {
        Reason::ChunkSize => source(
            "RFC 9112, section 7.1",
            "The chunk-size field is a string of hex digits indicating the size of the chunk-data \
             in octets.",
        ),
        Reason::ChunkSizeTooLarge => source(
            "RFC 9112, section 7.1",
            "Therefore, recipients MUST anticipate potentially large hexadecimal numerals and \
             prevent parsing errors due to integer conversion overflows or precision loss due to \
             integer representation.",
        ),
        Reason::ChunkExtension => source(
            "RFC 9112, section 7.1.1",
            "chunk-ext-name = token chunk-ext-val = token / quoted-string",
        ),
        Reason::ChunkLineTooLong | Reason::ChunkExtensionsTooLong => EXTENSIONS,
        _ => CHUNK,
    }
}

const fn of_fields(reason: Reason) -> Source {
    match reason {
        Reason::ObsFold => source(
            "RFC 9112, section 5.2",
            "A server that receives an obs-fold in a request message that is not within a \
             \"message/http\" container MUST either reject the message by sending a 400 (Bad \
             Request), preferably with a representation explaining that obsolete line folding is \
             unacceptable, or replace each received obs-fold with one or more SP octets prior to \
             interpreting the field value or forwarding the message downstream.",
        ),
        Reason::SpaceInFront => source(
            "RFC 9112, section 2.2",
            "A recipient that receives whitespace between the start-line and the first header \
             field MUST either reject the message as invalid or consume each whitespace-preceded \
             line without further processing of it",
        ),
        Reason::SpaceBeforeColon => source(
            "RFC 9112, section 5.1",
            "A server MUST reject, with a response status code of 400 (Bad Request), any received \
             request message that contains whitespace between a header field name and colon.",
        ),
        Reason::NameByte => source("RFC 9110, section 5.1", "field-name = token"),
        Reason::ValueByte => source(
            "RFC 9110, section 5.5",
            "Field values containing other CTL characters are also invalid; however, recipients MAY \
             retain such characters for the sake of robustness when they appear within a safe \
             context",
        ),
        Reason::HostDisagrees => source(
            "RFC 9112, section 3.2",
            "If the target URI includes an authority component, then a client MUST send a field \
             value for Host that is identical to that authority component, excluding any userinfo \
             subcomponent and its \"@\" delimiter (Section 4.2 of [HTTP]).",
        ),
        Reason::ConnectionOption => source(
            "RFC 9110, section 7.6.1",
            "A sender MUST NOT send a connection option corresponding to a field that is intended \
             for all recipients of the content.",
        ),
        Reason::TrailerForbidden => source(
            "RFC 9110, section 6.5.1",
            "A sender MUST NOT generate a trailer field unless the sender knows the corresponding \
             header field name's definition permits the field to be sent in trailers.",
        ),
        Reason::Unsolicited => source(
            "RFC 9112, section 9.2",
            "If a client receives data on a connection that doesn't have outstanding requests, the \
             client MUST NOT consider that data to be a valid response; the client SHOULD close \
             the connection, since message delimitation is now ambiguous, unless the data consists \
             only of one or more CRLF (which can be discarded per Section 2.2).",
        ),
        Reason::SwitchUnasked => source(
            "RFC 9110, section 7.8",
            "A server MUST NOT switch to a protocol that was not indicated by the client in the \
             corresponding request's Upgrade header field.",
        ),
        Reason::InterimTooMany => source(
            "RFC 9110, section 15.2",
            "A client MUST be able to parse one or more 1xx responses received prior to a final \
             response, even if the client does not expect one.",
        ),
        _ => FIELD_LINE,
    }
}

const fn incomplete(side: Side) -> Source {
    const SECTION: &str = "RFC 9112, section 8";
    match side {
        Side::Request => source(
            SECTION,
            "A server that receives an incomplete request message, usually due to a canceled request \
             or a triggered timeout exception, MAY send an error response prior to closing the \
             connection.",
        ),
        Side::Response => source(
            SECTION,
            "A client that receives an incomplete response message, which can occur when a connection \
             is closed prematurely or when decoding a supposedly chunked transfer coding fails, MUST \
             record the message as incomplete.",
        ),
    }
}
