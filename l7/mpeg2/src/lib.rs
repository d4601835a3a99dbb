//! MPEG-2 video on its way through a codec that can change while it plays. Sans-IO: bytes and
//! time come in as arguments, pictures and effects go out as data.
//!
//! ```text
//!  server ─▶ Demuxer ─▶ Feed ──────────▶ codec ─▶ Splitter ─▶ Transcoding ─▶ pictures
//!   TS, PS, ES   elementary │  └ from the last I picture ─▶ next codec ─▶ Splitter ─┘
//!                stream     └ Scanner: I pictures, and when they are shown
//! ```
//!
//! The codec itself is somebody else's process: [`Wish::arguments`] is what ffmpeg is told, and
//! [`Transcoding`] says what it is fed and when it starts and stops. Whatever the server sends,
//! a codec gets an elementary stream that begins with a sequence header and an I picture.
//! docs/guides/filters.md is the reference.
//!
//! Sources: ISO/IEC 13818-1 (program and transport streams), ISO/IEC 13818-2 (video), ISO/IEC
//! 11172-1 and -2 (MPEG-1, which both contain), ITU-T T.81 (JPEG).

#![forbid(unsafe_code)]

mod demux;
mod feed;
pub mod limits;
mod picture;
mod program;
mod scan;
mod split;
mod transcoding;
mod transport;
mod wish;

pub use demux::{Demuxer, Format, NotVideo};
pub use feed::Feed;
pub use picture::{Header, LEFT_OUT};
pub use scan::Cut;
pub use scan::Scanner;
pub use split::{Garbled, Splitter};
pub use transcoding::{CodecId, Effect, Ended, Transcoding};
pub use wish::{Pixels, Rate, Wish, WishError};
