//! HTTP/1.1 for a node between client and server: decoders, an encoder, and the state shared by
//! both connections. Sans-IO: takes bytes in slices cut anywhere, returns events and bytes.
//!
//! ```text
//!  client ─▶ RequestDecoder ─▶ head, body, trailers ─▶ filters ─▶ Encoder ─▶ server
//!                 ▲ switch            │                                        │
//!                 └───────────── Exchange ── expect ──▶ ResponseDecoder ◀──────┘
//!  client ◀─ Encoder ◀─ filters ◀─ head, body, trailers ◀──────┘
//! ```
//!
//! Ambiguous input is refused, never guessed: [`Reason`] names the defect, [`Source`] the sentence
//! of the RFC. Every forwarded message has exactly one framing; bodies are slices of the input.
//! This crate is no client and no server: it has no timers, and writes no responses but
//! [`refusal`]. docs/reference/http1.md is the reference.
//!
//! ```
//! use http1::{Encoder, Headers, RequestDecoder, RequestEvent};
//!
//! /// Forwards a request without filters.
//! fn pass(mut input: &[u8], out: &mut Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut decoder = RequestDecoder::new();
//!     let (mut encoder, mut trailers) = (None, Headers::new());
//!     loop {
//!         let step = decoder.decode(input)?;
//!         input = &input[step.consumed..];
//!         let writer = |encoder: Option<Encoder>| encoder.ok_or("the head comes first");
//!         match step.event {
//!             Some(RequestEvent::Head(head, framing)) => {
//!                 encoder = Some(Encoder::request(&head, framing, out)?);
//!             }
//!             Some(RequestEvent::Body(bytes)) => {
//!                 let mut open = writer(encoder.take())?;
//!                 open.write_body(bytes, out)?;
//!                 encoder = Some(open);
//!             }
//!             Some(RequestEvent::Trailers(fields)) => trailers = fields,
//!             Some(RequestEvent::End) => return Ok(writer(encoder)?.end(&trailers, out)?),
//!             Some(RequestEvent::Tunnel(_)) | None => return Ok(()),
//!         }
//!     }
//! }
//!
//! let request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok";
//! let mut out = Vec::new();
//! pass(request, &mut out).unwrap();
//! assert_eq!(out, request);
//! ```

#![forbid(unsafe_code)]

mod body;
pub mod chunked;
pub mod connection;
pub mod decode;
pub mod encode;
pub mod error;
pub mod exchange;
pub mod framing;
mod grammar;
pub mod head;
pub mod headers;
pub mod limits;
mod line;
mod reason;
pub mod source;
pub mod target;
mod version;

pub use decode::{RequestDecoder, RequestEvent, ResponseDecoder, ResponseEvent, Step, Switch};
pub use encode::{EncodeError, Encoder, refusal};
pub use error::{Error, Reason, Side};
pub use exchange::{Exchange, ExchangeError, Next};
pub use framing::{Body, Framing, LengthNeeded, MethodClass, RequestTraits};
pub use head::{RequestHead, ResponseHead};
pub use headers::{EditError, Headers};
pub use source::Source;
pub use target::{Authority, Target};
pub use version::Version;
