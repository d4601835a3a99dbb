//! Transcoding of MPEG-2 video through a codec that can change while it plays. Sans-IO: takes bytes
//! and time as arguments, returns pictures and effects as data.
//!
//! ```text
//!   server ─▶ Demuxer ─▶ Feed ──────────▶ codec ─▶ Splitter ─▶ Transcoding ─▶ pictures
//!    TS, PS, ES   elementary │  └ from the last I picture ─▶ next codec ─▶ Splitter ─┘
//!                 stream     └ Scanner: I pictures and their presentation times
//! ```
//!
//! The codec is an external process: [`TranscodeParams::arguments`] is ffmpeg's command line, and
//! [`Transcoding`] determines its input and when it starts and stops. In every format of the
//! server, a codec gets an elementary stream that begins with a sequence header and an I picture.
//! docs/reference/stream-functions.md is the reference.
//!
//! Sources: ISO/IEC 13818-1 (program and transport streams), ISO/IEC 13818-2 (video), ISO/IEC
//! 11172-1 and -2 (MPEG-1, which both contain), ITU-T T.81 (JPEG).

#![forbid(unsafe_code)]

mod demux;
mod feed;
pub mod limits;
mod params;
mod picture;
mod program;
mod scan;
mod split;
mod transcoding;
mod transport;

pub use demux::{Demuxer, Format, NotVideo};
pub use feed::Feed;
pub use params::{ParamsError, Pixels, Rate, TranscodeParams};
pub use picture::{Header, LEFT_OUT};
pub use scan::Cut;
pub use scan::Scanner;
pub use split::{OutputError, Splitter};
pub use transcoding::{CodecId, Effect, End, Transcoding};
