//! HTTP content coding (RFC 9110, section 8.4.1): streaming encoders for gzip, deflate, br and zstd
//! behind one type. Sans-IO: takes a body in slices, appends the coded body to a `Vec`.
//!
//! ```text
//!   body ─▶ write ─▶ ┌ buffer of up to 64 KiB ┐ ─ finish ─▶ coded as a whole, by a shared codec
//!                    └───────────┬────────────┘
//!                                └ more, or flush ─▶ a stream of its own ─▶ coded incrementally
//! ```
//!
//! Most responses are small. They are buffered and coded in one piece: that takes half the time of
//! a stream, and no state but the bytes themselves. zlib would output nothing of them before their
//! end either. A larger body gets a stream, whose memory is bounded ([`memory_bytes`]) and which
//! returns to its [`Pool`] afterwards.
//!
//! The decision whether and how to encode is made by a module such as `services/compress`, in a
//! [`CodingRequest`]; [`choose_level`] chooses the level. The crate has no decoder, no clock and no
//! thread.
//!
//! ```
//! use content_coding::{Coding, Level, Pool};
//!
//! let pool = Pool::new();
//! let mut encoder = pool.encoder(Coding::Gzip, Level::DEFAULT);
//! let mut coded = Vec::new();
//! for part in [&b"<p>one</p>"[..], b"<p>two</p>"] {
//!      encoder.write(part, &mut coded)?;
//! }
//! encoder.flush(&mut coded)?; // A receiver of `coded` can decode both parts now.
//! encoder.finish(&mut coded)?;
//! # Ok::<(), content_coding::Failed>(())
//! ```

#![forbid(unsafe_code)]

mod brotli;
mod coding;
mod deflate;
mod encoder;
mod load;
mod memory;
mod pool;
mod request;
mod zstd;

pub use coding::{Coding, Failed, Level};
pub use encoder::{BUFFERED_MAX, Encoder, coded_length_max};

pub use load::{Load, Speed, choose_level, measured};
pub use memory::{SHARED_BYTES_MAX, memory_bytes};
pub use pool::{IDLE_BYTES_MAX, Pool};
pub use request::{CodingRequest, CodingRequestError, FUNCTION};
