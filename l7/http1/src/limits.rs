//! Limits of everything that an unauthenticated peer can send. Each is enforced while bytes come
//! in: no more is ever held than the limit, and a line's end.

/// Empty lines before a first line that are dropped: RFC 9112, section 2.2, wants at least one, old
/// clients and servers write one or two after a body.
pub const EMPTY_LINES_MAX: u8 = 8;
/// Bytes of a method. The longest registered one, `BASELINE-CONTROL`, has 16.
pub const METHOD_LENGTH_MAX: usize = 32;
/// Bytes of a request line or status line, without CRLF. RFC 9112, section 3, wants at least
/// 8,000; browsers and servers in use go to 16 KiB at most.
pub const START_LINE_LENGTH_MAX: usize = 16 * 1024;
/// Bytes of one field line, without CRLF: cookies and tickets of up to 16 KiB are in use.
pub const FIELD_LINE_LENGTH_MAX: usize = 16 * 1024;
/// Bytes of all field lines of a head, with their CRLF: with the limit of connections this
/// bounds the memory that heads can take. Proxies in use have 60 to 64 KiB.
pub const HEADERS_LENGTH_MAX: usize = 64 * 1024;
/// Field lines of a head. Servers in use take 100; looking a name up costs as many compares.
pub const HEADERS_COUNT_MAX: usize = 128;
/// Bytes of all field lines of a head that is edited: what may come, and as much again as one line
/// for what a filter or the node adds, so that a head at its limit can be edited.
pub const EDITED_LENGTH_MAX: usize = HEADERS_LENGTH_MAX + FIELD_LINE_LENGTH_MAX;
/// Field lines of a head that is edited: what may come, and a quarter for what is added.
pub const EDITED_COUNT_MAX: usize = HEADERS_COUNT_MAX + 32;
/// Bytes of all trailers, with their CRLF: digests, timings, the status of a call.
pub const TRAILERS_LENGTH_MAX: usize = 8 * 1024;
/// Field lines of trailers.
pub const TRAILERS_COUNT_MAX: usize = 32;
/// Digits of a chunk's size: as many as a `u64` has. Others end elsewhere, and overflow.
pub const CHUNK_SIZE_DIGITS_MAX: usize = 16;
/// Bytes of a chunk's line, size and extensions, without CRLF. No extension is in common use.
pub const CHUNK_LINE_LENGTH_MAX: usize = 512;
/// Bytes of all chunk extensions of a message: one byte of body must not cost 500 of line for
/// as long as the peer sends (CVE-2023-39326).
pub const CHUNK_EXTENSIONS_LENGTH_MAX: usize = 16 * 1024;
/// A length or a chunk's size: what is more is negative to those who count with a sign.
pub const BODY_LENGTH_MAX: u64 = i64::MAX as u64;
/// Digits of a length: as many as `BODY_LENGTH_MAX` has, so that a `u64` cannot overflow.
pub const LENGTH_DIGITS_MAX: usize = 19;
/// Interim responses to one request: a server that reports progress each second for minutes.
pub const INTERIM_COUNT_MAX: u32 = 256;
/// Requests of a connection whose responses have not ended. Each is a few bytes here, and work
/// that the server has not done.
pub const PIPELINED_COUNT_MAX: usize = 64;

const _: () = assert!(START_LINE_LENGTH_MAX >= 8000, "RFC 9112, section 3");
const _: () = assert!(FIELD_LINE_LENGTH_MAX + 2 <= HEADERS_LENGTH_MAX);
const _: () = assert!(CHUNK_SIZE_DIGITS_MAX < CHUNK_LINE_LENGTH_MAX);
const _: () = assert!(CHUNK_LINE_LENGTH_MAX < CHUNK_EXTENSIONS_LENGTH_MAX);
