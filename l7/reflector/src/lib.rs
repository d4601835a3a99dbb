//! Live audio and video over HTTP, received once and given to any number of listeners. Sans-IO:
//! events and time come in as arguments, effects go out as data, payload as slices of one ring.
//!
//! ```text
//!  request ─▶ Ask ─▶ Key ─▶ Channel                              ┌─▶ listener: pieces, taken
//!  origin ─▶ StatusLine ─▶ http1 ─▶ head, bytes ─▶ Reader ─▶ Framer ─▶ ring ─▶ listener
//!    ▲                                              titles ─────────┘    └─▶ listener
//!    └── Effect::Open, Close ◀── Channel ──▶ Effect::Head, Ready, End ──▶ listeners
//! ```
//!
//! [`Ask`] says which requests may share a stream, [`Channel`] is one stream, [`framing`] finds
//! frames so that players can join, [`icy`] reads and writes titles. It opens no connection and
//! frames no body: that is `http1`'s. docs/guides/reflector.md is the reference.
//!
//! ```
//! use http1::{Framing, Headers, RequestHead, ResponseHead, Version};
//! use reflector::{Ask, Channel, Config, Effect, ListenerId};
//! use units::Nanos;
//!
//! let mut headers = Headers::default();
//! headers.add(b"Host", b"radio.example")?;
//! let request = RequestHead::new(b"GET", b"/live", Version::Http11, headers)?;
//! let ask = Ask::new(&request)?;
//! let mut channel = Channel::new(Config::default(), &ask);
//! let (one, two) = (ListenerId(1), ListenerId(2));
//! channel.handle_join(Nanos(0), one, ask.wants())?;
//! let Some(Effect::Open { connection, .. }) = channel.poll_effect() else { panic!() };
//!
//! let mut headers = Headers::default();
//! headers.add(b"Content-Type", b"audio/x-unknown")?;
//! let head = ResponseHead::new(Version::Http10, 200, b"OK", headers)?;
//! channel.handle_upstream_head(Nanos(1), connection, &head, Framing::UntilClose);
//! channel.handle_upstream_bytes(Nanos(2), connection, b"music");
//! channel.handle_join(Nanos(3), two, ask.wants())?;
//! for listener in [one, two] {
//!     let heard: Vec<u8> = channel.pieces(listener, 100).flat_map(|piece| piece.to_vec()).collect();
//!     assert_eq!(heard, b"music");
//!     channel.handle_taken(Nanos(4), listener, heard.len());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod channel;
mod cursor;
pub mod framing;
pub mod icy;
pub mod limits;
mod live;
mod share;
mod store;

pub use channel::{
    Channel, Config, Connection, Counters, Effect, Ending, Failure, JoinError, ListenerId, Memory,
};
pub use cursor::{Piece, Pieces, Wants};
pub use live::{NoStore, NotLive};
pub use share::{Ask, Key, NotShared};
